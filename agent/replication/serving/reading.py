"""Reads a page from the store: batches, the selection (`page.select_page`), slices where a limit falls inside a batch;
and tag definitions.

Runs in the event loop or in a reader thread. Uses only the store's read methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agent.batch import Origin, cut
from agent.columns import BatchError
from agent.pages import Page, StoredBatch
from agent.positions import Position
from agent.replication.protocol.messages import (
    DEFINITIONS_MAX,
    HELD_BYTES,
    OFFSET_MAX,
    DefinitionRun,
    HeldRun,
    WantedDefinitions,
)
from agent.replication.protocol.ports import ServingStore
from agent.replication.serving.outcomes import Refuse
from agent.replication.serving.page import HeldThere, Piece, ReadPlan, select_page
from agent.signing.messages import signer_name
from agent.signing.records import key_id_in

RUN_BYTES, LENGTH_BYTES = 160, 6
"""One run of definitions in the header of an answer, and each of its lengths."""
INLINE_FACTS_MAX = 4096
"""Facts of a page that is read inline: about four batches of a busy node, or the tail of an idle one."""


@dataclass(frozen=True, slots=True)
class PageQuery:
    """What to read, for a requester that holds some already and knows some signers; and the largest packet."""

    plan: ReadPlan
    held: HeldThere
    packet_bytes_max: int
    signers_known: Sequence[str] | None = None

    @property
    def read_bytes_max(self) -> int:
        """The most to read from the store: a request may name eight times as much as fits into a packet (decision
        0057)."""
        return min(self.plan.bytes_max, self.packet_bytes_max)


@dataclass(frozen=True, slots=True)
class PageRead:
    """A page, ready to be packed."""

    entries: list[tuple[int, int, int]]
    batches: list[bytes]
    omitted: list[tuple[int, int]]
    holes: list[tuple[int, int, str]]
    last_offset: int
    end_offset: int
    signers: list[bytes] = field(default_factory=list)
    lives: list[Position] = field(default_factory=list)
    held_runs: Sequence[HeldRun] = ()

    @property
    def facts(self) -> int:
        """How many facts are sent."""
        return sum(last - first + 1 for first, last, _ in self.entries)


def is_inline(store: ServingStore, plan: ReadPlan) -> bool:
    """Whether a page is read by the event loop itself: a small one of the newest batches, which are in memory. That
    takes a third of the time of a switch to a thread and back. Any other may wait for the disk, or has many batches."""
    facts = min(plan.limit, plan.until(store.end_offset(plan.stream)) - plan.after_offset)
    return facts <= INLINE_FACTS_MAX and store.is_in_memory(plan.stream, plan.after_offset)


def read_page(store: ServingStore, asked: PageQuery) -> PageRead | Refuse:
    """The page that `asked` describes, or why there is none. It ends where the log ended when the reading began, and
    before a life more than a page may name."""
    plan = asked.plan
    lives = store.log(plan.stream).between(plan.after_offset, plan.until(OFFSET_MAX))
    until = lives[-1].offset if lives else plan.after_offset
    page = store.read(plan.stream, plan.after_offset, plan.limit, asked.read_bytes_max, until_offset=until)
    return _select(store, asked, plan._replace(until_offset=until), page, lives)


def read_sequences(store: ServingStore, origin: Origin, asked: PageQuery) -> PageRead | Refuse:
    """As `read_page`, of one origin, by its sequences. Only whole batches: the requester stores them."""
    plan = asked.plan
    first, last = plan.after_offset + 1, plan.until(OFFSET_MAX)
    asked_for = plan.stream, origin, first, last, plan.limit, asked.read_bytes_max
    return _select_whole(store, asked, store.reader.read_sequences(*asked_for))


def read_whole(store: ServingStore, asked: PageQuery) -> PageRead | Refuse:
    """As `read_page`, but the first and the last batch are sent whole too: only a whole batch can be proven."""
    plan = asked.plan
    limits = plan.limit, asked.read_bytes_max
    page = store.read(plan.stream, plan.after_offset, *limits, until_offset=plan.until_offset)
    return _select_whole(store, asked, page)


def _select_whole(store: ServingStore, asked: PageQuery, page: Page) -> PageRead | Refuse:
    plan, limit, after = asked.plan, asked.plan.limit, asked.plan.after_offset
    if page.batches:
        start = page.batches[0]
        limit, after = max(limit, start.last_offset - start.first_offset + 1), min(after, start.first_offset - 1)
    return _select(store, asked, ReadPlan(plan.stream, after, limit, plan.bytes_max), page)


def _select(
    store: ServingStore, asked: PageQuery, plan: ReadPlan, page: Page, lives: Sequence[Position] = ()
) -> PageRead | Refuse:
    """What is sent of a page of the store. `lives`: those of the log, up to the end of the page."""
    signers = _read_signers(store, page.batches, asked)
    sizes = {key_id: sum(len(der) * 4 // 3 + 8 for der in certificates) for key_id, certificates in signers.items()}
    chosen = select_page(plan, page, asked.held, asked.packet_bytes_max, sizes)
    if isinstance(chosen, Refuse):
        return chosen
    entries, batches, key_ids = list[tuple[int, int, int]](), list[bytes](), dict[bytes, None]()
    for piece in chosen.pieces:
        try:
            sealed = piece.batch.sealed if piece.is_whole else _slice(piece)
        except BatchError as error:  # bit rot: no other step opens the batch
            return Refuse("store_unavailable", f"the batch at offset {piece.batch.first_offset} is damaged: {error}")
        if piece.is_whole and (record := piece.batch.batch.record):
            key_ids[key_id_in(record)] = None
        entries.append((piece.first_offset, piece.last_offset, len(sealed)))
        batches.append(sealed)
    return PageRead(
        entries,
        batches,
        list(chosen.omitted),
        [(hole.first_offset, hole.last_offset, hole.reason) for hole in chosen.holes],
        chosen.last_offset,
        max(page.end_offset, chosen.last_offset),
        [der for key_id in key_ids for der in signers.get(key_id, ())],
        _lives_read(lives, plan.after_offset, chosen.last_offset, page.batches),
        chosen.held_runs,
    )


def _lives_read(
    lives: Sequence[Position], after_offset: int, last_offset: int, batches: Sequence[StoredBatch]
) -> list[Position]:
    """The lives of a page up to `last_offset`, each with its last offset in it and the digest of the batch that ends
    there."""
    found = list[Position]()
    for life, offset, _ in lives:
        if after_offset >= last_offset:
            break
        after_offset = min(offset, last_offset)
        digests = (batch.batch.digest for batch in batches if batch.last_offset == after_offset)
        found.append(Position(life, after_offset, next(digests, b"")))
    return found


def _read_signers(
    store: ServingStore, batches: Sequence[StoredBatch], asked: PageQuery
) -> dict[bytes, Sequence[bytes]]:
    """By key id, the certificates that the records of batches need beyond those the requester knows. One key may have
    several; a receiver takes what it trusts."""
    if asked.signers_known is None:
        return {}
    signed = [batch.batch for batch in batches if batch.batch.header.is_signed and not asked.held.has(batch)]
    named = {(batch.header.origin.zone, key_id_in(batch.record)) for batch in signed}
    unknown = {key_id for zone, key_id in named if signer_name(zone, key_id) not in asked.signers_known}
    return {key_id: store.reader.signers([key_id]) for key_id in sorted(unknown)}


def read_definitions(
    store: ServingStore, wanted: Sequence[WantedDefinitions], bytes_max: int
) -> tuple[list[DefinitionRun], list[bytes]]:
    """The wanted definitions, in their order, as many as the limit allows and at least one."""
    runs, bodies, left = list[DefinitionRun](), list[bytes](), bytes_max - RUN_BYTES
    for asked in wanted:
        chain = store.reader.definitions(asked.zone, bytes.fromhex(asked.digest), list(map(bytes.fromhex, asked.held)))
        if chain is None:
            continue
        count = 0
        for body in chain.bodies[: DEFINITIONS_MAX - len(bodies)]:
            left -= len(body) + LENGTH_BYTES
            if left < 0 and bodies:
                break
            bodies.append(body)
            count += 1
        if count:
            after = chain.after.digest[:HELD_BYTES].hex() if chain.after.count else None
            lengths = [len(body) for body in chain.bodies[:count]]
            runs.append(DefinitionRun(zone=asked.zone, digest=asked.digest, after=after, lengths=lengths))
            left -= RUN_BYTES
        if count < len(chain.bodies) or left < 0:
            break
    return runs, bodies


def _slice(piece: Piece) -> bytes:
    """The part of a batch that a small limit, or a frontier inside it, asks for."""
    start = piece.batch.first_offset
    return cut(piece.batch.batch, piece.first_offset - start, piece.last_offset - start + 1).sealed

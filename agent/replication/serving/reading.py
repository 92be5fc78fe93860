"""Reading a page from the store: what happens between the decision to answer and the answer's bytes.

One call, at once or in a reader thread: batches, the definitions they need, the choice (`page.select_page`), and slices where a
small limit asks for one.  Touches nothing but the store's read side, so it may run beside anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from agent.batch import DIGEST_BYTES, BatchError, Origin, cut, parse
from agent.replication.protocol.messages import OFFSET_MAX, DefinitionEntry
from agent.replication.protocol.ports import Page, ServingStore, StoredBatch
from agent.replication.serving.page import Gone, ReadPlan, Refuse, Row, select_page

DEFINITIONS_READ_MAX = 4096
"""Definitions read for one page: more than fit in one."""


@dataclass(frozen=True, slots=True)
class PageAsked:
    """What to read, for whom, and how much his broker lets through."""

    plan: ReadPlan
    asking_zone: str
    definitions_known: Mapping[str, int]
    packet_bytes_max: int


@dataclass(frozen=True, slots=True)
class PageRead:
    """A page, ready to be packed."""

    entries: list[tuple[int, int, int]]
    batches: list[bytes]
    omitted: list[tuple[int, int]]
    holes: list[tuple[int, int, str]]
    definitions: list[DefinitionEntry]
    last_offset: int
    end_offset: int
    omitted_digest: bytes | None = None  # of the batch at the page's end, where that is left out

    @property
    def end(self) -> tuple[int, bytes] | None:
        """Where the last batch of the page ends, and its digest; None where there is none."""
        last_sent = self.entries[-1][1] if self.entries else 0
        if self.omitted and self.omitted[-1][1] > last_sent:
            return None if self.omitted_digest is None else (self.omitted[-1][1], self.omitted_digest)
        return (last_sent, self.batches[-1][-DIGEST_BYTES:]) if self.batches else None

    @property
    def facts(self) -> int:
        return sum(last - first + 1 for first, last, _ in self.entries)


def read_page(store: ServingStore, asked: PageAsked) -> PageRead | Refuse:
    """The page that `asked` describes, or why there can be none."""
    plan = asked.plan
    page = store.read(plan.stream, plan.after_offset, plan.limit, plan.bytes_max, until_offset=plan.until_offset)
    return _chosen(store, asked, page)


def read_sequences(store: ServingStore, origin: Origin, asked: PageAsked) -> PageRead | Refuse:
    """As `read_page`, of one origin, with sequences for places. Whole batches whatever the limit: they are asked for to be stored."""
    plan = asked.plan
    first, last = plan.after_offset + 1, plan.until(OFFSET_MAX)
    page = store.read_sequences(plan.stream, origin, first, last, plan.limit, plan.bytes_max)
    limit, after = plan.limit, plan.after_offset
    if page.batches:
        head = page.batches[0]
        limit, after = max(limit, head.last_offset - head.first_offset + 1), min(after, head.first_offset - 1)
    whole = replace(asked, plan=ReadPlan(plan.stream, after, limit, plan.bytes_max))
    return _chosen(store, whole, page)


def _chosen(store: ServingStore, asked: PageAsked, page: Page) -> PageRead | Refuse:
    plan = asked.plan
    rows = [
        Row(
            each.first_offset,
            each.last_offset,
            len(each.sealed),
            each.origin.zone,
            str(each.origin),
            each.definition_count,
        )
        for each in page.batches
    ]
    definitions = _read_definitions(store, page.batches, asked)
    offered = {origin: [len(body) for body in bodies] for origin, bodies in definitions.items()}
    known = asked.definitions_known
    gone = [Gone(hole.first_offset, hole.last_offset, hole.reason) for hole in page.holes]
    chosen = select_page(plan, rows, gone, asked.asking_zone, offered, known, asked.packet_bytes_max)
    if isinstance(chosen, Refuse):
        return chosen
    entries, batches = [], []
    for piece in chosen.pieces:
        stored = page.batches[piece.row]
        try:
            sealed = stored.sealed if piece.is_whole else _slice(stored, piece.first_offset, piece.last_offset)
        except BatchError as error:  # bit rot: named here, for nobody reads it otherwise
            return Refuse("store_unavailable", f"the batch at offset {stored.first_offset} is damaged: {error}")
        entries.append((piece.first_offset, piece.last_offset, len(sealed)))
        batches.append(sealed)
    return PageRead(
        entries,
        batches,
        list(chosen.omitted),
        [(one.first_offset, one.last_offset, one.reason) for one in chosen.gone],
        [
            entry
            for origin, count in chosen.definitions.items()
            for entry in _entries(origin, known.get(origin, 0), definitions[origin][:count])
        ],
        chosen.last_offset,
        max(page.end_offset, chosen.last_offset),
        _digest_at(page.batches, chosen.omitted[-1][1]) if chosen.omitted else None,
    )


def _digest_at(batches: Sequence[StoredBatch], last_offset: int) -> bytes | None:
    return next((each.sealed[-DIGEST_BYTES:] for each in batches if each.last_offset == last_offset), None)


def _read_definitions(store: ServingStore, batches: Sequence[StoredBatch], asked: PageAsked) -> dict[str, list[bytes]]:
    """Per origin, the definitions its batches need beyond those the asker knows."""
    wanted: dict[Origin, int] = {}
    for each in batches:
        if each.origin.zone != asked.asking_zone:
            wanted[each.origin] = max(wanted.get(each.origin, 0), each.definition_count)
    found = {}
    for origin, count in wanted.items():
        known = asked.definitions_known.get(str(origin), 0)
        if count > known:
            until = min(count, known + DEFINITIONS_READ_MAX)
            found[str(origin)] = list(store.definitions(origin, known, until))
    return found


def _entries(origin: str, known: int, bodies: list[bytes]) -> list[DefinitionEntry]:
    zone, _, epoch = origin.partition("/")
    return [
        DefinitionEntry(zone=zone, epoch=epoch, number=known + 1 + index, definition=msgspec.Raw(body))
        for index, body in enumerate(bodies)
    ]


def _slice(stored: StoredBatch, first_offset: int, last_offset: int) -> bytes:
    """The part of a batch that a small limit, or a frontier in its middle, asks for."""
    start = first_offset - stored.first_offset
    return cut(parse(stored.sealed), start, last_offset - stored.first_offset + 1).sealed

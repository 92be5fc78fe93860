"""Page selection: which batches and holes go into one page. Core: no IO, no clock.

- A batch is sent whole. Only the first one is sliced, where the limit falls inside it or a range begins or ends inside
  it. A node requests with a limit above the largest batch and never receives a slice.
- Facts that were released or are damaged are named as holes. A page never skips offsets silently.
- Facts that the requester holds are left out and named as omitted: its own, which after a restore come home by
  comparison, and whole batches within what it names as held. Of these the page names each run with the digest of
  its last batch, so that the requester sees whether they are the batches that it holds (decision 0066).
- A page stays within the requester's `bytes_max` and within the broker's packet size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agent.batch import Origin
from agent.pages import BATCHES_MAX, BatchEnd, Hole, Page, StoredBatch
from agent.replication.protocol.messages import HELD_RUNS_MAX, SIGNERS_MAX, HeldRun
from agent.replication.serving.outcomes import Refuse
from agent.signing.records import key_id_in

ANSWER_OVERHEAD_BYTES = 1024
"""MQTT header, topic, correlation and the fixed fields of an answer's header."""
BATCH_OVERHEAD_BYTES = 64
"""One entry of `batches`: three numbers of up to 19 digits."""
HOLE_BYTES = 128
"""One entry of `holes`: two numbers and a reason of up to 64 characters."""
HELD_RUN_BYTES = 160
"""One entry of `held_runs`: a zone, a life, two numbers and a digest."""
SIGNERS_BYTES_MAX = 128 * 1024
"""Certificates are sent in the header, which has a limit of its own; those of one key have at most 88 kB."""


class ReadPlan(NamedTuple):
    """What to read: up to `limit` facts and `bytes_max` bytes after `after_offset`, not beyond `until_offset` (None: to
    the end)."""

    stream: str
    after_offset: int
    limit: int
    bytes_max: int
    until_offset: int | None = None

    def until(self, offset: int) -> int:
        """The lower of an offset and `until_offset`."""
        return offset if self.until_offset is None else min(offset, self.until_offset)


@dataclass(frozen=True, slots=True)
class HeldThere:
    """What the requester holds and is not sent: the facts of its own zones, and sequences of lives."""

    zones: frozenset[str] = frozenset()
    spans: Sequence[tuple[str, str, int, int]] = ()

    def has(self, batch: StoredBatch) -> bool:
        """Whether it holds all of a batch. Its chain is then known there, too."""
        header = batch.batch.header
        zone, life = header.origin.zone, header.origin.life.hex() if self.spans else ""
        return zone in self.zones or any(
            (zone, life) == span[:2] and span[2] <= header.first_sequence and header.last_sequence <= span[3]
            for span in self.spans
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """A batch of the page, and the offsets to send of it."""

    batch: StoredBatch
    first_offset: int
    last_offset: int

    @property
    def is_whole(self) -> bool:
        """Whether all of the batch is sent."""
        return (self.first_offset, self.last_offset) == (self.batch.first_offset, self.batch.last_offset)

    @property
    def is_to_end(self) -> bool:
        """Whether the batch is sent to its last fact, so that its successor may follow."""
        return self.last_offset == self.batch.last_offset


@dataclass(frozen=True, slots=True)
class Selection:
    """What goes into the page."""

    pieces: tuple[Piece, ...]
    omitted: tuple[tuple[int, int], ...]
    holes: tuple[Hole, ...]
    last_offset: int
    held_runs: tuple[HeldRun, ...] = ()
    """The runs of batches that were left out as held."""


def select_page(
    plan: ReadPlan,
    page: Page,
    held: HeldThere,
    packet_bytes_max: int,
    signers: Mapping[bytes, int] | None = None,
) -> Selection | Refuse:
    """Choose which of the batches and holes that were read go into one page.

    `signers` are the bytes of the certificates, by key id, that the requester lacks. The first batch may exceed
    `plan.bytes_max`, or the reader would never advance, but not the packet.
    """
    batches = page.batches[:BATCHES_MAX]
    selection = _Selection(plan, packet_bytes_max - ANSWER_OVERHEAD_BYTES, signers or {})
    holes = list(reversed(page.holes[:BATCHES_MAX]))
    taken, why = 0, ""
    for batch in batches:
        while holes and holes[-1].first_offset < batch.first_offset:
            selection.add_hole(holes.pop())
        if held.has(batch):
            if not selection.omit(batch, is_own=batch.origin.zone in held.zones):
                break
            taken += 1
            continue
        if selection.is_too_large(batch):
            size = len(batch.sealed)
            why = f"the batch at offset {batch.first_offset} has {size} bytes, a packet takes {packet_bytes_max}"
            break
        if not selection.add(batch):
            break
        taken += 1
    # A hole behind a batch that was left out belongs to the next page, which begins at that batch.
    while holes and taken == len(page.batches):
        selection.add_hole(holes.pop())
    chosen = selection.frozen()
    if why and not (chosen.pieces or chosen.omitted or chosen.holes):
        return Refuse("batch_exceeds_packet", why)
    return chosen


class _Selection:
    """The page while it is being filled. `room` bytes fit into the packet."""

    def __init__(self, plan: ReadPlan, room: int, signers: Mapping[bytes, int]) -> None:
        self._plan = plan
        self._facts_left = plan.limit
        self._room_left = room
        self._spare_bytes = max(0, room - plan.bytes_max)  # the part of the room for a large first batch only
        self._signers = signers
        self._signers_sent = set[bytes]()
        self._pieces: list[Piece] = []
        self._omitted: list[tuple[int, int]] = []
        self._held_runs = dict[tuple[Origin, BatchEnd], int]()  # by their ends, the first sequence of each
        self._holes: list[Hole] = []

    @property
    def _bytes_left(self) -> int:
        return self._room_left - self._spare_bytes

    def is_empty(self) -> bool:
        return not self._pieces

    def is_too_large(self, batch: StoredBatch) -> bool:
        """Whether a batch does not fit even as the only one of its page."""
        return self.is_empty() and self._size(batch) > self._room_left + HOLE_BYTES * len(self._holes)

    def omit(self, batch: StoredBatch, *, is_own: bool) -> bool:
        """Leave out a batch that the requester holds, or its own facts; neighbours are joined. False if the page has
        named as many runs as it may."""
        if not is_own and not self._extend_run(batch):
            return False
        first, last = max(batch.first_offset, self._plan.after_offset + 1), self._plan.until(batch.last_offset)
        if self._omitted and self._omitted[-1][1] == first - 1:
            first = self._omitted.pop()[0]
        self._omitted.append((first, last))
        return True

    def _extend_run(self, batch: StoredBatch) -> bool:
        """A batch continues the run whose last batch is its predecessor, else it begins one."""
        header, digest = batch.batch.header, batch.batch.digest
        before = header.origin, BatchEnd(header.first_sequence - 1, header.previous_digest)
        first = self._held_runs.pop(before, None)
        if first is None:
            if len(self._held_runs) >= HELD_RUNS_MAX:
                return False
            first = header.first_sequence
            self._room_left -= HELD_RUN_BYTES
        self._held_runs[header.origin, BatchEnd(header.last_sequence, digest)] = first
        return True

    def add_hole(self, hole: Hole) -> None:
        self._holes.append(hole)
        self._room_left -= HOLE_BYTES

    def add(self, batch: StoredBatch) -> bool:
        """Add the batch, or as much of it as the limit allows; True when the next one may be tried."""
        if self._facts_left <= 0:
            return False
        first = max(batch.first_offset, self._plan.after_offset + 1)
        count = self._plan.until(batch.last_offset) - first + 1
        size = self._size(batch)
        if size > self._bytes_left and not (self.is_empty() and not self._holes):
            return False
        if count > self._facts_left and self._pieces:
            return False
        count = min(count, self._facts_left)
        if not self._add_signer(batch):
            return False
        piece = Piece(batch, first, first + count - 1)
        self._pieces.append(piece)
        self._facts_left -= count
        self._room_left -= size
        return piece.is_to_end

    def _size(self, batch: StoredBatch) -> int:
        size = len(batch.sealed) + BATCH_OVERHEAD_BYTES
        key_id = key_id_in(batch.batch.record)
        return size if key_id in self._signers_sent else size + self._signers.get(key_id, 0)

    def _add_signer(self, batch: StoredBatch) -> bool:
        """Add the certificates of the batch's key; False if the page has reached a limit of certificates."""
        if (key_id := key_id_in(batch.batch.record)) in self._signers:
            sent = self._signers_sent | {key_id}
            if len(sent) > SIGNERS_MAX or sum(self._signers.get(signer, 0) for signer in sent) > SIGNERS_BYTES_MAX:
                return False
            self._signers_sent = sent
        return True

    def frozen(self) -> Selection:
        reached = [piece.last_offset for piece in self._pieces] + [last for _, last in self._omitted]
        reached += [hole.last_offset for hole in self._holes]
        last_offset = max(reached, default=self._plan.after_offset)
        runs = tuple(
            (of.zone, of.life.hex(), first, end.last_sequence, end.digest.hex())
            for (of, end), first in self._held_runs.items()
        )
        return Selection(tuple(self._pieces), tuple(self._omitted), tuple(self._holes), last_offset, runs)

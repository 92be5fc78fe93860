"""What goes into a page: the choice between batches, definitions and limits, as one decision.

A core, like `sender`: it is told what was read from the log and what the asker knows, and says what to send.  Its rules:

- Batches go out whole.  Only when the asker's limit falls inside the first one is that one sliced, for a reader with a
  small appetite, or where the range that he asked for begins or ends inside one; a node asks with a limit above the largest
  batch, and for whole batches, and never meets a slice.
- A batch goes out only when each definition it needs is known to the asker or in the same page.  Definitions that do not
  fit beside batches make pages of their own, so that a plant with ten thousand tags starts like one with ten.
- A page with offsets brings the definitions of its own batches and no others: whoever stores it believes a definition only
  as far as a batch beside it vouches for it, and would take the others for stored.
- What the store has let go of, or the disk has damaged, is named in its place: a page never skips without a word.
- Facts whose origin is the asking zone are left out and named as omitted: nobody is sent his own facts.
- A page stays within the asker's `bytes_max` and within what the broker's packet holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent.replication.protocol.messages import BATCHES_MAX

ANSWER_OVERHEAD_BYTES = 1024
"""MQTT header, topic, correlation and the fixed fields of an answer's header."""
BATCH_OVERHEAD_BYTES = 64
"""One entry of `batches`: three numbers of up to 19 digits."""
HOLE_BYTES = 128
"""One entry of `holes`: two numbers and a reason of up to 64 characters."""
DEFINITION_OVERHEAD_BYTES = 160
"""One entry of `definitions` without the definition."""
DEFINITIONS_BYTES_MAX = 512 * 1024
"""They travel in the header, which has a limit of its own."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """An error answer: a code of the table and the sentence that names the thing."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What to read: up to `limit` facts and `bytes_max` bytes after `after_offset`, as far as `until_offset` (None: as there are)."""

    stream: str
    after_offset: int
    limit: int
    bytes_max: int
    until_offset: int | None = None

    def until(self, offset: int) -> int:
        """An offset, or the end of what was asked for where that lies before it."""
        return offset if self.until_offset is None else min(offset, self.until_offset)


@dataclass(frozen=True, slots=True)
class Row:
    """A batch that was read: where it lies, its size, whose facts it holds, how many definitions they need."""

    first_offset: int
    last_offset: int
    sealed_bytes: int
    origin_zone: str
    origin: str
    definition_count: int


@dataclass(frozen=True, slots=True)
class Gone:
    """Offsets whose facts are no longer here, and why."""

    first_offset: int
    last_offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A batch of the page: which row, and the offsets to send of it; whole unless the limit falls inside."""

    row: int
    first_offset: int
    last_offset: int
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Selection:
    """What goes into the page.  `definitions` maps an origin to how many of the offered definitions are sent."""

    pieces: tuple[Piece, ...]
    omitted: tuple[tuple[int, int], ...]
    gone: tuple[Gone, ...]
    definitions: Mapping[str, int]
    last_offset: int


def select_page(
    plan: ReadPlan,
    rows: Sequence[Row],
    gone: Sequence[Gone],
    asking_zone: str,
    offered: Mapping[str, Sequence[int]],
    known: Mapping[str, int],
    packet_bytes_max: int,
) -> Selection | Refuse:
    """Choose what of the rows read goes into one page; what is `gone` between them goes along in its place.

    `offered` holds, per origin, the sizes of the definitions read beyond those `known` to the asker.  A batch goes out
    only when every definition it needs is known or in this page; a page that has room for definitions only is a page.
    The first batch may exceed `bytes_max` (else nothing would ever move), never the packet.  Whole batches are sent
    unless the limit falls inside the first.
    """
    selection = _Selection(plan, min(plan.bytes_max, packet_bytes_max - ANSWER_OVERHEAD_BYTES))
    left = list(reversed(gone[:BATCHES_MAX]))
    is_whole = len(rows) <= BATCHES_MAX
    for index, row in enumerate(rows[:BATCHES_MAX]):
        while left and left[-1].first_offset < row.first_offset:
            selection.pass_over(left.pop())
        is_whole = False  # until this row is in
        if row.origin_zone == asking_zone:
            selection.omit(row)
            is_whole = index + 1 == len(rows)
            continue
        if not selection.take_definitions(row, offered.get(row.origin, ()), known.get(row.origin, 0)):
            break
        if selection.is_empty() and row.sealed_bytes + BATCH_OVERHEAD_BYTES + ANSWER_OVERHEAD_BYTES > packet_bytes_max:
            size = row.sealed_bytes
            return Refuse(
                "batch_exceeds_packet",
                f"the batch at offset {row.first_offset} has {size} bytes, a packet takes {packet_bytes_max}",
            )
        if not selection.take(index, row):
            break
        is_whole = index + 1 == len(rows)
    while left and is_whole:
        selection.pass_over(left.pop())
    page = selection.frozen()
    if rows and not page.pieces and not page.omitted and not page.gone and not page.definitions:
        return Refuse(
            "store_unavailable", f"definitions for the batch at offset {rows[0].first_offset} are missing here"
        )
    return page


class _Selection:
    """The page while it fills."""

    def __init__(self, plan: ReadPlan, bytes_max: int) -> None:
        self._plan = plan
        self._last_offset = plan.after_offset
        self._facts_left = plan.limit
        self._bytes_left = bytes_max
        self._definition_bytes_left = min(bytes_max, DEFINITIONS_BYTES_MAX)
        self._pieces: list[Piece] = []
        self._omitted: list[tuple[int, int]] = []
        self._gone: list[Gone] = []
        self._definitions: dict[str, int] = {}
        self._vouched: dict[str, int] = {}  # of these, those that the pieces need

    def is_empty(self) -> bool:
        return not self._pieces and not self._definitions

    def omit(self, row: Row) -> None:
        first, last = max(row.first_offset, self._plan.after_offset + 1), self._plan.until(row.last_offset)
        if self._omitted and self._omitted[-1][1] == first - 1:
            first = self._omitted.pop()[0]
        self._omitted.append((first, last))
        self._last_offset = last

    def pass_over(self, gone: Gone) -> None:
        self._gone.append(gone)
        self._bytes_left -= HOLE_BYTES
        self._last_offset = gone.last_offset

    def take_definitions(self, row: Row, sizes: Sequence[int], known: int) -> bool:
        """Add the definitions the row still needs, as far as they fit; True when none is missing afterwards."""
        taken = self._definitions.get(row.origin, 0)
        while known + taken < row.definition_count and taken < len(sizes):
            size = sizes[taken] + DEFINITION_OVERHEAD_BYTES
            if size > min(self._bytes_left, self._definition_bytes_left) and not self.is_empty():
                break
            self._bytes_left -= size
            self._definition_bytes_left -= size
            taken += 1
            self._definitions[row.origin] = taken
        return known + taken >= row.definition_count

    def take(self, index: int, row: Row) -> bool:
        """Add the row, or as much of it as the limit allows; True when the next row may be tried."""
        first = max(row.first_offset, self._plan.after_offset + 1)
        count = self._plan.until(row.last_offset) - first + 1
        size = row.sealed_bytes + BATCH_OVERHEAD_BYTES
        if size > self._bytes_left and not (self.is_empty() and not self._gone):
            return False
        if count > self._facts_left and self._pieces:
            return False
        count = min(count, self._facts_left)
        piece = Piece(index, first, first + count - 1, is_whole=count == row.last_offset - row.first_offset + 1)
        self._pieces.append(piece)
        self._last_offset = piece.last_offset
        self._facts_left -= count
        self._bytes_left -= size
        if row.origin in self._definitions:
            self._vouched[row.origin] = self._definitions[row.origin]
        return self._facts_left > 0 and piece.last_offset == row.last_offset

    def frozen(self) -> Selection:
        has_offsets = self._pieces or self._omitted or self._gone
        definitions = dict(self._vouched if has_offsets else self._definitions)
        return Selection(tuple(self._pieces), tuple(self._omitted), tuple(self._gone), definitions, self._last_offset)

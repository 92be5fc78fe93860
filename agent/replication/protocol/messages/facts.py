"""Facts, page by page: for a durable reader, by a range of offsets, or by the sequences of an origin; and how far a reader has come."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages.fields import (
    OFFSET_MAX,
    AnswerBody,
    Digest,
    Epoch,
    Lease,
    Name,
    Offset,
    OriginName,
    Part,
    Position,
    Reason,
    RequestBody,
    StartText,
    Time,
    Zone,
    check_forwards,
    check_range,
    operation_of,
)

BATCHES_MAX = 2048
"""Batches of one page, so that a stream of single facts does not make headers larger than their facts."""
LIMIT_MAX = 1_000_000
BYTES_MAX_MIN, BYTES_MAX_MAX = 1024, 8 * 1024 * 1024
BYTES_MAX_DEFAULT = 256 * 1024
"""Where paho and one broker carry most, measured; larger pages delay whatever waits behind them."""
WAIT_MS_MAX = 60_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Confirm(Part, frozen=True):
    """Offsets `first_offset`..`last_offset` are durable at the asker; without `first_offset`, all up to `last_offset`."""

    last_offset: Position
    first_offset: Position | None = None

    def check(self, operation: str) -> None:
        """Raise MalformedMessage where the range is backwards."""
        if self.first_offset is not None and self.first_offset > self.last_offset:
            why = f"confirm from {self.first_offset} to {self.last_offset} is backwards"
            raise MalformedMessage(why, "bad_request", operation)


class TakenEnd(Part, frozen=True):
    """The last batch that the asker took of the log asked: the offset there at which it ends, and its digest."""

    last_offset: Position
    digest: Digest


class HeldEnd(Part, frozen=True):
    """The last fact that the asked store recorded itself, in its present epoch, of those the asker holds by whatever path: its sequence,
    where a batch ends, and that batch's digest."""

    last_sequence: Position
    digest: Digest


class FetchFacts(RequestBody, frozen=True, tag="FetchFacts", tag_field="operation"):
    """A page of facts from the consumer's frontier, or from `after_offset`, once there is one or `wait_ms` are over."""

    consumer_name: Name
    limit: int
    bytes_max: int = BYTES_MAX_DEFAULT
    wait_ms: int = 0
    stream: Name | None = None
    start: Time | StartText = "oldest"
    epoch: Epoch | None = None
    after_offset: Offset | None = None
    confirm: Confirm | None = None
    lease: Lease | None = None
    lease_after: Lease | None = None
    definitions_known: dict[OriginName, Offset] = {}
    taken: TakenEnd | None = None
    held: HeldEnd | None = None
    told: Offset | None = None

    def check(self) -> None:
        check_page(self.limit, self.bytes_max, "FetchFacts")
        check_range("wait_ms", self.wait_ms, 0, WAIT_MS_MAX, "FetchFacts")
        _ = self.starts
        if self.confirm is not None:
            self.confirm.check("FetchFacts")

    @property
    def starts(self) -> Literal["oldest", "end"] | int:
        """Where a consumer begins that this request registers: oldest, end, or milliseconds since 1970. Raises MalformedMessage."""
        start = self.start
        match start:
            case int():
                return start
            case "oldest":
                return "oldest"
            case "end":
                return "end"
        try:
            found = datetime.fromisoformat(start)
        except ValueError:
            found = None
        if found is None or found.tzinfo is None or found < _EPOCH:
            why = f"start is {start!r}, no time in a zone, nor oldest or end"
            raise MalformedMessage(why, "bad_request", "FetchFacts")
        return (found - _EPOCH) // timedelta(milliseconds=1)


class FetchRange(RequestBody, frozen=True, tag="FetchRange", tag_field="operation"):
    """Facts `first_offset` to `last_offset` of a stream, a page at a time: nothing is registered, confirmed or waited for."""

    stream: Name
    first_offset: Position
    last_offset: Position
    limit: int
    bytes_max: int = BYTES_MAX_DEFAULT
    epoch: Epoch | None = None
    definitions_known: dict[OriginName, Offset] = {}

    def check(self) -> None:
        check_page(self.limit, self.bytes_max, "FetchRange")
        check_forwards(self.first_offset, self.last_offset, "FetchRange")


class FetchSequences(RequestBody, frozen=True, tag="FetchSequences", tag_field="operation"):
    """Facts `first_sequence` to `last_sequence` of one origin, a page of whole batches at a time, the asker's own included."""

    stream: Name
    origin: OriginName
    first_sequence: Position
    last_sequence: Position
    limit: int
    bytes_max: int = BYTES_MAX_DEFAULT
    definitions_known: dict[OriginName, Offset] = {}

    def check(self) -> None:
        check_page(self.limit, self.bytes_max, "FetchSequences")
        check_forwards(self.first_sequence, self.last_sequence, "FetchSequences")


class ConfirmReceipt(RequestBody, frozen=True, tag="ConfirmReceipt", tag_field="operation"):
    """Facts up to `offset` (from `first_offset`, if given) are durable at the asker."""

    consumer_name: Name
    offset: Position
    first_offset: Position | None = None
    epoch: Epoch | None = None
    lease: Lease | None = None

    @property
    def confirm(self) -> Confirm:
        """The range that is confirmed."""
        return Confirm(last_offset=self.offset, first_offset=self.first_offset)

    def check(self) -> None:
        self.confirm.check("ConfirmReceipt")


class GetCursor(RequestBody, frozen=True, tag="GetCursor", tag_field="operation"):
    """Where a consumer stands."""

    consumer_name: Name


class DefinitionEntry(Part, frozen=True):
    """Definition `number` of one origin, as the canonical JSON the origin made; the bytes are kept as they came."""

    zone: Zone
    epoch: Epoch
    number: Position
    definition: msgspec.Raw


class PageAnswer(AnswerBody, frozen=True):
    """One page of a stream.  `batches`: (first_offset, last_offset, bytes in the attachment), in order of offset.

    `omitted` are ranges of offsets left out because their facts are the asker's own: he has them.  `holes` are
    (first_offset, last_offset, reason) of facts that are no longer here: `expired` (released before the asker confirmed
    them) or `damaged`; any other reason means the same.  All together cover a contiguous run of offsets.  `more` says that
    what was asked for goes on beyond the page.
    """

    stream: Name
    batches: list[tuple[Position, Position, Position]] = []
    omitted: list[tuple[Position, Position]] = []
    holes: list[tuple[Position, Position, Reason]] = []
    definitions: list[DefinitionEntry] = []
    more: bool = False

    def end(self) -> int:
        """What no place of the page lies beyond."""
        raise NotImplementedError

    def covered(self) -> tuple[int, int] | None:
        """First and last offset of the page; None when it covers none."""
        runs = self.runs()
        return (runs[0][0], runs[-1][1]) if runs else None

    def runs(self) -> list[tuple[int, int]]:
        """All ranges of offsets of the page, batches, omitted ones and holes, in order."""
        return sorted([(first, last) for first, last, _ in (*self.batches, *self.holes)] + list(self.omitted))

    def attached(self) -> list[int]:
        return [length for _, _, length in self.batches]

    def check(self) -> None:
        """A page covers one contiguous run of offsets, not beyond the end it states."""
        operation = operation_of(self)
        parts = max(len(self.batches), len(self.omitted), len(self.holes))
        if parts > BATCHES_MAX:
            raise MalformedMessage(f"page of {parts} batches or ranges, at most {BATCHES_MAX}", operation=operation)
        runs = self.runs()
        for (first, last), (following, _) in zip(runs, [*runs[1:], (runs[-1][1] + 1, 0)] if runs else [], strict=True):
            if not first <= last == following - 1:
                raise MalformedMessage(f"page not contiguous at offset {last}", operation=operation)
        if runs and runs[-1][1] > self.end():
            raise MalformedMessage(f"page to {runs[-1][1]}, beyond its end {self.end()}", operation=operation)


class OffsetsAnswer(PageAnswer, frozen=True, kw_only=True):
    """A page whose places are offsets."""

    end_offset: Offset

    def end(self) -> int:
        return self.end_offset


class FetchAnswer(OffsetsAnswer, frozen=True, kw_only=True, tag="FetchFacts", tag_field="operation"):
    """A consumer's page; one without offsets and without definitions means that nothing came while waiting. `lease` is the asker's,
    where he showed or asked for one; where he asked after another epoch than the one in force, `lease_in_force` names it, and there
    is nothing else. `omitted_digest` is that of the batch at which the last of `omitted` ends."""

    frontier: Offset
    lease: Lease | None = None
    lease_in_force: Lease | None = None
    omitted_digest: Digest | None = None


class RangeAnswer(OffsetsAnswer, frozen=True, tag="FetchRange", tag_field="operation"):
    """A page of a range, up to its end or the log's; without offsets and without definitions where it lies beyond the log."""


class SequencesAnswer(PageAnswer, frozen=True, kw_only=True, tag="FetchSequences", tag_field="operation"):
    """A page whose places are sequences of `origin`: whole batches, the first perhaps from before what was asked for. Holes may also be
    `absent`: never held here. Nothing is omitted."""

    origin: OriginName

    def end(self) -> int:
        return OFFSET_MAX


class ConfirmAnswer(AnswerBody, frozen=True, tag="ConfirmReceipt", tag_field="operation"):
    """The frontier after the confirmation, durable before it was answered."""

    cursor_advanced_to: Offset
    lease: Lease | None = None


class CursorAnswer(AnswerBody, frozen=True, tag="GetCursor", tag_field="operation"):
    """A consumer's stream and frontier, and where the stream ends."""

    consumer_name: Name
    stream: Name
    frontier: Offset
    end_offset: Offset


def check_page(limit: int, bytes_max: int, operation: str) -> None:
    """How large a page may be asked for."""
    check_range("limit", limit, 1, LIMIT_MAX, operation)
    check_range("bytes_max", bytes_max, BYTES_MAX_MIN, BYTES_MAX_MAX, operation)

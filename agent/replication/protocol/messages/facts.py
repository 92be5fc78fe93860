"""Messages that read facts: for a registered consumer, by offsets, or by sequences of an origin; and consumers'
positions."""

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
"""Batches of one page; limits the header when batches contain single facts."""
LIMIT_MAX = 1_000_000
BYTES_MAX_MIN, BYTES_MAX_MAX = 1024, 8 * 1024 * 1024
BYTES_MAX_DEFAULT = 256 * 1024
"""The page size with the highest throughput of paho and one broker (measured); larger pages delay other messages."""
WAIT_MS_MAX = 60_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Confirm(Part, frozen=True):
    """Offsets `first_offset` to `last_offset` are durable at the requester; without `first_offset` all up to
    `last_offset`."""

    last_offset: Position
    first_offset: Position | None = None

    def check(self, operation: str) -> None:
        """Raise MalformedMessage where the range is backwards."""
        if self.first_offset is not None and self.first_offset > self.last_offset:
            why = f"confirm from {self.first_offset} to {self.last_offset} is backwards"
            raise MalformedMessage(why, "bad_request", operation)


class LastBatchEnd(Part, frozen=True):
    """The last batch that the requester stored from this log: its last offset in the log, and its digest."""

    last_offset: Position
    digest: Digest


class OriginHead(Part, frozen=True):
    """The newest batch of the serving store's own origin, in its present epoch, that the requester holds by any path.

    Its last sequence and its digest.
    """

    last_sequence: Position
    digest: Digest


class FetchFacts(RequestBody, frozen=True, tag="FetchFacts", tag_field="operation"):
    """A page from the consumer's frontier, or after `after_offset`; waits up to `wait_ms` for facts."""

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
    last_batch: LastBatchEnd | None = None
    origin_head: OriginHead | None = None
    high_water_offset: Offset | None = None

    def check(self) -> None:
        check_page(self.limit, self.bytes_max, "FetchFacts")
        check_range("wait_ms", self.wait_ms, 0, WAIT_MS_MAX, "FetchFacts")
        _ = self.starts
        if self.confirm is not None:
            self.confirm.check("FetchFacts")

    @property
    def starts(self) -> Literal["oldest", "end"] | int:
        """Where a consumer starts that this request registers: oldest, end, or ms since 1970. Raises
        MalformedMessage."""
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
            why = f"start is {start!r}; it must be a time with a time zone, oldest or end"
            raise MalformedMessage(why, "bad_request", "FetchFacts")
        return (found - _EPOCH) // timedelta(milliseconds=1)


class FetchRange(RequestBody, frozen=True, tag="FetchRange", tag_field="operation"):
    """A page of facts `first_offset` to `last_offset` of a stream, without a consumer and without waiting."""

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
    """A page of whole batches with sequences `first_sequence` to `last_sequence` of one origin, also the requester's
    own."""

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
    """Facts up to `offset` (from `first_offset`, if given) are durable at the requester."""

    consumer_name: Name
    offset: Position
    first_offset: Position | None = None
    epoch: Epoch | None = None
    lease: Lease | None = None

    @property
    def confirm(self) -> Confirm:
        """The confirmed range."""
        return Confirm(last_offset=self.offset, first_offset=self.first_offset)

    def check(self) -> None:
        self.confirm.check("ConfirmReceipt")


class GetCursor(RequestBody, frozen=True, tag="GetCursor", tag_field="operation"):
    """A consumer's position."""

    consumer_name: Name


class DefinitionEntry(Part, frozen=True):
    """Definition `number` of one origin, in the origin's canonical JSON, byte for byte."""

    zone: Zone
    epoch: Epoch
    number: Position
    definition: msgspec.Raw


class PageAnswer(AnswerBody, frozen=True):
    """One page of a stream. `batches`: (first_offset, last_offset, bytes in the attachment), in order of offset.

    `omitted`: ranges of offsets left out because the requester recorded these facts itself. `holes`: (first_offset,
    last_offset, reason) of facts that the store no longer has: `expired` (released unconfirmed) or `damaged`; unknown
    reasons mean the same. Together they cover a contiguous run of offsets. `more`: the requested range continues after
    the page."""

    stream: Name
    batches: list[tuple[Position, Position, Position]] = []
    omitted: list[tuple[Position, Position]] = []
    holes: list[tuple[Position, Position, Reason]] = []
    definitions: list[DefinitionEntry] = []
    more: bool = False

    def end(self) -> int:
        """Upper bound of all positions in the page."""
        raise NotImplementedError

    def covered(self) -> tuple[int, int] | None:
        """First and last offset of the page; None if it covers none."""
        runs = self.runs()
        return (runs[0][0], runs[-1][1]) if runs else None

    def runs(self) -> list[tuple[int, int]]:
        """All ranges of the page (batches, omitted ranges, holes), sorted."""
        return sorted([(first, last) for first, last, _ in (*self.batches, *self.holes)] + list(self.omitted))

    def attached(self) -> list[int]:
        return [length for _, _, length in self.batches]

    def check(self) -> None:
        """Raise MalformedMessage unless the page covers one contiguous run up to its end at most."""
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
    """A page whose positions are offsets."""

    end_offset: Offset

    def end(self) -> int:
        return self.end_offset


class FetchAnswer(OffsetsAnswer, frozen=True, kw_only=True, tag="FetchFacts", tag_field="operation"):
    """A consumer's page. Without offsets and definitions: no facts came while waiting.

    `lease`: the requester's lease, if it sent or requested one. `lease_in_force`: the lease in force, if `lease_after`
    named another one; the answer then contains nothing else. `omitted_digest`: digest of the batch at the end of the
    last omitted range."""

    frontier: Offset
    lease: Lease | None = None
    lease_in_force: Lease | None = None
    omitted_digest: Digest | None = None


class RangeAnswer(OffsetsAnswer, frozen=True, tag="FetchRange", tag_field="operation"):
    """A page of a range, up to its end or the log's end; without offsets and definitions if it is beyond the log."""


class SequencesAnswer(PageAnswer, frozen=True, kw_only=True, tag="FetchSequences", tag_field="operation"):
    """A page whose positions are sequences of `origin`: whole batches; the first may begin before the requested range.

    Holes may also be `absent`: never held by this store. Nothing is omitted.
    """

    origin: OriginName

    def end(self) -> int:
        return OFFSET_MAX


class ConfirmAnswer(AnswerBody, frozen=True, tag="ConfirmReceipt", tag_field="operation"):
    """The consumer's frontier after the confirmation, durable before the answer."""

    cursor_advanced_to: Offset
    lease: Lease | None = None


class CursorAnswer(AnswerBody, frozen=True, tag="GetCursor", tag_field="operation"):
    """A consumer's stream and frontier, and the end of the stream."""

    consumer_name: Name
    stream: Name
    frontier: Offset
    end_offset: Offset


def check_page(limit: int, bytes_max: int, operation: str) -> None:
    """Raise MalformedMessage if the requested page size is out of range."""
    check_range("limit", limit, 1, LIMIT_MAX, operation)
    check_range("bytes_max", bytes_max, BYTES_MAX_MIN, BYTES_MAX_MAX, operation)

"""The words two nodes exchange, version 1.0 of `bsfg.replication`: every request and every answer, as checked values.

What a field may hold is said by its type; what types cannot say, each message checks itself (`check`) and raises
MalformedMessage, so that whoever holds a decoded message holds a good one. Their bytes are made and read in `protocol`; which
module serves an operation stands in `operations`. docs/reference/protocol.md says the same for a second implementation.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import msgspec

from agent.appending import WARNING_CHARACTERS_MAX
from agent.batch import Origin
from agent.lease import LEASE_EPOCH_MAX
from agent.message import Envelope
from agent.replication.errors import MalformedMessage

BATCHES_MAX = 2048
"""Batches of one page, so that a stream of single facts does not make headers larger than their facts."""
LIMIT_MAX = 1_000_000
BYTES_MAX_MIN, BYTES_MAX_MAX = 1024, 8 * 1024 * 1024
BYTES_MAX_DEFAULT = 256 * 1024
"""Where paho and one broker carry most, measured; larger pages delay whatever waits behind them."""
WAIT_MS_MAX = 60_000
ENDS_MAX, ENDS_DEFAULT = 256, 64
"""Digests inside a range told at once: each exchange leaves a 64th of it, so a billion facts take five."""
RANGES_MAX = 2000
"""Ranges in one answer: the whole origins up to the thousandth, and an origin has a thousand at most."""
OFFSET_MAX = 2**63 - 1
CHUNK_BYTES_MAX = 256 * 1024
"""Of an artifact, in one answer: as much as a page."""
PUT_BYTES_MAX = 45_000
"""Of an artifact, in one request, where base64 makes 60,000 of them."""
MESSAGES_MAX = 256
"""Messages of one append: as many small ones as fit a request, and their outcomes an answer."""
SUBJECTS_MAX = 1000
VALUES_MAX, VALUES_DEFAULT = 10_000, 1_000
VALUES_BYTES_MAX = 768 * 1024
"""They stand in the header of an answer, which has at most a mebibyte."""
FRESH_MS_MAX, FRESH_MS_DEFAULT = 30 * 86_400_000, 60_000
DEPTH_FACTS_MAX, DEPTH_FACTS_DEFAULT = 20_000_000, 2_000_000
"""Facts looked through, from the end of the stream: some tenths of a second where a tag is not found, and some seconds."""

_Offset = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]
_Position = Annotated[int, msgspec.Meta(ge=1, le=OFFSET_MAX)]
_Time = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]
_StartText = Annotated[str, msgspec.Meta(max_length=40)]
_Name = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9._-]{1,64}\Z")]
_Zone = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9-]{1,32}\Z")]
_Epoch = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
_Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
_OriginName = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9-]{1,32}/[0-9a-f]{32}\Z")]

_Lease = Annotated[int, msgspec.Meta(ge=0, le=LEASE_EPOCH_MAX)]
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
_TimeText = Annotated[str, msgspec.Meta(min_length=1, max_length=40)]
_Word = Annotated[str, msgspec.Meta(pattern=r"\A[a-z_0-9]{1,64}\Z")]
_Artifact = Annotated[str, msgspec.Meta(pattern=r"\Asha256:[0-9a-f]{64}\Z")]
_Reason = Annotated[str, msgspec.Meta(pattern=r"\A[a-z_]{1,64}\Z")]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of a message; absent optional fields are not written."""


class _Request(_Part, frozen=True):
    """What every request can be asked."""

    def check(self) -> None:
        """Raise MalformedMessage where fields of the right type make no request."""


class Confirm(_Part, frozen=True):
    """Offsets `first_offset`..`last_offset` are durable at the asker; without `first_offset`, all up to `last_offset`."""

    last_offset: _Position
    first_offset: _Position | None = None

    def check(self, operation: str) -> None:
        """Raise MalformedMessage where the range is backwards."""
        if self.first_offset is not None and self.first_offset > self.last_offset:
            why = f"confirm from {self.first_offset} to {self.last_offset} is backwards"
            raise MalformedMessage(why, "bad_request", operation)


# ------------------------------------------------------------------------------------------------------------- requests


class FetchFacts(_Request, frozen=True, tag="FetchFacts", tag_field="operation"):
    """A page of facts from the consumer's frontier, or from `after_offset`, once there is one or `wait_ms` are over."""

    consumer_name: _Name
    limit: int
    bytes_max: int = BYTES_MAX_DEFAULT
    wait_ms: int = 0
    stream: _Name | None = None
    start: _Time | _StartText = "oldest"
    epoch: _Epoch | None = None
    after_offset: _Offset | None = None
    confirm: Confirm | None = None
    lease: _Lease | None = None
    definitions_known: dict[_OriginName, _Offset] = {}

    def check(self) -> None:
        _check_page(self.limit, self.bytes_max, "FetchFacts")
        _check_range("wait_ms", self.wait_ms, 0, WAIT_MS_MAX, "FetchFacts")
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


class FetchRange(_Request, frozen=True, tag="FetchRange", tag_field="operation"):
    """Facts `first_offset` to `last_offset` of a stream, a page at a time: nothing is registered, confirmed or waited for."""

    stream: _Name
    first_offset: _Position
    last_offset: _Position
    limit: int
    bytes_max: int = BYTES_MAX_DEFAULT
    epoch: _Epoch | None = None
    definitions_known: dict[_OriginName, _Offset] = {}

    def check(self) -> None:
        _check_page(self.limit, self.bytes_max, "FetchRange")
        _check_forwards(self.first_offset, self.last_offset, "FetchRange")


class FetchSequences(_Request, frozen=True, tag="FetchSequences", tag_field="operation"):
    """Facts `first_sequence` to `last_sequence` of one origin, a page of whole batches at a time, the asker's own included."""

    stream: _Name
    origin: _OriginName
    first_sequence: _Position
    last_sequence: _Position
    limit: int
    bytes_max: int = BYTES_MAX_DEFAULT
    definitions_known: dict[_OriginName, _Offset] = {}

    def check(self) -> None:
        _check_page(self.limit, self.bytes_max, "FetchSequences")
        _check_forwards(self.first_sequence, self.last_sequence, "FetchSequences")


class GetDigests(_Request, frozen=True, tag="GetDigests", tag_field="operation"):
    """What is held of each origin after `after_origin`; or, with `origin`, the digests at some batch ends inside a range of it."""

    stream: _Name
    after_origin: _OriginName | None = None
    origin: _OriginName | None = None
    first_sequence: _Position | None = None
    last_sequence: _Position | None = None
    ends_max: int = ENDS_DEFAULT

    def check(self) -> None:
        _check_range("ends_max", self.ends_max, 1, ENDS_MAX, "GetDigests")
        given = [one is not None for one in (self.origin, self.first_sequence, self.last_sequence)]
        if any(given) and not (all(given) and self.after_origin is None):
            why = "origin, first_sequence and last_sequence go together, and not with after_origin"
            raise MalformedMessage(why, "bad_request", "GetDigests")
        if self.first_sequence is not None and self.last_sequence is not None:
            _check_forwards(self.first_sequence, self.last_sequence, "GetDigests")


class ConfirmReceipt(_Request, frozen=True, tag="ConfirmReceipt", tag_field="operation"):
    """Facts up to `offset` (from `first_offset`, if given) are durable at the asker."""

    consumer_name: _Name
    offset: _Position
    first_offset: _Position | None = None
    epoch: _Epoch | None = None
    lease: _Lease | None = None

    @property
    def confirm(self) -> Confirm:
        """The range that is confirmed."""
        return Confirm(last_offset=self.offset, first_offset=self.first_offset)

    def check(self) -> None:
        self.confirm.check("ConfirmReceipt")


class GetCursor(_Request, frozen=True, tag="GetCursor", tag_field="operation"):
    """Where a consumer stands."""

    consumer_name: _Name


class GetBounds(_Request, frozen=True, tag="GetBounds", tag_field="operation"):
    """The first and last offset a stream holds."""

    stream: _Name


class ListStreams(_Request, frozen=True, tag="ListStreams", tag_field="operation"):
    """The streams exported to the asker."""


class NewFact(_Part, frozen=True):
    """What is asserted; `object` is any JSON, kept in its canonical form."""

    subject: str
    predicate: str
    object: msgspec.Raw


class NewMessage(_Part, frozen=True):
    """A message to be stored once, and on what it depends: the producer's lease, the newest fact of the subject seen."""

    envelope: Envelope
    fact: NewFact
    producer: str | None = None
    lease_epoch: int | None = None
    base_offset: int | None = None


class AppendFact(_Request, frozen=True, tag="AppendFact", tag_field="operation"):
    """Append messages to a stream, in their order, all of them or (when one breaks a rule) none."""

    stream: _Name
    messages: Annotated[list[NewMessage], msgspec.Meta(min_length=1, max_length=MESSAGES_MAX)]
    acks: Literal["none", "local", "quorum", "all"] | None = None


class AcquireLease(_Request, frozen=True, tag="AcquireLease", tag_field="operation"):
    """A lease epoch for a producer of the asker that begins: whoever appends with a lower one is fenced from now on."""

    stream: _Name
    producer: _Name


class GetObject(_Request, frozen=True, tag="GetObject", tag_field="operation"):
    """Bytes of an artifact to which a fact that the asker may read refers, from `offset` on."""

    digest: _Artifact
    offset: _Offset = 0
    bytes_max: int = CHUNK_BYTES_MAX

    def check(self) -> None:
        _check_range("bytes_max", self.bytes_max, BYTES_MAX_MIN, CHUNK_BYTES_MAX, "GetObject")


class PutObject(_Request, frozen=True, tag="PutObject", tag_field="operation"):
    """The next bytes of an artifact of `size` bytes; without any, how far an earlier attempt has come."""

    digest: _Artifact
    size: _Position
    offset: _Offset = 0
    data: Annotated[bytes, msgspec.Meta(max_length=PUT_BYTES_MAX)] = b""


class TagKey(_Part, frozen=True):
    """What has a last value: what a zone says of a subject under a predicate. Ordered as these three are."""

    zone: _Zone
    subject: _Text
    predicate: _Text

    @property
    def order(self) -> tuple[str, str, str]:
        """Where it stands among others."""
        return self.zone, self.subject, self.predicate


class GetLatest(_Request, frozen=True, tag="GetLatest", tag_field="operation"):
    """The last known value of each tag of a stream, by zone, subject and predicate, after a tag or from the first."""

    stream: _Name
    subjects: Annotated[list[_Text], msgspec.Meta(max_length=SUBJECTS_MAX)] = []
    prefix: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    after: TagKey | None = None
    limit: int = VALUES_DEFAULT
    bytes_max: int = BYTES_MAX_DEFAULT
    fresh_ms: int = FRESH_MS_DEFAULT
    depth_facts: int = DEPTH_FACTS_DEFAULT

    def check(self) -> None:
        _check_range("limit", self.limit, 1, VALUES_MAX, "GetLatest")
        _check_range("bytes_max", self.bytes_max, BYTES_MAX_MIN, VALUES_BYTES_MAX, "GetLatest")
        _check_range("depth_facts", self.depth_facts, 1, DEPTH_FACTS_MAX, "GetLatest")
        _check_range("fresh_ms", self.fresh_ms, 0, FRESH_MS_MAX, "GetLatest")


Request = (
    FetchFacts
    | FetchRange
    | FetchSequences
    | GetDigests
    | ConfirmReceipt
    | GetCursor
    | GetBounds
    | ListStreams
    | AppendFact
    | AcquireLease
    | GetLatest
    | GetObject
    | PutObject
)
REQUESTS: tuple[type[Request], ...] = (
    FetchFacts,
    *(FetchRange, FetchSequences, GetDigests),
    ConfirmReceipt,
    GetCursor,
    GetBounds,
    ListStreams,
    AppendFact,
    AcquireLease,
    GetLatest,
    GetObject,
    PutObject,
)

# -------------------------------------------------------------------------------------------------------------- answers


class DefinitionEntry(_Part, frozen=True):
    """Definition `number` of one origin, as the canonical JSON the origin made; the bytes are kept as they came."""

    zone: _Zone
    epoch: _Epoch
    number: _Position
    definition: msgspec.Raw


class StreamEntry(_Part, frozen=True):
    """One exported stream and its bounds; `first_offset` is `end_offset + 1` when it holds nothing."""

    name: _Name
    first_offset: _Position
    end_offset: _Offset


class _Answer(_Part, frozen=True):
    """What every answer says of the store that gave it."""

    store_zone: _Zone
    epoch: _Epoch

    def check(self) -> None:
        """Raise MalformedMessage where fields of the right type make no answer."""

    def attached(self) -> list[int]:
        """Bytes of each piece of the attachment, in order."""
        return []


class _PageAnswer(_Answer, frozen=True):
    """One page of a stream.  `batches`: (first_offset, last_offset, bytes in the attachment), in order of offset.

    `omitted` are ranges of offsets left out because their facts are the asker's own: he has them.  `holes` are
    (first_offset, last_offset, reason) of facts that are no longer here: `expired` (released before the asker confirmed
    them) or `damaged`; any other reason means the same.  All together cover a contiguous run of offsets.  `more` says that
    what was asked for goes on beyond the page.
    """

    stream: _Name
    batches: list[tuple[_Position, _Position, _Position]] = []
    omitted: list[tuple[_Position, _Position]] = []
    holes: list[tuple[_Position, _Position, _Reason]] = []
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
        operation = operation_of(type(self))  # type: ignore[arg-type]  # only the two below are ever made
        parts = max(len(self.batches), len(self.omitted), len(self.holes))
        if parts > BATCHES_MAX:
            raise MalformedMessage(f"page of {parts} batches or ranges, at most {BATCHES_MAX}", operation=operation)
        runs = self.runs()
        for (first, last), (following, _) in zip(runs, [*runs[1:], (runs[-1][1] + 1, 0)] if runs else [], strict=True):
            if not first <= last == following - 1:
                raise MalformedMessage(f"page not contiguous at offset {last}", operation=operation)
        if runs and runs[-1][1] > self.end():
            raise MalformedMessage(f"page to {runs[-1][1]}, beyond its end {self.end()}", operation=operation)


class _OffsetsAnswer(_PageAnswer, frozen=True, kw_only=True):
    """A page whose places are offsets."""

    end_offset: _Offset

    def end(self) -> int:
        return self.end_offset


class FetchAnswer(_OffsetsAnswer, frozen=True, kw_only=True, tag="FetchFacts", tag_field="operation"):
    """A consumer's page; one without offsets and without definitions means that nothing came while waiting. `lease` is the asker's,
    where he showed or asked for one."""

    frontier: _Offset
    lease: _Lease | None = None


class RangeAnswer(_OffsetsAnswer, frozen=True, tag="FetchRange", tag_field="operation"):
    """A page of a range, up to its end or the log's; without offsets and without definitions where it lies beyond the log."""


class SequencesAnswer(_PageAnswer, frozen=True, kw_only=True, tag="FetchSequences", tag_field="operation"):
    """A page whose places are sequences of `origin`: whole batches, the first perhaps from before what was asked for. Holes may also be
    `absent`: never held here. Nothing is omitted."""

    origin: _OriginName

    def end(self) -> int:
        return OFFSET_MAX


class DigestsAnswer(_Answer, frozen=True, tag="GetDigests", tag_field="operation"):
    """`ranges`: (origin, first_sequence, last_sequence, digest before the first, digest of the last batch), by origin and sequence, of
    what is held or was before retention; whole origins, and `more` says that others follow. `ends`: (last_sequence, digest) of
    batches inside the range asked for. `end_offset` is where the log ended, all that `ranges` name included."""

    stream: _Name
    end_offset: _Offset
    ranges: Annotated[
        list[tuple[_OriginName, _Position, _Position, _Digest, _Digest]], msgspec.Meta(max_length=RANGES_MAX)
    ] = []
    ends: Annotated[list[tuple[_Position, _Digest]], msgspec.Meta(max_length=ENDS_MAX + 2)] = []
    more: bool = False

    def check(self) -> None:
        """Ranges and ends come in their order, forwards and apart."""
        starts = [(origin, first) for origin, first, _, _, _ in self.ranges]
        overlaps = any(
            left[0] == right[0] and left[2] >= right[1]
            for left, right in zip(self.ranges, self.ranges[1:], strict=False)
        )
        if sorted(starts) != starts or overlaps or any(first > last for _, first, last, _, _ in self.ranges):
            raise MalformedMessage("ranges of digests are not in order", operation="GetDigests")
        places = [last for last, _ in self.ends]
        if sorted(set(places)) != places:
            raise MalformedMessage("ends of batches are not in order", operation="GetDigests")


class ConfirmAnswer(_Answer, frozen=True, tag="ConfirmReceipt", tag_field="operation"):
    """The frontier after the confirmation, durable before it was answered."""

    cursor_advanced_to: _Offset
    lease: _Lease | None = None


class CursorAnswer(_Answer, frozen=True, tag="GetCursor", tag_field="operation"):
    """A consumer's stream and frontier, and where the stream ends."""

    consumer_name: _Name
    stream: _Name
    frontier: _Offset
    end_offset: _Offset


class BoundsAnswer(_Answer, frozen=True, tag="GetBounds", tag_field="operation"):
    """The bounds of one stream."""

    stream: _Name
    first_offset: _Position
    end_offset: _Offset


class StreamsAnswer(_Answer, frozen=True, tag="ListStreams", tag_field="operation"):
    """The streams exported to the asker, in order of name, and the server's wall clock, for comparing only."""

    streams: list[StreamEntry]
    unix_ms: _Offset | None = None


class AppendedEntry(_Part, frozen=True):
    """What became of one message: `fact_store.admission` has the outcomes; one not known here is to be read as a refusal."""

    offset: _Offset
    outcome: Annotated[str, msgspec.Meta(pattern=r"\A[a-z_]{1,64}\Z")]
    warning: Annotated[str, msgspec.Meta(max_length=WARNING_CHARACTERS_MAX)] = ""
    lease_epoch: _Offset | None = None


class AppendAnswer(_Answer, frozen=True, tag="AppendFact", tag_field="operation"):
    """What became of each message, in the order of the request."""

    outcomes: Annotated[list[AppendedEntry], msgspec.Meta(min_length=1, max_length=MESSAGES_MAX)]


class LeaseAnswer(_Answer, frozen=True, tag="AcquireLease", tag_field="operation"):
    """The epoch to append with."""

    lease_epoch: _Position


class ObjectAnswer(_Answer, frozen=True, tag="GetObject", tag_field="operation"):
    """The attachment are `bytes` of the artifact's `size` bytes, from `offset` on; whoever has the last compares the digest."""

    size: _Position
    offset: _Offset
    bytes: _Offset = 0

    def attached(self) -> list[int]:
        return [self.bytes] if self.bytes else []

    def check(self) -> None:
        if self.bytes > CHUNK_BYTES_MAX or (self.offset + self.bytes > self.size and self.bytes):
            why = f"{self.bytes} bytes from {self.offset} of {self.size}"
            raise MalformedMessage(why, operation="GetObject")


class PutAnswer(_Answer, frozen=True, tag="PutObject", tag_field="operation"):
    """`received` bytes are here: go on from there. `is_complete`: all of them, compared with the digest, and durable."""

    received: _Offset
    is_complete: bool


class LatestEntry(_Part, frozen=True):
    """The last known value of a tag, and how stale what the answering node knows of its source is."""

    zone: _Zone
    subject: _Text
    predicate: _Text
    source: str
    value: msgspec.Raw
    value_type: _Word
    quality: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
    source_time: _TimeText
    as_of: _TimeText
    staleness_ms: _Offset
    mode: _Word
    unit: str | None = None
    offset: _Position | None = None
    via: _Zone | None = None

    @property
    def key(self) -> TagKey:
        """Whose value it is."""
        return TagKey(zone=self.zone, subject=self.subject, predicate=self.predicate)


class LatestAnswer(_Answer, frozen=True, tag="GetLatest", tag_field="operation"):
    """Values in the order of their tags; `more`: ask on after the last of them.  A tag without a value within the last
    `depth_facts` facts is not named."""

    stream: _Name
    end_offset: _Offset
    queue_depth: _Offset
    depth_facts: _Offset
    values: Annotated[list[LatestEntry], msgspec.Meta(max_length=VALUES_MAX)] = []
    more: bool = False

    def last_after(self, before: TagKey | None) -> TagKey:
        """The last tag, from which to ask on.  MalformedMessage where that leads nowhere."""
        last = self.values[-1].key if self.values else None
        if last is None or (before is not None and last.order <= before.order):
            raise MalformedMessage("a page of values that is not beyond the one before", operation="GetLatest")
        return last


class ErrorBody(_Part, frozen=True):
    """A row of the error table, and a sentence that names the thing."""

    code: Annotated[str, msgspec.Meta(pattern=r"\A[a-z_]{1,64}\Z")]
    message: Annotated[str, msgspec.Meta(max_length=1000)]
    retryable: bool
    hint: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class ErrorAnswer(_Answer, frozen=True):
    """The request was not carried out.  `operation` repeats what was asked, as far as it could be read."""

    operation: Annotated[str, msgspec.Meta(max_length=64)]
    error: ErrorBody


Answer = (
    FetchAnswer
    | RangeAnswer
    | SequencesAnswer
    | DigestsAnswer
    | ConfirmAnswer
    | CursorAnswer
    | BoundsAnswer
    | StreamsAnswer
    | AppendAnswer
    | LeaseAnswer
    | LatestAnswer
    | ObjectAnswer
    | PutAnswer
)
ANSWERS: tuple[type[Answer], ...] = (
    FetchAnswer,
    *(RangeAnswer, SequencesAnswer, DigestsAnswer),
    ConfirmAnswer,
    CursorAnswer,
    BoundsAnswer,
    StreamsAnswer,
    AppendAnswer,
    LeaseAnswer,
    LatestAnswer,
    ObjectAnswer,
    PutAnswer,
)


def origin_named(name: str) -> Origin:
    """The origin that a checked field names."""
    zone, _, epoch = name.partition("/")
    return Origin(zone, bytes.fromhex(epoch))


def operation_of(message: Request | Answer | type[Request | Answer]) -> str:
    """The operation a message belongs to."""
    return str(message.__struct_config__.tag)


def _check_page(limit: int, bytes_max: int, operation: str) -> None:
    """How large a page may be asked for."""
    _check_range("limit", limit, 1, LIMIT_MAX, operation)
    _check_range("bytes_max", bytes_max, BYTES_MAX_MIN, BYTES_MAX_MAX, operation)


def _check_forwards(first: int, last: int, operation: str) -> None:
    if first > last:
        raise MalformedMessage(f"the range {first} to {last} is backwards", "bad_request", operation)


def _check_range(name: str, value: int, least: int, most: int, operation: str) -> None:
    if not least <= value <= most:
        shown = str(value) if abs(value) <= OFFSET_MAX else "a number beyond 64 bits"
        raise MalformedMessage(f"{name} is {shown}, must be {least} to {most}", "limit_out_of_range", operation)

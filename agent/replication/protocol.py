"""The words two nodes exchange: requests, answers and their bytes, version 1.0 of `bsfg.replication`.

A request is one JSON object.  An answer is a little-endian u32, that many bytes of one JSON object, and after them the
attachment: sealed batches end to end, exactly as they lie in the serving store.  docs/reference/protocol.md says the same
for a second implementation.

Promised: sizes are checked before anything is parsed; the decoders return a checked value or raise MalformedMessage, and
nothing else, whatever the bytes; fields this version does not know are ignored, so that minor versions may add; another
major version is refused naming both.  Not here: whether the asker may have what he asks for (`sender`), and whether the
batches are what they claim (`agent.batch`, the store).
"""

from __future__ import annotations

import re
import struct
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from agent.replication.errors import ERRORS, MalformedMessage

PROTOCOL = "bsfg.replication"
MAJOR, MINOR = 1, 0
VERSION = f"{MAJOR}.{MINOR}"

REQUEST_BYTES_MAX = 64 * 1024
"""A FetchFacts naming 600 origins; nobody has more to say."""
HEADER_BYTES_MAX = 1024 * 1024
"""Header of an answer: the definitions of a page are its bulk, and they are bounded by the page's bytes."""
ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""Above any packet size we would recommend for a broker."""
BATCHES_MAX = 2048
"""Batches of one page, so that a stream of single facts does not make headers larger than their facts."""
LIMIT_MAX = 1_000_000
BYTES_MAX_MIN, BYTES_MAX_MAX = 1024, 8 * 1024 * 1024
BYTES_MAX_DEFAULT = 256 * 1024
"""Where paho and one broker carry most, measured; larger pages delay whatever waits behind them."""
WAIT_MS_MAX = 60_000
OFFSET_MAX = 2**63 - 1

_Offset = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]
_Position = Annotated[int, msgspec.Meta(ge=1, le=OFFSET_MAX)]
_Time = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]
_StartText = Annotated[str, msgspec.Meta(max_length=40)]
_Name = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9._-]{1,64}\Z")]
_Zone = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9-]{1,32}\Z")]
_Epoch = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
_OriginName = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9-]{1,32}/[0-9a-f]{32}\Z")]

_Reason = Annotated[str, msgspec.Meta(pattern=r"\A[a-z_]{1,64}\Z")]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LENGTH = struct.Struct("<I")
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")
_T = TypeVar("_T")


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of a message; absent optional fields are not written."""


class Confirm(_Part, frozen=True):
    """Offsets `first_offset`..`last_offset` are durable at the asker; without `first_offset`, all up to `last_offset`."""

    last_offset: _Position
    first_offset: _Position | None = None


# ------------------------------------------------------------------------------------------------------------- requests


class FetchFacts(_Part, frozen=True, tag="FetchFacts", tag_field="operation"):
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
    definitions_known: dict[_OriginName, _Offset] = {}


class ConfirmReceipt(_Part, frozen=True, tag="ConfirmReceipt", tag_field="operation"):
    """Facts up to `offset` (from `first_offset`, if given) are durable at the asker."""

    consumer_name: _Name
    offset: _Position
    first_offset: _Position | None = None
    epoch: _Epoch | None = None


class GetCursor(_Part, frozen=True, tag="GetCursor", tag_field="operation"):
    """Where a consumer stands."""

    consumer_name: _Name


class GetBounds(_Part, frozen=True, tag="GetBounds", tag_field="operation"):
    """The first and last offset a stream holds."""

    stream: _Name


class ListStreams(_Part, frozen=True, tag="ListStreams", tag_field="operation"):
    """The streams exported to the asker."""


Request = FetchFacts | ConfirmReceipt | GetCursor | GetBounds | ListStreams

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


class FetchAnswer(_Answer, frozen=True, tag="FetchFacts", tag_field="operation"):
    """One page.  `batches`: (first_offset, last_offset, bytes in the attachment), in order of offset.

    `omitted` are ranges of offsets left out because their facts are the asker's own: he has them.  `holes` are
    (first_offset, last_offset, reason) of facts that are no longer here: `expired` (released before the asker confirmed
    them) or `damaged`; any other reason means the same.  All together cover a contiguous run of offsets.  `more` says that
    the log goes on beyond the page; a page without offsets and without definitions means that nothing came while waiting.
    """

    stream: _Name
    frontier: _Offset
    end_offset: _Offset
    batches: list[tuple[_Position, _Position, _Position]] = []
    omitted: list[tuple[_Position, _Position]] = []
    holes: list[tuple[_Position, _Position, _Reason]] = []
    definitions: list[DefinitionEntry] = []
    more: bool = False

    def covered(self) -> tuple[int, int] | None:
        """First and last offset of the page; None when it covers none."""
        runs = self.runs()
        return (runs[0][0], runs[-1][1]) if runs else None

    def runs(self) -> list[tuple[int, int]]:
        """All ranges of offsets of the page, batches, omitted ones and holes, in order."""
        return sorted([(first, last) for first, last, _ in (*self.batches, *self.holes)] + list(self.omitted))


class ConfirmAnswer(_Answer, frozen=True, tag="ConfirmReceipt", tag_field="operation"):
    """The frontier after the confirmation, durable before it was answered."""

    cursor_advanced_to: _Offset


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


Answer = FetchAnswer | ConfirmAnswer | CursorAnswer | BoundsAnswer | StreamsAnswer

# ---------------------------------------------------------------------------------------------------- encode and decode


class _RequestHead(msgspec.Struct):
    protocol: Annotated[str, msgspec.Meta(max_length=64)]
    version: Annotated[str, msgspec.Meta(max_length=16)]
    operation: Annotated[str, msgspec.Meta(max_length=64)]


class _AnswerHead(_RequestHead):
    status: Literal["ok", "error"]


_REQUEST_HEAD = msgspec.json.Decoder(_RequestHead)
_ANSWER_HEAD = msgspec.json.Decoder(_AnswerHead)
_REQUESTS: dict[str, msgspec.json.Decoder[Any]] = {
    operation.__struct_config__.tag: msgspec.json.Decoder(operation)  # type: ignore[misc]
    for operation in (FetchFacts, ConfirmReceipt, GetCursor, GetBounds, ListStreams)
}
_ANSWERS: dict[str, msgspec.json.Decoder[Any]] = {
    operation.__struct_config__.tag: msgspec.json.Decoder(operation)  # type: ignore[misc]
    for operation in (FetchAnswer, ConfirmAnswer, CursorAnswer, BoundsAnswer, StreamsAnswer)
}
_ERROR = msgspec.json.Decoder(ErrorAnswer)
_OBJECT_START = f'{{"protocol":"{PROTOCOL}","version":"{VERSION}",'.encode()


def encode_request(request: Request) -> bytes:
    """The bytes of a request."""
    payload = _OBJECT_START + msgspec.json.encode(request)[1:]
    assert len(payload) <= REQUEST_BYTES_MAX, len(payload)
    return payload


def decode_request(payload: bytes) -> Request:
    """The request in `payload`; MalformedMessage, with the code to answer, for everything else."""
    if len(payload) > REQUEST_BYTES_MAX:
        raise MalformedMessage(f"request of {len(payload)} bytes, at most {REQUEST_BYTES_MAX}", "request_too_large")
    head = _decode(_REQUEST_HEAD, payload, "")
    _check_version(head)
    decoder = _REQUESTS.get(head.operation)
    if decoder is None:
        raise MalformedMessage(f"operation {head.operation!r} is not known here", "unknown_operation", head.operation)
    request: Request = _decode(decoder, payload, head.operation)
    match request:
        case FetchFacts():
            _check_range("limit", request.limit, 1, LIMIT_MAX)
            _check_range("bytes_max", request.bytes_max, BYTES_MAX_MIN, BYTES_MAX_MAX)
            _check_range("wait_ms", request.wait_ms, 0, WAIT_MS_MAX)
            start_of(request)
            if request.confirm is not None:
                _check_confirm(request.confirm.first_offset, request.confirm.last_offset, head.operation)
        case ConfirmReceipt():
            _check_confirm(request.first_offset, request.offset, head.operation)
    return request


def start_of(request: FetchFacts) -> Literal["oldest", "end"] | int:
    """Where a consumer begins that this request registers: oldest, end, or milliseconds since 1970. MalformedMessage otherwise."""
    start = request.start
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
        raise MalformedMessage(f"start is {start!r}, no time in a zone, nor oldest or end", "bad_request", "FetchFacts")
    return (found - _EPOCH) // timedelta(milliseconds=1)


def encode_answer(answer: Answer, attachment: list[bytes]) -> bytes:
    """The bytes of an answer and its batches."""
    header = _OBJECT_START + b'"status":"ok",' + msgspec.json.encode(answer)[1:]
    assert len(header) <= HEADER_BYTES_MAX, len(header)
    return b"".join([_LENGTH.pack(len(header)), header, *attachment])


def encode_error(store_zone: str, epoch: str, operation: str, code: str, message: str) -> bytes:
    """The bytes of an error answer; whether to retry and what to do stand in the table."""
    row = ERRORS[code]
    body = ErrorBody(code=code, message=message[:1000], retryable=row.retryable, hint=row.hint)
    answer = ErrorAnswer(store_zone=store_zone, epoch=epoch, operation=operation[:64], error=body)
    header = _OBJECT_START + b'"status":"error",' + msgspec.json.encode(answer)[1:]
    return _LENGTH.pack(len(header)) + header


def decode_answer(payload: bytes) -> tuple[Answer | ErrorAnswer, list[bytes]]:
    """The answer in `payload` and its batches, lengths and order checked; MalformedMessage for everything else."""
    if not _LENGTH.size <= len(payload) <= ANSWER_BYTES_MAX:
        raise MalformedMessage(f"answer of {len(payload)} bytes, {_LENGTH.size} to {ANSWER_BYTES_MAX} expected")
    header_bytes = _LENGTH.unpack_from(payload)[0]
    attachment_at = _LENGTH.size + header_bytes
    if header_bytes > HEADER_BYTES_MAX or attachment_at > len(payload):
        raise MalformedMessage(f"header of {header_bytes} bytes in an answer of {len(payload)}")
    header = memoryview(payload)[_LENGTH.size : attachment_at]
    head = _decode(_ANSWER_HEAD, header, "")
    _check_version(head)
    if head.status == "error":
        return _decode(_ERROR, header, head.operation), []
    decoder = _ANSWERS.get(head.operation)
    if decoder is None:
        raise MalformedMessage(
            f"answer to {head.operation!r}, which is not known here", "unknown_operation", head.operation
        )
    answer: Answer = _decode(decoder, header, head.operation)
    lengths = []
    if isinstance(answer, FetchAnswer):
        _check_page(answer)
        lengths = [length for _, _, length in answer.batches]
    if attachment_at + sum(lengths) != len(payload):
        raise MalformedMessage(f"{len(payload) - attachment_at} bytes attached, the header lists {sum(lengths)}")
    ends = list(accumulate(lengths, initial=attachment_at))
    return answer, [payload[start:end] for start, end in pairwise(ends)]


def _decode(decoder: msgspec.json.Decoder[_T], data: bytes | memoryview, operation: str) -> _T:
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError) as error:  # every msgspec error is a ValueError
        raise MalformedMessage(str(error), "bad_request", operation) from error


def _check_version(head: _RequestHead) -> None:
    """Another protocol or major is refused naming both; a higher minor is read, its additions ignored."""
    version = _VERSION.fullmatch(head.version)
    if head.protocol != PROTOCOL or version is None or int(version[1]) != MAJOR:
        raise MalformedMessage(
            f"the peer speaks {head.protocol!r} {head.version!r}, this node {PROTOCOL!r} {VERSION!r}",
            "unsupported_version",
            head.operation,
        )


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        shown = str(value) if abs(value) <= OFFSET_MAX else "a number beyond 64 bits"
        raise MalformedMessage(f"{name} is {shown}, must be {least} to {most}", "limit_out_of_range", "FetchFacts")


def _check_confirm(first_offset: int | None, last_offset: int, operation: str) -> None:
    if first_offset is not None and first_offset > last_offset:
        raise MalformedMessage(f"confirm from {first_offset} to {last_offset} is backwards", "bad_request", operation)


def _check_page(answer: FetchAnswer) -> None:
    """A page covers one contiguous run of offsets, not beyond the end it states."""
    parts = max(len(answer.batches), len(answer.omitted), len(answer.holes))
    if parts > BATCHES_MAX:
        raise MalformedMessage(f"page of {parts} batches or ranges, at most {BATCHES_MAX}", operation="FetchFacts")
    runs = answer.runs()
    for (first, last), (following, _) in zip(runs, [*runs[1:], (runs[-1][1] + 1, 0)] if runs else [], strict=True):
        if not first <= last == following - 1:
            raise MalformedMessage(f"page not contiguous at offset {last}", operation="FetchFacts")
    if runs and runs[-1][1] > answer.end_offset:
        raise MalformedMessage(f"page to {runs[-1][1]}, beyond its end {answer.end_offset}", operation="FetchFacts")

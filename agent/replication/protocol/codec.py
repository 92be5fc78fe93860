"""Requests and answers to bytes and back, version 1.0 of `bsfg.replication`.

A request is one JSON object. An answer is a little-endian u32, that many bytes of one JSON object, and the attachment:
sealed batches one after the other, unchanged from the serving store. docs/developers/protocol.md specifies the same for
a second implementation.

Guarantees: sizes are checked before parsing; the decoders return a checked value or raise MalformedMessage for any
bytes; unknown fields are ignored, so that minor versions may add some; another major version is refused, naming
both. Not here: authorization (`serving.admission`), and the content of batches (`agent.batch`, `pulling.page_check`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from agent.escaping import printable
from agent.message import FORMS, MessageError, check_depth
from agent.replication.protocol.errors import ERRORS, MalformedMessage, UnprovenAnswer
from agent.replication.protocol.messages import ANSWERS, REQUESTS, Answer, ErrorAnswer, ErrorBody, Request, operation_of
from agent.signing.messages import MessagePlace, MessageProof, split_answer

PROTOCOL = "bsfg.replication"
MAJOR, MINOR = 1, 0
VERSION = f"{MAJOR}.{MINOR}"

REQUEST_BYTES_MAX = 64 * 1024
"""Holds a FetchFacts that names 600 origins, the largest request."""
HEADER_BYTES_MAX = 1024 * 1024
"""Header of an answer. Most of it are the definitions of a page, bounded by the page's bytes."""
ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""Above any recommended packet size of a broker."""

HEARTBEAT_BYTES_MAX = 64 * 1024
"""Room for 1,800 fetches that wait."""
DESCRIBED_HEADER_BYTES_MAX = 4096
"""An error, and a page of some dozen batches."""

_LENGTH = struct.Struct("<I")
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")
_T = TypeVar("_T")


class _Version(msgspec.Struct):
    protocol: Annotated[str, msgspec.Meta(max_length=64)]
    version: Annotated[str, msgspec.Meta(max_length=16)]


class _RequestHead(_Version):
    operation: Annotated[str, msgspec.Meta(max_length=64)]


class _AnswerHead(_RequestHead):
    status: Literal["ok", "error"]


class _Heartbeat(msgspec.Struct):
    waiting: list[str]


_HeadT = TypeVar("_HeadT", bound=_RequestHead)

_ANY_VERSION = msgspec.json.Decoder(_Version)
_REQUEST_HEAD = msgspec.json.Decoder(_RequestHead)
_ANSWER_HEAD = msgspec.json.Decoder(_AnswerHead)
Decoders = Mapping[str, msgspec.json.Decoder[Any]]


def decoders(kinds: Iterable[type[msgspec.Struct]]) -> Decoders:
    """The decoder of each kind of message, by operation."""
    return {str(kind.__struct_config__.tag): msgspec.json.Decoder(kind) for kind in kinds}


_REQUESTS, _ANSWERS = decoders(REQUESTS), decoders(ANSWERS)
_NO_OTHERS: Decoders = {}
_ERROR = msgspec.json.Decoder(ErrorAnswer)
_HEARTBEAT = msgspec.json.Decoder(_Heartbeat)
_OBJECT_START = f'{{"protocol":"{PROTOCOL}","version":"{VERSION}",'.encode()
_REQUEST_START = _OBJECT_START + b'"operation":"'
_ANSWER_START = _OBJECT_START + b'"status":"ok","operation":"'


def encode_request(request: msgspec.Struct, bytes_max: int = REQUEST_BYTES_MAX) -> bytes:
    """The bytes of a request. Raises MalformedMessage if it is too large."""
    payload = _OBJECT_START + msgspec.json.encode(request)[1:]
    if len(payload) > bytes_max:
        raise _too_large(payload, bytes_max)
    return payload


def decode_request(payload: bytes, others: Decoders = _NO_OTHERS, bytes_max: int = REQUEST_BYTES_MAX) -> Any:
    """The request in `payload`; of `others` if its carrier has more operations than the protocol. Raises
    MalformedMessage with the code to answer."""
    if len(payload) > bytes_max:
        raise _too_large(payload, bytes_max)
    _check_depth(payload)
    operation = _own_operation(payload, _REQUEST_START) or _decode_head(_REQUEST_HEAD, payload).operation
    if (decoder := others.get(operation)) is not None:
        return _decode(decoder, payload, operation)
    decoder = _REQUESTS.get(operation)
    if decoder is None:
        raise MalformedMessage(f"operation {operation[:64]!r} is unknown", "unknown_operation", operation)
    request: Request = _decode(decoder, payload, operation)
    request.check()
    return request


def answer_parts(
    answer: msgspec.Struct, attachment: Sequence[bytes], header_bytes_max: int = HEADER_BYTES_MAX
) -> list[bytes]:
    """The bytes of an answer, in parts: a page is copied once, when the proof is put in front of it."""
    status = b'"status":"error",' if isinstance(answer, ErrorAnswer) else b'"status":"ok",'
    header = _OBJECT_START + status + msgspec.json.encode(answer)[1:]
    assert len(header) <= header_bytes_max, len(header)
    return [_LENGTH.pack(len(header)) + header, *attachment]


def encode_error(
    store_zone: str, life: str, operation: str, code: str, message: str, store_node: str | None = None
) -> bytes:
    """The bytes of an error answer; `retryable` and `hint` come from the table."""
    row = ERRORS[code]
    body = ErrorBody(code=code, message=message[:1000], retryable=row.retryable, hint=row.hint)
    answer = ErrorAnswer(store_zone=store_zone, life=life, store_node=store_node, operation=operation[:64], error=body)
    return b"".join(answer_parts(answer, []))


def encode_heartbeat(correlations: Iterable[bytes]) -> bytes:
    """The bytes of a heartbeat: the fetches that wait, by the correlation of their requests."""
    return msgspec.json.encode(_Heartbeat([correlation.hex() for correlation in correlations]))


def decode_heartbeat(payload: bytes) -> list[bytes]:
    """The correlations that a heartbeat names; none if it is not one. Nothing proves it: all that it can do is to keep
    a requester waiting, for the time of its request."""
    try:
        named = _HEARTBEAT.decode(payload if len(payload) <= HEARTBEAT_BYTES_MAX else b"").waiting
        return [bytes.fromhex(correlation) for correlation in named]
    except (ValueError, RecursionError):  # every msgspec error is a ValueError
        return []


def decode_answer(
    payload: bytes | memoryview,
    others: Decoders = _NO_OTHERS,
    header_bytes_max: int = HEADER_BYTES_MAX,
    plain: Callable[[str], str] = printable,
) -> tuple[Any, list[bytes]]:
    """The answer in `payload`, an `Answer` or an `ErrorAnswer` (or of `others`, as in `decode_request`), and its
    batches, with checked lengths and order. `plain` makes the texts of an error harmless: that of a peer goes into
    incidents, logs and the status as one line. Raises MalformedMessage."""
    if not _LENGTH.size <= len(payload) <= ANSWER_BYTES_MAX:
        raise MalformedMessage(f"answer of {len(payload)} bytes, {_LENGTH.size} to {ANSWER_BYTES_MAX} expected")
    header_bytes = _LENGTH.unpack_from(payload)[0]
    attachment_at = _LENGTH.size + header_bytes
    if header_bytes > header_bytes_max or attachment_at > len(payload):
        raise MalformedMessage(f"header of {header_bytes} bytes in an answer of {len(payload)}")
    header = bytes(payload[_LENGTH.size : attachment_at])
    _check_depth(header)
    if not (operation := _own_operation(header, _ANSWER_START)):
        head = _decode_head(_ANSWER_HEAD, header)
        operation = head.operation
        if head.status == "error":
            refused = _decode(_ERROR, header, operation)
            error = replace(refused.error, message=plain(refused.error.message), hint=plain(refused.error.hint))
            return replace(refused, error=error), []
    if (decoder := others.get(operation)) is not None:
        return _decode(decoder, header, operation), []
    decoder = _ANSWERS.get(operation)
    if decoder is None:
        raise MalformedMessage(f"answer to an unknown operation {operation[:64]!r}", "unknown_operation", operation)
    answer: Answer = _decode(decoder, header, operation)
    answer.check()
    lengths = answer.attached()
    if attachment_at + sum(lengths) != len(payload):
        raise MalformedMessage(f"{len(payload) - attachment_at} bytes attached, the header lists {sum(lengths)}")
    ends = list(accumulate(lengths, initial=attachment_at))
    return answer, [bytes(payload[start:end]) for start, end in pairwise(ends)]


RefusesMessage = Callable[[MessagePlace, bytes | memoryview, MessageProof | None], str | None]
"""Why no signature proves the zone of a message; None if one does or none is required. The place is what the signature
is bound to. Must not block."""


class RefusesRequest(Protocol):
    """Why a request that changes something is refused; `is_writing`: it adds facts or artifacts."""

    def __call__(
        self, place: MessagePlace, request: bytes | memoryview, proof: MessageProof | None, *, is_writing: bool
    ) -> str | None: ...


def accept_every_message(_place: MessagePlace, _message: bytes | memoryview, _proof: MessageProof | None) -> None:
    """No signature is required."""


def accept_every_request(
    place: MessagePlace,
    request: bytes | memoryview,
    proof: MessageProof | None,
    *,
    is_writing: bool,
) -> None:
    """No signature is required."""


@dataclass(frozen=True, slots=True)
class ArrivedAnswer:
    """The bytes of an answer as received. It is decoded only if its signature proves the peer, where signatures are
    required. Without signatures a broker could forge any answer: that there are no facts, that facts are lost, that
    both stores are equal, that an append is stored, or true facts at other offsets."""

    payload: bytes
    place: MessagePlace
    refuses: RefusesMessage = accept_every_message

    def open(self) -> tuple[Answer | ErrorAnswer, list[bytes]]:
        """The answer and what is attached. Raises MalformedMessage or UnprovenAnswer."""
        message, proof = split_answer(memoryview(self.payload))  # a copy of a page costs more than its proof
        if (why := self.refuses(self.place, message, proof)) is not None:
            raise UnprovenAnswer(self.place.serving_node, f"an answer ({_claimed_type(message)}) is not proven: {why}")
        return decode_answer(message)


def _claimed_type(message: memoryview) -> str:
    """The type that an answer claims. A large header is not decoded: a forged one may take long."""
    if DESCRIBED_HEADER_BYTES_MAX < int.from_bytes(message[:4], "little") <= len(message):
        return "large"
    try:
        answer, _ = decode_answer(message)
    except MalformedMessage:
        return "unreadable"
    return answer.error.code if isinstance(answer, ErrorAnswer) else operation_of(answer)


def _own_operation(message: bytes, start: bytes) -> str:
    """The operation of a message that begins as ours do, which is not parsed for it: it may be large. Empty for any
    other."""
    if not message.startswith(start):
        return ""
    return message[len(start) : message.find(b'"', len(start))][:64].decode("ascii", "replace")


def _too_large(payload: bytes, bytes_max: int) -> MalformedMessage:
    code = "request_too_large"
    why = f"request of {len(payload)} bytes, at most {bytes_max}"
    return MalformedMessage(why, code, hint=ERRORS[code].hint)


def _check_depth(data: bytes) -> None:
    try:
        check_depth("message", data)
    except MessageError as error:
        raise MalformedMessage(str(error)) from error


def _decode(decoder: msgspec.json.Decoder[_T], data: bytes, operation: str) -> _T:
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError) as error:  # every msgspec error is a ValueError
        why = str(error)
        for pattern, form in FORMS.items():
            why = why.replace(f"matching regex '\\\\A{pattern.pattern}\\\\Z'", f"({form})")
        raise MalformedMessage(why, "bad_request", operation) from error


def _decode_head(decoder: msgspec.json.Decoder[_HeadT], data: bytes) -> _HeadT:
    """The fields of every message. For another version the error names the version, even if these fields have
    changed."""
    try:
        head = _decode(decoder, data, "")
    except MalformedMessage as error:
        try:
            version = _decode(_ANY_VERSION, data, "")
        except MalformedMessage:
            raise error from None
        _check_version(version, "")
        raise
    _check_version(head, head.operation)
    return head


def _check_version(head: _Version, operation: str) -> None:
    """Raise MalformedMessage for another protocol or major version; a higher minor version is accepted."""
    version = _VERSION.fullmatch(head.version)
    if head.protocol != PROTOCOL or version is None or int(version[1]) != MAJOR:
        why = f"the peer speaks {head.protocol[:64]!r} {head.version[:64]!r}, this node {PROTOCOL!r} {VERSION!r}"
        code = "unsupported_version"
        raise MalformedMessage(why, code, operation, hint=ERRORS[code].hint)

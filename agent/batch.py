"""The batch: an immutable run of consecutive facts of one stream from one origin, sealed once and carried verbatim.

A batch is encoded where its facts were born and never again: every store, wire and relay after that copies its bytes. It
carries its own identity (stream, origin, first sequence, count), the digest of its predecessor, and a digest of itself, so
that whoever holds two of them can tell a changed, missing or forked history without asking anybody.

Promised: `parse` and `open_*` accept what `seal_*` or `cut` could have made, up to the choice of compressor and of forms that
MessagePack leaves open, and raise BatchError for everything else, before they allocate more than the limits below allow for.
What a reader would refuse is never sealed. The page docs/reference/batch-format.md describes the same bytes for a second
implementation, and a test holds its vectors to this code.

Not here: who may send what (replication), where a batch lies (fact_store), what a tag number means (definitions).

    BatchError              bytes that are not a batch: malformed, corrupt, truncated, oversized, forged, of another version
    BatchTooLarge           a caller's run of facts does not fit one batch; split it (a ValueError: ours to handle)
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
import threading  # tidy: for codec contexts kept per thread; nothing here starts or awaits one
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, chain, repeat
from operator import mul, sub
from typing import Annotated, Any, NamedTuple

import msgspec
import zstandard
from msgspec import Meta
from msgspec.msgpack import Decoder, Encoder, Ext

from agent.errors import BsfgError
from agent.message import (
    INT64_MIN,
    LABELS_MAX,
    MESSAGE_ID_BYTES_MAX,
    OBJECT_BYTES_MAX,
    PREDICATE,
    QUALITY_MAX,
    STREAM,
    SUBJECT,
    SUBJECT_BYTES_MAX,
    TEXT,
    TEXT_BYTES_MAX,
    UNIX_MS_MAX,
    VALUE_BYTES_MAX,
    ZONE,
    Envelope,
    Fact,
    Json,
    Message,
    Sample,
    Value,
    value_bytes,
)

FORMAT_VERSION = 1
FACTS_MAX = 16_384  # opening slows down beyond a few thousand (cache), and one batch must not stall a page
SEALED_BYTES_MAX = 512 * 1024  # fits the 1 MiB packet of the shipped broker configuration with room for the header
CONTENT_BYTES_MAX = 2 * 1024 * 1024  # decompressed; hostile content grows to about 20 times that as Python objects
EPOCH_BYTES = 16
DIGEST_BYTES = 16  # BLAKE2b-128: second preimages cost 2**128; see docs/decisions
NO_DIGEST = bytes(DIGEST_BYTES)
SEQUENCE_MAX = 2**63 - 1
DEFINITIONS_MAX = 2**32 - 1

MAGIC = b"BSFB"
_FIXED = struct.Struct("<4sBBBB16sQIqq16sI16sIIBB")
_FLAG_SLICE = 0x01
_EXT_JSON, _EXT_BYTES = 1, 2
_ZSTD_LEVEL = 1  # level 3 wins 3 % of bytes for twice the time
_VALUE_TYPES = frozenset({bool, int, float, str, bytes, Json, type(None)})


class BatchError(BsfgError):
    """These bytes are not a batch this program may accept; the text says what is wrong. Never retried with the same bytes."""


class BatchTooLarge(ValueError):
    """The facts handed to `seal_*` exceed a limit of the format; hand over fewer at a time."""


class Kind(IntEnum):
    """What the facts of a batch are; every batch holds one kind."""

    SAMPLES = 1
    MESSAGES = 2


class Codec(IntEnum):
    """How the content became the body."""

    RAW = 0
    ZSTD = 1


@dataclass(frozen=True, slots=True)
class Origin:
    """Who first recorded a fact: a zone and the epoch (16 random bytes) of the store it was recorded in."""

    zone: str
    epoch: bytes

    def __str__(self) -> str:
        return f"{self.zone}/{self.epoch.hex()}"


@dataclass(frozen=True, slots=True)
class Link:
    """The place where the next batch of a chain attaches: next sequence (>= 1) and digest of the last batch sealed."""

    stream: str
    origin: Origin
    next_sequence: int = 1
    digest: bytes = NO_DIGEST


@dataclass(frozen=True, slots=True)
class Definitions:
    """How many tag definitions an origin had made, and the running digest over them: `digest(n) = H(digest(n-1) + json(n))`.

    Every batch of samples carries it, so a relay cannot change what a tag number means without breaking the batch's digest.
    """

    count: int = 0
    digest: bytes = NO_DIGEST

    def extended(self, definition_json: bytes) -> Definitions:
        """The state after one more definition, given as its canonical JSON bytes."""
        return Definitions(self.count + 1, _digest(self.digest + definition_json))


@dataclass(frozen=True, slots=True)
class Header:
    """What a batch says of itself. Times are ns since 1970 and enclose every fact (source time, or time of production)."""

    stream: str
    origin: Origin
    kind: Kind
    codec: Codec
    is_slice: bool
    first_sequence: int
    count: int
    time_min_ns: int
    time_max_ns: int
    previous_digest: bytes
    definitions: Definitions
    content_bytes: int

    @property
    def last_sequence(self) -> int:
        """Sequence of the last fact."""
        return self.first_sequence + self.count - 1


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch whose header and digest have been checked. `sealed` is the whole, as stored and sent; its last 16 bytes are
    `digest`; `body_at` is where the body starts."""

    header: Header
    sealed: bytes
    digest: bytes
    body_at: int

    @property
    def link(self) -> Link:
        """Where the successor of this batch attaches. A slice has none, and asking for it raises BatchError."""
        if self.header.is_slice:
            raise BatchError("slice: it is for reading, no batch follows it")
        return Link(self.header.stream, self.header.origin, self.header.last_sequence + 1, self.digest)


class SampleColumns(NamedTuple):
    """The samples of one batch as four lists of equal length; ready for Arrow, or for rows."""

    tags: list[int]
    source_times_ns: list[int]
    values: list[Value]
    qualities: list[int]

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, Value, int]]) -> SampleColumns:
        """The columns of rows; raises ValueError unless each has four entries."""
        if set(map(len, rows)) - {4}:
            raise ValueError("a sample is a tag, a source time, a value and a quality")
        # Not zip(*rows): an iterator for each row would call the garbage collector once for every few hundred samples.
        flat: list[Any] = list(chain.from_iterable(rows))
        return cls(flat[0::4], flat[1::4], flat[2::4], flat[3::4])

    def rows(self) -> Iterator[Sample]:
        """The same, fact by fact."""
        return map(Sample._make, zip(*self, strict=True))


# --------------------------------------------------------------------------------------------------------------- sealing


def seal_samples(link: Link, rows: Sequence[tuple[int, int, Value, int]], definitions: Definitions) -> Batch:
    """Seal samples (tag, source_time_ns, value, quality) as the next batch of a chain.

    Raises BatchTooLarge when they do not fit one batch, ValueError when a tag was not defined or a value has no encoding.
    """
    return seal_columns(link, SampleColumns.of(rows), definitions)


def seal_columns(link: Link, columns: SampleColumns, definitions: Definitions) -> Batch:
    """As `seal_samples`, for samples that are columns already; the store's queue holds them so."""
    count = len(columns.tags)
    _check_count(count)
    if any(len(column) != count for column in columns):
        raise ValueError(
            f"columns of {', '.join(str(len(column)) for column in columns)} entries are not one sample each"
        )
    return _seal(_Part(link, Kind.SAMPLES, count, definitions), *_samples_content(columns, definitions))


def seal_messages(link: Link, messages: Sequence[Message]) -> Batch:
    """Seal messages, already checked by `message.check_message`, as the next batch of a chain. Raises as `seal_samples`."""
    _check_count(len(messages))
    return _seal(_Part(link, Kind.MESSAGES, len(messages), Definitions()), *_messages_content(messages))


def cut(batch: Batch, start: int, stop: int) -> Batch:
    """The facts at positions `start` to `stop` (exclusive) of a batch, as a batch of its own for a reader with a small limit.

    It is marked as a slice and names the batch it was cut from as its predecessor: it can be read, never stored.
    """
    header = batch.header
    if not 0 <= start < stop <= header.count:
        raise ValueError(f"positions {start} to {stop} of a batch of {header.count}")
    link = Link(header.stream, header.origin, header.first_sequence + start, batch.digest)
    part = _Part(link, header.kind, stop - start, header.definitions, is_slice=True)
    if header.kind is Kind.SAMPLES:
        columns = tuple(column[start:stop] for column in open_samples(batch))
        return _seal(part, *_samples_content(columns, header.definitions))
    return _seal(part, *_messages_content(open_messages(batch)[start:stop]))


# --------------------------------------------------------------------------------------------------------------- reading


def split(data: bytes | memoryview) -> list[bytes]:
    """The sealed batches lying end to end in `data`, each as its own bytes. Raises BatchError when they do not fill it."""
    batches, at, view = [], 0, memoryview(data)
    while at < len(view):
        length = _sealed_length(view[at:])
        if at + length > len(view):
            raise BatchError(f"truncated: a batch of {length} bytes starts at {at}, {len(view) - at} are there")
        batches.append(bytes(view[at : at + length]))
        at += length
    return batches


def parse(sealed: bytes) -> Batch:
    """Read a batch's header and check its lengths and digest; the content is not opened. Raises BatchError."""
    if len(sealed) != _sealed_length(memoryview(sealed)):
        raise BatchError(f"length: {len(sealed)} bytes, its header says {_sealed_length(memoryview(sealed))}")
    digest = sealed[-DIGEST_BYTES:]
    if _digest(memoryview(sealed)[:-DIGEST_BYTES]) != digest:
        raise BatchError("digest: the bytes are not those that were sealed")
    header, body_at = _read_header(sealed)
    return Batch(header, sealed, digest, body_at)


def open_samples(batch: Batch) -> SampleColumns:
    """The samples of a batch as columns. Raises BatchError when the content is not what the header promises."""
    header = batch.header
    if header.kind is not Kind.SAMPLES:
        raise BatchError(f"kind: {header.kind.name} where samples were asked for")
    (first_tag, tag_steps), (first_ns, unit_ns, time_steps), values, qualities = _decode_samples(batch)
    tags = _expanded(first_tag, 1, tag_steps, header.count)
    times = _expanded(first_ns, unit_ns, time_steps, header.count)
    _check_bounds(header, (min(tags), max(tags)), (min(times), max(times)))
    values, qualities = _spread("values", values, header.count), _spread("qualities", qualities, header.count)
    return SampleColumns(tags, times, values, qualities)


def open_messages(batch: Batch) -> list[Message]:
    """The messages of a batch. Raises BatchError when the content is not what the header promises.

    Messages whose labels were collapsed share one dict; it is for reading.
    """
    header = batch.header
    if header.kind is not Kind.MESSAGES:
        raise BatchError(f"kind: {header.kind.name} where messages were asked for")
    columns = _decode(_MESSAGES, _content(batch))
    spread = [_spread(name, column, header.count) for name, column in zip(_MESSAGE_COLUMNS, columns, strict=True)]
    produced_at_unix_ms, objects_json = columns[3], columns[11]
    bounds_ns = min(produced_at_unix_ms) * 1_000_000, max(produced_at_unix_ms) * 1_000_000
    if bounds_ns != (header.time_min_ns, header.time_max_ns):
        raise BatchError("times: the header's bounds are not those of the facts")
    if wrong := _wrong_json(objects_json):
        raise BatchError(f"object_json: {wrong}")
    return [Message(Envelope(*row[:9]), Fact(*row[9:])) for row in zip(*spread, strict=True)]


def verify(batch: Batch) -> None:
    """Open the batch within the limits and discard what was found: raises BatchError unless every fact can be read.

    Says no exactly where `open_*` would, but does not build what nobody will look at: this is most of what a receiver's
    processor does.
    """
    header = batch.header
    if header.kind is Kind.MESSAGES:
        open_messages(batch)
        return
    (first_tag, tag_steps), (first_ns, unit_ns, time_steps), values, qualities = _decode_samples(batch)
    tag_bounds = _bounds(first_tag, 1, tag_steps, header.count)
    _check_bounds(header, tag_bounds, _bounds(first_ns, unit_ns, time_steps, header.count))
    for name, column in (("values", values), ("qualities", qualities)):
        _check_spread(name, column, header.count)


# --------------------------------------------------------------------------------------------------------------- columns

# Types say what may stand where, so that the decoder refuses a stranger when it meets it, before allocating what follows: no
# column longer than a batch, and nothing nested. That is why bytes are an extension type: with text and bytes both in the
# union, msgspec would need Any, and Any would build whatever tree of empty lists somebody sends.
_MANY = Meta(max_length=FACTS_MAX)
_Steps = int | Annotated[list[int], _MANY]
_Plain = bool | int | float | None
_Values = list[_Plain | str | Ext]  # how long is looked at once, by _wrong_value
_Qualities = list[Annotated[int, Meta(ge=0, le=QUALITY_MAX)]]
_Tags = tuple[int, _Steps]
_Times = tuple[int, int, _Steps]
_SamplesContent = tuple[_Tags, _Times, Annotated[_Values, _MANY], Annotated[_Qualities, _MANY]]
_PlainContent = tuple[_Tags, _Times, Annotated[list[_Plain], _MANY], Annotated[_Qualities, _MANY]]


def _like(pattern: re.Pattern[str], length_max: int) -> Meta:
    return Meta(pattern=rf"\A(?:{pattern.pattern})\Z", min_length=1, max_length=length_max)


_Text = Annotated[str, _like(TEXT, TEXT_BYTES_MAX)]
_Texts = Annotated[list[_Text], _MANY]
_OptionalTexts = Annotated[list[_Text | None], _MANY]
_MESSAGE_COLUMNS: dict[str, Any] = {
    "message_id": Annotated[list[Annotated[str, _like(TEXT, MESSAGE_ID_BYTES_MAX)]], _MANY],
    "from_zone": Annotated[list[Annotated[str, _like(ZONE, 32)]], _MANY],
    "to_zone": _Texts,
    "produced_at_unix_ms": Annotated[list[Annotated[int, Meta(ge=0, le=UNIX_MS_MAX)]], _MANY],
    "correlation_id": _OptionalTexts,
    "causation_id": _OptionalTexts,
    "labels": Annotated[list[Annotated[dict[_Text, _Text], Meta(max_length=LABELS_MAX)]], _MANY],
    "object_media_type": _OptionalTexts,
    "object_schema": _OptionalTexts,
    "subject": Annotated[list[Annotated[str, _like(SUBJECT, SUBJECT_BYTES_MAX)]], _MANY],
    "predicate": Annotated[list[Annotated[str, _like(PREDICATE, SUBJECT_BYTES_MAX)]], _MANY],
    "object_json": Annotated[list[Annotated[bytes, Meta(max_length=OBJECT_BYTES_MAX)]], _MANY],
}
_SAMPLES = Decoder(_SamplesContent)
_PLAIN_SAMPLES = Decoder(_PlainContent)
_MESSAGES: Decoder[Any] = Decoder(tuple[tuple(_MESSAGE_COLUMNS.values())])  # type: ignore[misc]
_ENCODER = Encoder()


def _encode(content: object) -> bytes:
    try:
        return _ENCODER.encode(content)
    except (OverflowError, TypeError, UnicodeEncodeError, msgspec.MsgspecError) as error:
        raise ValueError(f"a value has no encoding: {error}") from error


def _decode_samples(batch: Batch) -> Any:
    """The columns of a batch of samples as they are coded, values checked and unwrapped."""
    content = _content(batch)
    try:
        return _PLAIN_SAMPLES.decode(content)  # what most tags hold: then no value needs a second look
    except (msgspec.MsgspecError, ValueError, RecursionError):
        tags_coded, times_coded, values, qualities = _decode(_SAMPLES, content)
    values = [_unwrapped(value) if type(value) is Ext else value for value in values]
    if wrong := _wrong_value(values, set(map(type, values))):
        raise BatchError(wrong)
    return tags_coded, times_coded, values, qualities


def _decode(decoder: Decoder[Any], content: bytes | memoryview) -> Any:
    """Content as typed columns."""
    try:
        return decoder.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BatchError(f"content: {error}") from error


def _content(batch: Batch) -> bytes | memoryview:
    """The content of a batch, decompressed within its promised length."""
    header = batch.header
    body = memoryview(batch.sealed)[batch.body_at : -DIGEST_BYTES]
    if header.codec is Codec.RAW:
        return body
    try:
        # The frame's own size is checked first: zstd allocates what the frame says, whatever limit it is given.
        if zstandard.frame_content_size(body) != header.content_bytes:
            raise BatchError("content: the compressed frame's length is not the header's")
        return _contexts.decompressor.decompress(body, allow_extra_data=False)
    except (zstandard.ZstdError, ValueError) as error:
        raise BatchError(f"content: {error}") from error


class _Contexts(threading.local):
    """zstd contexts are costly to make and not to be shared between threads."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()


def _samples_content(columns: Sequence[Sequence[Any]], definitions: Definitions) -> tuple[bytes, int, int]:
    """Encoded content, earliest and latest source time."""
    tags, times, values, qualities = columns
    kinds = set(map(type, values))
    if wrong := _wrong_value(values, kinds):
        raise ValueError(wrong)
    try:
        _check_tags(tags, definitions)
        time_min_ns, time_max_ns = min(times), max(times)
        if time_min_ns < INT64_MIN or time_max_ns >= 2**63:
            raise ValueError(f"source times {time_min_ns} to {time_max_ns}: nanoseconds since 1970 have 64 bits")
        coded = (
            _deltas(tags),
            _scaled_deltas(times) if time_max_ns - time_min_ns < 2**63 else _far_times(times),
            _wrapped(_collapsed_values(values, kinds), kinds),
            _checked_qualities(_collapsed(qualities)),
        )
    except TypeError as error:
        raise ValueError(f"tags, source times and qualities are integers: {error}") from error
    return _encode(coded), time_min_ns, time_max_ns


def _check_tags(tags: Sequence[int], definitions: Definitions) -> None:
    """Raise TypeError or ValueError unless every tag is the number of a definition."""
    if type(tags[0]) is not int or type(sum(tags)) is not int:  # a float anywhere makes the sum one
        raise TypeError("a tag is something else")
    if min(tags) < 1 or max(tags) > definitions.count:
        raise ValueError(f"tags {min(tags)} to {max(tags)}: this origin has defined 1 to {definitions.count}")


def _checked_qualities(qualities: Sequence[int]) -> Sequence[int]:
    """The (collapsed) qualities; raises TypeError or ValueError unless each is an OPC UA StatusCode."""
    if set(map(type, qualities)) != {int}:
        raise TypeError("a quality is something else")
    if min(qualities) < 0 or max(qualities) > QUALITY_MAX:
        raise ValueError(f"qualities {min(qualities)} to {max(qualities)}: an OPC UA StatusCode has 32 bits")
    return qualities


def _messages_content(messages: Sequence[Message]) -> tuple[bytes, int, int]:
    """Encoded content, earliest and latest time of production."""
    content = _encode([_collapsed(column) for column in zip(*map(_message_row, messages), strict=True)])
    if len(content) > CONTENT_BYTES_MAX:
        raise BatchTooLarge(f"{len(content)} bytes of content, the limit is {CONTENT_BYTES_MAX}")
    try:  # what a reader would refuse must not get into a store
        columns = _MESSAGES.decode(content)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"not checked before sealing: {error}") from error
    if wrong := _wrong_json(columns[11]):
        raise ValueError(f"not checked before sealing: object_json {wrong}")
    return content, min(columns[3]) * 1_000_000, max(columns[3]) * 1_000_000


def _message_row(message: Message) -> tuple[Any, ...]:
    envelope, fact = message.envelope, message.fact
    return (
        envelope.message_id, envelope.from_zone, envelope.to_zone, envelope.produced_at_unix_ms, envelope.correlation_id,
        envelope.causation_id, dict(envelope.labels), envelope.object_media_type, envelope.object_schema,
        fact.subject, fact.predicate, fact.object_json,
    )  # fmt: skip


def _check_count(count: int) -> None:
    if not 0 < count <= FACTS_MAX:
        raise BatchTooLarge(f"{count} facts: a batch holds 1 to {FACTS_MAX}")


def _wrong_value(values: Sequence[Any], kinds: set[type]) -> str:
    """Why these values, of these types, cannot stand in a batch; or nothing. Looks at each only where one may be long."""
    if not kinds <= _VALUE_TYPES:
        strangers = ", ".join(sorted(kind.__name__ for kind in kinds - _VALUE_TYPES))
        return f"values: {strangers} is not a type a tag can hold"
    if kinds & {str, bytes, Json}:
        length = max(value_bytes(value) for value in values if type(value) in (str, bytes, Json))
        if length > VALUE_BYTES_MAX:
            return f"values: one of {length} bytes, the limit is {VALUE_BYTES_MAX}"
    if Json in kinds and (wrong := _wrong_json(value.data for value in values if type(value) is Json)):
        return f"values: {wrong}"
    return ""


def _wrapped(values: Sequence[Any], kinds: set[type]) -> Sequence[Any]:
    """The values as MessagePack has them: structures and bytes as extension types."""
    if not kinds & {bytes, Json}:
        return values
    return [
        Ext(_EXT_JSON, v.data) if type(v) is Json else Ext(_EXT_BYTES, v) if type(v) is bytes else v for v in values
    ]


def _unwrapped(value: Ext) -> Json | bytes:
    """The inverse of `_wrapped`, for one value."""
    data = bytes(value.data)
    if value.code == _EXT_JSON:
        return Json(data)
    if value.code == _EXT_BYTES:
        return data
    raise BatchError(f"values: unknown extension type {value.code}")


def _wrong_json(texts: Iterable[bytes]) -> str:
    """Why one of these is not JSON, or nothing. Whether it is canonical is for its producer to see to."""
    try:
        for text in texts:
            msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return f"not JSON: {error}"
    return ""


def _collapsed(column: Sequence[Any]) -> Sequence[Any]:
    """The column, or its first entry alone when all are equal. Only for columns of one type: 1 == 1.0 == True."""
    return column[:1] if column[0] == column[-1] and column.count(column[0]) == len(column) else column


def _collapsed_values(values: Sequence[Any], kinds: set[type]) -> Sequence[Any]:
    """As `_collapsed`, for values of mixed types: equal must mean the same bits, so 1 is not True and 0.0 is not -0.0."""
    if len(kinds) > 1:
        return values
    short = _collapsed(values)
    if len(short) < len(values) and short[0] == 0.0 and len({math.copysign(1, value) for value in values}) > 1:
        return values
    return short


def _deltas(column: Sequence[int]) -> tuple[int, int | list[int]]:
    """First entry and the steps between neighbours; one number when all steps are equal."""
    steps = list(map(sub, column[1:], column))
    if not steps:
        return column[0], 0
    return column[0], steps[0] if steps[0] == steps[-1] and steps.count(steps[0]) == len(steps) else steps


def _scaled_deltas(times: Sequence[int]) -> tuple[int, int, int | list[int]]:
    """First entry, unit, and steps in that unit: clocks tick in us or ms, and smaller numbers take fewer bytes."""
    first, steps = _deltas(times)
    if type(first) is not int or type(steps) not in (int, list):
        raise TypeError("a source time is something else")
    if isinstance(steps, int):
        return first, 1, steps
    unit = math.gcd(*steps)  # raises TypeError for anything but integers
    return first, unit, steps if unit == 1 else [step // unit for step in steps]


def _far_times(times: Sequence[int]) -> tuple[int, int, Sequence[int]]:
    """Times between which a clock jumped further than a step can say: unit 0, and they stand as they are."""
    if set(map(type, times)) != {int}:
        raise TypeError("a source time is something else")
    return times[0], 0, times[1:]


def _expanded(first: int, unit: int, steps: int | list[int], count: int) -> list[int]:
    """The inverse of `_deltas`, `_scaled_deltas` and `_far_times`."""
    if unit < 0:
        raise BatchError(f"column: unit {unit}")
    if isinstance(steps, int):
        return list(accumulate(repeat(steps * unit, count - 1), initial=first))
    if len(steps) != count - 1:
        raise BatchError(f"column: {len(steps)} steps for {count} facts")
    if unit == 0:
        return [first, *steps]
    return list(accumulate(steps if unit == 1 else map(mul, steps, repeat(unit)), initial=first))


def _bounds(first: int, unit: int, steps: int | list[int], count: int) -> tuple[int, int]:
    """Least and greatest of what `_expanded` would make of the same, with sums in units: small numbers are quicker."""
    if isinstance(steps, int) or unit <= 0 or len(steps) != count - 1:
        column = _expanded(first, unit, steps, count)
        return min(column), max(column)
    sums = list(accumulate(steps, initial=0))
    return first + unit * min(sums), first + unit * max(sums)


def _check_bounds(header: Header, tags: tuple[int, int], times_ns: tuple[int, int]) -> None:
    """Raise BatchError unless every tag was defined and the times are within the header's."""
    if tags[0] < 1 or tags[1] > header.definitions.count:
        raise BatchError(f"tags: {tags[0]} to {tags[1]}, defined are 1 to {header.definitions.count}")
    if times_ns != (header.time_min_ns, header.time_max_ns):
        raise BatchError("times: the header's bounds are not those of the facts")


def _spread(name: str, column: list[Any], count: int) -> list[Any]:
    """The inverse of `_collapsed`."""
    _check_spread(name, column, count)
    return column if len(column) == count else column * count


def _check_spread(name: str, column: list[Any], count: int) -> None:
    """Raise BatchError unless a column has one entry for each fact, or one for all."""
    if len(column) not in (1, count):
        raise BatchError(f"{name}: {len(column)} entries for {count} facts")


# ----------------------------------------------------------------------------------------------------------------- bytes


@dataclass(frozen=True, slots=True)
class _Part:
    """What a batch to be sealed is, apart from its content."""

    link: Link
    kind: Kind
    count: int
    definitions: Definitions
    is_slice: bool = False


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def _seal(part: _Part, content: bytes, time_min_ns: int, time_max_ns: int) -> Batch:
    """Compress, put the header before and the digest behind."""
    if len(content) > CONTENT_BYTES_MAX:
        raise BatchTooLarge(f"{len(content)} bytes of content, the limit is {CONTENT_BYTES_MAX}")
    link = part.link
    compressed = _contexts.compressor.compress(content)
    codec, body = (Codec.ZSTD, compressed) if len(compressed) < len(content) else (Codec.RAW, content)
    header = Header(
        link.stream, link.origin, part.kind, codec, part.is_slice, link.next_sequence, part.count, time_min_ns,
        time_max_ns, link.digest, part.definitions, len(content),
    )  # fmt: skip
    if why := _wrong_header(header):
        raise ValueError(why)
    zone, stream = link.origin.zone.encode(), link.stream.encode()
    body_at = _FIXED.size + len(zone) + len(stream)
    if body_at + len(body) + DIGEST_BYTES > SEALED_BYTES_MAX:
        raise BatchTooLarge(f"{len(body)} bytes compressed, a whole batch may have {SEALED_BYTES_MAX}")
    fixed = _FIXED.pack(
        MAGIC, FORMAT_VERSION, part.kind, codec, _FLAG_SLICE if part.is_slice else 0, link.origin.epoch,
        link.next_sequence, part.count, time_min_ns, time_max_ns, link.digest, part.definitions.count,
        part.definitions.digest, len(content), len(body), len(zone), len(stream),
    )  # fmt: skip
    unsigned = b"".join((fixed, zone, stream, body))
    digest = _digest(unsigned)
    return Batch(header, unsigned + digest, digest, body_at)


def _sealed_length(data: memoryview) -> int:
    """How long the batch at the start of `data` says it is; raises BatchError when it cannot say or says too much."""
    if len(data) < _FIXED.size:
        raise BatchError(f"truncated: {len(data)} bytes, a header has {_FIXED.size}")
    if data[:4] != MAGIC:
        raise BatchError(f"magic: {bytes(data[:4])!r} where {MAGIC!r} belongs")
    if data[4] != FORMAT_VERSION:
        raise BatchError(f"version: format {data[4]}, this program reads {FORMAT_VERSION}; update it")
    *_, body_bytes, zone_bytes, stream_bytes = _FIXED.unpack_from(data)
    length: int = _FIXED.size + zone_bytes + stream_bytes + body_bytes + DIGEST_BYTES
    if length > SEALED_BYTES_MAX:
        raise BatchError(f"length: {length} bytes, the limit is {SEALED_BYTES_MAX}")
    return length


def _read_header(sealed: bytes) -> tuple[Header, int]:
    """Header and position of the body, of bytes whose length and digest are known to be right; raises BatchError."""
    (_, _, kind, codec, flags, epoch, first_sequence, count, time_min_ns, time_max_ns, previous_digest,
     definition_count, definitions_digest, content_bytes, body_bytes, zone_bytes, stream_bytes) = _FIXED.unpack_from(sealed)  # fmt: skip
    zone_at, stream_at = _FIXED.size, _FIXED.size + zone_bytes
    body_at = stream_at + stream_bytes
    if kind not in _KINDS or codec not in _CODECS or flags & ~_FLAG_SLICE:
        raise BatchError(f"kind {kind}, codec {codec}, flags {flags:#x}: one of them is unknown")
    if codec == Codec.RAW and content_bytes != body_bytes:
        raise BatchError("content: raw, but not as long as the body")
    header = Header(
        sealed[stream_at:body_at].decode("latin-1"), Origin(sealed[zone_at:stream_at].decode("latin-1"), epoch),
        Kind(kind), Codec(codec), bool(flags & _FLAG_SLICE), first_sequence, count, time_min_ns, time_max_ns,
        previous_digest, Definitions(definition_count, definitions_digest), content_bytes,
    )  # fmt: skip
    if why := _wrong_header(header):
        raise BatchError(why)
    return header, body_at


def _wrong_header(header: Header) -> str:
    """Why no batch may say this of itself, or nothing. Asked by the writer before sealing and by every reader."""
    origin, definitions = header.origin, header.definitions
    starts_chain = header.first_sequence == 1 and not header.is_slice
    if not ZONE.fullmatch(origin.zone):
        return f"zone: {origin.zone!r}"
    if not STREAM.fullmatch(header.stream):
        return f"stream: {header.stream!r}"
    if len(origin.epoch) != EPOCH_BYTES:
        return f"epoch: {len(origin.epoch)} bytes"
    if not 1 <= header.count <= FACTS_MAX:
        return f"count: {header.count} facts, a batch holds 1 to {FACTS_MAX}"
    if not 1 <= header.first_sequence <= SEQUENCE_MAX - header.count:
        return f"sequence: {header.first_sequence}"
    if header.time_min_ns > header.time_max_ns:
        return "times: the earliest is after the latest"
    if len(header.previous_digest) != DIGEST_BYTES or (header.previous_digest == NO_DIGEST) != starts_chain:
        return "previous digest: zero where a chain starts, at sequence 1, and nowhere else"
    if not 0 <= definitions.count <= DEFINITIONS_MAX or len(definitions.digest) != DIGEST_BYTES:
        return f"definitions: {definitions.count}, digest of {len(definitions.digest)} bytes"
    if (definitions.count == 0) != (definitions.digest == NO_DIGEST):
        return "definitions: digest and count disagree"
    if (definitions.count == 0) != (header.kind is Kind.MESSAGES):
        return "definitions: samples need them, messages have none"
    if header.content_bytes > CONTENT_BYTES_MAX:
        return f"content: {header.content_bytes} bytes, the limit is {CONTENT_BYTES_MAX}"
    return ""


_KINDS = frozenset(Kind)
_CODECS = frozenset(Codec)

"""The batch: an immutable run of consecutive facts of one stream from one origin, sealed once and carried verbatim.

A batch is encoded once, where its facts are recorded; every store, wire and relay after that copies its bytes (decision
0001). It has its identity (stream, origin, first sequence, count), the digest of its predecessor, the record of its
zone's signature (agent.signing), and a digest of itself, so a changed, missing or forked history is detected from two
batches alone.

Guarantees: `parse` and `open_*` accept only bytes that `seal_*` or `cut` could have made, up to the choice of
compressor and of MessagePack forms, and raise BatchError for all others, before they allocate more than the limits
below. Facts that a reader would refuse are never sealed. docs/developers/batch-format.md describes the same bytes for a
second implementation; a test checks its vectors against this code.

Not here: the columns of samples (agent.columns), who may send what (agent.replication), where a batch is stored
(agent.fact_store).

    BatchError          bytes that are not a batch: malformed, corrupt, truncated, oversized, forged, of another version
    BatchTooLarge       the facts do not fit into one batch; the caller must split them
"""

from __future__ import annotations

import hashlib
import re
import struct
import threading  # tidy: for codec contexts kept per thread; nothing here starts or awaits one
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import msgspec
import zstandard
from msgspec import Meta
from msgspec.msgpack import Decoder

from agent.columns import (
    FACTS_MAX,
    BatchError,
    HeaderFields,
    SampleColumns,
    Unpacked,
    check_spread,
    collapsed,
    decoded,
    encoded,
    pack,
    unpack,
)
from agent.message import (
    LABELS_MAX,
    MESSAGE_ID_BYTES_MAX,
    OBJECT_BYTES_MAX,
    PREDICATE,
    STREAM,
    SUBJECT,
    SUBJECT_BYTES_MAX,
    TEXT,
    TEXT_BYTES_MAX,
    UNIX_MS_MAX,
    ZONE,
    Envelope,
    Fact,
    Message,
    TagDefinition,
    Value,
    sample_message,
    sample_message_id,
    wrong_json,
)

FORMAT_VERSION = 1
SEALED_BYTES_MAX = 512 * 1024  # fits the 1 MiB packet of the shipped broker configuration with room for the header
CONTENT_BYTES_MAX = 2 * 1024 * 1024  # decompressed; as Python objects, hostile content takes about 20 times that
LIFE_BYTES = 16
DIGEST_BYTES = 16  # BLAKE2b-128: second preimages cost 2**128; see docs/decisions
NO_DIGEST = bytes(DIGEST_BYTES)
RECORD_BYTES = 82  # of a signature, with its key and time: agent.signing.records
SEQUENCE_MAX = 2**63 - 1
DEFINITIONS_MAX = 2**32 - 1

MAGIC = b"BSFB"
_FIXED = struct.Struct("<4sBBBB16sQIqq16sI16sIIBB")
_FLAGS_BYTE = 7
_FLAG_SLICE, _FLAG_RECORD = 0x01, 0x02
_NAMES_MAX = 256  # streams and origins cached, of at most 255 bytes each, whatever a peer sends
_ZSTD_LEVEL = 1  # level 3 saves 3 % of the bytes for twice the time


class BatchTooLarge(ValueError):
    """The facts given to `seal_*` exceed a limit of the format; seal fewer at a time."""


class Kind(IntEnum):
    """The kind of the facts of a batch; each batch has one kind."""

    SAMPLES = 1
    MESSAGES = 2


class Codec(IntEnum):
    """The compression of the body."""

    RAW = 0
    ZSTD = 1


class Origin(NamedTuple):
    """Where a fact was first recorded: a zone, and the life (16 bytes) of its store: the opening that recorded it."""

    zone: str
    life: bytes

    def __str__(self) -> str:
        return f"{self.zone}/{self.life.hex()}"


@dataclass(frozen=True, slots=True)
class Link:
    """The end of a chain, which its next batch continues: next sequence (>= 1) and digest of the last batch."""

    stream: str
    origin: Origin
    next_sequence: int = 1
    digest: bytes = NO_DIGEST


@dataclass(frozen=True, slots=True)
class Definitions:
    """The count of an origin's tag definitions, and the running digest over them: `digest(n) = H(digest(n-1) +
    json(n))`.

    Every batch of samples has it in its header, so a relay cannot change a definition without breaking the batch's
    digest.
    """

    count: int = 0
    digest: bytes = NO_DIGEST

    def extended(self, definition_json: bytes) -> Definitions:
        """The state after one more definition, given as its canonical JSON bytes."""
        return Definitions(self.count + 1, extended_digest(self.digest, definition_json))


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a batch. Times are nanoseconds since 1970 and enclose all facts (source time, or time of
    production)."""

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
    is_signed: bool = False

    @property
    def last_sequence(self) -> int:
        """Sequence of the last fact."""
        return self.first_sequence + self.count - 1


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch whose header and digest were checked. `sealed` are all its bytes, as stored and sent; the last 16 are
    `digest`; `body_at` is where the body starts."""

    header: Header
    sealed: bytes
    digest: bytes
    body_at: int

    @property
    def record(self) -> bytes:
        """The record of the signature, which may be malformed; empty if it has none."""
        return self.sealed[-DIGEST_BYTES - RECORD_BYTES : -DIGEST_BYTES] if self.header.is_signed else b""

    @property
    def signed_digest(self) -> bytes:
        """The digest that the record signs, of all bytes before the record."""
        return (
            _digest(memoryview(self.sealed)[: -DIGEST_BYTES - RECORD_BYTES]) if self.header.is_signed else self.digest
        )

    def follows(self, before: Batch) -> bool:
        """Whether this batch is the successor of another in the chain of their zone, which runs on over lives."""
        left, right = before.header, self.header
        is_next = left.origin.zone == right.origin.zone and left.last_sequence + 1 == right.first_sequence
        return is_next and right.previous_digest == before.digest

    @property
    def body(self) -> memoryview:
        tail = DIGEST_BYTES + RECORD_BYTES * self.header.is_signed
        return memoryview(self.sealed)[self.body_at : -tail]

    @property
    def link(self) -> Link:
        """The link for the successor of this batch. Raises BatchError for a slice, which has none."""
        if self.header.is_slice:
            raise BatchError("slice: it is for reading, no batch follows it")
        return Link(self.header.stream, self.header.origin, self.header.last_sequence + 1, self.digest)


Sign = Callable[[Header, bytes], bytes]
"""Returns the record of a batch, from its header and the digest of all bytes before the record."""

# -------------------------------------------------------------------------------------------------------------- sealing


def seal_samples(
    link: Link, rows: Sequence[tuple[int, int, Value, int]], definitions: Definitions, sign: Sign | None = None
) -> Batch:
    """Seal samples (tag, source_time_ns, value, quality) as the next batch of a chain, signed if `sign` is given.

    Raises BatchTooLarge when they do not fit one batch, ValueError when a tag was not defined or a value has no
    encoding.
    """
    return seal_columns(link, SampleColumns.of(rows), definitions, sign)


def seal_columns(link: Link, columns: SampleColumns, definitions: Definitions, sign: Sign | None = None) -> Batch:
    """As `seal_samples`, for samples that are columns already, as in the store's queue."""
    count = len(columns.tags)
    _check_count(count)
    if any(len(column) != count for column in columns):
        raise ValueError(
            f"columns of {', '.join(str(len(column)) for column in columns)} entries are not one sample each"
        )
    return _seal(_Part(link, Kind.SAMPLES, count, definitions, sign=sign), *pack(columns, definitions.count))


def seal_messages(link: Link, messages: Sequence[Message], sign: Sign | None = None) -> Batch:
    """Seal messages that `message.check_message` has accepted as the next batch of a chain. Raises as
    `seal_samples`."""
    _check_count(len(messages))
    return _seal(_Part(link, Kind.MESSAGES, len(messages), Definitions(), sign=sign), *_messages_content(messages))


def cut(batch: Batch, start: int, stop: int) -> Batch:
    """The facts at positions `start` to `stop` (exclusive) of a batch as a slice, for a reader with a small limit.

    A slice is a batch with a flag; it names the batch it was cut from as its predecessor. It can be read, but not
    stored.
    """
    header = batch.header
    if not 0 <= start < stop <= header.count:
        raise ValueError(f"positions {start} to {stop} of a batch of {header.count}")
    link = Link(header.stream, header.origin, header.first_sequence + start, batch.digest)
    part = _Part(link, header.kind, stop - start, header.definitions, is_slice=True)
    if header.kind is Kind.SAMPLES:
        return _seal(part, *pack(open_samples(batch).cut(start, stop), header.definitions.count))
    return _seal(part, *_messages_content(open_messages(batch)[start:stop]))


# -------------------------------------------------------------------------------------------------------------- reading


def parse(sealed: bytes) -> Batch:
    """Read a batch's header, and check its lengths and its digest; the content is not opened. Raises BatchError."""
    if len(sealed) != _sealed_length(memoryview(sealed)):
        raise BatchError(f"length: {len(sealed)} bytes, its header says {_sealed_length(memoryview(sealed))}")
    digest = sealed[-DIGEST_BYTES:]
    if _digest(memoryview(sealed)[:-DIGEST_BYTES]) != digest:
        raise BatchError("digest: the bytes are not those that were sealed")
    header, body_at = _read_header(sealed)
    return Batch(header, sealed, digest, body_at)


def open_samples(batch: Batch) -> SampleColumns:
    """The samples of a batch as lists, or as rows. Raises BatchError when the content does not match the header."""
    return open_packed(batch).columns()


def open_packed(batch: Batch) -> Unpacked:
    """The samples of a batch, checked but still packed, for callers that need only some of them. Raises as
    `open_samples`."""
    header = batch.header
    if header.kind is not Kind.SAMPLES:
        raise BatchError(f"kind: {header.kind.name} where samples were asked for")
    return unpack(
        _content(batch), HeaderFields(header.count, header.definitions.count, header.time_min_ns, header.time_max_ns)
    )


def open_messages(batch: Batch) -> list[Message]:
    """The messages of a batch. Raises BatchError when the content does not match the header.

    Messages with equal labels may share one dict, which must not be changed.
    """
    header = batch.header
    if header.kind is not Kind.MESSAGES:
        raise BatchError(f"kind: {header.kind.name} where messages were asked for")
    columns = decoded(_MESSAGES, _content(batch))
    spread = [_spread(name, column, header.count) for name, column in zip(_MESSAGE_COLUMNS, columns, strict=True)]
    produced_at_unix_ms, objects_json = columns[3], columns[11]
    bounds_ns = min(produced_at_unix_ms) * 1_000_000, max(produced_at_unix_ms) * 1_000_000
    if bounds_ns != (header.time_min_ns, header.time_max_ns):
        raise BatchError("times: the header's bounds are not those of the facts")
    if wrong := wrong_json(objects_json):
        raise BatchError(f"object_json: {wrong}")
    return [Message(Envelope(*row[:9]), Fact(*row[9:])) for row in zip(*spread, strict=True)]


def batch_messages(batch: Batch, tags: Sequence[TagDefinition]) -> Iterator[Message]:
    """The facts of a batch as messages, in order. `tags`: the definitions that it names, at least. Raises
    BatchError."""
    header = batch.header
    if header.kind is Kind.MESSAGES:
        yield from open_messages(batch)
        return
    origin = header.origin
    for sequence, sample in enumerate(open_samples(batch).rows(), header.first_sequence):
        message_id = sample_message_id(header.stream, origin.zone, origin.life, sequence)
        yield sample_message(tags[sample.tag - 1], sample, message_id, origin.zone)


def verify(batch: Batch) -> None:
    """Raise BatchError unless every fact of the batch can be read: in the same cases as `open_*`, but without building
    samples.

    This is most of the CPU time of a receiver.
    """
    if batch.header.kind is Kind.MESSAGES:
        open_messages(batch)
    else:
        open_packed(batch)


# -------------------------------------------------------------------------------------------------------------- content

# As in agent.columns, the types refuse invalid values before the values after them are allocated.
_MANY = Meta(max_length=FACTS_MAX)


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
_MESSAGES: Decoder[Any] = Decoder(tuple[tuple(_MESSAGE_COLUMNS.values())])  # type: ignore[misc]


def _content(batch: Batch) -> bytes | memoryview:
    """The content of a batch, decompressed to the length in its header. Raises BatchError."""
    header = batch.header
    body = batch.body
    if header.codec is Codec.RAW:
        return body
    try:
        # The size in the frame is checked first, because zstd allocates it whatever limit it is given.
        if zstandard.frame_content_size(body) != header.content_bytes:
            raise BatchError("content: the compressed frame's length is not the header's")
        return _contexts.decompressor.decompress(body, allow_extra_data=False)
    except (zstandard.ZstdError, ValueError) as error:
        raise BatchError(f"content: {error}") from error


class _Contexts(threading.local):
    """zstd contexts, one of each per thread: they are costly to make and not thread-safe."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()


def _messages_content(messages: Sequence[Message]) -> tuple[bytes, int, int]:
    """Encoded content, earliest and latest time of production."""
    content = encoded([collapsed(column) for column in zip(*map(_message_row, messages), strict=True)])
    if len(content) > CONTENT_BYTES_MAX:
        raise BatchTooLarge(f"{len(content)} bytes of content, the limit is {CONTENT_BYTES_MAX}")
    try:  # facts that a reader would refuse must not be sealed
        columns = _MESSAGES.decode(content)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"not checked before sealing: {error}") from error
    if wrong := wrong_json(columns[11]):
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


def _spread(name: str, column: list[Any], count: int) -> list[Any]:
    """The inverse of `collapsed`."""
    check_spread(name, len(column), count)
    return column if len(column) == count else column * count


# ---------------------------------------------------------------------------------------------------------------- bytes


@dataclass(frozen=True, slots=True)
class _Part:
    """The properties of a batch to be sealed, without its content."""

    link: Link
    kind: Kind
    count: int
    definitions: Definitions
    is_slice: bool = False
    sign: Sign | None = None


def extended_digest(digest: bytes, definition_json: bytes) -> bytes:
    """As `Definitions.extended`, for a reader that counts itself: above a thousand zones there are 50,000."""
    return _digest(digest + definition_json)


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def _seal(part: _Part, content: bytes, time_min_ns: int, time_max_ns: int) -> Batch:
    """Compress the content, and add header, record and digest. Raises BatchTooLarge, ValueError."""
    if len(content) > CONTENT_BYTES_MAX:
        raise BatchTooLarge(f"{len(content)} bytes of content, the limit is {CONTENT_BYTES_MAX}")
    link = part.link
    compressed = _contexts.compressor.compress(content)
    codec, body = (Codec.ZSTD, compressed) if len(compressed) < len(content) else (Codec.RAW, content)
    header = Header(
        link.stream, link.origin, part.kind, codec, part.is_slice, link.next_sequence, part.count, time_min_ns,
        time_max_ns, link.digest, part.definitions, len(content), part.sign is not None,
    )  # fmt: skip
    if why := _wrong_header(header):
        raise ValueError(why)
    zone, stream = link.origin.zone.encode(), link.stream.encode()
    body_at = _FIXED.size + len(zone) + len(stream)
    if body_at + len(body) + RECORD_BYTES * header.is_signed + DIGEST_BYTES > SEALED_BYTES_MAX:
        raise BatchTooLarge(f"{len(body)} bytes compressed, a whole batch may have {SEALED_BYTES_MAX}")
    fixed = _FIXED.pack(
        MAGIC, FORMAT_VERSION, part.kind, codec, _FLAG_SLICE * part.is_slice | _FLAG_RECORD * header.is_signed, link.origin.life,
        link.next_sequence, part.count, time_min_ns, time_max_ns, link.digest, part.definitions.count,
        part.definitions.digest, len(content), len(body), len(zone), len(stream),
    )  # fmt: skip
    return _with_record(header, b"".join((fixed, zone, stream, body)), body_at, part.sign)


def _with_record(header: Header, unsigned: bytes, body_at: int, sign: Sign | None) -> Batch:
    """Add record and digest. The bytes are hashed once: the record signs the state before it, the digest covers it."""
    hashed, record = hashlib.blake2b(unsigned, digest_size=DIGEST_BYTES), b""
    assert header.is_signed == (sign is not None), "a signed batch needs a signer, an unsigned one has none"
    if sign is not None:
        record = sign(header, hashed.digest())
        assert len(record) == RECORD_BYTES, len(record)
        hashed.update(record)
    digest = hashed.digest()
    return Batch(header, b"".join((unsigned, record, digest)), digest, body_at)


def _sealed_length(data: memoryview) -> int:
    """The length of the batch at the start of `data`, from its header. Raises BatchError if there is no batch, or if it
    exceeds the limit."""
    if len(data) < _FIXED.size:
        raise BatchError(f"truncated: {len(data)} bytes, a header has {_FIXED.size}")
    if data[:4] != MAGIC:
        raise BatchError(f"magic: {bytes(data[:4])!r} where {MAGIC!r} belongs")
    if data[4] != FORMAT_VERSION:
        raise BatchError(f"version: format {data[4]}, this program reads {FORMAT_VERSION}; update it")
    *_, body_bytes, zone_bytes, stream_bytes = _FIXED.unpack_from(data)
    record_bytes = RECORD_BYTES if data[_FLAGS_BYTE] & _FLAG_RECORD else 0
    length: int = _FIXED.size + zone_bytes + stream_bytes + body_bytes + record_bytes + DIGEST_BYTES
    if length > SEALED_BYTES_MAX:
        raise BatchError(f"length: {length} bytes, the limit is {SEALED_BYTES_MAX}")
    return length


def _read_header(sealed: bytes) -> tuple[Header, int]:
    """Header and position of the body, of bytes whose length and digest were checked. Raises BatchError."""
    (_, _, kind, codec, flags, life, first_sequence, count, time_min_ns, time_max_ns, previous_digest,
     definition_count, definitions_digest, content_bytes, body_bytes, zone_bytes, stream_bytes) = _FIXED.unpack_from(sealed)  # fmt: skip
    zone_at, stream_at = _FIXED.size, _FIXED.size + zone_bytes
    body_at = stream_at + stream_bytes
    known_kind, known_codec = _KINDS.get(kind), _CODECS.get(codec)
    if known_kind is None or known_codec is None or flags & ~(_FLAG_SLICE | _FLAG_RECORD):
        raise BatchError(f"kind {kind}, codec {codec}, flags {flags:#x}: one of them is unknown")
    if codec == Codec.RAW and content_bytes != body_bytes:
        raise BatchError("content: raw, but not as long as the body")
    stream, origin = _names(sealed[stream_at:body_at], sealed[zone_at:stream_at], life)
    header = Header(
        stream, origin, known_kind, known_codec, bool(flags & _FLAG_SLICE), first_sequence, count, time_min_ns, time_max_ns,
        previous_digest, Definitions(definition_count, definitions_digest), content_bytes, bool(flags & _FLAG_RECORD),
    )  # fmt: skip
    if why := _wrong_header(header):
        raise BatchError(why)
    return header, body_at


@lru_cache(_NAMES_MAX)
def _names(stream: bytes, zone: bytes, life: bytes) -> tuple[str, Origin]:
    """Stream and origin, cached: most batches of a page have the same."""
    return stream.decode("latin-1"), Origin(zone.decode("latin-1"), life)


@lru_cache(_NAMES_MAX)
def _are_names(stream: str, zone: str) -> bool:
    return STREAM.fullmatch(stream) is not None and ZONE.fullmatch(zone) is not None


def _wrong_header(header: Header) -> str:
    """Why a header is invalid; empty if it is valid. Checked before sealing and by every reader."""
    origin, definitions = header.origin, header.definitions
    starts_chain = header.first_sequence == 1 and not header.is_slice
    if not _are_names(header.stream, origin.zone):
        return f"stream: {header.stream!r}" if ZONE.fullmatch(origin.zone) else f"zone: {origin.zone!r}"
    if header.is_slice and header.is_signed:
        return "flags: a slice has no record"
    if len(origin.life) != LIFE_BYTES:
        return f"life: {len(origin.life)} bytes"
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


_KINDS = {int(kind): kind for kind in Kind}
_CODECS = {int(codec): codec for codec in Codec}

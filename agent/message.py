"""Messages and samples: the two forms of a fact, their checks, and canonical JSON. Core: no IO.

A *message* is an envelope (producer, time, conversation) and a fact (subject, predicate, object). A *sample* is the
compact form of the fact "tag T had value V with quality Q at source time S"; it is stored as four columns and presented
as a message only on request, so telemetry costs no JSON.

Guarantees: one canonical form for JSON (RFC 8785), checks that name the field at fault, and the same presentation of a
sample wherever it is computed. A value outside the types below is refused, not converted.

    MessageError            a message, sample or definition breaks a rule; nothing was changed
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, NamedTuple

import msgspec
import rfc8785

from agent.errors import BsfgError

ZONE = re.compile(r"[a-z0-9-]{1,32}")
STREAM = re.compile(r"[a-z0-9._-]{1,64}")
CONSUMER = re.compile(r"[a-z0-9._-]{1,64}")
OPERATIONAL_STREAM = "facts.operational"
"""What a node says of its sources, its store and its clock; messages of applications, unless they name another."""
HEALTH_STREAM, HEALTH_SOURCE, HEALTH_PREFIX = "health", "bsfg", "tag:bsfg/"
"""Reserved: each node records its own health as samples of this source, with such subjects, in this stream."""
LOCAL_ZONE = "local"
"""Reserved: consumers on the node's own machine have this name instead of a zone's."""
PRODUCER = re.compile(r"[a-z0-9._-]{1,64}")
SUBJECT = re.compile(r"[a-z][a-z0-9_]*:[\x21-\x2e\x30-\x7e]+(?:/[\x21-\x7e]+)?")
PREDICATE = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
FORMS = {
    ZONE: "1 to 32 of a-z, 0-9 and -",
    STREAM: "1 to 64 of a-z, 0-9, ., _ and -",
    SUBJECT: "kind:id or kind:scope/id in printable ASCII without spaces, with a kind of a-z, 0-9 and _",
    PREDICATE: "words of a-z and 0-9 joined by _",
}
"""What a name looks like, for people. Consumers and producers look like streams."""
INTEGER = re.compile(r"-?[0-9]{1,19}")
TEXT = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]+")  # neither control characters nor lone surrogates

MESSAGE_ID_BYTES_MAX = 256  # a UUID has 36, a SHA-256 in hex 64; enough for readable ids, too little for documents
SUBJECT_BYTES_MAX = 512  # also of a predicate
DEFINITION_TEXT_MAX = 1024  # bytes of a definition's other texts
ENUMERATION_BYTES_MAX = 4096  # a hundred names; PackML, the largest in use, has 30 states
TEXT_BYTES_MAX = 256  # any other text field of an envelope
LABELS_MAX = 32  # labels are policy hints, not a second object
OBJECT_BYTES_MAX = 256 * 1024  # a fact must fit into one page together with others; larger objects are artifacts
VALUE_BYTES_MAX = 64 * 1024  # a string or bytes value of a tag; an array of 8,192 doubles as JSON stays below
UNIX_MS_MAX = 2**43 - 1  # the year 2248; as nanoseconds within int64
JSON_INTEGER_MAX = 2**53 - 1  # RFC 8785 allows only integers that every JSON reader holds exactly
JSON_DEPTH_MAX = 100  # nested arrays and objects; JSON readers of all languages accept more

INT64_MIN = -(2**63)
QUALITY_GOOD = 0  # OPC UA StatusCode, also for Modbus
QUALITY_MAX = 2**32 - 1


class MessageError(BsfgError, ValueError):
    """A message, sample or definition breaks a rule of this module. `field` names the field, the text says why."""

    def __init__(self, field_name: str, why: str) -> None:
        super().__init__(f"{field_name}: {why}")
        self.field = field_name
        self.why = why


class Json:
    """A structured value (array or object) of a tag, as canonical JSON bytes.

    It is neither a dataclass nor a subclass of bytes: the encoder of batches must not know the type, so that the value
    is marked as JSON instead of stored as plain bytes.
    """

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    @classmethod
    def of(cls, value: object) -> Json:
        """The canonical form of a Python list, dict or scalar."""
        return cls(canonical_json(value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Json) and other.data == self.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"Json({self.data!r})"


Value = bool | int | float | str | bytes | Json | None
"""The value of a tag: int from int64 minimum to uint64 maximum, float as IEEE 754 binary64, None with a bad quality or
for a null of the source."""


class Sample(NamedTuple):
    """One observation: tag number at its origin (>= 1), source time (ns since 1970, UTC), value, OPC UA StatusCode."""

    tag: int
    source_time_ns: int
    value: Value
    quality: int = QUALITY_GOOD


class SampleRank(NamedTuple):
    """The order in which samples of one tag count; the greatest is the latest value. Of two gateways that record for
    one zone the higher life is the later leader, so its sample replaces one of the same source time. The fields are
    columns of a row of facts, where lives as text sort as their bytes do."""

    source_time_ns: int
    life: bytes
    offset: int


@dataclass(frozen=True, slots=True)
class TagDefinition:
    """The meaning of a tag number. Immutable: a changed definition gets a new number.

    `subject` is `tag:<scope>/<id>`; `source` and `address` say where the value is read; `data_type` is the name of the
    type at the source. `enumeration` names the numbers that the tag can have: `0=Off|1=Manual|7=Automatic`.
    `acquisition` says how the values were read: empty for live values, `history` for values read later from the records
    of the source, to fill a gap.
    """

    subject: str
    predicate: str = "value_sampled"
    unit: str = ""
    source: str = ""
    address: str = ""
    data_type: str = ""
    description: str = ""
    enumeration: str = ""
    acquisition: str = ""

    def to_json(self) -> bytes:
        """Canonical JSON without empty fields, so that a field added later does not change an old definition's
        bytes."""
        return canonical_json({f.name: text for f in fields(self) if (text := getattr(self, f.name))})

    @classmethod
    def from_json(cls, data: bytes) -> TagDefinition:
        """Read the result of `to_json`. Unknown fields are ignored; a wrong type raises MessageError."""
        if plain := _PLAIN_DEFINITION.fullmatch(data):
            texts = {name: text.decode("ascii") for name, text in plain.groupdict().items() if text}
            names = SUBJECT.fullmatch(texts.get("subject", "")), PREDICATE.fullmatch(texts.get("predicate", "a"))
            if None not in names:
                return cls(**texts)
        known = {f.name for f in fields(cls)}
        found = parse_json("definition", data)
        if not isinstance(found, dict) or not isinstance(found.get("subject"), str):
            raise MessageError("definition", "must be a JSON object with a subject")
        texts = {name: text for name, text in found.items() if name in known}
        for name, text in texts.items():
            if not isinstance(text, str):
                raise MessageError(f"definition.{name}", f"must be text, found {type(text).__name__}")
        definition = cls(**texts)
        check_definition(definition)
        return definition


def _plain_definition() -> re.Pattern[bytes]:
    """Matches the canonical JSON of a definition whose texts are ASCII without escapes, as nearly all are, and within
    their limits: in a third of the time of a parser. A node that pulls a thousand zones reads 100,000 of them."""
    limits = {attribute.name: DEFINITION_TEXT_MAX for attribute in fields(TagDefinition)}
    limits |= {"enumeration": ENUMERATION_BYTES_MAX, "subject": SUBJECT_BYTES_MAX, "predicate": SUBJECT_BYTES_MAX}
    every = [
        rf'(?:"{name}":"(?P<{name}>[^"\\\x00-\x1f\x7f-\xff]{{1,{limit}}})"(?:,(?=")|(?=}}\Z)))?'
        for name, limit in sorted(limits.items())
    ]
    return re.compile((r"\{" + "".join(every) + r"\}").encode())


_PLAIN_DEFINITION = _plain_definition()


@dataclass(frozen=True, slots=True)
class Envelope:
    """System metadata of a message, as in the specification's message model. Times are milliseconds since 1970."""

    message_id: str
    from_zone: str
    to_zone: str
    produced_at_unix_ms: int
    correlation_id: str | None = None
    causation_id: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    object_media_type: str | None = None
    object_schema: str | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """A domain assertion: subject (`kind:id` or `kind:scope/id`), predicate (lower_snake_case), canonical JSON
    bytes."""

    subject: str
    predicate: str
    object_json: bytes


@dataclass(frozen=True, slots=True)
class Message:
    """Envelope and fact: the unit an application appends and fetches."""

    envelope: Envelope
    fact: Fact


def canonical_json(value: Any) -> bytes:
    """RFC 8785 bytes of a JSON value. Raises MessageError for NaN, infinities, integers beyond 2**53, non-JSON types
    and structures deeper than JSON_DEPTH_MAX."""
    try:
        data = rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError) as error:
        raise MessageError("object_json", f"has no canonical form: {error}") from error
    check_depth("object_json", data)
    return data


def canonical_form(name: str, data: bytes) -> bytes:
    """RFC 8785 bytes of JSON from outside, most of which is canonical already. Raises MessageError as `parse_json`."""
    return data if _are_plainly_canonical([data]) else canonical_json(parse_json(name, data))


def parse_json(name: str, data: bytes) -> Any:
    """A JSON value from UTF-8 bytes. Raises MessageError, also for values without a canonical form: duplicate keys, NaN
    and infinities, integers that a double would change, structures deeper than JSON_DEPTH_MAX.

    A number beyond 2**53, however it is written, is read as a double if its digits are those of a double: RFC 8785
    writes 1e16 as 10000000000000000, and its output must be readable again.
    """
    check_depth(name, data)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise MessageError(name, "has a key twice in one object")
        return found

    def refuse(constant: str) -> Any:
        raise MessageError(name, f"{constant} is not JSON")

    def number(digits: str) -> int | float:
        exact = int(digits) if len(digits) <= 17 else JSON_INTEGER_MAX + 1
        if abs(exact) <= JSON_INTEGER_MAX:
            return exact
        double = float(digits)
        if canonical_json(double) != digits.encode():
            raise MessageError(name, f"{digits[:40]} is beyond 2^53 and would be rounded; write it as a text")
        return double

    def fraction(text: str) -> float:
        double = float(text)
        if math.isinf(double):
            raise MessageError(name, f"{text[:40]} is beyond the largest double")
        if abs(double) > JSON_INTEGER_MAX and Decimal(text) != Decimal(repr(double)):
            raise MessageError(name, f"{text[:40]} is beyond 2^53 and would be rounded; write it as a text")
        return double

    read = partial(json.loads, object_pairs_hook=unique, parse_constant=refuse, parse_int=number, parse_float=fraction)
    try:
        return read(data.decode())
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise MessageError(name, f"is not JSON: {error}") from error


def check_depth(name: str, data: bytes) -> None:
    """Raise MessageError for JSON nested deeper than JSON_DEPTH_MAX, before a parser recurses into it. All JSON from
    outside this process is checked here before it is parsed."""
    if _is_flat(data):
        return
    # Without escapes every other part between quotes is outside a string. The parser stops at an invalid escape.
    # Texts without brackets go first: most quotes of an answer of megabytes are theirs.
    quoted = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NEITHER_BRACKETS_NOR_QUOTES)
    depth = 0
    for bracket in b"".join(quoted.replace(b'""', b"").split(b'"')[::2]):
        depth += 1 if bracket in b"[{" else -1
        if depth > JSON_DEPTH_MAX:
            raise MessageError(name, f"is nested deeper than {JSON_DEPTH_MAX} arrays and objects")


def check_name(name: str, text: object, pattern: re.Pattern[str], example: str = "") -> None:
    """Raise MessageError, with the example if there is one, unless `text` is a string that matches the whole
    pattern, one of FORMS."""
    if not isinstance(text, str) or not pattern.fullmatch(text):
        such_as = f"; for example {example}" if example else ""
        raise MessageError(name, f"{text!r} must be {FORMS[pattern]}{such_as}")


def check_text(name: str, text: object, bytes_max: int) -> None:
    """Raise MessageError unless `text` is a non-empty string of at most `bytes_max` UTF-8 bytes without control
    characters."""
    if not isinstance(text, str) or not text:
        raise MessageError(name, "must be a non-empty text")
    if not TEXT.fullmatch(text):
        raise MessageError(name, f"{text!r} holds a control character or a lone surrogate")
    if len(text.encode()) > bytes_max:
        raise MessageError(name, f"is longer than {bytes_max} bytes")


def check_definition(definition: TagDefinition) -> None:
    """Raise MessageError naming the field unless the definition may be numbered and replicated."""
    check_text("definition.subject", definition.subject, SUBJECT_BYTES_MAX)
    check_name("definition.subject", definition.subject, SUBJECT)
    check_text("definition.predicate", definition.predicate, SUBJECT_BYTES_MAX)
    check_name("definition.predicate", definition.predicate, PREDICATE)
    for name in ("unit", "source", "address", "data_type", "description", "acquisition"):
        if text := getattr(definition, name):
            check_text(f"definition.{name}", text, DEFINITION_TEXT_MAX)
    if definition.enumeration:
        check_text("definition.enumeration", definition.enumeration, ENUMERATION_BYTES_MAX)


def check_message(message: Message) -> None:
    """Raise MessageError naming the first field at fault. The object must be canonical JSON already."""
    envelope, fact = message.envelope, message.fact
    check_text("message_id", envelope.message_id, MESSAGE_ID_BYTES_MAX)
    check_name("from_zone", envelope.from_zone, ZONE)
    check_text("to_zone", envelope.to_zone, TEXT_BYTES_MAX)
    produced = envelope.produced_at_unix_ms
    if type(produced) is not int or not 0 <= produced <= UNIX_MS_MAX:
        raise MessageError("produced_at_unix_ms", f"{produced!r} is not a time in milliseconds since 1970")
    for name in ("correlation_id", "causation_id", "object_media_type", "object_schema"):
        if (text := getattr(envelope, name)) is not None:
            check_text(name, text, TEXT_BYTES_MAX)
    _check_labels(envelope.labels)
    check_text("subject", fact.subject, SUBJECT_BYTES_MAX)
    check_name("subject", fact.subject, SUBJECT, "batch:B-1042")
    check_text("predicate", fact.predicate, SUBJECT_BYTES_MAX)
    check_name("predicate", fact.predicate, PREDICATE, "step_completed")
    _check_object(fact.object_json)


def value_bytes(value: str | bytes | Json) -> int:
    """Length in bytes of a text (as UTF-8), of bytes or of a structure, as limited by VALUE_BYTES_MAX."""
    match value:
        case str():
            return len(value) if value.isascii() else len(value.encode(errors="surrogatepass"))
        case Json():
            return len(value.data)
        case _:
            return len(value)


def sample_message_id(stream: str, zone: str, life: bytes, sequence: int) -> str:
    """The message id of a sample, computed from its identity, so that it is not stored and is the same everywhere."""
    return f"{stream}/{zone}/{life.hex()}/{sequence}"


def sample_message(definition: TagDefinition, sample: Sample, message_id: str, from_zone: str) -> Message:
    """A sample presented as a message.

    The object has `quality` (number), `source_time` (ISO 8601, UTC, with the digits of the source), `value`, `unit` if
    the tag has one, `text` if its definition names the number, and `acquisition` if the value was not read live. For
    values without a JSON form see `json_value`. `produced_at_unix_ms` cannot be negative, so it is 0 for a source time
    before 1970.
    """
    content = {
        "quality": sample.quality,
        "source_time": time_text(sample.source_time_ns),
        "value": json_value(sample.value),
    }
    if definition.unit:
        content["unit"] = definition.unit
    if definition.enumeration and type(sample.value) is int:
        text = enumeration_texts(definition.enumeration).get(sample.value)
        if text is not None:
            content["text"] = text
    if definition.acquisition:
        content["acquisition"] = definition.acquisition
    produced_at_unix_ms = max(sample.source_time_ns // 1_000_000, 0)
    envelope = Envelope(
        message_id=message_id, from_zone=from_zone, to_zone="*", produced_at_unix_ms=produced_at_unix_ms
    )
    return Message(envelope, Fact(definition.subject, definition.predicate, canonical_json(content)))


@lru_cache(maxsize=1024)
def enumeration_texts(enumeration: str) -> Mapping[int, str]:
    """The names of numbers in a definition's `enumeration`. Parts that are not `number=name` are ignored: another
    origin may use forms that this version does not know."""
    parts = (part.partition("=") for part in enumeration.split("|"))
    return {
        int(number): name.strip() for number, _, name in parts if INTEGER.fullmatch(number.strip()) and name.strip()
    }


def json_value(value: Value) -> Any:
    """A tag's value in JSON: NaN and infinities as "NaN", "Infinity", "-Infinity"; integers beyond 2**53 as decimal
    text; bytes as {"base64": text}; structures as themselves."""
    match value:
        case Json():
            return parse_json("value", value.data)
        case bytes():
            return {"base64": base64.b64encode(value).decode()}
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case bool():
            return value
        case int() if abs(value) > JSON_INTEGER_MAX:
            return str(value)
        case _:
            return value


def time_text(time_ns: int) -> str:
    """A time in ns since 1970 as ISO 8601 UTC with a fraction only as long as needed: 2026-01-02T03:04:05.1234567Z."""
    seconds, fraction_ns = divmod(time_ns, 1_000_000_000)
    whole = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f"{fraction_ns:09d}".rstrip("0")
    return f"{whole}.{fraction}Z" if fraction else f"{whole}Z"


def _check_labels(labels: object) -> None:
    if not isinstance(labels, Mapping):
        raise MessageError("labels", f"must map texts to texts, found {type(labels).__name__}")
    if len(labels) > LABELS_MAX:
        raise MessageError("labels", f"more than {LABELS_MAX}")
    for name, text in labels.items():
        check_text("labels", name, TEXT_BYTES_MAX)
        check_text(f"labels.{name}", text, TEXT_BYTES_MAX)


def wrong_json(texts: Sequence[bytes]) -> str:
    """Why one of these texts is not canonical JSON; empty if all are."""
    if not _are_plainly_canonical(texts):
        for text in texts:
            try:
                _check_canonical(text)
            except MessageError as error:
                return error.why
    return ""


def _check_object(object_json: object) -> None:
    if not isinstance(object_json, bytes):
        raise MessageError("object_json", "must be bytes of canonical JSON")
    if len(object_json) > OBJECT_BYTES_MAX:
        raise MessageError(
            "object_json", f"is longer than {OBJECT_BYTES_MAX} bytes; store it as an artifact and refer to it"
        )
    _check_canonical(object_json)


def _check_canonical(data: bytes) -> None:
    if not _are_plainly_canonical([data]) and canonical_json(parse_json("object_json", data)) != data:
        raise MessageError("object_json", "is not canonical JSON (RFC 8785); canonicalise before appending")


def _is_flat(data: bytes) -> bool:
    """Whether JSON is too short, or has too few brackets, to be nested too deeply."""
    return len(data) <= 2 * JSON_DEPTH_MAX or data.count(b"[") + data.count(b"{") <= JSON_DEPTH_MAX


def _are_plainly_canonical(texts: Sequence[bytes]) -> bool:
    """Whether JSON texts are canonical, by one check of all with msgspec that takes a twentieth of the time of the full
    check. If it is False, the full check decides.

    ASCII text without escapes is its own canonical form, ASCII keys sort the same in every encoding, integers of fewer
    than 16 digits are below 2**53, a duplicate key is written once, and each float is compared with its form by RFC
    8785. Each line holds one text, so a text with a line end, or an empty one, is not canonical.
    """
    lines = b"\n".join(texts)
    has_long_number = _LONG_NUMBER in lines.translate(_DIGITS_AS_0)
    if has_long_number or not lines.isascii() or b"\\" in lines:
        return False
    try:
        values = _PLAIN.decode_lines(lines)
        is_same = len(values) == len(texts) and _SORTED.encode_lines(values) == lines + b"\n"
    except (msgspec.MsgspecError, MessageError, RecursionError):
        return False
    return is_same and all(map(_is_flat, texts))


def _canonical_number(text: str) -> msgspec.Raw:
    number = float(text)
    if repr(number) == text and "e" not in text and not text.endswith(".0"):
        return msgspec.Raw(text.encode())  # without exponent Python writes a fraction as ECMAScript does
    return msgspec.Raw(canonical_json(number))


_NEITHER_BRACKETS_NOR_QUOTES = bytes(set(range(256)) - set(b'[]{}"'))
_LONG_NUMBER, _DIGITS_AS_0 = b"0" * 16, bytes.maketrans(b"123456789", b"000000000")  # a pattern takes ten times longer
_PLAIN = msgspec.json.Decoder(float_hook=_canonical_number)
_SORTED = msgspec.json.Encoder(order="sorted")

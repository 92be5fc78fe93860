"""The facts of one opened batch as columns, each built when it is asked for. Core: no IO.

`sql` and `export` read these columns. The columns of a row:

    stream offset                its position in this store
    zone life sequence          with the stream, its identity: where it was first recorded
    kind                         sample or message
    subject predicate            what it is about, what it states
    tag                          number of the tag's definition at its origin; NULL for a message
    value                        REAL, INTEGER (also for a bool), TEXT (also for JSON), BLOB; NULL if there is none
    value_type                   double int uint bool string bytes json none; NULL for a message
    value_text                   the exact value as text if `value` cannot hold it: integers above int64, NaN, minus zero
    unit quality is_good         of the sample; quality is the OPC UA StatusCode, is_good its severity
    source_time source_time_ns   source time, ISO 8601 in UTC and in ns since 1970; for a message when it was produced
    object_json                  of a message, canonical JSON; NULL for a sample, whose columns have the same content
    message_id                   the producer's own, or computed for a sample
    from_zone to_zone correlation_id causation_id labels_json     of a message's envelope; NULL for a sample
    verified                     whether a signature of its origin proves the fact: yes, no, or suspect
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from agent.batch import Batch, Kind
from agent.columns import Unpacked
from agent.fact_store import Verified
from agent.message import Json, Message, TagDefinition, Value, sample_message_id, time_text
from agent.query.scan.bounds import INT64_MAX
from agent.status_codes import is_good

COLUMNS = (
    "stream", "offset", "zone", "life", "sequence", "kind", "subject", "predicate", "tag", "value", "value_type",
    "value_text", "unit", "quality", "is_good", "source_time", "source_time_ns", "object_json", "message_id", "from_zone",
    "to_zone", "correlation_id", "causation_id", "labels_json", "verified",
)  # fmt: skip
_QUIET_NAN = struct.pack("<d", math.nan)
_TYPE_NAMES: dict[type, str] = {
    float: "double", int: "int", bool: "bool", str: "string", bytes: "bytes", Json: "json", type(None): "none",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """The facts of one batch at `places`. `definitions[n - 1]` is the tag with number n; `messages` are all messages of
    the batch."""

    stream: str
    first_offset: int
    batch: Batch
    places: Sequence[int]
    samples: Unpacked | None
    messages: Sequence[Message]
    definitions: Sequence[TagDefinition]
    verified: Callable[[], Verified] = lambda: "no"
    """Whether a signature proves the batch. It costs a look-up in the store, so it is called only for that column."""

    def column(self, name: str) -> Sequence[Any]:
        """One column, an entry for each place."""
        header, count = self.batch.header, len(self.places)
        match name:
            case "stream":
                return [self.stream] * count
            case "offset":
                return [self.first_offset + place for place in self.places]
            case "zone":
                return [header.origin.zone] * count
            case "life":
                return [header.origin.life.hex()] * count
            case "sequence":
                return [header.first_sequence + place for place in self.places]
            case "kind":
                return ["sample" if header.kind is Kind.SAMPLES else "message"] * count
            case "verified":
                return [self.verified()] * count
            case "source_time":
                return list(map(time_text, self.column("source_time_ns")))
            case "value":
                return list(map(sql_value, self.values()))
            case "value_type":
                return list(map(value_type, self.values())) if self.samples else [None] * count
            case "value_text":
                return list(map(value_text, self.values()))
        if self.samples is not None:
            return self._of_samples(name, self.samples)
        return list(map(_OF_MESSAGE[name], map(self.messages.__getitem__, self.places))) if name in _OF_MESSAGE else (
            [None] * count
        )  # fmt: skip

    def values(self) -> Sequence[Value]:
        """The value of each sample; None for a message."""
        return self.samples.values_at(self.places) if self.samples else [None] * len(self.places)

    def _of_samples(self, name: str, samples: Unpacked) -> Sequence[Any]:
        match name:
            case "source_time_ns":
                return samples.times_ns_at(self.places)
            case "quality":
                return samples.qualities_at(self.places)
            case "is_good":
                return [int(is_good(quality)) for quality in samples.qualities_at(self.places)]
            case "tag":
                return list(map(samples.all_tags().__getitem__, self.places))
            case "subject" | "predicate" | "unit":
                defined = [None, *map(attrgetter(name), self.definitions)]
                tags = samples.all_tags()
                return [defined[tags[place]] or None for place in self.places]
            case "message_id":
                origin, stream = self.batch.header.origin, self.batch.header.stream
                first = self.batch.header.first_sequence
                return [sample_message_id(stream, origin.zone, origin.life, first + place) for place in self.places]
            case _:
                return [None] * len(self.places)


_OF_MESSAGE: dict[str, Callable[[Message], Any]] = {
    "subject": lambda message: message.fact.subject,
    "predicate": lambda message: message.fact.predicate,
    "source_time_ns": lambda message: message.envelope.produced_at_unix_ms * 1_000_000,
    "object_json": lambda message: message.fact.object_json.decode(),
    "message_id": lambda message: message.envelope.message_id,
    "from_zone": lambda message: message.envelope.from_zone,
    "to_zone": lambda message: message.envelope.to_zone,
    "correlation_id": lambda message: message.envelope.correlation_id,
    "causation_id": lambda message: message.envelope.causation_id,
    "labels_json": lambda message: (
        json.dumps(dict(message.envelope.labels), ensure_ascii=False, sort_keys=True)
        if message.envelope.labels
        else None
    ),
}


def sql_value(value: Value) -> Any:
    """A value for SQLite: NaN becomes NULL, and an integer above int64 the nearest double."""
    kind = type(value)
    if kind is float:
        return None if value != value else value  # noqa: PLR0124 only NaN differs from itself
    if kind is bool:
        return int(value)  # type: ignore[arg-type]
    if kind is Json:
        return value.data.decode()  # type: ignore[union-attr]
    if kind is int and value > INT64_MAX:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    return value


def value_type(value: Value) -> str:
    """The name of a value's type; `uint` only for integers above int64."""
    name = _TYPE_NAMES[type(value)]
    return "uint" if name == "int" and value > INT64_MAX else name  # type: ignore[operator]


def value_text(value: Value) -> str | None:
    """The exact value as text if `sql_value` loses some of it, else None. NaN with unusual bits is NaN:<16 hex
    digits>."""
    if type(value) is float:
        if value != value:  # noqa: PLR0124 as above
            bits = struct.pack("<d", value)
            return "NaN" if bits == _QUIET_NAN else f"NaN:{bits[::-1].hex()}"
        return "-0.0" if value == 0.0 and math.copysign(1.0, value) < 0 else None
    return str(value) if type(value) is int and value > INT64_MAX else None


def exact_text(value: Value) -> str | None:
    """Any value as text that is exact together with its `value_type`: for formats without types."""
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case float():
            return value_text(value) or repr(value)
        case bytes():
            return base64.b64encode(value).decode()
        case Json():
            return value.data.decode()

"""A small store with everything in it that a reader can meet: value types, streams, origins, messages, changed
definitions."""

import math
import struct
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from agent.batch import Kind, open_messages, open_samples, parse
from agent.fact_store import FactStore, StoreReader
from agent.message import Envelope, Fact, Json, Message, Sample, TagDefinition, Value, json_value, time_text
from tests.batch.making import bits
from tests.fact_store.making import AT_ONCE, EVERYTHING, OPERATIONAL, TELEMETRY, Elsewhere, done

ODD_NAN = struct.unpack("<d", bytes.fromhex("010000000000f87f"))[0]
VALUES: tuple[Value, ...] = (
    0.0, -0.0, 1.5, -1e-300, 1e308, math.inf, -math.inf, math.nan, ODD_NAN, 5e-324,
    0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1,
    True, False, "", "text", 'with,comma "quote" and\nline', "\x00nul", "grün", b"", b"\x00\xff",
    Json(b'{"a":[1,2.5,null]}'), Json(b"[]"), None,
)  # fmt: skip
BASE_NS = 1_790_000_000_000_000_000
SECOND_NS = 1_000_000_000
TAGS = [
    TagDefinition("tag:line1/flow", unit="l/min", source="plc1", data_type="Double"),
    TagDefinition("tag:line1/temp", unit="degC", source="plc1"),
    TagDefinition("tag:line2/state", source="plc2"),
    TagDefinition("tag:line1/flow", unit="m3/h", source="plc1", data_type="Double"),  # the same, with another unit
    TagDefinition("tag:line2/silent", source="plc2"),
]


def everything(folder: Path, rounds: int = 1) -> Path:
    """The file of a store of zone `plant`: every value under tags 1 to 3, messages, facts of zone `north`, tag 1 anew
    as 4."""
    file = folder / "facts.db"
    with FactStore.open(file, "plant", settings=AT_ONCE) as store:
        done(store.appends.define(TAGS[:3]))
        for turn in range(rounds):
            at_ns = BASE_NS + turn * 100 * SECOND_NS
            rows = [
                Sample(n % 3 + 1, at_ns + n * SECOND_NS + n * 100, value, 0 if n % 4 else 0x80AC0000)
                for n, value in enumerate(VALUES)
            ]
            for at in range(0, len(rows), 10):
                done(store.appends.append_samples(TELEMETRY, rows[at : at + 10]))
            for n in range(3):
                done(store.appends.append_message(OPERATIONAL, message(3 * turn + n)))
        done(store.appends.define(TAGS[3:]))
        late_ns = BASE_NS + 1000 * SECOND_NS
        done(store.appends.append_samples(TELEMETRY, [Sample(4, late_ns, 7.25), Sample(2, late_ns + 1, 20)]))
        north = Elsewhere("north")
        north.put(store, [north.seal(4), north.seal(3)])
    return file


def recorded(file: Path, definitions: Sequence[TagDefinition], *batches: Sequence[Sample]) -> Path:
    """A store of zone `plant` with these tags, numbered from 1, and with these samples, each batch an append."""
    with FactStore.open(file, "plant", settings=AT_ONCE) as store:
        done(store.appends.define(definitions))
        for batch in batches:
            done(store.appends.append_samples(TELEMETRY, batch))
    return file


def add_consumer_and_gap(file: Path, confirmed: int) -> None:
    """Add a consumer `mes` that has confirmed so many samples, and facts of zone `south` with a batch missing between
    two."""
    with FactStore.open(file, "plant", settings=AT_ONCE) as store:
        done(store.consumers.register("mes", "plant", TELEMETRY))
        done(store.consumers.confirm("mes", confirmed))
        south = Elsewhere("south")
        south.put(store, [south.seal(1)])
        south.seal(2)
        south.put(store, [south.seal(3)])


def message(number: int) -> Message:
    """An application's message, every second with all that an envelope may have."""
    more: dict[str, Any] = (
        {"correlation_id": "c", "causation_id": "d", "labels": {"b": "2", "a": "1"}} if number % 2 else {}
    )
    envelope = Envelope(f"m{number}", "plant", "*", BASE_NS // 1_000_000 + number, **more)
    return Message(envelope, Fact(f"order:line1/{number}", "order_released", b'{"n":%d}' % number))


def naive(file: Path) -> list[dict[str, Any]]:
    """Every fact of a store as a dict, from the batches by the plainest code: what all readers are compared with."""
    found = list[dict[str, Any]]()
    with closing(StoreReader(file)) as reader:
        for info in sorted(reader.streams(), key=lambda stream: stream.name):
            for stored in reader.read(info.name, 0, EVERYTHING, EVERYTHING).batches:
                batch = parse(stored.sealed)
                origin, first = batch.header.origin, batch.header.first_sequence
                where = {"stream": info.name, "zone": origin.zone, "life": origin.life.hex()}
                if batch.header.kind is Kind.MESSAGES:
                    for n, opened in enumerate(open_messages(batch)):
                        found.append(
                            where | of_message(opened) | {"offset": stored.first_offset + n, "sequence": first + n}
                        )
                    continue
                chain = reader.definitions(origin.zone, stored.definitions.digest)
                assert chain is not None
                definitions = [TagDefinition.from_json(body) for body in chain.bodies]
                for n, sample in enumerate(open_samples(batch).rows()):
                    found.append(
                        where
                        | of_sample(sample, definitions[sample.tag - 1])
                        | {"offset": stored.first_offset + n, "sequence": first + n}
                        | {"message_id": f"{info.name}/{origin.zone}/{origin.life.hex()}/{first + n}"}
                    )
    return found


def of_sample(sample: Sample, definition: TagDefinition) -> dict[str, Any]:
    """What a row says of a sample."""
    return {
        "kind": "sample", "subject": definition.subject, "predicate": definition.predicate, "tag": sample.tag,
        "exact": bits(sample.value), "json": json_value(sample.value), "unit": definition.unit or None,
        "quality": sample.quality, "source_time_ns": sample.source_time_ns,
        "source_time": time_text(sample.source_time_ns), "object_json": None,
    }  # fmt: skip


def of_message(opened: Message) -> dict[str, Any]:
    """What a row says of a message."""
    at_ns = opened.envelope.produced_at_unix_ms * 1_000_000
    return {
        "kind": "message", "subject": opened.fact.subject, "predicate": opened.fact.predicate, "tag": None,
        "exact": bits(None), "json": None, "unit": None, "quality": None, "source_time_ns": at_ns,
        "source_time": time_text(at_ns), "object_json": opened.fact.object_json.decode(),
        "message_id": opened.envelope.message_id,
    }  # fmt: skip

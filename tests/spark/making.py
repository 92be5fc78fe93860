"""Stores for the Spark side's tests, filled as a node fills them, and what each fact must look like as a row; and an
enterprise node over such a store as it runs at a customer: Mosquitto with TLS and the product's access list, and `bsfg
run`. `analytics` is the zone of Spark.

The oracle looks at one fact at a time, in plain Python, and shares no code with the columns it is compared with.
"""

import base64
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agent.batch import Batch, Link, Origin, seal_samples
from agent.demo.mosquitto import Mosquitto
from agent.demo.processes import Child
from agent.fact_store import FactStore
from agent.message import HEALTH_STREAM, Envelope, Fact, Json, Message, Sample, TagDefinition
from agent.positions import Position
from agent.settings.store import StoreSettings
from pyspark_bsfg.pruning import Pruning
from pyspark_bsfg.ranges import OffsetRange
from pyspark_bsfg.schema import FACTS, arrow_schema
from pyspark_bsfg.transports import Asked, HoleLog, StoreFile, record_batches
from tests.fact_store.making import past_the_triggers
from tests.replication.nodes import write_node_toml
from tests.support.received import chain_of, definitions_of, put_page

QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a short life is half as long without the second compiler
AT_ONCE = StoreSettings(commit_interval_ms=0)
TELEMETRY, OPERATIONAL = "facts.telemetry", "facts.operational"
NOON_NS = 1_767_268_800_000_000_000  # 2026-01-01T12:00:00Z
SECOND_NS = 1_000_000_000
BAD, UNCERTAIN = 0x8031_0000, 0x4090_0000  # BadNoCommunication, UncertainInitialValue

DEFINITIONS = [
    TagDefinition("tag:line-1/pressure", unit="bar", source="press", address="ns=2;s=P1"),
    TagDefinition("tag:line-1/count"),
    TagDefinition("tag:boiler/druck", predicate="setpoint_changed", unit="°C"),
]
VALUES: list[Any] = [
    1.5, -0.0, 0.0, float("nan"), float("inf"), float("-inf"), 5e-324, 1.7976931348623157e308,
    0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1,
    True, False, None, "", "ok", "Überdruck \U0001f525", "x" * 5000,
    b"", b"\x00\xff", Json(b"[1,2.5,null]"), Json('{"ü":[]}'.encode()),
]  # fmt: skip
ENTERPRISE, READER = "enterprise", "analytics"


def message(number: int, subject: str = "order:4711") -> Message:
    """A message an application could have appended."""
    envelope = Envelope(f"id-{number}", "enterprise", "*", NOON_NS // 1_000_000 + number, labels={"shift": "early"})
    return Message(envelope, Fact(subject, "order_released", b'{"amount":%d}' % number))


def store(path: Path, runs: Iterable[Sequence[Sample]], stream: str = TELEMETRY, zone: str = "enterprise") -> Origin:
    """A store that recorded these samples itself, a batch for each run; closed again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FactStore.open(path, zone, settings=AT_ONCE) as opened:
        opened.appends.define(DEFINITIONS).result()
        for run in runs:
            opened.appends.append_samples(stream, list(run)).result()
        return opened.origin


def health_only(path: Path) -> None:
    """The store of a node that has just been started: it records its own health, and nothing else has come yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FactStore.open(path, "enterprise", settings=AT_ONCE) as opened:
        opened.appends.define(DEFINITIONS, stream=HEALTH_STREAM).result()
        opened.appends.append_samples(HEALTH_STREAM, [Sample(1, NOON_NS, 1.0)]).result()


def foreign(origin: Origin, runs: Iterable[Sequence[Sample]], stream: str = TELEMETRY) -> list[Batch]:
    """Batches as another zone sealed them."""
    definitions = definitions_of([definition.to_json() for definition in DEFINITIONS])
    link, sealed = Link(stream, origin), []
    for run in runs:
        sealed.append(seal_samples(link, list(run), definitions))
        link = sealed[-1].link
    return sealed


def put(opened: FactStore, batches: Sequence[Batch], offset: int) -> None:
    """Receive batches of one origin from a peer of that name, definitions included."""
    header = batches[0].header
    received = [chain_of(header.origin.zone, [definition.to_json() for definition in DEFINITIONS])]
    position = Position(header.origin.life, offset)
    put_page(opened, header.origin.zone, header.stream, batches, received, position).result()


def row(sample: Sample, offset: int, origin: Origin, sequence: int, stream: str = TELEMETRY) -> dict[str, Any]:
    """What a sample must be as a row of the facts schema."""
    definition, value = DEFINITIONS[sample.tag - 1], sample.value
    is_number = isinstance(value, bool | int | float)
    is_exact = isinstance(value, int) and value < 2**63
    text, kind = {
        str: lambda: (value, "string"),
        bytes: lambda: (base64.b64encode(value).decode(), "bytes"),
        Json: lambda: (value.data.decode(), "json"),
        bool: lambda: (None, "bool"),
        int: lambda: (None, "int") if is_exact else (str(value), "uint"),
        float: lambda: (None, "double"),
        type(None): lambda: (None, "none"),
    }[type(value)]()
    return {
        "offset": offset,
        "message_id": f"{stream}/{origin.zone}/{origin.life.hex()}/{sequence}",
        "stream": stream,
        "zone": origin.zone,
        "life": origin.life.hex(),
        "sequence": sequence,
        "verified": "no",
        "tag": definition.subject,
        "predicate": definition.predicate,
        "ts": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=sample.source_time_ns // 1000),
        "source_time_ns": sample.source_time_ns,
        "value": float(value) if is_number else None,
        "value_int": int(value) if is_exact else None,
        "value_text": text,
        "value_type": kind,
        "quality": sample.quality,
        "is_good": sample.quality < 0x4000_0000,
        "unit": definition.unit or None,
        "object_json": None,
    }


def message_row(opened: Message, offset: int, origin: Origin, sequence: int, stream: str) -> dict[str, Any]:
    """What a message must be as a row."""
    produced_ns = opened.envelope.produced_at_unix_ms * 1_000_000
    like = row(Sample(1, produced_ns, None), offset, origin, sequence, stream)
    return like | {
        "message_id": opened.envelope.message_id,
        "tag": opened.fact.subject,
        "predicate": opened.fact.predicate,
        "value_type": "message",
        "quality": None,
        "is_good": None,
        "unit": None,
        "object_json": opened.fact.object_json.decode(),
    }


def same(found: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]]) -> None:
    """Assert that rows are equal, a NaN to a NaN and -0.0 only to -0.0."""
    assert len(found) == len(expected)
    for got, wanted in zip(found, expected, strict=True):
        assert {k: repr(v) if isinstance(v, float) else v for k, v in got.items()} == {
            k: repr(v) if isinstance(v, float) else v for k, v in wanted.items()
        }


def batches_of(path: Path, offsets: OffsetRange | None = None, pruning: Pruning | None = None) -> Iterator[Any]:
    """Record batches of a store's file, all columns; its holes are logged."""
    with StoreFile(str(path)).opened() as source:
        held = source.bounds(TELEMETRY)
        asked = Asked(TELEMETRY, offsets or held.offsets, held.life)
        yield from record_batches(source, asked, arrow_schema(FACTS), HoleLog(source.name, TELEMETRY), pruning)


def release(path: Path, offset: int) -> None:
    """What retention does at first: two numbers move, rows are deleted later."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE stream SET released_offset = ?", (offset,))


def tell_damage(path: Path, first_offset: int) -> None:
    """The node has found that the batch that begins there is damaged."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(
            "INSERT INTO damage SELECT stream, origin, first_sequence, first_sequence + count - 1 FROM batch"
            " WHERE first_offset = ?",
            (first_offset,),
        )


def lose(path: Path, first_offset: int) -> None:
    """The disk loses the row of the batch that begins there."""
    with past_the_triggers(path) as connection:
        connection.execute("DELETE FROM batch WHERE first_offset = ?", (first_offset,))


@dataclass(frozen=True)
class Served:
    """The running node."""

    broker: Mosquitto
    node: Child
    store: Path

    def options(self, zone: str = READER, **others: object) -> dict[str, str]:
        """Options of the data source, for a reader with the certificate of a zone."""
        mine = self.broker.identity(zone)
        files = {"caFile": mine.ca_file, "certFile": mine.cert_file, "keyFile": mine.key_file}
        at = {"transport": "mqtt", "host": self.broker.host, "port": self.broker.port, "peer": ENTERPRISE}
        return {name: str(value) for name, value in (at | files | others).items()}


def store_path(folder: Path) -> Path:
    """Where the store has to be before the node starts."""
    return folder / "node" / "state" / "facts.db"


@contextmanager
def served(folder: Path, more: str = "", zones: Sequence[str] = (READER,)) -> Iterator[Served]:
    """Start broker and node on the store in `store_path(folder)`; `more` is appended to node.toml."""
    links = [f"{ENTERPRISE}:{READER}"]
    with Mosquitto.started(folder / "mosquitto", (ENTERPRISE, *zones), links) as broker:
        peer = f'zone = "{READER}"\nexports = ["{TELEMETRY}"]\n{more}'
        file = write_node_toml(folder / "node", broker, ENTERPRISE, peer)
        command = [sys.executable, "-m", "agent.cli", "run", "--config", str(file)]
        with Child("node", command, folder / "node.log") as node:
            node.start()
            node.wait_ready(lambda: "node_ready" in node.log_text())
            yield Served(broker, node, store_path(folder))

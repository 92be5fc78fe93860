"""Single bits flipped in a store's file: no changed fact is served, the damage is named, the rest can be read.

SQLite has no checksums in its pages and does not notice. Half of the bits are inside batches; the other half between
them, where one bit can move, hide or double a row. Some more are in the headers of rows, where one bit gives a value
another type.

Checked by breaking the product on purpose: offsets not compared with the header, definitions not compared with their
running digest, holes not named, rows of which the types are not checked.
"""

import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, suppress
from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest

from agent.batch import DIGEST_BYTES, Kind, Origin, open_messages, parse
from agent.errors import StoreError
from agent.fact_store import FactStore, StoreReader
from agent.fact_store.core.errors import StoreDamaged, StoreUnusable
from agent.fact_store.sqlite import Transaction
from agent.pages import ComparedSums, HeldSum, Hole, Page, SignerCertificate, StoredBatch
from agent.positions import Position
from agent.settings.store import StoreSettings
from tests.fact_store.durability.promises import NORTH, origin_of_north
from tests.fact_store.durability.promises import STREAMS as RELEASED
from tests.fact_store.making import (
    EVERYTHING,
    IN_MEMORY,
    LIFE,
    OPERATIONAL,
    TELEMETRY,
    Elsewhere,
    damages,
    done,
    message,
    parsed,
    plant,
    samples,
    tag,
)
from tests.sim import first_seed, patient, scaled
from tests.support.received import put_page

FLIPS, HEADER_FLIPS = scaled(300, 88_000), scaled(100, 12_000)
PIECE = 16
STREAMS = (TELEMETRY, OPERATIONAL, NORTH)
PAGE_BYTES = 32_768
Door = FactStore | StoreReader


class Original:
    """A closed store with all kinds of content, and all that its API returned before anything was changed."""

    def __init__(self, folder: Path) -> None:
        path = folder / "facts.db"
        self.north = origin_of_north()
        with plant(folder) as store:
            fill(store, self.north)
        reader = StoreReader(path)
        self.batches = {stream: read_all(reader, stream).batches for stream in STREAMS}
        ends = reader.definition_ends()
        self.definitions = {(zone, end): reader.definitions(zone, end.digest) for zone, end in ends}
        self.origins = reader.origins()
        reader.close()
        self.bytes = path.read_bytes()
        self.owners: dict[int, tuple[str, int]] = {}
        for stream, batches in self.batches.items():
            for batch in batches:
                for at in self._places(batch.sealed[:-DIGEST_BYTES]):
                    self.owners[at] = stream, batch.first_offset

    def _places(self, body: bytes) -> Iterator[int]:
        """Where in the file the bytes of a batch are. A large one is in several pages."""
        for first in range(0, len(body), PIECE):
            piece = body[first : first + PIECE]
            if len(piece) == PIECE and self.bytes.count(piece) == 1:
                at = self.bytes.index(piece)
                yield from range(at, at + PIECE)


def fill(store: FactStore, origin: Elsewhere) -> None:
    """Samples in small and large batches, messages, pages of a peer, consumers with holes in what they confirmed."""
    values = random.Random(1)
    for n in range(30):
        rows = [row._replace(value=values.random()) for row in samples(30 if n % 10 else 900, 1 + 1000 * n)]
        done(store.appends.append_samples(TELEMETRY, rows))
        done(store.appends.append_message(OPERATIONAL, message(f"id-{n}", f'"{values.random()}"')))
        done(put_page(store, "north", NORTH, parsed([origin.seal(25)]), origin.received(), Position(LIFE, n + 1)))
    done(store.appends.define([tag(n, "degC") for n in range(2, 12)]))
    for name in ("a", "b"):
        done(store.consumers.register(name, "idmz", TELEMETRY))
        done(store.consumers.confirm(name, 40, 30))
        done(store.consumers.confirm(name, 20))
    done(store._writer.submit("the rest", fill_other_tables))


def fill_other_tables(transaction: Transaction) -> None:
    """A row in each table that the above leaves empty, but for those of repairs."""
    telemetry, operational = transaction.stream(TELEMETRY), transaction.stream(OPERATIONAL)
    transaction.add_incident("kind", "subject", "detail")
    transaction.set_compromised({b"k" * 8: 5})
    transaction.add_signers([SignerCertificate(b"k" * 8, b"certificate", is_trusted=False, zone="north")], "north")
    transaction.set_completeness("plc", {"": (5, None), "events": (3, 7)})
    transaction.set_leases(TELEMETRY, {"producer": 3})
    transaction.set_subjects(operational, {b"s" * 16: 2})
    transaction.add_artifacts(telemetry, [b"a" * 32], 5)
    transaction.set_compared("idmz", telemetry.id, {"north": ComparedSums(LIFE, HeldSum(1, 2), HeldSum(1, 2))})
    transaction.keep_tip(telemetry, "plant")


def headers(data: bytes) -> Iterator[list[int]]:
    """Where the file has headers of rows, for each table and index that fits one page: the one of batches does not."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(data[:18] + b"\1\1" + data[20:])  # not in WAL mode, which has no place in memory
        roots = connection.execute("SELECT rootpage FROM sqlite_schema WHERE rootpage > 0").fetchall()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    for start in [(root - 1) * size for (root,) in roots]:
        is_table, is_index = data[start] == 13, data[start] == 10
        found = list[int]()
        for n in range(int.from_bytes(data[start + 3 : start + 5]) if is_table or is_index else 0):
            at = start + int.from_bytes(data[start + 8 + 2 * n : start + 10 + 2 * n])
            at += 2 if data[at] >= 128 else 1  # the size of the row
            at += is_table  # its id
            found += range(at, at + data[at])
        yield found


def read_all(door: Door, stream: str) -> Page:
    """A stream page by page, as one."""
    batches, holes, after = list[StoredBatch](), list[Hole](), 0
    while True:
        page = door.read(stream, after, EVERYTHING, PAGE_BYTES)
        batches += page.batches
        holes += page.holes
        reached = max([after, *(part.last_offset for part in (*page.batches, *page.holes))])
        if reached == after:
            return Page(batches, page.end_offset, tuple(holes))
        after = reached


class Found:
    """All that the API of a store with one changed bit returned."""

    def __init__(self, original: Original) -> None:
        self.original = original
        self.changed: list[str] = []
        self.missing: set[tuple[str, int]] = set()  # stream and first offset of each batch that no page holds
        self.missing_definitions = False
        self.names: list[str] = []  # of the damage

    def read(self, door: Door) -> None:
        """All that was in the original; an error names the damage."""
        for stream, expected in self.original.batches.items():
            try:
                self._stream(door, stream, expected)
            except StoreDamaged:
                self.names.append("StoreDamaged")
                self.missing |= {(stream, batch.first_offset) for batch in expected}
        for (zone, end), chain in self.original.definitions.items():
            try:
                found = getattr(door, "reader", door).definitions(zone, end.digest)
            except StoreDamaged:
                self.names.append("StoreDamaged")
                continue
            if found not in (None, chain):
                self.changed.append(f"definitions of {zone}")
            self.missing_definitions |= found is None

    def _stream(self, door: Door, stream: str, expected: list[StoredBatch]) -> None:
        page, end_offset = read_all(door, stream), expected[-1].last_offset
        originals, served = {batch.first_offset: batch for batch in expected}, set[int]()
        for batch in page.batches:
            served.add(batch.first_offset)
            if batch != originals.get(batch.first_offset) and not self._is_notice(batch, end_offset):
                self.changed.append(f"{stream} {batch.first_offset}")
        named = {n for hole in page.holes for n in range(hole.first_offset, min(hole.last_offset, end_offset) + 1)}
        self.names += ["hole"] * bool(named)
        for batch in expected:
            if batch.first_offset not in served:
                self.missing.add((stream, batch.first_offset))

    def _is_notice(self, stored: StoredBatch, end_offset: int) -> bool:
        """Whether a fact is an operational fact about the damage, or about what the store made of it."""
        parsed = parse(stored.sealed)
        if stored.first_offset <= end_offset or parsed.header.kind is not Kind.MESSAGES:
            return False
        facts = [message.fact for message in open_messages(parsed)]
        return {fact.predicate for fact in facts} <= {
            "facts_damaged",
            "epoch_began",
        }  # a bit may make the store suspect


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    """The store to be damaged, made once."""
    return Original(tmp_path_factory.mktemp("original"))


def look(path: Path, original: Original) -> Found:
    """Read through every method of the API."""
    found = Found(original)
    try:
        reader = StoreReader(path)
        found.read(reader)
        reader.close()
    except StoreUnusable as error:
        found.names.append(type(error).__name__)
    try:
        with FactStore.open(path, "plant", settings=IN_MEMORY) as store:
            found.read(store)
    except StoreUnusable as error:
        found.names.append(type(error).__name__)
    return found


@patient
def test_no_changed_fact_is_served(memory: Path, original: Original) -> None:
    """Whatever bit changes, each fact served is the one stored, byte for byte at its offset. A fact that is not served
    is named: by a hole in the page, by an error, or by `bsfg store verify` for a name or number that no read uses. A
    bit inside a batch costs that batch alone."""
    rng, began, outcomes = random.Random(first_seed()), time.monotonic(), Counter[str]()
    between = sorted(set(range(len(original.bytes))) - set(original.owners))
    inside = sorted(original.owners)
    path = memory / "facts.db"
    for n in range(FLIPS):
        at, bit = rng.choice(between if n % 2 else inside), rng.randrange(8)
        data = bytearray(original.bytes)
        data[at] ^= 1 << bit
        for left in memory.iterdir():
            left.unlink()
        path.write_bytes(data)
        found, where = look(path, original), f"byte {at}, bit {bit}"
        assert not found.changed, f"{where}: {found.changed}"
        if (owner := original.owners.get(at)) is not None:
            assert found.missing == {owner}, f"{where}: the rest must be readable"
            assert set(found.names) == {"hole"}, where
        if (found.missing or found.missing_definitions) and not found.names:
            assert damages(path), f"{where}: {found.missing} are missing and not reported"
            found.names.append("verification")
        outcomes["+".join(sorted(set(found.names))) or "harmless"] += 1
    seconds = time.monotonic() - began
    print(f"{FLIPS} bits of {len(original.bytes)} bytes in {seconds:.1f} s, {FLIPS / seconds:.0f}/s: {dict(outcomes)}")


def reads(reader: StoreReader, origins: list[Origin]) -> Iterator[Callable[[], object]]:
    """Every method of a reader, with arguments that find something."""
    for stream in STREAMS:
        yield partial(reader.read, stream, 0, 50, PAGE_BYTES)
        yield partial(reader.counts, stream, 1, EVERYTHING)
        yield partial(reader.summaries, stream, 1, EVERYTHING, 1000)
        yield partial(reader.summaries, stream, 1, EVERYTHING, 1000, newest_first=True)
        yield partial(reader.clock_marks, stream)
        yield partial(reader.held, stream)
        yield partial(reader.zones_held, stream, "", 10)
        yield partial(reader.artifacts_of, stream)
        for origin in origins:
            yield partial(reader.resolve, stream, Position(origin.life, 5, LIFE))
            yield partial(reader.verified, stream, [(origin, 1), (origin, 5)])
            yield partial(reader.is_proven, stream, origin, 1)
            yield partial(reader.batch_ends, stream, origin, [1, 7])
            yield partial(reader.held_of, stream, origin)
            yield partial(reader.read_sequences, stream, origin, 1, 100, 100, PAGE_BYTES)
            yield partial(reader.damaged_definitions, stream, origin, 1)
            yield partial(reader.held_below, stream, origin.zone, bytes(16))
            yield partial(reader.held_below, stream, origin.zone, b"\xff" * 16)
            yield partial(reader.range_starts, stream, origin.zone)
            yield partial(reader.lowest_sequence, stream, origin.zone)
            yield partial(reader.lowest_offset_above, stream, origin.zone, b"")
            yield partial(reader.compared, "idmz", stream, origin.zone)
            yield partial(reader.forgotten, origin.zone)
            yield partial(reader.origins_of, origin.zone)
    yield partial(reader.row, TELEMETRY, 1)
    yield partial(reader.row_summaries, 0, 1000)
    yield partial(reader.signers, [b"k" * 8])
    yield from (partial(reader.definitions_named, number) for number in range(1, 13))
    yield partial(reader.artifact_streams, f"sha256:{(b'a' * 32).hex()}")
    yield partial(reader.completeness, "plc")
    yield partial(reader.space, StoreSettings(), {})
    yield from (reader.signed_zones, reader.definition_ends, reader.definition_counts, reader.own_definitions)
    yield from (reader.own_lives, reader.lives_held, reader.streams, reader.bounds, reader.sizes, reader.origins)
    yield from (reader.consumers, reader.incidents)


def writes(store: FactStore, north: Elsewhere) -> Iterator[Callable[[], object]]:
    """All that a node writes, about what the store has."""
    origin, appends = deepcopy(north), store.appends
    yield partial(appends.append_samples, TELEMETRY, samples(5, 900_000))
    yield partial(appends.append_message, OPERATIONAL, message("id-3", '"again"'))
    yield partial(appends.append_message, OPERATIONAL, message("id-new"))
    yield partial(appends.define, [tag(50, "bar")])
    yield partial(appends.acquire_lease, TELEMETRY, "producer")
    yield partial(put_page, store, "north", NORTH, parsed([origin.seal(25)]), origin.received(), Position(LIFE, 99))
    yield partial(store.consumers.confirm, "a", 60, 20)
    yield partial(store.consumers.register, "c", "idmz", TELEMETRY)
    yield partial(store.take_lead, store.next_life_number)
    yield partial(appends.append_samples, TELEMETRY, samples(5, 910_000))
    yield partial(store._writer.submit, "the rest", fill_other_tables)


def try_all(calls: Iterator[Callable[[], object]]) -> None:
    """Make calls, each of which returns or raises an error of the store, and none that is a mistake of the program."""
    for call in calls:
        try:
            found = call()
            if isinstance(found, Future):
                done(found)
        except StoreError as error:
            if "unexpected exception" in error.why:
                raise


@patient
def test_a_value_of_another_type_is_named(memory: Path, original: Original) -> None:
    """A bit in the header of a row gives a value another type. Whatever is then read or written, the store answers or
    names the damage, and makes no calculation with such a value."""
    path, rng, ranked = memory / "facts.db", random.Random(first_seed()), list[tuple[int, tuple[int, int]]]()
    for table in headers(original.bytes):
        bits = [(at, bit) for at in table for bit in range(8)]
        ranked += enumerate(rng.sample(bits, len(bits)))
    for _, (at, bit) in sorted(ranked)[:HEADER_FLIPS]:  # of each table equally many, as long as it has some
        data = bytearray(original.bytes)
        data[at] ^= 1 << bit
        for left in memory.iterdir():
            left.unlink()
        path.write_bytes(data)
        try:
            with suppress(StoreUnusable), closing(StoreReader(path)) as reader:
                try_all(reads(reader, original.origins))
            with suppress(StoreUnusable):
                damages(path)
            assert not look(path, original).changed
            path.write_bytes(data)
            with suppress(StoreUnusable), FactStore.open(path, "plant", settings=IN_MEMORY, streams=RELEASED) as store:
                try_all(writes(store, original.north))
        except Exception as error:
            raise AssertionError(f"byte {at}, bit {bit}") from error
    print(f"{min(HEADER_FLIPS, len(ranked))} of {len(ranked)} bits of headers")

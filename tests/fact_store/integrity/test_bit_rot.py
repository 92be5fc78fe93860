"""Single bits flipped in a store's file: no changed fact is served, the damage is named, the rest can be read.

SQLite has no checksums in its pages and does not notice. Half of the bits are inside batches; the other half between
them, where one bit can move, hide or double a row.

Checked by breaking the product on purpose: offsets not compared with the header, definitions not compared with their
running digest, holes not named.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.batch import DIGEST_BYTES, Kind, open_messages, parse
from agent.fact_store import FactStore, StoreReader
from agent.fact_store.integrity.verify import VerifyCounts, verify_store
from agent.fact_store.log.errors import StoreDamaged, StoreUnusable
from agent.pages import Hole, Page, StoredBatch
from agent.positions import Position
from tests.fact_store.durability.promises import NORTH, origin_of_north
from tests.fact_store.making import (
    EVERYTHING,
    IN_MEMORY,
    LIFE,
    OPERATIONAL,
    TELEMETRY,
    done,
    message,
    parsed,
    plant,
    samples,
    tag,
)
from tests.sim import first_seed, patient, scaled
from tests.support.received import put_page

FLIPS = scaled(400, 100_000)
PIECE = 16
STREAMS = (TELEMETRY, OPERATIONAL, NORTH)
PAGE_BYTES = 32_768
Door = FactStore | StoreReader


class Original:
    """A closed store with all kinds of content, and all that its API returned before anything was changed."""

    def __init__(self, folder: Path) -> None:
        path = folder / "facts.db"
        with plant(folder) as store:
            fill(store)
        reader = StoreReader(path)
        self.batches = {stream: read_all(reader, stream).batches for stream in STREAMS}
        ends = reader.definition_ends()
        self.definitions = {(zone, end): reader.definitions(zone, end.digest) for zone, end in ends}
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


def fill(store: FactStore) -> None:
    """Samples in small and large batches, messages, pages of a peer, consumers with holes in what they confirmed."""
    origin, values = origin_of_north(), random.Random(1)
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


def verification(path: Path) -> list[str]:
    """What `bsfg store verify` names."""
    return [str(damage) for damage in verify_store(path, VerifyCounts(), lambda *_: None, is_quick=False)]


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
            assert verification(path), f"{where}: {found.missing} are missing and not reported"
            found.names.append("verification")
        outcomes["+".join(sorted(set(found.names))) or "harmless"] += 1
    seconds = time.monotonic() - began
    print(f"{FLIPS} bits of {len(original.bytes)} bytes in {seconds:.1f} s, {FLIPS / seconds:.0f}/s: {dict(outcomes)}")

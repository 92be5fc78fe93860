"""A peer's claims show an old copy that has grown, and contradict no other store."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.batch import DIGEST_BYTES, parse
from agent.fact_store import FactStore
from agent.message import Sample
from agent.settings.store import StreamSettings
from tests.fact_store.integrity.test_damage import three_batches
from tests.fact_store.making import AT_ONCE, EVERYTHING, TELEMETRY, Elsewhere, done, plant, samples, tag

Ends = dict[int, bytes]


def fill(store: FactStore, batches: int, salt: int = 0) -> None:
    """Batches of ten samples; `salt` makes others."""
    for _ in range(batches):
        first = store.end_offset(TELEMETRY) + 1 + salt
        done(store.appends.append_samples(TELEMETRY, samples(10, first)))


def ends(store: FactStore) -> Ends:
    """Where each batch ends, and its digest."""
    page = store.read(TELEMETRY, 0, EVERYTHING, EVERYTHING)
    return {one.last_offset: one.sealed[-DIGEST_BYTES:] for one in page.batches}


@pytest.fixture
def grown(tmp_path: Path) -> Iterator[tuple[FactStore, Ends]]:
    """A store restored from offset 70 to 20 that has grown to 60 since, and the ends it had before."""
    with plant(tmp_path) as store:
        fill(store, 2)
    copy = shutil.copy(tmp_path / "facts.db", tmp_path / "copy")
    with plant(tmp_path) as store:
        fill(store, 5)
        before = ends(store)
    shutil.copy(copy, tmp_path / "facts.db")
    with plant(tmp_path) as store:
        fill(store, 1, salt=1000)
        done(store.appends.append_samples(TELEMETRY, samples(30, 1000)))
        yield store, before


@pytest.mark.parametrize(
    "held, why",
    [
        (20, None),
        (30, "sequence 30 .* has digest [0-9a-f]{32} at the peer and"),
        (40, "sequence 40 .*: the peer's batch ends there, ours ends at 60"),
        (60, "sequence 60 .* at the peer and"),
        (70, "the peer holds our sequence 70 .*, this store has written only up to 60"),
    ],
)
def test_a_copy_that_has_grown_is_detected(grown: tuple[FactStore, Ends], held: int, why: str | None) -> None:
    """Ends before the fork contradict nothing; ends that the peer holds after it do."""
    store, before = grown
    found = store.contradiction(TELEMETRY, (held, before[held]))
    assert found is None if why is None else re.search(why, str(found))


def test_a_store_contradicts_no_reader_of_its_own(grown: tuple[FactStore, Ends]) -> None:
    """Each end of each own batch is accepted, also where facts of another zone follow it."""
    store, _ = grown
    other = Elsewhere("north")
    other.put(store, [other.seal(5)], 5)
    own = {last: digest for last, digest in ends(store).items() if last <= 60}
    assert all(store.contradiction(TELEMETRY, end) is None for end in own.items())


def test_a_damaged_batch_is_compared_by_its_successor(tmp_path: Path) -> None:
    """A damaged batch contradicts no claim by itself; its successor names its digest."""
    three_batches(tmp_path)
    with plant(tmp_path) as store:
        last = parse(store.read(TELEMETRY, 20, 1, 1).batches[0].sealed)
        assert store.contradiction(TELEMETRY, (20, last.header.previous_digest)) is None
        assert store.contradiction(TELEMETRY, (20, b"x" * 16)) is not None
        assert store.contradiction(TELEMETRY, (15, b"x" * 16)) is None
        assert store.contradiction(TELEMETRY, (10, b"x" * 16)) is not None
        assert store.contradiction("facts.nothing", (1, b"x" * 16)) is not None


def test_a_released_batch_is_compared_by_its_successor(tmp_path: Path) -> None:
    """The digest of a released batch is known as long as its successor is held, and no longer."""
    streams = [StreamSettings(TELEMETRY, bytes_max=1_000_000, on_full="drop_oldest")]
    with FactStore.open(tmp_path / "facts.db", "plant", settings=AT_ONCE, streams=streams) as store:
        done(store.appends.define([tag(1)]))
        ends = list[bytes]()
        while store.streams() == [] or store.streams()[0].first_offset == 1:
            noise = [Sample(1, number, os.urandom(50_000)) for number in (1, 2)]
            done(store.appends.append_samples(TELEMETRY, noise))
            ends += [one.sealed[-DIGEST_BYTES:] for one in store.read(TELEMETRY, 2 * len(ends), 1, 1).batches]
        released = store.streams()[0].first_offset - 1
        digest = ends[released // 2 - 1]
        assert store.contradiction(TELEMETRY, (released, digest)) is None
        assert "at the peer and" in str(store.contradiction(TELEMETRY, (released, b"x" * 16)))
        assert store.contradiction(TELEMETRY, (released - 1, b"x" * 16)) is None

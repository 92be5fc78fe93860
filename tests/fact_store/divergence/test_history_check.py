"""A peer's claims show an old copy that has grown, and contradict no other store."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.batch import DIGEST_BYTES, parse
from agent.fact_store import FactStore
from agent.fact_store.log.settings import StreamSettings
from agent.message import Sample
from agent.pages import LastBatch, PeerPosition
from tests.fact_store.integrity.test_damage import three_batches
from tests.fact_store.making import AT_ONCE, EVERYTHING, TELEMETRY, Elsewhere, done, parsed, plant, samples, tag

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
    "taken, held, why",
    [
        (None, None, None),
        (10, 20, None),
        (20, None, None),
        (None, 30, "sequence 30 .* is [0-9a-f]{32} at the peer and"),
        (30, 20, "offset 30 .* is [0-9a-f]{32} at the peer and"),
        (40, None, "offset 40 .*: a batch ends there at the peer, ours goes on to 60"),
        (None, 60, "sequence 60 .* at the peer and"),
        (60, None, "offset 60 .* at the peer and"),
        (None, 70, "it holds our sequence 70 .*, we have written 60"),
        (70, None, "up to offset 70 .*, which ends at 60"),
    ],
)
def test_a_copy_that_has_grown_is_detected(
    grown: tuple[FactStore, Ends], taken: int | None, held: int | None, why: str | None
) -> None:
    """Ends before the fork contradict nothing; ends that the peer read or holds after it do."""
    store, before = grown
    found = store.contradiction(TELEMETRY, taken and (taken, before[taken]), held and (held, before[held]))  # type: ignore[arg-type]
    assert found is None if why is None else re.search(why, str(found))


def test_a_store_contradicts_no_reader_of_its_own(grown: tuple[FactStore, Ends]) -> None:
    """Each end of each batch is accepted, also where facts of another zone follow it."""
    store, _ = grown
    other = Elsewhere("north")
    other.put(store, [other.seal(5)], 5)
    for last, digest in ends(store).items():
        held = (last, digest) if last <= 60 else None
        assert store.contradiction(TELEMETRY, (last, digest), held) is None


def test_a_damaged_batch_is_compared_by_its_successor(tmp_path: Path) -> None:
    """A damaged batch contradicts no claim by itself; its successor names its digest."""
    three_batches(tmp_path)
    with plant(tmp_path) as store:
        last = parse(store.read(TELEMETRY, 20, 1, 1).batches[0].sealed)
        assert store.contradiction(TELEMETRY, (20, b"x" * 16), None) is None
        assert store.contradiction(TELEMETRY, None, (20, last.header.previous_digest)) is None
        assert store.contradiction(TELEMETRY, None, (20, b"x" * 16)) is not None
        assert store.contradiction(TELEMETRY, None, (15, b"x" * 16)) is None
        assert store.contradiction(TELEMETRY, (10, b"x" * 16), None) is not None
        assert store.contradiction("facts.nothing", None, (1, b"x" * 16)) is not None


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
        assert store.contradiction(TELEMETRY, (released, b"x" * 16), (released, digest)) is None
        assert "at the peer and" in str(store.contradiction(TELEMETRY, None, (released, b"x" * 16)))
        assert store.contradiction(TELEMETRY, None, (released - 1, b"x" * 16)) is None


def test_the_last_batch_taken_is_kept_with_the_position(tmp_path: Path) -> None:
    """The last batch stays with the position over pages without batches and over restarts; another epoch of the peer
    begins without one."""
    other = Elsewhere("north")
    with plant(tmp_path) as store:
        sealed = other.seal(10)
        position = store_position(store, other, [sealed], 10, taken=(10, sealed[-DIGEST_BYTES:]))
        assert position == (10, (10, sealed[-DIGEST_BYTES:]))
        assert store_position(store, other, [], 12) == (12, (10, sealed[-DIGEST_BYTES:]))
    with plant(tmp_path) as store:
        known = store.inbound.peer_position("north", TELEMETRY)
        assert known is not None
        assert known.last_batch == (10, sealed[-DIGEST_BYTES:])
        assert store_position(store, Elsewhere("north", epoch=b"n" * 16), [], 3) == (3, None)


def store_position(
    store: FactStore, origin: Elsewhere, sealed: list[bytes], offset: int, taken: tuple[int, bytes] | None = None
) -> tuple[int, tuple[int, bytes] | None]:
    """Store a page; returns the position after it."""
    position = PeerPosition(origin.origin.epoch, offset, LastBatch(*taken) if taken else None)
    done(store.inbound.put_batches(origin.origin.zone, TELEMETRY, parsed(sealed), origin.received(), position))
    known = store.inbound.peer_position(origin.origin.zone, TELEMETRY)
    assert known is not None
    return known.offset, known.last_batch

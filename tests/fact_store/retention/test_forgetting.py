"""Retention during other events: readers in the middle of a scan, kills, clocks that jump, a disk filled by other
programs."""

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agent import batch
from agent.fact_store import FactStore, StoreReader
from agent.fact_store.retention import room
from agent.fact_store.writer import writer as writer_module
from agent.message import Sample
from agent.settings.store import StoreSettings, StreamSettings
from tests.fact_store.making import EVERYTHING, TELEMETRY, done, samples, tag
from tests.fact_store.retention.support import CONSUMER, RUN, SETTINGS, STREAMS, first_offset, run_of
from tests.sim import first_seed, scaled
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
ROUNDS = scaled(8, 200)
FLOOR = 10_000_000


def is_contiguous(store: FactStore, first: int) -> int:
    """Fail unless every fact from an offset on is there with its own value, in a chain; returns the end."""
    digest = None
    for stored in store.read(TELEMETRY, first - 1, EVERYTHING, EVERYTHING).batches:
        parsed = batch.parse(stored.sealed)
        assert stored.first_offset == first
        assert digest in {None, parsed.header.previous_digest}
        digest = parsed.digest
        for value in batch.open_samples(parsed).values:
            assert str(value).partition(" ")[0] == str(first)
            first += 1
    return first - 1


@pytest.mark.sim
def test_a_kill_during_retention_loses_nothing_unconfirmed(tmp_path: Path) -> None:
    """Killed again and again while it releases, deletes and shrinks the file: acknowledged, unconfirmed facts are there
    each time, released ones were confirmed, and the next life continues."""
    rng, acknowledged, confirmed, gone = random.Random(first_seed()), 0, 0, 0
    command = [sys.executable, "-m", "tests.fact_store.retention.support", str(tmp_path / "facts.db")]
    for number in range(ROUNDS):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(rng.randint(1, 400))]
            process.kill()
            lines += process.stdout.readlines()
        for line in lines:
            kind, _, offset = line.decode().partition(" ")
            if offset.endswith("\n") and kind == "S":
                acknowledged = max(acknowledged, int(offset))
            elif offset.endswith("\n") and kind == "C":
                confirmed = max(confirmed, int(offset))
        with FactStore.open(tmp_path / "facts.db", "plant", settings=SETTINGS, streams=STREAMS) as store:
            first = first_offset(store)
            known = store.consumers.get(CONSUMER)
            assert known is not None
            assert known.frontier <= confirmed, f"round {number}"
            assert first - 1 <= known.frontier, f"round {number}: {first} to {known.frontier} went unconfirmed"
            assert is_contiguous(store, first) == store.end_offset(TELEMETRY) >= acknowledged, f"round {number}"
            assert [incident.kind for incident in store.reader.incidents()] == []
            gone = max(gone, first - 1)
    assert gone > ROUNDS * RUN, "too little was forgotten to prove anything"


def test_a_reader_in_the_middle_of_a_scan(tmp_path: Path) -> None:
    """A slow reader on another connection, while retention releases facts before and after its position: each page
    continues where the last one ended, facts and holes without a gap, and every fact is the one of its offset."""
    with FactStore.open(tmp_path / "facts.db", "plant", settings=SETTINGS, streams=STREAMS) as store:
        done(store.appends.define([tag(1)]))
        done(store.consumers.register(CONSUMER, "idmz", TELEMETRY))
        is_over, counts, errors = threading.Event(), [0, 0], list[BaseException]()

        def scan() -> None:
            reader = StoreReader(tmp_path / "facts.db")
            try:
                while not is_over.is_set():
                    counts[1] += scan_once(reader, counts)
            except BaseException as error:  # noqa: BLE001 raised in the test's own thread
                errors.append(error)
            finally:
                reader.close()

        thread = threading.Thread(target=scan)
        thread.start()
        for _ in range(60):
            for _ in range(10):
                done(store.appends.append_samples(TELEMETRY, run_of(store.end_offset(TELEMETRY) + 1)))
            done(store.consumers.confirm(CONSUMER, max(1, store.end_offset(TELEMETRY) - 100)))
        wait_until(lambda: (counts[0] > 0 and counts[1] > 0) or errors, "a scan that met a hole and one that met facts")
        is_over.set()
        thread.join()
        assert not errors, errors


def scan_once(reader: StoreReader, counts: list[int]) -> int:
    """From the first offset to the end in small pages; returns facts read, counts holes in counts[0]."""
    offset, facts = 0, 0
    while True:
        page = reader.read(TELEMETRY, offset, 7, 100_000)
        parts = sorted(
            [(hole.first_offset, hole.last_offset, None) for hole in page.holes]
            + [(stored.first_offset, stored.last_offset, stored) for stored in page.batches],  # type: ignore[list-item]
            key=lambda part: part[0],
        )
        if not parts:
            return facts
        assert {hole.reason for hole in page.holes} <= {"expired"}
        for first, last, stored in parts:
            assert first <= offset + 1 <= last, (offset, parts)
            if stored is None:
                counts[0] += 1
            else:
                values = batch.open_samples(batch.parse(stored.sealed)).values
                assert [str(value).partition(" ")[0] for value in values] == [str(n) for n in range(first, last + 1)]
                facts += len(values)
            offset = last


@pytest.mark.parametrize("jump_h", [-24 * 365 * 50, 24 * 365 * 80])
def test_no_clock_that_jumps_expires_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_h: int) -> None:
    """A gateway that starts in 1970, or whose clock is set far ahead: only hours in which the store was open count."""
    real, jumped_ns = writer_module.time.time_ns, [0]
    streams = (StreamSettings(TELEMETRY, keep_hours=0.5, ttl_hours=1),)
    for life in range(3):
        monkeypatch.setattr(writer_module.time, "time_ns", lambda: real() + jumped_ns[0])
        with FactStore.open(tmp_path / "facts.db", "plant", settings=SETTINGS, streams=streams) as store:
            done(store.appends.define([tag(1)]))
            done(store.consumers.register(CONSUMER, "idmz", TELEMETRY))
            done(store.appends.append_samples(TELEMETRY, samples(10, 1 + 10 * life)))
            jumped_ns[0] += jump_h * 3_600_000_000_000 // 3
            looked = store._writer.committer.housekeeping._looked_ns
            wait_until(lambda: store._writer.committer.housekeeping._looked_ns > looked, "retention to look")  # noqa: B023
            assert (first_offset(store), store.end_offset(TELEMETRY)) == (1, 10 + 10 * life)
            assert not store.reader.incidents()


def test_a_disk_that_others_fill_costs_no_more_than_comes_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """drop_oldest makes room for new facts, not for other programs: however far they fill the disk beyond its floor,
    the stream keeps about what it held."""
    free = [10**12]
    monkeypatch.setattr(room, "disk_free", lambda _: free[0])
    settings = StoreSettings(commit_interval_ms=0, disk_free_bytes_min=FLOOR, ballast_bytes=0)
    streams = (StreamSettings(TELEMETRY, on_full="drop_oldest"),)
    with FactStore.open(tmp_path / "facts.db", "plant", settings=settings, streams=streams) as store:
        done(store.appends.define([tag(1)]))

        def put(count: int) -> None:
            for n in range(count):
                done(store.appends.append_samples(TELEMETRY, [Sample(1, n, os.urandom(50_000), 0)] * 2))

        def held() -> int:
            return next(stream.bytes for stream in store.streams() if stream.name == TELEMETRY)

        def look() -> None:
            keeper = store._writer.committer.housekeeping.room
            seen_ns = keeper._measured_ns
            wait_until(lambda: keeper._measured_ns > seen_ns, "a look at the disk")

        put(100)
        look()
        before, space = held(), store._writer.committer.housekeeping.room.space
        pages_before = space.store_used + space.store_free
        for free_now in (FLOOR - 1_000_000, FLOOR // 2):
            free[0] = free_now
            look()
            put(40)
            assert held() > 0.9 * before
        space = store._writer.committer.housekeeping.room.space
        assert space.store_used + space.store_free < 1.1 * pages_before
        assert first_offset(store) > 1

"""Release in a real store: what every consumer has confirmed goes, and what its time has overtaken is recorded."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent.fact_store import FactStore, StoreReader
from agent.fact_store.core.catalog import StreamState
from agent.fact_store.retention import housekeeping as housekeeping_module
from agent.pages import Hole
from agent.positions import Position
from agent.settings.store import StreamSettings
from tests.fact_store.durability.faults import Faults, full_error
from tests.fact_store.making import (
    AT_ONCE,
    EVERYTHING,
    LIFE,
    OPERATIONAL,
    TELEMETRY,
    Elsewhere,
    damages,
    done,
    parsed,
    samples,
    tag,
)
from tests.fact_store.retention.support import (
    HOUR_NS,
    Clock,
    fill,
    first_offset,
    noise,
    notices,
    rows,
    store_of,
)
from tests.support.received import put_page
from tests.support.relay_store import opened, relay_store
from tests.waiting import wait_until


def test_invariant_8_truncation_stays_below_every_frontier(tmp_path: Path) -> None:
    """With three consumers of one zone, facts that the slowest, which was registered second, has not confirmed stay, in
    whole batches; when all have confirmed them they are released and their rows deleted."""
    with store_of(tmp_path, keep_hours=0) as store:
        for name in ("idmz.a", "idmz.b", "idmz.c"):
            done(store.consumers.register(name, "idmz", TELEMETRY))
        end = fill(store, 10)
        done(store.consumers.confirm("idmz.a", end))
        done(store.consumers.confirm("idmz.b", 34))
        done(store.consumers.confirm("idmz.c", end))
        wait_until(lambda: first_offset(store) == 31, "the batches below the slower frontier to go")
        page = store.read(TELEMETRY, 0, EVERYTHING, EVERYTHING)
        assert page.holes == (Hole(1, 30, "expired"),)
        assert store.read(TELEMETRY, 4, 9, 1, until_offset=20).holes == (Hole(5, 20, "expired"),)
        assert page.batches[0].first_offset == 31
        assert store.read(TELEMETRY, 34, EVERYTHING, EVERYTHING).holes == ()
        done(store.consumers.confirm("idmz.b", end))
        wait_until(lambda: first_offset(store) == end + 1, "everything to go")
        assert store.read(TELEMETRY, 0, 1, 1).holes == (Hole(1, end, "expired"),)
        assert done(store.appends.append_samples(TELEMETRY, samples(1))).first_offset == end + 1
        assert notices(store) == []
    assert rows(tmp_path) == 1


def test_each_stream_is_released_up_to_its_own_slowest_consumer(tmp_path: Path) -> None:
    """Three consumers of telemetry overtake each other; what is released follows the slowest of them, batch by batch,
    and the other stream, which one of their zones reads too, stays."""
    with opened(relay_store(tmp_path)) as store:

        def released(first: int) -> None:
            wait_until(lambda: first_offset(store) >= first, f"{first} to be the first")
            done(store.appends.define([tag(9)]))
            assert [stream.first_offset for stream in store.streams()] == [first, 1]

        done(store.consumers.confirm("enterprise.facts.telemetry", 24))
        done(store.consumers.confirm("local.mes", 22))
        released(15)  # spark has 14
        done(store.consumers.confirm("spark.facts.telemetry", 24))
        released(21)  # local has 22, which is inside a batch
        done(store.consumers.remove("local.mes", force=True, now=True))
        released(25)
        assert [incident.kind for incident in store.reader.incidents()] == ["branch"], "the second gateway of plant-a"
        assert not notices(store)


def test_released_facts_are_read_by_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the release on, and long before their rows are deleted, facts are expired for every reader: by offset and by
    sequence, for comparisons and for searches in both directions. Their bytes are free room, after a restart too."""
    for rows_max in ("ROWS_WHEN_IDLE", "ROWS_WITH_COMMIT"):
        monkeypatch.setattr(housekeeping_module, rows_max, 0)
    with store_of(tmp_path, keep_hours=0) as store:
        done(store.consumers.register("idmz.a", "idmz", TELEMETRY))
        fill(store, 3)
        done(store.consumers.confirm("idmz.a", 20))
        wait_until(lambda: first_offset(store) == 21, "the confirmed facts to be released")
        reader = store.reader
        pages = [
            reader.read(TELEMETRY, 0, EVERYTHING, EVERYTHING),
            store.read(TELEMETRY, 0, EVERYTHING, EVERYTHING),
            reader.read_sequences(TELEMETRY, store.origin, 1, 30, EVERYTHING, EVERYTHING),
        ]
        for page in pages:
            assert [batch.first_offset for batch in page.batches] == [21]
            assert page.holes == (Hole(1, 20, "expired"),)
        assert [end.last_sequence for end in reader.batch_ends(TELEMETRY, store.origin, [1, 15, 25])] == [30]
        for newest_first in (False, True):
            found = reader.summaries(TELEMETRY, 1, 30, 10, newest_first=newest_first)
            assert [batch.first_offset for batch in found] == [21]
        pending = store._writer.committer.housekeeping._reclaimer.pending_bytes
    assert rows(tmp_path) == 3
    with store_of(tmp_path, keep_hours=0) as store:
        assert store._writer.committer.housekeeping._reclaimer.pending_bytes == pending > 0


def test_what_is_left_keeps_its_marks(tmp_path: Path, clock: Clock) -> None:
    """With released facts only their marks go. Those of the facts that are left say when these were recorded; without
    them nothing would expire while facts come in."""
    with store_of(tmp_path, keep_hours=0) as store:
        done(store.consumers.register("idmz.a", "idmz", TELEMETRY))
        for _ in range(4):
            fill(store, 1)
            clock.ahead_ns += 60_000_000_000
        before = store.reader.clock_marks(TELEMETRY)
        assert [offset for offset, _ in before] == [1, 11, 21, 31]
        done(store.consumers.confirm("idmz.a", 14))
        with closing(sqlite3.connect(tmp_path / "facts.db")) as outside:
            oldest = lambda: outside.execute("SELECT min(first_offset) FROM batch").fetchone()[0]  # noqa: E731
            wait_until(lambda: oldest() == 11, "the confirmed batch to be deleted")
        assert store.reader.clock_marks(TELEMETRY) == before[1:]


def test_a_batch_that_came_late_outlives_later_ones(tmp_path: Path) -> None:
    """Sequences that fill a gap are stored after later ones of their origin, which may be released first: the store
    opens, reports what it holds, and recognises the released batch."""
    north = Elsewhere("north")
    early, late = north.seal(3), north.seal(3)
    with store_of(tmp_path, keep_hours=0) as store:
        done(put_page(store, "north", TELEMETRY, parsed([late]), north.received(), Position(LIFE, 6)))
        done(store.consumers.register("idmz.a", "idmz", TELEMETRY))
        done(store.consumers.confirm("idmz.a", 3))
        wait_until(lambda: first_offset(store) == 4, "the later batch to go")
        done(put_page(store, "north", TELEMETRY, parsed([early]), north.received(), Position(LIFE, 7)))
        assert done(store.appends.append_samples(TELEMETRY, samples(1))).first_offset == 7
    with store_of(tmp_path, keep_hours=0) as store:
        assert [batch.sealed for batch in store.read(TELEMETRY, 0, EVERYTHING, EVERYTHING).batches][:1] == [early]
        again = done(put_page(store, "north", TELEMETRY, parsed([late]), north.received(), Position(LIFE, 8)))
        assert again.duplicate_facts == 3
        assert not damages(store.path)


def test_expiry_is_recorded_in_the_log_and_as_an_incident(tmp_path: Path, clock: Clock) -> None:
    """When the time to live is over, unconfirmed facts are released. A fact in the same stream and an incident name
    range, count, reason, origin and the consumers that lose facts, not one that has confirmed them or that reads
    another stream; a consumer's next page has the hole. Its frontier passes it at the next confirmation."""
    with store_of(tmp_path, ttl_hours=10) as store:
        for name, stream in (("idmz.a", TELEMETRY), ("idmz.b", TELEMETRY), ("mes", TELEMETRY), ("ops", OPERATIONAL)):
            done(store.consumers.register(name, "idmz", stream))
        end = fill(store, 5)
        for name, offset in (("idmz.a", 20), ("idmz.b", 30), ("mes", end)):
            done(store.consumers.confirm(name, offset))
        clock.ahead_ns = 11 * HOUR_NS
        wait_until(lambda: first_offset(store) == 51, "the facts to expire")
        (said,) = notices(store)
        assert said.subject == f"stream:plant/{TELEMETRY}"
        assert said.predicate == "facts_expired"
        about = json.loads(said.object_json)
        assert (about["reason"], about["first_offset"], about["last_offset"], about["count"]) == ("ttl", 21, 50, 30)
        assert about["consumers"] == [
            {"name": name, "from_offset": at} for name, at in (("idmz.a", 21), ("idmz.b", 31))
        ]
        (origin,) = about["origins"]
        assert (origin["zone"], origin["first_sequence"], origin["last_sequence"]) == ("plant", 21, 50)
        (incident,) = store.reader.incidents()
        assert incident.kind == "facts_expired"
        assert incident.detail.endswith("not confirmed by: idmz.a, idmz.b")
        page = store.read(TELEMETRY, 20, EVERYTHING, EVERYTHING)
        assert page.holes == (Hole(21, 50, "expired"),)
        consumer = store.consumers.get("idmz.a")
        assert consumer is not None
        assert consumer.frontier == 20
        assert done(store.consumers.confirm("idmz.a", 51, first_offset=51)) == 51


def test_time_switched_off_does_not_count(tmp_path: Path, clock: Clock) -> None:
    """A store that is opened again has the age it had: no fact expires while it is closed."""
    with store_of(tmp_path, ttl_hours=10) as store:
        fill(store, 2)
        clock.ahead_ns = 6 * HOUR_NS
        fill(store, 1)
    clock.ahead_ns = 0  # the machine was switched off: its monotonic clock begins anew
    with store_of(tmp_path, ttl_hours=10) as store:
        fill(store, 1)
        assert first_offset(store) == 1
        clock.ahead_ns += 5 * HOUR_NS
        wait_until(lambda: first_offset(store) == 21, "the first facts to expire, six and five hours old")


def test_released_space_returns_to_the_file_system(tmp_path: Path) -> None:
    """After a large release the file shrinks while the store stays open, and the remaining facts read as before."""
    with store_of(tmp_path, keep_hours=0) as store:
        done(store.consumers.register("idmz.a", "idmz", TELEMETRY))
        for _ in range(60):
            done(store.appends.append_samples(TELEMETRY, noise(20, 60_000)))
        end = store.end_offset(TELEMETRY)
        before = (tmp_path / "facts.db").stat().st_size
        assert before > 64 * 1024 * 1024
        done(store.consumers.confirm("idmz.a", end))
        wait_until(lambda: (tmp_path / "facts.db").stat().st_size < before * 0.7, "the file to shrink")
        assert done(store.appends.append_samples(TELEMETRY, samples(3))).first_offset == end + 1
    with closing(StoreReader(tmp_path / "facts.db")) as reader:
        assert reader.read(TELEMETRY, end, EVERYTHING, EVERYTHING).batches[0].first_offset == end + 1


def test_a_peers_backlog_does_not_count_as_inflow(tmp_path: Path, clock: Clock) -> None:
    """A stream with a live source and, for some seconds, the backlog of another zone: the inflow is the live source's,
    then, after its minute, and after a restart."""
    peer = Elsewhere("plant-b")
    with store_of(tmp_path) as store:
        for minute in range(30):
            clock.ahead_ns = minute * HOUR_NS // 60
            fill(store, 1, facts=20)
            if minute == 10:
                position = Position(LIFE, 12_000)
                history = [peer.seal(20) for _ in range(600)]
                putting = put_page(
                    store, "plant-b", TELEMETRY, parsed(history), peer.received(), position, is_backlog=True
                )
                done(putting)
        (found,) = store.space().streams
        assert found.inflow_bytes_per_s is not None
        held = store.read(TELEMETRY, 0, EVERYTHING, EVERYTHING).batches
        live = [len(batch.sealed) for batch in held if batch.origin.zone == "plant"]
        assert sum(map(len, history)) > 10 * sum(live)
        assert found.inflow_bytes_per_s == pytest.approx(sum(live) / (30 * 60), rel=0.1)
    clock.ahead_ns = 0
    with store_of(tmp_path) as store:
        assert store.space().streams[0].inflow_bytes_per_s == pytest.approx(found.inflow_bytes_per_s, rel=0.1)


def test_a_deletion_that_failed_is_done_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of released batches are deleted some at a time. Where the disk undoes a deletion, it is repeated later."""
    monkeypatch.setattr(housekeeping_module, "ROWS_WHEN_IDLE", 8)
    monkeypatch.setattr(housekeeping_module, "ROWS_WITH_COMMIT", 8)
    monkeypatch.setattr(housekeeping_module, "LOOK_EVERY_NS", 10_000_000)
    faults, calls = Faults(), 0
    policy = StreamSettings(TELEMETRY, keep_hours=0)
    path = tmp_path / "facts.db"
    with FactStore.open(path, "plant", settings=AT_ONCE, streams=[policy], connect_to=faults.connect) as store:
        done(store.appends.define([tag(1)]))
        done(store.consumers.register("idmz.a", "idmz", TELEMETRY))
        end, reclaimer = fill(store, 20, 1), store._writer.committer.housekeeping._reclaimer
        delete = reclaimer._delete_batches

        def counted(transaction: Any, stream: StreamState, deleted: Any, rows_max: int) -> int:
            nonlocal calls
            found = delete(transaction, stream, deleted, rows_max)
            if found:
                calls += 1
                if deleted.is_done:  # the last of them
                    faults.arm("COMMIT", 1, full_error)
                    reclaimer._delete_batches = delete  # type: ignore[method-assign]
            return found

        reclaimer._delete_batches = counted  # type: ignore[method-assign]
        done(store.consumers.confirm("idmz.a", end))
        wait_until(lambda: reclaimer._delete_batches is not counted and faults.start is None, "the failed commit")
        assert calls > 1
        wait_until(lambda: rows(tmp_path) == 0, "the rows to go")

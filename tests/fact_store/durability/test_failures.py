"""A disk that fails: no fact is acknowledged that is not durable, nothing is retried, and the store uses space that
returns."""

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.errors import StoreBusy, StoreError, StoreFull
from agent.fact_store import FactStore
from agent.fact_store.core.errors import StoreClosed, StoreDamaged, StoreFailed
from agent.fact_store.core.records import Appended
from agent.fact_store.sqlite.connection import connect
from agent.settings.store import StoreSettings
from tests.fact_store.durability.faults import Faults, broken_error, busy_error, disk_error, full_error
from tests.fact_store.making import (
    AT_ONCE,
    LIMIT_S,
    OPERATIONAL,
    TELEMETRY,
    Elsewhere,
    chain_is_whole,
    committed_at,
    done,
    failed,
    message,
    plant,
    samples,
    tag,
    values_in,
)
from tests.waiting import wait_until

SOON = StoreSettings(commit_interval_ms=100)  # samples wait a little for others


@contextlib.contextmanager
def faulty(folder: Path) -> Iterator[tuple[FactStore, Faults]]:
    """The plant's store over connections that can be made to fail."""
    faults = Faults()
    with FactStore.open(folder / "facts.db", "plant", settings=SOON, connect_to=faults.connect) as store:
        done(store.appends.define([tag(1)]))
        done(store.appends.append_samples(TELEMETRY, samples(3)))
        yield store, faults


@pytest.mark.parametrize(
    "statement",
    ["BEGIN", "INSERT INTO batch", "INSERT INTO held", "INSERT INTO message", "COMMIT", "COMMIT of samples"],
)
@pytest.mark.parametrize("error, expected", [(disk_error, StoreFailed), (broken_error, StoreDamaged)])
def test_a_failed_commit_ends_the_writer(
    tmp_path: Path, statement: str, error: Callable[[], sqlite3.Error], expected: type[StoreError]
) -> None:
    """After an I/O error at any statement all waiting futures fail, nothing more is taken, reading goes on, and the
    store says why it ended; it stays marked as open, so that its log is examined, and opened again it holds exactly
    what was acknowledged."""
    with faulty(tmp_path) as (store, faults):
        start, _, kind = statement.partition(" of ")
        faults.arm(start, 1, error, after="INSERT INTO batch" if start == "COMMIT" else None)
        waiting = [store.appends.append_samples(TELEMETRY, samples(2, first)) for first in (4, 6)]
        if not kind:  # it is committed at once, and alone
            waiting.append(store.appends.append_message(OPERATIONAL, message("a")))  # type: ignore[arg-type]
        for future in waiting:
            assert isinstance(failed(future), expected)
        assert isinstance(store.ended.exception(LIMIT_S), expected)
        assert isinstance(store.failure, expected)
        assert store.statistics().state == "failed"
        with pytest.raises(expected):
            store.appends.append_samples(TELEMETRY, samples(1))
        assert values_in(store) == [1, 2, 3]
    with contextlib.closing(connect(f"{(tmp_path / 'facts.db').as_uri()}?mode=ro")) as file:
        assert file.execute("SELECT is_open FROM store").fetchone() == (1,)
    with plant(tmp_path) as store:
        assert values_in(store) == [1, 2, 3]
        assert done(store.appends.append_samples(TELEMETRY, samples(1, 4))) == Appended(4, 4)
        chain_is_whole(store)


@pytest.mark.parametrize("error, expected", [(disk_error, StoreFailed), (busy_error, None)])
def test_an_error_between_two_commits(
    tmp_path: Path, error: Callable[[], sqlite3.Error], expected: type[StoreError] | None
) -> None:
    """An I/O error while free space is measured ends the store, as one of a commit does; a lock of another program does
    not. What was answered before is there in both cases."""
    with faulty(tmp_path) as (store, faults):
        faults.arm("PRAGMA page_count", 1, error)
        assert done(store.appends.append_samples(TELEMETRY, samples(1, 4))) == Appended(4, 4)
        wait_until(lambda: faults.start is None, "free space to be measured")
        if expected is not None:
            assert isinstance(store.ended.exception(LIMIT_S), expected)
        else:
            assert done(store.appends.append_samples(TELEMETRY, samples(1, 5))) == Appended(5, 5)
            assert store.failure is None
    with plant(tmp_path) as store:
        assert values_in(store)[:4] == [1, 2, 3, 4]


def test_a_full_disk_at_any_statement_rolls_back_the_group(tmp_path: Path) -> None:
    """Whichever statement meets the full disk, the whole group is rolled back, in the file and in memory."""
    with faulty(tmp_path) as (store, faults):
        origin = Elsewhere("north")
        sealed, facts = origin.seal(5), 3
        for statement in ("BEGIN", "INSERT INTO batch", "INSERT INTO held", "INSERT INTO definition", "COMMIT"):
            faults.arm(statement, 1, full_error)
            with pytest.raises(StoreFull, match="free disk space") as refused:
                origin.put(store, [sealed])
            assert refused.value.retryable
            assert (store.end_offset(TELEMETRY), store.reader.origins()) == (facts, [store.origin])
            assert origin.held_in(store) == []
            faults.start = None
            done(store.appends.append_samples(TELEMETRY, samples(1)))
            facts += 1
        assert origin.put(store, [sealed]).stored_facts == 5
        chain_is_whole(store)
        assert (store.failure, store.statistics().queue_bytes) == (None, 0)


def test_a_foreign_write_lock_is_survived(tmp_path: Path) -> None:
    """A program that holds the write lock for too long delays the store and does not end it."""
    with faulty(tmp_path) as (store, faults):
        faults.arm("BEGIN", 1, busy_error)
        error = failed(store.appends.append_samples(TELEMETRY, samples(1)))
        assert isinstance(error, StoreBusy)
        assert "another program holds a lock" in str(error)
        assert done(store.appends.append_samples(TELEMETRY, samples(1, 4))) == Appended(4, 4)
        assert values_in(store) == [1, 2, 3, 4]


def test_a_second_writer_ends_the_store(tmp_path: Path) -> None:
    """When another connection has committed, the writer's cached state is stale: the store ends at once."""
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(1)))
        with contextlib.closing(sqlite3.connect(store.path)) as other:
            other.execute("INSERT INTO stream (name) VALUES ('theirs')")
            other.commit()
        error = failed(store.appends.append_samples(TELEMETRY, samples(1)))
        assert isinstance(error, StoreFailed)
        assert "another program has written" in str(error)
        assert isinstance(store.ended.exception(LIMIT_S), StoreFailed)
    with plant(tmp_path) as store:
        assert values_in(store) == [1]


def test_a_rollback_that_fails(tmp_path: Path) -> None:
    """If the rollback fails, the state of the connection is unknown: the store ends."""
    with faulty(tmp_path) as (store, faults):

        def full_then_dead() -> sqlite3.Error:
            faults.arm("ROLLBACK", 1, disk_error)
            return full_error()

        faults.arm("INSERT INTO batch", 1, full_then_dead)
        assert isinstance(failed(store.appends.append_samples(TELEMETRY, samples(1))), StoreFailed)
        assert isinstance(store.ended.exception(LIMIT_S), StoreFailed)


def test_an_error_in_the_writer_fails_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the writer's own code raises, every waiting future fails, the store reports its failure, and the traceback
    is logged."""
    told: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda happened: told.append(happened.exc_type))
    monkeypatch.setattr("agent.fact_store.writer.committer.append_samples", lambda *_: [].pop())
    with plant(tmp_path, committed_at(2)) as store:
        queued = store.appends.append_samples(TELEMETRY, samples(1))
        broken = store.appends.append_samples(TELEMETRY, samples(1))
        for future in (queued, broken):
            assert isinstance(failed(future), StoreFailed)
        assert isinstance(store.ended.exception(LIMIT_S), StoreFailed)
        assert told == [IndexError]


def test_housekeeping_does_not_spin_on_a_full_disk(tmp_path: Path) -> None:
    """A transaction that fails before housekeeping postpones it: the writer does not retry at once, and continues when
    there is room."""
    with faulty(tmp_path) as (store, faults):
        housekeeping = store._writer.committer.housekeeping
        housekeeping.free_ballast = lambda: faults.arm("BEGIN", 1, full_error)  # type: ignore[method-assign]  # the next, too
        due_ns = housekeeping.alarm_ns
        faults.arm("BEGIN", 1, full_error)
        wait_until(lambda: housekeeping.alarm_ns > due_ns, "housekeeping to be put off", 5.0)
        housekeeping.free_ballast = lambda: None  # type: ignore[method-assign]
        faults.start = None
        assert done(store.appends.append_samples(TELEMETRY, samples(1, 4))).last_offset == 4


def test_a_store_that_damage_has_ended_is_still_closed(tmp_path: Path) -> None:
    """When writing has met damage, marking a consumer as seen raises nothing, closing closes everything, and the same
    process can open the store again."""
    faults = Faults()
    store = FactStore.open(tmp_path / "facts.db", "plant", settings=AT_ONCE, connect_to=faults.connect)
    for name in ("seen", "comes"):
        done(store.consumers.register(name, "idmz", TELEMETRY))
    store.consumers.seen("seen", is_at_end=True)
    faults.arm("COMMIT", 1, broken_error)
    assert isinstance(failed(store.appends.define([tag(1)])), StoreDamaged)
    assert isinstance(store.ended.exception(LIMIT_S), StoreDamaged)
    store.consumers.seen("comes", is_at_end=True)
    store.peer_reads_more("idmz", "it says so")
    store.close()
    with plant(tmp_path) as store:
        assert len(store.consumers.all()) == 2


def test_a_message_of_a_failed_commit_is_not_known(tmp_path: Path) -> None:
    """A rolled-back message leaves nothing: the index of ids is unchanged, and the same message again is stored."""
    with faulty(tmp_path) as (store, faults):
        done(store.appends.append_message(OPERATIONAL, message("a")))
        index = store._writer.committer._index._streams
        before = {number: (part.generation, part.ids) for number, part in index.items()}
        faults.arm("COMMIT", 1, full_error)
        assert isinstance(failed(store.appends.append_message(OPERATIONAL, message("b"))), StoreFull)
        assert {number: (part.generation, part.ids) for number, part in index.items()} == before
        assert done(store.appends.append_message(OPERATIONAL, message("b"))).outcome == "applied"
        assert done(store.appends.append_message(OPERATIONAL, message("b"))).outcome == "noop_already_applied"


def test_a_store_that_is_closing_takes_nothing_more(tmp_path: Path) -> None:
    """A store refuses work from the call to close on, not only once its writer has ended. Otherwise queued work would
    never be answered."""
    began, may_end = threading.Event(), threading.Event()

    def slow() -> sqlite3.Error:
        began.set()
        assert may_end.wait(LIMIT_S)
        return full_error()

    with faulty(tmp_path) as (store, faults):
        faults.arm("COMMIT", 1, slow)
        store.appends.append_samples(TELEMETRY, samples(1))
        assert began.wait(LIMIT_S)
        closing = threading.Thread(target=store.close)
        closing.start()
        wait_until(lambda: store._writer.queue.refusing is not None, "the store to be told")
        with pytest.raises(StoreClosed):
            store.appends.append_samples(TELEMETRY, samples(1))
        may_end.set()
        closing.join()

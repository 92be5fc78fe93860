"""The states of a consumer in a real store: seen, lost, seen again, removed, and kept because it returned in time."""

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from agent.errors import StoreBusy
from agent.fact_store import FactStore
from agent.fact_store.consumers.activity import ConsumerActivity, ConsumerExpiry
from agent.fact_store.consumers.consumers import apply_events
from agent.fact_store.core import NEVER_NS, lifecycle
from agent.fact_store.core.catalog import Catalog, StoreNames
from agent.fact_store.core.errors import ConfirmBeyondLog, ConsumerInUse, StreamIsLocal, UnknownConsumer
from agent.fact_store.core.frontier import Confirmed
from agent.fact_store.core.lifecycle import ConsumerEvent, Lifecycle
from agent.fact_store.core.records import ConsumerState
from agent.settings.store import StreamSettings
from tests.fact_store.making import AT_ONCE, TELEMETRY, done, failed, samples, tag
from tests.support.relay_store import FRONTIERS, opened, relay_store
from tests.waiting import wait_until

NAME = "idmz.facts.telemetry"
PATIENT = StreamSettings(TELEMETRY, in_sync_lag_ms=3_600_000)
HASTY = dataclasses.replace(PATIENT, in_sync_lag_ms=10)  # lost after 30 ms


@contextmanager
def plant(folder: Path, stream: StreamSettings = PATIENT) -> Iterator[FactStore]:
    """A store with ten samples and a consumer."""
    with FactStore.open(folder / "facts.db", "plant", settings=AT_ONCE, streams=[stream]) as store:
        done(store.appends.define([tag(1)]))
        if not store.end_offset(TELEMETRY):
            done(store.appends.append_samples(TELEMETRY, samples(10)))
            done(store.consumers.register(NAME, "idmz", TELEMETRY))
        yield store


def state(store: FactStore) -> Lifecycle | None:
    """The state of the consumer; None when it is gone."""
    found = store.consumers.get(NAME)
    return found.lifecycle if found else None


def test_any_fetch_makes_it_online(tmp_path: Path) -> None:
    """Any fetch, at the end or not, makes a consumer online; further ones cost no commit."""
    with plant(tmp_path) as store:
        assert state(store) is Lifecycle.NEW
        store.consumers.seen(NAME, is_at_end=False)
        wait_until(lambda: state(store) is Lifecycle.ONLINE, "online")
        commits = store.statistics().commits
        for _ in range(100):
            store.consumers.seen(NAME, is_at_end=True)
        done(store.appends.define([tag(1)]))
        assert store.statistics().commits == commits + 1
        store.consumers.seen("nobody", is_at_end=True)  # of whom nothing is known, nothing is kept


def test_each_return_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that was not seen for three times the lag is offline, without any write; it is lost again and again,
    and comes back by each next fetch. A fetch that the store was too busy to record does not keep the next one from
    being recorded."""

    def busy(*_: object, **__: object) -> None:
        raise StoreBusy("the queue is full")

    with plant(tmp_path, HASTY) as store:
        with monkeypatch.context() as patched:
            patched.setattr(store._writer, "submit", busy)
            store.consumers.seen(NAME, is_at_end=False)
        for _ in range(2):
            store.consumers.seen(NAME, is_at_end=False)
            wait_until(lambda: state(store) is Lifecycle.OFFLINE, "lost")
        done(store.consumers.confirm(NAME, 3))
        wait_until(lambda: state(store) is Lifecycle.OFFLINE, "lost after a confirmation")
        store.consumers.seen(NAME, is_at_end=True, waits_ms=3_600_000)
        wait_until(lambda: state(store) is Lifecycle.ONLINE, "back")
        assert store.consumers.get(NAME).frontier == 3  # type: ignore[union-attr]


def test_a_refused_confirmation_is_no_sign_of_life(tmp_path: Path) -> None:
    """A refused confirmation does not keep a consumer online or in sync."""
    with plant(tmp_path) as store:
        assert isinstance(failed(store.consumers.confirm(NAME, 11)), ConfirmBeyondLog)
        assert store.consumers.seen_unix_ms(NAME) is None
        assert [consumer.caught_up_ns for consumer in store.consumers.followers(TELEMETRY)] == [None]


def test_when_each_was_seen_survives_a_restart(tmp_path: Path) -> None:
    """Of four consumers three fetch at different times; the fourth has what the store had."""
    file = relay_store(tmp_path)
    with opened(file) as store:
        seen = {consumer: store.consumers.seen_unix_ms(consumer) for consumer in FRONTIERS}
        for number, name in enumerate(list(FRONTIERS)[:3], 1):
            seen[name] = 1_900_000_000_000 + number
            store._writer.activity.record_fetch(
                name, is_at_end=False, waits_ns=0, now_ns=time.monotonic_ns(), now_unix_ms=seen[name] or 0
            )
    with opened(file) as store:
        assert {consumer: store.consumers.seen_unix_ms(consumer) for consumer in FRONTIERS} == seen


def test_consumers_of_two_streams_are_lost_after_the_time_of_their_own() -> None:
    """Three consumers, of which one goes on fetching: the others are lost at different times, each once, and the alarm
    is the earliest of those that are left. What one did that was removed is forgotten, and nothing else."""
    activity, lost_ns = ConsumerActivity(), {TELEMETRY: 45, "facts.alarms": 100}
    lifetimes, catalog = ConsumerExpiry(activity, lost_ns.__getitem__), Catalog(StoreNames("plant", "plant"))
    for number, (name, stream) in enumerate({"a": TELEMETRY, "c": TELEMETRY, "b": "facts.alarms"}.items()):
        state = ConsumerState(number, name, "idmz", stream, Lifecycle.ONLINE, 0, Confirmed())
        catalog.consumers[name] = state
    assert lifetimes.due(catalog, 1000) == {}
    for at_ns, due, alarm_ns in ((1045, {"a": ConsumerEvent.LOST}, 1065), (1065, {"c": ConsumerEvent.LOST}, 1100)):
        if at_ns == 1045:
            for name in ("c", "removed"):
                activity.record_fetch(name, is_at_end=False, waits_ns=0, now_ns=1020, now_unix_ms=0)
        assert lifetimes.alarm_ns <= at_ns
        found = lifetimes.due(catalog, at_ns)
        assert found == due
        for name in found:
            catalog.consumers[name] = dataclasses.replace(catalog.consumers[name], lifecycle=Lifecycle.OFFLINE)
        assert lifetimes.due(catalog, at_ns) == {}
        assert lifetimes.alarm_ns == alarm_ns
    assert lifetimes.due(catalog, 1100) == {"b": ConsumerEvent.LOST}
    assert activity.get("removed") is None


def test_the_time_of_a_state_begins_with_the_state() -> None:
    """Two consumers that have done nothing in this life, of which one is removed an hour after the start, and again
    once it has returned: it is kept for the whole time from each beginning, which nothing about the other moves."""
    lifetimes = ConsumerExpiry(ConsumerActivity(), lambda _: NEVER_NS)
    catalog, now_ns = Catalog(StoreNames("plant", "plant")), 0

    def enter(name: str, state: Lifecycle) -> None:
        catalog.consumers[name] = ConsumerState(1, name, "idmz", TELEMETRY, state, 0, Confirmed())
        assert lifetimes.due(catalog, now_ns) == {}

    enter("removed", Lifecycle.OFFLINE)
    for state in (Lifecycle.INELIGIBLE, Lifecycle.OFFLINE):
        now_ns += 6 * lifecycle.REMOVAL_NS
        enter("removed", Lifecycle.DELETION_STARTED)
        removed_ns = now_ns + lifecycle.REMOVAL_NS
        now_ns += lifecycle.REMOVAL_NS // 2
        enter("other", state)
        assert lifetimes.alarm_ns == removed_ns
        enter("removed", state)
    now_ns += 6 * lifecycle.REMOVAL_NS
    enter("removed", Lifecycle.DELETION_STARTED)
    assert lifetimes.due(catalog, now_ns + lifecycle.REMOVAL_NS - 1) == {}
    assert lifetimes.due(catalog, now_ns + lifecycle.REMOVAL_NS) == {"removed": ConsumerEvent.REMOVED}


def test_a_confirmation_does_not_end_a_wait_at_the_end() -> None:
    """A consumer whose fetch waits at the end, and which confirms meanwhile, is caught up until its wait ends. A
    confirmation of less says nothing about the end."""
    activity = ConsumerActivity()

    def caught_up_after(now: int, *, is_at_end: bool) -> int | None:
        activity.record_confirm("a", is_at_end=is_at_end, now_ns=now, now_unix_ms=0)
        known = activity.get("a")
        assert known is not None
        return known.caught_up_ns

    assert caught_up_after(5, is_at_end=False) is None
    assert caught_up_after(10, is_at_end=True) == 10
    activity.record_fetch("a", is_at_end=True, waits_ns=100, now_ns=20, now_unix_ms=0)
    assert caught_up_after(30, is_at_end=True) == 120
    assert caught_up_after(40, is_at_end=False) == 120
    assert caught_up_after(130, is_at_end=True) == 130


def test_an_event_that_comes_too_late_changes_nothing(tmp_path: Path) -> None:
    """The end of a removal, or a loss, is due while the consumer comes back: it keeps its state, and the writer goes
    on."""
    with plant(tmp_path) as store:
        done(store.consumers.confirm(NAME, 3))
        before = store.consumers.get(NAME)
        assert before is not None
        for event in (ConsumerEvent.REMOVED, ConsumerEvent.REMOVE):
            late = partial(apply_events, events={NAME: event, "gone": event}, seen_unix_ms=lambda _: None)
            done(store._writer.submit("expire", late))
            assert store.consumers.get(NAME) == before
        lost = partial(apply_events, events={NAME: ConsumerEvent.LOST}, seen_unix_ms=lambda _: None)
        done(store._writer.submit("expire", lost))
        assert store.consumers.get(NAME) == dataclasses.replace(before, lifecycle=Lifecycle.OFFLINE)


def test_a_consumer_that_returns_during_its_removal_is_kept(tmp_path: Path) -> None:
    """The beginning of a removal is durable; a consumer that fetches, confirms or registers meanwhile is kept with all
    it confirmed."""
    with plant(tmp_path) as store:
        done(store.consumers.remove(NAME))
    with plant(tmp_path) as store:
        assert state(store) is Lifecycle.DELETION_STARTED
        assert store.consumers.followers(TELEMETRY) == []  # no append waits for it any more
        store.consumers.seen(NAME, is_at_end=False)
        wait_until(lambda: state(store) is Lifecycle.INELIGIBLE, "back by a fetch")
        assert isinstance(failed(store.consumers.remove(NAME)), ConsumerInUse)
        done(store.consumers.remove(NAME, force=True))
        assert done(store.consumers.confirm(NAME, 5)) == 5
        assert state(store) is Lifecycle.INELIGIBLE
        done(store.consumers.remove(NAME, force=True))
        assert done(store.consumers.register(NAME, "idmz", TELEMETRY)).lifecycle is Lifecycle.INELIGIBLE
    with plant(tmp_path) as store:  # it has not fetched since, and counts as offline like any other
        assert done(store.consumers.remove(NAME)) is Lifecycle.DELETION_STARTED


def test_a_consumer_that_does_not_return_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that does not come back is removed by itself, also after a restart meanwhile; then its name is
    free."""
    with plant(tmp_path) as store:
        done(store.consumers.confirm(NAME, 5))
        done(store.consumers.remove(NAME, force=True))
        assert state(store) is Lifecycle.DELETION_STARTED
    monkeypatch.setattr(lifecycle, "REMOVAL_NS", 1)
    with plant(tmp_path) as store:
        wait_until(lambda: state(store) is None, "removed")
        assert isinstance(failed(store.consumers.confirm(NAME, 6)), UnknownConsumer)
        assert done(store.consumers.register(NAME, "idmz", TELEMETRY)).frontier == 0


def test_a_local_stream_has_no_readers_elsewhere(tmp_path: Path) -> None:
    """write_class local: another zone cannot register, whatever is exported; the node's own programs can."""
    with plant(tmp_path, dataclasses.replace(PATIENT, name="facts.private", write_class="local")) as store:
        refused = failed(store.consumers.register("idmz.facts.private", "idmz", "facts.private"))
        assert isinstance(refused, StreamIsLocal)
        assert "facts.private" not in {stream.name for stream in store.streams()}
        assert done(store.consumers.register("mes", "plant", "facts.private")).frontier == 0

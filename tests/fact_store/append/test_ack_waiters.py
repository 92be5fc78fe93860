"""Appends that wait for consumers in a real store: each is answered once and in time, and none delays another."""

import dataclasses
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.append_contract import AppendOutcome
from agent.fact_store import FactStore
from agent.fact_store.append import ack_waiters
from agent.fact_store.append.ack_waiters import AckWaiters
from agent.fact_store.append.acks import ack_terms
from agent.fact_store.append.queue import AppendMessages
from agent.fact_store.consumers.activity import ConsumerActivity
from agent.fact_store.core.catalog import Catalog, StoreNames, StreamState
from agent.fact_store.core.frontier import Confirmed
from agent.fact_store.core.lifecycle import Lifecycle
from agent.fact_store.core.records import ConsumerState
from agent.settings.store import StreamSettings
from tests.fact_store.making import AT_ONCE, OPERATIONAL, TELEMETRY, done, ids_in, message, samples, tag
from tests.waiting import wait_until

ALL = StreamSettings(OPERATIONAL, acks="all", acks_timeout_ms=3_600_000, in_sync_lag_ms=3_600_000)
SOON = dataclasses.replace(ALL, acks_timeout_ms=1)
QUEUED_CLASS = dataclasses.replace(ALL, write_class="queued")


@contextmanager
def plant(folder: Path, *streams: StreamSettings, consumers: Sequence[str] = ()) -> Iterator[FactStore]:
    """A store with these streams and consumers of the operational one."""
    with FactStore.open(folder / "facts.db", "plant", settings=AT_ONCE, streams=streams) as store:
        done(store.appends.define([tag(1)]))
        for name in consumers:
            done(store.consumers.register(name, "idmz", OPERATIONAL))
        yield store


def commits(store: FactStore) -> None:
    """Make one commit. Each earlier append was judged at least once."""
    done(store.appends.define([tag(1)]))
    done(store.appends.define([tag(1)]))


def waits(store: FactStore, future: Future[AppendOutcome]) -> bool:
    """Whether an append is durable here and still waits."""
    commits(store)
    return not future.done()


def test_timeout_answers_queued_and_keeps_the_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a consumer the timeout answers queued; the fact is stored and can be read, and a later confirmation
    covers it. What was answered waits no more: there is room for the next."""
    monkeypatch.setattr(ack_waiters, "WAITING_MAX", 1)
    with plant(tmp_path, SOON, consumers=["a"]) as store:
        outcome = done(store.appends.append_message(OPERATIONAL, message("m1")))
        assert outcome.outcome == "queued"
        assert outcome.offset == 1
        assert outcome.warning.endswith("missing: a; the fact is durable here and replication continues")
        assert ids_in(store) == ["m1"]
        done(store.consumers.confirm("a", 1))
        # asking again is how a producer learns that it has arrived since
        assert done(store.appends.append_message(OPERATIONAL, message("m1"))) == AppendOutcome(
            1, "noop_already_applied"
        )
        assert "missing: a;" in done(store.appends.append_message(OPERATIONAL, message("m2"))).warning


def test_write_class_queued_answers_at_once(tmp_path: Path) -> None:
    """Without a consumer in sync the answer is immediate, although acks_timeout_ms is an hour. With one in sync the
    append waits."""
    with plant(tmp_path, QUEUED_CLASS, consumers=["a"]) as store:
        outcome = done(store.appends.append_message(OPERATIONAL, message("m1")))
        assert outcome.outcome == "queued"
        assert outcome.warning.startswith("0 of the 1 consumers that facts.operational needs are in sync")
        store.consumers.seen("a", is_at_end=True)
        future = store.appends.append_message(OPERATIONAL, message("m2"))
        assert waits(store, future)
        done(store.consumers.confirm("a", 2))
        assert done(future) == AppendOutcome(2, "applied")


def test_invariant_1_a_waiting_append_delays_no_commit(tmp_path: Path) -> None:
    """With all peers away, appends that wait delay no commit: the same stream and others continue at local speed."""
    with plant(tmp_path, ALL, consumers=["a"]) as store:
        store.consumers.seen("a", is_at_end=True)
        waiting = [store.appends.append_message(OPERATIONAL, message(f"w{n}")) for n in range(50)]
        for n in range(20):
            assert done(store.appends.append_message(OPERATIONAL, message(f"l{n}"), acks="local")).outcome == "applied"
            done(store.appends.append_samples(TELEMETRY, samples(1)))
        assert not any(future.done() for future in waiting)
        done(store.consumers.confirm("a", 70))
        assert [done(future).outcome for future in waiting] == ["applied"] * 50


def test_overrides_of_one_append(tmp_path: Path) -> None:
    """none is answered without an offset and stored, local is answered at the commit, all at the confirmation."""
    with plant(tmp_path, consumers=["a"]) as store:
        assert done(store.appends.append_message(OPERATIONAL, message("n"), acks="none")) == AppendOutcome(0, "queued")
        assert done(store.appends.append_message(OPERATIONAL, message("l"))) == AppendOutcome(2, "applied")
        assert ids_in(store) == ["n", "l"]
        store.consumers.seen("a", is_at_end=True)
        future = store.appends.append_message(OPERATIONAL, message("a"), acks="all")
        assert waits(store, future)
        done(store.consumers.confirm("a", 3))
        assert done(future) == AppendOutcome(3, "applied")


def test_messages_of_one_append_have_their_own_outcomes(tmp_path: Path) -> None:
    """Of several messages in one append each has its own outcome: confirmed ones applied, the rest queued."""
    stream = dataclasses.replace(ALL, acks_timeout_ms=200)
    with plant(tmp_path, stream, consumers=["a"]) as store:
        store.consumers.seen("a", is_at_end=True)
        future = store.appends.append_messages(OPERATIONAL, [message("m1"), message("m2"), message("m3", "2")])
        conflicting = store.appends.append_message(OPERATIONAL, message("m1", "2"))
        assert done(conflicting).outcome == "conflicting_duplicate"  # nothing to wait for
        done(store.consumers.confirm("a", 2))
        assert [answer.outcome for answer in done(future)] == ["applied", "applied", "queued"]


def test_many_may_wait_but_not_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit an append is answered queued at once, with the reason. When waiting ones are answered, appends
    wait again."""
    monkeypatch.setattr(ack_waiters, "WAITING_MAX", 3)
    with plant(tmp_path, ALL, consumers=["a"]) as store:
        store.consumers.seen("a", is_at_end=True)
        kept = [store.appends.append_message(OPERATIONAL, message(f"m{n}")) for n in range(3)]
        over = done(store.appends.append_message(OPERATIONAL, message("over")))
        assert over.outcome == "queued"
        assert over.warning.startswith("3 appends to facts.operational already wait")
        done(store.consumers.confirm("a", 4))
        assert [done(future).outcome for future in kept] == ["applied"] * 3
        again = store.appends.append_message(OPERATIONAL, message("again"))
        assert waits(store, again)
        done(store.consumers.confirm("a", 5))
        assert done(again).outcome == "applied"


def test_a_closing_store_answers_what_waits(tmp_path: Path) -> None:
    """Closing does not wait for consumers: waiting appends are answered queued; they are stored, and replicated after
    the restart."""
    with plant(tmp_path, ALL, consumers=["a"]) as store:
        store.consumers.seen("a", is_at_end=True)
        future = store.appends.append_message(OPERATIONAL, message("m1"))
        assert waits(store, future)
    outcome = done(future)
    assert (outcome.offset, outcome.outcome) == (1, "queued")
    assert "the writer ended" in outcome.warning
    with plant(tmp_path, ALL) as store:
        assert ids_in(store) == ["m1"]


def test_a_consumer_that_falls_out_of_sync_is_not_waited_for(tmp_path: Path) -> None:
    """An append waits for a consumer in sync; when its last fetch is too old, the others suffice, without any call."""
    stream = dataclasses.replace(ALL, in_sync_lag_ms=300)
    with plant(tmp_path, stream, consumers=["a", "stuck"]) as store:
        store.consumers.seen("stuck", is_at_end=True)
        future = store.appends.append_message(OPERATIONAL, message("m1"))
        done(store.consumers.confirm("a", 1))
        assert done(future) == AppendOutcome(1, "applied")
        assert store.consumers.get("stuck").frontier == 0  # type: ignore[union-attr]


def test_a_fetch_that_waits_at_the_end_keeps_up(tmp_path: Path) -> None:
    """A long poll of an hour is one fetch: its consumer is in sync while it waits. It is no longer in sync when a newer
    fetch reads further back."""
    stream = dataclasses.replace(SOON, in_sync_lag_ms=1, write_class="queued")
    with plant(tmp_path, stream, consumers=["a"]) as store:

        def why(name: str) -> str:
            return done(store.appends.append_message(OPERATIONAL, message(name))).warning

        store.consumers.seen("a", is_at_end=True, waits_ms=3_600_000)
        assert why("waited for").startswith("after 0.001 s")
        store.consumers.seen("a", is_at_end=False)
        wait_until(lambda: why("not waited for").startswith("0 of the 1"), "it to fall out")


def waiting_for(frontier: int) -> tuple[AckWaiters, Catalog]:
    """No fetch waits yet; one consumer, which has fetched nothing, has confirmed so much of a stream of ten facts."""
    catalog = Catalog(StoreNames("plant", "plant"))
    catalog.streams[OPERATIONAL] = StreamState(1, OPERATIONAL, 10)
    confirmed = Confirmed(frontier)
    catalog.consumers["a"] = ConsumerState(1, "a", "idmz", OPERATIONAL, Lifecycle.ONLINE, 0, confirmed)
    return AckWaiters(ConsumerActivity().followers), catalog


def test_what_is_confirmed_is_not_queued_where_an_append_may_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that is answered at once, because too many wait, has one message that its consumers have confirmed: the
    retry of an earlier one. Only the other is answered queued."""
    monkeypatch.setattr(ack_waiters, "WAITING_MAX", 0)
    waiters, catalog = waiting_for(3)
    append = AppendMessages(OPERATIONAL, [], [], [], 0, 0, ack_terms(ALL))
    waiters.answer(append, [AppendOutcome(3, "noop_already_applied"), AppendOutcome(7, "applied")], catalog, 0)
    assert [answer.outcome for answer in done(append.future)] == ["noop_already_applied", "queued"]


@pytest.mark.parametrize("timeouts_ms", [(1000, 5000), (5000, 1000)])
def test_the_first_of_several_timeouts_wakes_the_writer(timeouts_ms: tuple[int, int]) -> None:
    """Appends on different terms wait: the alarm is that of the one whose time is over first. Otherwise it would be
    answered whenever something else is committed."""
    waiters, catalog = waiting_for(0)
    appends = [
        AppendMessages(OPERATIONAL, [], [], [], 0, 0, ack_terms(dataclasses.replace(ALL, acks_timeout_ms=timeout_ms)))
        for timeout_ms in timeouts_ms
    ]
    for append in appends:
        waiters.answer(append, [AppendOutcome(7, "applied")], catalog, 0)
    waiters.settle(catalog, 1)
    assert waiters.alarm_ns == 1_000_000_000
    waiters.settle(catalog, waiters.alarm_ns)
    assert [append.future.done() for append in appends] == [timeout_ms == 1000 for timeout_ms in timeouts_ms]
    assert waiters.alarm_ns == 5_000_000_000


def test_two_appends_on_equal_terms_time_out_one_after_the_other() -> None:
    """Each at its own time and with its own offset as the reason, of which two of three consumers have the first."""
    waiters, catalog = waiting_for(4)
    for name, frontier in (("b", 4), ("c", 2)):
        catalog.consumers[name] = dataclasses.replace(catalog.consumers["a"], name=name, confirmed=Confirmed(frontier))
    terms = ack_terms(dataclasses.replace(ALL, acks_timeout_ms=1000, min_in_sync=3))
    appends = [AppendMessages(OPERATIONAL, [], [], [], 0, at_ns, terms) for at_ns in (0, 300_000_000)]
    for append, offset in zip(appends, (3, 9), strict=True):
        waiters.answer(append, [AppendOutcome(offset, "applied")], catalog, append.queued_ns)
    waiters.settle(catalog, 1)
    for append, at_ns, reason in (
        (appends[0], 1_000_000_000, "2 of the 3 consumers that facts.operational needs have offset 3; missing: c"),
        (
            appends[1],
            1_300_000_000,
            "0 of the 3 consumers that facts.operational needs have offset 9; missing: a, b, c",
        ),
    ):
        assert waiters.alarm_ns == at_ns
        waiters.settle(catalog, at_ns - 1)
        assert not append.future.done()
        waiters.settle(catalog, at_ns)
        assert reason in done(append.future)[0].warning


def test_a_fact_released_unconfirmed_is_not_acknowledged() -> None:
    """A frontier passes a released fact. For appends that still wait for one, the last released fact included, that is
    no confirmation; the append behind it is confirmed, and so is the next one after a second release."""
    activity, catalog = ConsumerActivity(), Catalog(StoreNames("plant", "plant"))
    stream = StreamState(1, OPERATIONAL, 6)
    consumer = ConsumerState(1, "a", "idmz", OPERATIONAL, Lifecycle.ONLINE, 0, Confirmed())
    catalog.streams[OPERATIONAL], catalog.consumers["a"] = stream, consumer
    waiting = AckWaiters(activity.followers)
    appends = {offset: AppendMessages(OPERATIONAL, [], [], [], 0, 0, ack_terms(ALL)) for offset in range(3, 7)}
    for offset, append in appends.items():
        waiting.answer(append, [AppendOutcome(offset, "applied")], catalog, 0)

    def settled(released: int, confirmed: int) -> dict[int, str]:
        catalog.streams[OPERATIONAL] = stream._replace(released_offset=released)
        catalog.consumers["a"] = dataclasses.replace(consumer, confirmed=Confirmed(confirmed))
        waiting.settle(catalog, 1)
        return {offset: done(append.future)[0].outcome for offset, append in appends.items() if append.future.done()}

    assert settled(released=4, confirmed=5) == {3: "queued", 4: "queued", 5: "applied"}
    assert "released before it was confirmed" in done(appends[4].future)[0].warning
    assert settled(released=5, confirmed=6)[6] == "applied"
    assert not waiting._groups


def test_repeats_of_an_old_message_do_not_keep_what_was_answered_in_memory() -> None:
    """While no consumer confirms, repeats of an old message wait at a low offset; appends after it that were answered
    at their timeout are removed from memory all the same."""
    now_ns, timeout_ns = 0, 1_000_000_000
    slow = ack_terms(dataclasses.replace(ALL, acks_timeout_ms=1000))
    catalog = Catalog(StoreNames("plant", "plant"))
    catalog.streams[OPERATIONAL] = StreamState(1, OPERATIONAL, 100_000)
    catalog.consumers["a"] = ConsumerState(1, "a", "idmz", OPERATIONAL, Lifecycle.ONLINE, 0, Confirmed())
    waiting = AckWaiters(ConsumerActivity().followers)
    for offset in range(2, 5000):
        now_ns += timeout_ns // 10
        for asked in (offset, 1):
            append = AppendMessages(OPERATIONAL, [], [], [], 0, now_ns, slow)
            waiting.answer(
                append, [AppendOutcome(asked, "applied" if asked > 1 else "noop_already_applied")], catalog, now_ns
            )
        waiting.settle(catalog, now_ns)
    (line,) = waiting._groups.values()
    assert sum(not waiter.is_answered for waiter in line.by_time) <= 22
    assert len(line.by_offset) <= ack_waiters.ANSWERED_MAX + 2 * len(line.by_time)

"""Appends of a store's own facts: samples and messages, from the call to the bytes read back."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.append_contract import AppendOutcome
from agent.errors import StoreBusy
from agent.fact_store import FactStore
from agent.fact_store.append.append import content_digest
from agent.fact_store.core.errors import FactsRefused, StoreClosed
from agent.fact_store.core.records import Appended
from agent.fact_store.sqlite import Transaction, recovery
from agent.message import Json, Message, Sample, Value
from agent.settings.store import StoreSettings
from tests.fact_store.making import (
    AT_ONCE,
    EVERYTHING,
    LIMIT_S,
    NEVER,
    OPERATIONAL,
    TELEMETRY,
    Elsewhere,
    chain_is_whole,
    committed_at,
    done,
    failed,
    ids_in,
    message,
    past_the_triggers,
    plant,
    samples,
    sealed_in,
    tag,
    values_in,
)
from tests.support.received import chains_in
from tests.waiting import wait_until


def test_a_bad_append_fails_alone(tmp_path: Path) -> None:
    """Samples that cannot be sealed are refused by name; those that shared their group commit are stored."""
    with plant(tmp_path, committed_at(7)) as store:
        before = store.appends.append_samples(TELEMETRY, samples(2))
        undefined = store.appends.append_samples(TELEMETRY, [Sample(7, 1, 1, 0)])
        strange = store.appends.append_samples(TELEMETRY, [Sample(1, 1, 2**64, 0), Sample(1, 1, object(), 0)])  # type: ignore[arg-type]
        after = store.appends.append_samples(TELEMETRY, samples(2, 3))
        assert (done(before), done(after)) == (Appended(1, 2), Appended(3, 4))
        for future, why in ((undefined, "tags 7 to 7"), (strange, "object is not a type")):
            error = failed(future)
            assert isinstance(error, FactsRefused)
            assert why in str(error)
        assert values_in(store) == [1, 2, 3, 4]
        chain_is_whole(store)


@pytest.mark.parametrize("rows", [[], [(1, 2, 3)], [None], [1]])
def test_rows_that_are_no_samples(tmp_path: Path, rows: list[Sample]) -> None:
    """What is plainly wrong is refused at the call, before it is queued."""
    with plant(tmp_path) as store, pytest.raises(FactsRefused):
        store.appends.append_samples(TELEMETRY, rows)


def test_large_values_split_by_bytes(tmp_path: Path) -> None:
    """Facts whose bytes exceed a batch are spread over as many batches as it takes, none lost, chain whole."""
    large = [Sample(1, n, bytes([n]) * 60_000, 0) for n in range(100)]
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, large))
        assert len(sealed_in(store)) > 1
        assert values_in(store) == [sample.value for sample in large]
        assert done(store.appends.append_samples(TELEMETRY, samples(1))) == Appended(101, 101)
        chain_is_whole(store)
    with plant(tmp_path) as store:
        assert done(store.appends.append_samples(TELEMETRY, samples(1))) == Appended(102, 102)


@contextmanager
def commits_held(store: FactStore) -> Iterator[None]:
    """No commit ends while the block runs."""
    is_held, may_go = threading.Event(), threading.Event()
    store._writer.submit("hold", lambda _: (is_held.set(), may_go.wait(LIMIT_S)))
    assert is_held.wait(LIMIT_S)
    yield
    may_go.set()


def test_a_commit_that_does_not_end_is_seen(tmp_path: Path) -> None:
    """The statistics say for how long the commit under way has lasted, until it ends."""
    with plant(tmp_path) as store:
        with commits_held(store):
            seen_s = store.statistics().commit_s
            wait_until(lambda: store.statistics().commit_s > seen_s > 0, "a commit that lasts longer")
        wait_until(lambda: store.statistics().commit_s == 0, "the end of the commit")


@pytest.mark.parametrize("value", ["x" * 60_000, b"x" * 60_000, Json(b'"' + b"x" * 60_000 + b'"')])
def test_the_queue_counts_the_bytes_of_values(tmp_path: Path, value: Value) -> None:
    """Texts, bytes and structures that wait for their commit count in the limit of the queue, which bounds memory."""
    with plant(tmp_path, replace(NEVER, queue_bytes_max=1024 * 1024)) as store:
        waiting = [store.appends.append_samples(TELEMETRY, [Sample(1, n, value)]) for n in range(18)]
        assert store.statistics().queue_bytes >= 18 * 60_000
        with pytest.raises(StoreBusy):
            store.appends.append_samples(TELEMETRY, [Sample(1, 18, value)])
    assert [done(future).last_offset for future in waiting] == list(range(1, 19))


def test_the_queue_counts_the_bytes_of_definitions(tmp_path: Path) -> None:
    """Tag definitions that wait for their commit count in the limit of the queue, and no more once they are stored."""
    with plant(tmp_path) as store:
        with commits_held(store):
            definitions = [replace(tag(number), description="x" * 1000) for number in range(2, 102)]
            defining = store.appends.define(definitions)
            assert store.statistics().queue_bytes >= sum(len(definition.to_json()) for definition in definitions)
        assert done(defining) == list(range(2, 102))
        wait_until(lambda: store.statistics().queue_bytes == 0, "the room to be given back")


def test_a_full_queue_raises_store_busy(tmp_path: Path) -> None:
    """The queue is bounded in facts and in bytes: StoreBusy is raised at once, and the commit makes room. One append
    may go beyond, such as a poll of more tags than the queue takes facts, or a page of long texts."""
    settings = replace(AT_ONCE, queue_facts_max=2000, batch_facts_target=2000, queue_bytes_max=1024 * 1024)
    text = [Sample(1, n, "x" * 60_000, 0) for n in range(18)]
    with plant(tmp_path, settings) as store:
        for rows in (samples(2001), text):
            with commits_held(store):
                queued = store.appends.append_samples(TELEMETRY, rows)
                with pytest.raises(StoreBusy, match=f"{len(rows)} facts"):
                    store.appends.append_samples(TELEMETRY, samples(1))
            done(queued)
        assert done(store.appends.append_samples(TELEMETRY, samples(1))) == Appended(2020, 2020)
    assert store.statistics().queue_facts == 0
    assert store.statistics().queue_bytes == 0


def test_a_flood_of_samples_does_not_stop_confirmations(tmp_path: Path) -> None:
    """Appends and calls have room of their own: with the queue full of samples a consumer still registers and confirms,
    and a peer's page is still stored."""
    settings = StoreSettings(commit_interval_ms=60_000, queue_facts_max=2000, batch_facts_target=2000)
    with plant(tmp_path, settings) as store:
        done(store.appends.append_messages(TELEMETRY, [message(f"m{n}") for n in range(5)]))
        flood = [store.appends.append_samples(f"facts.flood{n}", samples(999)) for n in range(2)]  # not due: they stay
        flood.append(store.appends.append_samples("facts.flood2", samples(2)))
        with pytest.raises(StoreBusy):
            store.appends.append_samples(TELEMETRY, samples(1))
        done(store.consumers.register("x", "idmz", TELEMETRY))
        assert done(store.consumers.confirm("x", 5)) == 5
        origin = Elsewhere("north", stream="facts.north")
        assert origin.put(store, [origin.seal(5)]).stored_facts == 5
        assert store.statistics().queue_facts == 2000
    assert [done(future).last_offset for future in flood] == [999, 999, 2]


def test_invariant_3_the_same_message_again(tmp_path: Path) -> None:
    """The same message_id with the same content returns the first offset, and nothing is stored twice; also after a
    restart. In another stream it is another message."""
    with plant(tmp_path) as store:
        assert done(store.appends.append_message(OPERATIONAL, message("a"))) == AppendOutcome(1, "applied")
        assert done(store.appends.append_message(OPERATIONAL, message("b"))) == AppendOutcome(2, "applied")
        again = message("a", produced_at_unix_ms=1_800_000_000_000)
        assert done(store.appends.append_message(OPERATIONAL, again)) == AppendOutcome(1, "noop_already_applied")
        for offset, name in enumerate("za", 1):
            assert done(store.appends.append_message("orders.b", message(name, "2"))) == AppendOutcome(
                offset, "applied"
            )
    with plant(tmp_path) as store:
        assert done(store.appends.append_message(OPERATIONAL, message("a"))) == AppendOutcome(1, "noop_already_applied")
        assert ids_in(store) == ["a", "b"]


def test_invariant_4_the_same_id_with_other_content(tmp_path: Path) -> None:
    """The same message_id with other content is refused as conflicting_duplicate; the stored fact is unchanged."""
    with plant(tmp_path) as store:
        done(store.appends.append_message(OPERATIONAL, message("a", "1")))
        stored = sealed_in(store, OPERATIONAL)
        outcome = done(store.appends.append_message(OPERATIONAL, message("a", "2")))
        assert outcome == AppendOutcome(1, "conflicting_duplicate")
        assert sealed_in(store, OPERATIONAL) == stored


def test_invariant_5_concurrent_appends_of_one_id(tmp_path: Path) -> None:
    """Many producers of one message at once: exactly one insert, and each gets its offset."""
    outcomes: list[Future[AppendOutcome]] = []
    with plant(tmp_path) as store:
        start = threading.Barrier(8)

        def produce() -> None:
            start.wait()
            outcomes.extend(store.appends.append_message(OPERATIONAL, message(f"id-{n}")) for n in range(50))

        producers = [threading.Thread(target=produce) for _ in range(8)]
        for producer in producers:
            producer.start()
        for producer in producers:
            producer.join()
        found = [done(future) for future in outcomes]
        assert sum(answer.outcome == "applied" for answer in found) == 50
        assert sum(answer.outcome == "noop_already_applied" for answer in found) == 7 * 50
        assert sorted({answer.offset for answer in found}) == list(range(1, 51))
        assert sorted(ids_in(store)) == sorted(f"id-{n}" for n in range(50))


def test_a_bad_message_fails_alone(tmp_path: Path) -> None:
    """A message that cannot be sealed is refused by its id, with the whole append that holds it. Other appends of the
    same commit are stored, even one with the same id, each in its stream."""
    labels: dict[str, Any] = {"a": "b"}
    bad = message("bad")
    bad = Message(replace(bad.envelope, labels=labels), bad.fact)
    with plant(tmp_path) as store:
        is_held, may_go = threading.Event(), threading.Event()
        store._writer.submit("hold", lambda _: (is_held.set(), may_go.wait(LIMIT_S)))
        assert is_held.wait(LIMIT_S)
        waiting = [
            store.appends.append_message(OPERATIONAL, message("a")),
            store.appends.append_messages(OPERATIONAL, [message("beside"), bad]),
            store.appends.append_message(OPERATIONAL, message("beside")),
            store.appends.append_message("orders.b", message("a", "2")),
            store.appends.append_message(OPERATIONAL, message("b")),
        ]
        labels["a"] = object()  # after it was checked
        may_go.set()
        error = failed(waiting.pop(1))
        assert isinstance(error, FactsRefused)
        assert "'bad' for facts.operational cannot be sealed" in str(error)
        assert [done(future) for future in waiting] == [AppendOutcome(n, "applied") for n in (1, 2, 1, 3)]
        assert (ids_in(store), ids_in(store, "orders.b")) == (["a", "beside", "b"], ["a"])
        chain_is_whole(store)


def test_definitions_are_numbered_once(tmp_path: Path) -> None:
    """The same content keeps its number, a change is a new one, going back finds the old one; also after a restart."""
    with FactStore.open(tmp_path / "facts.db", "plant", settings=AT_ONCE) as store:
        assert done(store.appends.define([tag(1), tag(2), tag(1)])) == [1, 2, 1]
        assert done(store.appends.define([tag(2), tag(3), tag(1, unit="bar")])) == [2, 3, 4]
        assert done(store.appends.define([])) == []
    with FactStore.open(tmp_path / "facts.db", "plant", settings=AT_ONCE) as store:
        assert done(store.appends.define([tag(1), tag(1, unit="bar"), tag(9)])) == [1, 4, 5]
        (chain,) = chains_in(store)
        assert chain.bodies == [known.to_json() for known in (tag(1), tag(2), tag(3), tag(1, unit="bar"), tag(9))]


def test_an_opening_that_finds_too_many_definitions_begins_a_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tags that were renamed for years: every new reader would get all of them. The next life defines those in force
    again, without what was before; what is the same as at the beginning of a former chain is not stored again."""
    with FactStore.open(tmp_path / "facts.db", "plant", settings=AT_ONCE) as store:
        assert done(store.appends.define([tag(1), tag(2), tag(3)])) == [1, 2, 3]
    monkeypatch.setattr(recovery, "OWN_DEFINITIONS_MAX", 2)
    with FactStore.open(tmp_path / "facts.db", "plant", settings=AT_ONCE) as store:
        assert done(store.appends.define([tag(1), tag(3)])) == [1, 2]
        done(store.appends.append_samples(TELEMETRY, samples(2)))
        assert store.reader.own_definitions().count == 2
        assert store.reader.definition_counts() == {"plant": 4}
        (batch,) = store.read(TELEMETRY, 0, EVERYTHING, EVERYTHING).batches
        assert batch.definitions == store.reader.own_definitions()


@pytest.mark.parametrize("hurt", ["body = x'7b7d' WHERE number = 1", "zone = 'elsewhere' WHERE number = 2"])
def test_own_definitions_that_are_damaged_are_begun_again(tmp_path: Path, hurt: str) -> None:
    """A source can always define its tags: recording goes on, and readers can read it. The same where the newest is not
    found by its digest: the pages of rows and index may be of two states, once a write-ahead log was lost."""
    path = tmp_path / "facts.db"
    with FactStore.open(path, "plant", settings=AT_ONCE) as store:
        done(store.appends.define([tag(1), tag(2)]))
    with past_the_triggers(path) as connection:
        connection.execute(f"UPDATE definition SET {hurt}")
    with FactStore.open(path, "plant", settings=AT_ONCE) as store:
        assert done(store.appends.define([tag(2), tag(1)])) == [1, 2]
        done(store.appends.append_samples(TELEMETRY, samples(2)))
        own = store.reader.own_definitions()
        chain = store.reader.definitions("plant", own.digest)
        assert chain is not None
        assert chain.bodies == [tag(2).to_json(), tag(1).to_json()]
        assert done(store.appends.define([tag(1)])) == [2]


def test_numbers_in_use_never_stand_for_other_tags(tmp_path: Path) -> None:
    """Definitions that are damaged while a source uses their numbers are not begun again: its samples would be those of
    other tags. They are after a restart."""
    path = tmp_path / "facts.db"
    with FactStore.open(path, "plant", settings=AT_ONCE) as store:
        assert done(store.appends.define([tag(1), tag(2)])) == [1, 2]

        def hurt(change: Transaction) -> None:
            change._execute("DROP TRIGGER definition_update_refused")
            change._execute("UPDATE definition SET body = x'7b7d' WHERE number = 1")

        done(store._writer.submit("bit rot", hurt))
        assert "restart the node" in str(failed(store.appends.define([tag(8), tag(9)])))
        done(store.appends.append_samples(TELEMETRY, samples(2)))
    with FactStore.open(path, "plant", settings=AT_ONCE) as store:
        assert done(store.appends.define([tag(8), tag(9)])) == [1, 2]


def test_a_tag_defined_in_the_same_commit(tmp_path: Path) -> None:
    """Definitions queued before samples are there when those are sealed."""
    with plant(tmp_path, committed_at(1)) as store:
        numbers = store.appends.define([tag(2)])
        appended = store.appends.append_samples(TELEMETRY, [Sample(2, 1, 1.5, 0)])
        assert done(numbers) == [2]
        assert done(appended) == Appended(1, 1)


def test_commits_are_announced(tmp_path: Path) -> None:
    """Subscribers get the new ends after each commit that moved one, until they unsubscribe, each for itself."""
    seen, others = list[dict[str, int]](), list[dict[str, int]]()
    with plant(tmp_path) as store:
        unsubscribe, _ = store.on_commit(lambda ends: seen.append(dict(ends))), store.on_commit(others.append)  # type: ignore[arg-type]
        done(store.appends.append_samples(TELEMETRY, samples(3)))
        done(store.appends.append_message(OPERATIONAL, message("a")))
        done(store.consumers.register("x", "idmz", TELEMETRY))
        unsubscribe()
        done(store.appends.append_samples(TELEMETRY, samples(3)))
    assert seen == [{TELEMETRY: 3}, {OPERATIONAL: 1}]
    assert others == [*seen, {TELEMETRY: 6}]


def test_a_closed_store_refuses_every_call(tmp_path: Path) -> None:
    """After close every call raises StoreClosed, and closing again does nothing."""
    with plant(tmp_path) as store:
        pass
    store.close()
    for call in (
        lambda: store.appends.append_samples(TELEMETRY, samples(1)),
        lambda: store.appends.append_message(OPERATIONAL, message("a")),
        lambda: store.consumers.confirm("x", 1),
        lambda: store.read(TELEMETRY, 0, 1, 1),
    ):
        with pytest.raises(StoreClosed, match="is closed"):
            call()
    assert store.ended.result(0) is None
    assert store.statistics().state == "closed"


def test_cancelling_an_append_does_not_take_it_back(tmp_path: Path) -> None:
    """A caller that cancels its future has still handed the facts over."""
    with plant(tmp_path, committed_at(2)) as store:
        abandoned = store.appends.append_samples(TELEMETRY, samples(1))
        assert not abandoned.cancel()
        done(store.appends.append_samples(TELEMETRY, samples(1, 2)))
        assert values_in(store) == [1, 2]


@pytest.mark.parametrize(
    "part, changes",
    [
        ("fact", {"subject": "batch:other"}),
        ("fact", {"predicate": "other"}),
        ("fact", {"object_json": b'"other"'}),
        ("envelope", {"object_schema": "other"}),
        ("envelope", {"object_media_type": "other"}),
    ],
)
def test_when_two_messages_are_equal(part: str, changes: dict[str, object]) -> None:
    """Two messages are equal when fact, media type and schema are equal. The time and the texts that a producer writes
    again for a retry do not count."""
    known = message("a")
    again = replace(known, envelope=replace(known.envelope, produced_at_unix_ms=1, correlation_id="again"))
    assert content_digest(again) == content_digest(known)
    other = replace(known, **{part: replace(getattr(known, part), **changes)})
    assert content_digest(other) != content_digest(known)

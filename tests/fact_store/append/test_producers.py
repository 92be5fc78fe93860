"""Producers of one event loop: each gets its own outcome, whatever the others appended in the same turn."""

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.append_contract import AppendOutcome, Precondition
from agent.fact_store import FactStore, producers
from agent.fact_store.log.errors import AcksRefused, FactsRefused, StoreBusy, StoreClosed, StoreFull
from agent.fact_store.producers import Producers
from agent.message import Message, MessageError
from agent.settings.store import StoreSettings
from tests.fact_store.making import AT_ONCE, LIMIT_S, OPERATIONAL, chain_is_whole, ids_in, message, plant


def together(store: FactStore, *appends: dict[str, Any], stream: str = OPERATIONAL) -> list[Any]:
    """Outcomes or errors of appends asked for in one turn of a loop."""

    async def scenario() -> list[Any]:
        door = Producers(store.appends)
        asked = [door.append_message(stream, **given) for given in appends]
        async with asyncio.timeout(LIMIT_S):
            return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(scenario())


def held(store: FactStore) -> threading.Event:
    """Keep the writer inside a commit until the event is set."""
    is_held, may_go = threading.Event(), threading.Event()
    store._writer.submit("hold", lambda _: (is_held.set(), may_go.wait(LIMIT_S)))
    assert is_held.wait(LIMIT_S)
    return may_go


def test_each_gets_its_own_outcome(tmp_path: Path) -> None:
    """Fresh, repeated, conflicting, fenced and malformed messages of one turn: one append for all, an answer for
    each."""
    with plant(tmp_path) as store:
        before = store.statistics().appends
        found = together(
            store,
            {"message": message("a")},
            {"message": message("a")},
            {"message": message("a", "2")},
            {"message": message("b"), "precondition": Precondition("mes", 2)},
            {"message": message("c"), "precondition": Precondition("mes", 1)},
            {"message": message("d", '{"b":1,"a":2}')},
            {"message": message("e"), "precondition": Precondition(base_offset=1)},
            {"message": message("f"), "precondition": Precondition("mes", 2), "acks": "none"},
            {"message": message("g")},
        )
        assert found[:5] == [
            AppendOutcome(1, "applied"),
            AppendOutcome(1, "noop_already_applied"),
            AppendOutcome(1, "conflicting_duplicate"),
            AppendOutcome(2, "applied"),
            AppendOutcome(0, "rejected_fenced", lease_epoch=2),
        ]
        assert [type(one) for one in found[5:8]] == [MessageError, MessageError, AcksRefused]
        assert found[8] == AppendOutcome(3, "applied")
        assert store.statistics().appends == before + 1
        assert ids_in(store) == ["a", "b", "g"]
        chain_is_whole(store)


def test_a_thousand_producers_share_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked for in one turn is handed over in as few appends as the limit allows, in the order of asking."""
    monkeypatch.setattr(producers, "TOGETHER_MAX", 300)
    with plant(tmp_path) as store:
        before = store.statistics()
        found = together(store, *({"message": message(f"id-{n}")} for n in range(1000)))
        assert found == [AppendOutcome(n, "applied") for n in range(1, 1001)]
        after = store.statistics()
        assert after.appends - before.appends == 4
        assert after.commits - before.commits <= 4


def test_a_message_that_cannot_be_sealed_is_refused_alone(tmp_path: Path) -> None:
    """A message that changed after it was checked is refused to its producer; the others of its turn are stored."""
    labels: dict[str, Any] = {"a": "b"}
    bad = Message(replace(message("bad").envelope, labels=labels), message("bad").fact)
    with plant(tmp_path) as store:
        may_go = held(store)
        append_checked = store.appends.append_checked

        def change_after(*given: Any) -> Any:
            labels["a"] = object()
            appended = append_checked(*given)
            may_go.set()
            return appended

        store.appends.append_checked = change_after  # type: ignore[method-assign]
        found = together(store, {"message": message("a")}, {"message": bad}, {"message": message("b")})
        assert found[0] == AppendOutcome(1, "applied")
        assert isinstance(found[1], FactsRefused)
        assert found[2] == AppendOutcome(2, "applied")
        assert ids_in(store) == ["a", "b"]


def test_every_producer_gets_the_stores_refusal(tmp_path: Path) -> None:
    """A full queue and a closed store are raised in each producer, as an exception of its own."""
    settings = StoreSettings(commit_interval_ms=0, queue_facts_max=2000, queue_bytes_max=1024 * 1024)
    with FactStore.open(tmp_path / "facts.db", "plant", settings=settings) as store:
        may_go = held(store)
        large = '"' + "x" * 200_000 + '"'
        waiting = [store.appends.append_message(OPERATIONAL, message(f"id-{n}", large)) for n in range(4)]
        found = together(store, *({"message": message(f"more-{n}", large)} for n in range(2)))
        assert [type(one) for one in found] == [StoreBusy, StoreBusy]
        assert found[0] is not found[1]
        may_go.set()
        assert [one.result(LIMIT_S).outcome for one in waiting] == ["applied"] * 4
    found = together(store, *({"message": message(f"late-{n}")} for n in range(2)))
    assert [type(one) for one in found] == [StoreClosed, StoreClosed]


def test_an_error_reaches_the_others_where_one_was_cancelled(tmp_path: Path) -> None:
    """A producer is cancelled before the store's error comes; the others of its turn get it all the same. Otherwise
    they would wait for ever."""

    async def scenario(store: FactStore) -> list[Any]:
        door, appended = Producers(store.appends), Future[list[AppendOutcome]]()
        store.appends.append_checked = lambda *_: appended  # type: ignore[method-assign]
        names = ("given up", "one", "two")
        tasks = [asyncio.create_task(door.append_message(OPERATIONAL, message(name)), name=name) for name in names]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks[0].cancel()
        appended.set_exception(StoreFull("the disk is full"))
        async with asyncio.timeout(LIMIT_S):
            return await asyncio.gather(*tasks, return_exceptions=True)

    with plant(tmp_path) as store:
        found = asyncio.run(scenario(store))
        assert [type(one) for one in found] == [asyncio.CancelledError, StoreFull, StoreFull]


def test_cancelling_a_producer_does_not_take_its_message_back(tmp_path: Path) -> None:
    """A producer that is cancelled, or whose loop ends, has handed its message over; others are not affected."""

    async def scenario(store: FactStore) -> AppendOutcome:
        door, may_go = Producers(store.appends), held(store)
        given_up = asyncio.create_task(door.append_message(OPERATIONAL, message("a")), name="given up")
        other = asyncio.create_task(door.append_message(OPERATIONAL, message("b")), name="other")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        given_up.cancel()
        may_go.set()
        return await other

    async def leave(store: FactStore) -> threading.Event:
        may_go = held(store)
        task = asyncio.create_task(Producers(store.appends).append_message(OPERATIONAL, message("c")), name="left")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        return may_go

    with plant(tmp_path, AT_ONCE) as store:
        assert asyncio.run(scenario(store)) == AppendOutcome(2, "applied")
        asyncio.run(leave(store)).set()
        assert store.appends.append_message(OPERATIONAL, message("d")).result(LIMIT_S) == AppendOutcome(4, "applied")
        assert ids_in(store) == ["a", "b", "c", "d"]

"""Events and alarms of a foreign server as messages: raised, changed, missed while away, and lost at the server."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent.message import Message
from tests.foreign.account import time_ns
from tests.foreign.plant import facts, opcua, running_node, storing
from tests.foreign.server import ForeignServer
from tests.ingest.plant import Running, ingesting
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("node_opcua")]

ALARM = "condition:plc/3:alarm_input/PressureAlarm"


def said(message: Message) -> dict[str, Any]:
    """The object of a message."""
    return dict(json.loads(message.fact.object_json))


def events(run: Running, predicate: str, subject: str = "") -> list[dict[str, Any]]:
    """The objects of the messages of the stream with this predicate, in order."""
    found = [m for m in run.store.events.values() if m.fact.predicate == predicate]
    return [said(m) for m in found if subject in ("", m.fact.subject)]


async def wait_refreshed(run: Running, times: int = 1) -> None:
    """Until so many facts about refreshes are there: whatever happens now is seen live."""
    await wait_until_async(lambda: len(events(run, "conditions_refreshed")) >= times, f"refresh {times}")


def states(found: list[dict[str, Any]]) -> list[tuple[bool, bool]]:
    """Active and acknowledged, one after the other."""
    return [(state["active"], state["acked"]) for state in found]


async def test_an_event_becomes_a_message(server: ForeignServer, tmp_path: Path) -> None:
    """Each event that the server raises is one message with its fields; values flow beside it."""
    async with ingesting(opcua(server, tmp_path, "count", events=("Server",))) as run:
        await wait_refreshed(run)
        await server.raise_event("door open", severity=300)
        await wait_until_async(lambda: events(run, "event_raised"), "the event")
        (found,) = events(run, "event_raised", "event:plc/Server")
        assert (found["message"], found["severity"]) == ("door open", 300)
        assert (found["event_type_name"], found["source_node"]) == ("BaseEventType", "i=2253")
        assert found["event_id"]
        assert found["time"] == found["receive_time"]
        told = run.source("plc").events
        assert told is not None
        assert (told.events_total, told.lost_total, told.conditions_retained) == (1, 0, 0)
        assert told.last_event_unix_ms == time_ns(found["time"]) // 1_000_000
        await run.wait_more("f/count", 0)


async def test_the_life_of_an_alarm(server: ForeignServer, tmp_path: Path) -> None:
    """Active, acknowledged at the server with a comment, inactive: one message for each state, in order, with names."""
    async with ingesting(opcua(server, tmp_path, "count", events=("Server",))) as run:
        await wait_refreshed(run)
        await server.set_alarm(active=True)
        await server.acknowledge("seen by Ann")
        await server.set_alarm(active=False)
        await wait_until_async(lambda: len(events(run, "condition_changed")) >= 3, "three states")
    found = events(run, "condition_changed", ALARM)
    assert states(found) == [(True, False), (True, True), (False, True)]
    assert [event["active_state"] for event in found] == ["Active", "Active", "Inactive"]
    assert (found[0]["condition_name"], found[0]["event_type_name"]) == ("PressureAlarm", "ExclusiveLimitAlarmType")
    assert found[0]["condition_id"].startswith("nsu=urn:bsfg:foreign;")
    assert found[1]["comment"] == "seen by Ann"
    assert {event["quality"] for event in found} == {"Good"}
    assert found[0]["retain"]


async def test_states_that_were_missed_come_by_a_refresh(server: ForeignServer, tmp_path: Path) -> None:
    """A state that is known is not stored again after a reconnect; one that was reached while the server had no
    subscription is stored once, marked, under the server's time; events are declared lost from the last sign of life
    on."""
    async with ingesting(opcua(server, tmp_path, "count", events=("Server",))) as run:
        await wait_refreshed(run)
        await server.set_alarm(active=True)
        await wait_until_async(lambda: events(run, "condition_changed"), "the alarm")
        await server.kill_sessions()
        await wait_refreshed(run, 2)  # the alarm is among the retained conditions now
        told = run.source("plc").events
        assert told is not None
        assert told.conditions_retained == 1
        assert states(events(run, "condition_changed")) == [(True, False)]
        await server.listen(on=False)
        await server.kill_sessions()
        await wait_until_async(lambda: not run.source("plc").connected, "the source away")
        await server.acknowledge("while you were away")
        await server.listen(on=True)
        await wait_until_async(lambda: len(events(run, "condition_changed")) >= 2, "the missed state")
        await server.cut()
        lives = run.source("plc").connects_total
        await wait_until_async(lambda: run.source("plc").connects_total > lives, "another life")
        await server.set_alarm(active=False)
        await wait_until_async(lambda: len(events(run, "condition_changed")) >= 3, "inactive")
    assert states(events(run, "condition_changed")) == [(True, False), (True, True), (False, True)]
    changed = [m for m in run.store.events.values() if m.fact.predicate == "condition_changed"]
    assert [dict(m.envelope.labels) for m in changed[:2]] == [{}, {"refreshed": "true"}]
    (*_, missed) = [said(m) for m in run.store.messages.values() if m.fact.predicate == "events_lost"]
    assert missed["reason"] == "source_lost"


async def test_events_of_a_broken_connection_arrive(server: ForeignServer, tmp_path: Path) -> None:
    """Events and changes of conditions that happen while the network is away come by the same subscription, each once
    and in order, under the server's times; nothing is declared lost. A process that begins anew declares the time for
    which none ran."""
    source = opcua(server, tmp_path, "count", events=("Server",))
    async with storing(source, tmp_path) as run:
        await wait_refreshed(run)
        await server.raise_event("before")
        await wait_until_async(lambda: events(run, "event_raised"), "an event")
        await server.listen(on=False)
        await server.cut()
        await wait_until_async(lambda: not run.source("plc").connected, "the source away")
        await server.raise_event("away", count=30)
        await server.set_alarm(active=True)
        await server.set_alarm(active=False)
        await server.listen(on=True)
        await wait_until_async(lambda: len(events(run, "event_raised")) >= 31, "what was missed")
        await server.raise_event("after")
        await wait_until_async(lambda: events(run, "event_raised")[-1]["message"] == "after", "the last event")
        assert len((await server.status())["subscriptions"]) == 2
    texts = [fact["object"]["message"] for fact in facts(tmp_path, "events") if fact["predicate"] == "event_raised"]
    assert texts == ["before", *(f"away {n}" for n in range(30)), "after"]
    changes = [fact["object"] for fact in facts(tmp_path, "events") if fact["predicate"] == "condition_changed"]
    assert [change["active"] for change in changes if "branch_id" not in change] == [True, False]
    assert not lost_events(tmp_path)
    async with storing(source, tmp_path) as run:
        await wait_refreshed(run)
        await wait_until_async(lambda: lost_events(tmp_path), "the loss", 30)
    assert [gap["reason"] for gap in lost_events(tmp_path)] == ["agent_stopped"]


def lost_events(folder: Path) -> list[dict[str, Any]]:
    """What is declared lost of events."""
    return [fact["object"] for fact in facts(folder, "facts.operational") if fact["predicate"] == "events_lost"]


async def test_a_node_records_events_as_its_users_ask_for_them(server: ForeignServer, tmp_path: Path) -> None:
    """From node.toml to SQL, with a stream that is not declared."""
    statement = "select subject, object_json ->> 'message' as message from facts where stream = 'events'"
    async with running_node(server, tmp_path, "count", events=["Server"], events_severity_min=10) as node:

        async def asked() -> str:
            _, answer = await node.bsfg("sql", "--json", statement)
            return answer

        async def refreshed() -> bool:
            return "source:plc" in await asked()

        await wait_until_async(refreshed, "the fact about the refresh")
        await server.raise_event("door open")

        async def recorded() -> bool:
            return '"message":"door open"' in (await asked()).replace(": ", ":")

        await wait_until_async(recorded, "the event")

import json

import pytest

from agent.ingest.opcua.events.event_fields import OpcuaEvent, Text
from agent.ingest.opcua.events.event_message import absent_message, condition_names, event_message, refresh_message
from agent.message import Message, check_message
from tests.ingest.opcua.events.events import S, condition, event

NAMES = {"i=2041": "BaseEventType", "i=2915": "AlarmConditionType"}


def made(reported: OpcuaEvent, *, is_refreshed: bool = False) -> Message:
    """The message of an event, which the store would take."""
    message = event_message(reported, "plc", "plant-a", NAMES, 9 * S, is_refreshed=is_refreshed)
    check_message(message)
    return message


def content(message: Message) -> dict[str, object]:
    """The object of a message."""
    found = json.loads(message.fact.object_json)
    assert isinstance(found, dict)
    return found


def test_a_condition_as_a_message() -> None:
    """Its states as truth and as text, its quality as a name, a comment with its locale."""
    high = condition("High", active=True, active_state="Active", quality=0x8000_0000)
    high = OpcuaEvent(1, {**high.fields, "comment": Text("gesehen", "de")}, high.time_ns)
    found = made(high)
    assert (found.fact.subject, found.fact.predicate) == ("condition:plc/Tank/High", "condition_changed")
    said = content(found)
    assert (said["active"], said["active_state"], said["quality"]) == (True, "Active", "Bad")
    assert (said["comment"], said["comment_locale"]) == ("gesehen", "de")


def test_the_same_event_is_the_same_message() -> None:
    """Also by another item, with another time of receipt, by a refresh, or before the name of its type is known. Any
    other difference makes another message, even under one EventId."""
    high = condition("High", active=True)
    again = OpcuaEvent(2, high.fields, high.time_ns, receive_time_ns=7 * S)
    same = {made(high).envelope.message_id, made(again, is_refreshed=True).envelope.message_id}
    same.add(event_message(high, "plc", "plant-a", {}, 9 * S).envelope.message_id)
    assert len(same) == 1
    others = [
        OpcuaEvent(1, {**high.fields, "active": False}, high.time_ns),
        OpcuaEvent(1, {**high.fields, "event_id": b"other"}, high.time_ns),
        OpcuaEvent(1, high.fields, high.time_ns + 100),
    ]
    assert len({made(other).envelope.message_id for other in others} - same) == 3


@pytest.mark.parametrize(
    "name, escaped",
    [("a/b c", "a%2Fb%20c"), ("100%", "100%25"), ("Öl", "%C3%96l"), ("", "server"), ("x" * 400, "x" * 200)],
)
def test_any_name_makes_a_subject(name: str, escaped: str) -> None:
    """Subjects have few characters and a length; names of servers have neither."""
    assert made(event(source_name=name)).fact.subject == f"event:plc/{escaped}"


def test_an_event_longer_than_a_fact_is_shortened_and_says_so() -> None:
    """Otherwise the store refuses it for ever."""
    said = content(made(event(message="ä\0" * 200_000, source_name="Tank")))
    assert said["message"] == "ä\0" * 500
    assert said["shortened"] == ["message"]


def test_what_a_refresh_says_besides() -> None:
    """An absent condition is not retained any more, and nothing else is claimed; the fact about the refresh names what
    is retained."""
    high = condition("High", active=True, acked=False, event_id=b"1")
    absent = absent_message(high, "plc", "plant-a", NAMES, 9 * S)
    check_message(absent)
    said = content(absent)
    assert said["retain"] is False
    assert (said["reason"], said["time"]) == ("absent_at_refresh", "1970-01-01T00:00:09Z")
    assert not {"active", "acked", "event_id"} & said.keys()
    assert absent.fact.subject == made(high).fact.subject
    nameless = OpcuaEvent(1, {"retain": True, "source_name": Text("Tank"), "condition_name": Text("Low")})
    names = condition_names([high, high, nameless])
    refreshed = refresh_message(names, "plc", "plant-a", 9 * S)
    check_message(refreshed)
    assert refreshed.fact.subject == "source:plc"
    assert content(refreshed) == {"conditions": ["Tank/Low", "i=High"], "count": 2, "time": "1970-01-01T00:00:09Z"}


@pytest.mark.parametrize("length, named", [(10, 1_000), (4_096, 31)])
def test_the_list_of_retained_conditions_is_limited(length: int, named: int) -> None:
    """In number and in bytes; the count is of all."""
    names = [f"i={n:0{length}}" for n in range(1_500)]
    refreshed = refresh_message(names, "plc", "plant-a", 9 * S)
    check_message(refreshed)
    said = content(refreshed)
    assert said["conditions"] == names[:named]
    assert said["count"] == 1_500

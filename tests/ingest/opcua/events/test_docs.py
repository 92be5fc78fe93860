"""What the pages on events show, works."""

import json
import re
import shlex
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

from agent.config import read
from agent.fact_store import FactStore, StoreReader
from agent.ingest.gap import NOT_DELIVERED, SERVER_QUEUE_OVERFLOW, SOURCE_LOST, STORE_REJECTED, Gap, gap_message
from agent.ingest.opcua.events import EVENTS_LOST, collector, event_message
from agent.ingest.opcua.events.event_fields import ALL_FIELDS, OpcuaEvent, Text
from agent.query.sql import SqlSession
from agent.settings.node import NodeSettings
from tests.ingest.opcua.events.events import S, condition, event

DOCS = Path(__file__).parents[4] / "docs"
OPERATE = (DOCS / "operate" / "opcua-events.md").read_text("utf-8")
REFERENCE = (DOCS / "reference" / "opcua-events.md").read_text("utf-8")


def settings(text: str, folder: Path) -> NodeSettings:
    """A node.toml with this section."""
    return read(tomllib.loads('[node]\nzone = "plant-a"\n' + text), folder / "node.toml")


def test_the_section_is_good(tmp_path: Path) -> None:
    """A reader who copies it gets a source with these events."""
    (text,) = re.findall(r"```toml\n(.*?)```", OPERATE, re.DOTALL)
    (source,) = settings(text, tmp_path).opcua
    assert [node.identifier for node in source.event_notifiers] == ["Area1", "Area2"]
    assert source.events_severity_min == 200


def test_the_example_is_the_message() -> None:
    """Field by field."""
    fields: dict[str, Any] = {
        "event_id": bytes.fromhex("91b8352a"),
        "event_type": "i=9341",
        "source_node": "nsu=urn:vendor:plant;s=Tank1",
        "source_name": Text("Tank 1"),
        "message": Text("Pressure 9.7 bar"),
        "severity": 700,
        "condition_id": "nsu=urn:vendor:plant;i=1000",
        "condition_name": Text("High"),
        "retain": True,
        "quality": 0,
        "enabled": True,
        "active": True,
        "acked": False,
        "enabled_state": Text("Enabled"),
        "active_state": Text("Active"),
        "acked_state": Text("Unacknowledged"),
    }
    time_ns = 1_767_323_045_678_000_000
    alarm = OpcuaEvent(1, fields, time_ns, time_ns + 100)
    message = event_message.event_message(alarm, "plc", "plant-a", {"i=9341": "ExclusiveLimitAlarmType"}, 0)
    (shown,) = re.findall(r"^    (\{.*\})$", REFERENCE, re.MULTILINE)
    assert json.loads(shown) == json.loads(message.fact.object_json)
    assert shown.encode() == message.fact.object_json


def test_every_name_is_on_the_page() -> None:
    """Fields, predicates, reasons of losses; what the log says."""
    names = [field.name for field in ALL_FIELDS]
    names += [value for name, value in vars(event_message).items() if name.isupper() and isinstance(value, str)]
    for name in (*names, EVENTS_LOST, SOURCE_LOST, SERVER_QUEUE_OVERFLOW, NOT_DELIVERED, STORE_REJECTED):
        assert f"`{name}`" in REFERENCE, name
    for action in collector.LINES:
        assert f"`{action}`" in OPERATE, action


def test_the_questions_are_answered(tmp_path: Path) -> None:
    """Each statement of the page, on a store with an event, an alarm that stands, one that is over, and a loss."""
    events = [
        event(severity=300, source_name="Line 1", message="door open"),
        condition("High", 2, active_state="Active", acked_state="Unacknowledged"),
        condition("Low", 2, active_state="Active", acked_state="Unacknowledged"),
        condition("Low", 3, active_state="Inactive", acked_state="Acknowledged", retain=False),
    ]
    file = tmp_path / "facts.db"
    with FactStore.open(file, "plant-a") as store:
        for change in events:
            message = event_message.event_message(change, "plc", "plant-a", {}, S)
            store.appends.append_message("events", message).result()
        gap = Gap("plc", SERVER_QUEUE_OVERFLOW, S, 2 * S, 0, count_exact=False)
        store.appends.append_message("facts.operational", gap_message(gap, "plant-a", 1, EVENTS_LOST)).result()
    (shown,) = re.findall(r"<!-- test: events -->\n(.*?)<!-- end -->", OPERATE, re.DOTALL)
    statements = [shlex.split(line)[2] for line in shown.strip().splitlines()]
    with closing(StoreReader(file)) as reader, closing(SqlSession(reader, S)) as session:
        latest, standing, lost = [list(session.ask(statement).rows) for statement in statements]
    assert len(latest) == 4
    assert [row[:3] for row in standing] == [("condition:plc/Tank/High", "Active", "Unacknowledged")]
    assert lost == [("server_queue_overflow", "1970-01-01T00:00:01Z", "1970-01-01T00:00:02Z")]

"""Events as messages: subject, predicate, object, and an id by which a repeated event is stored once.

The id is a digest of the source and of all fields of the event, EventId included, except the time at which the server
received it. So an event that arrives twice, by two monitored items or by a refresh, is one message, and two different
events with the same EventId are two messages. That a state arrived by a refresh is a label of the envelope and not part
of the fact, because it is the same state.

Core: takes events, returns messages. The object is described in docs/reference/opcua-events.md.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from agent.ingest.opcua.events.event_fields import OpcuaEvent, Text
from agent.message import OBJECT_BYTES_MAX, UNIX_MS_MAX, Envelope, Fact, Message, canonical_json, time_text
from agent.status_codes import status_name

EVENT_RAISED, CONDITION_CHANGED, CONDITIONS_REFRESHED = "event_raised", "condition_changed", "conditions_refreshed"
REFRESHED = {"refreshed": "true"}  # the label of a state that arrived by a refresh
ABSENT_AT_REFRESH = "absent_at_refresh"

NAME_BYTES_MAX = 200  # of a name in a subject, which has two names and the source
LONG_TEXT_CHARACTERS_MAX = 1_000  # kept of each text of an event that is too long for a fact
CONDITIONS_NAMED_MAX = 1_000  # in a fact about a refresh, which is recorded at each reconnect
CONDITIONS_BYTES_MAX = OBJECT_BYTES_MAX // 2  # of all names; a node id can have 4,096 characters

_NOT_IN_THE_ID = ("receive_time", "event_type_name")  # they may differ when the same event arrives again
_NOT_IN_SUBJECTS = re.compile(rb"[^\x21-\x24\x26-\x2e\x30-\x7e]")  # "%" and "/" among them


def event_message(
    event: OpcuaEvent, source: str, zone: str, type_names: Mapping[str, str], now_ns: int, *, is_refreshed: bool = False
) -> Message:
    """The message of an event. `type_names` has the known names of event types. `now_ns` dates an event without a
    time."""
    content = _content(event, type_names)
    if len(canonical_json(content)) > OBJECT_BYTES_MAX:
        content = _shortened(content)
    predicate = CONDITION_CHANGED if event.is_condition else EVENT_RAISED
    time_ns = event.time_ns or now_ns
    return _message(_subject(event, source), predicate, content, source, zone, time_ns, is_refreshed=is_refreshed)


def absent_message(event: OpcuaEvent, source: str, zone: str, type_names: Mapping[str, str], now_ns: int) -> Message:
    """The message that a condition with this last known state is not retained any more, because a refresh at `now_ns`
    did not contain it."""
    kept = ("condition_id", "condition_name", "branch_id", "event_type", "source_node", "source_name")
    known = {name: value for name, value in event.fields.items() if name in kept}
    content = _content(OpcuaEvent(event.handle, {**known, "retain": False}, now_ns), type_names)
    content["reason"] = ABSENT_AT_REFRESH
    return _message(_subject(event, source), CONDITION_CHANGED, content, source, zone, now_ns, is_refreshed=True)


def condition_names(events: Iterable[OpcuaEvent]) -> list[str]:
    """The names of the conditions of these states, each once, sorted."""
    return sorted({_condition(event) for event in events})


def refresh_message(retained: Sequence[str], source: str, zone: str, now_ns: int) -> Message:
    """The message that a refresh was complete at `now_ns`, with the retained conditions."""
    ends = accumulate(len(canonical_json(name)) + 1 for name in retained)
    named = [name for name, end in zip(retained, ends, strict=True) if end <= CONDITIONS_BYTES_MAX]
    content = {
        "conditions": named[:CONDITIONS_NAMED_MAX],
        "count": len(retained),
        "time": time_text(now_ns),
    }
    return _message(f"source:{source}", CONDITIONS_REFRESHED, content, source, zone, now_ns)


def _condition(event: OpcuaEvent) -> str:
    """The name of a condition: its node id, or source and name if the server gives none."""
    fields = event.fields
    if "condition_id" in fields:
        return str(fields["condition_id"])
    return "/".join(_plain(fields.get(name)) for name in ("source_name", "condition_name"))


def _content(event: OpcuaEvent, type_names: Mapping[str, str]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, value in event.fields.items():
        if isinstance(value, Text):
            content[name] = value.text
            if value.locale and name in ("message", "comment"):
                content[f"{name}_locale"] = value.locale
        elif isinstance(value, bytes):
            content[name] = value.hex()
        else:
            content[name] = status_name(value) if name == "quality" else value
    if event.time_ns:
        content["time"] = time_text(event.time_ns)
    if event.receive_time_ns:
        content["receive_time"] = time_text(event.receive_time_ns)
    type_name = type_names.get(content.get("event_type", ""), "")
    if type_name:
        content["event_type_name"] = type_name
    return content


def _shortened(content: dict[str, Any]) -> dict[str, Any]:
    cut = sorted(n for n, value in content.items() if isinstance(value, str) and len(value) > LONG_TEXT_CHARACTERS_MAX)
    return {**content, **{name: content[name][:LONG_TEXT_CHARACTERS_MAX] for name in cut}, "shortened": cut}


def _subject(event: OpcuaEvent, source: str) -> str:
    """`condition:<source>/<source name>/<condition name>` or `event:<source>/<source name>`. Names need not be unique;
    the node ids in the object are."""
    fields = event.fields
    origin = _plain(fields.get("source_name")) or str(fields.get("source_node", "server"))
    if not event.is_condition:
        return f"event:{source}/{_in_subject(origin)}"
    name = _plain(fields.get("condition_name")) or str(fields.get("condition_id", "condition"))
    return f"condition:{source}/{_in_subject(origin)}/{_in_subject(name)}"


def _plain(value: Any) -> str:
    return value.text if isinstance(value, Text) else ""


def _in_subject(name: str) -> str:
    """A name with the characters that a subject may have; others are escaped as in a URI (%20)."""
    escaped = _NOT_IN_SUBJECTS.sub(lambda found: b"%%%02X" % found[0][0], name.encode())
    return escaped[:NAME_BYTES_MAX].decode()


def _message(
    subject: str,
    predicate: str,
    content: dict[str, Any],
    source: str,
    zone: str,
    time_ns: int,
    *,
    is_refreshed: bool = False,
) -> Message:
    said = {name: value for name, value in content.items() if name not in _NOT_IN_THE_ID}
    digest = hashlib.blake2b(canonical_json([subject, predicate, said]), digest_size=16).hexdigest()
    envelope = Envelope(
        message_id=f"{zone}/event/{source}/{digest}",
        from_zone=zone,
        to_zone="*",
        produced_at_unix_ms=min(max(time_ns // 1_000_000, 0), UNIX_MS_MAX),
        labels=REFRESHED if is_refreshed else {},
    )
    return Message(envelope, Fact(subject, predicate, canonical_json(content)))

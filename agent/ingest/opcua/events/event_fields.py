"""Selects the fields of an event and decodes event notification bytes into events.

An event arrives as a list of Variants in the order of the filter's select clauses (OPC 10000-4, 7.22.3). A field that
an event does not have is null or a status. The ValueReader of the session decodes the values; times are decoded here,
because they are needed as numbers with their full resolution.

Core: takes bytes, returns events. Malformed bytes raise DecodeError.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from agent.ingest.opcua.decode import EVENTS, STATUS_CHANGE, DecodeError, Reader, filetime_ns, notifications
from agent.message import Json, parse_json

EVENTS_MAX = 100_000  # 1,000 are asked for in one message; a larger count is malformed
DATE_TIME, STATUS_CODE, NODE_IDS = 13, 19, frozenset({17, 18})  # variant types
NULL_NODE = "i=0"

BASE_EVENT, CONDITION, ACKNOWLEDGEABLE_CONDITION, ALARM_CONDITION = 2041, 2782, 2881, 2915  # types, namespace 0
REFRESH_START, REFRESH_END, REFRESH_REQUIRED, QUEUE_OVERFLOW = 2787, 2788, 2789, 3035

_LIST = struct.Struct("<Ii")
_I32, _U32, _I64 = struct.Struct("<i"), struct.Struct("<I"), struct.Struct("<q")


class EventFieldKind(Enum):
    """The kind of a field. A value of another kind counts as null."""

    BYTES = "bytes"
    NODE = "node"
    TEXT = "text"
    TIME = "time"
    NUMBER = "number"
    TRUTH = "truth"
    STATUS = "status"


class EventField(NamedTuple):
    """A field of an event: its name here, the type that has it, and its path there. An empty path stands for the node
    id of the condition (OPC 10000-9, 5.5.2)."""

    name: str
    type_id: int
    path: tuple[str, ...]
    kind: EventFieldKind


BASE_FIELDS = (
    EventField("event_id", BASE_EVENT, ("EventId",), EventFieldKind.BYTES),
    EventField("event_type", BASE_EVENT, ("EventType",), EventFieldKind.NODE),
    EventField("source_node", BASE_EVENT, ("SourceNode",), EventFieldKind.NODE),
    EventField("source_name", BASE_EVENT, ("SourceName",), EventFieldKind.TEXT),
    EventField("time", BASE_EVENT, ("Time",), EventFieldKind.TIME),
    EventField("receive_time", BASE_EVENT, ("ReceiveTime",), EventFieldKind.TIME),
    EventField("message", BASE_EVENT, ("Message",), EventFieldKind.TEXT),
    EventField("severity", BASE_EVENT, ("Severity",), EventFieldKind.NUMBER),
)
CONDITION_FIELDS = (
    EventField("condition_id", CONDITION, (), EventFieldKind.NODE),
    EventField("condition_name", CONDITION, ("ConditionName",), EventFieldKind.TEXT),
    EventField("branch_id", CONDITION, ("BranchId",), EventFieldKind.NODE),
    EventField("retain", CONDITION, ("Retain",), EventFieldKind.TRUTH),
    EventField("quality", CONDITION, ("Quality",), EventFieldKind.STATUS),
    EventField("comment", CONDITION, ("Comment",), EventFieldKind.TEXT),
    EventField("client_user_id", CONDITION, ("ClientUserId",), EventFieldKind.TEXT),
    EventField("enabled_state", CONDITION, ("EnabledState",), EventFieldKind.TEXT),
    EventField("enabled", CONDITION, ("EnabledState", "Id"), EventFieldKind.TRUTH),
    EventField("acked_state", ACKNOWLEDGEABLE_CONDITION, ("AckedState",), EventFieldKind.TEXT),
    EventField("acked", ACKNOWLEDGEABLE_CONDITION, ("AckedState", "Id"), EventFieldKind.TRUTH),
    EventField("confirmed_state", ACKNOWLEDGEABLE_CONDITION, ("ConfirmedState",), EventFieldKind.TEXT),
    EventField("confirmed", ACKNOWLEDGEABLE_CONDITION, ("ConfirmedState", "Id"), EventFieldKind.TRUTH),
    EventField("active_state", ALARM_CONDITION, ("ActiveState",), EventFieldKind.TEXT),
    EventField("active", ALARM_CONDITION, ("ActiveState", "Id"), EventFieldKind.TRUTH),
    EventField("suppressed_or_shelved", ALARM_CONDITION, ("SuppressedOrShelved",), EventFieldKind.TRUTH),
)
ALL_FIELDS = BASE_FIELDS + CONDITION_FIELDS


class Text(NamedTuple):
    """A text, with the locale of a LocalizedText that has one."""

    text: str
    locale: str = ""


@dataclass(frozen=True, slots=True)
class OpcuaEvent:
    """One notified event. `handle` is the client handle of the monitored item. A time of 0 was not sent. `fields` has
    the fields that are not null, without the times."""

    handle: int
    fields: Mapping[str, Any]
    time_ns: int = 0
    receive_time_ns: int = 0

    def is_of(self, *type_ids: int) -> bool:
        """Whether the event is of one of these standard types."""
        return self.fields.get("event_type") in {f"i={type_id}" for type_id in type_ids}

    @property
    def is_condition(self) -> bool:
        """Whether it is the state of a condition. If a server leaves out the node id, the other fields show it."""
        return not self.fields.keys().isdisjoint(("condition_id", "condition_name", "retain"))


@dataclass(frozen=True, slots=True)
class EventPublication:
    """The events in the answer to one Publish. `unreadable`: events that cannot be read, the malformed one and those
    behind it."""

    events: Sequence[OpcuaEvent]
    status_change: int | None = None
    unreadable: int = 0


def decode_events(data: bytes, fields_of: Mapping[int, Sequence[EventField]], reader: Reader) -> EventPublication:
    """The events in PublishResponse parameters. `fields_of` has the fields that each handle was asked for; events of
    other handles are left out."""
    try:
        return _publication(data, fields_of, reader)
    except (struct.error, IndexError, OverflowError) as error:
        raise DecodeError(f"events are cut short or malformed: {error}") from error


def _publication(data: bytes, fields_of: Mapping[int, Sequence[EventField]], reader: Reader) -> EventPublication:
    events: list[OpcuaEvent] = []
    status_change, unreadable = None, 0
    for kind, body in notifications(data):
        if kind == EVENTS:
            unreadable += _event_list(body, fields_of, reader, events)
        elif kind == STATUS_CHANGE:
            (status_change,) = _U32.unpack_from(body)
    return EventPublication(events, status_change, unreadable)


def _event_list(
    data: bytes, fields_of: Mapping[int, Sequence[EventField]], reader: Reader, events: list[OpcuaEvent]
) -> int:
    """Append the events of the EventNotificationList in `data`. Returns how many could not be read."""
    (count,) = _I32.unpack_from(data, 0)
    if count > EVENTS_MAX:
        raise DecodeError(f"{count} events in one notification")
    position = 4
    for left in range(count, 0, -1):
        try:
            event, position = _event(data, position, fields_of, reader)
        except (DecodeError, struct.error, IndexError, OverflowError):
            return left  # the next one has no known beginning
        if event is not None:
            events.append(event)
    return 0


def _event(
    data: bytes, position: int, fields_of: Mapping[int, Sequence[EventField]], reader: Reader
) -> tuple[OpcuaEvent | None, int]:
    handle, length = _LIST.unpack_from(data, position)
    position += _LIST.size
    asked = fields_of.get(handle, ())
    found: dict[str, Any] = {}
    for index in range(max(0, length)):
        variant_type = data[position]
        value, position = _value(data, position, reader)
        if index < len(asked) and (fitting := _fitting(asked[index].kind, variant_type, value)) is not None:
            found[asked[index].name] = fitting
    time_ns, receive_time_ns = found.pop("time", 0), found.pop("receive_time", 0)
    return (OpcuaEvent(handle, found, time_ns, receive_time_ns) if asked else None), position


def _value(data: bytes, position: int, reader: Reader) -> tuple[Any, int]:
    if data[position] == DATE_TIME:
        (filetime,) = _I64.unpack_from(data, position + 1)
        return filetime_ns(filetime), position + 1 + _I64.size
    return reader(data, position)


def _fitting(kind: EventFieldKind, variant_type: int, value: Any) -> Any:
    """The value of a field; None if it is of another kind, such as a status that explains why there is no value."""
    match kind:
        case EventFieldKind.TEXT:
            return _text(value)
        case EventFieldKind.BYTES:
            return value if isinstance(value, bytes) else None
        case EventFieldKind.NODE:
            return value if variant_type in NODE_IDS and isinstance(value, str) and value != NULL_NODE else None
        case EventFieldKind.TRUTH:
            return value if isinstance(value, bool) else None
        case EventFieldKind.TIME:
            return value if variant_type == DATE_TIME else None
        case EventFieldKind.STATUS:
            return value if variant_type == STATUS_CODE else None
        case EventFieldKind.NUMBER:
            is_number = type(value) is int and variant_type != STATUS_CODE
            return value if is_number else None


def _text(value: Any) -> Text | None:
    if isinstance(value, str):
        return Text(value)
    if isinstance(value, bytes):
        return Text(value.decode(errors="replace"))  # a String that is not UTF-8
    if isinstance(value, Json):
        found = parse_json("text", value.data)
        if isinstance(found, dict) and isinstance(found.get("text"), str) and isinstance(found.get("locale"), str):
            return Text(found["text"], found["locale"])
    return None

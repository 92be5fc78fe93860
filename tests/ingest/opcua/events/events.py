"""Events for tests: as the cores take them, and as bytes that the library has encoded."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from asyncua import ua
from asyncua.ua import ua_binary

from agent.ingest.opcua.decode import FILETIME_EPOCH
from agent.ingest.opcua.events.event_fields import OpcuaEvent, Text

S = 1_000_000_000


def event(type_id: int = 2041, at_s: float = 1, handle: int = 1, **fields: Any) -> OpcuaEvent:
    """An event of a standard type."""
    texts = {name: Text(value) if name in TEXTS else value for name, value in fields.items()}
    return OpcuaEvent(handle, {"event_type": f"i={type_id}", **texts}, int(at_s * S))


TEXTS = {"source_name", "message", "condition_name", "comment", "active_state", "acked_state", "enabled_state"}


def condition(name: str, at_s: float = 1, **fields: Any) -> OpcuaEvent:
    """The state of a retained condition."""
    known = {"condition_id": f"i={name}", "condition_name": name, "source_name": "Tank", "retain": True}
    return event(2915, at_s, **{**known, "event_id": name.encode() + bytes([int(at_s)]), **fields})


def notification(handle: int, fields: Sequence[ua.Variant]) -> ua.EventFieldList:
    """One event as the library has it."""
    return ua.EventFieldList(ClientHandle=handle, EventFields=list(fields))


def publication(*events: ua.EventFieldList, more: bool = False, number: int = 1, subscription_id: int = 1) -> bytes:
    """PublishResponse parameters with these events, or a keep-alive without any."""
    head = struct.pack("<IiBIq", subscription_id, 0, int(more), number, 5 * S // 100 + FILETIME_EPOCH)
    if not events:
        return head + struct.pack("<i", 0)
    body = ua_binary.struct_to_binary(ua.EventNotificationList(Events=list(events)))
    return head + struct.pack("<iBBHBi", 1, 1, 0, 916, 1, len(body)) + body

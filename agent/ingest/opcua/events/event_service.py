"""The service calls for events, through asyncua: monitored items with an EventFilter, ConditionRefresh, names of types.

A server may refuse any of them, and the values continue: each refusal, time-out or unreadable answer is returned as a
status. Nothing is acknowledged, confirmed or commented.

Knows asyncua.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from asyncua import ua
from asyncua.client.ua_session import UaSession
from asyncua.ua.attribute_ids import AttributeIds
from asyncua.ua.object_ids import ObjectIdNames, ObjectIds
from asyncua.ua.uaerrors import UaError, UaStatusCodeError

from agent.ingest import quality
from agent.ingest.opcua.events.event_fields import ALL_FIELDS, BASE_EVENT, BASE_FIELDS, EventField
from agent.ingest.opcua.values.type_reader import utf8
from agent.settings.opcua_address import NodeAddress

QUEUE_SIZE = 10_000  # events to queue for each node: about a minute of an alarm flood
TYPES_PER_READ = 100  # far below the limit of any server
_FILTER_REFUSED = frozenset(  # after these, fewer fields or no condition may be accepted
    {
        *(quality.BAD_FILTER_INVALID, quality.BAD_FILTER_UNSUPPORTED, quality.BAD_FILTER_NOT_ALLOWED),
        *(0x8047_0000, 0x8048_0000),  # BadEventFilterInvalid, BadContentFilterInvalid
        *(0x80C1_0000, 0x80C2_0000),  # BadFilterOperatorInvalid, BadFilterOperatorUnsupported
        *(0x8001_0000, 0x8002_0000, quality.BAD_NOT_SUPPORTED, quality.BAD_DECODING_ERROR),
    }
)
_UNREADABLE = (struct.error, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError)


@dataclass(frozen=True, slots=True)
class EventItem:
    """The answer for one monitored item: a status, and if it is good, the server's number of the item, its fields in
    the order of the filter, and the size of its queue. `left_out` names the fields for which the server refused the
    item. A field that it accepts and does not have is null."""

    status: int
    item: int = 0
    fields: Sequence[EventField] = ()
    queue_size: int = 0
    left_out: tuple[str, ...] = ()


class EventService:
    """The calls for events, with the library's session."""

    def __init__(self, library: UaSession) -> None:
        self._library = library

    async def create_item(
        self,
        subscription_id: int,
        handle: int,
        node: NodeAddress,
        namespace: int,
        expect: Callable[[Sequence[EventField]], None],
        type_ids: Sequence[int] = (),
    ) -> EventItem:
        """Monitor the events of a node, of these standard types or of all. If the server refuses the filter, it is
        asked again without the fields that it names, then with the fields that every event has, then without a
        condition on the type, so that events of all types arrive. `expect` is called with the fields before each
        request, because an event may arrive before the answer."""

        async def attempt(fields: Sequence[EventField], types: Sequence[int]) -> EventItem:
            expect(fields)
            return await self._create(subscription_id, handle, _node_id(node, namespace), fields, types)

        if type_ids:
            found = await attempt(BASE_FIELDS, type_ids)
            return await attempt(BASE_FIELDS, ()) if _is_filter_refused(found) else found
        found = await attempt(ALL_FIELDS, ())
        if _is_filter_refused(found) and found.left_out:
            found = await attempt([field for field in ALL_FIELDS if field.name not in found.left_out], ())
        if _is_filter_refused(found):
            found = await attempt(BASE_FIELDS, ())
        return replace(found, left_out=tuple(field.name for field in ALL_FIELDS if field not in found.fields))

    async def refresh(self, subscription_id: int) -> int:
        """ConditionRefresh (OPC 10000-9, 5.5.7): request the state of all retained conditions. Returns the status."""
        request = ua.CallMethodRequest(
            ObjectId=ua.NodeId(ObjectIds.ConditionType),  # type: ignore[arg-type]
            MethodId=ua.NodeId(ObjectIds.ConditionType_ConditionRefresh),  # type: ignore[arg-type]
            InputArguments=[ua.Variant(subscription_id, ua.VariantType.UInt32)],
        )
        found = await self._answer(lambda library: library.call([request]))
        return found if isinstance(found, int) else int(found[0].StatusCode.value)

    async def type_names(self, types: Sequence[tuple[NodeAddress, int]]) -> list[str]:
        """The browse names of event types, given with their namespace index; empty if one cannot be read."""
        nodes = [_node_id(*event_type) for event_type in types[:TYPES_PER_READ]]
        parameters = ua.ReadParameters(
            NodesToRead=[ua.ReadValueId(NodeId=node, AttributeId=AttributeIds.BrowseName) for node in nodes]
        )
        found = await self._answer(lambda library: library.read(parameters))
        if isinstance(found, int) or len(found) != len(nodes):
            return [""] * len(types)
        values = [answer.Value.Value if answer.Value is not None else None for answer in found]
        names = [utf8(value.Name) if isinstance(value, ua.QualifiedName) else "" for value in values]
        return names + [""] * (len(types) - len(names))

    async def _create(
        self, subscription_id: int, handle: int, node: ua.NodeId, fields: Sequence[EventField], type_ids: Sequence[int]
    ) -> EventItem:
        parameters = ua.CreateMonitoredItemsParameters(
            SubscriptionId=subscription_id,
            TimestampsToReturn=ua.TimestampsToReturn.Neither,
            ItemsToCreate=[
                ua.MonitoredItemCreateRequest(
                    ItemToMonitor=ua.ReadValueId(NodeId=node, AttributeId=AttributeIds.EventNotifier),
                    MonitoringMode=ua.MonitoringMode.Reporting,
                    RequestedParameters=ua.MonitoringParameters(
                        ClientHandle=handle,
                        SamplingInterval=0,
                        Filter=event_filter(fields, type_ids),
                        QueueSize=QUEUE_SIZE,
                        DiscardOldest=True,
                    ),
                )
            ],
        )
        found = await self._answer(lambda library: library.create_monitored_items(parameters))
        if isinstance(found, int):
            return EventItem(found)
        result = found[0]
        statuses = getattr(result.FilterResult, "SelectClauseResults", None) or ()
        refused = tuple(field.name for field, status in zip(fields, statuses, strict=False) if not status.is_good())
        return EventItem(result.StatusCode.value, result.MonitoredItemId, fields, result.RevisedQueueSize, refused)

    async def _answer(self, request: Callable[[UaSession], Awaitable[Any]]) -> Any:
        """The answer, or the status with which the whole call was refused."""
        try:
            found = await request(self._library)
        except UaStatusCodeError as error:
            return int(error.code)
        except TimeoutError:
            return quality.BAD_TIMEOUT
        except (UaError, OSError):
            return quality.BAD_COMMUNICATION_ERROR
        except _UNREADABLE:
            return quality.BAD_DECODING_ERROR
        return found or quality.BAD_DECODING_ERROR


def event_filter(fields: Sequence[EventField], type_ids: Sequence[int] = ()) -> ua.EventFilter:
    """A filter for these fields of events, of these standard types or of all."""
    found = ua.EventFilter(SelectClauses=[_operand(field.type_id, field.path) for field in fields])
    if type_ids:
        types = [ua.LiteralOperand(Value=ua.Variant(ua.NodeId(type_id), ua.VariantType.NodeId)) for type_id in type_ids]  # type: ignore[arg-type]
        element = ua.ContentFilterElement(
            FilterOperator=ua.FilterOperator.InList, FilterOperands=[_operand(BASE_EVENT, ("EventType",)), *types]
        )
        found.WhereClause = ua.ContentFilter(Elements=[element])
    return found


def standard_type_name(type_id: int) -> str:
    """The name of an event type in namespace 0; empty if there is none."""
    return str(ObjectIdNames.get(type_id, ""))


def _is_filter_refused(found: EventItem) -> bool:
    return found.status & quality.CODE_BITS in _FILTER_REFUSED


def _operand(type_id: int, path: tuple[str, ...]) -> ua.SimpleAttributeOperand:
    return ua.SimpleAttributeOperand(
        TypeDefinitionId=ua.NodeId(type_id),  # type: ignore[arg-type]
        BrowsePath=[ua.QualifiedName(name, 0) for name in path],
        AttributeId=AttributeIds.Value if path else AttributeIds.NodeId,
    )


def _node_id(node: NodeAddress, namespace: int) -> ua.NodeId:
    return ua.NodeId(node.identifier, namespace)  # type: ignore[arg-type]

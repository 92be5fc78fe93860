"""One session with an OPC UA server, through asyncua. The face of this package says who else knows it.

Uses the library's connection, security and service calls, and none of its conveniences: no auto_reconnect (it can end
connected and mute), no Subscription objects (a task for each value, or a queue that drops silently), no publish loop
(one request at a time, and order by chance), no chunking that is not there. Notifications leave here as the bytes that
came, so that they are decoded whole and with their full source time.

A session is used once: `async with open_session(...)` connects with a new client object and disconnects at the end.
Errors of the library leave as SourceLost, or as SourceRefused with what to do.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from asyncua import ua
from asyncua.client.client import Client
from asyncua.client.ua_session import UaSession
from asyncua.common.shortcuts import Shortcuts
from asyncua.common.utils import Buffer
from asyncua.ua import ua_binary, uaerrors
from asyncua.ua.attribute_ids import AttributeIds
from asyncua.ua.object_ids import ObjectIds
from asyncua.ua.uaerrors import UaError, UaStatusCodeError

from agent.ingest import quality
from agent.ingest.errors import HistoryRefused, SourceBusy, SourceError, SourceLost
from agent.ingest.opcua.address import SERVER_CLOCK, Reading
from agent.ingest.opcua.decode import (
    Change,
    DecodeError,
    Publication,
    decode_publication,
    decode_read_values,
    filetime_ns,
)
from agent.ingest.opcua.groups import ServerLimits, limit_of
from agent.ingest.opcua.history import HistoryPage, HistoryRange, decode_history, history_request
from agent.ingest.opcua.monitoring import Monitoring, publishing_ms_of, sampling_ms_of
from agent.ingest.opcua.plan import Created
from agent.ingest.opcua.security.client import (
    SIGNS_IN_TIMEOUT,
    TOO_LARGE,
    ReactivatingClient,
    SessionKey,
    StepTrackingClient,
    connect,
    library_call,
)
from agent.ingest.opcua.server_clock import ClockReading, read_ns
from agent.ingest.opcua.values.type_reader import learn_missing
from agent.ingest.opcua.values.variant import ValueReader
from agent.opcua_address import NodeAddress
from agent.settings.sources import OpcuaSourceSettings
from agent.status_codes import status_name

ResultT = TypeVar("ResultT")

HEARTBEAT_HANDLE = 2**31 - 1
"""The item on the server's own clock. The other handles are the tags' numbers, which the store counts up from 1: they
stay far below. A handle of 2^32 - 1 (or 0) means "none" to node-opcua, and one above 2^31 - 1 is negative to a server
that keeps it in a signed number."""
HEARTBEAT_INTERVAL_MS = 1_000
SESSION_TIMEOUT_MS_MIN = 30_000  # a server keeps a dead session this long, and many servers have few
NOTIFICATIONS_PER_PUBLISH_MAX = 1_000
LEARN_ROUNDS_MAX = 8  # a structure may hold structures of unknown type, which show only when it can be read
HISTORY_READ = 4  # bit 2 of AccessLevel (OPC 10000-3, 8.57)
GOODBYE_S = 2.0  # a server that hangs is not waited for: the loss is to be recorded
LIFETIME_MS_MIN = 120_000  # how long the server keeps a subscription whose Publish we hold back

_NO_HISTORY = (  # of a whole HistoryRead: the service is not there
    uaerrors.BadServiceUnsupported,
    uaerrors.BadHistoryOperationUnsupported,
    uaerrors.BadHistoryOperationInvalid,
    uaerrors.BadNotSupported,
)
_NO_SERVICE = uaerrors.BadServiceUnsupported, uaerrors.BadNotImplemented
_PUBLISH_REFUSALS = (  # of one Publish; the session goes on
    uaerrors.BadTimeout,
    uaerrors.BadNoSubscription,
    uaerrors.BadTooManyPublishRequests,
)
_LIMITS = {
    "items_per_call": ObjectIds.Server_ServerCapabilities_OperationLimits_MaxMonitoredItemsPerCall,
    "nodes_per_read": ObjectIds.Server_ServerCapabilities_OperationLimits_MaxNodesPerRead,
    "items_per_subscription": ObjectIds.Server_ServerCapabilities_MaxMonitoredItemsPerSubscription,
    "items": ObjectIds.Server_ServerCapabilities_MaxMonitoredItems,
    "subscriptions_per_session": ObjectIds.Server_ServerCapabilities_MaxSubscriptionsPerSession,
    "subscriptions": ObjectIds.Server_ServerCapabilities_MaxSubscriptions,
}


class CallTooLarge(SourceError):
    """The server will not take so many operations in one call."""


class TooManySubscriptions(SourceBusy):
    """The server has no room for another subscription."""


class PublishRefused(SourceError):
    """A Publish was refused for a reason that does not end the session."""

    def __init__(self, status: int) -> None:
        super().__init__(status_name(status))
        self.status = status


@dataclass(frozen=True, slots=True)
class ItemRequest:
    """A monitored item to create. `sampling_ms` and `queue_size` as resolved from the tag and the source."""

    handle: int
    address: NodeAddress
    namespace: int
    index_range: str
    sampling_ms: float
    queue_size: int
    monitoring: Monitoring


class OpenedSubscription(NamedTuple):
    """A subscription that was created, with its publishing interval as the server revised it. `slower`: how many times
    as long as asked for the time between its keep-alives is, 1 at least."""

    id: int
    publishing_ms: float
    slower: float = 1.0


class _RawSession(UaSession):
    """asyncua's session, with requests whose answers are read elsewhere."""

    keeps_subscriptions = False
    creating = 0  # subscriptions that were asked for, and no answer has come
    was_closed = False

    async def close_session(self, delete_subscriptions: bool) -> None:  # noqa: FBT001 the library's signature
        if self.keeps_subscriptions and self.creating:
            return  # closed now, it would leave a subscription whose number is not known
        protocol = self._client.protocol
        is_connected = protocol is not None and not protocol.is_closed
        await super().close_session(delete_subscriptions and not self.keeps_subscriptions)
        self.was_closed = is_connected

    async def send(self, request: Any, timeout_s: float | None = None) -> Buffer:
        """The answer's bytes; 0 waits for ever."""
        return await self._send_request(request, timeout=timeout_s)


class Session:
    """An open session. Made by `open_session`."""

    def __init__(self, client: StepTrackingClient, settings: OpcuaSourceSettings) -> None:
        self._client, self._settings = client, settings
        session = client.uaclient.session
        assert isinstance(session, _RawSession), "set in new_client"
        self._session = session
        self.reader = ValueReader()  # of the values of this session: it knows the server's namespaces and types
        self._learning = asyncio.Lock()  # types are being asked for
        self.lost: asyncio.Future[SourceLost] = asyncio.get_running_loop().create_future()
        self._ignores_ranges: bool | None = None  # not asked yet
        self._start: object = None  # not asked yet, or not told

    @property
    def key(self) -> SessionKey | None:
        """What closes this session over a later connection; None if it was closed over its own."""
        return None if self._session.was_closed else self._client.session_key

    def note_loss(self, why: str) -> None:
        """End the session: `lost` is resolved with the reason."""
        if not self.lost.done():
            self.lost.set_result(SourceLost(f"{self._settings.url}: {why}"))

    async def namespaces(self) -> list[str]:
        """The server's namespace URIs, by index."""
        told = await self._call(self._client.get_namespace_array())
        if not isinstance(told, list):
            raise SourceLost(f"{self._settings.url} does not tell its namespaces")
        found = [str(uri) for uri in told]
        self.reader.namespaces = found
        return found

    async def limits(self) -> ServerLimits:
        """What the server says that it takes. It is not known yet how many nodes one Read may name."""
        told = await self._standard_values(list(_LIMITS.values()))
        return ServerLimits(**{name: limit_of(value) for name, value in zip(_LIMITS, told, strict=True)})

    async def ignores_ranges(self) -> bool:
        """Whether this server gives a whole array where elements of it are asked for, with a good status (asyncua,
        python-opcua). Its list of namespaces shows it: there are always two at least."""
        if self._ignores_ranges is None:
            node = _node_id(ObjectIds.Server_NamespaceArray, 0)
            asked = ua.ReadValueId(NodeId=node, AttributeId=AttributeIds.Value, IndexRange="0")
            value = (await self._read([asked]))[0].Value
            self._ignores_ranges = value is not None and isinstance(value.Value, list) and len(value.Value) > 1
        return self._ignores_ranges

    async def _standard_values(self, nodes: Sequence[int]) -> list[Any]:
        """The values of nodes of the standard namespace; None for what the server lacks, denies, or tells in a way that
        cannot be read. Raises SourceLost."""
        asked = [ua.ReadValueId(NodeId=_node_id(node, 0), AttributeId=AttributeIds.Value) for node in nodes]
        try:
            answers = await self._read(asked)
        except (CallTooLarge, SourceLost) as error:
            if not isinstance(error.__cause__, UaError):
                raise  # no answer
            answers = []
        if len(answers) != len(nodes):
            return [None] if len(nodes) == 1 else [(await self._standard_values([node]))[0] for node in nodes]
        return [one.Value.Value if one.Value is not None and one.StatusCode.is_good() else None for one in answers]

    async def _read(self, nodes: list[ua.ReadValueId]) -> list[Any]:
        found: list[Any] = await self._call(self._session.read(ua.ReadParameters(NodesToRead=nodes)))
        return found

    async def create_subscription(self) -> OpenedSubscription:
        """Create a subscription. Raises TooManySubscriptions."""
        interval_ms = self._settings.publishing_interval_ms
        keep_alive = max(1, self._settings.liveness_timeout_ms // 3 // interval_ms)
        request = ua.CreateSubscriptionRequest()
        request.Parameters = ua.CreateSubscriptionParameters(
            RequestedPublishingInterval=interval_ms,
            RequestedLifetimeCount=max(3 * keep_alive, LIFETIME_MS_MIN // interval_ms),
            RequestedMaxKeepAliveCount=keep_alive,
            MaxNotificationsPerPublish=NOTIFICATIONS_PER_PUBLISH_MAX,
            PublishingEnabled=True,
        )
        self._session.creating += 1
        try:
            body = await self._call(self._session.send(request))  # not `create_subscription`: it starts a loop
        except SourceLost as error:
            self._session.creating -= isinstance(error.__cause__, UaStatusCodeError)
            if not isinstance(error.__cause__, uaerrors.BadTooManySubscriptions):
                raise
            text = (
                f"{self._settings.url} takes no further subscription (BadTooManySubscriptions); it may keep those of a"
                f" connection that broke for {LIFETIME_MS_MIN // 1000} s, and the source then goes on by itself;"
                " otherwise close another client of it or raise its limit"
            )
            raise TooManySubscriptions(text) from error
        self._session.creating -= 1
        result = ua_binary.struct_from_binary(ua.CreateSubscriptionResponse, body).Parameters
        publishing_ms = publishing_ms_of(result.RevisedPublishingInterval, interval_ms)
        asked_ms = keep_alive * interval_ms
        slower = publishing_ms_of(result.RevisedMaxKeepAliveCount * publishing_ms, asked_ms) / asked_ms
        return OpenedSubscription(result.SubscriptionId, publishing_ms, max(1.0, slower))

    async def server_start(self) -> object:
        """When the server was started, in its own words; None if it does not say. Asked once in a session."""
        if self._start is not None:
            return self._start
        (self._start,) = await self._standard_values([ObjectIds.Server_ServerStatus_StartTime])
        return self._start

    def keep_subscriptions(self, *, keep: bool = True) -> None:
        """Leave the subscriptions at the server when this session ends: the next one can take them over."""
        self._session.keeps_subscriptions = keep

    async def transfer_subscriptions(self, numbers: Sequence[int]) -> list[int]:
        """Take over subscriptions of a session before this one, without their present values (OPC 10000-4, 5.14.7). The
        status of each; a refusal of the whole call is the status of all. Raises SourceLost."""
        asked = ua.TransferSubscriptionsParameters(SubscriptionIds=list(numbers), SendInitialValues=False)
        try:
            found = await library_call(self._session.transfer_subscriptions(asked))
        except UaStatusCodeError as error:
            return [int(error.code)] * len(numbers)
        except (UaError, OSError, TimeoutError) as error:
            raise SourceLost(f"{self._settings.url} does not answer: {_text(error)}") from error
        return [int(one.StatusCode.value) for one in found]

    async def delete_subscription(self, subscription_id: int) -> None:
        """Delete a subscription. One that the server does not know is as good as deleted."""
        await self._call(self._session.delete_subscriptions([subscription_id]))

    async def create_heartbeat(self, subscription_id: int) -> Created:
        """Monitor the server's clock in a subscription."""
        node = _node_id(ObjectIds.Server_ServerStatus_CurrentTime, 0)
        request = _item_request(HEARTBEAT_HANDLE, node, HEARTBEAT_INTERVAL_MS, 1)
        return (await self._create(subscription_id, [request]))[0]

    async def create_items(self, subscription_id: int, items: Sequence[ItemRequest]) -> list[Created]:
        """Monitor nodes. One result each; CallTooLarge if it was too many."""
        return await self._create(subscription_id, [_request_of(item) for item in items])

    async def resize_queues(self, subscription_id: int, items: Sequence[tuple[int, ItemRequest]]) -> list[Created]:
        """Give items, by the server's number, the queue of the request. CallTooLarge if it was too many. A server that
        cannot modify items, or does not answer for each, refuses all."""
        parameters = ua.ModifyMonitoredItemsParameters(
            SubscriptionId=subscription_id,
            TimestampsToReturn=ua.TimestampsToReturn.Both,
            ItemsToModify=[
                ua.MonitoredItemModifyRequest(
                    MonitoredItemId=number, RequestedParameters=_request_of(item).RequestedParameters
                )
                for number, item in items
            ],
        )
        try:
            results = await self._call(self._session.modify_monitored_items(parameters))
        except SourceLost as error:
            if not isinstance(error.__cause__, _NO_SERVICE):
                raise
            return [Created(error.__cause__.code) for _ in items]
        if len(results) != len(items):
            return [Created(quality.BAD_NOT_SUPPORTED) for _ in items]
        return [
            Created(result.StatusCode.value, number, result.RevisedSamplingInterval, result.RevisedQueueSize)
            for result, (number, _) in zip(results, items, strict=True)
        ]

    async def delete_items(self, subscription_id: int, items: Sequence[int]) -> None:
        """Stop monitoring. An item the server does not know is as good as deleted; CallTooLarge if it was too many."""
        parameters = ua.DeleteMonitoredItemsParameters(SubscriptionId=subscription_id, MonitoredItemIds=list(items))
        await self._call(self._session.delete_monitored_items(parameters))

    async def publish(self, acks: Sequence[tuple[int, int]]) -> bytes:
        """Acknowledge notifications, given as (subscription, number), and wait for the next one. Returns the parameters
        of the PublishResponse. Raises PublishRefused, or SourceLost when the session is at its end."""
        request = ua.PublishRequest()
        request.Parameters.SubscriptionAcknowledgements = [
            ua.SubscriptionAcknowledgement(SubscriptionId=subscription_id, SequenceNumber=number)
            for subscription_id, number in acks
        ]
        try:
            return await self._body_of(self._session.send(request, 0))
        except _PUBLISH_REFUSALS as error:
            raise PublishRefused(error.code) from error
        except (UaError, OSError, TimeoutError) as error:
            raise SourceLost(f"{self._settings.url} ended publishing: {_text(error)}") from error

    async def decode(self, body: bytes, elements: Container[int] = ()) -> Publication:
        """The values in the parameters of a PublishResponse; those of the handles in `elements` are single elements of
        arrays. Data types that are met the first time are asked for. Raises DecodeError."""
        return await self._decoded(lambda: decode_publication(body, self.reader, elements))

    async def _decoded(self, decode: Callable[[], ResultT]) -> ResultT:
        """What bytes hold, with the types that have to be learnt for it. Publications are decoded beside one another: a
        type that is being asked for is known to none of them until its answer is here."""
        found = decode()
        if not self.reader.types.missing and not self._learning.locked():
            return found
        async with self._learning:
            found = decode()
            for _ in range(LEARN_ROUNDS_MAX):
                if not await learn_missing(self.reader.types, self._session):
                    break
                found = decode()
        return found

    async def read_history(
        self, ranges: Sequence[HistoryRange], nodes: Sequence[tuple[Reading, int]], values_max: int
    ) -> list[HistoryPage]:
        """Raw values of nodes, given as (reading, namespace index), one for each range. Raises HistoryRefused for what
        concerns the call as a whole, a time-out included: the session goes on without it."""
        node_ids = [_node_id(reading.address.identifier, index) for reading, index in nodes]
        parts = [reading.index_range for reading, _ in nodes]
        try:
            body = await self._body_of(self._session.send(history_request(ranges, node_ids, values_max)))
            pages = await self._decoded(lambda: decode_history(body, self.reader, parts))
            return await self._proven(node_ids, pages)
        except _NO_HISTORY as error:
            raise HistoryRefused(_text(error), is_final=True) from error
        except (UaError, OSError, TimeoutError, DecodeError) as error:
            raise HistoryRefused(_text(error), is_final=False) from error

    async def _proven(self, nodes: Sequence[ua.NodeId], pages: list[HistoryPage]) -> list[HistoryPage]:
        """Pages of which an empty one means that nothing happened. Some servers (python-opcua) give an empty one, and
        no refusal, for a node whose history they do not keep: its access level shows that."""
        empty = [n for n, page in enumerate(pages) if not (page.status or page.values or page.continuation_point)]
        if not empty:
            return pages
        asked = [ua.ReadValueId(NodeId=nodes[n], AttributeId=AttributeIds.AccessLevel) for n in empty]
        answers = await self._session.read(ua.ReadParameters(NodesToRead=asked))
        for n, answer in zip(empty, answers, strict=False):
            level = answer.Value.Value if answer.Value is not None else None
            if isinstance(level, int) and not level & HISTORY_READ:
                pages[n] = HistoryPage(quality.BAD_NOT_SUPPORTED)
        return pages

    async def ask(self, request: Callable[[UaSession], Awaitable[Any]]) -> Any:
        """A request that is made with the library's session, for what works beside the values. The library's errors
        leave as they are."""
        return await request(self._session)

    async def republish(self, subscription_id: int, number: int) -> bytes | None:
        """A notification that was sent before, as the parameters of a PublishResponse; None if it is not held any
        more."""
        request = ua.RepublishRequest()
        request.Parameters.SubscriptionId = subscription_id
        request.Parameters.RetransmitSequenceNumber = number
        try:
            message = await self._body_of(self._session.send(request))
        except UaError:
            return None
        except (OSError, TimeoutError) as error:
            raise SourceLost(f"{self._settings.url} does not answer: {_text(error)}") from error
        return struct.pack("<IiB", subscription_id, 0, 1) + message  # "more": it is not the last of its subscription

    async def read_values(self, readings: Sequence[Reading], namespaces: Sequence[str]) -> list[Change]:
        """The values of nodes now, in their order; of a node in a namespace the server has not, BadNodeIdUnknown.
        Raises CallTooLarge and DecodeError."""
        return (await self._values_of(readings, namespaces))[0]

    async def read_with_clock(
        self, readings: Sequence[Reading], namespaces: Sequence[str]
    ) -> tuple[ClockReading, list[Change]]:
        """The server's clock, and values as by `read_values`, in one call."""
        (clock, *found), answered_ns = await self._values_of([SERVER_CLOCK, *readings], namespaces)
        shown_ns = clock.server_time_ns or clock.source_time_ns
        return ClockReading(shown_ns, read_ns(shown_ns, answered_ns) if shown_ns else 0), found

    async def _values_of(self, readings: Sequence[Reading], namespaces: Sequence[str]) -> tuple[list[Change], int]:
        """The values, and when the server says that it answered."""
        request = ua.ReadRequest()
        request.Parameters.TimestampsToReturn = ua.TimestampsToReturn.Both
        for reading in readings:
            index = reading.address.index(namespaces)
            node = _node_id(reading.address.identifier, len(namespaces) if index is None else index)
            wanted = ua.ReadValueId(NodeId=node, AttributeId=AttributeIds.Value)
            if reading.index_range:
                wanted.IndexRange = reading.index_range
            request.Parameters.NodesToRead.append(wanted)
        body, answered_ns = await self._call(self._answer_of(self._session.send(request)))
        elements = {place for place, reading in enumerate(readings) if reading.is_element}
        found = await self._decoded(lambda: decode_read_values(body, self.reader, elements))
        if len(found) != len(readings):
            raise SourceLost(f"{self._settings.url} answered {len(found)} values for {len(readings)} nodes")
        if any(reading.index_range for reading in readings) and await self.ignores_ranges():
            for place, reading in enumerate(readings):
                if reading.index_range and not quality.is_bad(found[place].quality):
                    found[place] = found[place]._replace(value=None, quality=quality.BAD_INDEX_RANGE_INVALID)
        return found, answered_ns

    async def clock_ns(self) -> int | None:
        """What the server's clock shows, in ns since 1970; None: it does not say, or not so that it can be read."""
        try:
            clock, _ = await self.read_with_clock([], await self.namespaces())
        except (CallTooLarge, DecodeError):
            return None
        return clock.read_ns or None

    async def _body_of(self, request: Awaitable[Any]) -> bytes:
        """The response that follows the header, as it came."""
        return (await self._answer_of(request))[0]

    async def _answer_of(self, request: Awaitable[Any]) -> tuple[bytes, int]:
        """That, and when the server says that it made it (OPC 10000-4, 7.29)."""
        body = await request
        ua_binary.nodeid_from_binary(body)
        (filetime,) = struct.unpack("<q", body.copy().read(8))
        ua_binary.struct_from_binary(ua.ResponseHeader, body).ServiceResult.check()
        return bytes(body), filetime_ns(filetime)

    async def _create(self, subscription_id: int, requests: Sequence[ua.MonitoredItemCreateRequest]) -> list[Created]:
        parameters = ua.CreateMonitoredItemsParameters(
            SubscriptionId=subscription_id,
            TimestampsToReturn=ua.TimestampsToReturn.Both,
            ItemsToCreate=list(requests),
        )
        results = await self._call(self._session.create_monitored_items(parameters))
        if len(results) != len(requests):
            raise SourceLost(f"{self._settings.url} answered {len(results)} results for {len(requests)} items")
        return [
            Created(
                *(one.StatusCode.value, one.MonitoredItemId),
                sampling_ms_of(one.RevisedSamplingInterval, request.RequestedParameters.SamplingInterval),
                one.RevisedQueueSize,
            )
            for one, request in zip(results, requests, strict=True)
        ]

    async def _call(self, request: Awaitable[Any]) -> Any:
        """One service call, its errors in our words."""
        try:
            return await library_call(request)
        except TOO_LARGE as error:
            raise CallTooLarge(str(error)) from error
        except (UaError, OSError, TimeoutError) as error:
            raise SourceLost(f"{self._settings.url} does not answer as it should: {_text(error)}") from error


@asynccontextmanager
async def open_session(settings: OpcuaSourceSettings) -> AsyncIterator[Session]:
    """Connect with a new client, yield the session, disconnect whatever happened."""
    client = new_client(settings)
    session = Session(client, settings)

    async def lost(error: Exception) -> None:
        session.note_loss(_text(error))

    try:
        await _connect(client, settings)
        client.connection_lost_callback = lost
        yield session
    except asyncio.CancelledError:
        session.keep_subscriptions(keep=False)  # a stop: no session comes after this one
        raise
    finally:
        client.connection_lost_callback = None
        await disconnect(client)


async def close_session(settings: OpcuaSourceSettings, key: SessionKey) -> None:
    """Close a session of an earlier connection, over one of its own, with the subscriptions that are left in it. Raises
    SourceError."""
    client = ReactivatingClient(settings, key)
    try:
        await connect(client, settings, endpoint_client=new_client(settings))
    finally:
        await disconnect(client)


def quiet_library() -> None:
    """asyncua logs each loss many times over, with tracebacks. The supervisor logs what matters, once."""
    logging.getLogger("asyncua").setLevel(logging.CRITICAL + 1)


def new_client(settings: OpcuaSourceSettings, watchdog_s: float = 0.0) -> StepTrackingClient:
    """A client for a `Session`, not connected. `watchdog_s`: see StepTrackingClient."""
    client = StepTrackingClient(settings, watchdog_s)
    client.session_timeout = max(SESSION_TIMEOUT_MS_MIN, SIGNS_IN_TIMEOUT * settings.request_timeout_ms)
    client.uaclient.session = _RawSession(client.uaclient)
    client.nodes = Shortcuts(client.uaclient.session)
    return client


async def _connect(client: StepTrackingClient, settings: OpcuaSourceSettings) -> None:
    try:
        async with asyncio.timeout(3 * settings.request_timeout_ms / 1000):
            await connect(client, settings, endpoint_client=new_client(settings))
    except TimeoutError as error:
        raise SourceLost(f"no connection to {settings.url}: no answer in time while {client.step.value}") from error


async def disconnect(client: Client) -> None:
    """End what there is of a connection, with a short goodbye."""
    try:
        async with asyncio.timeout(GOODBYE_S):
            await client.disconnect()
    except (UaError, OSError, TimeoutError):
        pass
    finally:
        client.disconnect_socket()  # the goodbye failed, or was cancelled; hanging up does not


def _node_id(identifier: Any, index: Any) -> ua.NodeId:
    return ua.NodeId(identifier, index)


def _request_of(item: ItemRequest) -> ua.MonitoredItemCreateRequest:
    node = _node_id(item.address.identifier, item.namespace)
    request = _item_request(item.handle, node, item.sampling_ms, item.queue_size)
    if item.index_range:
        request.ItemToMonitor.IndexRange = item.index_range
    if item.monitoring.has_filter:
        kinds = ua.DeadbandType
        kind = kinds.Percent if item.monitoring.deadband_is_percent else kinds.Absolute
        request.RequestedParameters.Filter = ua.DataChangeFilter(
            Trigger=ua.DataChangeTrigger(item.monitoring.trigger.value),
            DeadbandType=kind if item.monitoring.deadband else kinds.None_,
            DeadbandValue=item.monitoring.deadband,
        )
    return request


def _item_request(handle: int, node: ua.NodeId, sampling_ms: float, queue_size: int) -> ua.MonitoredItemCreateRequest:
    return ua.MonitoredItemCreateRequest(
        ItemToMonitor=ua.ReadValueId(NodeId=node, AttributeId=AttributeIds.Value),
        MonitoringMode=ua.MonitoringMode.Reporting,
        RequestedParameters=ua.MonitoringParameters(
            ClientHandle=handle, SamplingInterval=sampling_ms, QueueSize=queue_size, DiscardOldest=True
        ),
    )


def _text(error: BaseException) -> str:
    """An error in one line; the library's have names that say more than their text."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return f"{type(error).__name__} {error}".strip().splitlines()[0]

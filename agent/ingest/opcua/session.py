"""One session with an OPC UA server, through asyncua.

Uses the connection, security and service calls of the library, and none of its conveniences: no auto_reconnect (it can
end connected and silent), no Subscription objects (a task for each value, or a queue that drops values silently), no
publish loop (one request at a time, in no certain order). Notifications are returned as the received bytes, so that
they are decoded with their full source times.

`async with open_session(...)` connects with a new client object, which reactivates the session of an earlier one if it
is given its key, and disconnects at the end. What becomes of the session then is its `ending`. Errors of the library
become SourceLost, or SourceRefused with what to do.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
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

from agent.concurrency import timeout
from agent.ingest import quality
from agent.ingest.errors import HistoryRefused, SourceBusy, SourceError, SourceLost
from agent.ingest.opcua.address import SERVER_CLOCK, Reading
from agent.ingest.opcua.decode import (
    DataChange,
    DecodeError,
    Publication,
    decode_publication,
    decode_read_values,
    filetime_ns,
)
from agent.ingest.opcua.history import HistoryPage, HistoryRange, decode_history, history_request
from agent.ingest.opcua.reconnect import HEALTHY_LEVEL
from agent.ingest.opcua.security.client import (
    SIGNS_IN_TIMEOUT,
    TOO_LARGE,
    SessionKey,
    StepTrackingClient,
    connect,
    library_call,
)
from agent.ingest.opcua.subscriptions.item_plan import Created, ServerLimits, limit_of
from agent.ingest.opcua.subscriptions.monitoring import Monitoring, publishing_ms_of, sampling_ms_of
from agent.ingest.opcua.values.type_reader import learn_missing, utf8
from agent.ingest.opcua.values.variant import ValueReader
from agent.ingest.source_clock import ServerClockReading, read_ns
from agent.settings.opcua_address import STANDARD_URI, NodeAddress
from agent.settings.sources import OpcuaSourceSettings
from agent.status_codes import status_name

ResultT = TypeVar("ResultT")

HEARTBEAT_HANDLE = 2**31 - 1
"""The client handle of the item on the server's clock. The other handles are the numbers of tags, which count from 1
and stay far below. node-opcua takes 0 and 2^32 - 1 for "none", and a handle above 2^31 - 1 is negative for a server
that keeps it as a signed number."""
HEARTBEAT_INTERVAL_MS = 1_000
SESSION_TIMEOUT_MS_MIN = 30_000  # a server keeps a dead session for so long, and many servers allow few sessions
NOTIFICATIONS_PER_PUBLISH_MAX = 1_000
LEARN_ROUNDS_MAX = 8  # a structure may hold structures of unknown types, which show only when it is decoded
HISTORY_READ = 4  # bit 2 of AccessLevel (OPC 10000-3, 8.57)
GOODBYE_S = 2.0  # for the goodbye; the loss is to be recorded soon
LIFETIME_MS_MIN = 120_000  # how long the server keeps a subscription while no Publish is sent

_NO_HISTORY = (  # of a whole HistoryRead: the server has no such service
    uaerrors.BadServiceUnsupported,
    uaerrors.BadHistoryOperationUnsupported,
    uaerrors.BadHistoryOperationInvalid,
    uaerrors.BadNotSupported,
)
_PUBLISH_REFUSALS = (  # of one Publish; the session continues
    uaerrors.BadTimeout,
    uaerrors.BadNoSubscription,
    uaerrors.BadTooManyPublishRequests,
    *TOO_LARGE,  # the notification was too large, and is lost
)
TOO_LARGE_STATUSES = frozenset(error.code for error in TOO_LARGE)
_LIMITS = {
    "items_per_call": ObjectIds.Server_ServerCapabilities_OperationLimits_MaxMonitoredItemsPerCall,
    "nodes_per_read": ObjectIds.Server_ServerCapabilities_OperationLimits_MaxNodesPerRead,
    "items_per_subscription": ObjectIds.Server_ServerCapabilities_MaxMonitoredItemsPerSubscription,
    "items": ObjectIds.Server_ServerCapabilities_MaxMonitoredItems,
    "subscriptions_per_session": ObjectIds.Server_ServerCapabilities_MaxSubscriptionsPerSession,
    "subscriptions": ObjectIds.Server_ServerCapabilities_MaxSubscriptions,
    "nodes_per_browse": ObjectIds.Server_ServerCapabilities_OperationLimits_MaxNodesPerBrowse,
}


class CallTooLarge(SourceError):
    """The server does not accept so many operations in one call."""


class TooManySubscriptions(SourceBusy):
    """The server has no room for another subscription."""


class PublishRefused(SourceError):
    """A Publish was refused for a reason that does not end the session."""

    def __init__(self, status: int) -> None:
        super().__init__(status_name(status))
        self.status = status


@dataclass(frozen=True, slots=True)
class ItemRequest:
    """A monitored item to create. `sampling_ms` and `queue_size` come from the tag or its source."""

    handle: int
    address: NodeAddress
    namespace: int
    index_range: str
    sampling_ms: float
    queue_size: int
    monitoring: Monitoring


class OpenedSubscription(NamedTuple):
    """A created subscription with its revised publishing interval. `slower`: the revised time between keep-alives
    divided by the requested one, at least 1."""

    id: int
    publishing_ms: float
    slower: float = 1.0


class Ending(Enum):
    """What becomes of a session when its connection ends."""

    CLOSE = "close"  # with its subscriptions
    KEEP = "keep"  # for the next connection to reactivate
    LEAVE_SUBSCRIPTIONS = "leave"  # for the next session to take over


class _RawSession(UaSession):
    """asyncua's session, with requests whose answers are decoded elsewhere."""

    ending = Ending.CLOSE
    creating = 0  # subscriptions that were requested and not yet answered

    async def close_session(self, delete_subscriptions: bool) -> None:  # noqa: FBT001 the library's signature
        if self.ending is not Ending.KEEP:
            await super().close_session(delete_subscriptions and self.ending is Ending.CLOSE)

    async def send(self, request: Any, timeout_s: float | None = None) -> Buffer:
        """Send a request and return the bytes of the answer. A time-out of 0 waits for ever."""
        return await self._send_request(request, timeout=timeout_s)


class OpcuaSession:
    """An open session. Made by `open_session`."""

    def __init__(self, client: StepTrackingClient, settings: OpcuaSourceSettings) -> None:
        self._client, self._settings = client, settings
        session = client.uaclient.session
        assert isinstance(session, _RawSession), "set in new_client"
        self.library = session  # the session of the library, for requests that are not made here
        self.reader = ValueReader()  # with the namespaces and types of this server
        self._learning = asyncio.Lock()  # held while types are requested
        self.lost: asyncio.Future[SourceLost] = asyncio.get_running_loop().create_future()
        self._ignores_ranges: bool | None = None  # not asked yet
        self.start: object = None  # not read yet, or not given
        self.is_publishing = True  # whether subscriptions that are created publish

    @property
    def key(self) -> SessionKey:
        """The key with which a later connection can reactivate this session."""
        return self._client.session_key

    @property
    def is_reactivated(self) -> bool:
        """Whether this is the session of an earlier connection."""
        return self._client.has_reactivated

    @property
    def is_connected(self) -> bool:
        """Whether its connection stands, as far as is known."""
        protocol = self._client.uaclient.protocol
        return protocol is not None and not protocol.is_closed

    def note_loss(self, why: str) -> None:
        """End the session: `lost` is resolved with the reason."""
        if not self.lost.done():
            self.lost.set_result(SourceLost(f"{self._settings.url}: {why}"))

    async def namespaces(self) -> list[str]:
        """The server's namespace URIs, by index."""
        uris = await self._call(self._client.get_namespace_array())
        if not isinstance(uris, list):
            raise SourceLost(f"{self._settings.url} does not give its namespaces")
        found = [utf8(uri) for uri in uris]
        self.reader.namespaces = found
        return found

    async def limits(self) -> ServerLimits:
        """The limits that the server declares."""
        values = await self._standard_values(list(_LIMITS.values()))
        return ServerLimits(**{name: limit_of(value) for name, value in zip(_LIMITS, values, strict=True)})

    async def ignores_ranges(self) -> bool:
        """Whether this server ignores index ranges and returns whole arrays with a good status (asyncua, python-opcua).
        Its list of namespaces shows that, because it always has at least two entries."""
        if self._ignores_ranges is None:
            node = _node_id(ObjectIds.Server_NamespaceArray, 0)
            asked = ua.ReadValueId(NodeId=node, AttributeId=AttributeIds.Value, IndexRange="0")
            value = (await self._read([asked]))[0].Value
            self._ignores_ranges = value is not None and isinstance(value.Value, list) and len(value.Value) > 1
        return self._ignores_ranges

    async def _standard_values(self, nodes: Sequence[int]) -> list[Any]:
        """The values of nodes of the standard namespace; None for what the server does not have, denies, or answers in
        a form that cannot be read. Raises SourceLost."""
        asked = [ua.ReadValueId(NodeId=_node_id(node, 0), AttributeId=AttributeIds.Value) for node in nodes]
        try:
            answers = await self._read(asked)
        except (CallTooLarge, SourceLost) as error:
            if not isinstance(error.__cause__, UaError):
                raise  # no answer
            answers = []
        if len(answers) != len(nodes):
            return [None] if len(nodes) == 1 else [(await self._standard_values([node]))[0] for node in nodes]
        return [
            answer.Value.Value if answer.Value is not None and answer.StatusCode.is_good() else None
            for answer in answers
        ]

    async def _read(self, nodes: list[ua.ReadValueId]) -> list[Any]:
        found: list[Any] = await self._call(self.library.read(ua.ReadParameters(NodesToRead=nodes)))
        return found

    @property
    def url(self) -> str:
        """The server's address."""
        return self._settings.url

    async def service_level(self) -> int:
        """How well the server serves its clients, 0 to 255 (OPC 10000-5, 6.3.1); HEALTHY_LEVEL if it does not say."""
        (level,) = await self._standard_values([ObjectIds.Server_ServiceLevel])
        return level if isinstance(level, int) else HEALTHY_LEVEL

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
            PublishingEnabled=self.is_publishing,
        )
        self.library.creating += 1
        try:
            # Not `create_subscription`, which starts a loop.
            body = await self._call(self._body_of(self.library.send(request)))
        except SourceLost as error:
            self.library.creating -= isinstance(error.__cause__, UaStatusCodeError)
            if not isinstance(error.__cause__, uaerrors.BadTooManySubscriptions):
                raise
            text = (
                f"{self._settings.url} accepts no further subscription (BadTooManySubscriptions); it may keep those of a"
                f" connection that broke for {LIFETIME_MS_MIN // 1000} s, and the source then goes on by itself;"
                " otherwise close another client of it or raise its limit"
            )
            raise TooManySubscriptions(text) from error
        self.library.creating -= 1
        result = ua_binary.struct_from_binary(ua.CreateSubscriptionResult, Buffer(body))
        publishing_ms = publishing_ms_of(result.RevisedPublishingInterval, interval_ms)
        asked_ms = keep_alive * interval_ms
        slower = publishing_ms_of(result.RevisedMaxKeepAliveCount * publishing_ms, asked_ms) / asked_ms
        return OpenedSubscription(result.SubscriptionId, publishing_ms, max(1.0, slower))

    async def enable_publishing(self, numbers: Sequence[int]) -> None:
        """Let these subscriptions publish (OPC 10000-4, 5.14.4). Raises SourceLost."""
        self.is_publishing = True
        asked = ua.SetPublishingModeParameters(PublishingEnabled=True, SubscriptionIds=list(numbers))
        statuses = await self._call(self.library.set_publishing_mode(asked))
        if bad := next((status for status in statuses if not status.is_good()), None):
            raise SourceLost(f"{self._settings.url} does not enable publishing: {bad.name}")

    async def server_start(self) -> object:
        """The server's StartTime; None if it gives none. Read once in a session."""
        if self.start is not None:
            return self.start
        (self.start,) = await self._standard_values([ObjectIds.Server_ServerStatus_StartTime])
        return self.start

    async def transfer_subscriptions(self, numbers: Sequence[int]) -> list[int]:
        """Take over subscriptions of an earlier session, without their present values (OPC 10000-4, 5.14.7). Returns
        the status of each; if the whole call is refused, that status for all. Raises SourceLost."""
        asked = ua.TransferSubscriptionsParameters(SubscriptionIds=list(numbers), SendInitialValues=False)
        try:
            found = await library_call(self.library.transfer_subscriptions(asked))
        except UaStatusCodeError as error:
            return [int(error.code)] * len(numbers)
        except (UaError, OSError, TimeoutError) as error:
            raise SourceLost(f"{self._settings.url} does not answer: {_text(error)}") from error
        statuses = [int(result.StatusCode.value) for result in found]
        return statuses if len(statuses) == len(numbers) else [quality.BAD_NOT_SUPPORTED] * len(numbers)

    async def delete_subscription(self, subscription_id: int) -> None:
        """Delete a subscription. It is no error if the server does not know it."""
        await self._call(self.library.delete_subscriptions([subscription_id]))

    async def create_heartbeat(self, subscription_id: int) -> Created:
        """Monitor the server's clock in a subscription."""
        node = _node_id(ObjectIds.Server_ServerStatus_CurrentTime, 0)
        request = _item_request(HEARTBEAT_HANDLE, node, HEARTBEAT_INTERVAL_MS, 1)
        return (await self._create(subscription_id, [request]))[0]

    async def create_items(self, subscription_id: int, items: Sequence[ItemRequest]) -> list[Created]:
        """Monitor nodes. Returns one result for each. Raises CallTooLarge."""
        return await self._create(subscription_id, [_request_of(item) for item in items])

    async def delete_items(self, subscription_id: int, items: Sequence[int]) -> None:
        """Delete items. It is no error if the server does not know one. Raises CallTooLarge."""
        parameters = ua.DeleteMonitoredItemsParameters(SubscriptionId=subscription_id, MonitoredItemIds=list(items))
        await self._call(self.library.delete_monitored_items(parameters))

    async def publish(self, acks: Sequence[tuple[int, int]]) -> bytes:
        """Acknowledge notifications, given as (subscription, number), and wait for the next one. Returns the parameters
        of the PublishResponse. Raises PublishRefused, or SourceLost if the session has ended."""
        request = ua.PublishRequest()
        request.Parameters.SubscriptionAcknowledgements = [
            ua.SubscriptionAcknowledgement(SubscriptionId=subscription_id, SequenceNumber=number)
            for subscription_id, number in acks
        ]
        try:
            return await self._body_of(self.library.send(request, 0))
        except _PUBLISH_REFUSALS as error:
            raise PublishRefused(error.code) from error
        except (UaError, OSError, TimeoutError) as error:
            raise SourceLost(f"{self._settings.url} refused a Publish: {_text(error)}") from error

    async def decode(self, body: bytes, elements: Container[int] = ()) -> Publication:
        """The values in the parameters of a PublishResponse. Those of the handles in `elements` are single elements of
        arrays. The server is asked for data types that are not known yet. Raises DecodeError."""
        return await self._decoded(lambda: decode_publication(body, self.reader, elements))

    async def _decoded(self, decode: Callable[[], ResultT]) -> ResultT:
        """The result of `decode`, repeated after the types that it needs were requested. Several publications are
        decoded at the same time: those that need a type wait until it is known."""
        found = decode()
        if not self.reader.types.missing and not self._learning.locked():
            return found
        async with self._learning:
            found = decode()
            for _ in range(LEARN_ROUNDS_MAX):
                if not await learn_missing(self.reader.types, self.library):
                    break
                found = decode()
        return found

    async def read_history(
        self, ranges: Sequence[HistoryRange], nodes: Sequence[tuple[Reading, int]], values_max: int
    ) -> list[HistoryPage]:
        """Raw values of nodes, given as (reading, namespace index), one for each range. Raises HistoryRefused if the
        call as a whole fails or times out; the session continues."""
        node_ids = [_node_id(reading.address.identifier, index) for reading, index in nodes]
        parts = [reading.index_range for reading, _ in nodes]
        try:
            body = await self._body_of(self.library.send(history_request(ranges, node_ids, values_max)))
            pages = await self._decoded(lambda: decode_history(body, self.reader, parts))
            return await self._proven(node_ids, pages)
        except _NO_HISTORY as error:
            raise HistoryRefused(_text(error), is_final=True) from error
        except (UaError, OSError, TimeoutError, DecodeError) as error:
            raise HistoryRefused(_text(error), is_final=False) from error

    async def _proven(self, nodes: Sequence[ua.NodeId], pages: list[HistoryPage]) -> list[HistoryPage]:
        """The pages, with empty ones replaced by a refusal if the server keeps no history of the node. Some servers
        (python-opcua) answer an empty page then. The access level of the node shows it. Raises HistoryRefused if not
        each node has a page, because it is not known whose are missing."""
        if len(pages) != len(nodes):
            raise HistoryRefused(f"{len(pages)} results for {len(nodes)} nodes", is_final=False)
        empty = [n for n, page in enumerate(pages) if not (page.status or page.values or page.continuation_point)]
        if not empty:
            return pages
        asked = [ua.ReadValueId(NodeId=nodes[n], AttributeId=AttributeIds.AccessLevel) for n in empty]
        answers = await self.library.read(ua.ReadParameters(NodesToRead=asked))
        for n, answer in zip(empty, answers, strict=False):
            level = answer.Value.Value if answer.Value is not None else None
            if isinstance(level, int) and not level & HISTORY_READ:
                pages[n] = HistoryPage(quality.BAD_NOT_SUPPORTED)
        return pages

    async def republish(self, subscription_id: int, number: int) -> bytes | int:
        """A notification that was sent before, as the parameters of a PublishResponse; the status if the server does
        not hold it any more."""
        request = ua.RepublishRequest()
        request.Parameters.SubscriptionId = subscription_id
        request.Parameters.RetransmitSequenceNumber = number
        try:
            message = await self._body_of(self.library.send(request))
        except UaStatusCodeError as error:
            return int(error.code)
        except UaError:
            return quality.BAD_DECODING_ERROR
        except (OSError, TimeoutError) as error:
            raise SourceLost(f"{self._settings.url} does not answer: {_text(error)}") from error
        return struct.pack("<IiB", subscription_id, 0, 1) + message  # the 1 is "more notifications"

    async def read_values(self, readings: Sequence[Reading], namespaces: Sequence[str]) -> list[DataChange]:
        """Read the values of nodes, in their order; BadNodeIdUnknown if the server does not have the namespace. Raises
        CallTooLarge and DecodeError."""
        return (await self._values_of(readings, namespaces))[0]

    async def read_clock(self) -> ServerClockReading:
        """The server's clock. Raises CallTooLarge and DecodeError."""
        (clock,), answered_ns = await self._values_of([SERVER_CLOCK], [STANDARD_URI])
        shown_ns = clock.server_time_ns or clock.source_time_ns
        return ServerClockReading(shown_ns, read_ns(shown_ns, answered_ns) if shown_ns else 0)

    async def _values_of(self, readings: Sequence[Reading], namespaces: Sequence[str]) -> tuple[list[DataChange], int]:
        """The values, and the time of the answer by the server."""
        request = ua.ReadRequest()
        request.Parameters.TimestampsToReturn = ua.TimestampsToReturn.Both
        for reading in readings:
            index = reading.address.index(namespaces)
            node = _node_id(reading.address.identifier, len(namespaces) if index is None else index)
            wanted = ua.ReadValueId(NodeId=node, AttributeId=AttributeIds.Value)
            if reading.index_range:
                wanted.IndexRange = reading.index_range
            request.Parameters.NodesToRead.append(wanted)
        body, answered_ns = await self._call(self._answer_of(self.library.send(request)))
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
        """Read the server's clock, in ns since 1970; None if it gives none or one that cannot be read."""
        try:
            return (await self.read_clock()).read_ns or None
        except (CallTooLarge, DecodeError):
            return None

    async def _body_of(self, request: Awaitable[Any]) -> bytes:
        """The bytes of a response after its header."""
        return (await self._answer_of(request))[0]

    async def _answer_of(self, request: Awaitable[Any]) -> tuple[bytes, int]:
        """The bytes of a response after its header, and the time in that (OPC 10000-4, 7.29)."""
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
        results = await self._call(self.library.create_monitored_items(parameters))
        if len(results) != len(requests):
            raise SourceLost(f"{self._settings.url} answered {len(results)} results for {len(requests)} items")
        return [
            Created(
                result.StatusCode.value,
                result.MonitoredItemId,
                sampling_ms_of(result.RevisedSamplingInterval, request.RequestedParameters.SamplingInterval),
                result.RevisedQueueSize,
            )
            for result, request in zip(results, requests, strict=True)
        ]

    async def _call(self, request: Awaitable[Any]) -> Any:
        """Make one service call. Errors of the library become CallTooLarge or SourceLost."""
        try:
            return await library_call(request)
        except TOO_LARGE as error:
            raise CallTooLarge(str(error)) from error
        except (UaError, OSError, TimeoutError) as error:
            raise SourceLost(f"a request to {self._settings.url} failed: {_text(error)}") from error


@asynccontextmanager
async def open_session(
    settings: OpcuaSourceSettings, password: str = "", watchdog_s: float = 0.0, key: SessionKey | None = None
) -> AsyncIterator[OpcuaSession]:
    """Connect with a new client, yield the session, and disconnect. `password` is used if there is no `password_file`;
    `watchdog_s` and `key`: see StepTrackingClient."""
    client = new_client(settings, watchdog_s, key)
    session = OpcuaSession(client, settings)

    async def lost(error: Exception) -> None:
        session.note_loss(_text(error))

    try:
        await _connect(client, settings, password)
        client.connection_lost_callback = lost
        yield session
    except asyncio.CancelledError:
        session.library.ending = Ending.CLOSE  # the source is stopped: no other session follows
        raise
    finally:
        client.connection_lost_callback = None
        await disconnect(client)


async def read_in_parts(
    session: OpcuaSession, readings: Sequence[Reading], namespaces: Sequence[str], size: int
) -> tuple[list[DataChange], int]:
    """Read in calls of at most `size` nodes, and of fewer where the server refuses so many. Returns the values, and how
    many nodes it takes. A value that no answer can hold, or that cannot be decoded, is bad and costs no other its
    value. Raises SourceLost."""
    found: list[DataChange] = []
    whole = count = size
    while len(found) < len(readings):
        part = readings[len(found) : len(found) + count]
        try:
            found += await session.read_values(part, namespaces)
            count = size
        except CallTooLarge:
            if len(part) == 1:
                found.append(DataChange(0, None, quality.BAD_ENCODING_LIMITS_EXCEEDED, 0, 0))
            # A single value that is too large says nothing of the calls.
            size = count = whole if len(part) == 1 else (len(part) + 1) // 2
        except DecodeError:
            if len(part) == 1:
                found.append(DataChange(0, None, quality.BAD_DECODING_ERROR, 0, 0))
            count = len(part) // 2 or size
    return found, size


def quiet_library() -> None:
    """Silence asyncua, which logs each loss many times with tracebacks. The supervisor logs it once."""
    logging.getLogger("asyncua").setLevel(logging.CRITICAL + 1)


def new_client(
    settings: OpcuaSourceSettings, watchdog_s: float = 0.0, key: SessionKey | None = None
) -> StepTrackingClient:
    """A client for a `OpcuaSession`, not connected. `watchdog_s` and `key`: see StepTrackingClient."""
    client = StepTrackingClient(settings, watchdog_s, key)
    client.session_timeout = max(SESSION_TIMEOUT_MS_MIN, SIGNS_IN_TIMEOUT * settings.request_timeout_ms)
    client.uaclient.session = _RawSession(client.uaclient)
    client.nodes = Shortcuts(client.uaclient.session)
    return client


async def _connect(client: StepTrackingClient, settings: OpcuaSourceSettings, password: str) -> None:
    try:
        async with timeout(3 * settings.request_timeout_ms / 1000):
            await connect(client, settings, endpoint_client=new_client(settings), password=password)
    except TimeoutError as error:
        raise SourceLost(f"no connection to {settings.url}: no answer in time while {client.step.value}") from error


async def disconnect(client: Client) -> None:
    """Close a connection, in whatever state it is. The server gets a short time to answer. A session that is kept is
    not mentioned: a server may take the goodbye of its channel for its own."""
    session = client.uaclient.session
    is_kept = isinstance(session, _RawSession) and session.ending is Ending.KEEP
    try:
        async with timeout(GOODBYE_S):
            await (client.close_session() if is_kept else client.disconnect())
    except (UaError, OSError, TimeoutError):
        pass
    finally:
        client.disconnect_socket()  # needed if the disconnect failed or was cancelled


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
    """An error in one line, with its class, which often says more than its text."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return f"{type(error).__name__} {error}".strip().splitlines()[0]

"""One session with an OPC UA server, through asyncua. This module, `security` and `type_reader` are all that know asyncua.

Uses the library's connection, security and service calls, and none of its conveniences: no auto_reconnect (it can end
connected and mute), no Subscription objects (a task for each value, or a queue that drops silently), no chunking that
is not there. `_BatchSession` replaces one method, `publish`, so that notifications arrive whole and with their full
source time.

A session is used once: `async with open_session(...)` connects with a new client object and disconnects at the end.
Errors of the library leave as SourceLost, or as SourceRefused with what to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from asyncua import ua
from asyncua.client.client import Client
from asyncua.client.ua_client import UaClient
from asyncua.client.ua_session import UaSession
from asyncua.common.shortcuts import Shortcuts
from asyncua.ua import ua_binary, uaerrors
from asyncua.ua.attribute_ids import AttributeIds
from asyncua.ua.object_ids import ObjectIds
from asyncua.ua.uaerrors import UaError

from agent.ingest.errors import SourceError, SourceLost, SourceRefused
from agent.ingest.opcua.address import NodeAddress
from agent.ingest.opcua.decode import DecodeError, Publication
from agent.ingest.opcua.plan import Created
from agent.ingest.opcua.security import secure
from agent.ingest.opcua.type_reader import decode_learning
from agent.ingest.opcua.variant import ValueReader
from agent.ingest.settings import OpcuaSourceSettings

HEARTBEAT_HANDLE = 2**31 - 1
"""The item on the server's own clock. The other handles are the tags' numbers, which the store counts up from 1: they
stay far below. A handle of 2^32 - 1 (or 0) means "none" to node-opcua, and one above 2^31 - 1 is negative to a server
that keeps it in a signed number."""
HEARTBEAT_INTERVAL_MS = 1_000
SESSION_TIMEOUT_MS = 60_000  # a server keeps a dead session this long, and many servers have few
NOTIFICATIONS_PER_PUBLISH_MAX = 1_000
GOODBYE_S = 2.0  # a server that hangs is not waited for: the loss is to be recorded
LIFETIME_MS_MIN = 120_000  # how long the server keeps a subscription whose Publish we hold back

_TOO_MUCH = (  # the call was too large, not wrong
    uaerrors.BadTooManyOperations,
    uaerrors.BadEncodingLimitsExceeded,
    uaerrors.BadRequestTooLarge,
    uaerrors.BadResponseTooLarge,
    uaerrors.BadTcpMessageTooLarge,
)
_REFUSALS = (  # trying again unchanged will not help
    uaerrors.BadCertificateInvalid,
    uaerrors.BadCertificateUntrusted,
    uaerrors.BadCertificateTimeInvalid,
    uaerrors.BadCertificateUriInvalid,
    uaerrors.BadIdentityTokenInvalid,
    uaerrors.BadIdentityTokenRejected,
    uaerrors.BadSecurityChecksFailed,
    uaerrors.BadSecurityModeRejected,
    uaerrors.BadSecurityPolicyRejected,
    uaerrors.BadUserAccessDenied,
)


class CallTooLarge(SourceError):
    """The server will not take so many operations in one call."""


class Session:
    """An open session with one subscription. Made by `open_session`."""

    def __init__(self, client: Client, settings: OpcuaSourceSettings) -> None:
        self._client, self._settings = client, settings
        self._session = client.uaclient.session
        self.reader = ValueReader()  # of the values that are published to this session
        self._subscription_id = 0
        self.lost: asyncio.Future[SourceLost] = asyncio.get_running_loop().create_future()

    def note_loss(self, why: str) -> None:
        """End the session: `lost` is resolved with the reason."""
        if not self.lost.done():
            self.lost.set_result(SourceLost(f"{self._settings.url}: {why}"))

    async def namespaces(self) -> list[str]:
        """The server's namespace URIs, by index."""
        found = [str(uri) for uri in await self._call(self._client.get_namespace_array())]
        self.reader.namespaces = found
        return found

    async def items_per_call_max(self) -> int:
        """The server's limit for one CreateMonitoredItems; 0 if it has or tells none."""
        node = _node_id(ObjectIds.Server_ServerCapabilities_OperationLimits_MaxMonitoredItemsPerCall, 0)
        parameters = ua.ReadParameters(NodesToRead=[ua.ReadValueId(NodeId=node, AttributeId=AttributeIds.Value)])
        (answer,) = await self._call(self._session.read(parameters))
        value = answer.Value.Value if answer.Value is not None else None
        return value if isinstance(value, int) and answer.StatusCode.is_good() else 0

    async def subscribe(self, on_publication: Callable[[Publication], Awaitable[None]]) -> None:
        """Create the subscription; each publication is awaited before the next Publish acknowledges it."""
        interval_ms = self._settings.publishing_interval_ms
        keep_alive = max(1, self._settings.liveness_timeout_ms // 3 // interval_ms)
        lifetime = max(3 * keep_alive, LIFETIME_MS_MIN // interval_ms)

        async def take(result: object) -> None:
            if not isinstance(result, Publication):
                self.note_loss("the library reports the connection lost")
                return
            if result.status_change is not None and result.status_change & 0x8000_0000:
                self.note_loss(f"the server ended the subscription with status 0x{result.status_change:08X}")
            await on_publication(result)

        parameters = ua.CreateSubscriptionParameters(
            RequestedPublishingInterval=interval_ms,
            RequestedLifetimeCount=lifetime,
            RequestedMaxKeepAliveCount=keep_alive,
            MaxNotificationsPerPublish=NOTIFICATIONS_PER_PUBLISH_MAX,
            PublishingEnabled=True,
        )
        result = await self._call(self._session.create_subscription(parameters, take))
        self._subscription_id = result.SubscriptionId

    async def create_heartbeat(self) -> int:
        """Monitor the server's clock. Returns the status."""
        node = _node_id(ObjectIds.Server_ServerStatus_CurrentTime, 0)
        return (await self._create([(HEARTBEAT_HANDLE, node)], HEARTBEAT_INTERVAL_MS, queue_size=1))[0].status

    async def create_items(self, items: Sequence[tuple[int, NodeAddress, int]]) -> list[Created]:
        """Monitor nodes, given as (handle, address, namespace index). One result each; CallTooLarge if it was too
        many."""
        nodes = [(handle, _node_id(address.identifier, index)) for handle, address, index in items]
        return await self._create(nodes, self._settings.sampling_interval_ms, self._settings.queue_size)

    async def delete_items(self, items: Sequence[int]) -> None:
        """Stop monitoring. An item the server does not know is as good as deleted; CallTooLarge if it was too many."""
        parameters = ua.DeleteMonitoredItemsParameters(
            SubscriptionId=self._subscription_id, MonitoredItemIds=list(items)
        )
        await self._call(self._session.delete_monitored_items(parameters))

    async def _create(self, nodes: Sequence[tuple[int, ua.NodeId]], sampling_ms: int, queue_size: int) -> list[Created]:
        parameters = ua.CreateMonitoredItemsParameters(
            SubscriptionId=self._subscription_id,
            TimestampsToReturn=ua.TimestampsToReturn.Both,
            ItemsToCreate=[_item_request(handle, node, sampling_ms, queue_size) for handle, node in nodes],
        )
        results = await self._call(self._session.create_monitored_items(parameters))
        if len(results) != len(nodes):
            raise SourceLost(f"{self._settings.url} answered {len(results)} results for {len(nodes)} items")
        return [Created(result.StatusCode.value, result.MonitoredItemId) for result in results]

    async def _call(self, request: Awaitable[Any]) -> Any:
        """One service call, its errors in our words."""
        try:
            return await request
        except _TOO_MUCH as error:
            raise CallTooLarge(str(error)) from error
        except (UaError, OSError, TimeoutError) as error:
            raise SourceLost(f"{self._settings.url} does not answer as it should: {_text(error)}") from error


class _BatchSession(UaSession):
    """asyncua's session, with notifications decoded as one batch."""

    def __init__(self, client: UaClient) -> None:
        super().__init__(client)
        self.on_loss: Callable[[str], None] = lambda _: None
        self.reader = ValueReader()

    async def publish(self, acks: list[ua.SubscriptionAcknowledgement]) -> ua.PublishResponse:
        request = ua.PublishRequest()
        request.Parameters.SubscriptionAcknowledgements = acks or []
        try:
            body = await self._send_request(request, timeout=0)
            ua_binary.nodeid_from_binary(body)
            header = ua_binary.struct_from_binary(ua.ResponseHeader, body)
            header.ServiceResult.check()
            publication = await decode_learning(bytes(body), self.reader, self)
        except uaerrors.BadTimeout:
            raise  # the server gave this Publish up; asyncua's loop sends the next
        except (UaError, OSError, TimeoutError, DecodeError) as error:
            self.on_loss(_text(error))
            # The one error at which asyncua's publish loop ends without retrying by itself.
            raise uaerrors.BadNoSubscription from error
        return cast(ua.PublishResponse, _Answer(publication))

    async def end(self) -> None:
        """Wait until the publish loop has ended."""
        if self._publish_task is not None:
            self._publish_task.cancel()
            await asyncio.wait([self._publish_task])


class _Answer:
    """What asyncua's publish loop looks at in a PublishResponse, around our own publication."""

    def __init__(self, publication: Publication) -> None:
        self.Parameters = _Parameters(publication)


class _Parameters(Publication):
    """A publication under the names of the library."""

    __slots__ = ()

    def __init__(self, p: Publication) -> None:
        super().__init__(p.subscription_id, p.sequence_number, p.has_data, p.changes, p.status_change)

    @property
    def SubscriptionId(self) -> int:  # noqa: N802 the library's name
        return self.subscription_id

    @property
    def NotificationMessage(self) -> _Parameters:  # noqa: N802 the library's name
        return self

    @property
    def NotificationData(self) -> bool:  # noqa: N802 the library's name
        return self.has_data

    @property
    def SequenceNumber(self) -> int:  # noqa: N802 the library's name
        return self.sequence_number


@asynccontextmanager
async def open_session(settings: OpcuaSourceSettings) -> AsyncIterator[Session]:
    """Connect with a new client, yield the session, disconnect whatever happened."""
    client = _new_client(settings)
    try:
        async with asyncio.timeout(3 * settings.request_timeout_ms / 1000):
            if settings.security_policy != "None":
                await secure(client, settings, scout=_new_client(settings))
            await client.connect()
    except _REFUSALS as error:
        hint = "let the server trust our certificate, or check user name and policy"
        raise SourceRefused(f"{settings.url} refuses us: {_text(error)}; {hint}") from error
    except (UaError, OSError, TimeoutError) as error:
        raise SourceLost(f"no connection to {settings.url}: {_text(error)}") from error
    inner = client.uaclient.session
    assert isinstance(inner, _BatchSession), "set in _new_client"
    try:
        session = Session(client, settings)
        inner.on_loss, inner.reader = session.note_loss, session.reader
        yield session
    finally:
        await _close(client, inner)


def quiet_library() -> None:
    """asyncua logs each loss many times over, with tracebacks. The supervisor logs what matters, once."""
    logging.getLogger("asyncua").setLevel(logging.CRITICAL + 1)


def _new_client(settings: OpcuaSourceSettings) -> Client:
    timeout_s = settings.request_timeout_ms / 1000
    client = Client(settings.url, timeout=timeout_s, watchdog_intervall=timeout_s, auto_reconnect=False)
    client.name = client.description = "bsfg"
    client.application_uri = settings.application_uri
    client.session_timeout = SESSION_TIMEOUT_MS
    client.uaclient.session = _BatchSession(client.uaclient)
    client.nodes = Shortcuts(client.uaclient.session)
    return client


async def _close(client: Client, inner: _BatchSession) -> None:
    inner.on_loss = lambda _: None
    try:
        async with asyncio.timeout(GOODBYE_S):
            await client.disconnect()
    except (UaError, OSError, TimeoutError):
        client.disconnect_socket()  # the goodbye failed; hanging up does not
    await inner.end()


def _node_id(identifier: Any, index: Any) -> ua.NodeId:
    return ua.NodeId(identifier, index)


def _item_request(handle: int, node: ua.NodeId, sampling_ms: int, queue_size: int) -> ua.MonitoredItemCreateRequest:
    return ua.MonitoredItemCreateRequest(
        ItemToMonitor=ua.ReadValueId(NodeId=node, AttributeId=AttributeIds.Value),
        MonitoringMode=ua.MonitoringMode.Reporting,
        RequestedParameters=ua.MonitoringParameters(
            ClientHandle=handle, SamplingInterval=sampling_ms, QueueSize=queue_size, DiscardOldest=True
        ),
    )


def _text(error: BaseException) -> str:
    """An error in one line; the library's have names that say more than their text."""
    return f"{type(error).__name__} {error}".strip().splitlines()[0]

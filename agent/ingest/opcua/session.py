"""One session with an OPC UA server, through asyncua. The only module that knows asyncua.

Uses the library's connection, security and service calls, and none of its conveniences: no auto_reconnect (it can end
connected and mute), no Subscription objects (a task for each value, or a queue that drops silently), no chunking that is not
there. `_BatchSession` replaces one method, `publish`, so that notifications arrive whole and with their full source time.

A session is used once: `async with open_session(...)` connects with a new client object and disconnects at the end. Errors of
the library leave as SourceLost, or as SourceRefused with what to do.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, cast

from asyncua import ua
from asyncua.client.client import Client
from asyncua.client.ua_client import UaClient
from asyncua.client.ua_session import UaSession
from asyncua.common.shortcuts import Shortcuts
from asyncua.common.utils import Buffer
from asyncua.crypto import security_policies, uacrypto
from asyncua.ua import ua_binary, uaerrors
from asyncua.ua.attribute_ids import AttributeIds
from asyncua.ua.object_ids import ObjectIds
from asyncua.ua.uaerrors import UaError
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from agent.ingest.errors import SourceError, SourceLost, SourceRefused
from agent.ingest.opcua.address import NodeAddress
from agent.ingest.opcua.certificate import ensure_certificate
from agent.ingest.opcua.decode import DecodeError, Publication, decode_publication
from agent.ingest.settings import OpcuaSourceSettings
from agent.message import Json, MessageError, Value

HEARTBEAT_HANDLE = 2**32 - 1  # the item on the server's own clock; tag numbers stay far below
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

_UNREADABLE = (  # what the library's decoder raises at bytes it does not understand
    *(UaError, MessageError, struct.error, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError),
    RecursionError,
)
EXTENSION_OBJECT = 22  # the variant type of one structure


class CallTooLarge(SourceError):
    """The server will not take so many operations in one call."""


class Session:
    """An open session with one subscription. Made by `open_session`."""

    def __init__(self, client: Client, settings: OpcuaSourceSettings) -> None:
        self._client, self._settings = client, settings
        self._session = client.uaclient.session
        self._subscription_id = 0
        self.lost: asyncio.Future[SourceLost] = asyncio.get_running_loop().create_future()

    def note_loss(self, why: str) -> None:
        """The session is over; whoever waits for `lost` learns why."""
        if not self.lost.done():
            self.lost.set_result(SourceLost(f"{self._settings.url}: {why}"))

    async def namespaces(self) -> list[str]:
        """The server's namespace URIs, by index."""
        found = await self._call(self._client.get_namespace_array())
        return [str(uri) for uri in found]

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
        return (await self._create([(HEARTBEAT_HANDLE, node)], HEARTBEAT_INTERVAL_MS, queue_size=1))[0]

    async def create_items(self, items: Sequence[tuple[int, NodeAddress, int]]) -> list[int]:
        """Monitor nodes, given as (handle, address, namespace index). One status each; CallTooLarge if it was too many."""
        nodes = [(handle, _node_id(address.identifier, index)) for handle, address, index in items]
        return await self._create(nodes, self._settings.sampling_interval_ms, self._settings.queue_size)

    async def _create(self, nodes: Sequence[tuple[int, ua.NodeId]], sampling_ms: int, queue_size: int) -> list[int]:
        parameters = ua.CreateMonitoredItemsParameters(
            SubscriptionId=self._subscription_id,
            TimestampsToReturn=ua.TimestampsToReturn.Both,
            ItemsToCreate=[_item_request(handle, node, sampling_ms, queue_size) for handle, node in nodes],
        )
        results = await self._call(self._session.create_monitored_items(parameters))
        if len(results) != len(nodes):
            raise SourceLost(f"{self._settings.url} answered {len(results)} results for {len(nodes)} items")
        return [result.StatusCode.value for result in results]

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

    async def publish(self, acks: list[ua.SubscriptionAcknowledgement]) -> ua.PublishResponse:
        request = ua.PublishRequest()
        request.Parameters.SubscriptionAcknowledgements = acks or []
        try:
            body = await self._send_request(request, timeout=0)
            ua_binary.nodeid_from_binary(body)
            header = ua_binary.struct_from_binary(ua.ResponseHeader, body)
            header.ServiceResult.check()
            publication = decode_publication(bytes(body), 0, _decode_other)
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
                await _secure(client, settings)
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
        inner.on_loss = session.note_loss
        yield session
    finally:
        await _close(client, inner)


def quiet_library() -> None:
    """asyncua logs each loss many times over, with tracebacks. What matters is told by our supervisor, once."""
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


async def _secure(client: Client, settings: OpcuaSourceSettings) -> None:
    """Sign and encrypt, with the server's certificate known beforehand."""
    certificate, key = settings.certificate_file, settings.private_key_file
    assert certificate is not None, "checked with the settings"
    assert key is not None, "checked with the settings"
    await asyncio.to_thread(ensure_certificate, certificate, key, settings.application_uri)
    pinned = await _pinned_certificate(settings)
    if settings.user_name:
        assert settings.password_file is not None, "checked with the settings"
        client.set_user(settings.user_name)
        client.set_password(_read_secret(settings.password_file).decode().rstrip("\r\n"))
    await client.set_security(
        getattr(security_policies, f"SecurityPolicy{settings.security_policy}"),
        _pem_or_der(_read(certificate)),
        _pem_or_der(_read_secret(key)),
        server_certificate=uacrypto.CertProperties(pinned, "der"),
        mode=ua.MessageSecurityMode[settings.security_mode],
    )


async def _pinned_certificate(settings: OpcuaSourceSettings) -> bytes:
    """The server's certificate (DER) that the operator has named; the one it shows is only compared with that."""
    if settings.server_certificate_file is not None:
        data = _read(settings.server_certificate_file)
        try:
            found = (
                x509.load_pem_x509_certificate(data) if b"-----BEGIN" in data else x509.load_der_x509_certificate(data)
            )
        except ValueError as error:
            raise SourceRefused(f"{settings.server_certificate_file} is not a certificate (PEM or DER)") from error
        return found.public_bytes(Encoding.DER)
    endpoints = await _new_client(settings).connect_and_get_server_endpoints()
    mode = ua.MessageSecurityMode[settings.security_mode]
    uri = getattr(security_policies, f"SecurityPolicy{settings.security_policy}").URI
    shown = next(
        (e.ServerCertificate for e in endpoints if e.SecurityMode == mode and e.SecurityPolicyUri == uri), None
    )
    if not shown:
        offered = sorted({f"{e.SecurityPolicyUri.rsplit('#')[-1]}/{e.SecurityMode.name}" for e in endpoints})
        wanted = f"{settings.security_policy}/{settings.security_mode}"
        raise SourceRefused(f"{settings.url} does not offer {wanted}; it offers {', '.join(offered)}")
    shown = shown[: int.from_bytes(shown[2:4], "big") + 4]  # the first of a chain
    fingerprint = hashlib.sha256(shown).hexdigest()
    if fingerprint != settings.server_certificate_sha256:
        known = "is not the pinned one" if settings.server_certificate_sha256 else "is not pinned yet"
        line = f'server_certificate_sha256 = "{fingerprint}"'
        raise SourceRefused(f"the certificate of {settings.url} {known}; compare it at the server, then set {line}")
    return bytes(shown)


def _pem_or_der(data: bytes) -> uacrypto.CertProperties:
    """A certificate or key with its form told by its content; the library goes by the file's name."""
    return uacrypto.CertProperties(data, "pem" if b"-----BEGIN" in data else "der")


def _read_secret(file: Path) -> bytes:
    """A key or a password; refused while everybody on the machine may read it too."""
    data = _read(file)
    if file.stat().st_mode & 0o007:
        raise SourceRefused(f"{file} may be read by everybody; chmod 600 it, and change what it held")
    return data


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SourceRefused(f"{file} cannot be read: {error.strerror}") from error


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


def _decode_other(data: bytes, position: int) -> tuple[Value, int]:
    """A Variant of a shape that `decode` leaves to the library."""
    buffer = Buffer(data, position)
    try:
        plain = _plain(ua_binary.variant_from_binary(buffer).Value)
        return (plain if isinstance(plain, str) else Json.of(plain)), buffer.cur_pos
    except _UNREADABLE as error:
        if data[position] == EXTENSION_OBJECT:
            return _raw_structure(data, position + 1)
        raise DecodeError(f"a value of variant type {data[position] & 0x3F} cannot be read: {error}") from error


def _raw_structure(data: bytes, position: int) -> tuple[Value, int]:
    """A structure whose inside the library cannot read. Its length is known: keep its bytes, and the values beside it."""
    buffer = Buffer(data, position)
    try:
        kind = ua_binary.nodeid_from_binary(buffer)
        form, length = buffer.read(1), ua_binary.Primitives.Int32.unpack(buffer)
        if form == b"\0" or length < 0:
            raise DecodeError("a structure without a length cannot be read")
        return Json.of({"TypeId": kind.to_string(), "Body": buffer.read(length).hex()}), buffer.cur_pos
    except _UNREADABLE as error:
        raise DecodeError(f"a structure cannot be read: {error}") from error


def _plain(value: Any) -> Any:
    """A library value in JSON terms: structures as objects, ids and times as text, bytes as hexadecimal text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < 2**53 else str(value)
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, ua.NodeId):
        return value.to_string()
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value) if f.name != "Encoding"}
    return str(value)


def _text(error: BaseException) -> str:
    """An error in one line; the library's have names that say more than their text."""
    return f"{type(error).__name__} {error}".strip().splitlines()[0]

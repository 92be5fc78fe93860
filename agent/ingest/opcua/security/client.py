"""asyncua's client, extended by the step at which a connection failed, and by the session of an earlier connection that
it reactivates; and `connect`, which explains a failure."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from asyncua import ua
from asyncua.client.ua_client import UaClientState
from asyncua.crypto import uacrypto
from asyncua.ua import uaerrors
from asyncua.ua.attribute_ids import AttributeIds
from asyncua.ua.object_ids import ObjectIds
from asyncua.ua.uaerrors import UaError, UaStatusCodeError
from cryptography.exceptions import InvalidSignature

from agent.concurrency import timeout
from agent.ingest.errors import SourceLost, SourceRefused
from agent.ingest.opcua.security.channel import SecuredClient, secure
from agent.ingest.opcua.security.refusal import (
    CLOSED,
    NAME_UNKNOWN,
    NOT_OPC_UA,
    PORT_CLOSED,
    SILENT,
    SWAPPED,
    ClientIdentity,
    ConnectStep,
    Failure,
    explain,
)
from agent.ingest.opcua.security.transport import CHANNEL_LIFETIME_MS, NotOpcUa, Transport
from agent.settings.sources import OpcuaSourceSettings

_Answer = TypeVar("_Answer")

SIGNS_IN_TIMEOUT = 3  # requests within the time-out of a session, if little is published

_FORGED = (InvalidSignature, uacrypto.InvalidSignature)  # type: ignore[attr-defined]
_UNREADABLE = (AssertionError, struct.error, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError)


TOO_LARGE = (  # refusals of a call for its size
    uaerrors.BadTooManyOperations,
    uaerrors.BadEncodingLimitsExceeded,
    uaerrors.BadRequestTooLarge,
    uaerrors.BadResponseTooLarge,
    uaerrors.BadTcpMessageTooLarge,
)


_SESSION_OVER = (  # of any request
    uaerrors.BadSessionIdInvalid,
    uaerrors.BadSessionClosed,
    uaerrors.BadSessionNotActivated,
    uaerrors.BadSecureChannelIdInvalid,
    uaerrors.BadSecureChannelClosed,
)


RENEW_AFTER = 0.75  # of the lifetime of a secure channel (OPC 10000-4, 5.5.2.1)
RENEW_PAUSE = 0.05  # of the lifetime, between two attempts


class ChannelNotRenewed(UaError):
    """The secure channel expires and was not renewed."""


class Unreadable(UaError):
    """An answer that the library cannot decode."""


@dataclass(slots=True)
class SessionKey:
    """What another connection needs to reactivate a session: its token and time-out, the last nonce of the server, and
    the user token policies of the server. `was_refused`: an attempt did not succeed."""

    token: ua.NodeId
    nonce: bytes | None
    policies: Sequence[ua.UserTokenPolicy]
    timeout_ms: int
    was_refused: bool = False


class StepTrackingClient(SecuredClient):
    """The library's client. `step` is the present step of connecting, or the one that failed."""

    step = ConnectStep.TCP
    has_reactivated = False

    def __init__(self, settings: OpcuaSourceSettings, watchdog_s: float = 0.0, key: SessionKey | None = None) -> None:
        """`watchdog_s`: interval and time-out of the library's requests for a sign of life; 0: those of any request.
        `key`: of the session to reactivate."""
        self._key = key
        timeout_s = settings.request_timeout_ms / 1000
        watchdog_s = watchdog_s or timeout_s
        super().__init__(settings.url, timeout=timeout_s, watchdog_intervall=watchdog_s, auto_reconnect=False)
        self.name = self.description = "bsfg"
        self.application_uri = settings.application_uri
        self.secure_channel_timeout = CHANNEL_LIFETIME_MS
        self.uaclient = Transport(timeout_s)
        self.uaclient.pre_request_hook = self._wait_until_ready

    async def connect_socket(self) -> None:
        self.step = ConnectStep.TCP
        await super().connect_socket()

    async def send_hello(self) -> None:
        self.step = ConnectStep.HELLO
        await super().send_hello()

    async def open_secure_channel(self, renew: bool = False) -> None:  # noqa: FBT001, FBT002 the library's signature
        if not renew:
            self.step = ConnectStep.CHANNEL
        await super().open_secure_channel(renew)

    async def create_session(self) -> ua.CreateSessionResult:
        self.step = ConnectStep.SESSION
        return await super().create_session()

    async def _create_and_activate_session(self) -> None:
        """Reactivate the session of the key (ActivateSession, OPC 10000-4, 5.7.3); create one if there is no key, or if
        the server refuses. After any failure the key counts as refused: a server may close the channel instead of
        answering, and would do so each time."""
        if self._key is not None and not self._key.was_refused:
            self._key.was_refused = True
            self.uaclient.session.restore_authentication_token(self._key.token)
            self._server_nonce = self._key.nonce  # type: ignore[assignment] # None at first
            self._policy_ids = list(self._key.policies)
            try:
                await self._activate_with_credentials()
            except UaStatusCodeError:
                self.uaclient.session.reset_authentication_token()
                self._server_nonce = None
            else:
                self._key.was_refused, self.has_reactivated = False, True
                self.session_timeout = self._key.timeout_ms
                return
        await super()._create_and_activate_session()

    async def activate_session(self, *arguments: object, **more: object) -> ua.ActivateSessionResult:
        self.step = ConnectStep.USER
        return await super().activate_session(*arguments, **more)  # type: ignore[arg-type]

    async def _renew_channel_loop(self) -> None:
        """Renew the secure channel, with further attempts until it expires. The library gives up after one attempt, and
        the channel expires silently. Here the session ends if the channel cannot be renewed."""
        loop = asyncio.get_running_loop()
        while True:
            lifetime_s = self.secure_channel_timeout / 1000
            ends_s = loop.time() + lifetime_s
            await asyncio.sleep(RENEW_AFTER * lifetime_s)
            while (error := await self._renew_channel()) is not None:
                if loop.time() + RENEW_PAUSE * lifetime_s >= ends_s:
                    await self._end_with(ChannelNotRenewed(f"the secure channel ends, and is not renewed: {error!r}"))
                    return
                await asyncio.sleep(RENEW_PAUSE * lifetime_s)

    async def _renew_channel(self) -> Exception | None:
        """Renew the secure channel. Returns the error, None if it was renewed."""
        try:
            await library_call(self.open_secure_channel(renew=True))
        except (UaError, OSError, TimeoutError) as error:
            return error
        self.uaclient.revolve_security_token()
        return None

    async def _end_with(self, why: Exception) -> None:
        """End the session from this side. Its requests fail."""
        if self.connection_lost_callback is not None:
            await self.connection_lost_callback(why)
        self.disconnect_socket()

    async def _wait_for_health_signal(self) -> None:
        """Wait until the connection ends, or until a sign of life is due and has arrived. The library reads the
        server's state, and ends the session if this user may not read it or the server does not have it; here any
        answer is a sign of life. It is requested more often if the server has shortened the time-out of the session.
        Raises the library's errors and TimeoutError."""
        async with self.uaclient.subscribe_state() as changes:
            with suppress(TimeoutError):
                await changes.next_change(min(self._watchdog_intervall, self.session_timeout / 1000 / SIGNS_IN_TIMEOUT))
        if self.uaclient.state is not UaClientState.CONNECTED:
            return
        state: Any = ObjectIds.Server_ServerStatus_State
        asked = ua.ReadValueId(NodeId=ua.NodeId(state, 0), AttributeId=AttributeIds.Value)  # type: ignore[arg-type]
        try:
            async with timeout(self._watchdog_intervall):
                await library_call(self.uaclient.session.read(ua.ReadParameters(NodesToRead=[asked])))
        except _SESSION_OVER:
            raise
        except UaError:
            pass  # it concerns this Read only

    @property
    def session_key(self) -> SessionKey:
        """The key of the session of this connection."""
        token = self.uaclient.session.authentication_token
        return SessionKey(token, self._server_nonce, self._policy_ids, self.session_timeout)


async def connect(
    client: StepTrackingClient, settings: OpcuaSourceSettings, endpoint_client: StepTrackingClient, password: str = ""
) -> None:
    """Connect by the settings. `endpoint_client` reads the endpoints of the server without security. `password` is used
    if there is no `password_file`. Raises SourceRefused and SourceLost."""
    identity, at = ClientIdentity(settings.url, "None"), endpoint_client  # which asks without security
    try:
        if settings.security_policy != "None" or settings.user_name:
            offered = partial(ask_endpoints, endpoint_client)
            identity = await secure(client, settings, offered, password)
        at = client
        await library_call(client.connect())
    except (UaError, OSError, TimeoutError, *_FORGED) as error:
        failure = _failure(at, error)
        explained = explain(failure, identity, client.session_timeout / 1000)
        is_closed = isinstance(explained, SourceRefused) and failure.status == CLOSED
        if is_closed and not await _answers(endpoint_client):
            # The server does not answer at all: it is shutting down and does not refuse the connection.
            explained = SourceLost(f"no connection to {settings.url}: {CLOSED} while {failure.step.value}")
        raise explained from error


async def ask_endpoints(endpoint_client: StepTrackingClient) -> list[ua.EndpointDescription]:
    """The endpoints of the server, read without security. Raises the library's errors."""
    return await library_call(endpoint_client.connect_and_get_server_endpoints())


async def offered_endpoints(
    endpoint_client: StepTrackingClient, settings: OpcuaSourceSettings
) -> list[ua.EndpointDescription]:
    """The opc.tcp endpoints of the server. Raises SourceRefused and SourceLost with the step that failed."""
    try:
        found = await ask_endpoints(endpoint_client)
    except (UaError, OSError, TimeoutError) as error:
        raise explain(_failure(endpoint_client, error), ClientIdentity(settings.url, "None")) from error
    return [endpoint for endpoint in found if str(endpoint.EndpointUrl).startswith("opc.tcp:")]


async def _answers(endpoint_client: StepTrackingClient) -> bool:
    try:
        await ask_endpoints(endpoint_client)
    except (UaError, OSError, TimeoutError):
        return False
    return True


async def library_call(call: Awaitable[_Answer]) -> _Answer:
    """Make a call of the library. Errors of its decoder, assertions included, are caused by the server's answer and
    must not end the process: they become Unreadable."""
    try:
        return await call
    except _UNREADABLE as error:
        raise Unreadable("an answer that the library cannot read") from error


def _failure(client: StepTrackingClient, error: Exception) -> Failure:
    """The step and status of a library error. The order counts, because TimeoutError and gaierror are OSErrors."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, NotOpcUa):
        return Failure(ConnectStep.HELLO, NOT_OPC_UA, text)
    if isinstance(error, UaStatusCodeError):
        return Failure(client.step, type(error).__name__)
    if isinstance(error, TimeoutError):
        return Failure(client.step, SILENT)
    if "certificate mismatch" in text or isinstance(error, _FORGED):
        return Failure(client.step, SWAPPED)
    if isinstance(error, socket.gaierror):
        return Failure(ConnectStep.TCP, NAME_UNKNOWN, text)
    refused = (
        isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in text
    )  # of several addresses
    if refused and client.step is ConnectStep.TCP:
        return Failure(ConnectStep.TCP, PORT_CLOSED)
    if isinstance(error, ConnectionError) and client.step is not ConnectStep.TCP:
        return Failure(client.step, CLOSED)
    return Failure(client.step, f"{type(error).__name__} {text}")

"""asyncua's client, made to say at which step a connection failed, and `connect`, which explains it.

Three things the library gets wrong are corrected here. A server may answer OpenSecureChannel with a ServiceFault
(node-opcua does so for a certificate it does not trust); the library takes it for the response, and ends in an
AssertionError. What is not OPC UA at all (a web server) leaves it waiting for the rest of a message. And it compares
the server's clock with ours when the channel is renewed.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Awaitable
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from asyncua import ua
from asyncua.client.client import Client
from asyncua.client.ua_client import UaClient, UASocketProtocol
from asyncua.common.connection import SecureConnection
from asyncua.crypto import uacrypto
from asyncua.crypto.security_policies import SecurityPolicy
from asyncua.ua import ua_binary, uaerrors
from asyncua.ua.object_ids import ObjectIds
from asyncua.ua.uaerrors import UaError, UaStatusCodeError
from cryptography.exceptions import InvalidSignature

from agent.ingest.errors import SourceBusy, SourceError, SourceLost, SourceRefused
from agent.ingest.opcua.security.channel import secure
from agent.ingest.opcua.security.refusal import (
    CLOSED,
    NAME_UNKNOWN,
    NOT_OPC_UA,
    PORT_CLOSED,
    SILENT,
    SWAPPED,
    Explanation,
    Failure,
    Identity,
    Step,
    explain,
)
from agent.ingest.settings import OpcuaSourceSettings

_Answer = TypeVar("_Answer")
_FIRST_WORDS = (b"ACK", b"ERR")  # OPC 10000-6, 7.1.2.2: what may answer a Hello
_SHOWN_BYTES_MAX = 24  # of an answer that is not OPC UA


_NO_TIME = datetime(9000, 1, 1, tzinfo=UTC)  # room for a lifetime to be added
_FORGED = (InvalidSignature, uacrypto.InvalidSignature)  # type: ignore[attr-defined]
_UNREADABLE = (AssertionError, struct.error, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError)


TOO_LARGE = (  # the refusals of a call that is too large, not wrong
    uaerrors.BadTooManyOperations,
    uaerrors.BadEncodingLimitsExceeded,
    uaerrors.BadRequestTooLarge,
    uaerrors.BadResponseTooLarge,
    uaerrors.BadTcpMessageTooLarge,
)


class Unreadable(UaError):
    """An answer that the library does not understand."""


class NotOpcUa(UaError):
    """What answers at the port speaks another protocol."""


class _Connection(SecureConnection):
    """The library's secure channel, whose old token is not judged by two clocks. It compares the time at which the
    server issued the token with ours: a server whose clock is half an hour behind, such as one that takes local time
    for UTC, lost its connection at each renewal of the channel. The keys of an old token expire by the monotonic
    clock."""

    def set_channel(
        self, params: ua.OpenSecureChannelResult, request_type: ua.SecurityTokenRequestType, client_nonce: bytes
    ) -> None:
        params.SecurityToken.CreatedAt = _NO_TIME
        super().set_channel(params, request_type, client_nonce)


class _Protocol(UASocketProtocol):
    """The library's reader of a connection, with the corrections."""

    _has_answered = False

    def __init__(self, timeout_s: float, security_policy: SecurityPolicy) -> None:
        super().__init__(timeout_s, security_policy)
        self._connection = _Connection(security_policy, self._connection._limits)  # noqa: SLF001

    def data_received(self, data: bytes) -> None:
        if not self._has_answered:
            self._has_answered = True
            if not any(word.startswith(data[:3]) for word in _FIRST_WORDS):
                self._fail_all_pending(NotOpcUa(f"it says {bytes(data[:_SHOWN_BYTES_MAX])!r}"))
                self.disconnect_socket()
                return
        super().data_received(data)

    def _process_received_message(self, msg: ua.Message | ua.Acknowledge | ua.ErrorMessage | None) -> None:
        if isinstance(msg, ua.Message) and isinstance(_header(msg), ua.AsymmetricAlgorithmHeader):
            body = msg.body()  # type: ignore[no-untyped-call]
            if ua_binary.nodeid_from_binary(body) == _SERVICE_FAULT:
                ua_binary.struct_from_binary(ua.ResponseHeader, body).ServiceResult.check()
        super()._process_received_message(msg)


def _header(message: ua.Message) -> object:
    return message.SecurityHeader()  # type: ignore[no-untyped-call]


_SERVICE_FAULT = ua.FourByteNodeId(ObjectIds.ServiceFault_Encoding_DefaultBinary)  # type: ignore[arg-type]


class _Transport(UaClient):
    """The library's transport, with our reader."""

    def _make_protocol(self) -> UASocketProtocol:
        self.protocol = _Protocol(self._timeout, security_policy=self.security_policy)
        self.protocol.pre_request_hook = self._pre_request_hook
        self.protocol.on_connection_lost = self._on_transport_lost
        self.protocol.is_session_closing = self._is_session_closing
        return self.protocol


class SteppedClient(Client):
    """The library's client; `step` is the step of connecting that it is at, or failed at."""

    step = Step.TCP

    def __init__(self, settings: OpcuaSourceSettings, watchdog_s: float = 0.0) -> None:
        """`watchdog_s`: how often the library asks for a sign of life, and for how long it waits for the answer; 0: as
        for any request."""
        timeout_s = settings.request_timeout_ms / 1000
        watchdog_s = watchdog_s or timeout_s
        super().__init__(settings.url, timeout=timeout_s, watchdog_intervall=watchdog_s, auto_reconnect=False)
        self.name = self.description = "bsfg"
        self.application_uri = settings.application_uri
        self.uaclient = _Transport(timeout_s)
        self.uaclient.pre_request_hook = self._wait_until_ready

    async def connect_socket(self) -> None:
        self.step = Step.TCP
        await super().connect_socket()

    async def send_hello(self) -> None:
        self.step = Step.HELLO
        await super().send_hello()

    async def open_secure_channel(self, renew: bool = False) -> None:  # noqa: FBT001, FBT002 the library's signature
        if not renew:
            self.step = Step.CHANNEL
        await super().open_secure_channel(renew)

    async def create_session(self) -> ua.CreateSessionResult:
        self.step = Step.SESSION
        return await super().create_session()

    async def activate_session(self, *arguments: object, **more: object) -> ua.ActivateSessionResult:
        self.step = Step.USER
        return await super().activate_session(*arguments, **more)  # type: ignore[arg-type]


async def connect(
    client: SteppedClient, settings: OpcuaSourceSettings, scout: SteppedClient, password: str = ""
) -> None:
    """Connect as the settings say; `scout` asks the server unsecured what it offers, `password` stands in for
    `password_file`. Raises SourceRefused or SourceLost."""
    we, at = Identity(settings.url, settings.security_policy), scout
    try:
        if settings.security_policy != "None":
            offered = partial(ask_endpoints, scout)
            we = await secure(client, settings, offered, password)
        at = client
        await of_library(client.connect())
    except (UaError, OSError, TimeoutError, *_FORGED) as error:
        failure = _failure(at, error)
        explanation = explain(failure, we, client.session_timeout / 1000)
        if explanation.is_refusal and failure.status == CLOSED and not await _answers(scout):
            # Closed by a server that is going down, not by one that refuses us.
            explanation = Explanation(False, f"no connection to {settings.url}: {CLOSED} while {failure.step.value}")
        raise _error(explanation) from error


def _error(explanation: Explanation) -> SourceError:
    if explanation.is_refusal:
        return SourceRefused(explanation.text)
    return SourceBusy(explanation.text) if explanation.is_busy else SourceLost(explanation.text)


async def ask_endpoints(scout: SteppedClient) -> list[ua.EndpointDescription]:
    """What the server offers, asked unsecured. Raises the library's errors."""
    return await of_library(scout.connect_and_get_server_endpoints())


async def offered_endpoints(scout: SteppedClient, settings: OpcuaSourceSettings) -> list[ua.EndpointDescription]:
    """What the server offers over opc.tcp. Raises SourceRefused and SourceLost, which say at which step it failed."""
    try:
        found = await ask_endpoints(scout)
    except (UaError, OSError, TimeoutError) as error:
        raise _error(explain(_failure(scout, error), Identity(settings.url, "None"))) from error
    return [each for each in found if str(each.EndpointUrl).startswith("opc.tcp:")]


async def _answers(scout: SteppedClient) -> bool:
    try:
        await ask_endpoints(scout)
    except (UaError, OSError, TimeoutError):
        return False
    return True


async def of_library(call: Awaitable[_Answer]) -> _Answer:
    """A call of the library. What its decoder raises is about the server's answer, and no mistake of ours that must end
    the process: it leaves as Unreadable."""
    try:
        return await call
    except _UNREADABLE as error:
        raise Unreadable("an answer that the library cannot read") from error


def _failure(client: SteppedClient, error: Exception) -> Failure:
    """The library's error as step and status. Order counts: TimeoutError and gaierror are OSErrors."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, NotOpcUa):
        return Failure(Step.HELLO, NOT_OPC_UA, text)
    if isinstance(error, UaStatusCodeError):
        return Failure(client.step, type(error).__name__)
    if isinstance(error, TimeoutError):
        return Failure(client.step, SILENT)
    if "certificate mismatch" in text or isinstance(error, _FORGED):
        return Failure(client.step, SWAPPED)
    if isinstance(error, socket.gaierror):
        return Failure(Step.TCP, NAME_UNKNOWN, text)
    refused = (
        isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in text
    )  # of several addresses
    if refused and client.step is Step.TCP:
        return Failure(Step.TCP, PORT_CLOSED)
    if isinstance(error, ConnectionError) and client.step is not Step.TCP:
        return Failure(client.step, CLOSED)
    return Failure(client.step, f"{type(error).__name__} {text}")

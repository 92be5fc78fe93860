"""asyncua's transport (OPC 10000-6, 6.7 and 7.1), with corrections.

- A server may answer OpenSecureChannel with a ServiceFault (node-opcua does so for a certificate that it does not
  trust). The library takes it for the response and raises AssertionError.
- If the other side does not speak OPC UA (a web server), the library waits for the rest of a message.
- The library compares the server's clock with ours when the channel is renewed.
- It accepts any time-out of a session and lifetime of a channel from a server: with 0 it renews the channel all the
  time.
- It does not renew a channel again after a renewal was not answered in time, and misinterprets the late answer.
- It does not close a connection when a sign of life does not arrive.
- It announces chunks of any size, and takes the limits in the server's Acknowledge for its own: it refuses answers that
  are longer than the requests that the server accepts, and sends requests for which the server closes the connection.
- It ignores an aborted answer and waits for it for ever, and closes the connection at an answer that is too large,
  which the server then repeats on the next one. Here such an answer is discarded, and only its request fails.
- It needs the list of endpoints in the answer to CreateSession. Some servers leave it empty if they were reached by a
  name that they do not know (gopcua).
- It closes the connection at an answer to no open request, and numbers the requests of every connection from 1.
  asyncua's server answers for a subscription that was taken over with the request numbers of the earlier connection:
  these must not be numbers of requests that are open here. The notifications are requested again.
- Below Python 3.12, a request that is cancelled while its TCP connection is established continues as if it were not
  (asyncio.wait_for).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from asyncua import ua
from asyncua.client.ua_client import UaClient, UaClientState, UASocketProtocol
from asyncua.common.connection import MessageChunk, SecureConnection, TransportLimits
from asyncua.common.utils import Buffer
from asyncua.crypto.security_policies import SecurityPolicy
from asyncua.ua import ua_binary, uaerrors
from asyncua.ua.object_ids import ObjectIds
from asyncua.ua.uaerrors import UaError, UaStatusCodeError

from agent.concurrency import timeout
from agent.ingest.dial import dial, look_up

log = logging.getLogger(__name__)

CHUNK_BYTES_MAX = 65_535  # in both directions; a server may accept less
CHUNK_BYTES_MIN = 1_024  # a smaller declared receive buffer, such as 0, is ignored
CHUNK_BYTES_ALWAYS = 8_192  # and this size is used (OPC 10000-6, 7.1.2.4)
MESSAGE_BYTES_MAX = 64 * 2**20  # of one answer: 1,000 values of 64 KiB, the longest of a fact

CHANNEL_LIFETIME_MS = 3_600_000  # requested
REVISED_MS_MIN = 1_000  # shortest accepted time-out or lifetime, whatever the server answers

_FIRST_WORDS = (b"ACK", b"ERR")  # OPC 10000-6, 7.1.2.2: possible answers to a Hello
_CHUNKS = (b"MSG", b"OPN")
_SHOWN_BYTES_MAX = 24  # of an answer that is not OPC UA
_NO_TIME = datetime(9000, 1, 1, tzinfo=UTC)  # room for a lifetime to be added
_SERVICE_FAULT = ua.FourByteNodeId(ObjectIds.ServiceFault_Encoding_DefaultBinary)  # type: ignore[arg-type]


def revised_ms(told_ms: float, asked_ms: float) -> float:
    """A time-out or lifetime that the server has revised. The requested one is used if the revised one makes no sense
    (0, less, no number) or is longer."""
    return min(max(told_ms, REVISED_MS_MIN), asked_ms) if told_ms > 0 else asked_ms


class NotOpcUa(UaError):
    """The server at the port speaks another protocol."""


@dataclass(frozen=True, slots=True)
class _Aborted:
    """An answer of several chunks that the server aborted, or that was discarded here, for example because it became
    too long."""

    request_id: int
    status: int


class _Limits(TransportLimits):
    """What each side may send. The fields of the library limit what is received; 0 chunks: no limit."""

    def __init__(self) -> None:
        super().__init__(CHUNK_BYTES_MAX, CHUNK_BYTES_MAX, 0, MESSAGE_BYTES_MAX)
        self.request_bytes_max = self.request_chunks_max = 0  # 0: the server has no such limit

    def update_client_limits(self, msg: ua.Acknowledge) -> None:
        """Take in the limits that the server declares (OPC 10000-6, 7.1.2.4)."""
        received = msg.ReceiveBufferSize if msg.ReceiveBufferSize >= CHUNK_BYTES_MIN else CHUNK_BYTES_ALWAYS
        self.max_send_buffer = min(CHUNK_BYTES_MAX, received)
        self.max_recv_buffer = min(MESSAGE_BYTES_MAX, max(CHUNK_BYTES_MAX, msg.SendBufferSize))
        self.request_bytes_max, self.request_chunks_max = msg.MaxMessageSize, msg.MaxChunkCount


class _Connection(SecureConnection):
    """The library's secure channel, with the server's limits, and without comparing two clocks for old tokens. The
    library compares the time at which the server issued a token with our clock: a server whose clock is half an hour
    behind lost its connection at each renewal. Here the keys of an old token expire by the monotonic clock."""

    def __init__(self, security_policy: SecurityPolicy) -> None:
        self._server = _Limits()
        self._is_too_large = False  # the message of which a part has arrived
        super().__init__(security_policy, self._server)

    def set_channel(
        self, params: ua.OpenSecureChannelResult, request_type: ua.SecurityTokenRequestType, client_nonce: bytes
    ) -> None:
        token = params.SecurityToken
        token.CreatedAt = _NO_TIME
        token.RevisedLifetime = int(revised_ms(token.RevisedLifetime, CHANNEL_LIFETIME_MS))
        super().set_channel(params, request_type, client_nonce)

    def message_to_binary(
        self, message: bytes, message_type: Any = ua.MessageType.SecureMessage, request_id: int = 0
    ) -> bytes:
        """The chunks of a message. Raises BadRequestTooLarge for a message that the server does not accept, because it
        would close the connection."""
        if message_type == ua.MessageType.SecureMessage:
            crypto, limits = self.security_policy.symmetric_cryptography, self._server
            chunks_bytes = limits.request_chunks_max * MessageChunk.max_body_size(crypto, limits.max_send_buffer)
            if 0 < limits.request_bytes_max < len(message) or 0 < chunks_bytes < len(message):
                raise uaerrors.BadRequestTooLarge
        return super().message_to_binary(message, message_type, request_id)

    def _receive(self, msg: Any) -> ua.Message | _Aborted | None:  # type: ignore[override]
        is_aborted, content = msg.MessageHeader.ChunkType == ua.ChunkType.Abort, msg.Body
        self._is_too_large |= self._incoming_size + len(content) > MESSAGE_BYTES_MAX
        if self._is_too_large and not is_aborted:
            msg.Body, self._incoming_size = b"", 0
            del self._incoming_parts[1:]  # the first shows to which request the next ones belong
        found = super()._receive(msg)
        is_discarded, self._is_too_large = self._is_too_large, self._is_too_large and found is None and not is_aborted
        if is_aborted:
            error = ua_binary.struct_from_binary(ua.ErrorMessage, Buffer(content))
            return _Aborted(msg.SequenceHeader.RequestId, error.Error.value)
        if is_discarded and found is not None:
            return _Aborted(msg.SequenceHeader.RequestId, uaerrors.BadResponseTooLarge.code)
        return found


class Protocol(UASocketProtocol):
    """The library's protocol of a connection, with the corrections."""

    _has_answered = False

    def __init__(self, timeout_s: float, security_policy: SecurityPolicy) -> None:
        super().__init__(timeout_s, security_policy)
        self._connection = _Connection(security_policy)
        self._request_id = secrets.randbelow(2**31)
        self._opening: dict[int, ua.OpenSecureChannelParameters] = {}  # by request, because an answer may be late

    async def send_hello(self, url: str, *_: int) -> ua.Acknowledge:
        hello: Any = ua.Hello()
        hello.ReceiveBufferSize = hello.SendBufferSize = CHUNK_BYTES_MAX
        hello.MaxMessageSize, hello.MaxChunkCount = MESSAGE_BYTES_MAX, 0
        hello.EndpointUrl = url
        answer: asyncio.Future[ua.Acknowledge] = asyncio.get_running_loop().create_future()
        self._callbackmap[0] = answer
        if self.transport is not None:
            hello_type: Any = ua.MessageType.Hello
            self.transport.write(ua_binary.uatcp_to_binary(hello_type, hello))
        async with timeout(self.timeout):
            return await answer

    def _send_request(self, request: Any, *arguments: Any, **more: Any) -> asyncio.Future[Any]:
        answer = super()._send_request(request, *arguments, **more)
        if isinstance(request, ua.OpenSecureChannelRequest):
            self._opening[self._request_id] = request.Parameters
        return answer

    async def open_secure_channel(self, params: ua.OpenSecureChannelParameters) -> ua.OpenSecureChannelResult:
        self._open_secure_channel_exchange = None  # left from a request that was not answered in time
        return await super().open_secure_channel(params)

    def data_received(self, data: bytes) -> None:
        if not self._has_answered:
            self._has_answered = True
            if not any(word.startswith(data[:3]) for word in _FIRST_WORDS):
                self._fail_all_pending(NotOpcUa(f"it says {bytes(data[:_SHOWN_BYTES_MAX])!r}"))
                self.disconnect_socket()
                return
        super().data_received(data)
        begun = self.receive_buffer or b""  # an incomplete chunk
        size = int.from_bytes(begun[4:8], "little") if begun[:3] in _CHUNKS else 0
        if size > self._connection._limits.max_recv_buffer:  # noqa: SLF001 the library would collect all of it
            self._fail_all_pending(UaError(f"a chunk of {size:,} bytes"))
            self.disconnect_socket()

    def _process_received_message(self, msg: ua.Message | ua.Acknowledge | ua.ErrorMessage | _Aborted | None) -> None:
        if isinstance(msg, _Aborted):
            waiting = self._callbackmap.pop(msg.request_id, None)
            if waiting is not None and not waiting.done():
                waiting.set_exception(UaStatusCodeError(msg.status))  # type: ignore[no-untyped-call]
            return
        if isinstance(msg, ua.Message) and isinstance(_header(msg), ua.AsymmetricAlgorithmHeader):
            body = msg.body()  # type: ignore[no-untyped-call]
            if ua_binary.nodeid_from_binary(body) == _SERVICE_FAULT:
                ua_binary.struct_from_binary(ua.ResponseHeader, body).ServiceResult.check()
            # The keys are made with its nonce.
            self._open_secure_channel_exchange = self._opening.pop(_request_of(msg), None)
        super()._process_received_message(msg)

    def _call_callback(self, request_id: int, body: Buffer | ua.Acknowledge) -> None:
        if request_id not in self._callbackmap:
            log.debug("an answer to no open request", extra={"action": "answer_unknown", "request": request_id})
            return
        super()._call_callback(request_id, body)


def _header(message: ua.Message) -> object:
    return message.SecurityHeader()  # type: ignore[no-untyped-call]


def _request_of(message: ua.Message) -> int:
    return int(message.request_id())  # type: ignore[no-untyped-call]


class Transport(UaClient):
    """The library's transport, with our protocol."""

    def _make_protocol(self) -> UASocketProtocol:
        self.protocol = Protocol(self._timeout, security_policy=self.security_policy)
        self.protocol.pre_request_hook = self._pre_request_hook
        self.protocol.on_connection_lost = self._on_transport_lost
        self.protocol.is_session_closing = self._is_session_closing
        return self.protocol

    async def connect_socket(self, host: str, port: int) -> None:
        self._set_state(UaClientState.CONNECTING)
        try:
            await dial(self._make_protocol, await look_up(host, port), port, self._timeout)
        except BaseException:
            self._set_state(UaClientState.DISCONNECTED)
            raise
        self._set_state(UaClientState.SOCKET_OPEN)

    def disconnect_socket(self) -> None:
        protocol = self.protocol
        super().disconnect_socket()  # does nothing if the connection counts as lost
        if protocol is not None and protocol.transport is not None:
            protocol.disconnect_socket()

    async def create_session(self, parameters: ua.CreateSessionParameters) -> ua.CreateSessionResult:
        """As the library, with a usable time-out. An empty list of endpoints is replaced by the endpoint in use, which
        was chosen before. The library needs it only for the user token policies."""
        found = await super().create_session(parameters)
        found.RevisedSessionTimeout = revised_ms(found.RevisedSessionTimeout, parameters.RequestedSessionTimeout)
        if not found.ServerEndpoints:
            used = ua.EndpointDescription(EndpointUrl=parameters.EndpointUrl)
            used.SecurityMode, used.SecurityPolicyUri = self.security_policy.Mode, self.security_policy.URI
            found.ServerEndpoints = [used]
        return found

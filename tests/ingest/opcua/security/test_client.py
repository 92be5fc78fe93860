"""How a connection fails against servers that do not answer as they should: each failure names its step and cause."""

import asyncio
import dataclasses
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from asyncua import ua
from asyncua.client.ua_client import UaClientState, UASocketProtocol
from asyncua.common.utils import Buffer
from asyncua.crypto import uacrypto
from asyncua.ua import ua_binary, uaerrors
from asyncua.ua.object_ids import ObjectIds
from cryptography.exceptions import InvalidSignature

from agent.ingest.errors import SourceError, SourceLost, SourceRefused
from agent.ingest.opcua.explore.probe import Probe
from agent.ingest.opcua.security.certificate import ensure_certificate
from agent.ingest.opcua.security.certificate_facts import facts_of
from agent.ingest.opcua.security.client import StepTrackingClient
from agent.ingest.opcua.security.refusal import ConnectStep
from agent.ingest.opcua.security.transport import Protocol
from agent.ingest.opcua.session import disconnect, new_client, open_session
from agent.settings.sources import OpcuaSourceSettings
from tests.ingest.fakes import Program, running
from tests.ingest.plant import opcua
from tests.waiting import LIMIT_S, wait_until_async

SECURE_URI = b"SecurityPolicy#Basic256Sha256"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(name="plc", scope="module")
def secure_plc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, Path]]:
    """The plant's server, encrypted only, and its certificate."""
    folder = tmp_path_factory.mktemp("plc")
    certificate, key = folder / "server.pem", folder / "server.key"
    ensure_certificate(certificate, key, "urn:freeopcua:python:server")
    with running("opcua_server", "--certificate", str(certificate), "--private-key", str(key)) as program:
        yield program, certificate


def secured(port: int, folder: Path, pinned: Path) -> OpcuaSourceSettings:
    """A source that signs and encrypts and knows the server's certificate."""
    return opcua(
        port,
        folder,
        security_policy="Basic256Sha256",
        security_mode="SignAndEncrypt",
        insecure=False,
        certificate_file=folder / "own.der",
        private_key_file=folder / "own.key",
        server_certificate_file=pinned,
    )


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[tuple[asyncio.Server, int]]:
    """A TCP server on a free port, and that port; at the end its connections are over, too."""
    over: list[asyncio.Event] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        over.append(asyncio.Event())
        end = over[-1]
        try:
            with suppress(ConnectionError):
                await serve(reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            end.set()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for event in over:
            await event.wait()


@asynccontextmanager
async def gate(port: int, refusal: bytes, *, falls: bool = False, policy: bytes = SECURE_URI) -> AsyncIterator[int]:
    """A proxy before a server that answers an OpenSecureChannel with this policy itself, with these bytes, and closes
    the connection; with `falls` it takes no connection from then on. Yields its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", port)

        async def forth() -> None:
            while data := await reader.read(65536):
                if data.startswith(b"OPN") and policy in data:
                    if falls:
                        server.close()
                    writer.write(refusal)
                    break
                behind_writer.write(data)
            behind_writer.close()

        async def back() -> None:
            while data := await behind_reader.read(65536):
                writer.write(data)

        async with asyncio.TaskGroup() as group:
            group.create_task(forth(), name="forth")
            group.create_task(back(), name="back")
        with suppress(ConnectionError):
            await behind_writer.wait_closed()

    async with listening(serve) as (server, own_port):
        yield own_port


async def failure(settings: OpcuaSourceSettings, kind: type[SourceError] = SourceLost) -> str:
    """What an operator reads when this source cannot connect."""
    with pytest.raises(kind) as caught:
        async with open_session(settings):
            raise AssertionError("it has connected")
    return str(caught.value)


def error_message(status: int) -> bytes:
    """An ERR message of OPC UA TCP (OPC 10000-6, 7.1.2.5)."""
    return struct.pack("<4sIIi", b"ERRF", 16, status, -1)


@pytest.mark.system
@pytest.mark.parametrize(
    "answer, status",
    [
        (b"", "the server closes the connection"),
        (error_message(uaerrors.BadSecurityChecksFailed.code), "BadSecurityChecksFailed"),
        (error_message(uaerrors.BadTcpInternalError.code), "BadTcpInternalError"),
        (error_message(uaerrors.BadCertificateUntrusted.code), "BadCertificateUntrusted"),
    ],
)
async def test_a_refused_certificate_is_recognised_however_it_is_hidden(
    plc: tuple[Program, Path], tmp_path: Path, answer: bytes, status: str
) -> None:
    """A closed socket or any of the usual statuses at OpenSecureChannel names our thumbprint and the file to import,
    which is DER."""
    program, pinned = plc
    async with gate(program.port, answer) as port:
        text = await failure(secured(port, tmp_path, pinned), SourceRefused)
    own = facts_of((tmp_path / "own.der").read_bytes())
    for wanted in (f"127.0.0.1:{port}", own.sha1, own.sha256, str(tmp_path / "own.der"), f"({status} while"):
        assert wanted in text


@pytest.mark.system
async def test_a_server_that_goes_down_is_not_said_to_refuse_us(plc: tuple[Program, Path], tmp_path: Path) -> None:
    """The same closed socket, from a server that answers nobody any more, is a loss."""
    program, pinned = plc
    async with gate(program.port, b"", falls=True) as port:
        text = await failure(secured(port, tmp_path, pinned))
    assert "closes the connection while the secure channel is opened" in text


@pytest.mark.system
@pytest.mark.parametrize("answer", [b"", error_message(uaerrors.BadSecurityPolicyRejected.code)])
async def test_a_server_that_refuses_to_be_asked_without_security(
    plc: tuple[Program, Path], tmp_path: Path, answer: bytes
) -> None:
    """Its certificate's file is what is needed, as a fingerprint gives no key; with it the source and the test connect.
    The test does not say to list what it cannot list."""
    program, pinned = plc
    async with gate(program.port, answer, policy=b"SecurityPolicy#None") as port:
        settings = secured(port, tmp_path, pinned)
        async with open_session(settings):
            pass
        probe = Probe(settings, "", is_chosen=False, confirm=lambda _: False)
        assert [step.outcome.value async for step in probe.steps()][:4] == ["ok", "note", "ok", "ok"]
        assert probe.is_over
        unknown = dataclasses.replace(settings, server_certificate_file=None, server_certificate_sha256="0" * 64)
        assert "set server_certificate_file" in await failure(unknown, SourceError)


@pytest.mark.parametrize(
    "error", [uaerrors.UaError("Server certificate mismatch"), InvalidSignature(), uacrypto.InvalidSignature()]
)
@pytest.mark.system
async def test_a_certificate_swapped_on_the_way_is_reported_as_that(
    plc: tuple[Program, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """What the library says of a session whose certificate or signature is not that of the endpoints is a refusal of
    ours, and no loss."""
    program, pinned = plc

    async def create_session(self: StepTrackingClient) -> None:
        self.step = ConnectStep.SESSION
        raise error

    monkeypatch.setattr(StepTrackingClient, "create_session", create_session)
    text = await failure(secured(program.port, tmp_path, pinned), SourceRefused)
    assert "presents another certificate in the session than before" in text


@asynccontextmanager
async def speaking(answer: bytes) -> AsyncIterator[int]:
    """A server that says this to whatever comes. Yields its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        while await reader.read(65536):
            pass

    async with listening(serve) as (_, port):
        yield port


async def test_a_web_server_is_named_as_no_opc_ua_server(tmp_path: Path) -> None:
    """Its answer is shown at once, not waited for as the beginning of a huge message."""
    async with speaking(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        assert "is not an OPC UA server (it says b'HTTP/1.1 400" in await failure(opcua(port, tmp_path))


async def test_a_silent_port_is_distinguished_from_a_silent_address(tmp_path: Path) -> None:
    """Silence after the connection was taken is the program's, not the network's."""
    async with speaking(b"") as port:
        text = await failure(opcua(port, tmp_path, request_timeout_ms=500))
    assert "the port is open, but nothing answers" in text


async def test_a_closed_port_and_an_unknown_name_are_distinguished(tmp_path: Path) -> None:
    """The two commonest mistakes in a URL have their own words."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = opcua(free.getsockname()[1], tmp_path)
        assert "nothing listens at opc.tcp://127" in await failure(closed)
    unknown = dataclasses.replace(closed, url="opc.tcp://plc.invalid:4840")
    assert "the host name of opc.tcp://plc.invalid:4840 is unknown here" in await failure(unknown)


def test_a_service_fault_for_a_secure_channel_is_its_status() -> None:
    """node-opcua refuses a certificate with a ServiceFault, which the library would take for the response."""
    fault = ua.ServiceFault()
    fault.ResponseHeader.ServiceResult = ua.StatusCode(ua.StatusCodes.BadSecurityChecksFailed)

    class Message(ua.Message):
        def __init__(self) -> None: ...

        def SecurityHeader(self) -> object:  # noqa: N802 the library's name
            return ua.AsymmetricAlgorithmHeader()

        def body(self) -> Buffer:
            return Buffer(ua_binary.struct_to_binary(fault))

    assert fault.TypeId == ua.FourByteNodeId(ObjectIds.ServiceFault_Encoding_DefaultBinary)  # type: ignore[arg-type]
    protocol = StepTrackingClient(OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t.csv"))).uaclient._make_protocol()
    assert isinstance(protocol, UASocketProtocol)
    with pytest.raises(uaerrors.BadSecurityChecksFailed):
        protocol._process_received_message(Message())


async def test_a_server_of_another_time_has_its_channel_renewed(tmp_path: Path) -> None:
    """Answers to requests that were made before the renewal come with the old token. The server issued it in 1970, by
    its own clock; it is accepted all the same."""
    connection = StepTrackingClient(opcua(4840, tmp_path)).uaclient._make_protocol()._connection

    def issued(token_id: int, kind: ua.SecurityTokenRequestType) -> None:
        token = ua.ChannelSecurityToken(1, token_id, datetime(1970, 1, 1, tzinfo=UTC), 3_600_000)
        connection.set_channel(ua.OpenSecureChannelResult(SecurityToken=token, ServerNonce=b""), kind, b"")

    issued(1, ua.SecurityTokenRequestType.Issue)
    issued(2, ua.SecurityTokenRequestType.Renew)
    for token_id in (1, 2, 1):
        connection._check_sym_header(ua.SymmetricAlgorithmHeader(TokenId=token_id))
    assert connection.security_token.TokenId == 2


@asynccontextmanager
async def silent() -> AsyncIterator[tuple[int, list[asyncio.StreamWriter]]]:
    """A server that says nothing: its port and its connections, one of which the other side has closed at the end."""
    closed, connections = asyncio.Event(), list[asyncio.StreamWriter]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await reader.read()
        closed.set()

    async with listening(serve) as (_, port):
        try:
            yield port, connections
            async with asyncio.timeout(LIMIT_S):
                await closed.wait()
        finally:
            for writer in connections:
                writer.transport.abort()


@pytest.mark.parametrize("turns", range(5))
async def test_a_stop_ends_a_session_that_is_being_opened(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, turns: int
) -> None:
    """In any turn of the loop since the TCP connection stands: the task ends, and so does the connection."""

    def stop_in(left: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(stop_in, left - 1)
        else:
            life.cancel()

    def connection_made(self: Protocol, transport: asyncio.Transport) -> None:
        UASocketProtocol.connection_made(self, transport)
        stop_in(turns)

    async def live() -> None:
        async with open_session(opcua(port, tmp_path, request_timeout_ms=600_000)):
            raise AssertionError("the server says nothing")

    monkeypatch.setattr(Protocol, "connection_made", connection_made)
    async with silent() as (port, _):
        life = asyncio.create_task(live())
        await asyncio.wait([life], timeout=LIMIT_S)
        assert life.cancelled()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_connection_that_fell_silent_is_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_cancelled: bool
) -> None:
    """The library counts it as lost when a sign of life does not come; its socket is closed all the same. So it is if
    the goodbye is cancelled."""
    saying = asyncio.Event()

    async def goodbye() -> None:
        saying.set()
        await asyncio.Event().wait()

    async with silent() as (port, connections):
        client = new_client(opcua(port, tmp_path))
        await client.connect_socket()
        await wait_until_async(lambda: connections, "the connection")
        if is_cancelled:
            monkeypatch.setattr(client, "disconnect", goodbye)
        else:
            client.uaclient.mark_disconnected()
        ending = asyncio.create_task(disconnect(client))
        if is_cancelled:
            await saying.wait()
            ending.cancel()
        await asyncio.wait([ending])


class Renewals:
    """Answers the renewals of a channel in turn, then cancels the loop. `at_s` is when each was asked for."""

    def __init__(self, *answers: Exception | None, lifetime_s: int = 100) -> None:
        self.answers, self.at_s = list(answers), list[float]()
        self.lifetime_ms = lifetime_s * 1000
        self.client = new_client(OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t.csv")))
        self.client.secure_channel_timeout = self.lifetime_ms
        self.client.uaclient._set_state(UaClientState.CONNECTED)
        self.client.uaclient.open_secure_channel = self.open  # type: ignore[method-assign]

    async def open(self, asked: ua.OpenSecureChannelParameters) -> ua.OpenSecureChannelResult:
        assert asked.RequestType == ua.SecurityTokenRequestType.Renew
        self.at_s.append(asyncio.get_running_loop().time())
        if not self.answers:
            raise asyncio.CancelledError
        answer = self.answers.pop(0)
        if answer is not None:
            raise answer
        return ua.OpenSecureChannelResult(SecurityToken=ua.ChannelSecurityToken(RevisedLifetime=self.lifetime_ms))  # type: ignore[arg-type]


@pytest.mark.virtual_time
async def test_a_renewal_that_fails_is_tried_again() -> None:
    """One answer that did not come in time is no reason to let the channel end: the next try, within the lifetime,
    renews it, and so on in the second lifetime."""
    renewals = Renewals(TimeoutError(), None, uaerrors.BadTooManyOperations(), None)
    with pytest.raises(asyncio.CancelledError):
        await renewals.client._renew_channel_loop()
    first, again, second, second_again, _ = renewals.at_s
    assert first < again < 100
    assert again < second < second_again < again + 100
    assert renewals.client.uaclient.state is UaClientState.CONNECTED


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionError("gone"), uaerrors.BadSecurityChecksFailed()])
@pytest.mark.virtual_time
async def test_a_channel_that_cannot_be_renewed_ends_the_session(error: Exception) -> None:
    """After several tries, before the channel ends; the session is told why, and its connection is closed."""
    renewals, told = Renewals(*[error] * 100), list[Exception]()

    async def lost(why: Exception) -> None:
        told.append(why)

    renewals.client.connection_lost_callback = lost
    await renewals.client._renew_channel_loop()
    assert len(renewals.at_s) >= 2
    assert max(renewals.at_s) < 100
    assert "the secure channel ends, and is not renewed" in str(told[0])
    assert renewals.client.uaclient.state is UaClientState.DISCONNECTED


def served(monkeypatch: pytest.MonkeyPatch, answer: object) -> StepTrackingClient:
    """A client with an open session that asks for a sign of life at once, and a server that answers any Read so."""
    client = new_client(OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t.csv")), watchdog_s=0.001)

    async def read(_: object) -> list[ua.DataValue]:
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, int)
        return [ua.DataValue(StatusCode=ua.StatusCode(answer))]  # type: ignore[arg-type]

    monkeypatch.setattr(client.uaclient.session, "read", read)
    client.uaclient._set_state(UaClientState.CONNECTED)
    return client


@pytest.mark.parametrize(
    "answer, is_alive",
    [
        (uaerrors.BadUserAccessDenied.code, True),
        (uaerrors.BadNodeIdUnknown.code, True),
        (uaerrors.BadNotReadable.code, True),
        (uaerrors.BadUserAccessDenied(), True),
        (uaerrors.BadServiceUnsupported(), True),
        (struct.error("a malformed value"), True),
        (None, False),
        (ConnectionError("gone"), False),
        (uaerrors.BadSessionIdInvalid(), False),
    ],
)
async def test_any_answer_is_a_sign_of_life(monkeypatch: pytest.MonkeyPatch, answer: object, *, is_alive: bool) -> None:
    """A server that does not let this user read its state, or has none, answers: the session goes on. No answer in
    time, a closed connection, and a server that does not know the session: it is lost."""
    assert (await served(monkeypatch, answer)._detect_connection_loss() is None) is is_alive


async def test_a_session_that_is_kept_for_a_short_time_gives_signs_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has revised the time-out to less than asked: a sign is due several times within it."""
    client = served(monkeypatch, uaerrors.BadUserAccessDenied.code)
    client.session_timeout, client._watchdog_intervall = 3, 1e6
    async with asyncio.timeout(LIMIT_S):
        assert await client._detect_connection_loss() is None

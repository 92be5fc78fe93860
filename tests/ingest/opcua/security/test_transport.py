"""The corrections of the library's transport that need no server."""

import asyncio
import math
from datetime import UTC, datetime
from unittest.mock import AsyncMock, MagicMock

import pytest
from asyncua import ua
from asyncua.client.client import Client
from asyncua.client.ua_client import UaClient
from asyncua.common.connection import MessageChunk
from asyncua.common.utils import Buffer
from asyncua.crypto.security_policies import SecurityPolicyNone
from asyncua.ua import ua_binary, uaerrors
from asyncua.ua.uaerrors import UaError

from agent.concurrency import TaskGroup
from agent.ingest.opcua.security import transport
from agent.ingest.opcua.security.transport import Protocol, Transport
from tests.waiting import LIMIT_S, wait_until_async


def opened_protocol(timeout_s: float = 1.0) -> Protocol:
    """A protocol whose server has answered already."""
    found = Protocol(timeout_s, SecurityPolicyNone())
    found._has_answered = True
    return found


def chunk(number: int, request: int, content: bytes, kind: bytes = ua.ChunkType.Single) -> bytes:
    """A part of an answer to a request."""
    crypto = SecurityPolicyNone().symmetric_cryptography
    made = MessageChunk(crypto, content, ua.MessageType.SecureMessage, kind)
    made.MessageHeader.ChannelId = 0
    made.SequenceHeader.SequenceNumber, made.SequenceHeader.RequestId = number, request
    return made.to_binary()


@pytest.mark.parametrize("is_aborted, bytes_max", [(False, 250), (True, 250), (True, 1000)])
async def test_an_answer_that_is_too_large_costs_only_its_request(
    monkeypatch: pytest.MonkeyPatch, bytes_max: int, *, is_aborted: bool
) -> None:
    """For us: its chunks are discarded as they come, and the request fails. For the server, which gives it up: the
    request fails with the server's reason. The answer behind it is read."""
    monkeypatch.setattr(transport, "MESSAGE_BYTES_MAX", bytes_max)
    protocol = opened_protocol()
    large, other = (asyncio.get_running_loop().create_future() for _ in range(2))
    protocol._callbackmap.update({7: large, 8: other})
    last = ua.ChunkType.Abort if is_aborted else ua.ChunkType.Single
    body = ua_binary.struct_to_binary(ua.ErrorMessage(ua.StatusCode(ua.StatusCodes.BadTimeout)))
    chunks = [(7, ua.ChunkType.Intermediate, bytes(100))] * 6 + [(7, last, body), (8, ua.ChunkType.Single, bytes(200))]
    for number, (request, kind, content) in enumerate(chunks, 1):
        protocol.data_received(chunk(number, request, content, kind))
        assert sum(len(part.Body) for part in protocol._connection._incoming_parts) <= bytes_max
    with pytest.raises(uaerrors.BadTimeout if is_aborted else uaerrors.BadResponseTooLarge):
        await large
    assert len(await other) == 200


async def test_an_answer_that_no_request_waits_for_ends_nothing() -> None:
    """It leaves the requests that wait as they are, and what comes behind it is read. The requests of two connections
    do not have the same numbers: an answer to one of an earlier connection finds nobody."""
    protocol = opened_protocol()
    waiting = protocol._callbackmap[7] = asyncio.get_running_loop().create_future()
    for number, request in enumerate((6, 7), 1):
        protocol.data_received(chunk(number, request, b"%d" % request))
    assert (await waiting).read(1) == b"7"
    assert len({Protocol(1.0, SecurityPolicyNone())._request_id for _ in range(3)}) == 3


def opened(number: int, request: int, token: int) -> bytes:
    """The answer to an OpenSecureChannel."""
    response = ua.OpenSecureChannelResponse()
    response.Parameters.SecurityToken = ua.ChannelSecurityToken(1, token, datetime(2026, 1, 1, tzinfo=UTC), 60_000)  # type: ignore[arg-type]
    response.Parameters.ServerNonce = b""
    chunk = MessageChunk(
        SecurityPolicyNone().asymmetric_cryptography,
        ua_binary.struct_to_binary(response),
        ua.MessageType.SecureOpen,
        ua.ChunkType.Single,
    )
    chunk.SecurityHeader.SecurityPolicyURI = SecurityPolicyNone.URI
    chunk.SequenceHeader.SequenceNumber, chunk.SequenceHeader.RequestId = number, request
    return chunk.to_binary()


async def test_a_renewal_that_was_not_answered_in_time_hinders_no_other() -> None:
    """The late answer belongs to its own request: the keys are made with the nonce of that. The connection goes on."""
    protocol = opened_protocol(0.01)
    protocol.transport = MagicMock()
    first, second = (
        ua.OpenSecureChannelParameters(RequestType=ua.SecurityTokenRequestType.Renew, ClientNonce=nonce)
        for nonce in (b"first", b"second")
    )
    with pytest.raises(TimeoutError):
        await protocol.open_secure_channel(first)
    late = protocol._request_id
    protocol.timeout = LIMIT_S
    renewing = asyncio.create_task(protocol.open_secure_channel(second))
    await wait_until_async(lambda: protocol._request_id > late, "the second request")
    protocol.data_received(opened(1, late, 1))
    assert protocol._connection.local_nonce == b"first"
    protocol.data_received(opened(2, late + 1, 2))
    assert (await renewing).SecurityToken.TokenId == 2
    assert protocol._connection.local_nonce == b"second"
    protocol._send_request(ua.ReadRequest()).cancel()
    assert not protocol._opening, "only what opens a channel is kept until its answer"
    protocol.transport.close.assert_not_called()


async def test_a_cancellation_that_meets_the_answer_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is cancelled as its answer comes, within a group: the group is cancelled, and nothing failed."""
    protocol, sent = Protocol(1.0, SecurityPolicyNone()), asyncio.Event()
    answer: asyncio.Future[Buffer] = asyncio.get_running_loop().create_future()

    def send(*_: object) -> asyncio.Future[Buffer]:
        sent.set()
        return answer

    async def live() -> None:
        async with TaskGroup():
            await protocol.send_request(ua.ReadRequest())

    monkeypatch.setattr(protocol, "_send_request", send)
    life = asyncio.create_task(live())
    await sent.wait()
    answer.set_result(Buffer(b""))
    life.cancel()
    await asyncio.wait([life])
    assert life.cancelled()


async def test_a_chunk_without_measure_is_not_collected() -> None:
    """A header that announces two gigabytes ends the connection before they come."""
    protocol = opened_protocol()
    waiting = protocol._callbackmap[7] = asyncio.get_running_loop().create_future()
    protocol.data_received(b"MSGF")
    assert not waiting.done()
    protocol.data_received((2**31).to_bytes(4, "little"))
    with pytest.raises(UaError, match="a chunk of 2,147,483,648 bytes"):
        await waiting


@pytest.mark.parametrize("limits", [(1_000, 0), (0, 1)], ids=["bytes", "chunks"])
def test_a_request_that_the_server_does_not_take_is_not_sent(limits: tuple[int, int]) -> None:
    """It is refused here, as the server would refuse it, which then closes the connection."""
    connection = Protocol(1.0, SecurityPolicyNone())._connection
    bytes_max, chunks_max = limits
    connection._limits.update_client_limits(ua.Acknowledge(0, 8192, 65_535, bytes_max, chunks_max))
    assert connection.message_to_binary(bytes(1_000))
    with pytest.raises(uaerrors.BadRequestTooLarge):
        connection.message_to_binary(bytes(9_000))


@pytest.mark.parametrize("told, used", [(0, 8_192), (100, 8_192), (1_024, 1_024), (2**32 - 1, 65_535)])
def test_a_server_that_receives_nothing_gets_short_chunks(told: int, used: int) -> None:
    """With a chunk of no bytes no request was ever sent."""
    connection = Protocol(1.0, SecurityPolicyNone())._connection
    connection._limits.update_client_limits(ua.Acknowledge(0, told, told, 0, 0))
    assert connection._limits.max_send_buffer == used
    assert len(connection.message_to_binary(bytes(100_000))) > 100_000


async def created(monkeypatch: pytest.MonkeyPatch, **answered: object) -> ua.CreateSessionResult:
    """What a session is made of whose server answers so."""
    answer = AsyncMock(return_value=ua.CreateSessionResult(**answered))  # type: ignore[arg-type]
    monkeypatch.setattr(UaClient, "create_session", answer)
    asked = ua.CreateSessionParameters(EndpointUrl="opc.tcp://plc:4840", RequestedSessionTimeout=30_000)  # type: ignore[arg-type]
    return await Transport(1.0).create_session(asked)


async def test_an_empty_list_of_endpoints_is_the_one_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that knows itself by another name gives none: the session goes on with the policy of its channel."""
    found, mode = await created(monkeypatch), ua.MessageSecurityMode.None_
    used = Client.find_endpoint(found.ServerEndpoints, mode, SecurityPolicyNone.URI)
    assert used.EndpointUrl == "opc.tcp://plc:4840"


@pytest.mark.parametrize(
    "told, used", [(0, 30_000), (-1, 30_000), (math.nan, 30_000), (1e308, 30_000), (0.1, 1_000), (20_000, 20_000)]
)
async def test_a_revised_time_out_is_used_as_far_as_it_means_something(
    monkeypatch: pytest.MonkeyPatch, told: float, used: float
) -> None:
    """A session's time-out of 0 left no time for the answer to a sign of life: each session ended at once."""
    assert (await created(monkeypatch, RevisedSessionTimeout=told)).RevisedSessionTimeout == used


@pytest.mark.parametrize("told, used", [(0, 3_600_000), (1, 1_000), (60_000, 60_000), (2**32 - 1, 3_600_000)])
def test_a_revised_lifetime_is_used_as_far_as_it_means_something(told: int, used: int) -> None:
    """With a lifetime of 0 the channel was renewed without pause."""
    connection = Protocol(1.0, SecurityPolicyNone())._connection
    token = ua.ChannelSecurityToken(1, 1, datetime(2026, 1, 1, tzinfo=UTC), told)
    answer = ua.OpenSecureChannelResult(SecurityToken=token, ServerNonce=b"")
    connection.set_channel(answer, ua.SecurityTokenRequestType.Issue, b"")
    assert (answer.SecurityToken.RevisedLifetime, connection.security_token.RevisedLifetime) == (used, used)

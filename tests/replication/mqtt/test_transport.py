"""One connection to a broker: errors name the cause, and all pending calls get the reason of its end."""

import asyncio
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.replication import pki
from agent.replication.mqtt.carrier import Access, Incoming
from agent.replication.mqtt.transport import MqttConnection
from agent.replication.protocol.errors import BrokerUnreachable, ConnectionLost, TransportError
from agent.replication.protocol.topics import request_topic, response_topic, subscription_to
from tests.replication.nodes import access
from tests.support.mosquitto import Mosquitto, free_port
from tests.waiting import LIMIT_S, wait_until_async

pytestmark = pytest.mark.system

ASK = request_topic("plant-a", "idmz")
MINE = response_topic("plant-a", "idmz", "test")


async def why_not(wanted: Access) -> TransportError:
    """The error of a connection attempt."""
    with pytest.raises(TransportError) as raised:
        await MqttConnection.open(wanted, lambda _: None)
    return raised.value


async def test_broker_of_another_authority_is_refused(broker: Mosquitto, tmp_path: Path) -> None:
    """A broker with a certificate of another authority is not trusted."""
    now = datetime.now(UTC)
    pki.create_authority(tmp_path, now)
    mine = pki.issue_zone(tmp_path, "idmz", now)
    error = await why_not(
        Access(
            "b",
            "idmz",
            broker.host,
            broker.port,
            lambda: pki.client_context(mine.ca_file, mine.cert_file, mine.key_file),
        )
    )
    assert isinstance(error, BrokerUnreachable)
    assert "the broker is not trusted: its certificate was issued by an authority that is not in ca_file" in str(error)


async def test_two_connections_of_a_zone_are_independent_clean_sessions(broker: Mosquitto) -> None:
    """Two connections of one zone are two clean sessions, so neither takes over the other and nothing is kept.
    TCP_NODELAY is set: without it an answer takes up to 88 ms longer."""
    before = len(broker.log_text())
    opened = await MqttConnection.open(access(broker, "idmz"), lambda _: None)
    two = await MqttConnection.open(access(broker, "idmz"), lambda _: None)
    await opened.subscribe([subscription_to(MINE)])
    await two.subscribe([subscription_to(MINE)])
    assert not opened.closed.done()
    for connection in (opened, two):
        assert connection._socket is not None
        assert connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await connection.close()
    joined = re.findall(
        r"New client connected from \S+ as (\S+) \(p5, c(\d), k\d+, u'idmz'\)", broker.log_text()[before:]
    )
    assert [is_clean for _, is_clean in joined] == ["1", "1"]
    assert len({name for name, _ in joined}) == 2


def test_a_chained_error_names_the_broker_once() -> None:
    """A request on a broken link fails with the link's error; the broker and the full stop appear once."""
    first = BrokerUnreachable("broker b (h:1)", "cannot be reached: refused", "Is it running?")
    lost = ConnectionLost("broker b (h:1)", str(first))
    assert str(lost) == str(first) == "broker b (h:1): cannot be reached: refused. Is it running?"


async def test_no_broker_at_the_port(broker: Mosquitto) -> None:
    """The error names that no broker listens at the port."""
    wanted = access(broker, "idmz")
    error = await why_not(Access("b", "idmz", "127.0.0.1", free_port(), wanted.make_context))
    assert isinstance(error, BrokerUnreachable)
    assert "cannot be reached" in str(error)


async def test_silence_in_place_of_a_handshake(broker: Mosquitto, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that accepts the connection and sends nothing (a frozen broker) is distinguished from an unreachable
    one, without OpenSSL's file and line."""
    monkeypatch.setattr("agent.replication.mqtt.transport.CONNECT_S_MAX", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        wanted = Access("b", "idmz", "127.0.0.1", mute.getsockname()[1], access(broker, "idmz").make_context)
        error = await why_not(wanted)
    assert isinstance(error, BrokerUnreachable)
    assert "it accepts connections but does not respond" in str(error)
    assert "_ssl.c" not in str(error)


async def test_silent_brokers_leave_the_shared_threads_free(broker: Mosquitto, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections to more silent brokers than the event loop has threads for all parts do not delay other work in those
    threads."""
    monkeypatch.setattr("agent.replication.mqtt.transport.CONNECT_S_MAX", LIMIT_S)
    with ThreadPoolExecutor(2) as shared, socket.create_server(("127.0.0.1", 0), backlog=8) as mute:
        mute.setblocking(False)
        asyncio.get_running_loop().set_default_executor(shared)
        wanted = Access("b", "idmz", "127.0.0.1", mute.getsockname()[1], access(broker, "idmz").make_context)
        connecting = [asyncio.create_task(MqttConnection.open(wanted, lambda _: None)) for _ in range(4)]
        async with asyncio.timeout(LIMIT_S / 2):
            accepted = [await asyncio.get_running_loop().sock_accept(mute) for _ in connecting]
        assert await asyncio.to_thread(lambda: "done") == "done"
        assert not any(task.done() for task in connecting)
        for opened, _ in accepted:
            opened.close()
        ended = await asyncio.gather(*connecting, return_exceptions=True)
        assert all(isinstance(error, BrokerUnreachable) for error in ended)


async def test_a_broker_that_is_full_is_named(tmp_path: Path) -> None:
    """A connection beyond max_connections is closed without a reason, at any moment; the error names the limit. (After
    failed handshakes Mosquitto may accept one more.)"""
    with Mosquitto.started(tmp_path) as small:
        config = small.files.config_file
        config.write_text(re.sub(r"max_connections \d+", "max_connections 2", config.read_text()))
        small.restart()

        standing = list[MqttConnection]()

        async def fill() -> None:
            for zone in ("plant-a", "idmz", "enterprise", "plant-b", "plant-a", "idmz"):
                standing.append(await MqttConnection.open(access(small, zone), lambda _: None))

        with pytest.raises(BrokerUnreachable, match="max_connections"):
            await fill()
        for connection in standing:
            await connection.close()


async def test_a_port_without_tls_is_named(broker: Mosquitto) -> None:
    """The error for a program without TLS at the port names this cause."""

    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        error = await why_not(Access("b", "idmz", "127.0.0.1", port, access(broker, "idmz").make_context))
    assert isinstance(error, BrokerUnreachable)
    assert "no TLS" in str(error)
    assert error.hint


async def test_large_messages_both_ways(broker: Mosquitto) -> None:
    """Pages of all sizes up to the packet limit arrive complete, also if many are in the sockets at once."""
    arrived: list[Incoming] = []
    server = await MqttConnection.open(access(broker, "plant-a"), lambda _: None)
    client = await MqttConnection.open(access(broker, "idmz"), arrived.append)
    await client.subscribe([subscription_to(MINE)])
    assert client.packet_bytes_max == 1_048_576
    sizes = [1, 16_383, 16_384, 65_536, 262_144, 1_000_000] * 3
    for number, size in enumerate(sizes):
        server.publish_answer(MINE, bytes([number]) * size, number.to_bytes(16))
        await wait_until_async(lambda number=number: len(arrived) > number, f"message {number}")
    assert [(len(message.payload), message.correlation) for message in arrived] == [
        (size, number.to_bytes(16)) for number, size in enumerate(sizes)
    ]
    await client.close()
    await server.close()

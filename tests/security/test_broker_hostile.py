"""A broker that has been taken over can neither end this process, nor make it grow, nor stall it without an error."""

import asyncio
import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from agent.replication import pki
from agent.replication.mqtt import BrokerLink, Requester, transport
from agent.replication.mqtt.carrier import Access
from agent.replication.mqtt.transport import MqttConnection
from agent.replication.protocol.codec import ArrivedAnswer
from agent.replication.protocol.errors import ConnectionLost, TransportError
from agent.replication.protocol.messages import ListStreams
from tests.security.broker_hostile import UNSOLICITED
from tests.support.memory import rss_bytes
from tests.waiting import LIMIT_S, wait_until_async

pytestmark = pytest.mark.system

REPOSITORY = Path(__file__).parents[2]
GROWTH_BYTES_MAX = 48 * 1024 * 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a broker and a zone."""
    folder = tmp_path_factory.mktemp("pki")
    now = datetime.now(UTC)
    pki.create_authority(folder, now)
    pki.issue_broker(folder, "taken", ["localhost", "127.0.0.1"], now)
    pki.issue_zone(folder, "idmz", now)
    return folder


@contextlib.contextmanager
def hostile(folder: Path, play: str) -> Iterator[Access]:
    """A hostile broker in a process of its own, and the zone's access to it."""
    files = [folder / "brokers" / f"taken.{kind}" for kind in ("pem", "key")]
    command = [sys.executable, "-m", "tests.security.broker_hostile", *map(str, files), play]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as broker:
        try:
            assert broker.stdout is not None
            port = int(broker.stdout.readline())
            zone = (folder / "ca.pem", folder / "zones/idmz.pem", folder / "zones/idmz.key")
            yield Access("taken", "idmz", "127.0.0.1", port, partial(pki.client_context, *zone))
        finally:
            broker.kill()


def run(coroutine: object) -> None:
    """Run it; an error that reaches the event loop's handler fails the test."""
    unhandled: list[object] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        await coroutine  # type: ignore[misc]

    asyncio.run(watched())
    assert unhandled == []


@pytest.mark.parametrize("play", ["keep-alive 0", "keep-alive 65535"])
def test_a_silent_broker_is_detected_whatever_keep_alive_it_asks_for(
    folder: Path, play: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that requests no keep-alive, or one of 18 hours, and answers nothing, is disconnected after twice our
    keep-alive."""
    monkeypatch.setattr(transport, "KEEPALIVE_S", 1)

    async def connect(access: Access) -> None:
        connection = await MqttConnection.open(access, lambda _: None)
        async with asyncio.timeout(LIMIT_S):
            assert isinstance(await connection.closed, ConnectionLost)

    with hostile(folder, play) as access:
        run(connect(access))


@pytest.mark.parametrize(
    "play,says",
    [
        ("a 200 MB packet", "a packet of 200000"),
        ("pings that are not read", "demands answers and does not read them"),
        ("messages at QoS 1", "Protocol error|connection ended"),
    ],
)
def test_a_flood_ends_the_connection_and_not_the_process(folder: Path, play: str, says: str) -> None:
    """An endless packet, endless pings or endless acknowledged messages end the connection with the reason, and the
    memory used for them is bounded. (200 MB were buffered; answers to pings piled up while none was read.)"""
    before = rss_bytes()

    async def connect(access: Access) -> None:
        connection = await MqttConnection.open(access, lambda _: None)
        async with asyncio.timeout(LIMIT_S):
            assert re.search(says, str(await connection.closed))

    with hostile(folder, play) as access:
        run(connect(access))
    assert rss_bytes() - before < GROWTH_BYTES_MAX


def test_a_flood_of_unsolicited_answers_is_counted_and_forgotten(folder: Path) -> None:
    """300,000 answers that belong to no request are counted and not kept. Requests are answered meanwhile and
    afterwards: by the right answer once, and never by a wrong correlation or a repetition."""
    before = rss_bytes()

    async def ask(access: Access) -> None:
        link = BrokerLink(access)
        requester = Requester(link, "plant-a")
        answers: list[ArrivedAnswer] = []
        async with asyncio.timeout(6 * LIMIT_S), asyncio.TaskGroup() as group:
            running = group.create_task(link.run())
            await link.wait_up()
            await requester.send(ListStreams(), answers.append, 60)
            await wait_until_async(lambda: link.statistics().unsolicited == UNSOLICITED + 2, "all are counted", 60)
            running.cancel()
        assert [answer.payload for answer in answers] == [b"right"]
        assert link.statistics().connects == 1

    with hostile(folder, "unsolicited answers") as access:
        run(ask(access))
    assert rss_bytes() - before < GROWTH_BYTES_MAX


def test_packets_of_every_kind_with_random_contents(folder: Path) -> None:
    """300 connections with fifty packets each of random kind and contents: each ends as a TransportError, and nothing
    reaches the event loop's handler."""

    async def connect(access: Access) -> None:
        for _ in range(300):
            try:
                async with asyncio.timeout(LIMIT_S):
                    connection = await MqttConnection.open(access, lambda _: None)
                    assert isinstance(await connection.closed, TransportError)
            except TransportError:
                continue

    with hostile(folder, "garbage") as access:
        run(connect(access))

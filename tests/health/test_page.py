"""The health page over real HTTP: its answers, and a cheap refusal of everything else."""

import asyncio
import http.client
import json
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from agent.errors import BsfgError
from agent.health import server
from agent.health.client import NodeSilent, ask_health, ask_health_of
from agent.health.page import END_OF_REQUEST, REQUEST_BYTES_MAX, answer
from agent.health.server import CONNECTIONS_MAX, CONNECTIONS_OF_ADDRESS_MAX, note_port, serve
from agent.health.snapshot import NodeSnapshot
from agent.settings.node import HealthSettings, IdentitySettings
from tests.waiting import LIMIT_S

HOST = "127.0.0.1"


@contextmanager
def serving(snapshot: Callable[[], NodeSnapshot]) -> Iterator[int]:
    """The page on a free port, in a thread with a loop of its own; yields the port."""
    ready, port, loops = threading.Event(), [], []

    async def run() -> None:
        loops.append((asyncio.get_running_loop(), asyncio.current_task()))
        await serve(HOST, 0, snapshot, lambda listening, _: (port.append(listening), ready.set()))

    def thread() -> None:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(run())

    runner = threading.Thread(target=thread, name="page")
    runner.start()
    assert ready.wait(LIMIT_S)
    try:
        yield port[0]
    finally:
        loop, task = loops[0]
        loop.call_soon_threadsafe(task.cancel)
        runner.join(LIMIT_S)
    assert not runner.is_alive()


def get(port: int, path: str, method: str = "GET") -> tuple[int, str, bytes]:
    """Status, content type and body of one request."""
    connection = http.client.HTTPConnection(HOST, port, timeout=LIMIT_S)
    connection.request(method, path)
    response = connection.getresponse()
    found = response.status, response.getheader("Content-Type", ""), response.read()
    connection.close()
    return found


def ended(client: socket.socket) -> bool:
    """Whether the other side ended the connection, by closing or by resetting it."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_healthz_and_metrics_over_http(healthy: NodeSnapshot) -> None:
    """A real client reads the verdict and the metrics of a node in good health."""
    with serving(lambda: healthy) as port:
        status, kind, body = get(port, "/healthz")
        assert (status, kind) == (200, "application/json")
        body_json = json.loads(body)
        assert (body_json["verdict"], body_json["zone"], body_json["consumers"][0]["frontier"]) == (
            "good",
            "idmz",
            12_000,
        )
        status, kind, body = get(port, "/metrics?name=x")
        assert status == 200
        assert kind.startswith("text/plain; version=")
        assert b"\nbsfg_store_buffer_fill_percent 3.5\n" in body


def test_an_alert_is_503_with_its_reasons(healthy: NodeSnapshot) -> None:
    """A node with an alert answers 503 with the reasons and what to do; a warning is 200."""
    with serving(lambda: replace(healthy, store_fill_percent=90.0)) as port:
        status, _, body = get(port, "/healthz")
        assert status == 503
        (reason,) = json.loads(body)["reasons"]
        assert reason["level"] == "full"
        assert reason["hint"]
    with serving(lambda: replace(healthy, store_fill_percent=60.0)) as port:
        assert get(port, "/healthz")[0] == 200


def test_a_command_asks_the_page(healthy: NodeSnapshot) -> None:
    """The client returns the JSON of a healthy and of an unhealthy node, and an error if no node answers."""
    with serving(lambda: replace(healthy, store_fill_percent=90.0)) as port:
        assert ask_health(HOST, port)["summary"] == "full: store: 90 % full"
    with pytest.raises(NodeSilent, match=f"{HOST} port {port}"):
        ask_health(HOST, port)


def test_a_command_finds_the_port_of_its_own_node(healthy: NodeSnapshot, tmp_path: Path) -> None:
    """With port 0 the node has noted its port in its state folder; a configured port counts first. The node of another
    zone, which may have got that port since, is not taken for it; where no node ran, the message names the file."""
    own, other = IdentitySettings("idmz", tmp_path), IdentitySettings("plant-a", tmp_path)
    with pytest.raises(NodeSilent, match=r"no node has run here.*health\.port"):
        ask_health_of(own, HealthSettings(HOST, 0))
    with serving(lambda: healthy) as port:
        note_port(tmp_path, port)
        assert ask_health_of(own, HealthSettings(HOST, 0))["zone"] == "idmz"
        note_port(tmp_path, 1)  # of a run before the port was configured
        assert ask_health_of(own, HealthSettings(HOST, port))["zone"] == "idmz"
        note_port(tmp_path, port)
        with pytest.raises(NodeSilent, match="the node of zone 'idmz' answers, not that of 'plant-a'"):
            ask_health_of(other, HealthSettings(HOST, 0))


def test_only_get_and_only_these_paths(healthy: NodeSnapshot) -> None:
    """Other methods are refused with what is allowed, other paths with what is there."""
    with serving(lambda: healthy) as port:
        assert get(port, "/healthz", "POST")[0] == 405
        assert get(port, "/healthz", "DELETE")[0] == 405
        assert get(port, "/")[::2] == (404, b"here are /healthz and /metrics\n")
        assert get(port, "/healthz/../etc/passwd")[0] == 404


def test_a_request_that_is_too_long_is_refused(healthy: NodeSnapshot) -> None:
    """More than the limit is answered 431 and read no further."""
    with serving(lambda: healthy) as port, socket.create_connection((HOST, port), LIMIT_S) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nX: " + b"y" * (2 * REQUEST_BYTES_MAX))
        assert client.recv(100).startswith(b"HTTP/1.1 431 ")


def half_requests(port: int, count: int, source: str = HOST) -> list[socket.socket]:
    """Connections that have sent the half of a request."""
    clients = [socket.create_connection((HOST, port), LIMIT_S, (source, 0)) for _ in range(count)]
    for client in clients:
        with suppress(ConnectionError):  # it has lost its place already
            client.sendall(b"GET /healthz HT")
    return clients


def test_half_requests_do_not_hold_the_page(healthy: NodeSnapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half requests, which may last for ever, from one address or from many: the page answers the next client at once;
    by themselves they end after their time."""
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 1e6)
    with serving(lambda: healthy) as port:
        half = half_requests(port, CONNECTIONS_MAX)
        assert get(port, "/healthz")[0] == 200
        assert ended(half[0]), "it has lost its place, and holds no socket"
        for number in range(2, 2 + CONNECTIONS_MAX):
            half += half_requests(port, 2, f"127.0.0.{number}")
        assert get(port, "/healthz")[0] == 200
        for client in half:
            client.close()
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.2)
    with serving(lambda: healthy) as port:
        half = half_requests(port, CONNECTIONS_OF_ADDRESS_MAX)
        assert all(ended(client) for client in half)
        for client in half:
            client.close()


def test_an_address_takes_its_own_places_only(healthy: NodeSnapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of connections from one address leaves another's open."""
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 1e6)
    with serving(lambda: healthy) as port:
        (slow,) = half_requests(port, 1, "127.0.0.2")
        half = half_requests(port, 3 * CONNECTIONS_MAX)
        assert get(port, "/healthz")[0] == 200
        slow.sendall(b"TP/1.1\r\n\r\n")
        assert slow.recv(12) == b"HTTP/1.1 200"
        for client in (slow, *half):
            client.close()


def test_clients_that_have_left_take_no_place(healthy: NodeSnapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many have been answered, one that is still sending its request keeps its connection."""
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 1e6)
    with serving(lambda: healthy) as port:
        (slow,) = half_requests(port, 1)
        for _ in range(CONNECTIONS_OF_ADDRESS_MAX + 1):
            assert get(port, "/healthz")[0] == 200
        slow.sendall(b"TP/1.1\r\n\r\n")
        assert slow.recv(12) == b"HTTP/1.1 200"
        slow.close()


@pytest.mark.parametrize(
    "host, is_open",
    [("127.0.0.1", False), ("::1", False), ("localhost", False), ("0.0.0.0", True), ("192.0.2.1", True)],  # noqa: S104
)
def test_a_page_that_others_reach_is_logged(
    healthy: NodeSnapshot, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, host: str, is_open: bool
) -> None:
    """A page that other machines reach is a warning with what to do, once at the start; one on loopback is none."""
    assert server.is_open_to_others(host) == is_open
    monkeypatch.setattr(server, "is_open_to_others", lambda _: is_open)
    with serving(lambda: healthy):
        pass
    assert ["health_page_open" in one.message for one in caplog.records if one.levelname == "WARNING"] == [
        True
    ] * is_open


async def test_a_port_in_use_moves_the_page(healthy: NodeSnapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is served at a free port, and the reason names both; when its own port is free it moves back, and the
    free port is closed."""
    monkeypatch.setattr(server, "MOVE_BACK_S", 0.01)
    heard: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
    other = socket.create_server((HOST, 0))
    port = other.getsockname()[1]
    page = asyncio.create_task(serve(HOST, port, lambda: healthy, lambda *ready: heard.put_nowait(ready)), name="page")
    free, why = await heard.get()
    assert why == f"cannot listen on {HOST} port {port}: Address already in use; it is at {HOST} port {free} meanwhile"
    assert (await asyncio.to_thread(get, free, "/healthz"))[0] == 200
    other.close()
    assert await heard.get() == (port, "")
    assert (await asyncio.to_thread(get, port, "/healthz"))[0] == 200
    with pytest.raises(ConnectionRefusedError):
        await asyncio.to_thread(get, free, "/healthz")
    page.cancel()
    await asyncio.wait([page])


def test_a_status_that_cannot_be_read_is_503() -> None:
    """An error while the snapshot is taken is a 503."""

    def broken() -> NodeSnapshot:
        raise BsfgError("the store is closed")

    assert answer(b"GET /healthz HTTP/1.1\r\n\r\n", broken).startswith(b"HTTP/1.1 503 ")


@pytest.mark.parametrize(
    "request_bytes, status",
    [
        (b"", 400),
        (b"\r\n\r\n", 400),
        (b"GET /healthz\r\n\r\n", 400),
        (b"GET /healthz HTTP/2.0\r\n\r\n", 400),
        (b"GET  /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n", 400),
        (b"get /healthz HTTP/1.1\r\n\r\n", 405),
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", 405),
        (b"GET /\xff\xfe HTTP/1.1\r\n\r\n", 404),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
    ],
)
def test_each_request_has_its_status(healthy: NodeSnapshot, request_bytes: bytes, status: int) -> None:
    """Bytes that are no request, other methods and other paths each have their status."""
    assert answer(request_bytes, lambda: healthy).startswith(b"HTTP/1.1 %d " % status)


def test_any_bytes_get_an_answer(healthy: NodeSnapshot) -> None:
    """Whatever arrives, the answer is one whole HTTP answer whose length is as announced."""
    chance = random.Random(7)
    for _ in range(500):
        good = bytearray(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(chance.randrange(4)):
            good[chance.randrange(len(good))] = chance.randrange(256)
        head, _, body = answer(bytes(good), lambda: healthy).partition(END_OF_REQUEST)
        assert head.startswith(b"HTTP/1.1 ")
        assert b"Content-Length: %d\r\n" % len(body) in head

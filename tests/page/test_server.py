"""The page as a process: hostile visitors cost nobody else, another user serves it, and TLS with users guards it."""

import asyncio
import http.client
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.client import Client
from agent.config import load
from agent.demo.processes import Child, accepts
from agent.health.snapshot import NodeSnapshot
from agent.page.access import user_line
from agent.page.facts import StoreFacts
from agent.page.server import CONNECTIONS_MAX, CONNECTIONS_OF_ADDRESS_MAX, REQUESTS_MAX, serve
from agent.replication import pki
from tests.page.conftest import store_with
from tests.waiting import wait_until

pytestmark = pytest.mark.system


@contextmanager
def served(folder: Path, more: str = "", before: tuple[str, ...] = ()) -> Iterator[tuple[Child, int]]:
    """A page over the store in `folder`, and its port."""
    (folder / "node.toml").write_text(f'[node]\nzone = "idmz"\n[page]\nlisten_port = 0\n{more}')
    words = [*before, sys.executable, "-m", "agent.cli", "page", "--config", folder / "node.toml"]
    # In debug mode asyncio itself logs each visitor that ends a handshake.
    with Child("page", words, folder / "page.log", {"PYTHONASYNCIODEBUG": ""}) as page:
        page.start()
        port = int(page.wait_line("page: ").rstrip("/").rpartition(":")[2])
        wait_until(lambda: accepts(port), "the page to be served")
        yield page, port


def get(port: int, path: str = "/help", **headers: str) -> tuple[int, bytes]:
    """An answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    try:
        return answer.status, answer.read()
    finally:
        connection.close()


def test_hostile_visitors(tmp_path: Path, healthy: NodeSnapshot) -> None:
    """A thousand connections that send half a request, or ask and never read, take places from each other and not from
    a reader; another host is refused; the process holds no more than its places."""
    with store_with(tmp_path, healthy), served(tmp_path) as (page, port), ExitStack() as stack:
        assert get(port)[0] == 200
        for n in range(1000):
            visitor = stack.enter_context(socket.socket())
            visitor.connect(("127.0.0.1", port))
            visitor.sendall(b"GET /help HT" if n % 2 else b"GET /live?page=/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert get(port)[0] == 200
        wait_until(lambda: _sockets(page.pid) < CONNECTIONS_MAX + 20, "the places to be the limit")
        assert _sockets(page.pid) < CONNECTIONS_OF_ADDRESS_MAX + 40
        assert get(port, Host="evil.example")[0] == 400
        assert get(port, "/zone/%3Cscript%3E")[0] == 404
    assert "Traceback" not in page.log_text()


async def test_requests_of_visitors_that_have_left(
    tmp_path: Path, healthy: NodeSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they asked for is at work up to a limit; then a reader is told to come again, and later answered."""
    is_read = asyncio.Event()

    async def latest(*_: object) -> list[object]:
        await is_read.wait()
        return []

    async def wait_status(wanted: int) -> None:
        while (await asyncio.to_thread(get, port))[0] != wanted:
            assert not serving.done()

    monkeypatch.setattr(StoreFacts, "latest", latest)
    (tmp_path / "node.toml").write_text('[node]\nzone = "idmz"\n[page]\nlisten_port = 0\n')
    with store_with(tmp_path, healthy):
        addresses: asyncio.Queue[str] = asyncio.Queue()
        serving = asyncio.create_task(serve(load(tmp_path / "node.toml"), addresses.put_nowait))
        port = int((await addresses.get()).rstrip("/").rpartition(":")[2])
        await wait_status(200)
        for _ in range(REQUESTS_MAX + 200):
            _, visitor = await asyncio.open_connection("127.0.0.1", port)
            visitor.write(b"GET /tags HTTP/1.1\r\nHost: localhost\r\n\r\n")
            visitor.close()
        await wait_status(503)
        assert len(asyncio.all_tasks()) < REQUESTS_MAX + 50
        is_read.set()
        await wait_status(200)
        os.kill(os.getpid(), signal.SIGTERM)
        await serving


def test_visitors_change_nothing_at_the_node(tmp_path: Path) -> None:
    """A thousand hostile visitors of a node's page: then its status says what it said, and the next fact of a program
    has the next offset; HTML in a value is text."""
    visits = (
        b"GET / HT",
        b"GET /live?page=/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"POST /zone/plant HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n<b>x</b>x",
        b"GET /tag?tag=%3Cscript%3E&from=-1&to=9999999999999999 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /static/..%2f..%2fnode.toml HTTP/1.1\r\nHost: localhost\r\n\r\n",
    )
    (tmp_path / "node.toml").write_text('[node]\nzone = "idmz"\n[page]\nlisten_port = 0\n')
    client = Client(tmp_path / "state")
    words = [sys.executable, "-m", "agent.cli", "run", "--config", str(tmp_path / "node.toml")]

    def told() -> tuple[object, ...]:
        status = client.status()
        return tuple(status[name] for name in ("verdict", "alert", "reasons", "counts", "zone", "life"))

    with Child("node", words, tmp_path / "node.log") as node:
        node.start()
        node.wait_line('{"time"')
        wait_until(lambda: "node_ready" in node.log_text(), "the node")
        first = client.append("asset:<b>1", "noted", "<script>", message_id="m1").offset
        wait_until(lambda: client.status()["counts"]["streams"] == 2, "the first health")
        before = told()
        with served(tmp_path) as (_, port), ExitStack() as stack:
            for n in range(1000):
                visitor = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                visitor.sendall(visits[n % len(visits)])
            assert b"<script>" not in get(port, "/tags")[1]
            assert told() == before
            assert client.append("asset:<b>1", "noted", "2", message_id="m2").offset == first + 1


def _sockets(pid: int) -> int:
    return sum("socket" in str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start it as another user")
def test_another_user_of_the_group_serves_it(healthy: NodeSnapshot) -> None:
    """It reads the store that the node has open, and can write nothing there."""
    folder = Path(
        subprocess.run(
            ["mktemp", "-d", "/tmp/bsfg-page-XXXX"], capture_output=True, text=True, check=True
        ).stdout.strip()
    )
    folder.chmod(0o755)
    try:
        with store_with(folder, healthy):
            state = folder / "state"
            state.chmod(0o750)
            for path in (state, *state.iterdir()):
                os.chown(path, 65_533, 65_532)
            (folder / "page.log").touch()
            other = ("setpriv", "--reuid=65534", "--regid=65534", "--groups=65532")
            with served(folder, before=other) as (page, port):
                assert b"idmz is broken: the node does not answer" in get(port, "/zone/idmz")[1]
                assert b"line1" in get(port, "/zone/idmz")[1], "from the health in the store"
                assert "page_" in page.log_text()
                done = subprocess.run([*other, "touch", str(state / "x")], capture_output=True, check=False)
                assert done.returncode != 0
    finally:
        shutil.rmtree(folder)


def test_tls_and_users(tmp_path: Path, healthy: NodeSnapshot) -> None:
    """With a certificate and a file of users: no answer without TLS, 401 without a password, the page with one."""
    pki.create_authority(tmp_path / "pki", datetime.now(UTC))
    issued = pki.issue_broker(tmp_path / "pki", "localhost", ("localhost",), datetime.now(UTC))
    (tmp_path / "users").write_text(user_line("ann", "secret"))
    more = f'cert_file = "{issued.cert_file}"\nkey_file = "{issued.key_file}"\nusers_file = "users"\n'
    with store_with(tmp_path, healthy), served(tmp_path, more) as (_, port):
        context = ssl.create_default_context(cafile=str(issued.ca_file))
        for login, status in (("", 401), ("Basic YW5uOnNlY3JldA==", 200), ("Basic YW5uOndyb25n", 401)):
            connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=60)
            connection.request("GET", "/help", headers={"Authorization": login})
            assert connection.getresponse().status == status
            connection.close()
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            get(port)


def test_client_certificates(tmp_path: Path, healthy: NodeSnapshot) -> None:
    """curl gets the page with a certificate of the page's authority, and no answer without one or with a foreign
    one."""
    now = datetime.now(UTC)
    for folder in ("pki", "foreign"):
        pki.create_authority(tmp_path / folder, now)
    issued = pki.issue_broker(tmp_path / "pki", "localhost", ("localhost",), now)
    ours, foreign = (pki.issue_zone(tmp_path / folder, "ann", now) for folder in ("pki", "foreign"))
    more = f'cert_file = "{issued.cert_file}"\nkey_file = "{issued.key_file}"\nclient_ca_file = "{issued.ca_file}"\n'
    with store_with(tmp_path, healthy), served(tmp_path, more) as (page, port):
        address = f"https://localhost:{port}/zone/idmz"
        for identity, is_admitted in ((ours, True), (None, False), (foreign, False)):
            shown = [] if identity is None else ["--cert", identity.cert_file, "--key", identity.key_file]
            command = ["curl", "--silent", "--fail", "--max-time", "60", "--cacert", issued.ca_file, *shown, address]
            done = subprocess.run(command, capture_output=True, check=False)
            assert (done.returncode == 0, b"idmz is" in done.stdout) == (is_admitted, is_admitted), done
        assert "Traceback" not in page.log_text()

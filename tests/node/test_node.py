"""The whole node, without peers and sources: it starts, reports why it ends, and stops."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from agent import local_socket
from agent.cli.local_node import answer_from_store, ask
from agent.config import ConfigFile
from agent.errors import StoreFull
from agent.fact_store import FactStore
from agent.fact_store.core.errors import StoreFailed
from agent.local_socket.serving import RequestHandler, open_store, serve
from agent.node.node import Node, _first_assertion
from agent.node.start import Start
from agent.settings.node import IdentitySettings, NodeSettings
from tests.support import command
from tests.waiting import LIMIT_S, wait_until, wait_until_async


def settings_of(folder: Path) -> NodeSettings:
    """A node without peers and sources."""
    return NodeSettings(IdentitySettings("plant-a", folder))


@asynccontextmanager
async def running(
    folder: Path, change: Callable[[Node], object] = lambda _: None
) -> AsyncIterator[tuple[Node, asyncio.Task[None], asyncio.Event]]:
    """A node that serves its socket, its task, and what stops it. `change` its parts before they begin."""
    settings, stop = settings_of(folder), asyncio.Event()
    with open_store(settings) as store:
        node = Node(store, Start(settings), ConfigFile(folder / "node.toml"), asyncio.Event())
        change(node)
        task = asyncio.create_task(node.run(stop, _first_assertion(asyncio.get_running_loop())))
        await wait_until_async((folder / local_socket.SOCKET).exists, "the node")
        yield node, task, stop


@pytest.mark.system
def test_a_node_waits_for_a_command(tmp_path: Path) -> None:
    """A node that starts while a command has the store open waits for it, and runs then."""
    (tmp_path / "node.toml").write_text('[node]\nzone = "plant-a"\n\n')
    state = tmp_path / "state"
    state.mkdir()
    log = tmp_path / "log"
    with (
        log.open("wb") as opened,
        FactStore.open(state / "facts.db", "plant-a") as store,
        subprocess.Popen(command.words("run"), cwd=tmp_path, stderr=opened) as node,
    ):
        wait_until(lambda: "store_locked" in log.read_text(), "the lock met")
        store.close()
        wait_until((state / local_socket.SOCKET).exists, "the node")
        node.terminate()
        assert node.wait() == 0


async def test_a_command_waits_for_a_node_that_starts(tmp_path: Path) -> None:
    """While a node holds the store and does not serve its socket yet, a command waits, and is answered by the node."""
    settings, tries = settings_of(tmp_path), list[local_socket.AnyRequest]()

    async def alone(own: NodeSettings, request: local_socket.AnyRequest) -> local_socket.LocalReply:
        tries.append(request)
        return await answer_from_store(own, request)

    with open_store(settings) as store:
        asking = partial(ask, settings, local_socket.ListConsumers(), local_socket.Consumers, without_node=alone)
        asked = asyncio.create_task(asyncio.to_thread(asking))
        await wait_until_async(lambda: tries, "the lock met")
        serving = asyncio.create_task(serve(RequestHandler(store), tmp_path))
        assert (await asked).consumers == []
        serving.cancel()


async def test_an_assertion_outside_of_any_task_ends_the_node(tmp_path: Path) -> None:
    """asyncio only logs what a callback raises. The node must end instead of continuing with a part that has
    stopped."""

    def mistaken() -> None:
        raise AssertionError("ours")

    async with running(tmp_path) as (_, task, _):
        asyncio.get_running_loop().call_soon(mistaken)
        with pytest.raises(ExceptionGroup) as caught:
            await task
    assert caught.group_contains(AssertionError, match="ours")


class DrainingIngest:
    """A source that still commits when the node stops: it sends a request to the node's local socket before it ends."""

    def __init__(self, folder: Path) -> None:
        self.answers: list[object] = []
        self._folder = folder
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Drain once stopped."""
        await self._stopped.wait()
        self.answers.append((await local_socket.ask(self._folder, local_socket.ListConsumers())).answer)

    def stop(self) -> None:
        """Begin to drain."""
        self._stopped.set()

    def statistics(self) -> list[object]:
        """No source."""
        return []


async def test_sources_drain_before_anything_else_stops(tmp_path: Path) -> None:
    """The parts that a draining source needs run until it has ended: the local socket still answers."""
    ingest = DrainingIngest(tmp_path)

    def with_it(node: Node) -> None:
        node._ingest = node._collector._ingest = ingest  # type: ignore[assignment]

    async with running(tmp_path, with_it) as (_, task, stop):
        stop.set()
        await task
        assert ingest.answers == [local_socket.Consumers([])]


async def test_a_store_that_fails_ends_the_node(tmp_path: Path) -> None:
    """At its disk: no part goes on without it, and systemd starts the node again."""
    async with running(tmp_path) as (node, task, _):
        node._store._writer.submit("write", Mock(side_effect=sqlite3.OperationalError("disk I/O error")))
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(ExceptionGroup) as caught:
                await task
        assert caught.group_contains(StoreFailed)


async def test_a_full_store_ends_no_node(tmp_path: Path) -> None:
    """The checkpoint of the day is left to the next hour. When the node stops, the service manager is told."""
    said = list[str]()

    def full(node: Node) -> None:
        node._store.checkpoint = Mock(side_effect=StoreFull("the disk", "make room"))  # type: ignore[method-assign]
        node._notifier.send = said.append  # type: ignore[assignment]

    async with running(tmp_path, full) as (node, task, stop):
        assert node._store.checkpoint.called  # type: ignore[attr-defined]
        assert "STOPPING=1" not in said
        stop.set()
        await task
        assert "STOPPING=1" in said


@pytest.mark.parametrize(
    "part, name",
    [
        ("ingest.supervision.supervisor.SourceSupervisor._live", "source meter"),
        ("node.status.StatusCollector.run", "status"),
    ],
)
def test_a_part_that_ends_in_silence_ends_the_process(part: str, name: str, tmp_path: Path) -> None:
    """A node one of whose parts returns though nothing has asked it to: the process ends with a status that makes
    systemd start it again, and the log names the part."""
    source = '[[modbus]]\nname = "meter"\nhost = "127.0.0.1"\nport = 1\ntags_file = "meter.csv"\naddress_base = 0\n'
    (tmp_path / "node.toml").write_text(f'[node]\nzone = "plant-a"\n{source}')
    (tmp_path / "meter.csv").write_text("tag,unit_id,table,register,type\nx,1,holding,1,uint16\n")
    module, name_of_class, method = f"agent.{part}".rsplit(".", 2)
    script = f"""
from {module} import {name_of_class}
from agent.cli import main

async def ends(self):
    pass

{name_of_class}.{method} = ends
main()
"""
    command_line = [sys.executable, "-c", script, "run"]
    ended = subprocess.run(command_line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert f'"event": "task_ended", "task": "{name}", "how": "returned"' in ended.stderr

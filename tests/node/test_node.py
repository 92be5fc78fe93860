"""The whole node, without peers and sources: it starts, reports why it ends, and stops."""

import asyncio
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from agent import local_socket
from agent.cli.local_node import answer_from_store, ask
from agent.config import HealthSettings, IdentitySettings, NodeSettings
from agent.fact_store import FactStore
from agent.local_socket.transport import socket_address
from agent.node.node import Node, _first_assertion
from tests.support import command
from tests.waiting import wait_until, wait_until_async


def settings_of(folder: Path) -> NodeSettings:
    """A node without peers and sources."""
    return NodeSettings(IdentitySettings("plant-a", folder), health=HealthSettings(listen_port=0))


async def run(folder: Path, stop: asyncio.Event) -> None:
    """Run the node until `stop`."""
    settings = settings_of(folder)
    failed_assertion = _first_assertion(asyncio.get_running_loop())
    with local_socket.open_store(settings) as store:
        await Node(settings, store, {}).run(stop, failed_assertion)


def test_a_node_waits_for_a_command(tmp_path: Path) -> None:
    """A node that starts while a command has the store open waits for it, and runs then."""
    (tmp_path / "node.toml").write_text('[node]\nzone = "plant-a"\n\n[health]\nlisten_port = 0\n')
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


def test_a_command_waits_for_a_node_that_starts(tmp_path: Path) -> None:
    """While a node holds the store and does not serve its socket yet, a command waits, and is answered by the node."""
    settings, tries = settings_of(tmp_path), list[local_socket.Request]()

    async def alone(own: NodeSettings, request: local_socket.Request) -> local_socket.Answer:
        tries.append(request)
        return await answer_from_store(own, request)

    async def scenario() -> None:
        with local_socket.open_store(settings) as store:
            asking = partial(ask, settings, local_socket.ListConsumers(), local_socket.Consumers, alone=alone)
            asked = asyncio.create_task(asyncio.to_thread(asking))
            await wait_until_async(lambda: tries, "the lock met")
            serving = asyncio.create_task(local_socket.serve(local_socket.RequestHandler(store), tmp_path))
            assert (await asked).consumers == []
            serving.cancel()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_an_assertion_outside_of_any_task_ends_the_node(tmp_path: Path) -> None:
    """asyncio only logs what a callback raises; the node must end rather than go on with a part that stands still."""

    async def scenario() -> None:
        def mistaken() -> None:
            raise AssertionError("ours")

        running = asyncio.create_task(run(tmp_path, asyncio.Event()))
        await wait_until_async((tmp_path / local_socket.SOCKET).exists, "the node")
        asyncio.get_running_loop().call_soon(mistaken)
        with pytest.raises(ExceptionGroup) as caught:
            await running
        assert caught.group_contains(AssertionError, match="ours")

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_silent_client_does_not_delay_the_stop(tmp_path: Path) -> None:
    """SIGTERM ends the node although a silent client is connected to its socket."""

    async def scenario() -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(run(tmp_path, stop))
        await wait_until_async((tmp_path / local_socket.SOCKET).exists, "the node")
        with socket_address(tmp_path) as address:
            reader, writer = await asyncio.open_unix_connection(address)
        stop.set()
        await running
        assert await reader.read() == b""
        writer.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))


class DrainingIngest:
    """A source that still commits when the node stops: it asks the node at its local socket before it ends."""

    def __init__(self, folder: Path) -> None:
        self.answers: list[local_socket.Answer] = []
        self._folder = folder
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Drain once stopped."""
        await self._stopped.wait()
        self.answers.append(await local_socket.ask(self._folder, local_socket.ListConsumers()))

    def stop(self) -> None:
        """Begin to drain."""
        self._stopped.set()

    def statistics(self) -> list[object]:
        """No source."""
        return []


def test_sources_drain_before_anything_else_stops(tmp_path: Path) -> None:
    """The parts that a draining source needs run until it has ended: the local socket still answers it."""

    async def scenario() -> None:
        stop, settings = asyncio.Event(), settings_of(tmp_path)
        with local_socket.open_store(settings) as store:
            node, ingest = Node(settings, store, {}), DrainingIngest(tmp_path)
            node._ingest = node._collector._ingest = ingest  # type: ignore[assignment]
            running = asyncio.create_task(node.run(stop, asyncio.get_running_loop().create_future()))
            await wait_until_async((tmp_path / local_socket.SOCKET).exists, "the node")
            stop.set()
            await running
            assert ingest.answers == [local_socket.Consumers([])]

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_libraries_of_sources_are_imported_only_for_sources() -> None:
    """asyncua and pymodbus take half a second and 30 MB, which neither a command nor a node without such sources may
    cost."""
    program = "import sys, agent.local_socket, agent.node; print(sorted({'asyncua', 'pymodbus', 'pyspark'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

"""A request where no node answers: from the store, if it can be, as soon as nobody else holds it."""

import asyncio
from pathlib import Path

import pytest

from agent import local_socket
from agent.cli import local_node
from agent.config import load
from agent.fact_store import StoreLocked
from agent.settings.node import NodeSettings


@pytest.fixture
def settings(tmp_path: Path) -> NodeSettings:
    """The settings of a node that does not run."""
    (tmp_path / "node.toml").write_text('[node]\nzone = "plant-a"\n')
    return load(tmp_path / "node.toml")


@pytest.mark.parametrize(
    "request_",
    [
        *(local_socket.Reload(), local_socket.RetrySource("m")),
        local_socket.BackfillSource("m", 0, 1),
    ],
)
def test_what_only_a_node_can_answer_opens_no_store(settings: NodeSettings, request_: local_socket.Request) -> None:
    """A node that is about to start needs its lock."""
    with pytest.raises(local_socket.NoNode):
        asyncio.run(local_node.answer_from_store(settings, request_))
    assert not settings.node.state_dir.exists()


@pytest.mark.parametrize("limit_s, tries", [(60, 3), (0, 1)])
def test_a_command_waits_for_a_store_that_another_process_holds(
    settings: NodeSettings, monkeypatch: pytest.MonkeyPatch, limit_s: float, tries: int
) -> None:
    """It asks again until the store is free, and gives up at its limit."""
    monkeypatch.setattr(local_node, "LOCKED_S", limit_s)
    monkeypatch.setattr(local_node, "LOCKED_STEP_S", 0)
    held = iter([True, True, False])
    count = 0

    async def without_node(_: NodeSettings, __: local_socket.ListConsumers) -> local_socket.Reply:
        nonlocal count
        count += 1
        if next(held):
            raise StoreLocked("pid 1 has it")
        return local_socket.Reply(local_socket.Consumers([]), [])

    def ask() -> local_socket.Consumers:
        return local_node.ask(settings, local_socket.ListConsumers(), local_socket.Consumers, without_node=without_node)

    if limit_s:
        assert ask().consumers == []
    else:
        with pytest.raises(StoreLocked):
            ask()
    assert count == tries

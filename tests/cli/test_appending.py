"""`docs/operate/appending.md`: what it shows happens, and its table of outcomes is complete."""

import asyncio
import json
import re
from pathlib import Path
from typing import get_args

import pytest

from agent.append_contract import Outcome
from agent.config import load
from agent.local_socket.serving import open_store
from tests.cli.conftest import typed
from tests.replication.nodes import whole_node, write_node_toml
from tests.support.mosquitto import Mosquitto
from tests.support.page import ROOT, shown

PAGE = "docs/operate/appending.md"


@pytest.mark.usefixtures("plant_a")
def test_documented_commands_work() -> None:
    """Each command in its order, in a new folder: the outcomes are those the page explains, and refusals have status
    1."""
    done = [typed(*arguments) for arguments in shown(PAGE, "appending")]
    said = [(result.exit_code, result.output) for result in done]
    expected = [
        (0, '"outcome": "applied"'), (0, '"outcome": "noop_already_applied"'), (1, '"outcome": "conflicting_duplicate"'),
        (0, "1\n"), (0, "2\n"), (1, "rejected_fenced: lease epoch 2 of mes is in force"), (0, "applied: offset 2"),
    ]  # fmt: skip
    assert [(code, text in output) for (code, text), (_, output) in zip(expected, said, strict=True)] == [
        (code, True) for code, _ in said
    ]


def test_the_page_explains_every_outcome() -> None:
    """Every outcome the store knows stands in the table, and no other."""
    assert sorted(re.findall(r"^\| `(\w+)` \|", (ROOT / PAGE).read_text("utf-8"), re.MULTILINE)) == sorted(
        get_args(Outcome)
    )


@pytest.mark.system
def test_documented_commands_for_another_node_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of the second part, as plant-a at the shared broker: outcomes are those of a local append, and a
    refused zone gets the reason and the setting to change."""
    monkeypatch.chdir(tmp_path)
    commands = shown(PAGE, "appending elsewhere")
    commands.append(["append", "--to", "idmz", "--stream", "facts.audit", "a:b", "c", "1"])
    commands.append(["append", "--to", "idmz", "a:b", "c", json.dumps("x" * 70_000)])
    commands.append(["append", "--to", "plant-z", "a:b", "c", "1"])

    async def run(broker: Mosquitto) -> list[tuple[int, str]]:
        allowed = 'zone = "plant-a"\nappends = ["facts.operational"]'
        async with whole_node(tmp_path / "idmz", broker, "idmz", allowed) as file:
            said = [await asyncio.to_thread(typed, *command) for command in commands]
        with open_store(load(file)) as store:
            assert store.end_offset("facts.operational") == 1
        return [(done.exit_code, done.output + str(done.exception or "")) for done in said]

    with Mosquitto.started(tmp_path / "broker", ("plant-a", "idmz"), ("idmz:plant-a",)) as broker:
        write_node_toml(tmp_path, broker, "plant-a", 'zone = "idmz"\nasks = true')
        said = asyncio.run(run(broker))
    expected = [
        (0, "applied: offset 1 of facts.operational, message_id order-77-released"),
        (0, "noop_already_applied: offset 1"), (0, "1\n"), (1, "append_not_allowed"), (1, "at most 65536"), (2, "plant-z"),
    ]  # fmt: skip
    assert [(code, text in output) for (code, text), (_, output) in zip(expected, said, strict=True)] == [
        (code, True) for code, _ in said
    ], said

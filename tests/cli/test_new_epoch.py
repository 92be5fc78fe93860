"""`bsfg store new-epoch`: an operator begins a new epoch, with or without a running node."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agent.cli import bsfg
from agent.fact_store import FactStore
from tests.support.served_store import served_store


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a node.toml, in which the command runs."""
    monkeypatch.chdir(tmp_path)
    Path("node.toml").write_text('[node]\nzone = "plant-a"\n')
    return tmp_path


def run(*arguments: str, answer: str = "") -> Result:
    """What a person types, in this process."""
    return CliRunner().invoke(bsfg, ["store", "new-epoch", *arguments], input=answer)


def test_it_asks_first_and_records_why(folder: Path) -> None:
    """Without a yes nothing changes; with it the store has another epoch, its facts, and an incident with the
    reason."""
    assert CliRunner().invoke(bsfg, ["append", "batch:1", "done", "{}"]).exit_code == 0
    with FactStore.open(folder / "state/facts.db", "plant-a") as store:
        before = store.epoch.hex()
    assert run(answer="n\n").exit_code == 1
    done = run("--because", "restored on Monday", answer="y\n")
    assert done.exit_code == 0, done.output
    assert f"began after {before}" in done.output
    with FactStore.open(folder / "state/facts.db", "plant-a") as store:
        assert store.epoch.hex() != before
        (incident,) = store.incidents()
        assert "restored on Monday" in incident.detail
        assert store.end_offset("facts.operational") == 2, "the fact, and the one about the epoch"


async def test_a_running_node_goes_on(folder: Path) -> None:
    """The node is asked at its socket, and its store goes on under the new epoch."""
    (folder / "state").mkdir()
    async with served_store(folder / "state") as store:
        before = store.epoch.hex()
        done = await asyncio.to_thread(run, "--yes", "--json")
        assert json.loads(done.output) == {"epoch": store.epoch.hex(), "previous_epoch": before}
        assert store.epoch.hex() != before
        assert store.failure is None

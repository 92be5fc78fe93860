"""The commands on a store: the line of `bsfg store stats` about flash, and those of the page about damage do what it
says."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agent.cli import bsfg
from agent.client import Client, NodeSilent
from agent.fact_store import FactStore, StoreReader
from agent.fact_store.divergence.quarantine import mark_suspect
from agent.positions import Position
from tests.fact_store.making import AT_ONCE, TELEMETRY, Elsewhere, crowd_incidents, done, parsed, plant, samples, tag
from tests.support.received import put_page

HOUR_MS = 3_600_000
PAGE = Path(__file__).resolve().parents[2] / "docs" / "operate" / "integrity.md"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A node's configuration, and its store with a few facts."""
    (tmp_path / "state").mkdir()
    with plant(tmp_path / "state") as store:
        for number in range(10):
            done(store.appends.append_samples(TELEMETRY, samples(100, 100 * number + 1)))
    file = tmp_path / "node.toml"
    file.write_text('[node]\nzone = "plant"\n')
    return file


def line_of(config: Path, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any] | None) -> str | None:
    """The line, where the node answers this."""

    def ask(_: Client) -> dict[str, Any]:
        if answer is None:
            raise NodeSilent("no answer")
        return answer

    monkeypatch.setattr(Client, "status", ask)
    shown = CliRunner().invoke(bsfg, ["store", "stats", "--config", str(config)])
    assert shown.exit_code == 0, shown.output
    as_json = CliRunner().invoke(bsfg, ["store", "stats", "--config", str(config), "--json"])
    flash = json.loads(as_json.output)["flash"]
    lines = [line for line in shown.output.splitlines() if line.startswith("  flash")]
    assert [f"  flash       {flash['text']}"] == lines if flash else not lines
    return flash["text"] if flash else None


def answer_of(seconds: int, written: int | None, zone: str = "plant") -> dict[str, Any]:
    """What a node says."""
    times = {"started_unix_ms": 1_000_000, "taken_unix_ms": 1_000_000 + 1000 * seconds}
    return {"zone": zone, **times, "store": {"written_bytes_total": written}}


def test_the_node_says_what_it_has_written(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 MB in a thousand seconds are 8.64 GB a day."""
    text = line_of(config, monkeypatch, answer_of(1000, 100_000_000))
    assert text is not None
    assert "the node wrote 8.64 GB a day" in text
    assert "measured since its start" in text


@pytest.mark.parametrize("why", ["just begun", "no count", "nothing counted", "another zone", "silent"])
def test_without_a_measurement_nothing_is_made_up(config: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """A node that has just begun, a kernel that does not count or has counted nothing, another node at the port, none
    at all: a store of a few seconds gives no estimate either."""
    answer = {
        "just begun": answer_of(100, 100_000_000),
        "no count": answer_of(1000, None),
        "nothing counted": answer_of(1000, 0),
        "another zone": answer_of(1000, 100_000_000, zone="elsewhere"),
        "silent": None,
    }[why]
    assert line_of(config, monkeypatch, answer) is None


def test_an_estimate_from_the_batches(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten batches in an hour, with the sum."""
    monkeypatch.setattr(StoreReader, "clock_marks", lambda *_: [(1, HOUR_MS), (900, 2 * HOUR_MS)])
    text = line_of(config, monkeypatch, None)
    assert text is not None
    assert "its batches make 0.01 GB a day" in text
    assert "0.00 batches/s x 31,000 bytes" in text


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    """Each succeeds on a node whose file was set aside, and the export holds what the file held."""
    config = tmp_path / "node.toml"
    config.write_text(f'[node]\nzone = "plant"\nstate_dir = "{tmp_path}"\n')
    for _ in range(2):
        with FactStore.open(tmp_path / "facts.db", "plant", settings=AT_ONCE, unattended=True) as store:
            done(store.appends.define([tag(1)]))
            done(store.appends.append_samples(TELEMETRY, samples(10)))
        if not list(tmp_path.glob("*.why")):
            mark_suspect(tmp_path / "facts.db", "a test")
    (aside,) = (path.with_suffix("") for path in tmp_path.glob("*.why"))
    lines = re.findall(r"^bsfg store .*$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(lines) == 5
    for line in lines:
        words = shlex.split(re.sub(r"facts\.db\.damaged-\d+T\d+Z", str(aside), line), comments=True)[1:]
        words = [str(tmp_path / word) if word == "rescued.csv" else word for word in words]
        run = CliRunner().invoke(bsfg, words, env={"BSFG_CONFIG": str(config)})
        assert run.exit_code == 0, (line, run.output, run.exception)
    assert len((tmp_path / "rescued.csv").read_text().splitlines()) == 11


def test_a_divided_history_is_named_and_is_no_damage(tmp_path: Path) -> None:
    """Two lives of a plant follow the same batch: `verify` succeeds, and it and `stats` name lives, sequence and what
    to do; `verify` also after any number of incidents of other kinds."""
    config = tmp_path / "node.toml"
    config.write_text(f'[node]\nzone = "idmz"\nstate_dir = "{tmp_path}"\n')
    with FactStore.open(tmp_path / "facts.db", "idmz") as store:
        for life in (bytes([1] * 16), bytes([2] * 16)):
            plant = Elsewhere("plant", life=life)
            sealed = parsed([plant.seal(10)])
            done(put_page(store, "plant", plant.stream, sealed, plant.received(), Position(life, 10)))
    for command in ("stats", "verify"):
        run = CliRunner().invoke(bsfg, ["store", command], env={"BSFG_CONFIG": str(config)})
        assert run.exit_code == 0, (run.output, run.exception)
        assert f"life {'02' * 16} has 10 facts beyond and life {'01' * 16} has 10 facts beyond" in run.output
        assert "-> nothing if it has two gateways, or was put back on purpose" in run.output
        with FactStore.open(tmp_path / "facts.db", "idmz") as store:
            crowd_incidents(store)

"""The line of `bsfg store stats` about flash: measured by the node of this store, else estimated, else left out."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agent.cli import bsfg
from agent.client import Client, NodeSilent
from agent.fact_store import StoreReader
from tests.fact_store.making import TELEMETRY, done, plant, samples

HOUR_MS = 3_600_000


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


@pytest.mark.parametrize("why", ["just begun", "no count", "another zone", "silent"])
def test_without_a_measurement_nothing_is_made_up(config: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """A node that has just begun, a kernel that does not count, another node at the port, none at all: a store of a few
    seconds gives no estimate either."""
    answer = {
        "just begun": answer_of(100, 100_000_000),
        "no count": answer_of(1000, None),
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

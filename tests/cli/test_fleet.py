"""`bsfg fleet`: the zones below a node, as many as fit a screen."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.cli import bsfg
from agent.fact_store import FactStore
from agent.health.snapshot import PairSnapshot
from tests.health.conftest import NOW_MS
from tests.page.zones import Zones, gateway

ZONES = 23


def test_the_worst_ten_and_a_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many zones that are not good ten are printed, with how many there are; --all, words and --json print all that
    are meant. The command of the worst comes last."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "node.toml").write_text('[node]\nzone = "idmz"\n')
    (tmp_path / "state").mkdir()
    with FactStore.open(tmp_path / "state" / "facts.db", "idmz") as store:
        Zones(store).send(*(gateway(f"plant-{number:02}", NOW_MS) for number in range(ZONES)))  # silent since then

    def fleet(*words: str) -> list[str]:
        done = CliRunner().invoke(bsfg, ["fleet", *words], catch_exceptions=False)
        assert done.exit_code == 1
        return done.output.splitlines()

    sentence, _, _, *rows, more, hint = fleet()
    assert sentence == f"{ZONES} of {ZONES} zones are broken."
    assert [row.split()[1] for row in rows] == [f"plant-{number:02}" for number in range(10)]
    assert more == f"the worst 10 of {ZONES} that are not good (--all prints all)"
    assert hint.startswith("plant-00: -> ")
    assert len(fleet("--all")) == ZONES + 4
    assert len(fleet("plant-1")) == 10 + 4
    assert fleet("no-such-zone") == [sentence], "an operator must act, whatever is looked for"
    assert [json.loads(line)["level"] for line in fleet("--json")] == ["broken"] * ZONES


def test_the_gateways_of_a_plant_are_beneath_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line for the plant, one for each of its two gateways, the one that leads first; they count as one zone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "node.toml").write_text('[node]\nzone = "idmz"\n')
    (tmp_path / "state").mkdir()
    now_ms = time.time_ns() // 1_000_000 + 60_000
    pair = PairSnapshot("plant-a", "leads", 7, "plant-a-2", "plant-a", now_ms, "follows", 200)
    other = replace(pair, role="follows", partner="plant-a-2", partner_state="leads")
    with FactStore.open(tmp_path / "state" / "facts.db", "idmz") as store:
        plant = gateway("plant-a", now_ms)
        Zones(store).send(replace(plant, pair=other), replace(plant, node="plant-a-2", pair=pair))
    done = CliRunner().invoke(bsfg, ["fleet", "--all"], catch_exceptions=False)
    sentence, _, _, *rows = done.output.splitlines()
    assert (sentence, done.exit_code) == ("The one zone is good.", 0)
    assert [row.split()[:2] for row in rows] == [["good", "plant-a"], ["good", "plant-a-2"], ["good", "plant-a"]]
    assert [row.split()[-1] for row in rows[1:]] == ["leads", "follows"]

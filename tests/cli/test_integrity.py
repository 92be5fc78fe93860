"""The commands of the page about damage do what it says."""

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from agent.cli import bsfg
from agent.fact_store import FactStore
from agent.fact_store.divergence.quarantine import mark_suspect
from agent.positions import Position
from tests.fact_store.making import AT_ONCE, TELEMETRY, Elsewhere, done, parsed, samples, tag
from tests.support.received import put_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operate" / "integrity.md"


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
    to do."""
    config = tmp_path / "node.toml"
    config.write_text(f'[node]\nzone = "idmz"\nstate_dir = "{tmp_path}"\n')
    with FactStore.open(tmp_path / "facts.db", "idmz") as store:
        for life in (bytes([1] * 16), bytes([2] * 16)):
            plant = Elsewhere("plant", life=life)
            sealed = parsed([plant.seal(10)])
            done(put_page(store, "plant", plant.stream, sealed, plant.received(), Position(life, 10)))
    for command in ("verify", "stats"):
        run = CliRunner().invoke(bsfg, ["store", command], env={"BSFG_CONFIG": str(config)})
        assert run.exit_code == 0, (run.output, run.exception)
        assert f"life {'02' * 16} has 10 facts beyond and life {'01' * 16} has 10 facts beyond" in run.output
        assert "-> if it was not put back on purpose, a copy of its machine runs" in run.output

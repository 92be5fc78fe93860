"""`bsfg run` before its node runs."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.cli import run as command


def test_the_writer_waits_briefly_for_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node's threads change more often than Python's default lets them: the writer asks for the lock after each
    statement."""
    found, before = list[float](), sys.getswitchinterval()

    async def run_node(_: object) -> None:
        found.append(sys.getswitchinterval())

    monkeypatch.setattr("agent.node.run_node", run_node)
    monkeypatch.setattr(command, "set_up_logging", lambda: None)
    (tmp_path / "node.toml").write_text('[node]\nzone = "plant-a"\n')
    try:
        done = CliRunner().invoke(command.run, ["--config", str(tmp_path / "node.toml")], catch_exceptions=False)
    finally:
        sys.setswitchinterval(before)
    assert (done.exit_code, found) == (0, [pytest.approx(command.SWITCH_INTERVAL_S)])
    assert found[0] < before

"""`bsfg pair`: what it prints of a running node, and its exit status."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agent import local_socket
from agent.cli import bsfg
from agent.cli import pair as command
from agent.health.snapshot import PairRefusal, PairSnapshot

LEADING = PairSnapshot("plant-a", "leads", 30, "plant-a", "plant-a-2", 0, "follows", 200, "idmz", 300)
CASES = {
    "leads": (LEADING, 0),
    "follows": (replace(LEADING, role="follows", leader="plant-a-2", partner_state="leads"), 0),
    "alone": (replace(LEADING, role="alone", partner_heard_ms=90_000, witness_heard_ms=None), 0),
    "after the partner's death": (replace(LEADING, partner_state="leads", partner_heard_ms=90_000), 0),
    "at the partner's death": (
        replace(LEADING, partner_state="leads", partner_heard_ms=1_600, since_unix_ms=2**53),
        0,
    ),
    "both": (replace(LEADING, partner_state="leads"), 1),
    "refused": (replace(LEADING, refusals=(PairRefusal("plant-a-2", "lead_not_yours", "it says no", ""),)), 1),
    "none": (replace(LEADING, role="follows", leader="", partner_state="releases"), 1),
}


REASON = {"alert": True, "text": "it says no", "problem": "pair_refused", "hint": "write it there", "caused_by": []}
REASONS = [REASON | {"subject": "pair"}, REASON | {"subject": "store", "text": "it is full"}]


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, pair: PairSnapshot | None, *arguments: str) -> Result:
    """Run the command beside a node with this status."""

    class Node:
        def __init__(self, _: Path) -> None:
            """Connected at once."""

        def status(self) -> dict[str, Any]:
            return {"pair": None if pair is None else asdict(pair), "reasons": REASONS}

    monkeypatch.setattr(command, "Client", Node)
    (folder / "node.toml").write_text('[node]\nzone = "plant-a"\n')
    return CliRunner().invoke(bsfg, ["pair", *arguments, "--config", str(folder / "node.toml")])


@pytest.mark.parametrize("case", CASES)
def test_status(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader, the term, and when the others were heard; what is wrong with the pair, and with nothing else;
    exit status 1 if none leads, both record now, or one refuses."""
    pair, status = CASES[case]
    done = run(monkeypatch, tmp_path, pair, "status")
    assert done.exit_code == status, done.output
    assert f"{pair.leader or 'no node'} leads" in done.output
    assert "plant-a-2" in done.output
    assert ("plant-a-2, follows, leaves the lead to this node, heard" in done.output) is (case == "none")
    assert "30" in done.output
    assert done.output.splitlines()[-2:] == ["  ! pair: it says no [pair_refused]", "      -> write it there"]
    done = run(monkeypatch, tmp_path, pair, "status", "--json")
    assert (done.exit_code, json.loads(done.output)) == (status, json.loads(json.dumps(asdict(pair))))


def test_status_of_a_node_that_is_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without [pair] says what is missing."""
    done = run(monkeypatch, tmp_path, None, "status")
    assert done.exit_code == 1
    assert "[pair]" in str(done.exception or done.output) + done.output


def test_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command waits for the node, and prints who leads now."""
    asked = list[object]()

    def ask(_: object, request: object, *__: object, **___: object) -> local_socket.PairSwitched:
        asked.append(request)
        return local_socket.PairSwitched("plant-a-2")

    monkeypatch.setattr(command, "ask", ask)
    done = run(monkeypatch, tmp_path, LEADING, "switch")
    assert done.exit_code == 0
    assert "plant-a-2 leads now" in done.output
    assert asked == [local_socket.SwitchPair()]

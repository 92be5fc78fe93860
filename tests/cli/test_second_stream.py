"""What a command says of one stream comes from the settings and the files of that stream, not from those of another."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agent import local_socket
from agent.cli import bsfg
from agent.cli.facts import append
from agent.node.latest import save_peer_latest
from agent.replication.protocol.messages import PeerLatest
from tests.replication.serving.test_latest import value


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the node.toml of three streams, to work in."""
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(bsfg, ["init", "--zone", "plant-a"]).exit_code == 0
    with Path("node.toml").open("a") as node:
        node.writelines(
            f'\n[[stream]]\nname = "{name}"\nacks_timeout_ms = {timeout_ms}\n'
            for name, timeout_ms in (("facts.a", 1_000), ("facts.b", 60_000), ("facts.c", 2_000))
        )


def test_an_append_waits_as_long_as_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node may wait for consumers for so long before it answers."""
    waited = []

    def ask(_settings: object, request: local_socket.AppendFact, *_: object, waits_ms: int) -> Any:
        waited.append((request.stream, waits_ms))
        return local_socket.Appended(1, "applied")

    monkeypatch.setattr(append, "ask", ask)
    for stream in ("facts.a", "facts.b", "facts.c"):
        assert CliRunner().invoke(bsfg, ["append", "--stream", stream, "batch:1", "done", "{}"]).exit_code == 0
    assert waited == [("facts.a", 1_000), ("facts.b", 60_000), ("facts.c", 2_000)]


def test_latest_values_of_a_stream_from_peers() -> None:
    """Of what two peers reported of two streams, those of the named one are shown; without a name all."""
    assert CliRunner().invoke(bsfg, ["append", "--stream", "facts.a", "batch:1", "done", "{}"]).exit_code == 0
    assert CliRunner().invoke(bsfg, ["append", "--stream", "facts.b", "batch:1", "done", "{}"]).exit_code == 0
    kept = [("plant-b", "facts.a", 1), ("plant-b", "facts.b", 2), ("plant-c", "facts.a", 3)]
    for peer, stream, number in kept:
        save_peer_latest(Path("state"), PeerLatest(peer, "00" * 16, stream, 1, [value(number)]))
    for words, numbers in (([], [1, 2, 3]), (["--stream", "facts.a"], [1, 3]), (["--stream", "facts.b"], [2])):
        shown = CliRunner().invoke(bsfg, ["latest", "--json", *words]).output.splitlines()
        assert [json.loads(line)["subject"] for line in shown] == [f"tag:{number:03}" for number in numbers]

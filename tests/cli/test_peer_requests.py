"""`bsfg latest --from`: another node's values in the words and columns of our own."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.cli.facts import peer_requests
from agent.cli.facts.peer_requests import literal_prefix
from agent.query.scan.bounds import matches_glob
from agent.replication.protocol.messages import LatestAnswer
from tests.replication.nodes import STREAM, Node, run_commands, write_node_toml
from tests.replication.serving.test_latest import value
from tests.support.mosquitto import Mosquitto


@pytest.mark.system
def test_another_nodes_values_are_printed_as_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are those that `bsfg latest` prints beside the store itself; a pattern narrows them; what is not
    exported is refused, and a tag that is not there is a bad result."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "idmz" / "idmz.db"

    async def run(broker: Mosquitto) -> list[tuple[int, str]]:
        idmz = Node.open(broker, "idmz", tmp_path / "idmz")
        idmz.serve({"plant-a": [STREAM]})
        await idmz.append(1, 50)
        commands = [
            ["latest", "--from", "idmz", "--json"], ["latest", "--from", "idmz", "line1/*", "--json"], ["latest", "--from", "idmz"],
            ["latest", "--from", "idmz", "line2/*"], ["latest", "--from", "idmz", "--stream", "facts.secret"],
            ["latest", "--from", "idmz", "--file", str(file)], ["latest", "--file", str(file), "--json"],
        ]  # fmt: skip
        return await run_commands(idmz, commands)

    with Mosquitto.started(tmp_path / "broker", ("plant-a", "idmz"), ("idmz:plant-a",)) as broker:
        write_node_toml(tmp_path, broker, "plant-a", 'zone = "idmz"\nasks = true')
        every, some, table, none, secret, both, own = asyncio.run(run(broker))
    assert [code for code, _ in (every, some, table, none, secret, both, own)] == [0, 0, 0, 1, 1, 2, 0]
    rows = [json.loads(text.splitlines()[0]) for _, text in (every, some, own)]
    ages = [row.pop("staleness_ms") for row in rows]
    assert all(row.pop("age_ms") >= age for row, age in zip(rows, ages, strict=True))
    assert rows[0] == rows[1] == rows[2]
    assert (rows[0]["value"], rows[0]["mode"], rows[0]["stream"]) == (50.0, "degraded", STREAM)
    assert max(ages) - min(ages) < 60_000
    assert table[1].splitlines()[0].split() == ["tag", "value", "quality", "source_time", "age", "mode"]
    assert "no tag matches" in none[1]
    assert "stream_not_exported" in secret[1]


@pytest.mark.system
def test_an_answer_that_is_not_proven_is_accepted_by_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """node.toml demands signatures of idmz, which has no key: neither values nor the outcome of an append are taken,
    and the reason says what to do."""
    monkeypatch.chdir(tmp_path)

    async def run(broker: Mosquitto) -> list[tuple[int, str]]:
        idmz = Node.open(broker, "idmz", tmp_path / "idmz")
        idmz.serve({"plant-a": [STREAM]})
        await idmz.append(1, 50)
        commands = [
            ["latest", "--from", "idmz", "--answer-s", "0.5"],
            ["append", "--to", "idmz", "--answer-s", "0.5", "order:1", "done", "{}"],
        ]
        return await run_commands(idmz, commands)

    with Mosquitto.started(tmp_path / "broker", ("plant-a", "idmz"), ("idmz:plant-a",)) as broker:
        write_node_toml(tmp_path, broker, "plant-a", 'zone = "idmz"\nasks = true')
        config = tmp_path / "node.toml"
        config.write_text(
            config.read_text() + '[[origin]]\nzone = "idmz"\nsignatures = "required"\npinned = ["' + "0" * 64 + '"]\n'
        )
        found = asyncio.run(run(broker))
    for code, text in found:
        assert code == 1, text
        assert "is not proven: idmz did not sign it" in text
        assert "bsfg pki signer" in text


@pytest.mark.parametrize("glob", ["*", "line1/*", "tag:line1/t?", "ta*", "tag*", "[l]ine1/*", "line1/t1", "t"])
def test_the_prefix_asked_for_leaves_nothing_out(glob: str) -> None:
    """Whatever the pattern matches begins with the prefix that is sent in its place."""
    subjects = ["tag:line1/t1", "tag:line2/t1", "tag:tank", "tag:tag", "tag:t"]
    matching = [subject for subject in subjects if matches_glob(subject, [glob])]
    assert matching
    assert all(subject.startswith(literal_prefix(glob)) for subject in matching)


def test_a_value_that_is_no_json_is_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are printed; a line says which value of which peer cannot be read."""
    values = [value(1), msgspec.structs.replace(value(2), value=msgspec.Raw(b'"\xff"')), value(3)]
    own: dict[str, Any] = {"store_zone": "idmz", "life": "0" * 32, "stream": STREAM}
    answer = LatestAnswer(**own, end_offset=3, queue_depth=0, depth_facts=1, values=values)
    monkeypatch.setattr(peer_requests, "_ask", lambda *_: answer)
    settings: Any = None
    rows = peer_requests.get_latest(settings, "idmz", STREAM, "*", 1_000, 1.0)
    assert [row["subject"] for row in rows] == ["tag:001", "tag:003"]
    assert "1 values of idmz left out: the value of 'tag:002'" in capsys.readouterr().err

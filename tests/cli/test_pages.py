"""`docs/operate/appending.md` and `artifacts.md`: what they show happens, and the table of outcomes is complete."""

import asyncio
import hashlib
import json
import random
import re
from pathlib import Path
from typing import get_args

import pytest

from agent.append_contract import Outcome
from agent.config import load
from agent.fact_store.core.errors import ArtifactMismatch
from agent.local_socket.serving import open_store
from tests.cli.conftest import typed
from tests.replication.nodes import STREAM, Node, run_commands, whole_node, write_node_toml
from tests.support.mosquitto import Mosquitto
from tests.support.page import ROOT, shown

PAGE = "docs/operate/appending.md"
REPORT = b"%PDF-1.7 report of batch B7.\n"


@pytest.mark.usefixtures("plant_a")
def test_documented_appends_work() -> None:
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


def test_documented_artifacts_work(plant_a: Path) -> None:
    """Each command in its order, in a new folder: the file comes back as it went in, and a fact about another is
    refused."""
    (plant_a / "report.pdf").write_bytes(REPORT)
    done = [typed(*arguments) for arguments in shown("docs/operate/artifacts.md", "artifacts")]
    put, append, listed, verified, got, refused = done
    reference = json.loads(put.output)
    assert reference["size"] == len(REPORT)
    assert "applied: offset 1" in append.output
    assert reference["digest"] in listed.output
    assert verified.output == "1 artifacts, 0 damaged\n"
    assert got.exit_code == 0
    assert (plant_a / "again.pdf").read_bytes() == REPORT
    assert "to which the fact refers, is not here" in str(refused.exception)


def test_a_file_that_was_got_is_whole_or_not_there(plant_a: Path) -> None:
    """What stood under the name stays until the whole of the artifact is there; verify names the file that the disk has
    changed. An empty file is refused."""
    (plant_a / "empty").touch()
    assert "empty is empty" in str(typed("object", "put", "empty").exception)
    (plant_a / "file").write_bytes(b"x" * 600_000)
    digest = json.loads(typed("object", "put", "file").output)["digest"]
    verified = typed("object", "verify")
    assert (verified.exit_code, verified.output) == (0, "1 artifacts, 0 damaged\n")
    (stored,) = plant_a.rglob("artifacts/??/*")
    (plant_a / "copy").write_bytes(b"before")
    for spoilt in (b"x" * 599_999 + b"y", b"x" * 10, b""):
        stored.write_bytes(spoilt)
        assert isinstance(typed("object", "get", digest, "copy").exception, ArtifactMismatch)
        assert (plant_a / "copy").read_bytes() == b"before"
        verified = typed("object", "verify")
        assert verified.exit_code == 1
        assert str(stored) in verified.output
    assert not [path.name for path in plant_a.iterdir() if path.name.endswith(".part")]
    nowhere = typed("object", "get", digest, "no/folder/copy")
    assert "no file can be written in no/folder" in str(nowhere.exception)


@pytest.mark.system
def test_artifacts_are_put_to_another_node_and_got_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Across the broker: a file put there is there, a fact about it may then be appended there, and the file comes
    back; a stream that is not exported is refused by name."""
    monkeypatch.chdir(tmp_path)
    content = random.Random(5).randbytes(700_001)
    (tmp_path / "trace").write_bytes(content)
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    reference = json.dumps({"digest": digest, "size": len(content)})
    fact = [
        "append",
        "--to",
        "idmz",
        "--stream",
        STREAM,
        "--media-type",
        "text/csv",
        "run:r1",
        "trace_filed",
        reference,
    ]
    commands = [
        fact, ["object", "put", "trace", "--to", "idmz"], ["object", "get", digest, "back", "--from", "idmz"],
        fact, ["object", "get", digest, "back", "--from", "idmz"], ["object", "put", "trace", "--to", "nobody"],
    ]  # fmt: skip

    async def run(broker: Mosquitto) -> list[tuple[int, str]]:
        idmz = Node.open(broker, "idmz", tmp_path / "idmz")
        idmz.serve({"plant-a": [STREAM]}, {"plant-a": [STREAM]})
        return await run_commands(idmz, commands)

    with Mosquitto.started(tmp_path / "broker", ("plant-a", "idmz"), ("idmz:plant-a",)) as broker:
        write_node_toml(tmp_path, broker, "plant-a", 'zone = "idmz"\nasks = true')
        early, put, unknown, appended, got, unknown_peer = asyncio.run(run(broker))
    assert "unknown_artifact" in early[1]
    assert json.loads(put[1]) == {"digest": digest, "size": len(content)}
    assert "unknown_artifact" in unknown[1]
    assert appended[0] == got[0] == 0, appended[1] + got[1]
    assert (tmp_path / "back").read_bytes() == content
    assert (unknown_peer[0], "names no peer" in unknown_peer[1]) == (2, True)

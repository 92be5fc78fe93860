"""Requests of commands to this node and to others: another node's values in the words of our own, what is wrong with
which file, and what is answered where no node answers."""

import asyncio
import itertools
import json
import shutil
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from agent import local_socket
from agent.cli import bsfg, local_node
from agent.cli.facts import peer_requests
from agent.cli.facts.peer_requests import literal_prefix
from agent.config import load
from agent.fact_store import StoreLocked
from agent.query.scan.bounds import matches_glob
from agent.replication import pki
from agent.replication.mqtt.carrier import Access
from agent.replication.mqtt.link import BrokerLink
from agent.replication.pki import PkiError
from agent.replication.protocol.messages import LatestAnswer
from agent.settings.node import NodeSettings
from tests.replication.nodes import STREAM, Node, run_commands, write_node_toml
from tests.replication.serving.test_latest import value
from tests.support.mosquitto import Mosquitto
from tests.waiting import wait_until_async

NOW = datetime.now(UTC)
COMMANDS = [
    ["append", "--to", "idmz", "order:line1/77", "order_released", "{}"],
    ["lease", "--to", "idmz", "plant-a.mes"],
    ["latest", "--from", "idmz"],
    ["object", "put", "--to", "idmz", "node.toml"],
    ["object", "get", "--from", "idmz", f"sha256:{0:064}", "got"],
    ["peer", "compare", "idmz"],
]


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
    """The others of all pages are printed; a line says which value of which peer cannot be read."""
    values = [value(1), msgspec.structs.replace(value(2), value=msgspec.Raw(b'"\xff"')), value(3)]
    own: dict[str, Any] = {"store_zone": "idmz", "life": "0" * 32, "stream": STREAM}
    pages = [(values[:2], True), (values[2:], False)]
    answers = [
        LatestAnswer(**own, end_offset=3, queue_depth=0, depth_facts=1, values=page, more=more) for page, more in pages
    ]
    monkeypatch.setattr(peer_requests, "_ask", lambda *_: answers.pop(0))
    settings: Any = None
    rows = peer_requests.get_latest(settings, "idmz", STREAM, "*", 1_000, 1.0)
    assert [row["subject"] for row in rows] == ["tag:001", "tag:003"]
    assert "1 values of idmz left out: the value of 'tag:002'" in capsys.readouterr().err


def _expired(own: Path) -> None:
    """The certificate of a zone whose year is over."""
    _bring(pki.issue_zone(own / "pki", "plant-a", NOW - timedelta(days=400), days=10, force=True), own)


def _of_another_zone(own: Path) -> None:
    """A certificate beside the key of another one."""
    _bring(pki.issue_zone(own / "pki", "plant-b", NOW), own)


def _of_another_authority(own: Path) -> None:
    """The whole identity is made anew, and the ca.pem of before stays."""
    pki.create_authority(own / "other", NOW)
    _bring(pki.issue_zone(own / "other", "plant-a", NOW), own)


def _bring(issued: pki.Issued, own: Path) -> None:
    shutil.copy(issued.cert_file, own / "own.pem")
    shutil.copy(issued.key_file, own / "own.key")


@pytest.mark.parametrize("command", COMMANDS, ids=[" ".join(command[:3]) for command in COMMANDS])
@pytest.mark.parametrize(
    "spoil,says",
    [
        (_expired, "own.pem: the certificate expired at"),
        (_of_another_zone, "own.pem: its common name is 'plant-b', but this node is 'plant-a'"),
        (_of_another_authority, "own.pem: the certificate was signed by CN="),
    ],
    ids=["expired", "wrong zone", "wrong authority"],
)
def test_an_unusable_identity_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None], says: str, command: list[str]
) -> None:
    """Before anything is sent the error names the file, the reason and what to do, and gives no advice about the
    broker."""
    monkeypatch.chdir(tmp_path)
    pki.create_authority(tmp_path / "pki", NOW)
    shutil.copy(tmp_path / "pki/ca.pem", tmp_path)
    spoil(tmp_path)
    Path("node.toml").write_text(
        """[node]
zone = "plant-a"
[[broker]]
name = "site"
host = "127.0.0.1"
port = 1
ca_file = "ca.pem"
cert_file = "own.pem"
key_file = "own.key"
[[peer]]
zone = "idmz"
broker = "site"
pulls = ["facts.telemetry"]
"""
    )
    done = CliRunner().invoke(bsfg, command)
    assert isinstance(done.exception, PkiError), done.output
    assert says in str(done.exception)
    assert "; " in str(done.exception).partition(says)[2]
    assert not done.output


def test_a_link_without_identity_logs_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A node whose certificate has expired keeps trying to connect. Its log has one line for it although the time in
    the reason changes, and one line for another reason that alternates with it; the status says that an operator must
    act."""
    monkeypatch.setattr("agent.replication.mqtt.link.RETRY_MS_MIN", 1)
    monkeypatch.setattr("agent.replication.mqtt.link.RETRY_MS_MAX", 1)
    seconds, turns = iter(range(1_000_000)), itertools.cycle((False, True))

    def ended() -> ssl.SSLContext:
        if next(turns):
            raise PkiError("the files are being replaced", "nothing to do")
        raise PkiError(f"the certificate expired at 07:00, and the clock here says 08:{next(seconds)}", "renew it")

    async def run(link: BrokerLink) -> None:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(link.run())
            await wait_until_async(lambda: link.statistics().failures >= 5, "it to try again")
            running.cancel()

    without = BrokerLink(Access("site", "plant-a", "127.0.0.1", 1, ended))
    away = BrokerLink(Access("site", "plant-a", "127.0.0.1", 1, ssl.create_default_context))
    for link in (without, away):
        asyncio.run(run(link))
    said = [getattr(record, "reason") for record in caplog.records if record.message == "broker_unreachable"]  # noqa: B009
    assert len(said) == 3
    assert all(word in text for word, text in zip(("08:0", "replaced", "refused"), said, strict=True))
    assert without.statistics().needs_person
    assert not away.statistics().needs_person


@pytest.fixture
def settings(tmp_path: Path) -> NodeSettings:
    """The settings of a node that does not run."""
    (tmp_path / "node.toml").write_text('[node]\nzone = "plant-a"\n')
    return load(tmp_path / "node.toml")


@pytest.mark.parametrize(
    "request_",
    [
        *(local_socket.Reload(), local_socket.RetrySource("m")),
        local_socket.BackfillSource("m", 0, 1),
    ],
)
def test_what_only_a_node_can_answer_opens_no_store(settings: NodeSettings, request_: local_socket.Request) -> None:
    """A node that is about to start needs its lock."""
    with pytest.raises(local_socket.NoNode):
        asyncio.run(local_node.answer_from_store(settings, request_))
    assert not settings.node.state_dir.exists()


@pytest.mark.parametrize("limit_s, tries", [(60, 3), (0, 1)])
def test_a_command_waits_for_a_store_that_another_process_holds(
    settings: NodeSettings, monkeypatch: pytest.MonkeyPatch, limit_s: float, tries: int
) -> None:
    """It asks again until the store is free, and gives up at its limit."""
    monkeypatch.setattr(local_node, "LOCKED_S", limit_s)
    monkeypatch.setattr(local_node, "LOCKED_STEP_S", 0)
    held = iter([True, True, False])
    count = 0

    async def without_node(_: NodeSettings, __: local_socket.ListConsumers) -> local_socket.LocalReply:
        nonlocal count
        count += 1
        if next(held):
            raise StoreLocked("pid 1 has it")
        return local_socket.LocalReply(local_socket.Consumers([]), [])

    def ask() -> local_socket.Consumers:
        return local_node.ask(settings, local_socket.ListConsumers(), local_socket.Consumers, without_node=without_node)

    if limit_s:
        assert ask().consumers == []
    else:
        with pytest.raises(StoreLocked):
            ask()
    assert count == tries

"""Commands that ask a peer, with an identity of our own that cannot be used: each says what is wrong with which file,
for every peer."""

import asyncio
import itertools
import shutil
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.cli import bsfg
from agent.replication import pki
from agent.replication.mqtt.carrier import Access
from agent.replication.mqtt.link import Link
from agent.replication.pki import PkiError
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

    async def run(link: Link) -> None:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(link.run())
            await wait_until_async(lambda: link.statistics().failures >= 5, "it to try again")
            running.cancel()

    without = Link(Access("site", "plant-a", "127.0.0.1", 1, ended))
    away = Link(Access("site", "plant-a", "127.0.0.1", 1, ssl.create_default_context))
    for link in (without, away):
        asyncio.run(run(link))
    said = [getattr(record, "reason") for record in caplog.records if record.message == "broker_unreachable"]  # noqa: B009
    assert len(said) == 3
    assert all(word in text for word, text in zip(("08:0", "replaced", "refused"), said, strict=True))
    assert without.statistics().needs_person
    assert not away.statistics().needs_person

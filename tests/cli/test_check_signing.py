"""`bsfg check` on the files of [signing] and [[origin]]."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.cli import bsfg
from agent.replication import pki

NOW = datetime.now(UTC)
NODE = """[node]
zone = "plant-a"
[signing]
key_file = "signers/plant-a.key"
certificate_file = "signers/plant-a.pem"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A node with a signing key."""
    (tmp_path / "node.toml").write_text(NODE)
    pki.create_signer(tmp_path, "plant-a", NOW)
    return tmp_path


def check(folder: Path) -> tuple[list[str], list[str]]:
    """Problems and notes."""
    done = CliRunner().invoke(bsfg, ["check", "--config", str(folder / "node.toml"), "--json"])
    told = json.loads(done.output)
    assert done.exit_code == (1 if told["problems"] else 0)
    return told["problems"], told["notes"]


def test_a_good_identity_is_no_finding(folder: Path) -> None:
    """Key and certificate fit, nothing else is named."""
    assert check(folder) == ([], [])


def test_each_file_that_cannot_be_used_is_named(folder: Path) -> None:
    """A readable key, a TLS authority in the place of the facts authority, and a list that cannot be understood, with
    what to do; a wrong section hides none of it."""
    (folder / "signers/plant-a.key").chmod(0o644)
    (folder / "compromised.toml").write_text("[[compromised]]\nkey_id = 'x'\n")
    (folder / "node.toml").write_text(NODE + '[page]\nlisten_port = "x"\n')
    problems, _ = check(folder)
    assert any(
        "signers/plant-a.key is accessible to others" in problem and "chmod 0600" in problem for problem in problems
    )
    assert any("compromised.toml: entry 1 needs key_id and since" in problem for problem in problems)
    assert len(problems) == 3
    (folder / "compromised.toml").unlink()
    pki.create_authority(folder / "tls", NOW)
    shutil.copy(folder / "tls/ca.pem", folder / "facts-ca.pem")
    (folder / "signers/plant-a.key").chmod(0o600)
    (folder / "node.toml").write_text(NODE + 'facts_ca_file = "facts-ca.pem"\n')
    ((problem,), notes) = check(folder)
    assert "facts-ca.pem is not a facts authority" in problem
    assert notes == []


def test_the_end_of_the_certificate_is_reported_before(folder: Path) -> None:
    """Two months before and afterwards it is a note: the node records and signs on, and receivers decline. Of the two
    certificates of a gateway of two, whichever ends first."""
    for begun, says in ((NOW, "ends in 30 days"), (NOW - timedelta(days=90), "has ended")):
        pki.create_signer(folder, "plant-a", begun, days=30, force=True)
        problems, (note,) = check(folder)
        assert problems == []
        assert says in note
    (folder / "node.toml").write_text(NODE.replace("[signing]", 'name = "plant-a-2"\n[signing]'))
    for zone_days, node_days in ((1_000, 30), (30, 1_000)):
        pki.create_signer(folder, "plant-a", NOW, days=zone_days, force=True)
        pki.create_signer(folder, "plant-a-2", NOW, days=node_days, force=True, key_of="plant-a")
        with (folder / "signers/plant-a.pem").open("a") as both:
            both.write((folder / "signers/plant-a-2.pem").read_text())
        assert "ends in 30 days" in check(folder)[1][0]

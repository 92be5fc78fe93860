"""`bsfg diag`: its list comes first, a no writes nothing, and no secret is in the file."""

import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.cli import bsfg
from agent.cli.health import diag

SETTINGS = """[node]
zone = "plant-a"
[[notify]]
name = "ops"
webhook_url = "https://chat.example/hooks/T0PSECRET"
[[opcua]]
name = "plc"
url = "opc.tcp://plc:4840"
tags_file = "plc.csv"
  password_file = "plc.password"
user_name = 'hmi'
"""


def test_what_could_be_secret_is_hidden() -> None:
    """Values of such names go, in any form of quotes and indentation; names of files, and all else, stay."""
    found = diag.without_secrets(SETTINGS)
    assert "T0PSECRET" not in found
    assert "hmi" not in found
    assert 'webhook_url = "hidden"' in found
    assert 'password_file = "plc.password"' in found
    assert found.count("\n") == SETTINGS.count("\n")


def test_it_asks_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is shown; with a no there is no file, with a yes each part is in it, and only its owner may read it."""
    (tmp_path / "node.toml").write_text(SETTINGS.partition("[[opcua]]")[0])
    monkeypatch.setattr(diag, "_output", lambda words: " ".join(words[2:]))
    file = tmp_path / "diag.tar.gz"
    words = ["diag", "--config", str(tmp_path / "node.toml"), "--out", str(file)]
    refused = CliRunner().invoke(bsfg, words, input="n\n")
    assert (refused.exit_code, "status.json" in refused.output, file.exists()) == (1, True, False)
    assert CliRunner().invoke(bsfg, words, input="y\n").exit_code == 0
    with tarfile.open(file) as tar:
        names = {Path(name).name for name in tar.getnames()}
        settings = tar.extractfile("bsfg-diag/node.toml")
        assert settings is not None
        assert b"T0PSECRET" not in settings.read()
    assert {"node.toml", "status.json", "log.txt", "versions.json"} <= names
    assert file.stat().st_mode & 0o777 == 0o600

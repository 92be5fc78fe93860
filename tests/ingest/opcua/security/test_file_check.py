"""What `bsfg check` and a node's health know of certificates before a source connects."""

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.ingest.opcua.security.certificate import LIFETIME_DAYS, ensure_certificate
from agent.ingest.opcua.security.file_check import check_source_files, first_certificate_to_end
from agent.settings.sources import ModbusSourceSettings, OpcuaSourceSettings

NOW = datetime.now(UTC)


@pytest.fixture(name="source")
def secured_source(tmp_path: Path) -> OpcuaSourceSettings:
    """A source whose certificate was made."""
    own, key = tmp_path / "own.der", tmp_path / "own.key"
    ensure_certificate(own, key, "urn:bsfg:agent")
    return OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t"), certificate_file=own, private_key_file=key)


def texts(source: OpcuaSourceSettings, now: datetime = NOW) -> list[tuple[bool, str]]:
    """What is found."""
    return [(found.is_problem, found.text) for found in check_source_files([source, source], now)]


def test_good_files_and_files_still_to_be_made_are_no_finding(source: OpcuaSourceSettings, tmp_path: Path) -> None:
    """A new source makes its certificate when it first connects; a Modbus device has none."""
    assert texts(source) == []
    new = replace(source, certificate_file=tmp_path / "new.der", private_key_file=tmp_path / "new.key")
    assert texts(new) == []
    assert first_certificate_to_end(new, NOW) is None
    assert check_source_files([ModbusSourceSettings("m", Path("t"), 0, host="h")], NOW) == []
    assert first_certificate_to_end(source, NOW) == (pytest.approx(LIFETIME_DAYS, abs=0.1), source.certificate_file)


@pytest.mark.parametrize(
    "days, is_problem, words",
    [
        (LIFETIME_DAYS - 31, False, ""),
        (LIFETIME_DAYS - 20, False, "ends in 20 days"),
        (LIFETIME_DAYS + 1, True, "ended"),
        (-9_000, True, "set the clock (timedatectl)"),
    ],
)
def test_the_end_of_our_certificate_is_reported_a_month_before(
    source: OpcuaSourceSettings, days: int, *, is_problem: bool, words: str
) -> None:
    """A note within 30 days with the command that renews it, a problem afterwards; each file once, however many sources
    use it. A clock that was never set is told as that."""
    found = texts(source, NOW + timedelta(days=days))
    if not words:
        assert found == []
        return
    ((problem, text),) = found
    assert problem is is_problem
    assert words in text
    assert "own.der" in text


def test_each_file_that_cannot_be_used_is_named(source: OpcuaSourceSettings, tmp_path: Path) -> None:
    """A leaked key, another's key, a missing half, a wrong application URI, an unreadable pin or password, junk in the
    folder."""
    assert source.private_key_file is not None
    ensure_certificate(tmp_path / "user.der", tmp_path / "user.key", "urn:user")
    password = tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text("Schlüssel", "utf-16")  # as PowerShell writes it
    (tmp_path / "trusted").mkdir()
    (tmp_path / "trusted" / "junk").write_text("x")
    cases: list[tuple[dict[str, object], str]] = [
        ({"private_key_file": tmp_path / "user.key"}, "user.key is not the key of the certificate"),
        ({"private_key_file": tmp_path / "none.key"}, "none.key: is missing, but "),
        ({"application_uri": "urn:other"}, "application_uri is urn:other, and the certificate"),
        ({"server_certificate_file": tmp_path / "none.der"}, "none.der cannot be read"),
        ({"server_certificate_file": source.private_key_file}, "own.key is not a certificate"),
        (
            {"user_certificate_file": tmp_path / "user.der", "user_private_key_file": source.private_key_file},
            "own.key is not the key of",
        ),
        ({"user_name": "op", "password_file": tmp_path / "none"}, "none cannot be read"),
        ({"user_name": "op", "password_file": password}, "password is not text in UTF-8"),
    ]
    for change, words in cases:
        ((is_problem, text),) = texts(replace(source, **change))  # type: ignore[arg-type]
        assert is_problem
        assert words in text
    assert texts(replace(source, trust_folder=tmp_path)) == [
        (False, f"{tmp_path}/trusted/junk: holds no certificate or revocation list, and is passed over")
    ]
    source.private_key_file.chmod(0o644)
    assert "can be read by every user" in texts(source)[0][1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up its rights")
def test_a_folder_that_may_not_be_entered(source: OpcuaSourceSettings, tmp_path: Path) -> None:
    """Looking whether a certificate exists in a folder of another user is refused by the system: that is a finding."""
    tmp_path.chmod(0o700)
    program = (
        "import os, sys, pickle; from datetime import UTC, datetime\n"
        "from agent.ingest.opcua.security.file_check import check_source_files\n"
        "source = pickle.load(sys.stdin.buffer); os.setuid(65534)\n"
        "print(check_source_files([source], datetime.now(UTC))[0].text)"
    )
    done = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(source), capture_output=True, check=True)
    assert done.stdout.decode().startswith(f"{source.certificate_file}: Permission denied; let the node's user")

"""Certificates: what is made, what is refused, and that no private key is ever readable by others."""

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from agent.replication import pki
from agent.replication.pki import PkiError
from agent.replication.pki.certificates import BACKDATED
from tests.replication.pki.site import NOW
from tests.support.disk_calls import DiskCalls

# --- making -----------------------------------------------------------------------------------------------------------


def test_extensions_of_the_certificates(made: Path) -> None:
    """Zones have client certificates, brokers server certificates, and none below the root may sign."""
    root = pki.describe(pki.load_certificates(made / "ca.pem")[0], NOW)
    zone = pki.describe(pki.load_certificates(made / "zones/idmz.pem")[0], NOW)
    broker = pki.describe(pki.load_certificates(made / "brokers/b1.pem")[0], NOW)
    assert (root.is_ca, zone.is_ca, broker.is_ca) == (True, False, False)
    assert (zone.zone, broker.zone, root.zone) == ("idmz", "", "")
    assert (zone.purposes, broker.purposes) == (("client",), ("server",))
    assert broker.hosts == ("localhost", "127.0.0.1", "::1", "broker.idmz.example")
    assert zone.issuer == broker.issuer == root.subject
    assert (zone.days_left, root.days_left) == (pki.LEAF_DAYS, pki.CA_DAYS)
    assert zone.valid_now
    assert zone.not_before == NOW - BACKDATED
    constraints = pki.load_certificates(made / "ca.pem")[0].extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.value.path_length == 0, "no authority below the root"


@pytest.mark.parametrize("who,purpose", [("zones/idmz", "sslclient"), ("brokers/b1", "sslserver")])
def test_openssl_agrees(made: Path, who: str, purpose: str) -> None:
    """Another implementation builds the chain in its strict mode, with the revocation list, for the intended
    purpose."""
    command = ["openssl", "verify", "-x509_strict", "-crl_check", "-purpose", purpose]
    command += ["-CAfile", str(made / "ca.pem"), "-CRLfile", str(made / "ca.crl"), str(made / f"{who}.pem")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_rights_of_files(tmp_path: Path, umask: int) -> None:
    """Keys are 0600, folders 0700, certificates readable, whatever the umask."""
    before = os.umask(umask)
    try:
        pki.create_authority(tmp_path / "pki", NOW)
        issued = pki.issue_zone(tmp_path / "pki", "idmz", NOW)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "pki").iterdir()}
    assert modes == {"ca.key": 0o600, "ca.pem": 0o644, "ca.crl": 0o644, "issued": 0o700, "zones": 0o700}
    assert stat.S_IMODE(issued.key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(issued.cert_file.stat().st_mode) == 0o644


def test_write_is_private_from_its_first_moment_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a key is being written others cannot read it; if the disk fails, only the old file remains."""
    target = tmp_path / "a.key"
    target.write_bytes(b"old")
    seen: list[int] = []
    opened = os.open

    def watch(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        descriptor = opened(path, flags, mode, **more)
        seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    before = os.umask(0)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", watch)
            patched.setattr(os, "fsync", full)
            with pytest.raises(OSError, match="No space left"):
                pki.write_file(target, b"new", 0o640)
    finally:
        os.umask(before)
    assert seen == [0o600]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.key": b"old"}


def test_files_of_an_identity_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut after an identity was issued or imported leaves it whole: files are synced before they get their
    names, and the names after."""
    calls = DiskCalls(monkeypatch)
    pki.create_authority(tmp_path, NOW)
    issued = pki.issue_zone(tmp_path, "idmz", NOW)
    for file in (tmp_path / "ca.key", issued.key_file, issued.cert_file):
        calls.check_durable(file)
    renewed = DiskCalls(monkeypatch)
    given = pki.GivenFiles(issued.cert_file, issued.ca_file, issued.key_file)
    mine = pki.import_identity(tmp_path / "node", "idmz", given, NOW)
    for file in (mine.key_file, mine.cert_file):
        renewed.check_durable(file, is_content_new=False)  # it was synced under its name in next/
        renewed.check_durable(file.parent / "next" / file.name)
    assert renewed.position(mine.key_file) < renewed.position(mine.cert_file)


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk error becomes one error that names the folder and what to check."""

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PkiError, match=r"pki: No space left on device") as caught:
        pki.create_authority(tmp_path / "pki", NOW)
    assert "free space" in caught.value.hint


@pytest.mark.parametrize(
    "again",
    [
        lambda folder, force: pki.create_authority(folder, NOW, force=force),
        lambda folder, force: pki.issue_zone(folder, "idmz", NOW, force=force),
        lambda folder, force: pki.issue_broker(folder, "b1", ["localhost"], NOW, force=force),
    ],
    ids=["authority", "zone", "broker"],
)
def test_nothing_is_overwritten_unless_forced(folder: Path, again: Callable[[Path, bool], object]) -> None:
    """A second call changes nothing and names --force; with it the files are new and match each other."""
    before = _contents(folder)
    with pytest.raises(PkiError, match="exist already") as caught:
        again(folder, False)
    assert "--force" in caught.value.hint
    assert _contents(folder) == before
    again(folder, True)
    assert _contents(folder) != before
    pki.load_authority(folder)


@pytest.mark.parametrize("left", ["zones/idmz.pem", "zones/idmz.key"])
def test_half_an_identity_is_not_overwritten(folder: Path, left: str) -> None:
    """A certificate without its key, or a key without its certificate, is not replaced without --force."""
    for file in ("zones/idmz.pem", "zones/idmz.key"):
        if file != left:
            (folder / file).unlink()
    with pytest.raises(PkiError, match=re.escape(left)):
        pki.issue_zone(folder, "idmz", NOW)


def test_every_certificate_stays_known(folder: Path) -> None:
    """Every signed certificate can be revoked, also after it was replaced."""
    old = pki.load_certificates(folder / "zones/idmz.pem")[0]
    pki.issue_zone(folder, "idmz", NOW, force=True)
    issued = {pki.load_certificates(file)[0].serial_number: file.stem for file in (folder / "issued").iterdir()}
    assert len(issued) == 4
    assert issued[old.serial_number] == f"{old.serial_number:x}"


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- refusing to make -------------------------------------------------------------------------------------------------

BAD_NAMES = ["", "A", "plant_a", "plant a", "plant/a", "+", "#", "../idmz", "a" * 33, "plänt", "idmz\n", "a\x00b", "."]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names(folder: Path, name: str) -> None:
    """A name that cannot be one topic level and one user name makes no certificate and no file."""
    before = _contents(folder.parent)
    with pytest.raises(PkiError, match="not a valid name of a zone"):
        pki.issue_zone(folder, name, NOW)
    with pytest.raises(PkiError, match="not a valid name of a broker"):
        pki.issue_broker(folder, name, ["localhost"], NOW)
    assert _contents(folder.parent) == before


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        [""],
        ["localhost:8883"],
        ["mqtts://localhost"],
        ["*.example"],
        ["-a.example"],
        ["a..example"],
        ["a" * 64],
        ["büro.example"],
        ["10.0.0.0/8"],
        ["a b"],
        ["localhost\n"],
        [".".join(["a" * 60] * 5)],
        ["localhost"] * 33,
    ],
)
def test_bad_hosts(folder: Path, hosts: list[str]) -> None:
    """A broker's certificate contains valid host names, at least one."""
    with pytest.raises(PkiError, match="host"):
        pki.issue_broker(folder, "b2", hosts, NOW)
    assert not (folder / "brokers/b2.key").exists()


@pytest.mark.parametrize("days", [0, -1, pki.DAYS_MAX + 1])
def test_bad_days(folder: Path, days: int) -> None:
    """A lifetime of no days, or of more than a plant's, is refused."""
    with pytest.raises(PkiError, match="not a valid lifetime"):
        pki.issue_zone(folder, "new", NOW, days=days)
    with pytest.raises(PkiError, match="not a valid lifetime"):
        pki.create_authority(folder / "other", NOW, days=days)


@pytest.mark.parametrize("name", ["a\nb", "a,CN=b", "-a", "a" * 65, " a", "ä"])
def test_bad_authority_names(tmp_path: Path, name: str) -> None:
    """The authority's name is part of every certificate: one plain line."""
    with pytest.raises(PkiError, match="not a valid name of an authority"):
        pki.create_authority(tmp_path / "pki", NOW, name=name)


@pytest.mark.parametrize(
    "later_days,hint", [(pki.CA_DAYS - 100, "use --days 100, or"), (pki.CA_DAYS + 1, "bsfg pki ca --pki")]
)
def test_no_certificate_outlives_its_authority(folder: Path, later_days: int, hint: str) -> None:
    """Near the authority's end the error names the remaining days, or that a new authority is needed."""
    with pytest.raises(PkiError, match="the authority itself expires") as caught:
        pki.issue_zone(folder, "new", NOW + timedelta(days=later_days))
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "spoil,says,hint",
    [
        (shutil.rmtree, "contains no authority", "bsfg pki ca"),
        (lambda f: (f / "ca.key").unlink(), "No such file", "path"),
        (lambda f: (f / "ca.pem").unlink(), "No such file", "path"),
        (lambda f: (f / "ca.key").chmod(0o644), "accessible to others", "chmod 0600"),
        (lambda f: shutil.copy(f / "zones/idmz.key", f / "ca.key"), "not the key of", "backup"),
        (lambda f: (f / "ca.pem").write_text("rubbish"), "not a certificate", "BEGIN CERTIFICATE"),
    ],
)
def test_bad_authority(folder: Path, spoil: Callable[[Path], object], says: str, hint: str) -> None:
    """With an incomplete, foreign or exposed authority nothing is signed."""
    spoil(folder)
    with pytest.raises(PkiError, match=says) as caught:
        pki.issue_zone(folder, "new", NOW)
    assert hint in caught.value.hint

"""Certificates after they were issued: renewed, revoked, imported; and the revocation list."""

import contextlib
import shutil
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from agent.replication import pki
from agent.replication.pki import PkiError
from agent.replication.pki.crl import make_crl, revoked_entry
from tests.replication.pki.site import NOW

LATER = NOW + timedelta(days=300)


def _serial(file: Path) -> str:
    return f"{pki.load_certificates(file)[0].serial_number:x}"


def _good(folder: Path, zone: str = "idmz", now: datetime = LATER) -> list[str]:
    """Problems of the identity in force."""
    cert_file, key_file = (folder / f"zones/{zone}.{ending}" for ending in ("pem", "key"))
    return list(map(str, pki.check_identity(cert_file, key_file, folder / "ca.pem", zone, now=now)))


# --- renewing ---------------------------------------------------------------------------------------------------------


def renew(folder: Path, name: str, now: datetime, *, broker: bool = False) -> pki.Issued:
    """The next certificate for the key of the present one."""
    return pki.sign_request(folder, name, None, now, broker=broker)


def test_renewed_zone(folder: Path) -> None:
    """The new certificate is in force for the same key, the old one is kept and still valid, and both are recorded."""
    cert_file, key_file = folder / "zones/idmz.pem", folder / "zones/idmz.key"
    old, old_key = _serial(cert_file), key_file.read_bytes()
    issued = renew(folder, "idmz", LATER)
    assert issued.certificate.days_left == pki.LEAF_DAYS
    assert key_file.read_bytes() == old_key
    assert key_file.stat().st_mode & 0o777 == 0o600
    assert _good(folder) == []
    assert _serial(folder / "zones/previous/idmz.pem") == old
    issued_serials = {record.serial for record in pki.list_issued(folder, LATER) if record.name == "idmz"}
    assert issued_serials == {old, _serial(cert_file)}
    assert pki.check_not_revoked(folder / "zones/previous/idmz.pem", folder / "ca.crl") == []


def test_renewed_broker_keeps_its_hosts(folder: Path) -> None:
    """A broker is renewed with its host names, as a server."""
    before = pki.describe(pki.load_certificates(folder / "brokers/b1.pem")[0], NOW)
    renewed = renew(folder, "b1", LATER, broker=True).certificate
    assert (renewed.hosts, renewed.purposes, renewed.subject) == (before.hosts, before.purposes, before.subject)
    assert (
        pki.check_broker_identity(folder / "brokers/b1.pem", folder / "brokers/b1.key", folder / "ca.pem", now=LATER)
        == []
    )


@pytest.mark.parametrize("step", range(1, 14))
def test_an_import_cut_short_at_any_step(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Whichever rename fails, the next import ends with a complete pair in force, a complete previous one, and no
    partial files."""
    node, renames, replace = tmp_path / "node", 0, Path.replace
    given = pki.GivenFiles(folder / "zones/idmz.pem", folder / "ca.pem", folder / "zones/idmz.key")
    pki.import_identity(node, "idmz", given, LATER)
    pki.issue_zone(folder, "idmz", LATER, force=True)

    def cut(self: Path, target: Path) -> Path:
        nonlocal renames
        renames += 1
        if renames >= step:
            raise OSError(5, "Input/output error")
        return replace(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", cut)
        with contextlib.suppress(PkiError):  # the last steps lie beyond the last rename
            pki.import_identity(node, "idmz", given, LATER, force=True)
    assert (node / "zones/idmz.pem").exists()
    assert (node / "zones/idmz.key").exists()
    pki.import_identity(node, "idmz", given, LATER, force=True)
    assert _good(node) == []
    assert not [file for file in (node / "zones/next").iterdir() if not file.name.startswith(".")]
    previous = node / "zones/previous"
    files = previous / "idmz.pem", previous / "idmz.key", node / "ca.pem"
    assert pki.check_identity(*files, "idmz", now=LATER) == []


def test_an_unknown_name_is_not_renewed(folder: Path) -> None:
    """A name without a certificate is not renewed."""
    with pytest.raises(PkiError, match="to renew") as caught:
        renew(folder, "plant-b", NOW)
    assert "bsfg pki request plant-b" in caught.value.hint


# --- revoking ---------------------------------------------------------------------------------------------------------


def _revoked(folder: Path) -> set[str]:
    return {entry.serial for entry in pki.describe_crl(pki.load_crl(folder / "ca.crl"), NOW).revoked}


def test_revoke_by_name_takes_all_that_are_good(folder: Path) -> None:
    """A zone's name revokes its present and its previous certificate, because both are accepted, and no certificate of
    another zone."""
    first = _serial(folder / "zones/idmz.pem")
    renew(folder, "idmz", NOW)
    second = _serial(folder / "zones/idmz.pem")
    records = pki.revoke(folder, "idmz", NOW, reason="key-compromise")
    assert {record.serial for record in records} == {first, second} == _revoked(folder)
    revoked = [record.revoked and (record.revoked.at, record.revoked.reason) for record in records]
    assert revoked == [(NOW, "key-compromise")] * 2
    assert pki.check_crl(folder / "ca.crl", folder / "ca.pem", now=NOW) == []
    (problem,) = pki.check_not_revoked(folder / "zones/idmz.pem", folder / "ca.crl")
    assert "key-compromise" in problem.why
    assert pki.check_not_revoked(folder / "zones/plant-a.pem", folder / "ca.crl") == []


def test_a_list_of_another_authority_revokes_nothing(folder: Path, tmp_path: Path) -> None:
    """A broker's list may hold those of two authorities, which number their certificates on their own: the serial
    number of an idmz certificate on the list of another authority says nothing of it."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "other")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW, LATER)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    other = builder.add_extension(identifier, critical=False).sign(key, hashes.SHA256())
    ours = pki.load_certificates(folder / "zones/idmz.pem")[0]
    foreign = make_crl(other, key, 1, [revoked_entry(ours.serial_number, NOW, "key-compromise")], NOW, LATER)
    lists = tmp_path / "both.crl"
    lists.write_bytes((folder / "ca.crl").read_bytes() + foreign.public_bytes(Encoding.PEM))
    assert pki.check_not_revoked(folder / "zones/idmz.pem", lists) == []
    assert len(pki.load_crls(lists)) == 2


def test_revoke_by_serial_takes_one(folder: Path) -> None:
    """A serial number revokes that certificate only."""
    first = _serial(folder / "zones/idmz.pem")
    renew(folder, "idmz", NOW)
    pki.revoke(folder, first, NOW, reason="superseded")
    assert _revoked(folder) == {first}


def test_lists_are_numbered_and_kept(folder: Path) -> None:
    """Each list has the next number, contains the entries of the last one, and is kept."""
    pki.revoke(folder, "idmz", NOW)
    pki.revoke(folder, "b1", NOW, broker=True)
    facts = pki.reissue_crl(folder, NOW)
    assert facts.number == 4
    assert len(facts.revoked) == 2
    assert sorted(file.name for file in folder.glob("crls/*")) == ["2.crl", "3.crl", "4.crl"]


def test_openssl_refuses_the_revoked(folder: Path) -> None:
    """OpenSSL reads the list: the revoked certificate does not verify, the other does."""
    pki.revoke(folder, "idmz", NOW)
    command = ["openssl", "verify", "-x509_strict", "-crl_check", "-CAfile", str(folder / "ca.pem")]
    command += ["-CRLfile", str(folder / "ca.crl")]
    for zone, says in (("idmz", "certificate revoked"), ("plant-a", "OK")):
        done = subprocess.run([*command, folder / f"zones/{zone}.pem"], capture_output=True, text=True, check=False)
        assert says in done.stdout + done.stderr


def test_the_validity_of_a_list_is_kept_for_the_next_one(folder: Path) -> None:
    """The chosen validity of a list is kept for the next one; a list expires no later than its authority."""
    assert pki.reissue_crl(folder, NOW, days=10).days_left == 10
    pki.revoke(folder, "idmz", NOW + timedelta(days=5))
    assert pki.describe_crl(pki.load_crl(folder / "ca.crl"), NOW + timedelta(days=5)).days_left == 10
    authority_ends = pki.load_certificates(folder / "ca.pem")[0].not_valid_after_utc
    assert pki.reissue_crl(folder, authority_ends - timedelta(days=3)).next_update == authority_ends
    assert pki.reissue_crl(folder, NOW, days=pki.DAYS_MAX).next_update == authority_ends


def _missing(folder: Path) -> None:
    (folder / "ca.crl").unlink()


def _older(folder: Path) -> None:
    shutil.copy(folder / "crls/2.crl", folder / "ca.crl")


def _foreign(folder: Path) -> None:
    other = folder.parent / "other"
    pki.create_authority(other, NOW)
    shutil.copy(other / "ca.crl", folder / "ca.crl")


@pytest.mark.parametrize(
    "spoil,says",
    [
        (_missing, "the revocation list is missing or damaged"),
        (_older, "list 3 exists"),
        (_foreign, "not this authority's"),
    ],
)
def test_no_list_is_based_on_a_wrong_one(folder: Path, spoil: Callable[[Path], None], says: str) -> None:
    """A lost, foreign or older list would lift revocations, so no list is based on it; the error says what to do."""
    pki.revoke(folder, "idmz", NOW)
    pki.revoke(folder, "plant-a", NOW)
    spoil(folder)
    for number in range(20):  # they hide no list, in whatever order the folder gives its files
        (folder / f"crls/damaged-{number}.crl").write_text("rubbish")
    for act in (lambda: pki.reissue_crl(folder, NOW), lambda: pki.revoke(folder, "b1", NOW, broker=True)):
        with pytest.raises(PkiError, match=says) as caught:
            act()
        assert "crls/3.crl" in caught.value.hint
    shutil.copy(folder / "crls/3.crl", folder / "ca.crl")
    assert len(pki.reissue_crl(folder, NOW).revoked) == 2


@pytest.mark.parametrize("what", ["nobody", "00ff", "b1"])
def test_revoking_an_unknown_name_changes_nothing(folder: Path, what: str) -> None:
    """An unknown name or number changes nothing; a broker's name is not a zone's."""
    with pytest.raises(PkiError, match="never issued a certificate"):
        pki.revoke(folder, what, NOW)
    assert _revoked(folder) == set()


def test_revoke_twice(folder: Path) -> None:
    """A certificate that is already revoked, or has expired, is reported, and no list is made."""
    pki.revoke(folder, "idmz", NOW)
    with pytest.raises(PkiError, match="is already revoked or has expired"):
        pki.revoke(folder, "idmz", NOW)
    with pytest.raises(PkiError, match="is already revoked or has expired"):
        pki.revoke(folder, "plant-a", NOW + timedelta(days=pki.LEAF_DAYS + 1))
    assert pki.describe_crl(pki.load_crl(folder / "ca.crl"), NOW).number == 2


def test_a_new_authority_begins_a_list_of_its_own(folder: Path) -> None:
    """The lists and certificates of the authority before it stay in the folder and do not count: the new authority can
    revoke at once, and lists only what it has signed."""
    for name in ("idmz", "plant-a"):
        pki.revoke(folder, name, NOW)
    pki.create_authority(folder, NOW, force=True)
    assert pki.list_issued(folder, NOW) == []
    pki.issue_zone(folder, "idmz", NOW, force=True)
    (revoked,) = pki.revoke(folder, "idmz", NOW)
    assert _revoked(folder) == {revoked.serial} == {record.serial for record in pki.list_issued(folder, NOW)}


# --- importing --------------------------------------------------------------------------------------------------------


def test_import_of_a_sites_own(made: Path, tmp_path: Path) -> None:
    """Identity, root and list are stored like our own, with our file modes; a second import
    keeps the former identity."""
    folder = tmp_path / "taken"
    source = shutil.copytree(made, tmp_path / "site")
    (source / "zones/idmz.pem").chmod(0o600)

    def take(*, force: bool = False) -> None:
        given = pki.GivenFiles(*(source / name for name in ("zones/idmz.pem", "ca.pem", "zones/idmz.key", "ca.crl")))
        pki.import_identity(folder, "idmz", given, NOW, force=force)

    take()
    assert _good(folder, now=NOW) == []
    assert (folder / "zones/idmz.pem").stat().st_mode & 0o777 == 0o644
    assert (folder / "ca.crl").read_bytes() == (source / "ca.crl").read_bytes()
    with pytest.raises(PkiError, match="exist already"):
        take()
    old = _serial(folder / "zones/idmz.pem")
    pki.issue_zone(source, "idmz", NOW, force=True)
    take(force=True)
    assert _serial(folder / "zones/previous/idmz.pem") == old != _serial(folder / "zones/idmz.pem")


def test_import_refuses_what_could_not_be_used(made: Path, tmp_path: Path) -> None:
    """A foreign key, another zone, a revoked certificate, a folder of another authority: nothing is written."""
    folder, source = tmp_path / "taken", shutil.copytree(made, tmp_path / "site")
    pki.revoke(source, "idmz", NOW)

    def take(name: str, cert: str, key: str, into: Path = folder) -> None:
        given = pki.GivenFiles(source / cert, source / "ca.pem", source / key, source / "ca.crl")
        pki.import_identity(into, name, given, NOW)

    for name, cert, key, says in (
        ("plant-a", "zones/plant-a.pem", "zones/idmz.key", "does not match"),
        ("plant-b", "zones/plant-a.pem", "zones/plant-a.key", "common name"),
        ("idmz", "zones/idmz.pem", "zones/idmz.key", "was revoked"),
    ):
        with pytest.raises(PkiError, match=says):
            take(name, cert, key)
        assert not folder.exists()
    other = tmp_path / "own"
    pki.create_authority(other, NOW)
    with pytest.raises(PkiError, match="authority of its own"):
        take("plant-a", "zones/plant-a.pem", "zones/plant-a.key", other)

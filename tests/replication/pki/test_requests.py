"""Keys made where they are used: request, signature, import; and an authority whose key has a passphrase."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from agent.cli import bsfg
from agent.replication import pki
from tests.replication.pki.site import NOW

PASSPHRASE = b"correct horse battery"


def request_of(name: str, file: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None) -> Path:
    """A request as another program writes it; it also asks to be an authority."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    names = [x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else []
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(names))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    file.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return file


def test_a_key_never_leaves_its_node(folder: Path, tmp_path: Path) -> None:
    """Request on the node, signature at the authority, import on the node: the node can connect, and no file of the
    authority's folder holds the key."""
    node = tmp_path / "node"
    made = pki.make_request(node, "enterprise")
    assert made.key_file.stat().st_mode & 0o777 == 0o600
    issued = pki.sign_request(folder, "enterprise", made.request_file, NOW)
    assert issued.certificate.key_sha256 == made.fingerprint_sha256
    secret = made.key_file.read_bytes()
    mine = pki.import_identity(node, "enterprise", pki.GivenFiles(issued.cert_file, issued.ca_file), NOW)
    assert pki.check_identity(mine.cert_file, mine.key_file, mine.ca_file, "enterprise", now=NOW) == []
    assert mine.key_file.read_bytes() == secret
    assert not [file for file in folder.rglob("*") if file.is_file() and secret in file.read_bytes()]
    assert not list(node.rglob("requested/*.key"))
    assert [issued.name for issued in pki.list_issued(folder, NOW)].count("enterprise") == 1
    assert CliRunner().invoke(bsfg, ["pki", "show", "--pki", str(folder)]).exit_code == 0


def test_a_renewal_keeps_what_is_in_force_until_the_import(folder: Path, tmp_path: Path) -> None:
    """A second request changes nothing on the node; its import keeps the former identity, which can be imported
    again."""
    node = tmp_path / "node"
    for attempt in range(2):
        made = pki.make_request(node, "idmz")
        before = sorted(file.read_bytes() for file in (node / "zones").glob("idmz.*"))
        issued = pki.sign_request(folder, "idmz", made.request_file, NOW)
        assert sorted(file.read_bytes() for file in (node / "zones").glob("idmz.*")) == before
        pki.import_identity(node, "idmz", pki.GivenFiles(issued.cert_file, issued.ca_file), NOW, force=attempt > 0)
    second = (node / "zones/idmz.key").read_bytes()
    former = pki.GivenFiles(node / "zones/previous/idmz.pem", folder / "ca.pem", node / "zones/previous/idmz.key")
    back = pki.import_identity(node, "idmz", former, NOW, force=True)
    assert back.key_file.read_bytes() != second
    assert pki.check_identity(back.cert_file, back.key_file, back.ca_file, "idmz", now=NOW) == []


def test_the_authority_keeps_no_key_of_a_former_certificate(folder: Path, tmp_path: Path) -> None:
    """A zone whose first key was made at the authority changes to a key of its own: the old key goes to previous/
    there. Without a request, the key of the zone gets the next certificate."""
    made = pki.make_request(tmp_path, "idmz")
    issued = pki.sign_request(folder, "idmz", made.request_file, NOW)
    assert not issued.key_file.exists()
    assert (folder / "zones/previous/idmz.key").exists()
    renewed = pki.sign_request(folder, "idmz", None, NOW)
    assert renewed.certificate.key_sha256 == made.fingerprint_sha256


def test_a_broker_has_the_hosts_that_it_requested(folder: Path, tmp_path: Path) -> None:
    """The certificate of a broker has the requested host names; it stays a server's."""
    made = pki.make_request(tmp_path, "b2", hosts=["localhost", "192.0.2.1"], broker=True)
    issued = pki.sign_request(folder, "b2", made.request_file, NOW, broker=True)
    assert issued.certificate.hosts == ("localhost", "192.0.2.1")
    assert issued.certificate.purposes == ("server",)


def test_only_name_and_key_are_taken_from_a_request(folder: Path, tmp_path: Path) -> None:
    """A request that asks to be an authority becomes a plain client."""
    issued = pki.sign_request(folder, "idmz", request_of("idmz", tmp_path / "r.csr"), NOW)
    assert (issued.certificate.is_ca, issued.certificate.purposes) == (False, ("client",))


def test_requests_that_are_refused(folder: Path, tmp_path: Path) -> None:
    """Another name, a broker under a zone's name, no name, a weak key, a broken signature, and what is no request."""
    file = tmp_path / "r.csr"
    for name, key, why in (
        ("plant-a", None, "is a request of 'plant-a', not of 'idmz'"),
        ("broker b1", None, "is a request of 'broker b1'"),
        ("", None, "is a request of ''"),
        ("idmz", rsa.generate_private_key(65537, 1024), "kind of key"),  # noqa: S505 so it is
    ):
        with pytest.raises(pki.PkiError, match=why):
            pki.sign_request(folder, "idmz", request_of(name, file, key), NOW)
    with pytest.raises(pki.PkiError, match="contains no host name"):
        pki.sign_request(folder, "b1", request_of("broker b1", file), NOW, broker=True)
    good = x509.load_pem_x509_csr(request_of("idmz", file).read_bytes()).public_bytes(serialization.Encoding.DER)
    broken = x509.load_der_x509_csr(good[:-1] + bytes([good[-1] ^ 1]))
    file.write_bytes(broken.public_bytes(serialization.Encoding.PEM))
    with pytest.raises(pki.PkiError, match="not signed with its own key"):
        pki.sign_request(folder, "idmz", file, NOW)
    file.write_bytes(b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n")
    with pytest.raises(pki.PkiError, match="not a certificate request"):
        pki.sign_request(folder, "idmz", file, NOW)
    assert len(pki.list_issued(folder, NOW)) == 3


def test_a_pending_request_is_not_lost(folder: Path, tmp_path: Path) -> None:
    """A second request without --force is refused; a certificate for another key is not imported, and changes
    nothing."""
    node = tmp_path / "node"
    first = pki.make_request(node, "idmz")
    issued = pki.sign_request(folder, "idmz", first.request_file, NOW)
    with pytest.raises(pki.PkiError, match="exist already"):
        pki.make_request(node, "idmz")
    pki.make_request(node, "idmz", force=True)
    with pytest.raises(pki.PkiError, match="key does not match"):
        pki.import_identity(node, "idmz", pki.GivenFiles(issued.cert_file, issued.ca_file), NOW)
    assert not (node / "zones/idmz.pem").exists()
    with pytest.raises(pki.PkiError, match="there is no request of plant-a"):
        pki.import_identity(node, "plant-a", pki.GivenFiles(issued.cert_file, issued.ca_file), NOW)


def test_a_certificate_for_the_present_key_is_imported(folder: Path, tmp_path: Path) -> None:
    """Without a request the key is the present one: of a certificate signed again, or imported again with what was
    forgotten."""
    node = tmp_path / "node"
    issued = pki.sign_request(folder, "idmz", pki.make_request(node, "idmz").request_file, NOW)
    key = pki.import_identity(node, "idmz", pki.GivenFiles(issued.cert_file, issued.ca_file), NOW).key_file.read_bytes()
    next_one = pki.sign_request(folder, "idmz", None, NOW)
    given = pki.GivenFiles(next_one.cert_file, next_one.ca_file, crl_file=folder / "ca.crl")
    with pytest.raises(pki.PkiError, match="exist already"):
        pki.import_identity(node, "idmz", given, NOW)
    imported = pki.import_identity(node, "idmz", given, NOW, force=True)
    assert imported.key_file.read_bytes() == key
    assert imported.cert_file.read_bytes() == next_one.cert_file.read_bytes()
    assert (node / "ca.crl").exists()


# --- the passphrase ---------------------------------------------------------------------------------------------------


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    """An authority with a passphrase, and the file that holds it."""
    pki.create_authority(tmp_path / "pki", NOW, passphrase=PASSPHRASE)
    file = tmp_path / "passphrase"
    file.touch(mode=0o600)
    file.write_bytes(PASSPHRASE + b"\nsecond line\n")
    return tmp_path


def test_every_signature_needs_the_passphrase(locked: Path) -> None:
    """Without it, and with a wrong one, nothing is signed or revoked; what needs no signature works."""
    folder = locked / "pki"
    assert pki.is_locked(folder / "ca.key")
    assert PASSPHRASE not in (folder / "ca.key").read_bytes()
    pki.issue_zone(folder, "idmz", NOW, passphrase=PASSPHRASE)
    for passphrase, why in ((None, "protected by a passphrase"), (b"wrong horse battery", "does not open")):
        for attempt in (
            lambda given=passphrase: pki.issue_zone(folder, "plant-a", NOW, passphrase=given),
            lambda given=passphrase: pki.sign_request(folder, "idmz", None, NOW, passphrase=given),
            lambda given=passphrase: pki.revoke(folder, "idmz", NOW, passphrase=given),
            lambda given=passphrase: pki.reissue_crl(folder, NOW, passphrase=given),
        ):
            with pytest.raises(pki.PkiError, match=why):
                attempt()
    assert [issued.revoked for issued in pki.list_issued(folder, NOW)] == [None]
    assert pki.revoke(folder, "idmz", NOW, passphrase=PASSPHRASE)


def test_the_passphrase_is_asked_for_or_read(locked: Path) -> None:
    """It is typed on the terminal, or is the first line of a file that others cannot read; a wrong or missing one ends
    in an error that says what to do."""

    def run(*words: str, typed: str = "") -> tuple[int, str]:
        done = CliRunner().invoke(bsfg, ["pki", *words, "--pki", str(locked / "pki")], input=typed)
        return done.exit_code, done.output + str(done.exception)

    file = locked / "passphrase"
    assert run("issue", "plant-a", typed=PASSPHRASE.decode() + "\n")[0] == 0
    assert run("issue", "idmz", "--passphrase-file", str(file))[0] == 0
    assert run("revoke", "idmz", "--passphrase-file", str(file))[0] == 0
    assert run("crl", "--passphrase-file", str(file))[0] == 0
    assert run("sign", "plant-a", "--passphrase-file", str(file))[0] == 0
    assert "does not open" in run("issue", "idmz", "--force", typed="wrong horse battery\n")[1]
    assert "give --passphrase-file" in run("issue", "idmz", "--force")[1]
    file.chmod(0o644)
    assert "accessible to others" in run("crl", "--passphrase-file", str(file))[1]
    assert run("show")[0] == 1  # idmz is revoked; the locked key needs no passphrase to be shown


def test_a_new_authority_has_a_passphrase_by_default(tmp_path: Path) -> None:
    """`ca` asks twice; a short one is refused, and without a terminal the options are named."""

    def run(name: str, *words: str, typed: str = "") -> tuple[int, str]:
        done = CliRunner().invoke(bsfg, ["pki", "ca", "--pki", str(tmp_path / name), *words], input=typed)
        return done.exit_code, done.output + str(done.exception)

    assert run("a", typed="correct horse battery\n" * 2)[0] == 0
    assert pki.is_locked(tmp_path / "a/ca.key")
    assert run("b", "--no-passphrase")[0] == 0
    assert not pki.is_locked(tmp_path / "b/ca.key")
    status, said = run("c")
    assert (status, "--no-passphrase" in said) == (2, True)
    assert "shorter than 12" in run("c", typed="short\n" * 2)[1]
    (tmp_path / "p").touch(mode=0o600)
    assert "exclude each other" in run("c", "--no-passphrase", "--passphrase-file", str(tmp_path / "p"))[1]
    assert not (tmp_path / "c").exists()


def test_without_a_terminal_nothing_but_the_error_is_said(tmp_path: Path) -> None:
    """No warning of Python's, that what is typed may be shown."""
    words = [sys.executable, "-m", "agent.cli", "pki", "ca", "--pki", str(tmp_path / "pki")]
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False, start_new_session=True
    )
    question, *_, last = done.stderr.splitlines()
    assert (done.returncode, question.endswith("key: "), "Warning" in done.stderr) == (2, True, False)
    assert last.startswith("Error: no terminal to ask for the passphrase: give --passphrase-file")

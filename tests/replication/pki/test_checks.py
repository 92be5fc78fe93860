"""Certificates, keys and lists that are checked before they are used: each fault is named with what to do."""

import base64
import os
import re
import shutil
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from agent.replication import pki
from agent.replication.pki import PkiError
from agent.replication.pki.certificates import BACKDATED
from tests.replication.pki.site import NOW


def _check(folder: Path, zone: str = "idmz", now: datetime = NOW) -> list[str]:
    files = folder / "zones/idmz.pem", folder / "zones/idmz.key", folder / "ca.pem"
    problems = pki.check_identity(*files, zone, now=now)
    assert all(problem.hint for problem in problems)
    return [str(problem) for problem in problems]


def test_good_identities(made: Path) -> None:
    """Certificates that we issue pass our own checks, in their first and last second, and with the real clock."""
    assert _check(made) == []
    assert _check(made, now=NOW - BACKDATED) == []
    assert _check(made, now=NOW + timedelta(days=pki.LEAF_DAYS)) == []
    assert pki.check_identity(made / "zones/idmz.pem", made / "zones/idmz.key", made / "ca.pem", "idmz") == []
    assert pki.check_broker_identity(made / "brokers/b1.pem", made / "brokers/b1.key", made / "ca.pem") == []
    assert pki.check_crl(made / "ca.crl", made / "ca.pem") == []


def _protected(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    _write_key(folder, key, serialization.BestAvailableEncryption(b"secret"))


def _write_key(folder: Path, key: Any, protection: Any = None) -> None:
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "zones/idmz.key").write_bytes(key.private_bytes(*form, protection or serialization.NoEncryption()))


def _foreign(folder: Path, name: str = "") -> None:
    pki.create_authority(folder / "other", NOW, name=name)
    shutil.copy(folder / "other/ca.pem", folder / "ca.pem")


def _namesake(folder: Path) -> None:
    _foreign(folder, pki.load_certificates(folder / "ca.pem")[0].subject.rfc4514_string().removeprefix("CN="))


def _fifo(folder: Path) -> None:
    (folder / "zones/idmz.pem").unlink()
    os.mkfifo(folder / "zones/idmz.pem")


@pytest.mark.parametrize(
    "spoil,says",
    [
        (lambda f: (f / "zones/idmz.pem").unlink(), r"idmz.pem: .*No such file"),
        (lambda f: (f / "zones/idmz.key").unlink(), r"idmz.key: .*No such file"),
        (lambda f: (f / "ca.pem").unlink(), r"ca.pem: .*No such file"),
        (lambda f: (f / "zones/idmz.pem").write_bytes(b""), "not a certificate in PEM"),
        (lambda f: (f / "zones/idmz.pem").write_bytes(b"\x00\xff" * 500), "not a certificate in PEM"),
        (lambda f: (f / "zones/idmz.pem").write_bytes(bytes(pki.FILE_BYTES_MAX + 1)), "larger than 262144 bytes"),
        (lambda f: shutil.copy(f / "zones/idmz.key", f / "zones/idmz.pem"), "not a certificate in PEM"),
        (_fifo, "is not a file"),
        (lambda f: (f / "zones/idmz.key").write_bytes(b"rubbish"), "not a private key in PEM"),
        (
            lambda f: shutil.copy(f / "zones/idmz.pem", f / "zones/idmz.key"),
            "not a private key in PEM|accessible to others",
        ),
        (lambda f: (f / "zones/idmz.key").chmod(0o644), "chmod 0600"),
        (lambda f: (f / "zones/idmz.key").chmod(0o604), "chmod 0600"),
        (lambda f: (f / "zones/idmz.key").chmod(0o660), "chmod 0600"),
        (_protected, "protected by a passphrase"),
        (lambda f: _write_key(f, rsa.generate_private_key(65537, 1024)), "RSA key of 1024 bits"),  # noqa: S505 so it is
        (lambda f: _write_key(f, dsa.generate_private_key(2048)), "a kind of key that is not supported"),
        (lambda f: shutil.copy(f / "zones/plant-a.key", f / "zones/idmz.key"), "key does not match"),
        (
            lambda f: shutil.copy(f / "zones/plant-a.pem", f / "zones/idmz.pem"),
            "common name is 'plant-a', but this node is 'idmz'",
        ),
        (lambda f: shutil.copy(f / "brokers/b1.pem", f / "zones/idmz.pem"), "not for a client"),
        (_foreign, r"signed by CN=bsfg zones \w+, but .*ca.pem contains CN=bsfg zones \w+"),
        (_namesake, "another authority with the same name"),
        (lambda f: shutil.copy(f / "zones/plant-a.pem", f / "ca.pem"), "signed by .* contains CN=plant-a"),
    ],
)
def test_bad_identity(folder: Path, spoil: Callable[[Path], object], says: str) -> None:
    """Each fault of the three files is named with the file and what to do."""
    spoil(folder)
    problems = _check(folder)
    assert any(re.search(says, problem) for problem in problems), problems


def damaged(file: Path, of: x509.Certificate | x509.CertificateRevocationList, what: str) -> Iterator[None]:
    """One bit of the file's content is changed, at each place in turn."""
    content = of.public_bytes(serialization.Encoding.DER)
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1
        text = base64.encodebytes(changed).decode()
        file.write_text(f"-----BEGIN {what}-----\n{text}-----END {what}-----\n")
        yield


@pytest.mark.filterwarnings("ignore:Parsed a serial number:UserWarning")
@pytest.mark.parametrize("name", ["zones/idmz.pem", "ca.pem"])
def test_no_damage_of_a_certificate_is_more_than_a_problem(folder: Path, name: str) -> None:
    """Whatever the disk has made of it: the node says so, and records. The parser reads a certificate part by part."""
    certificate = pki.load_certificates(folder / name)[0]
    for _ in damaged(folder / name, certificate, "CERTIFICATE"):
        _check(folder)  # each problem has a hint; not each bit is one
        pki.check_crl(folder / "ca.crl", folder / "ca.pem", now=NOW)
        pki.check_not_revoked(folder / "zones/idmz.pem", folder / "ca.crl")


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_a_negative_serial_number_is_on_no_list(folder: Path) -> None:
    """Of a foreign authority, or by damage: no list can name it, and the other checks say what is wrong."""
    file = folder / "zones/idmz.pem"
    certificate = pki.load_certificates(file)[0]
    serial = certificate.serial_number.to_bytes((certificate.serial_number.bit_length() + 8) // 8)
    content = certificate.public_bytes(serialization.Encoding.DER).replace(serial, b"\x80" + serial[1:], 1)
    file.write_bytes(ssl.DER_cert_to_PEM_cert(content).encode())
    assert pki.load_certificates(file)[0].serial_number < 0
    assert pki.check_not_revoked(file, folder / "ca.crl") == []
    assert _check(folder)


def test_no_damage_of_a_list_is_more_than_a_problem(folder: Path) -> None:
    """The same of a revocation list."""
    for _ in damaged(folder / "ca.crl", pki.load_crl(folder / "ca.crl"), "X509 CRL"):
        assert all(problem.hint for problem in pki.check_crl(folder / "ca.crl", folder / "ca.pem", now=NOW))
        pki.check_not_revoked(folder / "zones/idmz.pem", folder / "ca.crl")


def test_all_problems_at_once(folder: Path) -> None:
    """Three invalid files give three problems."""
    for file in ("zones/idmz.pem", "zones/idmz.key", "ca.pem"):
        (folder / file).unlink()
    assert len(_check(folder)) == 3


@pytest.mark.parametrize(
    "now,says",
    [
        (
            datetime(1970, 1, 1, 0, 1, tzinfo=UTC),
            "valid from .* clock here says 1970-01-01 00:01:00 UTC; set the clock",
        ),
        (
            NOW + timedelta(days=pki.LEAF_DAYS, seconds=1),
            "expired at .* clock here says .*; if the clock is right, issue",
        ),
    ],
)
def test_time_names_the_clock(made: Path, now: datetime, says: str) -> None:
    """Before and after its validity both times are shown, because the gateway's clock is as often wrong."""
    problems = _check(made, now=now)
    assert problems
    assert re.search(says, problems[0])


def test_ended_authority(tmp_path: Path) -> None:
    """A valid certificate below an expired root is refused, naming the root's file."""
    folder = tmp_path / "pki"
    pki.create_authority(folder, NOW, days=10)
    pki.issue_zone(folder, "idmz", NOW, days=10)
    problems = _check(folder, now=NOW + timedelta(days=11))
    assert [problem.partition(":")[0] for problem in problems] == [
        str(folder / "zones/idmz.pem"),
        str(folder / "ca.pem"),
    ]


@pytest.mark.parametrize(
    "spoil,says",
    [
        (lambda f: (f / "ca.crl").unlink(), "No such file"),
        (lambda f: (f / "ca.crl").write_text("rubbish"), "not a revocation list"),
        (lambda f: shutil.copy(f / "ca.pem", f / "ca.crl"), "not a revocation list"),
        (_foreign, "was signed by"),
        (_namesake, "was signed by"),
    ],
)
def test_bad_crl(folder: Path, spoil: Callable[[Path], object], says: str) -> None:
    """A list with which a broker would accept revoked zones, or refuse all, is named before a broker gets it."""
    spoil(folder)
    assert [problem for problem in pki.check_crl(folder / "ca.crl", folder / "ca.pem") if says in problem.why]


@pytest.mark.parametrize("place", [0, 1])
def test_ended_crl(made: Path, tmp_path: Path, place: int) -> None:
    """With an expired list, be it that of the first or of the second authority, a broker refuses all clients; the
    message says so and names the clock."""
    now, both = NOW + timedelta(days=pki.CA_DAYS + 1), [tmp_path / "other", made]
    pki.create_authority(both[0], now)
    for name in ("ca.crl", "ca.pem"):
        parts = [(folder / name).read_bytes() for folder in both]
        (tmp_path / name).write_bytes(b"".join(parts if place else parts[::-1]))
    (problem,) = pki.check_crl(tmp_path / "ca.crl", tmp_path / "ca.pem", now=now)
    assert "refuse all clients" in problem.why
    assert "clock" in problem.hint


def test_a_list_of_the_future(made: Path) -> None:
    """A broker whose clock is up to an hour behind takes a new list; one that is further behind would refuse all
    clients, which is named."""
    files = made / "ca.crl", made / "ca.pem"
    assert pki.check_crl(*files, now=NOW - timedelta(minutes=59)) == []
    (problem,) = pki.check_crl(*files, now=NOW - timedelta(minutes=61))
    assert "refuse all clients" in problem.why
    assert "set the clock" in problem.hint


# --- a site's own authority -------------------------------------------------------------------------------------------

_Signer = tuple[x509.Certificate, Any]


def _sign(
    name: str,
    issuer: _Signer | None,
    key: Any,
    *,
    is_ca: bool,
    names: int = 1,
    ends: datetime = NOW + timedelta(days=1),
) -> x509.Certificate:
    """A certificate as another tool makes it, with few extensions."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] * names)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - timedelta(hours=1))
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    )
    signer = issuer[1] if issuer else key
    return builder.sign(signer, None if isinstance(signer, ed25519.Ed25519PrivateKey) else hashes.SHA256())


def _pem(*certificates: x509.Certificate) -> bytes:
    return b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in certificates)


@pytest.mark.parametrize(
    "make_key",
    [lambda: rsa.generate_private_key(65537, 2048), ed25519.Ed25519PrivateKey.generate],
    ids=["RSA 2048", "Ed25519"],
)
@pytest.mark.parametrize("intermediate_in", ["cert_file", "ca_file", "neither"])
def test_chain_of_a_site(tmp_path: Path, make_key: Callable[[], Any], intermediate_in: str) -> None:
    """Root, intermediate and zone of another tool pass with the intermediate in either file, and not without it."""
    keys = [make_key() for _ in range(3)]
    root = _sign("site root", None, keys[0], is_ca=True)
    middle = _sign("site plant", (root, keys[0]), keys[1], is_ca=True)
    leaf = _sign("idmz", (middle, keys[1]), keys[2], is_ca=False)
    (tmp_path / "zones").mkdir()
    (tmp_path / "zones/idmz.pem").write_bytes(_pem(leaf, *([middle] if intermediate_in == "cert_file" else [])))
    (tmp_path / "ca.pem").write_bytes(_pem(root, *([middle] if intermediate_in == "ca_file" else [])))
    _write_key(tmp_path, keys[2])
    (tmp_path / "zones/idmz.key").chmod(0o600)
    problems = _check(tmp_path)
    assert [bool(re.search("signed by CN=site plant", problem)) for problem in problems] == (
        [True] if intermediate_in == "neither" else []
    )


@pytest.mark.parametrize("place", [0, 1])
def test_a_renewed_authority_beside_the_expired_one(tmp_path: Path, place: int) -> None:
    """A root that was renewed under its own key counts, as in TLS, wherever the expired one stands in the same file; an
    identity below the expired one alone is refused."""
    key = ec.generate_private_key(ec.SECP256R1())
    expired = _sign("root", None, key, is_ca=True, ends=NOW - timedelta(minutes=1))
    roots = [expired, _sign("root", None, key, is_ca=True)]
    (tmp_path / "zones").mkdir()
    (tmp_path / "zones/idmz.pem").write_bytes(_pem(_sign("idmz", (expired, key), key, is_ca=False)))
    _write_key(tmp_path, key)
    (tmp_path / "zones/idmz.key").chmod(0o600)
    (tmp_path / "ca.pem").write_bytes(_pem(*(roots if place else roots[::-1])))
    assert _check(tmp_path) == []
    (tmp_path / "ca.pem").write_bytes(_pem(expired))
    assert re.search(r"ca.pem: the certificate expired", _check(tmp_path)[0])


def test_chains_that_prove_nothing(tmp_path: Path) -> None:
    """A leaf that signs, two authorities that sign each other, an untrusted root, also one that came with the
    certificate, two common names: all refused."""
    key, other = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = _sign("root", None, key, is_ca=True)
    leaf = _sign("plant-a", (root, key), other, is_ca=False)
    below_leaf = _sign("idmz", (leaf, other), key, is_ca=False)
    first = _sign("one", (_sign("two", None, other, is_ca=True), other), key, is_ca=True)
    two = _sign("two", (first, key), other, is_ca=True)
    below_circle = _sign("idmz", (first, key), key, is_ca=False)
    (tmp_path / "zones").mkdir()
    _write_key(tmp_path, key)
    (tmp_path / "zones/idmz.key").chmod(0o600)
    twice = _sign("idmz", (root, key), key, is_ca=False, names=2)
    own = _sign("own root", None, other, is_ca=True)
    for chain, trusted, says in (
        ((below_leaf, leaf), root, "which is not an authority"),
        ((below_circle, first, two), root, "no root within 8"),
        ((_sign("idmz", None, key, is_ca=True),), root, "signed by CN=idmz"),
        ((_sign("idmz", (own, other), key, is_ca=False), own), root, "no root within 8"),
        ((twice,), root, "no single common name"),
    ):
        (tmp_path / "zones/idmz.pem").write_bytes(_pem(*chain))
        (tmp_path / "ca.pem").write_bytes(_pem(trusted))
        assert any(says in problem for problem in _check(tmp_path)), says


def test_broker_without_hosts(folder: Path) -> None:
    """A broker's certificate without host names is refused here, before each node would refuse it."""
    authority = pki.load_authority(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    (folder / "brokers/b1.pem").write_bytes(
        _pem(_sign("broker b1", (authority.certificate, authority.key), key, is_ca=False))
    )
    problems = pki.check_broker_identity(folder / "brokers/b1.pem", folder / "brokers/b1.key", folder / "ca.pem")
    assert {problem.why.partition(",")[0] for problem in problems} >= {"the certificate contains no host name"}


@pytest.mark.parametrize("spoil", [_protected, _foreign, lambda f: (f / "zones/idmz.key").chmod(0o644)])
def test_client_context_never_asks_for_a_password(folder: Path, spoil: Callable[[Path], object]) -> None:
    """Connecting with invalid files raises and never asks for a password; a foreign authority is found only in the
    handshake."""
    spoil(folder)
    files = folder / "ca.pem", folder / "zones/idmz.pem", folder / "zones/idmz.key"
    if spoil is _foreign:
        assert pki.client_context(*files).verify_mode is ssl.CERT_REQUIRED
        return
    with pytest.raises(PkiError):
        pki.client_context(*files)

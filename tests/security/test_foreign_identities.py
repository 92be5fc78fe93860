"""Certificates that a zone of this site must not be able to use, presented to a real broker by a foreign client: two
common names or none, another authority with the same name, another zone's certificate with a different key."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from agent.demo.mosquitto import Mosquitto
from agent.replication.pki.checks import check_identity
from tests.security.broker_attacker import Attacker
from tests.waiting import wait_until

pytestmark = pytest.mark.system

SERVING, ASKING, EVIL = "idmz", "plant-a", "evil"
TO_SERVING = f"bsfg/1/{SERVING}/{{}}/req"


@dataclass(frozen=True)
class Authority:
    """An authority's name and key, known to an attacker."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def issue(
        self, names: Sequence[str], key: ec.EllipticCurvePrivateKey, *, alternatives: Sequence[str] = ()
    ) -> x509.Certificate:
        """A client certificate with these common names."""
        now = datetime.now(UTC)
        subject = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, name, _validate=False) for name in names]
            or [x509.NameAttribute(NameOID.ORGANIZATION_NAME, ASKING)]
        )
        builder = x509.CertificateBuilder(subject_name=subject, issuer_name=self.certificate.subject)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        if alternatives:
            names_beside = x509.SubjectAlternativeName([x509.DNSName(one) for one in alternatives])
            builder = builder.add_extension(names_beside, critical=False)
        return builder.sign(self.key, hashes.SHA256())


def another_authority(name: x509.Name) -> Authority:
    """An authority of the same name with a key of its own."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    builder = x509.CertificateBuilder(subject_name=name, issuer_name=name).public_key(key.public_key())
    builder = (
        builder.serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=9))
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return Authority(builder.sign(key, hashes.SHA256()), key)


def mixed_key(own: ec.EllipticCurvePrivateKey, other: ec.EllipticCurvePublicKey) -> bytes:
    """A key file with a private number of our own and the public key of another zone's certificate. OpenSSL compares
    only the public part, so it presents that certificate and signs with the wrong number."""
    der = own.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    form = (serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
    changed = der.replace(own.public_key().public_bytes(*form), other.public_bytes(*form))
    assert changed != der
    return (
        "-----BEGIN EC PRIVATE KEY-----\n" + ssl.DER_cert_to_PEM_cert(changed).split("\n", 1)[1].rsplit("\n", 2)[0]
    ).encode() + b"\n-----END EC PRIVATE KEY-----\n"


def pem(*certificates: x509.Certificate) -> bytes:
    """A chain, the leaf first."""
    return b"".join(one.public_bytes(serialization.Encoding.PEM) for one in certificates)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A key file."""
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


@dataclass(frozen=True)
class Forgery:
    """A broker, its authority, and a folder for forged files."""

    broker: Mosquitto
    authority: Authority
    folder: Path

    def connect(self, chain: bytes, key: bytes) -> Attacker:
        """A session with these bytes as an identity. Raises OSError or AssertionError if the broker refuses."""
        cert_file, key_file = self.folder / "forged.pem", self.folder / "forged.key"
        cert_file.write_bytes(chain)
        key_file.write_bytes(key)
        context = ssl.create_default_context(cafile=str(self.broker.ca_file))
        context.load_cert_chain(cert_file, key_file)
        return Attacker(self.broker.host, self.broker.port, context)

    def certificate(self, zone: str) -> x509.Certificate:
        """The certificate of an honest zone; its broker sees it at each connection."""
        return x509.load_pem_x509_certificate(Path(self.broker.identity(zone).cert_file).read_bytes())


@pytest.fixture(scope="module")
def forgery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forgery]:
    """A broker between three zones, and its authority's key, known to an attacker."""
    folder = tmp_path_factory.mktemp("forged")
    links = (f"{SERVING}:{ASKING}", f"{SERVING}:{EVIL}")
    with Mosquitto.started(folder / "site", (SERVING, ASKING, EVIL), links) as broker:
        key = serialization.load_pem_private_key((broker.pki_folder / "ca.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        authority = Authority(x509.load_pem_x509_certificate(broker.ca_file.read_bytes()), key)
        yield Forgery(broker, authority, folder)


def is_heard(forgery: Forgery, attacker: Attacker, zone: str) -> bool:
    """Whether a request that an attacker publishes in the name of a zone reaches the serving zone."""
    mine = forgery.broker.identity(SERVING)
    context = ssl.create_default_context(cafile=str(forgery.broker.ca_file))
    context.load_cert_chain(mine.cert_file, mine.key_file)
    own = forgery.broker.identity(zone)
    honest_context = ssl.create_default_context(cafile=str(forgery.broker.ca_file))
    honest_context.load_cert_chain(own.cert_file, own.key_file)
    topic = TO_SERVING.format(zone)
    with (
        Attacker(forgery.broker.host, forgery.broker.port, context) as serving,
        Attacker(forgery.broker.host, forgery.broker.port, honest_context) as honest,
    ):
        serving.subscribe([topic])
        attacker.publish(topic, b"forged", qos=1)
        attacker.await_packet(0x40)  # the broker has decided
        honest.publish(topic, b"honest")
        return b"forged" in serving.await_packet(0x30)


SUBJECTS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "own name first": ((EVIL, ASKING), ()),
    "no common name": ((), ()),
    "an empty name": (("",), ()),
    "NUL behind the name": ((f"{ASKING}\0.{EVIL}",), ()),
    "a wildcard": (("+",), ()),
    "all wildcards": (("#",), ()),
    "a slash": ((f"{ASKING}/req",), ()),
    "capital letters": ((ASKING.upper(),), ()),
    "a blank behind": ((f"{ASKING} ",), ()),
    "the other name as alternative": ((EVIL,), (ASKING,)),
}


@pytest.mark.filterwarnings("ignore:Attribute's length:UserWarning")
@pytest.mark.parametrize("case", SUBJECTS)
def test_no_subject_speaks_for_another_zone(forgery: Forgery, case: str) -> None:
    """With certificates of the true authority whose subject is not exactly the other zone's name, the broker refuses
    the session, or nothing that it publishes in that zone's name arrives; and no node starts with one."""
    names, alternatives = SUBJECTS[case]
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = forgery.authority.issue(names, key, alternatives=alternatives)
    try:
        session = forgery.connect(pem(certificate), key_pem(key))
    except (OSError, AssertionError):
        session = None
    if session is not None:
        with session:
            assert not is_heard(forgery, session, ASKING)
    files = forgery.folder / "forged.pem", forgery.folder / "forged.key", forgery.broker.ca_file
    assert any("common name" in one.why for one in check_identity(*files, ASKING))


def test_a_node_does_not_start_with_two_names(forgery: Forgery) -> None:
    """Mosquitto takes the first of two common names; our authority issues no such certificate, and a node refuses it
    under either name."""
    key = ec.generate_private_key(ec.SECP256R1())
    with forgery.connect(pem(forgery.authority.issue((ASKING, EVIL), key)), key_pem(key)) as session:
        assert is_heard(forgery, session, ASKING)
    files = forgery.folder / "forged.pem", forgery.folder / "forged.key", forgery.broker.ca_file
    for zone in (ASKING, EVIL):
        assert any("no single common name" in one.why for one in check_identity(*files, zone))


def _foreign_authority(forgery: Forgery) -> tuple[bytes, bytes]:
    other, key = another_authority(forgery.authority.certificate.subject), ec.generate_private_key(ec.SECP256R1())
    return pem(other.issue((ASKING,), key), other.certificate), key_pem(key)


def _issued_by_a_zone(forgery: Forgery) -> tuple[bytes, bytes]:
    own = forgery.broker.identity(EVIL)
    evil_key = serialization.load_pem_private_key(Path(own.key_file).read_bytes(), None)
    assert isinstance(evil_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = Authority(forgery.certificate(EVIL), evil_key)
    return pem(issuer.issue((ASKING,), key), issuer.certificate, forgery.authority.certificate), key_pem(key)


def _own_leaf_before_the_others_chain(forgery: Forgery) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    own = another_authority(forgery.certificate(ASKING).subject)
    leaf = own.issue((ASKING,), key)
    return pem(leaf, forgery.certificate(ASKING), forgery.authority.certificate), key_pem(key)


def _others_certificate_with_own_key(forgery: Forgery) -> tuple[bytes, bytes]:
    certificate = forgery.certificate(ASKING)
    public = certificate.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    key = mixed_key(ec.generate_private_key(ec.SECP256R1()), public)
    return pem(certificate, forgery.authority.certificate), key


REFUSED: dict[str, Callable[[Forgery], tuple[bytes, bytes]]] = {
    "another authority of the same name": _foreign_authority,
    "issued by a zone": _issued_by_a_zone,
    "an own leaf before the other's chain": _own_leaf_before_the_others_chain,
    "the other's certificate with an own key": _others_certificate_with_own_key,
}


@pytest.mark.parametrize("case", REFUSED)
def test_no_session_without_the_zones_own_key_and_authority(forgery: Forgery, case: str) -> None:
    """With another zone's name on a certificate that its authority did not issue, or its own certificate without its
    key, TLS ends before MQTT begins, and the broker's log names a TLS error."""
    before = forgery.broker.log_text().count("SSL")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        forgery.connect(*REFUSED[case](forgery))
    # Mosquitto sends its alert before it writes the line.
    wait_until(lambda: forgery.broker.log_text().count("SSL") > before, "the broker names the error")

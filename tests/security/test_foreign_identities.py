"""Certificates that a zone of this site must not be able to use, presented to a real broker by a foreign client: two
common names or none, another authority with the same name, another zone's certificate with a different key."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
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
from agent.replication.protocol.topics import subscription_to
from tests.security.broker_attacker import Attacker

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
            names_beside = x509.SubjectAlternativeName([x509.DNSName(alternative) for alternative in alternatives])
            builder = builder.add_extension(names_beside, critical=False)
        return builder.sign(self.key, hashes.SHA256())


def pem(*certificates: x509.Certificate) -> bytes:
    """A chain, the leaf first."""
    return b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in certificates)


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
        serving.subscribe([subscription_to(topic)])
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
    assert any("common name" in problem.why for problem in check_identity(*files, ASKING))

"""The list of revoked certificates: what is wrong with one, and how it is made.

A broker that cannot read its list lets revoked certificates in, and one whose list has ended refuses everybody, so a list is
looked at before a broker sees it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from agent.replication.pki.files import load_certificates, load_crl
from agent.replication.pki.problem import PkiError, Problem, moment_text
from agent.replication.pki.signing import BACKDATED, authority_identifier


def check_crl(crl_file: Path, ca_file: Path, *, now: datetime | None = None) -> list[Problem]:
    """Everything wrong with a revocation list: the broker would let everybody in, or nobody, and not say which."""
    now = now or datetime.now(UTC)
    try:
        crl = load_crl(crl_file)
        authorities = load_certificates(ca_file)
    except PkiError as error:
        return [Problem(crl_file, error.why, error.hint)]
    problems = []
    if not any(is_crl_of(crl, authority) for authority in authorities):
        why = f"the list was signed by {crl.issuer.rfc4514_string()}, which is not in {ca_file}"
        problems.append(Problem(crl_file, why, "use the ca.crl that lies beside that ca.pem"))
    if crl.next_update_utc is not None and crl.next_update_utc < now:
        why = f"the list ended at {moment_text(crl.next_update_utc)} (clock here: {moment_text(now)}): the broker would refuse everybody"
        problems.append(Problem(crl_file, why, "check the clock first (timedatectl); if it is right, make a new list"))
    return problems


def is_crl_of(crl: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    """Whether `authority` signed the list."""
    key = authority.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey):
        return False
    return crl.issuer == authority.subject and crl.is_signature_valid(key)


def empty_crl(
    certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, now: datetime
) -> x509.CertificateRevocationList:
    """A list that revokes nobody and lasts as long as its authority.

    A broker refuses everybody once its list is past its end, and a site without a route to its authority cannot fetch a
    new one.  The list is a file that the operator puts there, so its end protects nothing.
    """
    return (
        x509.CertificateRevocationListBuilder()
        .issuer_name(certificate.subject)
        .last_update(now - BACKDATED)
        .next_update(certificate.not_valid_after_utc)
        .add_extension(x509.CRLNumber(1), critical=False)
        .add_extension(authority_identifier(certificate), critical=False)
        .sign(key, hashes.SHA256())
    )

"""Checks of an identity: all problems at once, each with the file, the reason and what to do.

The same checks serve our own certificates and those of a site's PKI: the key matches the certificate, the dates are
valid by this machine's clock, the purpose is right, a root in the `ca_file` signed it, and the common name is the zone.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from agent.replication.pki.certificates import extension_of, is_ca, key_matches
from agent.replication.pki.files import check_key_rights, load_certificates, load_key
from agent.replication.pki.problem import IdentityProblem, PkiError, moment_text
from agent.signing.certificates import common_name_in, is_signed_by

_T = TypeVar("_T")

CHAIN_LENGTH_MAX = 8
"""Certificates between a zone and its root; also ends the search in a cycle of cross-signed certificates."""


def check_identity(
    cert_file: Path, key_file: Path | None, ca_file: Path, zone: str, *, now: datetime | None = None
) -> list[IdentityProblem]:
    """All problems of a node's identity; empty if it can connect as `zone`. `now` defaults to the clock. `key_file` is
    None where the key is on another machine."""
    problems, certificate = _check_files(cert_file, key_file, ca_file, ExtendedKeyUsageOID.CLIENT_AUTH, now)
    if certificate is not None and (name := common_name_in(certificate.subject)) != zone:
        why = f"its common name is {name!r}, but this node is {zone!r}" if name else "it has no single common name"
        hint = f"give the files of {zone}, or correct zone or name in [node]"
        problems.append(IdentityProblem(cert_file, why, hint))
    return problems


def check_broker_identity(
    cert_file: Path, key_file: Path | None, ca_file: Path | None, *, now: datetime | None = None
) -> list[IdentityProblem]:
    """All problems of a broker's identity; empty if nodes will accept it under its host names.

    Without `ca_file` the issuer is not checked, because a broker's authority may differ from the zones'.
    """
    problems, certificate = _check_files(cert_file, key_file, ca_file, ExtendedKeyUsageOID.SERVER_AUTH, now)
    if certificate is not None and not extension_of(certificate, x509.SubjectAlternativeName):
        why = "the certificate contains no host name, so no node will accept it"
        problems.append(IdentityProblem(cert_file, why, "request it again: bsfg pki request --broker NAME --host HOST"))
    return problems


def client_context(ca_file: Path, cert_file: Path, key_file: Path) -> ssl.SSLContext:
    """A TLS 1.3 context with this identity that verifies the broker's certificate and host name. Raises PkiError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Older versions send the client certificate in the clear and allow weaker ciphers; the broker refuses them too.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    check_key_rights(key_file)
    try:
        context.load_verify_locations(ca_file)
        # An empty password instead of None: with None, OpenSSL would ask for the password of a protected key on the
        # terminal.
        context.load_cert_chain(cert_file, key_file, password="")
    except (ssl.SSLError, OSError) as error:
        raise PkiError(
            f"{cert_file}, {key_file} and {ca_file} cannot be used together: {error}",
            "bsfg check names the problem",
        ) from error
    return context


def _check_files(
    cert_file: Path, key_file: Path | None, ca_file: Path | None, purpose: x509.ObjectIdentifier, now: datetime | None
) -> tuple[list[IdentityProblem], x509.Certificate | None]:
    """Problems common to nodes and brokers, and the certificate if it can be read."""
    now = now or datetime.now(UTC)
    problems: list[IdentityProblem] = []
    key = None if key_file is None else _loaded(load_key, key_file, problems)
    chain = _loaded(load_certificates, cert_file, problems)
    authorities = None if ca_file is None else _loaded(load_certificates, ca_file, problems)
    if not chain:
        return problems, None
    certificate = chain[0]
    if key_file is not None and key is not None and not key_matches(certificate, key):
        why = f"the key does not match the certificate {cert_file}"
        problems.append(IdentityProblem(key_file, why, "use the key that was made with it, or issue both again"))
    problems += check_times(cert_file, certificate, now)
    usage = extension_of(certificate, x509.ExtendedKeyUsage)
    # A certificate without the extension is valid for every purpose (RFC 5280, 4.2.1.12).
    if usage is not None and purpose not in usage and ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE not in usage:
        who = "a client" if purpose == ExtendedKeyUsageOID.CLIENT_AUTH else "a server"
        why = f"the certificate is not for {who} (extended key usage)"
        problems.append(IdentityProblem(cert_file, why, "request it again (bsfg pki request), and sign it"))
    if authorities and ca_file is not None:
        problems += _check_chain(cert_file, chain, ca_file, authorities, now)
    return problems, certificate


def _loaded(load: Callable[[Path], _T], path: Path, problems: list[IdentityProblem]) -> _T | None:
    """The content of a file; None, and one more problem, if it cannot be loaded."""
    try:
        return load(path)
    except PkiError as error:
        problems.append(IdentityProblem(path, error.why, error.hint))
        return None


def check_times(path: Path, certificate: x509.Certificate, now: datetime) -> list[IdentityProblem]:
    """A problem if the certificate has expired or is not yet valid. It names the clock: a gateway without a battery
    starts in 1970."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        why = f"the certificate is valid from {moment_text(begins)}, and the clock here says {moment_text(now)}"
        return [IdentityProblem(path, why, "set the clock (timedatectl); if it is right, issue the certificate again")]
    if now > ends:
        why = f"the certificate expired at {moment_text(ends)}, and the clock here says {moment_text(now)}"
        hint = "if the clock is right, issue the certificate again; otherwise set the clock (timedatectl)"
        return [IdentityProblem(path, why, hint)]
    return []


def _check_chain(
    cert_file: Path,
    chain: list[x509.Certificate],
    ca_file: Path,
    authorities: list[x509.Certificate],
    now: datetime,
) -> list[IdentityProblem]:
    """Follow the issuers from the certificate to a root in `ca_file`, using intermediate certificates of both files."""
    here = chain[0]
    for _ in range(CHAIN_LENGTH_MAX):
        above = [known for known in [*authorities, *chain[1:]] if known.subject == here.issuer]
        # Of an authority that was renewed under its own key, the certificate that is valid now counts, as in TLS.
        signers = sorted(
            (known for known in above if is_signed_by(here, known)),
            key=lambda known: bool(check_times(ca_file, known, now)),
        )
        if not signers:
            names = ", ".join(sorted({authority.subject.rfc4514_string() for authority in authorities}))
            why = f"the certificate was signed by {here.issuer.rfc4514_string()}, but {ca_file} contains {names}"
            if above:
                why = f"{ca_file} contains another authority with the same name {here.issuer.rfc4514_string()}"
            return [
                IdentityProblem(cert_file, why, "use the ca.pem of the authority that issued it, or issue it again")
            ]
        issuer = signers[0]
        if not is_ca(issuer):
            why = f"the certificate was signed by {issuer.subject.rfc4514_string()}, which is not an authority"
            return [IdentityProblem(cert_file, why, "sign it with bsfg pki sign")]
        if problems := check_times(ca_file, issuer, now):
            return problems
        if issuer.subject == issuer.issuer and issuer in authorities:
            return []
        here = issuer
    why = f"no root within {CHAIN_LENGTH_MAX} certificates"
    return [IdentityProblem(ca_file, why, "use a file with the root and all intermediate certificates")]

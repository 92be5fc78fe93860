"""Judges whether the certificate of a server is accepted, and if not, gives one reason and what to do.

A certificate is accepted if it is pinned at the source, if it is in `trusted/`, or if it was issued by one in
`issuers/` whose revocation list does not contain it. A pinned certificate is not checked further, because it is tied to
one source: many devices have an expired certificate, or one without their address, that cannot be replaced. The others
are checked for validity, use, key length, application URI and host name (OPC 10000-4, 6.1.3). Core.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import islice, pairwise

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from agent.ingest.opcua.security.certificate_facts import CertificateFacts, facts_of, parse_certificate

KEY_BITS_MIN = 2048  # the minimum of every supported policy (OPC 10000-7)
ISSUERS_DEEP_MAX = 5  # certificates between that of a server and one in issuers/
WAYS_MAX = 20  # checked at most, because a server chooses the names in its chain, and each way costs signatures


class TrustReason(Enum):
    """Why a certificate is accepted."""

    PINNED = "pinned"
    TRUSTED = "in trusted/"
    ISSUED = "issued by one in issuers/"


@dataclass(frozen=True, slots=True)
class TrustList:
    """What the operator accepts: the pin (SHA-256) of this source, or the certificates and lists of its trust
    folder."""

    pinned_sha256: str = ""
    trusted: frozenset[str] = frozenset()  # SHA-256
    issuers: tuple[x509.Certificate, ...] = ()
    revocation_lists: tuple[x509.CertificateRevocationList, ...] = ()
    is_revocation_list_required: bool = True


@dataclass(frozen=True, slots=True)
class Presented:
    """What a server presents: its certificate chain (DER, its own first), the application URI that it announces (empty
    if not known), and the host name by which it is reached."""

    chain: tuple[bytes, ...]
    application_uri: str
    host: str


@dataclass(frozen=True, slots=True)
class TrustVerdict:
    """`trust` is None for a certificate that is not accepted. `why` completes "the certificate of ... ", `todo` is what
    to do. `is_unknown`: the operator can trust it by a pin, and if `also_why`, a further problem, is empty, by putting
    it into `trusted/`."""

    facts: CertificateFacts
    trust: TrustReason | None
    why: str = ""
    todo: str = ""
    is_unknown: bool = False
    also_why: str = ""


def judge(presented: Presented, accepted: TrustList, now: datetime) -> TrustVerdict:
    """The verdict on what a server presents. Raises ValueError if it is not a certificate."""
    facts = facts_of(presented.chain[0])
    if accepted.pinned_sha256:
        if facts.sha256 == accepted.pinned_sha256:
            return TrustVerdict(facts, TrustReason.PINNED)
        return TrustVerdict(facts, None, "is not the pinned one", is_unknown=True)
    if facts.fault:
        why = f"is not written by the rules of X.509 ({facts.fault})"
        return TrustVerdict(facts, None, why, is_unknown=True, also_why="can only be pinned")
    problem = next(_problems(facts, parse_certificate(presented.chain[0]), presented, now), None)
    trust = TrustReason.TRUSTED
    if facts.sha256 not in accepted.trusted:
        trust, issue = TrustReason.ISSUED, _issue_problem(presented.chain, accepted, now)
        if issue is _UNKNOWN_ISSUER:
            also = "" if problem is None else problem.why
            return TrustVerdict(facts, None, "is not trusted", is_unknown=True, also_why=also)
        problem = issue or problem
    if problem is not None:
        return TrustVerdict(facts, None, problem.why, problem.todo)
    return TrustVerdict(facts, trust)


@dataclass(frozen=True, slots=True)
class _Problem:
    why: str
    todo: str = ""


_UNKNOWN_ISSUER = _Problem("")


def _problems(
    facts: CertificateFacts, certificate: x509.Certificate, presented: Presented, now: datetime
) -> Iterator[_Problem]:
    """The problems of a certificate apart from trust."""
    pin = f'or pin it: server_certificate_sha256 = "{facts.sha256}"'
    yield from _time_problems("", facts, now)
    if 0 < facts.key_bits < KEY_BITS_MIN:
        yield _Problem(
            f"has a key of {facts.key_bits} bits; {KEY_BITS_MIN} are needed", f"renew it at the server {pin}"
        )
    if use := _use_problem(certificate):
        yield _Problem(use, f"renew it at the server, {pin}")
    if presented.application_uri and presented.application_uri not in facts.uris:
        uris = ", ".join(facts.uris) or "none"
        text = f"is for the application URI {uris}, and the server calls itself {presented.application_uri}"
        yield _Problem(text, f"check that it is the right server, and renew its certificate, {pin}")
    if not _is_for_host(facts, presented.host):
        names = ", ".join(facts.host_names) or "no host"
        yield _Problem(f"is for {names}, not for {presented.host}", f"use a name of the certificate in url, {pin}")


def _time_problems(whose: str, facts: CertificateFacts, now: datetime) -> Iterator[_Problem]:
    if facts.not_before <= now <= facts.not_after:
        return
    text = f"{whose}is valid from {facts.validity}, and this machine's clock says {now:%Y-%m-%d %H:%M} UTC"
    if now < facts.not_before:
        yield _Problem(text, "set this machine's clock (timedatectl), or wait")
    else:
        yield _Problem(text, "renew it at the server, or set this machine's clock if it is wrong (timedatectl)")


def _use_problem(certificate: x509.Certificate) -> str:
    """Whether a server may use the certificate (OPC 10000-6, 6.2.2). What is not restricted is allowed."""
    try:
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound:
        usage = None
    if usage is not None and not (usage.digital_signature and (usage.key_encipherment or usage.data_encipherment)):
        return "may not be used to sign and encrypt (its key usage)"
    try:
        extended = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return ""
    if not {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE} & set(extended):
        return "is not for a server (its extended key usage)"
    return ""


def _is_for_host(facts: CertificateFacts, host: str) -> bool:
    """Whether the certificate has the host name by which the server is reached, ignoring case."""
    return host.lower().strip("[]").rstrip(".") in {name.lower().rstrip(".") for name in facts.host_names}


def _issue_problem(chain: Sequence[bytes], accepted: TrustList, now: datetime) -> _Problem | None:
    """Why no valid chain leads from the server's certificate to one in issuers/; None if one does."""
    found: _Problem = _UNKNOWN_ISSUER
    presented = [parse_certificate(certificate) for certificate in chain if not facts_of(certificate).fault]
    for way in islice(_ways([presented[0]], presented[1:], accepted.issuers), WAYS_MAX):
        problems = (
            problem for child, issuer in pairwise(way) for problem in _link_problems(child, issuer, accepted, now)
        )
        problem = next(problems, None)
        if problem is None:
            return None
        found = problem
    return found


def _ways(
    way: list[x509.Certificate], presented: Sequence[x509.Certificate], issuers: Sequence[x509.Certificate]
) -> Iterator[list[x509.Certificate]]:
    """The chains from a server's certificate to one in issuers/, by names only."""
    wanted = way[-1].issuer
    for issuer in issuers:
        if issuer.subject == wanted:
            yield [*way, issuer]
    if len(way) <= ISSUERS_DEEP_MAX:
        for between in presented:
            if between.subject == wanted and between not in way:
                yield from _ways([*way, between], presented, issuers)


def _link_problems(
    child: x509.Certificate, issuer: x509.Certificate, accepted: TrustList, now: datetime
) -> Iterator[_Problem]:
    """The problems between a certificate and its issuer."""
    name = issuer.subject.rfc4514_string()
    try:
        child.verify_directly_issued_by(issuer)
    except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm):
        yield _Problem(f"names {name} as its issuer, but the signature is not that issuer's", "do not trust it")
        return
    try:
        is_authority = issuer.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_authority = False
    if not is_authority:
        yield _Problem(f"is issued by {name}, which may not issue certificates", "put the authority's into issuers/")
    yield from _time_problems(f"is issued by {name}, which ", facts_of(issuer.public_bytes(Encoding.DER)), now)
    yield from _revocation_problems(child, issuer, name, accepted, now)


def _revocation_problems(
    child: x509.Certificate, issuer: x509.Certificate, name: str, accepted: TrustList, now: datetime
) -> Iterator[_Problem]:
    """A revocation, or a missing or expired list. Only lists signed by the issuer count, and of several the newest."""
    key = issuer.public_key()
    signed = [crl for crl in accepted.revocation_lists if crl.issuer == issuer.subject and _is_signed(crl, key)]
    if not signed:
        if accepted.is_revocation_list_required:
            text = f"is issued by {name}, whose revocation list is missing in crl/"
            yield _Problem(text, "put its list there, or set crl_required = false")
        return
    newest = max(signed, key=lambda crl: crl.last_update_utc)
    if newest.get_revoked_certificate_by_serial_number(child.serial_number) is not None:
        yield _Problem(f"was revoked by its issuer {name}", "do not use this server before it has a new certificate")
    ends = newest.next_update_utc
    if ends is not None and ends < now and accepted.is_revocation_list_required:
        text = f"is issued by {name}, whose revocation list ended {ends:%Y-%m-%d %H:%M} UTC"
        text += f", and this machine's clock says {now:%Y-%m-%d %H:%M} UTC"
        yield _Problem(text, "put a new list into crl/, or set crl_required = false")


def _is_signed(crl: x509.CertificateRevocationList, key: object) -> bool:
    try:
        return crl.is_signature_valid(key)  # type: ignore[arg-type]
    except (TypeError, ValueError, UnsupportedAlgorithm):
        return False

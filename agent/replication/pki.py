"""Who a zone is: a small certificate authority, and the checks on certificates whoever issued them.

The common name of a certificate is the zone, and the broker turns it into the user name that its access list speaks
of.  The authority is therefore a root of its own: whatever it signs may connect, so it signs zones and brokers and
nothing else.  It lives in one folder, which belongs on a machine that is neither a gateway nor a broker:

    ca.pem  ca.key  ca.crl          the authority, and its (at first empty) list of revoked certificates
    zones/ZONE.pem  .key            what a node gets, together with ca.pem
    brokers/NAME.pem  .key          what a broker gets, together with ca.pem and ca.crl
    issued/SERIAL.pem               every certificate ever signed, so that it can be named when it has to be revoked

Promised: a key is never readable by others, not even for a moment; a file is replaced whole or not at all; nothing that
exists is overwritten unless `force` is said; a certificate does not outlive its authority; and every refusal says what
to do.  The current time is an argument.  Not done here: passwords on keys (a gateway starts without a human),
RSA keys of our own (they are accepted from a site's PKI), and any trust in a certificate by its file name.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import secrets
import ssl
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from agent.replication.errors import ReplicationError
from agent.replication.topics import is_zone

CA_DAYS = 3650
"""Ten years: replacing a root means visiting every gateway."""

LEAF_DAYS = 365
"""One year, as the specification's example; `bsfg status` warns below thirty days."""

DAYS_MAX = 7300
"""Twenty years, the life of the plant it runs in; more is a slip of the keyboard."""

BACKDATED = timedelta(hours=1)
"""A certificate begins this much before it was signed, so that a gateway whose clock lags a little can use it."""

HOSTS_MAX = 32
"""Names of one broker; a certificate with hundreds is a mistake and makes every handshake larger."""

FILE_BYTES_MAX = 256 * 1024
"""Largest PEM file read; a whole system trust store is smaller, and a disk image given by mistake is larger."""

CHAIN_LENGTH_MAX = 8
"""Certificates between a zone and its root; also what ends a walk around a circle of cross-signed ones."""

RSA_BITS_MIN = 2048

_KEY_MODE = 0o600
_PUBLIC_MODE = 0o644
_KEY_MODE_FORBIDDEN = 0o037
"""Rights that no key file may grant: anything to others, and more than reading to the group (the broker's own)."""

_COMMON_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")
_DNS_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")

_T = TypeVar("_T", bound=x509.ExtensionType)
_Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


class PkiError(ReplicationError):
    """Something about a certificate or key that the operator has to put right; `hint` says how."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.why = why
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an identity: in which file, why, and what to do about it."""

    file: Path
    why: str
    hint: str

    def __str__(self) -> str:
        return f"{self.file}: {self.why}; {self.hint}"


@dataclass(frozen=True, slots=True)
class Authority:
    """The authority's certificate with the key that signs."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class Issued:
    """Where a new identity lies, and what its certificate says."""

    cert_file: Path
    key_file: Path
    ca_file: Path
    certificate: CertificateFacts


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """What a person wants to know of a certificate; `zone` is empty where the common name is not a zone's."""

    subject: str
    zone: str
    issuer: str
    serial: str
    purposes: tuple[str, ...]
    hosts: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    days_left: int
    valid_now: bool
    is_ca: bool
    fingerprint_sha256: str


# --- the authority ---------------------------------------------------------------------------------------------------


def create_authority(
    folder: Path, now: datetime, *, name: str = "", days: int = CA_DAYS, force: bool = False
) -> CertificateFacts:
    """Make the authority of a site in `folder`: key, self-signed root and an empty revocation list."""
    check_days(days)
    # A root's name says which one it is: two roots of one name are told apart only by signature, which nobody reads.
    name = name or f"bsfg zones {secrets.token_hex(4)}"
    if not _COMMON_NAME.fullmatch(name):
        raise PkiError(f"{name!r} cannot name an authority", "use at most 64 letters, digits, spaces and ._-")
    _refuse_existing(
        [folder / "ca.key", folder / "ca.pem"], "every certificate it issued becomes worthless", force=force
    )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    certificate = (
        _builder(subject, subject, key.public_key(), now, now + timedelta(days=days))
        # No authority below this one: whoever needs a second makes a second root and lists both.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(key_cert_sign=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    crl = _empty_crl(Authority(certificate, key), now)
    with _disk_errors(folder):
        _make_folder(folder)
        write_file(folder / "ca.key", _key_pem(key), _KEY_MODE)
        write_file(folder / "ca.pem", certificate.public_bytes(serialization.Encoding.PEM), _PUBLIC_MODE)
        write_file(folder / "ca.crl", crl.public_bytes(serialization.Encoding.PEM), _PUBLIC_MODE)
    return describe(certificate, now)


def load_authority(folder: Path) -> Authority:
    """The authority in `folder`; refuses one whose key is readable by others, is missing, or is another one's."""
    cert_file, key_file = folder / "ca.pem", folder / "ca.key"
    if not cert_file.exists() and not key_file.exists():
        raise PkiError(f"{folder} holds no authority", f"make one: bsfg pki ca --pki {folder}")
    certificate = load_certificates(cert_file)[0]
    key = load_key(key_file)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not _fits(certificate, key):
        raise PkiError(f"{key_file} is not the key of {cert_file}", "restore both from the same backup")
    return Authority(certificate, key)


def issue_zone(folder: Path, zone: str, now: datetime, *, days: int = LEAF_DAYS, force: bool = False) -> Issued:
    """Sign a certificate for `zone` with the authority in `folder`, and write it and its new key below `zones/`."""
    check_zone(zone)
    # A node only ever connects outward, so its certificate is no server's: with that purpose too, a zone could stand in
    # for the broker towards the other zones.
    return _issue(folder, "zones", zone, zone, [], ExtendedKeyUsageOID.CLIENT_AUTH, now, days, force=force)


def issue_broker(
    folder: Path, name: str, hosts: Sequence[str], now: datetime, *, days: int = LEAF_DAYS, force: bool = False
) -> Issued:
    """Sign a broker's certificate for the names and addresses in `hosts`, and write it below `brokers/`."""
    check_zone(name, "broker")
    if not 1 <= len(hosts) <= HOSTS_MAX:
        raise PkiError(
            f"a broker needs 1 to {HOSTS_MAX} host names or addresses, not {len(hosts)}",
            "name each way by which nodes reach it: --host NAME or --host ADDRESS",
        )
    alternatives = [_general_name(host) for host in hosts]
    # The space keeps the name from ever being a zone's, and so from being a user the access list knows.
    common_name = f"broker {name}"
    return _issue(
        folder, "brokers", name, common_name, alternatives, ExtendedKeyUsageOID.SERVER_AUTH, now, days, force=force
    )


def check_zone(name: str, what: str = "zone") -> None:
    """Refuse what may not name a zone: the name becomes a topic level and a user name, with no room for escapes."""
    if not is_zone(name):
        raise PkiError(f"{name[:80]!r} cannot name a {what}", "use 1 to 32 characters of a-z, 0-9 and -")


def check_days(days: int) -> None:
    """Refuse a life that is over before it begins, or longer than any plant's."""
    if not 1 <= days <= DAYS_MAX:
        raise PkiError(f"{days} days is no life of a certificate", f"use 1 to {DAYS_MAX}")


# --- reading ---------------------------------------------------------------------------------------------------------


def load_certificates(path: Path) -> list[x509.Certificate]:
    """All certificates of a PEM file, at least one."""
    data = _read(path)
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise PkiError(
            f"{path} is not a certificate in PEM form", "it must begin with -----BEGIN CERTIFICATE-----"
        ) from error


def load_crl(path: Path) -> x509.CertificateRevocationList:
    """The revocation list in a PEM file."""
    data = _read(path)
    try:
        return x509.load_pem_x509_crl(data)
    except ValueError as error:
        raise PkiError(
            f"{path} is not a revocation list in PEM form", "it must begin with -----BEGIN X509 CRL-----"
        ) from error


def load_key(path: Path) -> _Key:
    """The private key in `path`; refused when others may read it or when it wants a password."""
    check_key_rights(path)
    data = _read(path)
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except TypeError as error:
        raise PkiError(
            f"{path} is protected by a password", f"a node starts without a human: openssl pkey -in {path} -out NEW"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise PkiError(
            f"{path} is not a private key in PEM form", "give the .key file that belongs to the certificate"
        ) from error
    if not isinstance(key, _Key):
        raise PkiError(
            f"{path} holds a kind of key that is not used here", "use EC P-256, Ed25519, or RSA of 2048 bits and more"
        )
    if isinstance(key, rsa.RSAPrivateKey) and key.key_size < RSA_BITS_MIN:
        raise PkiError(f"{path} is an RSA key of {key.key_size} bits", f"use {RSA_BITS_MIN} bits and more, or EC P-256")
    return key


def check_key_rights(path: Path) -> None:
    """Refuse a key that is missing, that others may read, or that the group may change."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise PkiError(f"{path}: {error.strerror}", "correct the path, or the rights of its folder") from error
    if not stat.S_ISREG(mode):
        raise PkiError(f"{path} is not a file", "give the .key file that belongs to the certificate")
    if mode & _KEY_MODE_FORBIDDEN:
        raise PkiError(f"{path} is open to others (mode {stat.S_IMODE(mode):04o})", f"run: chmod 0600 {path}")


def describe(certificate: x509.Certificate, now: datetime) -> CertificateFacts:
    """What `certificate` says, as plain values."""
    common_name = _common_name(certificate)
    usage = _extension(certificate, x509.ExtendedKeyUsage)
    hosts = _extension(certificate, x509.SubjectAlternativeName)
    purposes = {ExtendedKeyUsageOID.CLIENT_AUTH: "client", ExtendedKeyUsageOID.SERVER_AUTH: "server"}
    return CertificateFacts(
        subject=certificate.subject.rfc4514_string(),
        zone=common_name if is_zone(common_name) else "",
        issuer=certificate.issuer.rfc4514_string(),
        serial=f"{certificate.serial_number:x}",
        purposes=tuple(purposes.get(oid, oid.dotted_string) for oid in usage) if usage else (),
        hosts=tuple(str(host.value) for host in hosts) if hosts else (),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        days_left=(certificate.not_valid_after_utc - now).days,
        valid_now=certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc,
        is_ca=_is_ca(certificate),
        fingerprint_sha256=certificate.fingerprint(hashes.SHA256()).hex(":"),
    )


# --- checks ----------------------------------------------------------------------------------------------------------


def check_identity(
    cert_file: Path, key_file: Path, ca_file: Path, zone: str, *, now: datetime | None = None
) -> list[Problem]:
    """Everything wrong with the identity of a node; empty when it can connect as `zone`."""
    problems, certificate = _check_files(cert_file, key_file, ca_file, ExtendedKeyUsageOID.CLIENT_AUTH, now)
    if certificate is not None and (name := _common_name(certificate)) != zone:
        why = f"its common name is {name!r}, and the zone is {zone!r}" if name else "it has no single common name"
        hint = f"give the files of zone {zone}, or correct the zone in the configuration"
        problems.append(Problem(cert_file, why, hint))
    return problems


def check_broker_identity(
    cert_file: Path, key_file: Path, ca_file: Path, *, now: datetime | None = None
) -> list[Problem]:
    """Everything wrong with the identity of a broker; empty when nodes will accept it under the names it carries."""
    problems, certificate = _check_files(cert_file, key_file, ca_file, ExtendedKeyUsageOID.SERVER_AUTH, now)
    if certificate is not None and not _extension(certificate, x509.SubjectAlternativeName):
        why = "the certificate names no host, so no node will accept it"
        problems.append(Problem(cert_file, why, "issue it again: bsfg pki issue --broker NAME --host HOST"))
    return problems


def check_crl(crl_file: Path, ca_file: Path, *, now: datetime | None = None) -> list[Problem]:
    """Everything wrong with a revocation list: the broker would let everybody in, or nobody, and not say which."""
    now = now or datetime.now(UTC)
    try:
        crl = load_crl(crl_file)
        authorities = load_certificates(ca_file)
    except PkiError as error:
        return [Problem(crl_file, error.why, error.hint)]
    problems = []
    if not any(_signed_crl(crl, authority) for authority in authorities):
        why = f"the list was signed by {crl.issuer.rfc4514_string()}, which is not in {ca_file}"
        problems.append(Problem(crl_file, why, "use the ca.crl that lies beside that ca.pem"))
    if crl.next_update_utc is not None and crl.next_update_utc < now:
        why = f"the list ended at {_time(crl.next_update_utc)} (clock here: {_time(now)}): the broker would refuse everybody"
        problems.append(Problem(crl_file, why, "check the clock first (timedatectl); if it is right, make a new list"))
    return problems


def client_context(ca_file: Path, cert_file: Path, key_file: Path) -> ssl.SSLContext:
    """TLS 1.3 with this identity, towards a broker whose host name is checked.  Wrong files raise PkiError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    check_key_rights(key_file)
    try:
        context.load_verify_locations(ca_file)
        # An empty password instead of none: a protected key then fails, where it would ask on the terminal.
        context.load_cert_chain(cert_file, key_file, password="")
    except (ssl.SSLError, OSError) as error:
        raise PkiError(
            f"{cert_file}, {key_file} and {ca_file} make no identity: {error}",
            "bsfg check names what is wrong with them",
        ) from error
    return context


def _check_files(
    cert_file: Path, key_file: Path, ca_file: Path, purpose: x509.ObjectIdentifier, now: datetime | None
) -> tuple[list[Problem], x509.Certificate | None]:
    """What is wrong with an identity whoever it is, and its certificate if that can be read."""
    now = now or datetime.now(UTC)
    problems: list[Problem] = []
    key: _Key | None = None
    chain: list[x509.Certificate] = []
    authorities: list[x509.Certificate] = []
    try:
        key = load_key(key_file)
    except PkiError as error:
        problems.append(Problem(key_file, error.why, error.hint))
    try:
        chain = load_certificates(cert_file)
    except PkiError as error:
        problems.append(Problem(cert_file, error.why, error.hint))
    try:
        authorities = load_certificates(ca_file)
    except PkiError as error:
        problems.append(Problem(ca_file, error.why, error.hint))
    if not chain:
        return problems, None
    certificate = chain[0]
    if key is not None and not _fits(certificate, key):
        why = f"the key does not fit the certificate {cert_file}"
        problems.append(Problem(key_file, why, "give the key that was made with it, or issue both again"))
    problems += check_times(cert_file, certificate, now)
    usage = _extension(certificate, x509.ExtendedKeyUsage)
    # A certificate without the extension serves every purpose (RFC 5280, 4.2.1.12).
    if usage is not None and purpose not in usage and ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE not in usage:
        who = "a client" if purpose == ExtendedKeyUsageOID.CLIENT_AUTH else "a server"
        problems.append(
            Problem(
                cert_file,
                f"the certificate is not for {who} (extended key usage)",
                "issue it again with bsfg pki issue",
            )
        )
    if authorities:
        problems += _check_chain(cert_file, chain, ca_file, authorities, now)
    return problems, certificate


def check_times(path: Path, certificate: x509.Certificate, now: datetime) -> list[Problem]:
    """Expired or not begun; a gateway without a battery starts in 1970, so the clock is named beside the certificate."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        why = f"the certificate begins at {_time(begins)}, and the clock here says {_time(now)}"
        return [Problem(path, why, "set the clock (timedatectl); if it is right, issue the certificate again")]
    if now > ends:
        why = f"the certificate ended at {_time(ends)}, and the clock here says {_time(now)}"
        return [
            Problem(
                path, why, "if the clock is right, issue the certificate again; otherwise set the clock (timedatectl)"
            )
        ]
    return []


def _check_chain(
    cert_file: Path,
    chain: list[x509.Certificate],
    ca_file: Path,
    authorities: list[x509.Certificate],
    now: datetime,
) -> list[Problem]:
    """Walk from the certificate to a root in `ca_file`, over the intermediate certificates that lie in either file."""
    here = chain[0]
    for _ in range(CHAIN_LENGTH_MAX):
        above = [each for each in [*authorities, *chain[1:]] if each.subject == here.issuer]
        issuer = next((each for each in above if _signed(here, each)), None)
        if issuer is None:
            known = ", ".join(sorted({each.subject.rfc4514_string() for each in authorities}))
            why = f"the certificate was signed by {here.issuer.rfc4514_string()}, and {ca_file} holds {known}"
            if above:
                why = f"{ca_file} holds another authority that is also called {here.issuer.rfc4514_string()}"
            return [Problem(cert_file, why, "give the ca.pem of the authority that issued it, or issue it again")]
        if not _is_ca(issuer):
            why = f"the certificate was signed by {issuer.subject.rfc4514_string()}, which is no authority"
            return [Problem(cert_file, why, "issue it with bsfg pki issue")]
        if problems := check_times(ca_file, issuer, now):
            return problems
        if issuer.subject == issuer.issuer and issuer in authorities:
            return []
        here = issuer
    why = f"no root within {CHAIN_LENGTH_MAX} certificates"
    return [Problem(ca_file, why, "give a file that holds the root and what lies between")]


# --- files -----------------------------------------------------------------------------------------------------------


def write_file(path: Path, data: bytes, mode: int, group: int = -1) -> None:
    """Put `data` at `path`, whole or not at all, with `mode` and `group` from its first moment, durably."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, _KEY_MODE), "wb") as file:
            # First whose, then which rights: the other way round the old group could read for a moment.
            os.fchown(file.fileno(), -1, group)
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Name the folder and the way out when the disk refuses."""
    try:
        yield
    except OSError as error:
        raise PkiError(
            f"cannot write below {folder}: {error.strerror or error}", "check its rights and the free space"
        ) from error


def _make_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _refuse_existing(files: Sequence[Path], price: str, *, force: bool) -> None:
    found = [str(file) for file in files if file.exists() or file.is_symlink()]
    if found and not force:
        raise PkiError(f"{' and '.join(found)} exist already", f"--force replaces them, and {price}")


def _read(path: Path) -> bytes:
    try:
        if not path.is_file() and path.exists():
            raise PkiError(f"{path} is not a file", "give a PEM file")
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise PkiError(
            f"{path}: {error.strerror}", "correct the path, or let the user that runs this read it"
        ) from error
    if len(data) > FILE_BYTES_MAX:
        raise PkiError(f"{path} is larger than {FILE_BYTES_MAX} bytes", "give a PEM file")
    return data


# --- certificates ----------------------------------------------------------------------------------------------------


def _issue(
    folder: Path,
    subfolder: str,
    name: str,
    common_name: str,
    hosts: Sequence[x509.GeneralName],
    purpose: x509.ObjectIdentifier,
    now: datetime,
    days: int,
    *,
    force: bool,
) -> Issued:
    check_days(days)
    authority = load_authority(folder)
    ends = now + timedelta(days=days)
    if ends > authority.certificate.not_valid_after_utc:
        left = (authority.certificate.not_valid_after_utc - now).days
        raise PkiError(
            f"the authority itself ends in {left} days",
            f"use --days {left}, or make a new authority"
            if left >= 1
            else f"make a new one: bsfg pki ca --pki {folder} --force",
        )
    cert_file, key_file = folder / subfolder / f"{name}.pem", folder / subfolder / f"{name}.key"
    _refuse_existing([cert_file, key_file], "whoever uses them needs the new ones", force=force)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(_name(common_name), authority.certificate.subject, key.public_key(), now, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(_authority_identifier(authority.certificate), critical=False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    certificate = builder.sign(authority.key, hashes.SHA256())
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    with _disk_errors(folder):
        _make_folder(folder / "issued")
        _make_folder(folder / subfolder)
        # The record comes first: a certificate that exists must be one that can be revoked.
        write_file(folder / "issued" / f"{certificate.serial_number:x}.pem", pem, _PUBLIC_MODE)
        write_file(key_file, _key_pem(key), _KEY_MODE)
        write_file(cert_file, pem, _PUBLIC_MODE)
    return Issued(cert_file, key_file, folder / "ca.pem", describe(certificate, now))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _empty_crl(authority: Authority, now: datetime) -> x509.CertificateRevocationList:
    """A list that revokes nobody and lasts as long as its authority.

    A broker refuses everybody once its list is past its end, and a site without a route to its authority cannot fetch a
    new one.  The list is a file that the operator puts there, so its end protects nothing.
    """
    return (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(now - BACKDATED)
        .next_update(authority.certificate.not_valid_after_utc)
        .add_extension(x509.CRLNumber(1), critical=False)
        .add_extension(_authority_identifier(authority.certificate), critical=False)
        .sign(authority.key, hashes.SHA256())
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _authority_identifier(authority: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _DNS_NAME.fullmatch(host.lower()):
        raise PkiError(
            f"{host[:80]!r} is neither a host name nor an address",
            "give one name or address, without port, wildcard or path (names beyond ASCII in their xn-- form)",
        )
    return x509.DNSName(host.lower())


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _fits(certificate: x509.Certificate, key: _Key) -> bool:
    """Whether both hold the same public key."""
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return certificate.public_key().public_bytes(*form) == key.public_key().public_bytes(*form)


def _signed(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, UnsupportedAlgorithm, TypeError, ValueError):
        return False  # another key, or a kind of key that we cannot check and therefore do not believe
    return True


def _signed_crl(crl: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    key = authority.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey):
        return False
    return crl.issuer == authority.subject and crl.is_signature_valid(key)


def _common_name(certificate: x509.Certificate) -> str:
    """The one common name; none or several make no identity, because broker and node might read different ones."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def _is_ca(certificate: x509.Certificate) -> bool:
    constraints = _extension(certificate, x509.BasicConstraints)
    return constraints is not None and constraints.ca


def _extension(certificate: x509.Certificate, kind: type[_T]) -> _T | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return None


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

"""Reads the files that [signing] and [[origin]] name: our key and certificate, authorities, and compromised keys.

    load_key        our key, from a PEM file or a systemd credential; refused if others may read it
    load_identity   our key and the certificates that name it, checked against each other, our zone and our name
    load_trust      the trust settings for `certificates.signer_of`, from settings and files

The list of compromised keys is a TOML file, because an operator may have to write it by hand on a machine without this
program:

    [[compromised]]
    key_id = "0011223344556677"
    since = 2026-11-22T10:00:00Z
    note = "gateway stolen"
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from agent.settings.signing import OriginSettings, SigningSettings
from agent.signing.certificates import CertificateRefusal, SignerTrust, describe_signer, refuse_anchor
from agent.signing.keys import SigningError, SigningKey, ZoneSigner
from agent.signing.records import KEY_ID_BYTES
from agent.signing.x509_parts import read_parts

FILE_BYTES_MAX = 256 * 1024
"""A key has 120 bytes of PEM, a thousand compromised keys with a note 150,000."""

_KEY_MODE_FORBIDDEN = 0o037
"""Any permission for others, or more than reading for the group."""

COMPROMISES_MAX = 1000
"""Entries of the list: a site has dozens of signers, and compromises few."""


@dataclass(frozen=True, slots=True)
class Compromise:
    """A key whose signatures prove nothing from `since` on."""

    key_id: bytes
    since: datetime
    note: str = ""


def load_key(path: Path) -> SigningKey:
    """The key in a PEM file, or in a systemd credential, which is also a file. Raises SigningError if it is missing,
    accessible to others, protected by a password, or not Ed25519."""
    with _opened(path) as file:
        # Check the open file, so that it cannot be replaced between check and reading.
        mode = os.fstat(file.fileno()).st_mode
        if mode & _KEY_MODE_FORBIDDEN:
            why = f"{path} is accessible to others (mode {stat.S_IMODE(mode):04o})"
            raise SigningError(why, f"run: chmod 0600 {path}")
        return SigningKey.from_pem(_bounded(path, file), str(path))


def load_identity(settings: SigningSettings, zone: str, node: str = "") -> ZoneSigner | None:
    """Our key and its certificates, for our zone and, if it differs, for the name of this node; None if nothing is to
    be signed. Raises SigningError if one cannot be used, is missing, or names another key. Dates are not checked: an
    expired certificate raises an alert, and recording continues."""
    if settings.key_file is None or settings.certificate_file is None:
        return None
    key = load_key(settings.key_file)
    file, found = settings.certificate_file, dict[str, bytes]()
    for certificate in _certificates(file):
        der = certificate.public_bytes(serialization.Encoding.DER)
        signer = describe_signer(der)
        if isinstance(signer, CertificateRefusal):
            raise SigningError(f"{file} cannot be used to sign facts: {signer}", "see bsfg pki signer show")
        if signer.public != key.public and signer.zone in {zone, node}:
            hint = "use the certificate that was issued for this key, or request one: bsfg pki signer request"
            raise SigningError(f"{file} names key {signer.key_id.hex()}, the key is {key.key_id.hex()}", hint)
        found.setdefault(signer.zone, der)
    for name in (zone, node or zone):
        if name not in found:
            hint = f"request one for {name}: bsfg pki signer request"
            if name != zone:
                hint = f"bsfg pki signer key {name} --key-of {zone}, {hint}; append it to this file"
            raise SigningError(f"{file} is for zone {' and '.join(found)}, not {name}", hint)
    return ZoneSigner(key, found[zone], found[node] if node and node != zone else b"")


def load_trust(settings: SigningSettings, origins: Iterable[OriginSettings]) -> SignerTrust:
    """The signers that the settings trust. Raises SigningError if a named file cannot be used."""
    anchors: Sequence[x509.Certificate] = ()
    if settings.facts_ca_file is not None:
        anchors = _certificates(settings.facts_ca_file)
        for anchor in anchors:
            if refusal := refuse_anchor(anchor):
                hint = "name the certificate made by bsfg pki signer ca, not the authority for TLS"
                raise SigningError(f"{settings.facts_ca_file} is not a facts authority: {refusal}", hint)
    return SignerTrust(
        tuple(anchors),
        {origin.zone: origin.pins for origin in origins if origin.pins},
        {key.key_id: round(key.since.timestamp() * 1000) for key in read_compromises(settings.compromised_file)},
    )


def read_compromises(file: Path) -> list[Compromise]:
    """The compromised keys in a file, in its order; the earliest time of a key counts. Empty if there is no file.
    Raises SigningError for an invalid entry or file, so that no entry is silently left out."""
    hint = f"correct {file}; an entry is written by bsfg pki signer compromise"
    try:
        rows = tomllib.loads(_read(file).decode("utf-8-sig")).get("compromised", [])
    except SigningError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return []
        raise
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SigningError(f"{file} is not TOML: {error}", hint) from error
    if not isinstance(rows, list) or len(rows) > COMPROMISES_MAX:
        raise SigningError(f"{file}: [[compromised]] must be at most {COMPROMISES_MAX} tables", hint)
    found: dict[bytes, Compromise] = {}
    for number, row in enumerate(rows, 1):
        try:
            key_id, since, note = bytes.fromhex(row["key_id"]), row["since"], row.get("note", "")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SigningError(f"{file}: entry {number} needs key_id and since", hint) from error
        if len(key_id) != KEY_ID_BYTES:
            raise SigningError(f"{file}: entry {number}: a key_id has {2 * KEY_ID_BYTES} hex digits", hint)
        if not isinstance(since, datetime) or since.tzinfo is None:
            example = "2026-01-31T10:00:00Z"
            raise SigningError(f"{file}: entry {number}: since must be a time with its time zone, as {example}", hint)
        compromise = Compromise(key_id, since, str(note))
        earlier = found.get(compromise.key_id)
        found[compromise.key_id] = compromise if earlier is None or compromise.since < earlier.since else earlier
    return list(found.values())


def compromises_text(compromises: Iterable[Compromise]) -> str:
    """The text of a list of compromised keys."""
    return "## Signatures of these keys prove nothing from `since` on (docs/operate/certificates.md).\n" + "".join(
        f'\n[[compromised]]\nkey_id = "{entry.key_id.hex()}"\nsince = {entry.since.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}\n'
        f"note = {json.dumps(entry.note, ensure_ascii=False)}\n"
        for entry in compromises
    )


def _certificates(file: Path) -> list[x509.Certificate]:
    try:
        found = x509.load_pem_x509_certificates(_read(file))
        for certificate in found:
            read_parts(certificate)
    except (ValueError, x509.InvalidVersion) as error:
        raise SigningError(
            f"{file} is not a certificate in PEM form", "it must begin with -----BEGIN CERTIFICATE-----"
        ) from error
    return found


def _read(path: Path) -> bytes:
    with _opened(path) as file:
        return _bounded(path, file)


def _bounded(path: Path, file: BinaryIO) -> bytes:
    data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise SigningError(f"{path} is larger than {FILE_BYTES_MAX} bytes", "correct the path")
    return data


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise SigningError(f"{path}: {error.strerror}", "correct the path, or the rights of its folder") from error

"""The folder of certificates that an operator trusts: trusted/, issuers/, crl/, and rejected/ for unknown ones.

Files are DER or PEM with any name. Unreadable files are reported by `unreadable` and otherwise ignored. The unknown
certificate of a server is saved in rejected/. An operator moves it to trusted/, with `bsfg opcua trust` or by hand, and
the next attempt to connect finds it there. Nothing is kept in memory between two attempts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from agent.errors import BsfgError
from agent.file_replace import write_file
from agent.ingest.opcua.security.certificate_facts import CertificateFacts, facts_of, parse_certificate

FILES_MAX = 1_000  # in one folder; a plant has some hundred servers
FILE_BYTES_MAX = 16 << 20  # a revocation list of a large authority has some hundred thousand entries
REJECTED_MAX = 50  # anybody who answers at the address of a server can add one; the oldest is deleted
PREFIX_MIN = 8  # hexadecimal digits of a thumbprint that identify a certificate

_Parsed = TypeVar("_Parsed")


class TrustError(BsfgError):
    """A trust folder or a file for it cannot be used; the text ends with what to do."""


@dataclass(frozen=True, slots=True)
class TrustedFile:
    """A certificate in one of the folders."""

    file: Path
    facts: CertificateFacts


class TrustFolder:
    """One trust folder. Its subfolders are created when something is saved in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def certificates(self, name: str) -> list[TrustedFile]:
        """The certificates in trusted/, issuers/ or rejected/, by file name."""
        return [TrustedFile(file, facts_of(data)) for file, data in self._read(name, facts_of)]

    def issuers(self) -> list[x509.Certificate]:
        """The certificates in issuers/."""
        return [parse_certificate(data) for _, data in self._read("issuers", parse_certificate)]

    def revocation_lists(self) -> list[x509.CertificateRevocationList]:
        """The lists in crl/."""
        return [parse_revocation_list(data) for _, data in self._read("crl", parse_revocation_list)]

    def unreadable(self) -> list[str]:
        """The files that are not a certificate, or in crl/ not a revocation list."""
        kinds: list[tuple[str, Callable[[bytes], object]]] = [
            ("trusted", facts_of),
            ("issuers", parse_certificate),
            ("crl", parse_revocation_list),
        ]
        found = []
        for name, parse in kinds:
            good = {file for file, _ in self._read(name, parse)}
            found += [f"{name}/{file.name}" for file in self._files(name) if file not in good]
        return found

    def reject(self, facts: CertificateFacts) -> Path:
        """Save a certificate that is not accepted in rejected/. Returns its file. Raises TrustError."""
        folder = self.folder / "rejected"
        file = folder / file_name(facts)
        if file.exists():
            return file
        _write(file, facts.der)
        old = sorted(self._files("rejected"), key=_age_key)
        for oldest in old[:-REJECTED_MAX]:
            oldest.unlink(missing_ok=True)
        return file

    def trust(self, thumbprint: str) -> TrustedFile:
        """Move a certificate from rejected/ to trusted/. Raises TrustError."""
        return self._move(thumbprint, "rejected", "trusted")

    def distrust(self, thumbprint: str) -> TrustedFile:
        """Move a certificate from trusted/ to rejected/. Raises TrustError."""
        return self._move(thumbprint, "trusted", "rejected")

    def add(self, name: str, data: bytes) -> Path:
        """Save a certificate in trusted/ or issuers/, or a revocation list in crl/. Raises TrustError."""
        try:
            if name == "crl":
                found = parse_revocation_list(data)
                issuer = found.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)
                stem = _plain(str(issuer[0].value) if issuer else "list")
                file, der = self.folder / name / f"{stem}.crl", found.public_bytes(Encoding.DER)
            else:
                facts = facts_of(data)
                file, der = self.folder / name / file_name(facts), facts.der
        except ValueError as error:
            what = "revocation list" if name == "crl" else "certificate"
            raise TrustError(f"this is no {what} (PEM or DER)") from error
        _write(file, der)
        return file

    def _move(self, thumbprint: str, source: str, target: str) -> TrustedFile:
        wanted = re.sub(r"[\s:]", "", thumbprint).lower()
        if len(wanted) < PREFIX_MIN or not re.fullmatch("[0-9a-f]+", wanted):
            raise TrustError(f"{thumbprint!r} is no thumbprint; write at least {PREFIX_MIN} hexadecimal digits of it")
        found = [
            certificate
            for certificate in self.certificates(source)
            if certificate.facts.sha1.lower().startswith(wanted) or certificate.facts.sha256.startswith(wanted)
        ]
        if len(found) != 1:
            what = "no certificate" if not found else f"{len(found)} certificates"
            raise TrustError(
                f"{self.folder / source} holds {what} with thumbprint {thumbprint}; `bsfg opcua trust` lists them"
            )
        (chosen,) = found
        new = self.folder / target / chosen.file.name
        _write(new, chosen.facts.der)
        chosen.file.unlink()
        return TrustedFile(new, chosen.facts)

    def _read(self, name: str, parse: Callable[[bytes], _Parsed]) -> Iterator[tuple[Path, bytes]]:
        for file in self._files(name):
            try:
                data = file.read_bytes() if file.stat().st_size <= FILE_BYTES_MAX else b""
                parse(data)
            except (OSError, ValueError):
                continue  # `unreadable` reports it
            yield file, data

    def _files(self, name: str) -> list[Path]:
        folder = self.folder / name
        try:
            files = [file for file in sorted(folder.iterdir()) if file.is_file()]
            return [file for file in files if not file.name.startswith(".")][:FILES_MAX]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise TrustError(f"{folder} cannot be read: {error.strerror}; let this user read it") from error


def parse_revocation_list(data: bytes) -> x509.CertificateRevocationList:
    """A revocation list as PEM or DER. Raises ValueError."""
    return x509.load_pem_x509_crl(data) if b"-----BEGIN" in data else x509.load_der_x509_crl(data)


def file_name(facts: CertificateFacts) -> str:
    """The file name that servers use: the common name and the SHA-1 thumbprint, which makes it unique."""
    match = re.search(r"(?:^|,)CN=((?:\\.|[^,\\])*)", facts.subject)
    return f"{_plain(match[1] if match else 'certificate')} [{facts.sha1}].der"


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._@-]+", "_", name)[:60].lstrip(".") or "certificate"


def _age_key(file: Path) -> int:
    """Sorts by age. Another source may have removed the file."""
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _write(file: Path, data: bytes) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, data, 0o644)
    except OSError as error:
        raise TrustError(f"{file} cannot be written: {error.strerror}; let this user write there") from error

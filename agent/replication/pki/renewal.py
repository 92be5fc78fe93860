"""Replaces an identity: a new certificate takes the place of the old one in two renames.

    zones/ZONE.pem .key             in force
    zones/next/ZONE.pem .key        new; exists only during a renewal, or after one that was interrupted
    zones/previous/ZONE.pem .key    in force before; importing them restores them

The old certificate stays valid until it expires or is revoked, so its node may change over later. A power failure
between the two renames leaves a key that does not match its certificate; the next renewal completes the interrupted one
first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from agent.file_replace import sync_folder, write_file
from agent.replication.pki.authority import Issued, check_zone
from agent.replication.pki.certificates import describe, key_matches
from agent.replication.pki.checks import check_broker_identity, check_identity
from agent.replication.pki.crl import check_crl, check_not_revoked
from agent.replication.pki.files import (
    PUBLIC_MODE,
    disk_errors,
    key_rights,
    load_certificates,
    load_key,
    make_folder,
    read_file,
    refuse_existing,
)
from agent.replication.pki.problem import IdentityProblem, PkiError


@dataclass(frozen=True, slots=True)
class IdentityFiles:
    """The files of one identity in the authority's folder."""

    folder: Path
    name: str

    @property
    def cert_file(self) -> Path:
        return self.folder / f"{self.name}.pem"

    @property
    def key_file(self) -> Path:
        return self.folder / f"{self.name}.key"

    def in_subfolder(self, subfolder: str) -> IdentityFiles:
        """The same identity in a subfolder."""
        return IdentityFiles(self.folder / subfolder, self.name)

    def issued(self, now: datetime) -> Issued:
        """The identity in force. Raises PkiError."""
        details = describe(load_certificates(self.cert_file)[0], now)
        return Issued(self.cert_file, self.key_file, self.folder.parent / "ca.pem", details)

    def replace(self, certificate: bytes, key: bytes | None) -> None:
        """Replace the identity in force and keep it as the previous one. With `key` None the key stays."""
        following, previous = self.in_subfolder("next"), self.in_subfolder("previous")
        make_folder(following.folder)
        make_folder(previous.folder)
        if key is not None:
            write_file(following.key_file, key, *key_rights(self.folder))
        write_file(following.cert_file, certificate, PUBLIC_MODE)
        if self.cert_file.exists():
            if self.key_file.exists():
                write_file(previous.key_file, read_file(self.key_file), *key_rights(previous.folder))
            write_file(previous.cert_file, read_file(self.cert_file), PUBLIC_MODE)
        # The certificate last: while next/ contains one, the renewal is not complete.
        if key is not None:
            self._rename(following.key_file, self.key_file)
        self._rename(following.cert_file, self.cert_file)

    def finish_renewal(self) -> None:
        """Complete an interrupted renewal, or discard it if nothing was replaced yet."""
        following = self.in_subfolder("next")
        if not following.cert_file.exists():
            following.key_file.unlink(missing_ok=True)
            return
        key_is_in_place = not following.key_file.exists() and self.key_file.exists()
        if key_is_in_place and key_matches(load_certificates(following.cert_file)[0], load_key(self.key_file)):
            self._rename(following.cert_file, self.cert_file)
            return
        following.cert_file.unlink()
        following.key_file.unlink(missing_ok=True)

    @staticmethod
    def _rename(source: Path, target: Path) -> None:
        source.replace(target)
        for folder in {source.parent, target.parent}:
            sync_folder(folder)


def identity_files(folder: Path, name: str, *, broker: bool) -> IdentityFiles:
    """The files of a zone, or of a broker."""
    check_zone(name, "broker" if broker else "zone")
    return IdentityFiles(folder / ("brokers" if broker else "zones"), name)


@dataclass(frozen=True, slots=True)
class GivenFiles:
    """What an authority hands over: a certificate, its roots, and their lists. Without a key it is that of the last
    request, or else the present one."""

    cert_file: Path
    ca_file: Path
    key_file: Path | None = None
    crl_file: Path | None = None


def import_identity(
    folder: Path, name: str, given: GivenFiles, now: datetime, *, broker: bool = False, force: bool = False
) -> Issued:
    """Import an identity made by an authority into a node's or broker's folder, after checking it. Raises PkiError.

    `bsfg broker config` and `bsfg pki show` then use the folder like an authority's; it cannot sign certificates.
    """
    cert_file, ca_file, crl_file = given.cert_file, given.ca_file, given.crl_file
    files = identity_files(folder, name, broker=broker)
    requested = files.in_subfolder("requested")
    key_file = given.key_file or next(filter(Path.exists, (requested.key_file, files.key_file)), None)
    if key_file is None:
        raise PkiError(f"there is no request of {name} in {folder}", "make one (bsfg pki request), or give --key")
    problems = _problems(cert_file, key_file, ca_file, name, now, broker=broker)
    if crl_file is not None:
        problems += check_crl(crl_file, ca_file, now=now) + check_not_revoked(cert_file, crl_file)
    _refuse(problems, "this identity cannot be used")
    own_ca = folder / "ca.pem"
    authorities = read_file(ca_file)
    is_other = own_ca.exists() and read_file(own_ca) != authorities
    if (folder / "ca.key").exists() and is_other:
        raise PkiError(f"{folder} belongs to an authority of its own", "import into another folder: --pki FOLDER")
    if is_other:
        refuse_existing([own_ca], "identities of the former authority are then unknown", force=force)
    refuse_existing([files.cert_file, files.key_file], "their old versions are kept in previous/", force=force)
    with disk_errors(folder):
        make_folder(folder)
        write_file(own_ca, authorities, PUBLIC_MODE)
        if crl_file is not None:
            write_file(folder / "ca.crl", read_file(crl_file), PUBLIC_MODE)
        make_folder(files.folder)
        files.finish_renewal()
        files.replace(read_file(cert_file), read_file(key_file))
        if key_file == requested.key_file:
            for done in (requested.key_file, requested.folder / f"{name}.csr"):
                done.unlink(missing_ok=True)
    return files.issued(now)


def _problems(
    cert_file: Path, key_file: Path, ca_file: Path, name: str, now: datetime, *, broker: bool
) -> list[IdentityProblem]:
    if broker:
        return check_broker_identity(cert_file, key_file, ca_file, now=now)
    return check_identity(cert_file, key_file, ca_file, name, now=now)


def _refuse(problems: Iterable[IdentityProblem], why: str) -> None:
    if listed := "".join(f"\n  {problem}" for problem in problems):
        raise PkiError(f"{why}:{listed}", "nothing was written")

"""An identity's next life: a new certificate beside the old, put in its place in two renames, and the way back.

    zones/ZONE.pem .key             in force
    zones/next/ZONE.pem .key        written, not yet in place: only there while a renewal runs, or after one that was cut short
    zones/previous/ZONE.pem .key    what was in force before, for `roll_back`

The old certificate stays valid until it ends or is revoked, so the holder may change over when it suits him.  A renewal that a
power cut stopped between its two renames leaves a key that does not fit; the next one finishes it before it begins.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from agent.replication.pki.authority import LEAF_DAYS, Issued, check_zone, load_authority, record, sign
from agent.replication.pki.certificates import describe, extension_of, fits
from agent.replication.pki.checks import check_broker_identity, check_identity
from agent.replication.pki.crl import check_crl, check_not_revoked
from agent.replication.pki.files import (
    KEY_MODE,
    PUBLIC_MODE,
    disk_errors,
    load_certificates,
    load_key,
    make_folder,
    pem_of,
    read_file,
    refuse_existing,
    write_file,
)
from agent.replication.pki.problem import PkiError, Problem
from agent.replication.pki.signing import common_name_of_broker, key_pem


@dataclass(frozen=True, slots=True)
class Place:
    """Where one identity lies."""

    folder: Path
    name: str

    @property
    def cert_file(self) -> Path:
        return self.folder / f"{self.name}.pem"

    @property
    def key_file(self) -> Path:
        return self.folder / f"{self.name}.key"

    def below(self, subfolder: str) -> Place:
        """The same name in a folder beside."""
        return Place(self.folder / subfolder, self.name)

    def put(self, certificate: bytes, key: bytes | None) -> None:
        """Put these in place of what is there, which is kept as the previous; without a key the key stays."""
        following, previous = self.below("next"), self.below("previous")
        make_folder(following.folder)
        make_folder(previous.folder)
        if key is not None:
            write_file(following.key_file, key, KEY_MODE)
        write_file(following.cert_file, certificate, PUBLIC_MODE)
        if self.cert_file.exists():
            if self.key_file.exists():
                write_file(previous.key_file, read_file(self.key_file), KEY_MODE)
            write_file(previous.cert_file, read_file(self.cert_file), PUBLIC_MODE)
        # The certificate last: as long as one lies in next/, the renewal is not over.
        if key is not None:
            self._rename(following.key_file, self.key_file)
        self._rename(following.cert_file, self.cert_file)

    def finish(self) -> None:
        """Finish a renewal that was cut short, or forget it if nothing had been put in place yet."""
        following = self.below("next")
        if not following.cert_file.exists():
            following.key_file.unlink(missing_ok=True)
            return
        key_is_in_place = not following.key_file.exists() and self.key_file.exists()
        if key_is_in_place and fits(load_certificates(following.cert_file)[0], load_key(self.key_file)):
            self._rename(following.cert_file, self.cert_file)
            return
        following.cert_file.unlink()
        following.key_file.unlink(missing_ok=True)

    @staticmethod
    def _rename(source: Path, target: Path) -> None:
        source.replace(target)
        for folder in {source.parent, target.parent}:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def place_of(folder: Path, name: str, *, broker: bool) -> Place:
    """Where the folder keeps a zone, or a broker."""
    check_zone(name, "broker" if broker else "zone")
    return Place(folder / ("brokers" if broker else "zones"), name)


def renew(
    folder: Path, name: str, now: datetime, *, broker: bool = False, same_key: bool = False, days: int = LEAF_DAYS
) -> Issued:
    """Sign a new certificate for whoever `name` is, with a new key or for the one it has, and put it in place."""
    place = place_of(folder, name, broker=broker)
    authority = load_authority(folder)
    with disk_errors(folder):
        place.finish()
    if not place.cert_file.exists():
        issue = f"bsfg pki issue {'--broker ' if broker else ''}{name}"
        raise PkiError(f"there is no {place.cert_file} to renew", f"issue the first: {issue}")
    old = load_certificates(place.cert_file)[0]
    alternatives = extension_of(old, x509.SubjectAlternativeName) if broker else None
    if broker and alternatives is None:
        raise PkiError(f"{place.cert_file} names no host", f"bsfg pki issue --broker {name} --host HOST --force")
    key = None if same_key else ec.generate_private_key(ec.SECP256R1())
    certificate = sign(
        authority,
        folder,
        common_name_of_broker(name) if broker else name,
        list(alternatives or []),
        ExtendedKeyUsageOID.SERVER_AUTH if broker else ExtendedKeyUsageOID.CLIENT_AUTH,
        old.public_key() if key is None else key.public_key(),
        now,
        days,
    )
    with disk_errors(folder):
        record(folder, certificate)
        place.put(pem_of(certificate), None if key is None else key_pem(key))
    return Issued(place.cert_file, place.key_file, folder / "ca.pem", describe(certificate, now))


def roll_back(folder: Path, name: str, now: datetime, *, broker: bool = False) -> Issued:
    """Put the previous identity in force again, if it is still good; what is in force becomes the previous."""
    place = place_of(folder, name, broker=broker)
    with disk_errors(folder):
        place.finish()
    previous = place.below("previous")
    if not previous.cert_file.exists():
        raise PkiError(f"there is no identity of {name} from before", "only a renewal or an import leaves one")
    problems = _problems(previous.cert_file, previous.key_file, folder / "ca.pem", name, now, broker=broker)
    problems += check_not_revoked(previous.cert_file, folder / "ca.crl")
    _refuse(problems, "the identity from before is not good any more")
    with disk_errors(folder):
        place.put(read_file(previous.cert_file), read_file(previous.key_file))
    return _in_place(place, folder, now)


def import_identity(
    folder: Path,
    name: str,
    cert_file: Path,
    key_file: Path,
    ca_file: Path,
    now: datetime,
    *,
    crl_file: Path | None = None,
    broker: bool = False,
    force: bool = False,
) -> Issued:
    """Take an identity that a site's own PKI made, checked as a whole, into a folder with the usual places and rights.

    The folder then serves `bsfg broker config` and `bsfg pki show` like one of our own; it can sign nothing.
    """
    place = place_of(folder, name, broker=broker)
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
        refuse_existing([own_ca], "identities of the authority before are then unknown", force=force)
    refuse_existing([place.cert_file, place.key_file], "keeps them below previous/", force=force)
    with disk_errors(folder):
        make_folder(folder)
        write_file(own_ca, authorities, PUBLIC_MODE)
        if crl_file is not None:
            write_file(folder / "ca.crl", read_file(crl_file), PUBLIC_MODE)
        make_folder(place.folder)
        place.finish()
        place.put(read_file(cert_file), read_file(key_file))
    return _in_place(place, folder, now)


def _in_place(place: Place, folder: Path, now: datetime) -> Issued:
    facts = describe(load_certificates(place.cert_file)[0], now)
    return Issued(place.cert_file, place.key_file, folder / "ca.pem", facts)


def _problems(
    cert_file: Path, key_file: Path, ca_file: Path, name: str, now: datetime, *, broker: bool
) -> list[Problem]:
    if broker:
        return check_broker_identity(cert_file, key_file, ca_file, now=now)
    return check_identity(cert_file, key_file, ca_file, name, now=now)


def _refuse(problems: Iterable[Problem], why: str) -> None:
    if listed := "".join(f"\n  {problem}" for problem in problems):
        raise PkiError(f"{why}:{listed}", "nothing was written")

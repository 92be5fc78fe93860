"""Checks the security files of sources without connecting, and for how long our certificates are valid.

For `bsfg check` and for the health of a node. Loads no protocol library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeGuard

from agent.ingest.errors import SourceRefused
from agent.ingest.opcua.security.certificate import own_certificate, read_certificate, read_key_of, read_password
from agent.ingest.opcua.security.certificate_facts import CertificateFacts
from agent.ingest.opcua.security.trust_folder import TrustError, TrustFolder
from agent.settings.sources import OpcuaSourceSettings, SourceSettings

WARN_DAYS = 30  # before our certificate expires, because every server has to trust the new one
RENEW = "`bsfg opcua certificate --renew` makes the next one"


@dataclass(frozen=True, slots=True)
class FileFinding:
    """A finding about the files of a source. `is_problem`: the source cannot connect."""

    text: str
    is_problem: bool


def check_source_files(sources: Iterable[SourceSettings], now: datetime) -> list[FileFinding]:
    """The present and coming problems of the certificates, keys and trust folders of these sources, each once."""
    found = [finding for source in sources if _is_secured(source) for finding in _findings_of(source, now)]
    return list(dict.fromkeys(found))


def first_certificate_to_end(source: SourceSettings, now: datetime) -> tuple[float, Path] | None:
    """Days until the first of our certificates that this source uses expires, and its file. None if it uses none, or
    one that cannot be read; the connection reports that."""
    if not _is_secured(source):
        return None
    files = [file for file in (source.certificate_file, source.user_certificate_file) if file is not None]
    try:
        return min(((read_certificate(file).days_left(now), file) for file in files if file.exists()), default=None)
    except (SourceRefused, OSError):
        return None


def _is_secured(source: SourceSettings) -> TypeGuard[OpcuaSourceSettings]:
    return isinstance(source, OpcuaSourceSettings) and (source.security_policy != "None" or bool(source.user_name))


def _findings_of(source: OpcuaSourceSettings, now: datetime) -> list[FileFinding]:
    """As `_findings`. A folder that this user may not enter is a finding too."""
    try:
        return list(_findings(source, now))
    except OSError as error:
        hint = "let the node's user enter its folder, and read it"
        return [FileFinding(f"{error.filename}: {error.strerror}; {hint}", is_problem=True)]


def _findings(source: OpcuaSourceSettings, now: datetime) -> Iterator[FileFinding]:
    certificate, key = source.certificate_file, source.private_key_file
    if certificate is None or key is None:  # no security policy, but perhaps a password
        pass
    elif certificate.exists() != key.exists():
        found, missing = (certificate, key) if certificate.exists() else (key, certificate)
        yield FileFinding(f"{missing}: is missing, but {found} exists; restore it, or remove that", is_problem=True)
    elif certificate.exists():
        yield from _pair(lambda: own_certificate(source), certificate, key, now)
    user, user_key = source.user_certificate_file, source.user_private_key_file
    if user is not None and user_key is not None:
        yield from _pair(lambda: read_certificate(user), user, user_key, now)
    if source.password_file is not None:
        yield from _refusal(read_password, source.password_file)
    if source.server_certificate_file is not None:
        yield from _refusal(read_certificate, source.server_certificate_file)
    if source.trust_folder is not None:
        try:
            for name in TrustFolder(source.trust_folder).unreadable():
                text = f"{source.trust_folder / name}: holds no certificate or revocation list, and is passed over"
                yield FileFinding(text, is_problem=False)
        except TrustError as error:
            yield FileFinding(str(error), is_problem=True)


def _pair(read: Callable[[], CertificateFacts], file: Path, key: Path, now: datetime) -> Iterator[FileFinding]:
    try:
        facts = read()
        read_key_of(facts, key)
    except SourceRefused as error:
        yield FileFinding(str(error), is_problem=True)
        return
    days = facts.days_left(now)
    if now < facts.not_before:
        text = f"{file}: is valid from {facts.validity}, and this machine's clock says {now:%Y-%m-%d %H:%M} UTC"
        yield FileFinding(f"{text}; set the clock (timedatectl)", is_problem=True)
    elif days < 0:
        yield FileFinding(f"{file}: ended {facts.not_after:%Y-%m-%d %H:%M} UTC; {RENEW}", is_problem=True)
    elif days < WARN_DAYS:
        yield FileFinding(f"{file}: ends in {days:.0f} days ({facts.not_after:%Y-%m-%d}); {RENEW}", is_problem=False)


def _refusal(read: Callable[[Path], object], file: Path) -> Iterator[FileFinding]:
    try:
        read(file)
    except SourceRefused as error:
        yield FileFinding(str(error), is_problem=True)

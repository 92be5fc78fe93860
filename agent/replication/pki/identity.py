"""The identity of a node at one broker: three PEM files that may be replaced while the node runs.

The files are checked when a connection is made, when the file system reports a change, and periodically. They are
checked together (key, certificate, authority, zone, purpose, dates), and a valid identity is kept in memory, so that
invalid or partly copied files change nothing. `rotation` decides which identity is used; `link` tries a new one on a
second connection and switches over when the broker has accepted it (docs/decisions/0035).

The digest of the files is compared before and after loading, so that a file replaced in between is noticed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from agent.file_watch import PATIENT, WatchTimes, watch_files
from agent.replication.pki.checks import check_identity, check_times, client_context
from agent.replication.pki.files import load_certificates, read_file
from agent.replication.pki.problem import IdentityProblem, PkiError
from agent.replication.pki.rotation import FileChange, Rotation

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A valid identity as it was loaded from its files."""

    context: ssl.SSLContext
    certificate: x509.Certificate


class Identity:
    """The identity of `zone` at the broker `name`."""

    def __init__(self, name: str, zone: str, ca_file: Path, cert_file: Path, key_file: Path) -> None:
        self.files = (ca_file, cert_file, key_file)
        self._name, self._zone = name, zone
        self._rotation = Rotation()
        self._loaded: dict[bytes, _Loaded] = {}
        self._trying = b""
        self.on_offer: Callable[[], None] = lambda: None  # set by a link

    @property
    def problem(self) -> str:
        """Why the identity in the files is not in force; empty if it is."""
        return self._rotation.problem if self._rotation.candidate() is not None else ""

    @property
    def is_offered(self) -> bool:
        """Whether there is a new identity to try at the broker."""
        return self._rotation.offered is not None

    @property
    def expires(self) -> datetime | None:
        """When the certificate in use expires; None without one."""
        loaded = self._loaded.get(self._rotation.candidate() or b"")
        return None if loaded is None else loaded.certificate.not_valid_after_utc

    def context(self) -> ssl.SSLContext:
        """A TLS context with the identity to try now. Raises PkiError, which lists all problems, if none is valid."""
        problems = self.check_files()
        digest = self._rotation.candidate()
        if digest is None:
            listed = "".join(f"\n  {problem}" for problem in problems)
            raise PkiError(f"this node's identity cannot be used:{listed}", "bsfg check names the same problems")
        loaded = self._loaded[digest]
        self._trying = digest
        # The broker would refuse an expired certificate without naming the reason.
        for problem in check_times(self.files[1], loaded.certificate, datetime.now(UTC)):
            self.refused(problem.why)
            raise PkiError(f"this node's identity cannot be used: {problem.why}", problem.hint)
        return loaded.context

    def accepted(self) -> None:
        """The broker accepted the identity that `context` returned last."""
        had_one = self._rotation.in_force is not None
        if self._rotation.accepted(self._trying) and had_one:
            certificate = self._loaded[self._trying].certificate
            ends = certificate.not_valid_after_utc.isoformat()
            extra = {"broker": self._name, "serial": f"{certificate.serial_number:x}", "ends": ends}
            _log.info("identity_taken_over", extra=extra)
        useful = (self._rotation.in_force, self._rotation.offered)
        self._loaded = {digest: loaded for digest, loaded in self._loaded.items() if digest in useful}

    def refused(self, why: str) -> None:
        """The broker refused the identity that `context` returned last."""
        if self._rotation.refused(self._trying, why) is FileChange.REFUSED:
            self._log_refused(why)

    def check_files(self, *, is_retry: bool = False) -> Sequence[IdentityProblem]:
        """Check the files and offer a new valid identity. Returns the problems found. `is_retry`: a periodic check."""
        ca_file, cert_file, key_file = self.files
        digest = self._digest()
        if digest in self._loaded and not is_retry:
            problems: Sequence[IdentityProblem] = ()
        else:
            problems = check_identity(cert_file, key_file, ca_file, self._zone)
            if not problems:
                problems = self._load(digest)
        why = "; ".join(str(problem) for problem in problems)
        match self._rotation.files_checked(digest, why, is_retry=is_retry):
            case FileChange.OFFERED:
                self.on_offer()
            case FileChange.REFUSED if self._rotation.candidate() is not None:
                self._log_refused(why)
        return problems

    def _load(self, digest: bytes) -> list[IdentityProblem]:
        """Load the identity into memory. Returns a problem if the files have changed since `digest` was computed."""
        ca_file, cert_file, key_file = self.files
        try:
            certificate = load_certificates(cert_file)[0]
            loaded = _Loaded(client_context(ca_file, cert_file, key_file), certificate)
        except PkiError as error:
            return [IdentityProblem(cert_file, error.why, error.hint)]
        if self._digest() != digest:
            return [IdentityProblem(cert_file, "the files are being replaced", "nothing to do")]
        self._loaded[digest] = loaded
        return []

    def _digest(self) -> bytes:
        """The digest of the three files; a missing file counts as empty."""
        whole = hashlib.sha256()
        for file in self.files:
            try:
                data = read_file(file)
            except PkiError:
                data = b""
            whole.update(len(data).to_bytes(8) + data)
        return whole.digest()

    def _log_refused(self, why: str) -> None:
        extra = {"broker": self._name, "reason": why}
        _log.warning("identity_refused", extra=extra)


class IdentityWatcher:
    """Checks the files of all identities when they change, and every few minutes."""

    def __init__(self, identities: Sequence[Identity], times: WatchTimes = PATIENT) -> None:
        self._identities = identities
        self._times = times
        self._next_retry_s = 0.0

    async def run(self) -> None:
        """Watch until cancelled."""
        files = lambda: [file for identity in self._identities for file in identity.files]  # noqa: E731
        await watch_files("certificates", files, self._check, self._times)

    async def _check(self) -> float:
        now_s = asyncio.get_running_loop().time()
        is_retry = now_s >= self._next_retry_s
        if is_retry:
            self._next_retry_s = now_s + self._times.reread_s
        for identity in self._identities:
            identity.check_files(is_retry=is_retry)  # three small files: reading them costs less than a thread
        return self._times.reread_s

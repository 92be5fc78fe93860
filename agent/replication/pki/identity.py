"""Who we are at one broker: three files that may be replaced while the node runs.

The files are looked at whenever a connection is made, when the file system hints that they changed, and by the clock.  They are
checked as a whole (key, certificate, authority, zone, purpose, dates) and held in memory once they are good, so that a bad or half
copied pair in their place changes nothing.  `rotation` decides which one is used; `link` shows a new one to the broker beside
the connection that stands, and changes over once, when the broker has accepted it.

A file that changes between being checked and being loaded is noticed by its digest and looked at again.
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

from agent.file_hints import PATIENT, WatchTimes, watch_files
from agent.replication import pki
from agent.replication.pki.rotation import Rotation, Seen

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Known:
    """An identity as it was when it was good."""

    context: ssl.SSLContext
    certificate: x509.Certificate


class Identity:
    """The identity of `zone` at the broker `name`."""

    def __init__(self, name: str, zone: str, ca_file: Path, cert_file: Path, key_file: Path) -> None:
        self.files = (ca_file, cert_file, key_file)
        self._name, self._zone = name, zone
        self._rotation = Rotation()
        self._known: dict[bytes, _Known] = {}
        self._trying = b""
        self.on_offer: Callable[[], None] = _nothing

    @property
    def trouble(self) -> str:
        """Why what the files hold is not in force; empty when it is."""
        return self._rotation.trouble if self._rotation.to_try() is not None else ""

    @property
    def is_offered(self) -> bool:
        """Whether there is a new one to show to the broker."""
        return self._rotation.offered is not None

    @property
    def ends(self) -> datetime | None:
        """When the certificate in use ends."""
        known = self._known.get(self._rotation.to_try() or b"")
        return None if known is None else known.certificate.not_valid_after_utc

    def context(self) -> ssl.SSLContext:
        """TLS with the identity to try now; PkiError names everything wrong when there is none that could be accepted."""
        problems = self.look()
        digest = self._rotation.to_try()
        if digest is None:
            listed = "".join(f"\n  {problem}" for problem in problems)
            raise pki.PkiError(f"our own identity cannot be used:{listed}", "bsfg check names the same problems")
        known = self._known[digest]
        # Nobody would take one that has ended, and a refused handshake would not say why.
        for problem in pki.check_times(self.files[1], known.certificate, datetime.now(UTC)):
            raise pki.PkiError(f"our own identity cannot be used: {problem.why}", problem.hint)
        self._trying = digest
        return known.context

    def accepted(self) -> None:
        """The broker let us in with what `context` gave."""
        had_one = self._rotation.in_force is not None
        if self._rotation.accepted(self._trying) and had_one:
            certificate = self._known[self._trying].certificate
            ends = certificate.not_valid_after_utc.isoformat()
            extra = {"broker": self._name, "serial": f"{certificate.serial_number:x}", "ends": ends}
            _log.info("identity_taken_over", extra=extra)
        useful = (self._rotation.in_force, self._rotation.offered)
        self._known = {digest: known for digest, known in self._known.items() if digest in useful}

    def refused(self, why: str) -> None:
        """The broker did not let us in with what `context` gave."""
        if self._rotation.refused(self._trying, why) is Seen.REFUSED:
            self._tell_refused(why)

    def look(self, *, again: bool = False) -> Sequence[pki.Problem]:
        """Look at the files, and offer what is new and good; returns what is wrong with them."""
        ca_file, cert_file, key_file = self.files
        digest = self._digest()
        if digest in self._known and not again:
            problems: Sequence[pki.Problem] = ()
        else:
            problems = pki.check_identity(cert_file, key_file, ca_file, self._zone)
            if not problems:
                problems = self._load(digest)
        words = "; ".join(str(problem) for problem in problems)
        match self._rotation.looked(digest, words, again=again):
            case Seen.OFFERED:
                self.on_offer()
            case Seen.REFUSED if self._rotation.to_try() is not None:
                self._tell_refused(words)
        return problems

    def _load(self, digest: bytes) -> list[pki.Problem]:
        """Hold the identity; a problem if it is another one by now."""
        ca_file, cert_file, key_file = self.files
        try:
            certificate = pki.load_certificates(cert_file)[0]
            known = _Known(pki.client_context(ca_file, cert_file, key_file), certificate)
        except pki.PkiError as error:
            return [pki.Problem(cert_file, error.why, error.hint)]
        if self._digest() != digest:
            return [pki.Problem(cert_file, "the files are being replaced at this moment", "nothing to do")]
        self._known[digest] = known
        return []

    def _digest(self) -> bytes:
        """Of the three files as they are; a missing one counts as empty."""
        whole = hashlib.sha256()
        for file in self.files:
            try:
                data = pki.read_file(file)
            except pki.PkiError:
                data = b""
            whole.update(len(data).to_bytes(8) + data)
        return whole.digest()

    def _tell_refused(self, why: str) -> None:
        extra = {"broker": self._name, "reason": why}
        _log.warning("identity_refused", extra=extra)


class IdentityWatcher:
    """Looks at the files of all identities when they change, and every few minutes."""

    def __init__(self, identities: Sequence[Identity], times: WatchTimes = PATIENT) -> None:
        self._identities = identities
        self._times = times
        self._next_again_s = 0.0
        self._is_deaf = False

    async def run(self) -> None:
        """Watch until cancelled."""
        await watch_files(
            lambda: [file for identity in self._identities for file in identity.files],
            self._look,
            self._deaf,
            self._times,
        )

    async def _look(self) -> float:
        now_s = asyncio.get_running_loop().time()
        again = now_s >= self._next_again_s
        if again:
            self._next_again_s = now_s + self._times.reread_s
        for identity in self._identities:
            identity.look(again=again)  # three small files: a hop to a thread costs more than reading them
        return self._times.reread_s

    def _deaf(self, error: OSError) -> None:
        if not self._is_deaf:
            self._is_deaf = True
            _log.warning("identity_watch_deaf", extra={"why": str(error), "reread_s": self._times.reread_s})


def _nothing() -> None:
    """Nobody waits for an offer yet."""

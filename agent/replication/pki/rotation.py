"""Core: which identity a node uses at a broker while its certificate files are being replaced.

An identity is known by a digest of its files. One is *in force*: the broker accepted it last. Another may be *offered*:
found in the files, valid by our own checks, not yet tried at the broker. Files that our checks or the broker refuse
change nothing: the identity in force stays in force, and the problem is reported once. An identity that the broker
refused is tried again periodically, because the fault may have been the broker's (docs/decisions/0035).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FileChange(Enum):
    """What reading the files, or the broker's answer, has changed."""

    NONE = "nothing changed"
    OFFERED = "a new identity is to be tried at the broker"
    REFUSED = "a new identity was refused; report it"


@dataclass(slots=True)
class Rotation:
    """The identities of one node at one broker, by digest; None where there is none."""

    in_force: bytes | None = None
    offered: bytes | None = None
    rejected: bytes | None = None
    problem: str = ""
    _was_refused: bool = False
    _reported: bytes | None = None

    def files_checked(self, digest: bytes, problems: str, *, is_retry: bool = False) -> FileChange:
        """The files hold `digest`. `problems` is empty if our checks accept them; `is_retry`: a periodic check."""
        if digest == self.in_force:
            # Also after a roll-back: the operator restored the files of the identity in force.
            self.offered, self.rejected, self.problem, self._reported = None, None, "", None
            return FileChange.NONE
        if problems:
            if self.in_force is not None:  # without one in force the offered identity is the only one
                self.offered = None
            return self._report(digest, problems)
        if digest in (self.offered, self.rejected) and not is_retry:
            return FileChange.NONE
        self.offered = digest
        if digest != self.rejected:  # a retry keeps the broker's reason until the broker accepts
            self.problem = ""
        return FileChange.OFFERED

    def candidate(self) -> bytes | None:
        """The identity for the next connection. After a refusal the one in force comes first, so that the node
        reconnects."""
        if self._was_refused and self.in_force is not None:
            return self.in_force
        return self.offered or self.in_force

    def accepted(self, digest: bytes) -> bool:
        """The broker accepted `digest`. Returns whether it was not in force before."""
        self._was_refused = False
        is_new = digest != self.in_force
        self.in_force = digest
        if self.offered == digest:
            self.offered = None
        if is_new:
            self.rejected, self.problem, self._reported = None, "", None
        return is_new

    def refused(self, digest: bytes, why: str) -> FileChange:
        """The broker refused `digest`, or its `ca_file` does not know the broker. If no other identity is in force, it
        stays offered. If the one in force is refused, one that was refused before is tried again: both in turn."""
        if digest != self.offered or self.in_force is None:
            self._was_refused = False
            self.offered = self.offered or self.rejected
            return FileChange.NONE
        self._was_refused = True
        self.offered, self.rejected = None, digest
        return self._report(digest, why)

    def _report(self, digest: bytes, why: str) -> FileChange:
        """Keep the newest reason, but report each pair of files once: a reason that contains the time differs each
        time."""
        self.problem = why
        if self._reported == digest:
            return FileChange.NONE
        self._reported = digest
        return FileChange.REFUSED

"""Core: which of several identities a node uses at a broker, while the files that hold one are being replaced.

Identities are known by a digest of their files.  One is *in force*: the broker accepted it last.  Another may be *offered*: found in
the files, good by our own checks, not yet shown to the broker.  A pair that our checks refuse, or that the broker turns away, changes
nothing: what is in force stays so, and the trouble is told once.  What the broker turned away is shown to it again when the files
are next looked at by the clock, since the fault may have been the broker's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Seen(Enum):
    """What a look at the files means."""

    NOTHING_NEW = "nothing new"
    OFFERED = "offered"
    REFUSED = "refused"


@dataclass(slots=True)
class Rotation:
    """The identities of one node at one broker; None where there is none."""

    in_force: bytes | None = None
    offered: bytes | None = None
    turned_away: bytes | None = None
    trouble: str = ""
    _was_refused: bool = False
    _told: bytes | None = None

    def looked(self, digest: bytes, problems: str, *, again: bool = False) -> Seen:
        """The files hold `digest`, which our own checks find good unless they name `problems`; `again` by the clock."""
        if digest == self.in_force:
            # Also the way back: whoever restores the files wants what is in force.
            self.offered, self.turned_away, self.trouble, self._told = None, None, "", None
            return Seen.NOTHING_NEW
        if problems:
            if self.in_force is not None:  # otherwise what was found first is all there is
                self.offered = None
            return self._tell(digest, problems)
        if digest in (self.offered, self.turned_away) and not again:
            return Seen.NOTHING_NEW
        self.offered = digest
        if digest != self.turned_away:  # shown once more it is still what the broker did not take
            self.trouble = ""
        return Seen.OFFERED

    def to_try(self) -> bytes | None:
        """What to show the broker now: after a refusal first what it knows, however often the new one is offered again."""
        if self._was_refused and self.in_force is not None:
            return self.in_force
        return self.offered or self.in_force

    def accepted(self, digest: bytes) -> bool:
        """The broker took it; True when that changes what is in force."""
        self._was_refused = False
        is_new = digest != self.in_force
        self.in_force = digest
        if self.offered == digest:
            self.offered = None
        if is_new:
            self.turned_away, self.trouble, self._told = None, "", None
        return is_new

    def refused(self, digest: bytes, why: str) -> Seen:
        """The broker turned it away.  Without another one in force it is shown again, as there is nothing better."""
        if digest != self.offered or self.in_force is None:
            self._was_refused = False
            return Seen.NOTHING_NEW
        self._was_refused = True
        self.offered, self.turned_away = None, digest
        return self._tell(digest, why)

    def _tell(self, digest: bytes, why: str) -> Seen:
        """Keep the newest words, and say so once for each pair of files: reasons that name the time change all the time."""
        self.trouble = why
        if self._told == digest:
            return Seen.NOTHING_NEW
        self._told = digest
        return Seen.REFUSED

"""Whether a server is alive, and up to when everything it had is delivered.

A connection that stands proves nothing: a server may answer every call and never send a value again. What proves life
is a value that arrives, or the server's own clock, a monitored item, that moves. Keep-alive messages and other empty
answers count only where the server does not let its clock be monitored.

A loss is dated by what the answers contain, not by when they were sent: a server may collect values, wait for a Publish
request, and send them with the time of sending. DESIGN.md has the rule and its proof. Core: takes times, holds no
clock.
"""

from __future__ import annotations

from agent.ingest.opcua.server_clock import CLOCK_JUMP_NS


class Liveness:
    """The proofs of life of one subscription. `alive_s` is our monotonic clock; the others are times of the server."""

    def __init__(self, now_s: float) -> None:
        self.alive_s = self._begun_s = now_s
        self.proven_s = now_s  # the last value, or the last move of the clock
        self.answered_s = now_s  # the last answer, a keep-alive included
        self.complete_ns = 0  # every value that the server had up to then is delivered; 0: not known yet
        self.has_clock = True  # until the server refuses to have its clock monitored
        self.sampling_ns = 0  # the longest interval at which an item is sampled, as the server revised it
        self._clock: object = None
        self._clock_moves = 0
        self._has_shown_clock = False
        self._seen_ns: int | None = None  # the newest time of the server in what has come
        self._opened_ns = self._before_ns = (
            0  # the latter: of the answers before the last that left nothing at the server
        )

    def open(self, opened_ns: int) -> None:
        """A time of the server before the subscription was created: nothing comes of it that is older."""
        self._opened_ns = self._before_ns = opened_ns

    def note_clock(self, value: object) -> bool:
        """Take in a notification of the server's clock. True if it moved, which is a proof."""
        moved, self._clock = value != self._clock, value
        self._clock_moves += moved
        return moved

    def give_up_clock(self, now_s: float, after_s: float) -> bool:
        """Judge by any answer from now on, if the clock came once and for so long never again: some servers give a
        first value of it and notify no change (gopcua). A clock that ever moved, or never came, proves something by its
        silence."""
        if not self.has_clock or self._clock_moves != 1 or now_s - self._begun_s <= after_s:
            return False
        self.has_clock = self._has_shown_clock = False
        self._seen_ns, self._before_ns = None, self._opened_ns
        self.alive_s = self.answered_s
        return True

    def note_answer(self, now_s: float, sent_ns: int, clock_ns: int | None, *, is_proof: bool, more: bool) -> None:
        """Take in an answer to Publish, in its turn. `sent_ns`: when the server sent it; `clock_ns`: the clock in it;
        `is_proof`: it holds a value or the clock moved; `more`: the server has more that is older than the sending."""
        self.answered_s = now_s
        if is_proof:
            self.proven_s = now_s
        elif self.has_clock:
            return
        self.alive_s = now_s
        if clock_ns is not None and not self._has_shown_clock:  # from now on it counts, and no time of sending
            self._has_shown_clock, self._before_ns = True, self._opened_ns
        if clock_ns is not None or not self._has_shown_clock:
            self._seen_ns = sent_ns if clock_ns is None else clock_ns
        if not more and self._seen_ns is not None and self._seen_ns != self._before_ns:
            self._complete(self._seen_ns)

    def _complete(self, seen_ns: int) -> None:
        """Everything that was queued when the server's clock showed this is delivered. The sample of an item is at most
        its interval older than that of the clock the time before, even if the server stood still in between."""
        before_ns, self._before_ns = self._before_ns, seen_ns
        if seen_ns < before_ns:  # set back: the time before means nothing in the new one
            complete_ns = seen_ns - CLOCK_JUMP_NS - self.sampling_ns
        else:
            complete_ns = before_ns - self.sampling_ns
        self.complete_ns = complete_ns or 1  # negative before 1970; 0 is "not known"

    def excuse(self, now_s: float) -> None:
        """Silence up to now is no sign of death, because the server was held back from here. Proves nothing either."""
        self.alive_s = self.answered_s = self.proven_s = now_s

    def silent_s(self, now_s: float) -> float:
        """For how long there has been no proof."""
        return now_s - self.alive_s

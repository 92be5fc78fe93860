"""Whether a server is alive, and up to which time all its values are delivered.

An open connection proves nothing: a server may answer every call and never send a value again. A value proves that the
server is alive, and so does a change of the server's own clock, which is monitored as an item. Keep-alive messages and
other empty answers count only if the server does not allow its clock to be monitored.

A loss is dated by the contents of the answers and not by when they were sent: a server may collect values, wait for a
Publish request, and send them with the time of sending. DESIGN.md has the rule and its proof. Core.
"""

from __future__ import annotations

from agent.ingest.completeness import CLOCK_JUMP_NS, Moment


class Liveness:
    """The proofs of life of one subscription. Times in s are of our monotonic clock, times in ns of the server's
    clock."""

    def __init__(self, now_s: float) -> None:
        self.alive_s = self.begun_s = now_s
        self.proven_s = now_s  # the last value or change of the clock
        self.answered_s = now_s  # the last answer, a keep-alive included
        self.complete: Moment | None = None  # all values up to this time are delivered; None: not known yet
        self.has_clock = True  # until the server refuses to monitor its clock
        self.sampling_ns = 0  # the longest interval at which an item is sampled, as the server revised it
        self._clock: object = None
        self._clock_moves = 0
        self._has_shown_clock = False
        self._seen: Moment | None = None  # the newest time of the server in the answers
        self._opened = self._before = Moment(0)  # _before: of the second last answer that left nothing at the server

    def open(self, opened: Moment) -> None:
        """Set a time of the server before the subscription was created. It brings no older values."""
        self._opened = self._before = opened

    @property
    def seen(self) -> Moment:
        """The newest time of the server in the answers; before the first, that of the creation."""
        return self._seen or self._opened

    @property
    def has_shown(self) -> bool:
        """Whether an answer has been a proof of life."""
        return self._seen is not None

    def note_clock(self, value: object) -> bool:
        """Take in a notification of the server's clock. True if it changed, which is a proof of life."""
        moved, self._clock = value != self._clock, value
        self._clock_moves += moved
        return moved

    def give_up_clock(self, now_s: float, after_s: float) -> bool:
        """Accept any answer as a proof of life from now on, if the clock was notified once and not again for `after_s`:
        some servers send its first value and no change (gopcua). If the clock has changed before, or was never
        notified, its silence does count."""
        if not self.has_clock or self._clock_moves != 1 or now_s - self.begun_s <= after_s:
            return False
        self.has_clock = self._has_shown_clock = False
        self._seen, self._before = None, self._opened
        self.alive_s = self.answered_s
        return True

    def note_answer(self, now_s: float, sent: Moment, clock: Moment | None, *, is_proof: bool, more: bool) -> None:
        """Take in an answer to Publish, in the order of the subscription. `sent`: when the server sent it. `clock`: the
        server's clock in it. `is_proof`: it holds a value, or the clock changed. `more`: the server holds more values
        that are older than the sending."""
        self.answered_s = now_s
        if is_proof:
            self.proven_s = now_s
        elif self.has_clock:
            return
        self.alive_s = now_s
        # From now on the clock counts instead of the times of sending.
        if clock is not None and not self._has_shown_clock:
            self._has_shown_clock, self._before = True, self._opened
        if clock is not None or not self._has_shown_clock:
            self._seen = sent if clock is None else clock
        if not more and self._seen is not None and self._seen.time_ns != self._before.time_ns:
            self._complete(self._seen)

    def _complete(self, seen: Moment) -> None:
        """Everything that was queued when the server's clock showed `seen` is delivered. The sample of an item is at
        most one sampling interval older than the previous sample of the clock, even if the server was stalled in
        between."""
        before, self._before = self._before, seen
        if seen.time_ns < before.time_ns:  # set back: the previous time has no meaning on the new clock
            before = seen._replace(time_ns=seen.time_ns - CLOCK_JUMP_NS)
        self.complete = before._replace(time_ns=before.time_ns - self.sampling_ns)

    def excuse(self, now_s: float) -> None:
        """Ignore the silence up to now, because this side held the server back."""
        self.alive_s = self.answered_s = self.proven_s = now_s

    def silent_s(self, now_s: float) -> float:
        """The time since the last proof of life."""
        return now_s - self.alive_s

"""Whether a server is alive, up to when everything it had is delivered, and what its clock shows.

A connection that stands proves nothing: a server may answer every call and never send a value again. What proves life
is a value that arrives, or the server's own clock, a monitored item, that moves. Keep-alive messages and other empty
answers count only where the server does not let its clock be monitored.

A loss is dated by what the answers contain, not by when they were sent: a server may collect values, wait for a Publish
request, and send them with the time of sending. DESIGN.md has the rule and its proof. Core: takes times, holds no
clock.
"""

from __future__ import annotations

CLOCK_JUMP_NS = 2_000_000_000  # a server clock that differs by more than publishing explains was set


class Liveness:
    """The proofs of life of one subscription. `alive_s` is our monotonic clock; the others are times of the server."""

    def __init__(self, now_s: float) -> None:
        self.alive_s = now_s
        self.complete_ns = 0  # every value that the server had up to then is delivered; 0: not known yet
        self.has_clock = True  # until the server refuses to have its clock monitored
        self.sampling_ns = 0  # the longest interval at which an item is sampled, as the server revised it
        self._clock: object = None
        self._has_shown_clock = False
        self._seen_ns: int | None = None  # the newest time of the server in what has come
        self._before_ns: int | None = None  # that of the answers before the last one that left nothing at the server

    def see_clock(self, value: object) -> bool:
        """Take in a notification of the server's clock. True if it moved, which is a proof."""
        moved, self._clock = value != self._clock, value
        return moved

    def see(self, now_s: float, sent_ns: int, clock_ns: int | None, *, is_proof: bool, more: bool) -> None:
        """Take in an answer to Publish, in its turn. `sent_ns`: when the server sent it; `clock_ns`: the clock in it;
        `is_proof`: it holds a value or the clock moved; `more`: the server has more that is older than the sending."""
        if not is_proof and self.has_clock:
            return
        self.alive_s = now_s
        if clock_ns is not None and not self._has_shown_clock:  # from now on it counts, and no time of sending
            self._has_shown_clock, self._before_ns = True, None
        if clock_ns is not None or not self._has_shown_clock:
            self._seen_ns = sent_ns if clock_ns is None else clock_ns
        if not more and self._seen_ns is not None and self._seen_ns != self._before_ns:
            self._complete(self._seen_ns)

    def _complete(self, seen_ns: int) -> None:
        """Everything that was queued when the server's clock showed this is delivered. The sample of an item is at most
        its interval older than that of the clock the time before, even if the server stood still in between."""
        before_ns, self._before_ns = self._before_ns, seen_ns
        if before_ns is None:  # sampled when it was created, ahead of the other items
            complete_ns = seen_ns
        elif seen_ns < before_ns:  # set back: the time before means nothing in the new one
            complete_ns = seen_ns - CLOCK_JUMP_NS - self.sampling_ns
        else:
            complete_ns = before_ns - self.sampling_ns
        self.complete_ns = complete_ns or 1  # negative before 1970; 0 is "not known"

    def excuse(self, now_s: float) -> None:
        """Silence up to now is no sign of death, because the server was held back from here. Proves nothing either."""
        self.alive_s = now_s

    def silent_s(self, now_s: float) -> float:
        """For how long there has been no proof."""
        return now_s - self.alive_s


class ServerClock:
    """The server's clock as an offset to ours, in ns."""

    def __init__(self) -> None:
        self.offset_ns = 0

    def see(self, server_ns: int, now_ns: int) -> None:
        """Take in a time that the server showed. Publishing delays make the offset look smaller than it is, never
        larger: the largest seen is the best, until the clock is set back."""
        offset_ns = server_ns - now_ns
        if offset_ns > self.offset_ns or self.offset_ns - offset_ns > CLOCK_JUMP_NS:
            self.offset_ns = offset_ns

    def proof_time_ns(self, publish_time_ns: int, now_ns: int) -> int:
        """The time of an answer by the server's clock: the publish time that it bears, else the time of its arrival. An
        answer cannot have been sent after it came; a publish time that says so is not used."""
        arrived_ns = now_ns + self.offset_ns
        return publish_time_ns if 0 < publish_time_ns <= arrived_ns + CLOCK_JUMP_NS else arrived_ns

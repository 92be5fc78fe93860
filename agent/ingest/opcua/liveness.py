"""Whether a server is alive, when it last proved it, and what its clock shows.

A connection that stands proves nothing: a server may answer every call and never send a value again. What proves life
is a value that arrives, or the server's own clock, a monitored item, that moves. Keep-alive messages and other empty
answers count only where the server does not let its clock be monitored.

The last proof also dates a loss: what happened at the server after it is not known. Core: takes times, holds no clock.
"""

from __future__ import annotations

CLOCK_JUMP_NS = 2_000_000_000  # a server clock that differs by more than publishing explains was set


class Liveness:
    """The proofs of life of one subscription. `alive_s` is our monotonic clock, `alive_ns` the server's time."""

    def __init__(self, now_s: float) -> None:
        self.alive_s = now_s
        self.alive_ns = 0  # 0: no proof yet
        self.has_clock = True  # until the server refuses to have its clock monitored
        self._clock: object = None

    def see_clock(self, value: object) -> bool:
        """Take in a notification of the server's clock. True if it moved, which is a proof."""
        moved, self._clock = value != self._clock, value
        return moved

    def see(self, now_s: float, time_ns: int, *, is_proof: bool) -> None:
        """Take in an answer to Publish, sent at `time_ns`; `is_proof`: it holds a value or the clock moved."""
        if is_proof or not self.has_clock:
            self.alive_s, self.alive_ns = now_s, time_ns

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

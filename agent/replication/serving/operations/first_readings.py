"""The bootstrap of consumers as the serving side sees it: from the fetch that registers one until it has read to the end of the log.

Known in memory only: a node that is started again in the middle of one counts it no further.
"""

from __future__ import annotations

from agent.replication.protocol.errors import ERRORS
from agent.telemetry import Side, Span, Started, Telemetry


class FirstReadings:
    """Those under way, by consumer; no more than consumers are registered."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._open: dict[str, Started] = {}

    def began(self, consumer: str, peer: str, stream: str) -> None:
        """A consumer has registered itself. If it was removed in the middle of its first reading, that has come to nothing."""
        if (before := self._open.pop(consumer, None)) is not None:
            self._telemetry.discard(before, "the consumer was removed")
        self._open[consumer] = self._telemetry.start(
            Span.BOOTSTRAP, Side.SERVING, peer=peer, stream=stream, consumer=consumer
        )

    def reached_the_end(self, consumer: str) -> None:
        """Nothing is outstanding; the first time that counts."""
        if (started := self._open.pop(consumer, None)) is not None:
            self._telemetry.stop(started)

    def refused(self, consumer: str, code: str) -> None:
        """A fetch was refused: a reading that somebody has to mend has failed."""
        if consumer in self._open and not ERRORS[code].retryable:
            self._telemetry.fail(self._open.pop(consumer), code)

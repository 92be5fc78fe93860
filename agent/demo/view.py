"""What the running demonstration prints: its steps, and a line about the zones every few seconds. The page shows
more."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

LINE_S = 3.0
Status = Mapping[str, Any]


class View:
    """Prints with `echo`. The figures are each node's status."""

    def __init__(self, echo: Callable[[str], None]) -> None:
        self._echo = echo
        self._started_s = time.monotonic()
        self._line_s = 0.0

    def say(self, headline: str) -> None:
        """The present step."""
        self._echo(f"{time.monotonic() - self._started_s:5.1f} s  {headline}")

    def show(self, statuses: Mapping[str, Status | None]) -> None:
        """The present status of the nodes, if the last line is old enough."""
        now_s = time.monotonic()
        if now_s - self._line_s > LINE_S:
            self._line_s = now_s
            self.say("  " + "  |  ".join(f"{zone} {_text(status)}" for zone, status in statuses.items()))


def _text(status: Status | None) -> str:
    """The facts of a zone, and whether it is level with the zone below."""
    if status is None:
        return "does not answer"
    facts = sum(stream["end_offset"] for stream in status["streams"])
    lost = sorted({peer["zone"] for peer in status["peers"] if not peer["connected"]})
    lag_s = max((peer["lag_seconds"] or 0.0 for peer in status["peers"]), default=None)
    link = f"lost {', '.join(lost)}" if lost else "serves" if lag_s is None else f"pulls, {lag_s:.1f} s behind"
    return f"{facts:,} ({link})"

"""The display of the running demonstration: a table on a terminal, or a line every few seconds in a pipe.

The figures are each node's status. A node that does not answer is marked and keeps its last figures.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

PIPE_LINE_S = 3.0
Status = Mapping[str, Any]


@dataclass(slots=True)
class ZoneLine:
    """One row: the facts of a zone, their rate, and those that the zone above has not confirmed yet."""

    zone: str
    facts: int = 0
    facts_per_s: float = 0.0
    behind: int = 0
    oldest_s: float = 0.0
    cursor: str = ""
    link: str = ""
    answers: bool = False
    _seen_at: float = field(default=0.0, repr=False)

    def update(self, status: Status | None, now: float) -> None:
        """Update from the node's status; None if it does not answer."""
        self.answers = status is not None
        if status is None:
            self.link = "does not answer"
            return
        facts = sum(stream["end_offset"] for stream in status["streams"])
        if self._seen_at and now > self._seen_at:
            rate = (facts - self.facts) / (now - self._seen_at)
            self.facts_per_s = rate if not self.facts_per_s else 0.6 * self.facts_per_s + 0.4 * rate
        self.facts, self._seen_at = facts, now
        consumers = status["consumers"]
        self.behind = sum(consumer["behind_facts"] for consumer in consumers)
        self.oldest_s = max((consumer["oldest_unconfirmed_age_s"] or 0.0 for consumer in consumers), default=0.0)
        frontiers = {consumer["zone"]: 0 for consumer in consumers}
        for consumer in consumers:
            frontiers[consumer["zone"]] += consumer["frontier"]
        self.cursor = ", ".join(f"{zone} at {frontier:,}" for zone, frontier in frontiers.items())
        peers = status["peers"]
        lost = sorted({peer["zone"] for peer in peers if not peer["connected"]})
        lag_s = max((peer["lag_seconds"] or 0.0 for peer in peers), default=0.0)
        self.link = f"lost {', '.join(lost)}" if lost else f"pulls, {lag_s:.1f} s behind" if peers else "serves"


class View:
    """The table, and a headline with the present step."""

    def __init__(self, console: Console, zones: Sequence[str]) -> None:
        self.console = console
        self.lines = {zone: ZoneLine(zone) for zone in zones}
        self._headline = ""
        self._started = time.monotonic()
        self._line_at = 0.0
        self._live = Live(console=console, refresh_per_second=4, transient=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end_table()

    def end_table(self) -> None:
        """Stop updating the table; later output is printed below it."""
        if self._live is not None:
            self._live.update(self._picture())
            self._live.stop()
            self._live = None

    def say(self, headline: str) -> None:
        """Set the headline."""
        self._headline = headline
        (self._live.console if self._live else self.console).print(f"[bold]{self._elapsed()}[/bold] {headline}")

    def show(self, statuses: Mapping[str, Status | None]) -> None:
        """Redraw with the present status of the nodes."""
        now = time.monotonic()
        for zone, status in statuses.items():
            self.lines[zone].update(status, now)
        if self._live is not None:
            self._live.update(self._picture())
        elif now - self._line_at > PIPE_LINE_S:
            self._line_at = now
            parts = [f"{line.zone} {line.facts:,} ({line.link})" for line in self.lines.values()]
            self.console.print(f"  {self._elapsed()}  " + "  |  ".join(parts), highlight=False)

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._started:5.1f} s"

    def _picture(self) -> Group:
        table = Table(expand=False)
        for name in (
            "zone",
            "facts",
            "facts/s",
            "not confirmed above",
            "oldest of those",
            "cursor above",
            "link below",
        ):
            table.add_column(name, justify="left" if name in {"zone", "cursor above", "link below"} else "right")
        for line in self.lines.values():
            style = "" if line.answers and not line.link.startswith("lost") else "yellow"
            figures = (f"{line.facts:,}", f"{line.facts_per_s:,.0f}", f"{line.behind:,}", f"{line.oldest_s:.1f} s")
            table.add_row(line.zone, *figures, line.cursor, line.link, style=style)
        return Group(Text(f"{self._elapsed()}  {self._headline}", style="bold"), table)

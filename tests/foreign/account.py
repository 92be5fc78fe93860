"""Compares a store with a server's own record: what is missing, what is there twice, and which of it a gap fact
declares.

Only what the store holds at the end counts, read back from its file: samples as messages, gaps as `samples_lost` facts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from agent.query.scan import parse_time_ns
from tests.foreign.plant import facts
from tests.foreign.server import ForeignServer, Recorded


class Stored(NamedTuple):
    """A sample in the store."""

    time_ns: int
    value: Any
    quality: int


class Declared(NamedTuple):
    """A gap fact: nothing is known, or something is missing, in this time."""

    first_ns: int
    last_ns: int
    count: int
    count_exact: bool
    reason: str


def stored(folder: Path, name: str) -> list[Stored]:
    """The samples of tag `f/<name>`, in the order of the store."""
    found = [fact["object"] for fact in facts(folder, "facts.telemetry") if fact["subject"] == f"tag:f/{name}"]
    return [Stored(time_ns(value["source_time"]), value.get("value"), value["quality"]) for value in found]


def declared(folder: Path) -> list[Declared]:
    """All gap facts."""
    found = [fact["object"] for fact in facts(folder, "facts.operational") if fact["predicate"] == "samples_lost"]
    return [
        Declared(time_ns(gap["first_time"]), time_ns(gap["last_time"]), gap["count"], gap["count_exact"], gap["reason"])
        for gap in found
    ]


def time_ns(text: str) -> int:
    """A time of a fact."""
    found = parse_time_ns(text)
    assert found is not None, text
    return found


@dataclass(frozen=True, slots=True)
class Account:
    """One variable: what its server set while we were to collect it, beside what the store holds."""

    recorded: list[Recorded]
    stored: list[Stored]
    gaps: list[Declared]

    @property
    def lost(self) -> list[Recorded]:
        """What the server set and the store does not have, from the first value stored to the last."""
        good = [value.time_ns for value in self.stored if value.quality == 0]
        assert good, "nothing was stored"
        there = set(good)
        ours = [i for i, value in enumerate(self.recorded) if value.time_ns in there]
        between = self.recorded[ours[0] : ours[-1] + 1]
        return [value for value in between if value.time_ns not in there]

    @property
    def undeclared(self) -> list[Recorded]:
        """What is lost, in no gap fact's time."""
        spans = [(gap.first_ns, gap.last_ns) for gap in self.gaps]
        return [value for value in self.lost if not any(first <= value.time_ns <= last for first, last in spans)]

    @property
    def declared_s(self) -> float:
        """How long the gap facts last; what is in several of them counts once."""
        total_ns, end_ns = 0, 0
        for gap in sorted(self.gaps):
            total_ns += max(0, gap.last_ns - max(gap.first_ns, end_ns))
            end_ns = max(end_ns, gap.last_ns)
        return total_ns / 1e9

    @property
    def twice(self) -> list[int]:
        """Times under which there is more than one good value."""
        counts = Counter(value.time_ns for value in self.stored if value.quality == 0)
        return [at for at, count in counts.items() if count > 1]

    @property
    def invented(self) -> list[Stored]:
        """Good values that the server never had."""
        values = {value.value for value in self.recorded}
        return [value for value in self.stored if value.quality == 0 and value.value not in values]


def account(server: ForeignServer, folder: Path, name: str) -> Account:
    """The account of a variable whose source stored into this folder."""
    return Account(server.record(name), stored(folder, name), declared(folder))

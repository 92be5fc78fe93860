"""Results of testing a source, for both protocols: the steps of a test, and values of tags read once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from agent.ingest import quality
from agent.ingest.tags.tag_map import Tag
from agent.message import Value
from agent.status_codes import status_name

BAD_NAMED_MAX = 10  # tags that a step names
WITHOUT_VALUE = "without a value"


class StepOutcome(Enum):
    """How a step ended."""

    OK = "ok"
    NOTE = "note"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ProbeStep:
    """One step. `details` are further lines; `todo` is what to do. `is_partial`: it failed for some of the tags or
    units only."""

    name: str
    outcome: StepOutcome
    what: str
    todo: str = ""
    details: tuple[str, ...] = ()
    is_partial: bool = False

    @property
    def is_failed(self) -> bool:
        """Whether something must be corrected."""
        return self.outcome is StepOutcome.FAILED


@dataclass(frozen=True, slots=True)
class TagReading:
    """The value of a tag that was read once, and its OPC UA status. A source time of 0: the source gives none. `why` is
    the answer of the device if there is no value."""

    tag: str
    address: str
    value: Value
    quality: int
    source_time_ns: int = 0
    unit: str = ""
    why: str = ""

    @classmethod
    def of(cls, tag: Tag, value: Value, status: int, why: str = "", source_time_ns: int = 0) -> TagReading:
        """What was read of a tag."""
        return cls(tag.name, tag.definition.address, value, status, source_time_ns, tag.definition.unit, why)

    @property
    def is_bad(self) -> bool:
        """Whether the value must not be used."""
        return quality.is_bad(self.quality)


ReadTags = Callable[[Sequence[Tag]], Awaitable[list[TagReading]]]


def failed(name: str, what: str, todo: str = "", details: tuple[str, ...] = ()) -> ProbeStep:
    """A step that failed."""
    return ProbeStep(name, StepOutcome.FAILED, what, todo, details)


def accept_part(step: ProbeStep) -> ProbeStep:
    """The step, with a failure of only a part of the source as a note."""
    return replace(step, outcome=StepOutcome.NOTE) if step.is_failed and step.is_partial else step


def tags_step(readings: Sequence[TagReading], tags_total: int, todo: str) -> ProbeStep:
    """The step that reports how many of the tags have a value, and which have none. `todo` is what to do about
    those."""
    bad = [reading for reading in readings if reading.is_bad]
    asked = f"all {tags_total:,}" if len(readings) == tags_total else f"{len(readings):,} of {tags_total:,}"
    if not bad:
        return ProbeStep("tags", StepOutcome.OK, f"{asked} tags read, each has a value")
    counts = Counter(status_name(reading.quality) for reading in bad)
    kinds = ", ".join(f"{count:,} {name}" for name, count in counts.most_common())
    lines = [
        f"{reading.tag} ({reading.address}): {reading.why or status_name(reading.quality)}"
        for reading in bad[:BAD_NAMED_MAX]
    ]
    if len(bad) > BAD_NAMED_MAX:
        lines.append(f"and {len(bad) - BAD_NAMED_MAX:,} more")
    what = f"{asked} tags read, {len(bad):,} {WITHOUT_VALUE} ({kinds})"
    is_partial = len(bad) < len(readings)
    return ProbeStep("tags", StepOutcome.FAILED, what, todo, tuple(lines), is_partial=is_partial)

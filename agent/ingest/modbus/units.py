"""The units behind a line, and what is known of each: its reads, the values it refuses, whether it answers.

Core. A unit that gives no answer is *silent*: it is no longer polled on the main line, and is asked apart from the
others after pauses that double. A single value that the unit refuses is *parked*, and asked for alone after such
pauses. What was learned about a unit (holes not to be read across, values to leave out) is kept for as long as the
source is configured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agent.ingest.modbus.address import Register
from agent.ingest.modbus.plan import Barrier, Limits, Read, plan_reads, refine


@dataclass(slots=True)
class _Pause:
    """When to ask again, and the pause before that."""

    at_ns: int
    pause_ns: int


class Unit:
    """One unit. Times are of any clock that only goes forward."""

    def __init__(
        self, unit_id: int, points: Mapping[int, Register], limits: Limits, retry_ns: int, retry_max_ns: int
    ) -> None:
        self.unit_id = unit_id
        self.tags: dict[Register, int] = {register: tag for tag, register in points.items()}
        self._limits = limits
        self._retry_ns, self._retry_max_ns = retry_ns, retry_max_ns
        self._barriers: frozenset[Barrier] = frozenset()
        self._parked: dict[Register, _Pause] = {}
        self._silence: _Pause | None = None
        self.reads: list[Read] = []
        self._plan()

    def want(self, points: Mapping[int, Register]) -> None:
        """Read these values from now on. What the unit has taught stays: its silence, its holes, what it refuses."""
        self.tags = {register: tag for tag, register in points.items()}
        self._parked = {register: pause for register, pause in self._parked.items() if register in self.tags}
        self._plan()

    @property
    def is_silent(self) -> bool:
        return self._silence is not None

    @property
    def parked_count(self) -> int:
        return len(self._parked)

    def tags_of(self, read: Read) -> list[int]:
        """The tag numbers a read serves."""
        return [self.tags[register] for register in read.registers]

    def all_tags(self) -> list[int]:
        return list(self.tags.values())

    def fell_silent(self, now_ns: int) -> bool:
        """Note that there was no answer. True if that is news."""
        is_news = self._silence is None
        self._silence = self._longer(self._silence, now_ns)
        return is_news

    def answered(self) -> bool:
        """Note that there was an answer. True if that is news."""
        is_news = self._silence is not None
        self._silence = None
        return is_news

    def probe_at_ns(self) -> int | None:
        """When a silent unit is to be asked, None for one that answers."""
        return None if self._silence is None else self._silence.at_ns

    def probe(self) -> Read:
        """The question put to a silent unit: its first read, or a parked value if there is nothing else."""
        return self.reads[0] if self.reads else plan_reads(list(self._parked)[:1], self._limits)[0]

    def refused(self, read: Read, now_ns: int) -> bool:
        """Learn from a refused read. True if it was a single value, which is parked now."""
        if len(read.registers) > 1:
            parts, learned = refine(read)
            self._barriers |= learned
            self.reads = [part for kept in self.reads for part in (parts if kept == read else [kept])]
            return False
        register = read.registers[0]
        is_news = register not in self._parked
        self._parked[register] = self._longer(self._parked.get(register), now_ns)
        if is_news:
            self._barriers |= {(read.unit_id, read.table, read.address)}
            self._plan()
        return is_news

    def due_parked(self, now_ns: int) -> Iterable[Read]:
        """Reads of single parked values whose time has come."""
        for register, pause in self._parked.items():
            if pause.at_ns <= now_ns:
                yield from plan_reads([register], self._limits)

    def returned(self, read: Read) -> None:
        """A parked value was read: it takes part in the plan again."""
        self._parked.pop(read.registers[0])
        self._barriers -= {(read.unit_id, read.table, read.address)}
        self._plan()

    def _plan(self) -> None:
        wanted = [register for register in self.tags if register not in self._parked]
        self.reads = plan_reads(wanted, self._limits, self._barriers)

    def _longer(self, pause: _Pause | None, now_ns: int) -> _Pause:
        pause_ns = self._retry_ns if pause is None else min(pause.pause_ns * 2, self._retry_max_ns)
        return _Pause(now_ns + pause_ns, pause_ns)

"""The state of a unit behind a line: its planned reads, the spans that it refuses, and whether it answers.

The spans of addresses that a unit refuses are kept with the exception of each, and no read covers such a span. A value
that is such a span by itself is *parked*: it is asked for alone, after pauses that double. Any other span is asked for
once an hour. A refused span is forgotten when the unit answers it. It survives new tag maps, and with `refused_spans`
and `learn` also restarts.

A value that was refused among others and has not been asked for alone is *suspect*: it is out of the plan until a sweep
(`sweep`) has searched it. A unit that gives no answer is *silent*: it is not polled, but asked apart from the others.

Times are of any clock that only goes forward. Core.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.ingest.modbus.address import Register
from agent.ingest.modbus.block import BlockDecoder
from agent.ingest.modbus.plan import Limits, Read, Span, plan_reads, read_of
from agent.ingest.modbus.refusal import SILENT
from agent.ingest.modbus.refusal_search import Finding, Place, Segment

SPAN_RETRY_NS = 3600 * 10**9  # a span that no tag needs as it is: refused for the device's design, not for its state
SPANS_MAX = 4_000  # of those; beyond, a device refuses at random, and nothing is learned by it
KEPT_MAX = 1_000  # reads that are not planned now, and whose decoders are kept because they may be again


@dataclass(frozen=True, slots=True)
class Pauses:
    """First pause before asking again, and the longest, to which it doubles."""

    first_ns: int
    longest_ns: int

    def after(self, pause_ns: int) -> int:
        """The pause that follows this one; 0: there was none."""
        return min(pause_ns * 2, self.longest_ns) if pause_ns else self.first_ns


@dataclass(slots=True)
class RefusedSpan:
    """The exception of a refused span, when to ask again, and the pause before that."""

    code: int
    at_ns: int
    pause_ns: int


class Planned:
    """A read of the plan with its decoder, kept for as long as the plan keeps the read."""

    __slots__ = ("decoder", "is_doubted", "is_proven", "read")

    def __init__(self, read: Read, tags: Mapping[Register, int]) -> None:
        self.read = read
        self.decoder = BlockDecoder(read, [tags[register] for register in read.registers])
        self.is_proven = False  # this very read was answered with values
        self.is_doubted = False  # it was refused at its last poll, for the moment


class Unit:
    """One unit."""

    def __init__(self, unit_id: int, points: Mapping[int, Register], limits: Limits, pauses: Pauses) -> None:
        self.unit_id = unit_id
        self.limits = limits
        self.tags: dict[Register, int] = {}
        self.intervals: frozenset[int] = frozenset()  # of its values, in ms
        self.suspects: list[Segment] = []
        self.proven: set[Register] = set()  # read at least once, since they are wanted
        self.is_silence_logged = False  # since it gave values last
        self.refused_version = 0  # increments when a refused span is learned or forgotten
        self._pauses = pauses
        self._refused: dict[Span, RefusedSpan] = {}
        self._places: dict[Span, Place] = {}
        self._unmarked: set[Span] = set()
        self._plans: dict[frozenset[int], list[Planned]] = {}
        self._kept: dict[Span, Planned] = {}
        self._silent: RefusedSpan | None = None
        self._unanswered_at_ns = 0  # when a read that is never answered may be asked for again: it costs a time-out
        self._questions = 0
        self.want(points)

    def want(self, points: Mapping[int, Register]) -> None:
        """Read these values from now on. What the unit has taught stays: its silence, and what it refuses."""
        before = self.tags
        self.tags = {register: tag for tag, register in points.items()}
        self.intervals = frozenset(register.poll_interval_ms for register in self.tags)
        self.proven &= self.tags.keys()
        places: dict[Span, list[Register]] = {}
        for register in self.tags:
            span = Span(self.unit_id, register.table, register.address, register.end)
            places.setdefault(span, []).append(register)
        self._places = {span: tuple(place) for span, place in places.items()}
        codes = {register: segment.code for segment in self.suspects for register in segment.waiting()}
        left = [register for register in codes if register in self.tags]
        self.suspects = [
            Segment.of(read.registers, codes[read.registers[0]], is_refused=False)
            for read in plan_reads(left, self.limits)
        ]
        if any(self.tags[register] != before.get(register) for register in self.tags):
            self.mark_parked_again()
        self.replan()
        proven = [planned.read for planned in self._kept.values() if planned.is_proven]
        self._kept = {}  # a decoder knows the numbers of the tags
        for read in proven:
            if all(register in self.tags for register in read.registers):
                self._kept[read.span] = again = Planned(read, self.tags)
                again.is_proven = True

    # --- silence ------------------------------------------------------------------------------------------------------

    @property
    def is_silent(self) -> bool:
        return self._silent is not None

    def fell_silent(self, now_ns: int) -> bool:
        """Note that there was no answer. True if that is news for the log: the first time since it gave values."""
        pause_ns = self._pauses.after(0 if self._silent is None else self._silent.pause_ns)
        self._silent = RefusedSpan(0, now_ns + pause_ns, pause_ns)
        is_news, self.is_silence_logged = not self.is_silence_logged, True
        return is_news

    def answered(self) -> None:
        """Note that there was an answer: it is polled again."""
        self._silent = None

    def returned(self) -> bool:
        """Note that it gave values. True if that is news for the log."""
        is_news, self.is_silence_logged = self.is_silence_logged, False
        return is_news

    def probe_at_ns(self) -> int | None:
        """When a silent unit is to be asked, None for one that answers."""
        return None if self._silent is None else self._silent.at_ns

    def probe(self) -> Read:
        """The question put to a silent unit: a read that was answered before, else each in turn. One that is never
        answered must not decide for all."""
        reads = [planned.read for plan in self._plans.values() for planned in plan if planned.is_proven]
        if not reads:
            spread = plan_reads([place[0] for place in self._places.values()], self.limits, self._refused)
            self._questions += 1
            reads = [spread[self._questions % len(spread)]]
        return reads[0]

    # --- the plan -----------------------------------------------------------------------------------------------------

    def all_tags(self) -> list[int]:
        return list(self.tags.values())

    def plan(self, due: frozenset[int]) -> list[Planned]:
        """The reads of all values whose poll interval is among these."""
        found = self._plans.get(due)
        if found is None:
            suspect = {register for segment in self.suspects for register in segment.waiting()}
            found = self._plans[due] = self.planned(
                register
                for span, place in self._places.items()
                if span not in self._refused
                for register in place
                if register.poll_interval_ms in due and register not in suspect
            )
        return found

    def planned(self, registers: Iterable[Register]) -> list[Planned]:
        """The reads of these registers. What is planned already is kept with its decoder."""
        found = []
        for read in plan_reads(registers, self.limits, self._refused):
            kept = self._kept.get(read.span)
            if kept is None or kept.read != read:
                kept = self._kept[read.span] = Planned(read, self.tags)
            found.append(kept)
        return found

    def proven_parts(self, registers: Sequence[Register]) -> list[Planned]:
        """Reads that were answered before, and those of what they leave, which together serve exactly these registers;
        none if there are no such."""
        left = set(registers)
        found: list[Planned] = []
        for planned in sorted(self._kept.values(), key=lambda one: -len(one.read.registers)):
            if planned.is_proven and left.issuperset(planned.read.registers):
                left.difference_update(planned.read.registers)
                found.append(planned)
        return found + self.planned(left) if found else []

    def replan(self) -> None:
        """Replan at the next sweep. Reads that stay as they are keep what is known of them."""
        if len(self._kept) > KEPT_MAX:
            self._kept = {}
        self._kept.update((planned.read.span, planned) for plan in self._plans.values() for planned in plan)
        self._plans = {}

    # --- refused spans ------------------------------------------------------------------------------------------------

    @property
    def parked_count(self) -> int:
        """Places that are refused by themselves."""
        return sum(span in self._places for span in self._refused)

    def refused_spans(self) -> dict[Span, int]:
        """What it refuses, with the exceptions."""
        return {span: refused.code for span, refused in self._refused.items()}

    def learn(self, refused: Mapping[Span, int]) -> None:
        """Take over what an earlier process learned. Each is asked for again soon, as nothing is known since."""
        for span, code in refused.items():
            self._refused[span] = RefusedSpan(code, 0, 0)
        self.mark_parked_again()
        self.replan()

    def mark_parked_again(self) -> None:
        """Record the status of each parked value again: its tag is new, or another loss was recorded since."""
        self._unmarked = {span for span in self._refused if span in self._places}

    def take_unmarked(self) -> list[tuple[Place, int]]:
        """Parked values whose refusal is to be recorded, each with the exception."""
        found = [(self._places[span], self._refused[span].code) for span in self._unmarked if span in self._places]
        self._unmarked = set()
        return found

    def note(self, finding: Finding, now_ns: int) -> bool:
        """Learn what was found. True if that is news: a value that was not parked."""
        span = finding.span
        known = self._refused.get(span)
        if finding.code == SILENT:
            self._unanswered_at_ns = now_ns + self._pauses.longest_ns
        is_needed = span in self._places
        if known is None and not is_needed and len(self._refused) - self.parked_count >= SPANS_MAX:
            return False
        pause_ns = self._pauses.after(0 if known is None else known.pause_ns) if is_needed else SPAN_RETRY_NS
        self._refused[span] = RefusedSpan(finding.code, now_ns + pause_ns, pause_ns)
        if known is None or known.code != finding.code:
            self.refused_version += 1
            if is_needed:
                self._unmarked.add(span)
        return known is None and is_needed

    def forget(self, span: Span) -> bool:
        """The unit gives what it refused. True if it was refused before."""
        if self._refused.pop(span, None) is None:
            return False
        self._unmarked.discard(span)
        self.refused_version += 1
        return True

    def refuses(self, span: Span) -> bool:
        """Whether a span is one that it refuses."""
        return span in self._refused

    def due_refused(self, now_ns: int, count_max: int) -> list[Span]:
        """Refused spans to ask for again now, the longest waiting first."""
        due = [
            (refused.at_ns, span.first, span)
            for span, refused in self._refused.items()
            if refused.at_ns <= now_ns and (refused.code != SILENT or self._unanswered_at_ns <= now_ns)
        ]
        due.sort(key=lambda one: one[:2])
        return [span for _, _, span in due[:count_max]]

    def place(self, span: Span) -> Place:
        """The registers that are exactly this span; none for one that no tag needs as it is."""
        return self._places.get(span, ())

    def suspect_parked(self) -> None:
        """A parked value is given again, so each may be: search them all, whole reads first."""
        suspect = {register for segment in self.suspects for register in segment.registers()}
        parked = {
            register: refused.code
            for span, refused in self._refused.items()
            for register in self._places.get(span, ())
            if register not in suspect
        }
        walls = [span for span in self._refused if span not in self._places]
        self.suspects += [
            Segment.of(read.registers, parked[read.registers[0]], is_refused=False)
            for read in plan_reads(parked, self.limits, walls)
        ]


def raw_read(span: Span, place: Sequence[Register]) -> Read:
    """The read of a refused span, whether or not a tag needs it."""
    if place:
        return read_of(place)
    return Read(span.unit_id, span.table, span.first, span.end - span.first, ())

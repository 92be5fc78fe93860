"""The state of a unit behind a line: its planned reads, the spans that it refuses, and whether it answers.

The spans of addresses that a unit refuses are kept with their exceptions, and no read covers one. A value whose own
span is refused is *parked*: it is requested alone, after pauses that double. Any other refused span is requested once
an hour. A refused span is forgotten when the unit answers it. Refused spans survive new tag maps.

A value that was refused together with others and not yet alone is *suspect*: it is not in the plan until a `sweep` has
searched it. A unit that does not answer is *silent*: it is not polled, but asked separately.

Times are of a monotonic clock. Core.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.ingest.modbus.address import Register
from agent.ingest.modbus.block import BlockDecoder
from agent.ingest.modbus.read_plan import Limits, Read, RegisterSpan, plan_reads, read_of
from agent.ingest.modbus.refusal import SILENT
from agent.ingest.modbus.refusal_search import Finding, Place, Segment

# For a span that is not a single value: it is refused because of the design of the device, not its state.
SPAN_RETRY_NS = 3600 * 10**9
SPANS_MAX = 4_000  # of such spans; a device with more refuses at random, and nothing is learned from it
KEPT_MAX = 1_000  # reads not planned now that are kept with their decoders, because they may be planned again


@dataclass(frozen=True, slots=True)
class Pauses:
    """The first pause before a request is repeated, and the longest. Pauses double."""

    first_ns: int
    longest_ns: int

    def after(self, pause_ns: int) -> int:
        """The pause after this one; 0: there was none."""
        return min(pause_ns * 2, self.longest_ns) if pause_ns else self.first_ns


@dataclass(slots=True)
class RefusedSpan:
    """The exception of a refused span, when to request it again, and the pause before that."""

    code: int
    at_ns: int
    pause_ns: int


class Planned:
    """A read of the plan with its decoder. It is kept as long as the plan has the read."""

    __slots__ = ("decoder", "is_doubted", "is_proven", "read")

    def __init__(self, read: Read, tags: Mapping[Register, int]) -> None:
        self.read = read
        self.decoder = BlockDecoder(read, [tags[register] for register in read.registers])
        self.is_proven = False  # exactly this read was answered with values
        self.is_doubted = False  # it was refused, perhaps temporarily, in its last poll


class Unit:
    """One unit."""

    def __init__(self, unit_id: int, points: Mapping[int, Register], limits: Limits, pauses: Pauses) -> None:
        self.unit_id = unit_id
        self.limits = limits
        self.tags: dict[Register, int] = {}
        self.intervals: frozenset[int] = frozenset()  # poll intervals of its values, in ms
        self.suspects: list[Segment] = []
        self.proven: set[Register] = set()  # read at least once since they are in the tag map
        self.is_silence_logged = False  # since it last gave values
        self.misses = 0  # polls in a row without an answer
        self.answered_ns: int | None = None  # time of its last values; None: none yet
        self._pauses = pauses
        self._refused: dict[RegisterSpan, RefusedSpan] = {}
        self._places: dict[RegisterSpan, Place] = {}
        self._unmarked: set[RegisterSpan] = set()
        self._plans: dict[frozenset[int], list[Planned]] = {}
        self._kept: dict[RegisterSpan, Planned] = {}
        self._silent: RefusedSpan | None = None
        self._unanswered_at_ns = 0  # when an unanswered read may be made again: it costs a time-out
        self._questions = 0
        self.want_registers(points)

    def want_registers(self, points: Mapping[int, Register]) -> None:
        """Read these values from now on. Its silence and its refused spans stay known."""
        before = self.tags
        self.tags = {register: tag for tag, register in points.items()}
        self.intervals = frozenset(register.poll_interval_ms for register in self.tags)
        self.proven &= self.tags.keys()
        places: dict[RegisterSpan, list[Register]] = {}
        for register in self.tags:
            span = RegisterSpan(self.unit_id, register.table, register.address, register.end)
            places.setdefault(span, []).append(register)
        for span in (places.keys() - self._places.keys()) & self._refused.keys():  # else it would wait for an hour
            self._refused[span] = RefusedSpan(self._refused[span].code, 0, 0)
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
        self._kept = {}  # a decoder holds the numbers of the tags
        for read in proven:
            if all(register in self.tags for register in read.registers):
                self._kept[read.span] = again = Planned(read, self.tags)
                again.is_proven = True

    # --- silence ------------------------------------------------------------------------------------------------------

    @property
    def is_silent(self) -> bool:
        return self._silent is not None

    def fell_silent(self, now_ns: int, pause_min_ns: int = 0) -> bool:
        """Note that the unit did not answer. True if that is to be logged: it is the first time since it gave
        values."""
        pause_ns = max(pause_min_ns, self._pauses.after(0 if self._silent is None else self._silent.pause_ns))
        self._silent = RefusedSpan(0, now_ns + pause_ns, pause_ns)
        is_news, self.is_silence_logged = not self.is_silence_logged, True
        return is_news

    def answered(self) -> None:
        """Note that the unit answered. It is polled again."""
        self._silent = None

    def returned(self) -> bool:
        """Note that the unit gave values. True if that is to be logged."""
        is_news, self.is_silence_logged = self.is_silence_logged, False
        return is_news

    def probe_at_ns(self) -> int | None:
        """When a silent unit is to be asked; None if it answers."""
        return None if self._silent is None else self._silent.at_ns

    def probe(self) -> Read:
        """The read with which a silent unit is asked: one that was answered before, otherwise each in turn, because one
        of them may never be answered."""
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
        """The reads of these registers. A read that is planned already is kept with its decoder."""
        found = []
        for read in plan_reads(registers, self.limits, self._refused):
            kept = self._kept.get(read.span)
            if kept is None or kept.read != read:
                kept = self._kept[read.span] = Planned(read, self.tags)
            found.append(kept)
        return found

    def proven_parts(self, registers: Sequence[Register]) -> list[Planned]:
        """Reads that were answered before, with reads of the rest, which together serve exactly these registers. None
        if none was answered."""
        left = set(registers)
        found: list[Planned] = []
        for planned in sorted(self._kept.values(), key=lambda kept: -len(kept.read.registers)):
            if planned.is_proven and left.issuperset(planned.read.registers):
                left.difference_update(planned.read.registers)
                found.append(planned)
        return found + self.planned(left) if found else []

    def replan(self) -> None:
        """Make a new plan at the next sweep. Unchanged reads keep their state."""
        if len(self._kept) > KEPT_MAX:
            self._kept = {}
        self._kept.update((planned.read.span, planned) for plan in self._plans.values() for planned in plan)
        self._plans = {}

    # --- refused spans ------------------------------------------------------------------------------------------------

    @property
    def parked_count(self) -> int:
        """The number of parked places."""
        return sum(span in self._places for span in self._refused)

    def mark_parked_again(self) -> None:
        """Record the status of each parked value again, because its tag is new or another loss was recorded since."""
        self._unmarked = {span for span in self._refused if span in self._places}

    def take_unmarked(self) -> list[tuple[Place, int]]:
        """The parked values whose refusal is to be recorded, with their exceptions."""
        found = [(self._places[span], self._refused[span].code) for span in self._unmarked if span in self._places]
        self._unmarked = set()
        return found

    def note_finding(self, finding: Finding, now_ns: int) -> bool:
        """Learn a finding. True if it parks a value."""
        span = finding.span
        known = self._refused.get(span)
        if finding.code == SILENT:
            self._unanswered_at_ns = now_ns + self._pauses.longest_ns
        is_needed = span in self._places
        if known is None and not is_needed and len(self._refused) - self.parked_count >= SPANS_MAX:
            return False
        pause_ns = self._pauses.after(0 if known is None else known.pause_ns) if is_needed else SPAN_RETRY_NS
        self._refused[span] = RefusedSpan(finding.code, now_ns + pause_ns, pause_ns)
        if is_needed and (known is None or known.code != finding.code):
            self._unmarked.add(span)
        return known is None and is_needed

    def forget_refused(self, span: RegisterSpan) -> bool:
        """The unit answers this span. True if it was refused before."""
        if self._refused.pop(span, None) is None:
            return False
        self._unmarked.discard(span)
        return True

    def refuses(self, span: RegisterSpan) -> bool:
        """Whether this span is refused."""
        return span in self._refused

    def due_refused(self, now_ns: int, count_max: int) -> list[RegisterSpan]:
        """Refused spans to request again now; those waiting longest come first."""
        due = [
            (refused.at_ns, span.first, span)
            for span, refused in self._refused.items()
            if refused.at_ns <= now_ns and (refused.code != SILENT or self._unanswered_at_ns <= now_ns)
        ]
        due.sort(key=lambda entry: entry[:2])
        return [span for _, _, span in due[:count_max]]

    def place(self, span: RegisterSpan) -> Place:
        """The registers that are exactly this span; none if no tag has it."""
        return self._places.get(span, ())

    def suspect_parked(self) -> None:
        """Search all parked values, whole reads first: one was answered, so all may be."""
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


def raw_read(span: RegisterSpan, place: Sequence[Register]) -> Read:
    """The read of a refused span, whether or not a tag has it."""
    if place:
        return read_of(place)
    return Read(span.unit_id, span.table, span.first, span.end - span.first, ())

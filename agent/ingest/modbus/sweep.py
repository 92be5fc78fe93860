"""One poll of one unit: decides which reads to request, and interprets each outcome. Core.

A sweep makes the reads of the plan. Then it searches suspect values and asks again for refused spans that are due. The
caller may end the search between two reads, because the slot is over; the next sweep continues it. Promises:

  * when the sweep ends, each value that is due has been read, or is in `marks` with the exception that prevents it;
  * a read that is refused for its addresses is searched at once. A read that may be refused temporarily (exceptions 4
    and above) is searched when two sweeps in a row refuse it, so that a busy device is not asked for the parts;
  * if a read with a new value is refused, the values that were read before are requested without the new one in the
    same sweep;
  * the search pauses after REFUSALS_MAX values in a row were refused alone, and makes at most SEARCH_MAX reads, so that
    a unit that refuses everything gets few requests a sweep;
  * a unit is silent if it does not answer the first reads of a sweep. If it answers others, an unanswered read counts
    as refused (`SILENT`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from agent.ingest.modbus.address import Register
from agent.ingest.modbus.block import BlockDecoder
from agent.ingest.modbus.read_plan import Read, RegisterSpan
from agent.ingest.modbus.refusal import SILENT, is_about_address
from agent.ingest.modbus.refusal_search import Finding, Place, Segment
from agent.ingest.modbus.units import Planned, Unit, raw_read

REFUSALS_MAX = 8
SEARCH_MAX = 200
PROBES_MAX = 8  # refused spans requested again in one sweep


@dataclass(frozen=True, slots=True)
class Question:
    """A read to make, and the decoder of its answer."""

    read: Read
    decoder: BlockDecoder


class Sweep:
    """One poll of one unit, for the values of these poll intervals (ms)."""

    def __init__(self, unit: Unit, due: frozenset[int], now_ns: int) -> None:
        self._unit, self._now_ns = unit, now_ns
        plan = sorted(unit.plan(due), key=lambda planned: not planned.is_proven)  # proven reads first
        self._plan = deque(plan)  # tidy: no longer than one read for each value
        self._spans = deque[RegisterSpan](unit.due_refused(now_ns, PROBES_MAX))
        self._served: set[Register] = set()  # read by the search or during it
        self._asked: Planned | Segment | RegisterSpan | None = None
        self._searched = self._refusals = 0
        self._has_answered = self._has_values = self._was_unanswered = self._is_changed = False
        self._marks: list[tuple[Iterable[Register], int]] = []
        self.parked: list[tuple[Place, int]] = []  # new, for the log
        self.returned: list[Place] = []

    def tag(self, register: Register) -> int:
        """The tag of a register."""
        return self._unit.tags[register]

    def planned(self) -> Question | None:
        """The next read of the plan."""
        if not self._plan:
            return None
        planned = self._asked = self._plan.popleft()
        return Question(planned.read, planned.decoder)

    def search(self) -> Question | None:
        """The next read of the search; None when it pauses or is done."""
        if self._searched >= SEARCH_MAX or self._refusals >= REFUSALS_MAX:
            return None
        if self._unit.suspects:
            segment = self._asked = self._unit.suspects[0]
            read = segment.question()
            new = tuple(register for register in read.registers if register not in self._served)
            read = Read(read.unit_id, read.table, read.address, read.count, new)
            return self._question(read)
        # If the unit gives no value at all, one refused span shows whether it has recovered.
        if not (self._spans or self._has_values):
            self._spans.extend(self._unit.due_refused(2**63, 1))
            self._has_values = True
        while self._spans:
            span = self._asked = self._spans.popleft()
            if not self._unit.refuses(span):
                continue  # the search has read it
            return self._question(raw_read(span, self._unit.place(span)))
        return None

    def _question(self, read: Read) -> Question:
        self._searched += 1
        tags = self._unit.tags
        return Question(read, BlockDecoder(read, [tags[register] for register in read.registers]))

    def answered(self, question: Question) -> None:
        """The read was answered with values."""
        asked, self._asked = self._asked, None
        self._has_answered, self._was_unanswered, self._has_values = True, False, True
        if isinstance(asked, Planned):
            if not asked.is_proven:
                asked.is_proven = True
                self._unit.proven.update(asked.read.registers)
            asked.is_doubted = False
            if self._unit.suspects:  # values found good by a continuing search are also in the plan
                self._served.update(asked.read.registers)
            return
        self._refusals = 0
        registers = question.read.registers
        self._served.update(registers)
        self._unit.proven.update(registers)
        if isinstance(asked, Segment):
            for span in {_span(register) for register in registers}:
                self._give_back(span)
            asked.answered()
            self._conclude(asked)
        else:
            assert asked is not None, "an answer follows a question"
            if self._give_back(asked) and self._unit.place(asked):
                self._unit.suspect_parked()

    def refused(self, code: int) -> None:
        """The read was refused with a Modbus exception."""
        self._has_answered = True
        self._was_unanswered = False
        self._note_refusal(code)

    def unanswered(self) -> bool:
        """The read was not answered. True if the unit counts as silent now."""
        asked = self._asked
        is_new = isinstance(asked, Planned) and not asked.is_proven and bool(self._unit.proven)
        if self._was_unanswered or not (self._has_answered or is_new):
            return True
        self._was_unanswered = True
        self._refusals = REFUSALS_MAX  # no search afterwards: each time-out takes time from the other units
        self._note_refusal(SILENT)
        return False

    def marks(self) -> list[tuple[list[Register], int]]:
        """End the sweep. Returns the values that are due and were not read, with the exceptions that prevent it."""
        unit = self._unit
        found = [
            ([register for register in registers if register not in self._served], code)
            for registers, code in self._marks
        ]
        found += [(list(place), code) for place, code in unit.take_unmarked()]
        for segment in unit.suspects:
            given = self._served.intersection(segment.waiting())
            if given:
                segment.given |= given
                self._is_changed = True
            found.append((segment.waiting(), segment.code))
        if self._is_changed:
            unit.replan()
        return [(registers, code) for registers, code in found if registers]

    def _note_refusal(self, code: int) -> None:
        asked, self._asked = self._asked, None
        assert asked is not None, "a refusal follows a question"
        if isinstance(asked, Planned):
            self._judge(asked, code)
        elif isinstance(asked, Segment):
            self._refusals += asked.is_single
            asked.refused(code)
            self._conclude(asked)
        else:
            self._refusals += 1
            self._unit.note_finding(Finding(asked, code, self._unit.place(asked)), self._now_ns)

    def _judge(self, planned: Planned, code: int) -> None:
        """A read of the plan was refused."""
        proven = self._unit.proven
        registers = planned.read.registers
        known = [register for register in registers if register in proven]
        is_as_before = planned.is_proven or not known  # either nothing or everything in it is new
        if is_as_before and not is_about_address(code) and not planned.is_doubted:
            planned.is_doubted = True
            self._marks.append((registers, code))
            return
        self._is_changed = True
        if not planned.is_proven and known and len(known) < len(registers):
            new = [register for register in registers if register not in proven]
            self._plan.extendleft(reversed(self._unit.planned(known)))
            self._suspect(Segment.of(new, code, is_refused=False))
        elif not planned.is_proven and (parts := self._unit.proven_parts(registers)):
            self._plan.extendleft(parts)
            if is_about_address(code) or planned.is_doubted:
                self._part(planned, code)
            planned.is_doubted = True
        else:
            self._suspect(Segment.of(registers, code, is_refused=True))

    def _part(self, planned: Planned, code: int) -> None:
        """A read joins reads that were answered, and is refused: search for the reason, while the parts go on being
        read."""
        if not self._unit.place(planned.read.span):  # otherwise the value would be parked
            self._unit.note_finding(
                Finding(planned.read.span, code), self._now_ns
            )  # until the search finds a shorter span
        searched = {register for segment in self._unit.suspects for register in segment.registers()}
        if searched.isdisjoint(planned.read.registers):
            segment = Segment.of(planned.read.registers, code, is_refused=True)
            segment.given.update(planned.read.registers)
            self._suspect(segment)

    def _suspect(self, segment: Segment) -> None:
        self._unit.suspects.append(segment)
        self._conclude(segment)

    def _conclude(self, segment: Segment) -> None:
        """Learn what a segment has found, and remove it when it is done."""
        for finding in segment.take_findings():
            self._is_changed = True
            if self._unit.note_finding(finding, self._now_ns):
                self.parked.append((self._unit.place(finding.span), finding.code))
        if segment.is_done:
            self._is_changed = True
            self._unit.suspects.remove(segment)

    def _give_back(self, span: RegisterSpan) -> bool:
        """The unit answered a span. True if it was refused before."""
        if not self._unit.forget_refused(span):
            return False
        self._is_changed = True
        self.returned.append(self._unit.place(span))
        return True


def _span(register: Register) -> RegisterSpan:
    return RegisterSpan(register.unit_id, register.table, register.address, register.end)

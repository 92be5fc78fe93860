"""Finds the part of a refused read that the device refuses. It needs few requests, and they also return the other
values.

A `Segment` holds values in the order of addresses. It requests the first n of them, and halves the distance between the
largest n that was read and the smallest that was refused, until one value makes the difference. That value is then
requested alone. If it is refused, it is the cause. If not, the device refuses it together with the values before it (a
hole between them, the border of a block, a read that is too long). Then the search continues after it.

After two values in a row were refused alone, the search starts with one value instead of all. So a missing block costs
one request a value, not two. Core.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from agent.ingest.modbus.address import Register
from agent.ingest.modbus.read_plan import Read, RegisterSpan, read_of
from agent.ingest.modbus.refusal import is_about_address

Place = tuple[Register, ...]
"""The registers on the same addresses (such as several bits of one word). They are refused together."""

RUN_OF_REFUSALS = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """A span that the device refuses, although it answered each smaller part that was requested. `place` is set if the
    span is a single place."""

    span: RegisterSpan
    code: int
    place: Place = ()


class SegmentStep(Enum):
    """What a segment requests next."""

    PREFIX = "the first n places"
    SINGLE = "the place that turned reading into refusal"
    PAIR = "that place and the one before"
    CONFIRM = "the span that seems to be refused as a whole, once more"


class Segment:
    """Places to be searched, in the order of addresses. `is_refused`: a read of all of them was just refused."""

    def __init__(self, places: Sequence[Place], code: int, *, is_refused: bool) -> None:
        self.places = tuple(places)  # not decided yet
        self.code = code  # exception of the last refusal
        self.given: set[Register] = set()  # read in earlier polls of this search; the plan reads them too
        self._good = 0  # the first n that were read together
        self._refused = len(self.places) if is_refused else 0  # the first n that were refused together; 0: none were
        self._run = 0  # places in a row that were refused alone, just before these
        self._step = SegmentStep.PREFIX
        self._suspect: tuple[int, int] = (0, 0)  # from, to: requested by CONFIRM
        self._findings: list[Finding] = []
        self._advance()

    @classmethod
    def of(cls, registers: Iterable[Register], code: int, *, is_refused: bool) -> Segment:
        """A segment of registers in the order of addresses."""
        places: list[list[Register]] = []
        for register in registers:
            if places and (places[-1][0].address, places[-1][0].count) == (register.address, register.count):
                places[-1].append(register)
            else:
                places.append([register])
        return cls([tuple(place) for place in places], code, is_refused=is_refused)

    @property
    def is_done(self) -> bool:
        """Whether each place was read or is known to be refused."""
        return not self.places

    @property
    def is_single(self) -> bool:
        """Whether the next read is for a single place."""
        first, end = self._range()
        return end - first == 1

    def registers(self) -> list[Register]:
        """The registers that are not decided yet."""
        return [register for place in self.places for register in place]

    def waiting(self) -> list[Register]:
        """The registers of `registers()` that were not read since the search began."""
        return [register for register in self.registers() if register not in self.given]

    def take_findings(self) -> list[Finding]:
        """The findings since the last call."""
        found, self._findings = self._findings, []
        return found

    def question(self) -> Read:
        """The next read."""
        first, end = self._range()
        return read_of([register for place in self.places[first:end] for register in place])

    def answered(self) -> None:
        """The question was answered with values."""
        match self._step:
            case SegmentStep.PREFIX:
                self._good = self._range()[1]
            case SegmentStep.SINGLE:
                self._step = SegmentStep.PAIR
                if self._good == 1:  # the pair is the prefix that was refused
                    self._suspect_span(0)
                    return
            case SegmentStep.PAIR:
                self._suspect_span(0)
                return
            case SegmentStep.CONFIRM:  # the refusal was temporary after all
                self._cut(self._good, run=0)
        self._advance()

    def refused(self, code: int) -> None:
        """The question was refused."""
        self.code = code
        match self._step:
            case SegmentStep.PREFIX:
                self._refused = self._range()[1]
            case SegmentStep.SINGLE:
                self._find_place()
            case SegmentStep.PAIR:
                self._suspect_span(self._good - 1)
                return
            case SegmentStep.CONFIRM:
                self._find_span()
        self._advance()

    def _range(self) -> tuple[int, int]:
        """The indices of the places to request now: from, to."""
        match self._step:
            case SegmentStep.PREFIX:
                return 0, self._size()
            case SegmentStep.SINGLE:
                return self._good, self._good + 1
            case SegmentStep.PAIR:
                return self._good - 1, self._good + 1
            case SegmentStep.CONFIRM:
                return self._suspect

    def _size(self) -> int:
        """How many places to request: halfway between read and refused, but after refused places at most twice what was
        read."""
        widened = max(1, 2 * self._good)
        if not self._refused:
            return len(self.places) if self._run < RUN_OF_REFUSALS else min(widened, len(self.places))
        middle = (self._good + self._refused) // 2
        return min(widened, middle) if self._run else middle

    def _advance(self) -> None:
        """Conclude what needs no further request."""
        if self._step is not SegmentStep.PREFIX:
            return
        if self._good == len(self.places):
            self.places = ()
        elif self._refused == 1:
            self._find_place()
        elif self._refused == self._good + 1:
            self._step = SegmentStep.SINGLE

    def _find_place(self) -> None:
        """The place after the good ones is refused alone."""
        place = self.places[self._good]
        self._findings.append(Finding(read_of(place).span, self.code, place))
        self._cut(self._good + 1, run=1 if self._good else self._run + 1)
        self._advance()

    def _suspect_span(self, first: int) -> None:
        """The places from `first` up to the one after the good ones were refused together."""
        self._suspect = first, self._good + 1
        if is_about_address(self.code):
            self._find_span()
            self._advance()
        else:
            self._step = SegmentStep.CONFIRM

    def _find_span(self) -> None:
        first, end = self._suspect
        span = read_of([register for place in self.places[first:end] for register in place]).span
        if all(read_of(place).span != span for place in self.places[first:end]):  # otherwise it was just read
            self._findings.append(Finding(span, self.code))
        self._cut(self._good, run=0)

    def _cut(self, count: int, run: int) -> None:
        """The first `count` places are decided. Continue after them."""
        self.places = self.places[count:]
        self._good = self._refused = 0
        self._run, self._step = run, SegmentStep.PREFIX

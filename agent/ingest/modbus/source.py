"""A Modbus source: polls every unit at fixed intervals and delivers the values.

`poll_grid` decides what is due. `sweep` decides what to request from a unit and interprets the answers. One connection
polls the units that answer, one after the other: first the planned reads of all units, then, in the rest of the slot,
the search for what they refuse. A silent unit is asked over a second connection, so that its time-outs do not delay the
others. If there is only one connection (a serial line, `connections_max = 1`, or the second is refused), or if a
gateway waits for the silent unit meanwhile, it is asked rarely over that one, at the end of a poll.

A life ends with SourceLost when the connection is gone or no unit answers. A new tag map is taken over between two
polls. Missed polls become a gap fact. The source never writes to a device.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain

from agent.columns import SampleColumns
from agent.concurrency import TaskGroup
from agent.ingest import quality
from agent.ingest.completeness import Moment, Stored
from agent.ingest.delivery import Delivery
from agent.ingest.errors import SourceLost
from agent.ingest.gap import POLLS_MISSED, STORE_REFUSED
from agent.ingest.lifecycle import Backoff
from agent.ingest.modbus.address import Register
from agent.ingest.modbus.counters import CounterTracker, fall_message
from agent.ingest.modbus.explore.device import read_tags_over
from agent.ingest.modbus.line import Endpoints, Line, ReadRefused, UnitGarbled, UnitSilent
from agent.ingest.modbus.poll_grid import MS, Missed, PollGrid
from agent.ingest.modbus.read_plan import Limits, Read
from agent.ingest.modbus.refusal import quality_of, reason
from agent.ingest.modbus.sweep import Question, Sweep
from agent.ingest.modbus.units import Pauses, Unit
from agent.ingest.probe_result import ReadTags
from agent.ingest.source_clock import SourceClock, boot_ns
from agent.settings.sources import ModbusSourceSettings

log = logging.getLogger(__name__)

FIRST_POLL_NS = 10 * 10**9  # time for the first poll of a life, search included
MISSES_MAX = 2  # polls in a row without an answer, until a unit counts as silent
HOLD_PART = 20  # a silent unit that holds the line is asked at most in this part of the time
UNITS_ASKED_AGAIN = 3  # before all count as silent: each costs a time-out
STANDBY_TICK_S = 1.0  # between two looks at a line that nothing is asked over
STANDBY_LINE_S = (
    60.0  # until it is opened anew: an idle connection does not show that the device or a firewall forgot it
)
SEARCH_PART = 0.8  # part of the time up to the next slot that the search may take, so that the next poll begins in time


class ModbusSource:
    """One device or gateway. The object exists across connections and keeps what was learned about the units."""

    backfill = events = service_level = None  # a device has none of these

    def __init__(
        self,
        settings: ModbusSourceSettings,
        endpoints: Endpoints,
        delivery: Delivery,
    ) -> None:
        """Sources with the same of `endpoints` share a line."""
        self._settings, self._delivery = settings, delivery
        self.clock = SourceClock(doubted=delivery.recorder.doubted, is_ours=True)
        self._line = Line(settings, endpoints.of(settings))
        self._asked_silent_ns = 0  # when a unit that holds the line was last asked
        self._holders_logged: frozenset[int] = frozenset()
        self._missing_logged = set[int]()  # units that missed a request in this life, or have been silent since
        self._points: Mapping[int, Register] = delivery.points  # those of the units
        self._units = self._units_for(delivery.points, [])
        self._counters = CounterTracker(self._moduli(), lambda tag: delivery.sampler.last(tag)[1:3])
        self._read_samples: list[SampleColumns] = []  # read and not yet delivered
        self._silence = asyncio.Event()  # set when a unit has fallen silent
        self.read_tags: ReadTags | None = None  # over the open connection, because a device may not accept another
        self.polls_total = self.polls_missed_total = self.polls_late_total = 0
        self.alive_s = 0.0
        self.complete: Moment | None = None
        self._poll_began = self.clock.now()  # later slots may be missed, which is known when the poll is over
        self._is_missing_logged = False
        self._takes_one_line = False  # the device closed a second connection in this life
        self._verb_missing = "answers"  # what the unit that fell silent last does not do, for the message

    def retry(self) -> None:
        """Request everything that is refused in the next poll."""
        for unit in self._units:
            unit.suspect_parked()

    def continue_from(self, stored: Mapping[str, Stored], reason: str) -> None:
        """Does nothing, because a device has no clock and keeps nothing for us."""

    def take_missed(self) -> bool:
        """Values are always missing, because a device keeps none."""
        return True

    async def run(self, on_up: Callable[[], None]) -> None:
        """One life: connect, poll until something breaks. Ends only by an exception."""
        await self._take_over_map()
        for unit in self._units:
            unit.answered()  # over a new connection every unit is polled again
            unit.mark_parked_again()
            unit.replan()  # the last life may have ended during a search
        self._silence.clear()
        self._missing_logged &= {unit.unit_id for unit in self._units if unit.misses}  # still the same silence
        self._is_missing_logged = self._takes_one_line = False
        settings = self._settings
        if settings.connections_max == 1:  # it is for the gateway that records
            await self._stand_by(None)
        async with self._line as line:
            await self._stand_by(line)
            for part, known in (self._delivery.doubted_parts | {"": Stored(self.clock.now_ns())}).items():
                await self._delivery.recorder.begin_complete(part, known)
            # Slots that pass meanwhile are missed: the outage ends with the first values, and the store may make us
            # wait.
            grid, refused = PollGrid(self._intervals(), boot_ns()), self._delivery.recorder.refused_total
            # The first poll has time for the search: most refusals are found here.
            self._poll_began = self.clock.now()
            await self._poll_all(line, self._intervals(), boot_ns() + FIRST_POLL_NS)
            is_alive = not all(unit.is_silent for unit in self._units)
            for unit in self._units[:UNITS_ASKED_AGAIN]:
                is_alive = is_alive or await self._answers(line, unit)
            if not is_alive:
                none = f"{settings.where} accepts connections but none of its units"
                raise SourceLost(self._silence_text(line, none, ""))
            self.read_tags = partial(read_tags_over, line, settings)
            on_up()
            await self._delivery.deliver_due(self.clock.now_ns())  # the gap that ends now, not with the next poll
            async with TaskGroup() as group:
                group.create_permanent(self._poll(line, grid, refused), name=f"{settings.name} poll")
                group.create_permanent(self._probe(line), name=f"{settings.name} probe")

    async def _stand_by(self, line: Line | None) -> None:
        """Keep the line open while another gateway records. A connection that the device ends is opened again after
        pauses that double."""
        backoff, ends = Backoff(self._settings.reconnect_delay_ms, self._settings.reconnect_delay_max_ms), 0
        while self._delivery.is_standby:
            self.alive_s = time.monotonic()
            await self._take_over_map()
            is_ended = line is not None and not line.is_open
            ends += is_ended
            await self._delivery.stand_by(
                backoff.wait_ms(ends, random.random()) / 1000 if is_ended else STANDBY_TICK_S  # noqa: S311 jitter
            )
            if line is not None and self._delivery.is_standby:  # otherwise the poll opens it
                await line.keep_open(STANDBY_LINE_S)

    async def finish(self) -> None:
        """Deliver what was read."""
        await self._flush()

    # --- units and what is known of them ------------------------------------------------------------------------------

    def _units_for(self, points: Mapping[int, Register], known: Sequence[Unit]) -> list[Unit]:
        """The units of these registers. A known unit keeps what was learned about it."""
        settings = self._settings
        limits = Limits(settings.registers_per_read_max, settings.hole_max)
        pauses = Pauses(settings.unit_retry_ms * MS, settings.unit_retry_max_ms * MS)
        by_unit: dict[int, dict[int, Register]] = {}
        for tag, register in points.items():
            by_unit.setdefault(register.unit_id, {})[tag] = register
        units = {unit.unit_id: unit for unit in known}
        for unit_id, part in by_unit.items():
            if unit_id in units:
                units[unit_id].want_registers(part)
            else:
                units[unit_id] = Unit(unit_id, part, limits, pauses)
        return [units[unit_id] for unit_id in sorted(by_unit)]

    def _moduli(self) -> dict[int, int | float]:
        """The modulus of each counter, in units of its values."""
        return {tag: point.counter * point.kind.scale for tag, point in self._points.items() if point.counter}

    def _intervals(self) -> frozenset[int]:
        """All poll intervals, in ms."""
        return frozenset(chain.from_iterable(unit.intervals for unit in self._units))

    async def _take_over_map(self) -> bool:
        """Take over a new tag map, if there is one. Called only between polls, because a read and its samples belong to
        one map."""
        self._delivery.take_over_map(self.clock.now_ns())
        if self._delivery.points is self._points:
            return False
        self._points = self._delivery.points
        before, self._units = self._units, self._units_for(self._points, self._units)
        for unit in before:
            if unit not in self._units:
                self._line.forget_unit(unit.unit_id)
        self._counters.keep(self._moduli())
        await self._delivery.recorder.settle()
        return True

    # --- polling ------------------------------------------------------------------------------------------------------

    async def _poll(self, line: Line, grid: PollGrid, refused_before: int) -> None:
        """Poll at each slot of the grid. `refused_before`: how often the store had refused when it began."""
        while True:
            await asyncio.sleep(max(0, grid.next_ns() - boot_ns()) / 1e9)
            now_ns, self._poll_began = boot_ns(), self.clock.now()  # before the store may make us wait
            slot = grid.take_slot(now_ns)
            self.polls_total += 1
            self.polls_late_total += slot.late
            if slot.missed:
                refused = self._delivery.recorder.refused_total != refused_before
                self._note_missed(slot.missed, time.time_ns() - now_ns, STORE_REFUSED if refused else POLLS_MISSED)
            refused_before = self._delivery.recorder.refused_total
            if await self._take_over_map():
                grid.keep(self._intervals(), now_ns)
                # Some of these had a value at another unit.
                silent = [tag for unit in self._units if unit.is_silent for tag in unit.all_tags()]
                await self._delivery.lose(quality.BAD_TIMEOUT, self._poll_began.time_ns, silent)
            if slot.due:
                await self._poll_all(line, slot.due, grid.next_ns())
            if all(unit.is_silent for unit in self._units):
                raise SourceLost(self._silence_text(line, f"none of the units at {self._settings.where}", " any more"))
            await self._ask_silent(line)
            await line.end_poll()

    def _silence_text(self, line: Line, none: str, since: str) -> str:
        """Why the source is lost if no unit answers."""
        if line.late_text:
            return f"{self._settings.where}: {line.late_text}"
        return f"{none} {self._verb_missing}{since}"

    async def _poll_all(self, line: Line, due: frozenset[int], next_ns: int) -> None:
        """Poll the values of these intervals. The search ends before the next slot."""
        now_ns = boot_ns()
        search_end_ns = now_ns + int((next_ns - now_ns) * SEARCH_PART)
        sweeps: list[tuple[Unit, Sweep]] = []
        for unit in self._units:
            wanted = due & unit.intervals
            if unit.is_silent or not wanted:
                continue
            sweep = Sweep(unit, wanted, now_ns)
            if await self._ask(line, unit, sweep, sweep.planned, 2**63):
                sweeps.append((unit, sweep))
            await self._flush()
        await self._flush()
        for unit, sweep in sweeps:
            if await self._ask(line, unit, sweep, sweep.search, search_end_ns):
                await self._flush()
                await self._mark(sweep)
        await self._delivery.deliver_due(self.clock.now_ns())
        if self.complete is not None:
            await self._delivery.note_complete({"": self.clock.stored(self.complete)})

    async def _ask(
        self, line: Line, unit: Unit, sweep: Sweep, next_question: Callable[[], Question | None], end_ns: int
    ) -> bool:
        """Make the reads of the sweep, at least one. False if the unit fell silent."""
        while (question := next_question()) is not None:
            try:
                data = await self._read(line, unit, question.read)
            except ReadRefused as error:
                sweep.refused(error.code)
            except UnitSilent as error:
                if sweep.unanswered():
                    sweep.marks()
                    unit.misses += 1
                    if self._may_be_late(line, unit) and unit.misses < MISSES_MAX:
                        await self._note_missing(unit, error)
                    else:
                        await self._note_silence(line, unit, error)
                    return False
            else:
                now_ns = unit.answered_ns = self.clock.now_ns()
                self.alive_s, self.complete = time.monotonic(), self._poll_began
                unit.misses = 0
                self._read_samples.append(question.decoder.decode(data, now_ns))
                sweep.answered(question)
                if unit.returned():
                    extra = {"action": "unit_returned", "source": self._settings.name, "unit": unit.unit_id}
                    log.info("unit returned", extra=extra)
            if boot_ns() >= end_ns:
                break
        return True

    async def _read(self, line: Line, unit: Unit, read: Read) -> bytes:
        """The data of a read. One that is not answered is made once more: a late or lost answer is no silence."""
        try:
            return await line.read_bytes(read)
        except UnitSilent as error:
            if not self._may_be_late(line, unit):
                raise
            self._log_missing(unit, error)
            return await line.read_bytes(read)

    def _may_be_late(self, line: Line, unit: Unit) -> bool:
        """Whether a unit that does not answer is tried again: it has answered, and its silence costs only the
        time-out."""
        return unit.answered_ns is not None and unit.unit_id not in line.hold_ms

    async def _flush(self) -> None:
        """Deliver what was read."""
        read, self._read_samples = self._read_samples, []
        if not read:
            return
        samples = (
            read[0] if len(read) == 1 else SampleColumns._make(list(chain(*parts)) for parts in zip(*read, strict=True))
        )
        recorder = self._delivery.recorder
        for fall in self._counters.falls(samples):
            (subject,) = self._delivery.subjects([fall.tag])
            recorder.hand_in_fact(fall_message(fall, subject, recorder.zone), fall.after_ns)
        await self._delivery.deliver(samples, self.clock.now_ns())

    async def _mark(self, sweep: Sweep) -> None:
        """Record what a sweep could not read, and log new refusals."""
        for registers, code in sweep.marks():
            tags = list(map(sweep.tag, registers))
            await self._delivery.lose(quality_of(code), self.clock.now_ns(), tags, corrects=True)
        self._log_refused(sweep)

    def _log_refused(self, sweep: Sweep) -> None:
        """Log newly refused tags, one line for each reason, and tags that are read again."""
        by_code: dict[int, list[int]] = {}
        for place, code in sweep.parked:
            by_code.setdefault(code, []).extend(map(sweep.tag, place))
        for code, tags in by_code.items():
            extra = {"action": "tags_parked", "source": self._settings.name, "why": reason(code)}
            log.warning(
                "the device refuses these tags; they are tried again later", extra=extra | self._delivery.named(tags)
            )
        returned = [sweep.tag(register) for place in sweep.returned for register in place]
        if returned:
            extra = {"action": "tags_returned", "source": self._settings.name}
            log.info("tags that were refused are read again", extra=extra | self._delivery.named(returned))

    def _note_missed(self, missed: Iterable[Missed], clock_offset_ns: int, why: str) -> None:
        """Count missed slots and note the gap. `clock_offset_ns`: wall clock minus monotonic clock."""
        for gap in missed:
            self.polls_missed_total += gap.count
            tags = [
                tag
                for unit in self._units
                if not unit.is_silent
                for register, tag in unit.tags.items()
                if register.poll_interval_ms == gap.interval_ms
            ]
            first_ns, last_ns = gap.first_ns + clock_offset_ns, gap.last_ns + clock_offset_ns
            self._delivery.add_gap(why, first_ns, last_ns, gap.count * len(tags), tags, exact=True)
        if not self._is_missing_logged:
            self._is_missing_logged = True
            extra = {"action": "polls_missed", "source": self._settings.name, "why": why}
            log.warning("polls are missed: the device or the store is slower than the poll interval", extra=extra)

    # --- silent units -------------------------------------------------------------------------------------------------

    async def _probe(self, main: Line) -> None:
        """Ask each silent unit when it is due, over the second connection if there is one."""
        while True:
            silent = [unit for unit in self._units if unit.is_silent]
            if not silent or self._has_one_line(main):
                self._silence.clear()
                await self._silence.wait()
                continue
            unit = min(silent, key=lambda u: u.probe_at_ns() or 0)
            await asyncio.sleep(max(0, (unit.probe_at_ns() or 0) - boot_ns()) / 1e9)
            if not unit.is_silent or self._has_one_line(main):
                continue
            has_answered = False
            try:
                async with Line(self._settings) as line:
                    has_answered = await self._answers(line, unit)
                    if not has_answered:
                        await self._try_side_line(line)
            except SourceLost:
                self._takes_one_line = True  # it refuses a second connection, or accepts and closes it
                continue  # asked over the main one at the end of the next poll
            if not has_answered:
                unit.fell_silent(boot_ns())

    def _has_one_line(self, main: Line) -> bool:
        """Whether silent units can be asked over the main connection only: there is no other one, or what they are
        asked over it occupies the same serial line."""
        return self._takes_one_line or not self._settings.has_second_connection or main.is_shared or bool(main.hold_ms)

    async def _ask_silent(self, line: Line) -> None:
        """Ask one silent unit over the main connection, at the end of a poll, so that its silence falls into the pause.
        Two that hold the line are asked apart."""
        now_ns = boot_ns()
        if not self._has_one_line(line):
            self._silence.set()  # what held the line may have answered: `_probe` goes on
            return
        longest_ns = max(line.hold_ms.values(), default=0) * MS
        may_hold = now_ns - self._asked_silent_ns >= HOLD_PART * longest_ns
        due = [
            unit
            for unit in self._units
            if unit.is_silent and (unit.probe_at_ns() or 0) <= now_ns and (may_hold or unit.unit_id not in line.hold_ms)
        ]
        if not due:
            return
        unit = min(due, key=lambda u: u.probe_at_ns() or 0)
        if not await self._answers(line, unit):
            unit.fell_silent(boot_ns(), self._pause_min_ns(line, unit))
            self._log_hold(line, unit)
        if unit.unit_id in line.hold_ms:
            self._asked_silent_ns = now_ns

    def _pause_min_ns(self, line: Line, unit: Unit) -> int:
        """The shortest pause before a silent unit is asked again: what its silence costs the others stays a small part
        of the time."""
        return HOLD_PART * line.hold_ms.get(unit.unit_id, 0) * max(1, len(line.hold_ms)) * MS

    def _log_hold(self, line: Line, unit: Unit) -> None:
        """Log once that a silent unit holds the line."""
        if unit.unit_id in line.hold_ms and unit.unit_id not in self._holders_logged:
            extra = {"action": "unit_holds_line", "source": self._settings.name, "unit": unit.unit_id}
            log.warning(
                "a silent unit holds the line; the others wait for it, so it is asked rarely",
                extra={**extra, "hold_ms": line.hold_ms[unit.unit_id]},
            )
        self._holders_logged = frozenset(line.hold_ms)

    @property
    def remarks(self) -> str:
        """What was learned about the device that an operator should know."""
        return self._line.remarks

    async def _answers(self, line: Line, unit: Unit) -> bool:
        """Ask a silent unit. True if it answers. Raises SourceLost."""
        read = unit.probe()
        try:
            await line.read_bytes(read)
            unit.proven.update(read.registers)
        except ReadRefused:
            pass  # a refusal is an answer
        except UnitSilent:
            return False
        unit.answered()
        unit.mark_parked_again()
        return True

    async def _try_side_line(self, line: Line) -> None:
        """Ask a unit that answers on the main connection: some devices accept a second connection and never read from
        it, so that every unit seems silent. Raises SourceLost."""
        living = next((unit for unit in self._units if not unit.is_silent), None)
        try:
            if living is not None:
                await line.read_bytes(living.probe())
        except ReadRefused:
            pass
        except UnitSilent:
            self._takes_one_line = True

    def _log_missing(self, unit: Unit, error: UnitSilent) -> None:
        """Log once in a life that a unit does not answer each request."""
        if unit.unit_id not in self._missing_logged:
            self._missing_logged.add(unit.unit_id)
            extra = {"action": "answer_missing", "source": self._settings.name, "unit": unit.unit_id, "why": str(error)}
            log.warning("a unit that answers has missed a request: answers come late, or are lost", extra=extra)

    async def _note_missing(self, unit: Unit, error: UnitSilent) -> None:
        """A unit has not answered in this poll. It is polled in the next one as if it had."""
        await self._flush()
        self._log_missing(unit, error)
        await self._lose_unit(unit)

    async def _lose_unit(self, unit: Unit) -> None:
        """Its tags have no value since its last answer, or since this poll began: some had one at another unit."""
        since_ns = unit.answered_ns or self._poll_began.time_ns
        await self._delivery.lose(quality.BAD_TIMEOUT, self.clock.now_ns(), unit.all_tags(), since_ns=since_ns)

    async def _note_silence(self, line: Line, unit: Unit, error: UnitSilent) -> None:
        await self._flush()
        self._verb_missing = "sends what it is asked for" if isinstance(error, UnitGarbled) else "answers"
        is_news = unit.fell_silent(boot_ns(), self._pause_min_ns(line, unit))
        self._log_hold(line, unit)
        if is_news:
            extra = {"action": "unit_lost", "source": self._settings.name, "unit": unit.unit_id, "why": str(error)}
            log.warning("unit lost", extra=extra)
        await self._lose_unit(unit)
        self._silence.set()

"""A Modbus source: polls every unit at a fixed interval and delivers the values.

Poll n begins at start + n intervals, however long the one before took. Polls whose time has passed are skipped, never
caught up. One connection polls the units that answer, one after the other. A silent unit is asked over a second
connection, so that waiting for it does not delay the others. A device that takes only one connection (`connections_max
= 1`, or the second is refused) is asked for its silent units on the first one, rarely.

A life ends with SourceLost when the connection is gone or no unit answers. A new tag map is taken over between two
polls. Polls skipped because the store refused samples become a gap fact. The source never writes to a device.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack

from agent.ingest import quality
from agent.ingest.delivery import Delivery
from agent.ingest.errors import SourceLost
from agent.ingest.gap import STORE_REFUSED
from agent.ingest.modbus.address import Register
from agent.ingest.modbus.decode import DecodeError, decode
from agent.ingest.modbus.line import Line, ReadRefused, UnitSilent, end_if_cancelled
from agent.ingest.modbus.plan import Limits, Read
from agent.ingest.modbus.units import Unit
from agent.ingest.settings import ModbusSourceSettings
from agent.message import Sample

log = logging.getLogger(__name__)

MS = 1_000_000  # nanoseconds


class ModbusSource:
    """One device or gateway. The object outlives its connections and keeps what was learned about the units."""

    def __init__(self, settings: ModbusSourceSettings, delivery: Delivery) -> None:
        self._settings, self._delivery = settings, delivery
        self._units = self._units_for(delivery.points, [])
        self._silence = asyncio.Event()  # some unit has fallen silent
        self.backfill = self.events = None  # a device keeps no records, and raises no events
        self.polls_missed_total = 0
        self.alive_s, self.alive_ns = 0.0, 0
        self._answered_ns: dict[int, int] = {}  # by unit: the time of its last values

    def retry(self) -> None:
        """Nothing to do while connected: silent units and refused values have pauses of their own, of a minute at
        most."""

    def now_ns(self) -> int:
        """The time of this source's samples: our own, for Modbus carries none."""
        return time.time_ns()

    async def run(self, on_up: Callable[[], None]) -> None:
        """One life: connect, poll until something breaks. Ends only by an exception."""
        await self._retag()
        for unit in self._units:
            unit.answered()  # over a new connection every unit is asked again
        self._silence.clear()
        settings = self._settings
        async with Line(settings.host, settings.port, settings.timeout_ms) as line:
            await self._poll_all(line)
            if all(unit.is_silent for unit in self._units):
                raise SourceLost(f"{settings.host}:{settings.port} accepts connections but none of its units answers")
            on_up()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._poll(line), name=f"{settings.name} poll")
                group.create_task(self._probe(line), name=f"{settings.name} probe")

    async def finish(self) -> None:
        """Nothing to do: what was read was delivered at once."""

    def _units_for(self, points: Mapping[int, Register], known: Sequence[Unit]) -> list[Unit]:
        """The units of these values. A unit that is known keeps what was learned about it."""
        settings = self._settings
        limits = Limits(settings.registers_per_read_max, settings.hole_max)
        retry_ns, retry_max_ns = settings.unit_retry_ms * MS, settings.unit_retry_max_ms * MS
        by_unit: dict[int, dict[int, Register]] = {}
        for tag, register in points.items():
            by_unit.setdefault(register.unit_id, {})[tag] = register
        units = {unit.unit_id: unit for unit in known}
        for unit_id, part in by_unit.items():
            if unit_id in units:
                units[unit_id].want(part)
            else:
                units[unit_id] = Unit(unit_id, part, limits, retry_ns, retry_max_ns)
        return [units[unit_id] for unit_id in sorted(by_unit)]

    async def _retag(self) -> None:
        """Take over a new tag map. Called between polls only: a read and its samples belong to one map."""
        if self._delivery.retag(self.now_ns()):
            self._units = self._units_for(self._delivery.points, self._units)
            await self._delivery.settle()

    async def _poll(self, line: Line) -> None:
        """Keep the grid."""
        interval_s = self._settings.poll_interval_ms / 1000
        start_s = time.monotonic()
        slot = 0
        while True:
            slot += 1
            await asyncio.sleep(max(0.0, start_s + slot * interval_s - time.monotonic()))
            refused_before = self._delivery.recorder.refused_total
            slot_ns = time.time_ns()
            await self._retag()
            await self._poll_all(line)
            end_if_cancelled()
            if all(unit.is_silent for unit in self._units):
                raise SourceLost(f"none of the units at {self._settings.host}:{self._settings.port} answers any more")
            missed = int((time.monotonic() - start_s) / interval_s) - slot
            if missed > 0:
                slot += missed
                self.polls_missed_total += missed
                if self._delivery.recorder.refused_total != refused_before:
                    self._note_gap(slot_ns, missed)

    async def _poll_all(self, line: Line) -> None:
        """Ask every unit that answers for everything, and for what is parked and due."""
        for unit in self._units:
            if unit.is_silent:
                continue
            try:
                for read in list(unit.reads):
                    await self._fetch(line, unit, read)
                for read in list(unit.due_parked(time.monotonic_ns())):
                    if await self._fetch(line, unit, read):
                        unit.returned(read)
            except UnitSilent as error:
                await self._note_silence(unit, error)
        await self._delivery.deliver_due(self.now_ns())

    async def _fetch(self, line: Line, unit: Unit, read: Read) -> bool:
        """Make samples of one read, or learn from its refusal. True if the unit gave values."""
        try:
            words = await line.read(read)
        except ReadRefused as error:
            if error.is_about_address:
                if unit.refused(read, time.monotonic_ns()):
                    log.warning(
                        "a value is refused by its device and parked",
                        extra={"action": "tag_parked", "source": self._settings.name, "why": str(error)},
                    )
                    await self._delivery.lose(error.quality, self.now_ns(), unit.tags_of(read))
            else:
                await self._delivery.lose(error.quality, self.now_ns(), unit.tags_of(read))
            return False
        now_ns = self._answered_ns[unit.unit_id] = self.alive_ns = self.now_ns()
        self.alive_s = time.monotonic()
        await self._delivery.deliver(samples_of(read, words, unit.tags, now_ns), now_ns)
        return True

    async def _probe(self, main: Line) -> None:
        """Ask silent units, each when its time has come, apart from those that answer."""
        while True:
            silent = [unit for unit in self._units if unit.is_silent]
            if not silent:
                self._silence.clear()
                await self._silence.wait()
                continue
            unit = min(silent, key=lambda u: u.probe_at_ns() or 0)
            await asyncio.sleep(max(0, (unit.probe_at_ns() or 0) - time.monotonic_ns()) / 1e9)
            try:
                async with AsyncExitStack() as stack:
                    await self._question(await self._side_line(stack, main), unit)
                end_if_cancelled()
            except UnitSilent:
                unit.fell_silent(time.monotonic_ns())

    async def _question(self, line: Line, unit: Unit) -> None:
        try:
            await line.read(unit.probe())
        except ReadRefused:
            pass  # a refusal is an answer too
        except SourceLost as error:
            raise UnitSilent(str(error)) from error  # a side line that breaks says nothing about the main one
        unit.answered()
        log.info(
            "unit returned", extra={"action": "unit_returned", "source": self._settings.name, "unit": unit.unit_id}
        )

    async def _side_line(self, stack: AsyncExitStack, main: Line) -> Line:
        """A second connection if the device allows one, else the first."""
        settings = self._settings
        if settings.connections_max > 1:
            try:
                return await stack.enter_async_context(Line(settings.host, settings.port, settings.timeout_ms))
            except SourceLost:
                pass  # the device takes one connection only: ask on that one
        return main

    async def _note_silence(self, unit: Unit, error: UnitSilent) -> None:
        if unit.fell_silent(time.monotonic_ns()):
            extra = {"action": "unit_lost", "source": self._settings.name, "unit": unit.unit_id, "why": str(error)}
            log.warning("unit lost", extra=extra)
        since_ns = self._answered_ns.get(unit.unit_id)
        await self._delivery.lose(quality.BAD_TIMEOUT, self.now_ns(), unit.all_tags(), since_ns=since_ns)
        self._silence.set()

    def _note_gap(self, slot_ns: int, missed: int) -> None:
        tags = [tag for unit in self._units if not unit.is_silent for tag in unit.all_tags()]
        interval_ns = self._settings.poll_interval_ms * MS
        first_ns, last_ns = slot_ns + interval_ns, slot_ns + missed * interval_ns
        self._delivery.add_gap(STORE_REFUSED, first_ns, last_ns, missed * len(tags), tags, exact=True)


def samples_of(read: Read, words: Sequence[int], tags: dict[Register, int], time_ns: int) -> list[Sample]:
    """The samples in the answer to a read. Bytes that are no value become a bad sample, not an error."""
    samples: list[Sample] = []
    for register in read.registers:
        start = register.address - read.address
        tag = tags[register]
        if register.table.is_bits:
            samples.append(Sample(tag, time_ns, bool(words[start])))
            continue
        try:
            samples.append(Sample(tag, time_ns, decode(register.kind, words[start : start + register.count])))
        except DecodeError:
            samples.append(Sample(tag, time_ns, None, quality.BAD_DECODING_ERROR))
    return samples

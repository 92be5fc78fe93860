"""The node's clock: read, followed by `ingest.clock`, and reported as facts.

`NodeClock` looks at the clock before each delivery of samples and once a second, appends a fact for each change, and
keeps in the state folder what the next start needs to know. `ClockChanges` finds such facts of all zones in the store.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from agent.batch import Kind
from agent.errors import StoreBusy, StoreFull
from agent.fact_store import FactStore, StoreReader
from agent.file_replace import write_file
from agent.health.problems import duration
from agent.health.snapshot import ClockChangeStatus, ClockStatus
from agent.ingest import (
    CLOCK_PREDICATE,
    JUMP_NS,
    ClockBelief,
    ClockChange,
    ClockMemory,
    ClockReading,
    Span,
    clock_message,
)
from agent.message import OPERATIONAL_STREAM
from agent.query.scan import Bounds, NumbersOnly, Scanner, parse_time_ns

log = logging.getLogger(__name__)

MEMORY_FILE = "clock.json"
BOOT_ID_VARIABLE = "BSFG_BOOT_ID"  # set by the unit, whose sandbox hides the kernel's file
TICK_S = 1.0
CHANGES_WAITING_MAX = 100  # while the store refuses facts
CHANGES_DEPTH_FACTS = 20_000  # at a start: operational facts are few
CHANGES_SHOWN_NS = 24 * 3_600 * 1_000_000_000
ZONES_MAX = 1_000
TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
TIMEX_BYTES = 256  # more than struct timex has on any machine
KEPT_TIME_NS = 60 * 1_000_000_000  # a battery clock is set at a start, and drifts


class _Kept(NamedTuple):
    """What the next process continues with. `changes` are not stored yet, or were when the process ended: a fact that
    is appended again is stored once."""

    memory: ClockMemory
    changes: Sequence[ClockChange] = ()


class NodeClock:
    """The clock of this node and what is known of it."""

    def __init__(self, store: FactStore, folder: Path, root: Path = Path("/")) -> None:
        """`root`: where /proc, /run and /sys are."""
        self._store, self._file, self._root = store, folder / MEMORY_FILE, root
        kept = self._load()
        self._belief = ClockBelief(kept.memory, self._read(), store.recorded_unix_ms * 1_000_000)
        self._changes: deque[ClockChange] = deque(kept.changes, maxlen=CHANGES_WAITING_MAX)
        self._saved = self._belief.memory
        if self._belief.set_meanwhile is not None:
            self._note(self._belief.set_meanwhile)
        self._save()
        if self._belief.doubt is not None:
            log.warning("clock_not_believed", extra={"reason": self._belief.doubt.value})

    def doubted(self) -> list[Span]:
        """The times of this clock that are not believed, as of now."""
        self._look()
        return self._belief.spans(_boot_ns())

    def status(self) -> ClockStatus:
        """For the node's status."""
        doubt, newest_ns = self._belief.doubt, self._belief.memory.newest_ns
        return ClockStatus("" if doubt is None else doubt.value, newest_ns // 1_000_000)

    async def run(self) -> None:
        """Follow the clock and record its changes, until cancelled."""
        while True:
            self._look(is_complete=True)
            with suppress(StoreBusy, StoreFull):  # the next tick tries again
                while self._changes:
                    message = clock_message(self._changes[0], self._store.node)
                    await asyncio.wrap_future(self._store.appends.append_message(OPERATIONAL_STREAM, message))
                    self._changes.popleft()
                    self._save()
            await asyncio.sleep(TICK_S)

    def _look(self, *, is_complete: bool = False) -> None:
        """Follow the clock. Samples are many: a believed clock that goes on is not asked about further for them."""
        if not is_complete and self._belief.is_settled(time.time_ns(), _boot_ns()):
            return
        change = self._belief.take_reading(self._read())
        if change is not None:
            self._note(change)
        if self._belief.memory[1:] != self._saved[1:]:  # as after each change
            self._save()

    def _note(self, change: ClockChange) -> None:
        self._changes.append(change)
        offset_ms = None if change.offset_ns is None else change.offset_ns // 1_000_000
        reason = "believed" if change.doubt is None else change.doubt.value
        log.warning("clock_set", extra={"offset_ms": offset_ms, "reason": reason})

    def _read(self) -> ClockReading:
        wall_ns = time.time_ns()
        is_synchronised = (self._root / "run/systemd/timesync/synchronized").exists() or _is_kernel_synchronised()
        return ClockReading(wall_ns, _boot_ns(), is_synchronised, self._has_kept_time(wall_ns), self._boot_id())

    def _boot_id(self) -> str:
        if given := os.environ.get(BOOT_ID_VARIABLE):
            return given
        try:
            return (self._root / "proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        except (OSError, ValueError):
            return ""

    def _has_kept_time(self, wall_ns: int) -> bool:
        for file in (self._root / "sys/class/rtc").glob("rtc*/since_epoch"):
            with suppress(OSError, ValueError):
                if abs(int(file.read_text("ascii")) * 1_000_000_000 - wall_ns) < KEPT_TIME_NS:
                    return True
        return False

    def _load(self) -> _Kept:
        """What the last process knew; nothing if it left no file that can be used."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=_Kept)
        except (OSError, msgspec.MsgspecError):
            return _Kept(ClockMemory())

    def _save(self) -> None:
        self._saved = self._belief.memory
        try:
            write_file(self._file, msgspec.json.encode(_Kept(self._saved, [*self._changes])))
        except OSError as error:
            log.warning("clock_not_kept", extra={"file": str(self._file), "why": str(error)})


class _ZoneChange(NamedTuple):
    changed_ns: int
    status: ClockChangeStatus


class ClockChanges:
    """The last change of the clock of each zone whose facts are in the store, for a day."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader, self._end_offset = reader, 0
        self._found: dict[str, _ZoneChange] = {}

    def read(self, now_ns: int) -> tuple[ClockChangeStatus, ...]:
        """As of now. Reads what was recorded since the last call. Raises StoreError."""
        scanner = Scanner(self._reader, NumbersOnly(self._reader))
        end_offset = scanner.ends.get(OPERATIONAL_STREAM, 0)
        if end_offset > self._end_offset:
            first_offset = max(self._end_offset, end_offset - CHANGES_DEPTH_FACTS) + 1
            bounds = Bounds(
                frozenset({OPERATIONAL_STREAM}),
                kinds=frozenset({Kind.MESSAGES.value}),
                predicates=frozenset({CLOCK_PREDICATE}),
                offset_min=first_offset,
            )
            for facts in scanner.scan(bounds):
                zone = facts.batch.header.origin.zone
                for body in facts.column("object_json"):
                    found = _change_of(zone, body)
                    if found is not None and (zone in self._found or len(self._found) < ZONES_MAX):
                        self._found[zone] = found
            self._end_offset = end_offset
        shown = {z: change for z, change in self._found.items() if abs(now_ns - change.changed_ns) < CHANGES_SHOWN_NS}
        self._found = shown
        return tuple(change.status for _, change in sorted(shown.items()))


class _Content(msgspec.Struct):
    """The content of a fact, as `clock_message` writes it."""

    believed: bool
    from_time: str
    to_time: str
    doubted_since: str | None
    offset_ms: int | None


def _change_of(zone: str, body: bytes) -> _ZoneChange | None:
    """A change as a fact says it; None for other content, because applications may append such facts too."""
    try:
        content = msgspec.json.decode(body, type=_Content)
    except msgspec.MsgspecError:
        return None
    texts = [content.from_time, content.to_time, content.doubted_since or content.to_time]
    before_ns, after_ns, since_ns = map(parse_time_ns, texts)
    if before_ns is None or after_ns is None or since_ns is None:
        return None
    before, after, since = (f"{instant[:10]} {instant[11:19]}Z" for instant in texts)
    offset_ms = content.offset_ms or 0
    text = f"believed again at {after}"
    if abs(offset_ms) * 1_000_000 >= JUMP_NS:
        how = "forward" if offset_ms > 0 else "back"
        text = f"set {how} by {duration(abs(offset_ms) / 1000)} at {before}, to {after}"
    if content.doubted_since is not None:
        text += f"; its times from {since} on were not believed"
    if not content.believed:
        text += "; not believed since then"
    was_believed = content.doubted_since is None and not content.believed
    return _ZoneChange(before_ns if was_believed else after_ns, ClockChangeStatus(zone, text))


def _boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _is_kernel_synchronised() -> bool:
    """Not known inside the unit's sandbox, which denies all calls about the clock."""
    return bool(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES)) not in (-1, TIME_ERROR))

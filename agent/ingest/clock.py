"""Whether this node's clock is believed. Core: takes readings, returns what to record.

A gateway without a battery clock starts in 1970, or at the hour of its last stop, and its time arrives later. A good
sample whose time the clock gave until then is recorded as uncertain (CLOCK_UNCERTAIN), and a fact `clock_set` says
later by how much the clock was wrong (ingest/DESIGN.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from agent.columns import SampleColumns
from agent.message import Envelope, Fact, Message, canonical_json, time_text
from agent.status_codes import with_doubtful_time

CLOCK_PREDICATE = "clock_set"
BUILT_NS = 1_793_491_200 * 1_000_000_000  # 2026-11-01, raised at each release: a clock that shows less was never set
JUMP_NS = 2_000_000_000  # a difference from which the clock counts as set; a leap second is none
BEHIND_NS = 120 * 1_000_000_000  # a smaller step back is a correction
DOUBTED_NS_MAX = 24 * 3_600 * 1_000_000_000  # nobody sets the clock: what it seemed to contradict may have been wrong
AHEAD_NS = 366 * 24 * 3_600 * 1_000_000_000  # a longer stop needs a time server to be believed
STARTING_NS_MAX = 15 * 60 * 1_000_000_000  # a node starts with its machine
SPANS_MAX = 8  # samples are delivered within seconds of being read, and a clock is set rarely

Span = tuple[int, int]  # first and last time, in ns since 1970


class Doubt(Enum):
    """Why the clock is not believed."""

    BEFORE_BUILD = "before_build"  # it shows a time before this version was made
    BEHIND = "behind"  # it shows a time before the newest that was believed
    AHEAD = "ahead"  # it shows a time more than a year after that
    UNCONFIRMED = "unconfirmed"  # the machine has started, and it may go on from the time of the last stop


class ClockReading(NamedTuple):
    """The node's clock, and the time since the start of the machine, which is never set. `is_synchronised`: a time
    server has set the clock since then; `has_kept_time`: the machine's battery clock shows the same time."""

    wall_ns: int
    boot_ns: int
    is_synchronised: bool = False
    has_kept_time: bool = False
    boot_id: str = ""  # of this start of the machine; empty if it is not known

    @property
    def offset_ns(self) -> int:
        """What the clock shows at the start of the machine. It changes only if the clock is set."""
        return self.wall_ns - self.boot_ns


class ClockSeen(NamedTuple):
    """The clock as a process saw it last: in which start of the machine, its offset, and since when it was not
    believed; None if it was."""

    boot_id: str = ""
    offset_ns: int = 0
    doubted_since_ns: int | None = None


class ClockMemory(NamedTuple):
    """What is kept across restarts: the newest time that was believed, the offset of that clock, whether a time server
    has ever set it, and the clock as it was seen last."""

    newest_ns: int = 0
    offset_ns: int = 0
    has_server: bool = False
    seen: ClockSeen = ClockSeen()


class ClockChange(NamedTuple):
    """The clock was set, or is believed again. `offset_ns`: add it to times from `first_ns` to `last_ns`, which the
    clock gave before; None if it is not known. `first_ns` is None if the clock was believed. `doubt` is of the clock
    as it is now."""

    first_ns: int | None
    last_ns: int
    now_ns: int
    offset_ns: int | None
    doubt: Doubt | None


class _Doubted(NamedTuple):
    """A span of times that were, or are, not believed. `began_ns`: since the start of the machine."""

    doubt: Doubt
    first_ns: int
    began_ns: int


class ClockBelief:
    """Follows the node's clock from reading to reading."""

    def __init__(self, memory: ClockMemory, now: ClockReading, recorded_ns: int) -> None:
        """`recorded_ns`: when the last facts were recorded, by the clock of then."""
        is_ahead = memory.seen.doubted_since_ns is not None and recorded_ns > memory.newest_ns + AHEAD_NS
        self.memory = memory if is_ahead else memory._replace(newest_ns=max(memory.newest_ns, recorded_ns))
        self._last = now
        self._offset_ns = now.offset_ns
        self._open: _Doubted | None = None
        self._past: deque[Span] = deque(maxlen=SPANS_MAX)
        has_started = abs(now.offset_ns - memory.offset_ns) >= JUMP_NS  # the machine, or the clock was set meanwhile
        may_be_unconfirmed = has_started and self._may_go_on_from_stop(now)
        doubt = self._doubt_of(now, may_be_unconfirmed=may_be_unconfirmed, behind_ns=BEHIND_NS)
        if doubt is None:
            self._believe(now)
        else:
            self._open = _Doubted(doubt, now.offset_ns if has_started else now.wall_ns, now.boot_ns)
        self.set_meanwhile = _set_meanwhile(memory.seen, now, doubt)
        """What to record if the clock was set while no process ran."""
        self._see(now)

    @property
    def doubt(self) -> Doubt | None:
        """Why the clock is not believed now; None if it is."""
        return None if self._open is None else self._open.doubt

    def is_settled(self, wall_ns: int, boot_ns: int) -> bool:
        """Whether a believed clock has gone on as before, so that `take` has nothing to do."""
        return self._open is None and abs(wall_ns - boot_ns - self._offset_ns) < JUMP_NS

    def spans(self, boot_ns: int) -> list[Span]:
        """The times of this clock, in this process, that are not believed."""
        if self._open is None:
            return [*self._past]
        return [*self._past, (self._open.first_ns, boot_ns + self._offset_ns + JUMP_NS)]

    def take_reading(self, now: ClockReading) -> ClockChange | None:
        """Take in a reading. Returns what to record."""
        jump_ns, before, last = now.offset_ns - self._offset_ns, self._open, self._last
        self._last = now
        is_set = abs(jump_ns) >= JUMP_NS
        was_ns = now.boot_ns + self._offset_ns  # what the clock would show if it had not been set
        if is_set:
            self._offset_ns = now.offset_ns
            doubt = self._doubt_of(now, may_be_unconfirmed=False, behind_ns=BEHIND_NS)
        elif before is None or _is_over(before, now):
            doubt = None
        else:
            doubt = self._doubt_of(now, may_be_unconfirmed=before.doubt is Doubt.UNCONFIRMED, behind_ns=0)
        has_changed = is_set or (before is not None and doubt is None)
        if has_changed and before is not None:
            self._past.append((before.first_ns, was_ns if is_set else max(was_ns, now.wall_ns)))
            self._open = None
        if is_set and doubt is not None:  # it was set at some time since the last reading
            self._open = _Doubted(doubt, now.wall_ns - (now.boot_ns - last.boot_ns), now.boot_ns)
        if doubt is None:
            self._believe(now)
        elif now.is_synchronised:
            self.memory = self.memory._replace(has_server=True)
        self._see(now)
        if not has_changed:
            return None
        is_known = is_set or now.is_synchronised
        first_ns = None if before is None else before.first_ns
        return ClockChange(first_ns, was_ns, now.wall_ns, jump_ns if is_known else None, self.doubt)

    def _believe(self, now: ClockReading) -> None:
        """The newest time becomes earlier if a time server, or a day without a correction, shows that it was wrong."""
        self.memory = ClockMemory(now.wall_ns, self._offset_ns, self.memory.has_server or now.is_synchronised)

    def _see(self, now: ClockReading) -> None:
        since_ns = None if self._open is None else self._open.first_ns
        self.memory = self.memory._replace(seen=ClockSeen(now.boot_id, self._offset_ns, since_ns))

    def _doubt_of(self, now: ClockReading, *, may_be_unconfirmed: bool, behind_ns: int) -> Doubt | None:
        if now.wall_ns < BUILT_NS:
            return Doubt.BEFORE_BUILD
        if now.is_synchronised:
            return None
        if now.wall_ns < self.memory.newest_ns - behind_ns:
            return Doubt.BEHIND
        if BUILT_NS <= self.memory.newest_ns < now.wall_ns - AHEAD_NS:
            return Doubt.AHEAD
        return Doubt.UNCONFIRMED if may_be_unconfirmed and not now.has_kept_time else None

    def _may_go_on_from_stop(self, now: ClockReading) -> bool:
        """Whether a clock that did not run while the machine was off would look like this one: a time server set it
        before; or the machine seems to have started earlier than the last time, or when the last facts were
        recorded. That a clock was never set by a time server proves nothing: there may be none."""
        newest_ns, offset_ns, has_server, seen = self.memory
        begins_at_stop = now.boot_ns < STARTING_NS_MAX and now.offset_ns < newest_ns + BEHIND_NS
        is_same = abs(now.offset_ns - seen.offset_ns) < JUMP_NS  # only the process has been restarted
        was_doubted = seen.doubted_since_ns is not None and is_same
        return bool(offset_ns) and (has_server or now.offset_ns < offset_ns or begins_at_stop or was_doubted)


def _set_meanwhile(seen: ClockSeen, now: ClockReading, doubt: Doubt | None) -> ClockChange | None:
    """The change since the last process; None also if the machine was started, after which nothing tells it."""
    jump_ns = now.offset_ns - seen.offset_ns
    if not now.boot_id or now.boot_id != seen.boot_id or abs(jump_ns) < JUMP_NS:
        return None
    return ClockChange(seen.doubted_since_ns, now.boot_ns + seen.offset_ns, now.wall_ns, jump_ns, doubt)


def _is_over(doubted: _Doubted, now: ClockReading) -> bool:
    return doubted.doubt is not Doubt.BEFORE_BUILD and now.boot_ns - doubted.began_ns >= DOUBTED_NS_MAX


def mark_doubted(samples: SampleColumns, spans: Iterable[Span]) -> SampleColumns:
    """The samples, the good ones with times in these spans marked as uncertain."""
    for first_ns, last_ns in spans:
        if not samples.tags or min(samples.source_times_ns) > last_ns:
            continue  # the usual case once the time has arrived
        samples = samples._replace(
            qualities=[
                with_doubtful_time(quality) if first_ns <= time_ns <= last_ns else quality
                for time_ns, quality in zip(samples.source_times_ns, samples.qualities, strict=True)
            ]
        )
    return samples


def clock_message(change: ClockChange, zone: str) -> Message:
    """The fact that records a change, dated by the clock that is believed."""
    is_believed_before = change.doubt is not None and change.first_ns is None
    content = {
        "believed": change.doubt is None,
        "doubt": None if change.doubt is None else change.doubt.value,
        "doubted_since": None if change.first_ns is None else time_text(change.first_ns),
        "from_time": time_text(change.last_ns),
        "offset_ms": None if change.offset_ns is None else change.offset_ns // 1_000_000,
        "to_time": time_text(change.now_ns),
    }
    identity = f"{zone}/{CLOCK_PREDICATE}/{change.last_ns}-{change.now_ns}"
    produced_ns = change.last_ns if is_believed_before else change.now_ns
    envelope = Envelope(identity, from_zone=zone, to_zone="*", produced_at_unix_ms=produced_ns // 1_000_000)
    return Message(envelope, Fact(f"clock:{zone}", CLOCK_PREDICATE, canonical_json(content)))

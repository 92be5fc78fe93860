"""The writer's queue: bounded in facts and in bytes, beyond which one append may go; grouped by the work of one commit.

Any thread puts work in; one thread, the writer's, takes a group when group_commit.py says that a commit is due. A full
queue raises StoreBusy at once, because only the caller can slow its source; nothing is dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from agent.append_contract import AppendOutcome, Precondition
from agent.columns import SampleColumns
from agent.errors import StoreBusy, StoreError
from agent.fact_store.append.acks import AckTerms
from agent.fact_store.append.group_commit import ENOUGH_FACTS, Commit, CommitPace, QueuedSamples, Wait, decide_commit
from agent.fact_store.core import NEVER_NS, Appended, copy_error
from agent.fact_store.sqlite import Transaction
from agent.message import Message

WAIT_NS_MAX = 3_600_000_000_000  # one hour, below the system's limit for a timed wait
CALLS_MAX = 10_000
"""A consumer has one confirmation in flight, a peer two pages: more calls mean that a caller does not wait."""


@dataclass(slots=True, eq=False)
class AppendSamples:
    """Samples waiting to be sealed."""

    stream: str
    columns: SampleColumns
    count: int
    bytes: int
    queued_ns: int
    future: Future[Appended] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class AppendMessages:
    """Checked messages waiting to be sealed, with the digests of their ids and contents. All admitted ones are stored,
    or none."""

    stream: str
    messages: Sequence[Message]
    keys: list[bytes]
    contents: list[bytes]
    bytes: int
    queued_ns: int
    terms: AckTerms | None = None  # None: answered when durable here
    preconditions: Sequence[Precondition] = ()  # one for each message, or none at all
    future: Future[list[AppendOutcome]] = field(default_factory=Future)

    @property
    def zone(self) -> str:
        """The zone that appends: the sender of all its messages."""
        return self.messages[0].envelope.from_zone


@dataclass(slots=True, eq=False)
class Call:
    """Any other work: runs inside the transaction, after the appends, or before them if `is_early`.

    `is_deferred`: no caller waits for it, so it may wait for a commit that happens anyway. `stream` is the stream to
    which it adds facts of `zone`, if any: the call is refused while there is no room for them.
    """

    name: str
    bytes: int
    queued_ns: int
    run: Callable[[Transaction], Any]
    is_early: bool = False
    stream: str | None = None
    is_deferred: bool = False
    zone: str = ""
    future: Future[Any] = field(default_factory=Future)


Work = AppendSamples | AppendMessages | Call


@dataclass(slots=True)
class CommitGroup:
    """The work of one commit."""

    samples: dict[str, list[AppendSamples]] = field(default_factory=dict)
    messages: dict[tuple[str, str], list[AppendMessages]] = field(default_factory=dict)  # by stream and zone
    early: list[Call] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def all(self) -> list[Work]:
        """Everything in it."""
        appends: list[Work] = [work for queued in self.samples.values() for work in queued]
        appends.extend(work for queued in self.messages.values() for work in queued)
        return [*appends, *self.early, *self.calls]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not (self.samples or self.messages or self.early or self.calls)


class QueueLimit:
    """Room for work in the queue: a number of pieces (facts, or calls) and of bytes."""

    def __init__(self, what: str, count_max: int, bytes_max: int) -> None:
        self.what = what
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.count = 0
        self.bytes = 0

    def reserve(self, count: int, size: int) -> None:
        """Reserve room for work. Raises StoreBusy while a limit is reached; until then work of any size is taken, or a
        poll of more tags than `count_max` would be lost."""
        if self.count >= self.count_max or self.bytes >= self.bytes_max:
            raise StoreBusy(f"{self.count} {self.what} of {self.bytes} bytes wait for the disk")
        self.count += count
        self.bytes += size

    def release(self, count: int, size: int) -> None:
        """Give room back."""
        self.count -= count
        self.bytes -= size
        assert self.count >= 0
        assert self.bytes >= 0


class WriteQueue:
    """Work in the order of its arrival, with the sums on which group commit decides.

    Appends and calls have separate limits: a flood of samples must not block confirmations, which free space, and a
    flood of calls must not block appends.
    """

    def __init__(self, facts_max: int, bytes_max: int, pace: CommitPace) -> None:
        self.appends = QueueLimit("facts", facts_max, bytes_max)
        self.calls = QueueLimit("calls", CALLS_MAX, bytes_max)
        self.pace = pace
        self.committed_ns = -NEVER_NS
        """When the last commit was, by the monotonic clock."""
        self.refusing: StoreError | None = None
        """Why new work is refused. What is queued is still taken, at once."""
        self._changed = threading.Condition(threading.Lock())
        self._samples: dict[str, list[AppendSamples]] = {}
        self._waiting: dict[str, QueuedSamples] = {}
        self._other = CommitGroup()
        self._urgent_count = 0  # work that is committed at once
        self._deferred_ns: int | None = None  # when the oldest deferred call was queued

    @property
    def is_empty(self) -> bool:
        """Whether nothing is queued."""
        return not self._waiting and self._other.is_empty

    # --------------------------------------------------------------------------------------------------- any thread

    def put_samples(self, append: AppendSamples) -> None:
        """Queue samples; raises StoreBusy, or why new work is refused."""
        stream = append.stream
        with self._changed:
            self._reserve(append)
            self._samples.setdefault(stream, []).append(append)
            before = self._waiting.get(stream, QueuedSamples(0, append.queued_ns, append.queued_ns))
            facts = before.facts + append.count
            self._waiting[stream] = QueuedSamples(facts, before.oldest_ns, append.queued_ns)
            # Wake the writer when a commit is due or an earlier deadline begins, not for every append in between.
            steps = ENOUGH_FACTS, self.pace.facts_target
            if not before.facts or any(before.facts < step <= facts for step in steps):
                self._changed.notify()

    def put_messages(self, append: AppendMessages) -> None:
        """Queue messages; raises as `put_samples`."""
        with self._changed:
            self._reserve(append)
            self._other.messages.setdefault((append.stream, append.zone), []).append(append)
            self._urgent_count += 1
            self._changed.notify()

    def put_call(self, call: Call) -> None:
        """Queue a call; raises as `put_samples`."""
        with self._changed:
            self._reserve(call)
            (self._other.early if call.is_early else self._other.calls).append(call)
            if not call.is_deferred:
                self._urgent_count += 1
            elif self._deferred_ns is None:
                self._deferred_ns = call.queued_ns
            self._changed.notify()

    def commit_deferred(self) -> None:
        """Commit deferred calls at once, because a caller now waits for one."""
        with self._changed:
            if self._deferred_ns is not None:
                self._urgent_count += 1
                self._changed.notify()

    def refuse(self, why: StoreError) -> None:
        """Refuse new work from now on."""
        with self._changed:
            self.refusing = why
            self._changed.notify()

    # --------------------------------------------------------------------------------------------- the writer's thread

    def next_group(self, alarm_ns: int) -> CommitGroup | None:
        """Wait for the next group: an empty one at `alarm_ns`, None when new work is refused and nothing is queued."""
        with self._changed:
            while True:
                now_ns = time.monotonic_ns()
                if self.refusing is not None and self.is_empty:
                    return None
                match decide_commit(
                    self._waiting,
                    now_ns,
                    self.pace,
                    committed_ns=self.committed_ns,
                    deferred_ns=self._deferred_ns,
                    is_urgent=self._urgent_count > 0,
                    is_last=self.refusing is not None,
                ):
                    case Commit(streams):
                        return self._take_group(streams)
                    case Wait(until_ns):
                        if alarm_ns <= now_ns:
                            return CommitGroup()
                        due_ns = min(until_ns or NEVER_NS, alarm_ns, now_ns + WAIT_NS_MAX)
                        self._changed.wait((due_ns - now_ns) / 1e9)

    def take_all(self) -> CommitGroup:
        """Everything that is queued. Its room stays reserved until `release`."""
        with self._changed:
            return self._take_group(tuple(self._waiting))

    def take_behind(self, refused: AppendSamples | AppendMessages) -> Sequence[Work]:
        """What is queued of the same stream and kind; of messages, of the same zone."""
        with self._changed:
            if isinstance(refused, AppendMessages):
                return self._other.messages.pop((refused.stream, refused.zone), [])
            self._waiting.pop(refused.stream, None)
            return self._samples.pop(refused.stream, [])

    def release(self, works: Iterable[Work]) -> None:
        """Release the room of work that is answered."""
        with self._changed:
            for work in works:
                room, count, size = self._room(work)
                room.release(count, size)

    def _take_group(self, streams: tuple[str, ...]) -> CommitGroup:
        """All work except samples, and the samples of these streams."""
        group, self._other, self._urgent_count, self._deferred_ns = self._other, CommitGroup(), 0, None
        for stream in streams:
            group.samples[stream] = self._samples.pop(stream)
            del self._waiting[stream]
        return group

    def _reserve(self, work: Work) -> None:
        if self.refusing is not None:
            raise copy_error(self.refusing)
        room, count, size = self._room(work)
        room.reserve(count, size)
        # From here on, cancelling the future does not take the facts back.
        work.future.set_running_or_notify_cancel()

    def _room(self, work: Work) -> tuple[QueueLimit, int, int]:
        match work:
            case AppendSamples():
                return self.appends, work.count, work.bytes
            case AppendMessages():
                return self.appends, len(work.messages), work.bytes
            case Call():
                return self.calls, 1, work.bytes

"""What waits for the writer: bounded in facts and in bytes, and sorted into what one commit takes.

Not thread-safe by itself: the writer's lock is held around every call. Full means StoreBusy at once, because only the caller
knows how to slow its source; nothing is ever dropped from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from agent.fact_store.append.append import AppendMessages, AppendSamples
from agent.fact_store.append.group_commit import Waiting
from agent.fact_store.log import FactsRefused, StoreBusy
from agent.fact_store.sqlite import Transaction

CALLS_MAX = 10_000  # a consumer has one confirmation in flight, a peer two pages; more is somebody who does not wait


@dataclass(slots=True, eq=False)
class Call:
    """Anything else than an append: runs inside the transaction, after the appends; `is_early`, before them.

    `stream` names the one that it adds facts to, if it does: then it needs room there.
    """

    name: str
    bytes: int
    queued_ns: int
    run: Callable[[Transaction], Any]
    is_early: bool = False
    stream: str | None = None
    future: Future[Any] = field(default_factory=Future)


Work = AppendSamples | AppendMessages | Call


@dataclass(slots=True)
class Group:
    """What one commit takes."""

    samples: dict[str, list[AppendSamples]] = field(default_factory=dict)
    messages: dict[str, list[AppendMessages]] = field(default_factory=dict)
    early: list[Call] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def all(self) -> list[Work]:
        """Everything in it."""
        appends: list[Work] = [one for queued in self.samples.values() for one in queued]
        appends.extend(one for queued in self.messages.values() for one in queued)
        return [*appends, *self.early, *self.calls]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not (self.samples or self.messages or self.early or self.calls)


class Room:
    """Space for work in the queue: so many pieces (facts, or calls) of so many bytes."""

    def __init__(self, what: str, count_max: int, bytes_max: int) -> None:
        self.what = what
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.count = 0
        self.bytes = 0

    def reserve(self, count: int, size: int) -> None:
        """Take space for work about to come. Raises StoreBusy when there is none now, FactsRefused when there never will be."""
        if count > self.count_max or size > self.bytes_max:
            raise FactsRefused(
                f"{count} {self.what} of {size} bytes at once, the queue holds {self.count_max} and {self.bytes_max}",
                "hand over fewer at a time",
            )
        if self.count + count > self.count_max or self.bytes + size > self.bytes_max:
            raise StoreBusy(f"{self.count} {self.what} of {self.bytes} bytes wait for the disk")
        self.count += count
        self.bytes += size

    def release(self, count: int, size: int) -> None:
        """Give space back."""
        self.count -= count
        self.bytes -= size
        assert self.count >= 0
        assert self.bytes >= 0


class Queue:
    """Work in the order it came, with the sums that pace is decided by.

    Appends and calls have room of their own: a plant that floods its store must not keep peers from confirming what would
    free it, nor the other way round.
    """

    def __init__(self, facts_max: int, bytes_max: int) -> None:
        self.appends = Room("facts", facts_max, bytes_max)
        self.calls = Room("calls", CALLS_MAX, bytes_max)
        self._samples: dict[str, list[AppendSamples]] = {}
        self._waiting: dict[str, Waiting] = {}
        self._urgent = Group()
        self._urgent_count = 0

    @property
    def waiting(self) -> Mapping[str, Waiting]:
        """Samples per stream."""
        return self._waiting

    @property
    def is_urgent(self) -> bool:
        """Whether something else than samples waits."""
        return self._urgent_count > 0

    def reserve(self, work: Work) -> None:
        """Take room for a piece of work; raises as `Room.reserve`."""
        room, count, size = self._room(work)
        room.reserve(count, size)

    def release(self, work: Work) -> None:
        """Give the room of a piece of work back."""
        room, count, size = self._room(work)
        room.release(count, size)

    def put_samples(self, append: AppendSamples) -> Waiting:
        """Queue samples for which room was reserved; returns what now waits of their stream."""
        stream = append.stream
        self._samples.setdefault(stream, []).append(append)
        before = self._waiting.get(stream)
        facts, oldest_ns = append.count, append.queued_ns
        if before is not None:
            facts, oldest_ns = before.facts + facts, before.oldest_ns
        found = self._waiting[stream] = Waiting(facts, oldest_ns)
        return found

    def put_messages(self, append: AppendMessages) -> None:
        """Queue messages for which room was reserved."""
        self._urgent.messages.setdefault(append.stream, []).append(append)
        self._urgent_count += 1

    def put_call(self, call: Call) -> None:
        """Queue a call for which room was reserved."""
        (self._urgent.early if call.is_early else self._urgent.calls).append(call)
        self._urgent_count += 1

    def take(self, streams: tuple[str, ...]) -> Group:
        """Everything urgent, and the samples of these streams. Their room stays taken until `release`."""
        group, self._urgent, self._urgent_count = self._urgent, Group(), 0
        for stream in streams:
            group.samples[stream] = self._samples.pop(stream)
            del self._waiting[stream]
        return group

    def _room(self, work: Work) -> tuple[Room, int, int]:
        match work:
            case AppendSamples():
                return self.appends, work.count, work.bytes
            case AppendMessages():
                return self.appends, len(work.messages), work.bytes
            case Call():
                return self.calls, 1, work.bytes

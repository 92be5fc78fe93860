"""What the simulations of sources have in common."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from random import Random
from typing import Any

from agent.columns import SampleColumns
from agent.errors import StoreFull
from agent.ingest.completeness import Stored
from agent.ingest.errors import SourceError
from agent.ingest.lifecycle import Newest
from agent.ingest.ports import RemovedTag
from agent.ingest.quality import TAG_REMOVED, is_bad
from agent.ingest.supervision.supervisor import SourceSupervisor
from agent.message import Message, TagDefinition
from tests.ingest.fakes import FakeStore
from tests.support.virtual_time import run_virtual

FSYNC_S, INTERVAL_S, DEFERRED_S = 0.01, 0.25, 1.0
STREAMS = ("facts.telemetry", "facts.slow", "facts.operational")


class CommittingStore(FakeStore):
    """Commits what it has taken later, in groups, as the real one does; what it cannot commit then fails. What is not
    committed when the process is killed is lost."""

    def __init__(self) -> None:
        super().__init__()
        self._taken = list[tuple[Callable[[], Future[Any]], Future[Any]]]()

    def define(self, definitions: Sequence[TagDefinition]) -> Future[list[int]]:
        return self._take(lambda: super(CommittingStore, self).define(definitions), FSYNC_S)

    def append_columns(self, stream: str, columns: SampleColumns) -> Future[Any]:
        copied = SampleColumns(*map(list, columns))

        def append() -> Future[Any]:
            assert columns == copied, "unexpected: changed after it was handed in"
            return super(CommittingStore, self).append_columns(stream, columns)

        return self._take(append, INTERVAL_S)

    def append_message(self, stream: str, message: Message) -> Future[Any]:
        return self._take(lambda: super(CommittingStore, self).append_message(stream, message), FSYNC_S)

    def set_completeness(self, source: str, parts: Mapping[str, Stored | None]) -> Future[Any]:
        given = dict(parts)
        return self._take(lambda: super(CommittingStore, self).set_completeness(source, given), DEFERRED_S)

    def commit(self) -> None:
        """Everything that it has taken. At the end of a process, too."""
        taken, self._taken = self._taken, []
        for append, future in taken:
            try:
                future.set_result(append().result())
            except (StoreFull, ValueError, AssertionError) as error:
                future.set_exception(error)

    def toggle_limits(self, random: Random) -> None:
        """Some streams reach their limits, or all have room again. Definitions and completeness need none."""
        self.full_streams = set() if self.full_streams else set(random.choices(STREAMS, k=random.randint(1, 9)))

    def recover(self) -> None:
        """It takes everything again."""
        self.refusing, self.full_streams = False, set()

    def kill(self) -> None:
        """The process is."""
        self._taken.clear()

    def _take(self, append: Callable[[], Future[Any]], due_s: float) -> Future[Any]:
        self._check()
        taken: Future[Any] = Future()
        taken.set_running_or_notify_cancel()
        self._taken.append((append, taken))
        asyncio.get_running_loop().call_later(due_s, self.commit)
        return taken


class Killed(Exception):
    """The process is."""


class Before:
    """What the store holds when a process starts."""

    def __init__(self, store: FakeStore) -> None:
        self._store = store

    def completeness(self, source: str) -> Mapping[str, Stored]:
        return {part: known for (of, part), known in self._store.complete.items() if of == source}

    def completeness_of_others(self, *_: object) -> Mapping[str, Stored]:
        return {}

    def newest_samples(self, stream: str, numbers: Collection[int]) -> dict[int, Newest]:
        newest = dict[int, Newest]()
        for of, sample in self._store.samples:
            if of == stream and sample.tag in numbers:
                good_ns = newest[sample.tag].good_ns if sample.tag in newest else 0
                newest[sample.tag] = Newest(sample, good_ns if is_bad(sample.quality) else sample.source_time_ns)
        return newest

    def find_removed(self, readers: Mapping[str, object]) -> list[RemovedTag]:
        complete, definitions = self.completeness("plc").get(""), self._store.definitions
        newest = {definitions[sample.tag - 1].subject: (stream, sample) for stream, sample in self._store.samples}
        return [
            RemovedTag(stream, sample.tag, subject, sample.source_time_ns, "plc", complete and complete.complete_ns)
            for subject, (stream, sample) in newest.items()
            if subject not in readers and sample.quality != TAG_REMOVED
        ]


class WatchedSupervisor(SourceSupervisor):
    """Keeps the errors that a life may not end with."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.unexpected: list[BaseException] = []

    async def _error_of(self, part: Awaitable[None]) -> Exception | None:
        error = await super()._error_of(part)
        if error is not None:
            _, rest = ExceptionGroup("", [error]).split(SourceError)
            self.unexpected += [] if rest is None else [rest]
        return error


def us(text: str) -> int:
    """A time of a fact, in microseconds."""
    return round(datetime.fromisoformat(text).timestamp() * 1e6)


def fault_of(simulation: Coroutine[Any, Any, None], seed: int) -> str:
    """Run a simulation in virtual time: what is wrong; empty: nothing. The first words of its AssertionErrors say
    it."""
    random.seed(seed)  # the product's jitter
    try:
        run_virtual(simulation)
    except (AssertionError, ExceptionGroup) as error:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        return str(error)
    return ""

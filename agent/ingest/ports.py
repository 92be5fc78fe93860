"""The ports of ingest: the parts of a store that it uses, which the fact store implements directly.

A store refuses an append for the moment by raising StoreBusy or StoreFull, from the call or through the future. A
refused append is repeated until the store accepts it. Meanwhile the source waits, and what it cannot sample is recorded
as a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from agent.columns import SampleColumns
from agent.ingest.clock import Span
from agent.ingest.completeness import Stored
from agent.ingest.lifecycle import Newest
from agent.message import Message, TagDefinition


class StorePort(Protocol):
    """The part of a fact store that ingest needs. Each future is done when the store has committed, or failed to."""

    def define(self, definitions: Sequence[TagDefinition]) -> Future[list[int]]:
        """The numbers of these definitions at this origin."""

    def append_columns(self, stream: str, columns: SampleColumns) -> Future[Any]:
        """Queue samples for the next group commit. The lists are not changed afterwards, by either side."""

    def append_message(self, stream: str, message: Message) -> Future[Any]:
        """Commit one message. A message with the same message_id is stored once."""

    def set_completeness(self, source: str, parts: Mapping[str, Stored | None]) -> Future[Any]:
        """Record up to when parts of a source are complete; None: as its source. What is queued before is committed at
        the latest with it."""


class RemovedTag(NamedTuple):
    """A tag of this node that its source reads no more: the stream of its newest sample, its number and subject, the
    source time of that sample, its source, and up to when that was complete before the search; None: not known.
    `is_behind`: its source was complete up to an earlier time than one that reads it now."""

    stream: str
    number: int
    subject: str
    newest_ns: int
    source: str
    complete_ns: int | None = None
    is_behind: bool = False


Readers = Mapping[str, Collection[str]]
"""The sources that read each subject now."""


FindRemoved = Callable[[Readers], Sequence[RemovedTag]]
"""Finds the tags of this node in the store that are not out of service, and whose source is not among the
readers of their subject. It may be called in any thread and may take a second."""


class StoredFacts(Protocol):
    """Facts that the store already holds. Each call reads the store, may be made in any thread, and may take seconds.
    Times are source times in ns since 1970. If the store cannot be read, the searches find nothing, except
    `sample_times`."""

    def completeness(self, source: str) -> Mapping[str, Stored]:
        """Up to when the parts of a source are complete: its values (empty), `events`, and tags that are behind."""

    def completeness_of_others(self, source: str, subjects: Collection[str]) -> Mapping[str, Stored]:
        """The same of the other sources that recorded these tags last, for a source that was renamed."""

    def newest_samples(self, stream: str, numbers: Collection[int]) -> Mapping[int, Newest]:
        """The newest sample of each of these tag numbers that has one near the end of the stream."""

    def sample_times(
        self, stream: str, numbers: Collection[int], first_ns: int, last_ns: int, times_max: int
    ) -> Mapping[int, Collection[int]] | None:
        """The times of all samples of these tags from `first_ns` to `last_ns`, by number. Samples that the same tag has
        under other numbers (live, from history, before an edit) are included. None if there are more than `times_max`.
        Raises StoredUnreadable."""

    def open_outages(self, source: str) -> Sequence[tuple[int, int]]:
        """The first and last times of the declared outages of a source that were not filled from history."""


KeepFiles = Callable[[Mapping[str, bytes]], None]
"""Keeps the tag files that come into force, by source; called in a thread."""


@dataclass(frozen=True, slots=True)
class IngestPorts:
    """What ingest uses of its node. Without `stored`, it continues no earlier process and fills no gap from history;
    without `find_removed`, it does not record the tags that were removed while no process ran. `doubted` gives the
    times of this node's clock that are not believed."""

    store: StorePort
    stored: StoredFacts | None = None
    find_removed: FindRemoved | None = None
    keep_files: KeepFiles = lambda _: None
    doubted: Callable[[], Sequence[Span]] = tuple

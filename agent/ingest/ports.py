"""The ports of ingest: the parts of a store that it uses, which the fact store implements directly, and a memory for
each source.

A store refuses for the moment by raising one of the exception types it is introduced with (`Refusals`), from the call
or through the future. A refused append is repeated until the store takes it. The source is slowed meanwhile, and what
it could not sample is recorded as a gap.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from agent.columns import SampleColumns
from agent.ingest.lifecycle import DeclaredGap, Newest
from agent.message import Message, TagDefinition

Refusals = tuple[type[Exception], ...]


class StorePort(Protocol):
    """The part of a fact store that ingest needs. Each future is done once the store has committed, or failed to."""

    def define(self, definitions: Sequence[TagDefinition]) -> Future[list[int]]:
        """The numbers that stand for these definitions at this origin."""

    def append_columns(self, stream: str, columns: SampleColumns) -> Future[Any]:
        """Queue samples for the next group commit. The lists are not changed afterwards, by either side."""

    def append_message(self, stream: str, message: Message) -> Future[Any]:
        """Commit one message; the same message_id twice is stored once."""


class RemovedTag(NamedTuple):
    """A tag of this node that no tag file names any more: where its newest sample was recorded, its number, subject,
    and the source time of that sample."""

    stream: str
    number: int
    subject: str
    newest_ns: int


class StoredFacts(Protocol):
    """Facts that the store holds already, for filling gaps. Each call reads the store, in any thread, and may take
    seconds. Times in ns of source time since 1970. Where the store cannot be read, the searches at the start of a
    source find nothing."""

    def newest_samples(self, stream: str, numbers: Collection[int]) -> Mapping[int, Newest]:
        """The newest sample of each of these tag numbers, where one is found near the end of the stream; the one that
        was recorded last comes first."""

    def last_sample(self, stream: str) -> Newest | None:
        """The last sample in a stream that is too large for `newest_samples` to see all of it."""

    def sample_times(
        self, stream: str, numbers: Collection[int], first_ns: int, last_ns: int, times_max: int
    ) -> Mapping[int, Collection[int]] | None:
        """The times of all samples of these tags from `first_ns` to `last_ns`, by their numbers; those of other numbers
        that the same tag had (live, from history, before an edit) under one of these. None if there are more than
        `times_max`. Raises StoredUnreadable."""

    def declared_gaps(self, source: str) -> Sequence[DeclaredGap]:
        """The last gaps of a source that were declared, newest first."""

    def open_outages(self, source: str) -> Sequence[int]:
        """The first times of outages of a source that were declared and whose history was not filled."""


class MemoryPort(Protocol):
    """Keeps a small document for each source over restarts. Neither call raises: a lost document is learned again."""

    def load(self, source: str) -> bytes | None:
        """The document that was saved last, None if there is none."""

    def save(self, source: str, document: bytes) -> None:
        """Replace the document of a source."""

"""The port through which ingest appends: what it needs of a store, as a protocol. The fact store satisfies it as it is.

A store refuses for the moment by raising one of the exception types it is introduced with (`Refusals`), from the call
or through the future. A refused append is repeated until the store takes it. The source is slowed meanwhile, and what
it could not sample is recorded as a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from agent.columns import SampleColumns
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

"""What ingest asks of the store, as shapes: whoever has these methods can stand behind them.

The fact store satisfies them as it is; a test hands in a list. A store says "not now" by raising one of the exception types
it is introduced with (`Refusals`): at once from the call, or later through the future. A refusal is never an answer to give
up on: the source is slowed until the store takes the samples, and what could not be sampled meanwhile is recorded as a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from agent.message import Message, Sample, TagDefinition

Refusals = tuple[type[Exception], ...]


class StorePort(Protocol):
    """The part of a fact store that ingest needs. Each future is done once the store has committed, or failed to."""

    def define(self, definitions: Sequence[TagDefinition]) -> Future[list[int]]:
        """The numbers that stand for these definitions at this origin."""

    def append_samples(self, stream: str, rows: Sequence[Sample]) -> Future[Any]:
        """Queue samples for the next group commit."""

    def append_message(self, stream: str, message: Message) -> Future[Any]:
        """Commit one message; the same message_id twice is stored once."""

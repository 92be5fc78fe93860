"""Facts as JSON messages with offset, envelope and fact, as `tail` and `fetch` print them; samples are shown as
messages.

Every fact after an offset is returned in order, and so is each hole in the log between them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agent.batch import batch_messages
from agent.columns import BatchError
from agent.fact_store import StoreDamaged, StoreReader
from agent.message import Envelope, Fact, Message
from agent.pages import Hole, StoredBatch
from agent.query.scan.dictionary import Dictionary

PAGE_BYTES_MAX = 4 * 1024 * 1024
PAGE_FACTS_MAX = 100_000


def fact_messages(reader: StoreReader, stream: str, after_offset: int, limit: int) -> Iterator[dict[str, Any] | Hole]:
    """At most `limit` facts after an offset as JSON objects, and the holes among them."""
    dictionary = Dictionary(reader)
    while limit > 0:
        page = reader.read(stream, after_offset, min(limit, PAGE_FACTS_MAX), PAGE_BYTES_MAX)
        passed: list[StoredBatch | Hole] = [*page.batches, *page.holes]
        passed.sort(key=lambda part: part.first_offset)
        for part in passed:
            for found in _one_by_one(part, dictionary):
                if isinstance(found, Hole):
                    yield found
                elif found["offset"] > after_offset and limit > 0:
                    yield found
                    limit -= 1
        if not passed:
            return
        after_offset = passed[-1].last_offset


def _one_by_one(part: StoredBatch | Hole, dictionary: Dictionary) -> Iterator[dict[str, Any] | Hole]:
    if isinstance(part, Hole):
        yield part
        return
    try:
        messages = list(_messages(part, dictionary))
    except (BatchError, StoreDamaged):  # a batch cannot be interpreted without its definitions
        yield Hole(part.first_offset, part.last_offset, "damaged")
        return
    for offset, message in enumerate(messages, part.first_offset):
        yield shown_fact(offset, message.envelope, message.fact)


def _messages(stored: StoredBatch, dictionary: Dictionary) -> Iterator[Message]:
    is_named = stored.definitions.count > 0
    yield from batch_messages(
        stored.batch, dictionary.of(stored.origin.zone, stored.definitions).tags if is_named else []
    )


def shown_fact(offset: int, envelope: Envelope, fact: Fact) -> dict[str, Any]:
    """A fact as it is printed."""
    named = {name: getattr(envelope, name) for name in Envelope.__slots__}
    return {
        "offset": offset,
        "envelope": {name: value for name, value in named.items() if value not in (None, {})},
        "fact": {"subject": fact.subject, "predicate": fact.predicate, "object": json.loads(fact.object_json)},
    }

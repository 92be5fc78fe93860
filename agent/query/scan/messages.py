"""Facts as JSON messages with offset, envelope and fact, as `tail` and `fetch` print them; samples are shown as
messages.

Every fact after an offset is returned in order, and so is each hole in the log between them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agent.batch import Kind, open_messages, open_samples
from agent.columns import BatchError
from agent.fact_store import StoreDamaged, StoreReader
from agent.message import Envelope, Message, sample_message, sample_message_id
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
        yield _line(offset, message)


def _messages(stored: StoredBatch, dictionary: Dictionary) -> Iterator[Message]:
    batch = stored.batch
    if batch.header.kind is Kind.MESSAGES:
        yield from open_messages(batch)
        return
    origin = stored.origin
    known = dictionary.of(origin.zone, stored.definitions).tags
    for sequence, sample in enumerate(open_samples(batch).rows(), batch.header.first_sequence):
        message_id = sample_message_id(batch.header.stream, origin.zone, origin.epoch, sequence)
        yield sample_message(known[sample.tag - 1], sample, message_id, origin.zone)


def _line(offset: int, message: Message) -> dict[str, Any]:
    envelope, fact = message.envelope, message.fact
    named = {name: getattr(envelope, name) for name in Envelope.__slots__}
    return {
        "offset": offset,
        "envelope": {name: value for name, value in named.items() if value not in (None, {})},
        "fact": {"subject": fact.subject, "predicate": fact.predicate, "object": json.loads(fact.object_json)},
    }

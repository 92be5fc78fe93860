"""Converts opened batches into Arrow record batches, column by column. Core: no IO.

Facts of several batches are collected into a group before a record batch is made, because some twenty Arrow calls per
batch of a hundred facts would cost more than the facts. Within a group, a *run* is a sequence of facts of one origin
without a gap: columns of identity (offset, sequence, zone, epoch, message_id) are made per run, not per fact.

A record batch has at most FACTS_MAX_PER_GROUP plus one batch of facts, and about TEXT_BYTES_MAX of text values, however
well they compressed. Facts keep the order in which they were added.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from agent.batch import Batch, Kind, Origin, open_messages, open_samples
from agent.columns import FACTS_MAX
from agent.message import Message, Value, sample_message_id
from pyspark_bsfg.dictionary import Dictionary
from pyspark_bsfg.values import Values, longs, text_bytes

FACTS_MAX_PER_GROUP = 16_384  # larger record batches measured no faster, and leave the cache
TEXT_BYTES_MAX = 32 * 1024 * 1024  # a column of 16,384 equal texts of 64 KiB is 2 KB in a batch and 1 GB in Arrow

_COUNTING = pa.array(range(FACTS_MAX + FACTS_MAX_PER_GROUP), pa.int64())
_NS_PER_US = 1000


@dataclass(slots=True)
class Run:
    """Facts that follow one another both here (offset) and at their origin (sequence)."""

    origin: Origin
    first_offset: int
    first_sequence: int
    count: int


@dataclass(slots=True)
class Group:
    """Samples waiting to become one record batch."""

    runs: list[Run] = field(default_factory=list)
    tags: list[int] = field(default_factory=list)
    source_times_ns: list[int] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    qualities: list[int] = field(default_factory=list)
    text_bytes: int = 0

    @property
    def count(self) -> int:
        """Facts gathered so far."""
        return len(self.tags)

    @property
    def is_full(self) -> bool:
        """Whether it is time to make a record batch of it."""
        return self.count >= FACTS_MAX_PER_GROUP or self.text_bytes >= TEXT_BYTES_MAX


class Columns:
    """Turns batches of one stream into record batches of one schema. `dictionary` must know a batch's tags before it is
    added."""

    def __init__(self, schema: Any, stream: str, dictionary: Dictionary) -> None:
        self._schema = schema
        self._stream = stream
        self._dictionary = dictionary
        self._group = Group()

    def add(self, batch: Batch, first_offset: int, start: int, stop: int) -> Iterator[Any]:
        """Take the facts at positions `start` to `stop` (exclusive) of a batch that lies at `first_offset`.

        Yields the record batches that are ready; exhaust it. Raises BatchError where the batch does not open.
        """
        assert 0 <= start < stop <= batch.header.count, (start, stop, batch.header.count)
        if batch.header.kind is Kind.MESSAGES:
            yield from self.flush()
            messages = open_messages(batch)
            run = Run(batch.header.origin, first_offset + start, batch.header.first_sequence + start, stop - start)
            yield self._built(_message_columns(messages[start:stop]), [run])
            return
        yield from self._add_samples(batch, first_offset, start, stop)

    def flush(self) -> Iterator[Any]:
        """What is still waiting, as a record batch, if anything is."""
        if self._group.count:
            group, self._group = self._group, Group()
            yield self._built(_sample_columns(group, self._dictionary), group.runs)

    def _add_samples(self, batch: Batch, first_offset: int, start: int, stop: int) -> Iterator[Any]:
        columns = open_samples(batch)
        if (start, stop) != (0, batch.header.count):
            columns = columns.cut(start, stop)
        text = text_bytes(columns.values)
        pieces = -(-text // TEXT_BYTES_MAX) or 1
        size = -(-(stop - start) // pieces)
        for at in range(0, stop - start, size):
            part = columns if pieces == 1 else columns.cut(at, at + size)
            group = self._group
            group.tags += part.tags
            group.source_times_ns += part.source_times_ns
            group.values += part.values
            group.qualities += part.qualities
            group.text_bytes += text // pieces
            _extend(
                group.runs,
                Run(
                    batch.header.origin,
                    first_offset + start + at,
                    batch.header.first_sequence + start + at,
                    len(part.tags),
                ),
            )
            if group.is_full:
                yield from self.flush()

    def _built(self, makers: dict[str, Callable[[], Any]], runs: Sequence[Run]) -> Any:
        makers = _identity_columns(self._stream, runs) | makers
        return pa.RecordBatch.from_arrays([makers[name]() for name in self._schema.names], schema=self._schema)


def _extend(runs: list[Run], new: Run) -> None:
    """Lengthen the last run where the new one follows it without a gap."""
    if runs:
        last = runs[-1]
        if last.origin == new.origin and (last.first_offset + last.count, last.first_sequence + last.count) == (
            new.first_offset,
            new.first_sequence,
        ):
            last.count += new.count
            return
    runs.append(new)


def _identity_columns(stream: str, runs: Sequence[Run]) -> dict[str, Callable[[], Any]]:
    """What follows from where a fact lies, made per run."""

    def per_run(values: Sequence[str]) -> Any:
        return pa.concat_arrays(
            [pa.repeat(pa.scalar(value), run.count) for value, run in zip(values, runs, strict=True)]
        )

    def counting(firsts: Sequence[int]) -> Any:
        return pa.concat_arrays(
            [pc.add(_COUNTING.slice(0, run.count), first) for first, run in zip(firsts, runs, strict=True)]
        )

    def sequences() -> Any:
        return counting([run.first_sequence for run in runs])

    def message_ids() -> Any:
        # The text before the sequence is that of any sample of the origin, and the sequence is its last word.
        before = [sample_message_id(stream, run.origin.zone, run.origin.epoch, 0).removesuffix("0") for run in runs]
        first = pa.scalar(before[0]) if len(set(before)) == 1 else per_run(before)
        return pc.binary_join_element_wise(first, sequences().cast(pa.string()), "")

    return {
        "offset": lambda: counting([run.first_offset for run in runs]),
        "message_id": message_ids,
        "stream": lambda: pa.repeat(pa.scalar(stream), sum(run.count for run in runs)),
        "zone": lambda: per_run([run.origin.zone for run in runs]),
        "epoch": lambda: per_run([run.origin.epoch.hex() for run in runs]),
        "sequence": sequences,
    }


def _sample_columns(group: Group, dictionary: Dictionary) -> dict[str, Callable[[], Any]]:
    count = group.count
    values = Values(group.values)
    source_times_ns = longs(array("q", group.source_times_ns))
    places: list[Any] = []  # made once, for the first of the three columns that need it

    def defined(name: str) -> Any:
        if not places:
            tags = longs(array("q", group.tags))
            bases = [dictionary.base(run.origin) for run in group.runs]
            if len(set(bases)) == 1:
                places.append(pc.add(tags, bases[0]))
            else:
                spread = (repeat(base, run.count) for base, run in zip(bases, group.runs, strict=True))
                places.append(pc.add(tags, longs(array("q", chain.from_iterable(spread)))))
        return dictionary.column(name).take(places[0])

    def qualities() -> Any:
        first = group.qualities[0]
        if group.qualities.count(first) == count:
            return pa.repeat(pa.scalar(first, pa.int64()), count)
        return longs(array("q", group.qualities))

    return {
        "tag": lambda: defined("tag"),
        "predicate": lambda: defined("predicate"),
        "unit": lambda: defined("unit"),
        "ts": lambda: _microseconds(source_times_ns),
        "source_time_ns": lambda: source_times_ns,
        "value": lambda: values.value,
        "value_int": lambda: values.value_int,
        "value_text": lambda: values.value_text,
        "value_type": lambda: values.value_type,
        "quality": qualities,
        "object_json": lambda: pa.nulls(count, pa.string()),
    }


def _message_columns(messages: Sequence[Message]) -> dict[str, Callable[[], Any]]:
    count = len(messages)
    times_ns = longs(array("q", [one.envelope.produced_at_unix_ms * 1_000_000 for one in messages]))

    def texts(found: Sequence[str]) -> Callable[[], Any]:
        return lambda: pa.array(found, pa.string())

    return {
        "message_id": texts([one.envelope.message_id for one in messages]),
        "tag": texts([one.fact.subject for one in messages]),
        "predicate": texts([one.fact.predicate for one in messages]),
        "unit": lambda: pa.nulls(count, pa.string()),
        "ts": lambda: _microseconds(times_ns),
        "source_time_ns": lambda: times_ns,
        "value": lambda: pa.nulls(count, pa.float64()),
        "value_int": lambda: pa.nulls(count, pa.int64()),
        "value_text": lambda: pa.nulls(count, pa.string()),
        "value_type": lambda: pa.repeat(pa.scalar("message"), count),
        "quality": lambda: pa.nulls(count, pa.int64()),
        "object_json": texts([str(one.fact.object_json, "utf-8") for one in messages]),
    }


def _microseconds(times_ns: Any) -> Any:
    """Times in ns as timestamps in us, rounded down also before 1970, where integer division would round up."""
    whole = pc.divide(times_ns, _NS_PER_US)
    if pc.min(times_ns).as_py() < 0:
        rounded_up = pc.greater(pc.multiply(whole, _NS_PER_US), times_ns)
        whole = pc.subtract(whole, rounded_up.cast(pa.int64()))
    return whole.cast(pa.timestamp("us", tz="UTC"))

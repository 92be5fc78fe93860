"""Converts sealed batches into Arrow record batches, column by column. Core: no IO.

Batches are collected into a group before a record batch is made, because some twenty Arrow calls for a batch of a
hundred facts would cost more than its facts. Within a group, a *run* is a sequence of facts of one origin without a
gap: columns of identity (offset, sequence, zone, life, message_id of a sample), and whether it is verified, are made
per run, from headers. A batch is opened only if another column is requested, or a row test needs one, and then only
those columns are built.

A record batch has at most FACTS_MAX_PER_GROUP facts and one batch more, and about TEXT_BYTES_MAX of text values,
counted uncompressed. Facts keep the order in which they were added.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from agent.batch import Batch, Definitions, Kind, Origin, open_messages, open_packed
from agent.columns import FACTS_MAX, Unpacked
from agent.fact_store import Verified
from agent.message import Message, sample_message_id
from pyspark_bsfg import packed
from pyspark_bsfg.dictionary import Dictionary
from pyspark_bsfg.pruning import Pruning
from pyspark_bsfg.schema import COUNT, ENVELOPE
from pyspark_bsfg.values import Values, text_bytes

FACTS_MAX_PER_GROUP = 65_536  # some 15 MB of all columns; a quarter of it cost a tenth more in calls of Arrow
TEXT_BYTES_MAX = 32 * 1024 * 1024  # a column of 16,384 equal texts of 64 KiB is 2 KB in a batch and 1 GB in Arrow
# Columns that need no opened batch.
BY_RUN = frozenset(("offset", "stream", "zone", "life", "sequence", "verified", COUNT.name))

_COUNTING = pc.subtract(pc.cumulative_sum(pa.repeat(1, FACTS_MAX + FACTS_MAX_PER_GROUP + 1)), 1)
_COUNTING_32 = _COUNTING.cast(pa.int32())
LABELS = pa.map_(pa.string(), pa.string())
NOT_GOOD = pa.scalar(1 << 30, pa.int64())  # the least quality whose severity, the top two bits, is not Good
_THOUSAND = 1000
_DIGITS = [f"{number:03}".encode() for number in range(_THOUSAND)]
_BLOCK_MIN = 250  # a block of a thousand texts takes as long as this many made alone
_FEW = 8  # a text made alone takes as long as some eight among many
_RARE = 64  # a fact taken alone from its batch takes as long as some sixty among all

Makers = dict[str, Callable[[], Any]]


@dataclass(slots=True)
class Run:
    """Facts that follow one another both here (offset) and at their origin (sequence)."""

    origin: Origin
    definitions: Definitions
    first_offset: int
    first_sequence: int
    count: int
    verified: Verified


@dataclass(slots=True)
class Group:
    """Batches waiting to become one record batch; `samples` is empty if none had to be opened."""

    runs: list[Run] = field(default_factory=list)
    samples: list[Unpacked] = field(default_factory=list)
    count: int = 0
    text_bytes: int = 0


class Columns:
    """Turns batches of one stream into record batches of one schema. `dictionary` must have a batch's tags before it is
    added, if `needs_tags`."""

    def __init__(self, schema: Any, stream: str, dictionary: Dictionary, pruning: Pruning | None = None) -> None:
        self._schema = schema
        self._names = [name.lower() for name in schema.names]
        self._stream = stream
        self._dictionary = dictionary
        self._pruning = pruning or Pruning()
        self._group = Group()
        asked = frozenset(self._names)
        self.needs_tags = bool(asked & {"tag", "predicate", "unit"}) or self._pruning.names_tags
        self._opens_samples = bool(asked - BY_RUN - {"message_id"}) or self._pruning.tests_rows
        self._opens_messages = bool(asked - BY_RUN)
        self._has_text = "value_text" in asked
        self._counts_facts = COUNT.name in asked
        self.needs_proofs = "verified" in asked
        self.counts_only = self._counts_facts and not self.needs_proofs and not self._pruning.tests_rows

    def add(self, batch: Batch, first_offset: int, start: int, stop: int, verified: Verified = "no") -> Iterator[Any]:
        """Add the facts at positions `start` to `stop` (exclusive) of the batch at `first_offset`.

        Yields the record batches that are ready; exhaust it. Raises BatchError if the batch cannot be opened.
        """
        header = batch.header
        assert 0 <= start < stop <= header.count, (start, stop, header.count)
        run = Run(
            header.origin,
            header.definitions,
            first_offset + start,
            header.first_sequence + start,
            stop - start,
            verified,
        )
        if header.kind is Kind.MESSAGES and self._opens_messages:
            yield from self.flush()
            yield self._built([run], _message_columns(open_messages(batch)[start:stop]), None)
        elif header.kind is Kind.MESSAGES or not self._opens_samples:
            if self._group.samples:
                yield from self.flush()
            yield from self._take_run(run)
        else:
            yield from self._add_samples(batch, first_offset, start, stop, verified)

    def counted(self, counts: Iterable[tuple[Origin, int]]) -> Any:
        """The rows of some origins whose facts were counted without batches."""
        return self._built([Run(origin, Definitions(), 0, 0, count, "no") for origin, count in counts], {}, None)

    def flush(self) -> Iterator[Any]:
        """The facts that still wait, as record batches."""
        if self._group.count:
            group, self._group = self._group, Group()
            yield from self._built_group(group, 0, group.count)

    def _add_samples(self, batch: Batch, first_offset: int, start: int, stop: int, verified: Verified) -> Iterator[Any]:
        samples, header = open_packed(batch), batch.header
        if not self._pruning.may_match(samples):
            return
        run = Run(header.origin, header.definitions, first_offset, header.first_sequence, header.count, verified)
        text = text_bytes(samples) if self._has_text else 0
        is_part = (start, stop) != (0, header.count)
        if is_part or text > TEXT_BYTES_MAX or (self._group.count and not self._group.samples):
            yield from self.flush()
        if not is_part:
            yield from self._take_run(run, samples, text)
            return
        yield from self._built_group(Group([run], [samples], header.count, text), start, stop)

    def _take_run(self, run: Run, samples: Unpacked | None = None, text: int = 0) -> Iterator[Any]:
        group = self._group
        _extend(group.runs, run)
        if samples is not None:
            group.samples.append(samples)
        group.count += run.count
        group.text_bytes += text
        rows = len(group.runs) if self._counts_facts else group.count
        if rows >= FACTS_MAX_PER_GROUP or group.text_bytes >= TEXT_BYTES_MAX:
            yield from self.flush()

    def _built_group(self, group: Group, start: int, stop: int) -> Iterator[Any]:
        """The facts at these positions of a group, divided into several record batches if texts are long."""
        if not group.samples:
            yield self._built(group.runs, {}, None)
            return
        columns = _SampleColumns(group, self._dictionary)
        places: Any = None if (start, stop) == (0, group.count) else _COUNTING.slice(start, stop - start)
        if self._pruning.tests_rows:
            places = columns.matching(self._pruning, places)
            stop = start + (group.count if places is None else len(places))
        pieces = -(-group.text_bytes // TEXT_BYTES_MAX) or 1
        if places is None and pieces > 1:
            places = _COUNTING.slice(0, group.count)
        size = -(-(stop - start) // pieces)
        for at in range(0, stop - start, size or 1):
            chosen = places if pieces == 1 else places.slice(at, size)
            yield self._built(group.runs, columns.makers(chosen), chosen)

    def _built(self, runs: Sequence[Run], makers: Makers, places: Any) -> Any:
        of_runs = _counts(self._stream, runs) if self._counts_facts else _identity_columns(self._stream, runs, places)
        makers = of_runs | makers
        return pa.RecordBatch.from_arrays([makers[name]() for name in self._names], schema=self._schema)


def _extend(runs: list[Run], new: Run) -> None:
    """Extend the last run if the new one follows it without a gap; else append it."""
    if runs:
        last = runs[-1]
        follows = (last.first_offset + last.count, last.first_sequence + last.count) == (
            new.first_offset,
            new.first_sequence,
        )
        if follows and (last.origin, last.definitions, last.verified) == (new.origin, new.definitions, new.verified):
            last.count += new.count
            return
    runs.append(new)


def _counts(stream: str, runs: Sequence[Run]) -> Makers:
    """A row for each run."""

    def texts(values: list[str]) -> Any:
        return pa.array(values, pa.string())

    return {
        COUNT.name: lambda: pa.array([run.count for run in runs], pa.int64()),
        "stream": lambda: texts([stream] * len(runs)),
        "zone": lambda: texts([run.origin.zone for run in runs]),
        "life": lambda: texts([run.origin.life.hex() for run in runs]),
        "verified": lambda: texts([run.verified for run in runs]),
    }


def _identity_columns(stream: str, runs: Sequence[Run], places: Any) -> Makers:
    """The columns that follow from a fact's position, made per run."""
    counts = [run.count for run in runs]
    count = sum(counts)
    wanted = count if places is None else len(places)

    def per_run(values: list[str]) -> Any:
        if len(set(values)) == 1:
            return pa.repeat(pa.scalar(values[0]), wanted)
        return picked(packed.spread(values, counts), places)

    def counting(firsts: list[int]) -> Any:
        bases, before = [], 0
        for first, run in zip(firsts, runs, strict=True):
            bases.append(first - before)
            before += run.count
        return picked(pc.add(_COUNTING.slice(0, count), packed.spread(bases, counts)), places)

    def message_ids() -> Any:
        # Ids of samples of one origin differ only in the sequence, which is at their end.
        before = [sample_message_id(stream, run.origin.zone, run.origin.life, 0).removesuffix("0") for run in runs]
        if wanted * _FEW < count:
            ends = list(accumulate(counts))
            found = ((bisect_right(ends, place), place) for place in places.to_pylist())
            numbered = [f"{before[at]}{runs[at].first_sequence + place - ends[at] + counts[at]}" for at, place in found]
            return pa.array(numbered, pa.string())
        made = [
            part
            for text, run in zip(before, runs, strict=True)
            for part in _numbered(text.encode(), run.first_sequence, run.count)
        ]
        return picked(made[0] if len(made) == 1 else pa.concat_arrays(made), places)

    return {
        "offset": lambda: counting([run.first_offset for run in runs]),
        "message_id": message_ids,
        "stream": lambda: pa.repeat(pa.scalar(stream), wanted),
        "zone": lambda: per_run([run.origin.zone for run in runs]),
        "life": lambda: per_run([run.origin.life.hex() for run in runs]),
        "sequence": lambda: counting([run.first_sequence for run in runs]),
        "verified": lambda: per_run([run.verified for run in runs]),
    }


def _numbered(before: bytes, first: int, count: int) -> Iterator[Any]:
    """Texts `before` + number for consecutive numbers, as Arrow columns of texts of one length each.

    The thousand texts that share all but three digits are one block, in which only the digits change that the next
    thousand has others of: a tenth of the time of casting and joining in Arrow.
    """
    end = first + count
    data: bytes | bytearray
    while first < end:
        digits = len(str(first))
        stop = min(end, 10**digits)
        texts = stop - first
        if digits <= 3 or texts < _BLOCK_MIN:
            data = b"".join(before + b"%d" % number for number in range(first, stop))
        else:
            data = _in_thousands(before, first, stop)
        ends = pc.multiply(_COUNTING_32.slice(0, texts + 1), pa.scalar(len(before) + digits, pa.int32()))
        yield pa.Array.from_buffers(pa.string(), texts, [None, ends.buffers()[1], pa.py_buffer(data)])
        first = stop


def _in_thousands(before: bytes, first: int, stop: int) -> bytearray:
    """Texts `before` + number for numbers of the same length, of four digits or more."""
    start = first // _THOUSAND
    head = before + b"%d" % start
    size, block = len(head) + 3, bytearray(head + head.join(_DIGITS))
    data, at = bytearray(size * (stop - first)), 0
    for thousand in range(start, (stop - 1) // _THOUSAND + 1):
        for place, digit in enumerate(b"%d" % thousand, len(before)):
            if block[place] != digit:
                block[place::size] = bytes((digit,)) * _THOUSAND
        least = thousand * _THOUSAND
        part = block[max(first - least, 0) * size : (stop - least) * size]
        data[at : at + len(part)] = part
        at += len(part)
    return data


class _SampleColumns:
    """The columns of one group of samples; values that several columns need are made once."""

    def __init__(self, group: Group, dictionary: Dictionary, entries: Callable[[], Any] | None = None) -> None:
        self._group = group
        self._dictionary = dictionary
        self._entries = entries or self._entries_of_tags
        self._values = Values(group.samples)
        self._made: dict[str, Any] = {}

    def matching(self, pruning: Pruning, places: Any) -> Any:
        """Those of the places whose facts pass the row tests; None for all."""
        tests = [test(self._once(name)) for name, test in pruning.row_tests()]
        if pruning.names_tags:
            tests.append(self._dictionary.wanted().take(self._once("entry")))
        passed = tests[0]
        for test in tests[1:]:
            passed = pc.and_(passed, test)
        if places is not None:
            return places.filter(passed.take(places))
        found = pc.indices_nonzero(passed)
        return None if len(found) == self._group.count else found.cast(pa.int64())

    def makers(self, places: Any) -> Makers:
        """The columns of the facts at some places; None for all."""
        if places is not None and len(places) * _RARE < self._group.count:
            few = Group(samples=[packed.chosen(self._group.samples, places.to_pylist())], count=len(places))
            return _SampleColumns(few, self._dictionary, lambda: self._once("entry").take(places)).makers(None)
        count = self._group.count if places is None else len(places)

        def defined(name: str) -> Any:
            return self._dictionary.column(name).take(picked(self._once("entry"), places))

        return {
            "tag": lambda: defined("tag"),
            "predicate": lambda: defined("predicate"),
            "unit": lambda: defined("unit"),
            "ts": lambda: packed.microseconds(picked(self._once("source_time_ns"), places)),
            "source_time_ns": lambda: picked(self._once("source_time_ns"), places),
            "value": lambda: picked(self._values.value, places),
            "value_int": lambda: picked(self._values.value_int, places),
            "value_text": lambda: self._values.texts(places),
            "value_type": lambda: picked(self._values.value_type, places),
            "quality": lambda: picked(self._once("quality"), places),
            "is_good": lambda: pc.less(picked(self._once("quality"), places), NOT_GOOD),
            "object_json": lambda: pa.nulls(count, pa.string()),
            "labels": lambda: pa.nulls(count, LABELS),
            **{name: (lambda: pa.nulls(count, pa.string())) for name in ENVELOPE},
        }

    def _once(self, name: str) -> Any:
        if name not in self._made:
            samples = self._group.samples
            match name:
                case "source_time_ns":
                    self._made[name] = packed.times_ns(samples)
                case "quality":
                    self._made[name] = packed.qualities(samples)
                case _:
                    self._made[name] = self._entries()
        return self._made[name]

    def _entries_of_tags(self) -> Any:
        """The index of each fact's tag in the dictionary."""
        bases = [self._dictionary.base((run.origin.zone, run.definitions)) for run in self._group.runs]
        counts = [run.count for run in self._group.runs]
        return pc.add(packed.tag_numbers(self._group.samples), packed.spread(bases, counts))


def picked(column: Any, places: Any) -> Any:
    """The entries of a column at some places; None for all."""
    return column if places is None else column.take(places)


def _message_columns(messages: Sequence[Message]) -> Makers:
    count = len(messages)
    unix_ns = array("q", [message.envelope.produced_at_unix_ms * 1_000_000 for message in messages])
    times_ns = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(unix_ns)])

    def texts(found: Sequence[str | None]) -> Callable[[], Any]:
        return lambda: pa.array(found, pa.string())

    return {
        "message_id": texts([message.envelope.message_id for message in messages]),
        "tag": texts([message.fact.subject for message in messages]),
        "predicate": texts([message.fact.predicate for message in messages]),
        "unit": lambda: pa.nulls(count, pa.string()),
        "ts": lambda: packed.microseconds(times_ns),
        "source_time_ns": lambda: times_ns,
        "value": lambda: pa.nulls(count, pa.float64()),
        "value_int": lambda: pa.nulls(count, pa.int64()),
        "value_text": lambda: pa.nulls(count, pa.string()),
        "value_type": lambda: pa.repeat(pa.scalar("message"), count),
        "quality": lambda: pa.nulls(count, pa.int64()),
        "is_good": lambda: pa.nulls(count, pa.bool_()),
        "object_json": texts([str(message.fact.object_json, "utf-8") for message in messages]),
        "labels": lambda: pa.array([list(message.envelope.labels.items()) for message in messages], LABELS),
        **{name: texts([getattr(message.envelope, name) for message in messages]) for name in ENVELOPE},
    }

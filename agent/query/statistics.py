"""Statistics of a store: facts, batches, bytes and times by stream and origin, and what consumers have not confirmed.

They are computed from the summaries of batches; no batch is opened. All are as of one moment, also for a store in use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent.batch import DIGEST_BYTES, Kind, Origin
from agent.fact_store import BatchSummary, ConsumerState, Incident, StoreReader
from agent.message import time_text
from agent.query.scan import Scanner


@dataclass(slots=True)
class OriginStatistics:
    """Facts of one origin in one stream. `missing`: the number of sequences between first and last that are not
    held."""

    facts: int = 0
    first_sequence: int = 0
    last_sequence: int = 0

    @property
    def missing(self) -> int:
        return self.last_sequence - self.first_sequence + 1 - self.facts


@dataclass(slots=True)
class StreamStatistics:
    """One stream. Times are source times, None if it is empty. `bytes` are the bytes of its sealed batches."""

    name: str
    first_offset: int
    end_offset: int
    facts: int = 0
    messages: int = 0
    batches: int = 0
    bytes: int = 0
    oldest_ns: int | None = None
    newest_ns: int | None = None
    origins: dict[Origin, OriginStatistics] = field(default_factory=dict)

    def add_batch(self, summary: BatchSummary) -> None:
        """Count a batch."""
        count = summary.last_offset - summary.first_offset + 1
        self.facts += count
        self.messages += count if summary.kind == Kind.MESSAGES else 0
        self.batches += 1
        self.bytes += summary.body_bytes + DIGEST_BYTES
        self.oldest_ns = summary.time_min_ns if self.oldest_ns is None else min(self.oldest_ns, summary.time_min_ns)
        self.newest_ns = summary.time_max_ns if self.newest_ns is None else max(self.newest_ns, summary.time_max_ns)
        of = self.origins.setdefault(summary.origin, OriginStatistics(0, summary.first_sequence, 0))
        of.facts += count
        of.first_sequence = min(of.first_sequence, summary.first_sequence)
        of.last_sequence = max(of.last_sequence, summary.first_sequence + count - 1)


@dataclass(slots=True)
class ConsumerStatistics:
    """A consumer and what it has not confirmed, which retention therefore keeps."""

    state: ConsumerState
    unconfirmed_facts: int
    unconfirmed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FileStatistics:
    """The files: the database, its write-ahead log, and how much of the database is free for reuse."""

    path: Path
    bytes: int
    wal_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """The statistics of a store."""

    zone: str
    file: FileStatistics
    streams: list[StreamStatistics]
    definitions: dict[str, int]
    consumers: list[ConsumerStatistics]
    incidents: list[Incident]

    @property
    def facts(self) -> int:
        """Facts of all streams."""
        return sum(stream.facts for stream in self.streams)

    def to_dict(self) -> dict[str, Any]:
        """The statistics as a JSON object."""
        return {
            "zone": self.zone,
            "facts": self.facts,
            "file": asdict(self.file)
            | {"path": str(self.file.path), "bytes_per_fact": _each(self.file.bytes, self.facts)},
            "streams": [_stream(stream) for stream in self.streams],
            "definitions": [{"zone": zone, "count": count} for zone, count in self.definitions.items()],
            "consumers": [_consumer(consumer) for consumer in self.consumers],
            "incidents": [asdict(incident) for incident in self.incidents],
        }


def statistics(reader: StoreReader) -> Statistics:
    """The statistics of a store, from one pass over its summaries."""
    with reader.at_one_moment() as moment:
        return _statistics(moment)


def _statistics(reader: StoreReader) -> Statistics:
    scanner = Scanner(reader)
    consumers, streams = list[ConsumerStatistics](), list[StreamStatistics]()
    for state in reader.consumers():  # what was released unconfirmed is not kept for it
        confirmed = max(state.frontier, scanner.firsts.get(state.stream, 1) - 1)
        consumers.append(ConsumerStatistics(state, scanner.ends.get(state.stream, 0) - confirmed))
    for name, end_offset in scanner.ends.items():
        stream = StreamStatistics(name, scanner.firsts[name], end_offset)
        behind = [consumer for consumer in consumers if consumer.state.stream == name]
        for summary in _summaries(scanner, stream):
            stream.add_batch(summary)
            for consumer in behind:
                if summary.last_offset > consumer.state.frontier:
                    consumer.unconfirmed_bytes += summary.body_bytes + DIGEST_BYTES
        streams.append(stream)
    definitions = reader.definition_counts()
    file = FileStatistics(reader.path, *reader.sizes())
    return Statistics(reader.zone, file, streams, definitions, consumers, reader.incidents())


def _summaries(scanner: Scanner, stream: StreamStatistics) -> Iterator[BatchSummary]:
    for page in scanner.summaries(stream.name, stream.first_offset, stream.end_offset):
        yield from page


def _each(total: int, count: int) -> float | None:
    return round(total / count, 2) if count else None


def _origin(origin: Origin) -> dict[str, Any]:
    return {"zone": origin.zone, "life": origin.life.hex()}


def _stream(stream: StreamStatistics) -> dict[str, Any]:
    plain = ("name", "first_offset", "end_offset", "facts", "messages", "batches", "bytes")
    return {name: getattr(stream, name) for name in plain} | {
        "bytes_per_fact": _each(stream.bytes, stream.facts),
        "oldest_source_time": None if stream.oldest_ns is None else time_text(stream.oldest_ns),
        "newest_source_time": None if stream.newest_ns is None else time_text(stream.newest_ns),
        "origins": [_origin(origin) | asdict(of) | {"missing": of.missing} for origin, of in stream.origins.items()],
    }


def _consumer(consumer: ConsumerStatistics) -> dict[str, Any]:
    state = consumer.state
    return {
        "name": state.name,
        "zone": state.zone,
        "stream": state.stream,
        "frontier": state.frontier,
        "unconfirmed_facts": consumer.unconfirmed_facts,
        "unconfirmed_bytes": consumer.unconfirmed_bytes,
    }

"""Shell: an enterprise store's file on this host, read-only, in pages, each its own short statement.

Promised: exactly the facts of the range asked for, each once, in order, or an exception that says which are missing. Between
pages no statement and no transaction is open, so the node that owns the store can go on reusing its write-ahead log while a
long job reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from agent.batch import DEFINITIONS_MAX, BatchError, parse
from agent.fact_store.reader import StoreReader
from agent.fact_store.records import Hole, StoredBatch
from pyspark_bsfg.columns import Columns
from pyspark_bsfg.dictionary import Dictionary
from pyspark_bsfg.errors import FactsGone, SparkError, StoreUnreadable, StreamUnknown
from pyspark_bsfg.ranges import OffsetRange

PAGE_FACTS = 200_000
PAGE_BYTES = 4 * 1024 * 1024  # some milliseconds of reading; a page of larger ones was no faster


@contextmanager
def opened(path: Path) -> Iterator[StoreReader]:
    """A reader of the store at `path`. Raises StoreUnreadable, or the store's own error, when it cannot be read from here."""
    _check_access(path)
    with closing(StoreReader(path)) as reader:
        yield reader


def held(reader: StoreReader, stream: str) -> OffsetRange:
    """The offsets of a stream that the store holds now. Raises StreamUnknown."""
    streams = {one.name: OffsetRange(one.first_offset, one.end_offset) for one in reader.streams()}
    if stream not in streams:
        names = ", ".join(sorted(streams)) or "none yet"
        raise StreamUnknown(f"{reader.path} holds no stream {stream!r}", f"it holds: {names}")
    return streams[stream]


def record_batches(path: Path, stream: str, asked: OffsetRange, schema: Any) -> Iterator[Any]:
    """The facts of a range as Arrow record batches of `schema`."""
    dictionary = Dictionary()
    columns = Columns(schema, stream, dictionary)
    with opened(path) as reader:
        for stored in _stored_batches(reader, stream, asked):
            _define(reader, dictionary, stored)
            start = max(asked.first - stored.first_offset, 0)
            stop = min(asked.last, stored.last_offset) - stored.first_offset + 1
            try:
                yield from columns.add(parse(stored.sealed), stored.first_offset, start, stop)
            except BatchError as error:
                where = f"{path}: facts {stored.first_offset} to {stored.last_offset} of {stream}"
                raise StoreUnreadable(f"{where}: {error}", "run bsfg store verify on the node") from error
        yield from columns.flush()


def _stored_batches(reader: StoreReader, stream: str, asked: OffsetRange) -> Iterator[StoredBatch]:
    """The batches that hold a range, without a gap between them. Raises FactsGone or StoreUnreadable where there is one."""
    after = asked.first - 1
    while after < asked.last:
        page = reader.read(stream, after, PAGE_FACTS, PAGE_BYTES, until_offset=asked.last)
        holes = sorted(page.holes, key=lambda hole: hole.first_offset, reverse=True)
        for stored in page.batches:
            if holes and holes[-1].first_offset < stored.first_offset:
                raise _missing(reader.path, stream, holes[-1])
            yield stored
            after = stored.last_offset
        if holes:
            raise _missing(reader.path, stream, holes[-1])
        if not page.batches:
            raise _missing(reader.path, stream, Hole(after + 1, asked.last, "expired"))


def _missing(path: Path, stream: str, hole: Hole) -> SparkError:
    """What a task that was given these facts says of a hole in them: it never returns what is left."""
    facts = f"{path}: facts {hole.first_offset} to {hole.last_offset} of {stream}"
    if hole.reason == "damaged":
        return StoreUnreadable(f"{facts}: the disk has changed them", "run bsfg store verify on the node")
    return FactsGone(f"{facts} were released while this was reading", "read again, from a later one")


def _define(reader: StoreReader, dictionary: Dictionary, stored: StoredBatch) -> None:
    """See that the dictionary knows every tag a batch may name: an origin's definitions are read once, all of them."""
    if dictionary.known(stored.origin) >= stored.definition_count:
        return
    dictionary.put(stored.origin, reader.definitions(stored.origin, 0, DEFINITIONS_MAX))
    if (known := dictionary.known(stored.origin)) < stored.definition_count:
        raise StoreUnreadable(
            f"{reader.path}: {stored.origin} has {known} tag definitions, a batch needs {stored.definition_count}",
            "run bsfg store verify on the node",
        )


def _check_access(path: Path) -> None:
    """Say what is wrong in words before SQLite says it in its own."""
    if not path.exists():
        raise StoreUnreadable(
            f"{path} does not exist on this host",
            "the sqlite transport reads a file where the task runs: run on the store's host (master local[*])",
        )
    if not path.is_file():
        raise StoreUnreadable(f"{path} is no file", "name the store's file itself, facts.db in the node's state_dir")
    if not os.access(path, os.R_OK):
        raise StoreUnreadable(f"{path} cannot be read by this user", "add the user to the group that owns it")
    shared = path.with_name(path.name + "-shm")
    if shared.exists() and not os.access(shared, os.R_OK):
        raise StoreUnreadable(f"{shared} cannot be read by this user", "add the user to the group that owns it")
    if not shared.exists() and not os.access(path.parent, os.W_OK):
        # SQLite must make this file to read a store that was closed cleanly (it shares locks through it).
        raise StoreUnreadable(
            f"{shared} does not exist and this user may not create it",
            "start the node, which creates it, or read a copy of the store in a folder of your own",
        )

"""The index of message ids: content digest and offset of each message that is stored, until retention deletes it.

Keys are random, and a table keyed by them alone drops to a tenth of its speed once it outgrows SQLite's cache. So ids
are kept in generations of 65536, in the order in which they came, and the table is keyed by generation first: inserts
stay within one generation, about 4 MB, which fits the cache. A filter in memory (message_filter.py) tells which
generations may hold an id. A new id, the usual case, costs no look-up; a known one is found with one or two look-ups,
newest generation first.

The filter of a generation is written once, when the generation is full, and read at opening; the filter of the open
generation is built from its rows. Retention deletes whole generations, a bounded number of rows at a time, once the
stream has released their last offset. Then it deletes, equally slowly, the rows of subjects whose newest message is
released (streams of write class strong).

Used by the writer's thread only, inside its transaction. The writer calls `settle` when the transaction has ended; it
undoes the changes in memory if the transaction did not become durable.
"""

from __future__ import annotations

import hashlib
import sqlite3
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from agent.fact_store.sqlite.message_filter import MessageFilter, Summary, summary_of
from agent.fact_store.sqlite.queries import QUERIES, with_rows

GENERATION_IDS = 65_536
"""Ids of a generation: at 54 bytes each they take 3.5 MB of the 8 MB that SQLite may cache."""
ROWS_AT_ONCE = 200
SWEEP_OFFSETS_MIN = 10_000
"""The least number of facts released between two rounds through a stream's subjects."""
_INSERT_ROWS = with_rows(QUERIES["insert_message"], ROWS_AT_ONCE)

Entry = tuple[bytes, bytes, int]
"""Key (digest of the id), digest of the content, offset."""


class _Mark(NamedTuple):
    """The state of a stream before the transaction changed it."""

    generation: int
    ids: int
    closed: int
    marks: array[int]


@dataclass(slots=True, eq=False)
class _Stream:
    """A stream's generations: the closed ones by their last offsets, oldest first, and the open one with `ids` ids."""

    filter: MessageFilter = field(default_factory=MessageFilter)
    first_generation: int = 0
    generation: int = 0
    ids: int = 0
    last_offsets: deque[int] = field(default_factory=deque)  # bounded by retention, one for each 65536 ids
    # Position of the round through the subjects (None: between two rounds), the offset up to which it deletes, and how
    # many subjects it has kept. A failed transaction may make a round miss some, which the next one finds.
    sweep_key: bytes | None = None
    swept_offset: int = 0
    subjects: int = 0
    # What this transaction did, undone if it fails; drops are carried out once it has succeeded.
    before: _Mark | None = None
    added: list[bytes] = field(default_factory=list)
    dropped: list[Summary] = field(default_factory=list)

    def touch(self) -> None:
        """Save the state of the stream before this transaction."""
        if self.before is None:
            self.before = _Mark(self.generation, self.ids, len(self.last_offsets), self.filter.marks)


class MessageIndex:
    """The ids of all streams."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute
        self._executemany = connection.executemany
        self._streams: dict[int, _Stream] = {}
        self._touched: list[_Stream] = []

    @classmethod
    def load(cls, connection: sqlite3.Connection) -> MessageIndex:
        """The index from the tables, when a store is opened. A full generation without a filter gets one."""
        index = cls(connection)
        for (number,) in connection.execute(QUERIES["select_message_streams"]).fetchall():
            index._load_stream(number)
        return index

    def find(self, stream: int, key: bytes) -> tuple[bytes, int] | None:
        """Content digest and offset of the message stored under a key."""
        if (state := self._streams.get(stream)) is None:
            return None
        for generation in state.filter.candidates(key, state.first_generation, state.generation):
            row = self._execute(QUERIES["select_message"], (stream, generation, key)).fetchone()
            if row is not None:
                found: tuple[bytes, int] = row
                return found
        return None

    def add(self, stream: int, entries: Sequence[Entry]) -> None:
        """Add messages just stored, all of them new, in the order of their offsets."""
        if (state := self._streams.get(stream)) is None:
            state = self._streams[stream] = _Stream()
        self._touch(state)
        start = 0
        while start < len(entries):
            some = entries[start : start + GENERATION_IDS - state.ids]
            self._insert(stream, state.generation, some)
            for key, _, _ in some:
                state.filter.add(key, state.generation)
                state.added.append(key)
            state.ids += len(some)
            start += len(some)
            if state.ids == GENERATION_IDS:
                self._save(stream, state.generation, some[-1][2], state.filter.close())
                state.last_offsets.append(some[-1][2])
                state.generation, state.ids = state.generation + 1, 0

    def release(self, stream: int, released_offset: int, rows_max: int) -> int:
        """Delete up to `rows_max` rows of messages at or below an offset, generations of ids first; returns how many
        were visited, 0 when nothing is left to do."""
        state = self._streams.get(stream)
        if state is None or state.dropped:  # one generation for each transaction is enough
            return 0
        if state.last_offsets and state.last_offsets[0] <= released_offset:
            return self._release_ids(stream, state, rows_max)
        return self._release_subjects(stream, state, released_offset, rows_max)

    def settle(self, *, is_durable: bool) -> None:
        """End the transaction: keep the changes in memory, or undo them."""
        for state in self._touched:
            before = state.before
            assert before is not None
            if is_durable:
                for summary in state.dropped:
                    state.filter.drop(summary)
                    state.last_offsets.popleft()
                    state.first_generation += 1
            else:
                for key in reversed(state.added):
                    state.filter.undo(key)
                state.generation, state.ids, state.filter.marks = before.generation, before.ids, before.marks
                while len(state.last_offsets) > before.closed:
                    state.last_offsets.pop()
            state.before, state.added, state.dropped = None, [], []
        self._touched.clear()

    def _release_ids(self, stream: int, state: _Stream, rows_max: int) -> int:
        """Delete rows of the oldest generation, and its filter together with the last of them."""
        generation = state.first_generation
        values = {"stream": stream, "generation": generation, "rows_max": rows_max}
        deleted = self._execute(QUERIES["delete_messages"], values).rowcount
        if deleted < rows_max:
            row = self._execute(QUERIES["delete_message_filter"], (stream, generation)).fetchone()
            self._touch(state)
            # The filter is missing or damaged if `load` could not write it on a full disk.
            is_good = row is not None and row[0] == _digest(row[1])
            state.dropped.append(row[1] if is_good else state.filter.oldest(generation))
        return max(deleted, 1)

    def _release_subjects(self, stream: int, state: _Stream, released_offset: int, rows_max: int) -> int:
        """Visit some subjects of a strong stream and delete those whose newest message is released. A round visits all
        subjects in the order of their digests; the next round begins when as many facts have been released as there are
        subjects."""
        if state.sweep_key is None:
            if released_offset - state.swept_offset < max(state.subjects, SWEEP_OFFSETS_MIN):
                return 0
            state.sweep_key, state.swept_offset, state.subjects = b"", released_offset, 0
        rows = self._execute(QUERIES["select_subjects"], (stream, state.sweep_key, rows_max)).fetchall()
        gone = [(stream, key) for key, last_offset in rows if last_offset <= state.swept_offset]
        self._executemany(QUERIES["delete_subject"], gone)
        state.subjects += len(rows) - len(gone)
        state.sweep_key = rows[-1][0] if len(rows) == rows_max else None
        return len(rows)

    def _touch(self, state: _Stream) -> None:
        if state.before is None:
            state.touch()
            self._touched.append(state)

    def _insert(self, stream: int, generation: int, entries: Sequence[Entry]) -> None:
        """Insert rows of one generation, sorted, so that neighbours share a descent into the table."""
        rows = [(stream, generation, *entry) for entry in sorted(entries)]
        whole = len(rows) - len(rows) % ROWS_AT_ONCE
        for at in range(0, whole, ROWS_AT_ONCE):
            self._execute(_INSERT_ROWS, list(chain.from_iterable(rows[at : at + ROWS_AT_ONCE])))
        for row in rows[whole:]:
            self._execute(QUERIES["insert_message"], row)

    def _save(self, stream: int, generation: int, last_offset: int, summary: Summary) -> None:
        values = (stream, generation, last_offset, _digest(summary), summary)
        self._execute(QUERIES["insert_message_filter"], values)

    def _save_if_there_is_room(self, stream: int, generation: int, last_offset: int, summary: Summary) -> None:
        """Save a filter. On a full disk it is not saved, so that the store can be opened, and the next opening builds
        it again."""
        try:
            self._save(stream, generation, last_offset, summary)
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_FULL"):
                raise

    def _load_stream(self, stream: int) -> None:
        state = self._streams[stream] = _Stream()
        first, last = self._execute(QUERIES["select_message_generations"], {"stream": stream}).fetchone()
        state.first_generation = state.generation = first
        saved = {row[0]: row[1:] for row in self._execute(QUERIES["select_message_filters"], (stream,))}
        for generation in range(first, last + 1):
            last_offset, digest, summary = saved.get(generation, (0, b"", b""))
            if digest != _digest(summary):  # missing or damaged: a filter without a key would let its id in twice
                rows = self._execute(QUERIES["select_message_keys"], (stream, generation)).fetchall()
                if generation == last and len(rows) < GENERATION_IDS and not digest:
                    for key, _ in rows:
                        state.filter.add(key, generation)
                    state.ids = len(rows)
                    return
                last_offset = max((offset for _, offset in rows), default=0)
                summary = summary_of([key for key, _ in rows])
                self._save_if_there_is_room(stream, generation, last_offset, summary)
            state.filter.load(summary, generation)
            state.last_offsets.append(last_offset)
            state.generation = generation + 1


def _digest(summary: Summary) -> bytes:
    return hashlib.blake2b(summary, digest_size=16).digest()

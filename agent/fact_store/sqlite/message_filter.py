"""A filter of message ids: it tells which generations may hold a key, so that a new id costs no look-up in the tables.
Core: no IO.

Keys are digests, so any of their bits serve as a hash. The first 13 choose one of 8192 buckets. A bucket holds three
bytes for each key, in the order in which keys were added: two more bytes of the key (its fingerprint) and the
generation, modulo 256. One search through one bucket answers for all generations: 1.2 kB for every four million keys.

Guarantee: a key that was added is always among the candidates. A key that was not added is a false positive with a
chance of one in 500,000 for each key of its bucket (1.9 % with ten million keys in all), which costs one look-up in the
table.

The summary of a full generation (`Summary`: the number of keys in each bucket, then their fingerprints) is kept in a
table and loaded when the store is opened.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

BUCKETS = 8192
_ENTRY = 3  # bytes: two of fingerprint, one of generation
_PRINT = 2
_KEPT = 256  # generations that one byte can distinguish
_COUNTS_BYTES = 4 * BUCKETS

Summary = bytes
"""A generation's keys: BUCKETS counts as u32, then two bytes for each key, bucket after bucket."""


class MessageFilter:
    """The filter of one stream."""

    def __init__(self) -> None:
        self._buckets: list[bytearray | None] = [None] * BUCKETS  # created when needed: most streams have few messages
        self.marks = array("I", bytes(_COUNTS_BYTES))
        """Where the open generation begins in each bucket. Replaced, never changed, so that a rollback can restore
        it."""

    def __len__(self) -> int:
        """How many keys the filter holds."""
        return sum(len(bucket) for bucket in self._buckets if bucket) // _ENTRY

    def add(self, key: bytes, generation: int) -> None:
        """Add a key; `generation` never decreases."""
        number = (key[0] << 8 | key[1]) >> 3
        bucket = self._buckets[number]
        if bucket is None:
            bucket = self._buckets[number] = bytearray()
        bucket += key[2:4]
        bucket.append(generation & 0xFF)

    def undo(self, key: bytes) -> None:
        """Remove the key that was added last to its bucket. Several keys must be undone in reverse order."""
        bucket = self._buckets[(key[0] << 8 | key[1]) >> 3]
        assert bucket, "nothing was added"
        assert bucket[-_ENTRY:-1] == key[2:4]
        del bucket[-_ENTRY:]

    def candidates(self, key: bytes, first_generation: int, last_generation: int) -> Iterator[int]:
        """Generations between these two (inclusive) that may hold a key, newest first; usually none."""
        bucket = self._buckets[(key[0] << 8 | key[1]) >> 3]
        if bucket is None:
            return
        fingerprint = key[2:4]
        at = bucket.rfind(fingerprint)
        while at >= 0:
            if at % _ENTRY == 0:
                newest = last_generation - ((last_generation - bucket[at + _PRINT]) & 0xFF)
                yield from range(newest, first_generation - 1, -_KEPT)
            at = bucket.rfind(fingerprint, 0, at + _PRINT - 1)

    # ----------------------------------------------------------------------------------------------------- generations

    def close(self) -> Summary:
        """Return the summary of the open generation and begin the next."""
        marks, buckets = self.marks, self._buckets
        parts = [bucket[mark:] if bucket else b"" for bucket, mark in zip(buckets, marks, strict=True)]
        self.marks = array("I", [len(bucket) if bucket else 0 for bucket in buckets])
        return _summary(parts)

    def load(self, summary: Summary, generation: int) -> None:
        """Add the keys of a generation from its summary, after those of the generations before it."""
        prints = summary[_COUNTS_BYTES:]
        entries = bytearray(len(prints) // _PRINT * _ENTRY)
        entries[::_ENTRY], entries[1::_ENTRY] = prints[::_PRINT], prints[1::_PRINT]
        entries[_PRINT::_ENTRY] = bytes([generation & 0xFF]) * (len(entries) // _ENTRY)
        buckets = self._buckets
        ends = accumulate((_ENTRY * count for count in counts(summary)), initial=0)
        for number, (start, end) in enumerate(pairwise(ends)):
            if start == end:
                continue
            if (bucket := buckets[number]) is None:
                bucket = buckets[number] = bytearray()
            bucket += entries[start:end]
        self.marks = array("I", [len(bucket) if bucket else 0 for bucket in buckets])

    def oldest(self, generation: int) -> Summary:
        """The summary of the oldest generation, from memory."""
        own, parts = generation & 0xFF, list[bytearray]()
        for bucket in self._buckets:
            end = 0
            while bucket is not None and end < len(bucket) and bucket[end + _PRINT] == own:
                end += _ENTRY
            parts.append(bucket[:end] if bucket is not None else bytearray())
        return _summary(parts)

    def drop(self, summary: Summary) -> None:
        """Remove the oldest generation, which has this summary."""
        lengths = [_ENTRY * count for count in counts(summary)]
        for bucket, length in zip(self._buckets, lengths, strict=True):
            if length:
                assert bucket is not None
                assert len(bucket) >= length
                del bucket[:length]
        self.marks = array("I", [mark - length for mark, length in zip(self.marks, lengths, strict=True)])


def counts(summary: Summary) -> array[int]:
    """How many keys each bucket has. Raises ValueError for bytes that are not a summary."""
    found = array("I", summary[:_COUNTS_BYTES])
    if len(found) != BUCKETS or len(summary) != _COUNTS_BYTES + _PRINT * sum(found):
        raise ValueError(f"{len(summary)} bytes are not a summary of message ids")
    return found


def _summary(parts: Sequence[bytes | bytearray]) -> Summary:
    """The summary of a generation, from its entries in each bucket."""
    entries = b"".join(parts)
    prints = bytearray(len(entries) // _ENTRY * _PRINT)
    prints[::_PRINT], prints[1::_PRINT] = entries[::_ENTRY], entries[1::_ENTRY]
    return array("I", [len(part) // _ENTRY for part in parts]).tobytes() + prints


def summary_of(keys: list[bytes]) -> Summary:
    """The summary of a generation, from its keys."""
    message_filter = MessageFilter()
    for key in keys:
        message_filter.add(key, 0)
    return message_filter.close()

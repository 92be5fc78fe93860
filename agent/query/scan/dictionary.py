"""The definitions of tag numbers by origin, read from a store when a batch first needs them.

Definitions never change and their numbers have no gaps, so they are cached. Thread-safe.
"""

from __future__ import annotations

import threading

from agent.batch import DEFINITIONS_MAX, Origin
from agent.columns import BatchError
from agent.fact_store import StoreReader
from agent.message import TagDefinition
from agent.query.scan.bounds import Bounds


class Dictionary:
    """Definitions of a store by origin; number n is at index n - 1."""

    parse = staticmethod(TagDefinition.from_json)

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._known: dict[Origin, list[TagDefinition]] = {}
        self._growing = threading.Lock()  # two threads that read the same definitions would both append them

    def of(self, origin: Origin, count: int) -> list[TagDefinition]:
        """At least the first `count` definitions of an origin. Raises BatchError when the store has fewer."""
        known = self._known.setdefault(origin, [])
        if len(known) < count:
            self._read(origin, known, count)
            if len(known) < count:
                raise BatchError(f"definitions: the store has {len(known)} of {origin}, a batch names {count}")
        return known

    def all_of(self, origin: Origin) -> list[TagDefinition]:
        """Every definition the store has of an origin."""
        known = self._known.setdefault(origin, [])
        self._read(origin, known, DEFINITIONS_MAX)
        return known

    def forget(self, origin: Origin) -> None:
        """Drop what was read of an origin."""
        self._known.pop(origin, None)

    def _read(self, origin: Origin, known: list[TagDefinition], until: int) -> None:
        with self._growing:
            known.extend(map(self.parse, self._reader.definitions(origin, len(known), until)))


class NumbersOnly(Dictionary):
    """For scans that select tags by number and need no definitions: those of ten thousand tags take 4 MB and half a
    second."""

    def of(self, origin: Origin, count: int) -> list[TagDefinition]:  # noqa: ARG002 the signature of the base class
        """No definitions."""
        return []


class Wanted:
    """The tags within the bounds, as numbers of each origin."""

    def __init__(self, dictionary: Dictionary, bounds: Bounds) -> None:
        self._dictionary = dictionary
        self._bounds = bounds
        self._found: dict[Origin, tuple[int, frozenset[int]]] = {}
        self._least = min(bounds.numbers or (), default=DEFINITIONS_MAX + 1)

    def numbers(self, origin: Origin, count: int) -> frozenset[int] | None:
        """The wanted tags among an origin's first `count` tags (and perhaps later ones); None for all of them."""
        if not self._bounds.names_tags:
            return None
        if not self._bounds.names_subjects:
            return self._bounds.numbers if self._least <= count else frozenset()
        checked, numbers = self._found.get(origin, (0, frozenset[int]()))
        if checked < count:
            known = self._dictionary.of(origin, count)
            new = (n for n, one in enumerate(known[checked:], checked + 1) if self._bounds.wants(n, one))
            numbers = numbers.union(new)
            self._found[origin] = len(known), numbers
        return numbers

"""The definitions of tag numbers, read from a store when a batch first needs them.

The definitions of a zone form chains, of which a batch needs the beginning; nearly every zone has one. They never
change, so they are cached. Thread-safe.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import lru_cache

from agent.batch import DEFINITIONS_MAX, Definitions
from agent.columns import BatchError
from agent.fact_store import StoreReader
from agent.message import TagDefinition
from agent.query.scan.bounds import Bounds


@dataclass(eq=False, slots=True)
class Chain:
    """A chain of a zone's definitions, as far as it was read: number n is at index n - 1."""

    zone: str
    tags: list[TagDefinition] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)

    def has(self, definitions: Definitions) -> bool:
        """Whether these are the first definitions of the chain."""
        count = definitions.count
        return count <= len(self.digests) and (not count or self.digests[count - 1] == definitions.digest)


class Dictionary:
    """The chains of a store."""

    parse = staticmethod(lru_cache(1024)(TagDefinition.from_json))  # all zones have the same tags of their health

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._chains: dict[str, list[Chain]] = {}
        self._growing = threading.Lock()  # two threads that read the same definitions would both append them

    def known(self, zone: str, definitions: Definitions) -> Chain | None:
        """The chain that begins with these definitions, if it was read."""
        return next((chain for chain in self._chains.get(zone, ()) if chain.has(definitions)), None)

    def of(self, zone: str, definitions: Definitions) -> Chain:
        """The chain that begins with these definitions. Raises BatchError if the store does not have them, StoreDamaged
        if it can no longer read them."""
        if (known := self.known(zone, definitions)) is not None:
            return known
        with self._growing:
            return self.known(zone, definitions) or self._read(zone, definitions)

    def own(self) -> Chain:
        """The chain of the store's own definitions. Raises StoreDamaged."""
        own = self._reader.own_definitions()
        return self.of(self._reader.zone, own) if own.count else Chain(self._reader.zone)

    def forget_chain(self, zone: str, definitions: Definitions) -> None:
        """Drop a chain."""
        self._chains[zone] = [chain for chain in self._chains.get(zone, ()) if not chain.has(definitions)]

    def _read(self, zone: str, definitions: Definitions) -> Chain:
        chains = self._chains.setdefault(zone, [])
        found = self._reader.definitions(zone, definitions.digest, [chain.digests[-1] for chain in chains])
        if found is None or found.wanted != definitions:
            raise BatchError(
                f"definitions: the store does not have the {definitions.count} of {zone} that a batch names"
            )
        chain = next((chain for chain in chains if found.after.count and chain.has(found.after)), None)
        tags = [self.parse(body) for body in found.bodies]  # before the chain is changed: it may fail
        if chain is None:
            chain = Chain(zone)
            chains.append(chain)
        chain.tags += tags
        chain.digests += found.digests
        return chain


class NumbersOnly(Dictionary):
    """For scans that select tags by number and need no definitions: those of ten thousand tags take 4 MB and half a
    second."""

    def of(self, zone: str, definitions: Definitions) -> Chain:  # noqa: ARG002 the signature of the base class
        """A chain without definitions."""
        return Chain(zone)


class WantedTags:
    """The tags within the bounds, as numbers of each chain."""

    def __init__(self, dictionary: Dictionary, bounds: Bounds) -> None:
        self._dictionary = dictionary
        self._bounds = bounds
        self._found: dict[Chain, tuple[int, frozenset[int]]] = {}
        self._least = min(bounds.numbers or (), default=DEFINITIONS_MAX + 1)

    def numbers(self, zone: str, definitions: Definitions) -> frozenset[int] | None:
        """The wanted tags among a batch's definitions (and perhaps later ones); None for all of them."""
        if not self._bounds.names_tags:
            return None
        if not self._bounds.names_subjects:
            return self._bounds.numbers if self._least <= definitions.count else frozenset()
        chain = self._dictionary.of(zone, definitions)
        checked, numbers = self._found.get(chain, (0, frozenset[int]()))
        if checked < definitions.count:
            tags = chain.tags
            new = (n for n, tag in enumerate(tags[checked:], checked + 1) if self._bounds.wants(n, tag))
            numbers = numbers.union(new)
            self._found[chain] = len(tags), numbers
        return numbers

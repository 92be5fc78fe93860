"""A mapping whose copy costs what is changed in it, not what is in it: a commit copies the catalog, and a node of a
thousand plants changes a few of their entries."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from itertools import chain
from typing import TypeVar

SHARDS = 64
"""Dictionaries of one mapping. With two thousand entries a change copies thirty of them, and a copy 64 references."""

_K = TypeVar("_K")
_V = TypeVar("_V")


class Shards(MutableMapping[_K, _V]):
    """A dictionary in parts by the hash of its keys, which copies share until they change them."""

    def __init__(self, shared: list[dict[_K, _V]] | None = None) -> None:
        self._parts: list[dict[_K, _V]] = shared or [{} for _ in range(SHARDS)]
        self._own = set[int]() if shared else set(range(SHARDS))  # parts that no copy shares

    def copy(self) -> Shards[_K, _V]:
        """A copy; from now on either copies the part that it changes."""
        self._own = set()
        return Shards(self._parts.copy())

    def __getitem__(self, key: _K) -> _V:
        return self._parts[hash(key) % SHARDS][key]

    def __setitem__(self, key: _K, value: _V) -> None:
        self._own_part(key)[key] = value

    def __delitem__(self, key: _K) -> None:
        del self._own_part(key)[key]

    def __iter__(self) -> Iterator[_K]:
        return chain.from_iterable(self._parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def _own_part(self, key: _K) -> dict[_K, _V]:
        index = hash(key) % SHARDS
        if index not in self._own:
            self._parts[index] = self._parts[index].copy()
            self._own.add(index)
        return self._parts[index]

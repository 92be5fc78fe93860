"""Tag definitions of several zones as Arrow columns, so that one `take` gives tag, predicate and unit of facts. Core:
no IO.

The definitions that a batch names are numbered densely from 1, and are the beginning of a chain of its zone's. Here the
chains follow one another, and the index of a tag is its number plus its chain's base.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from agent.batch import DEFINITIONS_MAX, Definitions
from agent.message import TagDefinition

_COLUMNS: dict[str, Callable[[TagDefinition], str | None]] = {
    "tag": lambda definition: definition.subject,
    "predicate": lambda definition: definition.predicate,
    "unit": lambda definition: definition.unit or None,
}


# A task reads every definition of a zone again, and a worker of Spark runs many tasks. At 25 us each, this was the
# largest part of a task of a micro-batch. About a kilobyte each.
_DEFINITIONS_KEPT = 16_384

_definition = lru_cache(_DEFINITIONS_KEPT)(TagDefinition.from_json)

Named = tuple[str, Definitions]
"""A zone, and the definitions that a batch of it names."""


class _Chain(NamedTuple):
    base: int
    first_wanted: int


class Dictionary:
    """Definitions by zone and name; `is_wanted` says whether a query includes a tag."""

    def __init__(self, is_wanted: Callable[[TagDefinition], bool] = lambda _: True) -> None:
        self._is_wanted = is_wanted
        self._chains: dict[Named, _Chain] = {}
        self._definitions: list[TagDefinition] = []
        self._wanted: list[bool] = []
        self._columns: dict[str, Any] = {}

    def has(self, named: Named) -> bool:
        """Whether these definitions are here."""
        return named in self._chains

    def put(self, named: Named, definitions: Sequence[bytes]) -> None:
        """Add all definitions that a batch names, as canonical JSON, and the names of those that are their
        beginning."""
        zone, running = named[0], Definitions()
        base = len(self._definitions) - 1  # the first number is 1
        wanted, first_wanted = list[bool](), DEFINITIONS_MAX + 1
        for body in definitions:
            definition = _definition(body)
            wanted.append(self._is_wanted(definition))
            self._definitions.append(definition)
            running = running.extended(body)
            if wanted[-1] and first_wanted > len(wanted):
                first_wanted = len(wanted)
            self._chains[zone, running] = _Chain(base, first_wanted)
        self._wanted += wanted
        self._columns.clear()

    def base(self, named: Named) -> int:
        """The number to add to a tag number of a batch that names these for its index in `column`."""
        return self._chains[named].base

    def wants_some(self, named: Named) -> bool:
        """Whether one of these is wanted."""
        return self._chains[named].first_wanted <= named[1].count

    def column(self, name: str) -> Any:
        """The tag, predicate or unit of all definitions as an Arrow array of strings."""
        if name not in self._columns:
            self._columns[name] = pa.array(map(_COLUMNS[name], self._definitions), pa.string())
        return self._columns[name]

    def wanted(self) -> Any:
        """Whether each definition is wanted, as an Arrow array."""
        if "wanted" not in self._columns:
            self._columns["wanted"] = pa.array(self._wanted, pa.bool_())
        return self._columns["wanted"]

"""Tag definitions of several origins as Arrow columns, so that one `take` gives tag, predicate and unit of facts. Core:
no IO.

Definitions are numbered densely from 1 at each origin. Here the origins follow one another, and the index of a tag is
its number plus its origin's base. Definitions keep their index when another origin is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from agent.batch import Origin
from agent.message import TagDefinition

_COLUMNS: dict[str, Callable[[TagDefinition], str | None]] = {
    "tag": lambda one: one.subject,
    "predicate": lambda one: one.predicate,
    "unit": lambda one: one.unit or None,
}


# A task reads every definition of an origin again, and a worker of Spark runs many tasks. At 25 us each, this was the
# largest part of a task of a micro-batch. About a kilobyte each.
_DEFINITIONS_KEPT = 16_384

_definition = lru_cache(_DEFINITIONS_KEPT)(TagDefinition.from_json)


class Dictionary:
    """Definitions by origin and number; `is_wanted` says whether a query includes a tag."""

    def __init__(self, is_wanted: Callable[[TagDefinition], bool] = lambda _: True) -> None:
        self._is_wanted = is_wanted
        self._bases: dict[Origin, int] = {}
        self._counts: dict[Origin, int] = {}
        self._first_wanted: dict[Origin, int] = {}
        self._definitions: list[TagDefinition] = []
        self._wanted: list[bool] = []
        self._columns: dict[str, Any] = {}

    def known(self, origin: Origin) -> int:
        """How many definitions of an origin are here."""
        return self._counts.get(origin, 0)

    def put(self, origin: Origin, definitions: Sequence[bytes]) -> None:
        """Add all definitions of an origin, as canonical JSON, from number 1. Earlier ones of the origin are no longer
        used."""
        read = [_definition(body) for body in definitions]
        wanted = [self._is_wanted(one) for one in read]
        self._bases[origin] = len(self._definitions) - 1  # the first number is 1
        self._counts[origin] = len(read)
        self._first_wanted[origin] = wanted.index(True) + 1 if any(wanted) else len(read) + 1
        self._definitions += read
        self._wanted += wanted
        self._columns.clear()

    def base(self, origin: Origin) -> int:
        """The number to add to a tag number of this origin for its index in `column`."""
        return self._bases[origin]

    def wants_some(self, origin: Origin, count: int) -> bool:
        """Whether one of an origin's first `count` tags is wanted."""
        return self._first_wanted[origin] <= count

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

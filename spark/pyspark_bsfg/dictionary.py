"""Tag definitions of several origins as Arrow columns, so that tag, predicate and unit of a fact are one `take`. Core:
no IO.

Definitions are numbered densely from 1 at each origin. Here the origins stand one after another, and the index of a tag
is its number plus its origin's base. Definitions keep their index when another origin is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from agent.batch import Origin
from agent.message import TagDefinition


class Dictionary:
    """Definitions by origin and number."""

    def __init__(self) -> None:
        self._bases: dict[Origin, int] = {}
        self._counts: dict[Origin, int] = {}
        self._texts: dict[str, list[str | None]] = {"tag": [], "predicate": [], "unit": []}
        self._columns: dict[str, Any] = {}

    def known(self, origin: Origin) -> int:
        """How many definitions of an origin are here."""
        return self._counts.get(origin, 0)

    def put(self, origin: Origin, definitions: Sequence[bytes]) -> None:
        """All definitions of an origin, as canonical JSON, from number 1. What was there of it before is left
        behind."""
        read = [TagDefinition.from_json(body) for body in definitions]
        self._bases[origin] = len(self._texts["tag"]) - 1  # the first number is 1
        self._counts[origin] = len(read)
        self._texts["tag"] += [one.subject for one in read]
        self._texts["predicate"] += [one.predicate for one in read]
        self._texts["unit"] += [one.unit or None for one in read]
        self._columns.clear()

    def base(self, origin: Origin) -> int:
        """What to add to a tag number of this origin for its place in `column`."""
        return self._bases[origin]

    def column(self, name: str) -> Any:
        """The tag, predicate or unit of all definitions as an Arrow array of strings."""
        if name not in self._columns:
            self._columns[name] = pa.array(self._texts[name], pa.string())
        return self._columns[name]

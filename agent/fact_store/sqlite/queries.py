"""The statements of queries.sql by name, so that no SQL is written in Python code.

    QUERIES["insert_batch"]

Read once at import; a name that does not exist is a programming error and raises KeyError. A test compares the file
with its use and prepares every statement against the schema.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from importlib.resources import files
from types import MappingProxyType

_NAME = re.compile(r"^-- ([a-z_]+): .+$")


def named_statements(text: str) -> Iterator[tuple[str, str]]:
    """(name, statement) of each `-- name: text` block."""
    name, lines = "", list[str]()
    for line in [*text.splitlines(), "-- end: of the text"]:
        if (found := _NAME.match(line)) is None:
            lines.append(line)
            continue
        if name:
            statement = "\n".join(lines).strip()
            assert sqlite3.complete_statement(statement), f"{name} is not one complete statement"
            yield name, statement.removesuffix(";")
        name, lines = found[1], []


def with_rows(insert: str, count: int) -> str:
    """An INSERT of one row, changed to insert `count` rows at once."""
    head, values, row = insert.rpartition("VALUES")
    assert row.strip().startswith("("), insert
    return head + values + ",".join([row] * count)


def statements(script: str) -> Iterator[str]:
    """The statements of a script one by one; a trigger with its inner semicolons is one statement."""
    lines: list[str] = []
    for line in script.splitlines():
        lines.append(line)
        if sqlite3.complete_statement("\n".join(lines)):
            yield "\n".join(lines).strip()
            lines = []
    assert not any(line.strip() and not line.startswith("--") for line in lines), "the script ends within a statement"


def _load(name: str) -> Mapping[str, str]:
    # Not by path: Spark imports this package from a zip.
    found = list(named_statements(files(__package__).joinpath(name).read_text(encoding="utf-8")))
    assert len(dict(found)) == len(found), f"a name occurs twice in {name}"
    return MappingProxyType(dict(found))


QUERIES = _load("queries.sql")

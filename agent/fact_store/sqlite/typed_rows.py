"""Rows with the types that the schema promises. SQLite checks the types of a row when it is written, not when it is
read: a changed bit in the row's header turns a number into text, bytes or NULL.

Every connection of the store reads its rows through `typed_row`. A value of another type ends the statement, with the
error that SQLite raises for a page it cannot read. So all callers see one kind of damage, and none checks types.

A column has the type of the first column of this name in the schema, or the one that a statement states:
`AS "age_ms INTEGER"`. Other expressions are not checked. Nor are statements that CAST a column of theirs: their callers
expect damage in any column, so that a damaged batch costs only its own facts.
"""

from __future__ import annotations

import re
import sqlite3
from functools import partial
from types import NoneType
from typing import Any

from agent.fact_store.sqlite.migrations import FILES

_COLUMN = re.compile(r"^ *(\w+) (INTEGER|TEXT|BLOB)( NOT NULL| PRIMARY KEY)?", re.MULTILINE)
_TYPES: dict[str, type] = {"INTEGER": int, "TEXT": str, "BLOB": bytes}
_RIGHT = dict[Any, set[tuple[type, ...]] | None]()
"""The types of rows that were found right, by columns: one or two for each statement. None: any."""


class ImpossibleValue(sqlite3.DatabaseError):
    """A table holds a value that no program wrote."""

    sqlite_errorname = "SQLITE_CORRUPT"


def _named_types(text: str) -> dict[str, set[type]]:
    found = dict[str, set[type]]()
    for name, declared, promise in _COLUMN.findall(text):
        found.setdefault(name, {_TYPES[declared]} if promise else {_TYPES[declared], NoneType})
    return found


_SCHEMA = _named_types("\n".join(file.script for file in FILES))


def typed_row(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The row factory of a connection. Raises ImpossibleValue."""
    columns = cursor.description
    if columns not in _RIGHT:
        _RIGHT[columns] = None if any(column[0].startswith("CAST(") for column in columns) else set()
    if (right := _RIGHT[columns]) is None:
        cursor.row_factory = None
        return row
    cursor.row_factory = partial(_typed_as, right)  # for the other rows
    return _typed_as(right, cursor, row)


def _typed_as(right: set[tuple[type, ...]], cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> tuple[Any, ...]:
    types = tuple(map(type, row))
    if types not in right:
        _check(cursor, row)
        right.add(types)
    return row


def _check(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> None:
    for (column, *_), value in zip(cursor.description, row, strict=True):
        stated = _named_types(column)
        allowed = stated.popitem()[1] if stated else _SCHEMA.get(column)
        if allowed is not None and type(value) not in allowed:
            cursor.close()  # the error keeps the cursor, and an unfinished statement would keep the WAL
            raise ImpossibleValue(f"a table holds an impossible value: {column.split()[0]} is {type(value).__name__}")

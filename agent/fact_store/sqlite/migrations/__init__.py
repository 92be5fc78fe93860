"""Migrations: create or update the tables of a store's file, whatever version wrote it.

Each file NNNN_name.sql in this folder is one step, applied once, in one transaction with its record in
`_sqlite_migrations` (sqlite-utils). All steps are applied to a new store, so creation and migration are the same path,
and the schema is defined nowhere else. A step is never edited once it is released.

A store with a step that this program does not have was written by a newer program; it is refused and not changed.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from agent.fact_store.core import StoreForeign, StoreTooNew
from agent.fact_store.sqlite.queries import QUERIES, statements

if TYPE_CHECKING:
    from sqlite_utils import Database

__all__ = ["FILES", "applied", "check_known", "migrate"]

MIGRATION_SET = "bsfg"


class Migration(NamedTuple):
    """One file of this folder."""

    stem: str
    script: str


# Not by path: Spark imports this package from a zip.
FILES = tuple(
    Migration(file.name.removesuffix(".sql"), file.read_text(encoding="utf-8"))
    for file in sorted(files(__package__).iterdir(), key=lambda file: file.name)
    if file.name[0].isdigit() and file.name.endswith(".sql")
)


def applied(connection: sqlite3.Connection) -> list[str]:
    """Names of the steps applied to this file. Raises StoreForeign if it holds the tables of another program."""
    if not connection.execute(QUERIES["migrations_table"]).fetchone()[0]:
        if connection.execute(QUERIES["tables"]).fetchone()[0]:
            raise StoreForeign("this SQLite file is not a fact store: it holds other tables", "name another file")
        return []
    return [name for (name,) in connection.execute(QUERIES["migrations_applied"])]


def check_known(connection: sqlite3.Connection) -> list[str]:
    """As `applied`. Raises StoreTooNew if this program lacks one of the steps. Changes nothing."""
    found, known = applied(connection), {file.stem for file in FILES}
    if unknown := [name for name in found if name not in known]:
        raise StoreTooNew(f"the store has schema {unknown[-1]}, this program knows up to {FILES[-1].stem}")
    return found


def migrate(connection: sqlite3.Connection) -> None:
    """Apply the steps that were not applied to this file yet. Raises StoreForeign, StoreTooNew or sqlite3.Error; then
    no step was applied."""
    if len(check_known(connection)) == len(FILES):
        return
    with _absent("numpy", "pandas"):  # 70 MB where Spark's extra is installed, for values that no store has
        from sqlite_utils import Database, Migrations  # needed once in the life of a store

    steps = Migrations(MIGRATION_SET)
    for file in FILES:
        steps(name=file.stem)(_migration(file))
    steps.apply(Database(connection, execute_plugins=False))


@contextmanager
def _absent(*modules: str) -> Iterator[None]:
    """Let imports find none of these modules, unless they are imported already."""
    hidden = {name: None for name in modules if name not in sys.modules}
    sys.modules.update(hidden)  # type: ignore[arg-type]  # None: there is no such module
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def _migration(step: Migration) -> Callable[[Database], None]:
    def apply(database: Database) -> None:
        for statement in statements(step.script):
            database.conn.execute(statement)

    apply.__name__ = step.stem
    return apply

"""A process made to be interrupted while it migrates a store that an older program has left.

    python -m tests.fact_store.durability.migrated record STORE SEED closed|killed    one migration, for strace
    python -m tests.fact_store.durability.migrated kill FOLDER command|node           killed at each statement in turn

The store is written by the program of today, and said what it acknowledged (promises.py). The newer program has two
steps more (`NEWER`): they add a column, a table with a row for each batch, and an index. `kill` leaves a store in
FOLDER/n for each n-th statement of the migration, as `bsfg store migrate` does it or a node that starts.
"""

import os
import random
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from unittest import mock

import sqlite_utils  # noqa: F401 once, and not in each child

from agent.fact_store import FactStore, migrate_store
from agent.fact_store.divergence import opening
from agent.fact_store.sqlite import migrations
from agent.fact_store.sqlite.connection import connect
from tests.fact_store.durability.promises import STREAMS, say
from tests.fact_store.durability.recorded import Recorded
from tests.fact_store.making import IN_MEMORY

TURNS = 12
NEWER = (
    *migrations.FILES,
    migrations.Step(
        "0002_test_sizes",
        "ALTER TABLE stream ADD COLUMN note TEXT NOT NULL DEFAULT '';\n"
        "CREATE TABLE batch_size (id INTEGER PRIMARY KEY, bytes INTEGER NOT NULL, body BLOB NOT NULL) STRICT;\n"
        "INSERT INTO batch_size SELECT id, length(body), body FROM batch;\n",
    ),
    migrations.Step("0003_test_times", "CREATE INDEX batch_by_time ON batch (stream, time_max_ns);\n"),
)


def in_child(work: Callable[[], None]) -> bool:
    """Do something in a process of its own, which ends without closing what it opened; whether it was not killed."""
    if not (child := os.fork()):
        work()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return not os.WIFSIGNALED(status)


def write(path: Path, seed: int, *, is_closed: bool) -> None:
    """A life of the store under the older program."""
    recorded = Recorded(random.Random(seed))
    store = FactStore.open(path, "plant", settings=IN_MEMORY, streams=STREAMS, unattended=True)
    recorded.define(store)
    for _ in range(TURNS):
        recorded.turn(store)
    if is_closed:
        store.close()


def killing(number: int) -> Callable[[str], sqlite3.Connection]:
    """A `Connect` whose process is killed when the connection begins its statement of this number."""
    left = iter(range(number - 1, -1, -1))

    def strike(_: str) -> None:
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def connect_to(uri: str) -> sqlite3.Connection:
        connection = connect(uri)
        if not uri.endswith("mode=ro"):
            connection.set_trace_callback(strike)
        return connection

    return connect_to


def migrate_killed(path: Path, how: str, number: int) -> None:
    """Migrate with the newer program, up to the statement of this number."""
    migrations.FILES = NEWER
    if how == "node":
        FactStore.open(path, "plant", settings=IN_MEMORY, connect_to=killing(number), unattended=True)
        return
    connect_writer = opening.connect_writer
    with mock.patch.object(opening, "connect_writer", lambda path: connect_writer(path, killing(number))):
        migrate_store(path)


def main() -> None:
    """See above."""
    what, where, *options = sys.argv[1:]
    path = Path(where)
    if what == "record":
        seed, end = int(options[0]), options[1]
        in_child(lambda: write(path, seed, is_closed=end == "closed"))
        say("G", "begins")
        migrations.FILES = NEWER
        migrate_store(path)
        say("G", "done")
        return
    template = path / "template"
    template.mkdir()
    in_child(lambda: write(template / "facts.db", 1, is_closed=False))
    for number in count(1):
        copy = path / str(number)
        shutil.copytree(template, copy)
        if in_child(lambda copy=copy, number=number: migrate_killed(copy / "facts.db", options[0], number)):
            break


if __name__ == "__main__":
    main()

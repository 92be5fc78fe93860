"""Real fact stores under a virtual clock: the product's own code, but its threads are called instead of
started.

`stepped` makes every store that is opened inside it one of these. Work is queued as always; it is committed when `step`
is called, by the code that the writer's thread runs, and its futures are answered there. A store's files lie in memory,
so they can be copied at any moment: what a process leaves behind when it is killed, and what a disk remembers of the
commit that was under way.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from agent.fact_store import FactStore, appends, consumer_registry
from agent.fact_store import store as store_module
from agent.fact_store.append import CommitGroup, queue
from agent.fact_store.core import StoreClosed
from agent.fact_store.divergence import scrubber
from agent.fact_store.retention import room
from agent.fact_store.sqlite import transaction
from agent.fact_store.writer import committer, refusals, writer
from agent.fact_store.writer.writer import Writer
from agent.message import TagDefinition
from agent.settings.store import StoreSettings, StreamSettings
from tests.replication.simulation.trust import PAIR, signer_of, zone_of
from tests.support.memory import memory_folder

FILE = "facts.db"
WALL_START_MS = 1_700_000_000_000
PLENTY_BYTES = 2**40
SECTOR_BYTES = 512
SETTINGS = StoreSettings(ballast_bytes=0)  # an image of a store is made at each crash; a ballast would be 16 MB of it
TAG = TagDefinition("tag:line1/t1")

Image = dict[str, bytes]
"""The files of a store by name, as one moment left them."""


class Clock:
    """The time of all nodes, in place of the module `time`. Each node may have another wall clock (`wall_jump_ms` is
    that of the node whose turn it is)."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.wall_jump_ms = 0

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000

    def monotonic(self) -> float:
        return self.now_ms / 1000

    CLOCK_BOOTTIME = 0

    def clock_gettime_ns(self, _: int) -> int:
        return self.monotonic_ns()

    def time_ns(self) -> int:
        return (WALL_START_MS + self.now_ms + self.wall_jump_ms) * 1_000_000


class Bell:
    """Replaces the writer's condition: there is one thread, so nothing is locked, and `notify` is a call."""

    def __init__(self) -> None:
        self.ring: Callable[[], None] = lambda: None

    def __enter__(self) -> None:
        """Nothing to lock."""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to unlock."""

    def notify(self) -> None:
        self.ring()


class Died(BaseException):
    """The process died after its commit and before the answers."""


class SteppedWriter(Writer):
    """The writer without its thread."""

    is_dead = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.bell = Bell()
        self.queue._changed = self.bell  # type: ignore[assignment]

    def start(self) -> None:
        self.ended.set_running_or_notify_cancel()
        self.committer.housekeeping.start(writer.time.monotonic_ns())

    def step(self) -> None:
        """Commit everything that waits, then do what the thread does between two commits."""
        if self.failure is not None:
            return
        self._commit(self.queue.take_all())
        if self.meter.commits % 2:  # so that reads of these short logs also go to the file
            self.catalog.tails.clear()
        self._run_timers()

    def die_in_commit(self) -> None:
        """Commit all that waits, without an answer."""

        def settle(*, is_durable: bool) -> None:
            if is_durable:
                raise Died

        self.committer._settle = settle  # type: ignore[method-assign]
        with suppress(Died):
            self.step()

    def close(self) -> None:
        while self.failure is None and not self.queue.is_empty:
            self.step()
        if not self.is_dead:
            self._end_group(CommitGroup())

    @property
    def execute(self) -> Callable[..., sqlite3.Cursor]:
        """Execute on the writer's connection; a second connection would be a foreign writer."""
        return self.committer._connection.execute

    def abandon(self) -> None:
        """Abandon the connection as the kernel does for a killed process."""
        self.is_dead = True
        self.failure = self.queue.refusing = StoreClosed("dead")  # and nothing is rung
        with suppress(Exception):
            self.committer._connection.close()


class Scrubber(store_module.Scrubber):
    """A scrubber without its thread."""

    def start(self) -> None:
        """Nothing runs in the background."""


class Disks:
    """The free space of each folder's disk."""

    def __init__(self) -> None:
        self._free: dict[Path, int] = {}

    def free(self, folder: Path) -> int:
        return self._free.get(folder, PLENTY_BYTES)

    def set_full(self, folder: Path, *, is_full: bool) -> None:
        self._free[folder] = 0 if is_full else PLENTY_BYTES


@contextmanager
def stepped(clock: Clock, chance: random.Random, disks: Disks) -> Iterator[pytest.MonkeyPatch]:
    """Stores opened here are stepped, see this clock, these disks, and no chance but this."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (
            store_module,
            appends,
            committer,
            consumer_registry,
            queue,
            refusals,
            scrubber,
            writer,
            transaction,
        ):
            patch.setattr(module, "time", clock)
        patch.setattr(store_module, "Writer", SteppedWriter)
        patch.setattr(store_module, "Scrubber", Scrubber)
        for module in (store_module, room):
            patch.setattr(module, "disk_free", disks.free)
        patch.setattr(transaction.os, "urandom", chance.randbytes)  # the module `os`, which all share
        patch.setattr(transaction.os, "getpid", lambda: 1)
        yield patch


_templates: dict[tuple[str, str], Image] = {}


def image_of_new(zone: str, name: str) -> Image:
    """The files of an empty store that knows one tag; `name` tells stores of one zone apart."""
    if (zone, name) not in _templates:
        with stepped(Clock(), random.Random(name), Disks()), memory_folder() as folder:  # the same in every run
            store = FactStore.open(folder / FILE, zone_of(zone), node=zone, settings=SETTINGS, unattended=True)
            store.appends.define([TAG])
            store.close()
            _templates[zone, name] = image_of(folder)
    return _templates[zone, name]


def open_store(folder: Path, zone: str, policy: StreamSettings) -> FactStore:
    """As a node opens it that signs its facts."""
    how: dict[str, Any] = {"node": zone, "signer": signer_of(zone), "pair_zones": frozenset(PAIR.values())}
    return FactStore.open(folder / FILE, zone_of(zone), settings=SETTINGS, streams=[policy], unattended=True, **how)


def resume(store: FactStore, life: bytes, *, is_noticed: bool) -> None:
    """The process of this store is one whose memory was put back; its clock has jumped if it is noticed."""
    found = writer_of(store)
    found.catalog.life = life
    if is_noticed:
        found.committer._clock.has_jumped(0, 0)


def writer_of(store: FactStore) -> SteppedWriter:
    """The writer of a store that was opened inside `stepped`; the simulation is the thread that owns it."""
    found = store._writer
    assert isinstance(found, SteppedWriter)
    return found


def abandon(store: FactStore) -> None:
    """Let go of a store whose process is dead."""
    writer_of(store).abandon()
    store.close()


def image_of(folder: Path) -> Image:
    """The files in a folder, without what the kernel keeps and SQLite makes again."""
    kept = (file for file in folder.iterdir() if not file.name.endswith(("-shm", ".lock")))
    return {file.name: file.read_bytes() for file in kept}


def write_image(folder: Path, image: Image) -> None:
    """Write an image into a new folder."""
    folder.mkdir(parents=True)
    for name, content in image.items():
        (folder / name).write_bytes(content)


def torn(before: Image, after: Image, chance: random.Random) -> Image:
    """What a disk may hold when the power goes between two images, before the commit that made the second was synced:
    its log as it was, and of the sectors that were added any, in any order."""
    log = f"{FILE}-wal"
    old, new = before.get(log, b""), after.get(log, b"")
    if before[FILE] != after[FILE] or not new.startswith(old):
        return after  # folded into the file meanwhile: SQLite has synced the log before that
    left = bytearray(new[: len(old) + chance.randint(0, len(new) - len(old))])
    for start in range(len(old), len(left), SECTOR_BYTES):
        if chance.random() < 0.2:
            left[start : start + SECTOR_BYTES] = bytes(len(left[start : start + SECTOR_BYTES]))
    return {**after, log: bytes(left)}


def flip_bit(store: FactStore, stream: str, first_offset: int, chance: random.Random) -> None:
    """Change one bit of a stored batch that is no longer in memory. The trigger that would refuse it is removed
    meanwhile."""
    execute = writer_of(store).execute
    writer_of(store).catalog.tails.clear()
    (trigger,) = execute("SELECT sql FROM sqlite_master WHERE name = 'batch_update_refused'").fetchone()
    number, body = execute(
        "SELECT b.id, b.body FROM batch b JOIN stream s ON s.id = b.stream WHERE s.name = ? AND b.first_offset = ?",
        (stream, first_offset),
    ).fetchone()
    changed = bytearray(body)
    changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    execute("BEGIN")
    execute("DROP TRIGGER batch_update_refused")
    execute("UPDATE batch SET body = ? WHERE id = ?", (bytes(changed), number))
    execute(trigger)
    execute("COMMIT")

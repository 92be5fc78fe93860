"""A node: its store, its serving and pulling sides, and the faults of one machine. State in memory ends with a life."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from agent.batch import Origin
from agent.errors import StoreError
from agent.fact_store import FactStore
from agent.fact_store.core.records import Appended
from agent.message import Sample
from agent.settings.store import StreamSettings
from tests.replication.simulation import stepped
from tests.replication.simulation.checkers import STREAM, Key, Violation
from tests.replication.simulation.serving import Serving
from tests.replication.simulation.trust import judge_of
from tests.replication.simulation.values import Values

if TYPE_CHECKING:
    from tests.replication.simulation.network import World
    from tests.replication.simulation.pulling import Pull
    from tests.replication.simulation.relay import TakenOver

DISK_MS_MAX = 8
HOME_MS_MAX = 3_000
IDLE_MS = 4_000
"""Between two runs of the writer's timers without work."""
Copy = tuple[stepped.Image, Values | None]


class Node:
    """One zone's node, or its twin."""

    down_ms_max = 3_000
    """Of a process that was killed."""

    def __init__(self, world: World, zone: str, name: str, *, is_sink: bool) -> None:
        self.world = world
        self.zone = zone
        self.name = name
        self.is_sink = is_sink
        self.is_producer = False
        self.pulls: list[Pull] = []
        self.version = "same"
        self.life = 0
        self.serving: Serving | None = None
        self.damaged: set[Key] = set()
        self.wall_jump_ms = 0
        self.is_writing = False
        self.was_restored = False
        self._images: list[stepped.Image] = []
        self.is_retired = False
        self.is_copied = False
        """Whether it was restored or has a twin."""
        self.attacker: TakenOver | None = None
        self._grows_past = 0
        self._store: FactStore | None = None
        self._folder = world.folder / f"{name}-0"

    @property
    def running(self) -> FactStore:
        """The store; only while the node is up."""
        assert self._store is not None
        return self._store

    @property
    def is_up(self) -> bool:
        return self._store is not None

    @property
    def released_offset(self) -> int:
        """The last offset that retention has released."""
        for stream in self.running.streams():
            if stream.name == STREAM:
                return stream.first_offset - 1
        return 0

    def receiver_now_ms(self) -> int:
        """The clock for the receiver's time-outs."""
        return self.world.now_ms

    # --- life

    def make(self) -> None:
        """The empty store, for the first start."""
        stepped.write_image(self._folder, stepped.image_of_new(self.zone, self.name))

    def start(self, *, is_old: bool = False, held: Values | None = None, life: bytes = b"") -> None:
        """Open the store and begin; `is_old` with a restored image, in which the value judge knows these values, and
        with the life of a memory that was put back."""
        if self.is_retired:
            return
        size = self.world.faults.retention_bytes
        policy = StreamSettings(
            STREAM, keep_hours=0 if size else 24, bytes_max=size, on_full="drop_oldest" if size else "refuse"
        )
        self._set_wall()
        self._store = stepped.open_store(self._folder, self.zone, policy)
        if life:
            stepped.resume(self._store, life, is_noticed=self.world.chance.random() < 0.5)
        self.judge = judge_of(self._store, self.world.zones)
        self.world.check.reopened(self, is_old=is_old)
        if self.world.values is not None:
            self.world.values.reopened(self, held)
        writer = stepped.writer_of(self._store)
        writer.bell.ring = self._rung
        self.serving = Serving(self)
        for pull in self.pulls:
            pull.start()
        self.bring_home()
        if self.attacker is not None:
            self._begin_attack()
        if self.is_producer:
            if is_old:  # the tag may be lost, too
                self._store.appends.define([stepped.TAG])
            self._grow()
            self.after(self.world.chance.randint(1, 500), self._produce)
        self.after(IDLE_MS, self._idle)

    def bring_home(self) -> None:
        """Compare, and fetch what a restore or a lost disk has taken, as a node does soon after its start."""
        if self._store is not None:
            for pull in self.pulls:
                self.after(self.world.chance.randint(1, HOME_MS_MAX), pull.comparing.begin)

    @property
    def instance(self) -> str:
        """The name of this life in requests."""
        return f"{self.name}-{self.life}"

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Call `action` later, unless this life is over by then."""
        life = self.life

        def act() -> None:
            if life == self.life and self._store is not None:
                self._set_wall()
                action()

        self.world.at(delay_ms, act)

    def soon(self, action: Callable[[], None]) -> None:
        """Call `action` next, as `call_soon_threadsafe` does."""
        self.after(0, action)

    def _set_wall(self) -> None:
        self.world.clock.wall_jump_ms = self.wall_jump_ms

    # --- writing

    def _rung(self) -> None:
        if not self.is_writing:
            self.is_writing = True
            self.after(self.world.chance.randint(1, DISK_MS_MAX), self._commit)

    def _idle(self) -> None:
        self._rung()
        self.after(IDLE_MS, self._idle)

    def _commit(self) -> None:
        self.is_writing = False
        store, check = self.running, self.world.check
        stepped.writer_of(store).step()
        if store.failure is not None:
            raise Violation(f"store: {self.name} ended: {store.failure}")
        if self.world.values is not None:
            self.world.values.committed(self)
        check.committed(self)

    def _produce(self) -> None:
        world = self.world
        if not world.faults_are_on:
            return
        self._append()
        self.after(int(world.chance.expovariate(1 / (world.faults.append_ms * world.producers))) + 5, self._produce)

    def _grow(self) -> None:
        """After a restore, append until the store is longer than ever; then restart it, if the fault says so."""
        if not self.world.faults_are_on:
            return
        if self.running.end_offset(STREAM) < self._grows_past:
            self._append()
            self.after(self.world.chance.randint(5, 100), self._grow)
        elif self._grows_past and self.world.faults.restarts_grown:
            self._grows_past = 0
            self.kill("idle")

    def _append(self) -> None:
        """Append some facts and wait for the answer."""
        world = self.world
        first = world.facts + 1
        world.facts += world.chance.randint(1, world.faults.facts_max)
        rows = [Sample(1, number * 1_000_000, number) for number in range(first, world.facts + 1)]
        if world.values is not None:
            world.values.recorded(self.zone, range(first, world.facts + 1))
        with suppress(StoreError):
            appending = self.running.appends.append_samples(STREAM, rows)
            appending.add_done_callback(lambda future: self._produced(rows, future))

    def _produced(self, rows: list[Sample], future: Future[Appended]) -> None:
        if future.exception() is None:
            self.world.check.append_acknowledged(self, future.result().first_offset, [row.value for row in rows])

    # --- faults

    def kill(self, how: Literal["idle", "committed", "torn"]) -> bool:
        """Kill the process: before its next commit, after it and before the answer, or within it by a power cut."""
        if self._store is None:
            return False
        before = stepped.image_of(self._folder)
        if how != "idle":
            if self.is_producer:
                self._append()
            stepped.writer_of(self._store).die_in_commit()
            self.world.check.died_in_commit(self)
            if self.world.values is not None:
                self.world.values.died_in_commit(self)
        after = stepped.image_of(self._folder)
        self._again_with(stepped.torn(before, after, self.world.chance) if how == "torn" else after)
        return True

    def restore(self) -> bool:
        """Take an image of the store without its witness, and replace the store by it after a while."""
        image = self._copy()
        self.world.at(self.world.chance.randint(500, 5_000), lambda: self._put_back(image))
        return True

    def restore_grown(self) -> bool:
        """As `restore`, with the witness, and the store grows past its former end before most receivers reach it again.
        Once for each node."""
        if self.was_restored:
            return False
        self.was_restored = True
        image = self._copy()
        self.world.at(self.world.chance.randint(500, 5_000), lambda: self._put_back(image, is_unseen=True))
        return True

    def restore_whole(self) -> bool:
        """As `restore_grown`, repeatedly, with the image of any earlier moment, also from before the last restore."""
        self._images.append(self._copy())
        image = self.world.chance.choice(self._images)
        self.world.at(self.world.chance.randint(500, 3_000), lambda: self._put_back(image, is_unseen=True))
        return True

    def resume_memory(self) -> bool:
        """Suspend the machine with its memory, as a virtual machine, and put that moment back after it went on. The
        process goes on with what it knew; all that the others have learned from it since stays with them."""
        image, life = self._copy(), self.running.life
        self.world.check.forks |= {Origin(zone, life) for zone in self.running.own_zones}
        self.world.at(self.world.chance.randint(500, 3_000), lambda: self._put_back(image, is_whole=True, life=life))
        return True

    def wipe(self) -> bool:
        """Replace the machine's disk by an empty one."""
        self._commit()
        if self._store is not None:
            self._again_with(stepped.image_of_new(self.zone, f"{self.name}-wiped"), is_old=True, held={})
        return True

    def lose_log(self) -> bool:
        """Kill the process and remove SQLite's write-ahead log, as a person does who copies only the database."""
        held = self._copy()[1]
        image = stepped.image_of(self._folder)
        left = {name: content for name, content in image.items() if not name.endswith("-wal")}
        self._again_with(left, is_old=True, held=held)
        return True

    def _copy(self) -> Copy:
        """The machine's files now, and the values in them if there is a value judge."""
        values = self.world.values
        return stepped.image_of(self._folder), values.image_of(self) if values is not None else None

    def _put_back(self, copy: Copy, *, is_unseen: bool = False, is_whole: bool = False, life: bytes = b"") -> None:
        if self._store is None:
            self.world.at(500, lambda: self._put_back(copy, is_unseen=is_unseen, is_whole=is_whole, life=life))
            return
        self._commit()
        if not self.is_up:
            return
        chance, is_whole = self.world.chance, is_whole or is_unseen
        if is_unseen:
            self._grows_past = self._store.end_offset(STREAM) + chance.randint(-5, 40)
            self.world.hide(self, self.world.now_ms + chance.randint(1_000, 8_000))
        self._store.close()
        self._store = None
        witness = f"{stepped.FILE}.witness"
        kept = {} if is_whole else {witness: stepped.image_of(self._folder)[witness]}
        image, held = copy
        self._again_with({**image, **kept}, is_old=True, held=held, life=life)

    def _again_with(
        self, image: stepped.Image, *, is_old: bool = False, held: Values | None = None, life: bytes = b""
    ) -> None:
        """Die, and start with these files after a while."""
        self.abandon()
        self.life += 1
        self.is_writing = False
        self.is_copied = self.is_copied or is_old
        shutil.rmtree(self._folder)
        self._folder = self.world.folder / f"{self.name}-{self.life}"
        stepped.write_image(self._folder, image)
        self.world.at(
            self.world.chance.randint(1, self.down_ms_max), lambda: self.start(is_old=is_old, held=held, life=life)
        )

    def abandon(self) -> None:
        """Drop the store without closing it, if it is open."""
        if self._store is not None:
            stepped.abandon(self._store)
        self._store = self.serving = None

    def clone(self, node: Node) -> None:
        """Start from a copy of another node's files; that node is stopped for it and restarted."""
        self.world.check.cloned(node, self)
        if self.world.values is not None:
            self.world.values.cloned(node, self)
        self.is_copied = node.is_copied = True
        node.kill("idle")
        stepped.write_image(self._folder, stepped.image_of(node._folder))

    def retire(self) -> None:
        """Stop forever."""
        if self._store is not None:
            self._commit()
        self.is_retired = True
        self.life += 1
        self.abandon()
        self.world.check.retired(self)

    def take_over(self, attacker: TakenOver) -> None:
        """An attacker has the machine from now on."""
        self.attacker, self.is_copied = attacker, True
        self.world.check.is_hostile = True
        self.world.injected["taken_over_relay"] += 1
        if self._store is not None:
            self._begin_attack()

    def _begin_attack(self) -> None:
        assert self.attacker is not None
        self.attacker.begin()

    def install_anew(self) -> None:
        """The machine that was taken over is installed again, with an empty store."""
        if self._store is None:
            self.world.at(200, self.install_anew)
            return
        self._commit()
        self.attacker = None
        if self._store is not None:
            self._again_with(stepped.image_of_new(self.zone, f"{self.name}-{self.life}"), is_old=True, held={})

    def fill(self) -> bool:
        """The disk is full for a while: the store measures it, or SQLite meets it within a commit."""
        if self._store is None:
            return False
        execute = stepped.writer_of(self._store).execute
        if self.world.chance.random() < 0.5:
            self.world.disks.set_full(self._folder, is_full=True)
        else:
            execute(f"PRAGMA max_page_count = {execute('PRAGMA page_count').fetchone()[0]}")
        self.after(self.world.chance.randint(100, 4_000), self._empty)
        return True

    def _empty(self) -> None:
        self.world.disks.set_full(self._folder, is_full=False)
        stepped.writer_of(self.running).execute(f"PRAGMA max_page_count = {2**31}")

    def jump(self, jump_ms: int) -> bool:
        """Set the wall clock."""
        self.wall_jump_ms = max(-stepped.WALL_START_MS, jump_ms)
        return True

    def damage(self) -> bool:
        """The disk changes a bit of a batch, of an unconfirmed one if there is one."""
        rows = [row for row in self.world.check.logs[self.name].rows if row.last_offset > self.released_offset]
        late = [
            row for row in rows if any(row.last_offset > consumer.frontier for consumer in self.running.consumers.all())
        ]
        if not rows:
            return False
        row = self.world.chance.choice(late or rows)
        if row.key in self.damaged:
            return False
        self.damaged.add(row.key)
        self.world.check.damaged_origins.add(row.key.origin)
        stepped.flip_bit(self.running, STREAM, row.first_offset, self.world.chance)
        return True

    def upgrade(self) -> bool:
        """The node is upgraded to another major version, and downgraded after a while."""
        self.version = "major"
        self.world.at(self.world.chance.randint(500, 6_000), self._downgrade)
        return True

    def _downgrade(self) -> None:
        self.version = "same"

    def end_faults(self) -> None:
        """End the lasting faults."""
        if self.version == "major":
            self._downgrade()
        if self._store is not None:
            self._empty()

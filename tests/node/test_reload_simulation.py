"""A node whose files an operator edits at random, right and wrong, in virtual time. Reloads, restarts and kills lead to
what a node is that starts on the same files, and a mistake costs nothing that was in force."""

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing, suppress
from itertools import dropwhile, pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agent.batch import Kind
from agent.config import ConfigFile, InForce, load
from agent.fact_store import StoreReader
from agent.fact_store.append import CommitGroup
from agent.fact_store.writer import Writer
from agent.ingest import TAG_REMOVED, Ingest, load_tag_maps
from agent.ingest.completeness import Stored
from agent.ingest.errors import SourceLost
from agent.ingest.gap import GapLog
from agent.ingest.modbus.source import ModbusSource
from agent.local_socket.serving import open_store
from agent.node.node import Node
from agent.node.reload import ReloadRefused
from agent.node.removed_tags import find_removed_tags
from agent.node.start import read_start
from agent.query.scan import Bounds, Scanner
from tests.ingest.lives import deliver
from tests.ingest.simulated import fault_of, us
from tests.sim import first_seed, patient, scaled
from tests.support.memory import memory_folder

SETTLE_S = 5
DEFECT_SEEDS = 40
SLACK_US = 2_000_000
TOP = '[node]\nzone = "plant-a"\n[store]\nballast_bytes = 0\ndisk_free_bytes_min = 0\n'
SECTION = '[[modbus]]\nname = "{0}"\nhost = "h"\ntags_file = "{0}.csv"\naddress_base = {1}\nport = {2}\n'
SECTION += "reconnect_delay_max_ms = 1000\n"
NOTIFY = '[[notify]]\nname = "duty"\nwebhook_url = "https://h"\n'


class Files:
    """node.toml with up to three sources, by their address bases, and their tag files. `wrong`: the sections and tag
    files with a mistake."""

    def __init__(self, random: Random, folder: Path) -> None:
        self._random, self._folder = random, folder
        self.bases = {"a": 0, "b": 1}
        self.tags = {name: [f"line/{name}{n}" for n in range(3)] for name in "abc"}
        self.wrong = set[str]()
        self._write()

    def edit(self) -> None:
        """One edit."""
        random = self._random
        name, other = random.sample("abc", 2)
        tags, act = self.tags[name], random.randrange(8)
        if act == 0 and len(self.bases) > 1:
            self.bases.pop(name, None)
        elif act == 1:
            self.bases[name] = 1 - self.bases.get(name, 0)
        elif act <= 4 and tags:
            tag = random.choice(tags)
            if act != 2:  # moved, or copied, which is a mistake
                self.tags[other].append(tag)
            if act != 3:
                tags.remove(tag)
        elif act == 5:
            tags.append(f"line/{name}{random.randrange(3, 6)}")
        elif act == 6:
            self.wrong.add(random.choice([name, f"{name}.csv", "notify"]))
        else:
            self.wrong.discard(random.choice([*sorted(self.wrong), ""]))
        self._write()

    def mend(self) -> None:
        """Everything is right: each tag is once in the files, and each file has one."""
        self.wrong.clear()
        known = set[str]()
        for name, tags in self.tags.items():
            self.tags[name] = [tag for tag in dict.fromkeys(tags) if tag not in known] or [f"line/{name}"]
            known.update(self.tags[name])
        self._write()

    def _write(self) -> None:
        ports = {name: 0 if name in self.wrong else 502 for name in self.bases}
        sections = [SECTION.format(name, base, ports[name]) for name, base in self.bases.items()]
        (self._folder / "node.toml").write_text("".join([TOP, *sections, NOTIFY, 'x = "' * ("notify" in self.wrong)]))
        for name, tags in self.tags.items():
            rows = [f"{tag},holding,{n},int16" for n, tag in enumerate(tags, 1)]
            mistake = ["sausage"] * (f"{name}.csv" in self.wrong)
            (self._folder / f"{name}.csv").write_text("\n".join(["tag,table,register,type", *rows, *mistake]))


class Process:
    """A node at work."""

    def __init__(self, folder: Path) -> None:
        file, self._stop, self._closing = ConfigFile(folder / "node.toml"), asyncio.Event(), ExitStack()
        self.begun = read_start(file)
        self.store = self._closing.enter_context(open_store(self.begun.settings))
        self.node = Node(self.store, self.begun, file, asyncio.Event())
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._running = asyncio.create_task(self.node.run(self._stop, failed), name="node")

    async def stop(self) -> None:
        """Stop it in order."""
        self._stop.set()
        await self._running
        self.close()

    def close(self) -> None:
        """Close the store."""
        self._closing.close()

    def observed(self) -> list[object]:
        """What it is."""
        reloader, sources = self.node._reloader, self.node._ingest._by_name.items()
        told = reloader.not_in_force, reloader.refused, reloader.needs_restart, reloader.is_file_changed
        read = {name: {n: (tag.name, tag.point) for n, tag in found._delivery.tags.items()} for name, found in sources}
        return [reloader.settings, told, read, {name: (found.settings, found.file_problems) for name, found in sources}]


class Simulation:
    """Processes on the same files, one after the other."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._random, self._folder = Random(seed), folder
        self._files = Files(self._random, folder)

    async def run(self) -> None:
        """Play, and leave no store open, whatever is wrong."""
        self._process = Process(self._folder)
        try:
            await self._play()
        finally:
            self._process.close()

    async def _play(self) -> None:
        """Edits, each with what an operator does next; then everything is mended, and judged."""
        Device.random, Device.loss = self._random, self._random.choice([0, 0.1])
        for _ in range(self._random.randint(2, 8)):
            for _ in range(self._random.randint(1, 3)):
                self._files.edit()
                await asyncio.sleep(self._random.choice([0, 0, 2]))  # tidy: virtual time
            act = self._random.random()
            if act < 0.3:
                with suppress(ReloadRefused):
                    await self._process.node._reload()
            elif act < 0.7:
                await self._restart()
            await asyncio.sleep(self._random.choice([0, SETTLE_S]))  # tidy: virtual time
        self._files.mend()
        Device.loss = 0
        if not self._process.node._reloader.not_in_force or self._random.random() < 0.5:
            with suppress(ReloadRefused):  # then something is not in force
                await self._process.node._reload()
        await asyncio.sleep(SETTLE_S)  # tidy: virtual time
        settings, found = load(self._folder / "node.toml"), self._process.observed()
        assert found[:2] == [settings, ((), "", (), False)], f"not in force: {found[:2]}"
        maps = load_tag_maps(settings.sources)
        assert self._process.node._ingest.tag_maps() == maps, f"not in force: {self._process.node._ingest.tag_maps()}"
        readers = {tag.definition.subject: {name} for name, read in maps.items() for tag in read.tags}
        assert not (left := find_removed_tags(self._process.store.reader, readers)), f"not ended: {left}"
        await self._restart(are_files_open=False)
        await asyncio.sleep(SETTLE_S)  # tidy: virtual time
        assert self._process.observed() == found, f"not the same: {self._process.observed()}, {found}"
        await self._process.stop()
        with closing(StoreReader(settings.node.store_file)) as reader:
            assert not (lost := undeclared(reader)), f"in no fact: {lost}"

    async def _restart(self, *, are_files_open: bool = True) -> None:
        """Stop or kill it, and start another: what is wrong now is as it was."""
        state, copied = self._folder / "state", self._folder / "copied"
        if is_killed := self._random.random() < 0.4:
            shutil.copytree(state, copied)
        earlier = self._process.node._ingest.tag_maps()
        await self._process.stop()
        before = self._process.node._ingest.tag_maps()
        if is_killed:
            shutil.rmtree(state)
            copied.rename(state)
        for _ in range(self._random.choice([0, 3]) * are_files_open):
            self._files.edit()
        await asyncio.sleep(self._random.choice([0, 20]))  # tidy: virtual time
        process = self._process = Process(self._folder)
        now, wrong = process.begun.tag_maps, process.begun.tag_problems
        lost = [name for name in before if name in self._files.bases and name not in now]
        may_be = {name: (before[name].tags, earlier[name].tags) for name in wrong if name in before}  # it was stopping
        lost += [name for name, tags in may_be.items() if now[name].tags not in tags]
        assert not lost, f"lost: {lost}"


def undeclared(reader: StoreReader) -> list[str]:
    """The times in which a tag was in service, has no value, and is in no gap fact."""
    times, spans = dict[str, list[tuple[int, int]]](), list[tuple[int, int, list[str]]]()
    for facts in Scanner(reader).scan(Bounds()):
        if facts.batch.header.kind is Kind.MESSAGES:
            bodies = map(json.loads, facts.column("object_json"))
            spans += [
                (us(gap["first_time"]), us(gap["last_time"]), gap["tags"]) for gap in bodies if "first_time" in gap
            ]
            continue
        for subject, time_ns, quality in zip(*map(facts.column, ("subject", "source_time_ns", "quality")), strict=True):
            times.setdefault(subject, []).append((time_ns // 1000, quality))
    found = list[str]()
    for subject, samples in times.items():
        known = dropwhile(lambda sample: sample[1], sorted(samples))  # from the first good one on
        for (first, quality), (last, _) in pairwise(known):
            at = first + SLACK_US
            for begin, end, tags in sorted(spans):
                if begin <= at and subject in tags:
                    at = max(at, end + SLACK_US)
            if quality != TAG_REMOVED and at < last:
                found.append(f"{subject} from {at} to {last}")
    return found


class Device:
    """What all sources read."""

    random, loss = Random(), 0.0

    @classmethod
    def is_lost(cls) -> bool:
        """Asked every second."""
        return cls.random.random() < cls.loss


async def _live(source: ModbusSource, on_up: Callable[[], None]) -> None:
    """In the place of a life: a value of each tag every second, until the device is lost."""
    await source._take_over_map()
    if Device.is_lost():
        await asyncio.sleep(1)  # tidy: virtual time
        raise SourceLost("no answer")
    on_up()
    await source._delivery.recorder.begin_complete("", Stored(source.clock.now_ns()))
    while True:
        await source._take_over_map()
        source.complete = source.clock.now()
        await deliver(source, source.complete.time_ns)
        await source._delivery.note_complete({"": Stored(source.complete.time_ns)})
        await asyncio.sleep(1)  # tidy: virtual time
        if Device.is_lost():
            raise SourceLost("gone")


async def _look(_: str, __: object, check: Callable[[], Awaitable[float]], ___: object) -> None:
    """In the place of `watch_files`, whose events come from threads."""
    while True:
        await check()
        await asyncio.sleep(1)  # tidy: virtual time


async def _idle(*_: object) -> None:
    await asyncio.Event().wait()


def _commit_at_once(writer: Writer) -> None:
    """In the place of the store's thread: what is handed in is committed in the call."""
    queue = writer.queue

    def handing_in(put: Callable[[Any], None]) -> Callable[[Any], None]:
        return lambda work: (put(work), writer._commit(queue.take_all()))[1]  # type: ignore[func-returns-value]

    writer.ended.set_running_or_notify_cancel()
    for name in ("put_samples", "put_messages", "put_call"):
        setattr(queue, name, handing_in(getattr(queue, name)))
    writer._commit(queue.take_all())


@pytest.fixture(autouse=True)
def _virtual(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without threads, to which nothing comes from outside."""
    monkeypatch.setattr(ModbusSource, "run", _live)
    for module in ("ingest.tags.watch", "node.trust", "replication.pki.identity"):
        monkeypatch.setattr(f"agent.{module}.watch_files", _look)
    for name in ("serve", "HealthRecorder.run", "NodeClock.run", "notify.watch"):
        monkeypatch.setattr(f"agent.node.node.{name}", _idle)
    monkeypatch.setattr("agent.node.node.NodeClock.doubted", lambda _: [])
    monkeypatch.setattr(Writer, "start", _commit_at_once)
    monkeypatch.setattr(Writer, "close", lambda writer: writer._end_group(CommitGroup()))
    monkeypatch.setattr("agent.fact_store.store.IntegrityWatch.start", lambda *_: None)


def find_fault(seed: int) -> str:
    """What is wrong in that simulation; empty: nothing."""
    with memory_folder() as folder:
        return fault_of(Simulation(seed, folder).run(), seed)


@patient
def test_what_a_node_is_follows_from_its_files() -> None:
    """However it came to them: by its watches, by reloads, or by restarts, of files that were wrong meanwhile."""
    first = first_seed()
    found = {seed: fault for seed in range(first, first + scaled(18, 5_000)) if (fault := find_fault(seed))}
    assert not found


@pytest.mark.parametrize(
    "owner, name, broken, found",
    [
        (ConfigFile, "is_unread", lambda _: False, "not in force"),
        (InForce, "keep_files", lambda *_: None, "lost"),
        (Ingest, "_record_ended", lambda *_, **__: asyncio.sleep(0), "not ended"),
        (GapLog, "add", lambda *_: None, "in no fact"),
    ],
)
def test_the_judge_finds_defects(
    owner: type, name: str, broken: Callable[..., Any], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check fails for a node with one defect; one that cannot fail proves nothing."""
    monkeypatch.setattr(owner, name, broken)
    assert any(find_fault(seed).startswith(found) for seed in range(DEFECT_SEEDS))

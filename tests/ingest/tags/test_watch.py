"""Tag files edited while real servers are read: the difference arrives, everything else goes on as if nothing had
happened."""

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import pytest

from agent.concurrency import TaskGroup
from agent.file_watch import WatchTimes
from agent.ingest.quality import TAG_REMOVED
from agent.ingest.tags import watch
from agent.ingest.tags.file import load_tag_files
from agent.ingest.tags.watch import TagWatch
from agent.settings.sources import OpcuaSourceSettings
from tests.ingest.fakes import FakeStore, Program
from tests.ingest.plant import Running, ingesting, opcua
from tests.waiting import wait_until_async

SWIFT = WatchTimes(settle_s=0.05, settle_max_s=0.5, missing_s=0.6, reread_s=60.0)
# Under short names also in coroutines: files as small as these keep nobody waiting.
link, make, move, read, remove = Path.symlink_to, Path.mkdir, Path.rename, Path.read_bytes, Path.unlink
HEADER, ROW = "tag,address\n", "plant/{0},nsu=urn:bsfg:demo:plant;s={0}\n"


def rows(*names: str) -> str:
    """A tag file of these variables of the plant."""
    return HEADER + "".join(ROW.format(name) for name in names)


def write(file: Path, text: str) -> None:
    """Into the file as it is."""
    file.write_text(text, encoding="utf-8")


def put(file: Path, text: str) -> None:
    """As an editor saves: a new file, renamed into place."""
    beside = file.with_suffix(".new")
    write(beside, text)
    beside.rename(file)


async def wait_problem(run: Running, source: str, part: str) -> None:
    """Until a source shows this problem; "" for none."""
    await wait_until_async(
        lambda: part in run.source(source).tags_problem and bool(part) == bool(run.source(source).tags_problem),
        f"problem {part!r} of {source}",
    )


@pytest.mark.system
async def test_opcua_tags_come_go_and_change_in_a_running_subscription(plc: Program, tmp_path: Path) -> None:
    """One tag added, one removed, one moved to another node: their values follow, under the numbers they should have.
    The tags that stay lose and repeat nothing: a second source beside it, never edited, has seen the same values."""
    witness_tags = rows("count_01", "count_02").replace("plant/", "witness/", 2)
    sources = (
        opcua(plc.port, tmp_path, rows("count_01", "count_02", "count_03", "count_04")),
        opcua(plc.port, tmp_path, witness_tags, name="witness"),
    )
    async with ingesting(*sources, times=SWIFT) as run:
        for tag in ("plant/count_01", "plant/count_04", "witness/count_02"):
            await run.wait_good(tag, 3)
        changed = rows("count_02", "count_01", "count_05") + "plant/count_04,nsu=urn:bsfg:demo:plant;s=count_08,\n"
        put(sources[0].tags_file, changed.replace("tag,address\n", "tag,address,unit\n"))
        await run.wait_good("plant/count_05", 3)
        await run.wait_bad("plant/count_03", TAG_REMOVED)
        await wait_until_async(lambda: run.store.good("plant/count_04")[-1].value > 8_000_000, "the other node")  # type: ignore[operator]
        ended = len(run.store.of("plant/count_03"))
        for tag in ("plant/count_01", "witness/count_02"):
            await run.wait_more(tag, 5)
        assert len(run.store.of("plant/count_03")) == ended
        moved = {s.tag for s in run.store.of("plant/count_04") if s.value > 8_000_000}  # type: ignore[operator]
        assert moved == {len(run.store.definitions)}, "a new number for a new definition"
        assert [s.quality for s in run.store.of("plant/count_04") if s.quality] == []
        for name in ("count_01", "count_02"):
            assert_same_values(run.store, f"plant/{name}", f"witness/{name}")
        for source in ("plc", "witness"):
            found = run.source(source)
            assert (found.connects_total, found.errors_total, found.duplicates_total, found.tags_bad) == (1, 0, 0, 0)
        assert (run.source("plc").tags, run.source("witness").tags) == (4, 2)


def assert_same_values(store: FakeStore, first_tag: str, second_tag: str) -> None:
    """Two readers of one variable have the same history where both were there."""
    first, second = ([(s.source_time_ns, s.value, s.quality) for s in store.of(tag)] for tag in (first_tag, second_tag))
    start, end = max(first[0], second[0]), min(first[-1], second[-1])
    assert [s for s in first if start <= s <= end] == [s for s in second if start <= s <= end]
    assert len(first) == len(set(first))


@pytest.mark.system
def test_a_broken_file_is_reported_once_and_the_map_before_stays(
    plc: Program, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Broken: values go on, every problem is in one log event and the first in the figures. Broken otherwise: told
    again. Mended: gone, and what the mended file adds is read."""

    async def story() -> None:
        source = opcua(plc.port, tmp_path, rows("count_01"))
        async with ingesting(source, times=SWIFT) as run:
            await run.wait_good("plant/count_01", 3)
            put(source.tags_file, rows("count_01") + "plant/x,ns=4;s=x\nplant/count_01,i=1\n")
            await wait_problem(run, "plc", "plc.csv row 3 column address: 'ns=4;s=x' names a namespace by number")
            assert run.source("plc").tags_problem.endswith("(and 1 more)")
            await run.wait_more("plant/count_01", 3)
            put(source.tags_file, rows("count_01") + "plant/x,ns=4;s=x\n" * 30)  # 20 are listed, and how many more
            await wait_problem(run, "plc", "(and 58 more)")
            put(source.tags_file, "tag,adress\n")
            await wait_problem(run, "plc", "did you mean address?")
            put(source.tags_file, rows("count_01", "count_02"))
            await wait_problem(run, "plc", "")
            await run.wait_good("plant/count_02", 3)
            assert run.source("plc").connects_total == 1
            assert run.source("plc").errors_total == 0

    with caplog.at_level(logging.INFO, "agent.ingest"):
        asyncio.run(story())
    told = [record for record in caplog.records if str(getattr(record, "action", "")).startswith("tag_file")]
    actions = [record.action for record in told]  # type: ignore[attr-defined]
    assert actions == ["tag_file_refused"] * 3 + ["tag_file_changed", "tag_file_accepted"]
    first, second = told[0].problems  # type: ignore[attr-defined]
    assert first.startswith("plc.csv row 3 column address")
    assert second == "plc.csv row 4 column tag: 'plant/count_01' is also in row 2; each tag stands once"
    counts = {name: getattr(told[3], name) for name in ("source", "added", "removed", "changed", "kept")}
    assert counts == {"source": "plc", "added": 1, "removed": 0, "changed": 0, "kept": 1}


class Watching:
    """A watch of one file, and what it said."""

    def __init__(self, file: Path, times: WatchTimes = SWIFT) -> None:
        self.taken: list[list[str]] = []
        self.told: list[tuple[str, ...]] = []
        self.source = OpcuaSourceSettings("plc", "opc.tcp://plc", file)
        self.first = watch.parse_tag_file(self.source, file.read_bytes())
        self._watch = TagWatch([self.source], {"plc": self.first}, self._take, self._tell, times)
        self.looks = 0
        self._group = TaskGroup()

    def _take(self, source: str, found: watch.TagMap) -> None:
        assert source == "plc"
        self.taken.append([tag.definition.subject.rpartition("/")[2] for tag in found.tags])

    def _tell(self, source: str, problems: tuple[watch.TagFileProblem, ...]) -> None:
        assert source == "plc"
        self.told.append(tuple(problem.why for problem in problems))

    async def __aenter__(self) -> Self:
        read, looked = self._watch._read, asyncio.Event()
        loop = asyncio.get_running_loop()

        def counted() -> None:
            read()
            self.looks += 1
            loop.call_soon_threadsafe(looked.set)

        self._watch._read = counted  # type: ignore[method-assign]
        await self._group.__aenter__()
        self._task = self._group.create_task(self._watch.run(), name="watch")
        await looked.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await self._group.__aexit__(None, None, None)

    async def wait_taken(self, *names: str) -> None:
        """Until the map taken over last has these tags."""
        await wait_until_async(lambda: self.taken and self.taken[-1] == list(names), f"a map of {names}")


@pytest.fixture(name="file")
def tag_file(tmp_path: Path) -> Path:
    """A good tag file."""
    file = tmp_path / "plc.csv"
    write(file, rows("a"))
    return file


async def test_the_ways_of_saving(file: Path, tmp_path: Path) -> None:
    """Written in place, in pieces, renamed into place, moved away and back, through a link: what is there in the end
    counts, and nobody is told of what was between."""
    async with Watching(file, WatchTimes(settle_s=0.3, missing_s=5.0)) as watch:
        write(file, rows("a", "b"))
        await watch.wait_taken("a", "b")
        put(file, rows("b"))
        await watch.wait_taken("b")
        for piece in (HEADER, HEADER + "plant/c,", HEADER + "plant/c,i=1\n"):
            write(file, piece)
            await asyncio.sleep(0)
        await watch.wait_taken("c")
        aside = move(file, tmp_path / "plc.csv~")
        put(file, rows("d"))
        await watch.wait_taken("d")
        remove(file)
        link(file, aside)
        await watch.wait_taken("c")
    async with Watching(file) as watch:
        write(aside, rows("e"))  # what the link leads to
        await watch.wait_taken("e")
    assert watch.told == []


async def test_a_file_that_vanishes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Away for a moment, twice: nothing is said, and it is looked for soon. Away for longer: a problem, the map stays;
    back: gone, and nothing to take over."""
    watching, now_s = Watching(file), 0.0
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: now_s))
    for away_s in (0.5, 0.5, 1.0):
        assert watching.told == []
        remove(file)
        for _ in range(2):
            assert await watching._watch._check() == SWIFT.missing_s
            now_s += away_s
        write(file, rows("a"))
        assert await watching._watch._check() == SWIFT.reread_s
    assert watching.told == [("does not exist; it should hold the tags of source plc",), ()]
    assert watching.taken == []


async def test_a_change_between_start_and_watch_is_seen(file: Path) -> None:
    """The file was edited after the node read it and before anybody watched: the first look finds it."""
    watch = Watching(file)
    put(file, rows("a", "late"))
    async with watch:
        await watch.wait_taken("a", "late")


async def test_our_own_look_is_no_reason_to_look_again(file: Path, tmp_path: Path) -> None:
    """Reading the file, and what happens to other files of the folder, gives no hint; else a look would cause the
    next."""
    async with Watching(file) as watch:
        write(file, rows("a", "b"))
        await watch.wait_taken("a", "b")
        seen = watch.looks
        write(tmp_path / "other.csv", "x")
        read(file)
        write(file, rows("c"))
        await watch.wait_taken("c")
        assert watch.looks <= seen + 2  # one for the change, one if its events came in two parts


async def test_an_edit_that_clashes_with_the_file_of_another_source_changes_nothing(tmp_path: Path) -> None:
    """The second of three files gets a tag that the first has, and then also one of its own; the first is not edited.
    Its map stays until the clash is gone, while the third, edited at the same time, is taken over. Each file is kept
    for the next start before its map is in force."""
    sources = [opcua(1, tmp_path, rows(f"count_0{number}"), name=f"s{number}") for number in (1, 2, 3)]
    maps = {name: found.map for name, found in load_tag_files(sources, {}).items()}
    taken, problems, kept = list[tuple[str, int]](), dict[str, int](), dict[str, bytes]()
    files = {source.name: source.tags_file for source in sources}

    def take(name: str, found: watch.TagMap) -> None:
        assert kept[name] == files[name].read_bytes()
        taken.append((name, len(found.tags)))

    watching = TagWatch(
        sources, maps, take, lambda name, found: problems.update({name: len(found)}), SWIFT, keep=kept.update
    )
    write(sources[1].tags_file, rows("count_02", "count_01"))
    write(sources[2].tags_file, rows("count_03", "count_04"))
    await watching._check_all()
    assert (taken, problems) == ([("s3", 2)], {"s2": 1})
    write(sources[1].tags_file, rows("count_02", "count_01", "count_05"))
    await watching._check_all()
    assert (taken, problems) == ([("s3", 2)], {"s2": 1})
    write(sources[0].tags_file, rows("count_06"))
    await watching._check_all()
    assert (taken[1:], problems) == ([("s1", 1), ("s2", 3)], {"s2": 0})

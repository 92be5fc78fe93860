"""Who asks for a reload is told what became of it, and the last file counts: against a file that the test writes."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from agent.config import NotInForce
from agent.errors import BsfgError
from agent.ingest import TagFile, parse_tag_file
from agent.node.reload import Reloader, ReloadRefused
from agent.settings.node import IdentitySettings, NodeSettings
from agent.settings.peers import BrokerSettings
from agent.settings.sources import ModbusSourceSettings
from agent.settings.store import StreamSettings
from tests.waiting import LIMIT_S, wait_until_async

BEFORE = NodeSettings(IdentitySettings("idmz", Path("/state")))
AFTER = replace(BEFORE, stream=(StreamSettings("orders"),))
OTHER_NODE = replace(BEFORE, node=IdentitySettings("plant-a", Path("/state")))


class File:
    """In the place of a ConfigFile. A reading, or a look, lasts until it may end."""

    file = Path("node.toml")

    def __init__(self) -> None:
        self.content: NodeSettings | BsfgError = BEFORE
        self.content_read: NodeSettings | BsfgError = BEFORE
        self.begun = 0
        self.reading_may_end, self.look_may_end = threading.Event(), threading.Event()
        self.reading_may_end.set()

    def load(self) -> NodeSettings:
        found = self.content_read = self.content
        self.begun += 1
        assert self.reading_may_end.wait(LIMIT_S)
        if isinstance(found, BsfgError):
            raise found
        return found

    def is_changed(self) -> bool:
        is_changed = self.content is not BEFORE
        self.begun += 1
        assert self.look_may_end.wait(LIMIT_S)
        return is_changed

    def is_unread(self) -> bool:
        return self.content is not self.content_read


@asynccontextmanager
async def reloading(
    file: File, carried_out: list[NodeSettings], maps: list[dict[str, list[str]]] | None = None, **more: Any
) -> AsyncIterator[Reloader]:
    """A reloader at work for the length of a block. `maps`: the tags of the new maps."""

    async def carry_out(plan: Any, tag_files: dict[str, TagFile]) -> None:
        carried_out.append(plan.settings)
        if maps is not None:
            maps.append({name: [tag.name for tag in found.map.tags] for name, found in tag_files.items()})

    trust: Any = SimpleNamespace(check=lambda _: None, sign_with=AsyncMock(return_value=False))
    reloader = Reloader(BEFORE, file, trust, carry_out, asyncio.Event(), **more)  # type: ignore[arg-type]
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        running = group.create_task(reloader.run(), name="reload")
        yield reloader
        running.cancel()


async def test_a_reload_that_is_asked_for_during_another_is_carried_out() -> None:
    """The file may have changed since the other one has read it. Each caller is told of the reading after its call."""
    file, carried_out = File(), list[NodeSettings]()
    async with reloading(file, carried_out) as reloader, asyncio.TaskGroup() as group:
        file.reading_may_end.clear()
        first = group.create_task(reloader.reload(), name="first")
        await wait_until_async(lambda: file.begun == 1, "the first reading")
        file.content = AFTER
        second = group.create_task(reloader.reload(), name="second")
        await asyncio.sleep(0)
        file.reading_may_end.set()
        assert [(await reloaded).settings for reloaded in (first, second)] == [BEFORE, AFTER]
    assert carried_out == [BEFORE, AFTER]
    assert reloader.settings == AFTER


async def test_a_refused_reload_is_told_and_changes_nothing() -> None:
    """A file that cannot be read, and one of another node. The next good one ends the refusal."""
    file, carried_out = File(), list[NodeSettings]()
    async with reloading(file, carried_out) as reloader:
        for content, why in ((BsfgError("line 3"), "line 3"), (OTHER_NODE, "describes another node")):
            file.content = content
            with pytest.raises(ReloadRefused, match=why):
                await reloader.reload()
            assert why in reloader.refused
        assert (reloader.settings, carried_out) == (BEFORE, [])
        file.content = AFTER
        await reloader.reload()
        assert (reloader.settings, reloader.refused) == (AFTER, "")


@pytest.mark.parametrize("content", [AFTER, BsfgError("line 3")])
async def test_a_caller_that_left_stops_no_reload(content: NodeSettings | BsfgError) -> None:
    """A caller is cancelled, as at the local socket when its client leaves, while the file is read: the other callers
    are told, and later reloads are carried out."""
    file, carried_out = File(), list[NodeSettings]()
    async with reloading(file, carried_out) as reloader:
        file.reading_may_end.clear()
        file.content = content
        callers = [asyncio.create_task(reloader.reload(), name=name) for name in ("left", "other")]
        await wait_until_async(lambda: file.begun == 1, "the reading")
        callers[0].cancel()
        file.reading_may_end.set()
        told = await asyncio.gather(*callers, return_exceptions=True)
        assert isinstance(told[0], asyncio.CancelledError)
        assert isinstance(told[1], ReloadRefused) is isinstance(content, BsfgError)
        file.content = AFTER
        assert (await reloader.reload()).settings == AFTER


async def test_only_certificates_of_a_broker_that_restarts_are_checked(tmp_path: Path) -> None:
    """Those of a broker that goes on may be replaced at the moment, or may have expired while its link works: a change
    of something else is not refused for them."""
    file, carried_out, folder = File(), list[NodeSettings](), tmp_path / "none"
    first = BrokerSettings("b1", "host", folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    second = replace(first, name="b2", host="other")
    async with reloading(file, carried_out) as reloader:
        reloader.settings = replace(BEFORE, broker=(first, second))
        file.content = replace(AFTER, broker=(first, second))
        assert (await reloader.reload()).brokers == frozenset()
        for changed in ((replace(first, port=1884), second), (first, replace(second, port=1884))):
            file.content = replace(AFTER, broker=changed)
            with pytest.raises(ReloadRefused, match="of certificates"):
                await reloader.reload()
    assert len(carried_out) == 1


async def test_a_look_at_the_file_does_not_overrule_a_reload() -> None:
    """It may have seen the file before the reload: what is in force then is what the file says. A later look finds
    another file, until that is in force."""
    file = File()
    async with reloading(file, []) as reloader, asyncio.TaskGroup() as group:
        file.content = AFTER
        looking = group.create_task(reloader.check_file(), name="look")
        await wait_until_async(lambda: file.begun == 1, "the look")
        await reloader.reload()
        file.look_may_end.set()
        await looking
        assert not reloader.is_file_changed
        file.content = replace(AFTER, stream=())
        await reloader.check_file()
        assert reloader.is_file_changed
        await reloader.reload()
        assert not reloader.is_file_changed


async def test_a_node_that_started_without_a_part_reads_the_file_when_it_changes() -> None:
    """Each new content once, without being asked, until the file is right. After that a change waits to be asked
    for."""
    file, carried_out = File(), list[NodeSettings]()
    file.look_may_end.set()
    left_out = (NotInForce("source meter", "port = 0", is_kept=False),)
    async with reloading(file, carried_out, not_in_force=left_out) as reloader:
        await reloader.check_file()
        assert file.begun == 1, "the content of the start is not read again"
        file.content = BsfgError("line 3")
        await reloader.check_file()
        await wait_until_async(lambda: "line 3" in reloader.refused, "the refusal")
        readings = file.begun
        await reloader.check_file()
        await asyncio.sleep(0)
        assert (file.begun, reloader.not_in_force) == (readings + 1, left_out), "looked at, and not read"
        file.content = AFTER
        await reloader.check_file()
        await wait_until_async(lambda: carried_out == [AFTER], "the right file")
        assert (reloader.not_in_force, reloader.refused) == ((), "")
        file.content = replace(AFTER, stream=())
        await reloader.check_file()
        await asyncio.sleep(0)
        assert carried_out == [AFTER]


async def test_only_tag_files_of_sources_that_begin_have_to_be_right(tmp_path: Path) -> None:
    """That of a source that goes on may be wrong at the moment. If it is right, it counts as at a start: a new source
    may have a tag that the file does not have any more, and both files may exchange tags."""
    file, carried_out, maps, folder = File(), list[NodeSettings](), list[dict[str, list[str]]](), tmp_path
    old, new = (ModbusSourceSettings(name, folder / f"{name}.csv", 0, host="h") for name in ("old", "new"))
    header = "tag,table,register,type\n"
    in_force = {"old": parse_tag_file(old, f"{header}a/b,holding,1,int16\n".encode())}
    async with reloading(file, carried_out, maps, tag_maps=lambda: in_force) as reloader:
        reloader.settings = replace(BEFORE, modbus=(old,))
        file.content = replace(BEFORE, modbus=(old, new))
        old.tags_file.write_text("spoiled")
        for content, why in (("spoiled", "new.csv"), (f"{header}a/b,holding,1,int16\n", "is also in old.csv")):
            new.tags_file.write_text(content)
            with pytest.raises(ReloadRefused, match=why):
                await reloader.reload()
        old.tags_file.write_text(f"{header}a/c,holding,1,int16\n")
        assert (await reloader.reload()).sources == {"new"}
        assert maps == [{"old": ["a/c"], "new": ["a/b"]}]
        in_force = {"old": parse_tag_file(old, old.tags_file.read_bytes())}
        in_force["new"] = parse_tag_file(new, new.tags_file.read_bytes())
        file.content = replace(BEFORE, modbus=(old, replace(new, port=503)))
        assert (await reloader.reload()).sources == {"new"}
        assert maps[1:] == [{"new": ["a/b"]}]
        before, after = old.tags_file.read_bytes(), new.tags_file.read_bytes()
        new.tags_file.write_bytes(before)
        old.tags_file.write_bytes(after)
        file.content = replace(BEFORE, modbus=(old, new))
        await reloader.reload()
        assert maps[2:] == [{"old": ["a/b"], "new": ["a/c"]}]

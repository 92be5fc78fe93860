"""When files that other programs replace are read again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent import file_watch
from agent.file_watch import WatchTimes, watch_files
from tests.waiting import LIMIT_S, wait_until_async


async def test_a_changed_file_is_read_when_it_is_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hint is no reason to read at once: editors and copies write in several steps."""
    file, happened = tmp_path / "tags.csv", list[str]()
    file.write_text("")

    async def look() -> float:
        happened.append("look")
        return 60.0

    async def settle(*_: Any) -> None:
        happened.append("settle")

    monkeypatch.setattr(file_watch, "_settle", settle)
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        watching = group.create_task(watch_files("tags", lambda: [file], look, WatchTimes(reread_s=60.0)))
        await wait_until_async(lambda: happened == ["look"], "the first look")
        file.write_text("changed")
        await wait_until_async(lambda: len(happened) > 2, "the second look")
        watching.cancel()
    assert happened[:3] == ["look", "settle", "look"]


@pytest.mark.parametrize("hints, waits", [([False], 1), ([True, True, False], 3)])
def test_each_hint_restarts_the_quiet_moment(hints: list[bool], waits: int) -> None:
    """Each hint restarts the wait for a quiet moment."""
    waited = 0

    class Hints:
        async def wait(self, _limit_s: float) -> bool:
            nonlocal waited
            waited += 1
            return hints[waited - 1]

    asyncio.run(file_watch._settle(Hints(), WatchTimes()))  # type: ignore[arg-type]
    assert waited == waits

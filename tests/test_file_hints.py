"""When files that others replace are looked at."""

import asyncio
from pathlib import Path

from agent.file_hints import WatchTimes, watch_files
from tests.waiting import wait_until_async


def test_a_file_is_looked_at_when_it_is_quiet(tmp_path: Path) -> None:
    """Written in several steps, it is looked at once, after the last of them."""
    file, seen = tmp_path / "tags.csv", list[str]()
    file.write_text("")

    async def look() -> float:
        seen.append(file.read_text())
        return 60.0

    async def scenario() -> None:
        times = WatchTimes(settle_s=0.5, settle_max_s=20.0, missing_s=60.0, reread_s=60.0)
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            watching = group.create_task(watch_files(lambda: [file], look, lambda _: None, times))
            await wait_until_async(lambda: seen == [""], "the first look")
            for step in range(5):
                with file.open("a") as opened:
                    opened.write(str(step))
                await asyncio.to_thread(lambda: None)
            await wait_until_async(lambda: len(seen) > 1, "the second look")
            watching.cancel()
        assert seen == ["", "01234"]

    asyncio.run(scenario())

"""When files that other programs replace are read again."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent import file_watch
from agent.file_watch import WatchTimes, watch_files
from tests.waiting import LIMIT_S

TIMES = WatchTimes(settle_s=1.0, settle_max_s=4.0, reread_s=8.0)


def put_aside(file: Path) -> None:
    """Replace a file by one with the same size and time, as `cp -p` does."""
    before = file.stat()
    (other := file.with_name("other")).write_bytes(bytes(before.st_size))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.rename(file)


@pytest.mark.parametrize(
    "changes, checks_s",
    [
        ({}, [0, 8, 16]),
        ({3: Path.unlink}, [0, 4, 12, 20]),
        ({3: put_aside}, [0, 4, 12, 20]),
        ({2: lambda file: file.write_text("1"), 3: lambda file: file.write_text("12")}, [0, 4, 12, 20]),
        ({second: lambda file: os.truncate(file, file.stat().st_size + 1) for second in range(2, 40)}, [0, 5, 9, 13]),
    ],
    ids=["none", "removed", "replaced", "two writes", "always written"],
)
async def test_a_changed_file_is_read_when_it_is_quiet(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[int, Callable[[Path], None]],
    checks_s: list[int],
) -> None:
    """A change is no reason to read at once: editors and copies write in several steps. What is always written, and
    what does not change, is read from time to time."""
    file, now_s, checked_s = tmp_path / "tags.csv", 0, list[int]()
    file.write_text("")
    over = asyncio.Event()

    async def moved(seconds: float) -> None:
        nonlocal now_s
        await asyncio.sleep(0)
        now_s += round(seconds)
        if now_s in changes:
            changes[now_s](file)

    async def check() -> float:
        checked_s.append(now_s)
        if len(checked_s) == len(checks_s):
            over.set()
        return 60.0

    monkeypatch.setattr(file_watch, "time", SimpleNamespace(monotonic=lambda: float(now_s)))
    monkeypatch.setattr(file_watch, "asyncio", SimpleNamespace(sleep=moved, to_thread=asyncio.to_thread))
    watching = asyncio.create_task(watch_files(lambda: [file], check, TIMES))
    async with asyncio.timeout(LIMIT_S):
        await over.wait()
    watching.cancel()
    assert checked_s == checks_s

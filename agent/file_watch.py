"""Watches files that other programs replace: calls back after a change, and every few minutes without one.

A change shows by the time, size or number of a file, looked at every second: that also works on network and overlay
file systems. It is only a hint to check the files; their content decides. The check waits until a look finds the files
as the look before, because editors and copies write in several steps. The caller does the check; this module handles
only paths.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

_States = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """Times of a watch, in seconds."""

    settle_s: float = 1.0  # between two looks; files must be quiet for this long before a check
    settle_max_s: float = 10.0  # a file that is written continuously is checked this often
    missing_s: float = 5.0  # a file may be missing for this long before that is a problem
    reread_s: float = 180.0  # between two checks without a change


PATIENT = WatchTimes()


async def watch_files(
    files: Callable[[], Iterable[Path]], check: Callable[[], Awaitable[float]], times: WatchTimes
) -> None:
    """Call `check` at once, after changes, and every `reread_s`, until cancelled. It returns the longest time to wait,
    in seconds."""
    checked = await asyncio.to_thread(_states, files())
    while True:
        patience_s = await check()
        checked = await _wait_for_change(files, checked, min(patience_s, times.reread_s), times)


async def _wait_for_change(
    files: Callable[[], Iterable[Path]], checked: _States, patience_s: float, times: WatchTimes
) -> _States:
    """Return the present states: when they differ from the checked ones and are quiet, or after `patience_s`."""
    begun_s, before = time.monotonic(), checked
    changed_s = begun_s
    while True:
        await asyncio.sleep(min(times.settle_s, patience_s))
        now_s, states = time.monotonic(), await asyncio.to_thread(_states, files())
        if states == checked:
            changed_s = now_s
        elif states == before or now_s - changed_s >= times.settle_max_s:
            return states
        if now_s - begun_s >= patience_s:
            return states
        before = states


def _states(files: Iterable[Path]) -> _States:
    """What shows a change of each file, or of the file to which it links; None for a missing one."""
    return tuple(map(_state, files))


def _state(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino

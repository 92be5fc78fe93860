"""Watches files that other programs replace: calls back after file system events, and every few minutes without an
event.

An event is only a hint to check the files; their content decides. The check waits until the files were quiet for a
moment, because editors and copies write in several steps. It also runs every few minutes without an event, because
network and overlay file systems miss events and a folder may have been replaced. The caller does the check; this module
handles only paths and events. Threads of watchdog set one flag here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from watchdog.events import (
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

from agent.concurrency import timeout

log = logging.getLogger(__name__)

# Opening and reading are left out: our own check of a file must not cause the next one.
_EVENTS: list[type[FileSystemEvent]] = [
    FileClosedEvent,  # after writing
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
]


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """Times of a watch, in seconds."""

    settle_s: float = 1.0  # files must be quiet for this long before a check
    settle_max_s: float = 10.0  # a file that is written continuously is checked this often
    missing_s: float = 5.0  # a file may be missing for this long before that is a problem
    reread_s: float = 180.0  # between two checks without an event


PATIENT = WatchTimes()


async def watch_files(
    what: str,
    files: Callable[[], Iterable[Path]],
    check: Callable[[], Awaitable[float]],
    times: WatchTimes,
) -> None:
    """Call `check` at once, after events, and every `reread_s`, until cancelled. It returns the longest time to wait,
    in seconds.

    Each period begins with new watches, because a folder may have been replaced. If the system provides no watches,
    only the periodic calls remain, and a warning that names the files as `what` is logged once.
    """
    has_failed = False
    while True:
        hints = _Hints()
        try:
            try:
                await asyncio.to_thread(_observe, hints, list(files()))
            except OSError as error:
                if not has_failed:
                    log.warning(
                        "file_watch_failed", extra={"what": what, "why": str(error), "reread_s": times.reread_s}
                    )
                has_failed = True
            end_s = time.monotonic() + times.reread_s
            while True:
                patience_s = await check()
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    break
                if await hints.wait(min(left_s, patience_s)):
                    await _settle(hints, times)
        finally:
            await asyncio.to_thread(hints.stop_observer)


async def _settle(hints: _Hints, times: WatchTimes) -> None:
    """Return when the files were quiet for `settle_s`, or after `settle_max_s`."""
    end_s = time.monotonic() + times.settle_max_s
    while time.monotonic() < end_s:
        if not await hints.wait(times.settle_s):
            return


def _observe(hints: _Hints, wanted: list[Path]) -> None:
    """Start watching. Raises OSError if the system provides no watches."""
    observer: BaseObserver | None = None
    files = {path for file in wanted for path in _paths(file)}
    hints.paths = frozenset(str(file) for file in files)
    try:
        observer = Observer()
        for folder in sorted({file.parent for file in files}):
            if folder.is_dir():
                observer.schedule(hints, str(folder), event_filter=_EVENTS)
        observer.start()
    except OSError:
        if observer is not None:
            observer.on_thread_stop()  # the observer is not running, but its thread that reads events is
        raise
    hints.attach(observer)


class _Hints(FileSystemEventHandler):
    """A flag set by the observer's thread for the event loop: one of these files has changed."""

    def __init__(self) -> None:
        self.paths: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._observer: BaseObserver | None = None
        self._is_over = False
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._is_queued = False

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Runs in the observer's thread. At most one call is queued in the event loop, however many events come."""
        if self._is_queued or self.paths.isdisjoint((os.fsdecode(event.src_path), os.fsdecode(event.dest_path))):
            return
        self._is_queued = True
        with suppress(RuntimeError):  # the loop was closed before the observer had stopped: no task waits any more
            self._loop.call_soon_threadsafe(self._arrive)

    async def wait(self, limit_s: float) -> bool:
        """Wait for a hint and clear it; False when none came within `limit_s` seconds."""
        try:
            async with timeout(limit_s):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True

    def attach(self, observer: BaseObserver) -> None:
        """Own the observer: `end` stops it. If `end` was called already, stop it at once."""
        with self._lock:
            self._observer = observer
            is_over = self._is_over
        if is_over:
            self.stop_observer()

    def stop_observer(self) -> None:
        """Stop the observer; no hints follow."""
        with self._lock:
            self._is_over = True
            observer, self._observer = self._observer, None
        if observer is not None:
            observer.stop()
            observer.join()

    def _arrive(self) -> None:
        self._is_queued = False
        self._event.set()


def _paths(file: Path) -> Iterator[Path]:
    """The path of a file, and that of its target if it is a link. Folders are resolved, because a watch on a link would
    watch only the link."""
    yield Path(os.path.realpath(file.parent)) / file.name
    yield Path(os.path.realpath(file))

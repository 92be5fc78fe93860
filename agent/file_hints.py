"""When to look at files that others replace: hints of the file system, and the clock where there are none.

An event is only a hint that it is time to look; what counts is what the files hold then. Looking waits until the files have
been quiet for a moment, because editors and copies write in several steps, and every few minutes it is done without a hint,
because network and overlay file systems miss events and a folder may have been replaced. What a look finds, and what to do
about it, is the caller's; here only paths and hints are known. The watchdog's threads see no more of us than one bit.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
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

# Opening and reading are left out: our own look at a file must not be a reason to look again.
_EVENTS: list[type[FileSystemEvent]] = [
    FileClosedEvent,  # after writing
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
]


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """How patient a watch is."""

    settle_s: float = 1.0  # files must have been quiet for this long
    settle_max_s: float = 10.0  # a file that is written all the time is looked at this often
    missing_s: float = 5.0  # a file may be away for this long before that is a problem
    reread_s: float = 180.0  # without any hint


PATIENT = WatchTimes()


async def watch_files(
    files: Callable[[], Iterable[Path]],
    look: Callable[[], Awaitable[float]],
    deaf: Callable[[OSError], None],
    times: WatchTimes,
) -> None:
    """Call `look` at once, after hints, and by the clock, until cancelled; it returns the seconds it can wait at most.

    Each period begins with new watches, for a folder may have been replaced. `deaf` is told when the system gives none.
    """
    while True:
        hints = _Hints()
        try:
            await asyncio.to_thread(_observe, hints, list(files()), deaf)
            end_s = time.monotonic() + times.reread_s
            while True:
                patience_s = await look()
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    break
                if await hints.wait(min(left_s, patience_s)):
                    await _settle(hints, times)
        finally:
            await asyncio.to_thread(hints.end)


async def _settle(hints: _Hints, times: WatchTimes) -> None:
    """Return when the files have been quiet for a moment, or busy for too long."""
    end_s = time.monotonic() + times.settle_max_s
    while time.monotonic() < end_s:
        if not await hints.wait(times.settle_s):
            return


def _observe(hints: _Hints, wanted: list[Path], deaf: Callable[[OSError], None]) -> None:
    """Start watching. Where the system gives no watches, looking by the clock must do."""
    observer: BaseObserver | None = None
    files = {path for file in wanted for path in _paths(file)}
    hints.paths = frozenset(str(file) for file in files)
    try:
        observer = Observer()
        for folder in sorted({file.parent for file in files}):
            if folder.is_dir():
                observer.schedule(hints, str(folder), event_filter=_EVENTS)
        observer.start()
    except OSError as error:
        if observer is not None:
            observer.on_thread_stop()  # it is not running, but its reader of events is
        deaf(error)
        return
    hints.attach(observer)


class _Hints(FileSystemEventHandler):
    """One bit from the observer's thread to the event loop: something happened to one of these files."""

    def __init__(self) -> None:
        self.paths: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._observer: BaseObserver | None = None
        self._is_over = False
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._is_on_its_way = False

    def on_any_event(self, event: FileSystemEvent) -> None:
        """In the observer's thread. However many events come, at most one call is queued at the loop."""
        if self._is_on_its_way or self.paths.isdisjoint((os.fsdecode(event.src_path), os.fsdecode(event.dest_path))):
            return
        self._is_on_its_way = True
        self._loop.call_soon_threadsafe(self._arrive)

    async def wait(self, limit_s: float) -> bool:
        """Wait for a hint, and use it up. False when none came in time."""
        try:
            async with asyncio.timeout(limit_s):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True

    def attach(self, observer: BaseObserver) -> None:
        """The observer whose events these are; ended with them, at once if that has happened already."""
        with self._lock:
            self._observer = observer
            is_over = self._is_over
        if is_over:
            self.end()

    def end(self) -> None:
        """No hints any more."""
        with self._lock:
            self._is_over = True
            observer, self._observer = self._observer, None
        if observer is not None:
            observer.stop()
            observer.join()

    def _arrive(self) -> None:
        self._is_on_its_way = False
        self._event.set()


def _paths(file: Path) -> Iterator[Path]:
    """Where a file is: under its name, and where that leads to if it is a link. Folders free of links: a watch on a link
    would see the link."""
    yield Path(os.path.realpath(file.parent)) / file.name
    yield Path(os.path.realpath(file))

"""Watches the tag files of running sources: a file that changed is read and checked whole, and handed on or told about.

An event of the file system is only a hint that it is time to look; what counts is what the files hold then. Looking waits
until the files have been quiet for a moment, because editors and copies write in several steps, and every few minutes it is
done without a hint, because network and overlay file systems miss events and a folder may have been replaced. A good file
goes to its own source. A bad one changes nothing: the map before stays in force, the log names every problem once, and that
is over as soon as the file is good again. A file that is missing for a moment is no problem yet.

Here only files and hints are known. The watchdog's threads see no more of us than `_Hints`, which holds one bit.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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

from agent.ingest.errors import Problem, TagFileUnreadable, TagMapError
from agent.ingest.settings import SourceSettings
from agent.ingest.tag_change import admit, difference
from agent.ingest.tag_file import parse_tag_file, read_tag_file
from agent.ingest.tag_map import TagMap

log = logging.getLogger(__name__)

PROBLEMS_TOLD_MAX = 200  # in one log line; `bsfg check` prints them all
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
    """How patient the watch is."""

    settle_s: float = 1.0  # files must have been quiet for this long
    settle_max_s: float = 10.0  # a file that is written all the time is looked at this often
    missing_s: float = 5.0  # a file may be away for this long before that is a problem
    reread_s: float = 180.0  # without any hint


PATIENT = WatchTimes()


@dataclass(slots=True)
class _Look:
    """What a source's file held when it was last readable."""

    digest: bytes = b""
    found: TagMap | None = None
    problems: tuple[Problem, ...] = ()
    missing_since_s: float | None = None


class TagWatch:
    """The tag files of all sources. `maps` are those in force, and it keeps them so."""

    def __init__(
        self,
        sources: Sequence[SourceSettings],
        maps: Mapping[str, TagMap],
        take: Callable[[str, TagMap], None],
        tell: Callable[[str, tuple[Problem, ...]], None],
        times: WatchTimes,
    ) -> None:
        self._sources = sources
        self._maps = {source.name: maps[source.name] for source in sources}
        self._looks = {source.name: _Look() for source in sources}
        self._told: dict[str, tuple[Problem, ...]] = {}
        self._take, self._tell, self._times = take, tell, times
        self._is_deaf = False  # told that the file system gives no hints

    async def run(self) -> None:
        """Watch until cancelled. Each period begins with new watches, for a folder may have been replaced, and with a look."""
        while True:
            hints = _Hints()
            try:
                await asyncio.to_thread(self._observe, hints)
                await self._period(hints)
            finally:
                await asyncio.to_thread(hints.end)

    async def _period(self, hints: _Hints) -> None:
        end_s = time.monotonic() + self._times.reread_s
        while True:
            await self._look()
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return
            some_missing = any(look.missing_since_s is not None for look in self._looks.values())
            if await hints.wait(min(left_s, self._times.missing_s) if some_missing else left_s):
                await self._settle(hints)

    async def _settle(self, hints: _Hints) -> None:
        """Return when the files have been quiet for a moment, or busy for too long."""
        end_s = time.monotonic() + self._times.settle_max_s
        while time.monotonic() < end_s:
            if not await hints.wait(self._times.settle_s):
                return

    async def _look(self) -> None:
        """Read all files; take over what is new and good, tell what is bad."""
        await asyncio.to_thread(self._read)
        new = {name: look.found for name, look in self._looks.items() if look.found is not None}
        admission = admit(self._maps, {name: found for name, found in new.items() if found is not self._maps[name]})
        for name, found in admission.maps.items():
            change = difference(self._maps[name], found)
            self._maps[name] = found
            if not change.is_empty:
                counts = {kind: len(getattr(change, kind)) for kind in ("added", "removed", "changed", "kept")}
                log.info(
                    "tag file changed",
                    extra={"action": "tag_file_changed", "source": name, "file": found.file, **counts},
                )
                for note in found.notes:
                    log.warning("tag file needs a look", extra={"action": "tag_file_note", "note": note})
                self._take(name, found)
        for name, look in self._looks.items():
            self._say(name, look.problems or admission.problems.get(name, ()))

    def _say(self, name: str, problems: tuple[Problem, ...]) -> None:
        """Tell of problems once, and once when they are gone."""
        if problems == self._told.get(name, ()):
            return
        self._told[name] = problems
        self._tell(name, problems)
        extra: dict[str, object] = {"action": "tag_file_mended", "source": name}
        if not problems:
            log.info("tag file is good again", extra=extra)
            return
        extra |= {
            "action": "tag_file_refused",
            "count": len(problems),
            "problems": [str(problem) for problem in problems[:PROBLEMS_TOLD_MAX]],
        }
        log.error("tag file is refused, the tag map before stays in force", extra=extra)

    # ------------------------------------------------------------------------------------------------------- in a thread

    def _read(self) -> None:
        """Bring all looks up to date; a file is parsed only when its bytes are others than last time."""
        for source in self._sources:
            look = self._looks[source.name]
            try:
                data = read_tag_file(source)
            except TagFileUnreadable as error:
                now_s = time.monotonic()
                if look.missing_since_s is None:
                    look.missing_since_s = now_s
                if now_s - look.missing_since_s >= self._times.missing_s:
                    look.digest, look.found, look.problems = b"", None, error.problems
                continue
            look.missing_since_s = None
            digest = hashlib.blake2b(data).digest()
            if digest != look.digest:
                look.digest, look.found, look.problems = digest, None, ()
                try:
                    look.found = parse_tag_file(source, data)
                except TagMapError as error:
                    look.problems = error.problems

    def _observe(self, hints: _Hints) -> None:
        """Start watching. Where the system gives no watches, looking by the clock must do."""
        observer: BaseObserver | None = None
        files = {path for source in self._sources for path in _paths(source)}
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
            if not self._is_deaf:
                self._is_deaf = True
                extra = {"action": "tag_watch_deaf", "why": str(error), "reread_s": self._times.reread_s}
                log.warning("tag files are not watched, only read again by the clock", extra=extra)
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


def _paths(source: SourceSettings) -> Iterator[Path]:
    """Where a source's file is: under its name, and where that leads to if it is a link. Folders free of links: a watch on a
    link would see the link."""
    file = source.tags_file
    yield Path(os.path.realpath(file.parent)) / file.name
    yield Path(os.path.realpath(file))

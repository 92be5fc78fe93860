"""Watches the tag files of running sources. A changed file is read and checked as a whole.

`agent.file_hints` says when to look. A good file is passed to its source. A bad file changes nothing: the previous tag
map stays in force, and the log names every problem once, until the file is good again. A file that is missing for a
moment is no problem.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agent.file_hints import PATIENT, WatchTimes, watch_files
from agent.ingest.errors import Problem, TagFileUnreadable, TagMapError
from agent.ingest.settings import SourceSettings
from agent.ingest.tags.change import admit, difference
from agent.ingest.tags.file import parse_tag_file, read_tag_file
from agent.ingest.tags.tag_map import TagMap, digest_of

__all__ = ["PATIENT", "TagWatch", "WatchTimes"]

log = logging.getLogger(__name__)

PROBLEMS_TOLD_MAX = 200  # in one log line; `bsfg check` prints them all


@dataclass(slots=True)
class _Look:
    """What a source's file held when it was last readable."""

    digest: bytes = b""
    found: TagMap | None = None
    problems: tuple[Problem, ...] = ()
    missing_since_s: float | None = None


class TagWatch:
    """The tag files of all sources. `maps` are the tag maps in force."""

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
        # A file that is as it was when the map was read needs no second copy of its tags.
        self._looks = {name: _Look(found.digest, found) for name, found in self._maps.items()}
        self._told: dict[str, tuple[Problem, ...]] = {}
        self._take, self._tell, self._times = take, tell, times
        self._is_deaf = False  # logged that the file system gives no hints

    async def run(self) -> None:
        """Watch until cancelled."""
        await watch_files(
            lambda: [source.tags_file for source in self._sources], self._look_and_say, self._deaf, self._times
        )

    async def _look_and_say(self) -> float:
        """Look; returns the seconds until the next look, few while a file is missing."""
        await self._look()
        some_missing = any(look.missing_since_s is not None for look in self._looks.values())
        return self._times.missing_s if some_missing else self._times.reread_s

    def _deaf(self, error: OSError) -> None:
        if not self._is_deaf:
            self._is_deaf = True
            extra = {"action": "tag_watch_deaf", "why": str(error), "reread_s": self._times.reread_s}
            log.warning("tag files are not watched, only read again by the clock", extra=extra)

    async def _look(self) -> None:
        """Read all files; pass on what is new and good, report what is bad."""
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
        """Report problems once, and once that they are gone."""
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

    # ----------------------------------------------------------------------------------------------------- in a thread

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
            digest = digest_of(data)
            if digest != look.digest:
                look.digest, look.found, look.problems = digest, None, ()
                try:
                    look.found = parse_tag_file(source, data)
                except TagMapError as error:
                    look.problems = error.problems

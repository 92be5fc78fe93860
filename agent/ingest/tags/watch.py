"""Watches the tag files of running sources. A changed file is read and checked as a whole.

`agent.file_watch` decides when to check. A good file is passed to its source, and kept for the next start. A bad file
changes nothing: the previous tag map stays in force, and the problems are logged once. A file that is missing for a
moment is no problem.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from agent.file_watch import WatchTimes, watch_files
from agent.ingest.errors import TagFileProblem, TagFileUnreadable, TagMapError
from agent.ingest.ports import KeepFiles
from agent.ingest.tags.change import admit, difference
from agent.ingest.tags.file import parse_tag_file, read_tag_file
from agent.ingest.tags.tag_map import TagMap, digest_of
from agent.settings.sources import SourceSettings

log = logging.getLogger(__name__)


PROBLEMS_LOGGED_MAX = 200  # in one log line


@dataclass(slots=True)
class _Content:
    """The content of a source's file when it was last readable. `data` is that of a map that is not in force yet."""

    digest: bytes = b""
    found: TagMap | None = None
    problems: tuple[TagFileProblem, ...] = ()
    missing_since_s: float | None = None
    data: bytes = b""


def log_change(source: str, before: TagMap, found: TagMap) -> bool:
    """Log that a source gets a new map; False if it reads the same."""
    change = difference(before, found)
    if change.is_empty:
        return False
    counts = {kind: len(getattr(change, kind)) for kind in ("added", "removed", "changed", "kept")}
    extra = {"action": "tag_file_changed", "source": source, "file": found.file, **counts}
    log.info("tag file changed", extra=extra)
    for note in found.notes:
        log.warning("tag file has a note", extra={"action": "tag_file_note", "note": note})
    return True


class TagWatch:
    """The tag files of sources. `maps` are the tag maps in force, also of sources that are not watched, `problems` why
    a file is not in force. `keep` is called in a thread with the bytes of the files that come into force."""

    def __init__(
        self,
        sources: Sequence[SourceSettings],
        maps: Mapping[str, TagMap],
        on_map: Callable[[str, TagMap], None],
        on_problems: Callable[[str, tuple[TagFileProblem, ...]], None],
        times: WatchTimes,
        problems: Mapping[str, tuple[TagFileProblem, ...]] = MappingProxyType({}),
        keep: KeepFiles = lambda _: None,
    ) -> None:
        self._sources = sources
        self._maps = dict(maps)
        # An unchanged file needs no second copy of its tags.
        self._contents = {
            name: _Content(b"", None, problems[name]) if name in problems else _Content(found.digest, found)
            for name, found in self._maps.items()
        }
        self._reported = dict(problems)  # by the start
        self._keep = keep
        self._on_map, self._on_problems, self._times = on_map, on_problems, times

    async def run(self) -> None:
        """Watch until cancelled."""
        await watch_files("tag files", lambda: [source.tags_file for source in self._sources], self._check, self._times)

    async def _check(self) -> float:
        """Check the files; returns the seconds until the next check, few while a file is missing."""
        await self._check_all()
        some_missing = any(content.missing_since_s is not None for content in self._contents.values())
        return self._times.missing_s if some_missing else self._times.reread_s

    async def _check_all(self) -> None:
        """Read all files. Pass on new maps, and report problems."""
        await asyncio.to_thread(self._read)
        new = {name: content.found for name, content in self._contents.items() if content.found is not None}
        admission = admit(self._maps, {name: found for name, found in new.items() if found is not self._maps[name]})
        kept = {name: self._contents[name].data for name in admission.maps}
        if kept:  # before it is in force, so that no restart goes back behind it
            await asyncio.to_thread(self._keep, kept)
        for name, found in admission.maps.items():
            self._contents[name].data = b""
            before, self._maps[name] = self._maps[name], found
            if log_change(name, before, found):
                self._on_map(name, found)
        for name, content in self._contents.items():
            self._report(name, content.problems or admission.problems.get(name, ()))

    def _report(self, name: str, problems: tuple[TagFileProblem, ...]) -> None:
        """Report problems once, and once that they are solved."""
        if problems == self._reported.get(name, ()):
            return
        self._reported[name] = problems
        self._on_problems(name, problems)
        if not problems:
            log.info("tag file is valid again", extra={"action": "tag_file_accepted", "source": name})
            return
        extra = {
            "action": "tag_file_refused",
            "source": name,
            "count": len(problems),
            "problems": [str(problem) for problem in problems[:PROBLEMS_LOGGED_MAX]],
        }
        log.error("tag file is refused; the previous tag map stays in force", extra=extra)

    # ----------------------------------------------------------------------------------------------------- in a thread

    def _read(self) -> None:
        """Read all files; a file is parsed only when its bytes have changed."""
        for source in self._sources:
            content = self._contents[source.name]
            try:
                data = read_tag_file(source)
            except TagFileUnreadable as error:
                now_s = time.monotonic()
                if content.missing_since_s is None:
                    content.missing_since_s = now_s
                if now_s - content.missing_since_s >= self._times.missing_s:
                    content.digest, content.found, content.problems = b"", None, error.problems
                continue
            content.missing_since_s = None
            digest = digest_of(data)
            if digest != content.digest:
                content.digest, content.found, content.problems = digest, None, ()
                try:
                    content.found, content.data = parse_tag_file(source, data), data
                except TagMapError as error:
                    content.problems = error.problems

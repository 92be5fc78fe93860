"""All sources of a node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from agent.concurrency import TaskGroup
from agent.file_watch import PATIENT, WatchTimes
from agent.ingest.delivery import record_ended
from agent.ingest.errors import TagFileProblem, UnknownSource
from agent.ingest.ports import IngestPorts, Readers, RemovedTag
from agent.ingest.probe_result import TagReading
from agent.ingest.recorder import Recorder
from agent.ingest.supervision.joint_search import JointSearch
from agent.ingest.supervision.lead_change import EarlierLead
from agent.ingest.supervision.statistics import SourceStatistics
from agent.ingest.supervision.supervisor import SourceSupervisor
from agent.ingest.tags.tag_map import TagMap
from agent.ingest.tags.watch import TagWatch, log_change
from agent.settings.sources import SourceSettings

if TYPE_CHECKING:
    from agent.ingest.modbus.line import Endpoints

log = logging.getLogger(__name__)


class Ingest:
    """All sources of a node."""

    def __init__(
        self,
        zone: str,
        sources: Sequence[SourceSettings],
        tag_maps: Mapping[str, TagMap],
        ports: IngestPorts,
        *,
        problems: Mapping[str, Sequence[TagFileProblem]] = MappingProxyType({}),
        stale: Collection[str] = (),
        watch_times: WatchTimes = PATIENT,
        is_recording: bool = True,
    ) -> None:
        """`problems` are those of the tag files that are not in force; the map of such a source is an earlier one, or
        empty. `stale`: sources whose section is an earlier one, so that their tag file is not read before `change`.
        `is_recording`: otherwise the sources stand by until `begin_recording`."""
        self._recorder_of = partial(Recorder, zone=zone, store=ports.store, doubted=ports.doubted)
        self._ports, self._watch_times = ports, watch_times
        self._search = None if ports.stored is None else JointSearch(ports.stored)
        self._is_recording, self._stale = is_recording, frozenset(stale)
        self._earlier_lead = None if is_recording else EarlierLead()
        self._by_name = dict[str, SourceSupervisor]()
        self._by_name |= {s.name: self._supervisor(s, tag_maps[s.name]) for s in sources}
        for name, found in problems.items():
            self._by_name[name].note_file_problems(found)
        self._notes = [note for found in tag_maps.values() for note in found.notes]
        self._stop = asyncio.Event()
        self._group: TaskGroup | None = None
        self._background: list[asyncio.Task[None]] = []
        self._background_over = asyncio.Event()
        self._changing = asyncio.Lock()  # held while sources are replaced

    async def run(self) -> None:
        """Supervise all sources until `stop`. Returns when everything they delivered is committed."""
        for note in self._notes:
            log.warning("tag file has a note", extra={"action": "tag_file_note", "note": note})
        async with TaskGroup() as group:
            self._group = group
            self._run_background(group)
            self._record_removed(group, is_start=True)  # first: it looks up to when the sources were complete
            for supervisor in self._by_name.values():
                supervisor.start(group)
            await self._stop.wait()
            for supervisor in self._by_name.values():
                supervisor.stop()
            self._end_background()

    def stop(self) -> None:
        """Ask `run` to end: stop the sources, drain, wait for the commit."""
        self._stop.set()

    async def change(self, sources: Sequence[SourceSettings], tag_maps: Mapping[str, TagMap]) -> None:
        """Read these sources from now on. A source with unchanged settings continues undisturbed, with its new map if
        `tag_maps` has one. Any other stops, delivers what it holds, and restarts if it is among `sources`. Call this
        while `run` runs."""
        assert self._group is not None, "sources are changed while they run"
        async with self._changing:
            self._end_background()  # the watch does not know the new maps yet
            kept = {s.name for s in sources if s.name in self._by_name and self._by_name[s.name].settings == s}
            ending = [supervisor.stop() for name, supervisor in self._by_name.items() if name not in kept]
            if ending:
                await asyncio.wait(ending)
            # Before a source begins to read a tag of another one, or to be complete up to a later time.
            readers = self._readers(tag_maps, kept)
            ended = await self._find_ended(readers)
            if self._stop.is_set():
                return
            before = self._by_name
            self._by_name = {
                s.name: before[s.name] if s.name in kept else self._supervisor(s, tag_maps[s.name]) for s in sources
            }
            for name, supervisor in self._by_name.items():
                if name not in kept:
                    supervisor.start(self._group)
                elif name in tag_maps and log_change(name, supervisor.tags, tag_maps[name]):
                    supervisor.offer(tag_maps[name])
            self._stale = frozenset()
            self._run_background(self._group)
            self._background.append(self._group.create_task(self._record_ended(ended, readers), name="removed tags"))

    def begin_recording(self, since_ns: int | None) -> None:
        """Record from now on. `since_ns`: up to when all that another gateway of the zone recorded is here, or declared
        missing, on our clock; each source declares a gap from then on, or from where this node was complete if that is
        later. None: not known."""
        if self._is_recording:
            return
        self._is_recording, self._earlier_lead = True, EarlierLead(since_ns)
        for supervisor in self._by_name.values():
            supervisor.begin_recording(self._earlier_lead)
        if self._group is not None:
            self._record_removed(self._group)

    async def end_recording(self) -> None:
        """Stop recording, and stand by. Returns when everything that arrived is committed. Nothing is recorded as bad
        or missing, because another gateway goes on."""
        self._is_recording = False
        async with self._changing:
            ending = [supervisor for supervisor in self._by_name.values() if supervisor.is_recording]
            if self._group is not None and ending:
                await asyncio.wait([supervisor.stop() for supervisor in ending])
            if self._stop.is_set():
                return
            for before in ending:  # recording may have begun again meanwhile
                name = before.settings.name
                after = self._by_name[name] = self._supervisor(before.settings, before.tags)
                after.note_file_problems(before.file_problems)
                if self._group is not None:
                    after.start(self._group)

    def fitness(self) -> int:
        """How many sources are connected, or warm where they stand by."""
        return sum(supervisor.is_connected for supervisor in self._by_name.values())

    def gaps_stored(self) -> bool:
        """Whether it records, and what each source missed until now is stored."""
        return self._is_recording and all(supervisor.is_gap_stored for supervisor in self._by_name.values())

    def _run_background(self, group: TaskGroup) -> None:
        """Watch the tag files of the sources."""
        self._background, self._background_over = [], asyncio.Event()
        supervisors = list(self._by_name.values())
        maps = {source.settings.name: source.tags for source in supervisors}
        if supervisors:
            settings = [source.settings for source in supervisors if source.settings.name not in self._stale]
            problems = {source.settings.name: source.file_problems for source in supervisors if source.file_problems}
            watch = TagWatch(
                settings,
                maps,
                self._offer,
                self._note_file_problems,
                self._watch_times,
                problems=problems,
                keep=self._ports.keep_files,
            )
            watching = group.create_permanent(watch.run(), name="tag files", until=self._background_over)
            self._background.append(watching)

    def _record_removed(self, group: TaskGroup, *, is_start: bool = False) -> None:
        """Record once the tags that are in none of the maps in force any more, or in that of another source."""
        if self._is_recording:
            self._background.append(group.create_task(self._find_removed(is_start=is_start), name="removed tags"))

    async def _find_removed(self, *, is_start: bool) -> None:
        readers = self._readers({}, self._by_name)
        await self._record_ended(await self._find_ended(readers), readers, is_start=is_start)

    def _readers(self, maps: Mapping[str, TagMap], kept: Collection[str]) -> Readers:
        """The sources that read each subject: those with new maps, and those that are kept, until they have taken a new
        map over."""
        readers = dict[str, set[str]]()
        for name in maps.keys() | kept:
            read = self._by_name[name].subjects if name in kept else frozenset()
            tags = maps[name].tags if name in maps else self._by_name[name].tags.tags
            for subject in read.union(tag.definition.subject for tag in tags):
                readers.setdefault(subject, set()).add(name)
        return readers

    async def _find_ended(self, readers: Readers) -> Sequence[RemovedTag]:
        """The tags that their source reads no more; none while another gateway records."""
        find = self._ports.find_removed
        return await asyncio.to_thread(find, readers) if find is not None and self._is_recording else ()

    async def _record_ended(self, ended: Sequence[RemovedTag], readers: Readers, *, is_start: bool = False) -> None:
        # In a pair, another gateway may have recorded what is missing here.
        declares = self._earlier_lead is None
        # At a start, a source that continues from the same time declares it.
        ended = [tag for tag in ended if tag.subject not in readers or not is_start or tag.is_behind]
        await record_ended(ended, readers, self._recorder_of, declares=declares)

    def _end_background(self) -> None:
        self._background_over.set()
        for task in self._background:
            task.cancel()

    @cached_property
    def _endpoints(self) -> Endpoints:
        """Modbus sources with the same host and port share a line."""
        from agent.ingest.modbus.line import Endpoints

        return Endpoints()

    def _supervisor(self, settings: SourceSettings, tags: TagMap) -> SourceSupervisor:
        recorder = self._recorder_of(settings.name)
        found = SourceSupervisor(settings, tags, recorder, self._ports.stored, lambda: self._endpoints, self._search)
        if self._is_recording:
            is_new = settings.name not in self._by_name
            found.begin_recording(EarlierLead() if is_new and self._earlier_lead else self._earlier_lead)
        return found

    def _offer(self, source: str, tags: TagMap) -> None:
        supervisor = self._by_name[source]
        supervisor.offer(tags)
        if not supervisor.has_map and self._is_recording and self._group is not None:
            self._record_removed(self._group)  # the source itself cannot see what has left

    def _note_file_problems(self, source: str, problems: Sequence[TagFileProblem]) -> None:
        self._by_name[source].note_file_problems(problems)

    def retry(self, source: str) -> str:
        """Make a source connect now. Returns its state before the call. Raises UnknownSource."""
        return self._named(source).retry().value

    async def read_tags(self, source: str, names: Collection[str]) -> list[TagReading]:
        """Read tags over the connection of their source, without recording them. Raises UnknownSource, NotConnected and
        SourceLost."""
        return await self._named(source).read_tags(names)

    def backfill(self, source: str, first_ns: int, last_ns: int) -> int:
        """Fill what is missing between these times from the history of the source's server, when it is connected.
        Returns the number of open gaps. Raises UnknownSource and NoHistory."""
        return self._named(source).backfill(first_ns, last_ns)

    def _named(self, source: str) -> SourceSupervisor:
        if source not in self._by_name:
            names = ", ".join(sorted(self._by_name)) or "none"
            raise UnknownSource(f"no source {source!r}; the sources of this node: {names}")
        return self._by_name[source]

    def tag_maps(self) -> dict[str, TagMap]:
        """The tag maps in force, or offered, by source."""
        return {name: supervisor.tags for name, supervisor in self._by_name.items()}

    def statistics(self) -> tuple[SourceStatistics, ...]:
        return tuple(supervisor.statistics() for supervisor in self._by_name.values())

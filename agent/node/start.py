"""Reads what a node starts with: node.toml, the tag files, and what was last in force where one of them is wrong.

`config.start_settings` and `ingest.tags.change` decide; this module reads, and reports what is not in force: a log line
and an incident for each.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.config import ConfigFile, KeptSettings, NotInForce, load_kept, load_usable
from agent.errors import StoreBusy
from agent.fact_store import FactStore
from agent.ingest import TagFile, TagFileProblem, TagMap, TagMapError, find_tag_files, parse_tag_file, plan_sources
from agent.settings.node import NodeSettings
from agent.settings.sources import SourceSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """What a node starts with. `tag_files` are the bytes of the maps. `not_in_force` is of node.toml, `tag_problems` of
    the tag files, by source. `stale`: the sources whose section is the one last in force, because their tag file is
    wrong and node.toml has another section."""

    settings: NodeSettings
    tag_maps: Mapping[str, TagMap] = field(default_factory=dict)
    tag_files: Mapping[str, bytes] = field(default_factory=dict)
    tag_problems: Mapping[str, tuple[TagFileProblem, ...]] = field(default_factory=dict)
    not_in_force: tuple[NotInForce, ...] = ()
    stale: frozenset[str] = frozenset()

    def report(self, store: FactStore) -> None:
        """Log and record what is not in force."""
        found = [("node.toml", str(part), part.subject) for part in self.not_in_force]
        for source, problems in self.tag_problems.items():
            has_map = bool(self.tag_maps[source].tags)
            effect = "the last map in force is read" if has_map else "nothing is read until the file is right"
            found.append(("tag file", f"{effect}: {'; '.join(map(str, problems))}", f"source {source}"))
        for what, why, subject in found:
            log.error("started_without", extra={"what": what, "subject": subject, "why": why})
            with contextlib.suppress(StoreBusy):
                store.note_incident("settings", subject, why)


def read_start(file: ConfigFile) -> Start:
    """Read everything. Raises ConfigError if there are no settings to start with."""
    plan = load_usable(file.load_sections())
    assert plan.settings is not None, "there are settings to run with"
    settings, found = plan.settings, find_tag_files(plan.settings.sources)
    read = {name: file.map if isinstance(file, TagFile) else file for name, file in found.items()}
    kept = load_kept(settings.node.state_dir)
    before = {} if kept is None else _maps_of(kept)
    sources = plan_sources(settings.sources, read, before)
    files = {
        name: file.data for name, file in found.items() if isinstance(file, TagFile) and name not in sources.problems
    }
    if kept is not None:
        running = {name for name in sources.problems if sources.maps[name].tags}
        files |= {name: kept.tag_files[name] for name in running}
    stale = [present for present in settings.sources if present not in sources.sources]
    why = "its tag file is wrong, and belongs to this section"
    not_in_force = [NotInForce(f"source {present.name}", why, is_kept=True) for present in stale]
    return Start(
        settings.with_sources(sources.sources),
        sources.maps,
        files,
        sources.problems,
        (*plan.not_in_force, *not_in_force),
        frozenset(present.name for present in stale),
    )


def _maps_of(kept: KeptSettings) -> dict[str, tuple[SourceSettings, TagMap]]:
    """The sections and maps that were last in force."""
    found: dict[str, tuple[SourceSettings, TagMap]] = {}
    for source in kept.settings.sources:
        data = kept.tag_files.get(source.name)
        if data is None:
            continue
        try:
            found[source.name] = source, parse_tag_file(source, data)
        except TagMapError as error:  # a newer program refuses what an older one read
            log.warning("in_force_unreadable", extra={"file": f"tags of {source.name}", "why": str(error)})
    return found

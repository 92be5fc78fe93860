"""The tags that this node reads: those of the tag files that are right, and those last in force of the others."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import click

from agent.cli.node_settings import load_settings
from agent.config import load_kept
from agent.query.latest import TagsInForce
from agent.settings.node import NodeSettings


def tags_in_force(config_file: Path) -> TagsInForce | None:
    """None, with a line on standard error, if the tags of a source are not known."""
    settings = load_settings(config_file)
    if not settings.sources:  # of a node above many others: what reads tag files is not imported
        return TagsInForce(settings.node.zone, {})
    from agent.ingest import TagFile, find_tag_files

    found = find_tag_files(settings.sources)
    maps = {name: file.map for name, file in found.items() if isinstance(file, TagFile)}
    wrong = {name: file for name, file in found.items() if not isinstance(file, TagFile)}
    if wrong:
        maps |= _last_maps(settings, wrong)
    for name, problems in wrong.items():
        if name not in maps:
            click.echo(f"bsfg: stale and removed tags are not marked: {problems[0]}; see bsfg check", err=True)
            return None
    tags = [tag for file in maps.values() for tag in file.tags]
    return TagsInForce(settings.node.zone, {tag.definition.subject: tag.longest_interval_ms for tag in tags})


def _last_maps(settings: NodeSettings, sources: Collection[str]) -> dict[str, Any]:
    """The maps of these sources that were last in force."""
    from agent.ingest import TagMap, TagMapError, parse_tag_file

    kept, found = load_kept(settings.node.state_dir), dict[str, TagMap]()
    for source in () if kept is None else kept.settings.sources:
        data = None if kept is None or source.name not in sources else kept.tag_files.get(source.name)
        if data is not None:
            try:
                found[source.name] = parse_tag_file(source, data)
            except TagMapError:
                continue  # an older program read it
    return found

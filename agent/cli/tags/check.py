"""`bsfg tags check`: list every problem of a tag file before it is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from agent.cli import FILE, config_option, json_option, print_json
from agent.cli.tags.options import base_option, protocol_option, source_for, source_option, sources_of
from agent.cli.terminal import print_check
from agent.ingest import TagMap, TagMapError, load_tag_map
from agent.ingest.tags.change import clashes
from agent.settings.sources import SourceSettings


@click.command()
@config_option
@click.argument("file", type=FILE)
@source_option
@protocol_option
@base_option
@json_option
def check(
    config_file: Path, file: Path, source_name: str | None, protocol: str | None, base: int | None, as_json: bool
) -> None:
    """Check the tag file FILE, with the settings of the source that reads it.

    A file of a source of node.toml is also compared with those of the other sources: a tag comes from one source.
    """
    sources = (
        () if protocol is not None else sources_of(config_file)
    )  # a temporary source is not in node.toml, so nothing can clash
    settings = source_for(file, sources, source_name, protocol, base, config_file)
    problems, found = list[str](), None
    try:
        found = load_tag_map(settings)
        problems += _clashes(settings, found, sources)
    except TagMapError as error:
        problems += [str(problem) for problem in error.problems]
    notes = list(found.notes) if found is not None else []
    count = 0 if found is None else len(found.tags)
    if as_json:
        print_json({"file": str(file), "tags": count, "problems": problems, "notes": notes})
    else:
        print_check(str(file), problems, f"{count} tags", notes)
    sys.exit(1 if problems else 0)


def _clashes(settings: SourceSettings, found: TagMap, sources: tuple[SourceSettings, ...]) -> list[str]:
    """Tags that other sources have as well. Problems of their tag files are not reported here."""
    maps: dict[str, TagMap] = {}
    for source in sources:
        if source.name != settings.name:
            try:
                maps[source.name] = load_tag_map(source)
            except TagMapError:
                continue
    return [str(problem) for _, second, problem in clashes({**maps, settings.name: found}) if second == settings.name]

"""`bsfg tags diff`: the changes that a new tag file would make: tags added, removed, renamed, and changed by column."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click

from agent.cli import FILE, config_option, json_option, print_json
from agent.cli.source.access import named_source
from agent.cli.tags.options import source_option, sources_of
from agent.ingest import TagMap, TagMapError
from agent.ingest.tags.change import difference
from agent.ingest.tags.file import dialect_of, parse_tag_file, read_tag_file
from agent.ingest.tags.tag_map import read_rows
from agent.settings.sources import SourceSettings


@dataclass(frozen=True, slots=True)
class _Read:
    """A tag file as it was read: its map, and the cells of each tag."""

    found: TagMap
    texts: dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class _Changed:
    """A tag whose row changed: the cells before and after by column, and whether it gets a new number."""

    tag: str
    columns: dict[str, tuple[str, str]]
    new_number: bool


@click.command()
@config_option
@click.argument("new", type=FILE)
@source_option
@json_option
def diff(config_file: Path, new: Path, source_name: str | None, as_json: bool) -> None:
    """Compare the tag file NEW with the one that a source of node.toml has."""
    settings = _settings(config_file, source_name)
    old, now = _read(settings, settings.tags_file), _read(settings, new)
    change = difference(old.found, now.found)
    changed = [
        _Changed(
            after.name,
            _columns(old.texts[after.name], now.texts[after.name]),
            before.definition != after.definition,
        )
        for before, after in change.changed
    ]
    renamed = change.renamed()
    again = {tag.name for pair in renamed for tag in pair}
    added = [tag for tag in change.added if tag.name not in again]
    removed = [tag for tag in change.removed if tag.name not in again]
    counts = {"added": len(added), "removed": len(removed), "renamed": len(renamed)}
    counts |= {"changed": len(change.changed), "kept": len(change.kept)}
    if as_json:
        names: dict[str, object] = {"added": [tag.name for tag in added], "removed": [tag.name for tag in removed]}
        names["renamed"] = [[before.name, after.name] for before, after in renamed]
        print_json({"source": settings.name, **names, "changed": [*map(asdict, changed)], "kept": counts["kept"]})
        return
    for before, after in renamed:
        click.echo(f"> {before.name} -> {after.name}  (the same value; its facts so far keep the old name)")
    for tag in added:
        click.echo(f"+ {tag.name}  ({now.found.place(tag)})")
    for tag in removed:
        click.echo(f"- {tag.name}")
    for tag_change in changed:
        columns = ", ".join(f"{name}: {before!r} -> {after!r}" for name, (before, after) in tag_change.columns.items())
        click.echo(f"~ {tag_change.tag}  {columns}{'  (new number)' if tag_change.new_number else ''}")
    click.echo(f"{settings.name}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))


def _settings(config_file: Path, name: str | None) -> SourceSettings:
    sources = sources_of(config_file)
    if name is not None:
        return named_source(sources, name, config_file)
    if len(sources) != 1:
        known = ", ".join(source.name for source in sources) or "none"
        raise click.UsageError(f"name the source whose file it would replace, with --source; {config_file} has {known}")
    return sources[0]


def _read(settings: SourceSettings, file: Path) -> _Read:
    """Read a tag file. If it has problems, print them and end: a comparison needs two valid files."""
    own = replace(settings, tags_file=file)
    try:
        data = read_tag_file(own)
        found = parse_tag_file(own, data)
    except TagMapError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    rows = read_rows(file.name, data, dialect_of(own)).rows
    return _Read(found, {row.texts["tag"]: dict(row.texts) for row in rows})


def _columns(before: dict[str, str], after: dict[str, str]) -> dict[str, tuple[str, str]]:
    """The cells that differ, as they are written."""
    names = [*before, *(name for name in after if name not in before)]
    return {name: (before.get(name, ""), after.get(name, "")) for name in names if before.get(name) != after.get(name)}

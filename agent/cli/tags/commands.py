"""`bsfg tags template`, `check` and `diff`: print a template of a tag file, list every problem of a file before it is
installed, and the changes that it would make.

A file is read with the settings of the source that reads it: a source of node.toml, or a temporary one made from
options.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click

from agent.cli import FILE, config_option, json_option, print_json
from agent.cli.source.access import named_source
from agent.cli.terminal import echo_file, print_check
from agent.config import ConfigError, load_sections
from agent.ingest import TagMap, TagMapError, load_tag_map
from agent.ingest.tags.change import clashes, difference
from agent.ingest.tags.example import example_csv, example_toml, json_schema
from agent.ingest.tags.file import dialect_of, parse_tag_file, read_tag_file
from agent.ingest.tags.tag_map import read_rows
from agent.settings.sources import ADDRESS_BASES, ModbusSourceSettings, OpcuaSourceSettings, SourceSettings

PROTOCOLS = ("opcua", "modbus")

protocol_option = click.option("--protocol", type=click.Choice(PROTOCOLS), help="The protocol, without a node.toml.")
source_option = click.option("--source", "source_name", metavar="NAME", help="A source of node.toml.")
base_option = click.option(
    "--base",
    type=click.Choice(ADDRESS_BASES),
    help="address_base: registers count from 0, from 1, or with the table's digit.",
)


def temporary_source(protocol: str, file: Path, base: int | None) -> SourceSettings:
    """A source of this protocol that reads `file`."""
    if protocol == "opcua":
        return OpcuaSourceSettings("plc", "opc.tcp://192.0.2.10:4840", file)
    if base is None:
        bases = ", ".join(map(str, ADDRESS_BASES))
        raise click.UsageError(f"say how registers are counted: --base {bases} (address_base of the source)")
    return ModbusSourceSettings(name="device", host="192.0.2.20", tags_file=file, address_base=base)


def sources_of(config_file: Path) -> tuple[SourceSettings, ...]:
    """The sources of node.toml whose sections are valid; none if there is no file."""
    try:
        return load_sections(config_file).sources
    except ConfigError:
        return ()


def source_for(
    file: Path,
    sources: tuple[SourceSettings, ...],
    name: str | None,
    protocol: str | None,
    base: int | None,
    config: Path,
) -> SourceSettings:
    """The source that reads `file`: the named one, a temporary one of the protocol, or the source of node.toml that
    uses this file."""
    if name is not None and protocol is not None:
        raise click.UsageError(
            "--source takes the settings of a source, --protocol those of a temporary one; give one of them"
        )
    if name is not None:
        return replace(named_source(sources, name, config), tags_file=file)
    if protocol is not None:
        return temporary_source(protocol, file, base)
    for source in sources:
        if source.tags_file.absolute() == file.absolute():
            return source
    raise click.UsageError(f"no source of {config} reads {file}; name one with --source, or give --protocol")


@click.command()
@click.argument("protocol", type=click.Choice(PROTOCOLS))
@click.option("--toml", "as_toml", is_flag=True, help="TOML in place of CSV.")
@click.option("--schema", is_flag=True, help="The JSON schema of the TOML form, for an editor.")
def template(protocol: str, as_toml: bool, schema: bool) -> None:
    """Print a template of a tag file that explains every column."""
    dialect = dialect_of(temporary_source(protocol, Path("tags.csv"), 0))
    if schema:
        click.echo(json.dumps(json_schema(dialect, protocol), indent=2))
    elif as_toml:
        click.echo(example_toml(dialect), nl=False)
    else:
        echo_file(example_csv(dialect))


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

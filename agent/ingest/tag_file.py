"""Reads a source's tag file from disk. The one place in this package that opens one; what it holds is decided in `tag_map`."""

from __future__ import annotations

from agent.ingest.errors import Problem, TagMapError, tag_file_problem
from agent.ingest.modbus import address as modbus_address
from agent.ingest.opcua import address as opcua_address
from agent.ingest.settings import ModbusSourceSettings, SourceSettings
from agent.ingest.tag_map import TagMap, read_tag_map


def load_tag_map(settings: SourceSettings) -> TagMap:
    """The tag map of a source. Raises TagMapError with every problem of its file."""
    file = settings.tags_file
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        why = f"does not exist; it should hold the tags of source {settings.name}"
        raise TagMapError([tag_file_problem(file, why)]) from None
    except OSError as error:
        raise TagMapError([tag_file_problem(file, f"cannot be read: {error.strerror}")]) from error
    if isinstance(settings, ModbusSourceSettings):
        dialect = modbus_address.dialect(settings)
    else:
        dialect = opcua_address.dialect()
    return read_tag_map(file.name, data, settings.name, dialect)


def load_tag_maps(sources: tuple[SourceSettings, ...]) -> dict[str, TagMap]:
    """The tag maps of all sources by source name. Raises one TagMapError with the problems of all files."""
    maps: dict[str, TagMap] = {}
    problems: list[Problem] = []
    rows_by_subject: dict[str, str] = {}
    for settings in sources:
        try:
            maps[settings.name] = found = load_tag_map(settings)
        except TagMapError as error:
            problems += error.problems
            continue
        for tag in found.tags:
            owner = rows_by_subject.setdefault(tag.definition.subject, f"{found.file} row {tag.row}")
            if owner != f"{found.file} row {tag.row}":
                why = f"row {tag.row}: {tag.definition.subject} is also in {owner}; a tag comes from one source"
                problems.append(tag_file_problem(settings.tags_file, why))
    if problems:
        raise TagMapError(problems)
    return maps

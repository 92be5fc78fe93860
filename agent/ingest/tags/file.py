"""Reads the tag file of a source from disk. Only this module opens tag files; `tag_map` parses them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from agent.ingest.errors import TagFileProblem, TagFileUnreadable, TagMapError, tag_file_problem
from agent.ingest.modbus import address as modbus_address
from agent.ingest.opcua import address as opcua_address
from agent.ingest.tags.change import admit
from agent.ingest.tags.sheet import FILE_BYTES_MAX
from agent.ingest.tags.tag_map import Dialect, TagMap, read_tag_map
from agent.settings.sources import ModbusSourceSettings, SourceSettings


@dataclass(frozen=True, slots=True)
class TagFile:
    """A tag file: its bytes, and the map in them."""

    data: bytes
    map: TagMap


def read_tag_file(settings: SourceSettings) -> bytes:
    """The bytes of a source's tag file, cut one byte beyond the limit. Raises TagFileUnreadable."""
    file = settings.tags_file
    try:
        if not file.is_file() and file.exists():  # reading a pipe would block forever
            raise TagFileUnreadable([tag_file_problem(file, "is not a file")])
        with file.open("rb") as opened:
            return opened.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        why = f"does not exist; it should hold the tags of source {settings.name}"
        raise TagFileUnreadable([tag_file_problem(file, why)]) from None
    except OSError as error:
        raise TagFileUnreadable([tag_file_problem(file, f"cannot be read: {error.strerror}")]) from error


def parse_tag_file(settings: SourceSettings, data: bytes) -> TagMap:
    """The tag map in these bytes. Raises TagMapError with every problem."""
    return read_tag_map(settings.tags_file.name, data, settings.name, dialect_of(settings))


def dialect_of(settings: SourceSettings) -> Dialect:
    """The dialect of the tag file of a source."""
    return modbus_address.dialect(settings) if isinstance(settings, ModbusSourceSettings) else opcua_address.dialect()


def load_tag_map(settings: SourceSettings) -> TagMap:
    """The tag map of a source. Raises TagMapError with every problem of its file."""
    return parse_tag_file(settings, read_tag_file(settings))


def find_tag_files(sources: Iterable[SourceSettings]) -> dict[str, TagFile | tuple[TagFileProblem, ...]]:
    """The tag file of each source, or its problems, by source name."""
    found: dict[str, TagFile | tuple[TagFileProblem, ...]] = {}
    for settings in sources:
        try:
            data = read_tag_file(settings)
            found[settings.name] = TagFile(data, parse_tag_file(settings, data))
        except TagMapError as error:
            found[settings.name] = error.problems
    return found


def load_tag_files(
    sources: Iterable[SourceSettings], in_force: Mapping[str, TagMap], going_on: Collection[str] = ()
) -> dict[str, TagFile]:
    """The tag files of these sources. Raises one TagMapError with the problems of all of them, except of those that are
    `going_on`: they keep their maps in force, or get their files, if these are right and differ."""
    found = find_tag_files(sources)
    files = {name: file for name, file in found.items() if isinstance(file, TagFile)}
    before = {name: tags for name, tags in in_force.items() if name in found}
    admission = admit(before, {name: file.map for name, file in files.items()})
    refused = {name: file for name, file in found.items() if not isinstance(file, TagFile)} | dict(admission.problems)
    problems = [problem for name in found if name not in going_on for problem in refused.get(name, ())]
    if problems:
        raise TagMapError(problems)
    return {
        name: files[name]
        for name, tags in admission.maps.items()
        if name not in going_on or tags.digest != in_force[name].digest
    }


def load_tag_maps(sources: Iterable[SourceSettings]) -> dict[str, TagMap]:
    """The tag maps of all sources by source name. Raises one TagMapError with the problems of all files."""
    return {name: found.map for name, found in load_tag_files(sources, {}).items()}

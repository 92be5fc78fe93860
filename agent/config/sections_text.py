"""Splits the text of node.toml into its sections, so that a mistake in the notation of one costs no other.

TOML is all or nothing: a missing quote makes the whole file unreadable. A file that is not TOML is therefore cut at its
headers (`[store]`, `[[modbus]]`) and each part is read by itself. A part that is wrong keeps its place in the file, as
a `BrokenTable` with the reason, and its name if a line gives one.

Core. A header inside a text of several lines is taken for one; only files that are not TOML are cut at all.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

_HEADER = re.compile(r"[ \t]*\[(\[)?[ \t]*([A-Za-z0-9_-]+)[ \t]*\]?\]?[ \t]*(#.*)?")
_NAME = re.compile(r"""[ \t]*(name|node|zone)[ \t]*=[ \t]*["']?([A-Za-z0-9._-]+)""")
NAMED_BY = ("name", "node", "zone")
"""The settings that name a section among those of its kind; the first that it has counts."""


@dataclass(frozen=True, slots=True)
class BrokenTable:
    """In the place of a section that is not TOML: why, and the name or zone in it; "" if no line gives one."""

    why: str
    name: str = ""


def read_tables(data: bytes) -> dict[str, Any]:
    """The tables of a file. A section that is not TOML is a BrokenTable; lines before the first header that are not
    TOML are the section "file"."""
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        pass
    tables: dict[str, Any] = {}
    for line_number, lines in _parts(data.decode("utf-8-sig", errors="surrogateescape").splitlines(keepends=True)):
        header = _HEADER.fullmatch(lines[0].rstrip())
        name, is_list = (header[2], bool(header[1])) if header else ("", False)
        _add(tables, name, _table_of(lines, line_number, name), is_list=is_list)
    return tables


def _parts(lines: list[str]) -> list[tuple[int, list[str]]]:
    """The lines of each section, with the number of the line before it. A table below it ([peer.limits]) is a part of
    it."""
    starts = [number for number, line in enumerate(lines) if _HEADER.fullmatch(line.rstrip())]
    bounds = [*([0] if starts[:1] != [0] else []), *starts, len(lines)]
    found = [(first, lines[first:end]) for first, end in pairwise(bounds)]
    return [(first, part) for first, part in found if any(line.split("#")[0].strip() for line in part)]


def _table_of(lines: list[str], line_number: int, name: str) -> Any:
    """What a section holds, or why it cannot be read. Line numbers are those of the whole file."""
    given = {match[1]: match[2] for match in map(_NAME.match, reversed(lines)) if match}
    found = next((given[setting] for setting in NAMED_BY if setting in given), "")
    text = "\n" * line_number + "".join(lines)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        return BrokenTable(f"is not TOML: line {line} is not UTF-8; save the file as UTF-8", found)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return BrokenTable(f"is not TOML: {error}", found)
    if not name:
        return table
    section = table.get(name)
    return section[0] if isinstance(section, list) else section


def _add(tables: dict[str, Any], name: str, table: Any, *, is_list: bool) -> None:
    """Put a section in its place."""
    before = tables.get(name)
    if not name:
        tables |= table if isinstance(table, dict) else {"file": table}
    elif before is None:
        tables[name] = [table] if is_list else table
    elif isinstance(before, list):
        before.append(table if is_list else _twice(name, table))
    elif is_list:
        tables[name] = [_twice(name, before), table]
    else:
        # Usually, printed lines were pasted at the end although `bsfg init` has already written their section.
        tables[name] = _twice(name, table)


def _twice(name: str, table: Any) -> BrokenTable:
    why = f"stands twice in the file, or as [{name}] and as [[{name}]]; move the lines into the section that exists"
    return BrokenTable(why, name_of(table))


def name_of(table: object) -> str:
    """The name that a section gives itself, "" if it gives none."""
    if isinstance(table, BrokenTable):
        return table.name
    if not isinstance(table, Mapping):
        return ""
    name = next((table[setting] for setting in NAMED_BY if setting in table), "")
    return name if isinstance(name, str) else ""

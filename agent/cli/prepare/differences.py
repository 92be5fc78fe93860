"""Core: where answers of `bsfg setup` differ from an existing section of node.toml or an existing tag file.

Both files are also edited by hand, so setup does not change existing lines; it names the lines that differ.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path

NOTHING = "nothing"

_SECTION = re.compile(r"\s*\[")


@dataclass(frozen=True, slots=True)
class Difference:
    """A line of a file, counted from 1: its text and the text of the answer. Either may be NOTHING."""

    file: Path
    line: int
    there: str
    answer: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.there}; the answer is: {self.answer}"


def of_section(
    file: Path, text: str, section: str, key: str, name: str, answers: Mapping[str, object]
) -> Iterator[Difference]:
    """The answers that the section whose `key` is `name` does not have. Without a line of its own, such as in a table
    on one line, an answer is reported at the first line of the section or file."""
    found = tomllib.loads(text)[section]
    (place,) = (number for number, table in enumerate(found) if table.get(key) == name)
    settings, lines = found[place], text.splitlines()
    heads = [number for number, line in enumerate(lines) if re.match(rf"\s*\[\[\s*{section}\s*\]\]", line)]
    first = heads[place] if len(heads) == len(found) else None
    for setting, value in answers.items():
        if settings.get(setting) == value:
            continue
        if (line := None if first is None else _line_of(lines, first, setting)) is not None:
            number, there = line, lines[line].strip()
        else:
            what = f"another {setting}" if setting in settings else f"no {setting}"
            number, there = first or 0, f"[[{section}]] {name} has {what}"
        yield Difference(file, number + 1, there, f"{setting} = {json.dumps(value, ensure_ascii=False)}")


def of_rows(file: Path, text: str, answer: str) -> Iterator[Difference]:
    """The rows of a tag file that are not those of the answer, in the order of the file."""
    there, wanted = text.splitlines(), answer.splitlines()
    for _, first, end, first_wanted, end_wanted in SequenceMatcher(None, there, wanted, autojunk=False).get_opcodes():
        rows = zip_longest(there[first:end], wanted[first_wanted:end_wanted], fillvalue=NOTHING)
        for number, (old_row, new_row) in enumerate(rows, first + 1):
            if old_row != new_row:
                yield Difference(file, number, old_row, new_row)


def _line_of(lines: Sequence[str], first: int, setting: str) -> int | None:
    """The line on which the section that begins at `first` has a setting."""
    for number in range(first + 1, len(lines)):
        if _SECTION.match(lines[number]):
            return None
        if re.match(rf"""\s*["']?{re.escape(setting)}["']?\s*=""", lines[number]):
            return number
    return None

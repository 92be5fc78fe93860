"""Reads TOML tag files: each `[[tag]]` table is a row, and its keys are the columns of a CSV file.

Numbers and booleans become the text of a cell. A problem has the line of its `[[tag]]`. Core.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence

from agent.ingest.errors import TagFileProblem, TagMapError
from agent.ingest.tags.sheet import ROWS_MAX, Row, Sheet, check_size, unknown_names

TABLE = "tag"
INTEGER_MAX = 2**64  # larger than any column accepts

# Strings and comments, which may contain the text of a header, and headers. Multi-line strings come first.
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|\#[^\n]*'
    r"|^[ \t]*\[\[[ \t]*(?P<table>[A-Za-z0-9_-]+)[ \t]*\]\]",
    re.DOTALL | re.MULTILINE,
)


def read_toml(file: str, data: bytes, known: Sequence[str]) -> Sheet:
    """The rows of a file whose tables have only `known` keys. Raises TagMapError if the whole file cannot be read.
    Problems of single tables are in the sheet."""
    check_size(file, data)
    text, content = _parsed(file, data)
    problems = [
        TagFileProblem(file, 0, name, "", "is not a table of a tag file; write each tag under [[tag]]")
        for name in content
        if name != TABLE
    ]
    tables = content.get(TABLE, [])
    lines = list(_table_lines(text))
    if not isinstance(tables, list) or len(tables) != len(lines):
        problems.append(TagFileProblem(file, 0, TABLE, "", "must be written as one [[tag]] table for each tag"))
        raise TagMapError(problems)
    if len(tables) > ROWS_MAX:
        raise TagMapError(
            [TagFileProblem(file, lines[ROWS_MAX], "", "", f"more than {ROWS_MAX} tags; split the source")]
        )
    rows: list[Row] = []
    for line, table in zip(lines, tables, strict=True):
        found = [TagFileProblem(file, line, name, name, why) for name, why in unknown_names(table, known, "key")]
        texts: dict[str, str] = {}
        for name, value in table.items():
            cell = _text(value)
            if cell is None:
                why = "must be text in quotes, a number, or true or false"
                found.append(TagFileProblem(file, line, name, str(type(value).__name__), why))
            elif cell.strip():
                texts[name] = cell.strip()
        problems += found
        if texts and not found:
            rows.append(Row(line, texts))
    return Sheet(tuple(rows), tuple(problems))


def _parsed(file: str, data: bytes) -> tuple[str, dict[str, object]]:
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
        return text, tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise TagMapError([TagFileProblem(file, 0, "", "", "is not UTF-8, which TOML must be")]) from error
    except RecursionError as error:
        raise TagMapError([TagFileProblem(file, 0, "", "", "is nested too deeply")]) from error
    except ValueError as error:  # TOMLDecodeError, and an integer of thousands of digits
        raise TagMapError([TagFileProblem(file, 0, "", "", f"is not TOML: {error}")]) from error


def _table_lines(text: str) -> Iterator[int]:
    """The line of each `[[tag]]`."""
    line, counted = 1, 0
    for token in _TOKEN.finditer(text):
        if token["table"] == TABLE:
            line += text.count("\n", counted, token.start())
            counted = token.start()
            yield line


def _text(value: object) -> str | None:
    """The cell for a value; None if there is none."""
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case int() if abs(value) <= INTEGER_MAX:
            return str(value)
        case float():
            return repr(value)
        case _:
            return None

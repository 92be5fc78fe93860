"""Makes examples of tag files in CSV or TOML that explain every column, and a JSON schema of the TOML form for editors.
Core.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agent.ingest.tags.columns import TEMPLATE, USE, CellKind, Column
from agent.ingest.tags.csv_rows import write_csv
from agent.ingest.tags.tag_map import Dialect

SCHEMA_VERSION = "https://json-schema.org/draft/2020-12/schema"


def example_csv(dialect: Dialect) -> bytes:
    """A tag file with a comment for each column and the example rows of the protocol."""
    columns = [column.name for column in dialect.all_columns]
    rows = [[row.get(name, "") for name in columns] for row in dialect.examples]
    comments = [f"{name}: {text}" for name, text in _explained(dialect)]
    return write_csv(columns, rows, ["Lines that begin with # above the header are comments.", *comments])


def example_toml(dialect: Dialect) -> str:
    """As `example_csv`, in TOML."""
    kinds = {column.name: column.kind for column in dialect.all_columns}
    lines = ["## Each [[tag]] is a tag. Its keys:", *(f"## {name}: {text}" for name, text in _explained(dialect))]
    for row in dialect.examples:
        lines += ["", "[[tag]]", *(f"{name} = {_toml_value(text, kinds[name])}" for name, text in row.items())]
    return "\n".join(lines) + "\n"


def json_schema(dialect: Dialect, protocol: str) -> dict[str, Any]:
    """The JSON schema of a TOML tag file of this protocol."""
    needs_point = [name for name in dialect.required if name != "tag"]
    return {
        "$schema": SCHEMA_VERSION,
        "title": f"Tag file of a bsfg source: {protocol}",
        "type": "object",
        "additionalProperties": False,
        "required": ["tag"],
        "properties": {
            "tag": {
                "type": "array",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["tag"],
                    "anyOf": [{"required": needs_point}, {"required": [USE]}, {"required": [TEMPLATE]}],
                    "properties": {column.name: _property(column) for column in dialect.all_columns},
                },
            }
        },
    }


def _explained(dialect: Dialect) -> Iterator[tuple[str, str]]:
    """Name and meaning of each column."""
    for column in dialect.all_columns:
        needed = " (needed)" if column.name in dialect.required else ""
        choices = f"; one of {', '.join(column.choices)}" if column.choices else ""
        yield f"{column.name}{needed}", f"{column.meaning}{choices}; such as {column.example}"


def _toml_value(text: str, kind: CellKind) -> str:
    """A cell as a TOML value: a number where the column has numbers and the cell is one."""
    is_plain = text.replace(".", "", 1).removeprefix("-").isdigit()
    return text if kind in (CellKind.WHOLE, CellKind.NUMBER) and is_plain else json.dumps(text, ensure_ascii=False)


def _property(column: Column) -> dict[str, Any]:
    found: dict[str, Any] = {"description": column.meaning, "examples": [column.example]}
    if column.choices:
        # A row of a template may have a placeholder instead of a choice.
        return {**found, "anyOf": [{"enum": list(column.choices)}, {"type": "string", "pattern": "[{]"}]}
    types = [column.kind.value] if column.kind is CellKind.TEXT else [column.kind.value, "string"]
    return {**found, "type": types}

"""The columns of tag files with their meaning. Reading, help, examples and the JSON schema use these records. Core.

A protocol adds columns of its own (`opcua/address`, `modbus/address`). In a TOML tag file a column is a key of the same
name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class CellKind(Enum):
    """What a cell holds; the values are type names of JSON Schema."""

    TEXT = "string"
    WHOLE = "integer"
    NUMBER = "number"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: the meaning of its cells in one line, an example, and the possible words if these are limited."""

    name: str
    meaning: str
    example: str
    kind: CellKind = CellKind.TEXT
    choices: tuple[str, ...] = ()


TEMPLATE, USE = "template", "use"

TEMPLATE_COLUMNS = (
    Column(
        TEMPLATE,
        "this row belongs to the template of this name: {tag}, {register} and so on stand for the cells of each row "
        "that uses it",
        "meter",
    ),
    Column(USE, "this row is a device: it reads every row of the template of this name", "meter"),
)

COMMON_COLUMNS = (
    Column(
        "tag",
        "the name of the tag, scope/id in printable ASCII without spaces; unique over all sources of the node",
        "line1/oven.temperature",
    ),
    Column("stream", "the stream that its samples go to; empty: facts.telemetry", "facts.telemetry"),
    Column("predicate", "what a sample says of the tag; empty: value_sampled", "temperature_sampled"),
    Column("unit", "the unit of the value, any text", "degC"),
    Column("description", "any text; it travels with the tag", "oven, left side"),
    Column("enumeration", "names of the numbers that the tag can be", "0=Off|1=Manual|7=Automatic"),
    Column(
        "deadband",
        "a number is recorded when it differs from the last recorded one by more than this, absolute or in percent; "
        "0: any change; empty: every sample",
        "0.5",
        CellKind.NUMBER,
    ),
    Column("min_interval_ms", "the shortest time between two facts; empty: none", "1000", CellKind.WHOLE),
    Column(
        "max_interval_ms", "an unchanged value is recorded again after this time; empty: never", "60000", CellKind.WHOLE
    ),
)

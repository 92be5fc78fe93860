"""Templates of tag files: devices of the same kind are described once and listed with one row each.

    template,use,tag,unit_id,table,register,type
    meter,,{tag}/power,,input,{register}+0,float32       a row of the template
    meter,,{tag}/energy,,input,{register}+2,uint32
    ,meter,hall1/meter1,11,,100,                         a device: two tags, hall1/meter1/power and .../energy
    ,meter,hall1/meter2,12,,100,

In a row of a template, `{column}` stands for that cell of the device's row, and an empty cell is taken from there. In
some columns (`Sums`) whole numbers can be added. A template cannot use a template. A device's cell without effect is an
error, and so is a placeholder without a cell. The expanded file must be within the limits of a file. Core.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agent.ingest.errors import TagFileProblem, TagMapError
from agent.ingest.tags.columns import TEMPLATE, USE
from agent.ingest.tags.sheet import FILE_BYTES_MAX, ROWS_MAX, CellError, Row, Sheet

Sums = Mapping[str, Callable[[str, int], str]]
"""By column in which a template may add to a placeholder: the function that adds to the first number. Raises
CellError."""

PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_SUM = re.compile(r"([0-9]{1,9})((?:\s*\+\s*[0-9]{1,9})+)")


@dataclass(slots=True)
class _Expansion:
    """The expansion of a sheet so far."""

    file: str
    sums: Sums
    rows: list[Row] = field(default_factory=list)
    problems: list[TagFileProblem] = field(default_factory=list)
    characters: int = 0


def expand(file: str, sheet: Sheet, columns: Sequence[str], sums: Sums) -> Sheet:
    """The sheet with every device expanded, in the order of the file. `columns` are those that a placeholder may name.
    Raises TagMapError if the limits of a file are exceeded."""
    if not any(TEMPLATE in row.texts or USE in row.texts for row in sheet.rows):
        return sheet
    work = _Expansion(file, sums, problems=list(sheet.problems))
    templates = _templates(work, sheet.rows, columns)
    used = [len(templates.get(row.texts.get(USE, ""), ((),))) for row in sheet.rows if TEMPLATE not in row.texts]
    if sum(used) > ROWS_MAX:
        why = f"more than {ROWS_MAX} tags with all devices written out; split the source"
        raise TagMapError([TagFileProblem(file, 0, "", "", why)])
    for row in sheet.rows:
        if TEMPLATE in row.texts:
            continue
        if USE not in row.texts:
            work.rows.append(row)
        elif row.texts[USE] in templates:
            _write_out(work, row, templates[row.texts[USE]])
        else:
            near = difflib.get_close_matches(row.texts[USE], templates, 1)
            hint = f"did you mean {near[0]}?" if near else f"give its rows {row.texts[USE]!r} in column {TEMPLATE}"
            work.problems.append(
                TagFileProblem(file, row.line, USE, row.texts[USE], f"is no template of this file; {hint}")
            )
    in_use = {row.texts.get(USE) for row in sheet.rows}
    notes = tuple(f"{file}: no row uses the template {name}" for name in templates if name not in in_use)
    return Sheet(tuple(work.rows), tuple(work.problems), sheet.decimal_comma, sheet.notes + notes)


def _templates(work: _Expansion, rows: Sequence[Row], columns: Sequence[str]) -> dict[str, list[Row]]:
    """The rows of each template. A row that cannot be used is a problem and left out."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if TEMPLATE not in row.texts:
            continue
        of_template = found.setdefault(row.texts[TEMPLATE], [])
        problems = list(_template_problems(work.file, row, columns))
        work.problems += problems
        if not problems:
            of_template.append(row)
    return found


def _template_problems(file: str, row: Row, columns: Sequence[str]) -> Iterator[TagFileProblem]:
    if USE in row.texts:
        why = f"stands beside a cell in column {TEMPLATE}; a row of a template uses no template, clear one of the two"
        yield TagFileProblem(file, row.line, USE, row.texts[USE], why)
    if "{tag}" not in row.texts.get("tag", ""):
        why = "must hold {tag}, for which the device's own tag is put, such as {tag}/power"
        yield TagFileProblem(file, row.line, "tag", row.texts.get("tag", ""), why)
    for column, text in row.texts.items():
        for name in PLACEHOLDER.findall(text):
            if name not in columns:
                near = difflib.get_close_matches(name, columns, 1)
                hint = f"did you mean {{{near[0]}}}?" if near else f"known are {', '.join(columns)}"
                yield TagFileProblem(file, row.line, column, text, f"names {{{name}}}, which is not a column; {hint}")


def _write_out(work: _Expansion, device: Row, template: Sequence[Row]) -> None:
    """Add the rows of one device."""
    own = {column for column in device.texts if column not in (USE, "tag")}
    for row in template:
        named = {name for text in row.texts.values() for name in PLACEHOLDER.findall(text)}
        own -= named | (own - row.texts.keys())
    for column in sorted(own) if template else ():
        why = f"has no effect: every row of the template has its own; clear it, or write {{{column}}} there"
        work.problems.append(TagFileProblem(work.file, device.line, column, device.texts[column], why))
    for row in template:
        texts = {column: text for column, text in device.texts.items() if column != USE}
        problems = len(work.problems)
        for column, text in row.texts.items():
            if column != TEMPLATE:
                try:
                    texts[column] = _filled(work, column, text, device)
                except CellError as error:
                    work.problems.append(TagFileProblem(work.file, device.line, column, text, error.why, row.line))
        if len(work.problems) == problems:
            work.rows.append(Row(device.line, texts, row.line))


def _filled(work: _Expansion, column: str, text: str, device: Row) -> str:
    """A cell of a template with its placeholders replaced by the device's cells."""
    names = PLACEHOLDER.findall(text)
    if not names:
        return text
    for name in names:
        if name not in device.texts:
            raise CellError(column, f"needs the cell {name} of the device's row, which is empty")
    # Counted before expanding, because a few kilobytes of placeholders for long cells could become gigabytes.
    work.characters += len(text) + sum(len(device.texts[name]) for name in names)
    if work.characters > FILE_BYTES_MAX:
        why = f"is larger than {FILE_BYTES_MAX} bytes with all devices written out; split the source"
        raise TagMapError([TagFileProblem(work.file, device.line, "", "", why)])
    filled = PLACEHOLDER.sub(lambda match: device.texts[match[1]], text)
    if "+" not in text or column not in work.sums:
        return filled
    match = _SUM.fullmatch(filled)
    if match is None:
        raise CellError(column, f"gives {filled!r} here, which is not a sum of whole numbers")
    return work.sums[column](match[1], sum(int(more) for more in match[2].split("+")[1:]))


def add_whole(first: str, more: int) -> str:
    """The sum in a column with plain whole numbers."""
    return str(int(first) + more)

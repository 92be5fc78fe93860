"""Escapes untrusted text (of a peer, a device, a tag list) for terminals, logs and spreadsheets. Core.

Control characters, bidirectional overrides and the like become JSON escapes (a backslash and u202e), so printed JSON
keeps its meaning. A cell that a spreadsheet would calculate gets an apostrophe in front, which `cell_text` removes.
A password from a file of any editor is read as it was typed.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

_FIRST = frozenset("=+-@\t\r'")
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|Infinity)")


def printable(text: str) -> str:
    """Text as one line without control characters; text that has none is returned unchanged."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or unicodedata.category(character) == "Zs" else _escaped(character)
        for character in text
    )


def printable_lines(text: str) -> str:
    """As `printable`, but line ends are kept."""
    return "\n".join(map(printable, text.split("\n")))


def csv_cell(text: str) -> str:
    """A cell of a CSV file that no spreadsheet reads as a formula; a number is not changed."""
    if text[:1] not in _FIRST or not _FORMULA.match(text) or _NUMBER.fullmatch(text):
        return text
    return f"'{text}"


def cell_text(cell: str) -> str:
    """The text of a cell that `csv_cell` made."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def _escaped(character: str) -> str:
    utf16 = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{utf16[at : at + 2].hex()}" for at in range(0, len(utf16), 2))


def password_text(data: bytes, file: Path) -> str:
    """The password in the content of a file: UTF-8, with or without a byte order mark or a line end. Raises
    ValueError, which names the file."""
    try:
        return data.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not text in UTF-8; save the password so") from error

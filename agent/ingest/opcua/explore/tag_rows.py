"""Variables as rows of a tag file: address with namespace URI, name made from the browse path, type, unit, description.

Names have letters, digits, `_`, `-` and `.`; the first part of the path is the scope. Equal names get a part of the
digest of their address, so that the same variable always gets the same name. Core.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from agent.ingest.errors import IngestError
from agent.ingest.tags.csv_rows import write_csv
from agent.ingest.tags.sheet import ROWS_MAX
from agent.settings.opcua_address import STANDARD_URI, NodeAddress, identifier_text, parse_node_address

ID_CHARACTERS_MAX = 200  # a subject may have 512 bytes; longer names are cut in the middle
TEXT_BYTES_MAX = 1_000  # of unit and description; a definition holds 1,024
DIGEST_DIGITS = 6


class TooManyRows(IngestError):
    """More variables than a tag file may hold."""


@dataclass(frozen=True, slots=True)
class TagRow:
    """One row, with the columns of a tag file. `sampling_interval_ms` is the shortest of the server; 0: any or not
    known."""

    tag: str
    address: str
    data_type: str = ""
    unit: str = ""
    description: str = ""
    enumeration: str = ""
    sampling_interval_ms: int = 0


def address_text(node: NodeAddress) -> str:
    """A node id as it is written in a tag file. Raises ValueError if it cannot be."""
    text = identifier_text(node.identifier)
    if node.namespace_uri != STANDARD_URI:
        text = f"nsu={node.namespace_uri};{text}"
    if len(text.encode("utf-8", "replace")) > TEXT_BYTES_MAX or not text.isprintable() or text != text.strip():
        raise ValueError("the node id is too long, or has characters that a tag file cannot hold")
    if _parsed(text) != node:
        raise ValueError("the namespace URI or the node id has a form that a tag file cannot hold")
    return text


def _parsed(text: str) -> NodeAddress | None:
    try:
        return parse_node_address(text)
    except ValueError:
        return None


def tag_names(paths: Sequence[tuple[str, ...]], addresses: Sequence[str], scope: str, prefix: str = "") -> list[str]:
    """A unique tag name for each path. `scope` is used for a path with one part. `prefix` is a path above each."""
    above = tuple(part for part in prefix.split("/") if part)
    assert len(paths) == len(addresses), "one address a path"
    taken: set[str] = set()
    names = []
    for path, address in zip(paths, addresses, strict=True):
        parts = [plain_name(part) for part in (*above, *path)]
        head, rest = (parts[0], parts[1:]) if len(parts) > 1 else (plain_name(scope), parts)
        identifier = ".".join(rest)
        digest = hashlib.sha256(address.encode()).hexdigest()[:DIGEST_DIGITS]
        if len(identifier) > ID_CHARACTERS_MAX:
            identifier = f"{identifier[: ID_CHARACTERS_MAX // 2]}~{digest}~{identifier[-ID_CHARACTERS_MAX // 2 :]}"
        name = f"{head[:ID_CHARACTERS_MAX]}/{identifier}"
        if name.lower() in taken:  # also if only the case differs, because people would confuse them
            name = f"{name}_{digest}"
        number = 2
        while name.lower() in taken:
            name, number = f"{name}_{number}", number + 1
        taken.add(name.lower())
        names.append(name)
    return names


def plain_name(text: str) -> str:
    """A part of a name in plain characters: accents are removed, and other scripts are replaced by a digest."""
    text = text.replace("ß", "ss")
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", ascii_text).strip("_.")
    return plain or f"x{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:DIGEST_DIGITS]}"


def tag_file(rows: Sequence[TagRow]) -> bytes:
    """The rows as a tag file with a byte order mark, by which spreadsheets recognise UTF-8. Raises TooManyRows."""
    if len(rows) > ROWS_MAX:
        raise TooManyRows(
            f"{len(rows):,} variables, and a tag file holds {ROWS_MAX:,}; take fewer, by --filter or --glob"
        )
    columns = ["tag", "address", "data_type", "unit", "description"]
    columns += [name for name in ("enumeration", "sampling_interval_ms") if any(getattr(row, name) for row in rows)]
    return write_csv(columns, ([str(getattr(row, column) or "") for column in columns] for row in rows))


def clean_text(text: str) -> str:
    """A server's text as a unit or description: one line, printable, of limited length."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(plain.split()).encode("utf-8", "replace")[:TEXT_BYTES_MAX].decode("utf-8", "ignore")

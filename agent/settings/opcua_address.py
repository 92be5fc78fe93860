"""An OPC UA node id in text form: `nsu=<namespace URI>;s=<name>`, or without a namespace for the standard one.

A namespace *index* is refused: a server may renumber its namespaces at every start, and then an old index reads another
machine's value without an error (OPC 10000-3, 8.2.2). The URI is resolved after every connect. Core: no IO.
"""

from __future__ import annotations

import base64
import binascii
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

NODE_ID = re.compile(r"(?:nsu=(?P<uri>[^;]+);|ns=(?P<index>\d+);)?(?P<kind>[isgb])=(?P<text>.+)", re.DOTALL)
STANDARD_URI = "http://opcfoundation.org/UA/"


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node id with its namespace by URI; `identifier` is int (i), str (s), UUID (g) or bytes (b)."""

    namespace_uri: str
    identifier: int | str | UUID | bytes

    def index(self, namespaces: Sequence[str]) -> int | None:
        """The namespace index at a server with these namespaces; None if the server does not have this namespace."""
        return namespaces.index(self.namespace_uri) if self.namespace_uri in namespaces else None


def parse_node_address(text: str) -> NodeAddress:
    """The address in a node id. Raises a ValueError that says what to write."""
    match = NODE_ID.fullmatch(text)
    if match is None:
        raise ValueError("is not a node id; write nsu=<namespace URI>;s=<name> (or ;i=<number>)")
    if match["index"] not in (None, "0"):
        raise ValueError("names a namespace by number, which a server may change; write nsu=<namespace URI>; instead")
    return NodeAddress(sys.intern(match["uri"] or STANDARD_URI), _identifier(match["kind"], match["text"]))


def identifier_text(identifier: int | str | UUID | bytes) -> str:
    """The identifier of a node id as text, without the namespace."""
    match identifier:
        case int():
            return f"i={identifier}"
        case str():
            return f"s={identifier}"
        case UUID():
            return f"g={identifier}"
        case _:
            return f"b={base64.b64encode(identifier).decode()}"


def _identifier(kind: str, text: str) -> int | str | UUID | bytes:
    if kind == "s":
        return text
    if kind == "i":
        if not (text.isascii() and text.isdigit() and int(text) < 2**32):
            raise ValueError("has a numeric identifier that is not 0 to 4294967295")
        return int(text)
    try:
        return UUID(text) if kind == "g" else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise ValueError("has an identifier that is not " + ("a GUID" if kind == "g" else "Base64")) from None

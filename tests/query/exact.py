"""Values read back from what a query or an export wrote: the inverse of `agent.query.scan.fact_columns`."""

import base64
import math
import struct
from typing import Any

from agent.message import Json, Value


def value_of_text(kind: str | None, text: str | None) -> Value:
    """The inverse of `exact_text`."""
    if text is None or kind is None or kind in {"string", "none"}:
        return text if kind == "string" else None
    match kind:
        case "double":
            return exact_value(kind, None, text) if text.startswith("NaN") else float(text)
        case "bool":
            return text == "true"
        case "bytes":
            return base64.b64decode(text)
        case "json":
            return Json(text.encode())
        case _:
            return int(text)


def exact_value(kind: str | None, value: Any, text: str | None) -> Value:
    """A value to the bit from its columns `value_type`, `value` and `value_text`, as SQLite has them."""
    match kind:
        case "double" if text is not None and text.startswith("NaN"):
            return float(struct.unpack(">d", bytes.fromhex(text[4:]))[0]) if len(text) > 3 else math.nan
        case "double":
            return float(value if text is None else text)
        case "uint":
            return int(text or value)
        case "bool":
            return bool(value)
        case "json":
            return Json(str(value).encode())
        case _:
            found: Value = value
            return found

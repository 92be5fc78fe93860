"""Decodes the value of a Variant of any shape (OPC 10000-6, 5.2.2): texts, ids, arrays, structures.

`decode` decodes numbers and texts itself and leaves every other value to a `ValueReader`, which knows the namespaces
and types of one session. A value without a type of its own in a fact becomes JSON: see docs/reference/opcua-values.md.

Core. Malformed bytes raise DecodeError. A structure whose fields cannot be decoded keeps its bytes, because its length
is known. Work and memory are bounded by the number of bytes, by DEPTH_MAX and by ELEMENTS_MAX.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from agent.ingest.opcua.decode import NUMBER_FORMATS, DecodeError, time_text_of
from agent.ingest.opcua.values.structures import DescribedField, EnumType, StructureShape, StructureType, TypeKey, Types
from agent.message import JSON_INTEGER_MAX, VALUE_BYTES_MAX, Json, MessageError, Value
from agent.settings.opcua_address import identifier_text

DEPTH_MAX = 100  # OPC 10000-6, 5.1.6: at least so many levels must be supported
DIMENSIONS_MAX = 32  # of one array; up to three are usual
# Elements kept of one value. More of them, with commas, exceed the limit of a fact in any case.
ELEMENTS_MAX = VALUE_BYTES_MAX // 2
_MALFORMED = (struct.error, IndexError, OverflowError, ValueError, MessageError, RecursionError)

_NUMBERS = {kind: struct.Struct(f"<{letter}") for kind, letter in NUMBER_FORMATS.items()}
_U16, _U32, _I32, _I64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<q")


class ValueReader:
    """Decodes the values of one session. `namespaces` are the server's URIs by index. Both may grow during the
    session."""

    def __init__(self, namespaces: Sequence[str] = (), types: Types | None = None) -> None:
        self.namespaces = namespaces
        self.types = types or Types()

    def __call__(self, data: bytes, position: int) -> tuple[Value, int]:
        """The value of the Variant at `position`, and the position after it."""
        return self._read(data, position, lambda found: found)

    def _read(self, data: bytes, position: int, pick: Callable[[Any], Any]) -> tuple[Value, int]:
        wire = _Wire(self, data, position)
        try:
            found = pick(wire.variant())
            value = found if found is None or type(found) in _AS_THEY_ARE else Json.of(_json(found))
        except _MALFORMED as error:
            raise DecodeError(f"a value of variant type {data[position] & 0x3F} cannot be read: {error}") from error
        return value, wire.position

    def element(self, data: bytes, position: int) -> tuple[Value, int]:
        """The same for an array with one element in each dimension: that element, in its own type."""
        return self._read(data, position, _only)

    def cut(self, index_range: str) -> ArrayCut:
        """A reader that cuts a part out of arrays, as a server does for an index range (OPC 10000-4, 7.27)."""
        return ArrayCut(self, index_range)

    def node_id_text(self, key: TypeKey) -> str:
        """A node id with the URI of its namespace, or with the index if the server does not have it."""
        namespace, identifier = key
        return self.namespace_text(namespace) + identifier_text(identifier)

    def namespace_text(self, index: int) -> str:
        if index == 0:
            return ""
        return f"nsu={self.namespaces[index]};" if index < len(self.namespaces) else f"ns={index};"


class ArrayCut:
    """Decodes one element of an array, or a range. `is_missing`: the last array does not have that part."""

    def __init__(self, reader: ValueReader, index_range: str) -> None:
        self._reader = reader
        bounds = [tuple(map(int, part.split(":"))) for part in index_range.split(",")]
        self._slices = [slice(bound[0], bound[-1] + 1) for bound in bounds]
        self._is_element = ":" not in index_range
        self.is_missing = False

    def __call__(self, data: bytes, position: int) -> tuple[Value, int]:
        return self.element(data, position)

    def element(self, data: bytes, position: int) -> tuple[Value, int]:
        """The part of the Variant at `position`, and the position after it."""
        return self._reader._read(data, position, self._part)  # noqa: SLF001 of the same module

    def _part(self, found: Any) -> Any:
        part = _cut(found, self._slices)
        self.is_missing = part is None and found is not None
        return _only(part) if self._is_element else part


_AS_THEY_ARE = frozenset({bool, int, float, str, bytes})  # types of facts


class _Wire:
    """A position in bytes. `end` is the end of the present structure; no read goes beyond it."""

    __slots__ = ("data", "depth", "elements_left", "end", "position", "reader")

    def __init__(self, reader: ValueReader, data: bytes, position: int) -> None:
        self.reader = reader
        self.data = data
        self.position = position
        self.end = len(data)
        self.depth = 0
        self.elements_left = ELEMENTS_MAX

    # ------------------------------------------------------------------------------------------------- bytes and lists

    def take_bytes(self, size: int) -> int:
        """Step over `size` bytes. Returns where they begin."""
        start = self.position
        if not 0 <= size <= self.end - start:
            raise DecodeError(f"{size} bytes where {self.end - start} are left")
        self.position = start + size
        return start

    def number(self, form: struct.Struct) -> Any:
        return form.unpack_from(self.data, self.take_bytes(form.size))[0]

    def byte(self) -> int:
        return self.data[self.take_bytes(1)]

    def octets(self) -> bytes | None:
        """A ByteString."""
        length = self.number(_I32)
        if length < 0:
            return None
        start = self.take_bytes(length)
        return bytes(self.data[start : start + length])

    def text(self) -> str | bytes | None:
        """A String. One that is not UTF-8 is kept as bytes."""
        octets = self.octets()
        try:
            return None if octets is None else octets.decode()
        except UnicodeDecodeError:
            return octets

    def plain_text(self) -> str:
        """A String in an id, always as text."""
        return (self.octets() or b"").decode(errors="replace")

    def elements(self, count: int, read: Callable[[], Any]) -> list[Any]:
        """Decode `count` elements. Those beyond ELEMENTS_MAX are not kept, because the value is too long in any
        case."""
        if count > self.end - self.position:  # each element has at least one byte
            raise DecodeError(f"{count} elements in {self.end - self.position} bytes")
        found = []
        for _ in range(count):
            element = read()
            if self.elements_left > 0:
                self.elements_left -= 1
                found.append(element)
        return found

    def array(self, read: Callable[[], Any]) -> list[Any] | None:
        count = self.number(_I32)
        return None if count < 0 else self.elements(count, read)

    def numbers(self, kind: int) -> list[Any] | None:
        """An array of numbers of one type."""
        count = self.number(_I32)
        if count < 0:
            return None
        start = self.take_bytes(count * _NUMBERS[kind].size)
        kept = min(count, self.elements_left)
        self.elements_left -= kept
        return list(struct.unpack_from(f"<{kept}{NUMBER_FORMATS[kind]}", self.data, start))

    def enter(self) -> None:
        """Go one level deeper. The caller decrements `depth` afterwards."""
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise DecodeError(f"values are nested more than {DEPTH_MAX} deep")

    def dimensions(self) -> list[int]:
        """The sizes of an array of several dimensions."""
        count = self.number(_I32)
        if count > DIMENSIONS_MAX:
            raise DecodeError(f"an array of {count} dimensions")
        return [self.number(_I32) for _ in range(count)]

    # ------------------------------------------------------------------------------------------------ built-in types

    def variant(self) -> Any:
        self.enter()
        encoding = self.byte()
        kind = encoding & 0x3F
        found = None
        if encoding & 0x80:
            found = self.numbers(kind) if kind in _NUMBERS else self.array(lambda: self.built_in(kind))
            if encoding & 0x40:
                found = _shaped(found, self.dimensions())
        elif kind:
            found = self.built_in(kind)
        self.depth -= 1
        return found

    def built_in(self, kind: int) -> Any:
        """A value of a built-in type, by its number (OPC 10000-6, table 1)."""
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind in _READERS:
            return _READERS[kind](self)
        if 26 <= kind <= 31:
            return self.octets()  # 5.2.2.16: unassigned types are decoded as a ByteString
        raise DecodeError(f"there is no built-in type {kind}")

    def time(self) -> str:
        return time_text_of(self.number(_I64))

    def guid(self) -> str:
        start = self.take_bytes(16)
        return str(UUID(bytes_le=bytes(self.data[start : start + 16])))

    def status(self) -> int:
        found: int = self.number(_U32)
        return found

    def node_id(self) -> str:
        return self.reader.node_id_text(self.node_key(self.byte()))

    def node_key(self, form: int) -> TypeKey:
        """Namespace and identifier of a node id of this form."""
        match form & 0x3F:
            case 0:
                return 0, self.byte()
            case 1:
                return self.byte(), self.number(_U16)
            case 2:
                return self.number(_U16), self.number(_U32)
            case 3:
                return self.number(_U16), self.plain_text()
            case 4:
                return self.number(_U16), UUID(self.guid())
            case 5:
                return self.number(_U16), self.octets() or b""
            case unknown:
                raise DecodeError(f"there is no node id of form {unknown}")

    def expanded_node_id(self) -> str:
        form = self.byte()
        key = self.node_key(form)
        uri = self.plain_text() if form & 0x80 else ""
        server = self.number(_U32) if form & 0x40 else 0
        text = f"nsu={uri};{identifier_text(key[1])}" if uri else self.reader.node_id_text(key)
        return f"svr={server};{text}" if server else text

    def qualified_name(self) -> str | None:
        namespace, name = self.number(_U16), self.octets()
        if name is None and namespace == 0:
            return None
        return self.reader.namespace_text(namespace) + (name or b"").decode(errors="replace")

    def localized_text(self) -> Any:
        """The text alone if there is no locale."""
        mask = self.byte()
        locale = self.text() if mask & 1 else None
        text = self.text() if mask & 2 else None
        return {"locale": locale, "text": text} if locale else text

    def data_value(self) -> dict[str, Any]:
        mask = self.byte()
        found: dict[str, Any] = {}
        if mask & 1:
            found["value"] = self.variant()
        if mask & 2:
            found["quality"] = self.status()
        for name, bit, picoseconds_bit in (("source_time", 4, 16), ("server_time", 8, 32)):
            if mask & bit:
                found[name] = self.time()
            if mask & picoseconds_bit:
                self.number(_U16)
        return found

    def diagnostic_info(self) -> dict[str, Any]:
        mask = self.byte()
        found: dict[str, Any] = {}
        for name, bit in (("SymbolicId", 1), ("NamespaceUri", 2), ("Locale", 8), ("LocalizedText", 4)):
            if mask & bit:
                found[name] = self.number(_I32)
        if mask & 16:
            found["AdditionalInfo"] = self.text()
        if mask & 32:
            found["InnerStatusCode"] = self.status()
        if mask & 64:
            self.enter()
            found["InnerDiagnosticInfo"] = self.diagnostic_info()
            self.depth -= 1
        return found

    # ---------------------------------------------------------------------------------------------------- structures

    def extension_object(self) -> Any:
        """The fields of a structure, or its type and bytes if these are not known. An error inside does not affect what
        follows, because the length is known."""
        key, form = self.node_key(self.byte()), self.byte()
        type_id = self.reader.node_id_text(key)
        if form == 0:
            return None if key == (0, 0) else {"TypeId": type_id, "Body": None}
        if form not in (1, 2):
            raise DecodeError(f"there is no structure of form {form}")
        body = self.octets()
        if body is None:
            raise DecodeError("a structure without a length")
        if form == 2:
            return {"TypeId": type_id, "Body": body.decode(errors="replace")}  # XML
        described = self.reader.types.structure(key)
        fields = None if described is None else self._inside(described, len(body))
        return {"TypeId": type_id, "Body": body.hex()} if fields is None else fields

    def _inside(self, described: StructureType, length: int) -> dict[str, Any] | None:
        """The fields in the last `length` bytes; None if they do not end exactly there."""
        outer_end, outer_depth, after = self.end, self.depth, self.position
        self.end, self.position = after, after - length
        try:
            fields = self.structure(described)
            return fields if self.position == after else None
        except _MALFORMED:
            return None
        finally:
            self.end, self.depth, self.position = outer_end, outer_depth, after

    def structure(self, described: StructureType) -> dict[str, Any]:
        self.enter()
        found = self.fields(described)
        self.depth -= 1
        return found

    def fields(self, described: StructureType) -> dict[str, Any]:
        match described.shape:
            case StructureShape.UNION | StructureShape.UNION_SUBTYPED:
                choice = self.number(_U32)
                if choice > len(described.fields):
                    raise DecodeError(f"field {choice} of a union of {len(described.fields)}")
                chosen = described.fields[choice - 1 : choice] if choice else ()
                return {field.name: self.field(field) for field in chosen}
            case StructureShape.OPTIONAL:
                mask, found = self.number(_U32), {}
                for field in described.fields:
                    if not field.is_optional or mask & 1:
                        found[field.name] = self.field(field)
                    mask >>= field.is_optional
                return found
            case _:
                return {field.name: self.field(field) for field in described.fields}

    def field(self, field: DescribedField) -> Any:
        if field.rank == 0:
            return self.of_type(field.type)
        if field.rank == 1:
            return self.array(lambda: self.of_type(field.type))
        dimensions = self.dimensions()
        return _shaped(self.elements(max(0, math.prod(dimensions)), lambda: self.of_type(field.type)), dimensions)

    def of_type(self, kind: int | TypeKey) -> Any:
        """A value of a built-in or described type."""
        described = kind if isinstance(kind, int) else self.reader.types.named[kind]
        if isinstance(described, int):
            return self.built_in(described)
        if isinstance(described, EnumType):
            value = self.number(_I32)
            return {"value": value, "text": described.texts[value]} if value in described.texts else {"value": value}
        return self.structure(described)


_READERS: dict[int, Callable[[_Wire], Any]] = {
    12: _Wire.text,
    13: _Wire.time,
    14: _Wire.guid,
    15: _Wire.octets,
    16: _Wire.text,  # XmlElement
    17: _Wire.node_id,
    18: _Wire.expanded_node_id,
    20: _Wire.qualified_name,
    21: _Wire.localized_text,
    22: _Wire.extension_object,
    23: _Wire.data_value,
    24: _Wire.variant,
    25: _Wire.diagnostic_info,
}


def _only(found: Any) -> Any:
    """The element of nested lists with one element each; of a text, its first character."""
    if isinstance(found, str):
        return found[:1]
    while isinstance(found, list) and len(found) == 1:
        found = found[0]
    return found


def _cut(found: Any, slices: Sequence[slice]) -> Any:
    """A part of an array, with a slice for each dimension; None if it is empty. Texts and bytes are arrays too."""
    if not slices:
        return found
    part = found[slices[0]] if isinstance(found, list | str | bytes) else None
    if not part:
        return None
    if len(slices) == 1:
        return part
    rows = [_cut(row, slices[1:]) for row in part]
    return None if None in rows else rows


def _shaped(values: list[Any] | None, dimensions: list[int]) -> list[Any] | None:
    """The values as nested lists; unchanged if the dimensions do not fit."""
    if values is None or len(dimensions) < 2 or min(dimensions) < 1 or math.prod(dimensions) != len(values):
        return values
    for size in reversed(dimensions[1:]):
        values = [values[start : start + size] for start in range(0, len(values), size)]
    return values


def _json(value: Any) -> Any:
    """A value as JSON. A negative zero is text, because the canonical form of JSON cannot keep its sign."""
    if isinstance(value, float):
        if math.isfinite(value):
            return "-0.0" if value == 0 and math.copysign(1, value) < 0 else value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [_json(element) for element in value]
    if isinstance(value, dict):
        return {name: _json(member) for name, member in value.items()}
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, int) and abs(value) > JSON_INTEGER_MAX:
        return str(value)
    return value

"""Data types that a server describes: the structures, unions and enumerations in values of tags.

A structure arrives as the id of its encoding and bytes. The DataTypeDefinition of its data type describes the bytes
(OPC 10000-3, 8.49 and 8.51). `learn` reads it once for each session through a port, with all nested types. `Types` are
the types of one session. Nothing is global, because two servers may use the same id for different types.

Core. A type that a server does not describe, or that exceeds the limits below, stays unknown. Its values keep their
bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol
from uuid import UUID

TypeKey = tuple[int, int | str | UUID | bytes]
"""Namespace index and identifier of a node: valid within one session."""

TYPES_MAX = 2_000  # known in one session; the largest companion specifications have some hundred
FIELDS_MAX = 500  # of one structure, or names of one enumeration
SUPERTYPES_MAX = 20  # steps from a data type to its built-in type, because a server may describe a circle

INT32, INT64, UINT32, DOUBLE, STRING = 6, 8, 7, 11, 12
NODE_ID, LOCALIZED_TEXT, STRUCTURE, VARIANT = 17, 21, 22, 24
NUMBER, INTEGER, UINTEGER, ENUMERATION = 26, 27, 28, 29  # abstract; the first three are written as Variants


class StructureShape(IntEnum):
    """How the fields of a structure are written (StructureType, OPC 10000-3, 8.48)."""

    PLAIN = 0
    OPTIONAL = 1  # a bit mask says which optional fields follow
    UNION = 2  # a number says which one field follows
    SUBTYPED = 3  # fields marked optional hold any subtype, written as Variant or ExtensionObject
    UNION_SUBTYPED = 4


@dataclass(frozen=True, slots=True)
class DescribedField:
    """A field of a structure. `type` is a built-in type or the key of a described one; `rank` counts dimensions."""

    name: str
    type: int | TypeKey
    rank: int = 0
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class StructureType:
    """The fields of a structure, those of its supertypes first."""

    fields: tuple[DescribedField, ...]
    shape: StructureShape = StructureShape.PLAIN


@dataclass(frozen=True, slots=True)
class EnumType:
    """The names of the numbers of an enumeration."""

    texts: Mapping[int, str]


class TypePort(Protocol):
    """The questions of `learn` to a server. The answer is None if the server gives none."""

    async def data_type(self, encoding: TypeKey) -> TypeKey | None:
        """The data type that an encoding belongs to."""

    async def definition(self, data_type: TypeKey) -> StructureType | EnumType | None:
        """The description of a data type. The types of fields are keys as the server sent them."""

    async def supertype(self, data_type: TypeKey) -> TypeKey | None:
        """The data type that this one is a subtype of."""


class Types:
    """The known types of one session, and the encodings that occurred and are not requested yet (`missing`)."""

    def __init__(self) -> None:
        self.named: dict[TypeKey, StructureType | EnumType | int] = {}
        self.missing: set[TypeKey] = set()
        self._encodings: dict[TypeKey, StructureType | None] = dict(STANDARD_ENCODINGS)

    def structure(self, encoding: TypeKey) -> StructureType | None:
        """The structure with this encoding id. None: unknown or not requested yet."""
        if encoding not in self._encodings and len(self._encodings) + len(self.missing) < TYPES_MAX:
            self.missing.add(encoding)
        return self._encodings.get(encoding)

    def give_up(self) -> None:
        """Treat what is missing as unknown."""
        while self.missing:
            self.know(self.missing.pop(), None)

    def know(self, encoding: TypeKey, structure: StructureType | None) -> None:
        """Keep the answer for an encoding id. None means unknown."""
        self._encodings[encoding] = structure


async def learn(types: Types, port: TypePort) -> None:
    """Ask a server for the missing encodings of `types`, and for all nested types."""
    while types.missing:
        encoding = types.missing.pop()
        types.know(encoding, None)  # stays so if the answers take too long
        data_type = await port.data_type(encoding) or encoding  # some servers write the data type's own id
        found = types.named.get(data_type) if await _learn(types, port, data_type) else None
        types.know(encoding, found if isinstance(found, StructureType) else None)


async def _learn(types: Types, port: TypePort, wanted: TypeKey) -> bool:
    """Learn a data type and the types of its fields. False if one of them has no answer."""
    fresh: dict[TypeKey, StructureType | EnumType | int] = {}
    waiting = [wanted]
    while waiting:
        data_type = waiting.pop()
        if data_type in types.named or data_type in fresh:
            continue
        if len(types.named) + len(fresh) >= TYPES_MAX:
            return False
        found = await port.definition(data_type)
        if isinstance(found, StructureType):
            if not _is_sound(found):
                return False
            fields = [await _field(port, found.shape, field) for field in found.fields]
            fresh[data_type] = StructureType(tuple(fields), found.shape)
            waiting += [field.type for field in fields if not isinstance(field.type, int)]
            continue
        base = await _base(port, data_type)
        if base is None or base == STRUCTURE:  # a structure without a description cannot be decoded inside another
            return False
        # Names of another base type are those of bits (an option set): the value stays a number.
        fresh[data_type] = found or INT32 if base == ENUMERATION else base
    types.named.update(fresh)
    return True


def _is_sound(structure: StructureType) -> bool:
    names = {field.name for field in structure.fields}
    return len(structure.fields) <= FIELDS_MAX and len(names) == len(structure.fields)


async def _field(port: TypePort, shape: StructureShape, field: DescribedField) -> DescribedField:
    """The field with its built-in type, if that is known or does not matter."""
    base = _known_base(field.type)
    if shape in (StructureShape.SUBTYPED, StructureShape.UNION_SUBTYPED) and field.is_optional:
        assert not isinstance(field.type, int), "a port gives keys"
        found = base or await _base(port, field.type)
        base = STRUCTURE if found == STRUCTURE else VARIANT
    if base == ENUMERATION:
        base = INT32
    return field if base is None else DescribedField(field.name, base, field.rank, field.is_optional)


def _known_base(data_type: int | TypeKey) -> int | None:
    """The built-in type of this type on the wire; None if the server has to be asked."""
    if isinstance(data_type, int):
        return data_type
    namespace, identifier = data_type
    if namespace != 0 or not isinstance(identifier, int):
        return None
    if identifier in (NUMBER, INTEGER, UINTEGER):
        return VARIANT
    return identifier if 1 <= identifier <= ENUMERATION else None


async def _base(port: TypePort, data_type: TypeKey) -> int | None:
    """The built-in type from which a data type is derived, ENUMERATION for an enumeration."""
    above: TypeKey | None = data_type
    for _ in range(SUPERTYPES_MAX):
        above = await port.supertype(above) if above is not None else None
        if above is not None and (base := _known_base(above)) is not None:
            return base
    return None


def _plain(*fields: tuple[str, int | TypeKey] | tuple[str, int | TypeKey, int]) -> StructureType:
    return StructureType(tuple(DescribedField(*field) for field in fields))


# Standard structures that variables hold, for servers older than the attribute DataTypeDefinition (OPC 10000-5, 12).
STANDARD_ENCODINGS: Final[dict[TypeKey, StructureType | None]] = {
    (0, 298): _plain(  # Argument
        ("Name", STRING),
        ("DataType", NODE_ID),
        ("ValueRank", INT32),
        ("ArrayDimensions", UINT32, 1),
        ("Description", LOCALIZED_TEXT),
    ),
    (0, 886): _plain(("Low", DOUBLE), ("High", DOUBLE)),  # Range
    (0, 889): _plain(  # EUInformation
        ("NamespaceUri", STRING), ("UnitId", INT32), ("DisplayName", LOCALIZED_TEXT), ("Description", LOCALIZED_TEXT)
    ),
    (0, 8251): _plain(("Value", INT64), ("DisplayName", LOCALIZED_TEXT), ("Description", LOCALIZED_TEXT)),  # EnumValue
}

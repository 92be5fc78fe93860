"""Asks a server for its data types, for `structures.learn`.

Uses Read, Browse and the answer classes of the library, and not its `load_data_type_definitions`: that compiles Python
source from the server's answers (`exec`) and registers the classes in one table for all clients of the process, where
the types of one server would decode the values of another.
"""

from __future__ import annotations

import re
import struct
from typing import Any

from asyncua import ua
from asyncua.client.ua_session import UaSession
from asyncua.ua.attribute_ids import AttributeIds
from asyncua.ua.object_ids import ObjectIds
from asyncua.ua.uaerrors import UaError

from agent.concurrency import timeout
from agent.ingest.opcua.values.structures import (
    FIELDS_MAX,
    DescribedField,
    EnumType,
    StructureShape,
    StructureType,
    TypeKey,
    Types,
    learn,
)
from agent.message import ENUMERATION_BYTES_MAX

REFERENCES_MAX = 100  # of one data type; a property with names is among the first
LEARN_S = 10.0  # for all types of one publication; other publications wait
_NO_ANSWER = (  # errors of the library at a refusal, a lost connection or malformed bytes
    *(UaError, OSError, TimeoutError, struct.error, ValueError, TypeError, KeyError, IndexError, AttributeError),
    *(OverflowError, RecursionError),
)


async def learn_missing(types: Types, session: UaSession) -> bool:
    """Ask for the missing types. True if there were any: then values are to be decoded again. Values of types that the
    server does not answer in time keep their bytes."""
    if not types.missing:
        return False
    try:
        async with timeout(LEARN_S):
            await learn(types, TypeReader(session))
    except TimeoutError:
        types.give_up()
    return True


class TypeReader:
    """The TypePort of one session. The answer is None if the server gives none, whatever the reason."""

    def __init__(self, session: UaSession) -> None:
        self._session = session

    async def data_type(self, encoding: TypeKey) -> TypeKey | None:
        """The node that has this encoding."""
        return await self._neighbour(encoding, ObjectIds.HasEncoding)

    async def supertype(self, data_type: TypeKey) -> TypeKey | None:
        return await self._neighbour(data_type, ObjectIds.HasSubtype)

    async def definition(self, data_type: TypeKey) -> StructureType | EnumType | None:
        """The attribute DataTypeDefinition, or for an enumeration without one, its property with the names."""
        described = described_type(await self._read(_node_id(data_type), AttributeIds.DataTypeDefinition))
        if described is not None:
            return described
        for reference in await self._browse(data_type, ObjectIds.HasProperty, ua.BrowseDirection.Forward):
            if reference.BrowseName.Name in ("EnumStrings", "EnumValues"):
                return enum_property(await self._read(reference.NodeId, AttributeIds.Value))
        return None

    async def _neighbour(self, key: TypeKey, reference_type: int) -> TypeKey | None:
        """The node at the other end of an inverse reference."""
        for reference in await self._browse(key, reference_type, ua.BrowseDirection.Inverse):
            return type_key(reference.NodeId)
        return None

    async def _browse(self, key: TypeKey, reference_type: int, direction: ua.BrowseDirection) -> list[Any]:
        description = ua.BrowseDescription(
            NodeId=_node_id(key),
            BrowseDirection=direction,
            ReferenceTypeId=_node_id((0, reference_type)),
            IncludeSubtypes=True,
            ResultMask=ua.BrowseResultMask.BrowseName,
        )
        try:
            (result,) = await self._session.browse(ua.BrowseParameters(NodesToBrowse=[description]))
        except _NO_ANSWER:
            return []
        return list(result.References or ())[:REFERENCES_MAX]

    async def _read(self, node: ua.NodeId, attribute: AttributeIds) -> Any:
        """The value of an attribute, None if it is refused."""
        asked = ua.ReadValueId(NodeId=node, AttributeId=attribute)
        try:
            (answer,) = await self._session.read(ua.ReadParameters(NodesToRead=[asked]))
        except _NO_ANSWER:
            return None
        return answer.Value.Value if answer.Value is not None else None


def names_text(described: object) -> str:
    """The names of an enumeration as the column `enumeration` of a tag file has them; empty if it is none, or has more
    than a definition holds."""
    if not isinstance(described, EnumType):
        return ""
    named = ((value, " ".join(_WORD.sub(" ", text).split())) for value, text in sorted(described.texts.items()))
    found = "|".join(f"{value}={text}" for value, text in named if text)
    return found if len(found.encode("utf-8", "replace")) <= ENUMERATION_BYTES_MAX else ""


def utf8(text: object) -> str:
    """A text of the library, which keeps bytes that are not UTF-8 as characters that no fact can hold."""
    return str(text or "").encode(errors="surrogateescape").decode(errors="replace")


_WORD = re.compile(r"[|\x00-\x1f\x7f]+")  # what a name in a tag file must not have


def described_type(definition: object) -> StructureType | EnumType | None:
    """The type that a DataTypeDefinition describes; None if it is none or exceeds the limits."""
    if isinstance(definition, ua.EnumDefinition):
        return _enum([(field.Value, utf8(field.Name) or _text(field.DisplayName)) for field in definition.Fields])
    if not isinstance(definition, ua.StructureDefinition):
        return None
    try:
        shape = StructureShape(int(definition.StructureType))
    except ValueError:
        return None
    fields = [
        DescribedField(
            utf8(field.Name), type_key(field.DataType), max(0, field.ValueRank), is_optional=bool(field.IsOptional)
        )
        for field in (definition.Fields or [])[: FIELDS_MAX + 1]
    ]
    return StructureType(tuple(fields), shape)


def enum_property(value: object) -> EnumType | None:
    """The names in the value of EnumStrings (by position) or EnumValues."""
    if not isinstance(value, list):
        return None
    named = [
        (member.Value, _text(member.DisplayName)) if isinstance(member, ua.EnumValueType) else (place, _text(member))
        for place, member in enumerate(value)
    ]
    return _enum(named)


def type_key(node: ua.NodeId) -> TypeKey:
    """Namespace index and identifier."""
    return int(node.NamespaceIndex), node.Identifier


def _enum(named: list[tuple[int, str]]) -> EnumType | None:
    return EnumType({int(value): text for value, text in named if text}) if len(named) <= FIELDS_MAX else None


def _text(found: Any) -> str:
    return utf8(getattr(found, "Text", None))


def _node_id(key: TypeKey) -> ua.NodeId:
    namespace, identifier = key
    return ua.NodeId(identifier, namespace)  # type: ignore[arg-type]

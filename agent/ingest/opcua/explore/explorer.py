"""Reads a server for commands: its variables as rows of a tag file, and the values of single nodes."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from asyncua import ua
from asyncua.ua.attribute_ids import AttributeIds
from asyncua.ua.object_ids import ObjectIdNames

from agent.escaping import csv_cell
from agent.ingest.opcua.explore.services import Question, Services, open_services, status_text, value_of
from agent.ingest.opcua.explore.tag_rows import TagRow, address_text, clean_text, tag_names
from agent.ingest.opcua.explore.walk import FoundVariable, ScanFailures, Walk
from agent.ingest.opcua.values.type_reader import enum_property, names_text
from agent.message import Json, Value, time_text
from agent.settings.opcua_address import STANDARD_URI, NodeAddress, parse_node_address
from agent.settings.sources import OpcuaSourceSettings
from agent.status_codes import status_name

_BY_INDEX = re.compile(r"ns=(\d{1,5});(.+)", re.DOTALL)
_CURRENT_READ = 1  # bit 0 of AccessLevel (OPC 10000-3, 8.57)
_ATTRIBUTES = (
    AttributeIds.DataType,
    AttributeIds.ValueRank,
    AttributeIds.Description,
    AttributeIds.MinimumSamplingInterval,
    AttributeIds.UserAccessLevel,
)
_BUILT_IN = range(26)  # numbers of the built-in types; other types may be enumerations
TYPES_MAX = 1_000  # data types asked for the names of their numbers; each costs two calls
VALUE_CHARACTERS_MAX = 200  # of a value on one line
Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class NodeReading:
    """One node that was read. Times are UTC; None if the server gives none."""

    address: str
    name: str
    data_type: str
    value: str
    status: str
    source_time: str | None
    server_time: str | None


class Explorer:
    """An open connection for exploring a server. Made by `explore`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._type_names: dict[NodeAddress, str] = {}
        self._enumeration_texts: dict[NodeAddress, str] = {}

    def address(self, text: str) -> NodeAddress:
        """Parse a node id as people write it, also with a namespace index of this server. Raises ValueError with what
        to write."""
        match = _BY_INDEX.fullmatch(text)
        if match is None or match[1] == "0":
            return parse_node_address(text)
        index = int(match[1])
        if index >= len(self._services.namespaces):
            count = len(self._services.namespaces)
            raise ValueError(f"names namespace {index}, and the server has {count}, counted from 0")
        return parse_node_address(f"nsu={self._services.namespaces[index]};{match[2]}")

    async def walk(self, walk: Walk, progress: Progress) -> None:
        """Browse until the walk is finished. Raises SourceLost."""
        while nodes := walk.next_nodes(self._services.nodes_per_browse):
            answers = await self._services.browse(nodes)
            walk.give_back(nodes[len(answers) :])
            for node, answer in zip(nodes, answers, strict=False):
                if isinstance(answer, str):
                    walk.failed(node, answer)
                else:
                    walk.found(node, answer)
            progress("nodes browsed", walk.browsed_total)

    async def rows(
        self, variables: Sequence[FoundVariable], scope: str, prefix: str, failures: ScanFailures, progress: Progress
    ) -> list[tuple[FoundVariable, TagRow]]:
        """The readable variables with their rows (`scope`, `prefix`: see `tag_names`). The others are counted in
        `failures`. Raises SourceLost."""
        known: list[tuple[FoundVariable, str]] = []
        for variable in variables:
            try:
                known.append((variable, address_text(variable.node)))
            except ValueError as error:
                failures.add(variable.path_text, str(error))
        questions: list[Question] = [(variable.node, attribute) for variable, _ in known for attribute in _ATTRIBUTES]
        step = len(_ATTRIBUTES)
        answers = await self._services.read(questions, lambda done: progress("variables read", done // step))
        units = await self._units([variable for variable, _ in known])
        await self._learn_types(answers[::step])
        names_of = await self._enumerations([variable for variable, _ in known], answers[::step])
        kept: list[tuple[FoundVariable, TagRow]] = []
        for index, (variable, address) in enumerate(known):
            unit_and_names = units.get(variable.node, ""), names_of[variable.node]
            row, why = self._row(address, *unit_and_names, answers[index * step : (index + 1) * step])
            if row is None:
                failures.add(variable.path_text, why)
            else:
                kept.append((variable, row))
        names = tag_names([variable.path for variable, _ in kept], [row.address for _, row in kept], scope, prefix)
        return [(variable, replace(row, tag=name)) for name, (variable, row) in zip(names, kept, strict=True)]

    async def read(self, nodes: Sequence[NodeAddress]) -> list[NodeReading]:
        """Read the values, names and data types of nodes. Raises SourceLost."""
        attributes = (AttributeIds.BrowseName, AttributeIds.DataType)
        answers = await self._services.read([(node, attribute) for node in nodes for attribute in attributes])
        values = await self._services.values(nodes)
        await self._learn_types(answers[1::2])
        found = []
        for node, value, name, kind in zip(nodes, values, answers[::2], answers[1::2], strict=True):
            shown = value_of(name)
            is_array = isinstance(value.value, Json) and value.value.data.startswith(b"[")
            found.append(
                NodeReading(
                    address=address_text(node),
                    name="" if shown is None else str(shown.Name),
                    data_type=self._type_name(value_of(kind), is_array=is_array),
                    value=value_text(value.value),
                    status=status_name(value.quality),
                    source_time=time_text(value.source_time_ns) if value.source_time_ns else None,
                    server_time=time_text(value.server_time_ns) if value.server_time_ns else None,
                )
            )
        return found

    async def _units(self, variables: Sequence[FoundVariable]) -> dict[NodeAddress, str]:
        """The display names of EngineeringUnits (OPC 10000-8, 5.6.3), by variable."""
        having = [(variable.node, variable.units) for variable in variables if variable.units is not None]
        answers = await self._services.read([(units, AttributeIds.Value) for _, units in having])
        found = {}
        for (node, _), answer in zip(having, answers, strict=True):
            value = value_of(answer)
            if isinstance(value, ua.EUInformation) and value.DisplayName is not None:
                found[node] = clean_text(value.DisplayName.Text or "")
        return found

    async def _enumerations(
        self, variables: Sequence[FoundVariable], kinds: Sequence[ua.DataValue]
    ) -> dict[NodeAddress, str]:
        """The enumeration of each variable, from its own property or its data type; otherwise empty."""
        found = dict.fromkeys((variable.node for variable in variables), "")
        for variable, kind in zip(variables, kinds, strict=True):
            node = value_of(kind)
            if isinstance(node, ua.NodeId) and (address := self._services.address(node)) is not None:
                found[variable.node] = await self._names_of_type(address)
        having = [(variable.node, variable.names) for variable in variables if variable.names is not None]
        answers = await self._services.read([(names, AttributeIds.Value) for _, names in having])
        for (owner, _), answer in zip(having, answers, strict=True):
            found[owner] = names_text(enum_property(value_of(answer))) or found[owner]
        return found

    async def _names_of_type(self, data_type: NodeAddress) -> str:
        is_built_in = data_type.namespace_uri == STANDARD_URI and data_type.identifier in _BUILT_IN
        if data_type not in self._enumeration_texts:
            is_asked = not is_built_in and len(self._enumeration_texts) < TYPES_MAX
            self._enumeration_texts[data_type] = await self._services.enumeration(data_type) if is_asked else ""
        return self._enumeration_texts[data_type]

    def _row(
        self, address: str, unit: str, enumeration: str, answers: Sequence[ua.DataValue]
    ) -> tuple[TagRow | None, str]:
        """The row without its name, or the reason why there is none."""
        kind, rank, description, interval, access = answers
        if value_of(kind) is None:
            return None, status_text(kind.StatusCode)
        level = value_of(access)
        if isinstance(level, int) and not level & _CURRENT_READ:
            return None, "this user may not read it"
        text = value_of(description)
        ms = value_of(interval)
        dimensions = value_of(rank)
        is_array = isinstance(dimensions, int) and dimensions >= 0
        return TagRow(
            tag="",
            address=address,
            data_type=self._type_name(value_of(kind), is_array=is_array),
            unit=unit,
            description=clean_text(getattr(text, "Text", None) or ""),
            enumeration="" if is_array else enumeration,  # only for single numbers
            sampling_interval_ms=int(ms) if isinstance(ms, int | float) and 0 < ms < 86_400_000 else 0,
        ), ""

    async def _learn_types(self, kinds: Sequence[ua.DataValue]) -> None:
        """Read the names of data types that are not standard ones."""
        wanted: dict[NodeAddress, None] = {}
        for kind in kinds:
            node = value_of(kind)
            address = self._services.address(node) if isinstance(node, ua.NodeId) else None
            if address is not None and address.namespace_uri != STANDARD_URI and address not in self._type_names:
                wanted[address] = None
        answers = await self._services.read([(address, AttributeIds.BrowseName) for address in wanted])
        for address, answer in zip(wanted, answers, strict=True):
            name = value_of(answer)
            self._type_names[address] = clean_text(str(name.Name)) if name is not None else "unknown"

    def _type_name(self, kind: Any, *, is_array: bool) -> str:
        if not isinstance(kind, ua.NodeId):
            return ""
        if kind.NamespaceIndex == 0:
            identifier: Any = kind.Identifier
            name = ObjectIdNames.get(identifier, str(identifier))
        else:
            address = self._services.address(kind)
            name = "unknown" if address is None else self._type_names.get(address, "unknown")
        return f"{name}[]" if is_array else name


@asynccontextmanager
async def explore(settings: OpcuaSourceSettings, password: str = "") -> AsyncIterator[Explorer]:
    """Connect as a source with these settings would. Raises SourceRefused and SourceLost."""
    async with open_services(settings, password) as services:
        yield Explorer(services)


def row_text(reading: NodeReading, scope: str) -> str:
    """The row that reads a node, for a tag file with the columns tag, address, data_type."""
    (name,) = tag_names([(reading.name or "value",)], [reading.address], scope)
    text = io.StringIO()
    csv.writer(text).writerow(map(csv_cell, (name, reading.address, reading.data_type)))
    return text.getvalue().strip()


def value_text(value: Value) -> str:
    """A value on one line."""
    if isinstance(value, bytes):
        text = f"0x{value[:VALUE_CHARACTERS_MAX].hex()}"
    elif isinstance(value, Json):
        text = value.data.decode()
    else:
        text = "" if value is None else str(value)
    text = "".join(character if character.isprintable() else " " for character in text)
    return text if len(text) <= VALUE_CHARACTERS_MAX else text[: VALUE_CHARACTERS_MAX - 3] + "..."

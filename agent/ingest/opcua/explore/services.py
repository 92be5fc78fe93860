"""Browse and Read at one server within its limits, over a connection of their own.

A call that is refused for its size or not answered in time is halved and repeated. Continuation points are followed to
their end. A failure of one node is the result of that node and does not fail the call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from uuid import UUID

from asyncua import ua
from asyncua.ua.attribute_ids import AttributeIds
from asyncua.ua.object_ids import ObjectIds
from asyncua.ua.uaerrors import UaError

from agent.ingest.errors import SourceLost
from agent.ingest.opcua.address import Reading
from agent.ingest.opcua.decode import DataChange
from agent.ingest.opcua.explore.tag_rows import clean_text
from agent.ingest.opcua.explore.walk import Reference
from agent.ingest.opcua.security.client import TOO_LARGE, Unreadable, library_call
from agent.ingest.opcua.session import OpcuaSession, open_session, quiet_library, read_in_parts
from agent.ingest.opcua.subscriptions.item_plan import ServerLimits
from agent.ingest.opcua.values.type_reader import TypeReader, names_text
from agent.ingest.probe_result import TagReading
from agent.ingest.quality import BAD_DECODING_ERROR
from agent.ingest.tags.tag_map import Tag
from agent.settings.opcua_address import NodeAddress
from agent.settings.sources import OpcuaSourceSettings
from agent.status_codes import status_name

NODES_PER_CALL_MAX = 500  # if the server declares no limit; small controllers become slow with many more
REFERENCES_PER_NODE_MAX = 100_000  # for a server that repeats its references without end
WATCHDOG_S = 30.0  # so that a long call is halved here before the library's watchdog ends the connection
PROPERTY_TYPE = 68

_TOO_MUCH = (
    *TOO_LARGE,
    TimeoutError,
    Unreadable,  # a smaller call finds the node that the library cannot decode
)
_BAD_DECODING: Any = BAD_DECODING_ERROR
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
Question = tuple[NodeAddress, AttributeIds]


class Services:
    """An open session for exploring a server. Made by `open_services`."""

    def __init__(self, session: OpcuaSession, namespaces: list[str], limits: ServerLimits) -> None:
        """A server may lack any of the limits."""
        self._session, self._library, self.namespaces = session, session.library, namespaces
        self._per_read = min(NODES_PER_CALL_MAX, limits.nodes_per_read or NODES_PER_CALL_MAX)
        # In one Browse call, as far as is known by now.
        self.nodes_per_browse = min(NODES_PER_CALL_MAX, limits.nodes_per_browse or NODES_PER_CALL_MAX)

    async def read(
        self, questions: Sequence[Question], progress: Callable[[int], None] = lambda _: None
    ) -> list[ua.DataValue]:
        """Read attributes of nodes, one result each, in order; BadNodeIdUnknown if the server does not have the
        namespace. Raises SourceLost."""

        async def call(part: Sequence[Question]) -> list[ua.DataValue]:
            ids = [ua.ReadValueId(NodeId=self._node_id(node), AttributeId=attribute) for node, attribute in part]
            parameters = ua.ReadParameters(NodesToRead=ids, TimestampsToReturn=ua.TimestampsToReturn.Both)
            try:
                return list(await library_call(self._library.read(parameters)))
            except Unreadable:
                if len(part) > 1:
                    raise
                return [ua.DataValue(StatusCode=ua.StatusCode(_BAD_DECODING))]

        results: list[ua.DataValue] = []
        while len(results) < len(questions):
            part = questions[len(results) : len(results) + self._per_read]
            answers = await self._halving(part, call)
            if len(answers) < len(part):
                self._per_read = len(answers)
            results += answers
            progress(len(results))
        return results

    async def enumeration(self, data_type: NodeAddress) -> str:
        """The enumeration of a data type as a tag file has it; empty if there is none."""
        index = data_type.index(self.namespaces)
        if index is None:
            return ""
        return names_text(await TypeReader(self._library).definition((index, data_type.identifier)))

    async def values(self, nodes: Sequence[NodeAddress]) -> list[DataChange]:
        """Read the values of nodes as a source does, one result each, in order. Not with the library, which decodes
        picoseconds wrongly. Raises SourceLost."""
        readings = [Reading(node) for node in nodes]
        found, self._per_read = await read_in_parts(self._session, readings, self.namespaces, self._per_read)
        return found

    async def browse(self, nodes: Sequence[NodeAddress]) -> list[list[Reference] | str]:
        """The hierarchical references of nodes, or the reason why there are none. There may be fewer results than
        nodes, for the first ones, as many as the server accepts in one call. Raises SourceLost."""
        answers = await self._halving(nodes, self._browse_once)
        if len(answers) < len(nodes):
            self.nodes_per_browse = len(answers)
        return [await self._all_references(answer) for answer in answers]

    async def _browse_once(self, nodes: Sequence[NodeAddress]) -> list[ua.BrowseResult]:
        mask = ua.BrowseResultMask
        parameters = ua.BrowseParameters(
            View=ua.ViewDescription(),
            RequestedMaxReferencesPerNode=0,
            NodesToBrowse=[
                ua.BrowseDescription(
                    NodeId=self._node_id(node),
                    BrowseDirection=ua.BrowseDirection.Forward,
                    ReferenceTypeId=ua.NodeId(ObjectIds.HierarchicalReferences),  # type: ignore[arg-type]
                    IncludeSubtypes=True,
                    NodeClassMask=ua.NodeClass.Object | ua.NodeClass.Variable,
                    ResultMask=mask.NodeClass | mask.BrowseName | mask.TypeDefinition,
                )
                for node in nodes
            ],
        )
        return list(await library_call(self._library.browse(parameters)))

    async def _all_references(self, result: ua.BrowseResult) -> list[Reference] | str:
        """The references of one node, with its continuation points followed."""
        if not result.StatusCode.is_good():
            return status_text(result.StatusCode)
        found = [*self._references(result)]
        while point := result.ContinuationPoint:
            (result,) = await self._halving([point], self._browse_next_once)
            if not result.StatusCode.is_good():
                return status_text(result.StatusCode)
            more = [*self._references(result)]
            found += more
            if len(found) > REFERENCES_PER_NODE_MAX or (not more and result.ContinuationPoint == point):
                return "its references do not end"
        return found

    async def _browse_next_once(self, points: Sequence[bytes]) -> list[ua.BrowseResult]:
        parameters = ua.BrowseNextParameters(ContinuationPoints=[*points])
        return list(await library_call(self._library.browse_next(parameters)))

    def _references(self, result: ua.BrowseResult) -> list[Reference]:
        found = []
        for reference in result.References or ():
            node = self.address(reference.NodeId)
            if node is None:
                continue  # at another server, or in an unknown namespace
            kind = reference.TypeDefinition
            is_property = kind is not None and kind.NamespaceIndex == 0 and kind.Identifier == PROPERTY_TYPE
            name = clean_text(str(reference.BrowseName.Name or ""))
            found.append(Reference(node, name, reference.NodeClass == ua.NodeClass.Variable, is_property))
        return found

    def address(self, node: ua.NodeId) -> NodeAddress | None:
        """A node id of the server with its namespace URI; None if that is not known."""
        uri = getattr(node, "NamespaceUri", None)
        if getattr(node, "ServerIndex", 0):
            return None
        if uri is None and 0 <= node.NamespaceIndex < len(self.namespaces):
            uri = self.namespaces[node.NamespaceIndex]
        identifier: Any = node.Identifier
        if uri is None or not isinstance(identifier, int | str | UUID | bytes):
            return None
        return NodeAddress(uri, identifier)

    def _node_id(self, node: NodeAddress) -> ua.NodeId:
        index: Any = node.index(self.namespaces)
        if index is None:
            index = 0xFFFF  # no server has it, so the answer is BadNodeIdUnknown
        identifier: Any = node.identifier
        return ua.NodeId(identifier, index)

    async def _halving(
        self, items: Sequence[_Item], call: Callable[[Sequence[_Item]], Awaitable[list[_Result]]]
    ) -> list[_Result]:
        """The results for the first items, as many as the server accepts in one call."""
        count = len(items)
        while True:
            try:
                results = await call(items[:count])
            except _TOO_MUCH as error:
                if count == 1:
                    raise self._lost(error) from error
                count = (count + 1) // 2
                continue
            except (UaError, OSError) as error:
                raise self._lost(error) from error
            if len(results) != count:
                raise SourceLost(f"{self._session.url} answered {len(results)} results for {count} nodes")
            return results

    def _lost(self, error: BaseException) -> SourceLost:
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        return SourceLost(f"a request to {self._session.url} failed: {text}")


@asynccontextmanager
async def open_services(settings: OpcuaSourceSettings, password: str = "") -> AsyncIterator[Services]:
    """Connect as a source with these settings would, for looking only. Raises SourceRefused and SourceLost."""
    quiet_library()
    async with open_session(settings, password, WATCHDOG_S) as session:
        yield Services(session, await session.namespaces(), await session.limits())


async def read_tags(settings: OpcuaSourceSettings, tags: Sequence[Tag]) -> list[TagReading]:
    """Read the tags of a source once, over a new session, with its decoder. Nothing is recorded. The readings are in
    the order of `tags`. Raises SourceLost and SourceRefused."""
    quiet_library()
    async with open_session(settings) as session:
        namespaces = await session.namespaces()
        size = min(settings.items_per_call_max, (await session.limits()).nodes_per_read or settings.items_per_call_max)
        found, _ = await read_in_parts(session, [tag.point.reading for tag in tags], namespaces, size)
    times_ns = [change.source_time_ns or change.server_time_ns for change in found]
    return [
        TagReading.of(tag, change.value, change.quality, source_time_ns=time_ns)
        for tag, change, time_ns in zip(tags, found, times_ns, strict=True)
    ]


def value_of(answer: ua.DataValue) -> Any:
    """The value of an attribute; None where it was refused."""
    is_bad = answer.StatusCode is not None and answer.StatusCode.is_bad()
    return None if is_bad or answer.Value is None else answer.Value.Value


def status_text(status: ua.StatusCode | None) -> str:
    """The name of a status. An answer without one is good."""
    return status_name(0 if status is None else status.value)

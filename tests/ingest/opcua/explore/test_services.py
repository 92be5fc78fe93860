"""Browse and Read cut to what a server takes, with a session whose answers the test decides."""

import struct
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from asyncua import ua
from asyncua.common.utils import Buffer
from asyncua.ua import uaerrors
from asyncua.ua.attribute_ids import AttributeIds
from asyncua.ua.ua_binary import struct_to_binary

from agent.ingest.errors import SourceLost
from agent.ingest.opcua.decode import FILETIME_EPOCH
from agent.ingest.opcua.explore import services as module
from agent.ingest.opcua.explore.services import Services, status_text
from agent.ingest.opcua.session import OpcuaSession, new_client
from agent.ingest.opcua.subscriptions.item_plan import ServerLimits
from agent.message import Json
from agent.settings.opcua_address import STANDARD_URI, NodeAddress
from agent.settings.sources import OpcuaSourceSettings

SETTINGS = OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t.csv"))


class FakeSession:
    """A server of numbered nodes, each with `children` children; more than `limit` operations in a call, or the node
    `bad` among them, are answered as `error`."""

    def __init__(self, limit: int = 1000, error: Exception | None = None, bad: int = -1, page: int = 1000) -> None:
        self.limit, self.error, self.bad, self.page = limit, error or uaerrors.BadTooManyOperations(), bad, page
        self.calls: list[int] = []
        self.children = 5
        self.is_endless = self.is_empty = False

    async def read(self, parameters: ua.ReadParameters) -> list[ua.DataValue]:
        wanted = [each.NodeId.Identifier for each in parameters.NodesToRead]
        self._check(wanted)
        return [ua.DataValue(ua.Variant(each, ua.VariantType.Int64)) for each in wanted]

    async def browse(self, parameters: ua.BrowseParameters) -> list[ua.BrowseResult]:
        wanted = [each.NodeId.Identifier for each in parameters.NodesToBrowse]
        self._check(wanted)
        return [self._page(each, 0) for each in wanted]

    async def browse_next(self, parameters: ua.BrowseNextParameters) -> list[ua.BrowseResult]:
        (point,) = parameters.ContinuationPoints
        node, first = struct.unpack("<qq", point)
        return [] if self.is_empty else [self._page(node, first)]

    def _page(self, node: int, first: int) -> ua.BrowseResult:
        last = min(first + self.page, self.children)
        references = [reference(node * 100 + number) for number in range(first, last)]
        point = struct.pack("<qq", node, last) if last < self.children or self.is_endless else None
        return ua.BrowseResult(References=references, ContinuationPoint=point)

    def _check(self, wanted: Sequence[int]) -> None:
        self.calls.append(len(wanted))
        if len(wanted) > self.limit or self.bad in wanted:
            raise self.error


def reference(number: int) -> ua.ReferenceDescription:
    """A reference to a variable."""
    return ua.ReferenceDescription(
        NodeId=ua.ExpandedNodeId(number, 0),  # type: ignore[arg-type]
        BrowseName=ua.QualifiedName(f"v{number}", 0),  # type: ignore[arg-type]
        NodeClass=ua.NodeClass.Variable,
        TypeDefinition=ua.ExpandedNodeId(63, 0),  # type: ignore[arg-type]
    )


def services(session: FakeSession) -> Services:
    """Services over a fake session, with the standard namespace."""
    return Services(SimpleNamespace(library=session, url="opc.tcp://plc"), [STANDARD_URI], ServerLimits())  # type: ignore[arg-type]


def nodes(count: int) -> list[NodeAddress]:
    """Numbered nodes."""
    return [NodeAddress(STANDARD_URI, number) for number in range(count)]


@pytest.mark.parametrize("error", [uaerrors.BadTooManyOperations(), uaerrors.BadResponseTooLarge(), TimeoutError()])
async def test_a_call_that_is_too_large_is_halved_and_the_size_is_kept(error: Exception) -> None:
    """A server that names no limit, or a wrong one, teaches it; every node is read once, in order."""
    session = FakeSession(limit=60, error=error)
    found = await services(session).read([(node, AttributeIds.Value) for node in nodes(1000)])
    assert [each.Value.Value for each in found if each.Value is not None] == list(range(1000))
    refused = [size for size in session.calls if size > 60]
    assert refused == [500, 250, 125, 63]
    assert max(session.calls[len(refused) :]) <= 60


async def test_a_server_that_takes_not_even_one_node_is_lost() -> None:
    """It ends, with the server's reason."""
    with pytest.raises(SourceLost, match=r"a request to .* failed"):
        await services(FakeSession(limit=0)).read([(node, AttributeIds.Value) for node in nodes(3)])


async def test_one_value_that_cannot_be_read_costs_that_value() -> None:
    """The library fails at a whole answer; the one node behind it is found and is bad, the others have their values."""
    found = await services(FakeSession(error=struct.error("short"), bad=7)).read(
        [(node, AttributeIds.Value) for node in nodes(20)]
    )
    assert [status_text(each.StatusCode) for each in found].count("BadDecodingError") == 1
    assert status_text(found[7].StatusCode) == "BadDecodingError"
    assert found[8].Value is not None


async def test_continuation_points_are_followed() -> None:
    """A server that gives three references at a time gives all of them, for each node."""
    session = FakeSession(page=3)
    session.children = 8
    found = await services(session).browse(nodes(4))
    assert [len(each) for each in found] == [8] * 4
    assert isinstance(found[2], list)
    assert [each.browse_name for each in found[2]] == [f"v{200 + number}" for number in range(8)]


async def test_an_answer_without_a_result_ends_the_browse_with_the_reason() -> None:
    """A server may answer a continuation with an empty list (one that was busy did)."""
    session = FakeSession(page=3)
    session.is_empty = True
    with pytest.raises(SourceLost, match="answered 0 results for 1 nodes"):
        await services(session).browse(nodes(1))


async def test_references_without_end_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A continuation point that leads to itself is a failure of that node, not a hang; so are ever more references."""
    session = FakeSession()
    session.is_endless = True
    assert await services(session).browse(nodes(1)) == ["its references do not end"]
    monkeypatch.setattr(module, "REFERENCES_PER_NODE_MAX", 10)
    session = FakeSession(page=3)
    session.children = 1000
    assert await services(session).browse(nodes(1)) == ["its references do not end"]


async def test_a_node_in_an_unknown_namespace_is_asked_for_in_vain_and_no_other() -> None:
    """It does not become a node of the standard namespace."""
    asked: list[ua.NodeId] = []

    class OpcuaSession(FakeSession):
        async def read(self, parameters: ua.ReadParameters) -> list[ua.DataValue]:
            asked.extend(each.NodeId for each in parameters.NodesToRead)
            return await super().read(parameters)

    await services(OpcuaSession()).read([(NodeAddress("urn:none", 85), AttributeIds.Value)])
    assert asked[0].NamespaceIndex == 0xFFFF


async def test_values_are_read_as_a_source_records_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times with picoseconds, which the library reads in another order than they come in (the server's time was shown
    as the year 9999), and an array of Variants as JSON."""
    client = new_client(SETTINGS)
    ns = 1_700_000_000_123_456_700
    filetime = ns // 100 + FILETIME_EPOCH
    variants = struct.pack("<BiBiBi", 0x80 | 24, 2, 6, 7, 6, 8)
    value = b"\x3d" + variants + struct.pack("<qHqH", filetime, 10, filetime + 10, 10)
    head = struct_to_binary(ua.ReadResponse(Results=[], DiagnosticInfos=[]))[:-8]

    async def send(_: object) -> Buffer:
        return Buffer(head + struct.pack("<i", 1) + value + struct.pack("<i", -1))

    monkeypatch.setattr(client.uaclient.session, "send", send)
    services = Services(OpcuaSession(client, SETTINGS), [STANDARD_URI], ServerLimits())
    (found,) = await services.values([NodeAddress(STANDARD_URI, 7)])
    assert (found.value, found.quality) == (Json.of([7, 8]), 0)
    assert (found.source_time_ns, found.server_time_ns) == (ns, ns + 1_000)

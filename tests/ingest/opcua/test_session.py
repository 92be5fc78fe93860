"""Requests and answers of a session, with the library's transport in the test's hands."""

import asyncio
import math
import struct
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from asyncua import ua
from asyncua.client.ua_session import UaSession
from asyncua.common.utils import Buffer
from asyncua.ua import uaerrors
from asyncua.ua.object_ids import ObjectIds
from asyncua.ua.ua_binary import struct_to_binary

from agent.ingest.errors import HistoryRefused, SourceLost
from agent.ingest.opcua import session as session_module
from agent.ingest.opcua.address import Reading
from agent.ingest.opcua.decode import Publication, PublishHeader, read_header
from agent.ingest.opcua.history import HistoryRange
from agent.ingest.opcua.publisher import Publisher, Route
from agent.ingest.opcua.publishing import Missing, Sequencer
from agent.ingest.opcua.session import (
    LIFETIME_MS_MIN,
    Ending,
    ItemRequest,
    OpcuaSession,
    OpenedSubscription,
    PublishRefused,
    TooManySubscriptions,
    _request_of,
    new_client,
    open_session,
)
from agent.ingest.opcua.subscriptions.item_plan import ServerLimits
from agent.ingest.opcua.subscriptions.monitoring import AS_THE_SOURCE_SAYS, Monitoring, Trigger
from agent.ingest.opcua.values import type_reader
from agent.ingest.opcua.values.structures import StructureShape, StructureType
from agent.ingest.quality import BAD_NOT_SUPPORTED
from agent.settings.opcua_address import NodeAddress
from agent.settings.sources import OpcuaSourceSettings
from tests.ingest.opcua.fake_session import FakeSession
from tests.waiting import LIMIT_S

S = 1_000_000_000
SETTINGS = OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t.csv"))


def session_with(monkeypatch: pytest.MonkeyPatch, *answers: object) -> tuple[OpcuaSession, list[Any]]:
    """A session whose requests are answered by these, and the requests."""
    client = new_client(SETTINGS)
    asked: list[Any] = []
    left = list(answers)

    async def send(request: object, timeout_s: float | None = None) -> Buffer:
        assert timeout_s == (0 if isinstance(request, ua.PublishRequest) else None), "a quiet server answers no Publish"
        asked.append(request)
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return Buffer(struct_to_binary(found))

    monkeypatch.setattr(client.uaclient.session, "send", send)
    return OpcuaSession(client, SETTINGS), asked


async def test_a_publish_acknowledges_and_gives_the_bytes_as_they_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal that concerns one request is told as such; everything else ends the session."""
    response = ua.PublishResponse()
    response.Parameters.SubscriptionId, response.Parameters.NotificationMessage.SequenceNumber = 7, 3
    refused = (uaerrors.BadTimeout, uaerrors.BadNoSubscription, uaerrors.BadTooManyPublishRequests)
    fatal = (uaerrors.BadSessionIdInvalid(), ConnectionError("gone"), TimeoutError())
    session, asked = session_with(monkeypatch, response, *[error() for error in refused], *fatal)
    body = await session.publish([(7, 2)])
    assert struct.unpack_from("<I", body) == (7,)
    (ack,) = asked[0].Parameters.SubscriptionAcknowledgements
    assert (ack.SubscriptionId, ack.SequenceNumber) == (7, 2)
    for error in refused:
        with pytest.raises(PublishRefused, match=error.__name__):
            await session.publish([])
    for why in ("BadSessionIdInvalid", "gone", "no answer in time"):
        with pytest.raises(SourceLost, match=f"refused a Publish: .*{why}"):
            await session.publish([])


async def test_a_notification_asked_for_again_reads_like_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes have the form of a publication; the status if the server does not hold it."""
    response = ua.RepublishResponse()
    response.NotificationMessage.SequenceNumber = 5
    session, _ = session_with(monkeypatch, response, uaerrors.BadMessageNotAvailable())
    body = await session.republish(7, 5)
    assert isinstance(body, bytes)
    header = read_header(body)
    assert (header.subscription_id, header.sequence_number) == (7, 5)
    assert not (await session.decode(body)).changes
    assert await session.republish(7, 6) == int(uaerrors.BadMessageNotAvailable().code)


@pytest.mark.parametrize(
    "interval_ms, count, expected",
    [
        (500.0, 10, OpenedSubscription(7, 500.0, 1.0)),
        (1_000.0, 40, OpenedSubscription(7, 1_000.0, 8.0)),
        (500.0, 5, OpenedSubscription(7, 500.0, 1.0)),
        (0.0, 0, OpenedSubscription(7, 500.0, 1.0)),
        (math.nan, 20, OpenedSubscription(7, 500.0, 2.0)),
        (1e300, 2**32 - 1, OpenedSubscription(7, 500.0, 1.0)),
    ],
)
async def test_keep_alives_come_as_the_server_revised_them(
    monkeypatch: pytest.MonkeyPatch, interval_ms: float, count: int, expected: OpenedSubscription
) -> None:
    """Ten publishing intervals of half a second are asked for, a third of the time-out. What makes no sense is as asked
    for."""
    response = ua.CreateSubscriptionResponse()
    response.Parameters.SubscriptionId = 7
    response.Parameters.RevisedPublishingInterval = interval_ms
    response.Parameters.RevisedMaxKeepAliveCount = count
    session, asked = session_with(monkeypatch, response)
    assert await session.create_subscription() == expected
    assert asked[0].Parameters.RequestedMaxKeepAliveCount == 10
    assert asked[0].Parameters.RequestedLifetimeCount * 500 == LIFETIME_MS_MIN, "a subscription can be kept so long"


async def test_a_refusal_in_the_place_of_a_subscription_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not each server answers a ServiceFault: some fill in the response of the service, with a bad result."""
    response = ua.CreateSubscriptionResponse()
    response.ResponseHeader.ServiceResult = ua.StatusCode(uaerrors.BadTooManySubscriptions.code)
    session, _ = session_with(monkeypatch, response)
    with pytest.raises(TooManySubscriptions):
        await session.create_subscription()
    assert session.library.creating == 0


async def test_limits_that_a_server_does_not_tell_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad status, also beside a value, a missing value and a 0 all mean that there is no limit to obey."""

    async def read(_: object) -> list[ua.DataValue]:
        known = [ua.DataValue(ua.Variant(n, ua.VariantType.UInt32)) for n in (100, 0)]
        bad = ua.DataValue(ua.Variant(1, ua.VariantType.UInt32), StatusCode=ua.StatusCode(0x8034_0000))
        return [*known, bad, ua.DataValue(), *known, bad]

    session, _ = session_with(monkeypatch)
    monkeypatch.setattr(session.library, "read", read)
    assert await session.limits() == ServerLimits(items_per_call=100, subscriptions_per_session=100)


@pytest.mark.parametrize("error", [struct.error("short"), uaerrors.UaError("short"), uaerrors.BadTooManyOperations()])
async def test_a_malformed_limit_of_a_server_counts_as_none(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """A limit that cannot be read, or is no number, counts as none and hides no other, also if the server refuses to
    read several at once. The same holds for the time of its start. No answer at all ends the session."""
    bad, boolean = ObjectIds.Server_ServerCapabilities_MaxMonitoredItems, ua.Variant(Value=True)
    boolean_node = ObjectIds.Server_ServerCapabilities_MaxSubscriptions

    async def read(parameters: ua.ReadParameters) -> list[ua.DataValue]:
        nodes = [wanted.NodeId.Identifier for wanted in parameters.NodesToRead]
        if bad in nodes or ObjectIds.Server_ServerStatus_StartTime in nodes:
            raise error
        number = ua.Variant(5, ua.VariantType.UInt32)
        return [ua.DataValue(boolean if node == boolean_node else number) for node in nodes]

    session, _ = session_with(monkeypatch)
    monkeypatch.setattr(session.library, "read", read)
    assert await session.limits() == ServerLimits(5, 5, 5, 0, 5, 0, 5)
    assert await session.server_start() is None
    monkeypatch.setattr(session.library, "read", AsyncMock(side_effect=TimeoutError()))
    with pytest.raises(SourceLost):
        await session.limits()


async def test_a_server_without_namespaces_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty value in the place of the list: said so, and no mistake of ours."""
    session, _ = session_with(monkeypatch)
    monkeypatch.setattr(session._client, "get_namespace_array", AsyncMock(return_value=None))
    with pytest.raises(SourceLost, match="does not give its namespaces"):
        await session.namespaces()


async def test_a_namespace_that_is_not_utf8_can_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library keeps its bytes in a form that no fact can hold; a NodeId as a value names it."""
    session, _ = session_with(monkeypatch)
    monkeypatch.setattr(session._client, "get_namespace_array", AsyncMock(return_value=["", "urn:L\udcfcfter"]))
    assert await session.namespaces() == ["", "urn:L\ufffdfter"]
    assert session.reader.node_id_text((1, 5)) == "nsu=urn:L\ufffdfter;i=5"


async def test_an_empty_history_counts_only_where_history_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """python-opcua answers HistoryRead of a node without history with no values and a good status. The gap would be
    declared as filled."""
    response = ua.HistoryReadResponse(Results=[ua.HistoryReadResult(HistoryData=ua.HistoryData()) for _ in range(2)])
    session, _ = session_with(monkeypatch, response)
    asked: list[ua.ReadParameters] = []

    async def read(parameters: ua.ReadParameters) -> list[ua.DataValue]:
        asked.append(parameters)
        return [ua.DataValue(ua.Variant(level, ua.VariantType.Byte)) for level in (1, 5)]

    monkeypatch.setattr(session.library, "read", read)
    ranges = [HistoryRange(tag, 0, S, None) for tag in (1, 2)]
    nodes = [(Reading(NodeAddress("urn:x", tag)), 1) for tag in (1, 2)]
    pages = await session.read_history(ranges, nodes, 10)
    assert [page.status for page in pages] == [BAD_NOT_SUPPORTED, 0]
    levels = [(node.NodeId.Identifier, node.AttributeId) for node in asked[0].NodesToRead]
    assert levels == [(tag, ua.AttributeIds.AccessLevel) for tag in (1, 2)]


@pytest.mark.parametrize(
    "error, is_final",
    [
        (uaerrors.BadHistoryOperationUnsupported(), True),
        (uaerrors.BadTooManyOperations(), False),
        (ConnectionError("gone"), False),
        (TimeoutError(), False),
        (ua.HistoryReadResponse(), False),
    ],
)
async def test_a_refused_history_ends_no_session(
    monkeypatch: pytest.MonkeyPatch, error: object, *, is_final: bool
) -> None:
    """Whatever becomes of the call, also an answer without a result for each node; only a server that says that it has
    no such service is not asked again."""
    session, _ = session_with(monkeypatch, error)
    with pytest.raises(HistoryRefused) as refused:
        await session.read_history([HistoryRange(1, 0, S, None)], [(Reading(NodeAddress("urn:x", 1)), 1)], 10)
    assert refused.value.is_final is is_final


async def test_a_server_that_answers_for_too_few_items_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose results are missing is not known: an item would be taken for another."""
    session, _ = session_with(monkeypatch)
    item = ItemRequest(1, NodeAddress("urn:x", 7), 1, "", 250.0, 43, AS_THE_SOURCE_SAYS)
    created = AsyncMock(return_value=[ua.MonitoredItemCreateResult()])
    monkeypatch.setattr(session.library, "create_monitored_items", created)
    with pytest.raises(SourceLost, match="1 results for 2 items"):
        await session.create_items(1, [item, item])


async def test_a_server_that_answers_for_too_few_nodes_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose values are missing is not known: one would be recorded as another's."""
    session, _ = session_with(monkeypatch, ua.ReadResponse(Results=[ua.DataValue(ua.Variant(1.0))]))
    with pytest.raises(SourceLost, match="1 values for 2 nodes"):
        await session.read_values([Reading(NodeAddress("urn:x", n)) for n in (7, 8)], ["urn:x"])


async def test_subscriptions_are_taken_over_without_their_present_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be recorded as values of the outage. A refusal of the call is one for each of them."""
    session, _ = session_with(monkeypatch)
    taken = AsyncMock(side_effect=[[ua.TransferResult()], uaerrors.BadServiceUnsupported()])
    monkeypatch.setattr(session.library, "transfer_subscriptions", taken)
    assert await session.transfer_subscriptions([7]) == [0]
    (asked,) = taken.call_args.args
    assert (asked.SubscriptionIds, asked.SendInitialValues) == ([7], False)
    assert await session.transfer_subscriptions([7, 8]) == [int(uaerrors.BadServiceUnsupported().code)] * 2


@pytest.mark.parametrize(
    "ending, requests", [(Ending.CLOSE, [True]), (Ending.LEAVE_SUBSCRIPTIONS, [False]), (Ending.KEEP, [])]
)
@pytest.mark.parametrize("is_stopped", [False, True])
async def test_how_a_session_ends(
    monkeypatch: pytest.MonkeyPatch, ending: Ending, requests: list[bool], *, is_stopped: bool
) -> None:
    """It is closed with or without its subscriptions, or kept: then the server gets no goodbye at all. A source that is
    stopped leaves nothing. No socket stays."""
    client = new_client(SETTINGS)
    closed, sockets = list[bool](), list[str]()

    async def close_session(_: object, delete_subscriptions: bool) -> None:
        closed.append(delete_subscriptions)

    async def close_channel(_: object) -> None:
        sockets.append("goodbye")

    monkeypatch.setattr(session_module, "new_client", lambda *_: client)
    monkeypatch.setattr(session_module, "connect", AsyncMock())
    monkeypatch.setattr(UaSession, "close_session", close_session)
    monkeypatch.setattr(type(client), "close_secure_channel", close_channel)
    monkeypatch.setattr(client, "disconnect_socket", lambda: sockets.append("closed"))

    async def life() -> None:
        async with open_session(SETTINGS) as session:
            session.library.ending = ending
            raise asyncio.CancelledError if is_stopped else SourceLost("gone")

    with pytest.raises(asyncio.CancelledError if is_stopped else SourceLost):
        await life()
    assert closed == ([True] if is_stopped else requests)
    assert sockets[-1] == "closed"
    assert ("goodbye" in sockets) == bool(closed)


async def test_a_server_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the step at which it fell silent."""

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(session_module, "connect", never)
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(SourceLost, match="no answer in time while"):
            async with open_session(replace(SETTINGS, request_timeout_ms=0)):
                pass


@pytest.mark.parametrize("namespaces, expected", [(["a", "b"], [0x8036_0000, 0]), (["a"], [0, 0]), (None, [0, 0])])
async def test_a_server_that_ignores_index_ranges_is_found_out(
    monkeypatch: pytest.MonkeyPatch, namespaces: list[str] | None, expected: list[int]
) -> None:
    """Asked for the first of its namespaces it gives all. What it gives for an element is no value then; one that cuts,
    or refuses, is believed. It is asked once."""
    response = ua.ReadResponse(Results=[ua.DataValue(ua.Variant(1.5, ua.VariantType.Double)) for _ in range(2)])
    session, _ = session_with(monkeypatch, response, response)
    asked: list[str] = []

    async def read(parameters: ua.ReadParameters) -> list[ua.DataValue]:
        asked.append(str(parameters.NodesToRead[0].IndexRange))
        return [ua.DataValue() if namespaces is None else ua.DataValue(ua.Variant(namespaces))]

    monkeypatch.setattr(session.library, "read", read)
    readings = [Reading(NodeAddress("urn:x", 7), "3"), Reading(NodeAddress("urn:x", 7))]
    for _ in range(2):
        assert [value.quality for value in await session.read_values(readings, ["urn:x"])] == expected
    assert asked == ["0"]


@pytest.mark.parametrize(
    "monitoring, expected",
    [
        (AS_THE_SOURCE_SAYS, None),
        (Monitoring(deadband=0.5), (1, 1, 0.5)),
        (Monitoring(deadband=5, deadband_is_percent=True), (1, 2, 5.0)),
        (Monitoring(trigger=Trigger.STATUS), (0, 0, 0.0)),
        (Monitoring(trigger=Trigger.STATUS_VALUE_TIMESTAMP, deadband=1), (2, 1, 1.0)),
    ],
)
def test_an_item_is_asked_for_as_its_tag_says(monitoring: Monitoring, expected: tuple[int, int, float] | None) -> None:
    """Handle, interval, queue, index range; a filter only where the tag map wants another than the server's own."""
    request = _request_of(ItemRequest(7, NodeAddress("urn:x", "a"), 2, "3", 50.0, 9, monitoring))
    asked = request.RequestedParameters
    assert (request.ItemToMonitor.NodeId.to_string(), request.ItemToMonitor.IndexRange) == ("ns=2;s=a", "3")
    assert (asked.ClientHandle, asked.SamplingInterval, asked.QueueSize, asked.DiscardOldest) == (7, 50.0, 9, True)
    found = asked.Filter
    if expected is None:
        assert not isinstance(found, ua.DataChangeFilter)
    else:
        assert (found.Trigger, found.DeadbandType, found.DeadbandValue) == expected


async def test_the_servers_clock_is_as_new_as_the_answer_that_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that moves its clock once a second (asyncua) shows a time that is over. The values besides are dated by
    that; the clock is known by the time of the answer."""
    shown, answered = datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 5, 900_000, tzinfo=UTC)
    clock = ua.DataValue(ua.Variant(shown), SourceTimestamp=shown, ServerTimestamp=shown)  # type: ignore[arg-type]
    response = ua.ReadResponse(Results=[clock])
    response.ResponseHeader.Timestamp = answered  # type: ignore[assignment]
    session, _ = session_with(monkeypatch, response, response)
    begin_ns = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * S
    found = await session.read_clock()
    assert found == (begin_ns + 5 * S, begin_ns + 5_900_000_000)
    assert await session.clock_ns() == found.read_ns


async def test_a_type_that_is_being_asked_for_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two publications with values of one new type are decoded beside one another: both by its description."""
    session, _ = session_with(monkeypatch)
    types, described, is_answered = session.reader.types, StructureType((), StructureShape(0)), asyncio.Event()

    class SlowServer:
        async def data_type(self, _: object) -> tuple[int, int]:
            await is_answered.wait()
            return 1, 4

        async def definition(self, _: object) -> StructureType:
            return described

    monkeypatch.setattr(type_reader, "TypeReader", lambda _: SlowServer())
    readings = [asyncio.create_task(session._decoded(lambda: types.structure((1, 5)))) for _ in range(2)]
    for _ in range(10):
        await asyncio.sleep(0)
    is_answered.set()
    assert await asyncio.gather(*readings) == [described, described]


async def test_a_publication_that_cannot_be_read_ends_the_session() -> None:
    """Values that cannot be decoded are not passed over: the session is lost, and its items are read anew."""
    session = FakeSession()
    session.answers.put_nowait(bytes(21) + struct.pack("<i", 1) + b"\xff" * 8)

    async def decode(_: PublishHeader, body: bytes) -> Publication:
        return await session.decode(body)

    async def take(_: PublishHeader, __: object) -> None:
        raise AssertionError("nothing was read")

    async def missing(_: Missing) -> None:
        raise AssertionError("nothing is missing")

    publisher = Publisher(session, 1, Route(decode, take, missing), lambda: None, Sequencer())  # type: ignore[arg-type]
    publisher.begin_subscription(1)
    with pytest.RaisesGroup(pytest.RaisesExc(SourceLost, match="cannot be read")):
        await publisher.run()

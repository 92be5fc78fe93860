"""What a server publishes beside what it gives when it is read."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agent.ingest.completeness import Moment
from agent.ingest.errors import SourceLost
from agent.ingest.opcua.address import Reading
from agent.ingest.opcua.decode import DataChange
from agent.ingest.opcua.session import CallTooLarge
from agent.ingest.opcua.source import OpcuaSource
from agent.ingest.opcua.subscriptions import audit as audit_module
from agent.ingest.opcua.subscriptions.audit import Audit, Findings
from agent.ingest.opcua.subscriptions.item_plan import Created
from agent.ingest.opcua.subscriptions.monitoring import AS_THE_SOURCE_SAYS, Monitoring, Trigger
from agent.ingest.quality import BAD_ENCODING_LIMITS_EXCEEDED, BAD_NODE_ID_UNKNOWN, BAD_USER_ACCESS_DENIED
from agent.message import Json, Value
from tests.ingest.opcua.sources import S, made, tag, take

NOTHING = Findings({}, [], {})


class Readable:
    """A server that gives these values and statuses, by the number of the node."""

    def __init__(self, values: dict[int, tuple[Any, int]]) -> None:
        self.values: dict[Any, tuple[Any, int]] = values
        self.times_ns: dict[Any, int] = dict.fromkeys(values, 9 * S)
        self.reads: list[list[object]] = []
        self.now = Moment(10 * S, 0)
        self.too_large: set[int] = set()  # no answer holds their values
        self.nodes_max = 1_000  # of one call; more are answered by this
        self.refusal: Exception = CallTooLarge("too many")

    async def namespaces(self) -> list[str]:
        return ["urn:x"]

    async def read_values(self, readings: Sequence[Reading], _: Sequence[str]) -> list[DataChange]:
        nodes: list[Any] = [reading.address.identifier for reading in readings]
        self.reads.append([*nodes])
        if len(nodes) > self.nodes_max or not self.too_large.isdisjoint(nodes):
            raise self.refusal
        return [DataChange(0, *self.values[node], self.times_ns[node], 9 * S) for node in nodes]


async def audited(
    monkeypatch: pytest.MonkeyPatch,
    values: dict[int, tuple[Any, int]],
    nodes_per_read: int = 0,
    published: Value = 1.0,
    monitoring: Monitoring = AS_THE_SOURCE_SAYS,
) -> tuple[OpcuaSource, Audit, Readable]:
    """A source whose tags were published with one value; nothing has to be waited for."""
    monkeypatch.setattr(audit_module, "ARRIVES_S", 0.0)
    points = {n: replace(tag(n).point, monitoring=monitoring) for n in values}
    source, _ = await made(*(tag(n, point) for n, point in points.items()), sampling_interval_ms=0)
    (subscription,) = source._subscriptions
    subscription.silence_max_s = subscription.publishing_ms = 0.0
    subscription.plan.want(values)
    subscription.plan.answered([*values], [Created(0, 10 + n) for n in values], 0)
    await take(source, *(DataChange(n, published, 0, S, S) for n in values))
    await source._deliver(source._buffer.get_nowait())
    server = Readable(values)
    return source, Audit(server, source._delivery.sampler, nodes_per_read, lambda: server.now), server  # type: ignore[arg-type]


async def looks(source: OpcuaSource, audit: Audit, count: int) -> list[Findings]:
    """What so many looks find."""
    return [await audit.check(next(iter(source._subscriptions)), source._delivery.points) for _ in range(count)]


async def test_an_item_that_does_not_publish_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tag has another value and one no node any more, twice in a row, and nothing of them was published. What was
    published in between is no finding, and a bad value proves nothing."""
    values = {1: (1.0, 0), 2: (2.0, 0), 3: (None, BAD_NODE_ID_UNKNOWN), 4: (4.0, 0), 5: (None, 0x8005_0000)}
    source, audit, _ = await audited(monkeypatch, values)
    assert await looks(source, audit, 1) == [NOTHING]
    await take(source, DataChange(4, 3.0, 0, 2 * S, 2 * S))  # it changes faster than it is read
    await source._deliver(source._buffer.get_nowait())
    (found,) = await looks(source, audit, 1)
    assert found == Findings({3: BAD_NODE_ID_UNKNOWN}, [2], dict.fromkeys([2, 3], Moment(S, 0)))
    source._subscriptions.act_on(next(iter(source._subscriptions)), found)
    assert next(iter(source._subscriptions)).plan.parked == {3}
    assert next(iter(source._subscriptions)).plan.next_call(0) == [2]


async def test_values_that_are_too_large_are_found_and_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that no answer holds, and one that a fact does not hold, among seven. Their tags are tried again only on
    request."""
    source, audit, server = await audited(monkeypatch, dict.fromkeys(range(1, 8), (1.0, 0)))
    server.too_large, server.values[6] = {2, 3}, (None, BAD_ENCODING_LIMITS_EXCEEDED)
    (subscription,) = source._subscriptions
    found = await audit.too_large(subscription, source._delivery.points)
    assert sorted(found) == [2, 3, 6]
    source._subscriptions.park_too_large(subscription, found)
    assert subscription.plan.parked == {2, 3, 6}
    assert not subscription.plan.next_call(2**63 - 1)
    subscription.plan.retry()
    assert sorted(subscription.plan.next_call(0)) == [2, 3, 6]


async def test_the_last_sign_of_life_of_an_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is when a Read gave what was published, with its source time; or a value that was published since it was
    read; or the last value. The same value with another time proves nothing, since it may have changed and back."""
    source, audit, server = await audited(monkeypatch, {1: (1.0, 0), 2: (1.0, 0), 3: (3.0, 0), 4: (4.0, 0)})
    server.times_ns |= {1: S, 4: 10 * S}
    await looks(source, audit, 1)
    server.now = Moment(20 * S, 0)
    changes = DataChange(3, 3.0, 0, 9 * S, 9 * S), DataChange(4, 3.0, 0, 9 * S, 9 * S)  # of 4 not what was read
    await take(source, *changes)
    await source._deliver(source._buffer.get_nowait())
    assert await looks(source, audit, 1) == [NOTHING]
    server.values = dict.fromkeys(server.values, (5.0, 0))
    (_, found) = await looks(source, audit, 2)
    assert found.dead == [1, 2, 3, 4]
    assert found.since == {
        1: Moment(10 * S, 0),
        2: Moment(S, 0),
        3: Moment(10 * S, 0),
        4: Moment(9 * S, 0),
    }


async def test_a_tag_that_leaves_the_map_while_it_is_read_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler does not know it any more, and the life goes on."""
    source, audit, _ = await audited(monkeypatch, {1: (2.0, 0), 2: (1.0, 0)})
    points = source._delivery.points
    source._delivery.offer_map([tag(2)], [2])
    source._delivery.take_over_map(S)
    await audit.check(next(iter(source._subscriptions)), points)
    assert (await audit.check(next(iter(source._subscriptions)), points)).gone == {}


async def test_what_may_not_be_read_is_asked_for_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a call for tags that are denied, in turns, also those with a filter, until they have a value again; the
    other half for all."""
    source, audit, server = await audited(monkeypatch, dict.fromkeys(range(1, 8), (1.0, 0)), nodes_per_read=4)
    for n in (5, 6, 7):
        server.values[n] = (None, BAD_USER_ACCESS_DENIED)
    await take(source, *(DataChange(n, None, BAD_USER_ACCESS_DENIED, 2 * S, 2 * S) for n in (5, 6, 7)))
    await source._deliver(source._buffer.get_nowait())
    await looks(source, audit, 2)
    assert server.reads == [[5, 6, 1, 2], [7, 5, 3, 4]]
    server.values[6] = (3.0, 0)
    assert await looks(source, audit, 1) == [NOTHING]
    assert [found.dead for found in await looks(source, audit, 1)] == [[6]]
    await take(source, *(DataChange(n, 3.0, 0, 3 * S, 3 * S) for n in (5, 6, 7)))
    await source._deliver(source._buffer.get_nowait())
    await looks(source, audit, 1)
    assert next(iter(source._subscriptions)).denied == set()


async def test_an_item_that_is_created_again_while_it_is_suspected_is_no_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An edit of the tag map had its item created anew between the two Reads: the first value of that may be on its
    way."""
    source, audit, _ = await audited(monkeypatch, {1: (2.0, 0), 2: (2.0, 0)})
    (subscription,) = source._subscriptions
    await looks(source, audit, 1)
    subscription.plan.renew([1])
    subscription.plan.answered([1], [Created(0, 99)], 0)
    assert [found.dead for found in await looks(source, audit, 3)] == [[2], [], [1, 2]]


async def test_a_slow_read_leaves_the_values_their_time_to_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """That begins with the answer: what the Read gives may be younger than the question by a time-out."""
    source, audit, server = await audited(monkeypatch, {1: (2.0, 0)})
    monkeypatch.setattr(audit_module, "ARRIVES_S", 60.0)
    read, now_s = server.read_values, [1_000.0]
    monkeypatch.setattr(audit_module.time, "monotonic", lambda: now_s[0])

    async def read_slowly(*asked: Any) -> list[DataChange]:
        now_s[0] += 100.0
        return await read(*asked)

    monkeypatch.setattr(server, "read_values", read_slowly)
    assert await looks(source, audit, 2) == [NOTHING] * 2
    assert len(server.reads) == 1


async def test_a_server_whose_clock_proves_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers and sends keep-alives, publishes nothing, and has other values: the session ends."""
    source, audit, _ = await audited(monkeypatch, {1: (2.0, 0)})
    next(iter(source._subscriptions)).liveness.has_clock = False
    with pytest.raises(SourceLost, match="published no value"):
        await looks(source, audit, 3)


@pytest.mark.parametrize("refusal", [SourceLost("no answer in time"), CallTooLarge("too many")])
async def test_a_read_without_an_answer_makes_the_next_ones_smaller(
    refusal: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session goes on, since others prove its life; the smaller Reads find what the large one would have found. By
    and by they grow again: a server that was slow once is not audited slowly for ever."""
    source, audit, server = await audited(monkeypatch, dict.fromkeys(range(1, 9), (1.0, 0)), nodes_per_read=4)
    server.refusal, server.nodes_max = refusal, 1
    assert await looks(source, audit, 2) == [NOTHING] * 2
    assert [len(nodes) for nodes in server.reads] == [4, 2]
    server.values[7] = (2.0, 0)
    server.nodes_max = 3
    assert [found.dead for found in await looks(source, audit, 2)] == [[], [7]]
    await looks(source, audit, 5)
    assert max(len(nodes) for nodes in server.reads[2:]) == 4


@pytest.mark.parametrize(
    "deadband, published, within, beyond",
    [
        (0, Json.of([1, 2]), Json.of([1, 2]), Json.of([1, 3])),
        (0, Json.of({"speed": 1.5}), Json.of({"speed": 1.5}), Json.of({"speed": 2.5})),
        (0, "recipe " * 100, "recipe " * 100, "recipe " * 99),
        (0, b"image" * 100, b"image" * 100, b"image"),
        (0.5, 1.0, 1.5, 1.51),
        (0.5, 10, 10, 9),
        (0.5, Json.of([1.0, 2.0]), Json.of([1.5, 1.5]), Json.of([1.0, 2.6])),
        (0.5, Json.of([1.0]), Json.of([1.1]), Json.of([1.0, 1.0])),
        (0.5, "on", "on", "off"),
    ],
)
async def test_values_of_every_shape_are_compared(
    deadband: float, published: Value, within: Value, beyond: Value, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An array, a structure, a long text and bytes: a dead item of these is found as one of a number is. With a
    deadband only a move beyond it is missed, of a number and of any number in an array; another length is no matter of
    a deadband."""
    band = Monitoring(deadband=deadband) if deadband else AS_THE_SOURCE_SAYS
    source, audit, _ = await audited(monkeypatch, {1: (within, 0), 2: (beyond, 0)}, 0, published, band)
    assert [found.dead for found in await looks(source, audit, 2)] == [[], [2]]


async def test_what_a_filter_holds_back_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """How far a deadband in percent reaches is known to the server only: nothing is proven by another number, but by a
    node that is gone. An item that notifies a change of the status only has missed one if that is another."""
    percent = Monitoring(deadband=10, deadband_is_percent=True)
    source, audit, _ = await audited(monkeypatch, {1: (9.0, 0), 2: (None, BAD_NODE_ID_UNKNOWN)}, monitoring=percent)
    assert [(found.dead, [*found.gone]) for found in await looks(source, audit, 2)] == [([], []), ([], [2])]
    uncertain, overflowed = 0x4090_0000, 0x480
    values = {1: (9.0, 0), 2: (1.0, uncertain), 3: (9.0, overflowed)}
    source, audit, _ = await audited(monkeypatch, values, monitoring=Monitoring(trigger=Trigger.STATUS))
    assert [found.dead for found in await looks(source, audit, 2)] == [[], [2]]


async def test_long_values_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a slow line carries in some seconds, as they were published; one that is larger is read alone."""
    text = "x" * (audit_module.BYTES_MAX // 2)
    source, audit, server = await audited(monkeypatch, dict.fromkeys(range(1, 6), (text, 0)), published=text)
    await take(source, DataChange(4, text * 3, 0, 2 * S, 2 * S))
    await source._deliver(source._buffer.get_nowait())
    server.values[4] = text * 3, 0
    await looks(source, audit, 4)
    assert server.reads == [[1, 2], [3], [4], [5]]

"""A session whose server the test plays: it accepts subscriptions and items, and publishes what the test says."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable, Container, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from asyncua import ua

from agent.concurrency import TaskGroup
from agent.ingest.errors import SourceError, SourceLost
from agent.ingest.opcua.address import SERVER_CLOCK, Reading
from agent.ingest.opcua.decode import FILETIME_EPOCH, DataChange, DecodeError, Publication, decode_publication
from agent.ingest.opcua.security.client import SessionKey
from agent.ingest.opcua.session import (
    HEARTBEAT_HANDLE,
    CallTooLarge,
    Ending,
    ItemRequest,
    OpenedSubscription,
    PublishRefused,
    TooManySubscriptions,
)
from agent.ingest.opcua.subscriptions.item_plan import Created, ServerLimits
from agent.ingest.opcua.values.variant import ValueReader
from agent.ingest.source_clock import ServerClockReading

if TYPE_CHECKING:
    from agent.ingest.opcua.poll_source import OpcuaPollSource
    from agent.ingest.opcua.source import OpcuaSource


BAD_MESSAGE_NOT_AVAILABLE = 0x807B_0000


def answer(
    subscription_id: int, number: int, *values: tuple[int, float, int], publish_ns: int = 0, quality: int = 0
) -> bytes:
    """PublishResponse parameters: doubles as (handle, value, source time in ns), or a keep-alive without any."""
    filetime = publish_ns // 100 + FILETIME_EPOCH if publish_ns else 0
    if not values:
        return struct.pack("<IiBIqi", subscription_id, 0, 0, number, filetime, 0)
    variants = [(handle, struct.pack("<Bd", 11, value), time_ns) for handle, value, time_ns in values]
    return answer_of(subscription_id, number, *variants, filetime=filetime, quality=quality)


def answer_of(
    subscription_id: int, number: int, *values: tuple[int, bytes, int], filetime: int = 0, quality: int = 0
) -> bytes:
    """The same of Variants as their bytes: (handle, Variant, source time in ns)."""
    head = struct.pack("<IiBIq", subscription_id, 0, 0, number, filetime)
    items = b"".join(
        struct.pack("<IB", handle, 0x07) + variant + struct.pack("<Iq", quality, time_ns // 100 + FILETIME_EPOCH)
        for handle, variant, time_ns in values
    )
    return head + part(811, struct.pack("<i", len(values)) + items + struct.pack("<i", 0))


def status_change(subscription_id: int, number: int, status: int) -> bytes:
    """PublishResponse parameters with a StatusChangeNotification."""
    head = struct.pack("<IiBIq", subscription_id, 0, 0, number, 0)
    return head + part(820, struct.pack("<I", status) + b"\0")


def part(kind: int, body: bytes) -> bytes:
    """A list of one notification."""
    return struct.pack("<iBBHBi", 1, 1, 0, kind, 1, len(body)) + body


class FakeSession:
    """Satisfies what a source asks of a Session. `answers` are given to Publish requests in turn, bytes or errors."""

    def __init__(self, limits: ServerLimits = ServerLimits(), first_number: int = 0, **played: Any) -> None:  # noqa: B008 frozen
        """`played`: other attributes than these."""
        self.told_limits = limits
        self.lost: asyncio.Future[SourceLost] = asyncio.get_running_loop().create_future()
        self.answers: asyncio.Queue[bytes | Exception] = asyncio.Queue(maxsize=1_000)
        self.acks: list[tuple[int, int]] = []
        self.publishes_open = 0
        self.subscriptions: list[int] = []
        self.items: dict[int, dict[int, ItemRequest]] = {}  # by subscription and number
        self.asked: list[ItemRequest] = []
        self.refusals: dict[Any, int] = {}  # by identifier of the node and index range
        self.revised: tuple[float, int] | None = None
        self.held: dict[tuple[int, int], bytes] = {}
        self.unheld = BAD_MESSAGE_NOT_AVAILABLE  # what it answers for others
        self.republished = 0  # requests
        self.has_clock = True
        self.has_no_ranges = False
        self.clock_ms, self.publishing_ms = 1_000.0, 500.0  # as the server revised them
        self.slower = 1.0  # keep-alives than asked for
        self.values: dict[Any, tuple[Any, int, int, int]] = {}  # what a Read gives: value, status, both times
        self.reads: list[int] = []
        self.nodes_per_read = 1_000
        self.malformed: set[Any] = set()  # nodes whose value cannot be read
        self.too_large: set[Any] = set()
        self.start: object = "today"
        self.shows_ns = None
        self.url, self.level = "opc.tcp://plc", 255
        self.library = self  # whose `ending` and `creating` these are
        self.ending = Ending.CLOSE
        self.creating = 0
        self.is_reactivated, self.is_connected = False, True
        self.refuses_key = False
        self.transfers: list[list[int]] = []
        self.transfer_statuses: dict[int, int] = {}  # by subscription; without it a transfer is good
        self.deleted: list[int] = []
        self.is_mute = False  # does not answer a transfer
        self.items_in_time = 1_000  # that one call creates before it times out
        self.room = 1_000  # for subscriptions
        self.key = SessionKey(ua.NodeId(), None, (), 30_000)
        self._number = first_number
        for name, value in played.items():
            assert hasattr(self, name)
            setattr(self, name, value)

    def says(self, *answers: bytes | Exception) -> None:
        """Give these to the next Publish requests."""
        for found in answers:
            self.answers.put_nowait(found)

    @property
    def shows_ns(self) -> int | None:
        """Its clock, where it is read; it goes on from what it was set to."""
        return None if self._set_ns is None else time.monotonic_ns() - self._set_ns

    @shows_ns.setter
    def shows_ns(self, now_ns: int | None) -> None:
        self._set_ns = None if now_ns is None else time.monotonic_ns() - now_ns

    async def server_start(self) -> object:
        return self.start

    async def service_level(self) -> int:
        return self.level

    async def clock_ns(self) -> int | None:
        return self.shows_ns

    async def transfer_subscriptions(self, numbers: Sequence[int]) -> list[int]:
        self.transfers.append(list(numbers))
        if self.is_mute:
            await asyncio.Event().wait()
        return [self.transfer_statuses.get(number, 0) for number in numbers]

    async def delete_subscription(self, subscription_id: int) -> None:
        self.deleted.append(subscription_id)

    async def limits(self) -> ServerLimits:
        return self.told_limits

    async def namespaces(self) -> list[str]:
        return ["urn:x"]

    async def create_subscription(self) -> OpenedSubscription:
        if len(self.subscriptions) == self.room:
            raise TooManySubscriptions("no room")
        self._number += 1
        self.subscriptions.append(self._number)
        self.items[self._number] = {}
        return OpenedSubscription(self._number, self.publishing_ms, self.slower)

    async def create_heartbeat(self, _: int) -> Created:
        return Created(0 if self.has_clock else 0x803A_0000, sampling_ms=self.clock_ms)

    async def create_items(self, subscription_id: int, items: Sequence[ItemRequest]) -> list[Created]:
        self.asked += items
        if len(items) > self.items_in_time:
            raise SourceLost("no answer in time") from TimeoutError()
        return [self._create(subscription_id, item) for item in items]

    def _create(self, subscription_id: int, item: ItemRequest) -> Created:
        assert 1 <= item.handle < HEARTBEAT_HANDLE
        if status := self.refusals.get((item.address.identifier, item.index_range)):
            return Created(status)
        self._number += 1
        self.items[subscription_id][self._number] = item
        sampling_ms, queue = self.revised or (item.sampling_ms, item.queue_size)
        return Created(0, self._number, sampling_ms, queue)

    async def delete_items(self, subscription_id: int, items: Sequence[int]) -> None:
        for number in items:
            del self.items[subscription_id][number]

    async def publish(self, acks: Sequence[tuple[int, int]]) -> bytes:
        self.acks += acks
        self.publishes_open += 1
        try:
            found = await self.answers.get()
        finally:
            self.publishes_open -= 1
        if isinstance(found, Exception):
            raise found
        return found

    async def decode(self, body: bytes, elements: Container[int] = ()) -> Publication:
        return decode_publication(body, ValueReader(), elements)

    async def ignores_ranges(self) -> bool:
        return self.has_no_ranges

    async def republish(self, subscription_id: int, number: int) -> bytes | int:
        self.republished += 1
        assert self.republished < 100, "asked again without end"
        return self.held.get((subscription_id, number), self.unheld)

    async def read_clock(self) -> ServerClockReading:
        self._values_of([SERVER_CLOCK])
        return self.reads_ns()

    async def read_values(self, readings: Sequence[Reading], _: Sequence[str]) -> list[DataChange]:
        return self._values_of(readings)

    def _values_of(self, readings: Sequence[Reading]) -> list[DataChange]:
        self.reads.append(len(readings))
        nodes = [(reading.address.identifier, reading.index_range) for reading in readings]
        if len(readings) > self.nodes_per_read or self.too_large.intersection(nodes):
            raise CallTooLarge("too many, or too long")
        if self.malformed.intersection(nodes):
            raise DecodeError("malformed")
        values = {(SERVER_CLOCK.address.identifier, ""): ("now", 0, 0, 0), **self.values}
        return [DataChange(n, *values[node]) for n, node in enumerate(nodes)]

    def reads_ns(self) -> ServerClockReading:
        now_ns = self.shows_ns or time.time_ns()
        return ServerClockReading(now_ns, now_ns)

    def handles(self, subscription_id: int) -> set[int]:
        """What is monitored in a subscription."""
        return {item.handle for item in self.items[subscription_id].values()}


NO_SUBSCRIPTION, TOO_MANY_REQUESTS = PublishRefused(0x8079_0000), PublishRefused(0x8078_0000)


def opening(session: FakeSession) -> Any:
    """In the place of `open_session`."""

    @asynccontextmanager
    async def opened(_: object, key: SessionKey | None = None) -> AsyncIterator[FakeSession]:
        session.is_reactivated = key is not None and not session.refuses_key
        yield session

    return opened


@contextmanager
def opens(source: OpcuaSource | OpcuaPollSource, session: FakeSession) -> Iterator[None]:
    """The source gets this session in the block."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(f"{type(source).__module__}.open_session", opening(session))
        yield


@asynccontextmanager
async def living(
    source: OpcuaSource | OpcuaPollSource,
    session: FakeSession | None = None,
    on_up: Callable[[], None] = lambda: None,
    **played: Any,
) -> AsyncIterator[FakeSession]:
    """The source lives with this session for the length of a block, or with a new one that is played so."""
    session = session or FakeSession(**played)
    async with TaskGroup() as group:
        with opens(source, session):
            life = group.create_task(source.run(on_up), name="life")
            try:
                yield session
            finally:
                life.cancel()


async def death(
    source: OpcuaSource | OpcuaPollSource,
    session: FakeSession,
    why: str | None = None,
    error: type[SourceError] = SourceLost,
    on_up: Callable[[], None] = lambda: None,
) -> None:
    """The life of the source with this session ends by itself, and says so."""
    expected = pytest.RaisesGroup(pytest.RaisesExc(error, match=why), allow_unwrapped=True, flatten_subgroups=True)
    with opens(source, session), expected:
        await source.run(on_up)

"""An OPC UA server of two nodes that change and seven others, with random faults until it `recovers`: it refuses
sessions and items, ends, loses and repeats what it should not, and answers late. All is drawn from one seed."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

from agent.ingest import quality
from agent.ingest.errors import SourceBusy, SourceLost
from agent.ingest.opcua.address import Reading
from agent.ingest.opcua.decode import DataChange, DecodeError
from agent.ingest.opcua.security.client import SessionKey
from agent.ingest.opcua.session import HEARTBEAT_HANDLE, CallTooLarge, ItemRequest, PublishRefused
from agent.ingest.opcua.subscriptions.item_plan import Created, ServerLimits
from tests.ingest.opcua.fake_session import BAD_MESSAGE_NOT_AVAILABLE, FakeSession, answer, status_change

JUDGED = (1, 2)  # nodes whose every value is known
OTHERS = range(3, 10)
BAD_SUBSCRIPTION_ID_INVALID = 0x8028_0000
REFUSALS = quality.BAD_NODE_ID_UNKNOWN, quality.BAD_NOT_READABLE, quality.BAD_TOO_MANY_MONITORED_ITEMS
ENDS = quality.BAD_TIMEOUT, BAD_SUBSCRIPTION_ID_INVALID
PUBLISH_REFUSALS = quality.BAD_TIMEOUT, 0x8078_0000  # BadTooManyPublishRequests
VALUELESS = quality.GONE | {quality.BAD_WAITING_FOR_INITIAL_DATA}  # of a lost tag, these say nothing new
# Of values; the last two are the overflow of a queue, and uncertain.
QUALITIES = (*sorted(VALUELESS), quality.BAD_USER_ACCESS_DENIED, quality.BAD_NOT_READABLE, 0x480, 0x4094_0000)


class FaultyServer:
    """`truth` has the values of the judged nodes by node and time, without those that were published as none."""

    def __init__(self, random: Random) -> None:
        self.random, self.is_faulty = random, True
        self.session: FaultySession | None = None
        self.truth: dict[tuple[int, int], float] = {}
        self.value = 0.0
        self.ended = set[int]()  # subscriptions
        self._sessions = 0
        self._numbers: dict[int, int] = defaultdict(lambda: 1)
        self._queues: dict[int, list[tuple[int, ItemRequest, float, int]]] = defaultdict(list)  # by subscription

    def happens(self, probability: float) -> bool:
        """Whether a fault of this probability happens now."""
        return self.is_faulty and self.random.random() < probability

    async def pause(self, *seconds: float) -> None:
        """Takes one of these times to answer."""
        await asyncio.sleep(self.random.choice(seconds) if self.is_faulty else 0)  # tidy: virtual time

    def recover(self) -> None:
        """From now on all is well; a last time, the connection breaks."""
        self.is_faulty = False
        if self.session is not None:
            self.session.refusals, self.session.transfer_statuses = {}, {}
            self.session.told_limits = ServerLimits()
            self.session.breaks("the last time")

    @asynccontextmanager
    async def open_session(self, _: object, key: SessionKey | None = None) -> AsyncIterator[FakeSession]:
        """In the place of the product's."""
        if self.happens(0.15):
            await self.pause(0.0, 0.2, 0.9)
            raise self.random.choice([SourceLost("no connection"), SourceBusy("no room")])
        old = self.session
        is_kept = key is not None and old is not None and not self.happens(0.4)
        self.session = session = old.reactivated() if is_kept and old is not None else self._new_session(old)
        try:
            yield session
        finally:
            session.is_connected = False

    def _new_session(self, old: "FaultySession | None") -> "FaultySession":
        """A session that may be given the subscriptions of the old one."""
        self._sessions += 1
        session = FaultySession(self, first_number=self._sessions * 100, start=f"start {self._sessions}", room=1_000)
        if old is not None and self.random.random() < 0.5:
            session.start = old.start
            if self.random.random() < 0.6:
                session.items, session.subscriptions = old.items, list(old.subscriptions)
            statuses = [0, BAD_SUBSCRIPTION_ID_INVALID] if self.is_faulty else [0]
            session.transfer_statuses = {number: self.random.choice(statuses) for number in old.subscriptions}
        if self.random.random() < 0.3:
            session.revised = self.random.choice([0.0, 50.0, 1_000.0]), self.random.choice([0, 1, 2, 5, 100])
        if self.is_faulty:
            session.told_limits = ServerLimits(
                items_per_subscription=self.random.choice([0, 0, 3]), items_per_call=self.random.choice([0, 2])
            )
        return session

    def change_values(self) -> None:
        """The judged nodes change, and the queues of all items have the new value."""
        self.value, now_ns = self.value + 1, time.time_ns()
        self.truth |= {(node, now_ns): self.value for node in JUDGED}
        for subscription, items in self.session.items.items() if self.session is not None else ():
            if subscription not in self.ended:
                self._queues[subscription] += [(n, item, self.value, now_ns) for n, item in items.items()]

    def publish(self) -> None:
        """Each subscription publishes, or does what it should not."""
        if self.session is None or not self.session.is_connected or self.session.answers.qsize() > 900:
            return
        for subscription in set(self.session.items) - self.ended:
            fault = self.random.random() if self.is_faulty else 0.0
            if fault < 0.75:
                self._publish_values(self.session, subscription)
            else:
                self._misbehave(self.session, subscription, fault)

    def _publish_values(self, session: "FaultySession", subscription: int) -> None:
        now_ns, number, items = time.time_ns(), self._numbers[subscription], session.items[subscription]
        values = [
            (item, value, time_ns) for n, item, value, time_ns in self._queues.pop(subscription, []) if n in items
        ]
        status = self.random.choice(QUALITIES) if self.happens(0.15) else 0
        if status in VALUELESS:
            for item, _, time_ns in values:
                self.truth.pop((item.address.identifier, time_ns), None)
        changes = [(item.handle, value, time_ns) for item, value, time_ns in values]
        heartbeat = HEARTBEAT_HANDLE, float(now_ns), now_ns
        body = answer(subscription, number, *changes, heartbeat, publish_ns=now_ns, quality=status)
        self._numbers[subscription] += 1
        if self.happens(0.1):  # it is lost
            if self.happens(0.5):
                session.held[subscription, number] = body
            return
        session.says(body)
        if self.happens(0.1):
            session.says(body)

    def _misbehave(self, session: "FaultySession", subscription: int, fault: float) -> None:
        number = self._numbers[subscription]
        if fault < 0.85:  # it is late, or sends a keep-alive, which says that nothing is queued
            if not self._queues[subscription]:
                session.says(answer(subscription, number))
        elif fault < 0.90:
            session.says(status_change(subscription, number, self.random.choice(ENDS)))
            self._numbers[subscription] += 1
            self.ended.add(subscription)
        elif fault < 0.94:
            session.says(PublishRefused(self.random.choice(PUBLISH_REFUSALS)))
        elif fault < 0.97:
            session.says(answer(100_000 + number, number, (1, 1.0, time.time_ns())))  # of no known subscription
        else:
            session.breaks("cut")


class FaultySession(FakeSession):
    """One session with it."""

    def __init__(self, server: FaultyServer, **played: object) -> None:
        super().__init__(**played)  # type: ignore[arg-type]
        self.server = server

    def reactivated(self) -> "FaultySession":
        """The same in another connection, of a server that may have been started again."""
        self.is_reactivated = self.is_connected = True
        self.lost = asyncio.get_running_loop().create_future()
        self.answers = asyncio.Queue(maxsize=1_000)
        if self.server.happens(0.1):
            self.start = "restarted"
        return self

    def breaks(self, why: str) -> None:
        """The connection does."""
        if not self.lost.done():
            self.lost.set_result(SourceLost(why))

    async def create_items(self, subscription_id: int, items: Sequence[ItemRequest]) -> list[Created]:
        if subscription_id not in self.items:
            raise SourceLost("BadSubscriptionIdInvalid")
        if self.server.happens(0.05):
            raise CallTooLarge("too many")
        if self.server.happens(0.03):
            raise SourceLost("slow") from TimeoutError()
        created = await super().create_items(subscription_id, items)
        await self.server.pause(0.0, 0.0, 0.1, 0.6)
        return created

    async def delete_items(self, subscription_id: int, items: Sequence[int]) -> None:
        for number in items:
            self.items.get(subscription_id, {}).pop(number, None)
        await self.server.pause(0.0, 0.3)

    async def create_heartbeat(self, subscription_id: int) -> Created:
        await self.server.pause(0.0, 0.2)
        return await super().create_heartbeat(subscription_id)

    async def delete_subscription(self, subscription_id: int) -> None:
        self.items.pop(subscription_id, None)

    async def republish(self, subscription_id: int, number: int) -> bytes | int:
        unheld = (BAD_MESSAGE_NOT_AVAILABLE, BAD_SUBSCRIPTION_ID_INVALID)[: 1 + self.server.is_faulty]
        return self.held.get((subscription_id, number), self.server.random.choice(unheld))

    async def read_values(self, readings: Sequence[Reading], _: Sequence[str]) -> list[DataChange]:
        await self.server.pause(0.0, 0.2)
        if self.server.happens(0.1):
            raise self.server.random.choice([CallTooLarge("too many"), DecodeError("malformed"), SourceLost("slow")])
        status = self.server.random.choice(QUALITIES) if self.server.happens(0.5) else 0
        value = 1.0 if self.server.happens(0.5) else self.server.value
        return [DataChange(n, value, status, time.time_ns(), 0) for n, _ in enumerate(readings)]

    async def clock_ns(self) -> int:
        return time.time_ns()

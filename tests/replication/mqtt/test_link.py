"""The permanent link to a broker, over connections that the test makes and breaks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from agent.replication.mqtt import link as link_module
from agent.replication.mqtt.carrier import Access
from agent.replication.mqtt.link import REFUSALS_UNTIL_ERROR, BrokerLink
from agent.replication.pki import PkiError
from agent.replication.protocol.errors import BrokerUnreachable, ConnectionLost, ConnectionRefused, ReplicationError
from tests.waiting import LIMIT_S, wait_until_async

ACCESS = Access("b", "idmz", "host", 1, lambda: None)  # type: ignore[arg-type, return-value]


class Standing:
    """A connection that stays until the test ends it."""

    def __init__(self, broker: "Broker") -> None:
        self.closed = asyncio.get_running_loop().create_future()
        self.broker = broker
        self.is_closed = False

    async def subscribe(self, topics: Sequence[str]) -> list[str]:
        self.broker.happened.append("subscribed")
        if self.broker.subscribing is not None:
            await self.broker.subscribing
        assert topics
        return []

    async def close(self) -> None:
        self.is_closed = True


class Broker:
    """The results of `MqttConnection.open`, one attempt after the other: an error, or a connection."""

    def __init__(self, *attempts: ReplicationError | None) -> None:
        self.attempts = list(attempts)
        self.connections = list[Standing]()
        self.happened = list[str]()
        self.subscribing: asyncio.Future[None] | None = None
        self.tries = list[int]()  # as passed to each back-off

    async def open(self, *_: Any) -> Standing:
        error = self.attempts.pop(0) if self.attempts else None
        if error is not None:
            self.happened.append("refused")
            raise error
        self.connections.append(Standing(self))
        return self.connections[-1]

    def drop(self) -> None:
        """End the first connection."""
        self.connections[0].closed.set_result(ConnectionLost("b", "gone"))

    async def wait_second(self) -> None:
        """Wait for the second connection."""
        await wait_until_async(lambda: len(self.connections) == 2, "the second connection")


def after_each_failure(link: BrokerLink, look: Callable[[], None]) -> None:
    """Look at the link whenever it has noted a failure."""
    note_failure = link._history.failed

    def noted(error: ReplicationError) -> None:
        note_failure(error)
        look()

    link._history.failed = noted  # type: ignore[method-assign]


@contextlib.asynccontextmanager
async def running(monkeypatch: pytest.MonkeyPatch, broker: Broker, identity: Any = None) -> AsyncIterator[BrokerLink]:
    """A link at this broker, which notes what its watchers are told."""

    def backoff_ms(_least_ms: int, _most_ms: int, count: int, _chance: float) -> int:
        broker.tries.append(count)
        return 0

    monkeypatch.setattr(link_module, "backoff_ms", backoff_ms)
    monkeypatch.setattr(link_module.MqttConnection, "open", broker.open)
    link = BrokerLink(ACCESS, identity=identity)
    link.route("bsfg/1/plant-a/idmz/rsp/0/1", lambda _: None)
    link.watch(lambda: None, lambda _: None)  # of another peer
    link.watch(lambda: broker.happened.append("up"), lambda reason: broker.happened.append(f"down: {reason}"))
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        task = group.create_task(link.run(), name="link")
        yield link
        task.cancel()


async def test_back_off_grows_until_a_session_is_established(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each failure makes the next wait longer; an established session resets the back-off."""
    away = BrokerUnreachable("b", "away")
    broker = Broker(away, away, away, None, away, None)
    async with running(monkeypatch, broker) as link:
        await link.wait_up()
        broker.drop()
        await broker.wait_second()
        await link.wait_up()
        assert link.statistics().connects == 2
        assert link.statistics().failures == 4
    assert broker.tries == [0, 1, 2, 0, 1]


async def test_users_of_a_link_are_notified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watchers are called after each connect once its topics are subscribed, and at its end with the reason."""
    broker = Broker()
    async with running(monkeypatch, broker) as link:
        broker.subscribing = asyncio.get_running_loop().create_future()
        await wait_until_async(lambda: broker.happened == ["subscribed"], "the subscription")
        assert not link.statistics().is_up
        broker.subscribing.set_result(None)
        await link.wait_up()
        assert broker.happened == ["subscribed", "up"]
        broker.drop()
        await wait_until_async(lambda: len(broker.happened) > 2, "the loss")
        assert broker.happened[2].startswith("down: ")
        assert "gone" in broker.happened[2]
        assert broker.connections[0].is_closed


async def test_waiting_for_a_link_waits_while_it_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the loss of a connection until the next one is subscribed. Who begins to watch then is notified at once."""
    broker = Broker()
    async with running(monkeypatch, broker) as link:
        await link.wait_up()
        broker.subscribing = asyncio.get_running_loop().create_future()
        broker.drop()
        await broker.wait_second()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(link.wait_up())
            await asyncio.sleep(0)
            assert not waiting.done()
            broker.subscribing.set_result(None)
        late = list[str]()
        link.watch(lambda: late.append("up"), late.append)
        assert late == ["up"]


async def test_each_outage_is_counted_and_logged_for_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Refusals of two outages do not add up to a broker that needs a person. The reason of an outage is logged once,
    and again in the next."""
    refused = ConnectionRefused("b", "no")
    broker = Broker(*[refused] * (REFUSALS_UNTIL_ERROR - 1), None, refused, None)
    async with running(monkeypatch, broker) as link:
        await link.wait_up()
        broker.drop()
        await broker.wait_second()
    messages = [record.message for record in caplog.records]
    assert messages.count("broker_unreachable") == 2
    assert "broker_refuses_us" not in messages


async def test_a_broker_that_refuses_us_needs_a_person(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Several refusals in a row need a person, which is logged once; a single refusal does not, and an unreachable
    broker does not."""
    refused = ConnectionRefused("b", "no")
    broker = Broker(*[refused] * (REFUSALS_UNTIL_ERROR + 1), BrokerUnreachable("b", "away"))
    needs = list[tuple[int, bool]]()
    async with running(monkeypatch, broker) as link:
        after_each_failure(link, lambda: needs.append((link.statistics().failures, link.statistics().needs_person)))
        await link.wait_up()
    assert needs == [(1, False), (2, False), (3, True), (4, True), (5, False)]
    assert [record.message for record in caplog.records].count("broker_refuses_us") == 1


async def test_an_identity_that_was_mended_needs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unusable files need a person until they are mended: not if the broker is away next, and not at the first loss of
    the connection made with them."""
    unusable = PkiError("the certificate expired", "renew it")
    broker = Broker(unusable, BrokerUnreachable("b", "away"), unusable, None)
    needs = list[bool]()
    async with running(monkeypatch, broker) as link:
        look = lambda *_: needs.append(link.statistics().needs_person)  # noqa: E731
        after_each_failure(link, look)
        link.watch(look, look)
        await link.wait_up()
        broker.drop()
        await wait_until_async(lambda: len(needs) >= 5, "the loss")
    assert needs[:5] == [True, False, True, False, False]


async def test_a_command_leaves_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection of a command is closed when the command is done, and when it fails."""
    broker = Broker()
    monkeypatch.setattr(link_module.MqttConnection, "open", broker.open)
    for error in (None, ValueError("the command failed")):
        link = BrokerLink(ACCESS)
        link.route("bsfg/1/plant-a/idmz/rsp/0/1", lambda _: None)
        with contextlib.suppress(ValueError):
            async with link.connected():
                assert not broker.connections[-1].is_closed
                if error is not None:
                    raise error
        assert link.connection is None
    assert [connection.is_closed for connection in broker.connections] == [True, True]


class Offering:
    """An identity that offers a new version when the test says so."""

    trouble, ends = "", None

    def __init__(self) -> None:
        self.is_offered = False
        self.on_offer: Callable[[], None] = lambda: None
        self.said = list[str]()

    def offer(self) -> None:
        self.is_offered = True
        self.on_offer()

    def accepted(self) -> None:
        self.said.append("accepted")
        self.is_offered = False

    def refused(self, _why: str) -> None:
        self.said.append("refused")
        self.is_offered = False


@pytest.mark.parametrize("error", [ConnectionRefused("b", "unknown"), BrokerUnreachable("b", "full")])
async def test_a_new_identity_takes_over_only_when_the_broker_accepts_it(
    monkeypatch: pytest.MonkeyPatch, error: ReplicationError
) -> None:
    """The new identity is tried on a second connection; the present connection is closed only when the broker has
    accepted the new one. A broker that cannot be reached has not refused it."""
    broker, identity = Broker(None, error, None), Offering()
    is_refused = isinstance(error, ConnectionRefused)
    async with running(monkeypatch, broker, identity) as link:
        await link.wait_up()
        identity.offer()
        await wait_until_async(lambda: not broker.attempts[:-1], "the attempt")
        await asyncio.sleep(0)
        assert identity.said == ["accepted", "refused"][: 1 + is_refused]
        assert identity.is_offered is not is_refused
        for _ in range(5):
            await asyncio.sleep(0)
        assert link.connection is broker.connections[0]  # type: ignore[comparison-overlap]
        assert not broker.connections[0].is_closed
        identity.offer()
        await broker.wait_second()
        await wait_until_async(lambda: link.connection is broker.connections[1], "the change")  # type: ignore[comparison-overlap]
        assert broker.connections[0].is_closed


async def test_a_connection_that_breaks_while_a_new_identity_is_refused_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twice: the broker that drops the connection in use also refuses the new identity. The link notices both and
    connects again."""

    class Breaking(Broker):
        async def open(self, *given: Any) -> Standing:
            if self.attempts[:1] != [None]:
                self.connections[-1].closed.set_result(ConnectionLost("b", "reset"))
                await asyncio.sleep(0)
            return await super().open(*given)

    refused = ConnectionRefused("b", "unknown")
    broker, identity = Breaking(None, refused, None, refused, None), Offering()
    async with running(monkeypatch, broker, identity) as link:
        for count in (1, 2):
            await link.wait_up()
            identity.offer()
            await wait_until_async(lambda: len(broker.connections) == count + 1, "a new connection", 5)  # noqa: B023
    assert broker.happened.count("down: " + str(ConnectionLost("b", "reset"))) == 2

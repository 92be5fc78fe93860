"""Link and requester decide to whom an answer is delivered: only on its own topic, with its own correlation, once, in
time.

The connection is replaced by one that records what is published; everything above it is the product's.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from agent.replication.mqtt import requester
from agent.replication.mqtt.carrier import Access, Incoming
from agent.replication.mqtt.link import BrokerLink
from agent.replication.mqtt.requester import ATTEMPTS, REQUESTS_KNOWN_MAX, PeerReply, Requester, ask_once, converse
from agent.replication.mqtt.transport import MqttConnection
from agent.replication.protocol.codec import (
    ANSWER_BYTES_MAX,
    ArrivedAnswer,
    RefusesMessage,
    accept_every_message,
    encode_error,
    encode_heartbeat,
)
from agent.replication.protocol.errors import (
    ConnectionLost,
    MalformedMessage,
    PeerRefused,
    TransportError,
    UnprovenAnswer,
)
from agent.replication.protocol.messages import (
    AcquireLease,
    ConfirmReceipt,
    FetchFacts,
    GetBounds,
    ListStreams,
    Request,
    StreamsAnswer,
    UnregisterConsumer,
)
from agent.replication.protocol.topics import request_topic, response_topic, subscription_to
from agent.signing.messages import MessagePlace, split_request
from agent.signing.records import RecordSigner
from tests.replication.answers import encode_answer
from tests.replication.simulation.trust import signer_of

LIFE = "0" * 32


class Published(NamedTuple):
    """A request as published to the broker."""

    topic: str
    response_topic: str
    correlation: bytes
    expiry_s: int
    payload: bytes


class RecordingConnection:
    """Takes the place of `MqttConnection`: acknowledges each request at once and records it."""

    def __init__(self, on_message: Callable[[Incoming], None]) -> None:
        self.deliver = on_message
        self.published: list[Published] = []
        self.subscribed: list[str] = []
        self.closed: asyncio.Future[TransportError] = asyncio.get_running_loop().create_future()

    async def subscribe(self, topics: list[str]) -> list[str]:
        self.subscribed += topics
        return []

    async def close(self) -> None:
        pass

    def publish_request(
        self, topic: str, payload: bytes, response_topic: str, correlation: bytes, expiry_s: int
    ) -> asyncio.Future[None]:
        self.published.append(Published(topic, response_topic, correlation, expiry_s, payload))
        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        acknowledged.set_result(None)
        return acknowledged


class Scene(NamedTuple):
    """A requester of zone idmz that asks plant-a, over a recorded connection."""

    requester: Requester
    connection: RecordingConnection

    def deliver(self, sent: Published, payload: bytes, **change: Any) -> None:
        """Deliver an answer to `sent`, with these fields changed, as the broker does."""
        incoming = Incoming(sent.response_topic, payload, None, sent.correlation, None, is_retained=False)
        self.connection.deliver(incoming._replace(**change))

    @property
    def unsolicited(self) -> int:
        return self.requester.link.statistics().unsolicited

    async def ask(
        self, timeout_s: float = 5.0, request: Request | None = None
    ) -> tuple[asyncio.Task[PeerReply], Published]:
        """An open request, and what was published for it."""
        known = len(self.connection.published)
        asking = asyncio.get_running_loop().create_task(self.requester.ask(request or ListStreams(), timeout_s))
        await asyncio.sleep(0)
        assert len(self.connection.published) == known + 1
        return asking, self.connection.published[-1]


def answer_of(zone: str = "plant-a") -> bytes:
    """A good answer to ListStreams."""
    return encode_answer(StreamsAnswer(store_zone=zone, life=LIFE, streams=[]), [])


@contextlib.asynccontextmanager
async def play(
    monkeypatch: pytest.MonkeyPatch, refuses: RefusesMessage = accept_every_message, signer: RecordSigner | None = None
) -> AsyncIterator[Scene]:
    """Run a scenario while the link is connected."""
    opened: list[RecordingConnection] = []

    async def open_(_access: Access, on_message: Callable[[Incoming], None]) -> RecordingConnection:
        opened.append(RecordingConnection(on_message))
        return opened[-1]

    monkeypatch.setattr(MqttConnection, "open", open_)
    link = BrokerLink(
        Access("site", "idmz", "localhost", 8883, lambda: pytest.fail("no TLS is needed"), lambda: signer)
    )
    requester = Requester(link, "plant-a", refuses)
    async with link.connected():
        yield Scene(requester, opened[0])


async def test_an_answer_is_delivered_to_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request goes to the peer's topic; two open requests get their own answers, in any order."""
    async with play(monkeypatch) as scene:
        (first, first_request), (second, second_request) = await scene.ask(), await scene.ask()
        assert first_request.topic == second_request.topic == request_topic("plant-a", "idmz")
        assert scene.connection.subscribed == [subscription_to(first_request.response_topic)]
        assert first_request.response_topic.startswith("bsfg/1/plant-a/idmz/rsp/")
        assert first_request.correlation != second_request.correlation
        scene.deliver(second_request, answer_of("second"))
        scene.deliver(first_request, answer_of("first"))
        assert ((await first).answer.store_zone, (await second).answer.store_zone) == ("first", "second")
        assert (await first).bytes == len(answer_of("first"))
        assert scene.unsolicited == 0


async def test_what_changes_something_at_the_peer_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each such request carries a proof of this node's key, and a request that only reads carries none."""
    changing = [
        FetchFacts(consumer_name="c", limit=1),
        ConfirmReceipt(consumer_name="c", offset=1, life="0" * 32),
        UnregisterConsumer(consumer_name="c", lease=1),
        AcquireLease(stream="facts.operational", producer="p"),
    ]
    async with play(monkeypatch, signer=signer_of("idmz")) as scene:
        for request in (*changing, ListStreams(), GetBounds(stream="facts.operational")):
            scene.requester.send(request, lambda _: None, 1)
    proofs = [split_request(request.payload)[1] for request in scene.connection.published]
    assert [proof is not None for proof in proofs] == [True] * len(changing) + [False, False]


@pytest.mark.parametrize(
    "change",
    [
        {"topic": response_topic("plant-b", "idmz", "other")},
        {"topic": response_topic("plant-a", "enterprise", "other")},
        {"topic": request_topic("plant-a", "idmz")},
        {"correlation": b"x" * 16},
        {"correlation": b""},
        {"correlation": None},
        {"is_retained": True},
    ],
    ids=str,
)
async def test_a_foreign_answer_is_not_delivered(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]) -> None:
    """An answer on another zone's topic, with another correlation, or retained, is counted, and the request stays
    open."""
    async with play(monkeypatch) as scene:
        asking, sent = await scene.ask()
        scene.deliver(sent, answer_of("foreign"), **change)
        await asyncio.sleep(0)
        assert not asking.done()
        assert scene.unsolicited == 1
        scene.deliver(sent, answer_of())
        assert (await asking).answer.store_zone == "plant-a"


async def test_an_answer_is_delivered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated answer is counted as unsolicited and does not reach the next request."""
    async with play(monkeypatch) as scene:
        first, request = await scene.ask()
        scene.deliver(request, answer_of("first"))
        scene.deliver(request, answer_of("again"))
        assert (await first).answer.store_zone == "first"
        assert scene.unsolicited == 1


async def test_a_late_answer_does_not_reach_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time-out a request is over: its answer has no effect, and the next request waits for its own."""
    async with play(monkeypatch) as scene:
        late, request = await scene.ask(timeout_s=0.001)
        with pytest.raises(TransportError, match="no answer in") as raised:
            await late
        assert raised.value.retryable
        following, two = await scene.ask()
        scene.deliver(request, answer_of("late"))
        await asyncio.sleep(0)
        assert not following.done()
        scene.deliver(two, answer_of("in-time"))
        assert (await following).answer.store_zone == "in-time"


async def test_a_fetch_has_the_time_that_it_may_wait_for_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the time for its answer, for which it may wait a while longer than the peer; and it lives at the broker as
    long as its answer counts."""
    async with play(monkeypatch) as scene:
        asking, sent = await scene.ask(0.0, FetchFacts(consumer_name="idmz.x", limit=1, wait_ms=20_000))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not asking.done()
        assert sent.expiry_s == 21
        scene.deliver(sent, answer_of())
        assert (await asking).answer.store_zone == "plant-a"


async def test_a_heartbeat_reaches_the_requests_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no correlation of its own. A repeated or retained one, and anything else without a correlation, reaches no
    request that it does not name."""
    async with play(monkeypatch) as scene:
        heard, waits = list[int](), FetchFacts(consumer_name="idmz.x", limit=1, wait_ms=20_000)
        for number in range(3):
            scene.requester.send(waits, lambda _: pytest.fail("no answer"), 5, partial(heard.append, number))
        first, _, third = scene.connection.published
        named = encode_heartbeat([first.correlation, third.correlation, bytes(16)])
        for payload, is_retained in ((named, False), (named, True), (b"[]", False), (b"\0" * 5_000, False)):
            scene.deliver(first, payload, correlation=b"", is_retained=is_retained)
        assert heard == [0, 2]
        assert scene.unsolicited == 3


async def test_the_oldest_open_requests_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than REQUESTS_KNOWN_MAX requests are remembered; the answer to a forgotten one is unsolicited."""
    async with play(monkeypatch) as scene:
        answers: list[ArrivedAnswer] = []
        for _ in range(REQUESTS_KNOWN_MAX + 1):
            scene.requester.send(ListStreams(), answers.append, 5)
        oldest, second, *_ = scene.connection.published
        scene.deliver(oldest, b"forgotten")
        scene.deliver(second, b"known")
        assert [answer.payload for answer in answers] == [b"known"]
        assert scene.unsolicited == 1


@pytest.mark.parametrize("size", [ANSWER_BYTES_MAX + 1, 3], ids=["too large", "too small"])
async def test_an_answer_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """A payload larger than any answer of the protocol is refused by its size, whatever its first bytes say."""
    async with play(monkeypatch) as scene:
        asking, sent = await scene.ask()
        scene.deliver(sent, answer_of().ljust(size, b"\x00")[:size])
        with pytest.raises(MalformedMessage, match=f"answer of {size} bytes"):
            await asking


@pytest.mark.parametrize("code, is_retryable", [("busy", True), ("stream_not_exported", False)])
async def test_an_error_answer_becomes_an_exception(
    monkeypatch: pytest.MonkeyPatch, code: str, *, is_retryable: bool
) -> None:
    """Code, hint and whether to retry come from the peer's answer."""
    async with play(monkeypatch) as scene:
        asking, sent = await scene.ask()
        scene.deliver(sent, encode_error("plant-a", LIFE, "ListStreams", code, "nine requests wait"))
        with pytest.raises(PeerRefused, match=rf"plant-a refused \({code}\): nine requests wait") as raised:
            await asking
        assert (raised.value.code, raised.value.retryable) == (code, is_retryable)


async def test_the_peers_answer_is_awaited_behind_unproven_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer without proof does not count: the proven one is still accepted, and without one the reason is raised.
    The proof is bound to the place of this request."""
    places = list[MessagePlace]()

    def refuses(place: MessagePlace, answer: bytes | memoryview, _: object) -> str | None:
        places.append(place)
        return None if b"busy" in bytes(answer) else "nobody signed it"

    async with play(monkeypatch, refuses) as scene:
        asking, sent = await scene.ask()
        for _ in range(3):
            scene.deliver(sent, encode_error("plant-a", LIFE, "ListStreams", "fenced", "forged"))
        scene.deliver(sent, encode_error("plant-a", LIFE, "ListStreams", "busy", "nine requests wait"))
        with pytest.raises(PeerRefused, match="nine requests wait"):
            await asking
        scene.deliver(sent, encode_error("plant-a", LIFE, "ListStreams", "busy", "again"))
        assert scene.unsolicited == 1
        instance = sent.response_topic.rpartition("/")[2]
        assert places == [MessagePlace("plant-a", "idmz", instance, sent.correlation)] * 4

        asking, sent = await scene.ask(timeout_s=0.01)
        scene.deliver(sent, encode_error("plant-a", LIFE, "ListStreams", "fenced", "forged"))
        with pytest.raises(UnprovenAnswer, match=r"\(fenced\) is not proven: nobody signed it") as raised:
            await asking
        assert raised.value.retryable


async def test_nothing_is_sent_while_the_link_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request without a connection fails at once with the link's reason."""
    async with play(monkeypatch) as scene:
        scene.requester.link.connection = None
        with pytest.raises(ConnectionLost, match="not connected yet"):
            await scene.requester.ask(ListStreams(), 1)
        assert scene.connection.published == []


ACCESS = Access("b", "idmz", "host", 1, lambda: None)  # type: ignore[arg-type, return-value]
BUSY = PeerRefused("plant-a", "busy", "busy", "", retryable=True)
FORBIDDEN = PeerRefused("plant-a", "stream_not_exported", "no", "", retryable=False)
LOST = TransportError("plant-a", "no answer")
ANSWER = PeerReply(None, [])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "happens, attempts, ended",
    [
        ([ANSWER], 1, ANSWER),
        ([BUSY, LOST, ANSWER], 3, ANSWER),
        ([FORBIDDEN, ANSWER], 1, FORBIDDEN),
        ([BUSY, FORBIDDEN, ANSWER], 2, FORBIDDEN),
        ([LOST, BUSY, LOST, ANSWER], 3, LOST),
    ],
)
def test_a_retryable_error_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, happens: list[object], attempts: int, ended: object
) -> None:
    """Three attempts at most, each on a connection of its own; a final error ends them at once."""
    made = 0

    async def ask(*_: object) -> object:
        happened = happens[made - 1]
        if isinstance(happened, Exception):
            raise happened
        return happened

    @asynccontextmanager
    async def connected(*_: object) -> AsyncIterator[SimpleNamespace]:
        nonlocal made
        made += 1
        yield SimpleNamespace(ask=ask)

    monkeypatch.setattr(requester, "open_requester", connected)
    monkeypatch.setattr(requester, "RETRY_MS_MAX", 1)
    asking = ask_once(ACCESS, "plant-a", ListStreams(), 1)
    if isinstance(ended, Exception):
        with pytest.raises(type(ended)) as raised:
            asyncio.run(asking)
        assert raised.value is ended
    else:
        assert asyncio.run(asking) is ended
    assert made == attempts


def test_progress_restores_all_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long transfer over a bad line ends when it stands still, not when it has been lost three times in all."""
    made = 0

    @asynccontextmanager
    async def connected(*_: object) -> AsyncIterator[None]:
        nonlocal made
        made += 1
        yield

    async def talk(_: object, progress: Callable[[], None]) -> None:
        if made <= 2 * ATTEMPTS:
            progress()
        raise LOST

    failures = list[int]()
    monkeypatch.setattr(requester, "open_requester", connected)
    monkeypatch.setattr(requester, "backoff_ms", lambda _min, _max, count, _chance: failures.append(count) or 0)
    with pytest.raises(TransportError):
        asyncio.run(converse(ACCESS, "plant-a", talk))
    assert made == 2 * ATTEMPTS + ATTEMPTS - 1
    assert failures == [0] * 2 * ATTEMPTS + [*range(1, ATTEMPTS - 1)]

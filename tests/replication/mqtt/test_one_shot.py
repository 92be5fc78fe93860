"""Requests and their answers, over a connection for which the test gives the answers."""

import asyncio
from typing import Any

import pytest

from agent.replication.mqtt import requester
from agent.replication.mqtt.carrier import Access, Incoming
from agent.replication.mqtt.link import Link
from agent.replication.mqtt.requester import Requester
from agent.replication.protocol.arrived_answer import ArrivedAnswer
from agent.replication.protocol.codec import encode_error
from agent.replication.protocol.errors import PeerRefused, TransportError
from agent.replication.protocol.messages import ListStreams, StreamsAnswer
from tests.replication.answers import encode_answer
from tests.waiting import wait_until_async

EPOCH = "1" * 32
GOOD = encode_answer(StreamsAnswer(store_zone="plant-a", epoch=EPOCH, streams=[], unix_ms=0), [])


class Sent:
    """A connection that records what is published."""

    def __init__(self) -> None:
        self.requests = list[tuple[str, bytes]]()  # response topic, correlation

    def publish_request(
        self, _topic: str, _payload: bytes, response_topic: str, correlation: bytes, _expiry_s: int
    ) -> asyncio.Future[None]:
        self.requests.append((response_topic, correlation))
        acknowledged = asyncio.get_running_loop().create_future()
        acknowledged.set_result(None)
        return acknowledged


def asking() -> tuple[Requester, Link, Sent]:
    """A requester of plant-a, its link, and what it sends."""
    link, sent = Link(Access("b", "idmz", "host", 1, lambda: None)), Sent()  # type: ignore[arg-type, return-value]
    asker = Requester(link, "plant-a")
    link.connection = sent  # type: ignore[assignment]
    return asker, link, sent


def answer(link: Link, sent: Sent, payload: bytes, number: int = -1, *, is_retained: bool = False) -> None:
    """Deliver an answer to a request, as the broker does."""
    topic, correlation = sent.requests[number]
    link._dispatch(Incoming(topic, payload, None, correlation, None, is_retained))


async def test_an_answer_counts_once() -> None:
    """A repeated answer, a retained one, and one that belongs to no request are unsolicited."""
    asker, link, sent = asking()
    got = list[ArrivedAnswer]()
    await asker.send(ListStreams(), got.append, 1)
    await asker.send(ListStreams(), got.append, 1)
    answer(link, sent, b"retained", 1, is_retained=True)
    answer(link, sent, b"first", 0)
    answer(link, sent, b"again", 0)
    sent.requests.append((sent.requests[0][0], bytes(16)))
    answer(link, sent, b"unknown")
    assert [one.payload for one in got] == [b"first"]
    assert link.statistics().unsolicited == 3


async def test_answers_that_never_come_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many requests without an answer, only the newest stay known."""
    monkeypatch.setattr(requester, "REQUESTS_KNOWN_MAX", 2)
    asker, link, sent = asking()
    got = list[ArrivedAnswer]()
    for _ in range(3):
        await asker.send(ListStreams(), got.append, 1)
    for number in range(3):
        answer(link, sent, str(number).encode(), number)
    assert [one.payload for one in got] == [b"1", b"2"]


async def asked(payload: bytes | None, timeout_s: float = 20) -> Any:
    """The result of a request with this answer, None for no answer."""
    asker, link, sent = asking()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(asker.ask(ListStreams(), timeout_s), name="ask")
        await wait_until_async(lambda: sent.requests, "the request")
        if payload is not None:
            answer(link, sent, payload)
        await asyncio.wait([task], timeout=10)
        assert task.done()
        if (error := task.exception()) is not None:
            return error
    return task.result()


def test_a_good_answer_is_returned_with_its_size() -> None:
    """The size counts the bytes on the wire."""
    reply = asyncio.run(asked(GOOD))
    assert isinstance(reply.answer, StreamsAnswer)
    assert reply.bytes == len(GOOD)


@pytest.mark.parametrize("code, is_retryable", [("busy", True), ("stream_not_exported", False)])
def test_a_refusal_is_raised_with_the_peers_code(code: str, *, is_retryable: bool) -> None:
    """The code, and whether to retry, are those of the peer."""
    payload = encode_error("plant-a", EPOCH, "ListStreams", code, "why")
    with pytest.raises(ExceptionGroup) as group:
        asyncio.run(asked(payload))
    (error,) = group.value.exceptions
    assert isinstance(error, PeerRefused)
    assert (error.code, error.retryable) == (code, is_retryable)


def test_a_request_without_an_answer_is_a_transport_error() -> None:
    """It is a retryable transport error."""
    with pytest.raises(ExceptionGroup) as group:
        asyncio.run(asked(None, timeout_s=0.01))
    (error,) = group.value.exceptions
    assert isinstance(error, TransportError)
    assert error.retryable

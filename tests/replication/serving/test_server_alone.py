"""The server over a link that the test plays: which requests are answered, how, and how many are open."""

import asyncio
import itertools
import random
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.batch import Origin
from agent.fact_store import FactStore
from agent.fact_store.log.errors import StoreBusy, UnknownConsumer
from agent.message import Envelope, Sample
from agent.node.store_errors import REFUSAL_CODES, STORE_ERRORS
from agent.replication.mqtt.carrier import Access, Incoming
from agent.replication.mqtt.link import Link
from agent.replication.protocol.codec import decode_answer, encode_request
from agent.replication.protocol.messages import (
    CHUNK_BYTES_MAX,
    AcquireLease,
    AppendFact,
    ConfirmReceipt,
    ErrorAnswer,
    FetchFacts,
    FetchRange,
    FetchSequences,
    GetBounds,
    GetDigests,
    GetHeads,
    GetLatest,
    GetObject,
    ListStreams,
    NewFact,
    NewMessage,
    PutObject,
    Request,
    StreamsAnswer,
    UnregisterConsumer,
    operation_of,
)
from agent.replication.protocol.topics import request_topic, response_topic
from agent.replication.serving import server as server_module
from agent.replication.serving.limits import (
    CHANGES_PER_SECOND_MAX,
    READS_MAX,
    READS_OF_ZONE_MAX,
    REQUESTS_OPEN_MAX,
    STARTS_MAX,
)
from agent.replication.serving.operations import context as context_module
from agent.replication.serving.operations import streams as streams_module
from agent.replication.serving.server import Server
from agent.settings.store import StreamSettings
from agent.signing.keys import SigningKey, ZoneSigner
from agent.signing.messages import MessagePlace, MessageProof, answer_bytes, split_answer
from tests.fact_store.making import Elsewhere
from tests.replication.nodes import STREAM, define, samples
from tests.waiting import wait_until_async

ANSWER_TO = response_topic("plant-a", "idmz", "1")
ORDERS = "orders"


class Published:
    """A connection that records the answers."""

    packet_bytes_max = 1_000_000
    outgoing_bytes = 0

    def __init__(self) -> None:
        self.answers = list[Any]()
        self.proofs = list[tuple[bytes, MessageProof | None]]()

    def publish_answer(self, topic: str, payload: bytes, _correlation: bytes) -> None:
        assert topic == ANSWER_TO
        assert len(payload) <= self.packet_bytes_max
        self.proofs.append(split_answer(payload))
        self.answers.append(decode_answer(self.proofs[-1][0])[0])


def asked(request: Request | bytes, *, expiry_s: int | None = 10) -> Incoming:
    """A request of idmz, as the broker delivers it."""
    payload = request if isinstance(request, bytes) else encode_request(request)
    return Incoming(request_topic("plant-a", "idmz"), payload, ANSWER_TO, bytes(16), expiry_s, False)


def serving(
    folder: Path,
    scenario: Callable[[Server, Link, Published], Awaitable[None]],
    appends: Mapping[str, frozenset[str]] | None = None,
    streams: Sequence[StreamSettings] = (),
    signer: ZoneSigner | None = None,
    **settings: Any,
) -> None:
    """A server of plant-a that exports its telemetry to idmz, and accepts its appends."""

    async def run() -> None:
        link, published = Link(Access("b", "plant-a", "host", 1, lambda: None)), Published()  # type: ignore[arg-type, return-value]
        with FactStore.open(folder / "facts.db", "plant-a", streams=streams, signer=signer) as store:
            exports = {"idmz": frozenset({STREAM})}
            server = Server(
                *(link, store, exports, STORE_ERRORS, REFUSAL_CODES),  # type: ignore[arg-type]
                appends=appends,
                **settings,
            )
            link.connection = published  # type: ignore[assignment]
            async with asyncio.timeout(20), asyncio.TaskGroup() as group:
                running = group.create_task(server.run())
                await wait_until_async(lambda: server._group is not None, "the server")
                await scenario(server, link, published)
                running.cancel()

    asyncio.run(run())


async def answer_to(link: Link, published: Published, incoming: Incoming) -> Any:
    """Deliver a request. Returns its answer."""
    count = len(published.answers)
    link._dispatch(incoming)
    await wait_until_async(lambda: len(published.answers) > count, "an answer")
    return published.answers[-1]


def test_a_request_that_cannot_be_read_is_answered_with_why(tmp_path: Path) -> None:
    """So is one without an expiry, which might otherwise be answered much later."""

    async def scenario(_: Server, link: Link, published: Published) -> None:
        unreadable = encode_request(GetBounds(stream=STREAM)).replace(b'"stream"', b'"unknown"')
        for incoming, why in (
            (asked(unreadable), "stream"),
            (asked(ListStreams(), expiry_s=None), "MessageExpiryInterval"),
        ):
            answer = await answer_to(link, published, incoming)
            assert isinstance(answer, ErrorAnswer)
            assert answer.error.code == "bad_request"
            assert why in answer.error.message
        assert isinstance(await answer_to(link, published, asked(ListStreams())), StreamsAnswer)

    serving(tmp_path, scenario)


def test_every_answer_is_signed(tmp_path: Path) -> None:
    """A refusal, an empty page, a page of facts and a list carry the signature of this zone for this request; the
    certificate is left out where the request names its key."""
    signer = ZoneSigner(SigningKey.generate(), b"certificate")
    place = MessagePlace("plant-a", "idmz", "1", bytes(16))
    fetch = FetchFacts(consumer_name=f"idmz.{STREAM}", stream=STREAM, limit=100)
    knowing = msgspec.structs.replace(fetch, signers_known=["0" * 16, signer.key_id.hex()])

    async def scenario(server: Server, link: Link, published: Published) -> None:
        store: Any = server._store
        await define(store, "line1/temperature")
        empty = [
            (GetBounds(stream="unknown"), b"certificate"),
            (ListStreams(), b"certificate"),
            (fetch, b"certificate"),
        ]
        for request, certificate in [*empty, (knowing, signer.key_id)]:
            if request is knowing:
                await asyncio.wrap_future(store.appends.append_samples(STREAM, samples(0, 5)))
            answer = await answer_to(link, published, asked(request))
            message, proof = published.proofs[-1]
            assert proof is not None
            assert proof.certificate == certificate
            assert signer.key.public.verify(answer_bytes(place, message), proof.signature)
        assert answer.batches

    serving(tmp_path, scenario, signer=signer)


def test_a_page_leaves_room_for_its_proof(tmp_path: Path) -> None:
    """A page as large as the broker takes, with a long certificate in its proof, is sent all the same: `Published`
    refuses larger ones."""
    signer = ZoneSigner(SigningKey.generate(), bytes(4_000))
    fetch = FetchFacts(consumer_name=f"idmz.{STREAM}", stream=STREAM, limit=100)

    async def scenario(server: Server, link: Link, published: Published) -> None:
        store: Any = server._store
        await define(store, "line1/temperature")
        chance = random.Random(1)
        for number in range(30):
            sample = Sample(1, 1_700_000_000_000_000_000 + number, chance.randbytes(1_000), 0)
            await asyncio.wrap_future(store.appends.append_samples(STREAM, [sample]))
        published.packet_bytes_max = 20_000
        answer = await answer_to(link, published, asked(fetch))
        assert 10 < len(answer.batches) < 19

    serving(tmp_path, scenario, signer=signer)


@pytest.mark.parametrize(
    "error, code, is_retryable",
    [(UnknownConsumer("no consumer 'x'"), "unknown_consumer", False), (StoreBusy("disk"), "store_unavailable", True)],
)
def test_store_errors_become_protocol_codes(tmp_path: Path, error: Exception, code: str, *, is_retryable: bool) -> None:
    """A refusal of the store that has a code is sent with it and with whether to retry; of any other error a peer
    learns only that it happened."""

    async def scenario(server: Server, link: Link, published: Published) -> None:
        async def refuse(*_: object) -> Any:
            raise error

        server._handlers[GetBounds] = refuse
        answer = await answer_to(link, published, asked(GetBounds(stream=STREAM)))
        assert isinstance(answer, ErrorAnswer)
        assert (answer.error.code, answer.error.retryable) == (code, is_retryable)
        assert "disk" not in answer.error.message

    serving(tmp_path, scenario)


def test_requests_in_hand_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests beyond the limit are dropped; when an open one has ended, the next is accepted. More may be open than
    begin in one turn of the event loop: a waiting one delays no other."""
    count = STARTS_MAX + 1
    monkeypatch.setattr(server_module, "REQUESTS_OPEN_MAX", count)

    async def scenario(server: Server, link: Link, published: Published) -> None:
        may_end, begun = asyncio.Event(), 0
        list_streams = server._handlers[ListStreams]

        async def wait(*given: Any) -> Any:
            nonlocal begun
            begun += 1
            await may_end.wait()
            return await list_streams(*given)

        server._handlers[ListStreams] = wait
        for _ in range(count + 1):
            link._dispatch(asked(ListStreams()))
        await wait_until_async(lambda: begun == count, "all in hand")
        assert server.statistics().drops == {"too_many_requests": 1}
        may_end.set()
        await wait_until_async(lambda: len(published.answers) == count, "their answers")
        for _ in range(count + 1):
            await answer_to(link, published, asked(ListStreams()))
        assert server.statistics().drops == {"too_many_requests": 1}

    serving(tmp_path, scenario)


@pytest.mark.parametrize("unread", ["UNREAD_BYTES_MAX", "UNREAD_OF_LINK_BYTES_MAX"])
def test_answers_that_no_peer_reads_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unread: str) -> None:
    """While the broker reads no answer, waiting answers are bounded in bytes, for one zone and in total. Further
    requests are dropped and counted, and accepted again once the broker has read."""
    monkeypatch.setattr(context_module, unread, 20_000)
    count = 500

    async def scenario(server: Server, link: Link, published: Published) -> None:
        unsent = server._context._unsent_bytes
        published.outgoing_bytes = context_module.OUTGOING_BYTES_ENOUGH
        sizes = list[int]()
        for number in range(count):
            before = unsent["idmz"]
            link._dispatch(asked(ListStreams()))
            await wait_until_async(
                lambda number=number: server._requests["ListStreams"] + server._drops.total() > number, "its end"
            )
            await wait_until_async(lambda: not server._open_requests["idmz"], "its answer")
            sizes.append(unsent["idmz"] - before)
        assert 20_000 <= unsent["idmz"] < 20_000 + max(sizes)
        dropped = server.statistics().drops
        assert dropped == {"answers_not_read": count - server.statistics().requests["ListStreams"]}
        published.outgoing_bytes = 0
        await wait_until_async(lambda: not unsent.total(), "the answers are sent")
        await answer_to(link, published, asked(ListStreams()))
        assert server.statistics().drops == dropped

    serving(tmp_path, scenario)


def test_a_page_is_read_when_the_answers_before_it_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zone reads its answers late: nothing is read for it meanwhile, and its next page then needs no other event."""
    monkeypatch.setattr(context_module, "UNSENT_BYTES_MAX", 100)

    async def scenario(server: Server, link: Link, published: Published) -> None:
        published.outgoing_bytes = context_module.OUTGOING_BYTES_ENOUGH
        link._dispatch(asked(ListStreams()))
        await wait_until_async(lambda: server._context._unsent_bytes["idmz"] >= 100, "an answer that waits")
        link._dispatch(asked(FetchRange(stream=STREAM, first_offset=1, last_offset=5, limit=5)))
        await wait_until_async(lambda: server._context.turns._queue.waiting("idmz") == 1, "a page that waits")
        published.outgoing_bytes = 0
        await wait_until_async(lambda: len(published.answers) == 2, "both answers")

    serving(tmp_path, scenario)


def test_unread_answers_of_others_shut_no_zone_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zone without a waiting answer is served, and its page is read, however many answers and requests of others
    wait."""
    for limit in ("UNREAD_OF_LINK_BYTES_MAX", "UNSENT_OF_LINK_BYTES_MAX"):
        monkeypatch.setattr(context_module, limit, 1_000)

    async def scenario(server: Server, link: Link, published: Published) -> None:
        server._context._unsent_bytes["plant-b"] = 5_000
        server._open_requests["plant-b"] = REQUESTS_OPEN_MAX
        fetch = FetchFacts(consumer_name=f"idmz.{STREAM}", stream=STREAM, limit=100)
        for request in (ListStreams(), fetch):
            assert not isinstance(await answer_to(link, published, asked(request)), ErrorAnswer)

    serving(tmp_path, scenario)


def test_answers_for_a_lost_link_are_given_up(tmp_path: Path) -> None:
    """All that wait are counted as not sent, and those of the next connection leave."""

    async def scenario(server: Server, link: Link, published: Published) -> None:
        published.outgoing_bytes = context_module.OUTGOING_BYTES_ENOUGH
        for _ in range(2):
            link._dispatch(asked(ListStreams()))
        await wait_until_async(
            lambda: len(server._context._unsent.zones_waiting()) and not server._open_requests["idmz"], "two answers"
        )
        link.connection = None
        await wait_until_async(lambda: server.statistics().drops == {"answer_not_sent": 2}, "the loss")
        link.connection, published.outgoing_bytes = published, 0  # type: ignore[assignment]
        assert isinstance(await answer_to(link, published, asked(ListStreams())), StreamsAnswer)

    serving(tmp_path, scenario)


async def test_a_server_that_has_stopped_takes_no_request(tmp_path: Path) -> None:
    """Its link may outlive it by a moment: what arrives then is dropped. The store has nothing left to call."""
    link = Link(Access("b", "plant-a", "host", 1, lambda: None))  # type: ignore[arg-type, return-value]
    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        server = Server(link, store, {"idmz": frozenset({STREAM})}, STORE_ERRORS)  # type: ignore[arg-type]
        before = store._writer._subscribers
        running = asyncio.create_task(server.run())
        await wait_until_async(lambda: server._group is not None, "the server")
        assert store._writer._subscribers != before
        running.cancel()
        await asyncio.wait([running])
        assert store._writer._subscribers == before
        link._dispatch(asked(ListStreams()))
        assert server.statistics().drops == {"too_many_requests": 1}


def test_pages_being_read_take_no_thread_from_a_search(tmp_path: Path) -> None:
    """So many pages and one search for latest values are read at the same time."""

    async def scenario(server: Server, _: Link, _published: Published) -> None:
        together = threading.Barrier(READS_MAX + 1, timeout=20)
        await asyncio.gather(*(server._context.in_executor(together.wait) for _ in range(READS_MAX + 1)))

    serving(tmp_path, scenario)


def test_every_request_that_changes_something_is_proven(tmp_path: Path) -> None:
    """Whatever it changes: the judge sees the bytes as they came and whether something is written. What only reads is
    answered without a proof."""
    digest = "sha256:" + "0" * 64
    changing = [
        (FetchFacts(consumer_name=f"idmz.{STREAM}", stream=STREAM, limit=1), False),
        (ConfirmReceipt(consumer_name=f"idmz.{STREAM}", offset=1), False),
        (UnregisterConsumer(consumer_name=f"idmz.{STREAM}"), False),
        (AppendFact(stream=ORDERS, messages=[new_message("m1")]), True),
        (AcquireLease(stream=ORDERS, producer="idmz.mes"), True),
        (PutObject(digest=digest, size=4, offset=0, data=b"some"), True),
    ]
    judged = list[tuple[bytes, bool]]()

    def refuses(_place: MessagePlace, request: bytes, _proof: MessageProof | None, *, is_writing: bool) -> str:
        judged.append((bytes(request), is_writing))
        return "nobody signed it"

    async def scenario(_: Server, link: Link, published: Published) -> None:
        for request, is_writing in changing:
            answer = await answer_to(link, published, asked(request))
            assert isinstance(answer, ErrorAnswer)
            assert (answer.error.code, answer.error.message) == ("unsigned_request", "nobody signed it")
            assert judged.pop() == (encode_request(request), is_writing)
        for request in (ListStreams(), GetBounds(stream=STREAM), GetHeads(stream=STREAM)):
            assert not isinstance(await answer_to(link, published, asked(request)), ErrorAnswer)
        assert not judged

    serving(tmp_path, scenario, {"idmz": frozenset({ORDERS})}, refuses_request=refuses)


def new_message(message_id: str) -> NewMessage:
    """A message of idmz."""
    envelope = Envelope(message_id, "idmz", "*", 1_700_000_000_000)
    return NewMessage(envelope=envelope, fact=NewFact(subject="batch:B-1", predicate="done", object=msgspec.Raw(b"1")))


def test_no_question_reveals_a_stream_that_is_not_exported(tmp_path: Path) -> None:
    """Whatever is asked about it, the answer is the same; nor may a zone write to other streams than its own, or take
    the lease of another zone's producer. The artifacts that it puts count within its own quota."""
    origin = f"plant-a/{'0' * 32}"
    questions = [
        GetBounds(stream=ORDERS),
        GetHeads(stream=ORDERS),
        GetDigests(stream=ORDERS),
        GetDigests(stream=ORDERS, origin=origin, first_sequence=1, last_sequence=5),
        GetLatest(stream=ORDERS),
        FetchRange(stream=ORDERS, first_offset=1, last_offset=5, limit=5),
        FetchSequences(stream=ORDERS, origin=origin, first_sequence=1, last_sequence=5, limit=5),
        FetchFacts(consumer_name="idmz.orders", stream=ORDERS, limit=5),
    ]
    refused = [(question, "stream_not_exported") for question in questions]
    refused += [
        (AppendFact(stream=STREAM, messages=[new_message("m1")]), "append_not_allowed"),
        (AcquireLease(stream=STREAM, producer="idmz.mes"), "append_not_allowed"),
        (AcquireLease(stream=ORDERS, producer="plant-b.mes"), "bad_request"),
    ]

    async def scenario(server: Server, link: Link, published: Published) -> None:
        for question, code in refused:
            answer = await answer_to(link, published, asked(question))
            assert isinstance(answer, ErrorAnswer), question
            assert (answer.operation, answer.error.code) == (operation_of(question), code)
        store: Any = server._store
        await answer_to(link, published, asked(PutObject(digest="sha256:" + "0" * 64, size=4, offset=0, data=b"so")))
        assert store.artifacts.unreferenced().keys() == {"idmz"}

    def look_up(*_: object) -> Any:
        pytest.fail("nothing is searched for")

    serving(tmp_path, scenario, {"idmz": frozenset({ORDERS})}, [StreamSettings(ORDERS)], look_up=look_up)


def test_a_range_goes_on_while_a_fact_of_it_is_left(tmp_path: Path) -> None:
    """One fact that did not fit is enough; offsets that are not in the log yet are none, or the reader would ask for
    them without end."""

    async def scenario(server: Server, link: Link, published: Published) -> None:
        store: Any = server._store
        await define(store, "line1/temperature")
        await asyncio.wrap_future(store.appends.append_samples(STREAM, samples(0, 10)))
        for last_offset, limit, more in (
            (10, 9, True),
            (10, 10, False),
            (9, 9, False),
            (100, 9, True),
            (100, 10, False),
        ):
            request = FetchRange(stream=STREAM, first_offset=1, last_offset=last_offset, limit=limit)
            answer = await answer_to(link, published, asked(request))
            assert (answer.covered(), answer.more) == ((1, limit), more), request

    serving(tmp_path, scenario)


def test_sequences_and_digests_end_where_they_were_asked_to(tmp_path: Path) -> None:
    """One fact that did not fit is enough for another page of an origin's facts; the digest of a batch that ends beyond
    the range is not one in the range."""

    async def scenario(server: Server, link: Link, published: Published) -> None:
        store: Any = server._store
        await define(store, "line1/temperature")
        await asyncio.wrap_future(store.appends.append_samples(STREAM, samples(0, 10)))
        await asyncio.wrap_future(store.appends.append_samples(STREAM, samples(10, 10)))
        (origin,) = map(str, store.held(STREAM))
        for last, ends in ((9, []), (10, [10]), (19, [10]), (20, [10, 20])):
            request = GetDigests(stream=STREAM, origin=origin, first_sequence=1, last_sequence=last)
            answer = await answer_to(link, published, asked(request))
            assert [one for one, _ in answer.ends] == ends, request
        for last, more in ((10, False), (11, True)):
            fetch = FetchSequences(stream=STREAM, origin=origin, first_sequence=1, last_sequence=last, limit=10)
            answer = await answer_to(link, published, asked(fetch))
            assert answer.more is more

    serving(tmp_path, scenario)


def test_nothing_of_another_copy_of_the_log_is_compared(tmp_path: Path) -> None:
    """A comparison that has read another copy of this log gets neither ranges nor digests nor facts of this one: it
    would take for missing what only the copies do not share."""
    range_: dict[str, Any] = {"origin": f"plant-a/{'0' * 32}", "first_sequence": 1, "last_sequence": 5}
    other: dict[str, Any] = {"timeline": "0000000000000001" + "1" * 16, "end_offset": 7}

    async def scenario(_: Server, link: Link, published: Published) -> None:
        for request in (
            GetDigests(stream=STREAM, **other),
            GetDigests(stream=STREAM, **range_, **other),
            FetchSequences(stream=STREAM, **range_, **other, limit=5),
        ):
            answer = await answer_to(link, published, asked(request))
            assert isinstance(answer, ErrorAnswer), request
            assert answer.error.code == "timeline_differs"

    serving(tmp_path, scenario)


def test_held_ranges_come_in_several_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has whole origins and says whether others follow: together they are what is held, each range once."""
    monkeypatch.setattr(streams_module, "RANGES_PER_ANSWER", 2)
    origins = [Elsewhere(zone) for zone in ("west", "east", "north", "south", "far")]

    async def scenario(server: Server, link: Link, published: Published) -> None:
        store: Any = server._store
        for origin in origins:
            sealed = [origin.seal(1) for _ in range(3)]
            origin.put(store, [sealed[0], sealed[2]])
        found, after, left = list[tuple[str, int, int]](), None, []
        for _ in range(len(origins)):
            answer = await answer_to(link, published, asked(GetDigests(stream=STREAM, after_origin=after)))
            found += [one[:3] for one in answer.ranges]
            left.append(answer.more)
            if not answer.more:
                break
            after = answer.ranges[-1][0]
        assert found == [(name, at, at) for name in sorted(str(one.origin) for one in origins) for at in (1, 3)]
        assert left == [True] * 4 + [False]

    serving(tmp_path, scenario)


def test_a_chunk_of_an_artifact_fits_into_a_packet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much of it is asked for: more than the broker takes would close the connection to it."""

    async def scenario(server: Server, link: Link, published: Published) -> None:
        published.packet_bytes_max = 5_000
        artifacts: Any = server._store.artifacts
        monkeypatch.setattr(artifacts, "streams", lambda _: frozenset({STREAM}))
        monkeypatch.setattr(artifacts, "read_chunk", lambda _digest, _offset, length: (10**6, bytes(length)))
        request = GetObject(digest="sha256:" + "0" * 64, offset=0, bytes_max=CHUNK_BYTES_MAX)
        answer = await answer_to(link, published, asked(request))
        assert 1_000 < answer.bytes < 5_000

    serving(tmp_path, scenario)


def test_a_reader_may_not_put_artifacts(tmp_path: Path) -> None:
    """Only a zone that may append facts may put artifacts, because they take space from all others."""

    async def scenario(_: Server, link: Link, published: Published) -> None:
        put = PutObject(digest="sha256:" + "0" * 64, size=4, offset=0, data=b"some")
        answer = await answer_to(link, published, asked(put))
        assert isinstance(answer, ErrorAnswer)
        assert answer.error.code == "append_not_allowed"

    serving(tmp_path, scenario)
    assert not [one for one in tmp_path.rglob("*") if "0" * 64 in one.name]


def test_an_append_waits_for_the_acks_that_it_asks_for(tmp_path: Path) -> None:
    """Even if the stream itself requires less: without a consumer that has the fact, it is answered as queued."""

    async def scenario(_: Server, link: Link, published: Published) -> None:
        for acks, outcome in ((None, "applied"), ("quorum", "queued")):
            request = AppendFact(stream=ORDERS, messages=[new_message(f"m-{acks}")], acks=acks)  # type: ignore[arg-type]
            answer = await answer_to(link, published, asked(request))
            assert [each.outcome for each in answer.outcomes] == [outcome]

    orders = StreamSettings(ORDERS, acks="local", acks_timeout_ms=50)
    serving(tmp_path, scenario, {"idmz": frozenset({ORDERS})}, [orders])


@pytest.mark.parametrize(
    "request_of",
    [
        lambda _: GetHeads(stream=STREAM),
        lambda _: GetDigests(stream=STREAM),
        lambda origin: GetDigests(stream=STREAM, origin=str(origin), first_sequence=1, last_sequence=5),
        lambda _: FetchRange(stream=STREAM, first_offset=1, last_offset=5, limit=5),
    ],
    ids=["heads", "ranges", "digests", "page"],
)
def test_what_takes_time_takes_its_turn(tmp_path: Path, request_of: Callable[[Origin], Request]) -> None:
    """Signed ends and digests wait for a place as pages do, so that a flood of them delays no other zone; their time is
    counted."""

    async def scenario(server: Server, link: Link, published: Published) -> None:
        store, context = server._store, server._context
        await define(store, "line1/temperature")
        await asyncio.wrap_future(store.appends.append_samples(STREAM, samples(0, 5)))
        request = request_of(Origin("plant-a", store.epoch))
        await answer_to(link, published, asked(request))  # the timeline of the stream is durable
        count = len(published.answers)
        ended = list[str]()
        end = context.turns.end
        context.turns.end = lambda zone, *given: (ended.append(zone), end(zone, *given))[1]  # type: ignore[method-assign]
        async with AsyncExitStack() as places:
            for _ in range(READS_OF_ZONE_MAX):
                await places.enter_async_context(context.reading("idmz"))
            link._dispatch(asked(request))
            await wait_until_async(lambda: context.turns._queue.waiting("idmz") == 1, "its turn")
            assert len(published.answers) == count
        await wait_until_async(lambda: len(published.answers) > count, "its answer")
        assert not isinstance(published.answers[-1], ErrorAnswer)
        assert ended == ["idmz"] * (READS_OF_ZONE_MAX + 1)

    serving(tmp_path, scenario)


def test_a_zone_that_changes_without_end_is_slowed_down(tmp_path: Path) -> None:
    """Registering and removing consumers and taking leases are commits without facts: a zone that does nothing else
    gets a limited number a second, and its next requests wait."""

    async def scenario(server: Server, link: Link, published: Published) -> None:
        now_ms = 0
        server._context.now_ns = lambda: now_ms * 1_000_000  # type: ignore[method-assign]
        waited, count = 0, 100
        for number in range(count):
            fetch = FetchFacts(consumer_name=f"idmz.{number % 3}", limit=1, stream=STREAM, lease=0, epoch=None)
            while server._context.pacer.request_ready_ms("idmz", now_ms) > now_ms:
                now_ms, waited = now_ms + 10, waited + 10
            answer = await answer_to(link, published, asked(fetch))
            assert not isinstance(answer, ErrorAnswer), answer
            asked_to = UnregisterConsumer(consumer_name=f"idmz.{number % 3}", lease=answer.lease)
            while server._context.pacer.request_ready_ms("idmz", now_ms) > now_ms:
                now_ms, waited = now_ms + 10, waited + 10
            assert not isinstance(await answer_to(link, published, asked(asked_to)), ErrorAnswer)
        assert waited > 1000 * 2 * count / CHANGES_PER_SECOND_MAX

    serving(tmp_path, scenario)


def test_a_zone_that_takes_leases_without_end_is_slowed_down(tmp_path: Path) -> None:
    """Each lease of a producer is a commit without a fact, as the changes of consumers are."""

    async def scenario(server: Server, link: Link, published: Published) -> None:
        now_ms = 0
        server._context.now_ns = lambda: now_ms * 1_000_000  # type: ignore[method-assign]
        waited, count = 0, 100
        for _ in range(count):
            while server._context.pacer.request_ready_ms("idmz", now_ms) > now_ms:
                now_ms, waited = now_ms + 10, waited + 10
            answer = await answer_to(link, published, asked(AcquireLease(stream=STREAM, producer="idmz.mes")))
            assert not isinstance(answer, ErrorAnswer), answer
        assert waited > 900 * count / CHANGES_PER_SECOND_MAX

    serving(tmp_path, scenario, appends={"idmz": frozenset({STREAM})})


def test_no_request_is_left_waiting_while_time_passes(tmp_path: Path) -> None:
    """A zone has used up its requests and may send the next one in a millisecond, and no other zone asks. That
    millisecond passes while the server decides: the request is answered all the same."""

    async def scenario(server: Server, link: Link, published: Published) -> None:
        start_ms = server._context.now_ms()
        for _ in range(251):  # a quarter of a second's are saved
            server._context.pacer.request_begins("idmz", start_ms)
        looks = itertools.chain([start_ms], itertools.repeat(start_ms + 1))
        server._context.now_ns = lambda: next(looks) * 1_000_000  # type: ignore[method-assign]
        await answer_to(link, published, asked(GetBounds(stream=STREAM)))

    serving(tmp_path, scenario)

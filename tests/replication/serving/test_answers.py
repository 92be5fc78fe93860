"""What a server answers, and what no peer learns from it."""

import asyncio
import random
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.batch import open_samples, parse
from agent.errors import StoreBusy
from agent.fact_store.core.errors import UnknownConsumer
from agent.message import Sample
from agent.pages import HeldSum
from agent.replication.protocol.codec import encode_request
from agent.replication.protocol.messages import (
    CHUNK_BYTES_MAX,
    AcquireLease,
    AppendFact,
    Confirm,
    ConfirmReceipt,
    CursorAnswer,
    ErrorAnswer,
    FetchFacts,
    FetchRange,
    FetchSequences,
    GetBounds,
    GetCursor,
    GetDefinitions,
    GetDigests,
    GetLatest,
    GetObject,
    ListStreams,
    LogPosition,
    PutObject,
    StreamsAnswer,
    UnregisterConsumer,
    WantedDefinitions,
    operation_of,
    origin_named,
)
from agent.replication.serving.operations import streams as streams_module
from agent.settings.store import StreamSettings
from agent.signing.keys import SigningKey, ZoneSigner
from agent.signing.messages import MessagePlace, MessageProof, answer_bytes, signer_name
from tests.fact_store.making import Elsewhere
from tests.replication.nodes import STREAM, define, samples
from tests.replication.serving.support import ORDERS, filled, new_message, serving
from tests.support.received import chains_in

APPENDS = {"idmz": frozenset({ORDERS})}
NAME = f"idmz.{STREAM}"


async def test_each_operation_answers_what_the_store_holds(tmp_path: Path) -> None:
    """A consumer is registered by its first fetch; each page begins after what is confirmed."""
    async with serving(tmp_path, APPENDS) as (server, peer):
        (empty,) = (await peer.ask(ListStreams())).streams
        for _ in range(3):
            store = await filled(server, 100)
        life, (chain,) = store.life.hex(), chains_in(store)
        (held,) = (await peer.ask(ListStreams())).streams
        assert [(stream.name, stream.first_offset, stream.end_offset) for stream in (empty, held)] == [
            (STREAM, 1, 0),
            (STREAM, 1, 300),
        ]
        bounds = await peer.ask(GetBounds(stream=STREAM))
        assert (bounds.first_offset, bounds.end_offset) == (1, 300)
        page = await peer.ask(FetchFacts(consumer_name=NAME, stream=STREAM, limit=200))
        assert (page.covered(), page.more, page.frontier) == ((1, 200), True, 0)
        wanted = WantedDefinitions(zone="plant-a", digest=chain.wanted.digest.hex())
        assert len((await peer.ask(GetDefinitions(wanted=[wanted]))).runs) == 1
        assert peer.batches == list(chain.bodies)
        confirmed = await peer.ask(ConfirmReceipt(consumer_name=NAME, offset=200, life=life))
        assert confirmed.cursor_advanced_to == 200
        page = await peer.ask(FetchFacts(consumer_name=NAME, limit=200))
        assert (page.covered(), page.more, page.frontier) == ((201, 300), False, 200)
        rest = Confirm(last_offset=300, life=life)
        page = await peer.ask(FetchFacts(consumer_name=NAME, limit=200, confirm=rest))
        assert (page.covered(), page.frontier) == (None, 300)
        assert await peer.ask(GetCursor(consumer_name=NAME)) == CursorAnswer(
            store_zone="plant-a", life=life, consumer_name=NAME, stream=STREAM, frontier=300, end_offset=300
        )
        assert [value.offset for value in (await peer.ask(GetLatest(stream=STREAM))).values] == [300]
        appended = await peer.ask(AppendFact(stream=ORDERS, messages=[new_message("a")]))
        assert [outcome.offset for outcome in appended.outcomes] == [1]


async def test_a_request_with_a_foreign_response_topic_is_dropped(tmp_path: Path) -> None:
    """It is counted, and answered at no topic."""
    async with serving(tmp_path) as (server, peer):
        for answer_to in (
            "bsfg/1/plant-a/enterprise/rsp/0/x",
            "bsfg/1/idmz/enterprise/rsp/0/x",
            "bsfg/1/plant-a/idmz/req",
        ):
            peer.send(ListStreams(), answer_to=answer_to)
        await peer.ask(ListStreams())
        assert (len(peer.answers), server.statistics().drops) == (1, {"foreign_response_topic": 3})


async def test_a_request_that_cannot_be_read_is_answered_with_why(tmp_path: Path) -> None:
    """So is one without an expiry, which might otherwise be answered much later."""
    async with serving(tmp_path) as (_, peer):
        unreadable = encode_request(GetBounds(stream=STREAM)).replace(b'"stream"', b'"unknown"')
        for error, why in (
            (await peer.refusal(unreadable), "stream"),
            (await peer.refusal(ListStreams(), expiry_s=None), "MessageExpiryInterval"),
        ):
            assert error.code == "bad_request"
            assert why in error.message
        assert isinstance(await peer.ask(ListStreams()), StreamsAnswer)


async def test_every_answer_is_signed(tmp_path: Path) -> None:
    """A refusal, an empty page, a page of facts and a list carry the signature of this zone for this request; the
    certificate is left out where the request names its key."""
    signer = ZoneSigner(SigningKey.generate(), b"certificate")
    place = MessagePlace("plant-a", "idmz", "1", bytes(16))
    fetch = FetchFacts(consumer_name=NAME, stream=STREAM, limit=100)
    knowing = msgspec.structs.replace(
        fetch, signers_known=[signer_name(zone, signer.key_id) for zone in ("idmz", "plant-a")]
    )
    async with serving(tmp_path, signer=signer) as (server, peer):
        store: Any = server._store
        await define(store, "line1/temperature")
        certified = [(request, b"certificate") for request in (GetBounds(stream="unknown"), ListStreams(), fetch)]
        for request, certificate in [*certified, (knowing, signer.key_id)]:
            if request is knowing:
                await asyncio.wrap_future(store.appends.append_samples(STREAM, samples(0, 5)))
            answer = await peer.ask(request)
            message, proof = peer.proofs[-1]
            assert proof is not None
            assert proof.certificate == certificate
            assert signer.key.public.verify(answer_bytes(place, message), proof.signature)
        assert answer.batches


async def test_a_page_leaves_room_for_its_proof(tmp_path: Path) -> None:
    """A page as large as the broker takes, with a long certificate in its proof, is sent all the same: `Peer` takes no
    larger ones."""
    signer = ZoneSigner(SigningKey.generate(), bytes(4_000))
    fetch = FetchFacts(consumer_name=NAME, stream=STREAM, limit=100)
    async with serving(tmp_path, signer=signer) as (server, peer):
        store: Any = server._store
        await define(store, "line1/temperature")
        chance = random.Random(1)
        for number in range(30):
            sample = Sample(1, 1_700_000_000_000_000_000 + number, chance.randbytes(1_000), 0)
            await asyncio.wrap_future(store.appends.append_samples(STREAM, [sample]))
        peer.packet_bytes_max = 20_000
        answer = await peer.ask(fetch)
        assert 10 < len(answer.batches) < 19


@pytest.mark.parametrize(
    "error, code, is_retryable",
    [(UnknownConsumer("no consumer 'x'"), "unknown_consumer", False), (StoreBusy("disk"), "store_unavailable", True)],
)
async def test_store_errors_become_protocol_codes(
    tmp_path: Path, error: Exception, code: str, *, is_retryable: bool
) -> None:
    """A refusal of the store that has a code is sent with it and with whether to retry; of any other error a peer
    learns only that it happened."""
    async with serving(tmp_path) as (server, peer):

        async def refuse(*_: object) -> Any:
            raise error

        server._handlers[GetBounds] = refuse
        told = await peer.refusal(GetBounds(stream=STREAM))
        assert (told.code, told.retryable) == (code, is_retryable)
        assert "disk" not in told.message


async def test_every_request_that_changes_something_is_proven(tmp_path: Path) -> None:
    """Whatever it changes: the judge sees the bytes as they came and whether something is written. What only reads is
    answered without a proof."""
    digest = "sha256:" + "0" * 64
    changing = [
        (FetchFacts(consumer_name=NAME, stream=STREAM, limit=1), False),
        (ConfirmReceipt(consumer_name=NAME, offset=1, life="0" * 32), False),
        (UnregisterConsumer(consumer_name=NAME), False),
        (AppendFact(stream=ORDERS, messages=[new_message("m1")]), True),
        (AcquireLease(stream=ORDERS, producer="idmz.mes"), True),
        (PutObject(digest=digest, size=4, offset=0, data=b"some"), True),
    ]
    judged = list[tuple[bytes, bool]]()

    def refuses(_place: MessagePlace, request: bytes, _proof: MessageProof | None, *, is_writing: bool) -> str:
        judged.append((bytes(request), is_writing))
        return "nobody signed it"

    async with serving(tmp_path, APPENDS, refuses_request=refuses) as (_, peer):
        for request, is_writing in changing:
            error = await peer.refusal(request)
            assert (error.code, error.message) == ("unsigned_request", "nobody signed it")
            assert judged.pop() == (encode_request(request), is_writing)
        for request in (ListStreams(), GetBounds(stream=STREAM)):
            assert not isinstance(await peer.ask(request), ErrorAnswer)
        assert not judged


async def test_no_question_reveals_a_stream_that_is_not_exported(tmp_path: Path) -> None:
    """Whatever is asked about it, the answer is the same; nor may a zone write to other streams than its own, or take
    the lease of another zone's producer. The artifacts that it puts count within its own quota."""
    origin = f"plant-a/{'0' * 32}"
    questions = [
        GetBounds(stream=ORDERS),
        GetDigests(stream=ORDERS),
        GetDigests(stream=ORDERS, origin=origin, first_sequence=1, last_sequence=5),
        GetLatest(stream=ORDERS),
        FetchRange(stream=ORDERS, first_offset=1, last_offset=5, life="0" * 32, limit=5),
        FetchSequences(stream=ORDERS, origin=origin, first_sequence=1, last_sequence=5, limit=5),
        FetchFacts(consumer_name="idmz.orders", stream=ORDERS, limit=5),
    ]
    refused = [(question, "stream_not_exported") for question in questions]
    refused += [
        (AppendFact(stream=STREAM, messages=[new_message("m1")]), "append_not_allowed"),
        (AcquireLease(stream=STREAM, producer="idmz.mes"), "append_not_allowed"),
        (AcquireLease(stream=ORDERS, producer="plant-b.mes"), "bad_request"),
    ]  # the orders are exported to the enterprise

    def look_up(*_: object) -> Any:
        pytest.fail("nothing is searched for")

    async with serving(tmp_path, APPENDS, [StreamSettings(ORDERS)], look_up=look_up) as (server, peer):
        await peer.ask(AppendFact(stream=ORDERS, messages=[new_message("m0")]))
        for question, code in refused:
            assert (await peer.refusal(question)).code == code
            assert peer.answers[-1].operation == operation_of(question)
        assert [stream.name for stream in (await peer.ask(ListStreams())).streams] == [STREAM]
        store: Any = server._store
        await peer.ask(PutObject(digest="sha256:" + "0" * 64, size=4, offset=0, data=b"so"))
        assert store.artifacts.unreferenced().keys() == {"idmz"}


async def test_a_range_goes_on_while_a_fact_of_it_is_left(tmp_path: Path) -> None:
    """One fact that did not fit is enough. A range that ends beyond the log is refused: the position at its end names
    another log."""
    async with serving(tmp_path) as (server, peer):
        life = (await filled(server, 10)).life.hex()
        for last_offset, limit, more in (
            (10, 9, True),
            (10, 10, False),
            (9, 9, False),
        ):
            request = FetchRange(stream=STREAM, first_offset=1, last_offset=last_offset, life=life, limit=limit)
            answer = await peer.ask(request)
            assert (answer.covered(), answer.more) == ((1, limit), more), request
        for last_offset, other in ((11, life), (10, "0" * 32)):
            request = FetchRange(stream=STREAM, first_offset=1, last_offset=last_offset, life=other, limit=5)
            assert (await peer.refusal(request)).code == "life_unknown"


async def test_bounds_say_up_to_where_a_position_is_valid(tmp_path: Path) -> None:
    """For a reader that keeps its own position: exact, or unknown; and which life has stored the last fact."""
    async with serving(tmp_path) as (server, peer):
        life = (await filled(server, 10)).life.hex()
        for read, resolved in ((LogPosition(offset=7, life=life), 7), (LogPosition(offset=7, life="0" * 32), None)):
            bounds = await peer.ask(GetBounds(stream=STREAM, position=read))
            assert (bounds.life, bounds.end_offset) == (life, 10)
            assert (bounds.resolved and bounds.resolved.offset) == resolved


async def test_small_limits_slice(tmp_path: Path) -> None:
    """A small limit gets a readable slice with exactly the requested facts."""
    async with serving(tmp_path) as (server, peer):
        for _ in range(3):
            life = (await filled(server, 100)).life.hex()
        for after in range(0, 300, 7):
            read = LogPosition(offset=after, life=life)
            fetch = FetchFacts(consumer_name=NAME, stream=STREAM, limit=7, after=read)
            last = min(after + 7, after // 100 * 100 + 100)  # the batch's own, where the limit is not inside it
            assert (await peer.ask(fetch)).covered() == (after + 1, last)
            (part,) = peer.batches
            first = after % 100
            assert open_samples(parse(part)).values == [float(n) for n in range(first, first + last - after)]


async def test_sequences_and_digests_end_where_they_were_asked_to(tmp_path: Path) -> None:
    """One fact that did not fit is enough for another page of an origin's facts; the digest of a batch that ends beyond
    the range is not one in the range."""
    async with serving(tmp_path) as (server, peer):
        store = await filled(server, 10)
        await asyncio.wrap_future(store.appends.append_samples(STREAM, samples(10, 10)))
        (origin,) = map(str, store.reader.held(STREAM))
        for last, ends in ((9, []), (10, [10]), (19, [10]), (20, [10, 20])):
            request = GetDigests(stream=STREAM, origin=origin, first_sequence=1, last_sequence=last)
            answer = await peer.ask(request)
            assert [sequence for sequence, _ in answer.ends] == ends, request
        for last, more in ((10, False), (11, True)):
            fetch = FetchSequences(stream=STREAM, origin=origin, first_sequence=1, last_sequence=last, limit=10)
            answer = await peer.ask(fetch)
            assert answer.more is more


async def test_nothing_of_another_copy_of_the_log_is_compared(tmp_path: Path) -> None:
    """A comparison that has read another copy of this log gets neither ranges nor digests nor facts of this one: it
    would take for missing what only the copies do not share."""
    range_: dict[str, Any] = {"origin": f"plant-a/{'0' * 32}", "first_sequence": 1, "last_sequence": 5}
    other: dict[str, Any] = {"position": LogPosition(life="0000000000000001" + "1" * 16, offset=7)}
    async with serving(tmp_path) as (_, peer):
        for request in (
            GetDigests(stream=STREAM, **other),
            GetDigests(stream=STREAM, **range_, **other),
            FetchSequences(stream=STREAM, **range_, **other, limit=5),
        ):
            assert (await peer.refusal(request)).code == "life_unknown"


@pytest.mark.parametrize("zones_at_once", [1, 100])
async def test_held_ranges_come_in_several_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zones_at_once: int
) -> None:
    """Each has whole zones, no more ranges than its limit, and says whether others follow: together they are what is
    held, each range once, however many zones the store reads at once."""
    monkeypatch.setattr(streams_module, "RANGES_PER_ANSWER", 2)
    monkeypatch.setattr(streams_module, "ZONES_AT_ONCE", zones_at_once)
    origins = [Elsewhere(zone) for zone in ("west", "east", "north", "south", "far")]
    async with serving(tmp_path) as (server, peer):
        store: Any = server._store
        for origin in origins:
            sealed = [origin.seal(1) for _ in range(3)]
            origin.put(store, [sealed[0], sealed[2]])
        found, after, left = list[tuple[str, int, int]](), None, []
        for _ in range(1 + len(origins)):
            answer = await peer.ask(GetDigests(stream=STREAM, after_zone=after))
            found += [row[:3] for row in answer.ranges]
            assert len(answer.ranges) <= 2
            left.append(answer.more)
            if not answer.more:
                break
            after = answer.before[-1][0]
        assert found == [(name, at, at) for name in sorted(str(origin.origin) for origin in origins) for at in (1, 3)]
        assert left == [True] * (len(left) - 1) + [False]


async def test_lives_of_a_zone_are_listed_downwards_until_the_rest_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer has the newest life, and count and sum of the others; each further one has the next lives below,
    and what is left: together they are what is held, and each sum is that of what comes after it."""
    monkeypatch.setattr(streams_module, "RANGES_PER_ANSWER", 3)
    lives = [Elsewhere("north", life=bytes([number]) * 16) for number in range(1, 6)]
    async with serving(tmp_path) as (server, peer):
        store: Any = server._store
        for number in (2, 0, 4, 1, 3):
            sealed = [lives[number].seal(1, salt=1000 * number) for _ in range(3)]
            lives[number].put(store, [sealed[0], sealed[2]])
        held = {origin.life: ranges for origin, ranges in store.reader.held(STREAM).items()}
        answer, listed = await peer.ask(GetDigests(stream=STREAM)), list[bytes]()
        for _ in lives:
            found = [origin_named(name[0]).life for name in answer.ranges]
            assert found == sorted([*found[::2], *found[::2]]), "whole lives"
            listed = [*found[::2], *listed]
            left = [HeldSum.of(life, ranges) for life, ranges in held.items() if life < listed[0]]
            total = reduce(HeldSum.plus, left, HeldSum())
            assert answer.before == [("north", total.ranges, total.digest_hex)]
            if not left:
                break
            answer = await peer.ask(GetDigests(stream=STREAM, zone="north", below=listed[0].hex()))
        assert listed == sorted(held)
        span = {"zone": "north", "below": lives[4].origin.life.hex(), "down_to": lives[3].origin.life.hex()}
        part = await peer.ask(GetDigests(stream=STREAM, **span))
        assert {row[0] for row in part.ranges} == {str(lives[3].origin)}
        assert part.before[0][1] == 6


async def test_a_chunk_of_an_artifact_fits_into_a_packet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much of it is asked for: more than the broker takes would close the connection to it."""
    async with serving(tmp_path) as (server, peer):
        peer.packet_bytes_max = 5_000
        artifacts: Any = server._store.artifacts
        monkeypatch.setattr(artifacts, "streams", lambda _: frozenset({STREAM}))
        monkeypatch.setattr(artifacts, "read_chunk", lambda _digest, _offset, length: (10**6, bytes(length)))
        request = GetObject(digest="sha256:" + "0" * 64, offset=0, bytes_max=CHUNK_BYTES_MAX)
        answer = await peer.ask(request)
        assert 1_000 < answer.bytes < 5_000


async def test_a_reader_may_not_put_artifacts(tmp_path: Path) -> None:
    """Only a zone that may append facts may put artifacts, because they take space from all others."""
    async with serving(tmp_path) as (server, peer):
        put = PutObject(digest="sha256:" + "0" * 64, size=4, offset=0, data=b"some")
        assert (await peer.refusal(put)).code == "append_not_allowed"
        store: Any = server._store
        assert store.artifacts.unreferenced() == {}


async def test_an_append_waits_for_the_acks_that_it_asks_for(tmp_path: Path) -> None:
    """Even if the stream itself requires less: without a consumer that has the fact, it is answered as queued."""
    orders = StreamSettings(ORDERS, acks="local", acks_timeout_ms=50)
    async with serving(tmp_path, APPENDS, [orders]) as (_, peer):
        for acks, outcome in ((None, "applied"), ("quorum", "queued")):
            request = AppendFact(stream=ORDERS, messages=[new_message(f"m-{acks}")], acks=acks)  # type: ignore[arg-type]
            answer = await peer.ask(request)
            assert [outcome.outcome for outcome in answer.outcomes] == [outcome]


async def test_an_invalid_message_refuses_its_whole_request(tmp_path: Path) -> None:
    """The refusal names the message and nothing is stored; the next request is carried out."""
    good = new_message("a")
    wrong = [
        ([good, new_message("b", zone="plant-a")], {}, "messages[1]: from_zone"),
        ([good, new_message("b", zone="enterprise")], {}, "messages[1]: from_zone"),
        ([good, new_message("")], {}, "messages[1]: message_id"),
        ([new_message("a", b'{"k":1,"k":2}')], {}, "messages[0]: object: has a key twice"),
        ([new_message("a", base_offset=1)], {}, "base_offset"),
        ([new_message("a", producer="idmz.mes")], {}, "lease_epoch"),
        ([good], {"acks": "all"}, "local"),
        ([], {}, "messages"),
    ]
    async with serving(tmp_path, APPENDS, [StreamSettings(ORDERS, write_class="local")]) as (server, peer):
        for messages, fields, why in wrong:
            error = await peer.refusal(AppendFact(stream=ORDERS, messages=messages, **fields))
            assert (error.code, error.retryable) == ("bad_request", False)
            assert why in error.message
        assert server._store.streams() == []
        assert [
            outcome.outcome for outcome in (await peer.ask(AppendFact(stream=ORDERS, messages=[good]))).outcomes
        ] == ["applied"]

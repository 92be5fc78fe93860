"""The pulling shell against a peer and a store that the test plays by hand: requests are answered, and futures
resolved, one by one.

Each test holds one promise between the receiver's core and the store, which simulations would see only by its
consequences.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from agent import batch
from agent.batch import Batch, Origin, parse
from agent.errors import StoreError, StoreFull
from agent.fact_store.core.errors import DefinitionsMissing, FactsRefused
from agent.pages import (
    ArtifactProgress,
    ArtifactReference,
    DefinitionChain,
    LackingDefinitions,
    OriginRange,
    PutResult,
    ReceivedPage,
)
from agent.positions import Position, Trail
from agent.replication.mqtt import PeerReply
from agent.replication.protocol.codec import ArrivedAnswer, accept_every_message, encode_error
from agent.replication.protocol.errors import ERRORS, ConnectionLost, NotAuthorized
from agent.replication.protocol.messages import (
    Confirm,
    DefinitionRun,
    DefinitionsAnswer,
    FetchAnswer,
    FetchFacts,
    GetDefinitions,
    LogPosition,
)
from agent.replication.protocol.token_bucket import TokenBucket
from agent.replication.pulling import Puller, PullSettings, message_judge, page_judge, puller
from agent.replication.pulling.catch_up import BEHIND_FACTS_MIN
from agent.replication.pulling.page_check import check_batches
from agent.replication.pulling.receiving.pull_events import Asking, FetchFailed, ReceiverSettings, Tick
from agent.settings.peers import BYTES_PER_SECOND_MIN
from agent.signing.certificates import CertificateRefusal, RefusalReason
from agent.signing.messages import MessagePlace
from tests.fact_store.making import TELEMETRY, Elsewhere, message
from tests.replication.answers import encode_answer
from tests.waiting import LIMIT_S, wait_until_async

PLACE = MessagePlace("plant", "idmz", "1", bytes(16))
ONE, TWO = "1" * 32, "2" * 32
PATIENCE = ReceiverSettings(pause_ms_min=1, pause_ms_max=1, backoff_ms_min=1, backoff_ms_max=1)
PULL = PullSettings("plant", TELEMETRY, "idmz.facts.telemetry", frozenset({"plant"}), receiver=PATIENCE)


@dataclass
class Put:
    """A page that the store got, and the future that the test resolves."""

    page: ReceivedPage
    future: Future[PutResult] = field(default_factory=Future)

    @property
    def end(self) -> tuple[str, int]:
        """Life and offset of the position."""
        return self.page.read[-1].life.hex(), self.page.read[-1].offset


class HandStore:
    """A store that does nothing by itself."""

    zone = node = "idmz"

    def __init__(self, position: Position | None = None) -> None:
        self.position = position
        self.defined: list[DefinitionChain] = []
        self.put: list[Put] = []
        self.notes: list[tuple[str, str]] = []
        self.missing: list[ArtifactReference] = []
        self.refuses: StoreError | None = None
        self.inbound = self.reader = self
        self.artifacts = SimpleNamespace(
            missing=lambda _: self.missing, put_chunk=lambda *_: ArtifactProgress(5, 0, is_complete=False)
        )

    def trail(self, peer: str, stream: str) -> Trail:
        assert (peer, stream) == ("plant", TELEMETRY)
        return (self.position,) if self.position else ()

    def put_definitions(self, peer: str, chains: Sequence[DefinitionChain]) -> Future[int]:
        assert peer == "plant"
        self.defined += chains
        stored = Future[int]()
        stored.set_result(1)
        return stored

    def signed_zones(self) -> frozenset[str]:
        return frozenset()

    def put_page(self, page: ReceivedPage) -> Future[PutResult]:
        assert (page.peer, page.stream) == ("plant", TELEMETRY)
        if self.refuses is not None:
            raise self.refuses
        self.put.append(Put(page))
        return self.put[-1].future

    def note_incident(self, kind: str, stream: str, peer: str, why: str) -> Future[None]:
        assert (peer, stream) == ("plant", TELEMETRY)
        self.notes.append((kind, why))
        return Future()


class HandPeer:
    """The requester's link and the peer behind it: requests are kept until the test answers them."""

    peer_node = "plant"

    def __init__(self) -> None:
        self.requests: list[FetchFacts] = []
        self.expires_s: list[int] = []
        self.on_answer: list[Callable[[ArrivedAnswer], None]] = []
        self.on_heartbeat: list[Callable[[], None]] = []
        self.sent: list[asyncio.Future[None]] = []
        self.is_down = False
        self.is_behind = False
        self.link = SimpleNamespace(watch=self._watch, is_behind=lambda: self.is_behind)

    def _watch(self, on_up: Callable[[], None], on_down: Callable[[str], None]) -> None:
        self.up, self.down = on_up, on_down
        on_up()

    def send(
        self,
        request: FetchFacts,
        on_answer: Callable[[ArrivedAnswer], None],
        expiry_s: int,
        on_heartbeat: Callable[[], None],
    ) -> asyncio.Future[None]:
        if self.is_down:
            raise ConnectionLost("broker", "cut")
        self.requests.append(request)
        self.expires_s.append(expiry_s)
        self.on_answer.append(on_answer)
        self.on_heartbeat.append(on_heartbeat)
        self.sent.append(asyncio.get_running_loop().create_future())
        return self.sent[-1]


class Scene:
    """A running puller, its peer and its store."""

    def __init__(self, store: HandStore, bandwidth: TokenBucket | None) -> None:
        self.store, self.peer = store, HandPeer()
        asker: Any = self.peer
        port: Any = store
        self.puller = Puller(asker, port, PULL, chance=lambda: 0.0, bandwidth=bandwidth)

    async def answer(self, payload: bytes, number: int = -1, *, is_proven: bool = True) -> None:
        """Answer a request, by default the newest."""
        refuses = accept_every_message if is_proven else (lambda *_: "nobody signed it")
        self.peer.on_answer[number](ArrivedAnswer(payload, PLACE, refuses))
        await settle()

    async def requested(self, count: int) -> FetchFacts:
        """The newest request, once there are so many."""
        await wait_until_async(lambda: len(self.peer.requests) >= count, f"request {count}")
        assert len(self.peer.requests) == count
        return self.peer.requests[-1]


async def settle() -> None:
    """Let everything run that can run without the passing of time."""
    for _ in range(20):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def pulling(store: HandStore | None = None, bandwidth: TokenBucket | None = None) -> AsyncIterator[Scene]:
    """A puller that has sent its first request."""
    scene = Scene(store or HandStore(), bandwidth)
    running = asyncio.create_task(scene.puller.run())  # tidy: the test's own
    try:
        await settle()
        yield scene
    finally:
        running.cancel()
        await asyncio.wait([running])
    if not running.cancelled() and (error := running.exception()) is not None:
        raise error


class Peer(Elsewhere):
    """A plant that makes pages of its facts."""

    def page(self, first: int, count: int, *, life: str = ONE, more: bool = True, **fields: Any) -> bytes:
        """An answer with one batch at an offset."""
        sealed = fields.pop("sealed", None) or self.seal(count)
        last = first + count - 1
        holes = fields.get("holes", [])
        ends = (min([first, *(hole[0] for hole in holes)]) - 1, max([last, *(hole[1] for hole in holes)]))
        after, end = (LogPosition(offset=end, life=ONE if end else "") for end in ends)
        answer = {
            "store_zone": "plant",
            "stream": TELEMETRY,
            "frontier": 0,
            "end_offset": 1_000,
            "batches": [(first, last, len(sealed))],
            "more": more,
            "lease": 1,
            "life": life,
            "after": after,
            "lives": [end],
        }
        return encode_answer(FetchAnswer(**{**answer, **fields}), [sealed])

    def without_facts(self, **fields: Any) -> bytes:
        """An answer without batches."""
        answer = {
            "store_zone": "plant",
            "life": ONE,
            "stream": TELEMETRY,
            "frontier": 0,
            "end_offset": 1_000,
            "lease": 1,
        }
        return encode_answer(FetchAnswer(**answer, **fields), [])


def result(facts: int = 10) -> PutResult:
    """The result of a stored page."""
    return PutResult(facts, 0, facts)


def asked_after(request: FetchFacts) -> int:
    """The offset after which a request asks."""
    (*_, last) = request.trail or [request.after or LogPosition()]
    return last.offset


def at(offset: int, digest: str = "") -> LogPosition:
    """A position in the peer's log."""
    return LogPosition(offset=offset, life=ONE, digest=digest)


async def test_the_first_request_reports_what_is_durable() -> None:
    """Trail and lease of a stored position are in the first request, and the request expires with its time-out."""
    store = HandStore(Position(bytes.fromhex(ONE), 40, b"d" * 16))
    async with pulling(store) as scene:
        expected = FetchFacts(
            consumer_name="idmz.facts.telemetry",
            stream=TELEMETRY,
            limit=262_144,
            bytes_max=scene.peer.requests[0].bytes_max,
            trail=[at(40, (b"d" * 16).hex())],
            confirm=Confirm(last_offset=40, life=ONE, digest=(b"d" * 16).hex()),
            lease=0,
            lease_after=0,
            signers_known=[],
        )
        assert scene.peer.requests == [expected]
        assert scene.peer.expires_s == [4]


async def test_page_goes_to_the_store_as_it_came() -> None:
    """The store gets parsed batches, holes and the position after them; it need not check again."""
    plant = Peer()
    async with pulling() as scene:
        sealed = plant.seal(10)
        payload = plant.page(
            6,
            10,
            sealed=sealed,
            holes=[(1, 5, "expired")],
            more=False,
            lives=[LogPosition(offset=3, life=TWO), at(15, "ab" * 16)],
        )
        await scene.answer(payload)
        (put,) = scene.store.put
        read = Position(bytes.fromhex(TWO), 3), Position(bytes.fromhex(ONE), 15, b"\xab" * 16)
        page = ReceivedPage("plant", TELEMETRY, [parse(sealed)], read, [(1, 5, "expired")], verified=frozenset())
        assert put.page == page
        put.future.set_result(PutResult(9, 1, 10))
        await settle()
        found = scene.puller.statistics()
        assert (found.counters.facts_stored, found.counters.facts_duplicate, found.offset) == (9, 1, 15)


async def test_definitions_that_the_store_lacks_are_fetched_before_the_page() -> None:
    """The store names what a page lacks: it is requested from the peer, stored, and the page is offered again. The
    pages behind it wait."""
    plant = Peer()
    (chain,) = plant.received()
    lacking = [LackingDefinitions("plant", plant.definitions)]
    async with pulling() as scene:
        asked = list[GetDefinitions]()

        async def ask(request: GetDefinitions, _: float) -> PeerReply:
            asked.append(request)
            (wanted,) = request.wanted
            run = DefinitionRun(zone="plant", digest=wanted.digest, lengths=[len(body) for body in plant.bodies])
            return PeerReply(DefinitionsAnswer(store_zone="plant", life=ONE, runs=[run]), list(plant.bodies))

        scene.puller._runner._definitions._requester.ask = ask  # type: ignore[method-assign,assignment]
        await scene.answer(plant.page(1, 10))
        await scene.answer(plant.page(11, 10))
        scene.store.put[0].future.set_exception(DefinitionsMissing("telemetry", lacking))
        await wait_until_async(lambda: len(scene.store.put) == 2, "the page to be offered again")
        assert [definitions.digest for request in asked for definitions in request.wanted] == [
            plant.definitions.digest.hex()
        ]
        assert scene.store.defined == [chain]
        assert [put.end[1] for put in scene.store.put] == [10, 10]
        scene.store.put[1].future.set_result(result())
        await wait_until_async(lambda: len(scene.store.put) == 3, "the next page")


async def test_a_page_waits_while_its_definitions_cannot_be_fetched() -> None:
    """A lost connection passes; a peer that does not have the definitions of its own batch is asked again rarely."""
    plant = Peer()
    lacking = [LackingDefinitions("plant", plant.definitions)]
    async with pulling() as scene:
        outcomes: list[Exception | PeerReply] = [
            ConnectionLost("broker", "cut"),
            PeerReply(DefinitionsAnswer(store_zone="plant", life=ONE), []),
        ]

        async def ask(*_: object) -> PeerReply:
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        scene.puller._runner._definitions._requester.ask = ask  # type: ignore[method-assign]
        await scene.answer(plant.page(1, 10))
        scene.store.put[0].future.set_exception(DefinitionsMissing("telemetry", lacking))
        await wait_until_async(lambda: "cut" in scene.puller.statistics().page_waits, "the page to wait")
        await wait_until_async(lambda: len(scene.store.put) == 2, "the page to be offered again")
        scene.store.put[1].future.set_exception(DefinitionsMissing("telemetry", lacking))
        await wait_until_async(lambda: scene.puller.statistics().asking is Asking.BLOCKED, "the pull to stand")
        assert "does not have the tag definitions of plant" in str(scene.puller.statistics().lost_reason)


async def test_nothing_behind_a_refused_page_is_stored() -> None:
    """Of two accepted pages the first is refused for good: the second, which builds on it, is never passed to the
    store, and nothing is confirmed."""
    plant = Peer()
    async with pulling() as scene:
        await scene.answer(plant.page(1, 10))
        await scene.requested(2)
        await scene.answer(plant.page(11, 10))
        (refused,) = scene.store.put
        refused.future.set_exception(FactsRefused("another history"))
        await settle()
        found = scene.puller.statistics()
        assert scene.store.put == [refused]
        assert (found.asking, found.offset) == (Asking.BLOCKED, 0)
        assert scene.store.notes == [("pull_stands", found.lost_reason)]
        assert "FactsRefused: another history" in str(found.lost_reason)
        assert [request.confirm for request in scene.peer.requests] == [None] * len(scene.peer.requests)


@pytest.mark.parametrize("is_at_once", [False, True])
async def test_page_is_offered_again_while_the_store_is_full(*, is_at_once: bool) -> None:
    """A retryable refusal keeps the page: the same page is offered again, no incident is recorded, and the next page
    waits."""
    plant = Peer()
    async with pulling() as scene:
        store = scene.store
        store.refuses = StoreFull("disk full") if is_at_once else None
        await scene.answer(plant.page(1, 10))
        await scene.requested(2)
        await scene.answer(plant.page(11, 10))
        if not is_at_once:
            store.put[0].future.set_exception(StoreFull("disk full"))
        await wait_until_async(lambda: "disk full" in scene.puller.statistics().page_waits, "the page to wait")
        store.refuses = None
        await wait_until_async(lambda: len(store.put) == 2 - is_at_once, "the page to be offered again")
        assert [put.end for put in store.put] == [(ONE, 10)] * len(store.put)
        assert store.notes == []
        store.put[-1].future.set_result(result())
        await wait_until_async(lambda: store.put[-1].end == (ONE, 20), "the page behind it")
        assert scene.puller.statistics().page_waits == ""


async def test_unproven_answers_neither_fence_nor_skip_nor_restart() -> None:
    """An attacker in between sends every answer that would stop this pull or move it: none does, each is counted, and
    the page of the peer that follows is stored."""
    plant = Peer()
    async with pulling() as scene:
        await scene.answer(plant.page(1, 10))
        await scene.requested(2)
        forged = [
            encode_error("plant", ONE, "FetchFacts", "fenced", "forged"),
            encode_error("plant", TWO, "FetchFacts", "busy", "forged"),
            plant.without_facts(holes=[(11, 910, "expired")]),
            plant.without_facts(omitted=[(11, 910)]),
            plant.without_facts(),
            Peer().page(1, 5, life=TWO),
            (page := plant.page(11, 5, more=False)),
            b"no answer",
        ]
        for answer in forged:
            await scene.answer(answer, is_proven=False)
        statistics = scene.puller.statistics()
        assert (statistics.counters.unproven, statistics.asking) == (len(forged), Asking.WAITING)
        await scene.answer(page)
        for put in (0, 1):
            scene.store.put[put].future.set_result(result())
            await settle()
        assert [put.end for put in scene.store.put] == [(ONE, 10), (ONE, 15)]
        assert [put.page.holes for put in scene.store.put] == [[], []]


def flipped(sealed: bytes, at: int) -> bytes:
    """A batch with one byte changed and the digest adapted, as a malicious peer would do."""
    changed = bytearray(sealed[: -batch.DIGEST_BYTES])
    changed[at] ^= 0xFF
    return bytes(changed) + batch._digest(bytes(changed))


@pytest.mark.parametrize("inline_bytes_max", [16_384, 0], ids=["in the loop", "in the thread"])
@pytest.mark.parametrize("what", ["another zone's", "cut short", "another stream's"])
async def test_batches_are_checked_before_they_are_stored(
    what: str, inline_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Facts of a zone that this peer may not relay, of another stream, or with changed bytes never reach the store."""
    monkeypatch.setattr(puller, "CHECKED_INLINE_BYTES_MAX", inline_bytes_max)
    plant = Peer()
    match what:
        case "another zone's":
            bad = Elsewhere("elsewhere").seal(10)
        case "another stream's":
            bad = Elsewhere(stream="facts.other").seal(10)
        case _:
            bad = plant.seal(10)[:-1]
    async with pulling() as scene:
        await scene.answer(plant.page(1, 10, sealed=bad))
        await wait_until_async(lambda: scene.puller.statistics().asking is Asking.BLOCKED, "the refusal")
        assert scene.store.put == []
        assert "PageRefused" in str(scene.puller.statistics().lost_reason)


@pytest.mark.parametrize("inline_bytes_max", [16_384, 0], ids=["in the loop", "in the thread"])
async def test_a_batch_that_cannot_be_opened_is_declined_and_what_is_behind_it_goes_on(
    inline_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a batch with a right digest and unreadable content, only the name reaches the store. The position passes
    it."""
    monkeypatch.setattr(puller, "CHECKED_INLINE_BYTES_MAX", inline_bytes_max)
    plant = Peer()
    bad = flipped(plant.seal(10), -20)
    async with pulling() as scene:
        await scene.answer(plant.page(1, 10, sealed=bad))
        await wait_until_async(lambda: len(scene.store.put) == 1, "the page to be stored")
        put = scene.store.put[0]
        (declined,) = put.page.declined
        assert (declined.first_offset, declined.last_offset) == (1, 10)
        assert declined.reason.startswith("unreadable: ")
        assert (list(put.page.batches), put.end) == ([], (ONE, 10))
        put.future.set_result(result())
        await wait_until_async(lambda: len(scene.peer.requests) >= 2, "the next request")
        await settle()
        last = scene.peer.requests[-1]
        assert asked_after(last) == 10
        assert scene.puller.statistics().asking is Asking.WAITING


@pytest.mark.parametrize("count, is_in_loop", [(1, True), (256, False)])
async def test_many_certificates_are_not_parsed_in_the_event_loop(
    count: int, monkeypatch: pytest.MonkeyPatch, *, is_in_loop: bool
) -> None:
    """A page of a few facts with all the certificates that a page may have is checked in the thread: each takes up to a
    millisecond."""
    plant, threads = Peer(), set[threading.Thread]()

    def described(certificate: bytes) -> CertificateRefusal:
        threads.add(threading.current_thread())
        return CertificateRefusal(RefusalReason.MALFORMED, str(len(certificate)))

    monkeypatch.setattr(message_judge, "_described", described)
    async with pulling() as scene:
        await scene.answer(plant.page(1, 10, signers=[bytes([at]) * 400 for at in range(count)]))
        await wait_until_async(lambda: len(scene.store.put) == 1, "the page to be stored")
        assert (threads == {threading.current_thread()}) is is_in_loop
        assert len(threads) == 1


async def test_next_page_is_checked_while_one_is_stored_and_waits_for_it() -> None:
    """Pages are stored one after the other, in the order of their offsets."""
    plant = Peer()
    async with pulling() as scene:
        for number in range(3):
            await scene.answer(plant.page(1 + 10 * number, 10))
            await settle()
        assert [put.end[1] for put in scene.store.put] == [10]
        scene.store.put[0].future.set_result(result())
        await settle()
        assert [put.end[1] for put in scene.store.put] == [10, 20]


async def test_artifacts_come_before_the_facts() -> None:
    """A page of messages is passed to the store only when the artifacts to which its facts refer are here."""
    link = batch.Link(TELEMETRY, Origin("plant", bytes.fromhex(ONE)))
    sealed = batch.seal_messages(link, [message("m1")]).sealed
    async with pulling() as scene:
        scene.store.missing = [ArtifactReference("sha256:" + "a" * 64, 5)]
        asked, brought = asyncio.Event(), asyncio.get_running_loop().create_future()

        async def ask(*_: object) -> None:
            asked.set()
            raise await brought

        scene.puller._runner.artifacts._requester.ask = ask
        await scene.answer(Peer().page(1, 1, sealed=sealed))
        await asyncio.wait_for(asked.wait(), LIMIT_S)
        assert scene.store.put == []
        brought.set_result(ConnectionLost("broker", "cut"))
        await wait_until_async(lambda: "cut" in scene.puller.statistics().page_waits, "the page to wait")
        assert scene.store.put == []
        scene.store.missing = []
        await wait_until_async(lambda: scene.store.put, "the page")


async def test_artifacts_beyond_the_quota_come_after_the_facts() -> None:
    """What does not fit before a fact refers to it is requested once the fact is stored, and only then."""
    link = batch.Link(TELEMETRY, Origin("plant", bytes.fromhex(ONE)))
    sealed = batch.seal_messages(link, [message("m1")]).sealed
    outcomes, fetched = [False, True], list[int]()

    async def fetch(_: Sequence[Batch]) -> bool:
        fetched.append(len(scene.store.put))
        return outcomes.pop(0)

    async with pulling() as scene:
        scene.puller._runner.artifacts.fetch = fetch  # type: ignore[method-assign]
        await scene.answer(Peer().page(1, 1, sealed=sealed))
        await wait_until_async(lambda: scene.store.put, "the page")
        assert fetched == [0]
        scene.store.put[0].future.set_result(result())
        await wait_until_async(lambda: scene.puller.statistics().counters.facts_stored, "the stored page")
        assert fetched == [0, 1]
        outcomes.append(True)
        await scene.answer(Peer().page(2, 1, sealed=sealed))
        await wait_until_async(lambda: len(scene.store.put) == 2, "the second page")
        scene.store.put[1].future.set_result(result())
        await wait_until_async(lambda: scene.puller.statistics().offset == 2, "the stored second page")
        assert fetched == [0, 1, 1]


async def test_lost_request_and_lost_connection_are_passing() -> None:
    """A request that could not be sent, or that the broker refused, is sent again; the pull does not stop. Requests
    that the end of the connection cut off are counted until the broker takes one."""
    async with pulling() as scene:
        scene.peer.sent[0].set_exception(ConnectionLost("broker", "cut"))
        await scene.requested(2)
        scene.peer.is_down = True
        scene.peer.sent[1].set_exception(ConnectionLost("broker", "cut"))
        await wait_until_async(lambda: scene.puller.statistics().asking is Asking.BACKOFF, "a failure to send")
        scene.peer.is_down = False
        await scene.requested(3)
        assert (scene.store.notes, scene.puller.statistics().counters.timeouts) == ([], 0)
        contact = scene.puller._runner.core.contact
        assert contact._cuts == 2
        scene.peer.sent[2].set_result(None)
        await settle()
        assert contact._cuts == 0


async def test_a_request_that_will_never_be_allowed_is_sent_rarely() -> None:
    """The broker's access list forbids it: the pull stands until an operator acts, and an incident says so."""
    async with pulling() as scene:
        scene.peer.sent[0].set_exception(NotAuthorized("topic", "the access list forbids it"))
        await settle()
        assert scene.puller.statistics().asking is Asking.BLOCKED
        assert [kind for kind, _ in scene.store.notes] == ["pull_stands"]


async def test_an_answer_in_another_version_is_final_and_a_damaged_one_is_not() -> None:
    """Another major version stays unreadable until a node is updated: an incident says so, with what to do. Damaged
    bytes are requested again."""
    page = Peer().page(1, 10)
    async with pulling() as scene:
        await scene.answer(page[:40] + b"!" + page[41:])
        await scene.requested(2)
        assert not scene.store.notes
        await scene.answer(page.replace(b'"version":"1.0"', b'"version":"2.0"'))
        assert scene.puller.statistics().asking is Asking.BLOCKED
        ((kind, why),) = scene.store.notes
        assert kind == "pull_stands"
        assert "'2.0'" in why
        assert ERRORS["unsupported_version"].hint in why


async def test_an_incident_that_is_not_taken_ends_no_pull() -> None:
    """A store that is full refuses incidents too: log and status have the reason all the same."""
    store = HandStore()
    store.note_incident = Mock(side_effect=StoreFull("disk", "make room"))  # type: ignore[method-assign]
    async with pulling(store) as scene:
        await scene.answer(encode_error("plant", ONE, "FetchFacts", "stream_not_exported", "not for you"))
        assert store.note_incident.called
        assert scene.puller.statistics().asking is Asking.BLOCKED


async def test_only_a_page_begins_a_pull() -> None:
    """The latest values are asked for, and the peer counts as connected, once a page shows that it has registered the
    consumer: not after a refusal."""
    async with pulling() as scene:
        await scene.answer(encode_error("plant", ONE, "FetchFacts", "busy", "later"))
        assert not scene.puller.begun.is_set()
        assert scene.puller.statistics().last_answer_ms is None
        await scene.requested(2)
        await scene.answer(Peer().page(1, 10))
        assert scene.puller.begun.is_set()
        assert scene.puller.statistics().last_answer_ms is not None


async def test_a_heartbeat_moves_the_deadline_and_costs_no_event() -> None:
    """The timer stays as it was; when it is due it is set for the deadline of then."""
    async with pulling() as scene:
        pull, alarm, cancel = scene.puller, scene.puller._alarm, scene.puller._alarm._cancel
        first_ms = pull._runner.core.deadline_ms
        pull._runner.core._open = replace(pull._runner.core._open, last_ms=2**50)  # type: ignore[type-var]
        scene.peer.on_heartbeat[-1]()
        moved_ms = pull._runner.core.deadline_ms
        assert first_ms is not None
        assert moved_ms is not None
        assert moved_ms > first_ms
        assert (alarm._cancel, alarm._at_ms, pull._events.qsize()) == (cancel, first_ms, 0)
        alarm._ring()
        assert (alarm._at_ms, pull._events.qsize()) == (moved_ms, 0)


async def test_a_deadline_counts_once_the_request_has_left_and_all_is_read() -> None:
    """Until the broker has acknowledged the request, and while messages are unread, a deadline that passes ends
    nothing."""
    async with pulling() as scene:
        pull, core = scene.puller, scene.puller._runner.core

        async def passes() -> int:
            core._open = replace(core._open, deadline_ms=0)  # type: ignore[type-var]
            pull._alarm._ring()
            await settle()
            return core.counters.timeouts

        assert await passes() == 0
        scene.peer.is_behind = True
        scene.peer.sent[-1].set_result(None)
        await settle()
        assert await passes() == 0
        scene.peer.is_behind = False
        assert await passes() == 1


async def test_answers_leave_room_for_all_other_events() -> None:
    """However many arrive before the pull looks at them; those beyond are lost, and asked for again."""
    async with pulling() as scene:
        for number in range(2 * puller.EVENTS_MAX):
            scene.puller._happened(FetchFailed(number, "busy", "later", is_retryable=True))
        for _ in range(puller.EVENTS_MAX // 2 - 1):
            scene.puller._happened(Tick())
        scene.peer.down("cut")
        assert scene.puller._events.qsize() <= puller.EVENTS_MAX
        await settle()
        assert scene.puller.statistics().asking is Asking.OFFLINE


async def test_a_pull_that_ends_leaves_nothing_open() -> None:
    """No timer is left in the event loop."""
    async with pulling() as scene:
        await scene.answer(Peer().page(1, 10))
        timer: Any = scene.puller._alarm._cancel
        assert not timer.__self__.cancelled()
    assert timer.__self__.cancelled()


async def test_a_check_in_the_event_loop_fails_as_one_in_a_thread() -> None:
    """With an error of the store, too, which a certificate is read from: the page is refused, and nothing ends."""

    def check() -> Any:
        raise StoreFull("disk", "make room")

    async with pulling() as scene:
        checking = scene.puller._start_check(check, 1)
        with pytest.raises(StoreFull):
            await checking


async def test_far_behind_the_page_is_backlog() -> None:
    """From the first page that shows a large lag on, the store does not count the facts as the peer's rate."""
    plant = Peer()
    async with pulling() as scene:
        await scene.answer(plant.page(1, 10, end_offset=BEHIND_FACTS_MIN))
        found = scene.puller.statistics()
        assert scene.store.put[0].page.is_backlog
        assert found.peer_end_offset == BEHIND_FACTS_MIN
        assert found.catch_up is not None


def test_skipped_facts_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Refused facts are logged each time, and facts that could not be compared once, although each page of an old life
    names them."""
    plant, expected = Peer(), ["facts_refused", "facts_refused"]
    refused = OriginRange("plant", bytes(16), 1, 5)

    async def scenario() -> None:
        async with pulling() as scene:
            for number in range(2):
                await scene.answer(plant.page(1 + 10 * number, 10))
                scene.store.put[number].future.set_result(PutResult(10, 0, 10, refused=(refused,)))
                await settle()

    asyncio.run(scenario())
    assert [record.message for record in caplog.records if record.message.startswith("facts_")] == expected


def test_a_peer_that_is_lost_and_its_return_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The loss with its reason as a warning, the return, and how the pull catches up, as information."""
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with pulling() as scene:
            await scene.answer(Peer().page(1, 10))
            scene.peer.down("cut")
            await settle()
            scene.peer.up()
            assert asked_after(await scene.requested(3)) == 10
            await scene.answer(Peer().page(11, 10, end_offset=BEHIND_FACTS_MIN))

    asyncio.run(scenario())
    found = [(record.message, record.levelname, vars(record)) for record in caplog.records if "peer" in vars(record)]
    assert [line[:2] for line in found] == [
        ("peer_lost", "WARNING"), ("catch_up_started", "INFO"), ("peer_returned", "INFO")
    ]  # fmt: skip
    assert all((fields["peer"], fields["stream"]) == ("plant", TELEMETRY) for _, _, fields in found)
    assert found[0][2]["reason"] == "cut"


async def test_pages_that_wait_for_their_check_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer keeps requests open for long and answers all of them at once, faster than pages are checked: those that
    are not stored next are dropped unchecked, and the pull continues."""
    plant, may_check, begun = Peer(), threading.Event(), list[int]()

    def slow(*of_page: Any) -> Any:
        begun.append(1)
        may_check.wait(20)
        return check_batches(*of_page)

    monkeypatch.setattr(puller, "CHECKED_INLINE_BYTES_MAX", 0)
    monkeypatch.setattr(page_judge, "check_batches", slow)
    async with pulling() as scene:
        page = plant.page(1, 10)
        for _ in range(100):
            await scene.answer(page, 0)
        may_check.set()
        await wait_until_async(lambda: scene.store.put, "the page")
        assert (len(begun), scene.puller.statistics().counters.pages_dropped) == (1, 99)


async def test_every_answer_spends_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bandwidth limit, the bytes of each answer are spent, also those of an unusable one."""
    monkeypatch.setattr(puller, "_now_ms", lambda: 0)  # no tokens come meanwhile
    limit = TokenBucket(BYTES_PER_SECOND_MIN)
    async with pulling(bandwidth=limit) as scene:
        await scene.answer(b"x" * 100_000)
        assert limit.bytes_owed(0) > 90_000
        pacing = scene.puller.statistics().pacing
        assert pacing is not None
        assert pacing.bytes_owed > 90_000


def test_an_unexpected_error_of_the_store_ends_the_pull() -> None:
    """An error that is not one of the store's is our mistake, and ends the task."""
    plant = Peer()

    async def scenario() -> None:
        async with pulling() as scene:
            await scene.answer(plant.page(1, 10))
            scene.store.put[0].future.set_exception(AssertionError("a mistake"))
            await settle()

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(scenario())
    assert caught.group_contains(AssertionError, match="a mistake")

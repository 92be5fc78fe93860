"""Signed ends on their way from an origin through a relay to a receiver, and the receiver's conclusions."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from agent.batch import Origin, parse
from agent.fact_store import FactStore, StoreBusy
from agent.message import Sample
from agent.node.store_errors import STORE_ERRORS
from agent.pages import CERTIFICATES_OF_KEY_MAX, PeerPosition, ReceivedDefinition
from agent.replication.mqtt.requester import Reply
from agent.replication.protocol.errors import ConnectionLost, MalformedMessage, PeerRefused
from agent.replication.protocol.messages import CERTIFICATES_MAX, HEADS_MAX, GetHeads, HeadsAnswer
from agent.replication.pulling import HeadsWatch, PageJudge, TrustPolicy, heads_watch
from agent.replication.serving.admission import Caller
from agent.replication.serving.operations.heads import get_heads
from agent.replication.serving.outcomes import Refuse
from agent.replication.serving.outcomes import Reply as Answered
from agent.signing.certificates import SignerTrust
from agent.signing.freshness import Freshness, SignedEnd
from agent.signing.heads import HeadSigner, sign_head
from agent.signing.keys import SigningKey, ZoneSigner
from agent.signing.runs import check_head
from tests.fact_store.making import AT_ONCE, TELEMETRY, done, parsed, tag
from tests.signing.signers import NOW_MS, make
from tests.waiting import LIMIT_S, wait_until_async

MADE = {zone: make(zone) for zone in ("plant", "idmz", "evil")}
SIGNERS = {zone: ZoneSigner(SigningKey(made.key), made.der) for zone, made in MADE.items()}
PINS = {zone: frozenset({made.sha256}) for zone, made in MADE.items()}


class Node:
    """A store with the signed ends that it has seen, answering GetHeads as a node does."""

    def __init__(
        self, folder: Path, zone: str, signer: HeadSigner | None, trusts: dict[str, Any] | None = None
    ) -> None:
        self.zone = zone
        self.store = FactStore.open(folder / f"{zone}.db", zone, settings=AT_ONCE, signer=signer)
        self.freshness = Freshness()
        self.judge = PageJudge(self.store, TrustPolicy(SignerTrust(pins=PINS if trusts is None else trusts)))
        self.forge = lambda answer, heads: (answer, heads)

    def record(self, first: int, count: int = 5) -> None:
        """Record samples."""
        done(self.store.appends.define([tag(1)]))
        rows = [Sample(1, n * 1_000_000, n, 0) for n in range(first, first + count)]
        done(self.store.appends.append_samples(TELEMETRY, rows))

    async def answer(self, zone: str, request: GetHeads) -> Answered | Refuse:
        """This node's answer to a zone."""

        async def in_turn(_: str, call: Any, *arguments: Any) -> Any:
            return call(*arguments)

        context: Any = SimpleNamespace(
            store=self.store,
            exports={zone: frozenset({TELEMETRY})},
            store_name={"store_zone": self.zone, "epoch": self.store.epoch.hex()},
            ends_known=self.freshness.newest,
            in_turn=in_turn,
        )
        found: Any = await get_heads(context, Caller(zone, "i", b"c" * 16), request)
        return found

    def ask(self, other: "Node", *zones: str) -> None:
        """Ask another node once, as the watch does."""

        async def asked(request: GetHeads, _: float) -> Reply:
            found: Any = await other.answer(self.zone, request)
            answer, heads = other.forge(found.answer, found.attachment)
            return Reply(answer, heads)

        requester: Any = SimpleNamespace(ask=asked, peer_zone=other.zone)
        watch = self.watching(requester, *zones)
        asyncio.run(watch.ask())
        asyncio.run(watch.record())

    def watching(self, requester: Any, *zones: str) -> HeadsWatch:
        """A watch of the node, with the store errors of the product."""
        return HeadsWatch(
            requester, self.store, TELEMETRY, frozenset(zones), self.judge, self.freshness, STORE_ERRORS, lambda: 0.5
        )

    def seen(self) -> dict[str, int]:
        """How far each zone has signed, as known to this node."""
        return {one.origin.zone: one.last_sequence for one in self.freshness.newest(TELEMETRY)}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, Node, Node]]:
    """Plant, relay and receiver."""
    with ExitStack() as opened:
        found = tuple(Node(tmp_path, zone, SIGNERS.get(zone)) for zone in ("plant", "idmz", "enterprise"))
        for node in found:
            opened.enter_context(node.store)
        yield found  # type: ignore[misc]


def test_signed_ends_are_proven_outside_the_event_loop(
    nodes: tuple[Node, Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer may send hundreds of certificates and false signatures; the node's other work continues meanwhile."""
    plant, relay, _ = nodes
    plant.record(1)
    threads = list[threading.Thread]()

    def checked(*given: Any) -> Any:
        threads.append(threading.current_thread())
        return check_head(*given)

    monkeypatch.setattr("agent.replication.pulling.page_judge.check_head", checked)
    relay.ask(plant, "plant")
    assert relay.seen() == {"plant": 5}
    assert threads
    assert threading.current_thread() not in threads


def test_a_certificate_that_is_known_is_not_sent_again(nodes: tuple[Node, Node, Node]) -> None:
    """A requester names the keys that it knows, so the certificates of an unchanged site are sent once."""
    plant, _, _ = nodes
    plant.record(1)
    for known, sent in (([], [MADE["plant"].der]), ([SIGNERS["plant"].key.key_id.hex()], [])):
        found = asyncio.run(plant.answer("idmz", GetHeads(stream=TELEMETRY, signers_known=known)))
        assert isinstance(found, Answered)
        assert isinstance(found.answer, HeadsAnswer)
        assert (len(found.answer.ends), found.answer.signers) == (1, sent)


def test_a_receiver_learns_how_far_the_origin_has_signed(nodes: tuple[Node, Node, Node]) -> None:
    """Through a relay that passes on no fact, the receiver learns the origin's end, and that no fact of it is here."""
    plant, relay, receiver = nodes
    plant.record(1)
    relay.ask(plant, "plant")
    assert relay.seen() == {"plant": 5}
    receiver.ask(relay, "idmz", "plant")
    assert receiver.seen() == {"plant": 5}
    (view,) = receiver.freshness.views({TELEMETRY: receiver.store.held(TELEMETRY)}, 0)
    assert (view.zone, view.behind) == ("plant", 5)
    plant.record(6)
    relay.ask(plant, "plant")
    receiver.ask(relay, "idmz", "plant")
    assert receiver.seen() == {"plant": 10}


def test_an_answer_has_no_more_ends_than_may_be_sent(
    nodes: tuple[Node, Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that knows more origins than fit into an answer sends as many as do, its own first: with more, the whole
    answer would be refused."""
    plant, relay, _ = nodes
    plant.record(1)
    relay.record(1)
    relay.ask(plant, "plant")
    monkeypatch.setattr("agent.replication.serving.operations.heads.HEADS_MAX", 1)
    found = asyncio.run(relay.answer("enterprise", GetHeads(stream=TELEMETRY)))
    assert isinstance(found, Answered)
    assert isinstance(found.answer, HeadsAnswer)
    assert [name.partition("/")[0] for name, _, _ in found.answer.ends] == ["idmz"]
    assert len(found.attachment) == 1


def test_ends_of_other_zones_and_of_unknown_keys_are_not_taken(nodes: tuple[Node, Node, Node]) -> None:
    """Only ends of zones that the peer may relay, signed with trusted keys, are accepted; a zone never gets its own
    back."""
    plant, relay, receiver = nodes
    plant.record(1)
    relay.ask(plant, "mill")
    assert relay.seen() == {}
    relay.ask(plant, "plant")
    receiver.judge = PageJudge(receiver.store, TrustPolicy(SignerTrust(pins={"plant": PINS["evil"]})))
    receiver.ask(relay, "idmz", "plant")
    assert receiver.seen() == {}
    plant.ask(relay, "idmz", "plant")
    assert plant.seen() == {}, "its own"


def test_a_forged_end_is_not_taken(nodes: tuple[Node, Node, Node]) -> None:
    """A relay that lowers or raises the sequence, changes the digest, swaps heads, or sends bytes that are not a head,
    has no effect."""
    plant, relay, receiver = nodes
    plant.record(1)
    relay.ask(plant, "plant")
    (end,) = relay.freshness.newest(TELEMETRY)
    name, digest = str(end.origin), end.digest.hex()

    def with_ends(ends: list[Any], heads: list[bytes]) -> None:
        relay.forge = lambda answer, _: (
            HeadsAnswer(**own(answer), stream=TELEMETRY, ends=ends, signers=[MADE["plant"].der]),
            heads,
        )
        receiver.ask(relay, "idmz", "plant")
        assert receiver.seen() == {}

    with_ends([(name, 4, digest)], [end.head])
    with_ends([(name, 6, digest)], [end.head])
    with_ends([(name, 5, "00" * 16)], [end.head])
    with_ends([(str(Origin("plant", bytes(16))), 5, digest)], [end.head])
    with_ends([(name, 5, digest)], [bytes(82)])
    with_ends([(name, 5, digest)], [end.head[:-1] + bytes([end.head[-1] ^ 1])])
    relay.forge = lambda answer, heads: (answer, heads)
    receiver.ask(relay, "idmz", "plant")
    assert receiver.seen() == {"plant": 5}


def own(answer: HeadsAnswer) -> dict[str, str]:
    """The first fields of an answer."""
    return {"store_zone": answer.store_zone, "epoch": answer.epoch}


def test_another_answer_is_malformed(nodes: tuple[Node, Node, Node]) -> None:
    """An answer about another stream is not accepted for this one."""
    plant, relay, _ = nodes
    plant.record(1)
    plant.forge = lambda answer, heads: (HeadsAnswer(**own(answer), stream="other", ends=answer.ends), heads)
    with pytest.raises(MalformedMessage):
        relay.ask(plant, "plant")


@pytest.mark.parametrize("known_from", ["facts", "an end"])
def test_two_signed_histories_are_an_incident(nodes: tuple[Node, Node, Node], known_from: str) -> None:
    """A zone whose signed end contradicts the facts held here, or an end that it has signed before, as a running copy
    of its store produces, is named in an incident."""
    plant, relay, _ = nodes
    plant.record(1)
    (batch,) = parsed(one.sealed for one in plant.store.read(TELEMETRY, 0, 100, 2**30).batches)
    other = Origin("plant", plant.store.epoch)
    position = PeerPosition(plant.store.epoch, 5)
    bodies = [ReceivedDefinition(other, 1, one) for one in plant.store.definitions(other, 0, 1)]
    if known_from == "facts":
        done(relay.store.inbound.put_batches("plant", TELEMETRY, [batch], bodies, position))
    else:
        relay.ask(plant, "plant")
    assert [one.kind for one in relay.store.incidents()] == []
    forged = sign_head(SIGNERS["plant"], TELEMETRY, other, 5, b"x" * 16, NOW_MS)
    entry = (str(other), 5, (b"x" * 16).hex())
    plant.forge = lambda answer, _: (
        HeadsAnswer(**own(answer), stream=TELEMETRY, ends=[entry], signers=[MADE["plant"].der]),
        [forged],
    )
    relay.ask(plant, "plant")
    (incident,) = (one for one in relay.store.incidents() if one.kind == "two_histories")
    assert parse(batch.sealed).digest.hex() in incident.detail


def test_the_certificates_of_a_key_are_judged_once(
    nodes: tuple[Node, Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer sends 256 ends, and 256 untrusted certificates of the key that signed them. The node checks sixteen of
    them, once; checking all of them for each end took seconds, in which no zone was served."""
    plant, relay, _ = nodes
    plant.record(1)
    key = SigningKey(MADE["evil"].key)
    false = [make("plant", key=MADE["evil"].key).der for _ in range(CERTIFICATES_MAX)]
    origins = [Origin("plant", number.to_bytes(16)) for number in range(HEADS_MAX)]
    heads = [sign_head(ZoneSigner(key, false[0]), TELEMETRY, one, 1, bytes(16), NOW_MS) for one in origins]
    ends = [(str(one), 1, "00" * 16) for one in origins]
    plant.forge = lambda answer, _: (HeadsAnswer(**own(answer), stream=TELEMETRY, ends=ends, signers=false), heads)
    judged, signer = [], TrustPolicy.signer
    monkeypatch.setattr(TrustPolicy, "signer", lambda *asked: judged.append(asked) or signer(*asked))
    relay.ask(plant, "plant")
    assert relay.seen() == {}
    assert len(judged) == CERTIFICATES_OF_KEY_MAX


@pytest.mark.parametrize("is_at_once", [True, False])
async def test_two_histories_found_while_the_store_is_busy_are_recorded_later(
    nodes: tuple[Node, Node, Node],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    is_at_once: bool,
) -> None:
    """A peer presents two ends of one zone, once, while the store refuses an incident, at once or at its commit. The
    watch continues, and records the incident later, although the peer presents nothing more."""
    _, relay, _ = nodes
    origin, tries = Origin("plant", bytes(16)), list[str]()
    own_fields: dict[str, Any] = {"store_zone": "plant", "epoch": "00" * 16, "stream": TELEMETRY}
    shown = [
        Reply(
            HeadsAnswer(**own_fields, ends=[(str(origin), 5, digest.hex())], signers=[MADE["plant"].der]),
            [sign_head(SIGNERS["plant"], TELEMETRY, origin, 5, digest, NOW_MS)],
        )
        for digest in (b"x" * 16, b"y" * 16)
    ]
    note = relay.store.inbound.note

    def busy(kind: str, stream: str, peer: str, why: str) -> Future[None]:
        tries.append(why)
        if len(tries) > 3:
            return note(kind, stream, peer, why)
        if is_at_once:
            raise StoreBusy("the queue is full")
        refused = Future[None]()
        refused.set_exception(StoreBusy("the queue is full"))
        return refused

    async def up() -> None:
        """The link is up."""

    async def ask(_request: GetHeads, _timeout_s: float) -> Reply:
        if not shown:
            raise PeerRefused("plant", "busy", "not now", "", retryable=True)
        return shown.pop(0)

    monkeypatch.setattr(heads_watch, "ASK_EVERY_S", 0.001)
    monkeypatch.setattr(relay.store.inbound, "note", busy)
    requester: Any = SimpleNamespace(ask=ask, peer_zone="plant", wait_up=up)
    running = asyncio.ensure_future(relay.watching(requester, "plant").run())
    await wait_until_async(lambda: running.done() or relay.store.incidents(), "the incident")
    assert not running.done(), running
    running.cancel()
    (incident,) = relay.store.incidents()
    assert (incident.kind, incident.count, len(set(tries))) == ("two_histories", 1, 1)
    assert (b"x" * 16).hex() in incident.detail
    assert [one.msg for one in caplog.records].count("two_histories_unrecorded") == 3


def test_a_head_that_cannot_be_read_hides_no_other(nodes: tuple[Node, Node, Node]) -> None:
    """A relay puts bytes that are no head before the end of another zone, which counts all the same."""
    plant, relay, _ = nodes
    plant.record(1)

    def spoiled(answer: HeadsAnswer, heads: list[bytes]) -> tuple[HeadsAnswer, list[bytes]]:
        return structs.replace(answer, ends=answer.ends * 2), [bytes(len(heads[0])), *heads]

    plant.forge = spoiled
    relay.ask(plant, "plant")
    assert relay.seen() == {"plant": 5}


async def test_a_watch_goes_on_whatever_a_question_comes_to(
    nodes: tuple[Node, Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer refuses, the connection is lost, or the store is too busy to be read: it is asked again."""
    _, relay, _ = nodes
    errors = [StoreBusy("busy"), PeerRefused("plant", "busy", "later", "", retryable=True), ConnectionLost("b", "cut")]

    async def up() -> None:
        """The link is there."""

    async def ask(_request: GetHeads, _timeout_s: float) -> Reply:
        if errors:
            raise errors.pop(0)
        asked.set()
        return await asyncio.get_running_loop().create_future()

    asked = asyncio.Event()
    monkeypatch.setattr(heads_watch, "ASK_EVERY_S", 0.0)
    requester: Any = SimpleNamespace(ask=ask, peer_zone="plant", wait_up=up)
    running = asyncio.create_task(relay.watching(requester, "plant").run())
    waiting = asyncio.create_task(asked.wait())
    await asyncio.wait([running, waiting], timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
    assert waiting.done()
    running.cancel()


def test_second_histories_that_wait_are_bounded(
    nodes: tuple[Node, Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zone that signs new histories without end, while the store takes no incident, fills no memory."""
    _, relay, _ = nodes
    monkeypatch.setattr(heads_watch, "UNRECORDED_MAX", 3)
    watch, origin = relay.watching(None, "plant"), Origin("plant", bytes(16))
    for number in range(9):
        watch._take(SignedEnd(TELEMETRY, origin, 5, bytes([number]) * 16, b"", NOW_MS + number))
    assert len(watch._unrecorded) == 3

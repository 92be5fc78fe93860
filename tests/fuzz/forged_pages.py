"""Forged answers into the real pulling side: puller, receiver, artifacts, comparison and store, over a link that this
module plays.

The peer answers every request, now honestly, now with an answer whose header is changed in structure or bytes, whose
batches have correct framing and hostile content, or whose fields lie about offsets, epochs, holes, definitions, leases
and artifacts. It knows the protocol and holds no key, as a zone with a valid certificate.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent import batch
from agent.columns import BatchError
from agent.errors import StoreError
from agent.fact_store import FactStore
from agent.message import Envelope, Fact, Message, Sample, TagDefinition
from agent.replication.mqtt import BrokerLink, Requester
from agent.replication.mqtt.carrier import Access, Incoming
from agent.replication.protocol.errors import ERRORS, ReplicationError
from agent.replication.pulling import PageJudge, Puller, PullSettings, TrustPolicy
from agent.replication.pulling.anti_entropy import AntiEntropy, AntiEntropySettings
from agent.replication.pulling.receiving import peer_contact
from agent.replication.pulling.receiving.pull_events import Asking, ReceiverSettings
from agent.replication.pulling.throttled_requester import ThrottledRequester
from agent.signing.certificates import SignerTrust
from agent.signing.keys import SigningKey, ZoneSigner
from agent.signing.messages import ANSWER_MARK, MessagePlace, sign_answer, split_request
from tests.fact_store.making import IN_MEMORY, OPERATIONAL
from tests.fuzz import hostile, seeds
from tests.fuzz.paths import verified
from tests.signing.signers import make
from tests.waiting import wait_until_async

PEER, OWN, OTHER = "evil", "idmz", "plant-a"
LIFE = "1f" * 16
STREAM = OPERATIONAL
ROUND = 100
"""Forged answers between two honest pages that must be stored."""
STORE_CASES_MAX = 20_000
"""Answers that one store gets: each round begins an life, and a store takes a thousand of a zone."""
IMPATIENT = ReceiverSettings(
    wait_ms=0, answer_timeout_ms=20, backoff_ms_min=1, backoff_ms_max=2, blocked_ms=1, pause_ms_min=1, pause_ms_max=2,
    spread_ms=0,
)  # fmt: skip
PROVEN = 0.03
"""Of the forged answers; each is unproven, so the puller waits for its time-out."""
TRULY_SIGNED = 0.9
"""Of those to a puller that trusts a key of the peer: an attacker that has the key too. The others are unproven."""
_MADE = make(PEER)
SIGNER = ZoneSigner(SigningKey(_MADE.key), _MADE.der)
HOSTILE_TEXTS = ("", "expired", "x" * 1_000, "\x1b[2J\n\u202e", "damaged", "\x00")


class HostilePeer:
    """The connection of the link, and the peer behind it. `forge` decides whether the next answer is forged."""

    packet_bytes_max = 1_048_576
    outgoing_bytes = 0

    def __init__(self, chance: random.Random, stream: str = STREAM) -> None:
        self.chance, self.stream = chance, stream
        self.link: BrokerLink | None = None
        self.forging = False
        self.forged = Counter[str]()
        self.signer: ZoneSigner | None = None
        self.sent = list[bytes]()
        self.begin()

    def begin(self) -> None:
        """Serve an empty log under a new life, whose facts have not been seen."""
        self.life = self.chance.randbytes(16)
        self.chains = {zone: batch.Link(self.stream, batch.Origin(zone, self.life)) for zone in (PEER, OTHER)}
        self.definitions = batch.Definitions()
        self.texts = list[bytes]()
        self.served = 0
        self.artifacts = dict[str, bytes]()

    def is_behind(self) -> bool:
        """Every message is read as soon as it arrives."""
        return False

    @property
    def answered(self) -> int:
        """Forged answers."""
        return sum(self.forged.values()) - self.forged["unproven"]

    def publish_request(
        self, topic: str, payload: bytes, response_topic: str, correlation: bytes, _expiry_s: int
    ) -> asyncio.Future[None]:
        """As the product's connection: answered as soon as the event loop comes to it."""
        assert topic == f"bsfg/1/{PEER}/{OWN}/req"
        request = json.loads(split_request(payload)[0])
        answer = self.answer(request)
        if self.signer is not None:
            place = MessagePlace(PEER, OWN, response_topic.rpartition("/")[2], correlation)
            answer = self._signed(self.signer, place, answer, may_spoil=request["operation"] == "FetchFacts")
        loop = asyncio.get_running_loop()
        assert self.link is not None
        loop.call_soon(self.link._dispatch, Incoming(response_topic, answer, None, correlation, None, False))
        sent: asyncio.Future[None] = loop.create_future()
        sent.set_result(None)
        return sent

    def _signed(self, signer: ZoneSigner, place: MessagePlace, answer: bytes, *, may_spoil: bool) -> bytes:
        """The answer signed for its request; of the forged pages some are not, or wrongly, or for another request."""
        chance, signed = self.chance, sign_answer(signer, place, answer)
        self.sent = [*self.sent[-8:], signed]
        if not self.forging or not may_spoil or chance.random() < TRULY_SIGNED:
            return signed
        other = ZoneSigner(SigningKey(Ed25519PrivateKey.generate()), signer.certificate)
        self.forged["unproven"] += 1
        forged: list[Callable[[], bytes]] = [
            lambda: answer,
            lambda: sign_answer(other, place, answer),
            lambda: sign_answer(signer, place._replace(asking_node=OTHER), answer),
            lambda: sign_answer(signer, place._replace(correlation=bytes(16)), answer),
            lambda: chance.choice(self.sent),
            lambda: signed[: chance.randrange(len(signed))],
            lambda: signed[: -len(answer)] + bytes(reversed(answer)) if answer else b"",
            lambda: hostile.some_bytes(chance, signed),
        ]
        return chance.choice(forged)()

    # ----------------------------------------------------------------------------------------------------- honest

    def answer(self, request: dict[str, Any]) -> bytes:
        """The bytes of an answer, honest or forged."""
        header, attached = self._honest(request)
        if not self.forging:
            return packed(header, b"".join(attached))
        self.forged[request["operation"]] += 1
        forged = self._forged(header, attached)
        if self.signer is None and self.chance.random() < PROVEN:
            return hostile.proven(self.chance, ANSWER_MARK, forged, seeds.certificates())
        return forged

    def _honest(self, request: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        header = {"protocol": "bsfg.replication", "version": "1.0", "operation": request["operation"], "status": "ok"}
        header |= {"store_zone": PEER, "life": self.life.hex()}
        match request["operation"]:
            case "FetchFacts":
                return self._page(request, header)
            case "GetObject":
                content, offset = self.artifacts.get(request["digest"], b"?"), request.get("offset", 0)
                data = content[offset:][: request.get("bytes_max", 262_144)]
                return header | {"size": len(content), "offset": offset, "bytes": len(data)}, [data]
            case "GetDigests":
                return header | self._digests(request), []
            case "FetchSequences":
                return self._sequences(request, header)
            case "GetDefinitions":
                wanted = request["wanted"][0]
                runs = [
                    {"zone": wanted["zone"], "digest": wanted["digest"], "lengths": [len(text) for text in self.texts]}
                ]
                return header | {"runs": runs}, self.texts
        raise AssertionError(request)

    def _page(self, request: dict[str, Any], header: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        if request.get("life") not in {None, header["life"]}:
            return header | error_body("life_unknown"), []
        named = request.get("trail") or [request.get("after") or {}]
        after = named[-1].get("offset", 0)
        sealed, entries, at = self._batches(), [], after
        for sealed_batch in sealed:
            count = batch.parse(sealed_batch).header.count
            entries.append([at + 1, at + count, len(sealed_batch)])
            at += count
        self.served = at
        page = {"stream": self.stream, "frontier": 0, "end_offset": at, "batches": entries}
        page |= {"life": LIFE, "after": named[-1], "lives": [{"offset": at, "life": LIFE}]}
        if request.get("lease") is not None:
            page["lease"] = max(1, request["lease"])
        return header | page, sealed

    def _batches(self) -> list[bytes]:
        """One to three batches that continue their chains, the last of them of messages of the peer itself."""
        found = []
        for _ in range(self.chance.randrange(3)):
            if self.chance.random() < 0.5:
                found.append(self._messages(self.chance.choice((PEER, OTHER))))
            else:
                found.append(self._samples())
        return [*found, self._messages(PEER)]

    def _messages(self, zone: str) -> bytes:
        link = self.chains[zone]
        content = self.chance.randbytes(self.chance.choice((1, 100, 3_000)))
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.artifacts[digest] = content
        reference = b'{"digest":"%s","size":%d}' % (digest.encode(), len(content))
        messages = [
            Message(
                Envelope(
                    f"{link.next_sequence + n}", zone, "*", 1_700_000_000_000 + n, labels={"line": "1"},
                    object_media_type="text/csv" if n % 2 else None,
                ),
                Fact("order:line1/77", "step_completed", reference if n % 2 else b'{"a":[1,2.5,null],"b":"x"}'),
            )
            for n in range(self.chance.randint(1, 4))
        ]  # fmt: skip
        sealed = batch.seal_messages(link, messages)
        self.chains[zone] = sealed.link
        return sealed.sealed

    def _samples(self) -> bytes:
        number = self.definitions.count + 1
        text = TagDefinition(f"tag:line1/t{number}", unit="bar").to_json()
        self.definitions, self.texts = self.definitions.extended(text), [*self.texts, text]
        rows = [Sample(number, 1_000 * n, value, 0) for n, value in enumerate((1.5, 7, True, "text", b"\x00", None), 1)]
        sealed = batch.seal_samples(self.chains[PEER], rows, self.definitions)
        self.chains[PEER] = sealed.link
        return sealed.sealed

    def _digests(self, request: dict[str, Any]) -> dict[str, Any]:
        link, digest = self.chains[PEER], self.chance.randbytes(16).hex()
        if request.get("origin"):
            ends = [[n, digest] for n in range(request["first_sequence"], request["first_sequence"] + 3)]
            return {"stream": self.stream, "end_offset": self.served, "ends": ends}
        ranges = [[f"{PEER}/{self.life.hex()}", 1, max(1, link.next_sequence - 1), "00" * 16, digest]]
        return {
            "stream": self.stream,
            "end_offset": self.served,
            "ranges": [] if request.get("after_zone") else ranges,
            "before": [[request.get("zone") or PEER, self.chance.choice([0, 3]), digest]],
        }

    def _sequences(self, request: dict[str, Any], header: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        sealed = self._messages(PEER)
        first = batch.parse(sealed).header.first_sequence
        entries = [[first, first + batch.parse(sealed).header.count - 1, len(sealed)]]
        return header | {"stream": self.stream, "origin": request["origin"], "batches": entries}, [sealed]

    # ----------------------------------------------------------------------------------------------------- forged

    def _forged(self, header: dict[str, Any], attached: list[bytes]) -> bytes:
        chance = self.chance
        how = chance.random()
        if how < 0.35:
            return packed(hostile.json_text(chance, written(header)), b"".join(attached))
        if how < 0.6 and attached and "runs" not in header:
            at = chance.randrange(len(attached))
            attached = [*attached[:at], hostile.sealed(chance, attached[at]), *attached[at + 1 :]]
            return packed(self._with_lengths(header, attached), b"".join(attached))
        if how < 0.9:
            for _ in range(chance.randint(1, 3)):
                header = self._lying(header, attached)
            return packed(header, b"".join(attached))
        if how < 0.95:
            return packed(header | error_body(chance.choice(list(ERRORS)), chance), b"")
        return hostile.answer(chance, packed(header, b"".join(attached)))

    def _with_lengths(self, header: dict[str, Any], attached: list[bytes]) -> dict[str, Any]:
        """The header of an answer with these batches, whose counts are those in their own headers where they have
        any."""
        if "batches" not in header:
            return header | {"bytes": len(attached[0])}
        entries, at = [], header["batches"][0][0]
        for part in attached:
            count = int.from_bytes(part[32:36], "little") if len(part) > 36 and self.chance.random() < 0.7 else 1
            entries.append([at, at + max(count, 1) - 1, len(part)])
            at += max(count, 1)
        return header | {"batches": entries}

    def _lying(self, header: dict[str, Any], attached: list[bytes]) -> dict[str, Any]:
        """A header with a field that is well formed and untrue."""
        chance, edge = self.chance, self.chance.choice(hostile.EDGES)
        after = header["batches"][0][0] - 1 if header.get("batches") else 0
        lies: list[Callable[[], dict[str, Any]]] = [
            lambda: {"life": chance.choice((chance.randbytes(16).hex(), "00" * 16, "ff" * 16))},
            lambda: {"store_zone": chance.choice((OWN, OTHER, "x"))},
            lambda: {"stream": chance.choice(("facts.other", ""))},
            lambda: {"end_offset": edge},
            lambda: {"frontier": edge},
            lambda: {"more": not header.get("more", False)},
            lambda: {"lease": edge},
            lambda: {"lease_in_force": edge},
            lambda: {"size": edge},
            lambda: {"offset": edge},
            lambda: {"bytes": edge},
            lambda: {"batches": [[a + edge, b + edge, c] for a, b, c in header.get("batches", [])]},
            lambda: {"batches": [[a, b, edge] for a, b, _ in header.get("batches", [])]},
            lambda: {"batches": [], "omitted": [[after + 1, max(after + 1, edge)]], "life": "ab" * 16},
            lambda: {"held_runs": [[chance.choice((PEER, OTHER, OWN)), "ab" * 16, 1, edge, "ff" * 16]]},
            lambda: {"lives": [{"offset": edge, "life": chance.randbytes(16).hex()}]},
            lambda: {"after": {"offset": abs(edge), "life": "ab" * 16}},
            lambda: {"holes": [[after + 1, max(after + 1, edge), chance.choice(HOSTILE_TEXTS)]]},
            lambda: {"batches": [], "holes": [[after + 1, after + 1 + n % 5, "expired"] for n in range(50)]},
            lambda: {"runs": [self._run([edge])] * chance.choice((1, 5, 300))},
            lambda: {"runs": [self._run([len(part) for part in attached[:-1]])]},
            lambda: {"ranges": [[f"{PEER}/{chance.randbytes(16).hex()}", edge, edge, "00" * 16, "ff" * 16]] * 3},
            lambda: {"ends": [[edge, "ff" * 16], [1, "00" * 16]]},
            lambda: {"signers": [_certificate(chance)]},
            lambda: {"version": chance.choice(("2.0", "1.99999999999999999999", "0.1", "1"))},
        ]
        return header | chance.choice(lies)()

    def _run(self, lengths: list[int]) -> dict[str, Any]:
        zone = self.chance.choice((PEER, OTHER, OWN, "nobody"))
        digest = self.chance.choice((self.definitions.digest, self.chance.randbytes(16))).hex()
        return {"zone": zone, "digest": digest, "lengths": lengths}


def _certificate(chance: random.Random) -> str:
    """Base64 of what is no certificate, or begins as one."""
    return base64.b64encode(
        chance.choice((b"", b"\x30\x82\xff\xff", b"\x30\x82\x01\x00")) + chance.randbytes(200)
    ).decode()


def error_body(code: str, chance: random.Random | None = None) -> dict[str, Any]:
    """The fields of an error answer; with a random source a hostile one."""
    text = chance.choice(HOSTILE_TEXTS) if chance else code
    retryable = bool(chance.randrange(2)) if chance else ERRORS[code].retryable
    return {"status": "error", "error": {"code": code, "message": text, "retryable": retryable, "hint": text}}


def written(header: dict[str, Any]) -> bytes:
    """A header as its bytes."""
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()


def packed(header: dict[str, Any] | bytes, attachment: bytes) -> bytes:
    """An answer's bytes."""
    text = header if isinstance(header, bytes) else written(header)
    return len(text).to_bytes(4, "little") + text + attachment


# --------------------------------------------------------------------------------------------------------------- the run


@patch.object(peer_contact, "EMPTY_MS_MIN", 0)
@patch.object(peer_contact, "RESTART_MS", 0)
async def pull_forged(folder: Path, cases: int, seed: int) -> Counter[str]:
    """Answer with `cases` forged answers, those to every other store behind signatures of which the puller trusts
    most. Fails unless the puller and the store live, an honest page under a new life is stored after every ROUND of
    them, and each store verifies. Returns how many were forged, by operation."""
    peer, done = HostilePeer(random.Random(seed)), 0
    parts = max(2, -(-cases // STORE_CASES_MAX))
    for part in range(parts):
        done = cases * (part + 1) // parts
        peer.signer = None if part % 2 else SIGNER
        (folder / str(part)).mkdir()
        with FactStore.open(folder / str(part) / "facts.db", OWN, settings=IN_MEMORY, unattended=True) as store:
            while peer.answered < done:
                await _life(peer, store, done)
                assert store.failure is None, store.failure
        verified(folder / str(part))
    return peer.forged


async def _life(peer: HostilePeer, store: FactStore, cases: int) -> None:
    """The life of a puller: until it is fenced, which a peer may do to the pull of its own stream, or all is done."""
    link = BrokerLink(Access("broker", OWN, "host", 1, lambda: None))  # type: ignore[arg-type, return-value]
    pins = {PEER: frozenset({hashlib.sha256(SIGNER.certificate).digest()})}
    judge = PageJudge(store, TrustPolicy(SignerTrust(pins=pins if peer.signer else {}), own_zone=OWN))
    requester = Requester(link, PEER, *[judge.messages.refuses_answer] * (peer.signer is not None))
    settings = PullSettings(PEER, STREAM, f"{OWN}.{STREAM}", frozenset({PEER, OTHER}), receiver=IMPATIENT)
    puller = Puller(requester, store, settings, judge=judge)
    comparing = AntiEntropySettings(PEER, (STREAM,), frozenset({PEER, OTHER}))
    anti_entropy = AntiEntropy(ThrottledRequester(requester), store, comparing, judge=judge)
    peer.link, link.connection = link, peer  # type: ignore[assignment]
    running = asyncio.create_task(puller.run())

    def is_over() -> bool:
        return running.done() or puller.statistics().asking is Asking.FENCED

    try:
        while peer.answered < cases and not is_over():
            await _round(peer, puller, anti_entropy, is_over)
        assert not running.done(), running.exception()
    finally:
        running.cancel()
        await asyncio.wait([running])


async def _round(peer: HostilePeer, puller: Puller, anti_entropy: AntiEntropy, is_over: Callable[[], bool]) -> None:
    """Forged answers, a comparison among them, then honest ones under a new life until one of them is stored."""
    before = peer.answered
    peer.forging = True
    with suppress(ReplicationError, StoreError, BatchError):  # refused, as it should be
        await anti_entropy.compare(STREAM, repair=True)
    await wait_until_async(lambda: is_over() or peer.answered >= before + ROUND, "the pull to go on")
    peer.forging = False
    peer.begin()
    stored, life = puller.statistics().counters.facts_stored, peer.life
    await wait_until_async(
        lambda: is_over() or (puller.statistics().counters.facts_stored > stored and peer.life == life),
        "an honest page",
    )

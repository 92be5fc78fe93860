"""A relay that lies in every way that its machine allows, one at a time, at a real broker: it drops, withholds,
reorders, replays and alters what it serves, and invents facts of the plant and of its reader. Its answers are signed
with its own key, so nothing but the facts themselves can show the lie.

The enterprise demands the plant's signatures. In the end it has what the plant recorded, once and byte for byte, and
nothing else. `pytest -s` prints what was tried, and what each end did and said.
"""

import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from agent.batch import Batch, Link, Origin, parse, seal_messages
from agent.fact_store import FactStore
from agent.message import Envelope, Fact, Message
from agent.positions import Position
from agent.replication.protocol.codec import decode_answer
from agent.replication.protocol.messages import FetchAnswer
from agent.replication.pulling import AntiEntropy, AntiEntropySettings, ThrottledRequester, TrustPolicy
from agent.settings.store import StoreSettings
from agent.signing.certificates import SignerTrust
from agent.signing.keys import ZoneSigner
from agent.signing.messages import MessagePlace, sign_answer, split_answer
from tests.replication.nodes import IMPATIENT, STREAM, Node, sealed
from tests.replication.simulation.relay import TakenOver, _packed, _Part
from tests.replication.simulation.trust import signer_of
from tests.signing.signers import make, signing_key
from tests.support.mosquitto import Mosquitto
from tests.support.received import put_page
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system

SMALL = StoreSettings(batch_facts_target=50)
"""Small batches, so that a page has many and a run several."""

LONG_AGO, LATER = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
LIES_MAX = 6  # then the relay is honest again
BEFORE, AFTER = 400, 200  # facts that the relay has before the first page, and that follow


class Said(NamedTuple):
    """What the enterprise says of a lie: the incident, and whether a comparison brings what it has kept from the
    pull."""

    incident: str = ""
    is_repaired: bool = False


LIES: Mapping[str, Said] = {
    "drop": Said("peer_hole", is_repaired=True),
    "withhold": Said(),
    "reorder": Said(),
    "replay": Said(),
    "change": Said("declined", is_repaired=True),
    "spoil": Said("declined", is_repaired=True),
    "invent life of plant": Said("declined"),
    "invent life of reader": Said(),
    "send life of reader": Said("pull_stands"),
}
"""By lie. How pages are changed is in `tests.replication.simulation.relay`. A page in another order and one without a
part are also a `gap` until the next one comes."""


AUTHORITY = make("facts authority", is_ca=True, begins=LONG_AGO, ends=LATER)
OWN = Origin("enterprise", bytes([7] * 16))
"""A life that the enterprise never had."""
INVENTED = {"invent life of plant": Origin("plant-a", bytes([8] * 16)), "invent life of reader": OWN}
"""What the relay writes into its log."""


def smuggle(relay: FactStore, batch: Batch) -> None:
    """Write a batch into the relay's store as if a peer had sent it; an attacker on the machine can do that."""
    put_page(relay, "accomplice", STREAM, [batch], [], Position(b"s" * 16, 1)).result()


def of_plant(store: FactStore) -> list[bytes]:
    """The batches in the plant's name in a store."""
    return [batch_bytes for batch_bytes in sealed(store) if parse(batch_bytes).header.origin.zone == "plant-a"]


@contextlib.asynccontextmanager
async def running(*nodes: Node) -> AsyncIterator[None]:
    """All nodes, connected."""
    async with contextlib.AsyncExitStack() as stack:
        for node in nodes:
            await stack.enter_async_context(node.running())
        yield


def chain(broker: Mosquitto, folder: Path) -> tuple[Node, Node, Node]:
    """plant-a, which signs; the relay, which knows no authority; the enterprise, which demands the plant's
    signature."""
    made = make("plant-a", AUTHORITY, begins=LONG_AGO, ends=LATER)
    policy = TrustPolicy(SignerTrust((AUTHORITY.certificate,)), {"plant-a": "required"}, "enterprise")
    plant = Node.open(broker, "plant-a", folder / "p", SMALL, signer=ZoneSigner(signing_key(made), made.der))
    relay = Node.open(broker, "idmz", folder / "i")
    enterprise = Node.open(broker, "enterprise", folder / "e", policy=policy)
    plant.serve({"idmz": [STREAM]})
    relay.pull("plant-a")
    relay.serve({"enterprise": [STREAM]})
    enterprise.pull("idmz", relays=["plant-a"], receiver=IMPATIENT)
    return plant, relay, enterprise


class Liar:
    """Stands between the relay's server and its connection, with the relay's key."""

    def __init__(self, relay: Node, lie: str) -> None:
        self.told = 0
        self._lie = lie
        self._chance, self._sent = random.Random(lie), list[bytes]()
        judge = SimpleNamespace(forged=set(), hidden=lambda *_: None)
        world = SimpleNamespace(chance=self._chance, check=judge, injected=Counter())
        self._spoiler: Any = TakenOver(SimpleNamespace(zone="idmz", world=world), frozenset())  # type: ignore[arg-type]
        self._require: Any = relay.link.require
        relay.link.require = lambda: self  # type: ignore[assignment, return-value]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._require(), name)

    def publish_answer(self, topic: str, payload: bytes, correlation: bytes) -> None:
        """Send an answer, or what the relay makes of it."""
        message, _ = split_answer(payload)
        answer, attached = decode_answer(message)
        sent = message
        if isinstance(answer, FetchAnswer) and answer.batches:
            parts = [
                _Part(first, last, sealed_batch)
                for (first, last, _), sealed_batch in zip(answer.batches, attached, strict=True)
            ]
            if self.told < LIES_MAX:
                sent = self._changed(answer, parts, message)
                self.told += sent != message
            self._sent.append(message)
        place = MessagePlace("idmz", "enterprise", topic.rpartition("/")[2], correlation)
        self._require().publish_answer(topic, sign_answer(signer_of("idmz"), place, sent), correlation)

    def _changed(self, answer: FetchAnswer, parts: list[_Part], message: bytes) -> bytes:
        if self._lie == "replay":
            return self._chance.choice([message, *self._sent])
        if self._lie == "send life of reader":
            own = invented(OWN, parse(parts[0].sealed).header.count)
            return _packed(answer, [replace(parts[0], sealed=own.sealed), *parts[1:]])
        spoil = getattr(self._spoiler, f"_{self._lie}", None)
        return message if spoil is None else _packed(*spoil(answer, parts))


def invented(origin: Origin, count: int) -> Batch:
    """Facts that their zone never recorded."""
    fact = Fact("tank:a/1", "level_set", b"99")
    return seal_messages(
        Link(STREAM, origin), [Message(Envelope(f"invented-{n}", origin.zone, "*", 1), fact) for n in range(count)]
    )


@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_changes_nothing_that_is_stored(broker: Mosquitto, tmp_path: Path, lie: str) -> None:
    """The relay lies in its first answers with facts, and is honest then. No position stands still and no process ends;
    what a lie has kept from the pull comes with the next comparison."""
    plant, relay, enterprise = chain(broker, tmp_path)
    liar, puller = Liar(relay, lie), enterprise.pullers[0]
    requester = ThrottledRequester(enterprise.requester("idmz"))
    settings = AntiEntropySettings("idmz", (STREAM,), frozenset({"idmz", "plant-a"}), every_hours=0)
    comparer = AntiEntropy(requester, enterprise.store, settings, judge=enterprise.judge)
    async with running(plant, relay):
        await plant.append(0, BEFORE)
        await relay.wait_end(BEFORE)
        if lie in INVENTED:
            smuggle(relay.store, invented(INVENTED[lie], 3))
        async with running(enterprise):
            for number in range(LIES_MAX + 1):
                await plant.append(BEFORE + AFTER * number, AFTER)
                end = BEFORE + AFTER * (number + 1) + (3 if lie in INVENTED else 0)
                await wait_until_async(lambda end=end: puller.statistics().offset == end, lie)  # type: ignore[misc]
            found = await comparer.compare(STREAM, repair=True)
            kinds = {
                node.zone: {incident.kind for incident in node.store.reader.incidents()}
                for node in (plant, relay, enterprise)
            }
            counters = puller.statistics().counters
            print(f"{lie}: {liar.told} lies. Plant, relay and enterprise said {kinds}; {counters}; then {found}")
            assert sorted(of_plant(enterprise.store)) == sorted(of_plant(plant.store))
            assert {Origin(held.zone, held.life) for held in enterprise.store.reader.held(STREAM)} == {
                plant.store.origin,
                *([enterprise.store.origin] if "declined" in kinds["enterprise"] else []),  # the notice
            }
            assert kinds["enterprise"] - {"gap"} == {*filter(None, [LIES[lie].incident])}
            assert kinds["plant-a"] == set()
            assert (found.repaired_facts > 0) == LIES[lie].is_repaired
            assert liar.told or lie in INVENTED

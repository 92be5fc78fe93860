"""A relay that has been taken over, at a real broker: it has the certificate of idmz, keeps the plant's facts as it got
them, and serves the enterprise whatever it likes. The enterprise trusts the plant's signatures, not the relay."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from agent.batch import Batch, Link, Origin, parse, seal_messages
from agent.fact_store import FactStore
from agent.local_socket.serving.store_errors import COMPARISON_ERRORS
from agent.message import Envelope, Fact, Message
from agent.pages import SignerCertificate
from agent.positions import Position
from agent.replication.pulling import AntiEntropy, AntiEntropySettings, ThrottledRequester, TrustPolicy
from agent.settings.store import StoreSettings
from agent.signing.certificates import SignerTrust
from agent.signing.chains import NO_RECORD, WRONG, Rule
from agent.signing.keys import ZoneSigner
from agent.signing.records import RecordSigner, sign_record
from tests.replication.nodes import IMPATIENT, STREAM, Node, sealed
from tests.signing.making import with_record
from tests.signing.signers import Made, make, signing_key
from tests.support.mosquitto import Mosquitto
from tests.support.received import put_page
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system

SMALL = StoreSettings(batch_facts_target=50)
"""Small batches, so that a page has many and a run several."""

LONG_AGO, LATER = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def authority() -> Made:
    """The facts authority of the site, valid by this machine's clock, by which the plant's store signs."""
    return make("facts authority", is_ca=True, begins=LONG_AGO, ends=LATER)


def signer(authority: Made, zone: str) -> ZoneSigner:
    """A zone's key with a certificate of the authority."""
    made = make(zone, authority, begins=LONG_AGO, ends=LATER)
    return ZoneSigner(signing_key(made), made.der)


def trusting(authority: Made, rule: Rule = "required") -> TrustPolicy:
    """The enterprise's configuration: the plant's facts need a signature."""
    return TrustPolicy(SignerTrust((authority.certificate,)), {"plant-a": rule, "plant-b": rule}, "enterprise")


def forged(link: Link, text: str, key: RecordSigner | None = None, count: int = 3) -> list[Batch]:
    """Facts in the plant's name that the plant never recorded, as a relay can seal them."""
    sign = None if key is None else partial(sign_record, key, signed_at_ms=1_780_000_000_000)
    found = list[Batch]()
    for number in range(count):
        one = Message(Envelope(f"{text}-{number}", "plant-a", "*", 1), Fact("tank:a/1", "level_set", b"99"))
        found.append(seal_messages(link, [one], sign))
        link = found[-1].link
    return found


def invented(life: bytes = b"1", text: str = "invented", key: RecordSigner | None = None) -> list[Batch]:
    """Batches of an life that the plant never had."""
    return forged(Link(STREAM, Origin("plant-a", life * 16)), text, key)


def smuggle(relay: FactStore, batches: Sequence[Batch], certificate: RecordSigner | None = None) -> None:
    """Write batches into the relay's store as if a peer had sent them; an attacker on the machine can do that."""
    signers = (
        [SignerCertificate(certificate.key_id, certificate.certificate, is_trusted=False, zone="")]
        if certificate
        else []
    )
    position = Position(b"s" * 16, 1)
    put_page(relay, "accomplice", STREAM, batches, [], position, signers=signers).result()


def of_plant(store: FactStore) -> list[bytes]:
    """The batches in the plant's name in a store."""
    return [one for one in sealed(store) if parse(one).header.origin.zone == "plant-a"]


@contextlib.asynccontextmanager
async def running(*nodes: Node) -> AsyncIterator[None]:
    """All nodes, connected; closed afterwards."""
    async with contextlib.AsyncExitStack() as stack:
        for node in nodes:
            await stack.enter_async_context(node.running())
        yield
    for node in nodes:
        node.store.close()


def chain(
    broker: Mosquitto, folder: Path, authority: Made, rule: Rule = "required", plant_signer: RecordSigner | None = None
) -> tuple[Node, Node, Node]:
    """plant-a, which signs; the relay, which trusts every signer; the enterprise with its rule."""
    plant = Node.open(broker, "plant-a", folder / "p", SMALL, signer=plant_signer or signer(authority, "plant-a"))
    relay = Node.open(broker, "idmz", folder / "i")
    enterprise = Node.open(broker, "enterprise", folder / "e", policy=trusting(authority, rule))
    plant.serve({"idmz": [STREAM]})
    relay.pull("plant-a")
    relay.serve({"enterprise": [STREAM]})
    enterprise.pull("idmz", relays=["plant-a", "plant-b"], receiver=IMPATIENT)
    return plant, relay, enterprise


def declined(node: Node) -> list[str]:
    """The incidents of a node about facts that it declined."""
    return [f"{one.subject}: {one.detail}" for one in node.store.reader.incidents() if one.kind == "declined"]


async def test_forged_facts_are_declined_and_honest_ones_flow(
    broker: Mosquitto, tmp_path: Path, authority: Made
) -> None:
    """The relay invents an life of the plant without signatures, one signed with its own key, one with a signature
    that the plant made for other facts, and then a successor of the plant's last batch. The enterprise has every fact
    of the plant and none of these, names each, and its position passes them."""
    plant, relay, enterprise = chain(broker, tmp_path, authority)
    own = signer(authority, "idmz")
    async with running(plant, relay, enterprise):
        await plant.append(0, 400)
        await relay.wait_end(400)
        genuine = relay.store.read(STREAM, 0, 10_000, 10_000_000).batches[-1].batch.record
        assert genuine
        smuggle(relay.store, invented())
        smuggle(relay.store, invented(b"2", "signed by the relay", own), own)
        stolen = invented(b"3", "with a stolen signature", own)
        smuggle(relay.store, [*stolen[:2], with_record(stolen[2], genuine)])
        await plant.append(400, 200)
        await relay.wait_end(600 + 9)
        smuggle(relay.store, forged(parse(of_plant(plant.store)[-1]).link, "successor"))
        puller = enterprise.pullers[0]
        await wait_until_async(lambda: puller.statistics().offset == 612, "the enterprise to have read all")
        assert of_plant(enterprise.store) == of_plant(plant.store)
        said = declined(enterprise)
        assert len(said) == 5
        for reason, count in ((NO_RECORD, 2), (WRONG, 1), ("certificate this node does not have", 2)):
            assert sum(reason in one for one in said) == count, reason
        notices = [one for one in sealed(enterprise.store) if parse(one).header.origin.zone == "enterprise"]
        assert notices, "no notice fact for the zones behind"
        assert enterprise.store.signed_zones() == {"plant-a"}
        assert (tmp_path / "e" / "declined").exists()


async def test_without_the_rule_the_forged_facts_are_stored(broker: Mosquitto, tmp_path: Path, authority: Made) -> None:
    """The attack that the rule prevents: with signatures off, the enterprise stores an life that the plant never
    had."""
    plant, relay, enterprise = chain(broker, tmp_path, authority, "off")
    async with running(plant, relay, enterprise):
        await plant.append(0, 100)
        await relay.wait_end(100)
        smuggle(relay.store, invented())
        await enterprise.wait_end(103)
        assert len(of_plant(enterprise.store)) == len(of_plant(plant.store)) + 3
        assert not declined(enterprise)


async def test_once_proven_a_zone_must_prove_everything(broker: Mosquitto, tmp_path: Path, authority: Made) -> None:
    """With the default rule, nothing but the authority is configured for the plant: its first signature is enough for
    the enterprise to decline what a relay adds later, also after a restart of the enterprise."""
    plant, relay, enterprise = chain(broker, tmp_path, authority, "if_present")
    async with running(plant, relay, enterprise):
        await plant.append(0, 100)
        await enterprise.wait_end(100)
        smuggle(relay.store, invented())
        puller = enterprise.pullers[0]
        await wait_until_async(lambda: puller.statistics().offset == 103, "the first forged life to be passed")
        enterprise.store.close()
        again = Node.open(broker, "enterprise", tmp_path / "e", policy=trusting(authority, "if_present"))
        assert again.store.signed_zones() == {"plant-a"}
        assert of_plant(again.store) == of_plant(plant.store)
        again.store.close()


async def test_a_comparison_brings_what_is_proven_and_nothing_else(
    broker: Mosquitto, tmp_path: Path, authority: Made
) -> None:
    """Facts that were declined because the plant's certificate was not yet trusted arrive by the next comparison after
    it is. The forged facts among them never do, and each comparison adds to the count of the same incident."""
    plant, relay, enterprise = chain(broker, tmp_path, authority)
    enterprise.judge._policy = TrustPolicy(SignerTrust(), {"plant-a": "required"}, "enterprise")
    requester = ThrottledRequester(enterprise.requester("idmz"))
    settings = AntiEntropySettings("idmz", (STREAM,), frozenset({"idmz", "plant-a"}), every_hours=0)
    comparer = AntiEntropy(requester, enterprise.store, settings, COMPARISON_ERRORS, judge=enterprise.judge)
    async with running(plant, relay, enterprise):
        await plant.append(0, 300)
        await relay.wait_end(300)
        smuggle(relay.store, invented())
        puller = enterprise.pullers[0]
        await wait_until_async(lambda: puller.statistics().offset == 303, "everything to be declined")
        assert not of_plant(enterprise.store)
        first = await comparer.compare(STREAM, repair=True)
        assert (first.repaired_facts, len(first.missing)) == (0, 2)
        assert any("declined" in one for one in first.refused)
        enterprise.judge._policy = trusting(authority)
        second = await comparer.compare(STREAM, repair=True)
        assert second.repaired_facts == 300
        assert of_plant(enterprise.store) == of_plant(plant.store)
        third = await comparer.compare(STREAM, repair=True)
        assert (third.repaired_facts, len(third.missing)) == (0, 1)
        counts = [one.count for one in enterprise.store.reader.incidents() if NO_RECORD in one.detail]
        assert counts == [4]


async def test_a_relay_without_configuration_passes_the_proof_on(
    broker: Mosquitto, tmp_path: Path, authority: Made
) -> None:
    """The relay knows no authority. Facts and certificates reach the enterprise through it, also in a page far
    behind the log's end, and every page of the enterprise is verified."""
    plant, relay, enterprise = chain(broker, tmp_path, authority)
    async with running(plant):
        await plant.append(0, 20_000)
        async with running(relay, enterprise):
            await enterprise.wait_end(20_000)
            await plant.append(20_000, 100)
            await enterprise.wait_end(20_100)
            assert of_plant(enterprise.store) == of_plant(plant.store)
            assert not declined(enterprise)
            last = enterprise.store.reader.held(STREAM)[plant.store.origin][-1].last_sequence
            assert enterprise.store.reader.is_proven(STREAM, plant.store.origin, last)


async def test_what_a_life_recorded_without_a_key_is_proven_by_the_next(
    broker: Mosquitto, tmp_path: Path, authority: Made
) -> None:
    """The plant could not read its key at one start, and signs again from the next on. The enterprise demands
    signatures: it declines what the relay brings meanwhile, and its next comparison fetches all of it. One that begins
    later gets everything by its pull."""

    def plant_with(key: RecordSigner | None) -> Node:
        plant = Node.open(broker, "plant-a", tmp_path / "p", SMALL, signer=key)
        plant.serve({"idmz": [STREAM]})
        return plant

    def enterprise_in(folder: str) -> Node:
        enterprise = Node.open(broker, "enterprise", tmp_path / folder, policy=trusting(authority))
        enterprise.pull("idmz", relays=["plant-a"], receiver=IMPATIENT)
        return enterprise

    async def read_to(end: int) -> None:
        puller = early.pullers[0]
        await wait_until_async(lambda: puller.statistics().offset == end, f"the enterprise to have read {end}")

    relay, early = Node.open(broker, "idmz", tmp_path / "i"), enterprise_in("early")
    relay.serve({"enterprise": [STREAM]})
    relay.pull("plant-a", receiver=IMPATIENT)
    requester = ThrottledRequester(early.requester("idmz"))
    settings = AntiEntropySettings("idmz", (STREAM,), frozenset({"plant-a"}), every_hours=0)
    comparer = AntiEntropy(requester, early.store, settings, COMPARISON_ERRORS, judge=early.judge)
    unsigned = plant_with(None)
    async with running(relay):
        async with running(early):
            async with running(unsigned):
                await unsigned.append(0, 200)
                await read_to(200)
            said = declined(early)
            assert said
            assert not of_plant(early.store)
            plant = plant_with(signer(authority, "plant-a"))
            async with running(plant):
                await plant.append(200, 200)
                await read_to(400)
            found = await comparer.compare(STREAM, repair=True)
            assert (found.repaired_facts, found.refused, declined(early)) == (200, [], said)
            assert sorted(of_plant(early.store)) == sorted(of_plant(relay.store))
            verified = early.store.reader.verified
            assert verified(STREAM, [(unsigned.store.origin, 1), (plant.store.origin, 400)]) == ["yes", "yes"]
        late = enterprise_in("late")
        async with running(late):
            await late.wait_end(400)
            assert of_plant(late.store) == of_plant(relay.store)
            assert not declined(late)

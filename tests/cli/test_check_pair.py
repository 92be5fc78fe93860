"""`bsfg check` at one of two gateways of a zone: what it finds of the pair without the other one."""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.cli import bsfg
from agent.config import load
from agent.fact_store import FactStore
from agent.pages import Declined, OriginRange, ReceivedPage
from agent.replication import pki
from agent.signing.files import load_identity
from agent.signing.keys import ZoneSigner
from tests.fact_store.making import AT_ONCE, OPERATIONAL, TELEMETRY, done, message

NOW = datetime.now(UTC)
BROKER = """[[broker]]
name = "{}"
host = "b.example"
ca_file = "pki/ca.pem"
cert_file = "pki/zones/plant-a.pem"
key_file = "pki/zones/plant-a.key"
"""
STREAMS = '["facts.telemetry", "facts.operational"]'
PARTNER = f"""[[peer]]
zone = "plant-a"
node = "plant-a-2"
broker = "pair"
exports = {STREAMS}
pulls = {STREAMS}
"""
WITNESS = f"""[[peer]]
zone = "idmz"
broker = "idmz"
exports = {STREAMS}
"""
NODE = '[node]\nzone = "plant-a"\n'
PAIR = '[pair]\npartner = "plant-a-2"\nwitness = "idmz"\n'
SIGNING = '[signing]\nkey_file = "signers/plant-a.key"\ncertificate_file = "signers/plant-a.pem"\n'
GOOD = NODE + PAIR + BROKER.format("pair") + BROKER.format("idmz") + PARTNER + WITNESS


def check(folder: Path, text: str) -> tuple[list[str], list[str]]:
    """Problems, but those of certificates that these tests have not, and notes."""
    (folder / "node.toml").write_text(text)
    done = CliRunner().invoke(bsfg, ["check", "--config", str(folder / "node.toml"), "--json"])
    told = json.loads(done.output)
    return [problem for problem in told["problems"] if "pki/" not in problem], told["notes"]


def test_a_good_pair_is_no_finding(tmp_path: Path) -> None:
    """Partner and witness are peers at two brokers, and every stream is exchanged."""
    assert check(tmp_path, GOOD) == ([], [])


@pytest.mark.parametrize(
    "before, after, said",
    [
        ('partner = "plant-a-2"', 'partner = "plant-a2"', "no [[peer]] has the node 'plant-a2'"),
        ('witness = "idmz"', 'witness = "dmz"', "no [[peer]] has the node 'dmz'"),
        ('zone = "plant-a"\nnode = "plant-a-2"', 'zone = "plant-b"\nnode = "plant-a-2"', "both must have one zone"),
        (PARTNER, PARTNER + PARTNER.replace("plant-a-2", "plant-a-3"), "[pair] does not name it"),
        ('witness = "idmz"', 'witness = "plant-a-3"', "the witness is a node above both gateways"),
    ],
)
def test_a_wrong_name_is_a_problem(before: str, after: str, said: str, tmp_path: Path) -> None:
    """A name that is no peer's, a partner of another zone, a witness of our own."""
    text = GOOD.replace(before, after, 1)
    if "plant-a-3" in after and "witness" in after:
        text += PARTNER.replace("plant-a-2", "plant-a-3")
    problems, notes = check(tmp_path, text)
    assert said in " ".join(problems + notes)


@pytest.mark.parametrize(
    "before, after, said",
    [
        (PAIR, "", 'write partner = "plant-a-2" in [pair]'),
        (f"pulls = {STREAMS}", 'pulls = ["facts.telemetry"]', "pulls of peer plant-a-2 lacks facts.operational"),
        (f"exports = {STREAMS}\npulls", 'exports = ["facts.telemetry"]\npulls', "exports of peer plant-a-2 lacks"),
        ('broker = "pair"', 'broker = "idmz"', "plant-a-2 and idmz are reached over one broker, idmz"),
    ],
    ids=["no pair", "pulls", "exports", "one broker"],
)
def test_what_would_not_take_over_is_a_note(before: str, after: str, said: str, tmp_path: Path) -> None:
    """What is allowed and leaves both recording, or one without the other's facts."""
    problems, notes = check(tmp_path, GOOD.replace(before, after, 1))
    assert problems == []
    assert [said in note for note in notes] == [True]


def test_tags_in_a_stream_of_their_own_are_exchanged(tmp_path: Path) -> None:
    """A stream that tags are recorded to, and that no peer gets, is lost with this gateway."""
    (tmp_path / "meter.csv").write_text("tag,unit_id,table,register,type,stream\nm/a,1,holding,1,uint16,facts.energy\n")
    source = '[[modbus]]\nname = "meter"\nhost = "10.0.0.9"\ntags_file = "meter.csv"\naddress_base = 0\n'
    _, notes = check(tmp_path, GOOD + source)
    assert any("exports of peer plant-a-2 lacks facts.energy" in note for note in notes)
    _, notes = check(tmp_path, GOOD + source + '[[stream]]\nname = "facts.energy"\nwrite_class = "local"\n')
    assert not any("facts.energy" in note for note in notes)


def test_a_signing_gateway_trusts_the_key_of_the_other_one(tmp_path: Path) -> None:
    """Once this node has signed, facts of its zone count with a signature only: without a trusted key of the other
    node they would be declined. Our own certificate is not the other one's."""
    pki.create_signer(tmp_path, "plant-a", NOW)
    problems, (note,) = check(tmp_path, GOOD + SIGNING)
    assert problems == []
    assert "no key of plant-a-2 is trusted here" in note
    identity = load_identity(load(tmp_path / "node.toml").signing, "plant-a")
    assert isinstance(identity, ZoneSigner)
    origin = '[[origin]]\nzone = "plant-a"\npinned = {}\n'
    own = hashlib.sha256(identity.certificate).hexdigest()
    assert check(tmp_path, GOOD + SIGNING + origin.format([own]).replace("'", '"'))[1] == [note]
    both = json.dumps([own, "ab" * 32])
    assert check(tmp_path, GOOD + SIGNING + origin.format(both)) == ([], [])


def test_one_of_two_that_signs_is_found_in_the_store(tmp_path: Path) -> None:
    """The zone's facts are signed, and this node signs no more: receivers decline what it records. What was declined
    here of the zone itself is told; that of another zone is no matter of the pair."""
    pki.create_signer(tmp_path, "plant-a", NOW)
    check(tmp_path, GOOD + SIGNING)
    identity = load_identity(load(tmp_path / "node.toml").signing, "plant-a")
    (tmp_path / "state").mkdir(mode=0o700)
    file = tmp_path / "state/facts.db"
    with FactStore.open(file, "plant-a", settings=AT_ONCE, signer=identity) as store:
        done(store.appends.append_message(OPERATIONAL, message("a")))
        facts = OriginRange("mill", bytes(16), 1, 5)
        store.inbound.put_page(ReceivedPage("mill", TELEMETRY, [], declined=[Declined(1, 5, facts, "no record")]))
    _, (note,) = check(tmp_path, GOOD)
    assert "facts of plant-a here are signed, and this node does not sign" in note
    with FactStore.open(file, "plant-a", settings=AT_ONCE, signer=identity) as store:
        declined = Declined(1, 5, facts._replace(zone="plant-a"), "no record")
        done(store.inbound.put_page(ReceivedPage("plant-a-2", TELEMETRY, [], declined=[declined])))
    origin = f'[[origin]]\nzone = "plant-a"\npinned = ["{"ab" * 32}"]\n'
    _, (note,) = check(tmp_path, GOOD + SIGNING + origin)
    assert "facts of plant-a were not stored here: no record; let both nodes sign" in note

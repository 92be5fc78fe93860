"""`bsfg check` refuses what `bsfg run` refuses at its start, and tells everything at once; also of the files of
[signing] and [[origin]], and of the pair at one of two gateways, without the other one."""

import hashlib
import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.cli import bsfg
from agent.config import load
from agent.fact_store import FactStore
from agent.local_socket.serving import open_store
from agent.pages import Declined, OriginRange, ReceivedPage
from agent.replication import pki
from agent.signing.files import load_identity
from agent.signing.keys import ZoneSigner
from tests.cli.conftest import Bsfg
from tests.fact_store.making import AT_ONCE, OPERATIONAL, TELEMETRY, done, message
from tests.support import command

NODE = '[node]\nzone = "plant-a"\n'
SOURCE = '[[modbus]]\nname = "{0}"\nhost = "192.0.2.1"\ntags_file = "{0}.csv"\naddress_base = 0\n'
HEADER = "tag,table,register,type\n"
NOW = datetime.now(UTC)
SIGNING_NODE = """[node]
zone = "plant-a"
[signing]
key_file = "signers/plant-a.key"
certificate_file = "signers/plant-a.pem"
"""
TODAY = datetime.now(UTC)
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
PAIR_NODE = '[node]\nzone = "plant-a"\n'
PAIR = '[pair]\npartner = "plant-a-2"\nwitness = "idmz"\n'
SIGNING = '[signing]\nkey_file = "signers/plant-a.key"\ncertificate_file = "signers/plant-a.pem"\n'
GOOD = PAIR_NODE + PAIR + BROKER.format("pair") + BROKER.format("idmz") + PARTNER + WITNESS


def problems(bsfg: Bsfg) -> list[str]:
    """What `bsfg check` finds."""
    done = bsfg("check", "--json")
    found: list[str] = json.loads(done.stdout)["problems"]
    assert done.returncode == (1 if found else 0)
    return found


def test_the_same_tag_in_two_files(bsfg: Bsfg, tmp_path: Path) -> None:
    """One problem, which names both files."""
    (tmp_path / "node.toml").write_text(NODE + SOURCE.format("m1") + SOURCE.format("m2"))
    for name in ("m1", "m2"):
        (tmp_path / f"{name}.csv").write_text(f"{HEADER}a/b,holding,1,int16\n")
    (found,) = problems(bsfg)
    assert (
        found
        == "m2.csv row 2 column tag: 'a/b' is also in m1.csv row 2, of source m1; a tag comes from one source: name it otherwise, as m2/a/b"
    )


def test_one_round_reports_everything(bsfg: Bsfg, tmp_path: Path) -> None:
    """Bad settings, a bad tag file, missing certificates, a state folder that is a file: one list, whichever section
    is wrong; a source whose section is wrong is not read."""
    (tmp_path / "state").write_text("")
    broker = '[[broker]]\nname = "b"\nhost = "h"\nca_file = "ca.pem"\ncert_file = "a.pem"\nkey_file = "a.key"\n'
    bad = SOURCE.format("m2").replace("address_base = 0", "address_base = 7")
    text = '[node]\nzone = "plant-a"\n[page]\nlisten_port = "x"\n' + broker + SOURCE.format("m1") + bad
    (tmp_path / "node.toml").write_text(text + "[peers]\n")
    (tmp_path / "m1.csv").write_text(f"{HEADER}a/b,holding,70000,int16\n")
    found = problems(bsfg)
    for part in ("page.listen_port", "peers", "m1.csv row 2 column register", "ca.pem", "a.key", "is not a folder"):
        assert any(part in problem for problem in found), (part, found)
    assert any("modbus[1].address_base" in problem for problem in found)
    assert not any("m2.csv" in problem for problem in found)


def test_tag_files_are_read_without_a_zone(bsfg: Bsfg, tmp_path: Path) -> None:
    """Also where [node] is missing, and the state folder is not known."""
    (tmp_path / "node.toml").write_text(SOURCE.format("m1"))
    found = problems(bsfg)
    assert [problem.partition(": ")[0] for problem in found] == ["node.toml", "m1.csv"]


@pytest.mark.system
def test_the_store_of_another_zone(bsfg: Bsfg, tmp_path: Path) -> None:
    """Is refused by both, and not touched."""
    (tmp_path / "node.toml").write_text(NODE)
    (tmp_path / "state").mkdir()
    FactStore.open(tmp_path / "state" / "facts.db", "plant-b").close()
    (found,) = problems(bsfg)
    assert "is the store of zone 'plant-b', this node is 'plant-a'; correct the zone in node.toml" in found
    refused = command.process(tmp_path, "run")
    assert (refused.returncode, "is the store of zone 'plant-b'" in refused.stderr) == (1, True)


def test_the_store_of_another_node_of_the_zone(bsfg: Bsfg, tmp_path: Path) -> None:
    """Is refused by the name that node.toml gives."""
    (tmp_path / "node.toml").write_text(NODE)
    (tmp_path / "state").mkdir()
    FactStore.open(tmp_path / "state" / "facts.db", "plant-a", node="plant-a-2").close()
    (found,) = problems(bsfg)
    assert "is the store of node 'plant-a-2' of zone 'plant-a', this node is 'plant-a'; correct the name" in found


def test_a_file_that_is_no_store(bsfg: Bsfg, tmp_path: Path) -> None:
    """A damaged file is no problem, because the node sets it aside; the note says so."""
    (tmp_path / "node.toml").write_text(NODE)
    (tmp_path / "state").mkdir(0o700)
    (tmp_path / "state" / "facts.db").write_text("no database" * 1000)
    notes = json.loads(bsfg("check", "--json").stdout)["notes"]
    assert len(notes) == 1
    assert "the node will set the file aside" in notes[0]


def test_a_disk_with_less_free_than_the_store_leaves_free(bsfg: Bsfg, tmp_path: Path) -> None:
    """The store would take no facts: the problem names both figures."""
    (tmp_path / "node.toml").write_text(f"{NODE}[store]\ndisk_free_bytes_min = {1 << 60}\n")
    (found,) = problems(bsfg)
    assert "MB of its disk are free, and disk_free_bytes_min in [store] keeps 1,152,921,504,607 MB free" in found


@pytest.mark.parametrize("link", ["state", "disk"])
def test_a_state_folder_on_a_disk_that_is_not_mounted(bsfg: Bsfg, tmp_path: Path, link: str) -> None:
    """A link whose target is not there is named, where no folder could be made."""
    (tmp_path / link).symlink_to("/mnt/nowhere")
    (tmp_path / "node.toml").write_text(f'{NODE}state_dir = "{link}{"" if link == "state" else "/bsfg"}"\n')
    done = bsfg("check")
    assert (done.returncode, f"{link}: is a link to /mnt/nowhere" in done.stdout) == (1, True), done.stdout
    assert "a disk that is not mounted" in bsfg("append", "batch:1", "done", "{}").stderr


def test_what_a_tag_file_was_read_as_is_a_note(bsfg: Bsfg, tmp_path: Path) -> None:
    """And a node without problems is one line."""
    (tmp_path / "node.toml").write_text(NODE + SOURCE.format("m1"))
    (tmp_path / "m1.csv").write_bytes(f"{HEADER}a/b,holding,1,int16\n".replace("type", "type,unit").encode("utf-16"))
    done = bsfg("check")
    assert done.stdout.splitlines() == [
        "node.toml: good; zone plant-a, 1 source with 1 tag, peers: none",
        "note: m1.csv was read as UTF-16; check units such as °C",
    ]


def test_a_state_that_others_may_read_is_a_note(bsfg: Bsfg, tmp_path: Path) -> None:
    """A node makes its files for its user alone, the store's also for its group, whatever the umask and the mode of the
    folder; files that others may
    read are named with what to do, in a folder that others may enter."""
    node = tmp_path / "node.toml"
    node.write_text(NODE)
    state = tmp_path / "state"
    state.mkdir()
    before = os.umask(0)
    try:
        state.chmod(0o755)
        with open_store(load(node)) as store:
            made = list(state.rglob("*"))
            assert {path.name for path in made} >= {"facts.db", "facts.db-wal", "facts.db-shm"}
            store.artifacts.put_chunk("plant-a", "sha256:" + hashlib.sha256(b"x").hexdigest(), 1, 0, b"x")
            for path in state.rglob("*"):
                may = 0o040 if path.name in {"facts.db", "facts.db-wal", "facts.db-shm"} else 0
                assert path.stat().st_mode & 0o077 == may, path
    finally:
        os.umask(before)
    state.chmod(0o711)
    assert bsfg("check").stdout.count("note: ") == 0
    (state / "facts.db").chmod(0o644)
    (note,) = [line for line in bsfg("check").stdout.splitlines() if line.startswith("note: ")]
    assert note.endswith(f"{state}/facts.db: other users of this machine may read them; run: chmod -R o= {state}")
    state.chmod(0o700)
    assert bsfg("check").stdout.count("note: ") == 0


def test_a_page_that_others_reach_needs_tls_and_readers(bsfg: Bsfg, tmp_path: Path) -> None:
    """A page on all interfaces without a certificate and without users or client certificates is refused."""
    for lines, count in (
        ('listen_host = "0.0.0.0"\n', 1),
        ('listen_host = "0.0.0.0"\ncert_file = "p.pem"\nkey_file = "p.key"\n', 1),
        ('listen_host = "0.0.0.0"\ncert_file = "p.pem"\nkey_file = "p.key"\nusers_file = "users"\n', 0),
        ('users_file = "users"\n', 1),
        ("", 0),
    ):
        (tmp_path / "node.toml").write_text(f"{NODE}[page]\n{lines}")
        found = bsfg("check")
        assert (found.returncode, found.stdout.count("page.")) == (min(count, 1), count), found.stdout


def test_a_page_without_users_is_a_note(bsfg: Bsfg, tmp_path: Path) -> None:
    """It would refuse everybody, without a word: the command that adds the first one is told."""
    lines = 'cert_file = "p.pem"\nkey_file = "p.key"\nusers_file = "users"\n'
    (tmp_path / "node.toml").write_text(f"{NODE}[page]\n{lines}")
    found = bsfg("check")
    assert found.returncode == 0
    assert f"nobody can log in to the page: bsfg page --add-user NAME >>{tmp_path}/users" in found.stdout
    (tmp_path / "users").write_text("ann:00:00\n")
    assert "nobody can log in" not in bsfg("check").stdout


def test_a_page_that_would_not_start_is_a_note(bsfg: Bsfg, tmp_path: Path) -> None:
    """A certificate that is missing, no certificate or of another key is named, and one that ends soon; none of them is
    a problem of the node."""
    site, now = tmp_path / "pki", datetime.now(UTC)
    pki.create_authority(site, now)
    lines = 'cert_file = "pki/brokers/{}.pem"\nkey_file = "pki/brokers/page.key"\nclient_ca_file = "pki/ca.pem"\n'
    for name, days in (("page", 300), ("other", 300), ("soon", 4)):
        pki.issue_broker(site, name, ["gateway.example"], now, days=days)
    (site / "brokers" / "text.pem").write_text("x")
    for name, why in (
        ("missing", "missing.pem does not exist"),
        ("text", "the page does not start"),
        ("other", "the page does not start"),
        ("page", ""),
    ):
        (tmp_path / "node.toml").write_text(f"{NODE}[page]\n{lines.format(name)}")
        found = bsfg("check")
        assert (found.returncode, "note: " in found.stdout) == (0, bool(why)), found.stdout
        assert why in found.stdout
    (tmp_path / "node.toml").write_text(f"{NODE}[page]\n{lines.format('soon').replace('page.key', 'soon.key')}")
    assert "soon.pem: ends in 3 days" in bsfg("check").stdout


def test_a_certificate_that_ends_soon_is_a_note(bsfg: Bsfg, tmp_path: Path) -> None:
    """Which file, in how many days, and the command that renews it; once for two brokers with one file, also for the
    file of a third one, and not in its first months."""
    site, now = tmp_path / "pki", datetime.now(UTC)
    pki.create_authority(site, now)
    broker = (
        '[[broker]]\nname = "{}"\nhost = "h"\n'
        'ca_file = "pki/ca.pem"\ncert_file = "pki/zones/{}.pem"\nkey_file = "pki/zones/{}.key"\n'
    )
    names = [("b", "first"), ("c", "first"), ("d", "second")]
    (tmp_path / "node.toml").write_text(NODE + "".join(broker.format(name, own, own) for name, own in names))
    for days, noted in ((4, ["first", "second"]), (300, [])):
        for own in ("first", "second"):
            issued = pki.issue_zone(site, "plant-a", now, days=days, force=True)
            shutil.copy(issued.cert_file, site / f"zones/{own}.pem")
            shutil.copy(issued.key_file, site / f"zones/{own}.key")
        found = [line for line in bsfg("check").stdout.splitlines() if line.startswith("note: ")]
        said = "pki/zones/{}.pem: ends in 3 days; at the authority: bsfg pki sign plant-a"
        assert [said.format(own) in note for own, note in zip(noted, found, strict=True)] == [True] * len(noted)


@pytest.fixture
def signing_node(tmp_path: Path) -> Path:
    """A node with a signing key."""
    (tmp_path / "node.toml").write_text(SIGNING_NODE)
    pki.create_signer(tmp_path, "plant-a", NOW)
    return tmp_path


def checked(signing_node: Path) -> tuple[list[str], list[str]]:
    """Problems and notes."""
    done = CliRunner().invoke(bsfg, ["check", "--config", str(signing_node / "node.toml"), "--json"])
    told = json.loads(done.output)
    assert done.exit_code == (1 if told["problems"] else 0)
    return told["problems"], told["notes"]


def test_a_good_identity_is_no_finding(signing_node: Path) -> None:
    """Key and certificate fit, nothing else is named."""
    assert checked(signing_node) == ([], [])


def test_each_file_that_cannot_be_used_is_named(signing_node: Path) -> None:
    """A readable key, a TLS authority in the place of the facts authority, and a list that cannot be understood, with
    what to do; a wrong section hides none of it."""
    (signing_node / "signers/plant-a.key").chmod(0o644)
    (signing_node / "compromised.toml").write_text("[[compromised]]\nkey_id = 'x'\n")
    (signing_node / "node.toml").write_text(SIGNING_NODE + '[page]\nlisten_port = "x"\n')
    problems, _ = checked(signing_node)
    assert any(
        "signers/plant-a.key is accessible to others" in problem and "chmod 0600" in problem for problem in problems
    )
    assert any("compromised.toml: entry 1 needs key_id and since" in problem for problem in problems)
    assert len(problems) == 3
    (signing_node / "compromised.toml").unlink()
    pki.create_authority(signing_node / "tls", NOW)
    shutil.copy(signing_node / "tls/ca.pem", signing_node / "facts-ca.pem")
    (signing_node / "signers/plant-a.key").chmod(0o600)
    (signing_node / "node.toml").write_text(SIGNING_NODE + 'facts_ca_file = "facts-ca.pem"\n')
    ((problem,), notes) = checked(signing_node)
    assert "facts-ca.pem is not a facts authority" in problem
    assert notes == []


def test_the_end_of_the_certificate_is_reported_before(signing_node: Path) -> None:
    """Two months before and afterwards it is a note: the node records and signs on, and receivers decline. Of the two
    certificates of a gateway of two, whichever ends first."""
    for begun, says in ((NOW, "ends in 30 days"), (NOW - timedelta(days=90), "has ended")):
        pki.create_signer(signing_node, "plant-a", begun, days=30, force=True)
        problems, (note,) = checked(signing_node)
        assert problems == []
        assert says in note
    (signing_node / "node.toml").write_text(SIGNING_NODE.replace("[signing]", 'name = "plant-a-2"\n[signing]'))
    for zone_days, node_days in ((1_000, 30), (30, 1_000)):
        pki.create_signer(signing_node, "plant-a", NOW, days=zone_days, force=True)
        pki.create_signer(signing_node, "plant-a-2", NOW, days=node_days, force=True, key_of="plant-a")
        with (signing_node / "signers/plant-a.pem").open("a") as both:
            both.write((signing_node / "signers/plant-a-2.pem").read_text())
        assert "ends in 30 days" in checked(signing_node)[1][0]


def check_pair(folder: Path, text: str) -> tuple[list[str], list[str]]:
    """Problems, but those of certificates that these tests have not, and notes."""
    (folder / "node.toml").write_text(text)
    done = CliRunner().invoke(bsfg, ["check", "--config", str(folder / "node.toml"), "--json"])
    told = json.loads(done.output)
    return [problem for problem in told["problems"] if "pki/" not in problem], told["notes"]


def test_a_good_pair_is_no_finding(tmp_path: Path) -> None:
    """Partner and witness are peers at two brokers, and every stream is exchanged."""
    assert check_pair(tmp_path, GOOD) == ([], [])


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
    problems, notes = check_pair(tmp_path, text)
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
    problems, notes = check_pair(tmp_path, GOOD.replace(before, after, 1))
    assert problems == []
    assert [said in note for note in notes] == [True]


def test_tags_in_a_stream_of_their_own_are_exchanged(tmp_path: Path) -> None:
    """A stream that tags are recorded to, and that no peer gets, is lost with this gateway."""
    (tmp_path / "meter.csv").write_text("tag,unit_id,table,register,type,stream\nm/a,1,holding,1,uint16,facts.energy\n")
    source = '[[modbus]]\nname = "meter"\nhost = "10.0.0.9"\ntags_file = "meter.csv"\naddress_base = 0\n'
    _, notes = check_pair(tmp_path, GOOD + source)
    assert any("exports of peer plant-a-2 lacks facts.energy" in note for note in notes)
    _, notes = check_pair(tmp_path, GOOD + source + '[[stream]]\nname = "facts.energy"\nwrite_class = "local"\n')
    assert not any("facts.energy" in note for note in notes)


def test_an_export_that_is_nearly_a_stream_is_a_note(tmp_path: Path) -> None:
    """Nearly the stream of tags, of a pull or of the store. A stream that may begin later, and is like no other one, is
    none."""
    (tmp_path / "meter.csv").write_text("tag,unit_id,table,register,type,stream\nm/a,1,holding,1,uint16,facts.energy\n")
    (tmp_path / "state").mkdir()
    with FactStore.open(tmp_path / "state/facts.db", "plant-a", settings=AT_ONCE) as store:
        done(store.appends.append_message("orders.line", message("m1")))
    exports = ["facts.telemetry", "facts.enrgy", "facts.telemetri", "orders.lines", "batches", "health"]
    peer = f'[[peer]]\nzone = "idmz"\nbroker = "pair"\nexports = {json.dumps(exports)}\n'
    node = f'{PAIR_NODE}state_dir = "state"\n{BROKER.format("pair")}{peer}'
    _, notes = check_pair(tmp_path, node + SOURCE.format("meter"))
    said = "exports of peer idmz: nothing here has a stream {!r}; is {!r} meant?"
    assert [note for note in notes if "meant?" in note] == [
        said.format("facts.enrgy", "facts.energy"),
        said.format("facts.telemetri", "facts.telemetry"),
        said.format("orders.lines", "orders.line"),
    ]


def test_a_signing_gateway_trusts_the_key_of_the_other_one(tmp_path: Path) -> None:
    """Once this node has signed, facts of its zone count with a signature only: without a trusted key of the other
    node they would be declined. Our own certificate is not the other one's."""
    pki.create_signer(tmp_path, "plant-a", TODAY)
    problems, (note,) = check_pair(tmp_path, GOOD + SIGNING)
    assert problems == []
    assert "no key of plant-a-2 is trusted here" in note
    identity = load_identity(load(tmp_path / "node.toml").signing, "plant-a")
    assert isinstance(identity, ZoneSigner)
    origin = '[[origin]]\nzone = "plant-a"\npinned = {}\n'
    own = hashlib.sha256(identity.certificate).hexdigest()
    assert check_pair(tmp_path, GOOD + SIGNING + origin.format([own]).replace("'", '"'))[1] == [note]
    both = json.dumps([own, "ab" * 32])
    assert check_pair(tmp_path, GOOD + SIGNING + origin.format(both)) == ([], [])


def test_one_of_two_that_signs_is_found_in_the_store(tmp_path: Path) -> None:
    """The zone's facts are signed, and this node signs no more: receivers decline what it records. What was declined
    here of the zone itself is told; that of another zone is no matter of the pair."""
    pki.create_signer(tmp_path, "plant-a", TODAY)
    check_pair(tmp_path, GOOD + SIGNING)
    identity = load_identity(load(tmp_path / "node.toml").signing, "plant-a")
    (tmp_path / "state").mkdir(mode=0o700)
    file = tmp_path / "state/facts.db"
    with FactStore.open(file, "plant-a", settings=AT_ONCE, signer=identity) as store:
        done(store.appends.append_message(OPERATIONAL, message("a")))
        facts = OriginRange("mill", bytes(16), 1, 5)
        store.inbound.put_page(ReceivedPage("mill", TELEMETRY, [], declined=[Declined(1, 5, facts, "no record")]))
    _, (note,) = check_pair(tmp_path, GOOD)
    assert "facts of plant-a here are signed, and this node does not sign" in note
    with FactStore.open(file, "plant-a", settings=AT_ONCE, signer=identity) as store:
        declined = Declined(1, 5, facts._replace(zone="plant-a"), "no record")
        done(store.inbound.put_page(ReceivedPage("plant-a-2", TELEMETRY, [], declined=[declined])))
    origin = f'[[origin]]\nzone = "plant-a"\npinned = ["{"ab" * 32}"]\n'
    _, (note,) = check_pair(tmp_path, GOOD + SIGNING + origin)
    assert "facts of plant-a were not stored here: no record; let both nodes sign" in note

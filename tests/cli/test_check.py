"""`bsfg check` refuses what `bsfg run` refuses at its start, and tells everything at once."""

import hashlib
import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.config import load
from agent.fact_store import FactStore
from agent.local_socket.serving import open_store
from agent.replication import pki
from tests.cli.conftest import Bsfg
from tests.support import command

NODE = '[node]\nzone = "plant-a"\n'
SOURCE = '[[modbus]]\nname = "{0}"\nhost = "192.0.2.1"\ntags_file = "{0}.csv"\naddress_base = 0\n'
HEADER = "tag,table,register,type\n"


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


def test_what_a_tag_file_was_read_as_is_a_note(bsfg: Bsfg, tmp_path: Path) -> None:
    """And a node without problems is one line."""
    (tmp_path / "node.toml").write_text(NODE + SOURCE.format("m1"))
    (tmp_path / "m1.csv").write_bytes(f"{HEADER}a/b,holding,1,int16\n".replace("type", "type,unit").encode("utf-16"))
    done = bsfg("check")
    assert done.stdout.splitlines() == [
        "node.toml: good; zone plant-a, 1 sources with 1 tags, peers: none",
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

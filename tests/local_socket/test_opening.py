"""A store that is opened: with the limits, the keys and the signing of node.toml, and never without a store."""

import sqlite3
from contextlib import closing
from pathlib import Path

from agent.batch import Origin
from agent.fact_store import FactStore
from agent.local_socket.serving import open_store
from agent.message import Envelope, Fact, Message
from agent.settings.node import IdentitySettings, NodeSettings
from agent.settings.peers import PeerSettings
from agent.settings.signing import SigningSettings
from agent.settings.store import ZoneLimit
from tests.signing.signers import make


def test_limits_of_what_peers_hold_back_apply_from_the_start(tmp_path: Path) -> None:
    """Those of node.toml, not only after a reload."""
    peer = PeerSettings("idmz", "broker", exports=("facts.operational",), hold_bytes_max=1_000_000, hold_hours_max=3)
    settings = NodeSettings(IdentitySettings("plant-a", tmp_path), peer=(peer,))
    with open_store(settings) as store:
        assert store._writer.committer.limits.holds == {"idmz": ZoneLimit(1_000_000, 3, zone="idmz")}


def test_a_command_gives_the_store_the_compromised_keys(tmp_path: Path) -> None:
    """Also without a node: what a command stores after that is judged by readers of the file."""
    listed = tmp_path / "compromised.toml"
    listed.write_text("[[compromised]]\nkey_id = '0011223344556677'\nsince = 2026-11-22T10:00:00Z\n")
    settings = NodeSettings(IdentitySettings("plant-a", tmp_path), signing=SigningSettings(compromised_file=listed))
    with open_store(settings):
        pass
    with closing(sqlite3.connect(settings.node.store_file)) as outside:
        found = outside.execute("SELECT hex(key_id), since_unix_ms FROM compromised").fetchall()
    assert found == [("0011223344556677", 1_795_341_600_000)]


def test_an_unusable_store_is_quarantined_and_a_new_one_begun(tmp_path: Path) -> None:
    """A node starts without an operator: the file that is no store is kept under another name."""
    settings = NodeSettings(IdentitySettings("plant-a", tmp_path))
    ruined = b"no database" * 1000
    settings.node.store_file.write_bytes(ruined)
    with open_store(settings) as store:
        assert [(stream.name, stream.end_offset) for stream in store.streams()] == [("facts.operational", 1)], (
            "the incident's fact"
        )
    assert ruined in [file.read_bytes() for file in tmp_path.iterdir()]


def places(store: FactStore) -> list[tuple[Origin, int]]:
    """The first two facts, each of another life."""
    found = [batch.batch.header for batch in store.read("facts.operational", 0, 100, 2**30).batches]
    return [(header.origin, header.first_sequence) for header in found[:2]]


def test_a_node_signs_with_its_key_and_records_without_it(tmp_path: Path) -> None:
    """With key and certificate the facts of a node are signed; if the key file is gone at the next start they are
    recorded all the same, an incident says so, and the next signed batch proves them."""
    made = make("plant-a")
    files = {name: tmp_path / name for name in ("s.key", "s.pem")}
    files["s.key"].touch(mode=0o600)
    files["s.key"].write_bytes(made.key_pem)
    files["s.pem"].write_bytes(made.pem)
    signing = SigningSettings(files["s.key"], files["s.pem"], compromised_file=tmp_path / "none.toml")
    settings = NodeSettings(IdentitySettings("plant-a", tmp_path), signing=signing)

    def record(name: str) -> list[bool]:
        with open_store(settings) as store:
            fact = Fact("order:line1/77", "order_released", b"1")
            message = Message(Envelope(name, "plant-a", "*", 1_700_000_000_000), fact)
            store.appends.append_message("facts.operational", message).result()
            is_impaired = any(incident.kind == "signing" for incident in store.reader.incidents())
            assert is_impaired is (name != "a")
            return [bool(batch.batch.record) for batch in store.read("facts.operational", 0, 100, 2**30).batches]

    assert record("a") == [True]
    moved = files["s.key"].rename(tmp_path / "moved")
    assert record("b") == [True, False]
    moved.rename(files["s.key"])
    with open_store(settings) as store:
        (incident,) = (incident for incident in store.reader.incidents() if incident.kind == "signing")
        assert "facts are not signed" in incident.detail
        assert store.reader.verified("facts.operational", places(store)) == ["yes", "no"]
    assert record("c") == [True, False, True]
    with open_store(settings) as store:
        assert store.reader.verified("facts.operational", places(store)) == ["yes", "yes"]

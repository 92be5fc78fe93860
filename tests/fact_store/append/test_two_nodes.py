"""A store of one of two nodes that record for one zone: what belongs to the zone, and what to the node."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.batch import Kind, open_messages, parse
from agent.fact_store import FactStore, StoreForeign, StoreReader, VerifyCounts, verify_store
from agent.local_socket.serving import open_store
from agent.message import HEALTH_STREAM, Sample
from agent.settings.node import IdentitySettings, NodeSettings
from agent.settings.peers import PeerSettings
from agent.signing.keys import SigningKey, ZoneSigner
from tests.fact_store.making import (
    AT_ONCE,
    OPERATIONAL,
    TELEMETRY,
    chain_is_whole,
    done,
    message,
    parsed,
    samples,
    sealed_in,
    tag,
)

ZONE, NODE = "plant", "plant-2"


def opened(folder: Path, signer: ZoneSigner | None = None) -> FactStore:
    """The store of the second node of the zone."""
    return FactStore.open(folder / "facts.db", ZONE, node=NODE, settings=AT_ONCE, signer=signer)


def zones_in(store: FactStore | StoreReader, stream: str) -> list[tuple[str, int]]:
    """Zone and first sequence of each batch of a stream."""
    headers = [batch.header for batch in parsed(sealed_in(store, stream))]
    return [(header.origin.zone, header.first_sequence) for header in headers]


def verified(folder: Path) -> list[str]:
    """What verification finds."""
    return [
        str(damage) for damage in verify_store(folder / "facts.db", VerifyCounts(), lambda *_: None, is_quick=False)
    ]


def test_a_store_belongs_to_a_zone_and_a_node(tmp_path: Path) -> None:
    """Both are kept; a file of another node, or of another zone, is refused by name and not changed. A node that is not
    named is named like its zone."""
    with opened(tmp_path) as store:
        assert (store.zone, store.node, store.own_zones) == (ZONE, NODE, {ZONE, NODE})
    reader = StoreReader(tmp_path / "facts.db")
    assert (reader.zone, reader.node) == (ZONE, NODE)
    reader.close()
    before = (tmp_path / "facts.db").read_bytes()
    for zone, node, why in (
        (ZONE, None, "the store of node 'plant-2' of zone 'plant', this node is 'plant'"),
        (ZONE, "plant-3", "this node is 'plant-3'; correct the name of the node in node.toml"),
        ("mill", NODE, "the store of zone 'plant', this node is 'mill'"),
    ):
        with pytest.raises(StoreForeign, match=why):
            FactStore.open(tmp_path / "facts.db", zone, node=node)
    assert (tmp_path / "facts.db").read_bytes() == before
    with FactStore.open(tmp_path / "alone.db", ZONE) as store:
        assert (store.node, store.own_zones) == (ZONE, {ZONE})


def test_what_a_node_says_about_itself_is_a_zone_of_its_own(tmp_path: Path) -> None:
    """Samples of sources and messages of programs are sealed for the zone; health, notices and checkpoints for the
    node. Each has its own chain in a stream and its own tag definitions, also after a restart."""
    signer = ZoneSigner(SigningKey.generate(), b"")
    with opened(tmp_path, signer) as store:
        for start in (1, 11):
            assert done(store.appends.define([tag(1), tag(2)])) == [1, 2]
            assert done(store.appends.define([tag(3)], stream=HEALTH_STREAM)) == [1]
            done(store.appends.append_samples(TELEMETRY, samples(10, start)))
            done(store.appends.append_samples(HEALTH_STREAM, [Sample(1, start, start, 0)]))
        done(store.appends.append_message(TELEMETRY, message("m1")))
        done(store.checkpoint("2026-11-28"))
        assert done(store.appends.append_message(TELEMETRY, message("m1"))).outcome == "noop_already_applied"
    with opened(tmp_path, signer) as store:
        done(store.appends.append_samples(HEALTH_STREAM, [Sample(1, 5, 5, 0)]))
        done(store.appends.append_samples(TELEMETRY, samples(1, 30)))
        done(store.checkpoint("2026-11-28"))
        done(store.checkpoint("2026-11-29"))
        assert zones_in(store, HEALTH_STREAM)[:3] == [(NODE, 1), (NODE, 2), (NODE, 3)]
        assert zones_in(store, TELEMETRY) == [
            (ZONE, 1), (ZONE, 11), (ZONE, 21), (NODE, 1), (ZONE, 22), (NODE, 2),
        ]  # fmt: skip
        of_node = [batch for batch in parsed(sealed_in(store)) if batch.header.origin.zone == NODE]
        assert {open_messages(batch)[0].envelope.from_zone for batch in of_node} == {NODE}
        assert store.reader.definition_counts() == {ZONE: 2, NODE: 1}
        assert store.reader.own_definitions().count == 2
        assert {origin.zone for origin in store.reader.origins()} == {ZONE, NODE}
        assert [incident.kind for incident in store.reader.incidents()] == []
        chain_is_whole(store)
    assert verified(tmp_path) == []


def test_a_message_of_the_node_is_its_own(tmp_path: Path) -> None:
    """A message that the node sends about itself, such as a change of its clock, has its name; a program's message with
    the same id is another one."""
    of_program = message("clock")
    own = replace(of_program, envelope=replace(of_program.envelope, from_zone=NODE))
    with opened(tmp_path) as store:
        assert done(store.appends.append_message(OPERATIONAL, of_program)).outcome == "applied"
        assert done(store.appends.append_message(OPERATIONAL, own)).outcome == "applied"
        assert done(store.appends.append_message(OPERATIONAL, own)).outcome == "noop_already_applied"
        assert zones_in(store, OPERATIONAL) == [(ZONE, 1), (NODE, 1)]


def test_a_node_named_like_its_zone_seals_as_ever(tmp_path: Path) -> None:
    """Without a name of its own, health, notices and samples of a stream share the zone's chain."""
    signer = ZoneSigner(SigningKey.generate(), b"")
    with FactStore.open(tmp_path / "facts.db", ZONE, settings=AT_ONCE, signer=signer) as store:
        assert done(store.appends.define([tag(1)])) == [1]
        assert done(store.appends.define([tag(2)], stream=HEALTH_STREAM)) == [2]
        done(store.appends.append_samples(TELEMETRY, samples(10)))
        done(store.checkpoint("2026-11-28"))
        found = [parse(sealed).header for sealed in sealed_in(store)]
        assert [(header.origin, header.kind, header.first_sequence) for header in found] == [
            (store.origin, Kind.SAMPLES, 1),
            (store.origin, Kind.MESSAGES, 11),
        ]


def test_a_node_opens_its_store_by_its_name(tmp_path: Path) -> None:
    """The name in node.toml is the store's node; a zone for which the node knows two of them may divide in peace."""
    peers = [("idmz", ""), (ZONE, ZONE), ("mill", "mill"), ("mill", "mill-2")]
    node = NodeSettings(
        IdentitySettings(ZONE, tmp_path, NODE), peer=tuple(PeerSettings(zone, "b", node=name) for zone, name in peers)
    )
    assert node.pair_zones == {ZONE, "mill"}
    with open_store(node) as store:
        assert (store.zone, store.node) == (ZONE, NODE)
    assert NodeSettings(IdentitySettings(ZONE, tmp_path)).pair_zones == frozenset()

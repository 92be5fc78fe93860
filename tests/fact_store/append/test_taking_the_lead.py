"""A store of one of two nodes that record for one zone: what belongs to the zone, and what to the node. Who takes the
lead begins a life with a granted number, and the chain of the zone runs on from the newest end that is held."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.append_contract import AppendOutcome, Precondition
from agent.batch import Batch, Kind, Link, Origin, open_messages, open_samples, parse
from agent.fact_store import FactStore, StoreForeign, StoreReader
from agent.local_socket.serving import open_store
from agent.message import HEALTH_STREAM, Sample
from agent.positions import begun_ms
from agent.settings.node import IdentitySettings, NodeSettings
from agent.settings.peers import PeerSettings
from agent.settings.store import StreamSettings
from agent.signing.keys import SigningKey, ZoneSigner
from tests.fact_store.making import (
    AT_ONCE,
    IN_MEMORY,
    OPERATIONAL,
    TELEMETRY,
    chain_is_whole,
    damages,
    done,
    failed,
    message,
    parsed,
    samples,
    sealed_in,
    tag,
)
from tests.fact_store.making import sealed_in as batches_in
from tests.support.memory import memory_folder
from tests.support.received import chains_in, put_page

ZONE = "plant"
NODES = ("plant-1", "plant-2")
PAIR = frozenset({ZONE})
NOW = time.time_ns() // 1_000_000
ZONE, NODE = "plant", "plant-2"


@dataclass
class Pair:
    """The stores of both nodes, what was acknowledged, and the highest term that was granted."""

    folder: Path
    nodes: tuple[str, str] = NODES
    stores: list[FactStore] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    term: int = NOW + 1_000_000
    notices: int = 0

    def __post_init__(self) -> None:
        """Open both; their tags have different numbers. The first stream of each is that of its own health, which has
        another chain than those of the zone."""
        for number in (0, 1):
            (self.folder / str(number) / "0").mkdir(parents=True)
            (self.folder / str(number) / "0/facts.db").touch()
            self.stores.append(self.open(number))
            appends = self.stores[number].appends
            done(appends.define([tag(1)], stream=HEALTH_STREAM))
            done(appends.append_samples(HEALTH_STREAM, samples(1)))
            done(appends.define([tag(1 + number), tag(2 - number)]))

    def path(self, number: int) -> Path:
        """The file of one of the stores: each failure makes another one."""
        return max((self.folder / str(number)).glob("*/facts.db"))

    def open(self, number: int) -> FactStore:
        """Open one of the stores."""
        return FactStore.open(self.path(number), ZONE, node=self.nodes[number], settings=IN_MEMORY, pair_zones=PAIR)

    def close(self) -> None:
        """Close both."""
        for store in self.stores:
            store.close()

    def reopen(self, number: int, *, is_failure: bool = False) -> None:
        """Restart one, which was closed in order, or whose power failed: its chains run on from where they did."""
        before = [link_of(self.stores[number], zone) for zone in (ZONE, self.nodes[number])]
        if is_failure:
            folder = self.path(number).parent
            shutil.copytree(folder, folder.with_name(str(int(folder.name) + 1)))
        self.stores[number].close()
        self.stores[number] = self.open(number)
        assert [link_of(self.stores[number], zone) for zone in (ZONE, self.nodes[number])] == before

    def append(self, number: int, count: int) -> None:
        """Record some samples of the zone."""
        first = len(self.values) + 1
        done(self.stores[number].appends.append_samples(TELEMETRY, samples(count, first)))
        self.values += range(first, first + count)

    def say(self, number: int) -> None:
        """Let a node say something about itself, in the same stream."""
        self.notices += 1
        text = message(f"n{self.notices}")
        text = replace(text, envelope=replace(text.envelope, from_zone=self.nodes[number]))
        done(self.stores[number].appends.append_message(TELEMETRY, text))

    def pull(self, number: int, batches_max: int | None = None) -> None:
        """Bring what the other node holds, or the first batches of it, in the order of its log."""
        other, store = self.stores[1 - number], self.stores[number]
        batches = parsed(batches_in(other))[:batches_max]
        done(put_page(store, self.nodes[1 - number], TELEMETRY, batches, chains_in(other), None))

    def take_lead(self, number: int) -> None:
        """Grant a node the next term. Its chain goes on where the newest life that it holds ends."""
        store = self.stores[number]
        self.term = max(self.term + 1, store.next_life_number)
        before, newest = link_of(store, ZONE), newest_end(store)
        assert done(store.take_lead(self.term)) == store.life
        assert begun_ms(store.life) == self.term < store.next_life_number
        assert link_of(store, ZONE) == (newest or before)


def link_of(store: FactStore, zone: str) -> tuple[int, bytes]:
    """Where the chain of a zone goes on in the stream."""
    link = store._writer.catalog.link(TELEMETRY, zone)
    return link.next_sequence, link.digest


def of_zone(store: FactStore) -> list[Batch]:
    """The batches of the zone that a store holds, in the order of lives and sequences."""
    found = [batch for batch in parsed(batches_in(store)) if batch.header.origin.zone == ZONE]
    return sorted(found, key=lambda batch: (batch.header.origin.life, batch.header.first_sequence))


def newest_end(store: FactStore) -> tuple[int, bytes] | None:
    """Sequence and digest after the last batch of the highest life of the zone."""
    found = of_zone(store)
    return (found[-1].header.last_sequence + 1, found[-1].digest) if found else None


def values_in(store: FactStore) -> Counter[object]:
    """The values of the zone's samples that a store holds."""
    batches = [batch for batch in of_zone(store) if batch.header.kind is Kind.SAMPLES]
    return Counter(value for batch in batches for value in open_samples(batch).values)


def check_lives(store: FactStore) -> None:
    """Each life has its sequences without gaps and its batches in a chain, and what it begins with follows a batch that
    is held, or nothing."""
    links, digests = dict[Origin, Link](), {bytes(16)}
    for batch in of_zone(store):
        header = batch.header
        if (link := links.get(header.origin)) is not None:
            assert (header.first_sequence, header.previous_digest) == (link.next_sequence, link.digest)
        assert header.previous_digest in digests, "it follows a batch of this life or of a lower one"
        digests.add(batch.digest)
        links[header.origin] = batch.link


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["append", "append", "pull", "pull", "pull some", "take_lead", "reopen", "fail", "say"]),
            st.integers(0, 1),
            st.integers(1, 3),
        ),
        max_size=14,
    ),
    st.sampled_from([NODES, (ZONE, NODES[1])]),
)
def test_two_nodes_keep_every_fact_once(steps: list[tuple[str, int, int]], nodes: tuple[str, str]) -> None:
    """Whatever they record, pull, take over and restart, together or in turn: when both have pulled, both hold every
    acknowledged fact once, in lives without gaps; each lead goes on from the newest end, and no restart moves a chain.
    Where both went on from one batch, that is a seam and nothing worse."""
    with memory_folder() as folder:
        pair = Pair(folder, nodes)
        for what, number, count in steps:
            match what:
                case "append":
                    pair.append(number, count)
                case "pull":
                    pair.pull(number)
                case "pull some":
                    pair.pull(number, count)
                case "take_lead":
                    pair.take_lead(number)
                case "reopen" | "fail":
                    pair.reopen(number, is_failure=what == "fail")
                case _:
                    pair.say(number)
        for number in (0, 1, 0):
            pair.pull(number)
        for number, store in enumerate(pair.stores):
            assert values_in(store) == Counter(pair.values)
            check_lives(store)
            assert {incident.kind for incident in store.reader.incidents()} <= {"seam"}
            pair.reopen(number)
            pair.take_lead(number)
        pair.close()
        for number in (0, 1):
            assert damages(pair.path(number)) == []


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Two nodes of a zone."""
    return Pair(tmp_path)


def test_the_chain_runs_on_after_the_other_node(pair: Pair) -> None:
    """The second node has pulled all and takes the lead: its first batch follows the last one of the first node, also
    after a restart before it has recorded anything, and nothing is reported."""
    pair.append(0, 10)
    pair.pull(1)
    pair.take_lead(1)
    pair.reopen(1)
    pair.append(1, 5)
    pair.reopen(1)
    pair.append(1, 5)
    pair.pull(0)
    for store in pair.stores:
        headers = [batch.header for batch in of_zone(store)]
        assert [header.first_sequence for header in headers] == [1, 11, 16]
        assert len({header.origin for header in headers}) == 3
        assert store.reader.incidents() == []
    pair.close()


def test_a_term_is_above_all_own_lives(pair: Pair) -> None:
    """A lower one is a ValueError and changes nothing; the number of the next life is above it, and at least the
    time."""
    store = pair.stores[0]
    life = store.life
    assert begun_ms(life) < store.next_life_number
    for term in (0, -5, begun_ms(store.life), 2**64):
        error = failed(store.take_lead(term))
        assert isinstance(error, ValueError)
        assert "is not above" in str(error)
    assert store.life == life
    pair.take_lead(0)
    assert isinstance(failed(store.take_lead(begun_ms(store.life))), ValueError)
    assert store.next_life_number == pair.term + 1
    pair.append(0, 1)
    pair.reopen(0)
    assert begun_ms(pair.stores[0].life) > pair.term
    assert pair.stores[1].next_life_number >= NOW
    pair.close()


def test_an_unpulled_tail_is_a_seam(pair: Pair) -> None:
    """The first node dies with facts that the second has not pulled. When it returns, both sides are stored whole, and
    one incident for the zone and stream says so. In a zone that one node records the same is a branch."""
    pair.append(0, 10)
    pair.pull(1)
    pair.append(0, 7)
    pair.take_lead(1)
    pair.append(1, 5)
    pair.pull(1)
    pair.pull(0)
    for store in pair.stores:
        assert values_in(store) == Counter(pair.values)
        (incident,) = store.reader.incidents()
        assert (incident.kind, incident.subject) == ("seam", f"{TELEMETRY} of {ZONE}")
        assert incident.detail.startswith(f"two gateways of {ZONE} recorded at once after sequence 10: life ")
    pair.stores[0].set_limits(0, [], {})
    pair.take_lead(1)
    pair.append(1, 1)
    done(pair.stores[0].take_lead(pair.term + 1))
    pair.append(0, 1)
    pair.pull(0)
    assert {incident.kind for incident in pair.stores[0].reader.incidents()} == {"seam", "branch"}
    pair.close()


def test_a_message_that_is_tried_again_at_the_other_node_is_the_same(pair: Pair) -> None:
    """A program whose node failed before it answered tries again at the other one, which has pulled the message: the
    outcome is that of the message held behind samples and what the node said of itself, also after a restart, and
    another content under its id is a conflict. One that was stored at both is found once."""
    first, second = pair.stores
    append = second.appends.append_message
    pair.append(0, 2)
    pair.say(0)
    done(first.appends.append_messages(TELEMETRY, [message(f"m{n}") for n in range(3)]))
    done(append(TELEMETRY, message("m2")))
    pair.pull(1)
    pair.pull(1)
    for _ in range(2):
        assert done(append(TELEMETRY, message("m1"))) == AppendOutcome(6, "noop_already_applied")
        assert done(append(TELEMETRY, message("m2"))) == AppendOutcome(1, "noop_already_applied")
        assert done(append(TELEMETRY, message("m0", "2"))) == AppendOutcome(5, "conflicting_duplicate")
        pair.reopen(1)
        append = pair.stores[1].appends.append_message
    assert pair.stores[1].end_offset(TELEMETRY) == 7
    pair.close()


def test_what_the_other_node_recorded_about_a_subject_is_newer(pair: Pair) -> None:
    """In a strong stream a program's message about a subject is superseded by a message that came from the other node
    after the offset on which it is based."""
    first, second = pair.stores
    second.set_limits(0, [StreamSettings(TELEMETRY, write_class="strong", acks="local")], {}, PAIR)
    based = Precondition(base_offset=done(second.appends.append_message(TELEMETRY, message("a"))).offset)
    done(first.appends.append_message(TELEMETRY, message("b")))
    pair.pull(1)
    outcome = done(second.appends.append_message(TELEMETRY, message("c"), precondition=based))
    assert outcome == AppendOutcome(2, "superseded")
    again = Precondition(base_offset=2)
    assert done(second.appends.append_message(TELEMETRY, message("c"), precondition=again)).outcome == "applied"
    pair.close()


def test_the_lead_returns_to_the_newest_life(pair: Pair) -> None:
    """A node that led before goes on from what the other one recorded since, in each stream by itself; what it sealed
    itself stays the end where that is the newest."""
    pair.append(0, 3)
    done(pair.stores[0].appends.append_message(OPERATIONAL, message("m")))
    pair.pull(1)
    pair.take_lead(1)
    pair.append(1, 4)
    pair.pull(0)
    pair.take_lead(0)
    pair.append(0, 2)
    done(pair.stores[0].appends.append_message(OPERATIONAL, message("n")))
    assert [batch.header.first_sequence for batch in of_zone(pair.stores[0])] == [1, 4, 8]
    assert [batch.header.first_sequence for batch in parsed(batches_in(pair.stores[0], OPERATIONAL))] == [1, 2]
    assert pair.stores[0].reader.incidents() == []
    pair.close()


def opened(folder: Path, signer: ZoneSigner | None = None) -> FactStore:
    """The store of the second node of the zone."""
    return FactStore.open(folder / "facts.db", ZONE, node=NODE, settings=AT_ONCE, signer=signer)


def zones_in(store: FactStore | StoreReader, stream: str) -> list[tuple[str, int]]:
    """Zone and first sequence of each batch of a stream."""
    headers = [batch.header for batch in parsed(sealed_in(store, stream))]
    return [(header.origin.zone, header.first_sequence) for header in headers]


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
    assert damages(tmp_path / "facts.db") == []


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

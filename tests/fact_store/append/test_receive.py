"""A peer's pages: stored once, byte for byte, or refused whole."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from agent import batch
from agent.fact_store import FactStore
from agent.fact_store.append import definitions, receive
from agent.fact_store.core.errors import DefinitionsMissing, FactsRefused
from agent.fact_store.sqlite.transaction import INCIDENTS_FIRST, INCIDENTS_OF_KIND_MAX
from agent.message import Sample
from agent.pages import OriginRange, PutResult
from agent.positions import Position
from agent.settings.store import StreamSettings, ZoneLimit
from tests.fact_store.making import (
    AT_ONCE,
    LIFE,
    TELEMETRY,
    Elsewhere,
    chain_is_whole,
    done,
    failed,
    parsed,
    plant,
    read_file,
    samples,
    sealed_in,
    tag,
    values_in,
)
from tests.support.received import chain_of, put_page


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FactStore]:
    """The store of zone `idmz`, closed at the end."""
    with FactStore.open(tmp_path / "idmz.db", "idmz", settings=AT_ONCE) as opened:
        yield opened
        if not any(incident.kind == "fork" for incident in opened.reader.incidents()):
            chain_is_whole(opened)


def test_received_batches_are_stored_byte_for_byte(store: FactStore) -> None:
    """What is stored is what was sealed, byte for byte, at offsets of this store; definitions and position come
    along."""
    origin = Elsewhere()
    first, second = origin.seal(10), origin.seal(5)
    assert origin.put(store, [first, second], 15) == PutResult(15, 0, 15)
    assert sealed_in(store) == [first, second]
    page = read_file(store, TELEMETRY)
    assert [(stored.first_offset, stored.last_offset, stored.origin) for stored in page.batches] == [
        (1, 10, origin.origin),
        (11, 15, origin.origin),
    ]
    assert origin.held_in(store) == origin.bodies
    assert store.inbound.peer_position("plant", TELEMETRY) == Position(LIFE, 15)
    assert store.reader.origins() == [origin.origin]


def test_invariant_12_put_again_after_a_lost_confirm(store: FactStore) -> None:
    """Putting a page that is held already leaves one copy and counts as success. A page may be half old, half new, or
    hold a batch twice, also as the very first thing an origin sends."""
    origin = Elsewhere()
    first, second, third = origin.seal(10), origin.seal(10), origin.seal(10)
    assert origin.put(store, [first, first, second], 20) == PutResult(20, 10, 20)
    assert origin.put(store, [first, second], 20) == PutResult(0, 20, 20)
    assert origin.put(store, [second, third], 30) == PutResult(10, 10, 30)
    assert origin.put(store, [third, third], 30) == PutResult(0, 20, 30)
    assert sealed_in(store) == [first, second, third]


def test_a_gap_is_stored_and_reported(store: FactStore) -> None:
    """Sequences that a peer no longer has do not block what follows; the answer and an incident name them."""
    origin = Elsewhere()
    first, lost, third = origin.seal(10), origin.seal(10), origin.seal(10)
    origin.put(store, [first])
    assert origin.put(store, [third]).gaps == (OriginRange("plant", origin.origin.life, 11, 20),)
    (incident,) = store.reader.incidents()
    assert (incident.kind, incident.count) == ("gap", 1)
    assert "plant had no sequences 11 to 20, or they were declined here" in incident.detail
    assert origin.put(store, [lost]) == PutResult(10, 0, 30)
    assert origin.put(store, [first, lost, third]) == PutResult(0, 30, 30)


def test_a_page_that_holds_only_holes_moves_the_position(store: FactStore) -> None:
    """What the peer no longer has is an incident, once for each hole however often the page comes, and the position
    goes past it; the facts are taken all the same when another peer has them."""
    origin = Elsewhere()
    first, damaged, third = origin.seal(10), origin.seal(10), origin.seal(10)
    origin.put(store, [first], 10)
    for _ in range(2):
        holes = [(11, 20, "damaged")]
        done(put_page(store, "plant", TELEMETRY, [], [], Position(LIFE, 20), holes=holes))
    assert store.inbound.peer_position("plant", TELEMETRY) == Position(LIFE, 20)
    (incident,) = store.reader.incidents()
    assert (incident.kind, incident.count) == ("peer_hole", 1)
    assert "plant no longer has its offsets 11 to 20: damaged" in incident.detail
    origin.put(store, [third], 30)
    by_relay = done(put_page(store, "dmz2", TELEMETRY, parsed([damaged]), [], Position(b"x" * 16, 77)))
    assert by_relay == PutResult(10, 0, 30)
    assert sorted(sealed_in(store)) == sorted([first, damaged, third])


@pytest.mark.parametrize("reason, kinds", [("expired", []), ("damaged", ["peer_hole"])])
def test_facts_released_before_the_first_fetch_are_no_loss(store: FactStore, reason: str, kinds: list[str]) -> None:
    """A log whose beginning was released by retention causes no incident. A log whose beginning is damaged has lost
    it."""
    position = Position(LIFE, 20)
    done(put_page(store, "plant", TELEMETRY, [], [], position, holes=[(1, 20, reason)]))
    assert store.inbound.peer_position("plant", TELEMETRY) == position
    assert [incident.kind for incident in store.reader.incidents()] == kinds


@pytest.mark.parametrize("known", [Position(LIFE, 0), Position(b"a" * 16, 40)])
def test_facts_released_after_the_first_fetch_are_a_loss(store: FactStore, known: Position) -> None:
    """A log whose beginning is released before this store has read it is an incident; so is what another copy of that
    log has released, although as many offsets of the first one were read."""
    put, position = partial(put_page, store, "plant", TELEMETRY, [], []), Position(b"b" * 16, 60)
    done(put(known))
    done(put(position, holes=[(1, 20, "expired")]))
    (incident,) = store.reader.incidents()
    assert incident.kind == "peer_hole"
    assert "its offsets 1 to 20: expired" in incident.detail
    done(put(position, holes=[(1, 20, "expired")]))
    assert store.reader.incidents() == [incident], "the same page came again"


def test_ranges_that_grow_together_are_one(tmp_path: Path) -> None:
    """Filling a gap leaves one range, also for the next life of the store."""
    origin = Elsewhere()
    batches = [origin.seal(3) for _ in range(5)]
    path = tmp_path / "idmz.db"
    with FactStore.open(path, "idmz", settings=AT_ONCE) as store:
        for number in (0, 2, 4, 1, 3):
            origin.put(store, [batches[number]])
        held = store.reader.held(TELEMETRY)
    with FactStore.open(path, "idmz", settings=AT_ONCE) as store:
        assert store.reader.held(TELEMETRY) == held
        ((only,),) = held.values()
        assert (only.first_sequence, only.last_sequence) == (1, 15)


def test_missing_definitions(store: FactStore) -> None:
    """A page without the tag definitions of its batches is refused; the error names what each zone lacks, and what is
    held of it. With them the page is stored."""
    known, fresh, more = Elsewhere(tags=2), Elsewhere("mill", tags=3), Elsewhere(tags=2)
    known.put(store, [known.seal(10)], 10)
    before = known.definitions
    known.bodies.append(tag(3).to_json())
    page = parsed([known.seal(5), fresh.seal(1)])
    fresh.bodies.append(tag(4).to_json())
    page += parsed([fresh.seal(1)])
    error = failed(put_page(store, "plant", TELEMETRY, page, [], Position(LIFE, 17)))
    assert isinstance(error, DefinitionsMissing)
    assert [(missing.zone, missing.wanted) for missing in error.lacking] == [
        ("plant", known.definitions),
        ("mill", fresh.definitions),
    ]
    assert [missing.held[:1] for missing in error.lacking] == [[before], []]
    assert store.end_offset(TELEMETRY) == 10
    received = [chain_of("plant", known.bodies, 3), *fresh.received()]
    assert done(put_page(store, "plant", TELEMETRY, page, received, Position(LIFE, 17))).stored_facts == 7
    assert more.held_in(store) == known.bodies[:2], "the beginning of a chain is held with it"


def test_only_a_chain_from_definitions_held_is_taken(store: FactStore) -> None:
    """Other definitions than those named, too few, too many, or such that follow others than are held: refused, and
    nothing is stored. A digest covers bytes, not their meaning: an invalid definition is refused too, and named."""
    origin = Elsewhere(tags=4)
    chain = origin.received()[0]
    other = tag(9).to_json()
    for wrong in (
        chain._replace(bodies=[*origin.bodies[:3], other]),
        chain._replace(bodies=origin.bodies[:3]),
        chain._replace(bodies=[*origin.bodies, other]),
        chain._replace(wanted=replace(chain.wanted, count=5)),
        origin.received(3)[0],
    ):
        assert isinstance(failed(store.inbound.put_definitions("plant", [wrong])), FactsRefused)
    origin.bodies[1] = b"[1, 2]"
    error = failed(store.inbound.put_definitions("plant", origin.received()))
    assert isinstance(error, FactsRefused)
    assert "definition 2 of plant: " in str(error)
    assert store.reader.definition_counts() == {}


def test_a_batch_that_lies_about_the_count_is_refused(store: FactStore) -> None:
    """A batch names the digest of two definitions as that of three: no receiver could ever complete them. It refuses
    the page of its own zone, and is passed over behind a relay."""
    origin, honest = Elsewhere(), Elsewhere("mill")
    origin.put(store, [origin.seal(10)], 10)
    named = replace(origin.definitions, count=3)
    lie = batch.seal_samples(origin.link, samples(5), named)
    error = failed(put_page(store, "plant", TELEMETRY, [lie], [], Position(LIFE, 15)))
    assert isinstance(error, FactsRefused)
    page = [lie, batch.seal_samples(lie.link, samples(5), named), *parsed([honest.seal(5)])]
    result = done(put_page(store, "idmz2", TELEMETRY, page, honest.received(), Position(LATER, 10)))
    assert (result.stored_facts, result.left_out) == (5, (OriginRange("plant", LIFE, 11, 20),))


def test_zones_share_one_stream(store: FactStore) -> None:
    """Origins interleave in one stream, each with its own chain, sequences and definitions."""
    north, south = Elsewhere("north"), Elsewhere("south", life=b"s" * 16, tags=5)
    for origin in (north, south, north):
        origin.put(store, [origin.seal(3)])
    assert values_in(store) == [1, 2, 3, 1, 2, 3, 4, 5, 6]
    assert len(south.held_in(store)) == 5


LATER = b"n" * 16
"""The life in which the plant goes on."""


def forked() -> tuple[Elsewhere, Elsewhere]:
    """A life as it was, and as it went on a second time from its first batch of ten."""
    was, copy = Elsewhere(), Elsewhere()
    copy.sealed = [was.seal(10)]
    copy.link = was.link
    for salted, history in ((0, was), (1000, copy)):
        history.seal(10, salted)
        history.seal(10, salted)
    return was, copy


def restarted(was: Elsewhere) -> Elsewhere:
    """The next life of a zone, which continues where the other one is now."""
    later = Elsewhere(was.origin.zone, life=LATER)
    later.link = replace(was.link, origin=later.origin)
    return later


def test_a_fork_is_refused_where_it_overlaps_and_stored_beside(store: FactStore) -> None:
    """A life that ran twice: what is held stays, the other batches under its sequences are refused by name, what lies
    beside them is stored, and the position moves past all. One incident names the life and shows the records."""
    was, copy = forked()
    was.put(store, was.sealed[:2], 20)
    beside = copy.seal(5, 1000)
    found = copy.put(store, [*copy.sealed], 35)
    assert found.refused == (OriginRange("plant", LIFE, 11, 20),)
    assert (found.stored_facts, found.duplicate_facts) == (15, 10)
    assert sealed_in(store)[:4] == [*was.sealed[:2], copy.sealed[2], beside]
    assert store.inbound.peer_position("plant", TELEMETRY) == Position(LIFE, 35)
    kinds = {incident.kind: incident for incident in store.reader.incidents()}
    assert kinds.keys() == {"fork", "refused"}
    assert kinds["fork"].subject == f"{TELEMETRY} of {was.origin}"
    assert kinds["fork"].count == 2, "one overlaps, one lies beside"
    again = copy.put(store, [*copy.sealed], 35)
    assert (again.stored_facts, again.duplicate_facts) == (0, 25)


def test_both_records_of_a_fork_are_kept(store: FactStore) -> None:
    """They prove that the zone has signed both."""
    was, copy = Elsewhere(), Elsewhere()
    was.sign, copy.sign = (lambda *_, text=text: text * batch.RECORD_BYTES for text in (b"w", b"c"))
    was.put(store, [was.seal(10)], 10)
    copy.put(store, [copy.seal(10, 1000)], 10)
    (detail,) = [incident.detail for incident in store.reader.incidents() if incident.kind == "fork"]
    assert all((text * batch.RECORD_BYTES).hex() in detail for text in (b"w", b"c"))


@pytest.mark.parametrize("is_later_first", [False, True])
def test_a_branch_is_stored_whole_and_named_once(store: FactStore, *, is_later_first: bool) -> None:
    """Two plants were put back to ten facts of twenty and went on: both sides are stored, in whatever order they come,
    and one incident of each names the zone and the sequence."""
    plants = [Elsewhere("north"), Elsewhere("plant")]
    definitions = [chain for was in plants for chain in was.received()]
    first, later = [was.seal(10) for was in plants], [restarted(was) for was in plants]
    sides = [[was.seal(10) for was in plants], [life.seal(count) for life in later for count in (7, 3)]]
    for sealed in (first, *(reversed(sides) if is_later_first else sides)):
        page = put_page(store, "relay", TELEMETRY, parsed(sealed), definitions, Position(LIFE, 60))
        assert done(page).stored_facts == 20
    found = sorted((incident.subject, incident.kind, incident.detail) for incident in store.reader.incidents())
    assert [about for *about, _ in found] == [[f"{TELEMETRY} of {was.origin.zone}", "branch"] for was in plants]
    assert all("divides after sequence 10" in detail for *_, detail in found)
    assert all(life.hex() in detail for life in (LIFE, LATER) for *_, detail in found)


def test_a_branch_is_named_behind_the_newest_life(store: FactStore) -> None:
    """The plant's disk was wiped since, so its newest life is short, and the side that is found late goes on far behind
    it: the branch of the two lives before is not overlooked."""
    was, wiped = Elsewhere(), Elsewhere(life=b"\xfe" * 16)
    was.put(store, [was.seal(20)], 20)
    later = restarted(was)
    later.put(store, [later.seal(5)], 25)
    wiped.put(store, [wiped.seal(5, 1000)], 30)
    was.put(store, [was.seal(5)], 35)
    (incident,) = store.reader.incidents()
    assert "divides after sequence 20" in incident.detail


def test_a_branch_from_released_facts_may_be_earlier(tmp_path: Path) -> None:
    """The batch that the later life continues is released here: the incident says so."""
    streams = [StreamSettings(TELEMETRY, keep_hours=0, bytes_max=100_000, on_full="drop_oldest")]
    with FactStore.open(tmp_path / "idmz.db", "idmz", settings=AT_ONCE, streams=streams) as store:
        was = Elsewhere()
        first = was.seal(10)
        later = restarted(was)
        was.put(store, [first, was.seal(10)], 20)
        done(store.appends.define([tag(1)]))
        with closing(sqlite3.connect(tmp_path / "idmz.db")) as outside:
            while outside.execute("SELECT min(first_offset) FROM batch").fetchone()[0] <= 20:
                done(store.appends.append_samples(TELEMETRY, [Sample(1, 1, os.urandom(50_000))]))
        assert later.put(store, [later.seal(5)], 25).stored_facts == 5
        assert later.put(store, [later.sealed[0]], 25).duplicate_facts == 5
        assert was.put(store, [first], 10) == PutResult(0, 10, store.end_offset(TELEMETRY)), "released: a duplicate"
        (incident,) = [incident for incident in store.reader.incidents() if incident.kind == "branch"]
        assert "after sequence 10 or earlier" in incident.detail


def test_own_facts_that_come_home_do_not_move_the_chain(tmp_path: Path) -> None:
    """A store put back to ten facts of thirty takes the others from a peer, together with those of another zone; what
    it records next follows the last batch that it sealed itself, also after a restart, and is a branch."""
    path, north = tmp_path / "facts.db", Elsewhere("north")
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(10)))
        tip, was = store._writer.catalog.tips["plant", TELEMETRY].end, store.origin
    lost = batch.Link(TELEMETRY, was, tip.last_sequence + 1, tip.digest)
    home = batch.seal_samples(lost, samples(20, 11), store._writer.catalog.definitions_of("plant").definitions)
    with FactStore.open(path, "plant", settings=AT_ONCE) as store:
        page = [home, *parsed([north.seal(5)])]
        assert done(put_page(store, "idmz", TELEMETRY, page, north.received(), None)).stored_facts == 25
    with FactStore.open(path, "plant", settings=AT_ONCE) as store:
        assert store._writer.catalog.tips["plant", TELEMETRY].end == tip
        done(store.appends.append_samples(TELEMETRY, samples(5, 100)))
        last = parsed(sealed_in(store))[-1].header
        assert (last.first_sequence, last.previous_digest, last.origin) == (11, tip.digest, store.origin)
        assert [incident.kind for incident in store.reader.incidents()] == ["branch"]
        tip = store._writer.catalog.tips["plant", TELEMETRY].end
    with FactStore.open(path, "plant", settings=AT_ONCE) as store:
        assert store._writer.catalog.tips["plant", TELEMETRY].end == tip


def test_a_batch_of_the_present_life_begins_another_one(tmp_path: Path) -> None:
    """A batch comes home that this process never sealed under its own life: its memory was put back. The next batch has
    a new life, and where the old one ends here says nothing any more."""
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(10)))
        life, link = store.life, parsed(sealed_in(store))[-1].link
        other = batch.seal_samples(link, samples(5, 50), store._writer.catalog.definitions_of("plant").definitions)
        assert done(put_page(store, "idmz", TELEMETRY, [other], [], None)).stored_facts == 5
        assert store.life > life
        assert store.resolve(TELEMETRY, Position(life, 16)).how == "unknown"
        done(store.appends.append_samples(TELEMETRY, samples(5, 100)))
        last = parsed(sealed_in(store))[-1].header
        assert (last.origin.life, last.first_sequence, last.previous_digest) == (store.life, 11, link.digest)
    with FactStore.open(tmp_path / "facts.db", "plant", settings=AT_ONCE) as store:
        assert store.log(TELEMETRY).forked == {life}


def test_a_zone_has_so_many_definitions_and_no_more(store: FactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """All definitions of a zone count, because none is ever released; beyond the limit a page is refused, and another
    zone's is stored."""
    monkeypatch.setattr(receive, "DEFINITIONS_OF_ZONE_MAX", 4)
    for life in (1, 2):
        known = Elsewhere("evil", life=bytes([life]) * 16)
        known.bodies = [tag(2 * life + number).to_json() for number in range(2)]
        assert known.put(store, [known.seal(1, salt=life)], life).stored_facts == 1
    one_more = Elsewhere("evil", life=b"\x03" * 16)
    position = Position(LIFE, 3)
    page = parsed([one_more.seal(1, salt=3)])
    error = failed(put_page(store, "evil", TELEMETRY, page, [], position))
    assert isinstance(error, FactsRefused)
    assert "evil would have 5 tag definitions here" in str(error)
    honest = Elsewhere()
    assert honest.put(store, [honest.seal(5)], 5).stored_facts == 5


def test_a_zone_has_so_many_ranges_and_no_more(store: FactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer whose sequences are all gaps, in any number of lives, is refused beyond the limit, because each range
    takes memory for ever. What fills a gap is stored, and so is another zone."""
    monkeypatch.setattr(receive, "RANGES_OF_ZONE_MAX", 6)
    position, left = Position(LIFE, 1), []
    for life in (1, 2):
        origin = Elsewhere("evil", life=bytes([life]) * 16)
        sealed = [origin.seal(1, salt=1000 * life) for _ in range(6)]
        done(put_page(store, "evil", TELEMETRY, parsed(sealed[::2]), origin.received(), position))
        left += sealed[1::2]
    third = Elsewhere("evil", life=b"\x03" * 16)
    refused = put_page(store, "evil", TELEMETRY, parsed([third.seal(1, salt=3000)]), third.received(), position)
    assert "more than 6 separate ranges" in str(failed(refused))
    assert done(put_page(store, "evil", TELEMETRY, parsed([left[0]]), [], position)).stored_facts == 1
    honest = Elsewhere()
    assert honest.put(store, [honest.seal(5)], 5).stored_facts == 5


@pytest.mark.parametrize(
    "limit, why",
    [
        ("DEFINITIONS_OF_ZONE_MAX", "3 tag definitions"),
        ("RANGES_OF_ZONE_MAX", "more than 1 separate ranges"),
    ],
)
def test_a_zone_without_room_stops_no_other_behind_a_relay(
    store: FactStore, monkeypatch: pytest.MonkeyPatch, limit: str, why: str
) -> None:
    """Two honest relays bring the facts that a zone has shown to each of them. Together they exceed what is kept of a
    zone here. The zone loses the excess, which is reported. What continues its facts is stored, and so are those of
    another zone in the same page."""
    known, beyond, honest = Elsewhere("evil"), Elsewhere("evil", life=b"\x02" * 16), Elsewhere()
    beyond.bodies = [tag(number).to_json() for number in (8, 9)]
    first, lost, good = known.seal(1), [beyond.seal(1, salt=1000) for _ in range(3)], honest.seal(5)
    done(put_page(store, "idmz1", TELEMETRY, parsed([first]), known.received(), Position(LIFE, 1)))
    monkeypatch.setattr(receive, limit, 2 if limit.startswith("DEFINITIONS") else 1)
    definitions = [*honest.received()] if limit.startswith("DEFINITIONS") else [*beyond.received(), *honest.received()]
    page = parsed([lost[0], lost[0], known.seal(1), good, *lost[1:]])
    result = done(put_page(store, "idmz2", TELEMETRY, page, definitions, Position(LIFE, 9), verified={3}))
    assert result.stored_facts == 6
    assert store.signed_zones() == {honest.origin.zone}, "the record of another batch"
    assert {(origin.zone, origin.life) for origin in result.left_out} == {("evil", b"\x02" * 16)}
    assert (result.left_out[0].first_sequence, result.left_out[-1].last_sequence) == (1, 3)
    assert store.inbound.peer_position("idmz2", TELEMETRY) == Position(LIFE, 9)
    named = [incident for incident in store.reader.incidents() if incident.kind == "declined"]
    assert named
    assert all(f"evil would have {why}" in note.detail or f"of evil would be {why}" in note.detail for note in named)


def test_the_zone_of_a_node_without_room_is_refused_and_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The facts of its zone are a node's own, though its name is another one, as in a pair. Beyond what is kept of the
    zone they wait at the node, and are not passed over as those that it relays."""
    with FactStore.open(tmp_path / "facts.db", "idmz", holds={"plant-2": ZoneLimit(zone="plant")}) as store:
        zone, relayed = Elsewhere("plant"), Elsewhere("other")
        done(put_page(store, "plant-2", TELEMETRY, parsed([zone.seal(1)]), zone.received(), Position(LIFE, 1)))
        monkeypatch.setattr(receive, "RANGES_OF_ZONE_MAX", 1)
        zone.seal(1)
        beyond = put_page(store, "plant-2", TELEMETRY, parsed([zone.seal(1)]), [], Position(LIFE, 2))
        assert isinstance(failed(beyond), FactsRefused)
        assert store.inbound.peer_position("plant-2", TELEMETRY) == Position(LIFE, 1)
        monkeypatch.setattr(receive, "RANGES_OF_ZONE_MAX", 0)
        other = put_page(store, "plant-2", TELEMETRY, parsed([relayed.seal(1)]), relayed.received(), Position(LIFE, 2))
        assert done(other).left_out


def test_a_chain_has_no_more_definitions_than_a_new_receiver_takes(
    store: FactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zone adds definitions with each batch. A new receiver gets all of them at once: with more than it keeps, it
    would never come to the facts of other zones behind. So no relay takes more, however few come at once."""
    monkeypatch.setattr(definitions, "CHAIN_BYTES_MAX", 2_000)
    evil = Elsewhere("evil", tags=4)
    assert evil.put(store, [evil.seal(1)], 1).stored_facts == 1
    evil.bodies += [tag(number).to_json() for number in range(5, 10)]
    refused = store.inbound.put_definitions("evil", evil.received(5))
    assert "tag definitions of evil would have" in str(failed(refused))


def test_incidents_of_a_kind_have_a_limit(store: FactStore) -> None:
    """A peer decides the content of some incidents. So of each kind the first and the newest are kept, and the others
    counted. No kind displaces another."""
    store.note_incident("clock", "at opening", "why").result()
    notes = [store.note_incident("declined", f"range {number}", "why") for number in range(3 * INCIDENTS_OF_KIND_MAX)]
    for note in notes:
        note.result()
    store.note_incident("declined", "range 0", "again").result()
    kept = store.reader.incidents(10 * INCIDENTS_OF_KIND_MAX)
    declined = {incident.subject: incident for incident in kept if incident.kind == "declined"}
    assert len(declined) <= INCIDENTS_OF_KIND_MAX + 1
    assert declined["range 0"].count == 2
    assert all(f"range {number}" in declined for number in range(INCIDENTS_FIRST))
    assert all(f"range {3 * INCIDENTS_OF_KIND_MAX - number}" in declined for number in range(1, 300))
    assert sum(incident.count for incident in declined.values()) == 3 * INCIDENTS_OF_KIND_MAX + 1
    assert [incident.subject for incident in kept if incident.kind == "clock"] == ["at opening"]

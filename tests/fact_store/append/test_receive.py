"""A peer's pages: stored once, byte for byte, or refused whole."""

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from agent import batch
from agent.batch import Kind
from agent.columns import BatchError
from agent.fact_store import FactStore
from agent.fact_store.append import definitions, receive
from agent.fact_store.append.receive import EPOCHS_OF_ZONE_MAX
from agent.fact_store.log.errors import DefinitionsMissing, FactsRefused, ForkError
from agent.fact_store.sqlite.transaction import INCIDENTS_FIRST, INCIDENTS_OF_KIND_MAX
from agent.message import Envelope, Fact, Message, MessageError, Sample, canonical_json
from agent.pages import DefinitionChain, OriginRange, PutResult
from agent.positions import NOTHING_READ, Position
from agent.settings.store import StreamSettings
from tests.fact_store.making import (
    AT_ONCE,
    EPOCH,
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
        chain_is_whole(opened)


def test_received_batches_are_stored_byte_for_byte(store: FactStore) -> None:
    """What is stored is what was sealed, byte for byte, at offsets of this store; definitions and position come
    along."""
    origin = Elsewhere()
    first, second = origin.seal(10), origin.seal(5)
    assert origin.put(store, [first, second], 15) == PutResult(15, 0, 15)
    assert sealed_in(store) == [first, second]
    page = read_file(store, TELEMETRY)
    assert [(one.first_offset, one.last_offset, one.origin) for one in page.batches] == [
        (1, 10, origin.origin),
        (11, 15, origin.origin),
    ]
    assert origin.held_in(store) == origin.bodies
    assert store.inbound.peer_position("plant", TELEMETRY) == Position(EPOCH, 15)
    assert store.reader.origins() == [store.origin, origin.origin]


def test_invariant_12_put_again_after_a_lost_confirm(store: FactStore) -> None:
    """Putting a page that is held already leaves one copy and counts as success. A page may be half old, half new."""
    origin = Elsewhere()
    first, second, third = origin.seal(10), origin.seal(10), origin.seal(10)
    origin.put(store, [first, second], 20)
    assert origin.put(store, [first, second], 20) == PutResult(0, 20, 20)
    assert origin.put(store, [second, third], 30) == PutResult(10, 10, 30)
    assert origin.put(store, [third, third], 30) == PutResult(0, 20, 30)
    assert sealed_in(store) == [first, second, third]


def test_a_page_may_hold_a_batch_twice(store: FactStore) -> None:
    """Twice in one page is once in the store, also as the very first thing an origin sends."""
    origin = Elsewhere()
    first = origin.seal(10)
    assert origin.put(store, [first, first]) == PutResult(10, 10, 10)


def test_the_same_origin_by_two_paths(store: FactStore) -> None:
    """A batch that arrives by another peer is recognised; each peer keeps a position of its own."""
    origin = Elsewhere()
    first = origin.seal(10)
    origin.put(store, [first], 10)
    by_relay = done(put_page(store, "dmz2", TELEMETRY, parsed([first]), [], Position(b"x" * 16, 77)))
    assert by_relay == PutResult(0, 10, 10)
    assert store.inbound.peer_position("dmz2", TELEMETRY) == Position(b"x" * 16, 77)
    assert store.inbound.peer_position("plant", TELEMETRY) == Position(EPOCH, 10)


def test_a_position_is_where_the_last_page_ends(tmp_path: Path) -> None:
    """A page overwrites the entry of its lives in the trail, also with a lower offset, where the peer was restored; the
    entries of other lives stay, over a restart too."""
    origin, other = Elsewhere(), Position(b"n" * 16, 3)
    expected = (other, Position(b"m" * 16, 12), Position(EPOCH, 4, b"d" * 16))
    with FactStore.open(tmp_path / "idmz.db", "idmz", settings=AT_ONCE) as store:
        origin.put(store, [origin.seal(10)], 10)
        put = partial(store.inbound.put_batches, "plant", TELEMETRY, [])
        done(put(Position(b"m" * 16, 12), passed=[other], epoch=EPOCH))
        done(put(Position(EPOCH, 4, b"d" * 16), after=Position(EPOCH, 3)))
        assert store.inbound.trail("plant", TELEMETRY) == expected
    with FactStore.open(tmp_path / "idmz.db", "idmz", settings=AT_ONCE) as store:
        assert store.inbound.trail("plant", TELEMETRY) == expected


def test_a_gap_is_stored_and_reported(store: FactStore) -> None:
    """Sequences that a peer no longer has do not block what follows; the answer and an incident name them."""
    origin = Elsewhere()
    first, lost, third = origin.seal(10), origin.seal(10), origin.seal(10)
    origin.put(store, [first])
    assert origin.put(store, [third]).gaps == (OriginRange("plant", origin.origin.epoch, 11, 20),)
    (incident,) = store.incidents()
    assert (incident.kind, incident.count) == ("gap", 1)
    assert "plant had no sequences 11 to 20" in incident.detail
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
        done(put_page(store, "plant", TELEMETRY, [], [], Position(EPOCH, 20), holes=holes))
    assert store.inbound.peer_position("plant", TELEMETRY) == Position(EPOCH, 20)
    (incident,) = store.incidents()
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
    position = Position(EPOCH, 20)
    done(put_page(store, "plant", TELEMETRY, [], [], position, holes=[(1, 20, reason)]))
    assert store.inbound.peer_position("plant", TELEMETRY) == position
    assert [one.kind for one in store.incidents()] == kinds


@pytest.mark.parametrize("known", [Position(EPOCH, 0), Position(b"a" * 16, 40)])
def test_facts_released_after_the_first_fetch_are_a_loss(store: FactStore, known: Position) -> None:
    """A log whose beginning is released before this store has read it is an incident; so is what another copy of that
    log has released, although as many offsets of the first one were read."""
    put, position = partial(store.inbound.put_batches, epoch=EPOCH), Position(b"b" * 16, 60)
    done(put("plant", TELEMETRY, [], known))
    done(put("plant", TELEMETRY, [], position, holes=[(1, 20, "expired")]))
    (incident,) = store.incidents()
    assert incident.kind == "peer_hole"
    assert "its offsets 1 to 20: expired" in incident.detail
    done(put("plant", TELEMETRY, [], position, holes=[(1, 20, "expired")]))
    assert store.incidents() == [incident], "the same page came again"


def test_ranges_that_grow_together_are_one(tmp_path: Path) -> None:
    """Filling a gap leaves one range, also for the next life of the store."""
    origin = Elsewhere()
    batches = [origin.seal(3) for _ in range(5)]
    path = tmp_path / "idmz.db"
    with FactStore.open(path, "idmz", settings=AT_ONCE) as store:
        for number in (0, 2, 4, 1, 3):
            origin.put(store, [batches[number]])
        held = store.held(TELEMETRY)
    with FactStore.open(path, "idmz", settings=AT_ONCE) as store:
        assert store.held(TELEMETRY) == held
        ((only,),) = held.values()
        assert (only.first_sequence, only.last_sequence) == (1, 15)


def test_starting_late_is_no_gap(store: FactStore) -> None:
    """A consumer that begins at the end of a log reports no gap before it."""
    origin = Elsewhere()
    origin.seal(10)
    assert origin.put(store, [origin.seal(10)]).gaps == ()


def test_batches_that_cannot_be_stored_are_refused_at_once(store: FactStore) -> None:
    """A slice would break the chain, and a batch of another stream would change the identity of its facts; nothing is
    stored, and no room stays taken. The honest batch is stored."""
    origin, other = Elsewhere(), Elsewhere(stream="facts.other")
    honest, stranger = parsed([origin.seal(10), other.seal(10)])
    for wrong, said in ((batch.cut(honest, 0, 5), "slice"), (stranger, "'facts.other'")):
        with pytest.raises(BatchError, match=said):
            put_page(store, "plant", TELEMETRY, [honest, wrong], [], Position(EPOCH, 20))
    assert store.end_offset(TELEMETRY) == 0
    assert store.inbound.peer_position("plant", TELEMETRY) is None
    assert store.statistics().queue_bytes == 0
    assert origin.put(store, [honest.sealed], 20) == PutResult(10, 0, 10)


@pytest.mark.parametrize("already_held", [1, 2, 3])
def test_a_rewritten_history_is_refused_and_recorded(store: FactStore, already_held: int) -> None:
    """An origin that rewrites its history is refused wherever the new history begins, and an incident is recorded."""
    honest, restored = Elsewhere(), Elsewhere()
    origin_batches = [honest.seal(10) for _ in range(3)]
    for _ in range(already_held - 1):
        restored.seal(10)
    other = restored.seal(10, salt=5)
    honest.put(store, origin_batches, 30)
    for _ in range(2):
        error = failed(put_page(store, "plant", TELEMETRY, parsed([other]), [], Position(EPOCH, 31)))
        assert isinstance(error, ForkError)
        assert "epoch" in str(error)
    (incident,) = store.incidents()
    assert (incident.kind, incident.subject, incident.count) == ("fork", "facts.telemetry from plant", 2)
    assert sealed_in(store) == origin_batches
    assert store.inbound.peer_position("plant", TELEMETRY) == Position(EPOCH, 30)


def test_a_page_with_a_fork_is_not_stored_at_all(store: FactStore) -> None:
    """All or nothing: batches of the page before the contradiction are not stored either."""
    honest, restored = Elsewhere(), Elsewhere()
    first, second = honest.seal(10), honest.seal(10)
    honest.put(store, [first], 10)
    restored.seal(10)
    restored.seal(10)
    fork = restored.seal(10, salt=5)
    branch = batch.parse(fork)
    other = batch.seal_samples(
        replace(branch.link, next_sequence=21, digest=b"?" * 16), samples(5), honest.definitions
    ).sealed
    error = failed(put_page(store, "plant", TELEMETRY, parsed([second, other]), [], Position(EPOCH, 30)))
    assert isinstance(error, ForkError)
    assert sealed_in(store) == [first]


def test_own_sequences_that_were_never_written_here_are_a_fork(tmp_path: Path) -> None:
    """A store restored from an old image learns from a peer that it has written more than it remembers: a fork, not
    facts."""
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(5)))
        ours = sealed_in(store)
        position = Position(b"p" * 16, 5)
        assert done(put_page(store, "idmz", TELEMETRY, parsed(ours), [], position)) == PutResult(0, 5, 5)
        forgotten = batch.seal_samples(
            batch.parse(ours[0]).link, samples(5, 6), batch.parse(ours[0]).header.definitions
        )
        error = failed(put_page(store, "idmz", TELEMETRY, parsed([forgotten.sealed]), [], position))
        assert isinstance(error, ForkError)
        assert "never wrote them" in str(error)
        other = batch.seal_samples(
            batch.Link(TELEMETRY, store.origin), samples(5, 9), batch.parse(ours[0]).header.definitions
        )
        error = failed(put_page(store, "idmz", TELEMETRY, parsed([other.sealed]), [], position))
        assert isinstance(error, ForkError)
        assert error.held is None, "what this store holds of its own facts proves no fork of the peer"


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
    error = failed(put_page(store, "plant", TELEMETRY, page, [], Position(EPOCH, 17)))
    assert isinstance(error, DefinitionsMissing)
    assert [(one.zone, one.wanted) for one in error.lacking] == [
        ("plant", known.definitions),
        ("mill", fresh.definitions),
    ]
    assert [one.held[:1] for one in error.lacking] == [[before], []]
    assert store.end_offset(TELEMETRY) == 10
    received = [chain_of("plant", known.bodies, 3), *fresh.received()]
    assert done(put_page(store, "plant", TELEMETRY, page, received, Position(EPOCH, 17))).stored_facts == 7
    assert more.held_in(store) == known.bodies[:2], "the beginning of a chain is held with it"


def test_only_a_chain_from_definitions_held_is_taken(store: FactStore) -> None:
    """Other definitions than those named, too few, too many, or such that follow others than are held: refused, and
    nothing is stored."""
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
    assert store.reader.definition_counts() == {}


def test_definitions_of_a_branch_are_held_beside_each_other(store: FactStore) -> None:
    """A zone that was restored defines other tags after the same first ones: both chains are held, the common part
    once."""
    one, other = Elsewhere(tags=3), Elsewhere(tags=3, epoch=LATER)
    other.bodies[2] = tag(3, unit="bar").to_json()
    one.put(store, [one.seal(5)], 5)
    assert (
        done(
            put_page(store, "plant", TELEMETRY, parsed([other.seal(5, 9)]), other.received(3), Position(LATER, 5))
        ).stored_facts
        == 5
    )
    assert (one.held_in(store), other.held_in(store)) == (one.bodies, other.bodies)
    assert store.reader.definition_counts() == {"plant": 4}


def test_unreadable_definitions_are_refused(store: FactStore) -> None:
    """A digest covers bytes, not their meaning: an invalid tag definition is refused and named."""
    origin = Elsewhere()
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
    error = failed(put_page(store, "plant", TELEMETRY, [lie], [], Position(EPOCH, 15)))
    assert isinstance(error, ForkError)
    page = [lie, *parsed([honest.seal(5)])]
    result = done(put_page(store, "idmz2", TELEMETRY, page, honest.received(), Position(LATER, 10)))
    assert (result.stored_facts, result.refused) == (5, (OriginRange("plant", EPOCH, 11, 15),))


def test_zones_share_one_stream(store: FactStore) -> None:
    """Origins interleave in one stream, each with its own chain, sequences and definitions."""
    north, south = Elsewhere("north"), Elsewhere("south", epoch=b"s" * 16, tags=5)
    for origin in (north, south, north):
        origin.put(store, [origin.seal(3)])
    assert values_in(store) == [1, 2, 3, 1, 2, 3, 4, 5, 6]
    assert len(south.held_in(store)) == 5


def test_bad_arguments(store: FactStore) -> None:
    """A name or position that makes no sense is refused at the call."""
    for peer, stream, position, error in (
        ("Plant", TELEMETRY, Position(EPOCH, 1), MessageError),
        ("plant", "Bad Stream", Position(EPOCH, 1), MessageError),
        ("plant", TELEMETRY, Position(b"short", 1), FactsRefused),
        ("plant", TELEMETRY, Position(EPOCH, -1), FactsRefused),
    ):
        with pytest.raises(error):
            put_page(store, peer, stream, [], [], position)


LATER = b"n" * 16
"""The epoch in which the plant goes on."""


def forked(*, has_other_tags: bool = False) -> tuple[Elsewhere, Elsewhere]:
    """An origin as it was, and as it went on from an old copy that had one batch of ten, and perhaps defined its second
    tag anew."""
    was, copy = Elsewhere(), Elsewhere()
    copy.sealed = [was.seal(10)]
    copy.link = was.link
    if has_other_tags:
        copy.bodies[1] = tag(2, "bar").to_json()
    for salted, one in ((0, was), (1000, copy)):
        one.seal(10, salted)
        one.seal(10, salted)
    return was, copy


def offer(store: FactStore, origin: Elsewhere, sealed: list[bytes], offset: int, peer: str = "plant") -> PutResult:
    """Put a page of a peer that goes on in its later epoch."""
    position = Position(LATER, offset)
    return done(put_page(store, peer, TELEMETRY, parsed(sealed), origin.received(), position))


@pytest.mark.parametrize("peer", ["plant", "dmz2"])
def test_a_fork_of_an_old_epoch_is_skipped_and_reported(store: FactStore, peer: str) -> None:
    """Facts of an epoch that the peer has left, under sequences held with other facts, are not stored. They are
    reported once however often they are offered, and what comes after them is taken."""
    was, copy = forked()
    was.put(store, was.sealed, 30)
    after = Elsewhere(epoch=LATER)
    refused = (OriginRange("plant", EPOCH, 11, 30),)
    for stored, repeated in ((10, 10), (0, 20)):
        page = [*copy.sealed, after.sealed[0] if after.sealed else after.seal(10, salt=5_000)]
        put = done(put_page(store, peer, TELEMETRY, parsed(page), after.received(), Position(LATER, 40)))
        assert (put.stored_facts, put.duplicate_facts, put.refused) == (stored, repeated, refused)
    position = store.inbound.peer_position(peer, TELEMETRY)
    assert position is not None
    assert (position.life, position.offset) == (LATER, 40)
    *found, told = sealed_in(store)
    assert found == [*was.sealed, *after.sealed]
    (notice,) = batch.open_messages(batch.parse(told))
    assert notice.fact.predicate == "facts_refused"
    origins = [{"zone": "plant", "epoch": EPOCH.hex(), "first_sequence": 11, "last_sequence": 30}]
    assert json.loads(notice.fact.object_json) == {"stream": TELEMETRY, "from": peer, "origins": origins}
    (incident,) = store.incidents()
    assert (incident.kind, incident.count) == ("refused", 2)
    assert incident.subject == f"{TELEMETRY} of plant/{EPOCH.hex()}, 11 to 30"


def test_facts_behind_a_fork_that_fit_are_taken(store: FactStore) -> None:
    """Where the other history is longer, the facts beyond the held sequences contradict nothing. They are stored, and
    the gap is reported."""
    was, copy = forked()
    was.put(store, was.sealed[:2], 20)
    last = copy.seal(5, 1000)
    found = offer(store, copy, [*copy.sealed], 35)
    assert found.refused == (OriginRange("plant", EPOCH, 11, 30),)
    assert found.gaps == (OriginRange(was.origin.zone, was.origin.epoch, 21, 30),)
    assert sealed_in(store)[2:-1] == [last]


def test_facts_behind_a_fork_keep_their_tag_definitions(store: FactStore) -> None:
    """The facts are beyond the sequences held, and their tag numbers mean other tags than those of the facts held: they
    are stored, and both chains of definitions are held."""
    was, copy = forked(has_other_tags=True)
    was.put(store, was.sealed[:2], 20)
    copy.seal(5, 1000)
    found = offer(store, copy, [*copy.sealed], 35)
    assert found.refused == (OriginRange("plant", EPOCH, 11, 30),)
    assert found.stored_facts == 5
    assert (was.held_in(store), copy.held_in(store)) == (was.bodies, copy.bodies)


def test_a_fork_in_the_peers_present_epoch_stops_it(store: FactStore) -> None:
    """In its present epoch the peer learns what is held here and begins another epoch. Until then nothing is
    skipped."""
    was, copy = forked()
    was.put(store, was.sealed, 30)
    position = Position(EPOCH, 40)
    error = failed(put_page(store, "plant", TELEMETRY, parsed(copy.sealed), copy.received(), position))
    assert isinstance(error, ForkError)
    assert sealed_in(store) == was.sealed


@pytest.fixture
def full(tmp_path: Path) -> Iterator[tuple[FactStore, Elsewhere]]:
    """A store that has released all facts of a plant's first epoch, 30 of them, and the history that an old copy of the
    plant recorded after them."""
    streams = [StreamSettings(TELEMETRY, keep_hours=0, bytes_max=100_000, on_full="drop_oldest")]
    with FactStore.open(tmp_path / "idmz.db", "idmz", settings=AT_ONCE, streams=streams) as opened:
        was, copy = forked()
        was.put(opened, was.sealed, 30)
        done(opened.appends.define([tag(1)]))
        with closing(sqlite3.connect(tmp_path / "idmz.db")) as outside:
            while outside.execute("SELECT min(first_offset) FROM batch").fetchone()[0] <= 30:
                done(opened.appends.append_samples(TELEMETRY, [Sample(1, 1, os.urandom(50_000))]))
        yield opened, copy


@pytest.mark.parametrize(
    "peer, epoch, batches, refused",
    [
        pytest.param("plant", LATER, 2, None, id="an epoch that the peer has left, up to within what was held"),
        pytest.param("plant", LATER, 3, (21, 30), id="up to where the digest is known"),
        pytest.param("dmz2", LATER, 3, (21, 30), id="by a relay"),
    ],
)
def test_released_facts_that_a_copy_offers_again_are_reported_as_uncompared(
    full: tuple[FactStore, Elsewhere], peer: str, epoch: bytes, batches: int, refused: tuple[int, int] | None
) -> None:
    """Sequences that were held and released are offered with other facts, which can no longer be compared. An incident
    and a fact name them, once however often they are offered."""
    store, copy = full
    expected = (OriginRange("plant", EPOCH, *refused),) if refused else ()
    for offset in (30, 31):
        sealed, position = copy.sealed[:batches], Position(epoch, offset)
        put = done(put_page(store, peer, TELEMETRY, parsed(sealed), copy.received(), position))
        assert (put.refused, put.uncompared) == (expected, (OriginRange("plant", EPOCH, 1, 30),))
    found = {one.kind: one.subject for one in store.incidents()}
    assert found["uncompared"] == f"{TELEMETRY} of plant/{EPOCH.hex()}, 1 to 30"
    page = [batch.parse(one) for one in sealed_in(store)]
    told = [one.fact for each in page if each.header.kind is Kind.MESSAGES for one in batch.open_messages(each)]
    (about,) = [json.loads(fact.object_json) for fact in told if fact.predicate == "facts_uncompared"]
    assert about["origins"] == [{"zone": "plant", "epoch": EPOCH.hex(), "first_sequence": 1, "last_sequence": 30}]


@pytest.mark.parametrize(
    "facts, refused",
    [
        pytest.param(15, (11, 25), id="cut otherwise, and ends within a batch that is held"),
        pytest.param(10, (11, 20), id="cut alike, and the batch held after it names another before it"),
        pytest.param(0, None, id="the very batch that was released, as the one after it proves"),
    ],
)
def test_released_facts_are_compared_by_what_is_held_after_them(
    tmp_path: Path, facts: int, refused: tuple[int, int] | None
) -> None:
    """The batch is released here, and the one after it is held: it shows which history the offered facts belong to.
    Those of another history are refused and reported. As duplicates they would be lost."""
    streams = [StreamSettings(TELEMETRY, keep_hours=0, bytes_max=100_000, on_full="drop_oldest")]
    with FactStore.open(tmp_path / "idmz.db", "idmz", settings=AT_ONCE, streams=streams) as store:
        was, copy = Elsewhere(), Elsewhere()
        copy.sealed = [was.seal(10)]
        copy.link = was.link
        was.seal(10)
        was.put(store, was.sealed, 20)
        done(store.appends.define([tag(1)]))
        with closing(sqlite3.connect(tmp_path / "idmz.db")) as outside:
            while outside.execute("SELECT min(first_offset) FROM batch").fetchone()[0] <= 20:
                done(store.appends.append_samples(TELEMETRY, [Sample(1, 1, os.urandom(50_000))]))
        was.put(store, [was.seal(10)], 30)
        again = copy.seal(facts, 1000) if facts else was.sealed[1]
        put = offer(store, copy if facts else was, [again], 20 + facts)
        assert put.refused == ((OriginRange("plant", EPOCH, *refused),) if refused else ())
        assert (put.duplicate_facts, put.stored_facts) == (0 if facts else 10, 0)
        if not facts:
            assert put.uncompared == ()


def test_released_facts_of_one_history_are_duplicates(full: tuple[FactStore, Elsewhere]) -> None:
    """While the plant's epoch goes on, released facts that come again are duplicates, from itself and from a relay.
    When its next epoch comes, the facts that came again until then are reported. From then on so are those that a relay
    brings again."""
    store, copy = full
    for peer in ("plant", "dmz2"):
        put = done(put_page(store, peer, TELEMETRY, parsed(copy.sealed[:2]), copy.received(), Position(EPOCH, 30)))
        assert (put.duplicate_facts, put.uncompared) == (20, ())
    later = Elsewhere(epoch=LATER)
    named = (OriginRange("plant", EPOCH, 1, 30),)
    assert offer(store, later, [later.seal(10)], 40).uncompared == named
    assert offer(store, later, [later.seal(10)], 50).uncompared == ()
    put = done(put_page(store, "dmz2", TELEMETRY, parsed(copy.sealed[:2]), copy.received(), Position(EPOCH, 60)))
    assert put.uncompared == named


def notice(predicate: str, about: object, zone: str = "cloud") -> bytes:
    """A batch of another zone with one notice about a stream."""
    envelope = Envelope("1", "plant", "*", 1)  # the zone that it names is not signed, and not the one to report
    fact = Fact(f"stream:{zone}/{TELEMETRY}", predicate, canonical_json(about))
    link = batch.Link(TELEMETRY, batch.Origin(zone, EPOCH))
    return batch.seal_messages(link, [Message(envelope, fact)]).sealed


def about_plant(**other: object) -> dict[str, object]:
    """What a store says that has refused facts of the plant's first epoch."""
    origins = [OriginRange("plant", EPOCH, 11, 30).named()]
    return {"stream": TELEMETRY, "from": "dmz2", "origins": origins} | other


@pytest.mark.parametrize("predicate", ["facts_refused", "facts_uncompared"])
@pytest.mark.parametrize("is_reopened", [False, True])
@pytest.mark.parametrize("order", ["facts first", "notice first", "one page"])
def test_another_zones_notice_names_what_could_not_be_compared(
    full: tuple[FactStore, Elsewhere], predicate: str, is_reopened: bool, order: str
) -> None:
    """Released facts of a plant come again in an epoch that it never leaves, so nothing that this store sees itself
    says that they are other facts. Another zone could compare, and its notice says so: this store reports them too,
    whether the notice comes before them, after them or with them, and also over a restart in between."""
    store, copy = full
    told, again = parsed([notice(predicate, about_plant())]), parsed(copy.sealed[:2])
    pages = {"facts first": [again, told], "notice first": [told, again], "one page": [[*told, *again]]}[order]
    found = list[OriginRange]()
    for offset, page in enumerate(pages, 31):
        if is_reopened:
            store.close()
            store = FactStore.open(store.path, "idmz", settings=AT_ONCE)
        position = Position(EPOCH, offset)
        found += done(put_page(store, "dmz2", TELEMETRY, page, copy.received(), position)).uncompared
    incidents = {one.kind: one for one in store.incidents()}
    store.close()
    assert found == [OriginRange("plant", EPOCH, 1, 30)]
    assert incidents["uncompared"].subject == f"{TELEMETRY} of plant/{EPOCH.hex()}, 1 to 30"
    if order != "notice first":  # the page with the notice is where the sign is known
        assert f"cloud reports two histories of plant/{EPOCH.hex()}" in incidents["uncompared"].detail


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(notice("facts_damaged", about_plant()), id="another notice"),
        pytest.param(notice("facts_refused", about_plant(stream="facts.other")), id="about another stream"),
        pytest.param(notice("facts_refused", about_plant(origins=[{"zone": "plant"}])), id="without an epoch"),
        pytest.param(notice("facts_refused", about_plant(origins=[{"zone": 1, "epoch": "00"}])), id="no zone"),
        pytest.param(notice("facts_refused", about_plant(origins={})), id="not a list"),
        pytest.param(notice("facts_refused", "refused"), id="not an object"),
        pytest.param(notice("facts_refused", about_plant(origins=[{"zone": "evil", "epoch": "00"}])), id="unknown"),
    ],
)
def test_a_notice_that_says_nothing_changes_nothing(full: tuple[FactStore, Elsewhere], told: bytes) -> None:
    """Any zone may write such a message: malformed ones, and ones about other facts, are stored as any message, make
    nothing uncompared, and number no origin that they name."""
    store, copy = full
    page = parsed([told, *copy.sealed[:2]])
    put = done(put_page(store, "dmz2", TELEMETRY, page, copy.received(), Position(EPOCH, 31)))
    assert (put.stored_facts, put.duplicate_facts, put.uncompared) == (1, 20, ())
    assert {one.zone for one in store.reader.origins()} == {"plant", "idmz", "cloud"}


@pytest.mark.parametrize(
    "life, batches, is_hole, is_reported",
    [
        pytest.param(b"b" * 16, [3], True, True, id="released up to beyond what is held"),
        pytest.param(b"b" * 16, [3], False, True, id="damaged up to there"),
        pytest.param(b"b" * 16, [], True, True, id="all released"),
        pytest.param(b"b" * 16, [1, 2, 3], True, False, id="released up to before the end of what is held"),
        pytest.param(b"b" * 16, [], False, False, id="nothing of its own yet"),
        pytest.param(b"a" * 16, [3], True, False, id="a gap in the same log"),
    ],
)
def test_a_copy_that_has_released_what_it_recorded_anew(
    store: FactStore, life: bytes, batches: list[int], is_hole: bool, is_reported: bool
) -> None:
    """A plant serves 20 facts and continues from an old copy without them. What it recorded there under the same
    sequences, it has released before this store reads that log, so nothing contradicts what is held here. The facts
    held are reported: readers of this store may hold the others. A copy of which one batch can be compared, or a gap in
    the log that was read, is no reason."""
    origin = Elsewhere()
    sealed = [origin.seal(10) for _ in range(4)]
    first = parsed(sealed[:2]), origin.received(), Position(b"a" * 16, 20)
    done(put_page(store, "plant", TELEMETRY, *first, epoch=EPOCH))
    holes = [(1, 30, "expired")] if is_hole else []
    position = Position(life, 50)
    page = parsed([sealed[one] for one in batches])
    how = {"after": Position(life, 20) if life == b"a" * 16 else NOTHING_READ, "epoch": EPOCH, "holes": holes}
    put = done(put_page(store, "plant", TELEMETRY, page, [], position, **how))
    assert put.uncompared == ((OriginRange("plant", EPOCH, 1, 20),) if is_reported else ())
    incidents = [one.detail for one in store.incidents() if one.kind == "uncompared"]
    assert [detail.startswith("plant continued from an old copy of its store") for detail in incidents] == [
        True
    ] * is_reported


def test_released_facts_and_the_next_epoch_in_one_page(full: tuple[FactStore, Elsewhere]) -> None:
    """A relay's page has released facts of a plant again, and behind them the first of the plant's next epoch: what
    could not be compared is reported with this page."""
    store, copy = full
    later = Elsewhere(epoch=LATER)
    page = parsed([*copy.sealed[:2], later.seal(10)])
    definitions = [*copy.received(), *later.received()]
    put = done(put_page(store, "dmz2", TELEMETRY, page, definitions, Position(EPOCH, 31)))
    assert put.uncompared == (OriginRange("plant", EPOCH, 1, 30),)


def test_a_zone_that_was_read_in_a_later_epoch_has_two_histories(full: tuple[FactStore, Elsewhere]) -> None:
    """A relay brings released facts of a plant again, and the plant itself was last read in another epoch, of which no
    fact has come yet: what could not be compared is reported at once."""
    store, copy = full
    done(put_page(store, "plant", TELEMETRY, [], [], Position(LATER, 0)))
    put = done(put_page(store, "dmz2", TELEMETRY, parsed(copy.sealed[:2]), copy.received(), Position(EPOCH, 20)))
    assert put.uncompared == (OriginRange("plant", EPOCH, 1, 30),)


def test_what_could_not_be_compared_is_remembered_over_a_restart(full: tuple[FactStore, Elsewhere]) -> None:
    """Released facts came again before a restart, and their zone begins another epoch after it: they are reported."""
    store, copy = full
    copy.put(store, copy.sealed[:2], 30)
    store.close()
    with FactStore.open(store.path, "idmz", settings=AT_ONCE) as opened:
        later = Elsewhere(epoch=LATER)
        assert offer(opened, later, [later.seal(10)], 40).uncompared == (OriginRange("plant", EPOCH, 1, 30),)


@pytest.mark.parametrize("after_offset", [0, 39, 40])
def test_another_copy_of_a_relays_log_makes_released_facts_uncompared(
    full: tuple[FactStore, Elsewhere], after_offset: int
) -> None:
    """A page of a relay that begins before the stored position is of another copy of its log: what was released here is
    named as uncompared, also where that page ends after the stored position. A page that continues at the position is
    of the same log after a restart."""
    store, copy = full
    done(put_page(store, "dmz2", TELEMETRY, [], [], Position(b"a" * 16, 40), epoch=LATER))
    offered = parsed(copy.sealed[:2]), copy.received(), Position(b"b" * 16, 60)
    put = done(put_page(store, "dmz2", TELEMETRY, *offered, after=Position(b"a" * 16, after_offset), epoch=LATER))
    is_other_copy = after_offset < 40
    assert put.uncompared == ((OriginRange("plant", EPOCH, 1, 30),) if is_other_copy else ())
    assert put.duplicate_facts == 20
    later = parsed(copy.sealed[:2]), copy.received(), Position(b"b" * 16, 80)
    put = done(put_page(store, "dmz2", TELEMETRY, *later, epoch=LATER))
    assert bool(put.uncompared) == is_other_copy  # remembered, for facts that its next pages bring
    store.close()
    with FactStore.open(store.path, "idmz", settings=AT_ONCE) as opened:  # and over a restart
        later = parsed(copy.sealed[:2]), copy.received(), Position(b"b" * 16, 100)
        put = done(put_page(opened, "dmz2", TELEMETRY, *later, epoch=LATER))
        assert bool(put.uncompared) == is_other_copy


def test_a_zone_has_so_many_epochs_and_no_more(store: FactStore) -> None:
    """A peer that sends each batch under a new epoch is refused for good beyond the limit. Other zones are stored as
    before, and so is what continues a known epoch."""
    invented = [Elsewhere("evil", epoch=number.to_bytes(16)) for number in range(1, EPOCHS_OF_ZONE_MAX + 1)]
    first = [one.seal(1) for one in invented]
    definitions = [each for one in invented for each in one.received()]
    position = Position(EPOCH, len(first))
    done(put_page(store, "evil", TELEMETRY, parsed(first), definitions, position))
    one_more = Elsewhere("evil", epoch=b"\xff" * 16)
    refused = put_page(store, "evil", TELEMETRY, parsed([one_more.seal(1)]), one_more.received(), position)
    assert isinstance(failed(refused), FactsRefused)
    assert invented[0].put(store, [invented[0].seal(1)], len(first) + 1, first_definition=3).stored_facts == 1
    honest = Elsewhere()
    assert honest.put(store, [honest.seal(5)], 5).stored_facts == 5


def test_a_zone_has_so_many_definitions_and_no_more(store: FactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """All definitions of a zone count, because none is ever released; beyond the limit a page is refused, and another
    zone's is stored."""
    monkeypatch.setattr(receive, "DEFINITIONS_OF_ZONE_MAX", 4)
    for epoch in (1, 2):
        known = Elsewhere("evil", epoch=bytes([epoch]) * 16)
        known.bodies = [tag(2 * epoch + number).to_json() for number in range(2)]
        assert known.put(store, [known.seal(1, salt=epoch)], epoch).stored_facts == 1
    one_more = Elsewhere("evil", epoch=b"\x03" * 16)
    position = Position(EPOCH, 3)
    page = parsed([one_more.seal(1, salt=3)])
    error = failed(put_page(store, "evil", TELEMETRY, page, [], position))
    assert isinstance(error, FactsRefused)
    assert "evil would have 5 tag definitions here" in str(error)
    honest = Elsewhere()
    assert honest.put(store, [honest.seal(5)], 5).stored_facts == 5


def test_a_zone_has_so_many_ranges_and_no_more(store: FactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer whose sequences are all gaps, in any number of epochs, is refused beyond the limit, because each range
    takes memory for ever. What fills a gap is stored, and so is another zone."""
    monkeypatch.setattr(receive, "RANGES_OF_ZONE_MAX", 6)
    position, left = Position(EPOCH, 1), []
    for epoch in (1, 2):
        origin = Elsewhere("evil", epoch=bytes([epoch]) * 16)
        sealed = [origin.seal(1, salt=1000 * epoch) for _ in range(6)]
        done(put_page(store, "evil", TELEMETRY, parsed(sealed[::2]), origin.received(), position))
        left += sealed[1::2]
    third = Elsewhere("evil", epoch=b"\x03" * 16)
    refused = put_page(store, "evil", TELEMETRY, parsed([third.seal(1, salt=3000)]), third.received(), position)
    assert "7 separate ranges" in str(failed(refused))
    assert done(put_page(store, "evil", TELEMETRY, parsed([left[0]]), [], position)).stored_facts == 1
    honest = Elsewhere()
    assert honest.put(store, [honest.seal(5)], 5).stored_facts == 5


@pytest.mark.parametrize(
    "limit, why",
    [
        ("EPOCHS_OF_ZONE_MAX", "2 epochs"),
        ("DEFINITIONS_OF_ZONE_MAX", "3 tag definitions"),
        ("RANGES_OF_ZONE_MAX", "2 separate ranges"),
    ],
)
def test_a_zone_without_room_stops_no_other_behind_a_relay(
    store: FactStore, monkeypatch: pytest.MonkeyPatch, limit: str, why: str
) -> None:
    """Two honest relays bring the facts that a zone has shown to each of them. Together they exceed what is kept of a
    zone here. The zone loses the excess, which is reported. What continues its facts is stored, and so are those of
    another zone in the same page."""
    known, beyond, honest = Elsewhere("evil"), Elsewhere("evil", epoch=b"\x02" * 16), Elsewhere()
    beyond.bodies = [tag(number).to_json() for number in (8, 9)]
    first, lost, good = known.seal(1), [beyond.seal(1, salt=1000) for _ in range(3)], honest.seal(5)
    done(put_page(store, "idmz1", TELEMETRY, parsed([first]), known.received(), Position(EPOCH, 1)))
    monkeypatch.setattr(receive, limit, 2 if limit.startswith("DEFINITIONS") else 1)
    definitions = [*honest.received()] if limit.startswith("DEFINITIONS") else [*beyond.received(), *honest.received()]
    page = parsed([lost[0], lost[0], known.seal(1), good, *lost[1:]])
    result = done(put_page(store, "idmz2", TELEMETRY, page, definitions, Position(EPOCH, 9), verified={3}))
    assert result.stored_facts == 6
    assert store.signed_zones() == {honest.origin.zone}, "the record of another batch"
    assert {(one.zone, one.epoch) for one in result.left_out} == {("evil", b"\x02" * 16)}
    assert (result.left_out[0].first_sequence, result.left_out[-1].last_sequence) == (1, 3)
    assert store.inbound.peer_position("idmz2", TELEMETRY) == Position(EPOCH, 9)
    named = [one for one in store.incidents() if one.kind == "declined"]
    assert named
    assert all(f"evil would have {why}" in one.detail or f"of evil would be {why}" in one.detail for one in named)


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


@pytest.mark.parametrize("limit", ["EPOCHS_OF_ZONE_MAX", "RANGES_OF_ZONE_MAX"])
def test_contradictions_beyond_a_limit_take_two_rounds(
    store: FactStore, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """A page is full of different batches for one sequence, of a zone that has no room. Each would take the place of
    the one that was left out before it."""
    planned: list[int] = []
    plan_page = receive._plan_page
    monkeypatch.setattr(receive, "_plan_page", lambda *asked, **more: planned.append(1) or plan_page(*asked, **more))
    lies, chains = list[bytes](), list[DefinitionChain]()
    for number in range(20):
        one = Elsewhere("evil")
        lies.append(one.seal(1, salt=1000 + number))
        chains = one.received()
    honest = Elsewhere("mill")
    monkeypatch.setattr(receive, limit, 1)
    first = Elsewhere("evil", epoch=b"\x02" * 16)
    done(put_page(store, "idmz", TELEMETRY, parsed([first.seal(1)]), first.received(), Position(EPOCH, 1)))
    planned.clear()
    page = parsed([*lies, honest.seal(5)])
    received = [*chains, *honest.received()]
    result = done(put_page(store, "idmz", TELEMETRY, page, received, Position(EPOCH, 22)))
    assert result.stored_facts == 5
    assert len(planned) <= 3


def test_ranges_of_two_epochs_are_reported_apart() -> None:
    """Facts that are passed over are reported by zone, epoch and sequences; those of two epochs are never one range,
    although the sequences follow each other."""
    one, other = Elsewhere(), Elsewhere(epoch=LATER)
    other.link = batch.Link(TELEMETRY, other.origin, 21, bytes(15) + b"d")
    ranges = list[OriginRange]()
    for sealed in parsed([one.seal(10), one.seal(10), other.seal(5), other.seal(5)]):
        receive._add_range(ranges, sealed.header)
    assert ranges == [OriginRange("plant", EPOCH, 1, 20), OriginRange("plant", LATER, 21, 30)]


def test_a_page_of_contradictions_is_named_by_its_first_ones(store: FactStore) -> None:
    """A peer sends other facts than those held, in any number of ranges: the first sixteen of a page are named, each by
    an incident and a notice, and the last of them says how many others there are."""
    held, other = Elsewhere("evil"), Elsewhere("evil")
    truth = [held.seal(1) for _ in range(100)]
    lies = [other.seal(1, salt=1000) for _ in range(100)]
    held.put(store, truth, 100)
    now = Position(b"\x07" * 16, 1)
    mixed = parsed([(lies if number % 2 else truth)[number] for number in range(100)])
    result = done(put_page(store, "evil", TELEMETRY, mixed, [], now))
    assert len(result.refused) == 50
    named = [one for one in store.incidents() if one.kind == "refused"]
    assert len(named) == receive.REPORTED_MAX
    assert sum("34 other ranges" in one.detail for one in named) == 1
    assert store.end_offset(TELEMETRY) == 100 + receive.REPORTED_MAX


def test_incidents_of_a_kind_have_a_limit(store: FactStore) -> None:
    """A peer decides the content of some incidents. So of each kind the first and the newest are kept, and the others
    counted. No kind displaces another."""
    store.note("clock", "at opening", "why").result()
    notes = [store.note("declined", f"range {number}", "why") for number in range(3 * INCIDENTS_OF_KIND_MAX)]
    for one in notes:
        one.result()
    store.note("declined", "range 0", "again").result()
    kept = store.reader.incidents(10 * INCIDENTS_OF_KIND_MAX)
    declined = {one.subject: one for one in kept if one.kind == "declined"}
    assert len(declined) <= INCIDENTS_OF_KIND_MAX + 1
    assert declined["range 0"].count == 2
    assert all(f"range {number}" in declined for number in range(INCIDENTS_FIRST))
    assert all(f"range {3 * INCIDENTS_OF_KIND_MAX - number}" in declined for number in range(1, 300))
    assert sum(one.count for one in declined.values()) == 3 * INCIDENTS_OF_KIND_MAX + 1
    assert [one.subject for one in kept if one.kind == "clock"] == ["at opening"]

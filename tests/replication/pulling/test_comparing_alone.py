"""A comparison with a peer's real server and two real stores; the test delivers the answers and may change them."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Never
from unittest.mock import Mock

import msgspec
import pytest

from agent.batch import Origin
from agent.errors import StoreBusy
from agent.fact_store import FactStore, StoreDamaged
from agent.fact_store.core.errors import FactsRefused
from agent.fact_store.inbound import Inbound
from agent.pages import Declined, OriginRange, ReceivedPage
from agent.positions import Position
from agent.replication.mqtt.requester import PeerReply, peer_refused
from agent.replication.protocol.errors import PeerRefused
from agent.replication.protocol.messages import (
    CLAIM_MAX,
    DigestsAnswer,
    ErrorAnswer,
    FetchSequences,
    GetDigests,
    Request,
    SequencesAnswer,
)
from agent.replication.protocol.token_bucket import TokenBucket
from agent.replication.pulling import anti_entropy
from agent.replication.pulling.anti_entropy import (
    OPENING_S,
    RESTORED_CHECK_S,
    RETRY_S,
    AntiEntropy,
    AntiEntropySettings,
)
from agent.replication.pulling.comparing import differences, repair
from agent.replication.pulling.comparing.comparison import REFUSED_MAX, Comparison
from agent.replication.pulling.comparing.repair import HOLE_PAGES_MAX
from agent.replication.pulling.page_check import PageRefused
from agent.replication.pulling.page_judge import PageJudge, TrustPolicy
from agent.replication.pulling.throttled_requester import ThrottledRequester
from agent.replication.serving.admission import PeerRights
from agent.replication.serving.server import Server
from agent.settings.store import StreamSettings
from agent.signing.certificates import SignerTrust
from agent.signing.keys import ZoneSigner
from agent.signing.records import sign_record
from tests.fact_store.making import Elsewhere, damages, parsed, past_the_triggers, samples, sealed_in, tag
from tests.replication.nodes import STREAM
from tests.replication.serving.support import Peer as ServedPeer
from tests.signing.making import page
from tests.signing.signers import NOW_MS, make, signing_key
from tests.support.received import chains_in, put_page
from tests.waiting import LIMIT_S, wait_until_async


class Peer(ServedPeer):
    """Sends the requests of idmz to the server of plant-a's store. `spoil` changes them on the way."""

    peer_node = "plant-a"

    def __init__(self, store: FactStore) -> None:
        super().__init__()
        self.server = Server(self.link, store, {"idmz": PeerRights({STREAM})})  # type: ignore[arg-type]
        self.spoil: Callable[[Request], Request] = lambda request: request

    async def ask(self, request: Request, _timeout_s: float) -> PeerReply:  # type: ignore[override]
        """As `Requester.ask`."""
        answer = await super().ask(self.spoil(request))
        if isinstance(answer, ErrorAnswer):
            raise peer_refused(self.peer_node, answer)
        return PeerReply(answer, self.batches, len(self.proofs[-1][0]))


def put(store: FactStore, origin: Elsewhere, sealed: Sequence[bytes], position: Position | None = None) -> None:
    """Store batches of an origin with its definitions, as they come from plant-a."""
    where = position or Position(origin.origin.life, 0)
    put_page(store, "plant-a", STREAM, parsed(sealed), origin.received(), where).result()


@asynccontextmanager
async def comparing(
    plant: FactStore,
    idmz: FactStore,
    peer_node: str = "plant-a",
    begun_late: frozenset[str] = frozenset(),
    policy: TrustPolicy | None = None,
    limit: TokenBucket | None = None,
    **what: frozenset[str],
) -> AsyncIterator[tuple[AntiEntropy, Peer]]:
    """The comparison of idmz with plant-a, which may send its own facts."""
    peer = Peer(plant)
    settings = AntiEntropySettings(
        peer_node,
        (STREAM,),
        what.get("origins", frozenset({"plant-a"})),
        begun_late,
        pair_zones=what.get("pair_zones", frozenset()),
    )
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        serving = group.create_task(peer.server.run())
        await wait_until_async(lambda: peer.server._group is not None, "the server")
        judge = PageJudge(idmz, policy or TrustPolicy(own_zone=idmz.zone))
        requester: Any = ThrottledRequester(peer, limit)  # type: ignore[arg-type]
        yield AntiEntropy(requester, idmz, settings, judge=judge), peer
        serving.cancel()


@contextlib.asynccontextmanager
async def played(folder: Path) -> AsyncIterator[tuple[FactStore, FactStore]]:
    """Run a scenario with the stores of plant-a and idmz."""
    with (
        FactStore.open(folder / "plant.db", "plant-a") as plant,
        FactStore.open(folder / "idmz.db", "idmz") as idmz,
    ):
        yield plant, idmz


def level(plant: FactStore) -> Position:
    """The position after all that plant-a has."""
    return plant.log(STREAM).end


async def test_only_what_the_peer_may_bring_is_missing(tmp_path: Path) -> None:
    """Not missing: facts of a zone that it may not relay."""
    async with played(tmp_path) as (plant, idmz):
        theirs, relayed = Elsewhere("plant-a"), Elsewhere("north")
        for life in (theirs, relayed):
            put(plant, life, [life.seal(10), life.seal(10)])
        put(idmz, theirs, theirs.sealed[:1], level(plant))
        async with comparing(plant, idmz) as (comparer, _):
            found = await comparer.compare(STREAM, repair=True)
        assert found.missing == [(theirs.origin, (11, 20))]
        assert {origin.zone for origin in idmz.reader.held(STREAM)} == {"plant-a"}
        assert comparer.statistics()[0].is_equal


@pytest.mark.parametrize("is_level", [True, False])
@pytest.mark.parametrize("begun_late", [frozenset(), frozenset({"facts.other"}), frozenset({STREAM})])
async def test_of_five_batches_what_was_asked_for_is_missing(
    tmp_path: Path, begun_late: frozenset[str], *, is_level: bool
) -> None:
    """The second and the fourth are here. What is between them is missing, what is before them unless the pull of this
    stream began late, and what is behind them once the pull has passed it."""
    async with played(tmp_path) as (plant, idmz):
        theirs = Elsewhere("plant-a")
        sealed = [theirs.seal(10) for _ in range(5)]
        put(plant, theirs, sealed)
        for number in (1, 3):
            put(idmz, theirs, [sealed[number]], level(plant) if is_level else None)
        async with comparing(plant, idmz, begun_late=begun_late) as (comparer, _):
            found = await comparer.compare(STREAM, repair=False)
    spans = [(1, 10)] * (STREAM not in begun_late) + [(21, 30)] + [(41, 50)] * is_level
    assert found.missing == [(theirs.origin, span) for span in spans]


@pytest.mark.parametrize("zone", ["plant-a", "idmz"])
async def test_damage_is_fetched_from_a_peer_that_holds_it(tmp_path: Path, zone: str) -> None:
    """Of the damaged batches of two zones the peer holds those of one, its own or ours, and is not asked for the other,
    which another peer may have. A scan finds them. Without `repair` they are named; with it they are put back at their
    offsets, byte for byte, also after a restart, and nothing else is wrong with the store."""
    path, theirs, norths = tmp_path / "idmz.db", Elsewhere("plant-a"), Elsewhere("north")
    with FactStore.open(path, "idmz") as idmz, FactStore.open(tmp_path / "plant.db", "plant-a") as plant:
        if zone == "idmz":
            idmz.appends.define([tag(1)])
            for first in (1, 11, 21):
                idmz.appends.append_samples(STREAM, samples(10, first)).result()
        else:
            put(idmz, theirs, [theirs.seal(10) for _ in range(3)])
        before, (origin,) = sealed_in(idmz, STREAM), idmz.reader.held(STREAM)
        put_page(plant, "idmz", STREAM, parsed(before), chains_in(idmz), idmz.log(STREAM).end).result()
        put(idmz, norths, [norths.seal(10), norths.seal(10)])
    damaged, of_north = [(11, 20), (21, 30)], (41, 50)
    with past_the_triggers(path) as connection:
        for first, _ in (*damaged, of_north):
            (body,) = connection.execute("SELECT body FROM batch WHERE first_offset = ?", (first,)).fetchone()
            body = body[:20] + bytes([body[20] ^ 1]) + body[21:]
            connection.execute("UPDATE batch SET body = ? WHERE first_offset = ?", (body, first))
    async with played(tmp_path) as (plant, idmz):
        async with comparing(plant, idmz) as (comparer, _):
            named = await comparer.compare(STREAM, repair=False, scan=True)
            assert sealed_in(idmz, STREAM)[:2] == [before[0], norths.sealed[0]]
            found = await comparer.compare(STREAM, repair=True)
            again = await comparer.compare(STREAM, repair=True, scan=True)
        assert named.damaged == found.damaged == [(origin, span) for span in damaged]
        assert (named.repaired_facts, named.missing, named.forks) == (0, [], [])
        assert (found.repaired_ranges, found.repaired_facts, found.refused, found.unavailable_facts) == (2, 20, [], 0)
        assert (again.divergent_ranges, comparer.statistics()[0].repaired_facts) == (0, 20)
        assert [(hole.first_offset, hole.last_offset) for hole in idmz.read(STREAM, 0, 99, 10**6).holes] == [of_north]
        repaired = {incident.subject for incident in idmz.reader.incidents() if incident.kind == "repaired"}
        assert repaired == {f"{STREAM} {first} to {last}" for first, last in damaged}
    with FactStore.open(path, "idmz") as idmz:
        assert sealed_in(idmz, STREAM)[:3] == before
    (left,) = damages(path)
    assert "41" in left


async def test_damaged_tag_definitions_are_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fact of two tags has lost its meaning, and a request for a definition gets an error. A comparison finds
    them and fetches the peer's, proven by a held batch; one that is not put back is told. They stay after a restart,
    and the store verifies."""

    def refused(*_: object) -> Never:
        raise FactsRefused("another definition")

    path, theirs = tmp_path / "idmz.db", Elsewhere("plant-a")
    with FactStore.open(path, "idmz") as idmz, FactStore.open(tmp_path / "plant.db", "plant-a") as plant:
        for store in (plant, idmz):
            put(store, theirs, theirs.sealed or [theirs.seal(10)], Position(theirs.origin.life, 10))
        chains = chains_in(plant)
    with past_the_triggers(path) as connection:
        for number, body in connection.execute("SELECT number, body FROM definition").fetchall():
            wrong = body[:-3] + bytes([body[-3] ^ 1]) + body[-2:]
            connection.execute("UPDATE definition SET body = ? WHERE number = ?", (wrong, number))
    async with played(tmp_path) as (plant, idmz):
        with pytest.raises(StoreDamaged, match="tag definition 1 of"):
            chains_in(idmz)
        async with comparing(plant, idmz) as (comparer, _):
            named = await comparer.compare(STREAM, repair=False)
            with monkeypatch.context() as patched:
                patched.setattr(Inbound, "repair_definitions", refused)
                declined = await comparer.compare(STREAM, repair=True)
            found = await comparer.compare(STREAM, repair=True)
            again = await comparer.compare(STREAM, repair=True)
        assert [(zone, wanted.count) for zone, wanted in named.damaged_definitions] == [("plant-a", 2)]
        assert (declined.repaired_definitions, declined.refused) == (0, ["another definition"])
        assert (found.repaired_ranges, found.repaired_definitions, found.refused) == (1, 2, [])
        assert [incident.kind for incident in idmz.reader.incidents()] == ["definitions_repaired"]
        assert again.divergent_ranges == 0
    with FactStore.open(path, "idmz") as idmz:
        assert chains_in(idmz) == chains
    assert damages(path) == []


class Counting(TokenBucket):
    """Counts what is spent."""

    def __init__(self) -> None:
        super().__init__(1_000_000)
        self.spent = 0

    def spend(self, size: int, now_ms: int) -> None:
        self.spent += size
        super().spend(size, now_ms)


async def test_equal_stores_cost_one_exchange(tmp_path: Path) -> None:
    """Its size does not depend on how much they hold, and it is taken from the peer's bandwidth. A refused comparison
    is counted as failed."""
    limit, theirs = Counting(), Elsewhere("plant-a")
    async with played(tmp_path) as (plant, idmz):
        for store in (plant, idmz):
            put(store, theirs, theirs.sealed or [theirs.seal(100) for _ in range(10)], Position(theirs.origin.life, 9))
        async with comparing(plant, idmz, limit=limit) as (comparer, peer):
            found = await comparer.compare(STREAM, repair=True)
            assert (found.exchanges, found.compared_facts, found.divergent_ranges) == (1, 1_000, 0)
            assert limit.spent == found.bytes < 1_000
            peer.spoil = lambda request: msgspec.structs.replace(request, stream="facts.secret")
            with pytest.raises(PeerRefused):
                await comparer.compare(STREAM, repair=False)
            (counted,) = comparer.statistics()
            assert (counted.comparisons, counted.failures) == (1, 1)


async def test_own_facts_that_a_restore_lost_are_fetched(tmp_path: Path) -> None:
    """Facts of an own former life that only the peer holds come back as facts of that life; without a key none
    is accepted of the present life, or of one that this store never had."""
    path, image = tmp_path / "idmz.db", tmp_path / "image.db"
    with FactStore.open(path, "idmz") as before, FactStore.open(tmp_path / "plant.db", "plant-a") as plant:
        before.appends.define([tag(1)])
        for first in (1, 11):
            before.appends.append_samples(STREAM, samples(10, first)).result()
            if not image.exists():
                with (
                    contextlib.closing(sqlite3.connect(path)) as source,
                    contextlib.closing(sqlite3.connect(image)) as to,
                ):
                    source.backup(to)
                    to.execute("UPDATE store SET is_open = 0")
                    to.commit()
        lost = [batch.sealed for batch in before.read(STREAM, 0, 100, 10**6).batches]
        definitions = chains_in(before)
        position = Position(before.life, before.end_offset(STREAM))
        put_page(plant, "idmz", STREAM, parsed(lost), definitions, position).result()
        former = before.origin
    image.replace(path)
    async with played(tmp_path) as (plant, idmz):
        assert former.life in idmz.own_lives()
        invented, forged = Elsewhere("idmz"), Elsewhere("idmz", life=idmz.life)
        for life in (invented, forged):
            put(plant, life, [life.seal(10)])
        theirs = Elsewhere("plant-a")
        put(plant, theirs, [theirs.seal(10)])
        put(idmz, theirs, theirs.sealed, level(plant))
        async with comparing(plant, idmz) as (comparer, _):
            found = await comparer.compare(STREAM, repair=True)
        assert {*found.missing} == {(former, (11, 20)), (invented.origin, (1, 10)), (forged.origin, (1, 10))}
        assert any("20 facts of this zone in 2 lives that this store does not know" in why for why in found.refused)
        assert [
            (held_range.first_sequence, held_range.last_sequence) for held_range in idmz.reader.held(STREAM)[former]
        ] == [(1, 20)]
        assert {origin for origin in idmz.reader.held(STREAM) if origin.zone == "idmz"} == {former}


async def test_the_other_node_of_the_zone_is_no_copy_of_this_one(tmp_path: Path) -> None:
    """Facts of the zone that the other node has recorded are under way until they are pulled, as those of any peer;
    only what this node has said about itself comes home."""
    with (
        FactStore.open(tmp_path / "plant.db", "plant-a") as plant,
        FactStore.open(tmp_path / "idmz.db", "plant-a", node="idmz") as second,
    ):
        plant.appends.define([tag(1)])
        plant.appends.append_samples(STREAM, samples(10)).result()
        about_second = Elsewhere("idmz")
        put(plant, about_second, [about_second.seal(5)])
        async with comparing(plant, second) as (comparer, _):
            found = await comparer.compare(STREAM, repair=True)
        assert found.missing == [(about_second.origin, (1, 5))]
        (why,) = found.refused
        assert why.startswith("5 facts of this zone in 1 lives that this store does not know")
        assert second.end_offset(STREAM) == 0


OWN_KEY = make("idmz")
OWN_SIGNER = ZoneSigner(signing_key(OWN_KEY), OWN_KEY.der)


def lives_of(zone: str, count: int, first: int = 1) -> list[Elsewhere]:
    """Lives of a zone, each with a batch of ten facts; the chain runs on over them."""
    found = list[Elsewhere]()
    for number in range(first, first + count):
        life = Elsewhere(zone, life=bytes([number]) * 16)
        if found:
            life.link = replace(found[-1].link, origin=life.origin)
        life.seal(10, salt=1000 * number)
        found.append(life)
    return found


async def test_a_whole_life_that_is_missing_is_fetched(tmp_path: Path) -> None:
    """Also while the pull is not level: lives before the newest held here are not under way. Count and sum of the lives
    before the newest show that something is missing; once they are equal, no life is listed."""
    async with played(tmp_path) as (plant, idmz):
        lives = lives_of("plant-a", 5)
        for number, life in enumerate(lives):
            put(plant, life, life.sealed)
            if number != 2:
                put(idmz, life, life.sealed, Position(lives[0].origin.life, number))
        async with comparing(plant, idmz) as (comparer, _):
            first = await comparer.compare(STREAM, repair=True)
            again = await comparer.compare(STREAM, repair=True)
        assert first.missing == [(lives[2].origin, (21, 30))]
        assert (first.repaired_facts, again.missing) == (10, [])
        assert (first.exchanges, again.exchanges) == (4, 1)
        assert (first.compared_facts, again.compared_facts) == (40, 50)  # those of lives that are not listed, too


async def test_what_was_under_way_is_not_taken_for_compared(tmp_path: Path) -> None:
    """A comparison while the pull is behind leaves newer lives to the pull. One that the pull then passes over is
    missing at the next comparison."""
    async with played(tmp_path) as (plant, idmz):
        lives = lives_of("plant-a", 3)
        for life in lives:
            put(plant, life, life.sealed)
        put(idmz, lives[0], lives[0].sealed, Position(level(plant).life, 1))
        async with comparing(plant, idmz) as (comparer, _):
            behind = await comparer.compare(STREAM, repair=True)
            put(idmz, lives[2], lives[2].sealed, level(plant))
            found = await comparer.compare(STREAM, repair=True)
        assert (behind.missing, found.missing) == ([], [(lives[1].origin, (11, 20))])


async def test_lives_from_before_a_late_start_are_listed_once(tmp_path: Path) -> None:
    """A reader that began late lacks all earlier lives, and they are no loss. That the sums differ is remembered, also
    over later lives: only those are listed."""
    late = frozenset({STREAM})
    async with played(tmp_path) as (plant, idmz):
        *lives, later = lives_of("plant-a", 6)
        for life in lives:
            put(plant, life, life.sealed)
        put(idmz, lives[-1], lives[-1].sealed, level(plant))
        async with comparing(plant, idmz, begun_late=late) as (comparer, _):
            found = [await comparer.compare(STREAM, repair=True) for _ in range(2)]
            for store in (plant, idmz):
                put(store, later, later.sealed, level(plant))
            found += [await comparer.compare(STREAM, repair=True) for _ in range(2)]
            assert [comparison.missing for comparison in found] == [[]] * 4
            assert [comparison.exchanges for comparison in found] == [2, 1, 2, 1]


@asynccontextmanager
async def lost(folder: Path, signer: ZoneSigner | None) -> AsyncIterator[tuple[FactStore, FactStore, Origin]]:
    """plant-a holds 20 facts that idmz signed before its disk was lost, and 10 that somebody invented in its name.
    idmz begins anew, and has read plant-a."""
    before = FactStore.open(folder / "before.db", "idmz", signer=OWN_SIGNER)
    with before, FactStore.open(folder / "plant.db", "plant-a") as plant:
        before.appends.define([tag(1)])
        for first in (1, 11):
            before.appends.append_samples(STREAM, samples(10, first)).result()
        sealed = [batch.sealed for batch in before.read(STREAM, 0, 100, 10**6).batches]
        put_page(plant, "idmz", STREAM, parsed(sealed), chains_in(before), before.log(STREAM).end).result()
        invented, theirs = Elsewhere("idmz"), Elsewhere("plant-a")
        put(plant, invented, [invented.seal(10)])
        put(plant, theirs, [theirs.seal(10)])
        with FactStore.open(folder / "idmz.db", "idmz", signer=signer) as idmz:
            put(idmz, theirs, theirs.sealed, level(plant))
            yield plant, idmz, before.origin


async def test_own_facts_of_a_lost_disk_come_home(tmp_path: Path) -> None:
    """All that our key has signed comes back, also of a life that the new store does not know; what a peer invents in
    our name does not."""
    policy = TrustPolicy(own_zone="idmz", own_certificates=(OWN_KEY.der,))
    async with lost(tmp_path, OWN_SIGNER) as (plant, idmz, former):
        async with comparing(plant, idmz, policy=policy) as (comparer, _):
            first = await comparer.compare(STREAM, repair=True)
            again = await comparer.compare(STREAM, repair=True)
        own = {origin for origin in idmz.reader.held(STREAM) if origin.zone == "idmz"}
        assert own == {former, idmz.origin}, "of the present life only the notice of what was declined"
        assert [held_range.span for held_range in idmz.reader.held_of(STREAM, former)] == [(1, 20)]
        assert (first.repaired_facts, again.repaired_facts) == (20, 0)
        assert "no signature, which this node demands of the zone" in "".join(first.refused)


async def test_a_node_without_a_key_takes_unknown_facts_of_its_own_only_by_command(tmp_path: Path) -> None:
    """A peer could invent them, so a periodic comparison names them and how to fetch them."""
    async with lost(tmp_path, None) as (plant, idmz, former):
        async with comparing(plant, idmz) as (comparer, _):
            named = await comparer.compare(STREAM, repair=True)
            assert (named.divergent_ranges, named.repaired_facts, idmz.end_offset(STREAM)) == (2, 0, 10)
            assert "30 facts of this zone in 2 lives that this store does not know" in named.refused[0]
            fetched = await comparer.compare(STREAM, repair=True, is_commanded=True)
        assert (fetched.repaired_facts, [held_range.span for held_range in idmz.reader.held_of(STREAM, former)]) == (
            30,
            [(1, 20)],
        )


async def test_facts_of_our_zone_from_our_partner_are_as_any_others(tmp_path: Path) -> None:
    """Our partner sends the facts of our common zone in its pages: lives that this store does not know are fetched
    without a key and without a command, the newest only once the pull is level. At a node above, which leaves them out,
    what is of the newest life may be under way from our partner."""
    zone, partner = frozenset({"idmz"}), frozenset({"idmz", "idmz-2"})
    async with played(tmp_path) as (there, idmz):
        lives = lives_of("idmz", 3)
        for life in lives:
            put(there, life, life.sealed)
        put(idmz, lives[1], lives[1].sealed, Position(lives[0].origin.life, 1))
        async with comparing(there, idmz, origins=partner, pair_zones=zone) as (comparer, _):
            behind = await comparer.compare(STREAM, repair=True)
        async with comparing(there, idmz, pair_zones=zone) as (comparer, _):
            above = await comparer.compare(STREAM, repair=False)
        put(idmz, lives[0], [], level(there))
        async with comparing(there, idmz, origins=partner, pair_zones=zone) as (comparer, _):
            found = await comparer.compare(STREAM, repair=True)
        assert (behind.missing, behind.repaired_facts) == ([(lives[0].origin, (1, 10))], 10)
        assert above.missing == []
        assert (found.missing, found.repaired_facts, found.refused) == ([(lives[2].origin, (21, 30))], 10, [])


async def test_own_facts_come_home_only_while_there_is_room(tmp_path: Path) -> None:
    """A new small disk is not filled with the past."""
    policy = TrustPolicy(own_zone="idmz", own_certificates=(OWN_KEY.der,))
    async with lost(tmp_path, OWN_SIGNER) as (plant, idmz, _):
        end = idmz.end_offset(STREAM)
        idmz.set_limits(0, [StreamSettings(STREAM, bytes_max=100)], {})
        async with comparing(plant, idmz, policy=policy) as (comparer, _):
            found = await comparer.compare(STREAM, repair=True)
        assert idmz.end_offset(STREAM) == end
        assert any("nearly full" in refusal for refusal in found.refused)


async def test_what_is_proven_only_by_later_facts_is_fetched_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """plant-a had no key in two lives, and idmz, which demands signatures, holds only the signed one that follows. Each
    page of the earlier lives is proven by the page after it, and the first life by the second: one comparison brings
    them all, and reports nothing as declined."""
    monkeypatch.setattr(repair, "PAGE_FACTS_MAX", 20)  # a page has two batches
    made = make("plant-a")
    policy = TrustPolicy(SignerTrust(pins={"plant-a": frozenset({made.sha256})}), {"plant-a": "required"}, "idmz")
    lives, link = [Elsewhere("plant-a", life=bytes([number]) * 16) for number in (1, 2, 3)], None
    lives[2].sign = partial(sign_record, ZoneSigner(signing_key(made), made.der), signed_at_ms=NOW_MS)
    async with played(tmp_path) as (plant, idmz):
        for life in lives:
            life.link = replace(link, origin=life.origin) if link else life.link
            put(plant, life, [life.seal(10) for _ in range(6)])
            link = life.link
        judged = PageJudge(idmz, policy).judge("plant-a", STREAM, page(parsed(lives[2].sealed)), [made.der])
        put_page(
            idmz,
            "plant-a",
            STREAM,
            judged.batches,
            lives[2].received(),
            level(plant),
            verified=judged.verified,
            signers=judged.signers,
        ).result()
        async with comparing(plant, idmz, policy=policy) as (comparer, _):
            found = await comparer.compare(STREAM, repair=True)
            again = await comparer.compare(STREAM, repair=True)
        assert [span for _, span in found.missing] == [(1, 60), (61, 120)]
        assert (found.repaired_facts, found.repaired_ranges, found.refused) == (120, 2, [])
        assert (again.divergent_ranges, [incident.kind for incident in idmz.reader.incidents()]) == (0, [])
        assert comparer.statistics()[0].is_equal


async def test_facts_behind_a_fork_are_fetched(tmp_path: Path) -> None:
    """Digests do not show which of two histories of one life is right: the fork is reported, and what does not
    contradict a held batch is fetched."""
    async with played(tmp_path) as (plant, idmz):
        theirs, forged = Elsewhere("plant-a"), Elsewhere("plant-a")
        put(plant, theirs, [theirs.seal(10) for _ in range(4)])
        put(idmz, forged, [forged.seal(10, salt=7), forged.seal(10)], level(plant))
        async with comparing(plant, idmz) as (comparer, _):
            found = await comparer.compare(STREAM, repair=True)
        assert len(found.forks) == 1
        assert found.missing == [(theirs.origin, (21, 40))]
        assert [held_range.span for held_range in idmz.reader.held_of(STREAM, theirs.origin)] == [(1, 20), (21, 40)]
        assert comparer.statistics()[0].is_equal is False


async def test_a_digest_that_our_disk_changed_is_no_fork(tmp_path: Path) -> None:
    """The batch is known to be damaged here, so nothing is said about the peer's history, and the batch is fetched."""
    theirs = Elsewhere("plant-a")
    sealed = [theirs.seal(10) for _ in range(3)]
    with FactStore.open(tmp_path / "idmz.db", "idmz") as idmz:
        put(idmz, theirs, sealed, Position(theirs.origin.life, 30))
    with contextlib.closing(sqlite3.connect(tmp_path / "idmz.db")) as connection:
        connection.execute("DROP TRIGGER batch_update_refused")
        connection.execute("UPDATE batch SET digest = zeroblob(16) WHERE first_offset = 11")
        connection.commit()
    async with played(tmp_path) as (plant, idmz):
        put(plant, theirs, sealed[:2])
        async with comparing(plant, idmz) as (comparer, _):
            found = await comparer.compare(STREAM, repair=True)
        assert (found.forks, found.damaged) == ([], [(theirs.origin, (11, 20))])
        assert not [incident for incident in idmz.reader.incidents() if incident.kind == "fork"]
        assert idmz.read(STREAM, 10, 1, 1).batches[0].sealed == sealed[1]


async def test_forks_of_one_comparison_are_recorded_within_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer can name twenty thousand differing ranges, and each incident is a commit. Those recorded name their lives,
    each in an incident of its own."""
    monkeypatch.setattr(anti_entropy, "REFUSED_MAX", 2)
    async with played(tmp_path) as (plant, idmz):
        for life in (b"\1" * 16, b"\2" * 16, b"\3" * 16):
            theirs, forged = (Elsewhere("plant-a", life=life) for _ in range(2))
            put(plant, theirs, [theirs.seal(10, salt=1000 * life[0])])
            put(idmz, forged, [forged.seal(10, salt=1000 * life[0] + 7)], level(plant))
        async with comparing(plant, idmz) as (comparer, _):
            found = await comparer.compare(STREAM, repair=True)
        assert len(found.forks) == 3
        forks = [incident for incident in idmz.reader.incidents() if incident.kind == "fork"]
        assert {fork.subject for fork in forks} == {f"{STREAM} of {life} from plant-a" for life, _ in found.forks[:2]}
        assert [fork.count for fork in forks] == [1, 1]


async def test_artifacts_come_before_the_facts_of_a_gap(tmp_path: Path) -> None:
    """As in a pull, a fact that refers to an artifact is stored when the artifact is here. The pull may move on
    meanwhile, also into another life of the peer: the position stays where the pull has moved it."""
    async with played(tmp_path) as (plant, idmz):
        theirs, later = Elsewhere("plant-a"), Position(b"\7" * 16, 5)
        put(plant, theirs, [theirs.seal(10), theirs.seal(10)])
        put(idmz, theirs, theirs.sealed[:1], level(plant))
        brought = list[int]()
        async with comparing(plant, idmz) as (comparer, _):

            async def bring(batches: Sequence[object]) -> bool:
                assert idmz.end_offset(STREAM) == 10
                brought.append(len(batches))
                put(idmz, theirs, [], later)
                return True

            comparer._tools.artifacts.fetch = bring  # type: ignore[method-assign, assignment]
            await comparer.compare(STREAM, repair=True)
        assert (brought, idmz.end_offset(STREAM)) == ([1], 20)
        assert idmz.inbound.peer_position("plant-a", STREAM) == later


async def test_what_a_comparison_declines_is_told(tmp_path: Path) -> None:
    """Facts of a gap that nobody has proven are not stored, and who compares reads why they are still missing."""
    async with played(tmp_path) as (plant, idmz):
        theirs = Elsewhere("plant-a")
        put(plant, theirs, [theirs.seal(10), theirs.seal(10)])
        put(idmz, theirs, theirs.sealed[:1], level(plant))
        unproven = Declined(11, 20, OriginRange(theirs.origin.zone, theirs.origin.life, 11, 20), "no signature")
        async with comparing(plant, idmz) as (comparer, _):
            comparer._tools.judge.judge = lambda *_: ReceivedPage("plant-a", STREAM, [], declined=(unproven,))  # type: ignore[method-assign]
            found = await comparer.compare(STREAM, repair=True)
        assert found.refused == [f"{theirs.origin}: 11 to 20 declined: no signature"]
        assert [held_range.last_sequence for held_range in idmz.reader.held(STREAM)[theirs.origin]] == [10]


async def scheduled(
    monkeypatch: pytest.MonkeyPatch,
    chance: float,
    until_s: float,
    *failing: str,
    times_restored: int = 0,
    is_shown_again: bool = False,
) -> list[tuple[float, str]]:
    """When each of two streams is compared in the time after a start. The first comparison of those that are `failing`
    fails. `is_shown_again`: during the first one of all, a peer shows that the store was put back."""
    store: Any = SimpleNamespace(zone="idmz", times_restored=times_restored, artifacts=None, inbound=None)
    requester: Any = Mock(peer_node="plant-a")
    settings = AntiEntropySettings("plant-a", ("one", "two"), frozenset({"plant-a"}), every_hours=24)
    comparer = AntiEntropy(requester, store, settings, chance=lambda: chance, judge=Mock())
    now_s, compared, failures = 0.0, list[tuple[float, str]](), list(failing)

    async def compare(stream: str, *, repair: bool) -> None:
        assert repair
        store.times_restored += is_shown_again and not compared
        compared.append((now_s, stream))
        if stream in failures:
            failures.remove(stream)
            raise PageRefused("not now")

    async def sleep(wait_s: float) -> None:
        nonlocal now_s
        now_s += wait_s
        if now_s > until_s:
            raise asyncio.CancelledError

    monkeypatch.setattr(comparer, "compare", compare)
    monkeypatch.setattr(anti_entropy, "time", SimpleNamespace(monotonic=lambda: now_s))
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "sleep", sleep)
        with pytest.raises(asyncio.CancelledError):
            await comparer.run()
    return compared


async def test_facts_that_a_restore_lost_are_asked_for_until_every_stream_is_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream that cannot be compared keeps no other from it. All are compared again ten minutes later, and once they
    are equal, no more before the next day, unless a peer shows another restore, even during a comparison."""
    compared = await scheduled(monkeypatch, 0.5, 20 * RETRY_S, "one", times_restored=1)
    assert [stream for _, stream in compared] == ["one", "two"] * 2
    assert [at_s for at_s, _ in compared[::2]] == [RESTORED_CHECK_S / 2, RESTORED_CHECK_S / 2 + RETRY_S]
    compared = await scheduled(monkeypatch, 0.5, 20 * RETRY_S, times_restored=1, is_shown_again=True)
    assert [at_s for at_s, _ in compared[::2]] == [RESTORED_CHECK_S / 2, 3 * RESTORED_CHECK_S / 2]


@pytest.mark.parametrize("chance, due_s", [(0.0, 60.0), (0.5, 330.0), (1.0, 600.0)])
async def test_every_start_compares_within_ten_minutes(
    chance: float, due_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a lost disk has taken is known to no table. Nodes that start together do not compare together."""
    assert await scheduled(monkeypatch, chance, 2 * OPENING_S[1]) == [(due_s, "one"), (due_s, "two")]


@pytest.mark.parametrize("case", ["an image", "a restart"])
async def test_a_comparison_is_bound_to_one_copy_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    """After the first answer the peer is an image from before two of its batches, under the same life, and has grown
    since: the comparison starts again, and covers only the image. After a restart of the same store it continues."""
    theirs, north = Elsewhere("plant-a"), Elsewhere("plant-a", life=b"n" * 16)
    path, image = tmp_path / "first.db", tmp_path / "image.db"
    with FactStore.open(path, "plant-a") as first:
        put(first, theirs, [theirs.seal(10)])
    image.write_bytes(path.read_bytes())
    with FactStore.open(path, "plant-a") as first:
        put(first, theirs, [theirs.seal(10), theirs.seal(10)])
    restored = case == "an image"
    async with played(tmp_path) as (_, idmz):
        before = FactStore.open(path, "plant-a")
        put(idmz, theirs, theirs.sealed[:1], before.log(STREAM).end)
        async with comparing(before, idmz) as (comparer, peer):
            first_answer = await peer.ask(GetDigests(stream=STREAM), 1)
        if not restored:
            before.close()
        with FactStore.open(image if restored else path, "plant-a") as now:
            put(now, north, [north.seal(10, salt=500), north.seal(5, salt=500)])
            put(idmz, theirs, [], now.log(STREAM).end)
            async with comparing(now, idmz) as (comparer, peer):
                ask, answers = peer.ask, [first_answer]

                async def after_the_first(request: Request, timeout_s: float) -> PeerReply:
                    return answers.pop() if answers else await ask(request, timeout_s)

                peer.ask = after_the_first  # type: ignore[method-assign]
                found = await comparer.compare(STREAM, repair=True)
            held = {origin: ranges[-1].last_sequence for origin, ranges in idmz.reader.held(STREAM).items()}
            if restored:
                assert held == {theirs.origin: 10, north.origin: 15}
                assert found.missing == [(north.origin, (1, 15))]
            else:
                assert held == {theirs.origin: 30}
                assert found.missing == [(theirs.origin, (11, 30))]
            assert (found.forks, found.unavailable_facts) == ([], 0)
            assert ("comparison_begins_anew" in caplog.messages) is restored
        before.close()


async def test_a_store_that_is_busy_refuses_no_repair(tmp_path: Path) -> None:
    """A retryable error ends the comparison, which is repeated later; nothing is reported as refused for good."""
    async with played(tmp_path) as (plant, idmz):
        theirs = Elsewhere("plant-a")
        put(plant, theirs, [theirs.seal(10)])
        put(idmz, theirs, theirs.sealed, level(plant))
        busy, damaged = Future[Any](), Future[Any]()
        busy.set_exception(StoreBusy("the disk"))
        damaged.set_result([OriginRange("plant-a", theirs.origin.life, 1, 10)])
        idmz.inbound.repair = lambda *_: busy  # type: ignore[method-assign, assignment]
        idmz.inbound.damaged = lambda _: damaged  # type: ignore[method-assign, assignment]
        async with comparing(plant, idmz) as (comparer, _):
            with pytest.raises(StoreBusy):
                await comparer.compare(STREAM, repair=True)
            (counted,) = comparer.statistics()
        assert (counted.failures, counted.comparisons) == (1, 0)


async def test_an_answer_of_another_zone_is_refused(tmp_path: Path) -> None:
    """An answer that names another store is not accepted, and the comparison counts as failed."""
    async with played(tmp_path) as (plant, idmz), comparing(plant, idmz, "plant-b") as (comparer, _):
        with pytest.raises(PageRefused):
            await comparer.compare(STREAM, repair=False)
        assert comparer.statistics()[0].failures == 1


async def test_a_page_before_the_requested_position_is_refused(tmp_path: Path) -> None:
    """A page before the requested place makes no progress, and would be requested endlessly."""
    async with played(tmp_path) as (plant, idmz):
        theirs = Elsewhere("plant-a")
        put(plant, theirs, [theirs.seal(10) for _ in range(3)])
        put(idmz, theirs, theirs.sealed[:1], level(plant))

        def spoil(request: Request) -> Request:
            if isinstance(request, FetchSequences):
                return msgspec.structs.replace(request, first_sequence=1, last_sequence=10)
            return request

        async with comparing(plant, idmz) as (comparer, peer):
            peer.spoil = spoil
            with pytest.raises(PageRefused):
                await comparer.compare(STREAM, repair=True)
        assert idmz.end_offset(STREAM) == 10


class Inventor:
    """A peer that answers each request at once from given ranges, digests and sequences."""

    peer_node = "plant-a"

    def __init__(
        self, ranges: Sequence[tuple[str, int, int, str, str]], pages: Callable[[int], dict[str, Any]]
    ) -> None:
        self.ranges, self.pages, self.asked = ranges, pages, list[Request]()

    async def ask(self, request: Request, _timeout_s: float) -> PeerReply:
        self.asked.append(request)
        own: dict[str, Any] = {"store_zone": "plant-a", "life": "0" * 32, "stream": STREAM}
        if isinstance(request, FetchSequences):
            return PeerReply(SequencesAnswer(**own, origin=request.origin, **self.pages(request.first_sequence)), [])
        assert isinstance(request, GetDigests)
        if request.last_sequence is not None:
            return PeerReply(
                DigestsAnswer(**own, end_offset=1, end_life="0" * 32, ends=[(request.last_sequence, "a" * 32)]), []
            )
        zone = request.zone or min({row[0].split("/")[0] for row in self.ranges} - {request.after_zone})
        of_zone = [row for row in self.ranges if row[0].startswith(f"{zone}/")]
        left = [row for row in of_zone if request.below is None or row[0] < f"{zone}/{request.below}"]
        part = left[-1:] if request.zone is None else left[-2000:]
        before = [(zone, len(left) - len(part), "b" * 32)]
        more = request.zone is None and any(row[0].split("/")[0] > zone for row in self.ranges)
        return PeerReply(
            DigestsAnswer(**own, end_offset=1, end_life="0" * 32, ranges=part, before=before, more=more), []
        )

    async def compared(self, idmz: FactStore) -> Comparison:
        """The result of a comparison with repair with this peer, from which everything was pulled."""
        put_page(idmz, "plant-a", STREAM, [], [], Position(bytes(16), 1)).result()
        settings = AntiEntropySettings("plant-a", (STREAM,), frozenset({"plant-a"}))
        comparer = AntiEntropy(ThrottledRequester(self), idmz, settings)  # type: ignore[arg-type]
        return await comparer.compare(STREAM, repair=True)


def invented(count: int, zone: str = "plant-a") -> list[tuple[str, int, int, str, str]]:
    """Ranges of so many lives of a zone."""
    return [(f"{zone}/{number:032x}", 1, 9, "0" * 32, "a" * 32) for number in range(count)]


async def test_the_ranges_kept_of_a_peer_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that invents lives is refused before more ranges are kept than honest zones have. Lives of zones that it
    may not relay are not listed, and there is another limit of zones, or the comparison would never end."""
    async with played(tmp_path) as (_, idmz):
        monkeypatch.setattr(differences, "RANGES_KEPT_MAX", 4_000)
        peer = Inventor(invented(4_001), lambda _: {})
        with pytest.raises(PageRefused, match="more than 4000 ranges"):
            await peer.compared(idmz)
        assert len(peer.asked) == 4_000 // 2000 + 1
        other = Inventor([*invented(2), *invented(4_001, "west")], lambda _: {})  # each zone on a page of its own
        found = await other.compared(idmz)
        assert (len(found.missing), len(other.asked)) == (2, 7), "lives of the other zone are not even listed"
        monkeypatch.setattr(differences, "ZONES_MAX", 1)
        with pytest.raises(PageRefused, match="more than 1 zones"):
            await other.compared(idmz)


async def test_holes_without_end_are_refused(tmp_path: Path) -> None:
    """A peer claims a range of a million years of facts and answers with small holes: the comparison ends."""
    async with played(tmp_path) as (_, idmz):
        claimed = [(f"plant-a/{'0' * 32}", 1, CLAIM_MAX, "0" * 32, "a" * 32)]
        peer = Inventor(claimed, lambda first: {"holes": [(first, first + 1, "expired")], "more": True})
        with pytest.raises(PageRefused, match=f"more than {HOLE_PAGES_MAX} pages of holes"):
            await peer.compared(idmz)
        assert sum(isinstance(request, FetchSequences) for request in peer.asked) == HOLE_PAGES_MAX + 1


def test_the_reasons_of_a_comparison_are_bounded() -> None:
    """The last reason says that there were more."""
    found = Comparison(STREAM)
    for number in range(2 * REFUSED_MAX):
        found.refuse(f"why {number}")
    assert len(found.refused) == REFUSED_MAX
    assert found.refused[-1] == f"why {REFUSED_MAX - 1}; and others"

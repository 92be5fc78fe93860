"""The shares of zones: the decision by values and as a property, and in a real store, which one zone floods."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agent.fact_store import FactStore, ShareFull
from agent.fact_store.retention.shares import excess_bytes, file_bytes_of, limit_for, reserved_bytes, shares_of
from agent.message import Message
from agent.settings.store import StoreSettings, StreamSettings, ZoneLimit
from tests.fact_store.making import OPERATIONAL, TELEMETRY, Elsewhere, done, message
from tests.fact_store.retention.support import first_offset

ORDERS, NOTES = "facts.orders", "facts.notes"
ROOM = 4 * 1024 * 1024
HOLDS = {
    "plant": ZoneLimit(writes=frozenset({TELEMETRY})),
    "evil": ZoneLimit(writes=frozenset({ORDERS, NOTES})),
    "mill": ZoneLimit(writes=frozenset({ORDERS})),
}


def test_what_is_kept_for_others() -> None:
    """A zone within its share may use all of the room, beyond it not what others have left of theirs; a zone without a
    share is always beyond it."""
    shares, uses = {"own": 100, "a": 100, "b": 100}, {"a": 60, "b": 150, "stranger": 5}
    assert reserved_bytes(shares, uses, "a") == file_bytes_of(100)
    assert reserved_bytes(shares, uses) == file_bytes_of(140)
    assert limit_for("a", 40, shares, uses, 1000) == 1000
    assert limit_for("a", 41, shares, uses, 1000) == 1000 - file_bytes_of(100)
    assert limit_for("stranger", 0, shares, uses, 1000) == 1000 - file_bytes_of(140)
    assert excess_bytes(shares, uses) == {"b": 50, "stranger": 5}


@pytest.mark.parametrize(
    "given, shares",
    [
        ({"own": 0, "a": 0}, {"own": 250, "a": 250}),
        ({"own": 0, "a": 0, "b": 400, "c": 400}, {"own": 150, "a": 150, "b": 400, "c": 400}),
        ({"a": 300, "b": 500}, {"a": 300, "b": 500}),
        ({"own": 0, "a": 3_000}, {"own": 0, "a": 3_000}),
    ],
)
def test_zones_without_a_given_share_divide_a_quarter_of_what_is_left(
    given: dict[str, int], shares: dict[str, int]
) -> None:
    """Of a room of 2000 bytes, whatever some were given."""
    assert shares_of(given, 2_000) == shares


@pytest.mark.parametrize("seed", range(50))
def test_no_zone_within_its_share_is_refused(seed: int) -> None:
    """Zones write at random, some far more than others, and what they wrote takes up to a quarter more room than
    counted. No write that is within the share of its zone is ever refused."""
    chance = random.Random(seed)
    zones = ["own", *(f"z{n}" for n in range(chance.randint(1, 6)))]
    room = 100_000
    given = {zone: chance.choice([0, 0, chance.randint(1, room // 12)]) for zone in zones}
    shares, uses, used = shares_of(given, room), Counter[str](), 0
    greed = {zone: chance.choice([1, 1, 50]) for zone in zones}
    for _ in range(2000):
        zone = chance.choices(zones, [greed[name] for name in zones])[0]
        size = chance.randint(1, 500)
        is_within = uses[zone] + size <= shares[zone]
        is_stored = used + file_bytes_of(size) < limit_for(zone, size, shares, uses, room)
        assert is_stored or not is_within, (zone, size, uses, shares)
        if is_stored:
            uses[zone] += size
            used += chance.randint(size, file_bytes_of(size))


@contextmanager
def relay(folder: Path, **stream: object) -> Iterator[FactStore]:
    """The store of idmz, which takes appends of evil and pulls from the plant."""
    settings = StoreSettings(commit_interval_ms=0, ballast_bytes=0, bytes_max=ROOM)
    streams = [StreamSettings(ORDERS, **stream)]  # type: ignore[arg-type]
    with FactStore.open(folder / "facts.db", "idmz", settings=settings, streams=streams, holds=HOLDS) as store:
        yield store


def order(zone: str, number: int) -> Message:
    """A message of a zone, of 60 kB that do not compress."""
    found = message(f"{zone}-{number}", '"' + random.Random(number).randbytes(30_000).hex() + '"')
    return replace(found, envelope=replace(found.envelope, from_zone=zone))


def flood(store: FactStore, zone: str = "evil", first: int = 0) -> int:
    """Append for a zone until it is refused; how many were stored."""
    for number in range(first, first + 200):
        appended = store.appends.append_messages(ORDERS, [order(zone, number)])
        if (error := appended.exception(30)) is not None:
            assert isinstance(error, ShareFull), error
            return number - first
    raise AssertionError("never refused")


@pytest.mark.parametrize("on_full", ["refuse", "drop_oldest"])
def test_a_flood_of_one_zone_takes_no_room_of_another(tmp_path: Path, on_full: str) -> None:
    """evil appends until it is refused, in any stream, and the status names it. Facts of the plant and of this node are
    stored up to their shares, and nothing is released; so it is after a restart, which knows what each zone has here.
    Once the facts of evil are confirmed, they make room for its next ones, in any stream."""
    plant, position = Elsewhere("plant"), 0

    def pull(store: FactStore) -> None:
        nonlocal position
        position += 5_000
        assert plant.put(store, [plant.seal(5_000)], position).stored_facts == 5_000

    with relay(tmp_path, on_full=on_full) as store:
        pull(store)
        stored = flood(store)
        assert stored * 60_000 > ROOM // 4, "its share, and what is common"
        assert [*store.statistics().shares_used_up] == ["evil"]
        assert not store.statistics().appends_refused
        pull(store)
    with relay(tmp_path, on_full=on_full) as store:
        assert flood(store, first=1_000) == 0
        assert isinstance(store.appends.append_messages(NOTES, [order("evil", 1_999)]).exception(30), ShareFull)
        pull(store)
        done(store.appends.append_messages(OPERATIONAL, [order("idmz", 1)]))
        assert {info.name: info.first_offset for info in store.streams()} == {TELEMETRY: 1, ORDERS: 1, OPERATIONAL: 1}
        assert not store.reader.incidents()
        done(store.consumers.register("cloud.o", "cloud", ORDERS))
        done(store.consumers.confirm("cloud.o", stored))
        assert done(store.appends.append_messages(NOTES, [order("evil", 2_000)]))[0].outcome == "applied"
        assert first_offset(store) == 1
        assert not store.statistics().shares_used_up
        used = sorted(info.bytes for info in store.streams() if info.name != OPERATIONAL)
        assert sorted(store._writer.catalog.zone_uses.values()) == used, "of other zones, without what was deleted"


def test_a_flood_of_one_stream_leaves_others_their_share_of_it(tmp_path: Path) -> None:
    """Each zone that may write a stream has a share of its own limit."""
    with relay(tmp_path, bytes_max=ROOM // 4) as store:
        flood(store)
        assert done(store.appends.append_messages(ORDERS, [order("mill", 1)]))[0].outcome == "applied"

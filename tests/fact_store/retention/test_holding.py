"""What a zone may hold back: the decision as a table, and in a real store, where one zone never confirms."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.errors import StoreFull
from agent.fact_store import FactStore
from agent.fact_store.retention.holding import Backlog, alone_forfeited, bytes_forfeited
from agent.message import Sample
from agent.pages import Hole
from agent.settings.store import StoreSettings, StreamSettings, ZoneLimit
from tests.fact_store.making import AT_ONCE, EVERYTHING, LIMIT_S, TELEMETRY, done, samples, tag
from tests.fact_store.retention.support import HOUR_NS, Clock, fill, first_offset, notices
from tests.waiting import wait_until

OTHER = "facts.other"


def backlog(size: int, before: int = 0) -> Backlog:
    """A backlog of so many bytes."""
    return Backlog(0, before, size)


@pytest.mark.parametrize(
    "sizes, bytes_max, forfeited",
    [
        ({"a": 900}, 0, {}),
        ({"a": 900}, 1000, {}),
        ({"a": 1000}, 1000, {}),
        ({"a": 1001}, 1000, {"a": 11}),
        ({"a": 600, "b": 401}, 1000, {"a": 11}),
        ({"a": 400, "b": 5000}, 1000, {"b": 4410}),
        ({"a": 4000, "b": 5000}, 1000, {"b": 5000, "a": 3010}),
        ({"a": 991, "b": 5000}, 1000, {"b": 5000, "a": 1}),
        ({"a": 1051}, 1050, {"a": 11}),
        ({}, 1000, {}),
    ],
)
def test_a_zone_forfeits_what_is_beyond_its_limit(
    sizes: dict[str, int], bytes_max: int, forfeited: dict[str, int]
) -> None:
    """A hundredth more than the surplus, of the streams with the largest backlog first; nothing within the limit."""
    assert bytes_forfeited({name: backlog(size) for name, size in sizes.items()}, bytes_max) == forfeited


@pytest.mark.parametrize(
    "ends, expected",
    [
        ({"evil": 0}, None),
        ({"evil": 0, "idmz": 500}, None),
        ({"evil": 0, "idmz": 501}, ("evil", 11)),
        ({"evil": 0, "idmz": 900}, ("evil", 410)),
        ({"evil": 0, "idmz": 900, "cloud": 300}, None),
        ({"evil": 0, "idmz": 900, "cloud": 800}, ("evil", 310)),
        ({"evil": 100, "idmz": 900, "cloud": 800}, ("evil", 210)),
    ],
)
def test_a_zone_that_alone_holds_most_of_the_room_forfeits(
    ends: dict[str, int], expected: tuple[str, int] | None
) -> None:
    """Only bytes that no other zone lacks count: two zones that are both away hold nothing back from each other."""
    zones = {zone: backlog(1000 - end, end) for zone, end in ends.items()}
    assert alone_forfeited(zones, 1001) == expected


@contextmanager
def store_of(folder: Path, holds: dict[str, ZoneLimit], **stream: object) -> Iterator[FactStore]:
    """A store with two zones as readers of its telemetry: idmz, which confirms, and evil, which never does."""
    streams = [StreamSettings(TELEMETRY, **stream), StreamSettings(OTHER, keep_hours=0)]  # type: ignore[arg-type]
    with FactStore.open(folder / "facts.db", "plant", settings=AT_ONCE, streams=streams, holds=holds) as store:
        done(store.appends.define([tag(1)]))
        for zone in ("evil", "idmz"):
            done(store.consumers.register(f"{zone}.t", zone, TELEMETRY))
        yield store


def frontier(store: FactStore, name: str) -> int:
    """The frontier of a consumer."""
    known = store.consumers.get(name)
    assert known is not None
    return known.frontier


def test_a_zone_that_never_confirms_loses_and_no_other_does(tmp_path: Path) -> None:
    """What evil holds back beyond its bytes is released once idmz has confirmed it, and not before. A fact and an
    incident name evil and no other; its frontier stays, and it reads a hole."""
    with store_of(tmp_path, {"evil": ZoneLimit(bytes_max=2_000)}, keep_hours=0) as store:
        end = fill(store, 30)
        assert first_offset(store) == 1, "idmz has confirmed nothing"
        done(store.consumers.confirm("idmz.t", 100))
        wait_until(lambda: first_offset(store) > 1, "the first release")
        done(store.consumers.confirm("idmz.t", end))
        wait_until(lambda: store.streams()[0].bytes <= 2_400, "the backlog of evil to be within its limit")
        assert store.streams()[0].bytes > 1_000
        assert frontier(store, "evil.t") == 0

        def is_hole_all_that_is_released() -> bool:  # another step may release more between two looks
            first = first_offset(store)
            before, after = (store.read(TELEMETRY, at, EVERYTHING, EVERYTHING) for at in (0, first - 1))
            return before.holes == (Hole(1, first - 1, "expired"),) and not after.holes

        wait_until(is_hole_all_that_is_released, "the hole that evil reads")
        losses = [json.loads(fact.object_json) for fact in notices(store)]
        assert {loss["reason"] for loss in losses} == {"held"}
        assert {consumer["name"] for loss in losses for consumer in loss["consumers"]} == {"evil.t"}
        (incident,) = store.reader.incidents()
        assert incident.detail.endswith("a zone held back more than it may; not confirmed by: evil.t")


def test_each_zone_with_a_limit_forfeits_by_its_own(tmp_path: Path) -> None:
    """Two of three zones never confirm. Each holds back what its own limit allows, so the one with the larger limit
    decides, and a loss names those who lose."""
    holds = {"evil": ZoneLimit(bytes_max=2_000), "worse": ZoneLimit(bytes_max=4_000)}
    with store_of(tmp_path, holds, keep_hours=0) as store:
        done(store.consumers.register("worse.t", "worse", TELEMETRY))
        done(store.consumers.confirm("idmz.t", fill(store, 30)))
        wait_until(lambda: store.streams()[0].bytes <= 4_400, "the backlog of worse to be within its limit")
        assert store.streams()[0].bytes > 3_000
        named = {consumer["name"] for fact in notices(store) for consumer in json.loads(fact.object_json)["consumers"]}
        assert named == {"evil.t", "worse.t"}


def test_the_limit_is_for_all_streams_of_a_zone(tmp_path: Path) -> None:
    """Each of two streams is within the limit, which is set while the store runs, both together are not: the one with
    the larger backlog loses, the other keeps all, until it has the larger one."""
    with store_of(tmp_path, {}, keep_hours=0) as store:
        done(store.consumers.register("evil.o", "evil", OTHER))
        for _ in range(20):
            done(store.appends.append_samples(OTHER, samples(10)))
        done(store.consumers.confirm("idmz.t", fill(store, 30)))
        size = {stream.name: stream.bytes for stream in store.streams()}
        limit = ZoneLimit(bytes_max=size[TELEMETRY] + size[OTHER] // 2)
        store.set_limits(0, [StreamSettings(name, keep_hours=0) for name in size], {"evil": limit})
        wait_until(lambda: sum(stream.bytes for stream in store.streams()) <= limit.bytes_max + 400, "the limit")
        first = {stream.name: stream.first_offset for stream in store.streams()}
        assert first[TELEMETRY] > 1 == first[OTHER]
        for _ in range(30):
            done(store.appends.append_samples(OTHER, samples(10)))
        wait_until(lambda: sum(stream.bytes for stream in store.streams()) <= limit.bytes_max + 400, "the limit again")
        assert next(stream.first_offset for stream in store.streams() if stream.name == OTHER) > 1


def test_hours_end_a_hold_too(tmp_path: Path, clock: Clock) -> None:
    """After its hours evil holds nothing back any more. From half of them on, the status shows the hours that are
    left."""
    with store_of(tmp_path, {"evil": ZoneLimit(hours_max=10)}, keep_hours=0) as store:
        end = fill(store, 2)
        done(store.consumers.confirm("idmz.t", end))
        for hours, left in ((4, 168 - 4), (6, 4)):
            clock.ahead_ns = hours * HOUR_NS
            found = {consumer.name: consumer.hours_until_ttl_loss for consumer in store.space().consumers}
            assert found == {"idmz.t": None, "evil.t": pytest.approx(left, abs=0.1)}
        clock.ahead_ns = 11 * HOUR_NS
        wait_until(lambda: first_offset(store) == end + 1, "everything to go")
        assert {json.loads(fact.object_json)["reason"] for fact in notices(store)} == {"held"}


def test_bytes_are_forecast_in_hours(tmp_path: Path, clock: Clock) -> None:
    """From half of the limit on the status shows the bytes that are left of it, divided by the inflow of the last
    hour."""
    with store_of(tmp_path, {"evil": ZoneLimit(bytes_max=6_000)}, keep_hours=0) as store:
        fill(store, 10)
        clock.ahead_ns = HOUR_NS // 2
        fill(store, 10)
        (stream,) = [stream for stream in store.space().streams if stream.name == TELEMETRY]
        (evil,) = [consumer for consumer in store.space().consumers if consumer.name == "evil.t"]
        assert 3_000 <= evil.bytes_held <= 6_000
        assert stream.inflow_bytes_per_s
        expected = (6_000 - evil.bytes_held) / stream.inflow_bytes_per_s / 3600
        assert evil.hours_until_ttl_loss == pytest.approx(expected, rel=0.05)


def test_a_full_store_takes_from_the_zone_that_holds_most_of_it(tmp_path: Path) -> None:
    """No zone has a limit. Evil alone holds back all of a full stream, which idmz has confirmed: the append is stored,
    and evil loses the older half. Where idmz is behind too, the append is refused as before."""
    size = 1024 * 1024
    settings = StoreSettings(commit_interval_ms=0, ballast_bytes=0, disk_free_bytes_min=0)
    streams = [StreamSettings(TELEMETRY, bytes_max=size, keep_hours=0)]
    with FactStore.open(tmp_path / "facts.db", "plant", settings=settings, streams=streams) as store:
        done(store.appends.define([tag(1)]))
        for zone in ("idmz", "evil"):
            done(store.consumers.register(f"{zone}.t", zone, TELEMETRY))
        noise = random.Random(1)

        def rows(count: int) -> list[Sample]:
            return [sample._replace(value=noise.randbytes(60)) for sample in samples(count)]

        while (error := store.appends.append_samples(TELEMETRY, rows(1000)).exception(LIMIT_S)) is None:
            pass
        assert isinstance(error, StoreFull)
        assert first_offset(store) == 1
        done(store.consumers.confirm("idmz.t", store.end_offset(TELEMETRY)))
        done(store.appends.append_samples(TELEMETRY, rows(10)))
        assert first_offset(store) > 1
        assert frontier(store, "evil.t") == 0
        (incident,) = store.reader.incidents()
        assert incident.detail.endswith("not confirmed by: evil.t")

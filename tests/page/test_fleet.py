"""The fleet: worst first, silent zones found by the age of their health, and one sentence; whatever a zone has sent."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.fact_store import FactStore, StoreReader
from agent.health.problems import Level
from agent.health.snapshot import NodeSnapshot
from agent.page.fleet import fleet_rows, fleet_sentence, matching, zone_row
from agent.page.health_tail import HealthTail, ZoneHealth
from agent.page.zone_view import zone_view
from agent.query.scan import scanner
from tests.health.conftest import NOW_MS
from tests.page.conftest import at, healthy, store_with
from tests.page.zones import Zones

__all__ = ["healthy"]


def zone(name: str, verdict: object = 0, age_s: float = 10, **values: Any) -> ZoneHealth:
    """A zone that said this some seconds ago."""
    return ZoneHealth(name, NOW_MS - round(age_s * 1000), {"verdict": verdict, "alert": verdict == 3, **values})


LOST = [{"subject": "source press", "text": "not connected", "hint": "look at its cable", "alert": True}]


def test_worst_first_and_equal_ones_by_name() -> None:
    """Broken, full, late, good; two of a kind in the order of their names."""
    zones = [zone("d"), zone("b", 3, reasons=LOST), zone("a"), zone("c", 2), zone("e", 1), zone("f", 3)]
    rows = fleet_rows(zones, NOW_MS)
    assert "".join(row.zone for row in rows) == "bfcead"
    assert fleet_sentence(rows) == "2 of 6 zones are broken, 1 full, 1 late."
    assert (rows[0].what, rows[0].hint) == ("source press: not connected", "look at its cable")
    assert [row.zone for row in matching(rows, "PRESS broken")] == ["b"]


def test_a_silent_zone_is_late_and_then_broken() -> None:
    """Since its newest health, with what it was then; a zone whose verdict was worse keeps it."""
    for age_s, verdict, level in (
        (60, 0, Level.GOOD),
        (120, 0, Level.LATE),
        (200, 0, Level.BROKEN),
        (120, 2, Level.FULL),
    ):
        row = zone_row(zone("a", verdict, age_s, reasons=LOST), NOW_MS)
        assert row.level is level, age_s
        assert row.what.startswith("silent: no health for") is (age_s > 90)
        assert row.alert is (age_s > 180)
    assert row.since_unix_ms == NOW_MS - 120_000
    assert "it was full then (source press: not connected)" in row.what


def test_how_late_and_how_long() -> None:
    """The longest wait of any consumer or pull, and the first stream that will be full."""
    row = zone_row(
        zone(
            "a",
            **{
                "consumer/up.s/oldest_unconfirmed_age_s": 40.0,
                "consumer/up.t/oldest_unconfirmed_age_s": None,
                "peer/b/s/lag_seconds": 70.5,
                "stream/s/hours_until_full": 30.0,
                "stream/t/hours_until_full": 20.0,
            },
        ),
        NOW_MS,
    )
    assert (row.behind_s, row.hold_hours) == (70.5, 20.0)


def test_whatever_a_zone_has_sent_is_a_row() -> None:
    """Wrong types, no verdict, health from the future: a row, and a zone without a verdict is broken."""
    for values in ({}, {"verdict": "x"}, {"verdict": 99, "reasons": "y", "alert": 1, "since_unix_ms": "never"}):
        assert zone_row(ZoneHealth("a", NOW_MS + 10**9, dict(values)), NOW_MS).level is Level.BROKEN
    odd = {
        "verdict": 0, "reasons": [1, {"subject": 5}], "consumer/x/oldest_unconfirmed_age_s": "soon", "peer/b": 1,
        "peer/c/s/lag_seconds": 10**400, "stream/s/hours_until_full": float("nan"),
    }  # fmt: skip
    row = zone_row(ZoneHealth("a", NOW_MS, odd), NOW_MS)
    assert (row.level, row.behind_s, row.to_json()["level"]) == (Level.GOOD, None, "good")


def test_the_sentence_of_few() -> None:
    """No zone, one, and all good."""
    assert fleet_sentence([]) == "No zone has sent its health yet."
    assert fleet_sentence(fleet_rows([zone("a")], NOW_MS)) == "The one zone is good."
    assert fleet_sentence(fleet_rows([zone("a", 3)], NOW_MS)) == "The one zone is broken."
    assert fleet_sentence(fleet_rows([zone("a"), zone("b")], NOW_MS)) == "All 2 zones are good."
    assert fleet_sentence(fleet_rows([zone("a", 1), zone("b")], NOW_MS)) == "1 of 2 zones is late."


def test_the_first_look_goes_back_as_far_as_it_must(
    tmp_path: Path, healthy: NodeSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With health of every zone found, older health is not even listed."""
    monkeypatch.setattr(scanner, "SUMMARIES_PAGE", 2)
    asked, summaries = list[int](), StoreReader.summaries

    def counted(self: StoreReader, stream: str, first: int, last: int, limit: int, **options: Any) -> list[Any]:
        asked.append(last)
        return summaries(self, stream, first, last, limit, **options)

    monkeypatch.setattr(StoreReader, "summaries", counted)
    moments = [at(healthy, n * 60_000) for n in range(9)]
    with store_with(tmp_path, *moments) as store, closing(StoreReader(store.path)) as reader:
        tail = HealthTail(reader)
        tail.read()
        listed = len(asked)
        assert tail.zones["idmz"].at_unix_ms == moments[-1].taken_unix_ms
    assert listed == 1


def test_zones_share_their_definitions_and_paths(tmp_path: Path, healthy: NodeSnapshot) -> None:
    """What a thousand nodes have alike, the definition of a tag of health and its path, is in memory once."""
    (tmp_path / "state").mkdir()
    with FactStore.open(tmp_path / "state" / "facts.db", "idmz") as store, closing(StoreReader(store.path)) as reader:
        Zones(store).send(*(replace(healthy, zone=name) for name in "ab"))
        tail = HealthTail(reader)
        assert tail.read() == {"a", "b"}
        chains = [tail.dictionary.of(zone, end) for zone, end in reader.definition_ends()]
        assert [chain.zone for chain in chains] == ["a", "b"]
        assert all(tag is other_tag for tag, other_tag in zip(*(chain.tags for chain in chains), strict=True))
        paths = [sorted(tail.zones[name].values) for name in "ab"]
        assert all(name is other_name for name, other_name in zip(*paths, strict=True))


def test_an_arrow_shows_the_latest_of_the_worst_streams() -> None:
    """As the sentence above it: a stream that is cut before one that flows, and of two the one that is further
    behind."""
    pulls = (("a", True, 90.0), ("b", False, 0.6), ("c", False, 5.4), ("d", False, None))
    values = {
        f"peer/idmz/{stream}/{name}": value
        for stream, connected, lag_s in pulls
        for name, value in (("connected", connected), ("lag_seconds", lag_s))
    }
    health = ZoneHealth("top", NOW_MS, {"verdict": 3, **values})
    (arrow,) = zone_view(health, zone_row(health, NOW_MS)).below
    assert (arrow.zone, arrow.state, arrow.text, arrow.title) == ("idmz", "cut", "cut, 5.4 s behind", "c")

"""Latest values from peers next to those of a store: the newest is shown, and a stale one is marked."""

from pathlib import Path
from typing import Any

from agent.fact_store import FactStore
from agent.node.latest import latest_lookup
from agent.query.latest.latest_rows import LatestRecord, merge_peer_records
from tests.fact_store.making import AT_ONCE

NOW_NS = 1_700_000_100_000_000_000  # 2023-11-14T22:15:00Z
FRESH_MS = 60_000


def row(subject: str, at: str | None, value: object = 1, source: str = "press", **more: Any) -> LatestRecord:
    """A value of a tag, whose source was heard from at the same time, or a tag without one."""
    found = at is not None
    known: dict[str, Any] = {
        "zone": "plant", "subject": subject, "predicate": "value_sampled", "source": source, "value": value if found else None,
        "value_type": "int" if found else None, "unit": None, "quality": 0 if found else None, "source_time": at,
        "stream": "facts.telemetry", "offset": 5 if found else None, "as_of": at, "ahead_ms": 0 if found else None,
        "staleness_ms": 0 if found else None, "mode": "fresh" if found else "degraded", "via": None,
    }  # fmt: skip
    return {**known, **more}  # type: ignore[typeddict-item,return-value]


def from_peer(subject: str, at: str, value: object = 2, **more: Any) -> LatestRecord:
    """The same from a peer."""
    return row(subject, at, value, offset=None, via="idmz", **more)


def values(rows: list[LatestRecord]) -> dict[str, tuple[object, str | None]]:
    """The value shown for each tag, and the peer it came from."""
    return {entry["subject"]: (entry["value"], entry["via"]) for entry in rows}


def test_a_peers_latest_value_is_shown_until_the_store_has_a_newer_one() -> None:
    """A tag of which the store has no value, or an older one, shows the peer's. Of equal times the store's own fact is
    shown."""
    own = [row("tag:a", "2023-11-14T22:14:30Z"), row("tag:b", "2023-11-14T22:14:30Z"), row("tag:c", None)]
    from_peers = [
        from_peer("tag:a", "2023-11-14T22:14:30Z"), from_peer("tag:b", "2023-11-14T22:14:30.5Z"), from_peer("tag:c", "2023-01-01T00:00:00Z"),
        from_peer("tag:d", "2023-01-01T00:00:00Z"),
    ]  # fmt: skip
    merged = merge_peer_records(own, from_peers, NOW_NS, FRESH_MS)
    assert values(merged) == {"tag:a": (1, None), "tag:b": (2, "idmz"), "tag:c": (2, "idmz"), "tag:d": (2, "idmz")}
    assert [entry["subject"] for entry in merged] == ["tag:a", "tag:b", "tag:c", "tag:d"]


def test_of_times_ahead_of_a_clock_the_stores_own_fact_is_newer() -> None:
    """A peer's value whose time was ahead is shown only where there is no other; the store's own, which came later, is
    shown whatever its peers reported."""
    late, early = "2023-11-14T23:14:30Z", "2023-11-14T22:14:30Z"
    own = [row("tag:a", early), row("tag:b", early, ahead_ms=9), row("tag:c", None)]
    from_peers = [from_peer("tag:a", late, ahead_ms=9), from_peer("tag:b", late), from_peer("tag:c", late, ahead_ms=9)]
    merged = merge_peer_records(own, from_peers, NOW_NS, FRESH_MS)
    assert values(merged) == {"tag:a": (1, None), "tag:b": (1, None), "tag:c": (2, "idmz")}


def test_staleness_is_that_of_the_source_over_both() -> None:
    """The peer knows until when the source was heard from, and so does the store. The later time counts for every tag
    of that source."""
    own = [row("tag:a", "2023-11-14T22:14:30Z"), row("tag:other", "2023-11-14T22:00:00Z", source="boiler")]
    from_peers = [
        from_peer("tag:d", "2023-01-01T00:00:00Z", as_of="2023-11-14T22:10:00Z"),
        from_peer("tag:e", "2023-01-01T00:00:00Z", source="x"),
    ]
    found = {record["subject"]: record for record in merge_peer_records(own, from_peers, NOW_NS, FRESH_MS)}
    assert {name: (entry["staleness_ms"], entry["mode"]) for name, entry in found.items()} == {
        "tag:a": (30_000, "fresh"), "tag:d": (30_000, "fresh"), "tag:other": (900_000, "degraded"),
        "tag:e": (27_468_900_000, "degraded"),
    }  # fmt: skip
    assert found["tag:d"]["as_of"] == "2023-11-14T22:14:30Z"


def test_without_values_from_peers_rows_stay_the_same() -> None:
    """Rows of the store alone stay as the search made them, those without a value too."""
    own = [row("tag:a", "2023-11-14T22:14:30Z", staleness_ms=30_000), row("tag:c", None, source="silent")]
    assert merge_peer_records(own, [], NOW_NS, FRESH_MS) == own


def test_a_peer_gets_only_the_tags_it_asks_for(tmp_path: Path) -> None:
    """Also of the values that other peers sent, which may be of zones that this peer may not see."""
    with FactStore.open(tmp_path / "facts.db", "idmz", settings=AT_ONCE) as store:
        rows = [from_peer(subject, "2023-11-14T22:14:30Z") for subject in ("tag:hidden", "tag:shown")]
        look_up = latest_lookup(store.reader, lambda _: 7, lambda _: rows)
        found = look_up("facts.telemetry", lambda tag: tag[1] == "tag:shown", FRESH_MS, 0)
        assert [tag[1] for tag in found.tags] == ["tag:shown"]
        assert found.queue_depth == 7
        for fresh_ms, mode in ((FRESH_MS, "degraded"), (10**13, "fresh")):
            assert look_up("facts.telemetry", lambda _: True, fresh_ms, 0).entry_at(1).mode == mode

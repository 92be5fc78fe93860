"""Latest values as records: merged with those of peers, aged, and summed up."""

from pathlib import Path
from typing import Any

import pytest

from agent.fact_store import FactStore
from agent.node.latest import latest_lookup
from agent.query.latest import AgedRecord, LatestKey, TagsInForce, aged_record, summarize
from agent.query.latest.latest_rows import LatestRecord, merge_peer_records
from agent.status_codes import TAG_REMOVED
from tests.fact_store.making import AT_ONCE

NOW_NS = 1_700_000_100_000_000_000  # 2023-11-14T22:15:00Z
FRESH_MS = 60_000
AT = "2023-11-14T22:15:00Z"  # NOW_NS
IN_FORCE = TagsInForce("plant", {"tag:polled": 1_000, "tag:hourly": 3_600_000, "tag:change": 0})
UNCERTAIN, BAD = 0x4000_0000, 0x8005_0000


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


SILENT, NORTH, REMOVED = {"mode": "degraded"}, {"zone": "north"}, {"quality": TAG_REMOVED}


@pytest.mark.parametrize(
    "subject, age_s, in_force, more, mode",
    [
        ("tag:polled", 6, IN_FORCE, {}, "fresh"),
        ("tag:polled", 6.5, IN_FORCE, {}, "stale"),  # one second and the least grace
        ("tag:hourly", 3_660, IN_FORCE, {}, "fresh"),
        ("tag:hourly", 3_661, IN_FORCE, {}, "stale"),  # an hour and the greatest grace
        ("tag:change", 1_000_000, IN_FORCE, {}, "fresh"),  # it may be silent for ever
        ("tag:polled", 600, IN_FORCE, SILENT, "degraded"),
        ("tag:gone", 0, IN_FORCE, {}, "removed"),
        ("tag:gone", 9, IN_FORCE, SILENT, "removed"),
        ("tag:gone", 0, IN_FORCE, NORTH, "fresh"),
        ("tag:gone", 0, IN_FORCE, {"source": ""}, "fresh"),
        ("tag:gone", 0, None, {}, "fresh"),
        ("tag:gone", 0, IN_FORCE, NORTH | REMOVED, "removed"),
        ("tag:gone", 9, IN_FORCE, NORTH | REMOVED | SILENT, "removed"),
        ("tag:gone", 0, None, REMOVED, "removed"),
        ("tag:gone", 0, IN_FORCE, NORTH | {"quality": 0x808D_0000}, "fresh"),
        ("tag:change", 0, IN_FORCE, REMOVED, "fresh"),
    ],
)
def test_the_mode_of_a_tag(
    subject: str, age_s: float, in_force: TagsInForce | None, more: dict[str, Any], mode: str
) -> None:
    """A tag is stale when nothing came for longer than the interval that the tag file gives it, although its source is
    alive; one that comes on change has its age only. Where its source is silent, that is shown, because it concerns all
    tags. One that no file names is removed; not one of another zone, nor one that no source gave, nor where the files
    are not known. There the last fact of a removed tag says so. A tag that its device calls out of service is none, nor
    is one that is in the file again and has no value yet."""
    found = aged_record(row(subject, AT, **more), in_force, NOW_NS + int(age_s * 1_000_000_000))
    assert (found["age_ms"], found["mode"]) == (age_s * 1000, mode)
    assert found["expected_ms"] == (IN_FORCE.intervals_ms.get(subject) or None)


def test_a_removed_tag_is_not_bad_for_ever() -> None:
    """At a zone above, which has no tag files of the plant. One that its device calls out of service is."""
    rows = [
        aged_record(row("tag:gone", AT, zone="north", quality=quality), IN_FORCE, NOW_NS)
        for quality in (TAG_REMOVED, 0x808D_0000)
    ]
    found = summarize(rows, None, lambda _: True)
    assert (found.removed, len(found.bad), len(found.silent)) == (1, 1, 0)


def test_no_age_without_a_time_to_trust() -> None:
    """A tag without a value has none, and neither has one whose clock was ahead; a time just ahead is no age below
    0."""
    assert aged_record(row("tag:polled", None), IN_FORCE, NOW_NS)["age_ms"] is None
    assert aged_record(row("tag:polled", AT, ahead_ms=9), IN_FORCE, NOW_NS)["age_ms"] is None
    assert aged_record(row("tag:polled", AT), IN_FORCE, NOW_NS - 5_000_000_000)["age_ms"] == 0


def shown(subject: str, at: str | None = AT, **more: Any) -> AgedRecord:
    """A row as `bsfg latest` has it."""
    return aged_record(row(subject, at, **more), None, NOW_NS)


def every(_: LatestKey) -> bool:
    """Choose all tags."""
    return True


def test_each_tag_counts_once() -> None:
    """By what matters most: a removed tag is none of the others, a silent one has no quality that still holds, and one
    that only the tag file knows is silent."""
    rows = [
        shown("tag:bad", quality=BAD),
        shown("tag:degraded", quality=BAD, mode="degraded"),
        shown("tag:good"),
        shown("tag:gone", quality=BAD, mode="removed"),
        shown("tag:never", None),
        shown("tag:stale", mode="stale"),
        shown("tag:uncertain", quality=UNCERTAIN),
    ]
    in_force = TagsInForce("plant", {f"tag:{name}": 0 for name in ("bad", "good", "new")})
    found = summarize(rows, in_force, every)
    assert (found.good, found.uncertain, found.removed, found.tags) == (1, 1, 1, 7)
    assert [entry["subject"] for entry in found.bad] == ["tag:bad"]
    assert found.silent == ["tag:degraded", "tag:never", "tag:stale", "tag:new"]
    assert [entry["subject"] for entry in found.first] == ["tag:good", "tag:uncertain"]


def test_a_tag_that_was_not_asked_for_is_not_missed() -> None:
    """A pattern narrows the tags of the files as it narrows the rows; a tag of another zone is not that of the file."""
    in_force = TagsInForce("plant", {"tag:a": 0, "tag:b": 0})
    assert summarize([], in_force, lambda tag: tag == LatestKey("plant", "tag:b", "")).silent == ["tag:b"]
    assert summarize([shown("tag:a", zone="north")], in_force, every).silent == ["tag:a", "tag:b"]


def test_the_first_values_are_of_every_source() -> None:
    """A source with thousands of tags leaves room for those of a small one, and for that of its name in another zone;
    the order is that of the rows."""
    rows = [shown(f"tag:a/{number:04}") for number in range(1000)] + [shown("tag:b/1", source="boiler")]
    rows.append(shown("tag:c/1", zone="north"))
    first = [entry["subject"] for entry in summarize(rows, None, every).first]
    assert first == [*(f"tag:a/{number:04}" for number in range(8)), "tag:b/1", "tag:c/1"]

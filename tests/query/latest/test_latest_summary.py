"""Counts of good, bad and silent tags, and which tags they are."""

from typing import Any

from agent.query.latest import AgedRecord, Tag, TagsInForce, aged_record, summarize
from tests.query.latest.test_rows import NOW_NS, row

AT = "2023-11-14T22:15:00Z"  # NOW_NS
UNCERTAIN, BAD = 0x4000_0000, 0x8005_0000


def aged(subject: str, at: str | None = AT, **more: Any) -> AgedRecord:
    """A row as `bsfg latest` has it."""
    return aged_record(row(subject, at, **more), None, NOW_NS)


def every(_: Tag) -> bool:
    """Choose all tags."""
    return True


def test_each_tag_counts_once() -> None:
    """By what matters most: a removed tag is none of the others, a silent one has no quality that still holds, and one
    that only the tag file knows is silent."""
    rows = [
        aged("tag:bad", quality=BAD),
        aged("tag:degraded", quality=BAD, mode="degraded"),
        aged("tag:good"),
        aged("tag:gone", quality=BAD, mode="removed"),
        aged("tag:never", None),
        aged("tag:stale", mode="stale"),
        aged("tag:uncertain", quality=UNCERTAIN),
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
    assert summarize([], in_force, lambda tag: tag == Tag("plant", "tag:b", "")).silent == ["tag:b"]
    assert summarize([aged("tag:a", zone="north")], in_force, every).silent == ["tag:a", "tag:b"]


def test_the_first_values_are_of_every_source() -> None:
    """A source with thousands of tags leaves room for those of a small one, and for that of its name in another zone;
    the order is that of the rows."""
    rows = [aged(f"tag:a/{number:04}") for number in range(1000)] + [aged("tag:b/1", source="boiler")]
    rows.append(aged("tag:c/1", zone="north"))
    first = [entry["subject"] for entry in summarize(rows, None, every).first]
    assert first == [*(f"tag:a/{number:04}" for number in range(8)), "tag:b/1", "tag:c/1"]

"""The age of a tag's own value, and when it is more than it should be."""

from typing import Any

import pytest

from agent.query.latest import TagsInForce, aged_record, summarize
from agent.status_codes import TAG_REMOVED
from tests.query.latest.test_rows import NOW_NS, row

AT = "2023-11-14T22:15:00Z"  # NOW_NS
IN_FORCE = TagsInForce("plant", {"tag:polled": 1_000, "tag:hourly": 3_600_000, "tag:change": 0})


def aged(subject: str, age_s: float, in_force: TagsInForce | None = IN_FORCE, **more: Any) -> tuple[str, int | None]:
    """Mode and expected interval of a tag whose value is so old, while its source is alive."""
    found = aged_record(row(subject, AT, **more), in_force, NOW_NS + int(age_s * 1_000_000_000))
    assert found["age_ms"] == age_s * 1000
    return found["mode"], found["expected_ms"]


@pytest.mark.parametrize(
    "subject, age_s, mode",
    [
        ("tag:polled", 6, "fresh"),
        ("tag:polled", 6.5, "stale"),  # one second and the least grace
        ("tag:hourly", 3_660, "fresh"),
        ("tag:hourly", 3_661, "stale"),  # an hour and the greatest grace
        ("tag:change", 1_000_000, "fresh"),  # it may be silent for ever
    ],
)
def test_a_tag_is_stale_when_nothing_came_for_longer_than_it_should(subject: str, age_s: float, mode: str) -> None:
    """By the interval that the tag file gives it, although its source is alive; one that comes on change has its age
    only."""
    assert aged(subject, age_s) == (mode, IN_FORCE.intervals_ms[subject] or None)


def test_a_tag_that_no_file_names_is_removed() -> None:
    """Also while its source is silent; not one of another zone, nor one that no source gave, nor where the files are
    not known."""
    assert aged("tag:gone", 0) == ("removed", None)
    assert aged("tag:gone", 9, mode="degraded") == ("removed", None)
    assert aged("tag:gone", 0, zone="north") == ("fresh", None)
    assert aged("tag:gone", 0, source="") == ("fresh", None)
    assert aged("tag:gone", 0, None) == ("fresh", None)


def test_the_last_fact_of_a_removed_tag_says_so_in_every_zone() -> None:
    """At a zone above, which has no tag files of the plant, a removed tag is not bad for ever. A tag that its device
    calls out of service is bad, and so is one that is in the file again and has no value yet."""
    assert aged("tag:gone", 0, zone="north", quality=TAG_REMOVED) == ("removed", None)
    assert aged("tag:gone", 9, zone="north", quality=TAG_REMOVED, mode="degraded") == ("removed", None)
    assert aged("tag:gone", 0, None, quality=TAG_REMOVED) == ("removed", None)
    assert aged("tag:gone", 0, zone="north", quality=0x808D_0000) == ("fresh", None)
    assert aged("tag:change", 0, quality=TAG_REMOVED)[0] == "fresh"
    rows = [
        aged_record(row("tag:gone", AT, zone="north", quality=quality), IN_FORCE, NOW_NS)
        for quality in (TAG_REMOVED, 0x808D_0000)
    ]
    found = summarize(rows, None, lambda _: True)
    assert (found.removed, len(found.bad), len(found.silent)) == (1, 1, 0)


def test_a_silent_source_stays_degraded() -> None:
    """The reason that concerns all its tags is shown."""
    assert aged("tag:polled", 600, mode="degraded")[0] == "degraded"


def test_no_age_without_a_time_to_trust() -> None:
    """A tag without a value has none, and neither has one whose clock was ahead; a time just ahead is no age below
    0."""
    assert aged_record(row("tag:polled", None), IN_FORCE, NOW_NS)["age_ms"] is None
    assert aged_record(row("tag:polled", AT, ahead_ms=9), IN_FORCE, NOW_NS)["age_ms"] is None
    assert aged_record(row("tag:polled", AT), IN_FORCE, NOW_NS - 5_000_000_000)["age_ms"] == 0

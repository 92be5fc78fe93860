"""The decisions of retention as tables and properties: what may be released, ages, limits."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.fact_store.core.frontier import Confirmed, skip_released
from agent.fact_store.core.store_age import is_mark_due, last_offset_before
from agent.fact_store.retention.fullness import PIECE_BYTES_MAX, Limit, Space, fullest, limits, piece_bytes
from agent.fact_store.retention.retention import Release, ReleaseReason, StreamOffsets, decide_release


def view(**known: object) -> StreamOffsets:
    """Offsets 11 to 100 are held, without consumers, and all are new."""
    return StreamOffsets(**{"released": 10, "end": 100, "confirmed": None, "kept": 10, **known})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "found, expected",
    [
        (view(), None),
        # Confirmed by all consumers, and the hours to keep are over; the smaller of the two.
        (view(confirmed=50), None),
        (view(confirmed=50, kept=100), Release(50, ReleaseReason.CONFIRMED)),
        (view(confirmed=50, kept=30), Release(30, ReleaseReason.CONFIRMED)),
        (view(confirmed=10, kept=100), None),
        # Without a consumer nothing is confirmed, however old.
        (view(kept=100), None),
        # Time to live: in pieces, and a loss from the first offset that a consumer had not confirmed.
        (view(confirmed=10, kept=60, expired=60, overdue=10), None),
        (view(confirmed=10, kept=60, expired=60, overdue=20), Release(60, ReleaseReason.TTL, 11)),
        (view(confirmed=40, kept=60, expired=60, overdue=20), Release(60, ReleaseReason.TTL, 41)),
        (view(confirmed=80, kept=60, expired=60, overdue=20), Release(60, ReleaseReason.TTL)),
        (view(confirmed=80, kept=70, expired=60, overdue=20), Release(70, ReleaseReason.TTL)),
        (view(kept=60, expired=60, overdue=20), Release(60, ReleaseReason.TTL, 11)),
        # Full: what is confirmed gives way first, kept hours or not; then, if told so, the oldest.
        (view(confirmed=50, excess=30), Release(30, ReleaseReason.CONFIRMED)),
        (view(confirmed=50, excess=70), Release(50, ReleaseReason.CONFIRMED)),
        (view(confirmed=50, excess=70, may_drop=True), Release(70, ReleaseReason.FULL, 51)),
        (view(confirmed=10, excess=70), None),
        (view(confirmed=None, excess=70, may_drop=True), Release(70, ReleaseReason.FULL, 11)),
        (view(confirmed=50, excess=50, may_drop=True), Release(50, ReleaseReason.CONFIRMED)),
        # Held back too long: what the slow consumers forfeit, once it need not be kept or the stream is full.
        (view(confirmed=20, kept=100, forfeited=60), Release(60, ReleaseReason.HELD, 21)),
        (view(confirmed=20, kept=50, forfeited=60), Release(50, ReleaseReason.HELD, 21)),
        (view(confirmed=20, excess=40, forfeited=60), Release(40, ReleaseReason.HELD, 21)),
        (view(confirmed=20, kept=100, forfeited=20), Release(20, ReleaseReason.CONFIRMED)),
        (view(confirmed=20, forfeited=60), None),
        (view(released=0, confirmed=20, kept=0, forfeited=60), None),
        (view(released=0, confirmed=0, kept=0, forfeited=60), None),
    ],
)
def test_which_batches_are_released(found: StreamOffsets, expected: Release | None) -> None:
    """Each rule at its edges: what is released, why, and which part of it is a loss."""
    assert decide_release(found) == expected


offsets = st.integers(0, 200)


@given(
    released=offsets,
    more=offsets,
    confirmed=st.none() | offsets,
    kept=offsets,
    expired=st.none() | offsets,
    excess=st.none() | offsets,
    may_drop=st.booleans(),
)
def test_invariant_8_unconfirmed_facts_are_never_released_silently(
    released: int, more: int, confirmed: int | None, kept: int, expired: int | None, excess: int | None, may_drop: bool
) -> None:
    """A release without a loss is at or below the frontier of all consumers. Any other names its loss from the first
    lost offset, and only the time to live or drop_oldest causes one."""
    end = released + more
    inside = [None if at is None else released + at % (more + 1) for at in (confirmed, kept, expired, excess)]
    found = StreamOffsets(released, end, inside[0], inside[1] or 0, inside[2], inside[2], inside[3], may_drop)
    decision = decide_release(found)
    if decision is None:
        return
    assert released <= decision.until <= end
    frontier = released if inside[0] is None else max(inside[0], released)
    if decision.until > frontier:
        assert decision.lost_from == frontier + 1
        assert decision.reason is ReleaseReason.TTL or (decision.reason is ReleaseReason.FULL and may_drop)
    else:
        assert decision.lost_from is None


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 300_000)), max_size=20),
    st.integers(0, 1_000_000),
    st.integers(0, 20),
)
@example([(1, 0), (1, 60_000), (1, 60_000)], 100_000, 1)
def test_no_fact_is_reported_older_than_it_is(steps: list[tuple[int, int]], asked_ms: int, marks_read: int) -> None:
    """Every offset reported as older than an age was recorded before it, also if only the first marks were read: then
    nothing is known of the facts after the last of these, and a store with a week of marks keeps them."""
    marks, recorded, last_ms, now_ms, end = [], [0], None, 0, 0
    for count, pause_ms in steps:
        now_ms += pause_ms
        if is_mark_due(last_ms, now_ms, 0, 0):
            marks.append((end + 1, now_ms))
            last_ms = now_ms
        end += count
        recorded += [now_ms] * count
    for some in (marks, marks[:marks_read]):
        found = last_offset_before(some, asked_ms, last_ms, end, 0)
        assert 0 <= found <= end
        assert all(at_ms <= asked_ms for at_ms in recorded[1 : found + 1])


def test_only_limits_that_are_set_count_and_the_nearest_decides() -> None:
    """The limits of the stream, the store and the disk: each alone, and the nearest of all."""
    assert limits(10, 0, Space(100, None), 0, 50) == []
    found = limits(80, 100, Space(500, 1000), 1000, 600)
    assert [(use.used, use.limit) for use in found] == [(80, 100), (500, 1000), (500, 895)]
    nearest = fullest(found)
    assert nearest == found[0]
    assert [use.remedy.split()[0] for use in found] == ["raise", "raise", "lower"]
    assert nearest.is_near
    assert not nearest.is_full
    assert Limit("the disk", "x", 900, 900).is_full
    (below_the_floor,) = limits(0, 0, Space(500, 10), 0, 600)
    assert below_the_floor.is_full
    (with_a_piece,) = limits(0, 0, Space(490, 10, 4), 0, 600)
    assert with_a_piece.is_full, "the next commit's pages are kept back"
    (with_free_pages,) = limits(0, 0, Space(490, 10, 10), 0, 600)
    assert not with_free_pages.is_full, "what was dropped makes room, though the disk is no emptier"
    assert piece_bytes(10_000) == 100
    assert piece_bytes(2**40) == PIECE_BYTES_MAX


@given(st.integers(0, 30), st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), max_size=6), st.integers(0, 80))
def test_a_frontier_passes_released_facts(frontier: int, steps: list[tuple[int, int]], released: int) -> None:
    """After a release the frontier is at least there, ranges confirmed beyond it stay, and it never moves back."""
    ranges, at = [], frontier
    for gap, length in steps:
        ranges.append((at + gap + 2, at + gap + 1 + length))
        at = ranges[-1][1]
    before = Confirmed(frontier, tuple(ranges))
    after = skip_released(before, released)
    offsets_before = {*range(1, frontier + 1), *(n for first, last in ranges for n in range(first, last + 1))}
    expected = offsets_before | set(range(1, released + 1))
    found = {*range(1, after.frontier + 1), *(n for first, last in after.ranges for n in range(first, last + 1))}
    assert found == expected
    assert after.frontier >= max(frontier, released)
    assert not after.ranges or after.ranges[0][0] > after.frontier + 1

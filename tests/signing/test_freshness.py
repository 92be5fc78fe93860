"""How far zones have signed, and what of it does not arrive."""

from hypothesis import given
from hypothesis import strategies as st

from agent.batch import NO_DIGEST, Origin
from agent.pages import HeldRange
from agent.signing.freshness import ORIGINS_MAX, STALE_AFTER_MS, WITHHELD_AFTER_MS, Freshness, SignedEnd

PLANT, NEXT = Origin("plant", bytes(16)), Origin("plant", b"1" * 16)
STREAM = "facts.telemetry"


def end(last_sequence: int, signed_at_ms: int, origin: Origin = PLANT, digest: bytes = b"d" * 16) -> SignedEnd:
    """A verified end."""
    return SignedEnd(STREAM, origin, last_sequence, digest, b"head", signed_at_ms)


def held(last_sequence: int, origin: Origin = PLANT) -> dict[str, dict[Origin, tuple[HeldRange, ...]]]:
    """What a store holds of an origin."""
    return {STREAM: {origin: (HeldRange(1, last_sequence, NO_DIGEST, b"d" * 16),)}}


def test_an_end_that_stands_still_grows_stale() -> None:
    """A zone counts as stale fifteen minutes after its newest signature, whichever epoch that was of."""
    known = Freshness()
    known.note(end(5, 1000))
    (view,) = known.views(held(5), 1000 + STALE_AFTER_MS)
    assert (view.is_stale, view.behind) == (False, 0)
    assert known.views(held(5), 1001 + STALE_AFTER_MS)[0].is_stale
    known.note(end(3, 500_000, NEXT))
    (view,) = known.views(held(5), 1001 + STALE_AFTER_MS)
    assert (view.is_stale, view.signed_at_ms, view.behind) == (False, 500_000, 3)
    (view,) = known.views(held(4), 1001 + STALE_AFTER_MS)
    assert view.behind == 1 + 3, "those of all epochs"


def test_signed_facts_that_do_not_arrive_are_withheld() -> None:
    """Behind is no fault while facts arrive; ten minutes without any is, until they arrive."""
    known, now = Freshness(), 0
    known.note(end(1000, 0))
    for number in range(50):  # a long backlog that gets on
        now += WITHHELD_AFTER_MS
        assert not known.views(held(1 + number), now)[0].is_withheld
    now += WITHHELD_AFTER_MS + 1
    (view,) = known.views(held(50), now)
    assert (view.is_withheld, view.behind) == (True, 950)
    assert not known.views(held(51), now)[0].is_withheld
    assert not known.views(held(1000), now + 10 * WITHHELD_AFTER_MS)[0].is_withheld
    known.note(end(2000, now))
    assert not known.views(held(1000), now + 10 * WITHHELD_AFTER_MS + 1)[0].is_withheld, "behind since now only"


def test_two_ends_of_one_sequence_contradict() -> None:
    """The first one known is returned, and stays; the same end again contradicts nothing."""
    known = Freshness()
    first = end(5, 1)
    assert known.note(first) is None
    assert known.note(end(5, 2)) is None
    assert known.note(end(5, 3, digest=b"e" * 16)) == end(5, 2)
    assert known.newest(STREAM) == [end(5, 2)]
    assert known.newest("other") == []


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20)), min_size=1))
def test_the_newest_end_is_kept_in_any_order(noted: list[tuple[int, int]]) -> None:
    """By sequence, then by time."""
    known = Freshness()
    for last_sequence, signed_at_ms in noted:
        known.note(end(last_sequence, signed_at_ms))
    assert [(one.last_sequence, one.signed_at_ms) for one in known.newest(STREAM)] == [max(noted)]


def test_the_number_of_origins_is_bounded() -> None:
    """A peer that invents epochs costs the oldest ones, not memory."""
    known = Freshness()
    for number in range(ORIGINS_MAX + 10):
        known.note(end(1, number, Origin("plant", number.to_bytes(16, "big"))))
        if number % 100 == 0:
            known.views({}, number)
    found = known.newest(STREAM)
    assert len(found) == ORIGINS_MAX
    assert found[-1].signed_at_ms == 10
    assert known._behind.keys() <= known._ends.keys()


def test_a_zone_that_signs_without_end_displaces_no_other() -> None:
    """A zone may sign ends of any number of epochs, with times in the future. The end of another zone stays known, and
    is among the first that are passed on."""
    known = Freshness()
    known.note(end(5, 1000))
    for number in range(2 * ORIGINS_MAX):
        known.note(end(1, 600_000 + number, Origin("evil", number.to_bytes(16))))
    newest = known.newest(STREAM)
    assert len(newest) == ORIGINS_MAX
    assert {one.origin.zone for one in newest[:2]} == {"plant", "evil"}
    assert newest[0].signed_at_ms == 600_000 + 2 * ORIGINS_MAX - 1
    (plant,) = (one for one in known.views(held(5), 2000) if one.zone == "plant")
    assert (plant.behind, plant.is_stale) == (0, False)

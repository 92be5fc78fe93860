"""The place of a pull in its peer's log, by values: which page follows, what is asked for, what may be confirmed."""

import pytest

from agent.positions import NOTHING_READ, Position
from agent.replication.pulling.receiving.log_place import LogPlace
from agent.replication.pulling.receiving.peer_contact import OpenFetch
from agent.replication.pulling.receiving.pull_events import ArrivedPage

ONE, TWO = bytes(15) + b"1", bytes(15) + b"2"
READ = (Position(TWO, 7), Position(ONE, 100))
NEWEST, WITH_TRAIL = OpenFetch(1, 0, 0, 0, 0), OpenFetch(1, 0, 0, 0, 0, names_trail=True)


def page(after: Position, last: int = 0, *, life: bytes = ONE, more: bool = False) -> ArrivedPage:
    """A page up to an offset, or one without offsets."""
    lives = (Position(life, last),) if last else ()
    return ArrivedPage(0, after.offset + 1 if last else 0, last, more, after=after, lives=lives)


@pytest.mark.parametrize(
    "after, fetch, fits",
    [
        (Position(ONE, 100), None, True),
        (Position(ONE, 90), NEWEST, False),
        (Position(ONE, 90), WITH_TRAIL, True),
        (Position(TWO, 7), WITH_TRAIL, True),
        (NOTHING_READ, WITH_TRAIL, True),
        (Position(ONE, 101), WITH_TRAIL, False),
        (Position(TWO, 8), WITH_TRAIL, False),
        (Position(bytes(16), 5), WITH_TRAIL, False),
    ],
)
def test_a_page_follows_what_was_read(after: Position, fetch: OpenFetch | None, *, fits: bool) -> None:
    """At the accepted end whatever it answers; elsewhere in the trail only if the newest request named that; never
    after what was not read, also not in a life that a peer invents."""
    assert LogPlace(READ, READ).fits(page(after, 120), fetch) is fits
    assert LogPlace().fits(page(after, 120), fetch) is (after == NOTHING_READ), "a log begins late only with a hole"


def test_a_pull_without_a_place_takes_it_from_the_newest_answer() -> None:
    """The request names neither position nor trail, and what is before the page counts as stored."""
    place = LogPlace(is_placed=False)
    first = page(Position(ONE, 40), 50)
    assert (place.after, place.trail) == (None, None)
    assert [place.fits(first, fetch) for fetch in (None, NEWEST)] == [False, True]
    assert place.accept(first).stored == place.accept_end(page(Position(ONE, 40))).stored == (Position(ONE, 40),)
    assert place.accept_end(page(NOTHING_READ)).accepted == ()


def test_a_log_that_ends_before_the_place_is_confirmed_to_its_end() -> None:
    """The peer was put back: the trail is named until it has more. What was never stored here is not confirmed."""
    place = LogPlace(READ, READ, names_trail=False)
    put_back = place.accept_end(page(Position(ONE, 80)))
    assert (put_back.trail, put_back.confirm) == (READ, Position(ONE, 80))
    grown = page(Position(ONE, 80), 90)
    assert put_back.accept(grown).store(grown).confirm == Position(ONE, 90)
    assert place.accept_end(page(Position(ONE, 120))).confirm == Position(ONE, 100)
    assert place.parts(page(Position(ONE, 80), 90))
    assert not place.parts(page(Position(ONE, 100), 110))

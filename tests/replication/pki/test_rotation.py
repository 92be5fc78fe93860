"""Which identity a node uses while its files are replaced: every way a look and a broker can answer, as a table of steps."""

from collections.abc import Callable

import pytest

from agent.replication.pki.rotation import Rotation, Seen

OLD, NEW, NEWER = b"old", b"new", b"newer"


@pytest.fixture
def rotation() -> Rotation:
    """One identity in force."""
    fresh = Rotation()
    assert fresh.looked(OLD, "") is Seen.OFFERED
    assert fresh.accepted(OLD)
    return fresh


def test_a_good_pair_is_offered_once_and_then_in_force(rotation: Rotation) -> None:
    """From found to in force; looks in between and afterwards find nothing new."""
    assert rotation.looked(NEW, "") is Seen.OFFERED
    assert rotation.looked(NEW, "") is Seen.NOTHING_NEW
    assert (rotation.to_try(), rotation.in_force) == (NEW, OLD)
    assert rotation.accepted(NEW)
    assert rotation.looked(NEW, "") is Seen.NOTHING_NEW
    assert (rotation.to_try(), rotation.in_force, rotation.trouble) == (NEW, NEW, "")


def test_a_bad_pair_changes_nothing_and_is_told_once(rotation: Rotation) -> None:
    """Even where the words change with the clock; the next pair is told anew, and the old one back ends the trouble."""
    assert rotation.looked(NEW, "begins tomorrow, now 10:00") is Seen.REFUSED
    assert rotation.looked(NEW, "begins tomorrow, now 10:03") is Seen.NOTHING_NEW
    assert rotation.trouble == "begins tomorrow, now 10:03"
    assert rotation.to_try() == OLD
    assert rotation.looked(NEWER, "key does not fit") is Seen.REFUSED
    assert rotation.looked(OLD, "") is Seen.NOTHING_NEW
    assert rotation.trouble == ""


def test_a_pair_that_becomes_good_is_offered(rotation: Rotation) -> None:
    """What was not yet valid begins; what was half copied is whole."""
    rotation.looked(NEW, "begins tomorrow")
    assert rotation.looked(NEW, "") is Seen.OFFERED
    assert rotation.trouble == ""


def test_what_the_broker_turns_away_is_shown_again_by_the_clock_only(rotation: Rotation) -> None:
    """The old one stays in force and is what reconnecting uses; a later look by the clock tries once more, told once."""
    rotation.looked(NEW, "")
    assert rotation.refused(NEW, "unknown authority") is Seen.REFUSED
    assert (rotation.to_try(), rotation.trouble) == (OLD, "unknown authority")
    assert rotation.looked(NEW, "") is Seen.NOTHING_NEW
    assert rotation.looked(NEW, "", again=True) is Seen.OFFERED
    assert rotation.trouble == "unknown authority"
    assert rotation.refused(NEW, "unknown authority") is Seen.NOTHING_NEW
    rotation.looked(NEW, "", again=True)
    assert rotation.to_try() == OLD  # reconnecting does not depend on how often the clock offers the other
    assert not rotation.accepted(OLD)
    assert rotation.to_try() == NEW
    assert rotation.accepted(NEW)
    assert (rotation.in_force, rotation.trouble) == (NEW, "")


def test_an_offer_that_could_not_be_shown_is_offered_again(rotation: Rotation) -> None:
    """The broker was away at that moment: the clock's look offers it anew, a hint's does not."""
    rotation.looked(NEW, "")
    assert rotation.looked(NEW, "") is Seen.NOTHING_NEW
    assert rotation.looked(NEW, "", again=True) is Seen.OFFERED


@pytest.mark.parametrize(
    "act",
    [lambda each: each.refused(OLD, "no"), lambda each: each.looked(NEW, "bad")],
    ids=["refused", "files spoiled"],
)
def test_without_one_in_force_the_first_found_is_tried_on(act: Callable[[Rotation], object]) -> None:
    """At start there is nothing better: a refusal may be the broker's fault, and files spoiled later are not used."""
    rotation = Rotation()
    assert rotation.to_try() is None
    rotation.looked(OLD, "")
    act(rotation)
    assert rotation.to_try() == OLD


def test_what_is_in_force_is_refused_by_the_broker(rotation: Rotation) -> None:
    """Revoked while in use: there is nothing else to try, and no new identity's trouble to tell."""
    assert rotation.refused(OLD, "revoked") is Seen.NOTHING_NEW
    assert (rotation.to_try(), rotation.trouble) == (OLD, "")

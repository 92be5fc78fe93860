"""Which identity a node uses while its files are replaced: all file changes and broker answers, step by step."""

from collections.abc import Callable

import pytest

from agent.replication.pki.rotation import FileChange, Rotation

OLD, NEW, NEWER = b"old", b"new", b"newer"


@pytest.fixture
def rotation() -> Rotation:
    """One identity in force."""
    fresh = Rotation()
    assert fresh.files_checked(OLD, "") is FileChange.OFFERED
    assert fresh.accepted(OLD)
    return fresh


def test_a_bad_pair_is_reported_once_and_not_used(rotation: Rotation) -> None:
    """Reported once, also if the reason contains the time; the next pair is reported again, and restored files end the
    problem: the same pair is then reported once more."""
    assert rotation.files_checked(NEW, "begins tomorrow, now 10:00") is FileChange.REFUSED
    assert rotation.files_checked(NEW, "begins tomorrow, now 10:03") is FileChange.NONE
    assert rotation.problem == "begins tomorrow, now 10:03"
    assert rotation.candidate() == OLD
    assert rotation.files_checked(NEWER, "key does not match") is FileChange.REFUSED
    assert rotation.files_checked(OLD, "") is FileChange.NONE
    assert rotation.problem == ""
    assert rotation.files_checked(NEWER, "key does not match") is FileChange.REFUSED


def test_a_pair_that_becomes_good_is_offered(rotation: Rotation) -> None:
    """A certificate becomes valid, or half-copied files become complete."""
    rotation.files_checked(NEW, "begins tomorrow")
    assert rotation.files_checked(NEW, "") is FileChange.OFFERED
    assert rotation.problem == ""


def test_an_identity_the_broker_refuses_is_retried_periodically(rotation: Rotation) -> None:
    """The old identity stays in force and is used for reconnecting; a periodic check tries the new one again, reported
    once."""
    rotation.files_checked(NEW, "")
    assert rotation.refused(NEW, "unknown authority") is FileChange.REFUSED
    assert (rotation.candidate(), rotation.problem) == (OLD, "unknown authority")
    assert rotation.files_checked(NEW, "") is FileChange.NONE
    assert rotation.files_checked(NEW, "", is_retry=True) is FileChange.OFFERED
    assert rotation.problem == "unknown authority"
    assert rotation.refused(NEW, "unknown authority") is FileChange.NONE
    rotation.files_checked(NEW, "", is_retry=True)
    assert rotation.candidate() == OLD  # reconnecting does not depend on how often periodic checks offer the other one
    assert not rotation.accepted(OLD)
    assert rotation.candidate() == NEW
    assert rotation.accepted(NEW)
    assert (rotation.in_force, rotation.problem) == (NEW, "")


def test_an_offer_that_could_not_be_shown_is_offered_again(rotation: Rotation) -> None:
    """If the broker was unreachable, a periodic check offers the identity again; a file event does not."""
    rotation.files_checked(NEW, "")
    assert rotation.files_checked(NEW, "") is FileChange.NONE
    assert rotation.files_checked(NEW, "", is_retry=True) is FileChange.OFFERED


@pytest.mark.parametrize(
    "act",
    [lambda core: core.refused(OLD, "no"), lambda core: core.files_checked(NEW, "bad")],
    ids=["refused", "files spoiled"],
)
def test_at_start_a_refused_identity_is_tried_again(act: Callable[[Rotation], object]) -> None:
    """At start there is no alternative: the refused identity is tried again, and files that become invalid later are
    not used."""
    rotation = Rotation()
    assert rotation.candidate() is None
    rotation.files_checked(OLD, "")
    act(rotation)
    assert rotation.candidate() == OLD


def test_the_identity_in_force_is_refused_by_the_broker(rotation: Rotation) -> None:
    """It was revoked while in use: there is no alternative, and no problem of a new identity to report."""
    assert rotation.refused(OLD, "revoked") is FileChange.NONE
    assert (rotation.candidate(), rotation.problem) == (OLD, "")


def test_both_identities_are_tried_when_the_broker_refuses_each(rotation: Rotation) -> None:
    """The old one was revoked after the broker had refused the new one: the new one is tried at once, because the
    broker may know its authority by now, and then both in turn. The refusal is reported once."""
    rotation.files_checked(NEW, "")
    rotation.refused(NEW, "unknown authority")
    for _ in range(3):
        assert rotation.candidate() == OLD
        assert rotation.refused(OLD, "revoked") is FileChange.NONE
        assert (rotation.candidate(), rotation.problem) == (NEW, "unknown authority")
        assert rotation.refused(NEW, "unknown authority") is FileChange.NONE
    rotation.refused(OLD, "revoked")
    assert rotation.accepted(NEW)
    assert (rotation.candidate(), rotation.problem) == (NEW, "")

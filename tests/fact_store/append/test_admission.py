"""What becomes of an application's message: the core as a table, and the same through the store, durably and across
restarts.

Seen to catch, with the product broken on purpose: leases not written, leases that the same commit does not see.
"""

import threading
from pathlib import Path

import pytest

from agent.append_contract import NO_PRECONDITION, AppendOutcome, Precondition
from agent.fact_store import FactStore
from agent.fact_store.append import admission
from agent.fact_store.append.admission import check_precondition, decide, next_lease_epoch
from agent.fact_store.core.errors import AcksRefused, FactsRefused
from agent.lease import LEASE_EPOCH_MAX
from agent.message import Envelope, Fact, Message, MessageError
from agent.settings.store import StreamSettings
from tests.fact_store.making import LIMIT_S, OPERATIONAL, done, failed, ids_in, message, plant

STORED, SAME, OTHER = (b"content", 7), b"content", b"another"
LEASED = Precondition("line1", 3)
STRONG = "orders.strong"


@pytest.mark.parametrize(
    "stored, content, precondition, lease_epoch, newest_offset, expected",
    [
        (None, SAME, NO_PRECONDITION, 0, 0, AppendOutcome(9, "applied")),
        (STORED, SAME, NO_PRECONDITION, 0, 0, AppendOutcome(7, "noop_already_applied")),
        (STORED, OTHER, NO_PRECONDITION, 0, 0, AppendOutcome(7, "conflicting_duplicate")),
        # leases: the one in force or a newer one passes, an older one is fenced
        (None, SAME, LEASED, 0, 0, AppendOutcome(9, "applied")),
        (None, SAME, LEASED, 3, 0, AppendOutcome(9, "applied")),
        (None, SAME, LEASED, 4, 0, AppendOutcome(0, "rejected_fenced", lease_epoch=4)),
        # a repeat is told so also when fenced; being fenced comes before what is wrong with the message
        (STORED, SAME, LEASED, 4, 0, AppendOutcome(7, "noop_already_applied")),
        (STORED, OTHER, LEASED, 4, 0, AppendOutcome(0, "rejected_fenced", lease_epoch=4)),
        # the newest fact about the subject
        (None, SAME, Precondition(base_offset=5), 0, 0, AppendOutcome(9, "applied")),
        (None, SAME, Precondition(base_offset=5), 0, 5, AppendOutcome(9, "applied")),
        (None, SAME, Precondition(base_offset=5), 0, 6, AppendOutcome(6, "superseded")),
        (None, SAME, Precondition(base_offset=0), 0, 1, AppendOutcome(1, "superseded")),
        (STORED, SAME, Precondition(base_offset=5), 0, 6, AppendOutcome(7, "noop_already_applied")),
        (STORED, OTHER, Precondition(base_offset=5), 0, 6, AppendOutcome(7, "conflicting_duplicate")),
        (None, SAME, Precondition("line1", 3, 5), 4, 6, AppendOutcome(0, "rejected_fenced", lease_epoch=4)),
        (None, SAME, Precondition("line1", 3, 5), 3, 6, AppendOutcome(6, "superseded")),
    ],
)
def test_the_first_outcome_that_applies_is_the_result(
    stored: tuple[bytes, int] | None,
    content: bytes,
    precondition: Precondition,
    lease_epoch: int,
    newest_offset: int,
    expected: AppendOutcome,
) -> None:
    """The first of the five that holds, in the order of the module's table; 9 is the next offset."""
    assert decide(stored, content, precondition, lease_epoch, newest_offset, 9) == expected


@pytest.mark.parametrize(
    "precondition, field",
    [
        (Precondition("line1"), "lease_epoch"),
        (Precondition(lease_epoch=1), "lease_epoch"),
        (Precondition("Line 1", 1), "producer"),
        (Precondition("line1", 0), "lease_epoch"),
        (Precondition("line1", LEASE_EPOCH_MAX + 1), "lease_epoch"),
        (Precondition("line1", True), "lease_epoch"),
        (Precondition("line1", 1.5), "lease_epoch"),  # type: ignore[arg-type]
        (Precondition(base_offset=-1), "base_offset"),
        (Precondition(base_offset=2**63), "base_offset"),
        (Precondition(base_offset="5"), "base_offset"),  # type: ignore[arg-type]
    ],
)
def test_preconditions_that_make_no_sense(precondition: Precondition, field: str) -> None:
    """Each is refused by the name of its field."""
    with pytest.raises(MessageError, match=field):
        check_precondition(precondition, is_strong=True)


def test_lease_epochs_and_producers_are_limited() -> None:
    """The first epoch is 1, each next is one higher. The epochs of a producer and the number of producers are
    limited."""
    assert next_lease_epoch({}, "s", "p") == 1
    assert next_lease_epoch({("s", "p"): 41, ("s", "q"): 99}, "s", "p") == 42
    with pytest.raises(FactsRefused, match="used up"):
        next_lease_epoch({("s", "p"): LEASE_EPOCH_MAX}, "s", "p")
    many = {("s", str(n)): 1 for n in range(admission.PRODUCERS_MAX)}
    with pytest.raises(FactsRefused, match="stable names"):
        next_lease_epoch(many, "s", "p")
    assert next_lease_epoch(many, "s", "7") == 2


def test_no_zone_takes_up_all_leases() -> None:
    """One zone may have a thousand producers in all streams. At the limit its known producers continue, and other zones
    and names without a dot have room."""
    leases = {(f"s{n % 7}", f"idmz.p{n}"): 1 for n in range(admission.PRODUCERS_OF_ONE_MAX)}
    with pytest.raises(FactsRefused, match="1000 producers of 'idmz'"):
        next_lease_epoch(leases, "s", "idmz.more")
    assert next_lease_epoch(leases, "s3", "idmz.p3") == 2
    for other in ("idmz2.p", "idmz-2.p", "press", "idm.z"):
        assert next_lease_epoch(leases, "s", other) == 1
    almost = dict(list(leases.items())[:-2])
    two = {("s", f"idmz.new{n}") for n in range(2)}
    assert admission.lease_limit_reached(almost, two | leases.keys()) == "1000 producers of 'idmz' already have leases"
    assert admission.lease_limit_reached(almost, two) == ""


def order(message_id: str, subject: str) -> Message:
    """A message about a subject."""
    return Message(Envelope(message_id, "plant", "*", 1_700_000_000_000), Fact(subject, "changed", b"1"))


def strong(folder: Path) -> FactStore:
    """A store with a stream of write class strong that answers at once (no consumer has to confirm)."""
    settings = StreamSettings(STRONG, acks="quorum", write_class="strong", acks_timeout_ms=1)
    return FactStore.open(folder / "facts.db", "plant", streams=[settings])


def test_a_fenced_producer_stores_nothing(tmp_path: Path) -> None:
    """A lease is durable: after a restart a producer gets a higher epoch, and what the instance before it still sends
    is rejected with the epoch in force, except for the repeat of what was stored."""
    with plant(tmp_path) as store:
        first = done(store.appends.acquire_lease(OPERATIONAL, "line1"))
        old = Precondition("line1", first)
        assert done(store.appends.append_message(OPERATIONAL, message("a"), precondition=old)).outcome == "applied"
    with plant(tmp_path) as store:
        second = done(store.appends.acquire_lease(OPERATIONAL, "line1"))
        assert (first, second) == (1, 2)
        fenced = AppendOutcome(0, "rejected_fenced", lease_epoch=2)
        assert done(store.appends.append_message(OPERATIONAL, message("b"), precondition=old)) == fenced
        repeat = done(store.appends.append_message(OPERATIONAL, message("a"), precondition=old))
        assert repeat == AppendOutcome(1, "noop_already_applied")
        new = Precondition("line1", second)
        assert done(store.appends.append_message(OPERATIONAL, message("b"), precondition=new)).outcome == "applied"
        assert done(store.appends.append_message("orders", message("b"), precondition=old)).outcome == "applied", (
            "per stream"
        )
        assert ids_in(store) == ["a", "b"]


def test_a_higher_epoch_is_in_force_once_shown(tmp_path: Path) -> None:
    """A message may show an epoch higher than any acquired. It is stored in the message's transaction, whatever the
    message's outcome, and applies within the same list of messages. It is stored also where the commit has nothing else
    to store."""
    with plant(tmp_path) as store:
        asked = [
            Precondition("line1", 5),
            Precondition("line1", 4),
            None,
            Precondition("line1", 9),
            Precondition("line1", 8),
        ]
        messages = [message("a"), message("b"), message("c"), message("a"), message("d")]
        found = done(store.appends.append_messages(OPERATIONAL, messages, preconditions=asked))
        assert [answer.outcome for answer in found] == [
            "applied", "rejected_fenced", "applied", "noop_already_applied", "rejected_fenced",
        ]  # fmt: skip
        assert [answer.lease_epoch for answer in found] == [0, 5, 0, 0, 9]
    with plant(tmp_path) as store:
        assert done(store.appends.acquire_lease(OPERATIONAL, "line1")) == 10
        repeat = store.appends.append_message(OPERATIONAL, message("a"), precondition=Precondition("line1", 20))
        assert done(repeat).outcome == "noop_already_applied"
        assert store.appends.lease_epoch(OPERATIONAL, "line1") == 20
        assert ids_in(store) == ["a", "c"]


def test_superseded_by_a_newer_fact_about_the_subject(tmp_path: Path) -> None:
    """In a strong stream an append may name the newest fact it has seen about its subject. If there is a newer one, its
    offset is the answer and nothing is stored. This holds within one commit and after a restart."""
    based = [Precondition(base_offset=0), Precondition(base_offset=0), Precondition(base_offset=0), None]
    with strong(tmp_path) as store:
        messages = [order("a", "order:1"), order("b", "order:2"), order("c", "order:1"), order("d", "order:1")]
        found = done(store.appends.append_messages(STRONG, messages, preconditions=based))
        assert [(answer.offset, answer.outcome) for answer in found[2:3]] == [(1, "superseded")]
        assert ids_in(store, STRONG) == ["a", "b", "d"]
    with strong(tmp_path) as store:
        for base_offset, expected in ((2, (3, "superseded")), (3, (4, "queued"))):
            asked = Precondition(base_offset=base_offset)
            outcome = done(store.appends.append_message(STRONG, order("e", "order:1"), precondition=asked))
            assert (outcome.offset, outcome.outcome) == expected
        assert ids_in(store, STRONG) == ["a", "b", "d", "e"]


def test_undecidable_preconditions_are_refused_at_once(tmp_path: Path) -> None:
    """A base offset outside of strong streams, preconditions with acks none, and too few of them are refused at the
    call."""
    with plant(tmp_path) as store:
        with pytest.raises(MessageError, match=r'base_offset: only a stream with write_class = "strong"'):
            store.appends.append_message(OPERATIONAL, message("a"), precondition=Precondition(base_offset=1))
        with pytest.raises(AcksRefused, match="acks none"):
            store.appends.append_message(OPERATIONAL, message("a"), acks="none", precondition=LEASED)
        with pytest.raises(FactsRefused, match="1 preconditions for 2 messages"):
            store.appends.append_messages(OPERATIONAL, [message("a"), message("b")], preconditions=[LEASED])
        with pytest.raises(MessageError, match="producer"):
            store.appends.acquire_lease(OPERATIONAL, "not a name")


def test_producers_of_one_commit_share_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends of several new producers come in one commit, and together exceed the limit: the first ones are stored."""
    monkeypatch.setattr(admission, "PRODUCERS_MAX", 2)
    with plant(tmp_path) as store:
        is_held, may_go = threading.Event(), threading.Event()
        store._writer.submit("hold", lambda _: (is_held.set(), may_go.wait(LIMIT_S)))
        assert is_held.wait(LIMIT_S)
        asked = [
            store.appends.append_message(OPERATIONAL, message(name), precondition=Precondition(name, 1))
            for name in ("a", "b", "c")
        ]
        may_go.set()
        assert [done(future).outcome for future in asked[:2]] == ["applied"] * 2
        assert isinstance(failed(asked[2]), FactsRefused)
        assert ids_in(store) == ["a", "b"]


def test_too_many_producers_are_refused_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer beyond the limit is refused; known ones and appends without a lease that share its commit are
    stored."""
    monkeypatch.setattr(admission, "PRODUCERS_MAX", 1)
    with plant(tmp_path) as store:
        done(store.appends.append_message(OPERATIONAL, message("a"), precondition=Precondition("one", 1)))
        more = store.appends.append_message(OPERATIONAL, message("b"), precondition=Precondition("two", 1))
        again = store.appends.append_message(OPERATIONAL, message("c"), precondition=Precondition("one", 2))
        assert isinstance(failed(more), FactsRefused)
        assert done(again).outcome == "applied"
        assert ids_in(store) == ["a", "c"]

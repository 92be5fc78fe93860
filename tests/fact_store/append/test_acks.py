"""acks: the decision, as tables from seeds/003 and seeds/001, with the worst cases; times are seconds here."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.fact_store.append.acks import (
    Acknowledged,
    AckTerms,
    Decision,
    Follower,
    Pending,
    Queued,
    ack_terms,
    acknowledged_offset,
    decide_ack,
    decide_new_ack,
    is_in_sync,
    out_of_sync_ns,
)
from agent.fact_store.core.errors import AcksRefused
from agent.settings.store import Acks, StreamSettings, WriteClass

S = 1_000_000_000
LAG, TIMEOUT = 15 * S, 5 * S
STREAM = "facts.operational"


def of(acks: Acks, min_in_sync: int = 1, write_class: WriteClass = "append_only") -> AckTerms:
    """Terms of a stream with these settings."""
    return ack_terms(StreamSettings(STREAM, acks=acks, min_in_sync=min_in_sync, write_class=write_class))


def consumer(frontier: int, caught_up_s: float | None = None, name: str = "a") -> Follower:
    """A consumer that has confirmed up to `frontier` and was last at the end at this second."""
    return Follower(name, frontier, None if caught_up_s is None else int(caught_up_s * S))


@dataclass(frozen=True)
class Row:
    """An append at offset 10, durable at second 100, and its expected answer at `now`."""

    what: str
    terms: AckTerms
    followers: tuple[Follower, ...]
    now: float
    decision: type[Decision] | float  # or the second until which it waits

    def __str__(self) -> str:
        return self.what


IN_SYNC, BEHIND = 99, 80  # last at the end a second ago; and longer ago than the lag allows
ROWS = [
    Row("local: at its commit", of("local"), (), 100, Acknowledged),
    Row("local: no consumer counts", of("local"), (consumer(0, IN_SYNC),), 100, Acknowledged),
    # all: the consumers that keep up, and at least min_in_sync
    Row("all, the only one has it", of("all"), (consumer(10, IN_SYNC),), 100, Acknowledged),
    Row("all, the only one has not", of("all"), (consumer(9, IN_SYNC),), 100, 105),
    Row("all, one of two has it", of("all"), (consumer(10, IN_SYNC), consumer(9, IN_SYNC)), 100, 105),
    Row("all, the other is behind: not waited for", of("all"), (consumer(10, IN_SYNC), consumer(2, BEHIND)), 100, Acknowledged),
    Row("all, the other was never at the end", of("all"), (consumer(10, IN_SYNC), consumer(2)), 100, Acknowledged),
    Row("all, waits only until the other falls out", of("all"), (consumer(10, IN_SYNC), consumer(2, 86)), 100, 101),
    Row("all, at that moment it is out", of("all"), (consumer(10, IN_SYNC), consumer(2, 86)), 101, Acknowledged),
    Row("all, who keeps up again is waited for", of("all"), (consumer(10, IN_SYNC), consumer(9, 100.5)), 101, 105),
    # the worst case of Kafka's acks=all: none is in sync, and without min_in_sync it would promise no more than local
    Row("all, no followers at all", of("all"), (), 100, 105),
    Row("all, all fell out", of("all"), (consumer(9, BEHIND), consumer(9, BEHIND)), 100, 105),
    Row("all, all fell out, timeout", of("all"), (consumer(9, BEHIND), consumer(9, BEHIND)), 105, Queued),
    Row("all, min 2, one keeps up and has it", of("all", 2), (consumer(10, IN_SYNC), consumer(9, BEHIND)), 100, 105),
    Row("all, min 2, both have it", of("all", 2), (consumer(10, IN_SYNC), consumer(10, IN_SYNC)), 100, Acknowledged),
    Row("all, a confirmation counts from whom is behind", of("all", 2), (consumer(10, IN_SYNC), consumer(10, BEHIND)), 100, Acknowledged),
    Row("all, min 2 of one", of("all", 2), (consumer(10, IN_SYNC),), 100, 105),
    # quorum: floor(voters / 2) + 1 with this node among the voters, and at least min_in_sync consumers
    Row("quorum without consumers", of("quorum"), (), 100, 105),
    Row("quorum 2 of 2", of("quorum"), (consumer(10),), 100, Acknowledged),
    Row("quorum 1 of 2", of("quorum"), (consumer(9, IN_SYNC),), 100, 105),
    Row("quorum 2 of 3", of("quorum"), (consumer(10), consumer(0)), 100, Acknowledged),
    Row("quorum 2 of 4", of("quorum"), (consumer(10), consumer(0), consumer(0)), 100, 105),
    Row("quorum 3 of 4", of("quorum"), (consumer(10), consumer(11), consumer(0)), 100, Acknowledged),
    Row("quorum 3 of 5", of("quorum"), (consumer(10), consumer(11), consumer(0), consumer(0)), 100, Acknowledged),
    Row("quorum 2 of 3, min 2", of("quorum", 2), (consumer(10), consumer(9)), 100, 105),
    Row("quorum 3 of 3, min 2", of("quorum", 2), (consumer(10), consumer(10)), 100, Acknowledged),
    # time
    Row("the last moment before the timeout", of("all"), (consumer(9, IN_SYNC),), 104.999999999, 105),
    Row("the timeout exactly", of("all"), (consumer(9, IN_SYNC),), 105, Queued),
    Row("long after", of("all"), (consumer(9, IN_SYNC),), 1000, Queued),
    Row("confirmed in the moment of the timeout", of("all"), (consumer(10, IN_SYNC),), 105, Acknowledged),
    Row("confirmed when it was answered already", of("all"), (consumer(10, IN_SYNC),), 200, Acknowledged),
    Row("one that waits at the end keeps up", of("all"), (consumer(10, IN_SYNC), consumer(9, 130)), 104, 105),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_outcome_of_an_append(row: Row) -> None:
    """Each row of the table."""
    decision = decide_ack(10, row.terms, row.followers, 100 * S, int(row.now * S))
    if isinstance(row.decision, type):
        assert isinstance(decision, row.decision)
    else:
        assert decision == Pending(int(row.decision * S))


@pytest.mark.parametrize(
    "acks, min_in_sync, followers, decision",
    [
        ("all", 1, (), Queued),
        ("all", 1, (consumer(9, BEHIND),), Queued),
        ("all", 1, (consumer(9, IN_SYNC),), Pending),
        ("all", 2, (consumer(9, IN_SYNC), consumer(9, BEHIND)), Queued),
        ("all", 1, (consumer(10, BEHIND),), Acknowledged),
        ("quorum", 1, (consumer(9, IN_SYNC), consumer(9, BEHIND), consumer(9, BEHIND)), Queued),
        ("quorum", 1, (consumer(9, IN_SYNC), consumer(9, IN_SYNC), consumer(9, BEHIND)), Pending),
        ("local", 1, (), Acknowledged),
    ],
)
def test_write_class_queued_does_not_wait_without_consumers_in_sync(
    acks: Acks, min_in_sync: int, followers: tuple[Follower, ...], decision: type[Decision]
) -> None:
    """Where too few consumers are in sync at the time of the append the answer is queued at once; the other classes
    wait."""
    queued = decide_new_ack(10, of(acks, min_in_sync, "queued"), followers, 100 * S)
    assert isinstance(queued, decision)
    plain = decide_new_ack(10, of(acks, min_in_sync), followers, 100 * S)
    assert isinstance(plain, Pending if decision is Queued else decision)


def test_a_strong_append_is_never_downgraded() -> None:
    """Without a consumer in sync it waits until its timeout and is then queued, with the missing consumers named; it is
    never acknowledged as `local`."""
    strong = of("all", write_class="strong")
    assert decide_new_ack(10, strong, (), 100 * S) == Pending(105 * S)
    said = decide_ack(10, strong, (), 100 * S, 105 * S)
    assert said == Queued(f"after 5 s 0 of the 1 consumers that {STREAM} needs have offset 10; none is registered")


@pytest.mark.parametrize(
    "write_class, own, override, promises",
    [
        ("append_only", "local", None, ()),
        ("append_only", "all", None, ("all",)),
        ("append_only", "all", "local", ()),
        ("append_only", "local", "quorum", ("quorum",)),
        ("queued", "all", "none", ()),
        ("local", "local", "none", ()),
        ("local", "local", "all", None),
        ("local", "none", "quorum", None),
        ("strong", "all", "all", ("all",)),
        ("strong", "quorum", None, ("quorum",)),
        ("strong", "quorum", "all", ("quorum", "all")),
        ("strong", "all", "quorum", None),
        ("strong", "all", "local", None),
        ("strong", "quorum", "none", None),
    ],
)
def test_an_append_may_override_the_acks_of_its_stream(
    write_class: WriteClass, own: Acks, override: Acks | None, promises: tuple[str, ...] | None
) -> None:
    """An append may ask for other acks than its stream's, except those that the write class forbids (None: refused)."""
    settings = StreamSettings(STREAM, acks=own, write_class=write_class)
    if promises is None:
        with pytest.raises(AcksRefused, match=f"acks {override} on {STREAM}: its write class is {write_class}"):
            ack_terms(settings, override)
        return
    found = ack_terms(settings, override)
    assert found.promises == promises
    assert found.is_answered_unstored == ((override or own) == "none")


def test_all_on_a_quorum_stream_requires_both() -> None:
    """`all` on a strong stream that promises a quorum requires both. Two of five in sync, with the rest behind, are all
    and no quorum."""
    both = ack_terms(StreamSettings(STREAM, acks="quorum", write_class="strong"), "all")
    one_of_four = (consumer(10, IN_SYNC), *[consumer(0, BEHIND)] * 3)
    assert isinstance(decide_ack(10, of("all"), one_of_four, 100 * S, 100 * S), Acknowledged)
    assert isinstance(decide_ack(10, both, one_of_four, 100 * S, 100 * S), Pending)


def test_the_reason_names_the_missing_consumers() -> None:
    """The reason names the consumers that the append waited for, those in sync first, and limits their number."""
    followers = [consumer(3, IN_SYNC, f"c{n}") for n in range(5)] + [consumer(3, BEHIND, "old")]
    said = decide_ack(10, of("all"), followers, 100 * S, 105 * S)
    assert isinstance(said, Queued)
    assert said.why.endswith(
        "0 of the 1 consumers that facts.operational needs have offset 10; missing: c0, c1, c2 and 2 more"
    )


frontiers = st.integers(0, 20)
anyone = st.builds(consumer, frontiers, st.none() | st.integers(60, 120))


@given(st.lists(anyone, max_size=6), st.sampled_from(["quorum", "all"]), st.integers(1, 4), st.integers(1, 20))
def test_reached_is_the_last_offset_acknowledged(
    followers: list[Follower], acks: Acks, least: int, offset: int
) -> None:
    """For any offset, a comparison with `reached` agrees with the definition, which counts consumer by consumer."""
    found, now = of(acks, least), 100 * S
    have = [follower for follower in followers if follower.frontier >= offset]
    voters = len(followers) + 1
    is_met = len(have) >= least
    if acks == "quorum":
        is_met = is_met and len(have) + 1 >= voters // 2 + 1
    else:
        is_met = is_met and all(follower in have for follower in followers if is_in_sync(follower, LAG, now))
    assert (offset <= acknowledged_offset(found, followers, now)) == is_met
    if not is_met:
        out = out_of_sync_ns(offset, found, followers, now, 10**18)
        assert now < out


@given(st.lists(anyone, max_size=6), st.sampled_from(["quorum", "all"]), st.integers(1, 20), st.integers(100, 130))
def test_every_append_is_answered_by_its_timeout(followers: list[Follower], acks: Acks, offset: int, now: int) -> None:
    """For any sequence of events an append has an answer or a later time to check until its deadline, and an answer at
    the deadline."""
    decision = decide_ack(offset, of(acks), followers, 100 * S, now * S)
    if isinstance(decision, Pending):
        assert now * S < decision.until_ns <= 105 * S
    assert now < 105 or not isinstance(decision, Pending)

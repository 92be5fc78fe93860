"""Causes before consequences: whatever is wrong at the same time, the first line is a cause."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agent.health.problems import EXPLAINS, OF_NODE, Level, Problem, Reason, order_by_cause
from agent.health.snapshot import BrokerStatus, ConsumerStatus, NodeSnapshot, PeerStatus
from agent.health.verdict import assess
from tests.sim import scaled

SUBJECTS = ("store", "broker site", "broker top", "peer plant/facts.telemetry", "consumer c", "source line1")
REASONS = st.builds(
    Reason,
    st.sampled_from(Problem),
    st.booleans(),
    st.sampled_from(SUBJECTS),
    st.just("text"),
    st.just("hint"),
    st.frozensets(st.sampled_from(SUBJECTS), max_size=3),
)


def explains(cause: Reason, other: Reason) -> bool:
    """The rule of `EXPLAINS`, for two reasons."""
    is_there = cause.problem in OF_NODE or cause.subject in {other.subject, *other.depends_on}
    return other.problem in EXPLAINS.get(cause.problem, ()) and is_there


@given(st.lists(REASONS, max_size=25))
def test_a_consequence_is_never_above_its_cause(reasons: list[Reason]) -> None:
    """Nothing is lost or added, every reason names the causes that are present, and all of them stand above it. The
    first line is a cause, and an alert if there is any; the causes of an alert are alerts."""
    ordered = order_by_cause(reasons)
    plain = [replace(reason, caused_by=(), alert=False) for reason in (*reasons, *ordered)]
    assert Counter(plain[: len(reasons)]) == Counter(plain[len(reasons) :])
    for at, reason in enumerate(ordered):
        causes = [place for place, other in enumerate(ordered) if explains(other, reason)]
        assert all(place < at for place in causes), (reason, [ordered[place] for place in causes])
        assert set(reason.caused_by) == {ordered[place].subject for place in causes}
    if ordered:
        assert not ordered[0].caused_by
        assert ordered[0].alert is any(reason.alert for reason in reasons)
    for reason in ordered:
        assert not reason.alert or all(cause.alert for cause in ordered if explains(cause, reason))


def test_the_table_has_no_circle_and_names_what_to_do() -> None:
    """No problem explains itself, however far the chain; each has a level, a meaning and a remedy, and no two are the
    same kind."""

    def follows(problem: Problem, seen: tuple[Problem, ...] = ()) -> None:
        assert problem not in seen, (*seen, problem)
        for other in EXPLAINS.get(problem, ()):
            follows(other, (*seen, problem))

    for problem in Problem:
        follows(problem)
        assert isinstance(problem.level, Level)
        assert problem.value.meaning.endswith("."), problem
        assert problem.value.remedy, problem
    assert len({problem.name for problem in Problem}) == len(Problem)


def test_a_stopped_broker_is_the_headline(healthy: NodeSnapshot) -> None:
    """Its peers, their lag and the consumers of zones that come over it follow beneath. The lag of a peer at another
    broker is a problem of its own."""
    others = (replace(healthy.peers[0], zone="cloud", broker="top", lag_seconds=2.0),)
    late = (replace(healthy.peers[0], broker="site", connected=False, lag_seconds=900.0), *others)
    waits = (replace(healthy.consumers[0], behind_facts=9, oldest_unconfirmed_age_s=100_000.0, state="offline"),)
    brokers = (
        BrokerStatus("site", False, 1, trouble="refused", zones=("plant", "enterprise")),
        BrokerStatus("top", True),
    )
    verdict = assess(replace(healthy, brokers=brokers, peers=late, consumers=waits))
    assert verdict.alert
    assert verdict.summary() == "broken: broker site: not connected: refused (and 3 more)"
    assert "bsfg peer test plant tries" in verdict.reasons[0].hint
    assert [(reason.problem.name, reason.caused_by) for reason in verdict.reasons] == [
        ("BROKER_LOST", ()),
        ("PEER_SILENT", ("broker site",)),
        ("CONSUMER_BEHIND", ("broker site",)),
        ("PEER_LAG", ()),
    ]


def test_a_page_that_waits_for_an_absent_peer_follows_from_that(healthy: NodeSnapshot) -> None:
    """Its tag definitions are at the peer: the store is not full."""
    away = replace(healthy.peers[0], connected=False, lag_seconds=60.0, page_waits="ConnectionLost: plant: no answer")
    silent, waits = assess(replace(healthy, peers=(away,))).reasons
    assert (silent.problem, waits.problem, waits.caused_by) == (
        *(Problem.PEER_SILENT, Problem.PAGE_WAITS),
        ("peer plant",),
    )


def test_a_verdict_is_as_bad_as_what_follows_from_its_cause(healthy: NodeSnapshot) -> None:
    """A store that is full within the shift is no late consumer only, and the exit status is not that of a bad
    sensor."""
    consumers = (replace(healthy.consumers[0], behind_facts=9, oldest_unconfirmed_age_s=90.0, state="offline"),)
    streams = (replace(healthy.streams[0], name=consumers[0].stream, hours_until_full=0.4),)
    verdict = assess(replace(healthy, consumers=consumers, streams=streams))
    assert [reason.problem for reason in verdict.reasons] == [Problem.CONSUMER_BEHIND, Problem.STORE_FULL_SOON]
    assert (verdict.level, verdict.alert) == (Level.FULL, True)


def test_a_full_disk_is_the_headline(healthy: NodeSnapshot) -> None:
    """Refused appends say which limit and what to do; what waits for room follows."""
    store = replace(
        healthy.store,
        appends_refused="the disk is full (12,288 bytes are left)",
        refused_remedy="free space",
        refused_since_unix_ms=healthy.taken_unix_ms - 300_000,
    )
    requests = replace(healthy.requests, append_failures_total=90)
    peers = (replace(healthy.peers[0], page_waits="StoreFull", lag_seconds=60.0),)
    full = replace(healthy, store=store, requests=requests, peers=peers, store_fill_percent=100.0)
    first, *others = assess(full).reasons
    assert (first.problem, first.alert, first.hint) == (
        *(Problem.APPENDS_REFUSED, True),
        "free space",
    )
    assert first.text == "takes no facts for 5 min: the disk is full (12,288 bytes are left)"
    assert {reason.problem for reason in others} == {
        *(Problem.APPENDS_FAILED, Problem.STORE_FILL, Problem.PAGE_WAITS, Problem.PEER_LAG),
    }
    assert all("store" in reason.caused_by for reason in others)


def test_many_peers_are_ordered_at_once(healthy: NodeSnapshot) -> None:
    """A node with thousands of peers orders them without comparing each with each."""
    count = scaled(2_000, 5_000)
    brokers = (BrokerStatus("site", False, zones=tuple(f"p{n}" for n in range(count))),)
    peers = tuple(PeerStatus(f"p{n}", "facts.telemetry", False, 0, 9, 9.0, 9.0, broker="site") for n in range(count))
    consumers = tuple(
        ConsumerStatus(f"p{n}.t", "facts.telemetry", f"p{n}", "offline", 0, 9, 99.0) for n in range(count)
    )
    verdict = assess(replace(healthy, brokers=brokers, peers=peers, consumers=consumers))
    assert len(verdict.reasons) == 2 * count + 1
    assert all(reason.caused_by for reason in verdict.reasons[1:])


def test_clocks_that_contradict_each_other(healthy: NodeSnapshot) -> None:
    """A device's clock that is off is a warning with the difference."""
    for ahead_s, said in ((7250.0, "2 h ahead of"), (-7250.0, "2 h behind")):
        source = replace(healthy.sources[0], clock_ahead_s=ahead_s)
        (reason,) = assess(replace(healthy, sources=(source,))).reasons
        assert (reason.problem, reason.alert) == (Problem.DEVICE_CLOCK_OFF, False)
        assert said in reason.text
    fine = replace(healthy.sources[0], clock_ahead_s=-30.0)
    assert assess(replace(healthy, sources=(fine,))).summary() == "good"


def test_a_changed_server_certificate_is_one_line(healthy: NodeSnapshot) -> None:
    """The word changed, both fingerprints, and the command, in two lines of a terminal."""
    trouble = (
        "ServerCertificateChanged: the server's certificate changed: SHA-1 aa, before bb; if right: bsfg opcua trust aa"
    )
    source = replace(healthy.sources[0], connected=False, trouble=trouble)
    (reason,) = assess(replace(healthy, sources=(source,))).reasons
    assert reason.problem is Problem.SERVER_CERTIFICATE_CHANGED
    assert (reason.text, reason.hint) == (
        "the server's certificate changed: SHA-1 aa, before bb",
        "if right: bsfg opcua trust aa",
    )

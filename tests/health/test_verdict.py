"""The verdict: each problem is a reason of its own with its level, and the worst comes first."""

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from agent.health.problems import Level
from agent.health.snapshot import (
    CatchUpStatus,
    ClockStatus,
    ComparisonStatus,
    IntegrityStatus,
    Latency,
    NodeSnapshot,
    NotInForceStatus,
    PacingStatus,
    RequestStatus,
    StoreStatus,
    UnreferencedStatus,
)
from agent.health.verdict import THRESHOLDS, assess
from agent.telemetry import BOUNDS_S


def spoilt(snapshot: NodeSnapshot, part: str, **changes: object) -> NodeSnapshot:
    """The snapshot with the first peer, source or consumer changed."""
    first, *others = getattr(snapshot, part)
    return replace(snapshot, **{part: (replace(first, **changes), *others)})


def changed(snapshot: NodeSnapshot, changes: Mapping[str, object]) -> NodeSnapshot:
    """The snapshot with these parts; of a part given as a mapping, with these fields."""
    for part, change in changes.items():
        snapshot = spoilt(snapshot, part, **change) if isinstance(change, dict) else replace(snapshot, **{part: change})
    return snapshot


FENCED = {"connected": False, "lag_seconds": 9e5, "trouble": "lease 3 is in force", "fenced": True}
PEER, SOURCE, CONSUMER = "peer plant/facts.telemetry", "source line1", "consumer enterprise.facts.telemetry"
BLOCKED = {"connected": False, "blocked": True}
CASES = [
    ("fill 50", {"store_fill_percent": 50.0}, None),
    ("fill 51", {"store_fill_percent": 51.0}, (Level.FULL, False, "store")),
    ("fill unknown", {"store_fill_percent": None}, None),
    ("fill 81", {"store_fill_percent": 81.0}, (Level.FULL, True, "store")),
    ("clock 1970", {"clock": ClockStatus("before_build")}, (Level.BROKEN, True, "clock")),
    ("clock behind", {"clock": ClockStatus("behind", 2**41)}, (Level.LATE, False, "clock")),
    ("clock ahead", {"clock": ClockStatus("ahead", 1)}, (Level.LATE, False, "clock")),
    ("clock unconfirmed", {"clock": ClockStatus("unconfirmed")}, (Level.LATE, False, "clock")),
    ("certificate 31", {"certificate_days_left": 31.0}, None),
    ("certificate 29", {"certificate_days_left": 29.0}, (Level.BROKEN, False, "certificate")),
    ("certificate 8", {"certificate_days_left": 8.0}, (Level.BROKEN, False, "certificate")),
    ("certificate 6", {"certificate_days_left": 6.0}, (Level.BROKEN, True, "certificate")),
    ("certificate over", {"certificate_days_left": -1.0}, (Level.BROKEN, True, "certificate")),
    ("certificate unknown", {"certificate_days_left": None}, None),
    ("broker gone", {"brokers": {"connected": False}}, (Level.BROKEN, False, "broker site")),
    ("broker refuses us", {"brokers": {"connected": False, "needs_person": True}}, (Level.BROKEN, True, "broker site")),
    ("new certificate refused", {"brokers": {"identity_trouble": "no"}}, (Level.BROKEN, False, "broker site")),
    ("lag 1", {"peers": {"lag_seconds": 1.0}}, None),
    ("lag 2", {"peers": {"lag_seconds": 2.0}}, (Level.LATE, False, PEER)),
    ("lag 6", {"peers": {"lag_seconds": 6.0}}, (Level.LATE, True, PEER)),
    ("lag unknown", {"peers": {"lag_seconds": None}}, None),
    ("equal", {"peers": {"compared": ComparisonStatus(1, 0, 1, 1, 9, 0, is_equal=True)}}, None),
    ("not compared", {"peers": {"compared": ComparisonStatus(0, 1, 0, 0, 0, None, is_equal=None)}}, None),
    (
        "differs",
        {"peers": {"compared": ComparisonStatus(1, 0, 1, 0, 0, 0, is_equal=False)}},
        (Level.BROKEN, False, PEER),
    ),
    ("peer gone", {"peers": {"connected": False}}, (Level.BROKEN, False, "peer plant")),
    ("blocked", {"peers": {**BLOCKED, "lag_seconds": None}}, (Level.BROKEN, True, PEER)),
    ("blocked and late", {"peers": {**BLOCKED, "lag_seconds": 9.0}}, (Level.BROKEN, True, PEER)),
    ("source gone", {"sources": {"connected": False}}, (Level.BROKEN, True, SOURCE)),
    ("never a value", {"sources": {"connected": False, "last_value_unix_ms": None}}, (Level.BROKEN, True, SOURCE)),
    ("tags bad", {"sources": {"tags": 40, "tags_bad": 3}}, (Level.LATE, True, SOURCE)),
    ("all tags bad", {"sources": {"tags": 40, "tags_bad": 40}}, (Level.BROKEN, True, SOURCE)),
    (
        "connected without values",
        {"sources": {"tags": 40, "tags_bad": 3, "tags_silent": 37}},
        (Level.BROKEN, True, SOURCE),
    ),
    ("some without values", {"sources": {"tags": 40, "tags_silent": 37}}, None),
    ("gone with bad tags", {"sources": {"connected": False, "tags": 40, "tags_bad": 3}}, (Level.BROKEN, True, SOURCE)),
    ("5 % of polls missed", {"sources": {"polls_missed_percent": 5.0}}, None),
    ("6 % of polls missed", {"sources": {"polls_missed_percent": 6.0}}, (Level.LATE, False, SOURCE)),
    ("26 % of polls missed", {"sources": {"polls_missed_percent": 26.0}}, (Level.LATE, True, SOURCE)),
    ("own certificate 31", {"sources": {"certificate_days_left": 31.0}}, None),
    ("own certificate 29", {"sources": {"certificate_days_left": 29.0}}, (Level.BROKEN, False, SOURCE)),
    ("own certificate over", {"sources": {"certificate_days_left": -1.0}}, (Level.BROKEN, True, SOURCE)),
    ("tags refused", {"sources": {"tags_problem": "plc.csv row 3"}}, (Level.BROKEN, True, SOURCE)),
    ("behind", {"consumers": {"behind_facts": 5, "oldest_unconfirmed_age_s": 30.0}}, None),
    (
        "behind a minute",
        {"consumers": {"behind_facts": 5, "oldest_unconfirmed_age_s": 90.0}},
        (Level.LATE, False, CONSUMER),
    ),
    ("fenced", {"peers": FENCED}, (Level.BROKEN, True, PEER)),
    ("unsigned", {"facts_unsigned": True}, (Level.BROKEN, True, "signing")),
    ("damaged", {"integrity": IntegrityStatus(damages=1)}, (Level.BROKEN, True, "store")),
    ("set aside", {"integrity": IntegrityStatus(set_aside_bytes=9)}, (Level.BROKEN, True, "store")),
    ("lost", {"integrity": IntegrityStatus(losses=1)}, (Level.BROKEN, True, "store")),
    ("1 % of appends failed", {"requests": RequestStatus(100, 0, 100, 1)}, (Level.BROKEN, False, "store")),
    ("2 % of appends failed", {"requests": RequestStatus(100, 0, 100, 2)}, (Level.BROKEN, True, "store")),
    ("refused by a full store", {"requests": RequestStatus(100, 0, 100, 50, 50)}, None),
    ("appends in 0.25 s", {"requests": RequestStatus(append_p99_s=0.25)}, None),
    ("appends in 1 s", {"requests": RequestStatus(append_p99_s=1.0)}, (Level.LATE, False, "store")),
    ("appends in 10 s", {"requests": RequestStatus(append_p99_s=10.0)}, (Level.LATE, True, "store")),
    ("a commit of 4 s", {"requests": RequestStatus(commit_s=4.0)}, None),
    ("a commit of 6 s", {"requests": RequestStatus(commit_s=6.0)}, (Level.BROKEN, False, "store")),
    ("a commit of 31 s", {"requests": RequestStatus(commit_s=31.0)}, (Level.BROKEN, True, "store")),
    ("age without facts", {"consumers": {"behind_facts": 0, "oldest_unconfirmed_age_s": 1e9}}, None),
]


@pytest.mark.parametrize("name, changes, expected", CASES, ids=[case[0] for case in CASES])
def test_each_value_against_its_threshold(
    healthy: NodeSnapshot, name: str, changes: dict[str, object], expected: tuple[Level, bool, str] | None
) -> None:
    """A value beyond its limit gives exactly one reason of the right level; at the limit it gives none."""
    snapshot = changed(healthy, changes)
    reasons = [(reason.level, reason.alert, reason.subject) for reason in assess(snapshot).reasons]
    assert reasons == ([expected] if expected else [])
    assert all(reason.text and reason.hint for reason in assess(snapshot).reasons), name


@pytest.mark.parametrize(
    "ttl_hours, age_s, left, alert",
    [
        (200.0, 7_200.0, 75.0, None),
        (200.0, 7_200.0, 71.0, False),
        (200.0, 7_200.0, 25.0, False),
        (200.0, 7_200.0, 23.0, True),
        (10.0, 1.0, 9.9, None),
        (10.0, 1.0, 5.1, None),
        (10.0, 1.0, 4.9, False),
        (60.0, 2.0, 1.0, False),
        (60.0, 90.0, 1.0, True),
        (60.0, None, 1.0, True),
    ],
)
def test_hours_until_the_first_loss(
    healthy: NodeSnapshot, ttl_hours: float, age_s: float | None, left: float, alert: bool | None
) -> None:
    """A weekend before unconfirmed facts are dropped is a warning, a working day an alert. Facts that live for ten
    hours never have more than ten left: there is no reason before half of that is over. A new zone begins with facts
    that have an hour left: no alert before its rate is known, after a minute; an unknown age is no excuse."""
    late = spoilt(healthy, "streams", ttl_hours=ttl_hours)
    late = spoilt(late, "consumers", behind_facts=7, oldest_unconfirmed_age_s=age_s, hours_until_ttl_loss=left)
    found = assess(late)
    told = f"dropped unconfirmed in .*, after {ttl_hours:.0f} h"
    assert [reason.alert for reason in found.reasons if re.search(told, reason.text)] == [alert][: alert is not None]
    assert found.alert is bool(alert)


@pytest.mark.parametrize("left_s, is_alert", [(3_600.0, False), (86_000.0, False), (90_000.0, True), (None, True)])
def test_a_consumer_that_catches_up_can_wait(healthy: NodeSnapshot, left_s: float | None, is_alert: bool) -> None:
    """Two days behind and about to lose facts: both are reasons, and alerts only if it will not have everything within
    a day. A stream whose consumer catches up counts as read, so its filling is no reason."""
    limited = spoilt(healthy, "streams", ttl_hours=60.0, hours_until_full=5.0, inflow_bytes_per_s=1.0)
    late = spoilt(
        limited, "consumers", behind_facts=7, oldest_unconfirmed_age_s=48 * 3600.0, hours_until_ttl_loss=12.0,
        facts_per_s=10.0, seconds_left=left_s,
    )  # fmt: skip
    found = {reason.subject: reason.alert for reason in assess(late).reasons}
    assert found == ({CONSUMER: True, "store": True} if is_alert else {CONSUMER: False})
    assert len([reason for reason in assess(late).reasons if reason.subject == CONSUMER]) == 2


@pytest.mark.parametrize(
    "hours, age_s, used, expected",
    [
        (200.0, 90.0, 10.0, None),
        (50.0, 90.0, 10.0, (Level.FULL, False)),
        (50.0, 90.0, 4.0, None),
        (23.0, 90.0, 0.1, None),
        (23.0, 90.0, 5.0, (Level.FULL, True)),
        (7.0, 90.0, 0.1, (Level.FULL, True)),
        (7.0, 30.0, 10.0, None),
        (None, 90.0, 10.0, None),
    ],
)
def test_hours_until_full(
    healthy: NodeSnapshot, hours: float | None, age_s: float, used: float, expected: tuple[Level, bool] | None
) -> None:
    """A reason only while a consumer is behind: a small store that is read in time is in no danger. On a store of which
    next to nothing is used, only the last shift counts: "full in 23 h" a minute into an outage made people look at an
    empty disk."""
    filling = spoilt(replace(healthy, store_fill_percent=used), "streams", hours_until_full=hours)
    filling = spoilt(filling, "streams", inflow_bytes_per_s=12_000.0)
    behind = spoilt(filling, "consumers", behind_facts=5, oldest_unconfirmed_age_s=age_s)
    found = [(reason.level, reason.alert) for reason in assess(behind).reasons if reason.subject == "store"]
    assert found == ([expected] if expected else [])


def test_one_late_consumer_of_three_fills_the_store(healthy: NodeSnapshot) -> None:
    """Whichever of the consumers of a stream is late: the stream fills, although the two others keep up."""
    filling = spoilt(healthy, "streams", hours_until_full=3.0, inflow_bytes_per_s=1.0)
    for late in range(3):
        consumers = [replace(healthy.consumers[0], name=f"enterprise.{number}") for number in range(3)]
        consumers[late] = replace(consumers[late], behind_facts=5, oldest_unconfirmed_age_s=90.0)
        found = assess(replace(filling, consumers=tuple(consumers))).reasons
        assert [reason.text[:30] for reason in found if reason.subject == "store"] == [
            "facts.telemetry is full in 3 h"
        ], late


def test_streams_without_a_consumer_fill_the_store(healthy: NodeSnapshot) -> None:
    """Without a consumer no room becomes free: the reason names the stream that is full first."""
    filling = replace(healthy.streams[0], inflow_bytes_per_s=12_000.0)
    later, sooner = (replace(filling, name=f"facts.in{hours}", hours_until_full=hours) for hours in (7, 3))
    (reason,) = assess(replace(healthy, consumers=(), streams=(later, sooner))).reasons
    assert (reason.level, reason.alert) == (Level.FULL, True)
    assert reason.text == "facts.in3 is full in 3 h at 12.0 kB/s unless its consumers confirm"


def test_a_pull_that_loses_its_peer_while_catching_up_is_an_alert(healthy: NodeSnapshot) -> None:
    """While the peer is away the pull does not catch up, so its lag counts again."""
    state = CatchUpStatus(0, 50.0, 100.0, 60.0)
    for connected, alert in ((True, False), (False, True)):
        away = spoilt(healthy, "peers", connected=connected, lag_seconds=900.0, catch_up=state)
        assert assess(away).alert is alert


def test_a_silent_zone_is_one_problem(healthy: NodeSnapshot) -> None:
    """Of a zone that does not answer, all streams are named together, with the greatest lag and the first trouble that
    nothing else says."""
    peer = replace(healthy.peers[0], connected=False, lag_seconds=None, trouble="broker site (host): no answer")
    troubles = {"events": ("", 2.0), "health": ("busy.", 40.0), "alarms": ("slow", 3.0), "facts": ("no answer.", None)}
    pulls = [replace(peer, stream=name, trouble=why, lag_seconds=lag) for name, (why, lag) in troubles.items()]
    peers = (peer, *pulls, replace(peer, zone="other"))
    first, second = assess(replace(healthy, peers=peers)).reasons
    text = f"no answer for facts.telemetry, {', '.join(troubles)}, 40.0 s behind: busy"
    assert (first.subject, first.text) == ("peer plant", text)
    assert (second.subject, second.text) == ("peer other", "no answer yet for facts.telemetry")
    assert (first.alert, second.alert) == (True, False)


def test_reasons_are_sorted_worst_first(healthy: NodeSnapshot) -> None:
    """Alerts come before warnings, and broken before full before late; the summary counts the rest."""
    everything = spoilt(spoilt(healthy, "peers", lag_seconds=9.0), "sources", connected=False)
    everything = replace(everything, store_fill_percent=99.0, certificate_days_left=20.0)
    verdict = assess(everything)
    found = [(reason.alert, reason.level) for reason in verdict.reasons]
    assert found == [(True, Level.BROKEN), (True, Level.FULL), (True, Level.LATE), (False, Level.BROKEN)]
    assert verdict.summary().startswith("broken: source line1: not connected, last value 2026-11-18 11:06:39Z")
    assert verdict.summary().endswith("(and 3 more)")


def test_the_table_is_in_order() -> None:
    """Every row warns before it alerts, names a unit and says why."""
    for name, row in THRESHOLDS.items():
        assert row.unit, name
        assert row.because, name
        assert row.passed(row.alert) is False, f"{name}: at its alert limit a figure is a warning still"
        assert row.passed(row.warn) is None, name


@pytest.mark.parametrize(
    "counts, quantile, expected",
    [
        ((0,) * 14, 0.99, None),
        ((100, *[0] * 13), 0.99, 0.0005),
        ((99, 1, *[0] * 12), 0.99, 0.0005),
        ((98, 2, *[0] * 12), 0.99, 0.001),
        ((*[0] * 13, 1), 0.5, float("inf")),
        ((0, 1, *[0] * 12), 0.0001, 0.001),
    ],
)
def test_quantiles_are_upper_bounds(counts: tuple[int, ...], quantile: float, expected: float | None) -> None:
    """A quantile is the bound of the bucket that holds it, and nothing when nothing was measured."""
    assert Latency(counts, bounds_s=BOUNDS_S).quantile_s(quantile) == expected


GONE, LATE, CATCHES_UP = {"connected": False}, {"lag_seconds": 9.0}, "it catches up by itself; look at the peer"
NO_PERSON, PERSON, DEVICE = "start the broker", "bsfg peer test ZONE", "check the device"
EACH_STEP = "bsfg source test line1 tries each step"
UNREAD = {"behind_facts": 5, "oldest_unconfirmed_age_s": 150.0}
NO_SOURCE = "not connected, last value 2026-11-18 11:06:39Z"
LAG, UNREAD_TEXT = "9.0 s behind, 0 facts known to be outstanding", "2 min behind (5 facts of facts.telemetry)"
FENCED_TEXT = "another instance of this node pulls in its place, and this one has stopped (lease 3 is in force)"
PACED = PacingStatus(1_000, True, 0.0, 0, 0)


def far(facts_per_s: float | None, seconds_left: float | None) -> dict[str, CatchUpStatus]:
    """A pull that has caught up by two fifths."""
    return {"catch_up": CatchUpStatus(0, 40.0, facts_per_s, seconds_left)}


TEXTS = [
    ("sources", {**GONE, "last_value_unix_ms": None}, "not connected, no value yet", DEVICE),
    ("sources", {**GONE, "trouble": "SourceLost: no route"}, f"{NO_SOURCE}: no route", DEVICE),
    ("sources", {**GONE, "trouble": "cut"}, f"{NO_SOURCE}: cut", DEVICE),
    ("sources", {**GONE, "trouble": "SourceRefused: no user"}, f"{NO_SOURCE}: no user", EACH_STEP),
    ("sources", {"certificate_days_left": 5.0}, "our certificate ends in 5 days", "bsfg opcua certificate --renew"),
    ("sources", {"certificate_days_left": 0.4}, "our certificate ends within a day", "bsfg opcua certificate --renew"),
    ("sources", {"certificate_days_left": -0.1}, "our certificate has expired", "bsfg opcua certificate --renew"),
    ("sources", {**GONE, "tags": 4, "tags_bad": 4}, NO_SOURCE, DEVICE),
    ("brokers", GONE, "not connected", NO_PERSON),
    ("brokers", {**GONE, "trouble": "no\n  route. "}, "not connected: no route", NO_PERSON),
    ("brokers", {**GONE, "needs_person": True}, "not connected", PERSON),
    ("peers", {**GONE, "lag_seconds": None}, "no answer yet for facts.telemetry", "start the node of that zone"),
    ("peers", GONE, "no answer for facts.telemetry", "start the node of that zone"),
    ("peers", {**GONE, "trouble": "busy. "}, "no answer for facts.telemetry: busy", "start the node of that zone"),
    ("peers", {**BLOCKED, "trouble": "not_exported: no. Add it."}, "blocked: not_exported: no. Add it", "remove"),
    ("peers", FENCED, f"fenced: {FENCED_TEXT}", "find the other one"),
    (
        "peers",
        {"page_waits": "disk full"},
        "a page that has arrived is not stored: disk full",
        "nothing: the node tries",
    ),
    ("peers", {**LATE, **far(1_000.0, 300.0)}, f"{LAG}; 40 % caught up at 1,000 facts/s, 5 min left", "nothing: wait"),
    ("peers", {**LATE, **far(None, None)}, f"{LAG}; 40 % caught up", CATCHES_UP),
    ("peers", {"lag_seconds": None, **far(None, 300.0)}, "40 % caught up, 5 min left", "nothing: wait"),
    ("peers", {**LATE, "pacing": PACED}, LAG, "bytes_per_second_max = 1000 of this peer"),
    ("peers", {**LATE, "pacing": replace(PACED, waits=False)}, LAG, CATCHES_UP),
    ("peers", {**LATE, "end_offset": 5}, LAG, "it catches up"),
    ("consumers", {**UNREAD, "state": "offline"}, f"{UNREAD_TEXT}, offline", "is its process running? If it"),
    ("consumers", {**UNREAD, "state": "online"}, f"{UNREAD_TEXT}, online", "it reads, and fetches"),
    ("consumers", {**UNREAD, "state": "idle", "facts_per_s": 9.0}, f"{UNREAD_TEXT}, idle", "it reads, and fetches"),
    (
        *("consumers", {**UNREAD, "facts_per_s": 100.0, "seconds_left": 300.0}),
        *(f"{UNREAD_TEXT}, online, catches up at 100 facts/s, 5 min left", "it reads"),
    ),
]


@pytest.mark.parametrize("part, changes, text, hint", TEXTS)
def test_what_a_reason_says(healthy: NodeSnapshot, part: str, changes: dict[str, object], text: str, hint: str) -> None:
    """One reason, with the cause as the driver or the peer gave it, in one line, and what a person can do."""
    (reason,) = assess(spoilt(healthy, part, **changes)).reasons
    assert reason.text == text
    assert reason.hint.startswith(hint)


@pytest.mark.parametrize(
    "limit, hint",
    [
        ("artifacts_total_bytes_max", "raise artifacts_total_bytes_max"),
        ("artifact_disk_spare_bytes", "free disk space; facts are still taken"),
    ],
)
@pytest.mark.parametrize("most, text", [(None, "take 4.0 MB"), (5_000_000, "take 4.0 of 5.0 MB")])
def test_an_artifact_that_waits_for_room_is_an_alert(
    healthy: NodeSnapshot, limit: str, hint: str, most: int | None, text: str
) -> None:
    """Only a person or retention can make room, and facts wait behind it: the reason names the limit and the lever of
    that limit."""
    store = StoreStatus(
        artifact_bytes=4_000_000, artifact_bytes_lacking=2_000_000, artifact_limit=limit, artifact_bytes_max=most
    )
    verdict = assess(replace(healthy, store=store))
    (reason,) = verdict.reasons
    assert (verdict.level, verdict.alert, reason.subject) == (Level.FULL, True, "artifacts")
    assert reason.text == f"{limit} reached: artifacts {text}, and an artifact needs 2.0 MB more"
    assert reason.hint.startswith(hint)


def test_a_consumer_that_is_being_removed_is_no_problem(healthy: NodeSnapshot) -> None:
    """An operator has given up what it has not confirmed. One that has come back during the removal is a problem."""
    behind = {**UNREAD, "oldest_unconfirmed_age_s": 90_000.0, "hours_until_ttl_loss": 1.0}
    assert assess(spoilt(healthy, "consumers", **behind, state="deletion started")).reasons == ()
    assert assess(spoilt(healthy, "consumers", **behind, state="ineligible")).alert


@pytest.mark.parametrize("quota, held, is_told", [(1_000, 899, False), (1_000, 900, True), (0, 5_000, False)])
def test_a_zone_near_its_quota_of_artifacts(healthy: NodeSnapshot, quota: int, held: int, is_told: bool) -> None:
    """From nine tenths of the quota on there is a warning, before its artifacts are refused; without a quota none."""
    store = StoreStatus(
        artifact_unreferenced_bytes_max=quota, artifact_unreferenced=(UnreferencedStatus("plant-b", held),)
    )
    reasons = assess(replace(healthy, store=store)).reasons
    assert [(reason.level, reason.alert, "zone plant-b" in reason.text) for reason in reasons] == [
        (Level.LATE, False, True)
    ] * is_told


@pytest.mark.parametrize(
    "days, text", [(5.4, "ends in 5 days"), (1.0, "ends in 1 day"), (0.0, "ends within a day"), (-1.0, "has expired")]
)
def test_a_certificate_says_what_is_left_of_it(healthy: NodeSnapshot, days: float, text: str) -> None:
    """Which file, what is left of it (0.0: hours), also that nothing is, and the command that renews it."""
    (reason,) = assess(replace(healthy, certificate_days_left=days, certificate_file="/etc/bsfg/idmz.pem")).reasons
    assert reason.text == f"/etc/bsfg/idmz.pem {text}"
    assert reason.hint.startswith("at the authority: bsfg pki sign idmz")


def test_what_a_start_left_out(healthy: NodeSnapshot) -> None:
    """Each part is an alert under its own name, and says whether it runs as before or not at all. A source whose tag
    file was never right says one thing, not also that it has no connection."""
    parts = (NotInForceStatus("source meter", "port = 0", False), NotInForceStatus("peer idmz", "zone = 1", True))
    found = assess(replace(healthy, config_not_in_force=parts))
    assert [(reason.alert, reason.subject, reason.text) for reason in found.reasons] == [
        (True, "peer idmz", "goes on as it was last in force: zone = 1"),
        (True, "source meter", "is left out: port = 0"),
    ]
    waits = spoilt(healthy, "sources", connected=False, tags=0, tags_problem="plc.csv row 3", last_value_unix_ms=None)
    assert [reason.hint.partition(";")[0] for reason in assess(waits).reasons] == [
        "bsfg check lists the problems of the file"
    ]


def test_a_configuration_that_is_not_in_force_is_named(healthy: NodeSnapshot) -> None:
    """One that was refused is a fault, with its reason in one line. One that was only changed is none: it says what to
    do, as what waits for a restart does."""
    refused = assess(replace(healthy, config_refused="2 problems\n  port = 0\n  no zone", config_changed=True))
    (reason,) = refused.reasons
    assert (refused.level, reason.subject) == (Level.BROKEN, "node.toml")
    assert reason.text.endswith("stay in force: 2 problems; port = 0; no zone")
    changed = assess(replace(healthy, config_changed=True, config_waits=("broker.host",)))
    assert (changed.level, [reason.subject for reason in changed.reasons]) == (Level.GOOD, ["node.toml"] * 2)
    assert "bsfg reload" in changed.reasons[0].hint + changed.reasons[1].hint
    assert "broker.host" in changed.reasons[0].text + changed.reasons[1].text

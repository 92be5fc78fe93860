"""Two gateways of one zone: what each says of itself and of the other one, in its verdict, samples, metrics and
status."""

from dataclasses import replace

import pytest

from agent.cli.health.status import text
from agent.health.metrics import families
from agent.health.problems import Level
from agent.health.samples import health_samples, read_health
from agent.health.snapshot import (
    BrokerStatus,
    ConsumerStatus,
    NodeSnapshot,
    PairRefusal,
    PairSnapshot,
    PeerStatus,
    SourceStatus,
)
from agent.health.verdict import assess
from tests.cli.test_health import health_json
from tests.health.conftest import NOW_MS

PAIR = PairSnapshot("plant-a", "leads", 7, "plant-a-2", "plant-a", NOW_MS - 60_000, "follows", 200, "idmz", 100)
PULL = PeerStatus("plant-a", "facts.telemetry", True, 9, 9, 0.0, broker="pair")


@pytest.fixture
def leader(healthy: NodeSnapshot) -> NodeSnapshot:
    """The second gateway of a plant, which leads."""
    brokers = (BrokerStatus("pair", True, 1, zones=("plant-a",)), BrokerStatus("top", True, 1, zones=("idmz",)))
    consumer = ConsumerStatus("plant-a.facts.telemetry", "facts.telemetry", "plant-a", "online", 9, 0)
    own = {"zone": "plant-a", "node": "plant-a-2", "pair": PAIR}
    return replace(healthy, **own, brokers=brokers, peers=(PULL,), consumers=(consumer,))


def test_a_pair_that_is_well_is_good(leader: NodeSnapshot) -> None:
    """On both sides; the follower's sources stand by without a value, which is no problem."""
    assert assess(leader).level is Level.GOOD
    quiet = SourceStatus("line1", "opcua", True, None, tags=40, tags_silent=40, state="standby")
    follower = replace(PAIR, role="follows", partner_state="leads", leader="plant-a")
    assert assess(replace(leader, pair=follower, sources=(quiet,))).reasons == ()


def test_the_broker_of_the_pair_is_no_outage(leader: NodeSnapshot) -> None:
    """The box with the broker of the pair is dead: the leader is late, because its zone is recorded; the broker to the
    node above is another matter."""
    pair = replace(PAIR, partner_heard_ms=60_000)
    (first, second) = leader.brokers
    lost = replace(leader, pair=pair, brokers=(replace(first, connected=False), second))
    assert assess(lost).level is Level.LATE
    assert assess(lost).reasons[0].key.startswith("pair_broker_lost")
    cut = replace(leader, brokers=(first, replace(second, connected=False)))
    assert assess(cut).level is Level.BROKEN


@pytest.mark.parametrize("other", [True, False])
def test_one_of_two_gateways_below_is_no_outage(healthy: NodeSnapshot, other: bool) -> None:
    """A node above that hears one of two gateways of a zone is late, and says which one to start; hears it neither, it
    is broken."""
    pulls = [
        replace(PULL, zone=node, pair_zone="plant-a", connected=answers, lag_seconds=0.0 if answers else 40.0)
        for node, answers in (("plant-a", False), ("plant-a-2", other))
    ]
    verdict = assess(replace(healthy, zone="idmz", brokers=(BrokerStatus("pair", True, 2),), peers=tuple(pulls)))
    assert verdict.level is (Level.LATE if other else Level.BROKEN)
    assert verdict.alert is not other
    if other:
        assert "systemctl status bsfg@plant-a, there" in verdict.reasons[0].hint
        assert "the other gateway of plant-a answers" in verdict.reasons[0].text


ALONE = {"role": "alone", "partner_heard_ms": 10_001}
NO_LEADER = "no gateway of plant-a records, since 2026-11-18 11:05:40Z"


@pytest.mark.parametrize(
    "changes, problem, alert, said",
    [
        ({"partner_heard_ms": 10_001}, "pair_partner_silent", False, "plant-a, is silent: no answer for 10.0 s"),
        ({"partner_heard_ms": None}, "pair_partner_silent", False, "no answer yet"),
        ({"partner_clock_ahead_ms": 2_001}, "pair_clocks_differ", False, "plant-a's clock is 2.0 s ahead of this"),
        ({"partner_clock_ahead_ms": -3_600_000}, "pair_clocks_differ", False, "plant-a's clock is 60 min behind this"),
        ({"partner_heard_ms": 86_400_001}, "pair_partner_silent", True, "no answer for 24 h"),
        ({**ALONE, "witness_heard_ms": 20_000}, "pair_alone", False, "records and hears neither plant-a nor idmz"),
        ({**ALONE, "witness": ""}, "pair_alone", False, "records and does not hear plant-a, and has no witness"),
        ({"witness_heard_ms": 10_001}, "pair_witness_silent", False, "witness, idmz, is silent: no answer for 10.0 s"),
        ({"witness_heard_ms": None}, "pair_witness_silent", False, "idmz, is silent: no answer yet"),
        ({"witness_heard_ms": None, "witness": "", "partner_state": "leads"}, "pair_both_record", False, "both record"),
        ({"partner_state": "leads"}, "pair_both_record", False, "plant-a-2 and plant-a both record plant-a"),
        ({"role": "follows", "leader": "", "partner_state": "follows"}, "pair_no_leader", True, NO_LEADER),
    ],
)
def test_what_may_be_wrong(
    leader: NodeSnapshot, changes: dict[str, object], problem: str, alert: bool, said: str
) -> None:
    """Each problem, whether an operator must act, and its text."""
    (reason,) = assess(replace(leader, pair=replace(PAIR, **changes))).reasons
    assert (reason.problem.name.lower(), reason.alert) == (problem, alert)
    assert said in reason.text
    assert "{" not in reason.hint


@pytest.mark.parametrize(
    "refusal, said, todo",
    [
        (
            PairRefusal("plant-a", "lead_not_yours", "partner in [pair] here names no node", "Name both."),
            "plant-a does not know this node as one of a pair: partner in [pair] here names no node",
            'in node.toml of plant-a: [pair] with partner = "plant-a-2", then restart it',
        ),
        (
            PairRefusal("idmz", "lead_not_yours", "plant-a-2 is not one of two", "Name both."),
            "idmz does not know this node as one of a pair: plant-a-2 is not one of two",
            'in node.toml of idmz: a [[peer]] with zone = "plant-a" for each node, plant-a-2 and plant-a',
        ),
        (
            PairRefusal("plant-a", "", "the broker's rights forbid it", "bsfg broker config --link"),
            "plant-a cannot be asked who leads: the broker's rights forbid it",
            "bsfg broker config --link Is partner in [pair] the right name?",
        ),
    ],
    ids=["partner", "witness", "broker"],
)
def test_a_refusal_is_told_with_what_to_do(leader: NodeSnapshot, refusal: PairRefusal, said: str, todo: str) -> None:
    """A partner or witness that refuses is not silent: an operator must act, in the file of the one that refuses."""
    pair = replace(PAIR, partner_heard_ms=None if refusal.node == "plant-a" else 200, refusals=(refusal,))
    verdict = assess(replace(leader, pair=pair))
    assert [(reason.problem.name, reason.alert) for reason in verdict.reasons] == [("PAIR_REFUSED", True)]
    assert said in verdict.reasons[0].text
    assert todo in verdict.reasons[0].hint


@pytest.mark.parametrize("heard_ms, is_held", [(200, False), (3_000, True), (None, True)])
def test_a_silent_gateway_may_hold_a_device(leader: NodeSnapshot, heard_ms: int | None, is_held: bool) -> None:
    """A device that takes one connection is not free while the other gateway stands still: the lost source says so
    first, and an OPC UA server, which takes more, does not."""
    lost = SourceStatus("meter", "modbus", False, trouble="SourceLost: closed by the device")
    sources = (lost, replace(lost, name="plc", kind="opcua"))
    reasons = assess(replace(leader, pair=replace(PAIR, partner_heard_ms=heard_ms), sources=sources)).reasons
    hints = {reason.subject: reason.hint for reason in reasons if reason.problem.name == "SOURCE_LOST"}
    assert hints["source meter"].startswith("plant-a, if it stands still, may hold the only connection") == is_held
    assert "may hold" not in hints["source plc"]


def test_two_that_refuse_explain_a_gateway_that_is_alone(leader: NodeSnapshot) -> None:
    """It records alone because neither answers; their refusals come first."""
    refusals = tuple(PairRefusal(node, "lead_not_yours", "no", "") for node in ("plant-a", "idmz"))
    pair = replace(PAIR, role="alone", partner_heard_ms=None, refusals=refusals)
    found = [(reason.problem.name, reason.caused_by) for reason in assess(replace(leader, pair=pair)).reasons]
    assert found == [("PAIR_REFUSED", ()), ("PAIR_REFUSED", ()), ("PAIR_ALONE", ("pair",))]


def test_a_takeover_is_no_problem(leader: NodeSnapshot) -> None:
    """For some seconds the partner is silent, and neither leads, or a leader's last word is that it leads; and a node
    that has just started has heard nothing."""
    for changes in (
        {"partner_heard_ms": 9_000},
        {"role": "follows", "leader": "", "since_unix_ms": NOW_MS - 9_000},
        {"role": "alone", "partner_heard_ms": 9_000},
        {"partner_state": "leads", "partner_heard_ms": 1_600, "since_unix_ms": NOW_MS - 700},
    ):
        assert assess(replace(leader, pair=replace(PAIR, **changes))).reasons == ()
    new = replace(leader, started_unix_ms=NOW_MS - 5_000, pair=replace(PAIR, partner_heard_ms=None))
    assert assess(new).reasons == ()


def test_a_dead_partner_is_one_warning(leader: NodeSnapshot) -> None:
    """Its pulls are silent and its consumer falls behind: the first line says why, and the zone is late, not broken. A
    broker that is down explains it; a partner that answers and whose pull does not is a peer like any other."""
    late = replace(leader.consumers[0], behind_facts=5, oldest_unconfirmed_age_s=150.0)
    dead = replace(
        leader,
        pair=replace(PAIR, partner_heard_ms=150_000),
        peers=(replace(PULL, connected=False, lag_seconds=150.0),),
        consumers=(late,),
    )
    verdict = assess(dead)
    assert (verdict.level, verdict.alert) == (Level.LATE, False)
    assert [(reason.problem.name, reason.caused_by) for reason in verdict.reasons] == [
        ("PAIR_PARTNER_SILENT", ()),
        ("CONSUMER_BEHIND", ("pair",)),
    ]
    cut = assess(replace(dead, brokers=(replace(leader.brokers[0], connected=False), leader.brokers[1])))
    assert [(reason.problem.name, reason.caused_by) for reason in cut.reasons][:2] == [
        ("PAIR_BROKER_LOST", ()),
        ("PAIR_PARTNER_SILENT", ("broker pair",)),
    ]
    deaf = assess(replace(dead, pair=PAIR))
    assert deaf.reasons[0].problem.name == "PEER_SILENT"


def test_a_pair_is_recorded_and_measured(leader: NodeSnapshot) -> None:
    """The health names the zone, the role, the term and the other gateway; a node without a pair records none of them
    but its zone. The metrics have one role of three."""
    leader = replace(leader, pair=replace(PAIR, partner_clock_ahead_ms=1))
    samples = health_samples(leader, assess(leader))
    _, values = read_health((sample.definition.subject, 1, sample.value) for sample in samples)
    assert {name: value for name, value in values.items() if name.startswith("pair/")} == {
        "pair/role": "leads", "pair/term": 7, "pair/leader": "plant-a-2", "pair/partner": "plant-a",
        "pair/since_unix_ms": NOW_MS - 60_000, "pair/partner_heard_ms": 200, "pair/witness": "idmz",
        "pair/witness_heard_ms": 100, "pair/partner_clock_ahead_ms": 1,
    }  # fmt: skip
    assert values["zone"] == "plant-a"
    roles = {
        (sample.labels["role"], sample.value)
        for family in families(leader)
        for sample in family.samples
        if sample.name == "bsfg_pair_role"
    }
    assert roles == {("leads", 1), ("follows", 0), ("alone", 0)}
    single = replace(leader, pair=None)
    subjects = {sample.definition.subject for sample in health_samples(single, assess(single))}
    assert not [name for name in subjects if name.startswith("tag:bsfg/pair/")]


def test_the_status_has_a_line_for_the_pair(leader: NodeSnapshot) -> None:
    """By the node's name: what it does, and whom it hears."""
    lines = text(health_json(leader)).splitlines()
    assert lines[0] == "plant-a-2: good"
    (line,) = [line for line in lines if line.startswith("  pair ")]
    assert line.split() == (
        "pair plant-a leads for 60.0 s, term 7; plant-a heard 0.2 s ago, witness idmz heard 0.1 s ago".split()
    )
    deaf = replace(PAIR, role="follows", leader="", witness="", partner_heard_ms=None)
    assert "follows no node for 60.0 s, term 7; plant-a has not answered" in text(
        health_json(replace(leader, pair=deaf))
    )

"""A node's health as samples: which tags there are, what they hold, and that what is unknown is no older value."""

from dataclasses import replace

import msgspec

from agent.health.problems import RANK
from agent.health.samples import GOOD_NO_DATA, PARTS_MAX, HealthSample, folders, health_samples, level_of
from agent.health.snapshot import NodeSnapshot, PeerStatus
from agent.health.verdict import assess, since_of
from agent.message import Json, check_definition


def samples(snapshot: NodeSnapshot) -> dict[str, HealthSample]:
    """By path."""
    found = health_samples(snapshot, assess(snapshot))
    for sample in found:
        check_definition(sample.definition)
        assert sample.definition.source == "bsfg"
        assert sample.definition.description, sample.definition.subject
    return {sample.definition.subject.removeprefix("tag:bsfg/"): sample for sample in found}


def test_the_tags_of_a_healthy_node(healthy: NodeSnapshot) -> None:
    """Verdict with its names, figures with units, parts by name; a value that is unknown says so."""
    found = samples(healthy)
    assert (found["verdict"].value, found["verdict"].definition.enumeration) == (0, "0=good|1=late|2=full|3=broken")
    assert (found["store_fill_percent"].value, found["store_fill_percent"].definition.unit) == (3.5, "%")
    assert found["source/line1/connected"].value is True
    assert found["peer/plant/facts.telemetry/lag_seconds"].value == 0.0
    assert found["stream/facts.telemetry/hours_until_full"].quality == GOOD_NO_DATA
    assert found["reasons"].value == Json(b"[]")


def test_a_problem_is_told_with_what_to_do_and_since_when(healthy: NodeSnapshot) -> None:
    """The reasons are those of the status, and what lasts keeps its beginning though its text changes."""
    lost = replace(healthy, sources=(replace(healthy.sources[0], connected=False, trouble="refused"),))
    first = assess(lost)
    later = replace(lost, taken_unix_ms=lost.taken_unix_ms + 60_000, since=since_of(first), certificate_days_left=5.0)
    value = samples(later)["reasons"].value
    assert isinstance(value, Json)
    told = {reason["problem"]: reason for reason in msgspec.json.decode(value.data)}
    assert told["source_lost"]["since_unix_ms"] == lost.taken_unix_ms
    assert told["certificate_ends"]["since_unix_ms"] == later.taken_unix_ms
    assert "bsfg source test line1" in told["source_lost"]["hint"]
    assert samples(later)["since_unix_ms"].value == lost.taken_unix_ms
    assert samples(later)["verdict"].value == 3


def test_odd_names_and_many_parts(healthy: NodeSnapshot) -> None:
    """A name that would make other folders is written so that it is one; of many parts the worst are recorded."""
    odd = replace(healthy.brokers[0], name="a/b c")
    assert samples(replace(healthy, brokers=(odd,)))["broker/a%2Fb%20c/connected"].value is True
    peers = tuple(PeerStatus(f"p{n}", "s", n != 77, 0, 0) for n in range(1000))
    found = {path for path in samples(replace(healthy, peers=peers)) if path.endswith("/connected")}
    assert len([path for path in found if path.startswith("peer/")]) == PARTS_MAX
    assert "peer/p77/s/connected" in found


def test_values_are_read_by_part() -> None:
    """Fields of a kind by name; paths of other kinds, and of none, are not among them. No number means another
    level."""
    values = {"peer/a/s/lag_seconds": 1.0, "peer/a/s/connected": True, "verdict": 1, "store/file_bytes": 5}
    assert list(folders(values, "peer")) == [(("a", "s"), {"lag_seconds": 1.0, "connected": True})]
    assert [level_of(rank) for rank in RANK.values()] == list(RANK)
    assert level_of("x") is level_of(None) is level_of(9) is None

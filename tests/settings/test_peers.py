"""The rules of peers and brokers, each by itself, and what follows from their limits."""

import pytest

from agent.settings.peers import CONSUMERS_BESIDE_STREAMS, PeerLimits, PeerSettings
from agent.settings.store import HOURS_MAX, ZoneLimit

MIB = 1024 * 1024


def made(**settings: object) -> PeerSettings:
    """A peer that may fetch a stream and is pulled from."""
    return PeerSettings(**{"zone": "idmz", "broker": "b", "exports": ("a",), "pulls": ("b", "c"), **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings, fields",
    [
        ({}, []),
        ({"zone": "IDMZ"}, ["zone"]),
        ({"relays": ("plant-a", "Plant B")}, ["relays"]),
        ({"exports": ("Facts",)}, ["exports"]),
        ({"bytes_per_second_max": 16_383}, ["bytes_per_second_max"]),
        ({"bytes_per_second_max": 16_384}, []),
        ({"bytes_per_second_max": -1}, ["bytes_per_second_max"]),
        ({"answer_bytes_per_second_max": 16_383}, ["answer_bytes_per_second_max"]),
        ({"answer_bytes_per_second_max": 16_384}, []),
        ({"answer_bytes_per_second_max": -1}, ["answer_bytes_per_second_max"]),
        ({"hold_bytes_max": MIB - 1}, ["hold_bytes_max"]),
        ({"hold_bytes_max": MIB}, []),
        ({"hold_hours_max": -1.0}, ["hold_hours_max"]),
        ({"hold_hours_max": float(HOURS_MAX)}, []),
        ({"hold_hours_max": HOURS_MAX + 1.0}, ["hold_hours_max"]),
        ({"share_bytes": -1}, ["share_bytes"]),
        ({"share_bytes": 1, "pulls": ()}, ["share_bytes"]),
        ({"consumers_max": -1}, ["consumers_max"]),
        ({"consumers_max": 1_000}, []),
        ({"consumers_max": 1_001}, ["consumers_max"]),
        ({"requests_per_second_max": 0}, ["requests_per_second_max"]),
        ({"requests_per_second_max": 1}, []),
        ({"requests_per_second_max": 100_000}, []),
        ({"requests_per_second_max": 100_001}, ["requests_per_second_max"]),
        ({"anti_entropy_hours": 0.0}, []),
        ({"anti_entropy_hours": -1.0}, ["anti_entropy_hours"]),
        ({"anti_entropy_hours": float("inf")}, ["anti_entropy_hours"]),
        ({"anti_entropy_hours": float("nan")}, ["anti_entropy_hours"]),
    ],
)
def test_rules(settings: dict[str, object], fields: list[str]) -> None:
    """Each broken rule is named by its setting, and a value at its limit is accepted."""
    assert [field for field, _ in made(**settings).problems()] == fields


def test_limits_of_a_peer() -> None:
    """Each limit reaches what applies it. Without a number of consumers there are as many as exports, and eight more
    for readers by hand."""
    assert made().limits == PeerLimits(2 + CONSUMERS_BESIDE_STREAMS)
    limited = made(consumers_max=3, requests_per_second_max=7, answer_bytes_per_second_max=20_000)
    assert limited.limits == PeerLimits(3, 7, 20_000)
    assert made(pulls=()).zone_limit == ZoneLimit(zone="idmz")
    limited = made(
        hold_bytes_max=MIB, hold_hours_max=2.0, pulls=("a",), appends=("b", "a"), share_bytes=5, health=False
    )
    assert limited.zone_limit == ZoneLimit(MIB, 2.0, 5, frozenset({"a", "b"}), "idmz")


def test_health_goes_where_facts_go() -> None:
    """It is exported to a peer that takes facts from here, and pulled from one that gives some, unless it is switched
    off; a peer that does neither is not asked for it, and a name that is there already is not there twice."""
    assert made(exports=("a",), pulls=()).exports == ("a", "health")
    assert made(exports=(), pulls=("a", "health")).pulls == ("a", "health")
    assert (made(exports=("a",), health=False).exports, made(exports=(), pulls=(), asks=True).pulls) == (("a",), ())

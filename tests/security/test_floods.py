"""Floods of one zone: honest nodes stay connected, other zones are not answered `busy`, facts flow, and no process
ends. The delay of the facts is measured by `bsfg bench hostile`, not here."""

from typing import Any

import pytest

from tests.security.site import ENTERPRISE, EVIL, IDMZ, STREAM, Site, some
from tests.sim import scaled
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.system

BIG = {"consumer_name": f"{EVIL}.big", "stream": STREAM, "trail": [], "limit": 1_000_000, "bytes_max": 8_388_608}
FLOODS: dict[str, dict[str, Any]] = {
    "GetLatest": {
        "kind": "requests",
        "operation": "GetLatest",
        "fields": {"stream": STREAM},
        "open": 256,
        "sessions": 4,
    },
    "FetchFacts": {"kind": "requests", "operation": "FetchFacts", "fields": BIG, "open": 64, "sessions": 4},
    "GetDigests": {
        "kind": "requests",
        "operation": "GetDigests",
        "fields": {"stream": STREAM},
        "open": 256,
        "sessions": 4,
    },
    "parked fetches": {
        "kind": "requests",
        "operation": "FetchFacts",
        "fields": {"consumer_name": f"{EVIL}.{{n}}", "stream": STREAM, "limit": 1, "wait_ms": 60_000, "start": "end"},
        "open": 500,
        "sessions": 4,
    },
    "garbage": {"kind": "requests", "operation": "x" * 60_000, "fields": {}, "open": 64, "sessions": 4},
    "sessions that do not read": {"kind": "silent", "operation": "FetchFacts", "fields": BIG, "sessions": 30},
}
ROUNDS, LIMIT_MS = scaled(10, 500), int(1000 * LIMIT_S)


def fill(site: Site) -> None:
    """Two megabytes of facts that idmz exports to evil."""
    while site.end(IDMZ) < 60:
        site.append(IDMZ, content=b'"' + b"0123456789abcdef" * 2_500 + b'"')


@pytest.mark.parametrize("name", some(FLOODS, 2))
def test_a_flood_disconnects_no_zone_and_stops_no_fact(site: Site, name: str) -> None:
    """While one zone floods idmz, every honest node keeps its connection and its process, facts of the plant reach the
    enterprise, and a request of the enterprise is answered, not `busy`."""
    fill(site)
    connects = site.connects()
    with site.unharmed(), site.attacker.flooding(zone=EVIL, serving=IDMZ, **FLOODS[name]) as flood:
        wait_until(lambda: sum(site.attacker.counts(flood).values()) > 100, "the flood to begin")
        for _ in range(ROUNDS):
            answer = site.attacker.ask(ENTERPRISE, IDMZ, "GetBounds", stream=STREAM, limit_ms=LIMIT_MS)
            assert answer.get("status") == "ok", answer or "no answer"
        for _ in range(ROUNDS // 5):
            site.assert_honest_flow()
        assert site.connects() == connects
        print(f"{name}: {site.attacker.counts(flood)}")

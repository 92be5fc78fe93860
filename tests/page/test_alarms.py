"""The same question never has two answers: each problem is provoked, and `bsfg status`, its exit status, /healthz, the
metrics, the page of the zone, the fleet, the notices and a zone above, from what was recorded, say the same of it."""

import html
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.cli.health.status import exit_status, text
from agent.fact_store import StoreReader
from agent.health.problems import Level, Problem
from agent.health.snapshot import (
    AbuseStatus,
    BrokerStatus,
    CatchUpStatus,
    HistoryStatus,
    NodeSnapshot,
    NotInForceStatus,
    PairRefusal,
    PairSnapshot,
    PeerStatus,
    ShareStatus,
    StoreStatus,
    UnreferencedStatus,
)
from agent.health.verdict import assess
from agent.page.fleet import ZoneRow, fleet_rows
from agent.page.health_tail import HealthTail
from agent.page.notify import NoticeCore, NoticeKind
from tests.health.conftest import NOW_MS
from tests.health.test_verdict import CASES, changed
from tests.page.conftest import Site, record_health, store_with

CHANGED = "ServerCertificateChanged: the server's certificate changed; bsfg opcua trust aa"
BEHIND = {"behind_facts": 7, "oldest_unconfirmed_age_s": 7200.0}
PAIR = PairSnapshot("idmz", "leads", 7, "idmz", "idmz-2", NOW_MS - 60_000, "follows", 200)
PROVOKED = {
    "disk full": {"store": StoreStatus(appends_refused="the disk is full", refused_since_unix_ms=NOW_MS - 300_000)},
    "share used up": {"store": StoreStatus(shares_used_up=(ShareStatus("plant", "its share is used up"),))},
    "broker abused": {"broker_abuses": (AbuseStatus("evil", "has 300 sessions at the broker", 300),)},
    "full soon": {"store_fill_percent": 10.0, "streams": {"hours_until_full": 20.0}, "consumers": BEHIND},
    "log held": {"store": StoreStatus(log_bytes=2_000_000_000)},
    **{
        kind: {"history": (HistoryStatus(kind, "facts.operational of plant-a", "after sequence 5"),)}
        for kind in ("restored", "branch", "gap", "fork", "refused", "facts_expired")
    },
    "artifacts full": {"store": StoreStatus(artifact_limit="disk", artifact_bytes_lacking=9)},
    "quota": {
        "store": StoreStatus(artifact_unreferenced_bytes_max=10, artifact_unreferenced=(UnreferencedStatus("a", 10),))
    },
    "refused settings": {"config_refused": "[[peer]]: zone is missing"},
    "part refused": {"config_not_in_force": (NotInForceStatus("source a", "no file", is_kept=False),)},
    "changed settings": {"config_changed": True},
    "settings wait": {"config_waits": ("node.zone",)},
    "server changed": {"sources": {"connected": False, "trouble": CHANGED}},
    "source refuses": {"sources": {"connected": False, "trouble": "SourceRefused: not trusted; trust it"}},
    "tags missing": {"sources": {"tags": 0, "tags_problem": "no plc.csv"}},
    "tags refused": {"sources": {"tags": 4, "tags_problem": "plc.csv row 3"}},
    "device clock": {"sources": {"clock_ahead_s": 7250.0}},
    "page waits": {"peers": {"page_waits": "StoreFull"}},
    "catches up": {"peers": {"lag_seconds": 900.0, "catch_up": CatchUpStatus(0, 50.0, 100.0, 60.0)}},
    "one gateway below silent": {
        "peers": tuple(
            PeerStatus(node, "facts.telemetry", answers, 9, 9, 0.0, pair_zone="plant")
            for node, answers in (("plant", False), ("plant-2", True))
        )
    },
    "broker of the pair": {"pair": PAIR, "brokers": (BrokerStatus("pair", False, 1, zones=(PAIR.partner,)),)},
    "second gateway silent": {"pair": replace(PAIR, partner_heard_ms=60_000)},
    "gateways' clocks": {"pair": replace(PAIR, partner_clock_ahead_ms=-61_000)},
    "gateway alone": {"pair": replace(PAIR, role="alone", partner_heard_ms=60_000)},
    "both gateways": {"pair": replace(PAIR, partner_state="leads")},
    "no pair at the other gateway": {
        "pair": replace(PAIR, refusals=(PairRefusal("idmz-2", "lead_not_yours", "no", ""),))
    },
    "declined at the other gateway": {
        "history": (HistoryStatus("declined", "facts.telemetry of idmz/0", "no record"),)
    },
    "witness silent": {"pair": replace(PAIR, witness="top", witness_heard_ms=60_000)},
    "no gateway": {"pair": replace(PAIR, role="follows", leader="")},
    "loses": {"streams": {"ttl_hours": 48.0}, "consumers": BEHIND | {"hours_until_ttl_loss": 2.0}},
}


@pytest.fixture
def row_above(tmp_path: Path, healthy: NodeSnapshot) -> Iterator[Callable[[NodeSnapshot], ZoneRow]]:
    """What a store that holds a zone's health says of it."""
    (tmp_path / "above").mkdir()
    with store_with(tmp_path / "above", healthy) as store, closing(StoreReader(store.path)) as reader:
        tail = HealthTail(reader)

        def row(snapshot: NodeSnapshot) -> ZoneRow:
            record_health(store, snapshot)
            tail.read(NOW_MS)
            (row,) = fleet_rows(tail.zones.values(), NOW_MS + 1000)
            return row

        yield row


async def test_every_face_says_the_same(
    site: Site, healthy: NodeSnapshot, row_above: Callable[[NodeSnapshot], ZoneRow]
) -> None:
    """The first reason in words, what to do, the level and whether somebody must act, of each problem that there is."""
    seen = set[Problem]()
    for name, changes in {**{name: found for name, found, _ in CASES}, **PROVOKED}.items():
        site.snapshot = snapshot = changed(healthy, changes)
        verdict = assess(snapshot)
        seen |= {reason.problem for reason in verdict.reasons}
        await site.watch.look()
        rows = site.watch.rows()
        status, _, body = await site.get("/healthz")
        brief, found = json.loads(body), json.loads((await site.get("/healthz?all"))[2])
        assert brief.items() <= found.items(), name
        printed = " ".join(text(found).split())
        metrics = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families((await site.get("/metrics"))[2])
            for sample in family.samples
        }
        shown = html.unescape((await site.get("/zone/idmz"))[2])
        notices = NoticeCore(0, 0).decide(rows, NOW_MS)
        level, alert = verdict.level, verdict.alert
        assert (found["verdict"], found["alert"], status) == (level.value, alert, 503 if alert else 200), name
        assert exit_status(found) == (0 if not alert else 3 if level is Level.LATE else 1), name
        assert metrics["bsfg_node_up",] == 1, name
        for kind, *zone in (("node",), ("zone", "idmz")):
            assert metrics[f"bsfg_{kind}_verdict", level.value, *zone] == 1, name
            assert metrics[f"bsfg_{kind}_alert", *zone] == alert, name
        assert [(row.zone, row.level, row.alert) for row in rows] == [("idmz", level, alert)], name
        assert rows == [row_above(snapshot)], name
        assert [notice.event for notice in notices] == [NoticeKind.RAISED] * alert, name
        assert f"idmz is {level.value}" in shown, name
        for reason in verdict.reasons[:1]:
            said = f"{reason.subject}: {reason.text}"
            assert said in printed, name
            assert " ".join(reason.hint.split()) in printed, name
            assert (rows[0].what, rows[0].hint) == (said, reason.hint), name
            assert said in shown, name
            assert reason.hint in shown, name
            assert all((notice.what, notice.hint) == (said, reason.hint) for notice in notices), name
    assert seen == set(Problem)

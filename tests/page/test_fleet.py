"""The fleet: worst first, silent zones found by the age of their health, and one sentence, whatever a zone has sent; of
a plant with two gateways one row with both beneath it, judged by the one that leads, whatever others claim."""

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.fact_store import FactStore, StoreReader
from agent.health.problems import Level
from agent.health.snapshot import STANDBY, ClockChangeStatus, NodeSnapshot, PairSnapshot, SourceStatus
from agent.health.verdict import assess
from agent.message import HEALTH_STREAM
from agent.page.fleet import ZoneRow, fleet_rows, fleet_sentence, matching, zone_row
from agent.page.health_tail import HealthTail, ZoneHealth
from agent.page.named_ends import WAIT_MS
from agent.page.watch import own_health
from agent.page.zone_view import zone_view
from agent.positions import Position
from agent.query.scan import scanner
from agent.settings.node import IdentitySettings
from tests.fact_store.making import TELEMETRY, Elsewhere, done, parsed
from tests.health.conftest import NOW_MS
from tests.page.conftest import Site, at, healthy, record_health, store_with
from tests.page.zones import Zones, gateway
from tests.support.received import put_page

__all__ = ["healthy"]
HOUR_MS = 3_600_000


def zone(name: str, verdict: object = 0, age_s: float = 10, **values: Any) -> ZoneHealth:
    """A zone that said this some seconds ago."""
    return ZoneHealth(name, NOW_MS - round(age_s * 1000), {"verdict": verdict, "alert": verdict == 3, **values})


LOST = [{"subject": "source press", "text": "not connected", "hint": "look at its cable", "alert": True}]


def test_worst_first_and_equal_ones_by_name() -> None:
    """Broken, full, late, good; two of a kind in the order of their names."""
    zones = [zone("d"), zone("b", 3, reasons=LOST), zone("a"), zone("c", 2), zone("e", 1), zone("f", 3)]
    rows = fleet_rows(zones, NOW_MS)
    assert "".join(row.zone for row in rows) == "bfcead"
    assert fleet_sentence(rows) == "2 of 6 zones are broken, 1 full, 1 late."
    assert (rows[0].what, rows[0].hint) == ("source press: not connected", "look at its cable")
    assert [row.zone for row in matching(rows, "PRESS broken")] == ["b"]


def test_a_silent_zone_is_late_and_then_broken() -> None:
    """Since its newest health, with what it was then; a zone whose verdict was worse keeps it."""
    for age_s, verdict, level in (
        (60, 0, Level.GOOD),
        (120, 0, Level.LATE),
        (200, 0, Level.BROKEN),
        (120, 2, Level.FULL),
    ):
        row = zone_row(zone("a", verdict, age_s, reasons=LOST), NOW_MS)
        assert row.level is level, age_s
        assert row.what.startswith("silent: no health for") is (age_s > 90)
        assert row.alert is (age_s > 180)
    assert row.since_unix_ms == NOW_MS - 120_000
    assert "silent" not in {name for name, *_ in row.alerts}, "it is no alert yet"
    assert zone_row(zone("a", 0, 120, **{"peer/b/s/lag_seconds": 0.1}), NOW_MS).behind_s is None, "not known any more"
    assert "it was full then (source press: not connected)" in row.what


def test_health_that_comes_with_old_times_is_told_from_silence() -> None:
    """A clock that is an hour behind does not send somebody to look for a dead node; once nothing comes, it does."""
    for arrived_s, said in (
        (20, "silent: no health for 60 min by its clock, though some came 20 s ago; it was good then"),
        (400, "silent: no health for 60 min; it was good then"),
    ):
        row = zone_row(replace(zone("a", 0, 3_600), arrived_unix_ms=NOW_MS - arrived_s * 1000), NOW_MS)
        assert (row.level, row.alert, row.what.startswith(said)) == (Level.BROKEN, True, True), row.what
        assert ("clock" in row.hint) is (arrived_s == 20)


def test_a_clock_that_is_ahead_hides_neither_silence_nor_what_comes_later(
    tmp_path: Path, healthy: NodeSnapshot
) -> None:
    """Health is as old as its arrival; and what a zone says once its clock is set back counts at once."""
    now_ms = time.time_ns() // 1_000_000
    with (
        store_with(tmp_path, replace(healthy, taken_unix_ms=now_ms)) as store,
        closing(StoreReader(store.path)) as reader,
    ):
        tail = HealthTail(reader)
        for ahead_ms in (0, HOUR_MS):
            record_health(store, replace(healthy, taken_unix_ms=now_ms + ahead_ms))
            tail.read(now_ms)
        begun_now = HealthTail(reader)
        begun_now.read(now_ms)
        for found in (tail, begun_now):
            assert zone_row(found.zones["idmz"], now_ms + 300_000).what.startswith("silent: no health for")
        corrected = time.time_ns() // 1_000_000
        record_health(store, replace(healthy, taken_unix_ms=corrected, sources=()))
        tail.read(corrected)
        assert not [path for path in tail.zones["idmz"].values if path.startswith("source/")]
        record_health(store, replace(healthy, taken_unix_ms=corrected - HOUR_MS))
        for later_ms, at_ms in ((30_000, corrected), (120_000, corrected - HOUR_MS)):
            tail._end_offset -= later_ms == 120_000  # something has come
            tail.read(corrected + later_ms)
            assert tail.zones["idmz"].at_unix_ms == at_ms, "health that is late, or a clock that was set back"


def test_how_late_and_how_long() -> None:
    """The longest wait of any consumer or pull, and the first stream that will be full."""
    row = zone_row(
        zone(
            "a",
            **{
                "consumer/up.s/oldest_unconfirmed_age_s": 40.0,
                "consumer/up.t/oldest_unconfirmed_age_s": None,
                "peer/b/s/lag_seconds": 70.5,
                "stream/s/hours_until_full": 30.0,
                "stream/t/hours_until_full": 20.0,
            },
        ),
        NOW_MS,
    )
    assert (row.behind_s, row.hold_hours) == (70.5, 20.0)


def test_whatever_a_zone_has_sent_is_a_row() -> None:
    """Wrong types, no verdict, health from the future: a row, and a zone without a verdict is broken."""
    for values in ({}, {"verdict": "x"}, {"verdict": 99, "reasons": "y", "alert": 1, "since_unix_ms": "never"}):
        assert zone_row(ZoneHealth("a", NOW_MS + 10**9, dict(values)), NOW_MS).level is Level.BROKEN
    odd = {
        "verdict": 0, "reasons": [1, {"subject": 5}], "consumer/x/oldest_unconfirmed_age_s": "soon", "peer/b": 1,
        "peer/c/s/lag_seconds": 10**400, "stream/s/hours_until_full": float("nan"),
    }  # fmt: skip
    row = zone_row(ZoneHealth("a", NOW_MS, odd), NOW_MS)
    assert (row.level, row.behind_s, row.to_json()["level"]) == (Level.GOOD, None, "good")


def test_the_sentence_of_few() -> None:
    """No zone, one, and all good."""
    assert fleet_sentence([]) == "No zone has sent its health yet."
    assert fleet_sentence(fleet_rows([zone("a")], NOW_MS)) == "The one zone is good."
    assert fleet_sentence(fleet_rows([zone("a", 3)], NOW_MS)) == "The one zone is broken."
    assert fleet_sentence(fleet_rows([zone("a"), zone("b")], NOW_MS)) == "All 2 zones are good."
    assert fleet_sentence(fleet_rows([zone("a", 1), zone("b")], NOW_MS)) == "1 of 2 zones is late."


def test_the_first_look_goes_back_as_far_as_it_must(
    tmp_path: Path, healthy: NodeSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With health of every zone found, older health is not even listed. A zone that has been silent for long is found,
    too."""
    monkeypatch.setattr(scanner, "SUMMARIES_PAGE", 2)
    asked, summaries = list[int](), StoreReader.summaries

    def counted(self: StoreReader, stream: str, first: int, last: int, limit: int, **options: Any) -> list[Any]:
        asked.append(last)
        return summaries(self, stream, first, last, limit, **options)

    monkeypatch.setattr(StoreReader, "summaries", counted)
    moments = [at(healthy, n * 60_000) for n in range(9)]
    with store_with(tmp_path, *moments) as store, closing(StoreReader(store.path)) as reader:
        tail = HealthTail(reader)
        tail.read(NOW_MS)
        listed = len(asked)
        assert tail.zones["idmz"].at_unix_ms == moments[-1].taken_unix_ms
        Zones(store).send(replace(moments[0], zone="plant-b"))
        for moment in moments:
            record_health(store, replace(moment, taken_unix_ms=moment.taken_unix_ms + HOUR_MS))
        asked.clear()
        assert HealthTail(reader).read(NOW_MS) == {"idmz", "plant-b"}
    assert (listed, len(asked)) == (1, 5), "not as far back as the first"


def test_zones_share_their_definitions_and_paths(tmp_path: Path, healthy: NodeSnapshot) -> None:
    """What a thousand nodes have alike, the definition of a tag of health and its path, is in memory once."""
    (tmp_path / "state").mkdir()
    with FactStore.open(tmp_path / "state" / "facts.db", "idmz") as store, closing(StoreReader(store.path)) as reader:
        Zones(store).send(*(replace(healthy, zone=name) for name in "ab"))
        tail = HealthTail(reader)
        assert tail.read(NOW_MS) == {"a", "b"}
        chains = [tail.dictionary.of(zone, end) for zone, end in reader.definition_ends()]
        assert [chain.zone for chain in chains] == ["a", "b"]
        assert all(tag is other_tag for tag, other_tag in zip(*(chain.tags for chain in chains), strict=True))
        paths = [sorted(tail.zones[name].values) for name in "ab"]
        assert all(name is other_name for name, other_name in zip(*paths, strict=True))


def test_an_arrow_shows_the_latest_of_the_worst_streams() -> None:
    """As the sentence above it: a stream that is cut before one that flows, and of two the one that is further
    behind."""
    pulls = (("a", True, 90.0), ("b", False, 0.6), ("c", False, 5.4), ("d", False, None))
    values = {
        f"peer/idmz/{stream}/{name}": value
        for stream, connected, lag_s in pulls
        for name, value in (("connected", connected), ("lag_seconds", lag_s))
    }
    health = ZoneHealth("top", NOW_MS, {"verdict": 3, **values})
    for consumer, behind, waited_s in (("up.a", 7, 700.0), ("up.b", 5, 2.0), ("local.mes", 3, 1.5)):
        health.values[f"consumer/{consumer}/behind_facts"] = behind
        health.values[f"consumer/{consumer}/oldest_unconfirmed_age_s"] = waited_s
    view = zone_view(health, zone_row(health, NOW_MS))
    (arrow,) = view.below
    assert (arrow.zone, arrow.state, arrow.text, arrow.title) == ("idmz", "cut", "cut, 5.4 s behind", "c")
    above = [(arrow.zone, arrow.state, arrow.text, arrow.title) for arrow in view.above]
    assert above == [
        ("up", "cut", "7 wait for 12 min", "a"),
        ("programs here", "flowing", "1.5 s behind", "mes"),
    ]


@pytest.mark.parametrize(
    "source, delivering",
    [
        ({}, 1),
        ({"tags_bad": 1}, 1),
        ({"tags_silent": 3}, 1),
        ({"tags_bad": 1, "tags_silent": 3}, 0),
        ({"tags_bad": 4}, 0),
        ({"tags_bad": 4, "state": STANDBY}, 1),
        ({"connected": False, "trouble": "SourceLost: gone"}, 0),
    ],
)
def test_a_source_is_as_the_verdict_has_it(healthy: NodeSnapshot, source: dict[str, Any], delivering: int) -> None:
    """The row of a source and the sentence do not contradict what needs a hand: a source whose tags are all bad
    delivers nothing."""
    snapshot = replace(healthy, sources=(replace(SourceStatus("press", "opcua", True, tags=4), **source),))
    verdict = assess(snapshot)
    health = own_health(snapshot, verdict)
    view = zone_view(health, zone_row(health, NOW_MS))
    assert view.sources[0]["level"] == verdict.level.value
    assert f"{delivering} of 1 sources " in view.more


async def test_of_many_parts_the_worst_are_listed_and_all_are_counted(site: Site, healthy: NodeSnapshot) -> None:
    """Of three hundred sources, twelve of which are lost, and a thousand pulls, the page counts as many as the
    status; and like that it says which clock was set."""
    sources = tuple(SourceStatus(f"s{n}", "modbus", n >= 12, tags=4, trouble="gone") for n in range(300))
    peers = tuple(replace(healthy.peers[0], zone=f"p{n}") for n in range(1_000))
    clocks = (ClockChangeStatus("p1", "set back by 60 min at 2026-11-30 15:29:00Z, to 2026-11-30 14:29:00Z"),)
    site.snapshot = replace(healthy, sources=sources, peers=peers, clock_changes=clocks)
    await site.watch.look()
    _, _, body = await site.get("/zone/idmz")
    for said in ("288 of 300 sources deliver; 1,000 of 1,000 pulls run", ">300 sources</a>", ">288 of 300 connected<"):
        assert said in body, said
    assert 'clock of p1</th><td>set back by 60 min at <time datetime="2026-11-30T15:29:00Z"' in body
    assert "the worst 50 of 300: <code>bsfg source list</code>" in body
    assert "and 2 more: <code>bsfg status --all</code>" in body


def box(node: str, role: str, term: int = 7, age_s: float = 10, **changes: Any) -> ZoneHealth:
    """A gateway of plant-a that said this some seconds ago; it has its role for an hour."""
    at_ms = NOW_MS - round(age_s * 1000)
    partner = "plant-a" if node == "plant-a-2" else "plant-a-2"
    values = {
        "zone": "plant-a", "verdict": 0, "alert": False, "pair/role": role, "pair/term": term, "pair/partner": partner,
        "pair/since_unix_ms": NOW_MS - HOUR_MS,
    }  # fmt: skip
    return ZoneHealth(node, at_ms, values | changes)


def row_of(*zones: ZoneHealth) -> ZoneRow:
    """The one row of these."""
    (row,) = fleet_rows(zones, NOW_MS)
    return row


LOST_ONE = {"verdict": 3, "alert": True, "reasons": [{"subject": "source press", "text": "gone", "hint": "look"}]}


def test_a_plant_is_one_row_with_both_gateways() -> None:
    """The leader first, also if it is not named like the zone; the search finds the plant by either."""
    row = row_of(box("plant-a", "follows"), box("plant-a-2", "leads"))
    assert (row.zone, row.node, row.level, row.what) == ("plant-a", "plant-a-2", Level.GOOD, "")
    assert [(member.node, member.role, member.is_recording) for member in row.gateways] == [
        ("plant-a-2", "leads", True),
        ("plant-a", "follows", False),
    ]
    assert fleet_sentence([row]) == "The one zone is good."
    assert matching([row], "plant-a-2 good") == [row]
    assert [member["role"] for member in row.to_json()["gateways"]] == ["leads", "follows"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "first, second, level, alert, what",
    [
        (box("plant-a", "leads", **LOST_ONE), box("plant-a-2", "follows"), Level.BROKEN, True, "source press: gone"),
        (
            box("plant-a", "leads"),
            box("plant-a-2", "follows", **LOST_ONE),
            Level.LATE,
            False,
            "plant-a-2: source press",
        ),
        (box("plant-a", "leads"), box("plant-a-2", "follows", age_s=300), Level.LATE, False, "plant-a-2: silent: no"),
        (box("plant-a", "leads", 7, 300), box("plant-a-2", "leads", 8), Level.LATE, False, "plant-a: silent: no"),
        (box("plant-a", "leads", 7, 300), box("plant-a-2", "follows", 7, 400), Level.BROKEN, True, "silent: no health"),
        (
            box("plant-a", "follows", **LOST_ONE),
            box("plant-a-2", "follows"),
            Level.LATE,
            False,
            "plant-a: source press",
        ),
    ],
)
def test_the_leader_decides(first: ZoneHealth, second: ZoneHealth, level: Level, alert: bool, what: str) -> None:
    """The plant is what its leader is; whatever is wrong with the other gateway is a warning. With both silent the
    plant is silent."""
    row = row_of(first, second)
    assert (row.level, row.alert) == (level, alert)
    assert row.what.startswith(what)


def test_a_leader_that_has_died_has_led() -> None:
    """Its last health says that it leads; the other one began after that, with a higher term, and says so at once. Both
    that are alone record."""
    dead, new = box("plant-a", "leads", 7, 60), box("plant-a-2", "leads", 8, 5)
    row = row_of(dead, replace(new, values=new.values | {"pair/since_unix_ms": new.at_unix_ms}))
    assert [(member.node, member.role) for member in row.gateways] == [("plant-a-2", "leads"), ("plant-a", "led")]
    row = row_of(box("plant-a", "alone"), box("plant-a-2", "alone", 8))
    assert [(member.role, member.is_recording) for member in row.gateways] == [("records alone", True)] * 2


def deaf(node: str, role: str, term: int = 8, heard_ms: int | None = 54_000, **changes: Any) -> ZoneHealth:
    """A gateway that said five seconds ago that it does not hear the other one."""
    reasons = [{"subject": "pair", "text": "the other gateway is silent", "hint": "start it"}]
    told = {"verdict": 1, "reasons": reasons, "pair/partner_heard_ms": heard_ms, "started_unix_ms": NOW_MS - 60_000}
    return box(node, role, term, 5, **(told | changes))


def test_a_gateway_that_its_partner_does_not_hear_is_silent() -> None:
    """At once, though its last health says that it is good and leads: the one that lives speaks for the plant, also
    before it records. Newer health of the gateway outweighs that: only the way between both is cut. Only the partner
    is believed."""
    silent = ("plant-a", "silent", False, Level.LATE, "no answer to plant-a-2 for 59 s", None)
    for partner in (
        deaf("plant-a-2", "leads"),
        deaf("plant-a-2", "follows", 7),
        deaf("plant-a-2", "alone", heard_ms=None, started_unix_ms=NOW_MS - 59_000),
    ):
        row = row_of(box("plant-a", "leads", 7, 58), partner)
        assert (row.node, row.level, row.what) == ("plant-a-2", Level.LATE, "pair: the other gateway is silent")
        dead = row.gateways[1]
        found = (dead.node, dead.role, dead.is_recording, dead.level, dead.what, dead.role_since_unix_ms)
        assert found == silent
    row = row_of(box("plant-a", "leads", 7, 300), deaf("plant-a-2", "leads", heard_ms=299_000))
    assert row.gateways[1].what.startswith("no health for 5 min"), "as before, once its health is old"
    row = row_of(box("plant-a", "alone", 7, 50), deaf("plant-a-2", "alone"))
    assert [member.role for member in row.gateways] == ["records alone"] * 2
    for heard in (
        deaf("plant-a-2", "leads", heard_ms=200),
        deaf("plant-a-2", "leads", heard_ms=None, started_unix_ms=0),
    ):
        row = row_of(box("plant-a", "follows", 8, 58), replace(heard, values=heard.values | {"started_unix_ms": None}))
        assert row.gateways[1].level is Level.GOOD
    evil = replace(deaf("plant-a-2", "leads"), zone="evil")
    rows = fleet_rows([box("plant-a", "leads"), box("plant-a-2", "follows"), evil], NOW_MS)
    assert next(row for row in rows if row.zone == "plant-a").gateways[0].level is Level.GOOD


def test_only_gateways_that_name_each_other_are_one_plant() -> None:
    """A node that claims a zone of others is a zone of its own, whatever role it claims; a gateway whose partner has no
    health here stands for its zone, and the partner is named."""
    honest = box("plant-a", "leads", **LOST_ONE), box("plant-a-2", "follows")
    evil = replace(box("plant-a-2", "leads", 99), zone="evil")
    rows = fleet_rows(
        [*honest, evil, replace(evil, zone="worse", values=evil.values | {"pair/partner": "evil"})], NOW_MS
    )
    assert [(row.zone, len(row.gateways)) for row in rows] == [("plant-a", 2), ("evil", 1), ("worse", 1)]
    assert (rows[0].level, rows[0].node) == (Level.BROKEN, "plant-a")
    row = row_of(box("plant-a-2", "leads"))
    assert (row.zone, row.node, row.level) == ("plant-a", "plant-a-2", Level.GOOD)
    assert [(member.node, member.role) for member in row.gateways] == [
        ("plant-a-2", "leads"),
        ("plant-a", "no health here"),
    ]
    odd = {"zone": 5, "pair/role": [1], "pair/term": "x", "pair/partner": {}, "pair/since_unix_ms": None, "verdict": 0}
    assert row_of(ZoneHealth("a", NOW_MS, odd)).zone == "a"


def pair(role: str, node: str, **changes: Any) -> NodeSnapshot:
    """A gateway of plant-a with all its parts."""
    partner = "plant-a" if node == "plant-a-2" else "plant-a-2"
    leader = node if role == "leads" else partner
    state = "follows" if role == "leads" else "leads"
    told = PairSnapshot("plant-a", role, 7, leader, partner, NOW_MS - HOUR_MS, state, 200, "idmz", 100)
    return replace(gateway("plant-a", NOW_MS), node=node, pair=told, **changes)


async def test_the_page_of_a_plant_and_of_each_gateway(site: Site) -> None:
    """From stored health: the fleet has one row with two beneath; the zone's page has both, and what the leader has;
    each gateway has a page of its own, and its health is found under its name."""
    with FactStore.open(site.watch.node.store_file.with_name("above.db"), "idmz") as store:
        Zones(store).send(pair("follows", "plant-a"), pair("leads", "plant-a-2", store_fill_percent=41.0))
        with closing(StoreReader(store.path)) as reader:
            tail = HealthTail(reader)
            assert tail.read(NOW_MS) == {"plant-a", "plant-a-2"}
            found = dict(tail.zones)
    await site.watch.look()
    site.watch.zones |= found
    site.watch._rows = None
    body = (await site.get("/fleet"))[2]
    assert "All 2 zones are good." in body
    assert body.count('<tr class="gateway">') == 2
    assert '<a href="/zone/plant-a-2">' not in body, "it is no plant"
    assert 'href="/zone/plant-a?gateway=plant-a-2">plant-a-2</a>' in body
    for path, sentence, fill in (
        ("/zone/plant-a", "plant-a is good.", "41 %"),
        ("/zone/plant-a?gateway=plant-a", "Gateway plant-a of plant-a is good.", "22 %"),
        ("/zone/plant-a?gateway=plant-a-2", "Gateway plant-a-2 of plant-a is good.", "41 %"),
        ("/zone/plant-a-2", "Gateway plant-a-2 of plant-a is good.", "41 %"),
    ):
        body = (await site.get(path))[2]
        assert f"<h1>{sentence}</h1>" in body, path
        assert f"{fill} taken by what cannot be freed" in body, path
        assert "Gateways of plant-a" in body
        assert '<a href="/tags?zone=plant-a&amp;q=press">' in body, "its facts are the zone's"
    assert "/tag?zone=plant-a-2&amp;tag=tag%3Absfg%2Fstore_fill_percent" in body, "its health is its own"
    for path in ("/zone/plant-a?gateway=idmz", "/zone/idmz?gateway=plant-a", "/zone/idmz?gateway=nowhere"):
        assert (await site.get(path))[0] == 404, path
    metrics = (await site.get("/metrics"))[2]
    assert 'bsfg_gateway_records{node="plant-a-2",zone="plant-a"} 1.0' in metrics
    assert 'bsfg_zone_verdict{verdict="good",zone="plant-a"} 1.0' in metrics
    assert 'zone="plant-a-2"' not in metrics


async def test_the_page_of_a_gateway_that_its_partner_does_not_hear(site: Site) -> None:
    """It is not good in the fleet, on the page of its plant, on its own, or as a metric."""
    await site.watch.look()
    site.watch.zones |= {"plant-a": box("plant-a", "leads", 7, 58), "plant-a-2": deaf("plant-a-2", "leads")}
    site.watch._rows = None
    for path in ("/fleet", "/zone/plant-a"):
        assert "no answer to plant-a-2 for" in (await site.get(path))[2], path
    body = (await site.get("/zone/plant-a?gateway=plant-a"))[2]
    assert "<h1>Gateway plant-a of plant-a is late: silent: no answer to plant-a-2 for" in body
    assert "systemctl status bsfg@plant-a, there" in body
    assert 'bsfg_gateway_records{node="plant-a",zone="plant-a"} 0.0' in (await site.get("/metrics"))[2]


async def test_the_page_on_a_gateway(site: Site) -> None:
    """That of the follower: its own page is its own, that of the zone is the leader's, and a pair is no fleet."""
    site.watch.node = IdentitySettings("plant-a", site.watch.node.state_dir, "plant-a-2")
    site.snapshot = pair("follows", "plant-a-2")
    await site.watch.look()
    own = site.watch.zones["plant-a-2"]
    site.watch.zones, site.watch._rows = {"plant-a-2": own}, None
    body = (await site.get("/"))[2]
    assert "Gateway plant-a-2 of plant-a is good." in body
    assert "no health here" in body
    site.watch.zones, site.watch._rows = {"plant-a-2": own, "plant-a": box("plant-a", "leads")}, None
    assert not site.watch.has_zones_below
    assert site.watch.own_path == "/zone/plant-a-2"
    assert site.watch.rows()[0].node == "plant-a"
    site.snapshot = None
    await site.watch.look()
    assert "the node does not answer" in (await site.get("/zone/plant-a-2"))[2]


def test_ends_are_compared_by_the_zone_that_they_name(tmp_path: Path) -> None:
    """The leader, which is named otherwise than its zone, names ten facts of the zone, of which five are here, and its
    own health, which is here: after ten minutes its zone is withheld. A gateway that follows names none of them."""
    with FactStore.open(tmp_path / "facts.db", "enterprise") as store:
        plant, node = Elsewhere("plant-a"), Elsewhere("plant-a-2", stream=HEALTH_STREAM)
        for origin, stream in ((plant, TELEMETRY), (node, HEALTH_STREAM)):
            batches, position = parsed([origin.seal(5)]), Position(origin.origin.life, 5)
            done(put_page(store, "idmz", stream, batches, origin.received(), position))
        life = plant.origin.life.hex()
        named = {f"stream/{TELEMETRY}/own_end": f"plant-a:{life}:10 plant-a-2:{life}:3"}
        named[f"stream/{HEALTH_STREAM}/own_end"] = f"plant-a-2:{life}:5"
        tail = HealthTail(store.reader)
        leader, follower = box("plant-a-2", "leads", **named), box("plant-a", "follows")
        tail.zones |= {"plant-a-2": leader, "plant-a": follower}
        for now_ms in (NOW_MS - WAIT_MS, NOW_MS):
            tail.compare_ends(tail.zones, now_ms)
        missing = {zone: found.missing for zone, found in tail.zones.items()}
        assert missing["plant-a-2"].startswith(f"{TELEMETRY}: its health names sequence 10 of life {life}, here are 5")
        assert missing["plant-a"] == ""
        tail.zones["plant-a-2"] = replace(leader, values=leader.values | {f"stream/{TELEMETRY}/own_end": None})
        tail.compare_ends(tail.zones, NOW_MS)
        assert tail.zones["plant-a-2"].missing == "", "it has handed over"

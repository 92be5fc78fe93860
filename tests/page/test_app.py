"""The answers of the page, asked without a socket: what is shown of a node that runs, of one that is dead and of zones
below, and what a hostile name, host or password can do."""

import asyncio
import base64
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
import uvicorn
from uvicorn.server import ServerState

from agent.health.brief import encode_health
from agent.health.snapshot import NodeSnapshot, SourceStatus
from agent.health.verdict import assess
from agent.message import Sample, TagDefinition
from agent.page import app as app_module
from agent.page import facts
from agent.page.access import Users, user_line
from agent.page.app import CONTENT_POLICY, STREAM_RETRY_MS, STREAMS_MAX, STREAMS_OF_ADDRESS_MAX, make_app
from agent.page.health_tail import ZoneHealth
from agent.page.server import BoundedProtocol
from agent.page.trend import COLUMNS
from agent.page.watch import own_health
from agent.status_codes import TAG_REMOVED
from tests.health.conftest import NOW_MS
from tests.page.conftest import EVIL, Site, ask
from tests.page.zones import Zones
from tests.waiting import wait_until_async


async def test_the_page_of_a_node_that_runs(site: Site) -> None:
    """The sentence is also the title; every policy header is there; nothing on it comes from elsewhere."""
    assert (await site.get("/healthz"))[0] == 200, "the page has not looked before"
    await site.watch.look()
    status, headers, body = await site.get("/")
    assert (status, headers["content-security-policy"], headers["cache-control"]) == (200, CONTENT_POLICY, "no-store")
    assert "set-cookie" not in headers
    assert "<title>idmz is good.</title>" in body
    assert "<h1>idmz is good.</h1>" in body
    assert "style=" not in body
    assert "http" not in body.replace('"http-equiv', "")


async def test_a_dead_node_says_so_and_since_when(site: Site) -> None:
    """Broken, with what to do, above what its store still holds; good again once it answers."""
    await site.watch.look()
    alive, site.snapshot = site.snapshot, None
    await site.watch.look()
    since_ms = site.watch._dead_since_ms
    status, _, body = await site.get("/zone/idmz")
    assert status == 200
    assert "<h1>idmz is broken: the node does not answer for 0.0 s.</h1>" in body
    assert "systemctl status bsfg@idmz" in body
    assert "Shown from the facts here" in body
    assert '<section class="past" aria-labelledby="map">' in body
    status, headers, body = await site.get("/healthz")
    assert (status, headers["content-type"]) == (503, "application/json")
    assert json.loads(body) == {"verdict": "broken", "alert": True, "summary": "no node runs"}
    assert "bsfg_node_up 0.0" in (await site.get("/metrics"))[2]
    site.watch.looked_unix_ms += 5_000
    await site.watch.look()
    assert site.watch._dead_since_ms == since_ms, "the first of both looks"
    site.snapshot = alive
    await site.watch.look()
    assert "idmz is good." in (await site.get("/zone/idmz"))[2]


async def test_the_snapshot_survives_the_socket(healthy: NodeSnapshot) -> None:
    """The page judges what the node judged: a snapshot that went through JSON is the same."""
    body = encode_health(healthy, assess(healthy), everything=True)
    assert msgspec.json.decode(body, type=NodeSnapshot) == healthy


async def test_a_thousand_zones_are_a_small_page(site: Site, healthy: NodeSnapshot) -> None:
    """With all that it loads at most 200 kB, whatever the number of rows; each zone has a cell."""
    await site.watch.look()
    found = own_health(healthy, assess(healthy))
    site.watch.zones |= {name: replace(found, zone=name) for name in (f"plant-{n:04}" for n in range(1_000))}
    site.watch._rows = None
    page = (await site.get("/fleet?all=1"))[2]
    assert page.count("<tr>") == 100 + 2, "the head, and how many more there are"
    assert page.count("<li>") == 1_001
    files = [(await site.get(path))[2] for path in re.findall(r'(?:src|href)="(/static/[^"]+)', page)]
    assert len(files) == 3
    assert sum(map(len, (page, *files))) < 160_000
    _, headers, again = await ask(site.app, "/fleet?all=1", **{"accept-encoding": "gzip"})
    assert (again, int(headers["content-length"]) < 20_000) == (page, True)


async def test_names_and_values_are_text(site: Site) -> None:
    """Markup in the name of a zone, a source or a tag, in a value and in a query is shown and not obeyed."""
    assert site.snapshot is not None
    site.snapshot = replace(
        site.snapshot, sources=(SourceStatus(EVIL, EVIL, False, trouble=EVIL, tags_problem=EVIL, tags=4),)
    )
    await site.watch.look()
    site.watch.zones[EVIL] = replace(own_health(site.snapshot, assess(site.snapshot)), zone=EVIL)
    for path in ("/", "/fleet?all=1", "/zone/idmz", f"/zone/{EVIL}", "/tags", f"/tags?q={EVIL}", "/incidents", "/help"):
        status, _, body = await site.get(path)
        assert status in {200, 307}, path
        assert "<script>alert" not in body, path
    assert "&lt;script&gt;" in (await site.get("/fleet"))[2]
    _, _, body = await site.get("/tags")
    assert "press/&lt;b&gt;force" in body
    assert "%3Cb%3Eforce" in body


async def test_a_zone_below_is_shown_with_its_age(site: Site) -> None:
    """From the facts here; `/` leads to the fleet then. A zone that is not known is 404."""
    site.watch.zones = {}
    await site.watch.look()
    reason = {"subject": "source a", "text": "last value 2026-11-28 20:10:55Z <b>"}
    values = {"verdict": 0, "source/a/connected": True, "reasons": [reason]}
    site.watch.zones["plant"] = ZoneHealth("plant", NOW_MS - 300_000, values)
    status, headers, _ = await site.get("/")
    assert (status, headers["location"]) == (307, "/fleet")
    _, _, body = await site.get("/fleet")
    assert "1 of 2 zones is broken." in body
    assert '<a href="/zone/idmz">' in body, "few zones are all listed"
    assert 'class="cells"' not in body
    assert '<tr class="old">' in body, "what a silent zone has said is old"
    assert 'To do first, <a href="/zone/plant">plant</a>: look at the zones between' in body
    _, _, body = await site.get("/zone/plant")
    assert "plant is broken: silent: no health for 5 min" in body
    assert "5 min old" in body
    moment = '<time datetime="2026-11-28T20:10:55Z" title="2026-11-28 20:10:55Z" data-iso>2026-11-28 20:10:55Z</time>'
    assert body.count(f"{moment} &lt;b&gt;") == 3, "in the sentence and in what needs a hand"
    assert (await site.get("/zone/nowhere"))[0] == 404


async def test_a_zone_that_no_peer_brings_any_more_is_gone(site: Site) -> None:
    """Once the node says which zones may come, the others are neither in the fleet nor pages; also while the node is
    dead. This node itself stays."""
    assert site.snapshot is not None
    for snapshot in (replace(site.snapshot, zones_accepted=("mill", "plant")), None):
        site.snapshot = snapshot
        await site.watch.look()
        site.watch.zones |= {name: ZoneHealth(name, NOW_MS, {"verdict": 0}) for name in ("cell", "mill", "plant")}
        site.watch._rows = None
        assert {row.zone for row in site.watch.rows()} == {"idmz", "mill", "plant"}
        assert [(await site.get(f"/zone/{name}"))[0] for name in ("plant", "cell")] == [200, 404]


async def test_a_trend_goes_on_unless_its_end_is_given(site: Site) -> None:
    """The links to other spans keep a fixed end, and lead to the present from there; the shown one is marked. The
    latest value of the tag is above it."""
    status, _, body = await site.get("/tag?zone=idmz&tag=tag:press/speed&span=600000")
    assert status == 200
    assert "<b>7.5 rpm</b>" in body
    assert "to=" not in body
    assert 'span=600000" aria-current="true">10 min</a>' in body
    _, _, body = await site.get("/tag?zone=idmz&tag=tag:x&from=1000000&to=2000000")
    assert body.count("to=2000000") == 5
    assert 'span=1000000">until now</a>' in body


async def test_a_picture_of_too_many_samples_begins_later(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the newest samples, and no time without samples that has some. Of equal times the one that arrived last
    counts: the source is lost."""
    monkeypatch.setattr(facts, "SAMPLES_MAX", 5)
    (number,) = site.store.appends.define([TagDefinition("tag:press/speed", unit="rpm", source="press")]).result()
    polled = [Sample(number, (NOW_MS - seconds * 1000) * 10**6, -float(seconds)) for seconds in range(100, 0, -10)]
    lost = polled[-1]._replace(value=None, quality=0x8005_0000)
    for sample in (*polled, lost):
        site.store.appends.append_samples("facts.telemetry", [sample]).result()
    await site.watch.look()
    trend = await site.watch.facts.trend("idmz", "tag:press/speed", NOW_MS - 100_000, NOW_MS - 1)
    assert (trend.first_ms, trend.last_ms, trend.gaps) == (NOW_MS - 50_000, NOW_MS - 1, [])
    assert (trend.samples, trend.low, trend.high, len(trend.bad)) == (6, -50.0, -10.0, 1)
    assert round(trend.bad[0][1]) == COLUMNS / 5, "since its last value"


@pytest.mark.parametrize(
    "path", ["/tag?tag=x&from=-1&to=y", "/tag", "/tag?from=9999999999999999", "/tags?q=%00", "/x", "/static/../app.py"]
)
async def test_odd_requests(site: Site, path: str) -> None:
    """Answered, never with an error of ours."""
    assert (await site.get(path))[0] in {200, 404}


async def test_other_hosts_and_methods_are_refused(site: Site) -> None:
    """A name that leads here by somebody else's DNS gets nothing, and nothing can be posted; an address is no name, and
    capitals are no other one."""
    for host in ("evil.example", "localhost.evil.example:80", "", "[evil]", "127.0.0.1.evil.example"):
        assert (await ask(site.app, "/", host=host))[0] == 400
    for host in ("[::1]:8470", "10.1.2.3:8470", "127.0.0.1", "LocalHost:8470"):
        assert (await ask(site.app, "/", host=host))[0] == 200
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert (await ask(site.app, "/", method))[0] == 405


async def test_users(site: Site, tmp_path: Path) -> None:
    """Only a right password is admitted, from then on without another hash; a file that is changed counts at once, and
    one that cannot be read admits nobody."""
    file = tmp_path / "users"
    file.write_text(user_line("ann", "secret") + "\n")
    app = make_app(site.watch, ["localhost"], Users(file))

    async def status(login: str) -> int:
        return (await ask(app, "/help", authorization=login))[0]

    def basic(text: str) -> str:
        return "Basic " + base64.b64encode(text.encode()).decode()

    assert [
        await status(credentials) for credentials in (basic("ann:secret"), basic("ann:wrong"), basic("bob:secret"))
    ] == [
        200,
        401,
        401,
    ]
    assert [
        await status(credentials)
        for credentials in ("", "Basic !", basic("ann"), basic("ann:"), basic("ann:" + "x" * 999))
    ] == [401] * 5
    assert (await ask(app, "/help"))[1]["www-authenticate"].startswith("Basic")
    file.write_text("nonsense")
    assert await status(basic("ann:secret")) == 401


async def test_open_pages_are_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The changing part comes once for each look, and only if the browser does not have it; one page too many, of all
    or of an address, is refused; and each place is given back by time, whether its visitor reads or not."""
    page = site.app.routes[0].endpoint.__self__  # type: ignore[attr-defined]
    await site.watch.look()
    events = page._events("/zone/idmz", {}, "a", "")
    assert await anext(events) == f"retry: {STREAM_RETRY_MS}\n\n"
    mark, _, data = (await anext(events)).partition("\ndata: ")
    assert "idmz is good." in json.loads(data)["main"]
    again = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    site.watch._news.set()
    assert "main" not in json.loads((await again).partition("data: ")[2])
    with monkeypatch.context() as over:
        over.setattr(app_module, "STREAM_S_MAX", 0.0)
        assert [event async for event in page._events("/", {}, "a", "")] == [f"retry: {STREAM_RETRY_MS}\n\n"]
    assert page._streams == {"a": 1}, "the first one goes on"
    later = page._events("/zone/idmz", {}, "a", mark.removeprefix("id: "))
    await anext(later)
    assert "main" not in json.loads((await anext(later)).partition("data: ")[2]), "it has it"
    request = SimpleNamespace(query_params={}, client=None, headers={})
    for places, status in (
        ({"other": 1, "": STREAMS_OF_ADDRESS_MAX}, 503),
        ({"other": STREAMS_MAX}, 503),
        ({"other": STREAMS_OF_ADDRESS_MAX, "": 1}, 200),
    ):
        page._streams.clear()
        page._streams.update(places)
        assert (await page.live(request)).status_code == status


async def test_tags_may_be_too_many(site: Site, healthy: NodeSnapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all zones, or of a zone by its own tags alone: the search says so, and the page of the zone does not pass over
    its bad tags."""
    Zones(site.store).send(replace(healthy, zone="plant-b"))
    await site.watch.look()
    assert "press/&lt;b&gt;force" in (await site.get("/tags"))[2]
    assert "press/" not in (await site.get("/tags?zone=plant-b"))[2]
    counts = site.store.reader.definition_counts()
    limits = (sum(counts.values()), counts["idmz"], counts["plant-b"], 0)
    for limit, too_many in zip(limits, ([], [""], ["", "idmz"], ["", "idmz", "plant-b"]), strict=True):
        monkeypatch.setattr(facts, "DEFINITIONS_MAX", limit)
        site.watch.facts._kept.clear()
        asked = ("", "idmz", "plant-b")
        assert [zone for zone in asked if "Too many tags" in (await site.get(f"/tags?zone={zone}"))[2]] == too_many
        assert ("too many to search here" in (await site.get("/zone/idmz"))[2]) is ("idmz" in too_many)
    assert "bsfg latest --zone idmz" in (await site.get("/tags?zone=idmz"))[2]


def test_a_tag_that_was_taken_out_is_not_bad() -> None:
    """It is nothing that a person must repair, also once its last value has expired. One without a value yet, whose
    source says so, and one with a bad status, are."""
    found = (None, 0x8005_0000, TAG_REMOVED, 0x4000_0000, 0)
    for silent, bad in (({"press"}, [None, 0x8005_0000]), ((), [0x8005_0000])):
        rows = [{"quality": quality, "source": "press"} for quality in found]
        assert [row["quality"] for row in rows if app_module._is_not_good(row, silent)] == bad


@pytest.mark.virtual_time
async def test_a_visitor_that_sends_no_whole_request_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """As does one that has its answer and asks no more, or does not read it; one whose answer is being made stays."""

    async def app(scope: Any, _: object, send: Any) -> None:
        if scope["path"] != "/at_once":
            await asyncio.Event().wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    monkeypatch.setattr(BoundedProtocol, "places", {})
    config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None, timeout_keep_alive=3_600)
    config.load()
    visits = ("", "GET / HT", *(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n" for path in ("/at_once", "/late", "/unread")))
    protocols = [BoundedProtocol(config, ServerState(), {}) for _ in visits]
    for visit, protocol in zip(visits, protocols, strict=True):
        protocol.connection_made(Mock(get_extra_info=lambda name: ("::1", 1) if name == "peername" else None))
        if visit:
            protocol.data_received(visit.encode())
    protocols[-1].pause_writing()
    *leaving, staying, unread = protocols
    for protocol in (*leaving, unread):
        await wait_until_async(lambda protocol=protocol: protocol.transport.abort.called, "the visitor to leave")
        protocol.connection_lost(None)
    assert BoundedProtocol.places.keys() == {staying}
    assert not staying.transport.abort.called
    staying.connection_lost(None)

"""Shell: the routes of the page. Every answer is a GET of what others wrote, rendered whole, with escaping.

Nothing can be changed here, so no answer needs a token against forgery, and no visitor gets a cookie. The Host is
checked, so that no other site's name reaches a page on loopback; the content policy allows this site's files only and
no inline script or style.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from functools import partial
from importlib.resources import files
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit
from zlib import crc32

import jinja2
from markupsafe import Markup, escape
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent import __version__
from agent.errors import StoreError
from agent.health.brief import encode_brief, encode_health
from agent.health.problems import Level, Problem, counted
from agent.health.verdict import THRESHOLDS
from agent.page import fleet, words
from agent.page.access import Users
from agent.page.trend import COLUMNS, HEIGHT
from agent.page.watch import Watch
from agent.status_codes import TAG_REMOVED, status_name

ROWS_SHOWN = 100
FEW_ZONES = 20
"""So many are all listed, also the good ones."""
SPAN_MS_DEFAULT, SPAN_MS_MAX = 3_600_000, 32 * 86_400_000
STREAMS_MAX, STREAMS_OF_ADDRESS_MAX = 32, 16
"""Open pages that are kept up to date; more of them ask again each second."""
STREAM_S_MAX, STREAM_RETRY_MS = 60.0, 200
"""A browser that still listens asks again; one that is gone, or never read, has given its place back."""
QUERY_CHARS_MAX = 200
OLD_S = THRESHOLDS["health_age"].warn
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\dZ)")
_STATIC = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}


class PageAnswers:
    """The answers. `draw` renders what both a request and a live page show."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._streams = Counter[str]()  # by address
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("agent.page"), autoescape=True, undefined=jinja2.ChainableUndefined,
            trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        self._templates.filters |= {
            "age": words.age, "count": words.count, "size": words.size, "moment": words.moment, "value": words.value,
            "label": words.label, "number": words.number, "text": words.text, "times": _with_times, "quote": partial(quote, safe=""),
            "status_name": status_name, "iso": lambda ms: words.moment(ms).replace(" ", "T"),
        }  # fmt: skip
        static = files("agent.page") / "static"
        self._static = {name: (static / name).read_bytes() for name in _STATIC}

    def routes(self) -> list[Route]:
        """All paths."""
        pages = ("/", "/fleet", "/zone/{zone:path}", "/tags", "/tag", "/incidents", "/help")
        return [
            *(Route(path, self.page) for path in pages),
            Route("/live", self.live),
            Route("/healthz", self.healthz),
            Route("/metrics", self.metrics),
            Route("/static/{name}", self.static),
        ]

    async def page(self, request: Request) -> Response:
        """A whole page."""
        if request.url.path == "/" and self._watch.has_zones_below:
            return RedirectResponse("/fleet")
        main, title, status = await self.draw(request.url.path, dict(request.query_params))
        body = self._render("base.html", main=main, title=title, path=request.url.path)
        return HTMLResponse(body, status)

    async def live(self, request: Request) -> Response:
        """The changing part of a page, again and again, as server-sent events."""
        path, _, query = request.query_params.get("page", "/").partition("?")
        address = request.client.host if request.client else ""
        if self._streams.total() >= STREAMS_MAX or self._streams[address] >= STREAMS_OF_ADDRESS_MAX:
            return PlainTextResponse("too many pages are open", 503)
        has = request.headers.get("last-event-id", "")
        events = self._events(path, dict(parse_qsl(query)), address, has)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _events(self, path: str, query: dict[str, str], address: str, has: str) -> AsyncIterator[str]:
        """`has`: the digest of what the browser shows."""
        until_s = time.monotonic() + STREAM_S_MAX
        self._streams[address] += 1
        try:
            yield f"retry: {STREAM_RETRY_MS}\n\n"
            while time.monotonic() < until_s:
                main, title, _ = await self.draw(path, query)
                digest = f"{crc32(main.encode()):x}"
                news = {"title": title, "at": self._watch.looked_unix_ms} | ({} if digest == has else {"main": main})
                has = digest
                yield f"id: {digest}\ndata: {json.dumps(news)}\n\n"
                await self._watch.wait_news()
        finally:
            self._streams[address] -= 1

    async def draw(self, path: str, query: dict[str, str]) -> tuple[str, str, int]:
        """What a page shows, its title and its HTTP status."""
        query = {name: text[:QUERY_CHARS_MAX] for name, text in query.items()}
        try:
            if path == "/fleet":
                return self._fleet(query)
            if path == "/tags":
                return await self._tags(query)
            if path == "/tag":
                return await self._tag(query)
            if path == "/incidents":
                found = await self._watch.facts.incidents()
                return self._render("incidents.html", incidents=found), "Incidents", 200
            if path == "/help":
                return self._render("help.html", problems=list(Problem)), "What each problem means", 200
            own = self._watch.node.name
            if path == "/":
                return await self._zone(own, own)
            return await self._zone(path.removeprefix("/zone/"), query.get("gateway", ""))
        except StoreError as error:
            text = f"The store cannot be read: {error}"
            return self._render("error.html", text=text, hint=error.hint), text, 503

    def _fleet(self, query: dict[str, str]) -> tuple[str, str, int]:
        rows, wanted = self._watch.rows(), query.get("q", "")
        found = fleet.matching(rows, wanted)
        good = [row for row in found if row.level is Level.GOOD]
        are_few = len(rows) <= FEW_ZONES
        is_whole = are_few or query.get("all") or wanted
        shown = found if is_whole else [row for row in found if row.level is not Level.GOOD]
        sentence = fleet.fleet_sentence(rows)
        oldest = max((row.health_s for row in rows), default=0.0)
        main = self._render(
            "fleet.html", sentence=sentence, rows=rows, shown=shown[:ROWS_SHOWN], found=len(shown), good=len(good),
            query=wanted, oldest=oldest, are_few=are_few, old_s=OLD_S,
        )  # fmt: skip
        return main, sentence, 200

    async def _zone(self, zone: str, gateway: str) -> tuple[str, str, int]:
        view = self._watch.view(zone, gateway)
        if view is None:
            text = f"No health of a zone {(gateway or zone)[:64]!r} is here."
            return (
                self._render("error.html", text=text, hint="The fleet lists the zones whose health is here."),
                text,
                404,
            )
        bad, are_too_many = list[Any](), False
        try:
            latest = await self._watch.facts.latest(view.plant)
            silent = {source["name"] for source in view.sources if words.number(source.get("tags_silent"))}
            bad, are_too_many = [row for row in latest or () if _is_not_good(row, silent)], latest is None
        except StoreError as error:
            view.reasons.append(
                {"subject": "store", "text": f"cannot be read: {error}", "hint": error.hint, "alert": True}
            )
        own = view.node == self._watch.node.name
        main = self._render(
            "zone.html", view=view, is_own=own, unreadable=self._watch.unreadable, version=__version__,
            known=self._watch.zones, bad=bad[:ROWS_SHOWN], bad_count=len(bad), are_too_many=are_too_many, is_live=own and not self._watch.silent, old_s=OLD_S,
        )  # fmt: skip
        return main, view.sentence, 200

    async def _tags(self, query: dict[str, str]) -> tuple[str, str, int]:
        wanted, zone = query.get("q", "").casefold().split(), query.get("zone", "")
        latest = await self._watch.facts.latest(zone)
        rows = [
            row
            for row in latest or ()
            if all(word in f"{row['subject']} {row['zone']} {row['source']}".casefold() for word in wanted)
        ]
        main = self._render(
            "tags.html", are_too_many=latest is None, rows=rows[:ROWS_SHOWN], found=len(rows), query=query.get("q", ""), zone=zone,
            now_ms=self._watch.looked_unix_ms,
        )  # fmt: skip
        return main, counted(len(rows), "tag"), 200

    async def _tag(self, query: dict[str, str]) -> tuple[str, str, int]:
        zone, subject = query.get("zone", self._watch.node.zone), query.get("tag", "")
        now_ms = time.time_ns() // 1_000_000
        last = _integer(query.get("to"), now_ms)
        first = _integer(query.get("from"), last - _integer(query.get("span"), SPAN_MS_DEFAULT))
        first = min(max(first, last - SPAN_MS_MAX, 0), last - 1)
        trend = await self._watch.facts.trend(zone, subject, first, last)
        row = next((row for row in await self._watch.facts.latest(zone) or () if row["subject"] == subject), None)
        name = subject.removeprefix("tag:")
        here = {"zone": zone, "tag": subject}
        fixed = {"to": last} if "to" in query else {}  # without it the view goes on with the time
        spans = [
            (text, urlencode(here | {"span": minutes * 60_000} | fixed), minutes * 60_000 == last - first)
            for text, minutes in (("10 min", 10), ("1 h", 60), ("8 h", 480), ("24 h", 1440), ("7 days", 10_080))
        ] + ([("until now", urlencode(here | {"span": last - first}), False)] if fixed else [])
        main = self._render(
            "tag.html", zone=zone, name=name, subject=subject, trend=trend, row=row, spans=spans, columns=COLUMNS,
            height=int(HEIGHT),
        )  # fmt: skip
        return main, f"{name} of {zone}", 200

    async def healthz(self, request: Request) -> Response:
        """The node's status: 200 while no operator must act, 503 otherwise."""
        watch = self._watch
        await watch.look_if_older(1.0)
        if watch.snapshot is None or watch.verdict is None:
            return JSONResponse({"verdict": Level.BROKEN.value, "alert": True, "summary": watch.silent}, 503)
        if "all" in request.query_params:
            body = encode_health(watch.snapshot, watch.verdict, everything=True)
        else:
            body = encode_brief(watch.snapshot, watch.verdict)
        return Response(body, 503 if watch.verdict.alert else 200, media_type="application/json")

    async def metrics(self, _: Request) -> Response:
        """The node's metrics, and those of the fleet."""
        from agent.health import metrics  # late: the library takes 14 MB, and not every node is scraped

        await self._watch.look_if_older(1.0)
        body = metrics.render(self._watch.snapshot, self._watch.rows())
        return Response(body, media_type=metrics.CONTENT_TYPE)

    async def static(self, request: Request) -> Response:
        """A file of this package."""
        name = request.path_params["name"]
        if name not in self._static:
            return PlainTextResponse("not here", 404)
        return Response(self._static[name], media_type=_STATIC[name])

    def _render(self, template: str, **names: Any) -> str:
        watch = self._watch
        names |= {"own_name": watch.node.name, "own_path": watch.own_path, "has_fleet": watch.has_zones_below}
        return self._templates.get_template(template).render(looked_ms=watch.looked_unix_ms, **names)


def _is_not_good(row: Any, silent: Collection[str]) -> bool:
    """`silent`: the sources of which tags have no value yet. Of others, the last value of a removed tag has expired."""
    if row["quality"] is None:
        return row["source"] in silent
    return bool(row["quality"] >> 30 >= 2 and row["quality"] != TAG_REMOVED)


def _with_times(text: object) -> Markup:
    """Text, in which moments are elements that the browser shows in the reader's zone."""
    element = r'<time datetime="\1T\2" title="\1 \2" data-iso>\1 \2</time>'
    return Markup(_MOMENT.sub(element, str(escape(text))))  # noqa: S704 escaped before


def _integer(text: str | None, default: int) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 14 else default


def _host(headers: Mapping[bytes, bytes]) -> str:
    """The name or address by which a request asks for this page, in lower case; empty if it says none."""
    try:
        return urlsplit("//" + headers.get(b"host", b"").decode("latin-1")).hostname or ""
    except ValueError:  # no address in its brackets
        return ""


def _is_address(host: str) -> bool:
    try:
        return bool(ip_address(host))
    except ValueError:
        return False


class Guard:
    """Headers on every answer, GET and HEAD only, by which name, and who may look."""

    def __init__(self, app: ASGIApp, names: Collection[str], users: Users | None) -> None:
        self._app, self._users = app, users
        self._names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                named = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(header for header in HEADERS if header[0] not in named)]
            await send(message)

        answer: ASGIApp = self._app
        headers = dict(scope["headers"])
        if scope["method"] not in {"GET", "HEAD"}:
            answer = PlainTextResponse("only GET is answered here\n", 405, {"Allow": "GET, HEAD"})
        elif (host := _host(headers)) not in self._names and not _is_address(host):
            # Somebody else's DNS may lead a browser here by a name of its own, but not by an address.
            answer = PlainTextResponse(f"{host!a} is none of the names of this page: names, in [page]\n", 400)
        elif self._users is not None and not await self._users.admits(headers.get(b"authorization", b"")):
            answer = PlainTextResponse(
                "who are you?\n", 401, {"WWW-Authenticate": 'Basic realm="bsfg", charset="UTF-8"'}
            )
        await answer(scope, receive, send_with_headers)


def make_app(watch: Watch, names: list[str], users: Users | None = None) -> Starlette:
    """The application. `names`: those by which it may be asked for, besides addresses."""
    return Starlette(
        routes=PageAnswers(watch).routes(),
        middleware=[
            Middleware(Guard, names=names, users=users),
            Middleware(GZipMiddleware, compresslevel=1),  # nothing in a page is secret from who may see it
        ],
    )

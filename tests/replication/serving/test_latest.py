"""GetLatest: a peer gets exactly what a local search finds in the streams that it may read."""

import asyncio
import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from agent.message import Json, Sample, TagDefinition
from agent.node.latest import facts_at_peers
from agent.query.latest.latest_query import find_latest
from agent.query.latest.latest_rows import latest_record
from agent.query.scan.scanner import Scanner
from agent.replication.protocol.codec import decode_answer
from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages import CLAIM_MAX, GetLatest, LatestAnswer, LatestEntry, TagKey
from agent.replication.serving.admission import Caller, PeerRights
from agent.replication.serving.latest_page import (
    KEPT_MS,
    KEPT_OF_ZONE_MAX,
    KEPT_TAGS_MAX,
    CachedSearch,
    LatestQuery,
    LatestValues,
    SearchCache,
    page_of,
)
from agent.replication.serving.limits import SEARCHES_WAITING_MAX
from agent.replication.serving.operations.context import Context
from agent.replication.serving.operations.latest import Latest
from agent.replication.serving.outcomes import Refuse, Reply
from agent.replication.serving.server import Server
from agent.replication.serving.turns import Use
from tests.replication.answers import encode_answer
from tests.replication.nodes import STREAM
from tests.replication.serving.support import Peer, serving
from tests.waiting import LIMIT_S, wait_until_async

BASE_NS = 1_700_000_000_000_000_000
VALUES = (1.5, math.nan, -math.inf, 2**53 + 1, 2**64 - 1, True, "gr\u00fcn\n", b"\x00\xff", Json(b'{"a":[1,2]}'), None)


async def with_values(server: Server) -> Any:
    """The server's store, with a tag for each kind of value in one stream, and others in a stream that idmz may not
    read."""
    store: Any = server._store
    names = [*(f"tag:line1/t{number}" for number in range(len(VALUES))), "tag:line2/silent", "tag:line2/secret"]
    tags = [TagDefinition(name, unit="degC", source="press") for name in names]
    await asyncio.wrap_future(store.appends.define(tags))
    for age in (2, 1):
        rows = [
            Sample(number, BASE_NS - age * 1_000_000_000 + number, value, 0 if value is not None else 0x80AB0000)
            for number, value in enumerate(VALUES, 1)
        ]
        await asyncio.wrap_future(store.appends.append_samples(STREAM, rows))
    secret = Sample(len(names), BASE_NS, 1.0)
    await asyncio.wrap_future(store.appends.append_samples("facts.secret", [secret]))
    return store


async def ask(peer: Peer, **asked: Any) -> LatestAnswer:
    """Request one page."""
    answer = await peer.ask(GetLatest(stream=STREAM, **asked))
    assert isinstance(answer, LatestAnswer)
    return answer


def plain(values: list[LatestEntry]) -> list[dict[str, Any]]:
    """The values without the fields that depend on the clock."""
    return [
        {**msgspec.structs.asdict(entry), "value": json.loads(bytes(entry.value)), "staleness_ms": 0}
        for entry in values
    ]


async def test_remote_latest_equals_local_latest(tmp_path: Path) -> None:
    """Every type of value with its quality, times and staleness; tags without a value and tags of other streams are
    left out."""
    async with serving(tmp_path) as (server, peer):
        store = await with_values(server)
        answer = await ask(peer)
        found = find_latest(Scanner(store.reader), BASE_NS, streams=frozenset([STREAM]))
        rows = [dict(latest_record(row)) for row in found if row.latest]
        assert [row.pop("stream") for row in rows] == [STREAM] * len(VALUES)
        assert plain(answer.values) == [{**row, "staleness_ms": 0, "mode": "degraded"} for row in rows]
        assert all(entry.staleness_ms > 1_000_000 for entry in answer.values)
        assert {entry.as_of for entry in answer.values} == {"2023-11-14T22:13:19.00000001Z"}
        assert (answer.stream, answer.end_offset, answer.more, answer.queue_depth) == (STREAM, 20, False, 0)
        fresh = await ask(peer, fresh_ms=30 * 86_400_000, limit=1)
        assert [entry.mode for entry in fresh.values] == ["degraded"]  # years ago


@pytest.mark.parametrize("limits", [{"limit": 1}, {"limit": 3}, {"bytes_max": 1024}])
async def test_pages_together_are_the_whole(tmp_path: Path, limits: dict[str, int]) -> None:
    """Requested page by page, limited by number or by bytes, the values are those of one large page, once."""
    async with serving(tmp_path) as (server, peer):
        await with_values(server)
        whole = await ask(peer)
        values, pages, after = list[LatestEntry](), 0, None
        while True:
            page = await ask(peer, after=after, **limits)
            values += page.values
            pages += 1
            if not page.more:
                break
            after = page.last_after(after)
        assert plain(values) == plain(whole.values)
        assert pages > 2


async def test_later_pages_are_of_the_search_that_answered_the_first(tmp_path: Path) -> None:
    """A value appended between two pages is not in the second, which names the former end of the log; the next first
    page has it. A later page of an unknown query starts a search."""
    async with serving(tmp_path) as (server, peer):
        store = await with_values(server)
        first = await ask(peer, limit=3)
        newer = Sample(5, BASE_NS + 1_000_000_000, 5.0)
        await asyncio.wrap_future(store.appends.append_samples(STREAM, [newer]))
        later = await ask(peer, limit=3, after=first.last_after(None))
        assert (first.end_offset, later.end_offset) == (20, 20)
        assert "tag:line1/t4" in [entry.subject for entry in later.values if entry.offset != 21]
        unheard_of = await ask(peer, limit=3, after=first.last_after(None), prefix="tag:line1/")
        assert unheard_of.end_offset == 21
        assert [entry.offset for entry in (await ask(peer)).values if entry.subject == "tag:line1/t4"] == [21]


def empty_context(packet_bytes_max: int = 1_000_000) -> Context:
    """The context of a server with an empty store, without a connection."""
    link: Any = SimpleNamespace(require=lambda: SimpleNamespace(packet_bytes_max=packet_bytes_max))
    store: Any = SimpleNamespace(zone="plant-a", node="plant-a", life=bytes(16), signer=None, end_offset=lambda _: 0)
    return Context(link, store, dict.fromkeys(("evil", "idmz"), PeerRights({STREAM})))


async def test_what_was_found_does_not_wait_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker reads no answers and requests latest values in a zone's name: each search result waits, some megabytes,
    until its answer may be read, so these requests count too."""
    context = empty_context()
    monkeypatch.setattr(context, "_answer_ready_ms", lambda *_: None)
    searches = Latest(context, lambda *_: LatestValues([], value, 0, 7))
    caller, request = Caller("idmz", "one", bytes(16)), GetLatest(stream=STREAM)
    async with asyncio.timeout(LIMIT_S):
        waiting = [asyncio.create_task(searches.get_latest(caller, request)) for _ in range(SEARCHES_WAITING_MAX + 1)]
        await wait_until_async(lambda: len(context.turns._queues.get("idmz", ())) == len(waiting), "the answers")
        refused = await searches.get_latest(caller, request)
        assert isinstance(refused, Refuse)
        assert refused.code == "busy"
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
    assert not searches._open.total()


async def test_searches_of_one_zone_do_not_make_another_one_busy() -> None:
    """One search runs at a time. Evil has all its allowed searches open, and another one is refused. The search of idmz
    begins right after the one that runs; then those that waited are answered."""
    begun, may_go_on = list[str](), threading.Semaphore(0)

    def look_up(_stream: str, _wanted: object, fresh_ms: int, _: int) -> LatestValues:
        begun.append("idmz" if fresh_ms == 1 else "evil")
        assert may_go_on.acquire(timeout=LIMIT_S)
        return LatestValues([], value, 0, 7)

    searches, evil = Latest(empty_context(), look_up), Caller("evil", "one", bytes(16))
    async with asyncio.timeout(LIMIT_S):
        asked = [searches.get_latest(evil, GetLatest(stream=STREAM)) for _ in range(SEARCHES_WAITING_MAX + 1)]
        flood = [asyncio.create_task(asking) for asking in asked]
        await wait_until_async(lambda: begun, "the first one")
        refused = await searches.get_latest(evil, GetLatest(stream=STREAM))
        assert isinstance(refused, Refuse)
        assert refused.code == "busy"
        idmz = asyncio.create_task(
            searches.get_latest(Caller("idmz", "one", bytes(16)), GetLatest(stream=STREAM, fresh_ms=1))
        )
        await wait_until_async(lambda: "idmz" in searches._turns._queues, "idmz to wait")
        assert begun == ["evil"]
        may_go_on.release(len(flood) + 1)
        outcomes = [await idmz, *await asyncio.gather(*flood)]
    assert begun == ["evil", "idmz", *["evil"] * (len(flood) - 1)]
    assert [outcome.answer.queue_depth for outcome in outcomes] == [7] * (len(flood) + 1)  # type: ignore[union-attr]


async def test_values_are_those_before_the_end_that_is_told() -> None:
    """Facts that are appended during a search may be missing in what it finds, so the end is read before it: who goes
    on from there gets them."""
    context, end_offset = empty_context(), [5]
    store: Any = context.store
    store.end_offset = lambda _: end_offset[0]

    def look_up(*_: object) -> LatestValues:
        end_offset[0] = 9
        return LatestValues([], value, 0, 7)

    reply = await Latest(context, look_up).get_latest(Caller("idmz", "one", bytes(16)), GetLatest(stream=STREAM))
    assert isinstance(reply, Reply)
    assert isinstance(reply.answer, LatestAnswer)
    assert reply.answer.end_offset == 5


async def test_an_answer_with_many_values_fits_into_a_packet() -> None:
    """However large the page that is asked for: more than the broker takes would close the connection to it."""
    context, values = empty_context(packet_bytes_max=20_000), found([value(number) for number in range(200)])
    request = GetLatest(stream=STREAM, limit=200, bytes_max=1_000_000)
    reply = await Latest(context, lambda *_: values).get_latest(Caller("idmz", "one", bytes(16)), request)
    assert isinstance(reply, Reply)
    assert isinstance(reply.answer, LatestAnswer)
    assert reply.answer.more
    assert 10_000 < len(encode_answer(reply.answer, [])) <= context.packet_bytes_max


async def test_a_search_is_counted_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zone waits for its next search according to the time that this one took; what it found, some megabytes, is
    dropped after ten seconds, also without another request."""
    context, now_ms = empty_context(), [0]
    alarms = list[tuple[float, Callable[[], object]]]()

    def look_up(*_: object) -> LatestValues:
        now_ms[0] += 60_000
        return found([value(1)])

    monkeypatch.setattr(context, "call_later", lambda delay_s, call: alarms.append((delay_s, call)))
    monkeypatch.setattr(context, "now_ms", lambda: now_ms[0])
    searches = Latest(context, look_up)
    await searches.get_latest(Caller("idmz", "one", bytes(16)), GetLatest(stream=STREAM))
    assert context.pacer.ready_ms(Use.SEARCH_MS, "idmz", now_ms[0]) > now_ms[0]
    assert searches._kept._searches
    ((delay_s, forget),) = [alarm for alarm in alarms if alarm[0] == KEPT_MS / 1000]
    now_ms[0] += int(delay_s * 1000)
    forget()
    assert not searches._kept._searches


async def test_a_node_without_latest_search_refuses_the_operation(tmp_path: Path) -> None:
    """Without a look-up of latest values, GetLatest is refused as an unknown operation."""
    async with serving(tmp_path, look_up=None) as (_, peer):
        error = await peer.refusal(GetLatest(stream=STREAM))
        assert (error.code, error.retryable) == ("unknown_operation", False)


def value(number: int, size: int = 10) -> LatestEntry:
    """Some value of tag `number`."""
    return LatestEntry(
        zone="plant-a", subject=f"tag:{number:03}", predicate="value_sampled", source="", quality=0, offset=1, mode="fresh",
        value=msgspec.Raw(b'"' + b"x" * size + b'"'), value_type="string", source_time="2026", as_of="2026", staleness_ms=0,
    )  # fmt: skip


def test_a_page_has_at_least_one_value_and_keeps_its_limits() -> None:
    """Limits by number and by bytes; a value that is larger than a page is sent alone."""
    values = [value(1), value(2, 5_000), value(3), value(4)]
    tags = [entry.key.order for entry in values]
    some = found(values)
    assert page_of(some, None, 2, 10**6) == (values[:2], True)
    assert page_of(some, None, 4, 10**6) == (values, False)
    assert page_of(some, None, 4, 1_024) == (values[:1], True)
    assert page_of(some, tags[0], 4, 1_024) == (values[1:2], True)
    assert page_of(some, tags[1], 4, 1_024) == (values[2:], False)
    assert page_of(some, ("plant-a", "tag:001", "zzz"), 1, 1_024) == (values[1:2], True)
    assert page_of(some, tags[3], 4, 1_024) == ([], False)
    assert page_of(found([]), None, 4, 1_024) == ([], False)


def found(values: list[LatestEntry]) -> LatestValues:
    """A search that found these values."""
    return LatestValues([entry.key.order for entry in values], values.__getitem__, 0, 0)


def test_few_searches_are_kept_and_not_for_long() -> None:
    """At most two for each zone, each for its query only; the oldest is dropped, of which one that was made again is
    none, and after ten seconds none is left."""
    kept, questions = SearchCache(), [LatestQuery("s", frozenset(), prefix, 0, 1) for prefix in "abc"]
    for at_ms, question in enumerate(questions):
        assert kept.get("idmz", question, at_ms) is None
        kept.put("idmz", question, CachedSearch(found([]), 7, at_ms))
    assert [kept.get("idmz", question, 10) is not None for question in questions] == [False, True, True]
    assert KEPT_OF_ZONE_MAX == 2
    kept.put("idmz", questions[1], CachedSearch(found([]), 8, 10))
    assert [search.end_offset for question in questions if (search := kept.get("idmz", question, 10))] == [8, 7]
    kept.put("idmz", questions[0], CachedSearch(found([]), 7, 3))
    assert [kept.get("idmz", question, 10) is not None for question in questions] == [True, True, False]
    assert [kept.get("idmz", question, KEPT_MS + 5) is not None for question in questions] == [False, True, False]
    kept.put(
        "idmz", questions[0], CachedSearch(LatestValues([("z", "s", "p")] * (KEPT_TAGS_MAX + 1), value, 0, 0), 7, 10)
    )
    assert kept.get("idmz", questions[0], 10) is None, "megabytes, and searched for again in the zone's own time"
    kept.forget(KEPT_MS + 10)
    assert kept._searches == {}


def test_searches_of_one_zone_displace_none_of_another() -> None:
    """However many queries another zone sends between two pages, the second page comes from the search of the first.
    Those of all zones are dropped after their time."""
    kept, question = SearchCache(), LatestQuery("s", frozenset(), "", 0, 1)
    kept.put("idmz", question, CachedSearch(found([]), 7, 0))
    for number in range(50):
        kept.put("evil", LatestQuery("s", frozenset(), f"{number}", 0, 1), CachedSearch(found([]), 8, number))
    searched = kept.get("idmz", question, 50)
    assert searched is not None
    assert searched.end_offset == 7
    assert len(kept._searches["evil"]) == KEPT_OF_ZONE_MAX
    kept.forget(KEPT_MS + 50)
    assert kept._searches == {}


def test_a_peer_cannot_cause_an_endless_loop() -> None:
    """A page that is not after the one before, or says that there is more after no value, is malformed."""
    own: dict[str, Any] = {"store_zone": "plant-a", "life": "0" * 32, "stream": STREAM, "end_offset": 1}
    page = LatestAnswer(**own, queue_depth=0, depth_facts=0, values=[value(1)], more=True)
    assert page.last_after(None) == TagKey(zone="plant-a", subject="tag:001", predicate="value_sampled")
    for before, again in ((value(1).key, page), (None, msgspec.structs.replace(page, values=[]))):
        with pytest.raises(MalformedMessage):
            again.last_after(before)


def test_values_are_selected_by_subject_and_prefix() -> None:
    """By subject and by prefix; pages of one query have the same query."""
    first = GetLatest(stream=STREAM, prefix="tag:a", subjects=["tag:ab", "tag:b"])
    later = msgspec.structs.replace(first, after=TagKey(zone="b", subject="tag:ab", predicate="p"), limit=7)
    assert LatestQuery.of(first) == LatestQuery.of(later)
    tags = [("a", "tag:az", "p"), ("b", "tag:ab", "q"), ("c", "tag:b", "p")]
    assert [LatestQuery.of(first).is_about(tag) for tag in tags] == [False, True, False]


def test_what_peers_claim_fits_into_our_answer() -> None:
    """The queue depth is a sum of what peers claim: with two peers that claim the most, an honest zone can still read
    the answer."""
    pulls: list[Any] = [
        SimpleNamespace(stream=STREAM, peer_end_offset=CLAIM_MAX, offset=at) for at in (0, 5, CLAIM_MAX)
    ]
    own: dict[str, Any] = {"store_zone": "plant-a", "life": "0" * 32, "stream": STREAM, "end_offset": 1}
    for claims, total in ((pulls, CLAIM_MAX), (pulls[1:], CLAIM_MAX - 5), (pulls[2:], 0)):
        answer = LatestAnswer(**own, queue_depth=facts_at_peers(claims, STREAM), depth_facts=0)
        assert decode_answer(encode_answer(answer, [])) == (answer, [])
        assert answer.queue_depth == total
    assert facts_at_peers(pulls, "facts.other") == 0
    ahead: Any = SimpleNamespace(stream=STREAM, peer_end_offset=3, offset=10)  # the peer continues an older copy
    assert facts_at_peers([pulls[0], ahead], STREAM) == CLAIM_MAX
    assert facts_at_peers([pulls[2], ahead], STREAM) == 0

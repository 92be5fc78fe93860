"""`fetch`: FetchFacts of 1000 facts at random offsets, compared with bare MQTT round trips of equal bytes.

One process serves a store. Another asks for a batch of 1000 facts at a time and waits for each answer; timed from the
call until the answer is decoded and the batch's digest is checked. In turns with it, a bare requester and responder
exchange as many bytes.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.batch import parse
from agent.concurrency import TaskGroup, timeout
from agent.replication.mqtt import BrokerLink, Requester
from agent.replication.protocol.codec import ArrivedAnswer, encode_request
from agent.replication.protocol.messages import FetchAnswer, FetchFacts, LogPosition
from bench.common.measuring import Latency, Report, files_bytes, machine, median, rounded
from bench.common.testbed import ASKING, BARE_SERVING, SERVING, Testbed, open_testbed
from bench.replication.bare_loop import BareRequester
from bench.replication.endpoints import BATCH_FACTS, STREAM, access

CONSUMER = f"{ASKING}.bench"
TURN = 25
ANSWER_S_MAX = 10.0


@dataclass(slots=True)
class _Fetched:
    fetches_ns: list[int] = field(default_factory=list)
    round_trips_ns: list[int] = field(default_factory=list)
    request_bytes: int = 0
    answer_bytes: list[int] = field(default_factory=list)


def run(facts: int, seconds: float, seed: int, below: Path | None) -> Report:
    """Fetch from a store of `facts` samples for `seconds`, half of the time bare."""
    facts -= facts % BATCH_FACTS
    with open_testbed(below) as testbed:
        described = machine(testbed.folder)
        source, blobs = testbed.folder / "sender" / "facts.db", testbed.folder / "blobs.db"
        source.parent.mkdir()
        filled = {"file": source, "blobs": blobs, "facts": facts, "seed": seed, "batch_facts": BATCH_FACTS}
        with testbed.worker("fill", "fill", SERVING, **filled) as filling:
            filling.result()
        with (
            testbed.worker("serve", "serve", SERVING, file=source, asking=ASKING, until=0),
            testbed.worker("echo", "echo", BARE_SERVING, asking=ASKING),
            closing(BareRequester(testbed.access(ASKING))) as asker,
        ):
            found = asyncio.run(_fetch(testbed, asker, facts, seconds, random.Random(seed)))
        at_rest = files_bytes(source.parent) / facts
    return _report(found, facts, at_rest, seed, described)


async def _fetch(testbed: Testbed, bare: BareRequester, facts: int, seconds: float, chance: random.Random) -> _Fetched:
    """Product and bare round trips in turns."""
    found = _Fetched()
    link = BrokerLink(access(testbed.access(ASKING)))
    asker = Requester(link, SERVING)
    async with TaskGroup() as group:
        connecting = group.create_task(link.run(), name="link")
        await link.wait_up()
        first = await asker.ask(FetchFacts(consumer_name=CONSUMER, stream=STREAM, limit=BATCH_FACTS), ANSWER_S_MAX)
        assert isinstance(first.answer, FetchAnswer)
        life = first.answer.lives[0].life
        end_ns = time.perf_counter_ns() + int(seconds * 1e9)
        while time.perf_counter_ns() < end_ns:
            for _ in range(TURN):
                after_offset = chance.randrange(facts // BATCH_FACTS) * BATCH_FACTS
                await _fetch_once(asker, LogPosition(offset=after_offset, life=life), found)
            for answer_bytes in found.answer_bytes[-TURN:]:
                found.round_trips_ns.append(bare.round_trip_ns(found.request_bytes, answer_bytes))
        connecting.cancel()
    return found


async def _fetch_once(asker: Requester, after: LogPosition, found: _Fetched) -> None:
    request = FetchFacts(consumer_name=CONSUMER, stream=STREAM, limit=BATCH_FACTS, after=after)
    answered: asyncio.Future[ArrivedAnswer] = asyncio.get_running_loop().create_future()
    start_ns = time.perf_counter_ns()
    asker.send(request, answered.set_result, int(ANSWER_S_MAX))
    async with timeout(ANSWER_S_MAX):
        arrived = await answered
    answer, sealed = arrived.open()
    count = sum(parse(sealed_batch).header.count for sealed_batch in sealed)
    found.fetches_ns.append(time.perf_counter_ns() - start_ns)
    assert isinstance(answer, FetchAnswer), answer
    assert count == BATCH_FACTS
    assert answer.covered() == (after.offset + 1, after.offset + BATCH_FACTS)
    found.request_bytes = len(encode_request(request))
    found.answer_bytes.append(len(arrived.payload))


def _report(found: _Fetched, facts: int, at_rest: float, seed: int, described: dict[str, Any]) -> Report:
    fetch, round_trip = Latency.of(found.fetches_ns), Latency.of(found.round_trips_ns)
    answer_bytes = median(found.answer_bytes)
    values = {
        **fetch.to_dict(),
        "limit": {"what": "bare MQTT round trips of equal bytes through the same broker", **round_trip.to_dict()},
        "ratio": rounded(fetch.p50_ms / round_trip.p50_ms),
        "bytes_per_fact": rounded(at_rest),
        "wire_bytes_per_fact": rounded(answer_bytes / BATCH_FACTS),
        "request_bytes": found.request_bytes,
        "answer_bytes": int(answer_bytes),
        "fetch_facts": BATCH_FACTS,
        "facts": facts,
        "seed": seed,
    }
    lines = (
        f"fetch      {fetch}, {BATCH_FACTS} facts at random offsets of {facts / 1e6:g} M",
        f"limit      {round_trip}, bare round trips of equal bytes; ratio {values['ratio']}",
        f"bytes      {found.request_bytes} asked, {answer_bytes:.0f} answered, {answer_bytes / BATCH_FACTS:.2f} a fact",
    )
    return Report("fetch", values, lines, described)

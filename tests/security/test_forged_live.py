"""The forged pages and requests of tests/fuzz against live processes over a real broker: no process ends, memory stays
bounded, honest facts flow, and the store verifies afterwards."""

import asyncio
import contextlib
import json
import random
import resource
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agent.replication.mqtt import Link
from agent.replication.mqtt.carrier import Incoming
from agent.replication.protocol.errors import TransportError
from agent.replication.protocol.topics import request_topic, response_topic
from tests.fuzz.forged_pages import HostilePeer
from tests.fuzz.forged_requests import Forger
from tests.fuzz.paths import MIB, verified
from tests.replication.nodes import link_to
from tests.security.site import EVIL, IDMZ, PLANT, STREAM, TELEMETRY, Site, running_site
from tests.sim import first_seed, patient, scaled
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system]

STREAMS = [f"facts.forged-{number:03}" for number in range(scaled(40, 200))]
"""Each is a pull of its own, because a pull asks once a minute after an answer that is wrong for good."""
LIVES = scaled(1, 10)
ANSWERS = scaled(200, 10_000)
"""In each life of the node; more than the first round, so that the broker is restarted at least once."""
REQUESTS = scaled(500, 200_000)
OPEN_MAX = 16
RSS_MAX = 400 * MIB


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site in which idmz pulls many streams of evil."""
    with running_site(tmp_path_factory.mktemp("site"), pulled_of_evil=STREAMS) as site:
        yield site


def rss_bytes(site: Site, zone: str) -> int:
    """The memory of a node."""
    pages = Path(f"/proc/{site.nodes[zone].pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


@contextlib.asynccontextmanager
async def connected(link: Link) -> AsyncIterator[None]:
    """A link during a block."""
    running = asyncio.create_task(link.run())
    try:
        await link.wait_up()
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])


async def _asked_again(asked: Counter[str]) -> None:
    """Return when nine pulls of ten have asked again."""
    before = Counter(asked)
    await wait_until_async(lambda: sum(asked[one] > before[one] for one in STREAMS) >= 0.9 * len(STREAMS), "pulls", 60)


async def serve_forged(site: Site, seed: int) -> Counter[str]:
    """Answer the pulls of idmz with forged answers only, ANSWERS at least, and one to each pull. The broker is
    restarted after each round: then the pulls ask at once, except those whose store refused a page, which wait for a
    minute."""
    link = link_to(site.brokers[EVIL], EVIL)
    peers = {stream: HostilePeer(random.Random(f"{seed} {stream}"), stream) for stream in (*STREAMS, STREAM, TELEMETRY)}
    asked = Counter[str]()

    def requested(incoming: Incoming) -> None:
        request = json.loads(incoming.payload)
        stream = request.get("stream", STREAM)
        peers[stream].forging = True
        asked[stream] += 1
        answer = peers[stream].answer(request) if request["operation"] in OPERATIONS else b""
        assert incoming.response_topic is not None
        assert incoming.correlation is not None
        with contextlib.suppress(TransportError):  # the broker is being stopped
            link.require().publish_answer(incoming.response_topic, answer[:1_000_000], incoming.correlation)

    link.route(request_topic(EVIL, IDMZ), requested)
    async with connected(link):
        await wait_until_async(lambda: all(asked[one] for one in STREAMS), "every pull", 60)
        while asked.total() < ANSWERS:
            await asyncio.to_thread(site.brokers[EVIL].kill)
            site.brokers[EVIL].start()  # in this thread: the broker ends when the one that started it ends
            await _asked_again(asked)
        await asyncio.to_thread(site.assert_honest_flow)
    return asked


OPERATIONS = {"FetchFacts", "GetObject", "GetDigests", "FetchSequences"}


@patient
def test_forged_pages_end_no_live_node(site: Site) -> None:
    """Every answer to the pulls of a live node is forged, in several lives of the node: it runs, its memory stays
    bounded, its store verifies, and the plant's facts reach the enterprise."""
    seed, count, rss = first_seed(), 0, 0
    for life in range(LIVES):
        count += sum(asyncio.run(serve_forged(site, seed + life)).values())
        node = site.nodes[IDMZ]
        assert node.running, node.log_tail()
        rss = max(rss, rss_bytes(site, IDMZ))
        assert rss < RSS_MAX
        assert node.stop() == 0, node.log_tail()
        verified(site.store(IDMZ).parent)
        site.revive()
    print(f"{count} forged answers in {LIVES} lives, at most {rss // MIB} MiB")


async def ask_forged(site: Site, seed: int) -> Counter[str]:
    """Send forged requests, a few open at once, without waiting for those that get no answer."""
    link = link_to(site.brokers[EVIL], EVIL)
    answer_to, answers = response_topic(IDMZ, EVIL, "forged"), Counter[str]()
    link.route(answer_to, lambda incoming: answers.update([_code(incoming.payload)]))
    forger = Forger(random.Random(seed), IDMZ, site.epoch(IDMZ), lambda stream: site.end(IDMZ, stream))
    async with connected(link):
        for number in range(REQUESTS):
            payload = forger.payload()
            link.require().publish_request(request_topic(IDMZ, EVIL), payload, answer_to, random.randbytes(16), 10)
            if number % OPEN_MAX == 0:
                before = answers.total()
                await wait_until_async(lambda: answers.total() > before, "an answer")  # noqa: B023
            if number % 250 == 0:
                await asyncio.to_thread(site.assert_honest_flow)
    return answers


def _code(payload: bytes) -> str:
    length = int.from_bytes(payload[:4], "little")
    return str(json.loads(payload[4 : 4 + length]).get("error", {"code": "ok"})["code"])


@patient
def test_forged_requests_end_no_live_node(site: Site) -> None:
    """A live node gets forged requests of every operation: it keeps running under the same epoch, and honest facts
    flow."""
    with site.unharmed():
        print(dict(asyncio.run(ask_forged(site, first_seed()))))
        rss = rss_bytes(site, IDMZ)
        print(f"{REQUESTS} forged requests, {rss // MIB} MiB")
        assert rss < RSS_MAX
    assert site.nodes[PLANT].running
    assert site.nodes[IDMZ].stop() == 0
    verified(site.store(IDMZ).parent)

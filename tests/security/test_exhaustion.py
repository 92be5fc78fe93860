"""A pulled zone makes a node search, request and log: the node keeps working, and facts of the plant reach the
enterprise meanwhile. The limits are in docs/decisions/0057."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from agent import batch
from agent.message import Envelope, Fact, Message
from agent.replication.mqtt.carrier import Incoming
from agent.replication.protocol.topics import request_topic
from tests.fuzz.forged_pages import packed
from tests.replication.nodes import link_to
from tests.security.site import EVIL, IDMZ, STREAM, Site
from tests.security.test_forged_live import connected
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system

BATCHES = 400
"""In a page; all have one fact of one time."""
EPOCHS = 4
Header = dict[str, Any]
Answers = Callable[[Header, Header], bytes]
"""The answer to a FetchFacts of STREAM: the request, and the first fields."""


def serve(site: Site, answer: Answers, is_over: Callable[[Counter[str]], bool]) -> Counter[str]:
    """Answer the pulls of idmz as evil, and meanwhile append a fact of the plant, which reaches the enterprise. Returns
    how often each operation was requested."""
    asked, epoch = Counter[str](), os.urandom(16).hex()

    def requested(incoming: Incoming) -> None:
        request = json.loads(incoming.payload)
        header = {"protocol": "bsfg.replication", "version": "1.0", "operation": request["operation"], "status": "ok"}
        header |= {"store_zone": EVIL, "epoch": epoch}
        is_asked = request["operation"] == "FetchFacts" and request["stream"] == STREAM
        asked[request["operation"] if is_asked else "others"] += 1
        sent = answer(request, header) if is_asked else packed(header | refusal("stream_not_exported"), b"")
        link.require().publish_answer(str(incoming.response_topic), sent, incoming.correlation or b"")

    async def run() -> None:
        link.route(request_topic(EVIL, IDMZ), requested)
        async with connected(link):
            await wait_until_async(lambda: asked["FetchFacts"] > 1, "idmz to pull", 60)
            await asyncio.to_thread(site.assert_honest_flow)
            await wait_until_async(lambda: is_over(asked), "the attack to be over", 60)
            await asyncio.to_thread(site.assert_honest_flow)

    link = link_to(site.brokers[EVIL], EVIL)
    asyncio.run(run())
    return asked


def alone(site: Site) -> None:
    """Wait until no other node serves as evil, and idmz sends requests."""
    site.fresh_evil()
    site.attacker.command("hang_up", zone=EVIL)


def refusal(code: str) -> Header:
    """The fields of an error answer."""
    error = {"code": code, "message": "evil", "retryable": code == "epoch_changed", "hint": ""}
    return {"status": "error", "error": error}


def alike(epoch: int) -> list[bytes]:
    """Batches of one epoch of evil that differ only in their content."""
    link, found = batch.Link(STREAM, batch.Origin(EVIL, epoch.to_bytes(8) + os.urandom(8))), list[bytes]()
    for number in range(BATCHES):
        content = b'"%d of %d"' % (number, epoch)
        message = Message(Envelope(f"{epoch}.{number}", EVIL, "*", 1), Fact("order:line1/1", "done", content))
        sealed = batch.seal_messages(link, [message])
        found.append(sealed.sealed)
        link = sealed.link
    return found


def test_batches_that_are_alike_stop_no_writer(site: Site) -> None:
    """Pages of batches with one count and one time, each page of another epoch: idmz searches each under the names of
    the others. It compares a few, and facts of the plant are stored meanwhile. (One page occupied the writer thread for
    more than twenty seconds.)"""
    alone(site)
    pages = [alike(epoch) for epoch in range(1, EPOCHS + 1)]

    def answer(request: Header, header: Header) -> bytes:
        if request.get("epoch") not in {None, header["epoch"]}:
            return packed(header | refusal("epoch_changed"), b"")
        after = request.get("after_offset") or 0
        page = pages[after // BATCHES] if after < EPOCHS * BATCHES else []
        entries = [[after + at, after + at, len(one)] for at, one in enumerate(page, 1)]
        fields = {"stream": STREAM, "frontier": 0, "end_offset": EPOCHS * BATCHES, "more": bool(page)}
        return packed(
            header | fields | {"batches": entries, "lease": max(1, request.get("lease") or 0)}, b"".join(page)
        )

    before = site.end(IDMZ)
    with site.unharmed():
        serve(site, answer, lambda _: site.end(IDMZ) >= before + EPOCHS * BATCHES)


def test_an_epoch_in_each_answer_is_asked_for_once_a_second(site: Site) -> None:
    """Each answer says that another epoch has begun. idmz requests once a second, and logs few lines about it. (It sent
    354 requests a second, with a line for each.)"""
    alone(site)
    lines, begun_s = site.log(IDMZ).count("peer_epoch_changed"), os.times().elapsed

    def answer(_: Header, header: Header) -> bytes:
        return packed(header | {"epoch": os.urandom(16).hex()} | refusal("epoch_changed"), b"")

    with site.unharmed():
        asked = serve(site, answer, lambda asked: asked["FetchFacts"] >= 4)
        seconds = os.times().elapsed - begun_s
        assert asked["FetchFacts"] <= seconds + 5
        assert site.log(IDMZ).count("peer_epoch_changed") - lines <= seconds + 5

"""Peers whose lists never end: every answer is well formed, follows the one before, and says that more follows."""

from pathlib import Path
from typing import Any

import msgspec

from agent.batch import Origin
from agent.fact_store import FactStore
from agent.node.store_errors import COMPARISON_ERRORS
from agent.replication.mqtt import Reply
from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages import (
    DefinitionEntry,
    DigestsAnswer,
    FetchSequences,
    LatestAnswer,
    LatestEntry,
    Request,
    SequencesAnswer,
)
from agent.replication.pulling.anti_entropy import AntiEntropy, AntiEntropySettings, Comparison
from agent.replication.pulling.latest_seed import LatestSeed
from agent.replication.pulling.page_check import PageRefused
from tests.fact_store.making import IN_MEMORY, OPERATIONAL

PEER = "evil"
ENTRIES = 500
ANSWERS_MAX = 2_000
OWN: dict[str, Any] = {"store_zone": PEER, "epoch": "ab" * 16, "stream": OPERATIONAL, "end_offset": 1, "more": True}


class Endless:
    """Asked as a peer is asked; counts its answers."""

    peer_zone = PEER

    def __init__(self) -> None:
        self.answers = 0

    def page_bytes(self, bytes_max: int) -> int:
        return bytes_max

    def pages_ahead(self, _size: int, pages_max: int) -> int:
        return pages_max

    async def ask(self, request: Request, _timeout_s: float) -> Reply:
        """The next part of a list without end."""
        self.answers += 1
        assert self.answers < ANSWERS_MAX, "asks for ever"
        numbers = range(self.answers * ENTRIES, (self.answers + 1) * ENTRIES)
        if isinstance(request, FetchSequences):
            definitions = [
                DefinitionEntry(zone=PEER, epoch="ab" * 16, number=number + 1, definition=msgspec.Raw(b"{}"))
                for number in numbers
            ]
            own = {**OWN, "origin": request.origin, "definitions": definitions}
            return Reply(SequencesAnswer(**{name: own[name] for name in own if name != "end_offset"}), [])
        if type(request).__name__ == "GetDigests":
            ranges = [(f"{PEER}/{number:032x}", 1, 1, "00" * 16, "ab" * 16) for number in numbers]
            return Reply(DigestsAnswer(**OWN, ranges=ranges), [])
        values = [_value(number) for number in numbers]
        return Reply(LatestAnswer(**OWN, queue_depth=0, depth_facts=1, values=values), [])


def _value(number: int) -> LatestEntry:
    return LatestEntry(
        zone="other", subject=f"tag:a/{number:012}", predicate="value_sampled", source="", value=msgspec.Raw(b"1"),
        value_type="int", quality=0, source_time="2026-11-21T06:00:00Z", offset=1, as_of="2026-11-21T06:00:00Z",
        staleness_ms=0, mode="fresh",
    )  # fmt: skip


async def compare_without_end(folder: Path) -> int:
    """How many answers a comparison takes from such a peer before it refuses them."""
    peer = Endless()
    with FactStore.open(folder / "facts.db", "idmz", settings=IN_MEMORY) as store:
        settings = AntiEntropySettings(PEER, (OPERATIONAL,), frozenset({PEER}))
        try:
            await AntiEntropy(peer, store, settings, COMPARISON_ERRORS).compare(OPERATIONAL, repair=True)  # type: ignore[arg-type]
        except PageRefused:
            return peer.answers
    raise AssertionError("not refused")


async def seed_without_end(_: Path) -> int:
    """How many answers a request for latest values takes, none of a zone that this peer may bring."""
    peer = Endless()
    seed = LatestSeed(peer, OPERATIONAL, frozenset({PEER}), None, lambda _: None)  # type: ignore[arg-type]
    try:
        await seed._ask()
    except MalformedMessage:
        return peer.answers
    raise AssertionError("not refused")


async def define_without_end(folder: Path) -> int:
    """How many answers of definitions alone a repair takes from such a peer."""
    peer = Endless()
    with FactStore.open(folder / "facts.db", "idmz", settings=IN_MEMORY) as store:
        settings = AntiEntropySettings(PEER, (OPERATIONAL,), frozenset({PEER}))
        comparer = AntiEntropy(peer, store, settings, COMPARISON_ERRORS)  # type: ignore[arg-type]
        try:
            async for _ in comparer._pages(Comparison(OPERATIONAL), Origin(PEER, b"\xab" * 16), (1, 9)):
                raise AssertionError("a page without a fact")
        except PageRefused:
            return peer.answers
    raise AssertionError("not refused")

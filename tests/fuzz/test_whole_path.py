"""Forged pages into a real puller and forged requests into a real server: neither ends, honest work goes on between
them, memory stays bounded, and the store verifies afterwards. `make fuzz NAME=paths` runs 200,000 cases."""

import asyncio
from itertools import count, islice
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.batch import Origin
from agent.fact_store import FactStore
from agent.node.store_errors import COMPARISON_ERRORS
from agent.replication.mqtt import Reply
from agent.replication.protocol.messages import DefinitionEntry, FetchSequences, SequencesAnswer
from agent.replication.pulling.anti_entropy import AntiEntropy, AntiEntropySettings, Comparison
from agent.replication.pulling.page_check import PageRefused
from tests.fact_store.making import IN_MEMORY, OPERATIONAL
from tests.fuzz.forged_pages import pull_forged
from tests.fuzz.forged_requests import serve_forged
from tests.fuzz.paths import bounded_memory
from tests.sim import first_seed, patient, scaled

PEER = "evil"
CASES = scaled(900, 100_000)


@patient
def test_forged_answers_end_no_puller(memory: Path) -> None:
    """Every answer of a peer may be forged: the puller lives, and the next honest page is stored."""
    with bounded_memory():
        print(dict(asyncio.run(pull_forged(memory, CASES, first_seed()))))


@patient
def test_forged_requests_end_no_server(memory: Path) -> None:
    """Every request of a peer may be forged: the server lives, the epoch stays, and another zone is served."""
    with bounded_memory():
        print(dict(asyncio.run(serve_forged(memory, CASES, first_seed()))))


class Endless:
    """A peer whose answers are definitions alone, well formed, one after the other."""

    peer_zone = PEER

    def __init__(self) -> None:
        self.numbers = count(1)

    def page_bytes(self, bytes_max: int) -> int:
        return bytes_max

    def pages_ahead(self, _size: int, pages_max: int) -> int:
        return pages_max

    async def ask(self, request: FetchSequences, _timeout_s: float) -> Reply:
        """The next definitions of the origin."""
        own: dict[str, Any] = {"store_zone": PEER, "epoch": "ab" * 16, "stream": OPERATIONAL, "origin": request.origin}
        numbers = [*islice(self.numbers, 500)]
        assert numbers[0] < 500_000, "it is asked without end"
        definitions = [
            DefinitionEntry(zone=PEER, epoch="ab" * 16, number=number, definition=msgspec.Raw(b"{}"))
            for number in numbers
        ]
        return Reply(SequencesAnswer(**own, definitions=definitions, more=True), [])


async def test_definitions_that_never_end_are_refused(memory: Path) -> None:
    """A peer that sends definitions and no fact that needs them, for ever: refused before memory fills."""
    peer = Endless()
    settings = AntiEntropySettings(PEER, (OPERATIONAL,), frozenset({PEER}))
    with bounded_memory(), FactStore.open(memory / "facts.db", "idmz", settings=IN_MEMORY) as store:
        comparer = AntiEntropy(peer, store, settings, COMPARISON_ERRORS)  # type: ignore[arg-type]
        pages = comparer._pages(Comparison(OPERATIONAL), Origin(PEER, b"\xab" * 16), (1, 9))
        with pytest.raises(PageRefused, match="MiB of tag definitions"):
            await anext(pages)

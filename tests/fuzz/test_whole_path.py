"""Forged pages into a real puller and forged requests into a real server: neither ends, honest work goes on between
them, memory stays bounded, and the store verifies afterwards. `make fuzz NAME=paths` runs 200,000 cases."""

import asyncio
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from agent.batch import Definitions
from agent.fact_store import FactStore
from agent.pages import LackingDefinitions
from agent.replication.mqtt import PeerReply
from agent.replication.protocol.errors import DefinitionsUnavailable
from agent.replication.protocol.messages import DefinitionRun, DefinitionsAnswer, GetDefinitions
from agent.replication.pulling.definition_pull import DefinitionPull
from tests.fact_store.making import IN_MEMORY
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
    """Every request of a peer may be forged: the server lives, the life stays, and another zone is served."""
    with bounded_memory():
        print(dict(asyncio.run(serve_forged(memory, CASES, first_seed()))))


class Endless:
    """A peer whose answers are definitions, well formed, one after the other."""

    peer_node = PEER

    def __init__(self) -> None:
        self.numbers = count(1)

    def page_bytes(self, bytes_max: int) -> int:
        return bytes_max

    def pages_ahead(self, _size: int, pages_max: int) -> int:
        return pages_max

    async def ask(self, request: GetDefinitions, _timeout_s: float) -> PeerReply:
        """The next definitions."""
        (wanted,) = request.wanted
        numbers = [*islice(self.numbers, 500)]
        assert numbers[0] < 500_000, "it is asked without end"
        bodies = [b"%d" % number for number in numbers]
        after = wanted.held[0] if wanted.held else None
        run = DefinitionRun(zone=PEER, digest=wanted.digest, after=after, lengths=[len(body) for body in bodies])
        return PeerReply(DefinitionsAnswer(store_zone=PEER, life="ab" * 16, runs=[run]), bodies)


async def test_definitions_that_never_end_are_refused(memory: Path) -> None:
    """A peer that sends definitions which never lead to those of its batch: refused before memory fills."""
    peer: Any = Endless()
    with bounded_memory(), FactStore.open(memory / "facts.db", "idmz", settings=IN_MEMORY) as store:
        pull = DefinitionPull(peer, store.inbound)
        with pytest.raises(DefinitionsUnavailable, match="do not lead to"):
            await pull.get([LackingDefinitions(PEER, Definitions(10**9, b"d" * 16))], pytest.fail)

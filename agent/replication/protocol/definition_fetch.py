"""Requests tag definitions from a peer until the chains that batches name are complete. Core: no IO.

A chain is taken only if it leads from definitions that are held, or from none, to the wanted digest with its count; the
store compares it once more. What an answer leaves is requested after the last definition that came, so a peer that has
fewer definitions than are held here, or others, ends all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.batch import Definitions
from agent.pages import DefinitionChain, LackingDefinitions
from agent.replication.protocol.errors import DefinitionsUnavailable
from agent.replication.protocol.messages import (
    BYTES_MAX_DEFAULT,
    CHAINS_MAX,
    HELD_BYTES,
    HELD_NAMED_MAX,
    Answer,
    DefinitionRun,
    DefinitionsAnswer,
    GetDefinitions,
    WantedDefinitions,
)

DEFINITION_BYTES_MAX = 32 * 1024
"""Twice the largest that a zone can make."""
CHAIN_BYTES_MAX, DEFINITION_OVERHEAD_BYTES = 24 * 1024 * 1024, 192
"""Of a chain that is not complete, and what Python needs for a definition besides its bytes."""


class _Chain:
    """A chain that is coming. `running` is the last definition that has come."""

    def __init__(self, lacking: LackingDefinitions) -> None:
        self.zone, self.wanted, self.held = lacking
        self.after = self.running = Definitions()
        self.bodies = list[bytes]()
        self.bytes = 0

    def request(self) -> WantedDefinitions:
        known = [self.running, *self.held] if self.bodies else self.held
        held = [definitions.digest[:HELD_BYTES].hex() for definitions in known[:HELD_NAMED_MAX]]
        return WantedDefinitions(zone=self.zone, digest=self.wanted.digest.hex(), held=held)

    def take_run(self, run: DefinitionRun, bodies: Sequence[bytes]) -> None:
        """Add what has come."""
        if not self.bodies:
            self.after = self.running = self._named(run.after)
        elif self._named(run.after) != self.running:
            raise DefinitionsUnavailable(f"definitions of {self.zone} do not follow the last one that came")
        for body in bodies:
            if len(body) > DEFINITION_BYTES_MAX:
                raise DefinitionsUnavailable(f"a tag definition of {self.zone} has {len(body)} bytes")
            self.running = self.running.extended(body)
            self.bodies.append(body)
            self.bytes += len(body) + DEFINITION_OVERHEAD_BYTES
        is_wrong = self.running.count >= self.wanted.count and self.running != self.wanted
        if is_wrong or not bodies or self.bytes > CHAIN_BYTES_MAX:
            what = f"{len(self.bodies)} tag definitions of {self.zone}, up to number {self.running.count}, came"
            raise DefinitionsUnavailable(f"{what}; they do not lead to the {self.wanted.count} that its batches name")

    def _named(self, start: str | None) -> Definitions:
        known = {
            definitions.digest[:HELD_BYTES].hex(): definitions for definitions in (*reversed(self.held), self.running)
        }
        if start is None:
            return Definitions()
        if start not in known:
            raise DefinitionsUnavailable(f"definitions of {self.zone} came that follow others than those named")
        return known[start]


class DefinitionFetch:
    """The requests for what a store lacks."""

    def __init__(self, lacking: Iterable[LackingDefinitions]) -> None:
        self._chains = {(missing.zone, missing.wanted.digest.hex()): _Chain(missing) for missing in lacking}

    def request(self, bytes_max: int = BYTES_MAX_DEFAULT) -> GetDefinitions | None:
        """The next request; None if everything has come."""
        wanted = [chain.request() for chain in list(self._chains.values())[:CHAINS_MAX]]
        return GetDefinitions(wanted=wanted, bytes_max=bytes_max) if wanted else None

    def take_answer(self, answer: Answer, attachment: Sequence[bytes]) -> list[DefinitionChain]:
        """The chains that an answer completes. Raises DefinitionsUnavailable."""
        if not isinstance(answer, DefinitionsAnswer):
            raise DefinitionsUnavailable("an answer to another operation than GetDefinitions")
        if not answer.runs:
            zones = ", ".join(zone for zone, _ in list(self._chains)[:CHAINS_MAX])
            raise DefinitionsUnavailable(f"{answer.node} does not have the tag definitions of {zones}")
        bodies, complete = iter(attachment), list[DefinitionChain]()
        for run in answer.runs:
            chain = self._chains.get((run.zone, run.digest))
            if chain is None:
                raise DefinitionsUnavailable(f"definitions of {run.zone} came that were not requested")
            chain.take_run(run, [next(bodies) for _ in run.lengths])
            if chain.running == chain.wanted:
                complete.append(DefinitionChain(chain.zone, chain.wanted, chain.after, chain.bodies))
                del self._chains[run.zone, run.digest]
        return complete

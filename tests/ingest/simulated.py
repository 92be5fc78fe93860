"""What the simulations of sources have in common."""

import random
from collections.abc import Awaitable, Coroutine
from datetime import datetime
from typing import Any

from agent.ingest.errors import SourceError
from agent.ingest.supervision.supervisor import SourceSupervisor
from tests.support.virtual_time import run_virtual


class WatchedSupervisor(SourceSupervisor):
    """Keeps the errors that a life may not end with."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.unexpected: list[BaseException] = []

    async def _error_of(self, part: Awaitable[None]) -> Exception | None:
        error = await super()._error_of(part)
        if error is not None:
            _, rest = ExceptionGroup("", [error]).split(SourceError)
            self.unexpected += [] if rest is None else [rest]
        return error


def us(text: str) -> int:
    """A time of a fact, in microseconds."""
    return round(datetime.fromisoformat(text).timestamp() * 1e6)


def fault_of(simulation: Coroutine[Any, Any, None], seed: int) -> str:
    """Run a simulation in virtual time: what is wrong; empty: nothing. The first words of its AssertionErrors say
    it."""
    random.seed(seed)  # the product's jitter
    try:
        run_virtual(simulation)
    except (AssertionError, ExceptionGroup) as error:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        return str(error)
    return ""

"""What every operation works with: the store, who may read what, and the threads in which the disk is waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict, TypeVar

from agent.replication.mqtt import Link
from agent.replication.protocol.messages import Answer
from agent.replication.protocol.ports import ServingStore
from agent.replication.serving.nearness import Nearness
from agent.replication.serving.page import Refuse
from agent.replication.serving.reading import PageAsked, PageRead, read_page
from agent.replication.serving.sender import Drop
from agent.telemetry import Telemetry

_T = TypeVar("_T")


class Reply(NamedTuple):
    """A good answer and the pieces of its attachment."""

    answer: Answer
    attachment: list[bytes]
    facts: int = 0
    waited_ns: int = 0  # of the time it took, for facts to be written


Outcome = Reply | Refuse | Drop


class From(TypedDict):
    """The fields with which every answer says whose it is."""

    store_zone: str
    epoch: str


@dataclass
class Context:
    """One link's side of a serving node. `exports`: each peer zone and the streams it may read."""

    link: Link
    store: ServingStore
    exports: Mapping[str, frozenset[str]]
    telemetry: Telemetry = field(default_factory=Telemetry)
    epoch: str = field(init=False)
    readers: Executor | None = None  # while the server runs
    nearness: Nearness = field(default_factory=Nearness)

    def __post_init__(self) -> None:
        self.epoch = self.store.epoch.hex()

    @property
    def own(self) -> From:
        """What every answer begins with."""
        return {"store_zone": self.store.zone, "epoch": self.epoch}

    async def page(self, asked: PageAsked) -> PageRead | Refuse:
        """The page that `asked` describes: read at once where it is small and the disk is quick, else in a reader thread."""
        plan = asked.plan
        facts = min(plan.limit, plan.until(self.store.end_offset(plan.stream)) - plan.after_offset)
        began_ns = time.monotonic_ns()
        if not self.nearness.is_near(facts, began_ns):
            return await self.in_thread(read_page, self.store, asked)
        try:
            return read_page(self.store, asked)
        finally:
            self.nearness.took(began_ns, time.monotonic_ns())

    async def in_thread(self, call: Callable[..., _T], *arguments: object) -> _T:
        """Do what touches the disk, in one of the reader threads."""
        return await asyncio.get_running_loop().run_in_executor(self.readers, call, *arguments)

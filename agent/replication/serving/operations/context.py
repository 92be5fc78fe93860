"""What every operation works with: the store, which zone may read which streams, the clock, and the threads that wait
for the disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import TypeVar

from agent.replication.mqtt import Link
from agent.replication.protocol.messages import ConfirmReceipt, FetchFacts
from agent.replication.protocol.ports import ServingStore
from agent.replication.serving.outcomes import Refuse, StoreName
from agent.replication.serving.reading import InlineReads, PageQuery, PageRead, read_page
from agent.telemetry import Telemetry

_T = TypeVar("_T")

IsProven = Callable[[str, FetchFacts | ConfirmReceipt], bool]
"""Whether a zone's request proves, by a signature of this store's own key, that this store has written facts of its
present epoch that it does not hold. Must not wait."""


def never_proven(_zone: str, _request: FetchFacts | ConfirmReceipt) -> bool:
    """Without signatures nothing is proven: an operator begins the new epoch of a restored store."""
    return False


@dataclass
class Context:
    """One link's side of a serving node. `exports`: each peer zone and the streams it may read; `appends`: those it may
    append to.

    Everything that operations wait for goes through the methods below, so a simulation can put its own clock and event
    loop here.
    """

    link: Link
    store: ServingStore
    exports: Mapping[str, frozenset[str]]
    telemetry: Telemetry = field(default_factory=Telemetry)
    appends: Mapping[str, frozenset[str]] = field(default_factory=dict)
    is_proven: IsProven = never_proven
    readers: Executor | None = None  # while the server runs
    inline_reads: InlineReads = field(default_factory=InlineReads)

    @property
    def epoch(self) -> str:
        """The store's present epoch; it may change while the node runs."""
        return self.store.epoch.hex()

    @property
    def own(self) -> StoreName:
        """The first fields of every answer."""
        return {"store_zone": self.store.zone, "epoch": self.epoch}

    @property
    def packet_bytes_max(self) -> int:
        """What the broker accepts, on the connection at this moment. Raises ConnectionLost."""
        return self.link.require().packet_bytes_max

    def now_ns(self) -> int:
        """The monotonic clock."""
        return time.monotonic_ns()

    def wrap(self, future: Future[_T]) -> asyncio.Future[_T]:
        """A future of the store, to be awaited in the event loop."""
        return asyncio.wrap_future(future)

    def future(self) -> asyncio.Future[bool]:
        """A future of the event loop."""
        return asyncio.get_running_loop().create_future()

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back in a while; returns the way to cancel that."""
        return asyncio.get_running_loop().call_later(delay_s, callback).cancel

    async def in_thread(self, call: Callable[..., _T], *arguments: object) -> _T:
        """Do what reads the disk, in one of the reader threads."""
        return await asyncio.get_running_loop().run_in_executor(self.readers, call, *arguments)

    async def page(self, asked: PageQuery) -> PageRead | Refuse:
        """The page that `asked` describes, read inline or in a reader thread (`InlineReads`)."""
        plan = asked.plan
        facts = min(plan.limit, plan.until(self.store.end_offset(plan.stream)) - plan.after_offset)
        began_ns = self.now_ns()
        if not self.inline_reads.allows(facts, began_ns):
            return await self.in_thread(read_page, self.store, asked)
        try:
            return read_page(self.store, asked)
        finally:
            self.inline_reads.took(began_ns, self.now_ns())

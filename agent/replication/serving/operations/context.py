"""The context of all operations of one link: the store, the rights and limits of each node, the clock, the reader
threads. Zones take turns: a read needs a place (`reading`), an answer waits for the connection (`answers`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor, Future
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import TypeVar

from agent.positions import Position, Resolved
from agent.replication.protocol.messages import LogPosition
from agent.replication.protocol.ports import ServingStore
from agent.replication.serving.admission import PeerRights
from agent.replication.serving.link_turns import AnswerQueue, Carrier
from agent.replication.serving.outcomes import Refuse, StoreName, store_name_of
from agent.replication.serving.page import HeldThere
from agent.replication.serving.reading import PageQuery, PageRead, is_inline, read_page
from agent.replication.serving.turns import Dispatcher, Pacer, ReadTurns, Use
from agent.settings.peers import PeerLimits
from agent.signing.messages import proof_bytes

_T = TypeVar("_T")

PAGE_ENDS_MAX = 256
"""Ends of pages that are remembered: two for each pull that catches up."""

Turns = ReadTurns[asyncio.Future[bool]]


def give_place(place: asyncio.Future[bool]) -> None:
    """Wake who waits for a place. Of one that is being cancelled, the place is given back."""
    if not place.done():
        place.set_result(False)


class CpuMeter:
    """Measures the processor time of calls."""

    def __init__(self, cpu_ns: Callable[[], int]) -> None:
        self._cpu_ns = cpu_ns
        self.used_ns = 0

    def run(self, call: Callable[..., _T], *arguments: object) -> _T:
        """Run a call in the calling thread."""
        began_ns = self._cpu_ns()
        try:
            return call(*arguments)
        finally:
            self.used_ns += self._cpu_ns() - began_ns


@dataclass
class Context:
    """One link's side of a serving node. `peers`: the rights of each peer node; others are not served.

    Everything that operations wait for goes through the methods below, so a simulation can put its own clock and event
    loop here.
    """

    link: InitVar[Carrier]
    store: ServingStore
    peers: Mapping[str, PeerRights]
    readers: Executor | None = None  # while the server runs
    turns: Turns = field(default_factory=Turns)
    """Shared by all links of a node: each pair of nodes may have a broker of its own."""

    def __post_init__(self, link: Carrier) -> None:
        self.pacer = Pacer(self.limits_of)
        self._places = Dispatcher(self.turns, give_place, self.now_ms, self.call_later)
        self.answers = AnswerQueue(link, self.call_later, self._places.begin_due)
        self._page_ends: dict[tuple[str, Position], None] = {}  # of the pages read last, with their streams

    def limits_of(self, node: str) -> PeerLimits:
        """The limits of a node."""
        return self.peers[node].limits

    def zones_of(self, node: str) -> AbstractSet[str]:
        """The zones for which a peer records."""
        return self.peers[node].zones or frozenset({node})

    def held_by(self, node: str, spans: Sequence[tuple[str, str, int, int]] = ()) -> HeldThere:
        """What a peer needs not be sent: its own facts, and what it names. Those of our own zone are not its own alone:
        they go to our partner, which may lack them."""
        return HeldThere(frozenset(self.zones_of(node) - {self.store.zone}), spans)

    @property
    def store_name(self) -> StoreName:
        """The first fields of every answer."""
        return store_name_of(self.store.zone, self.store.node, self.store.life)

    async def resolve(
        self, node: str, stream: str, positions: Sequence[Position]
    ) -> tuple[tuple[Position, Resolved], ...]:
        """What positions mean in the log of a stream. At its end, and where a page ended that was read last, from
        memory, else in a reader thread."""

        def resolved() -> tuple[tuple[Position, Resolved], ...]:
            return tuple(
                (at, Resolved("exact", at.offset) if (stream, at) in ends else self.store.resolve(stream, at))
                for at in positions
            )

        ends = self._page_ends
        for at in positions:
            if at.digest and (stream, at) not in ends and at.offset < self.store.end_offset(stream):
                return await self.in_thread(node, resolved)
        return resolved()

    async def refuse_position(self, node: str, stream: str, position: LogPosition | None) -> Refuse | None:
        """The refusal of a position that is not in this log as it is; None if it is."""
        if position is None:
            return None
        ((named, here),) = await self.resolve(node, stream, [position.position])
        if here.how == "exact":
            return None
        return Refuse("life_unknown", f"{stream} up to {named.offset} of life {named.life.hex()} is not in this log")

    def changed(self, node: str) -> None:
        """Count a commit without a fact against the request rate of a node."""
        self.pacer.changed(node, self.now_ms())

    @property
    def packet_bytes_max(self) -> int:
        """The largest answer, without its proof, that the broker accepts now. Raises ConnectionLost."""
        return self.answers.packet_bytes_max - proof_bytes(self.store.signer)

    def now_ns(self) -> int:
        """The monotonic clock."""
        return time.monotonic_ns()

    def now_ms(self) -> int:
        """The monotonic clock in ms."""
        return self.now_ns() // 1_000_000

    def wrap(self, future: Future[_T]) -> asyncio.Future[_T]:
        """A future of the store, to be awaited in the event loop."""
        return asyncio.wrap_future(future)

    def future(self) -> asyncio.Future[bool]:
        """A future of the event loop."""
        return asyncio.get_running_loop().create_future()

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back after a delay. Returns a function that cancels the call."""
        return asyncio.get_running_loop().call_later(delay_s, callback).cancel

    def cpu_ns(self) -> int:
        """The processor time of this thread."""
        return time.thread_time_ns()

    async def in_thread(self, node: str, call: Callable[..., _T], *arguments: object) -> _T:
        """Run a call that reads the disk for a node: in a reader thread, when it is the node's turn."""
        async with self.reading(node) as meter:
            return await self.in_executor(meter.run, call, *arguments)

    async def in_turn(self, node: str, call: Callable[..., _T], *arguments: object) -> _T:
        """Run a call that takes only processor time for a node: in the event loop, when it is the node's turn."""
        async with self.reading(node) as meter:
            return meter.run(call, *arguments)

    async def in_executor(self, call: Callable[..., _T], *arguments: object) -> _T:
        """Run a call in a reader thread at once; the caller has its turn."""
        return await asyncio.get_running_loop().run_in_executor(self.readers, call, *arguments)

    @contextlib.asynccontextmanager
    async def reading(self, node: str) -> AsyncIterator[CpuMeter]:
        """Wait for a place to read for a node. Reads run in the meter, so that their time counts against the node."""
        place, meter = self.future(), CpuMeter(self.cpu_ns)
        self.turns.ask(node, place, partial(self._answer_ready_ms, node), self.now_ms())
        self._places.begin_due()
        try:
            if not place.done():
                await place
            yield meter
        finally:
            # Also if the request is cancelled just after it got the place.
            self.turns.end_read(node, place, meter.used_ns // 1000, self.now_ms())
            self._places.begin_due()

    def _answer_ready_ms(self, node: str, now_ms: int) -> int | None:
        """When more may be read for a node: its answers are sent, and its byte rate allows more. None: not known."""
        if self.answers.are_behind(node):
            return None  # `answers` gives places when some are sent
        return self.pacer.ready_ms(Use.ANSWER_BYTES, node, now_ms)

    def send(self, node: str, topic: str, payload: bytes, correlation: bytes) -> None:
        """Send an answer when it is the node's turn."""
        self.pacer.spend(Use.ANSWER_BYTES, node, len(payload), self.now_ms())
        self.answers.add(node, topic, payload, correlation)

    async def page(self, node: str, asked: PageQuery) -> PageRead | Refuse:
        """The page that `asked` describes, read for a node, inline or in a reader thread (`is_inline`)."""
        async with self.reading(node) as meter:
            if is_inline(self.store, asked.plan):
                found = meter.run(read_page, self.store, asked)
            else:
                found = await self.in_executor(meter.run, read_page, self.store, asked)
        if isinstance(found, PageRead) and found.lives:
            # The next request begins there: a backlog would else cost a second change of threads for each page.
            self._page_ends[asked.plan.stream, found.lives[-1]] = None
            if len(self._page_ends) > PAGE_ENDS_MAX:
                del self._page_ends[next(iter(self._page_ends))]
        return found

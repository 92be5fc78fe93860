"""What every operation works with: the store, which zone may read which streams and how much, the clock, and the
threads that wait for the disk.

The zones take turns at what takes long: a piece of reading needs a place (`reading`), and an answer waits until the
connection has sent those before it, one of each zone in turn (`send`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import TypeVar

from agent.replication.mqtt import Link
from agent.replication.protocol.errors import TransportError
from agent.replication.protocol.limits import READS_MAX, READS_OF_ZONE_MAX, SHARED_MS, UNSENT_BYTES_MAX, PeerLimits
from agent.replication.protocol.messages import ConfirmReceipt, FetchFacts, FetchSequences, GetDigests
from agent.replication.protocol.ports import ServingStore
from agent.replication.serving.outcomes import Refuse, StoreName
from agent.replication.serving.pacing import Pacer
from agent.replication.serving.reading import InlineReads, PageQuery, PageRead, read_page
from agent.replication.serving.turns import Turns
from agent.signing.freshness import SignedEnd
from agent.signing.messages import proof_bytes
from agent.telemetry import Telemetry

_T = TypeVar("_T")

_Answer = tuple[str, str, bytes, bytes]
"""Zone, topic, payload, correlation."""
DEFAULT_LIMITS = PeerLimits()
OUTGOING_BYTES_ENOUGH = 256 * 1024
"""The connection gets no further answer while so much waits in it: what is in it goes out before any other zone's."""
SEND_AGAIN_S = 0.002

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
    limits: Mapping[str, PeerLimits] = field(default_factory=dict)
    ends_known: Callable[[str], Sequence[SignedEnd]] = lambda _stream: ()
    """Signed ends of other origins that peers have passed on, by stream."""
    readers: Executor | None = None  # while the server runs
    inline_reads: InlineReads = field(default_factory=InlineReads)

    def __post_init__(self) -> None:
        self.pacer = Pacer(self.limits_of)
        self._reads: Turns[asyncio.Future[bool]] = Turns(READS_MAX, self._reads_of, self._may_read)
        self._asked_ms: dict[str, int] = {}  # by zone, when something was last read for it
        self._unsent: Turns[_Answer] = Turns(1, 1)
        self._unsent_bytes: Counter[str] = Counter()
        self._cancel_alarm: Callable[[], None] | None = None
        self.on_answer_lost: Callable[[str, TransportError], None] = lambda _zone, _error: None
        """Called with zone and reason for an answer that was not sent."""

    def limits_of(self, zone: str) -> PeerLimits:
        """What a zone may take."""
        return self.limits.get(zone, DEFAULT_LIMITS)

    @property
    def epoch(self) -> str:
        """The store's present epoch; it may change while the node runs."""
        return self.store.epoch.hex()

    @property
    def own(self) -> StoreName:
        """The first fields of every answer."""
        return {"store_zone": self.store.zone, "epoch": self.epoch}

    async def timeline(self, stream: str) -> str:
        """That of this life of the store. To be awaited before a stream is read: an image of the store that is made
        from then on has it (decision 0054)."""
        if (beginning := self.store.consumers.begin_timeline(stream)) is not None:
            await self.wrap(beginning)
        return self.store.consumers.timeline.hex()

    def refuses_position(self, stream: str, timeline: str, offset: int) -> Refuse | None:
        """Why an offset that was read on a timeline is none in this store's log; None where it is. From memory."""
        why = self.store.consumers.why_other_timeline(stream, bytes.fromhex(timeline), offset)
        return None if why is None else Refuse("timeline_differs", why, self.store.consumers.timeline.hex())

    def refuses_copy(self, request: GetDigests | FetchSequences) -> Refuse | None:
        """Refuse to go on with a comparison that has read another copy of this log."""
        if request.timeline is None or request.end_offset is None:
            return None
        return self.refuses_position(request.stream, request.timeline, request.end_offset)

    @property
    def packet_bytes_max(self) -> int:
        """What the broker accepts of an answer, on the connection at this moment. Raises ConnectionLost."""
        return self.link.require().packet_bytes_max - proof_bytes(self.store.signer)

    def now_ns(self) -> int:
        """The monotonic clock."""
        return time.monotonic_ns()

    def now_ms(self) -> int:
        """The same in ms."""
        return self.now_ns() // 1_000_000

    def wrap(self, future: Future[_T]) -> asyncio.Future[_T]:
        """A future of the store, to be awaited in the event loop."""
        return asyncio.wrap_future(future)

    def future(self) -> asyncio.Future[bool]:
        """A future of the event loop."""
        return asyncio.get_running_loop().create_future()

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back in a while; returns the way to cancel that."""
        return asyncio.get_running_loop().call_later(delay_s, callback).cancel

    async def in_thread(self, zone: str, call: Callable[..., _T], *arguments: object) -> _T:
        """Do what reads the disk for a zone, in one of the reader threads, when it is the zone's turn."""
        async with self.reading(zone):
            return await self.in_executor(call, *arguments)

    async def in_executor(self, call: Callable[..., _T], *arguments: object) -> _T:
        """The same at once; the caller has its turn."""
        return await asyncio.get_running_loop().run_in_executor(self.readers, call, *arguments)

    @contextlib.asynccontextmanager
    async def reading(self, zone: str) -> AsyncIterator[None]:
        """A place to read in for a zone, when it is its turn."""
        place = self.future()
        self._asked_ms[zone] = self.now_ms()
        self._reads.add(zone, place)
        self._give_places()
        try:
            if not place.done():
                await place
            yield
        finally:
            if not self._reads.withdraw(zone, place):  # it has been given the place, perhaps a moment ago
                self._reads.end(zone)
            self._give_places()

    def _reads_of(self, zone: str) -> int:
        """How many places a zone may have."""
        since_ms = self.now_ms() - SHARED_MS
        is_shared = any(at_ms > since_ms for other, at_ms in self._asked_ms.items() if other != zone)
        return 1 if is_shared else READS_OF_ZONE_MAX

    def _may_read(self, zone: str) -> bool:
        """Whether more is read for a zone now: its answers are sent, and its bytes are paid for."""
        now_ms = self.now_ms()
        return self._unsent_bytes[zone] < UNSENT_BYTES_MAX and self.pacer.answer_ready_ms(zone, now_ms) <= now_ms

    def _give_places(self) -> None:
        while (place := self._reads.take()) is not None:
            if not place.done():  # else its request is being cancelled, and gives the place back
                place.set_result(False)
        # Zones that wait for their bytes to be paid for get their places later, without any other event.
        now_ms = self.now_ms()
        due = [self.pacer.answer_ready_ms(zone, now_ms) for zone in self._reads.zones_waiting()]
        if any(at_ms > now_ms for at_ms in due) and self._cancel_alarm is None:
            at_ms = min(at_ms for at_ms in due if at_ms > now_ms)
            self._cancel_alarm = self.call_later((at_ms - now_ms) / 1000, self._alarm)

    def _alarm(self) -> None:
        self._cancel_alarm = None
        self._give_places()

    def send(self, zone: str, topic: str, payload: bytes, correlation: bytes) -> None:
        """Send an answer when it is the zone's turn."""
        self.pacer.answered(zone, len(payload), self.now_ms())
        is_first = not self._unsent.zones_waiting()
        self._unsent.add(zone, (zone, topic, payload, correlation))
        self._unsent_bytes[zone] += len(payload)
        if is_first:  # else a call is due already
            self._send_waiting()

    def _send_waiting(self) -> None:
        """Pass answers to the connection, one of each zone in turn, while it has little to write."""
        while self._unsent.zones_waiting():
            try:
                connection = self.link.require()
            except TransportError as error:
                self.on_answer_lost(self._take_unsent()[0], error)
                continue
            if connection.outgoing_bytes >= OUTGOING_BYTES_ENOUGH:
                self.call_later(SEND_AGAIN_S, self._send_waiting)
                break
            zone, topic, payload, correlation = self._take_unsent()
            try:
                connection.publish_answer(topic, payload, correlation)
            except TransportError as error:
                self.on_answer_lost(zone, error)
        self._give_places()

    def _take_unsent(self) -> _Answer:
        answer = self._unsent.take()
        assert answer is not None, "an answer waits"
        zone, _, payload, _ = answer
        self._unsent.end(zone)
        self._unsent_bytes[zone] -= len(payload)
        return answer

    async def page(self, zone: str, asked: PageQuery) -> PageRead | Refuse:
        """The page that `asked` describes, read for a zone, inline or in a reader thread (`InlineReads`)."""
        plan = asked.plan
        facts = min(plan.limit, plan.until(self.store.end_offset(plan.stream)) - plan.after_offset)
        async with self.reading(zone):
            began_ns = self.now_ns()
            if not self.inline_reads.allows(facts, began_ns):
                return await self.in_executor(read_page, self.store, asked)
            try:
                return read_page(self.store, asked)
            finally:
                self.inline_reads.took(began_ns, self.now_ns())

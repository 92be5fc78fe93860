"""What waits at one link: requests to begin, a few of each node in one turn of the event loop, as its rate allows; and
answers for the connection, which gets one of each node in turn while it has little to write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from agent.replication.mqtt import Incoming
from agent.replication.protocol.errors import TransportError
from agent.replication.serving.admission import Caller
from agent.replication.serving.limits import (
    REQUESTS_OPEN_MAX,
    STARTS_MAX,
    UNREAD_BYTES_MAX,
    UNREAD_OF_LINK_BYTES_MAX,
    UNSENT_BYTES_MAX,
    UNSENT_OF_LINK_BYTES_MAX,
)
from agent.replication.serving.turns import Dispatcher, FairQueue, Pacer, Use

_Answer = tuple[str, str, bytes, bytes]
"""Zone, topic, payload, correlation."""
OUTGOING_BYTES_ENOUGH = 256 * 1024
"""The connection gets no further answer while it has this much to send: its queue does not let nodes take turns."""
SEND_AGAIN_S = 0.002


class ArrivedRequest(NamedTuple):
    """A request, and who sent it."""

    caller: Caller
    incoming: Incoming


class Arrivals:
    """`begin` starts the task of a request; it calls `begun` when it runs, and `ended` at its end."""

    def __init__(
        self,
        nodes: int,
        pacer: Pacer,
        now_ms: Callable[[], int],
        call_later: Callable[[float, Callable[[], object]], Callable[[], None]],
        begin: Callable[[ArrivedRequest], object],
    ) -> None:
        self._pacer, self._now_ms, self._begin = pacer, now_ms, begin
        ready_ms = partial(pacer.ready_ms, Use.REQUESTS)
        self._queue: FairQueue[ArrivedRequest] = FairQueue(STARTS_MAX * nodes, lambda *_: STARTS_MAX, ready_ms)
        self._dispatcher = Dispatcher(self._queue, self._begin_paid, now_ms, call_later)
        self.open: Counter[str] = Counter()
        """Requests by node that wait or are being answered."""

    def accepts(self, node: str) -> bool:
        """Whether another request of a node may wait."""
        return self.open[node] < REQUESTS_OPEN_MAX

    def add(self, arrival: ArrivedRequest) -> None:
        """Begin a request when it is the node's turn."""
        self.open[arrival.caller.node] += 1
        self._queue.add(arrival.caller.node, arrival)
        self._dispatcher.begin_due()

    def begun(self, node: str) -> None:
        """A request of a node runs: the next may begin."""
        self._queue.end_work(node)
        if not self._queue.is_empty():
            self._dispatcher.begin_due()

    def ended(self, node: str) -> None:
        """A request of a node has its answer, or gets none."""
        self.open[node] -= 1

    def _begin_paid(self, arrival: ArrivedRequest) -> None:
        self._pacer.spend(Use.REQUESTS, arrival.caller.node, 1, self._now_ms())
        self._begin(arrival)


class CarrierConnection(Protocol):
    """Takes answers to requesters."""

    @property
    def packet_bytes_max(self) -> int: ...
    @property
    def outgoing_bytes(self) -> int: ...
    def publish_answer(self, topic: str, payload: bytes, correlation: bytes) -> None: ...


class Carrier(Protocol):
    """How requests and answers travel: the link to a broker, or the node's own socket."""

    def require(self) -> CarrierConnection: ...


class AnswerQueue:
    """The answers of one link. `on_sent` is called after some were passed to the connection."""

    def __init__(
        self,
        link: Carrier,
        call_later: Callable[[float, Callable[[], object]], object],
        on_sent: Callable[[], None],
    ) -> None:
        self._link, self._call_later, self._on_sent = link, call_later, on_sent
        self._waiting: FairQueue[_Answer] = FairQueue(1)
        self._bytes: Counter[str] = Counter()
        self.on_lost: Callable[[str, TransportError], None] = lambda _node, _error: None
        """Called with node and reason for an answer that was not sent."""

    @property
    def packet_bytes_max(self) -> int:
        """The largest packet that the broker accepts now. Raises ConnectionLost."""
        return self._link.require().packet_bytes_max

    def accepts_request(self, node: str) -> bool:
        """Whether another request of a node is accepted: not while it leaves too many answers unread."""
        return not self._waits(node, UNREAD_BYTES_MAX, UNREAD_OF_LINK_BYTES_MAX)

    def are_behind(self, node: str) -> bool:
        """Whether enough answers to a node wait, so that nothing more is read for it."""
        return self._waits(node, UNSENT_BYTES_MAX, UNSENT_OF_LINK_BYTES_MAX)

    def _waits(self, node: str, of_node: int, of_link: int) -> bool:
        """Whether `of_node` bytes of answers to the node wait, or `of_link` bytes to all nodes with this one among
        them."""
        waiting = self._bytes[node]
        return waiting >= of_node or (waiting > 0 and self._bytes.total() >= of_link)

    def add(self, node: str, topic: str, payload: bytes, correlation: bytes) -> None:
        """Send an answer when it is the node's turn."""
        answer = node, topic, payload, correlation
        is_first = self._waiting.is_empty()
        if is_first and not self._is_connection_full():
            self._publish(answer)
            return
        self._waiting.add(node, answer)
        self._bytes[node] += len(payload)
        if is_first:  # else a call is due already
            self._call_later(SEND_AGAIN_S, self._send)

    def _send(self) -> None:
        while not self._is_connection_full() and (answer := self._waiting.take_work()) is not None:
            node, _, payload, _ = answer
            self._waiting.end_work(node)
            self._bytes[node] -= len(payload)
            self._publish(answer)
        if not self._waiting.is_empty():
            self._call_later(SEND_AGAIN_S, self._send)
        self._on_sent()

    def _is_connection_full(self) -> bool:
        """Whether the connection has enough to send. Without one, answers are lost at once."""
        try:
            return self._link.require().outgoing_bytes >= OUTGOING_BYTES_ENOUGH
        except TransportError:
            return False

    def _publish(self, answer: _Answer) -> None:
        node, topic, payload, correlation = answer
        try:
            self._link.require().publish_answer(topic, payload, correlation)
        except TransportError as error:
            self.on_lost(node, error)

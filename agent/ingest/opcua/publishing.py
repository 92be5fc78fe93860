"""The order of publications: several Publish requests are open at once, and their answers may arrive in any order.

Each subscription numbers its notifications. They are passed on in that order; an early answer is held until those
before it have arrived. A server answers requests in the order in which they arrive. So notifications are *missing* when
no request is open that is older than the one whose answer showed the break, or when such requests were not answered for
a second. The caller requests them again (Republish) or records that they are lost.

A notification is acknowledged when it has been passed on, and not before. A keep-alive has the number of the next
notification and is not acknowledged; it may show a break too. Core: knows numbers, not the contents of notifications.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from typing import Any, NamedTuple

from agent.ingest.opcua.decode import PublishHeader

NUMBERS = 2**32 - 1  # 1 to 2^32 - 1, then 1 again (OPC 10000-4, 7.9)
DUPLICATES_BACK_MAX = 1_000  # a number this far behind is a duplicate; one further behind belongs to a new count
FIRST_NUMBER_MAX = 100  # a first number above this is accepted as the first; below it, earlier ones may be missing
OVERTAKEN_S = 1.0  # an answer that a later one has overtaken arrives within this time, or was lost
ACKS_PER_PUBLISH_MAX = 100  # more than can be open at once; the rest goes with the next Publish


class Arrived(NamedTuple):
    """An answer that is next in order."""

    header: PublishHeader
    content: Any


class Missing(NamedTuple):
    """Notifications of a subscription that no open request will bring."""

    subscription_id: int
    first: int
    last: int


class _Order:
    """The state of one subscription."""

    __slots__ = ("expected", "held", "is_new", "keep_alive")

    def __init__(self) -> None:
        self.expected = 1
        self.is_new = True  # no notification passed on yet
        self.held: dict[int, tuple[int, float, Arrived]] = {}  # by number: request, time of arrival, answer
        # Request, time of arrival and number of a keep-alive that shows a break.
        self.keep_alive: tuple[int, float, int] | None = None

    def ahead(self, number: int) -> int:
        """How far a number is ahead of the expected one; negative if behind."""
        distance = (number - self.expected) % NUMBERS
        return distance if distance < NUMBERS // 2 else distance - NUMBERS


class Sequencer:
    """The requests of one session, and the answers of its subscriptions, which may outlive it."""

    def __init__(self) -> None:
        self._request = 0
        self._open: set[int] = set()
        self._orders: dict[int, _Order] = {}
        self._forgotten: set[int] = set()
        self._ready: deque[Arrived] = deque()  # bounded by the number of requests that are open at once
        self._acks: list[tuple[int, int]] = []

    def begin_subscription(self, subscription_id: int) -> None:
        """A subscription belongs to this session from now on. One that is known continues with its next number."""
        self._forgotten.discard(subscription_id)
        self._orders.setdefault(subscription_id, _Order())

    def position(self, subscription_id: int) -> int | None:
        """The number of the next notification of a subscription; None if it is not known."""
        order = self._orders.get(subscription_id)
        return None if order is None else order.expected

    def resume(self) -> None:
        """Another session begins. No request is open, and what an answer before has shown to be missing will not come
        by itself."""
        self._open.clear()
        for order in self._orders.values():
            order.held = {number: (0, 0.0, held[2]) for number, held in order.held.items()}
            order.keep_alive = None

    def sent(self) -> tuple[int, list[tuple[int, int]]]:
        """A Publish is about to be sent. Returns its number here, and what it acknowledges as (subscription,
        number)."""
        self._request += 1
        self._open.add(self._request)
        acks, self._acks = self._acks[:ACKS_PER_PUBLISH_MAX], self._acks[ACKS_PER_PUBLISH_MAX:]
        return self._request, acks

    def failed(self, request: int, acks: list[tuple[int, int]]) -> None:
        """A Publish was refused. Its acknowledgements are sent again; a repeated one does no harm."""
        self._open.discard(request)
        self._acks = acks + self._acks

    def forget(self, subscription_id: int) -> None:
        """A subscription has ended. What still arrives from it is dropped, because its values are read again."""
        self._orders.pop(subscription_id, None)
        self._forgotten.add(subscription_id)
        for arrived in [ready for ready in self._ready if ready.header.subscription_id == subscription_id]:
            self._ready.remove(arrived)

    def answered(self, request: int, header: PublishHeader, content: Any, now_s: float = 0.0) -> None:
        """Take in the answer to a Publish."""
        self._open.discard(request)
        if header.subscription_id in self._forgotten:
            return
        order = self._orders.setdefault(header.subscription_id, _Order())
        number, arrived = header.sequence_number, Arrived(header, content)
        if not header.has_data:
            self._ready.append(arrived)
            if order.ahead(number) > 0 and not order.is_new:
                order.keep_alive = request, now_s, number
            return
        if order.is_new and not 1 <= number <= FIRST_NUMBER_MAX and not order.held:
            order.expected = number
        behind = -order.ahead(number)
        if 0 < behind <= DUPLICATES_BACK_MAX:
            self._acks.append((header.subscription_id, number))
            return
        if behind > 0:  # the server restarted its numbers
            order.expected = number
        order.held[number] = request, now_s, arrived

    def next(self, now_s: float = 0.0) -> Arrived | Missing | None:
        """What to handle next; the caller then calls `done`, `settle` or `give_up`."""
        if self._ready:
            return self._ready[0]
        for subscription_id, order in self._orders.items():
            if order.expected in order.held:
                return order.held[order.expected][2]
            if missing := self._missing(subscription_id, order, now_s):
                return missing
        return None

    def done(self, arrived: Arrived) -> None:
        """An answer was passed on."""
        header = arrived.header
        if self._ready and self._ready[0] is arrived:
            self._ready.popleft()
            return
        order = self._orders.get(header.subscription_id)
        if order is None:  # forgotten meanwhile
            return
        del order.held[header.sequence_number]
        order.expected, order.is_new = header.sequence_number % NUMBERS + 1, False
        self._acks.append((header.subscription_id, header.sequence_number))

    def settle(self, header: PublishHeader, content: Any) -> None:
        """The first of the missing notifications was received after all."""
        order = self._orders.get(header.subscription_id)
        if order is not None and order.expected == header.sequence_number:
            order.held[header.sequence_number] = 0, 0.0, Arrived(header, content)

    def give_up(self, missing: Missing) -> None:
        """These notifications are lost."""
        order = self._orders.get(missing.subscription_id)
        if order is not None and order.expected == missing.first:
            order.expected, order.is_new = missing.last % NUMBERS + 1, False

    def take_rest(self, without: Container[int] = ()) -> list[Arrived]:
        """At the end of a session: what arrived in order and was not passed on. Subscriptions in `without` are left
        out."""
        rest = [arrived for arrived in self._ready if arrived.header.subscription_id not in without]
        self._ready.clear()
        for subscription_id, order in self._orders.items():
            while subscription_id not in without and order.expected in order.held:
                rest.append(order.held[order.expected][2])
                self.done(rest[-1])
        return rest

    def _missing(self, subscription_id: int, order: _Order, now_s: float) -> Missing | None:
        """The notifications missing before those held, when no older request can bring them."""
        if order.keep_alive is not None and order.ahead(order.keep_alive[2]) <= 0:
            order.keep_alive = None
        signs = [(request, came_s, number) for number, (request, came_s, _) in order.held.items()]
        signs += [] if order.keep_alive is None else [order.keep_alive]
        if not signs:
            return None
        may_come = min(self._open, default=self._request + 1) < min(request for request, _, _ in signs)
        if may_come and now_s - min(came_s for _, came_s, _ in signs) < OVERTAKEN_S:
            return None
        first_known = min(order.ahead(number) for _, _, number in signs)
        return Missing(subscription_id, order.expected, (order.expected + first_known - 2) % NUMBERS + 1)

"""The order of publications: several Publish requests are open at once, and their answers may arrive in any order.

Each subscription numbers its notifications. They are passed on in that order; an early answer is held until those
before it have arrived. A server answers requests in the order in which they arrive. So notifications are *missing* when
no request is open that is older than the one whose answer showed the break, or when such requests were not answered for
a second. The caller requests them again (Republish) or records that they are lost.

A notification is acknowledged when it has been passed on, and not before. A keep-alive has the number of the next
notification and is not acknowledged; it may show a break too. Core: knows numbers, not the contents of notifications.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Container
from typing import Any, NamedTuple

from agent.ingest.opcua.decode import DecodeError, filetime_ns, publish_head

NUMBERS = 2**32 - 1  # 1 to 2^32 - 1, then 1 again (OPC 10000-4, 7.9)
EARLY_LAST_NUMBER = 2**32 - 1025  # node-opcua continues with 1 after it, like numbers of chunks (OPC 10000-6, 6.7.2)
DUPLICATES_BACK_MAX = 1_000  # a number this far behind is a duplicate; one further behind belongs to a new count
FIRST_NUMBER_MAX = 100  # a first number above this is accepted as the first; below it, earlier ones may be missing
OVERTAKEN_S = 1.0  # an answer that a later one has overtaken arrives within this time, or was lost
ACKS_PER_PUBLISH_MAX = 100  # more than can be open at once; the rest goes with the next Publish


class Header(NamedTuple):
    """The header of an answer to Publish, and when it arrived on our monotonic clock. A publish time of 0 was not
    set."""

    subscription_id: int
    sequence_number: int
    publish_time_ns: int
    has_data: bool
    more: bool = False  # the server has more to send at once
    arrived_s: float = 0.0

    def is_early(self, next_number: int | None) -> bool:
        """Whether this is a keep-alive that has overtaken notifications, because it is passed on at once."""
        return not self.has_data and self.sequence_number != next_number


class Arrived(NamedTuple):
    """An answer that is next in order."""

    header: Header
    content: Any


class Missing(NamedTuple):
    """Notifications of a subscription that no open request will bring."""

    subscription_id: int
    first: int
    last: int


def read_header(data: bytes) -> Header:
    """The header of PublishResponse parameters. Raises DecodeError."""
    try:
        head = publish_head(data)
    except (struct.error, IndexError) as error:
        raise DecodeError(f"notification is cut short or malformed: {error}") from error
    time_ns = filetime_ns(head.publish_time)
    return Header(head.subscription_id, head.sequence_number, time_ns, head.notifications > 0, head.has_more)


class _Order:
    """The state of one subscription."""

    __slots__ = ("expected", "held", "is_new", "keep_alive")

    def __init__(self) -> None:
        self.expected = 1
        self.is_new = True  # no notification passed on yet
        self.held: dict[int, tuple[int, float, Arrived]] = {}  # by number: request, time of arrival, answer
        # Request, time of arrival and number of a keep-alive that shows a break.
        self.keep_alive: tuple[int, float, int] | None = None

    @property
    def begins_again(self) -> bool:
        """Whether the server has sent number 1, or a keep-alive announces it."""
        return 1 in self.held or (self.keep_alive is not None and self.keep_alive[2] == 1)

    def ahead(self, number: int) -> int:
        """How far a number is ahead of the expected one; negative if behind."""
        distance = (number - self.expected) % NUMBERS
        return distance if distance < NUMBERS // 2 else distance - NUMBERS


class Sequencer:
    """The requests and answers of one session."""

    def __init__(self) -> None:
        self._request = 0
        self._open: set[int] = set()
        self._orders: dict[int, _Order] = {}
        self._forgotten: set[int] = set()
        self._ready: deque[Arrived] = deque()  # bounded by the number of requests that are open at once
        self._acks: list[tuple[int, int]] = []

    def begin(self, subscription_id: int, number: int) -> None:
        """A subscription belongs to this session from now on. Its next notification has this number, 1 if it is new."""
        self._forgotten.discard(subscription_id)  # a restarted server restarts its subscription ids
        order = self._orders.setdefault(subscription_id, _Order())
        if number != 1:
            order.expected, order.is_new = number, False

    def positions(self) -> dict[int, int]:
        """The number of the next notification of each subscription."""
        return {subscription_id: order.expected for subscription_id, order in self._orders.items()}

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

    def answered(self, request: int, header: Header, content: Any, now_s: float = 0.0) -> None:
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
            if order.expected == EARLY_LAST_NUMBER + 1 and order.begins_again:
                order.expected = 1
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

    def settle(self, header: Header, content: Any) -> None:
        """The first of the missing notifications was received after all."""
        order = self._orders.get(header.subscription_id)
        if order is not None and order.expected == header.sequence_number:
            order.held[header.sequence_number] = 0, 0.0, Arrived(header, content)

    def give_up(self, missing: Missing) -> None:
        """These notifications are lost."""
        order = self._orders.get(missing.subscription_id)
        if order is not None and order.expected == missing.first:
            order.expected, order.is_new = missing.last % NUMBERS + 1, False

    def leftover(self, without: Container[int] = ()) -> list[Arrived | Missing]:
        """At the end of a session: what arrived and was not passed on, in order, and what is missing in between.
        Subscriptions in `without` are left out."""
        found: list[Arrived | Missing] = [one for one in self._ready if one.header.subscription_id not in without]
        for subscription_id, order in self._orders.items():
            if subscription_id in without:
                continue
            for number in sorted(order.held, key=order.ahead):
                if number != order.expected:
                    found.append(Missing(subscription_id, order.expected, (number - 2) % NUMBERS + 1))
                found.append(order.held[number][2])
                order.expected = number % NUMBERS + 1
            order.held.clear()
        self._ready.clear()
        return found

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

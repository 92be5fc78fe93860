"""Keeps Publish requests open and passes the answers on, in the order of each subscription.

Several requests are open at once, so that a line with a long delay carries more than one publication per round trip. An
answer is acknowledged when it has been passed on. While that waits, no new request is sent, and the server queues. A
missing notification is requested again (Republish). If the server does not hold it any more, the `missing` of its route
is called.

Subscriptions are routed by their number. Values go to the source; the events route a subscription of their own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from agent.concurrency import TaskGroup
from agent.ingest.errors import SourceLost
from agent.ingest.opcua.decode import DecodeError, PublishHeader, read_header
from agent.ingest.opcua.publishing import Arrived, Missing, Sequencer
from agent.ingest.opcua.session import TOO_LARGE_STATUSES, OpcuaSession, PublishRefused

log = logging.getLogger(__name__)

BAD_NO_SUBSCRIPTION, BAD_TOO_MANY_PUBLISH_REQUESTS = 0x8079_0000, 0x8078_0000
REPUBLISHED_MAX = 1_000  # in a row after a reconnect; servers do not hold more
REPUBLISH_MAX = 20  # missing notifications in a row that are requested again; servers do not hold more
REFUSED_PAUSE_S = 0.25  # after a refused Publish


class Route(NamedTuple):
    """What handles the notifications of a subscription. `decode` reads the parameters of a PublishResponse, `take`
    takes the result, and the notification is acknowledged when it returns. `missing` is called for notifications that
    never came."""

    decode: Callable[[PublishHeader, bytes], Awaitable[Any]]
    take_publication: Callable[[PublishHeader, Any], Awaitable[None]]
    missing: Callable[[Missing], Awaitable[None]]


class Publisher:
    """The Publish requests of one session."""

    def __init__(
        self,
        session: OpcuaSession,
        requests: int,
        values: Route,
        on_none_left: Callable[[], None],
        sequencer: Sequencer,
    ) -> None:
        """`sequencer`: of the session before, if subscriptions of it are kept."""
        self._session, self._values, self._on_none_left = session, values, on_none_left
        self._requests, self._sequencer = requests, sequencer
        sequencer.resume()
        self._routes: dict[int, Route] = {}
        self._handing_on = asyncio.Lock()
        self._has_subscription = asyncio.Event()
        self._begun = 0  # subscriptions begun so far
        self.has_too_large = False  # a notification was too large to arrive, since the caller cleared this

    def begin_subscription(self, subscription_id: int, route: Route | None = None) -> None:
        """A subscription was created, or is kept: publish for it. Without a route it is one of values."""
        self.adopt(subscription_id, route)
        self._begun += 1
        self._has_subscription.set()

    async def seek(self, seconds: float) -> None:
        """Publish for subscriptions that are not known, until the server has none or some time has passed."""
        until_s = time.monotonic() + seconds
        self._has_subscription.set()
        while self._has_subscription.is_set() and time.monotonic() < until_s:  # noqa: ASYNC110 cleared by a refusal
            await asyncio.sleep(REFUSED_PAUSE_S)

    def adopt(self, subscription_id: int, route: Route | None = None) -> None:
        """A subscription belongs to this session. Nothing is published for it yet."""
        if route is not None:
            self._routes[subscription_id] = route
        self._sequencer.begin_subscription(subscription_id)

    def forget(self, subscription_id: int) -> None:
        """A subscription has ended. What still arrives from it is dropped."""
        self._sequencer.forget(subscription_id)
        self._routes.pop(subscription_id, None)

    def is_early(self, header: PublishHeader) -> bool:
        """Whether this is a keep-alive that has overtaken notifications, because it is passed on at once."""
        return not header.has_data and header.sequence_number != self._sequencer.position(header.subscription_id)

    def take_rest(self) -> list[Arrived]:
        """At the end of the session: what arrived in order and was not passed on, of values only. What routed
        subscriptions did not take is not acknowledged: the server still holds it."""
        return self._sequencer.take_rest(self._routes)

    async def republish(self, subscription_id: int) -> int:
        """Receive what was sent and did not arrive, until the server has no more (OPC 10000-4, 5.14.6). Returns the
        status with which it says so; 0 if it says so otherwise."""
        for _ in range(REPUBLISHED_MAX):
            number = self._sequencer.position(subscription_id)
            found = 0 if number is None else await self._republished(subscription_id, number)
            if not isinstance(found, Arrived):
                return found
            self._sequencer.settle(found.header, found.content)
            async with self._handing_on:
                await self._hand_on()
        return 0

    async def run(self) -> None:
        """Publish until the session is lost: raises SourceLost."""
        async with TaskGroup() as group:
            for number in range(self._requests):
                group.create_task(self._publish(), name=f"publish {number}")

    async def _publish(self) -> None:
        """Make one request after the other."""
        while True:
            await self._has_subscription.wait()
            begun = self._begun
            request, acks = self._sequencer.sent()
            try:
                body = await self._session.publish(acks)
                header = read_header(body)
                content = await self._route(header.subscription_id).decode(header, body)
            except PublishRefused as error:
                self._sequencer.failed(request, acks)
                self.has_too_large |= error.status in TOO_LARGE_STATUSES
                if error.status == BAD_TOO_MANY_PUBLISH_REQUESTS and self._requests > 1:
                    self._requests -= 1
                    return
                if error.status == BAD_NO_SUBSCRIPTION and begun == self._begun:  # otherwise one has been created since
                    self._has_subscription.clear()
                    self._on_none_left()
                await asyncio.sleep(REFUSED_PAUSE_S)
                continue
            except DecodeError as error:
                raise SourceLost(f"a publication cannot be read: {error}") from error
            self._sequencer.answered(request, header, content, time.monotonic())
            async with self._handing_on:
                await self._hand_on()

    def _route(self, subscription_id: int) -> Route:
        return self._routes.get(subscription_id, self._values)

    async def _hand_on(self) -> None:
        """Pass on everything that is next in order. If this is cancelled, the rest stays in the sequencer
        (`leftover`)."""
        while (step := self._sequencer.next(time.monotonic())) is not None:
            if isinstance(step, Missing):
                await self._recover(step)
                continue
            await self._route(step.header.subscription_id).take_publication(step.header, step.content)
            self._sequencer.done(step)

    async def _recover(self, missing: Missing) -> None:
        """Request the first of the missing notifications again."""
        found: Arrived | int = 0
        if missing.last - missing.first < REPUBLISH_MAX:
            missing = missing._replace(last=missing.first)
            found = await self._republished(missing.subscription_id, missing.first)
        if isinstance(found, Arrived):
            self._sequencer.settle(found.header, found.content)
            return
        await self._route(missing.subscription_id).missing(missing)
        self._sequencer.give_up(missing)

    async def _republished(self, subscription_id: int, number: int) -> Arrived | int:
        """A notification that is requested again. The status if the server does not hold it; 0 if it answers something
        else: an empty one with number 0 (asyncua, python-opcua), or one that cannot be read. The latter ended a session
        when it first arrived, and would end each session that requests it again."""
        body = await self._session.republish(subscription_id, number)
        if isinstance(body, int):
            self.has_too_large |= body in TOO_LARGE_STATUSES
            return body
        try:
            header = read_header(body)._replace(more=True)  # others followed it
            if not header.has_data or header.sequence_number != number:
                return 0
            return Arrived(header, await self._route(subscription_id).decode(header, body))
        except DecodeError as error:
            extra = {"action": "notification_unreadable", "number": number, "why": str(error)}
            log.warning("a notification that was requested again cannot be read; its values are lost", extra=extra)
            return 0

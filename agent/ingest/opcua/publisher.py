"""Keeps Publish requests on their way and hands on what comes, in the order of each subscription.

Several requests are open at once, so that a long line carries more than one publication per round trip. An answer is
acknowledged when it has been handed on; while that waits, no new request is sent, and the server queues. A notification
that is missing is asked for again (Republish); if the server does not hold it any more, the `missing` of its
route is called.

Subscriptions are routed by their number: values go to the source; a component that needs another kind of notification
(events) routes a subscription of its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from agent.ingest.errors import SourceLost
from agent.ingest.opcua.decode import DecodeError
from agent.ingest.opcua.publishing import Arrived, Header, Missing, Sequencer, read_header
from agent.ingest.opcua.session import PublishRefused, Session

log = logging.getLogger(__name__)

BAD_NO_SUBSCRIPTION, BAD_TOO_MANY_PUBLISH_REQUESTS = 0x8079_0000, 0x8078_0000
REPUBLISH_MAX = 20  # of one break; a longer one is beyond what servers hold for us
REFUSED_PAUSE_S = 0.25  # after a Publish that was refused although it is the only one


class Route(NamedTuple):
    """What handles the notifications of a subscription. `decode` reads the parameters of a PublishResponse, `take`
    takes the result, and the notification is acknowledged when it returns. `missing` is called for notifications that
    never came."""

    decode: Callable[[Header, bytes], Awaitable[Any]]
    take: Callable[[Header, Any], Awaitable[None]]
    missing: Callable[[Missing], Awaitable[None]]


class Publisher:
    """The Publish requests of one session."""

    def __init__(
        self,
        session: Session,
        requests: int,
        values: Route,
        on_none_left: Callable[[], None],
    ) -> None:
        self._session, self._values, self._on_none_left = session, values, on_none_left
        self._requests = requests
        self._sequencer = Sequencer()
        self._routes: dict[int, Route] = {}
        self._handing_on = asyncio.Lock()
        self._has_subscription = asyncio.Event()
        self._begun = 0  # subscriptions created so far

    def begin(self, subscription_id: int, route: Route | None = None, number: int = 1) -> None:
        """A subscription was created, or taken over at the notification of this number: publish for it, by default its
        values."""
        if route is not None:
            self._routes[subscription_id] = route
        self._sequencer.begin(subscription_id, number)
        self._begun += 1
        self._has_subscription.set()

    def forget(self, subscription_id: int) -> None:
        """A subscription is no more; what still comes of it is dropped."""
        self._sequencer.forget(subscription_id)
        self._routes.pop(subscription_id, None)

    def positions(self, *, routed: bool = False) -> dict[int, int]:
        """The number of the next notification of each subscription that was begun and not forgotten: of those of
        values, or of the others."""
        known = self._sequencer.positions()
        return {
            subscription_id: n for subscription_id, n in known.items() if (subscription_id in self._routes) == routed
        }

    def leftover(self) -> list[Arrived | Missing]:
        """At the end of the session: what arrived and could not be handed on, and what is missing between, of the
        values only. What others did not take is not acknowledged: their subscriptions still hold it."""
        return self._sequencer.leftover(self._routes)

    async def run(self) -> None:
        """Publish until the session is lost: raises SourceLost."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._requests):
                group.create_task(self._publish(), name=f"publish {number}")

    async def _publish(self) -> None:
        """One request after the other."""
        while True:
            await self._has_subscription.wait()
            begun = self._begun
            request, acks = self._sequencer.sent()
            try:
                body = await self._session.publish(acks)
                header = read_header(body)._replace(arrived_s=time.monotonic())
                content = await self._route(header.subscription_id).decode(header, body)
            except PublishRefused as error:
                self._sequencer.failed(request, acks)
                if error.status == BAD_TOO_MANY_PUBLISH_REQUESTS and self._requests > 1:
                    self._requests -= 1
                    return
                if error.status == BAD_NO_SUBSCRIPTION and begun == self._begun:  # else one has been created since
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
        """Everything whose turn it is. A cancellation leaves what was not taken in the sequencer (`leftover`)."""
        while (step := self._sequencer.next(time.monotonic())) is not None:
            if isinstance(step, Missing):
                await self._recover(step)
                continue
            await self._route(step.header.subscription_id).take(step.header, step.content)
            self._sequencer.done(step)

    async def _recover(self, missing: Missing) -> None:
        """Ask again for the first of the missing notifications."""
        found = None
        if missing.last - missing.first < REPUBLISH_MAX:
            missing = missing._replace(last=missing.first)
            found = await self._republished(missing.subscription_id, missing.first)
        if found is None:
            await self._route(missing.subscription_id).missing(missing)
            self._sequencer.give_up(missing)
            return
        self._sequencer.settle(found.header, found.content)

    async def _republished(self, subscription_id: int, number: int) -> Arrived | None:
        """A notification, asked for again. None if the server does not hold it, or gives something else in its place:
        an empty one of number 0 (asyncua, python-opcua), or one that cannot be read. The latter has ended a session
        when it first came, and would end each one that asks for it again."""
        body = await self._session.republish(subscription_id, number)
        if body is None:
            return None
        try:
            header = read_header(body)._replace(more=True)  # what is asked for again was followed by others
            if not header.has_data or header.sequence_number != number:
                return None
            return Arrived(header, await self._route(subscription_id).decode(header, body))
        except DecodeError as error:
            extra = {"action": "notification_unreadable", "number": number, "why": str(error)}
            log.warning("a notification that was asked for again cannot be read; its values are lost", extra=extra)
            return None

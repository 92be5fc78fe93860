"""Takes over the subscriptions of a lost session, receives what they still hold, and deletes them.

A server continues to queue values for the subscriptions of a broken connection until their lifetime is over. The new
session creates subscriptions of its own, and also takes over the old ones (TransferSubscriptions, OPC 10000-4, 5.14.7).
Their notifications continue where they ended: those that were sent and did not arrive are requested again by number
(Republish), then those that are queued arrive. When all new items are created, and an old subscription has afterwards
sent everything it had, twice, it holds nothing that is missing. Then it is deleted.

If a server refuses, that costs one call and does not end the session. Nothing is taken over from a server that was
restarted, because the numbers of the subscriptions may be those of another client by now.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from agent.concurrency import timeout
from agent.ingest import quality
from agent.ingest.errors import SourceLost
from agent.ingest.opcua.publisher import Publisher, Route
from agent.ingest.opcua.publishing import Header
from agent.ingest.opcua.rescue.deduplicator import Deduplicator
from agent.ingest.opcua.session import Session
from agent.status_codes import status_name

log = logging.getLogger(__name__)

TRANSFER_S = 2.0  # for the answer to the transfer; new items wait for it
RESCUE_S = 30.0  # from the beginning of a life to the end of its rescue
COMPARE_S = 30.0  # then, for the first values of new items
FULL_ANSWERS = 2  # from an old subscription after everything is built; the first may have been prepared before that


class _Subscription(Protocol):
    @property
    def id(self) -> int: ...

    @property
    def ended(self) -> str:
        """Why the server ended it; empty if it did not."""


OldT = TypeVar("OldT", bound=_Subscription)


@dataclass(frozen=True, slots=True)
class Old(Generic[OldT]):
    """A subscription of the previous session, the number of its next notification, and its route; None: that of the
    values."""

    subscription: OldT
    number: int
    route: Route | None = None


@dataclass(frozen=True, slots=True)
class Ended(Generic[OldT]):
    """The old subscriptions at the end of a rescue: all of them, those that brought everything that was missing, and
    those that ended too early."""

    all: Sequence[OldT]
    whole: Sequence[OldT]
    short: Sequence[OldT]


class Rescue(Generic[OldT]):
    """The old subscriptions of one life. `started` is the StartTime of their server. `others` are subscriptions that
    are only to be deleted. Made by `next_rescue`."""

    def __init__(
        self,
        olds: Mapping[int, Old[OldT]],
        others: Sequence[int],
        started: object,
        now_s: float,
        before: Deduplicator | None = None,
    ) -> None:
        self._olds, self._others, self.started = dict(olds), others, started
        self._begun_s, self._built_s, self._ended_s = now_s, 0.0, 0.0
        # Number of answers of each old subscription since everything is built.
        self._answers: dict[int, int] | None = None
        self._incomplete: set[int] = set()
        self._useless: list[int] = []  # subscriptions that are to be deleted at the server
        self.subscriptions: dict[int, OldT] = {}  # taken over and not ended
        self.overflowed: set[int] = set()  # tags whose queue at the server overflowed
        self.deduplicator = Deduplicator(before)
        self.values_total = 0

    async def begin(self, session: Session, publisher: Publisher, adopt: Callable[[OldT], None]) -> None:
        """Take over the old subscriptions. `adopt` is called for each before it can publish. Awaits one answer."""
        numbers = [*self._olds, *self._others]
        try:
            async with timeout(TRANSFER_S):
                if self.started is None or await session.server_start() != self.started:
                    self._olds.clear()
                    return
                for number, old in self._olds.items():
                    self.subscriptions[number] = old.subscription
                    adopt(old.subscription)
                    publisher.begin(number, old.route, old.number)
                statuses = await session.transfer_subscriptions(numbers)
        except (SourceLost, TimeoutError) as error:
            self._refused(numbers, publisher, str(error))
            self._useless += numbers  # the server may have executed the call
            return
        for number, status in zip(numbers, statuses, strict=False):
            if quality.is_bad(status):
                self._refused([number], publisher, status_name(status))
                self._olds.pop(number, None)
            elif number not in self._olds:
                self._useless.append(number)

    def note_answer(self, header: Header, next_number: int) -> None:
        """Take in an answer of a subscription. `next_number` is the number of its next notification, as far as is
        known."""
        if self._answers is None or header.subscription_id not in self.subscriptions or header.more:
            return
        if header.arrived_s < self._built_s:
            return  # it arrived before the new items were created
        # A keep-alive with another number shows that notifications are missing.
        if header.has_data or header.sequence_number == next_number:
            self._answers[header.subscription_id] = self._answers.get(header.subscription_id, 0) + 1

    def built(self, now_s: float) -> None:
        """All new items are created. They bring what happens from now on."""
        self._answers, self._built_s = {}, now_s

    @property
    def has_olds(self) -> bool:
        """Whether old subscriptions may bring missing values."""
        return bool(self._olds)

    @property
    def is_built(self) -> bool:
        """Whether all new items are created."""
        return self._answers is not None

    def mark_incomplete(self, number: int) -> None:
        """This old subscription does not bring everything that is missing."""
        self._incomplete.add(number)

    def unfinished(self, numbers: Mapping[int, int]) -> dict[int, Old[OldT]]:
        """What the next session is to take over because this one ended before everything was built. `numbers` are those
        of the next notifications."""
        if self.has_ended:
            return {}
        return {
            number: replace(old, number=numbers.get(number, old.number))
            for number, old in self._olds.items()
            if not old.subscription.ended
        }

    @property
    def useless(self) -> Sequence[int]:
        """Subscriptions that are still to be deleted at the server."""
        return self._useless

    @property
    def has_ended(self) -> bool:
        """Whether the rescue has ended."""
        return bool(self._ended_s)

    def is_over(self, now_s: float) -> bool:
        """Whether the rescue is to end: the old subscriptions have sent everything, or their time is up."""
        if self._ended_s:
            return False
        answers = self._answers or {}
        is_complete = self._answers is not None and all(
            answers.get(number, 0) >= FULL_ANSWERS or one.ended for number, one in self.subscriptions.items()
        )
        return is_complete or now_s - self._begun_s > RESCUE_S

    def end(self, now_s: float) -> Ended[OldT]:
        """End the rescue."""
        self._ended_s = now_s
        self.deduplicator.end_old()
        answers = self._answers or {}
        taken, self.subscriptions = self.subscriptions, {}
        self._useless += taken
        is_short = {number: answers.get(number, 0) < FULL_ANSWERS or bool(one.ended) for number, one in taken.items()}
        return Ended(
            [*taken.values()],
            whole=[one for number, one in taken.items() if not is_short[number] and number not in self._incomplete],
            short=[one for number, one in taken.items() if is_short[number]],
        )

    def is_past(self, now_s: float) -> bool:
        """Whether nothing is left to do: no old subscription is to be deleted, and no new values are to be compared."""
        is_compared = self.deduplicator.is_closed or now_s - self._ended_s > COMPARE_S
        return bool(self._ended_s) and is_compared and not self._useless

    async def delete_useless(self, session: Session) -> None:
        """Delete old subscriptions at the server. One that it refuses to delete ends with its lifetime."""
        while self._useless:
            number = self._useless.pop()
            try:
                await session.delete_subscription(number)
            except SourceLost as error:
                log.debug(
                    "a subscription is not deleted", extra={"action": "subscription_not_deleted", "why": str(error)}
                )

    def _refused(self, numbers: Sequence[int], publisher: Publisher, why: str) -> None:
        """These subscriptions are not taken over. What they hold is lost."""
        extra = {"action": "subscriptions_not_transferred", "subscriptions": list(numbers), "why": why}
        log.debug("old subscriptions are not taken over", extra=extra)
        for number in numbers:
            publisher.forget(number)
            self.subscriptions.pop(number, None)


def next_rescue(
    before: Rescue[OldT] | None,
    built: Iterable[OldT] | None,
    numbers: Mapping[int, int],
    started: object,
    route: Callable[[OldT], Route | None],
) -> Rescue[OldT] | None:
    """The rescue of what a lost session did not receive; None if it had no subscription. `before` is its own rescue.
    `built` are its subscriptions; None if they were not complete: then they are only deleted, and its own rescue
    continues. `numbers` are those of the next notification of each of its subscriptions."""
    olds: dict[int, Old[OldT]] = {}
    if built is not None:
        olds = {one.id: Old(one, numbers[one.id]) for one in built if one.id in numbers and not one.ended}
    elif before is not None and (olds := before.unfinished(numbers)):
        started = before.started
    olds = {number: replace(old, route=route(old.subscription)) for number, old in olds.items()}
    known = dict.fromkeys([*numbers, *(() if before is None else before.useless)])
    others = [number for number in known if number not in olds]
    if not olds and not others:
        return None
    return Rescue(olds, others, started, time.monotonic(), None if before is None else before.deduplicator)

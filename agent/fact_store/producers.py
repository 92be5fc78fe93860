"""Appends messages of many producers in one event loop: the messages of one iteration of the loop share an append.

A future that crosses threads costs more than all other work for a message, so the messages of an iteration share one.
Guarantees: each producer gets the outcome of its own message, in the order of the calls; a message that is refused is
refused alone; cancelling does not withdraw a message. If the store is full or busy, every call of the iteration raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future

from agent.append_contract import NO_PRECONDITION, AppendOutcome, Precondition
from agent.errors import BsfgError
from agent.fact_store.appends import Appends
from agent.fact_store.log import Refused, StoreError, copy_error
from agent.message import Message
from agent.settings.store import Acks

TOGETHER_MAX = 1000
"""Messages of one append. Sealing this many takes a few milliseconds, for which each of them waits."""

_Asked = tuple[Message, Precondition, "asyncio.Future[AppendOutcome]"]


class Producers:
    """Appends messages for the tasks of one event loop."""

    def __init__(self, appends: Appends) -> None:
        self._appends = appends
        self._asked: dict[tuple[str, Acks | None], list[_Asked]] = {}

    async def append_message(
        self, stream: str, message: Message, *, acks: Acks | None = None, precondition: Precondition = NO_PRECONDITION
    ) -> AppendOutcome:
        """As `Appends.append_message`, with the same exceptions."""
        self._appends.check_append(stream, [message], acks, [precondition])
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[AppendOutcome] = loop.create_future()
        asked = self._asked.setdefault((stream, acks), [])
        if not asked:
            loop.call_soon(self._hand_over, stream, acks)
        asked.append((message, precondition, answered))
        return await answered

    def _hand_over(self, stream: str, acks: Acks | None) -> None:
        """Append all messages of this iteration, in one append or a few."""
        asked = self._asked.pop((stream, acks))
        for start in range(0, len(asked), TOGETHER_MAX):
            self._append(stream, acks, asked[start : start + TOGETHER_MAX])

    def _append(self, stream: str, acks: Acks | None, asked: Sequence[_Asked]) -> None:
        loop = asyncio.get_running_loop()
        preconditions = [precondition for _, precondition, _ in asked]
        if all(one == NO_PRECONDITION for one in preconditions):
            preconditions = []
        try:
            appended = self._appends.append_checked(stream, [one for one, _, _ in asked], acks, preconditions)
        except BsfgError as error:
            for _, _, answered in asked:
                _fail(answered, error)
            return

        def done(appended: Future[list[AppendOutcome]]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._answer, stream, acks, asked, appended)

        appended.add_done_callback(done)

    def _answer(
        self, stream: str, acks: Acks | None, asked: Sequence[_Asked], appended: Future[list[AppendOutcome]]
    ) -> None:
        error = appended.exception()
        if isinstance(error, Refused) and len(asked) > 1:
            for one in asked:  # append each message alone, so that only the invalid one is refused
                self._append(stream, acks, [one])
            return
        if error is not None:
            for _, _, answered in asked:
                _fail(answered, error)
            return
        for (_, _, answered), outcome in zip(asked, appended.result(), strict=True):
            if not answered.done():
                answered.set_result(outcome)


def _fail(answered: asyncio.Future[AppendOutcome], error: BaseException) -> None:
    """Fail one call, with its own copy of the exception, so that tracebacks of several calls do not mix."""
    if not answered.done():
        answered.set_exception(copy_error(error) if isinstance(error, StoreError) else error)

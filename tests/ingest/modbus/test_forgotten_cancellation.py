"""A cancellation that a library forgot."""

import asyncio
import contextlib

from agent.ingest.modbus.source import end_if_cancelled
from tests.waiting import wait_until_async


def test_a_loop_whose_cancellation_was_forgotten_ends_at_its_next_turn() -> None:
    """What swallows a cancellation, as wait_for of Python 3.11 does when it meets the answer, delays the end by one turn."""

    async def scenario() -> None:
        turns = 0

        async def forgetful() -> None:
            nonlocal turns
            while turns < 3:
                turns += 1
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
                end_if_cancelled()

        async with asyncio.TaskGroup() as group:
            task = group.create_task(forgetful())
            await wait_until_async(lambda: turns == 1, "the first turn")
            task.cancel()
        assert (task.cancelled(), turns) == (True, 1)

    asyncio.run(scenario())

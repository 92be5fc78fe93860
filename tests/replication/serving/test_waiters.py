"""Fetches that wait for facts: who is woken, by what, and who gives the place up."""

import asyncio
from collections.abc import Callable

from agent.replication.serving.waiters import Waiters

FACTS, OTHERS = "facts.telemetry", "facts.operational"


def played(scenario: Callable[[Waiters, asyncio.TaskGroup], object]) -> None:
    """Run a scenario with waiters of its own; nobody is left waiting."""

    async def run() -> None:
        waiters = Waiters()
        async with asyncio.timeout(20):
            async with asyncio.TaskGroup() as group:
                await scenario(waiters, group)  # type: ignore[misc]
        assert (waiters.count(), waiters.count("idmz"), waiters.anybody()) == (0, 0, False)

    asyncio.run(run())


def never() -> bool:
    """The log has not grown since the caller looked."""
    return False


async def settled() -> None:
    """Let every task that can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_growth_of_the_own_stream_ends_a_wait() -> None:
    """That of another stream does not."""

    async def scenario(waiters: Waiters, group: asyncio.TaskGroup) -> None:
        one = group.create_task(waiters.wait(("idmz", "a"), FACTS, 20, never))
        other = group.create_task(waiters.wait(("idmz", "b"), OTHERS, 20, never))
        await settled()
        assert waiters.count("idmz") == 2
        waiters.wake({FACTS: 1})
        await settled()
        assert (one.done(), other.done()) == (True, False)
        assert one.result() is False
        waiters.wake({OTHERS: 1})

    played(scenario)


def test_a_newer_fetch_ends_the_older_one() -> None:
    """The older one is told that another took its place, and the newer goes on waiting in it."""

    async def scenario(waiters: Waiters, group: asyncio.TaskGroup) -> None:
        older = group.create_task(waiters.wait(("idmz", "a"), FACTS, 20, never))
        await settled()
        newer = group.create_task(waiters.wait(("idmz", "a"), FACTS, 20, never))
        await settled()
        assert older.done()
        assert older.result() is True
        assert waiters.count("idmz") == 1
        waiters.wake({FACTS: 1})
        assert await newer is False

    played(scenario)


def test_what_grew_while_the_place_was_taken_is_seen() -> None:
    """Nobody was there to be woken then."""

    async def scenario(waiters: Waiters, _: asyncio.TaskGroup) -> None:
        async with asyncio.timeout(10):
            assert await waiters.wait(("idmz", "a"), FACTS, 20, lambda: True) is False

    played(scenario)


def test_patience_ends_a_wait() -> None:
    """Without a fact the answer is an empty page."""

    async def scenario(waiters: Waiters, _: asyncio.TaskGroup) -> None:
        assert await waiters.wait(("idmz", "a"), FACTS, 0, never) is False

    played(scenario)

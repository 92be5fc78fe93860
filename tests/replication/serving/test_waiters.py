"""Fetches that wait for facts: which are woken, by what, and which lose their place."""

import asyncio
from collections.abc import Callable

from agent.replication.serving.waiters import Key, Waiters, end_wait

FACTS, OTHERS = "facts.telemetry", "facts.operational"


def played(scenario: Callable[[Waiters], None]) -> None:
    """Run a scenario with waiters of its own, inside an event loop."""

    async def run() -> None:
        scenario(Waiters())

    asyncio.run(run())


def parked(waiters: Waiters, key: Key, stream: str = FACTS) -> asyncio.Future[bool]:
    """A fetch that waits for a stream."""
    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    waiters.add(key, stream, ended)
    return ended


def test_growth_of_the_own_stream_ends_a_wait() -> None:
    """Growth of another stream does not."""

    def scenario(waiters: Waiters) -> None:
        one, other = parked(waiters, ("idmz", "a")), parked(waiters, ("idmz", "b"), OTHERS)
        assert (waiters.count("idmz"), waiters.count("north"), waiters.has_any()) == (2, 0, True)
        waiters.wake({FACTS: 1})
        assert (one.done(), other.done()) == (True, False)
        assert one.result() is False
        waiters.wake({OTHERS: 1})
        assert other.result() is False

    played(scenario)


def test_a_newer_fetch_ends_the_older_one() -> None:
    """The older one has lost its place; the newer waits in it, and keeps it when the older one is cleaned up."""

    def scenario(waiters: Waiters) -> None:
        key = ("idmz", "a")
        older = parked(waiters, key)
        newer = parked(waiters, key)
        assert older.done()
        assert older.result() is True
        waiters.remove(key, older)
        assert (waiters.count(), waiters.count("idmz"), newer.done()) == (1, 1, False)
        waiters.wake({FACTS: 1})
        assert newer.result() is False
        waiters.remove(key, newer)
        assert (waiters.count(), waiters.count("idmz"), waiters.has_any()) == (0, 0, False)

    played(scenario)


def test_a_wait_ends_once() -> None:
    """A commit, the end of the patience and a newer fetch may come together: the first of them counts."""

    def scenario(waiters: Waiters) -> None:
        ended = parked(waiters, ("idmz", "a"))
        end_wait(ended)
        waiters.supersede(("idmz", "a"))
        end_wait(ended)
        assert ended.result() is False

    played(scenario)

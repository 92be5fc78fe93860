"""Parked fetches: what ends a wait, and that it ends once."""

import asyncio

from agent.replication.serving.operations.consumers import Waiters, end_wait

FACTS, OTHER = "facts.telemetry", "facts.operational"
ONE, TWO = ("idmz", "a"), ("idmz", "b")


async def test_growth_of_the_own_stream_ends_a_wait() -> None:
    """A commit wakes the fetches that wait for its streams, and no others."""
    waiters, loop = Waiters(), asyncio.get_running_loop()
    one, two = loop.create_future(), loop.create_future()
    waiters.add(ONE, FACTS, one)
    waiters.add(TWO, OTHER, two)
    waiters.wake({FACTS: 7})
    assert (one.done(), two.done()) == (True, False)
    assert one.result() is False
    waiters.wake({FACTS: 8})  # the same wait may be woken again before it is removed
    waiters.remove(ONE, one)
    assert (waiters.count(), waiters.count("idmz"), waiters.has_any()) == (1, 1, True)


async def test_a_newer_fetch_ends_the_older_one() -> None:
    """A second fetch of a consumer supersedes the first; removing the first afterwards does not remove the second."""
    waiters, loop = Waiters(), asyncio.get_running_loop()
    older, newer = loop.create_future(), loop.create_future()
    waiters.add(ONE, FACTS, older)
    waiters.add(ONE, FACTS, newer)
    assert older.result() is True
    waiters.remove(ONE, older)
    assert waiters.count("idmz") == 1
    waiters.wake({FACTS: 7})
    assert newer.result() is False
    waiters.remove(ONE, newer)
    assert (waiters.count("idmz"), waiters.has_any()) == (0, False)


async def test_another_instance_ends_a_wait() -> None:
    """A lease that is taken supersedes the parked fetch of the instance that held it, once."""
    waiters, parked = Waiters(), asyncio.get_running_loop().create_future()
    waiters.add(ONE, FACTS, parked)
    waiters.supersede(ONE)
    waiters.supersede(ONE)
    end_wait(parked)  # its time-out arrives later and changes nothing
    assert parked.result() is True
    assert waiters.count() == 0

"""Parked fetches: what ends a wait, and that it ends once."""

import asyncio

from agent.replication.serving.consumer_effects import Park
from agent.replication.serving.operations.consumers import Waiters, end_wait

FACTS, OTHER = "facts.telemetry", "facts.operational"
ONE, TWO = ("idmz", "a"), ("idmz", "b")


def park(stream: str = FACTS, answer_to: str = "topic", correlation: bytes = b"") -> Park:
    """A fetch to be parked."""
    return Park("idmz.a", "idmz", stream, 0, 0, answer_to, correlation)


async def test_growth_of_the_own_stream_ends_a_wait() -> None:
    """A commit wakes the fetches that wait for its streams, and no others."""
    waiters, loop = Waiters(), asyncio.get_running_loop()
    one, two = loop.create_future(), loop.create_future()
    waiters.add(ONE, park(), one)
    waiters.add(TWO, park(OTHER), two)
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
    waiters.add(ONE, park(), older)
    waiters.add(ONE, park(), newer)
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
    waiters.add(ONE, park(), parked)
    waiters.supersede(ONE)
    waiters.supersede(ONE)
    end_wait(parked)  # its time-out arrives later and changes nothing
    assert parked.result() is True
    assert waiters.count() == 0


async def test_a_heartbeat_names_the_fetches_of_one_requester() -> None:
    """All fetches of an instance of a zone are named in one message, whatever their streams; those of another instance
    in another."""
    waiters, loop = Waiters(), asyncio.get_running_loop()
    for number, topic in enumerate(["one", "two", "one"]):
        waiters.add(("idmz", str(number)), park(answer_to=topic, correlation=bytes([number])), loop.create_future())
    assert waiters.requesters() == {("idmz", "one"): [b"\0", b"\2"], ("idmz", "two"): [b"\1"]}

"""Reading tags once: calls are cut to what the server takes, and one value costs no other."""

import asyncio
from collections.abc import Sequence

from agent.ingest import quality
from agent.ingest.opcua.address import Reading
from agent.ingest.opcua.decode import Change, DecodeError
from agent.ingest.opcua.session import CallTooLarge, read_in_parts
from agent.settings.opcua_address import NodeAddress

READINGS = [Reading(NodeAddress("urn:x", n)) for n in range(10)]


class Server:
    """Answers each node with its number; refuses long calls, and cannot be decoded where node `bad` is."""

    def __init__(self, longest: int, bad: int = -1) -> None:
        self.longest, self.bad = longest, bad
        self.calls: list[int] = []

    async def read_values(self, readings: Sequence[Reading], _: Sequence[str]) -> list[Change]:
        self.calls.append(len(readings))
        if len(readings) > self.longest:
            raise CallTooLarge("BadTooManyOperations")
        numbers = [reading.address.identifier for reading in readings]
        if self.bad in numbers:
            raise DecodeError("malformed")
        return [Change(0, number, 0, 1, 1) for number in numbers]  # type: ignore[arg-type]


def read(server: Server) -> list[Change]:
    """All nodes, in calls of ten at first."""
    return asyncio.run(read_in_parts(server, READINGS, [], 10))[0]  # type: ignore[arg-type]


def test_calls_are_cut_to_what_the_server_takes() -> None:
    """A server that takes three nodes a call gives all ten, in order, and is not asked for more than ten again. One
    that takes none gives bad values."""
    server = Server(3)
    assert [change.value for change in read(server)] == list(range(10))
    assert server.calls == [10, 5, 3, 3, 3, 1]
    assert {change.quality for change in read(Server(0))} == {quality.BAD_ENCODING_LIMITS_EXCEEDED}


def test_a_value_that_cannot_be_decoded_costs_no_other() -> None:
    """Its own tag has a bad status; the nine others have their values."""
    server = Server(10, bad=6)
    found = read(server)
    assert server.calls[-1] == 3, "behind it calls are long again"
    assert [change.value for change in found] == [0, 1, 2, 3, 4, 5, None, 7, 8, 9]
    assert found[6].quality == quality.BAD_DECODING_ERROR

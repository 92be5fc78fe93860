"""The servers themselves: what the other tests lean on does what it says, seen by a source of ours."""

from pathlib import Path

import pytest

from tests.foreign.plant import opcua
from tests.foreign.server import ForeignServer
from tests.ingest.plant import ingesting

pytestmark = [pytest.mark.system, pytest.mark.foreign("node_opcua")]


async def test_the_record_holds_what_the_server_published(server: ForeignServer, tmp_path: Path) -> None:
    """Every value that arrives stands in the server's own record with the same source time, to 100 ns, and none of the
    record is missing between the first and the last; also across a kill, for the server goes on where it ended."""
    async with ingesting(opcua(server, tmp_path, "count")) as run:
        await run.wait_good("f/count", 20)
    check_whole(server, [(s.source_time_ns, s.value) for s in run.store.good("f/count")])
    server.kill()
    before = server.record("count")
    await server.start()
    async with ingesting(opcua(server, tmp_path, "count")) as run:
        await run.wait_good("f/count", 5)
    check_whole(server, [(s.source_time_ns, s.value) for s in run.store.good("f/count")])
    assert server.record("count")[len(before)].value == before[-1].value + 1


def check_whole(server: ForeignServer, stored: list[tuple[int, object]]) -> None:
    """What is stored is one piece of the record."""
    record = [(entry.time_ns, entry.value) for entry in server.record("count")]
    first = record.index(stored[0])
    assert record[first : first + len(stored)] == stored

"""The servers themselves: what the other tests lean on does what it says, seen by a source of ours."""

from pathlib import Path

import pytest

from agent.ingest.lifecycle import State
from tests.foreign.plant import opcua
from tests.foreign.process import Refused
from tests.foreign.server import ForeignServer
from tests.ingest.plant import ingesting
from tests.waiting import wait_until_async

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


async def test_trouble_is_trouble(server: ForeignServer, tmp_path: Path) -> None:
    """Sessions closed, subscriptions ended, connections cut, Publish refused: each ends the life of a source. Publish
    held keeps it connected and silent. A refused command says why."""
    async with ingesting(opcua(server, tmp_path, "count")) as run:
        for trouble in (server.kill_sessions, server.kill_subscriptions, server.cut):
            lives = run.source("plc").connects_total
            await run.wait_good("f/count", len(run.store.good("f/count")))
            await trouble()
            await wait_until_async(lambda lives=lives: run.source("plc").connects_total > lives, trouble.__name__)
        await server.publish("refuse")
        await run.wait_state("plc", State.WAITING)
        await server.publish("flow")
        await run.wait_good("f/count", len(run.store.good("f/count")))
        await server.publish("hold")
        await wait_until_async(lambda: is_held(server), "a Publish request held")
        await server.publish("flow")
        await run.wait_good("f/count", len(run.store.good("f/count")))
        with pytest.raises(Refused, match="there is no variable ghost"):
            await server.set("ghost", 1)


async def is_held(server: ForeignServer) -> bool:
    """Whether a Publish request waits for the test."""
    return bool((await server.status())["publish_held"])


async def test_the_clock_is_shifted(server: ForeignServer, tmp_path: Path) -> None:
    """CurrentTime and source times follow the shifted clock."""
    source = opcua(server, tmp_path, tags=server.tags("count") + "f/clock,i=2258\n")
    async with ingesting(source) as run:
        await run.wait_good("f/clock")
        later = run.store.good("f/clock")[0].source_time_ns + 3_599_000_000_000
        await server.shift_clock(3_600_000)
        for tag in ("f/clock", "f/count"):
            await wait_until_async(lambda tag=tag: run.store.good(tag)[-1].source_time_ns > later, f"{tag} later")

"""The life of a connection to node-opcua and open62541: it lasts, its loss is dated and declared, and it returns."""

import random
from pathlib import Path

import pytest

from agent.ingest.lifecycle import State
from agent.ingest.opcua import session
from agent.ingest.supervision import supervisor
from tests.foreign.account import account
from tests.foreign.conftest import COUNT
from tests.foreign.plant import opcua, running_node, storing
from tests.foreign.server import NODE_OPCUA, OPEN62541, ForeignServer, foreign_server
from tests.foreign.test_torture import Lasts, Trouble, cut, freeze, hold, kill, lose
from tests.ingest.plant import Running, ingesting
from tests.sim import IS_LONG, scaled
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("node_opcua")]

TICKS_A_SECOND = 4  # of a source: TICK_S


async def live_on(run: Running, seconds: float) -> None:
    """Until the source has gone on for so long, by its own ticks."""
    until = run.source("plc").turns_total + seconds * TICKS_A_SECOND
    await wait_until_async(lambda: run.source("plc").turns_total >= until, f"{seconds} s of life", 20 + 3 * seconds)


async def test_a_connection_lasts(either_server: ForeignServer, tmp_path: Path) -> None:
    """Values flow beyond the time after which a server without sign of life is given up, then none change and the
    server's clock alone proves that it is alive. There is one connection all the while, and nothing is lost. `make
    sim`: the times that the product has."""
    liveness_timeout_ms = scaled(3_000, 15_000)
    limit_s = 1.5 * liveness_timeout_ms / 1000
    async with storing(
        opcua(either_server, tmp_path, "count", liveness_timeout_ms=liveness_timeout_ms), tmp_path
    ) as run:
        await run.wait_good("f/count")
        await live_on(run, limit_s)
        await either_server.run(on=False)
        await live_on(run, limit_s)
        (subscription,) = (await either_server.status())["subscriptions"]
        if handles := subscription.get("handles"):  # open62541 does not say
            assert 0 not in handles, "a server that finds a handle invalid has put 0 in its place"
            assert len(set(handles)) == 2
        await either_server.run(on=True)
        await run.wait_more("f/count", 5)
        assert (run.source("plc").connects_total, run.source("plc").last_error) == (1, "")
    found = account(either_server, tmp_path, "count")
    assert (found.lost, found.gaps) == ([], [])


# --- a loss is dated at the last sign of life, and declared -----------------------------------------------------------


async def throw_out(server: ForeignServer, _: random.Random, lasts: Lasts) -> None:
    """The server throws its clients out."""
    await server.listen(on=False)
    await server.kill_sessions()
    await lasts()
    await server.listen(on=True)


LOSING = (kill, throw_out)
KEEPING = (hold, cut, freeze, lose)  # the server still has the session, and what it queued or sent


@pytest.mark.parametrize(
    "either_server, trouble",
    [
        pytest.param(stack.name, trouble, marks=pytest.mark.foreign(stack.name))
        for stack, troubles in {
            NODE_OPCUA: LOSING + KEEPING,
            OPEN62541: LOSING + KEEPING if IS_LONG else (lose, cut),
        }.items()
        for trouble in troubles
    ],
    indirect=["either_server"],
)
async def test_every_lost_value_is_declared(trouble: Trouble, either_server: ForeignServer, tmp_path: Path) -> None:
    """Each value that the server set, by its own record, and that is not in the store, lies in the time of a gap fact.
    The gap begins where the source was last known to be alive, not where its loss was noticed."""
    async with storing(opcua(either_server, tmp_path, "count"), tmp_path) as run:
        await run.wait_good("f/count", 20)
        before = run.store.good("f/count")[-1]

        async def lasts() -> None:
            await run.wait_state("plc", State.WAITING)
            if trouble in (cut, throw_out):  # the loss is noticed at once
                await either_server.wait_record("count", 5)

        await trouble(either_server, random.Random(), lasts)
        await wait_until_async(
            lambda: run.store.good("f/count")[-1].source_time_ns > before.source_time_ns + 1_000_000_000,
            "values again",
        )
        await run.wait_more("f/count", 10)
    found = account(either_server, tmp_path, "count")
    assert found.lost or trouble not in LOSING, "the trouble was none"
    assert not found.undeclared, f"{len(found.undeclared)} of {len(found.lost)} lost values are in no gap"
    assert not found.twice
    assert not found.invented
    assert found.gaps or trouble in KEEPING
    allowed_ns = 4_000_000_000  # two samples of the server's clock, publishing, and a busy machine
    for gap in found.gaps:
        assert gap.first_ns >= before.source_time_ns - allowed_ns, "the gap is no longer than the loss"


# --- back-off -------------------------------------------------------------------------------------------------------


async def test_a_server_whose_only_session_is_a_dead_one_is_connected_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that was killed leaves its session at the server. The next one says so, asks again every few seconds
    whatever the back-off says, and connects when the dead session has ended, which was asked to be soon."""
    monkeypatch.setattr(session, "SESSION_TIMEOUT_MS_MIN", 4_000)
    monkeypatch.setattr(supervisor, "BUSY_WAIT_S", 0.2)
    async with foreign_server(tmp_path / "server", variables=[COUNT], limits={"sessions": 1}) as server:
        settings = {"request_timeout_ms": 1_000, "reconnect_delay_ms": 10_000, "reconnect_delay_max_ms": 10_000}
        source = opcua(server, tmp_path, "count", **settings)
        killed = session.new_client(source)
        await killed.connect()
        killed.disconnect_socket()
        async with ingesting(source) as run:
            await wait_until_async(lambda: run.source("plc").last_error, "the refusal")
            assert "(BadTooManySessions); if a bsfg was killed" in run.source("plc").last_error
            assert "keeps its session for 4 s" in run.source("plc").last_error
            await run.wait_good("f/count", 3)
            assert run.source("plc").errors_total > 2, "it was asked again before the back-off's shortest wait"
    lost = [record.why for record in caplog.records if getattr(record, "action", "") == "source_lost"]  # type: ignore[attr-defined]
    assert len(lost) == 1, "one line for one reason"


async def test_a_waiting_source_is_retried_by_hand(server: ForeignServer, tmp_path: Path) -> None:
    """`bsfg source retry` ends a long pause: the server is back, and the operator need not wait. A wrong name is told
    the right ones."""
    pauses = {"reconnect_delay_ms": 60_000, "reconnect_delay_max_ms": 600_000}
    async with running_node(server, tmp_path, "count", **pauses) as node:
        await wait_until_async(lambda: node.events("source_connected"), "the source")
        server.kill()
        await wait_until_async(lambda: node.events("source_lost"), "the loss")
        await server.start()
        status, words = await node.bsfg("source", "retry", "plc")
        assert status == 0, words
        await wait_until_async(lambda: node.events("source_returned"), "the return")
        status, words = await node.bsfg("source", "retry", "ghost")
        assert status != 0
        assert "plc" in words

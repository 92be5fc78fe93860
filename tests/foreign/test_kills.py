"""The node is killed again and again, amid and after trouble at a foreign server; then the server's own record is
compared with the store. `make sim` kills it thirty times."""

import asyncio
import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from agent.message import time_text
from tests.foreign.account import account, stored
from tests.foreign.plant import running_node
from tests.foreign.server import ForeignServer, foreign_server
from tests.foreign.test_torture import (
    KEPT,
    PLAIN,
    RECOVERY_S,
    VARIABLES,
    Trouble,
    cut,
    freeze,
    hold,
    judge,
    judge_events,
    kill_sessions,
    kill_subscriptions,
    lasting,
)
from tests.sim import first_seed, patient, scaled
from tests.waiting import wait_until_async

TROUBLES: tuple[Trouble, ...] = (kill_sessions, kill_subscriptions, cut, freeze, hold)
KILLS = scaled(3, 30)


@pytest.mark.system
@pytest.mark.foreign("node_opcua")
@patient
def test_a_killed_node_leaves_no_value_unnamed(tmp_path: Path) -> None:
    """After kills at random moments, as a source returns most of all, each value and each event of the server's record
    is in the store once or in the time of a gap fact; what the server's history holds is there."""
    chance, state = random.Random(first_seed()), tmp_path / "state"
    names = PLAIN + KEPT

    async def all_flow(server: ForeignServer) -> None:
        began_ns = {name: server.record(name)[-1].time_ns for name in names}
        await wait_until_async(
            lambda: all(newest_ns(state, name) > at_ns for name, at_ns in began_ns.items()), "values", RECOVERY_S
        )

    async def story() -> None:
        async with foreign_server(tmp_path / "server", variables=VARIABLES, event_period_ms=100) as server:
            for number in range(KILLS + 1):
                async with running_node(server, tmp_path, *names, events=["Server"]) as node:
                    await wait_until_async(lambda: node.events("source_connected"), "the source", RECOVERY_S)
                    await all_flow(server)
                    if number == KILLS:
                        await wait_until_async(lambda: not missing_of_history(server, state), "the gaps filled", 40)
                        break
                    trouble, seconds = chance.choice(TROUBLES), chance.choice([0.2, 1.0, 4.5])
                    print(f"{time_text(time.time_ns())} {trouble.__name__} {seconds} s")
                    await trouble(server, chance, partial(lasting, seconds))
                    await lasting(chance.choice([0.0, 0.5, 3.0]) * chance.random())
                    print(f"{time_text(time.time_ns())} killed")
                    node.ends_by = signal.SIGKILL
            for name in names:
                judge(name, account(server, state, name))
            judge_events(server, state)

    asyncio.run(story())


def newest_ns(state: Path, name: str) -> int:
    """The time of the newest good value in the store."""
    return max((sample.time_ns for sample in stored(state, name) if sample.quality == 0), default=0)


def missing_of_history(server: ForeignServer, state: Path) -> bool:
    """Whether a value is missing that the server's history holds."""
    return any(account(server, state, name).lost for name in KEPT)

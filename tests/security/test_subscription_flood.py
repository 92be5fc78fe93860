"""Twenty plants work while another zone of the site floods the broker, with a valid certificate and a link of its own.

Mosquitto has no limit for the sessions or packets of a certificate, so such a zone takes processor time of the broker's
one thread. No fact is lost, and `bsfg broker sessions` names the zone. What the flood costs is printed: the lag from an
append until its confirmation is back at the plant, without the flood and with it."""

import contextlib
import json
import os
import signal
import statistics
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agent.cli.broker import broker as broker_commands
from agent.client import Client, NodeSilent
from agent.fact_store import StoreReader
from bench.common import testbed
from bench.replication.endpoints import STREAM
from bench.replication.fleet import pulling_node
from tests.security.test_broker_attacks import bombs, evil
from tests.sim import scaled
from tests.support.mosquitto import Mosquitto
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.system

IDMZ = testbed.ASKING
PLANTS = [f"plant-{number:02}" for number in range(20)]
LINKS = [*(f"{plant}:{IDMZ}" for plant in PLANTS), f"evil:{IDMZ}", f"{IDMZ}:evil"]
SESSIONS, FILTERS, PAGES = 40, 300, scaled(100, 2_000)


@contextlib.contextmanager
def flooding(broker: Mosquitto) -> Iterator[list[int]]:
    """Forty sessions that ask for subscriptions as fast as they are refused; yields the count of each."""
    ended, counts = threading.Event(), [0] * SESSIONS
    wanted = bombs()["many levels"][:FILTERS]

    def flood(number: int) -> None:
        with evil(broker) as session:
            while not ended.is_set():
                session.subscribe(wanted)
                counts[number] += 1

    threads = [threading.Thread(target=flood, args=(number,)) for number in range(SESSIONS)]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def appended(plants: Any, state: Path) -> None:
    """Let the plants append until the node has some more pages."""

    def offset() -> int:
        with contextlib.closing(StoreReader(state / "facts.db")) as reader:
            return reader.end_offset(STREAM)

    end = offset() + PAGES
    os.kill(plants.pid, signal.SIGUSR1)
    wait_until(lambda: offset() >= end, "the facts arrive", LIMIT_S + PAGES / len(PLANTS))  # each appends once a second
    os.kill(plants.pid, signal.SIGUSR1)


def is_connected(state: Path) -> bool:
    """Whether the node has an answer of each plant, of both streams."""
    try:
        return bool(Client(state).status()["counts"]["peers_connected"] == 2 * len(PLANTS))
    except NodeSilent:
        return False


@pytest.mark.parametrize("is_flooded", [False, True])
def test_a_flood_of_subscriptions_stops_no_fact(tmp_path: Path, *, is_flooded: bool) -> None:
    """All facts arrive and are confirmed, no connection is lost, and the zone is named with its sessions and the
    command that denies it."""
    with (
        Mosquitto.started(tmp_path / "site", [*PLANTS, IDMZ, "evil"], LINKS) as broker,
        contextlib.ExitStack() as stack,
    ):
        bed = testbed.Testbed(tmp_path, broker)
        plants = stack.enter_context(bed.worker("plants", "plants", PLANTS[0], zones=PLANTS, facts_per_plant=1))
        node, state = pulling_node(bed, PLANTS), tmp_path / IDMZ / "state"
        stack.callback(node.stop)
        node.start()
        node.wait_ready(lambda: is_connected(state), 60.0)
        counts = stack.enter_context(flooding(broker)) if is_flooded else [1]
        wait_until(lambda: all(counts), "the flood begins")
        appended(plants, state)
        if is_flooded:
            command = ["sessions", "--config", str(broker.files.folder), "--log", str(broker.files.folder / "log")]
            named = CliRunner().invoke(broker_commands, [*command, "--seconds", "1", "--json"], catch_exceptions=False)
            assert json.loads(named.stdout)[0] | {"bytes_per_s": 0} == {
                "zone": "evil",
                "sessions": SESSIONS,
                "bytes_per_s": 0,
            }
            text = CliRunner().invoke(broker_commands, [*command, "--seconds", "1"], catch_exceptions=False).stdout
            assert "bsfg broker deny evil" in text
        assert Client(state).status()["brokers"][0]["connects_total"] == 1
        ended = plants.ended()
        assert ended["unconfirmed"] == 0
        with contextlib.closing(StoreReader(state / "facts.db")) as reader:
            assert reader.end_offset(STREAM) == ended["facts"]
        lags_ms = [lag / 1e6 for lag in ended["lags_ns"]]
        cuts = statistics.quantiles(lags_ms, n=100)
        flood = f"{sum(counts) * FILTERS} subscriptions refused" if is_flooded else "no flood"
        print(f"{flood}: lag p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, of {len(lags_ms)} pages")

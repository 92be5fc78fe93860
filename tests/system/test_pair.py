"""Two gateways of one plant against servers of other makes: the dead, frozen, cut off and full one costs no
acknowledged fact, and few seconds of values.

Both boxes, their witness and the brokers are real processes. What the plant's values were, the servers say themselves.
"""

import asyncio
import os
import random
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from agent.client import NodeSilent
from agent.local_socket import LocalError
from tests.foreign.account import Account, Stored, declared
from tests.foreign.modbus.device import modbus_device
from tests.foreign.plant import facts
from tests.foreign.server import NODE_OPCUA, foreign_server
from tests.sim import first_seed, patient, scaled
from tests.system.pair_site import (
    BOXES,
    COUNTS,
    OPERATIONAL,
    WITNESS,
    WORDS,
    PairSite,
    Seen,
    run_pair,
    wait_values_after,
)
from tests.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.foreign("node_opcua"), pytest.mark.foreign("libmodbus")]

VARIABLES = [{"name": name, "type": "Int32", "period_ms": 100, "history": True} for name in COUNTS]
KILLS = scaled(2, 50)
DRAINS_S = 60.0


@contextmanager
def plant(folder: Path, modbus: Mapping[str, object] | None = None, connections: int = 16) -> Iterator[PairSite]:
    """A settled site whose device takes so many connections."""
    (folder / "opcua").mkdir()
    (folder / "modbus").mkdir()
    loop = asyncio.new_event_loop()
    with modbus_device(folder / "modbus") as device:
        device.count(1, "holding", 0, WORDS - 1)
        device.take_connections(connections)
        serving = foreign_server(folder / "opcua", NODE_OPCUA, variables=VARIABLES)
        server = loop.run_until_complete(serving.__aenter__())
        try:
            with run_pair(folder, server, device, modbus) as site:
                site.wait_settled()
                yield site
        finally:
            loop.run_until_complete(serving.__aexit__(None, None, None))
            loop.close()


class Application:
    """A program of the plant that appends to the box that leads, with `acks = "quorum"`, and keeps what was
    acknowledged. It repeats each message, at the box that leads then, until an answer is more than `queued`."""

    def __init__(self, site: PairSite) -> None:
        self.acknowledged: list[str] = []
        self._site, self._is_over, self._number = site, False, 0

    @contextmanager
    def running(self) -> Iterator["Application"]:
        """Append for the length of a block, or until `stop`."""
        with ThreadPoolExecutor(1) as pool:
            self._work = pool.submit(self._run)
            try:
                yield self
            finally:
                self.stop()

    def stop(self) -> None:
        """Append no more; everything acknowledged is known then."""
        self._is_over = True
        self._work.result(DRAINS_S)

    def _run(self) -> None:
        while not self._is_over:
            self._number += 1
            wait_until(lambda: self._is_over or self._append(f"order-{self._number}"), "an acknowledgement", DRAINS_S)

    def _append(self, message_id: str) -> bool:
        for box in self._site.leaders():
            try:
                answer = self._site.client(box).append(
                    "order:line1/77", "step_completed", {"id": message_id}, message_id=message_id, acks="quorum"
                )
            except (NodeSilent, LocalError):
                continue
            if answer.outcome in {"applied", "noop_already_applied"}:
                self.acknowledged.append(message_id)
                return True
        return False


def drain(site: PairSite, application: Application, *but: str) -> None:
    """Stop the plant's values and messages, and wait until every running store, but these, holds what the others
    hold."""
    application.stop()
    asyncio.run(site.server.run(on=False))
    running = [name for name, node in site.nodes.items() if node.running and name not in but]

    def held() -> bool:
        counts = [
            Counter(sample[:4] for sample in site.samples(name) if sample.tag.startswith("tag:f")) for name in running
        ]
        messages = [messages_in(site, name) for name in running]
        gaps = [Counter(declared(site.store(name).parent)) for name in running]  # a gap comes after the values
        return all(found == first for first, *others in (counts, messages, gaps) for found in others)

    wait_until(held, "all stores to hold the same", DRAINS_S)


def messages_in(site: PairSite, name: str) -> Counter[str]:
    """The messages of the application in a node's store, by their id."""
    found = facts(site.store(name).parent, OPERATIONAL)
    return Counter(row["object"].get("id") for row in found if row["predicate"] == "step_completed")


def complaints(site: PairSite, name: str, application: Application) -> list[str]:
    """What a node's store lacks or has too much: values that the server set, outside of the gaps that facts declare;
    values that it never had; messages that were acknowledged by a quorum."""
    found, state = list[str](), site.store(name).parent
    gaps = declared(state)
    for variable in COUNTS:
        there = [sample for sample in site.samples(name) if sample.tag == f"tag:f/{variable}"]
        stored = [Stored(sample.time_ns, sample.value, sample.quality) for sample in there]
        books = Account(site.server.record(variable), stored, gaps)
        found += [f"{name}: {variable} lacks {value.value} of {value.time_ns}" for value in books.undeclared]
        found += [f"{name}: {variable} never was {value.value}" for value in books.invented]
    held = messages_in(site, name)
    found += [
        f"{name}: {message_id} was acknowledged and is missing"
        for message_id in application.acknowledged
        if not held[message_id]
    ]
    return found


def doubled(site: PairSite, name: str) -> int:
    """How many samples are there under a second life."""
    counts = Counter((sample.tag, sample.time_ns) for sample in site.samples(name) if sample.quality == 0)
    return sum(count - 1 for count in counts.values())


def silence_s(site: PairSite, name: str) -> float:
    """The longest time between two Modbus samples of the plant in a store, in seconds."""
    times = sorted({sample.time_ns for sample in site.samples(name) if sample.tag.startswith("tag:m/")})
    return max((later - before) / 1e9 for before, later in pairwise(times))


def percentiles(seconds: list[float]) -> str:
    """Median, 99th percentile and maximum."""
    ordered = sorted(seconds)
    return f"p50 {ordered[len(ordered) // 2]:.2f}, p99 {ordered[-1 - len(ordered) // 100]:.2f}, max {ordered[-1]:.2f} s"


@patient
def test_killed_leaders(tmp_path: Path) -> None:
    """The leader is killed again and again under load: the other box records, no message that a quorum acknowledged is
    missing, every value of the server is stored or its time declared, and the killed box returns as follower. Every
    second time it returns at once, and the one that leads then is killed soon after its begin, too."""
    dice = random.Random(first_seed())
    taken: dict[str, list[Seen]] = {"a leader": [], "a leader and the next one": []}
    with plant(tmp_path) as site, Application(site).running() as application:
        for number in range(KILLS):
            leader = site.wait_settled()
            wait_values_after(site, leader, time.time_ns())
            site.nodes[leader].kill()
            if number % 2:
                site.nodes[leader].start()
                # The other box, unless this one is back before its lease has run out.
                led = list[str]()
                wait_until(lambda now=led: now.extend(site.leaders()) or now != [], "a box to begin", DRAINS_S)  # type: ignore[misc]
                leader = led[0]
                threading.Event().wait(dice.uniform(0, 1.5))
                site.nodes[leader].kill()
            seen = wait_values_after(site, site.other(leader), time.time_ns())
            taken["a leader and the next one" if number % 2 else "a leader"].append(seen)
            threading.Event().wait(dice.uniform(0, 3))
            site.nodes[leader].start()
        site.wait_settled()
        drain(site, application)
        found = [line for name in (*BOXES, WITNESS) for line in complaints(site, name, application)]
        for killed, times in taken.items():
            opcua, modbus = (percentiles(list(seconds)) for seconds in zip(*times, strict=True))
            print(f"{len(times)} kills of {killed}: without OPC UA values {opcua}; without Modbus values {modbus}")
        print(
            f"{len(application.acknowledged)} messages acknowledged by a quorum, {doubled(site, WITNESS)} doubled values"
        )
        assert len(application.acknowledged) > KILLS
        assert found == []


def test_a_box_that_never_returns(tmp_path: Path) -> None:
    """The leader dies and its disk is gone: every message that a quorum acknowledged is at the other box and above."""
    with plant(tmp_path) as site:
        with Application(site).running() as application:
            leader = site.wait_settled()
            wait_until(lambda: len(application.acknowledged) > 50, "acknowledgements")
            site.nodes[leader].kill()
            shutil.rmtree(site.store(leader).parent)
            wait_values_after(site, site.other(leader), time.time_ns())
            acknowledged = len(application.acknowledged)
            wait_until(lambda: len(application.acknowledged) > acknowledged + 20, "acknowledgements by the other box")
        drain(site, application)
        assert [line for name in (site.other(leader), WITNESS) for line in complaints(site, name, application)] == []


def test_a_frozen_leader_that_wakes(tmp_path: Path) -> None:
    """A leader that stands still for eight seconds finds the other one leading, follows, and what it recorded late is
    stored beside the other's values."""
    with plant(tmp_path) as site, Application(site).running() as application:
        leader = site.wait_settled()
        site.nodes[leader].freeze()
        wait_values_after(site, site.other(leader), time.time_ns())
        threading.Event().wait(5.0)
        site.nodes[leader].thaw()
        assert site.wait_settled() == site.other(leader)
        drain(site, application)
        print(f"{doubled(site, WITNESS)} doubled values")
        assert [line for name in (*BOXES, WITNESS) for line in complaints(site, name, application)] == []


def test_a_cut_cable_between_the_boxes(tmp_path: Path) -> None:
    """While the boxes do not hear each other, the witness names one, and only that one records."""
    with plant(tmp_path) as site, Application(site).running() as application:
        leader = site.wait_settled()
        wait_values_after(site, leader, time.time_ns())
        # Of both: as they start at once, each may lead for a moment, and the leader may not have pulled that yet.
        before = {sample.life for box in BOXES for sample in site.samples(box)}
        site.pair.freeze()
        wait_values_after(site, leader, time.time_ns() + 8_000_000_000)
        assert site.leaders() == [leader]
        site.pair.thaw()
        assert site.wait_settled() == leader
        drain(site, application)
        assert {sample.life for sample in site.samples(WITNESS)} == before
        assert [line for name in (*BOXES, WITNESS) for line in complaints(site, name, application)] == []


def test_the_witness_is_away(tmp_path: Path) -> None:
    """Without the node above, the leader goes on, and when it dies the other box records by itself."""
    with plant(tmp_path) as site, Application(site).running() as application:
        leader = site.wait_settled()
        site.nodes[WITNESS].kill()
        wait_values_after(site, leader, time.time_ns() + 5_000_000_000)
        assert site.leaders() == [leader]
        site.nodes[leader].kill()
        wait_values_after(site, site.other(leader), time.time_ns())
        site.nodes[leader].start()
        site.nodes[WITNESS].start()
        site.wait_settled()
        drain(site, application)
        assert [line for name in (*BOXES, WITNESS) for line in complaints(site, name, application)] == []


def test_both_boxes_alone(tmp_path: Path) -> None:
    """Boxes that hear neither each other nor the witness both record, and one of them stops when they hear again: each
    value of that time is stored under two lives, and nothing is missing."""
    with plant(tmp_path) as site, Application(site).running() as application:
        site.wait_settled()
        site.pair.freeze()
        site.uplink.freeze()
        wait_until(lambda: site.leaders() == list(BOXES), "both boxes to record", 60)
        now_ns = time.time_ns()
        for box in BOXES:
            wait_values_after(site, box, now_ns)
        site.pair.thaw()
        site.uplink.thaw()
        site.wait_settled()
        drain(site, application)
        print(f"{doubled(site, WITNESS)} doubled values")
        assert doubled(site, WITNESS) > 0
        assert [line for name in (*BOXES, WITNESS) for line in complaints(site, name, application)] == []


def test_a_planned_switch(tmp_path: Path) -> None:
    """`bsfg pair switch` hands the sources to the other box: no value is missing and none is doubled. Both boxes have
    all facts."""
    with plant(tmp_path) as site, Application(site).running() as application:
        leader = site.wait_settled()
        wait_values_after(site, leader, time.time_ns())
        print(site.switch(leader))
        assert site.wait_settled() == site.other(leader)
        wait_values_after(site, site.other(leader), time.time_ns())
        drain(site, application)
        print(f"longest time between two Modbus samples {silence_s(site, WITNESS):.2f} s")
        assert doubled(site, WITNESS) == 0
        assert [line for name in (*BOXES, WITNESS) for line in complaints(site, name, application)] == []


def test_a_rolling_upgrade(tmp_path: Path) -> None:
    """Both boxes are stopped and started, one after the other, with a switch before the leader, and the lead is handed
    back, while values come and a quorum acknowledges: nothing is missing and nothing is doubled."""
    with plant(tmp_path) as site, Application(site).running() as application:
        leader = site.wait_settled()
        for follower in (site.other(leader), leader):
            site.nodes[follower].stop()
            site.nodes[follower].start()
            assert site.wait_settled() == site.other(follower)
            acknowledged = len(application.acknowledged)
            wait_until(lambda n=acknowledged: len(application.acknowledged) > n + 20, "acknowledgements", DRAINS_S)  # type: ignore[misc]
            print(site.switch(site.other(follower)))
            assert site.wait_settled() == follower
            wait_values_after(site, follower, time.time_ns())
        drain(site, application)
        print(f"longest time between two Modbus samples {silence_s(site, WITNESS):.2f} s")
        assert doubled(site, WITNESS) == 0
        assert [line for name in (*BOXES, WITNESS) for line in complaints(site, name, application)] == []


def test_a_device_that_takes_one_connection(tmp_path: Path) -> None:
    """The follower opens no line to it. When the leader dies the device is free, and read within the reach. A leader
    that stands still holds the only connection: the other one records the rest and names the device, and reads it as
    soon as the connection ends."""
    with plant(tmp_path, {"connections_max": 1}, connections=1) as site:
        leader = site.wait_settled()
        wait_values_after(site, leader, time.time_ns())
        site.nodes[leader].kill()
        seen = wait_values_after(site, site.other(leader), time.time_ns())
        print(f"killed: without Modbus values {seen.modbus_s:.2f} s")
        site.nodes[leader].start()
        leader = site.wait_settled()
        wait_values_after(site, leader, time.time_ns())
        frozen_ns = time.time_ns()
        site.nodes[leader].freeze()
        other = site.other(leader)
        wait_until(lambda: site.newest_ns(other).get("tag:f", 0) > frozen_ns, "OPC UA values", 30)
        held = f"{leader}, if it stands still, may hold the only connection"  # once the leader is called silent
        wait_until(lambda: any(held in told for told in site.problems(other, "source meter")), "the problem", 60)
        assert site.newest_ns(other).get("tag:m", 0) < frozen_ns + 1_000_000_000
        thawed_ns = time.time_ns()
        site.nodes[leader].thaw()
        seen = wait_values_after(site, other, thawed_ns)
        print(f"awake: Modbus values after {seen.modbus_s:.2f} s")
        assert site.wait_settled() == other


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 megabytes for the state of plant-a."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    folder = tmp_path / "plant-a" / "state"
    folder.mkdir(mode=0o700, parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=32m,mode=700", "bsfg-test", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs is forbidden here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_at_the_leader(small_disk: Path, tmp_path: Path) -> None:
    """The leader's store refuses facts: it gives the lead back, the other box records, and it follows when there is
    room again. (What the others have confirmed it may have released for room.)"""
    with plant(tmp_path) as site, Application(site).running() as application:
        if site.wait_settled() != "plant-a":
            site.switch("plant-a-2")
            wait_until(lambda: site.leaders() == ["plant-a"], "plant-a to lead")
        wait_values_after(site, "plant-a", time.time_ns())
        other = small_disk / "other"
        with other.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(small_disk).free - 1_000_000)
        seen = wait_values_after(site, "plant-a-2", time.time_ns())
        print(f"without OPC UA values {seen.opcua_s:.2f} s, without Modbus values {seen.modbus_s:.2f} s")
        wait_until(lambda: site.leaders() == ["plant-a-2"], "plant-a-2 to lead alone")
        other.unlink()
        assert site.wait_settled() == "plant-a-2"
        drain(site, application, "plant-a")
        assert [line for name in ("plant-a-2", WITNESS) for line in complaints(site, name, application)] == []

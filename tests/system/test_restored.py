"""A plant is killed under load again and again; its store is put back from an earlier copy, or its write-ahead log is
lost.

The faults are drawn from a seed. The judge reads only the store files: what the producer was told is stored, less what
each fault itself took from the only disk that held it, must be at the plant and at the enterprise in the end, once.
"""

import contextlib
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent import batch
from agent.client import Client, NodeSilent
from agent.demo.mosquitto import Mosquitto
from agent.demo.processes import Child
from agent.fact_store.read.reader import StoreReader
from agent.local_socket import LocalError, StateFolderUnusable
from agent.replication import pki
from tests.sim import first_seed, patient, scaled
from tests.waiting import wait_until

pytestmark = pytest.mark.system

KILLS, COPIES_PUT_BACK, LOGS_LOST = scaled(8, 200), scaled(2, 50), scaled(2, 50)
PLANT, ENTERPRISE = "plant-a", "enterprise"
STREAM = "facts.operational"
FLOWS_MAX = 30  # messages at most between two faults


class Zone:
    """The node of a zone, and the facts in its file."""

    def __init__(self, folder: Path, zone: str, peer: str, broker: Mosquitto, *, is_signing: bool) -> None:
        folder.mkdir()
        signing = signing_section(folder, zone) if is_signing else ""
        self.state, self.store = folder / "state", folder / "state" / "facts.db"
        self.config = folder / "node.toml"
        self.config.write_text(
            f'[node]\nzone = "{zone}"\n{signing}{broker.section(zone)}'
            f'[[peer]]\nzone = "{peer}"\nbroker = "site"\npulls = ["{STREAM}"]\nexports = ["{STREAM}"]\n'
        )
        self.node = Child(f"node {zone}", [*BSFG, "run", "--config", self.config], folder / "log")

    def start(self) -> None:
        """Start the node, and wait until it answers."""
        self.node.start()
        self.node.wait_ready(self.answers)

    def answers(self) -> bool:
        """Whether the node answers over its socket."""
        try:
            return bool(Client(self.state).status())
        except NodeSilent:
            return False

    def ids(self) -> list[str]:
        """The ids of all messages in the store file, in the order of its log."""
        found, after = list[str](), 0
        if not self.store.exists():
            return []
        with contextlib.closing(StoreReader(self.store)) as reader:
            while page := reader.read(STREAM, after, 100_000, 8_000_000).batches:
                for stored in page:
                    parsed = batch.parse(stored.sealed)
                    if parsed.header.kind is batch.Kind.MESSAGES:
                        found += [message.envelope.message_id for message in batch.open_messages(parsed)]
                after = page[-1].last_offset
        return [message_id for message_id in found if message_id.startswith("n-")]


BSFG = (sys.executable, "-m", "agent.cli")


def signing_section(folder: Path, zone: str) -> str:
    """The section of node.toml with which a zone signs its facts; its authority is made beside it."""
    now, authority = datetime.now(UTC), folder.parent / "facts"
    if not authority.exists():
        pki.create_authority(authority, now, for_facts=True)
    key_file = pki.create_signer(folder, zone, now)[0].key_file
    issued = pki.sign_signer(authority, zone, pki.request_signer(folder, zone).request_file, now, days=30)
    files, _ = pki.import_signer(folder, zone, issued.cert_file, authority / "ca.pem", now)
    return (
        f'[signing]\nkey_file = "{key_file}"\ncertificate_file = "{files.cert_file}"\n'
        f'facts_ca_file = "{authority / "ca.pem"}"\n'
    )


class Producer(threading.Thread):
    """An application that appends without a pause. It never repeats a message whose answer it missed, so each id has
    been appended at most once."""

    def __init__(self, state: Path) -> None:
        super().__init__()
        self.acknowledged = list[str]()
        self._state, self._stopping = state, threading.Event()

    def run(self) -> None:
        number, node = 0, Client(self._state)
        while not self._stopping.is_set():
            number += 1
            with contextlib.suppress(OSError, NodeSilent, LocalError, StateFolderUnusable):
                node.append("order:1", "step_completed", {}, message_id=f"n-{number}", stream=STREAM)
                self.acknowledged.append(f"n-{number}")

    def stop(self) -> None:
        """Stop after the present message."""
        self._stopping.set()
        self.join()


@contextlib.contextmanager
def two_zones(folder: Path, *, is_signing: bool) -> Iterator[tuple[Zone, Zone]]:
    """A plant and the enterprise above it, which pull from each other: so the plant's own facts can come home."""
    with contextlib.ExitStack() as stack:
        links = (f"{PLANT}:{ENTERPRISE}", f"{ENTERPRISE}:{PLANT}")
        broker = stack.enter_context(Mosquitto.started(folder / "site", (PLANT, ENTERPRISE), links))
        plant = Zone(folder / PLANT, PLANT, ENTERPRISE, broker, is_signing=is_signing)
        enterprise = Zone(folder / ENTERPRISE, ENTERPRISE, PLANT, broker, is_signing=is_signing)
        for zone in (enterprise, plant):
            stack.callback(zone.node.stop)
            zone.start()
        yield plant, enterprise


def drawn(chance: random.Random) -> list[str]:
    """The faults, each beside a kill, in a random order."""
    faults = ["copy"] * COPIES_PUT_BACK + ["log"] * LOGS_LOST
    faults += ["kill"] * (KILLS - len(faults))
    chance.shuffle(faults)
    return faults


def copy_store(plant: Zone, to: Path) -> Path:
    """A copy of the running plant's store, as a backup makes it."""
    with contextlib.closing(sqlite3.connect(plant.store)) as source, contextlib.closing(sqlite3.connect(to)) as target:
        source.backup(target)
    return to


def inflict(fault: str, plant: Zone, copies: list[Path], chance: random.Random) -> None:
    """Kill the plant; put back a copy, or lose its write-ahead log.

    A log that is lost in the middle of a checkpoint leaves half of its pages in the file: damage, whose remedy is to
    move the file aside.
    """
    plant.node.kill()
    wal, shm = (plant.store.with_name(f"facts.db-{name}") for name in ("wal", "shm"))
    if fault == "kill":
        return
    wal.unlink(missing_ok=True)
    shm.unlink(missing_ok=True)
    if fault == "copy":
        shutil.copyfile(chance.choice(copies), plant.store)
    with contextlib.closing(sqlite3.connect(plant.store)) as connection:
        try:
            is_whole = connection.execute("pragma quick_check").fetchall() == [("ok",)]
        except sqlite3.DatabaseError:
            is_whole = False
    if not is_whole:
        plant.store.rename(copies[0].with_name(f"damaged-{len(copies)}"))


def come_home(plant: Zone) -> str:
    """Compare with the enterprise and fetch what is missing, as an operator does who does not wait for the next
    comparison."""
    command = [*BSFG, "peer", "compare", ENTERPRISE, "--repair", "--config", str(plant.config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False).stdout


@patient
@pytest.mark.parametrize("is_signing", [True, False])
def test_a_plant_put_back_loses_and_doubles_nothing(tmp_path: Path, is_signing: bool) -> None:
    """kill -9 under load, with a copy of a random earlier moment put back or the write-ahead log lost: every
    acknowledged message that survives on any disk is at both zones in the end, once, and new ones keep arriving."""
    chance, taken = random.Random(first_seed()), set[str]()
    with two_zones(tmp_path, is_signing=is_signing) as (plant, enterprise):
        copies = [copy_store(plant, tmp_path / "copy-0")]
        producer = Producer(plant.state)
        producer.start()
        try:
            faults = drawn(chance)
            for number, fault in enumerate(faults, 1):
                more = len(producer.acknowledged) + chance.randint(1, FLOWS_MAX)
                wait_until(lambda more=more: len(producer.acknowledged) >= more, "messages before the fault")  # type: ignore[misc]
                copies.append(copy_store(plant, tmp_path / f"copy-{number}"))
                inflict(fault, plant, copies, chance)
                known = list(producer.acknowledged)
                taken |= {*known} - {*enterprise.ids()} - {*plant.ids()}
                plant.start()
                latest = len(producer.acknowledged) + 1
                wait_until(lambda latest=latest: len(producer.acknowledged) > latest, "a message after the fault")  # type: ignore[misc]
                arriving = producer.acknowledged[latest]
                wait_until(lambda arriving=arriving: arriving in enterprise.ids(), f"{arriving} after {fault}")  # type: ignore[misc]
        finally:
            producer.stop()
        survived = {*producer.acknowledged} - taken
        wait_until(lambda: survived <= {*enterprise.ids()}, "every message at the enterprise")
        said = come_home(plant)
        wait_until(lambda: {*enterprise.ids()} <= {*plant.ids()}, f"every message home at the plant: {said}")
        for zone in (plant, enterprise):
            ids = zone.ids()
            assert [name for name, times in Counter(ids).items() if times > 1] == [], zone.config
            assert survived <= {*ids}
            zone.node.stop()
            command = [*BSFG, "store", "verify", "--config", str(zone.config)]
            verified = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
            assert "as they were written" in verified.stdout, verified
        print(
            f"{Counter(faults)}: {len(producer.acknowledged)} messages acknowledged, {len(taken)} only on a disk that"
            " lost them; every other one at both zones, once"
        )

"""A day's traffic of 1,000 tags a second through a node on the smallest gateway's limits, compressed in time: one
processor, the memory of the unit's MemoryMax, and a disk that takes long for each sync.

`make appliance-test` runs a day, 86.4 million values; `make test` a hundredth of an hour. FACTS=n chooses.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.demo.processes import Child, free_port
from agent.fact_store import StoreReader
from bench.common.testbed import start_worker
from bench.ingest.modbus_server import places
from tests.support import command
from tests.support.mosquitto import HOST, Mosquitto
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
TAGS = 1000
BLOCK = 125  # registers of a read, here a tag each
CHECKED_ONE_BY_ONE = 1_000_000
FACTS = int(os.environ.get("FACTS") or (86_400_000 if "APPLIANCE" in os.environ else 36_000))
POLL_INTERVAL_MS = (
    10  # a hundred times as fast as once a second: a day takes a quarter of an hour where the processor is free
)
SYNC_US = 30_000  # an eMMC's slow syncs; a good one takes 2 ms
SAMPLE_S = 5.0
STACK_BYTES = 1 << 20  # of each thread; else the limit below counts the 8 MB that threads may use and do not
LIMIT_S = 60.0 + FACTS / 3_000

pytestmark = [pytest.mark.system, pytest.mark.timeout(LIMIT_S * 2)]


def memory_max_bytes() -> int:
    """The unit's MemoryMax."""
    (mib,) = re.findall(r"^MemoryMax=(\d+)M$", (ROOT / "systemd" / "bsfg@.service").read_text("utf-8"), re.MULTILINE)
    return int(mib) << 20


def settings(folder: Path, zone: str, broker: Mosquitto, peer: str, more: str = "") -> Path:
    """A node's file."""
    mine = broker.identity(zone)
    (folder / zone).mkdir()
    file = folder / zone / "node.toml"
    file.write_text(
        f'[node]\nzone = "{zone}"\n[store]\ncommit_interval_ms = 1000\n'
        f'[[broker]]\nname = "b"\nhost = "{HOST}"\nport = {broker.port}\n'
        f'ca_file = "{mine.ca_file}"\ncert_file = "{mine.cert_file}"\nkey_file = "{mine.key_file}"\n'
        f'[[peer]]\nbroker = "b"\n{peer}\n{more}'
    )
    return file


@contextmanager
def node(file: Path, *before: str) -> Iterator[Child]:
    """`bsfg run`, with limits in front of it."""
    child = Child(file.parent.name, [*before, *command.words("run", "--config", str(file))], file.with_name("log"))
    try:
        child.start()
        child.wait_ready(lambda: answers(file))
        yield child
    finally:
        child.stop()


def answers(file: Path) -> bool:
    """Whether a node is there to be asked."""
    return bool(command.bsfg(file.parent, "status", "--config", str(file), "--json").stdout)


def offset(file: Path) -> int:
    """How many facts of the stream a node has."""
    with contextlib.closing(StoreReader(file.parent / "state" / "facts.db")) as reader:
        return reader.end_offset("facts.telemetry")


def bad_tags(file: Path) -> int:
    """How many tags have a bad latest value."""
    rows = command.bsfg(file.parent, "latest", "--config", str(file), "--json").stdout
    return sum(json.loads(row)["quality"] != 0 for row in rows.splitlines())


def process_of(child: Child) -> int:
    """The node itself: the last of strace, prlimit and taskset's descendants."""
    pid = child.pid
    while below := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(below[0])
    return pid


def peak_bytes(pid: int) -> int:
    """The most memory that a process had."""
    (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kib) << 10


def test_a_day_on_the_smallest_gateway(tmp_path: Path) -> None:
    """Every answered poll of every tag is in the IDMZ, in order and once; the node stays within its memory and was
    never restarted. What it could not poll in time is counted and declared, not lost."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: apt-get install strace")
    slow = ("strace", "--quiet=all", "-f", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace=fdatasync,fsync")
    slow += ("-e", f"inject=fdatasync,fsync:delay_exit={SYNC_US}")
    limits = ("prlimit", f"--data={memory_max_bytes()}", f"--stack={STACK_BYTES}", "taskset", "-c", "0")
    with Mosquitto.started(tmp_path, zones=("plant-a", "idmz"), links=("plant-a:idmz",)) as broker:
        port = free_port()
        device = f'name = "d"\nhost = "{HOST}"\nport = {port}\naddress_base = 0\ntags_file = "tags.csv"\n'
        source = f"[[modbus]]\n{device}poll_interval_ms = {POLL_INTERVAL_MS}\n"
        plant = settings(tmp_path, "plant-a", broker, 'zone = "idmz"\nexports = ["facts.telemetry"]', source)
        rows = (f"a/t{n},{unit},holding,{at},{kind}\n" for n, (unit, at, kind) in enumerate(places(TAGS, words=True)))
        (plant.parent / "tags.csv").write_text("tag,unit_id,table,register,type\n" + "".join(rows))
        idmz = settings(tmp_path, "idmz", broker, 'zone = "plant-a"\npulls = ["facts.telemetry"]')
        begun_s = time.monotonic()
        with (
            node(idmz),
            start_worker(tmp_path, "device", "modbus-server", port=port, tags=TAGS, words=True) as server,
            node(plant, *slow, *limits) as running,
        ):
            pid, behind = process_of(running), [0]
            while (here := offset(plant)) < FACTS:
                behind.append(max(0, here - offset(idmz)))
                assert time.monotonic() - begun_s < LIMIT_S, f"{here} facts in {LIMIT_S} s"
                time.sleep(min(SAMPLE_S, FACTS / 50_000))  # tidy: samples of the lag, nothing waits for it
            ended = server.ended()
            polls, requests = sum(map(len, ended["polls_s"])), ended["requests"]
            # The values that came last are before these in the log.
            wait_until(lambda: bad_tags(plant) == TAGS, "each tag says that the device is gone", LIMIT_S)
            facts = offset(plant)
            wait_until(lambda: offset(idmz) >= facts, "the IDMZ has all", LIMIT_S)
            peak = peak_bytes(pid)
            assert process_of(running) == pid
        took_s = time.monotonic() - begun_s
    counted = "select count(*) as n, count(distinct sequence) as different from facts where quality = 0"
    found = json.loads(command.bsfg(idmz.parent, "sql", "--json", "--config", str(idmz), counted).stdout)
    print(
        f"{found['n']:,} values in {took_s:.0f} s, {polls:,} polls, peak {peak >> 20} MiB of {memory_max_bytes() >> 20}, "
        f"at most {max(behind):,} facts behind"
    )
    assert found["n"] == found["different"]
    # The device's own account. The last poll may have been cut off, and a block that was answered too late be asked
    # again.
    assert TAGS * (polls - 1) <= found["n"] <= BLOCK * requests
    twice = "select count(*) - count(distinct tag || '/' || source_time_ns) as n from facts where kind = 'sample'"
    twice += f" and stream = 'facts.telemetry' and offset > {facts - CHECKED_ONE_BY_ONE}"
    done = command.bsfg(idmz.parent, "sql", "--json", "--config", str(idmz), twice)
    assert json.loads(done.stdout) == {"n": 0}, "no value is there twice"
    assert peak < memory_max_bytes()
    verified = subprocess.run(
        command.words("store", "verify", "--quick", "--config", str(plant)), capture_output=True, text=True, check=False
    )
    assert verified.returncode == 0, verified.stdout

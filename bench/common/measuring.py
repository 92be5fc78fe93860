"""Percentiles, readings of processes and disks, and the common form of a benchmark's report.

Readings come from Linux's /proc: VmHWM instead of ru_maxrss, which a child inherits from its parent; schedstat instead
of utime, whose ticks of 10 ms are too coarse for short runs. Every report describes the machine.
"""

from __future__ import annotations

import os
import platform
import socket
import sqlite3
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

_TCP_INFO_BYTES_ACKED_AT = 120  # struct tcp_info: tcpi_bytes_acked, then tcpi_bytes_received, both u64
_TCP_INFO_BYTES = 136
_PAGES, _PAGE_BYTES = 256, 4096

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one benchmark: `values` for JSON, `lines` for people."""

    name: str
    values: Mapping[str, Any]
    lines: Sequence[str]
    machine: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {"name": self.name, **self.values, "machine": dict(self.machine)}


def tree_cpu_s() -> float:
    """Processor time of this process and all below it so far, also of those that have ended and were waited for."""
    above, used = dict[int, int](), dict[int, int]()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                values = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            above[int(folder.name)], used[int(folder.name)] = int(values[1]), sum(map(int, values[11:15]))
    tree = {os.getpid()}
    while new := {pid for pid, parent in above.items() if parent in tree} - tree:
        tree |= new
    return sum(used[pid] for pid in tree) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Latency:
    """A spread of durations, in ms."""

    p50_ms: float
    p99_ms: float
    max_ms: float
    count: int

    @classmethod
    def of(cls, durations_ns: Sequence[int]) -> Latency:
        """The spread of measured durations."""
        ordered = sorted(durations_ns)
        p50, p99, most = (percentile(ordered, share) / 1e6 for share in (0.50, 0.99, 1.0))
        return cls(round(p50, 4), round(p99, 4), round(most, 4), len(ordered))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"p50 {self.p50_ms:.2f}  p99 {self.p99_ms:.2f}  max {self.max_ms:.2f} ms"


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest measured value that at least `share` of all do not exceed; `ordered` is sorted and not empty."""
    return ordered[max(0, -(-int(share * 1_000_000) * len(ordered) // 1_000_000) - 1)]


def median(values: Sequence[float]) -> float:
    """The median; of an even number of values the lower middle one, which was measured."""
    return sorted(values)[(len(values) - 1) // 2]


def rounded(value: float, digits: int = 3) -> float:
    """`value` to so many significant digits; further digits would be noise."""
    return float(f"{value:.{digits}g}")


def machine(folder: Path) -> dict[str, Any]:
    """A description of this machine; `folder` is on the measured disk."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "kernel": platform.release(),
        "filesystem": filesystem(folder),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def filesystem(folder: Path) -> str:
    """Type of the file system that `folder` is on."""
    best, found = -1, "unknown"
    for line in Path("/proc/self/mounts").read_text("utf-8").splitlines():
        _, mount, kind = line.split()[:3]
        if folder.resolve().is_relative_to(mount) and len(mount) >= best:
            best, found = len(mount), kind
    return found


@contextmanager
def open_file(path: Path) -> Iterator[int]:
    """A plain file, made if it is not there, for the length of a block."""
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        yield file
    finally:
        os.close(file)


@contextmanager
def preallocated_file(path: Path) -> Iterator[int]:
    """A file with pages for `fsync_ns`, on disk."""
    with open_file(path) as file:
        os.pwrite(file, bytes(_PAGES * _PAGE_BYTES), 0)
        os.fsync(file)
        yield file


def fsync_ns(file: int, number: int) -> int:
    """How long a write of one page inside a preallocated file takes until it is on disk, the least that any durable
    write can cost."""
    page = os.urandom(_PAGE_BYTES)
    start_ns = time.perf_counter_ns()
    os.pwrite(file, page, number % _PAGES * _PAGE_BYTES)
    os.fsync(file)
    return time.perf_counter_ns() - start_ns


def results(futures: Iterable[Future[T]], in_flight: int) -> Iterator[T]:
    """The results of futures in their order. The next future, whose work may begin when it is taken, is taken only
    while fewer than `in_flight` are outstanding."""
    source, pending = iter(futures), deque[Future[T]](maxlen=in_flight)
    while True:
        if len(pending) == in_flight:
            yield pending.popleft().result()
        future = next(source, None)
        if future is None:
            break
        pending.append(future)
    yield from (future.result() for future in pending)


def files_bytes(folder: Path) -> int:
    """Bytes of all files below `folder`."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def process_cpu_ns(pid: int) -> int:
    """Processor time of the threads that a process has now."""
    stats = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(stat.read_text("ascii").split()[0]) for stat in stats)


def cores_used(pids: Mapping[str, int], work: Callable[[], None]) -> dict[str, float]:
    """How many cores each process uses during some work."""
    before, begun_ns = {name: process_cpu_ns(pid) for name, pid in pids.items()}, time.monotonic_ns()
    work()
    elapsed_ns = time.monotonic_ns() - begun_ns
    return {name: rounded((process_cpu_ns(pid) - before[name]) / elapsed_ns) for name, pid in pids.items()}


def peak_rss_mib(pid: int | str = "self") -> float:
    """Peak resident memory of a process, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise AssertionError("/proc/self/status without VmHWM")


def rss_mib(pid: int) -> float:
    """Resident memory of a process now, in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def tcp_bytes(port: int) -> tuple[int, int]:
    """(acknowledged, received) bytes of this process's open connections to a port on loopback, TLS and MQTT
    included."""
    sent = received = 0
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
            copy = socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:  # closed since we looked
            continue
        with copy:
            try:
                peer = copy.getpeername()
                info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            except OSError:  # not connected, or no TCP
                continue
            if isinstance(peer, tuple) and peer[1] == port and len(info) == _TCP_INFO_BYTES:
                acked_bytes, received_bytes = struct.unpack_from("=QQ", info, _TCP_INFO_BYTES_ACKED_AT)
                sent, received = sent + acked_bytes, received + received_bytes
    return sent, received


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith(("model name", "Model")):
            return " ".join(line.partition(":")[2].split())
    return platform.machine()

"""Identifies this machine from /proc and /sys, and measures the speed of its disk in a folder.

`read_machine` only reads. `measure_disk` writes one file of 64 MB at most, for five seconds at most, and deletes it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import statistics
import struct
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SYNCS = 200
SYNC_BYTES = 4096  # a page of the store
SEQUENTIAL_BYTES = 64 << 20
CHUNK_BYTES = 1 << 20
MEASURING_S = 5.0
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "armhf", "i686": "i386"}
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
_TIMEX_BYTES = 256  # more than struct timex has on any machine


@dataclass(frozen=True, slots=True)
class Machine:
    """Properties of this machine as the kernel reports them."""

    architecture: str  # Debian's name, of the programs and not of the kernel
    cpu_cores: int
    memory_bytes: int
    device_tree: tuple[str, ...]
    dmi: tuple[str, ...]
    clock_source: str
    clock_synchronised: bool
    has_real_time_clock: bool
    has_entropy: bool
    serial_ports: tuple[str, ...]
    watchdogs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MeasuredDisk:
    """The disk that holds a folder. Capacity is that of the whole device where the kernel names one."""

    device: str
    capacity_bytes: int
    filesystem_bytes: int
    free_bytes: int
    sync_p50_ms: float
    sync_p99_ms: float
    write_mb_per_s: float
    life_time: str  # the eMMC's register: "0x01 0x02" is up to 10 and 20 % used; empty without one


def read_machine(root: Path = Path("/")) -> Machine:
    """This machine, or the one whose /proc, /sys and /dev lie below `root`."""
    dmi = root / "sys/class/dmi/id"
    rtc = root / "sys/class/rtc"
    return Machine(
        architecture=_architecture(),
        cpu_cores=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        device_tree=tuple(_text(root / "proc/device-tree/compatible").strip("\0").split("\0")),
        dmi=tuple(name for key in ("sys_vendor", "product_name") if (name := _text(dmi / key))),
        clock_source=_text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource"),
        clock_synchronised=_clock_is_synchronised(),
        has_real_time_clock=rtc.is_dir() and any(rtc.iterdir()),
        has_entropy=_has_entropy(),
        serial_ports=tuple(_serial_ports(root)),
        watchdogs=tuple(sorted(file.name for file in (root / "sys/class/watchdog").glob("watchdog*"))),
    )


def _text(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace").strip()
    return ""


def _architecture() -> str:
    """The architecture of the programs: a 64-bit kernel may run 32-bit programs."""
    kernel = os.uname().machine
    if struct.calcsize("P") == 4:
        kernel = {"aarch64": "armv7l", "x86_64": "i686"}.get(kernel, kernel)
    return _ARCHITECTURES.get(kernel, kernel)


def _clock_is_synchronised() -> bool:
    return bool(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)) not in (-1, _TIME_ERROR))


def _has_entropy() -> bool:
    """Whether the kernel can give random bytes without waiting; without them no key is made and no TLS begins."""
    try:
        return bool(os.getrandom(16, os.GRND_NONBLOCK))
    except BlockingIOError:
        return False


def _serial_ports(root: Path) -> list[str]:
    """Ports with a device behind them. A PC's kernel lists four ports of type 0 even if they do not exist."""
    ports = []
    for tty in sorted((root / "sys/class/tty").glob("*")):
        kind = _text(tty / "type")
        if (tty / "device").exists() and kind != "0" and (kind or tty.name.startswith(("ttyUSB", "ttyACM"))):
            ports.append(f"/dev/{tty.name}")
    return ports


def measure_disk(folder: Path) -> MeasuredDisk:
    """The disk that holds `folder`, by a file made there and deleted. Raises OSError, also for a full disk."""
    with tempfile.TemporaryFile(dir=folder) as file:
        syncs = _time_syncs(file.fileno())
        rate = _time_writing(file.fileno())
    at = os.statvfs(folder)
    device, capacity = _block_device(folder)
    ordered = sorted(syncs)
    return MeasuredDisk(
        device=device,
        capacity_bytes=capacity or at.f_blocks * at.f_frsize,
        filesystem_bytes=at.f_blocks * at.f_frsize,
        free_bytes=at.f_bavail * at.f_frsize,
        sync_p50_ms=round(statistics.median(ordered) * 1000, 3),
        sync_p99_ms=round(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1000, 3),
        write_mb_per_s=round(rate / 1e6, 1),
        life_time=_text(Path("/sys/block") / Path(device).name / "device/life_time") if device else "",
    )


def _time_syncs(descriptor: int) -> list[float]:
    """Seconds for each fdatasync of a page appended to a file."""
    page = os.urandom(SYNC_BYTES)
    taken: list[float] = []
    end = time.monotonic() + MEASURING_S / 2
    while len(taken) < SYNCS and (len(taken) < 2 or time.monotonic() < end):
        os.write(descriptor, page)
        begin = time.monotonic()
        os.fdatasync(descriptor)
        taken.append(time.monotonic() - begin)
    return taken


def _time_writing(descriptor: int) -> float:
    """Bytes a second of one long write, synced at its end."""
    chunk, written = os.urandom(CHUNK_BYTES), 0
    begin = time.monotonic()
    while written < SEQUENTIAL_BYTES and (not written or time.monotonic() - begin < MEASURING_S / 2):
        written += os.write(descriptor, chunk)
    os.fdatasync(descriptor)
    return written / (time.monotonic() - begin)


def _block_device(folder: Path) -> tuple[str, int]:
    """Name and size of the whole device under a folder; empty and 0 where there is none, as in memory."""
    number = folder.stat().st_dev
    place = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    if not (place / "size").exists():
        return "", 0
    if (place / "partition").exists():
        place = place.parent
    return f"/dev/{place.name}", int(_text(place / "size")) * 512

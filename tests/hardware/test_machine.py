"""What is read of a machine: from a folder that looks like its /proc and /sys, and from this one."""

import os
import re
import shlex
from pathlib import Path

import pytest

from agent.hardware import machine as tested
from agent.hardware.machine import measure_disk, read_machine
from tests.support.command import bsfg


def write(root: Path, name: str, text: str = "") -> None:
    """A file of the kernel."""
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_gateway_is_read_from_the_kernels_files(tmp_path: Path) -> None:
    """Device tree, clock, watchdog and the serial ports that exist: a port of a PC without a chip is none."""
    write(tmp_path, "proc/device-tree/compatible", "siemens,iot2050-basic\0ti,am654\0")
    write(tmp_path, "sys/devices/system/clocksource/clocksource0/current_clocksource", "arch_sys_counter\n")
    write(tmp_path, "sys/class/rtc/rtc0/name")
    write(tmp_path, "sys/class/watchdog/watchdog0/identity")
    for port, kind in (("ttyS0", "0"), ("ttyS1", "4"), ("ttyUSB0", ""), ("tty1", "")):
        write(tmp_path, f"sys/class/tty/{port}/device/x")
        if kind:
            write(tmp_path, f"sys/class/tty/{port}/type", kind)
    machine = read_machine(tmp_path)
    assert machine.device_tree == ("siemens,iot2050-basic", "ti,am654")
    assert machine.clock_source == "arch_sys_counter"
    assert machine.has_real_time_clock
    assert machine.watchdogs == ("watchdog0",)
    assert machine.serial_ports == ("/dev/ttyS1", "/dev/ttyUSB0")


def test_an_empty_machine_has_nothing(tmp_path: Path) -> None:
    """Files that the kernel does not have are no error."""
    machine = read_machine(tmp_path)
    assert machine.device_tree == ("",)
    assert (machine.dmi, machine.serial_ports, machine.watchdogs) == ((), (), ())
    assert not machine.has_real_time_clock


def test_this_machine_is_read() -> None:
    """The real /proc and /sys give an architecture with a package, cores, memory and random bytes."""
    machine = read_machine()
    assert machine.architecture in {"amd64", "arm64"}
    assert machine.cpu_cores >= 1
    assert machine.memory_bytes > 100_000_000
    assert machine.has_entropy


def test_a_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    """Figures of a disk, the slow syncs not faster than the usual ones, and no file left behind. In memory, where
    Debian 13 has /tmp, a sync takes less than a microsecond."""
    disk = measure_disk(tmp_path)
    assert 0 <= disk.sync_p50_ms <= disk.sync_p99_ms
    assert disk.write_mb_per_s > 0
    assert min(disk.capacity_bytes, disk.filesystem_bytes) >= disk.free_bytes > 0
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A full disk is the system's error, not a figure."""
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: Path("/dev/full").open("r+b", buffering=0))  # noqa: SIM115 the product closes it
    with pytest.raises(OSError, match="No space left"):
        measure_disk(tmp_path)


def test_the_commands_of_the_page_work(tmp_path: Path) -> None:
    """Each command of hardware/README.md answers in a plain folder, without a file of the checkout."""
    page = Path(__file__).resolve().parents[2] / "hardware" / "README.md"
    block = re.search(r"<!-- test: check -->\n```console\n(.*?)```", page.read_text(), re.DOTALL)
    assert block
    for line in block[1].splitlines():
        done = bsfg(tmp_path, *shlex.split(line.removeprefix("$ bsfg ")))
        # Status 1: what it measured is too slow, as the disk of a busy machine may be.
        assert (done.returncode in {0, 1}, done.stderr) == (True, ""), line
        assert "hours that fit" in done.stdout


def test_a_partition_has_the_size_of_its_whole_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much a disk can be written depends on the whole device, so its name and size are those of the device and not
    of the partition."""
    write(tmp_path, "sys/devices/mmcblk0/size", "1000\n")
    write(tmp_path, "sys/devices/mmcblk0/mmcblk0p1/size", "10\n")
    write(tmp_path, "sys/devices/mmcblk0/mmcblk0p1/partition", "1\n")
    number = tmp_path.stat().st_dev
    link = tmp_path / f"sys/dev/block/{os.major(number)}:{os.minor(number)}"
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "sys/devices/mmcblk0/mmcblk0p1")
    monkeypatch.setattr(tested, "Path", lambda name: tmp_path / name.lstrip("/"))
    assert tested._block_device(tmp_path) == ("/dev/mmcblk0", 1000 * 512)

"""A full disk under a node, as a person on call meets it: status and log name the disk, not what follows from it."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.foreign.modbus.device import modbus_device, settings_of, source, words_map
from tests.foreign.plant import source_node
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("libmodbus")]

STORE = "\n[store]\ndisk_free_bytes_min = 2_000_000\nballast_bytes = 1_000_000\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 megabytes for the state of the node."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "bsfg-test", folder]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs is forbidden here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


async def test_a_full_disk_is_the_headline(small_disk: Path, tmp_path: Path) -> None:
    """Another program takes the whole disk: status begins with the full disk, which is the only cause that it lists,
    and the log names it. Once that program has gone, the node is good again and says so in the log, and stores what it
    has read meanwhile, in order."""
    with modbus_device(tmp_path) as device:
        told = settings_of(source(device.port, tmp_path, words_map(0, 20)))
        device.count(1, "holding", 0, 19)
        async with source_node(tmp_path, "modbus", told, more=STORE) as node:

            async def begins(words: str) -> bool:
                return (await node.bsfg("status"))[1].startswith(words)

            await wait_until_async(lambda: begins("plant-a: good\n  stream"), "values", 60)
            other = small_disk / "other"
            with other.open("wb", buffering=0) as file, suppress(OSError):
                while file.write(bytes(4096)):  # whatever the node takes meanwhile
                    pass
            await wait_until_async(lambda: begins("plant-a: full: store: takes no facts"), "the full disk", 60)
            _, shown = await node.bsfg("status")
            (cause,) = [line for line in shown.splitlines() if line.startswith("  ! ")]
            assert "the disk is full" in cause
            assert "-> free space" in shown
            assert any("the disk is full" in line["reason"] for line in node.events("appends_refused"))
            other.unlink()
            await wait_until_async(lambda: begins("plant-a: good"), "room again", 60)
            assert node.events("appends_stored_again")
        _, told = await node.bsfg("sql", "select source_time from facts where subject = 'tag:f/0' order by offset")
        times = re.findall(r"20\S+Z", told)
        assert len(times) > 10
        assert times == sorted(times)

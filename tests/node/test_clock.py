"""The node's clock: what is read of the machine, kept for the next start, recorded, and shown at this zone and
above."""

import asyncio
import json
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from agent.batch import parse, seal_messages
from agent.errors import StoreBusy
from agent.fact_store import FactStore
from agent.health.snapshot import ClockChangeStatus
from agent.ingest.clock import BUILT_NS, ClockChange, Doubt, clock_message
from agent.message import Envelope, Fact, Message, canonical_json
from agent.node import clock as clock_module
from agent.node.clock import BOOT_ID_VARIABLE, MEMORY_FILE, ClockChanges, NodeClock
from agent.positions import Position
from tests.fact_store.making import AT_ONCE, OPERATIONAL, Elsewhere, done
from tests.support.received import put_page
from tests.waiting import wait_until_async

S = 1_000_000_000
NOW = BUILT_NS + 9 * 24 * 3_600 * S


@dataclass
class Machine:
    """The clocks of the machine, at one moment."""

    wall_ns: int = NOW
    boot_ns: int = 60 * S
    CLOCK_BOOTTIME: int = 7

    def time_ns(self) -> int:
        return self.wall_ns

    def clock_gettime_ns(self, clock: int) -> int:
        assert clock == self.CLOCK_BOOTTIME
        return self.boot_ns


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine whose kernel knows of no time server."""
    found = Machine()
    monkeypatch.setattr(clock_module, "time", found)
    monkeypatch.setattr(clock_module, "_is_kernel_synchronised", lambda: False)
    return found


def touched(file: Path, text: str = "") -> None:
    """A file, with its folders."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


async def test_a_clock_that_is_set_is_recorded_and_kept(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fact waits while the store refuses; the next start knows that the clock was believed, and until when."""
    machine.wall_ns = 100 * S
    with FactStore.open(tmp_path / "facts.db", "plant-a", settings=AT_ONCE) as store:
        clock = NodeClock(store, tmp_path, tmp_path)
        assert clock.status().doubt == "before_build"
        assert clock.doubted() == [(40 * S, 102 * S)]
        machine.wall_ns, machine.boot_ns = NOW, 70 * S
        append, refused = store.appends.append_message, list[Message]()

        def refuse_once(stream: str, message: Message) -> Future[Any]:
            if refused:
                return append(stream, message)
            refused.append(message)
            raise StoreBusy("plant-a", "full")

        monkeypatch.setattr(store.appends, "append_message", refuse_once)
        monkeypatch.setattr(clock_module, "TICK_S", 0.0)
        running = asyncio.create_task(clock.run())
        changes = ClockChanges(store.reader)
        await wait_until_async(lambda: changes.read(NOW), "the fact")
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        assert refused
        assert clock.status().doubt == ""
        assert clock.doubted() == [(40 * S, 110 * S)]
        (shown,) = changes.read(NOW)
        assert shown.zone == "plant-a"
        assert shown.text == (
            "set forward by 20767 days at 1970-01-01 00:01:50Z, to 2026-11-10 00:00:00Z; "
            "its times from 1970-01-01 00:00:40Z on were not believed"
        )
        assert not changes.read(NOW + 25 * 3_600 * S), "it is shown for a day"
        machine.wall_ns -= 3_600 * S
        assert NodeClock(store, tmp_path, tmp_path).status().doubt == "behind"


@pytest.mark.parametrize("is_in_unit", [False, True])
async def test_what_no_fact_says_yet_is_recorded_by_the_next_process(
    is_in_unit: bool, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is set forth and back while the store refuses facts, the process ends, and it is set again. The next
    one records all three, once also if it is killed before it has noted that; the one after that has nothing to
    record."""
    monkeypatch.setattr(clock_module, "TICK_S", 0.0)
    if is_in_unit:
        monkeypatch.setenv(BOOT_ID_VARIABLE, "1f2e")
    else:
        touched(tmp_path / "proc/sys/kernel/random/boot_id", "1f2e\n")
    with FactStore.open(tmp_path / "facts.db", "plant-a", settings=AT_ONCE) as store:
        clock = NodeClock(store, tmp_path, tmp_path)
        for hours in (1, -3):
            machine.wall_ns += hours * 3_600 * S
            clock.doubted()
        machine.wall_ns += 7_200 * S
        killed = (tmp_path / MEMORY_FILE).read_bytes()
        for _ in range(2):
            (tmp_path / MEMORY_FILE).write_bytes(killed)
            waiting = NodeClock(store, tmp_path, tmp_path)
            running = asyncio.create_task(waiting.run())
            await wait_until_async(lambda: store.end_offset(OPERATIONAL) == 3, "the facts")
            await wait_until_async(lambda changes=waiting._changes: not changes, "the commits")
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            assert store.end_offset(OPERATIONAL) == 3
        assert not NodeClock(store, tmp_path, tmp_path)._changes


def test_what_the_machine_says_about_its_clock(machine: Machine, tmp_path: Path) -> None:
    """systemd-timesyncd's mark, and a battery clock that shows the same time. A file of the last process that cannot be
    used is none."""
    with FactStore.open(tmp_path / "facts.db", "plant-a", settings=AT_ONCE) as store:
        touched(tmp_path / MEMORY_FILE, "{}")
        assert NodeClock(store, tmp_path, tmp_path).status().doubt == ""
        assert json.loads((tmp_path / MEMORY_FILE).read_bytes()) == [
            [NOW, NOW - 60 * S, False, ["", NOW - 60 * S, None]],
            [],
        ]
        machine.wall_ns, machine.boot_ns = NOW + 30 * S, 40 * S
        kept = (tmp_path / MEMORY_FILE).read_bytes()
        for file, text, doubt in (
            ("sys/class/rtc/rtc0/since_epoch", "946684800\n", "unconfirmed"),
            ("sys/class/rtc/rtc1/since_epoch", "?\n", "unconfirmed"),
            ("sys/class/rtc/rtc1/since_epoch", f"{NOW // S}\n", ""),
            ("sys/class/rtc/rtc1/since_epoch", "0\n", "unconfirmed"),
            ("run/systemd/timesync/synchronized", "", ""),
        ):
            (tmp_path / MEMORY_FILE).write_bytes(kept)
            touched(tmp_path / file, text)
            assert NodeClock(store, tmp_path, tmp_path).status().doubt == doubt


def test_the_zone_above_shows_what_happened_to_the_clock(tmp_path: Path) -> None:
    """The last change of each zone. Other content under the predicate is passed over."""
    plant = Elsewhere("plant-a", OPERATIONAL)
    back = ClockChange(None, NOW, NOW - 7_200 * S, -7_200 * S, Doubt.BEHIND)
    again = ClockChange(NOW - 7_200 * S, NOW, NOW, None, None)
    odd = {"offset_ms": 1, "doubted_since": None, "from_time": "2026", "to_time": 7, "believed": True}
    contents = [
        canonical_json(content) for content in (1, {}, {**odd, "offset_ms": "1"}, odd, {**odd, "to_time": "noon"})
    ]
    others = [
        Message(Envelope(f"m{n}", "plant-a", "*", 1), Fact("clock:plant-a", "clock_set", content))
        for n, content in enumerate(contents)
    ]
    shown = []
    with FactStore.open(tmp_path / "facts.db", "idmz", settings=AT_ONCE) as store:
        changes, offset = ClockChanges(store.reader), 0
        odd_before, odd_after = (replace(others[0], envelope=Envelope(f"m{n}", "plant-a", "*", 1)) for n in (8, 9))
        last = [odd_before, clock_message(again, "plant-a"), odd_after]
        for messages in ([clock_message(back, "plant-a")], others, last):
            sealed = seal_messages(plant.link, messages)
            plant.link, offset = sealed.link, offset + len(messages)
            position = Position(plant.origin.life, offset)
            done(put_page(store, "plant-a", OPERATIONAL, [parse(sealed.sealed)], [], position))
            shown.append(changes.read(NOW))
    fell = "set back by 2 h at 2026-11-10 00:00:00Z, to 2026-11-09 22:00:00Z; not believed since then"
    rose = "believed again at 2026-11-10 00:00:00Z; its times from 2026-11-09 22:00:00Z on were not believed"
    assert shown == [(ClockChangeStatus("plant-a", text),) for text in (fell, fell, rose)]

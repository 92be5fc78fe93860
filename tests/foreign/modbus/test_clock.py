"""The clock of the node is set while it reads a device, whose samples have the node's time."""

import json
import re
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agent.ingest.clock import BUILT_NS
from agent.status_codes import CLOCK_UNCERTAIN
from tests.foreign.modbus.device import modbus_device, settings_of, source
from tests.foreign.plant import NodeProcess, source_node
from tests.foreign.wall_clock import WallClock
from tests.waiting import wait_until_async

TAGS = "tag,unit_id,table,register,type,deadband\nf/0,1,holding,0,uint16,\nf/1,1,holding,1,uint16,0\n"

pytestmark = [pytest.mark.system, pytest.mark.foreign("libmodbus")]


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WallClock:
    """That of the node and its commands."""
    found = WallClock(tmp_path)
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.mark.parametrize("start_s, then_s", [(0, -7200), (100 - int(time.time()), 0)], ids=["set back", "1970"])
async def test_the_newest_value_after_the_clock_was_set(
    clock: WallClock, tmp_path: Path, start_s: int, then_s: int
) -> None:
    """The clock is set back two hours, or the node starts in 1970 and the time arrives later: `latest` shows what the
    device counted on, and no more than a minute old; so it does after a restart with the same clock, and after one
    before which the clock was set back. A value that stands, of a tag that records changes, is not ahead either."""
    with modbus_device(tmp_path / "device") as device:
        device.count(1, "holding", 0, 0)
        told = settings_of(source(device.port, tmp_path, TAGS))
        for clocks in ((start_s, then_s), (then_s,), (then_s - 3600,)):
            clock.set(clocks[0])
            async with source_node(tmp_path, "modbus", told) as node:
                await wait_until_async(lambda: node.events("source_connected"), "the source", 60)
                for seconds in clocks:
                    clock.set(seconds)
                    asked = device.status()["requests"]
                    await wait_until_async(lambda n=asked: device.status()["requests"] > n + 10, "polls")
                    code, text = await node.bsfg("latest", "--json")
                    counts, stands = map(json.loads, text.splitlines())
                    assert code == 0
                    assert counts["value"] > asked
                    assert abs(counts["age_ms"]) < 60_000
                    assert stands["value"] == 0
                    assert abs(stands["age_ms"]) < 600_000
                    assert not counts["ahead_ms"]
                    assert not stands["ahead_ms"]


async def rows(node: NodeProcess, statement: str) -> list[dict[str, Any]]:
    """The rows of a statement."""
    code, text = await node.bsfg("sql", "--json", statement)
    assert code == 0, text
    return [json.loads(line) for line in text.splitlines()]


GAPS = """select object_json from facts where predicate = 'samples_lost' and object_json ->> 'reason' = 'agent_stopped'
order by offset"""
OFF_S = 8 * 3_600


@pytest.mark.parametrize("shown_s", [-OFF_S - 3_600, 100 - int(time.time())], ids=["an hour behind", "1970"])
async def test_the_gap_of_a_node_that_was_off(clock: WallClock, tmp_path: Path, shown_s: int) -> None:
    """It is switched off for eight hours, goes on from an hour before that or from 1970, and is restarted before the
    time arrives. The last gap fact begins at the end of the values and has the eight hours; none before has time in
    which there were values."""
    with modbus_device(tmp_path / "device") as device:
        device.count(1, "holding", 0, 0)
        told = settings_of(source(device.port, tmp_path, TAGS))
        for clocks in ((-OFF_S,), (shown_s,), (shown_s, 0)):
            clock.set(clocks[0])
            async with source_node(tmp_path, "modbus", told) as node:
                await wait_until_async(lambda: node.events("source_connected"), "the source", 60)
                for seconds in clocks:
                    clock.set(seconds)
                    await wait_quality(node, CLOCK_UNCERTAIN if seconds == shown_s else 0)
        gaps = [json.loads(row["object_json"]) for row in await rows(node, GAPS)]
        good = [row["source_time_ns"] / 1e9 for row in await rows(node, SAMPLES) if not row["quality"]]
    *others, last = [
        [datetime.fromisoformat(gap[end]).timestamp() for end in ("first_time", "last_time")] for gap in gaps
    ]
    end_s, return_s = next(two for two in pairwise(good) if two[1] - two[0] > OFF_S / 2)
    assert others[0] == [last[0], last[0]]
    assert all(ends == others[0] or 0 < ends[0] <= ends[1] < 10**6 for ends in others)  # in 1970, the restart
    assert abs(last[0] - end_s) < 10
    assert return_s - 100 < last[1] <= return_s


HOW_TO = Path(__file__).parents[3] / "docs/operate/integrity.md"
SAMPLES = "select quality, source_time_ns from facts where subject = 'tag:f/0' order by offset"
CHANGES = "select object_json from facts where predicate = 'clock_set' order by offset"


async def wait_quality(node: NodeProcess, quality: int) -> None:
    """Until the last sample has this quality."""

    async def has_it() -> bool:
        found = await rows(node, SAMPLES)  # none yet, just after the source has connected
        return bool(found) and found[-1]["quality"] == quality

    await wait_until_async(has_it, f"a sample of quality {quality}", 60)


async def _are_recorded(node: NodeProcess, changes: int) -> bool:
    return len(await rows(node, CHANGES)) >= changes


async def test_no_value_is_good_before_the_time_arrives(clock: WallClock, tmp_path: Path) -> None:
    """A node starts in 1970, runs, and the time arrives: the samples until then are uncertain, those after it good; a
    fact says by how much the clock was wrong; status names the clock first, as long as it is wrong, and afterwards what
    happened. Set back by two hours, the samples are uncertain again, and a restart changes nothing about that."""
    started_s = time.time()
    began_s = 100 - int(started_s)
    clock.set(began_s)
    with modbus_device(tmp_path / "device") as device:
        device.count(1, "holding", 0, 0)
        told = settings_of(source(device.port, tmp_path, TAGS))
        async with source_node(tmp_path, "modbus", told) as node:
            await wait_until_async(lambda: node.events("source_connected"), "the source", 60)
            await wait_quality(node, CLOCK_UNCERTAIN)
            code, text = await node.bsfg("status")
            assert code == 1
            assert "! clock: not believed: it shows 1970-01-01 00:0" in text.splitlines()[1]
            assert "Uncertain+Clock" in (await node.bsfg("latest", "f/0"))[1]
            clock.set(0)
            await wait_quality(node, 0)
            for sample in await rows(node, SAMPLES):
                assert sample["quality"] == (CLOCK_UNCERTAIN if sample["source_time_ns"] < BUILT_NS else 0)
            await wait_until_async(lambda: rows(node, CHANGES), "the fact of the change")
            (change,) = [json.loads(row["object_json"]) for row in await rows(node, CHANGES)]
            assert change["believed"]
            assert abs(change["offset_ms"] / 1000 + began_s) < 2
            assert change["doubted_since"] < "1971" > change["from_time"]
            (statement,) = re.findall("```sql\n(.*?)```", HOW_TO.read_text("utf-8"), re.DOTALL)
            right = [row["right_time_ns"] / 1e9 for row in await rows(node, statement)]
            assert len(right) > 5
            assert started_s - 1 < min(right) < max(right) < time.time()
            code, text = await node.bsfg("status")
            assert code == 0
            assert re.search("plant-a +set forward by ", text)
            clock.set(-7200)
            await wait_quality(node, CLOCK_UNCERTAIN)
            await wait_until_async(lambda: _are_recorded(node, 2), "the fact of the second change")
        async with source_node(tmp_path, "modbus", told) as node:
            await wait_until_async(lambda: node.events("source_connected"), "the source", 60)
            await wait_quality(node, CLOCK_UNCERTAIN)
            code, text = await node.bsfg("status")
            assert code == 0, "it passes by itself"
            assert "before its newest facts; values are called uncertain" in " ".join(text.split())
            assert "set back by 2 h at " in text
            assert all(row["quality"] for row in (await rows(node, SAMPLES))[-5:])

"""Both sources against real servers in their own processes: values, losses, returns, bad nodes, dead units, a full
store."""

import asyncio
import itertools
import logging
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from agent.demo.plant.signals import modbus_meters, opcua_signals
from agent.demo.plant.tags import modbus_tags_csv, opcua_tags_csv
from agent.ingest.lifecycle import State
from agent.ingest.opcua import source
from agent.ingest.opcua.security.client import SessionKey
from agent.ingest.opcua.session import close_session
from agent.settings.sources import OpcuaSourceSettings
from tests.foreign.proxy import network
from tests.ingest.fakes import FakeStore, Program, running
from tests.ingest.plant import Running, ingesting, modbus, opcua
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system

BAD_COMMUNICATION, BAD_TIMEOUT, BAD_NODE_ID = 0x8005_0000, 0x800A_0000, 0x8034_0000


async def test_every_value_of_the_plant_arrives(plc: Program, meter: Program, tmp_path: Path) -> None:
    """All forty variables and all meters of both units come in with good quality, the right types, and move."""
    async with ingesting(opcua(plc.port, tmp_path), modbus(meter.port, tmp_path)) as run:
        for found in opcua_signals():
            await run.wait_good(f"plant/{found.name}")
            value = run.store.good(f"plant/{found.name}")[0].value
            assert type(value) is type(found.value(0.0)) or isinstance(value, float)
        for known in modbus_meters():
            tag = f"plant/unit{known.unit_id}.{known.name}"
            await run.wait_good(tag, 2)
        await run.wait_good("plant/count_01", 20)
        counts = [sample.value for sample in run.store.good("plant/count_01")]
        assert counts == sorted(counts)  # type: ignore[type-var]
        times = [sample.source_time_ns for sample in run.store.good("plant/count_01")]
        assert times == sorted(set(times))
        assert {type(s.value) for s in run.store.good("plant/unit2.enabled_1")} == {bool}
        assert run.store.good("plant/unit1.model")[0].value == "PM-1"
        assert all(49 < s.value < 51 for s in run.store.good("plant/unit1.frequency"))  # type: ignore[operator]
        assert all(225 < s.value < 235 for s in run.store.good("plant/unit1.voltage_l1"))  # type: ignore[operator]
        for name in ("plc", "meter"):
            assert run.source(name).connected
            assert run.source(name).errors_total == 0
    for name in ("plc", "meter"):
        assert run.source(name).values_total > 0
    assert sum(found.values_total for found in run.ingest.statistics()) == len(run.store.samples)


@pytest.mark.parametrize("module", ["opcua_server", "modbus_server"])
def test_values_come_again_after_a_kill(module: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A server killed and started again needs no human: each tag is marked bad once, then values flow; the log says
    each reason once and the return once. The OPC UA server comes back with other namespace indices and is followed by
    URI."""
    make, name = (opcua, "plc") if module == "opcua_server" else (modbus, "meter")
    tag = "plant/count_01" if name == "plc" else "plant/unit1.energy"
    still = "plant/state_01" if name == "plc" else "plant/unit1.model"
    renumbered = ("--namespaces-before", "3") if name == "plc" else ()

    async def story() -> None:
        with running(module) as first:
            source = make(first.port, tmp_path)
            async with ingesting(source) as run:
                await run.wait_good(tag, 3)
                first.kill()
                await run.wait_bad(tag, BAD_COMMUNICATION)
                await wait_until_async(lambda: run.source(name).errors_total >= 3, "failing attempts")
                before = len(run.store.good(tag))
                with running(module, *renumbered, port=first.port):
                    await run.wait_good(tag, before + 5)
                    await run.wait_good(still, 1)
                    bad = [s.quality for s in run.store.of(tag) if s.quality]
                    assert bad == [BAD_COMMUNICATION]
                    await wait_until_async(lambda: run.source(name).connects_total == 2, "the return")

    with caplog.at_level(logging.INFO, "agent.ingest"):
        asyncio.run(story())
    actions = [action for record in caplog.records if (action := getattr(record, "action", "")).startswith("source_")]
    assert (actions[0], actions[-1]) == ("source_connected", "source_returned")
    losses = [record.why for record in caplog.records if getattr(record, "action", "") == "source_lost"]
    assert len(losses) == len(actions) - 2 == len(set(losses)), "a line for each reason"


async def test_a_server_is_polled(plc: Program, tmp_path: Path) -> None:
    """In mode "poll" all forty variables come in by reads, in order and each value once, and a return needs no
    human."""
    async with ingesting(opcua(plc.port, tmp_path, mode="poll", poll_interval_ms=50)) as run:
        for found in opcua_signals():
            await run.wait_good(f"plant/{found.name}")
        await run.wait_good("plant/count_01", 10)
        times = [sample.source_time_ns for sample in run.store.good("plant/count_01")]
        assert times == sorted(set(times))
        assert run.source("plc").tags_bad == 0
        plc.kill()
        await run.wait_bad("plant/count_01", BAD_COMMUNICATION)


async def test_a_frozen_server_is_noticed_by_its_clock(plc: Program, tmp_path: Path) -> None:
    """A connection that stands and delivers nothing is ended by the server time that does not move, and rebuilt
    after."""
    async with ingesting(opcua(plc.port, tmp_path)) as run:
        await run.wait_good("plant/count_01", 3)
        plc.signal(signal.SIGSTOP)
        try:
            await run.wait_state("plc", State.WAITING)
            await run.wait_bad("plant/count_01", BAD_COMMUNICATION)
        finally:
            plc.signal(signal.SIGCONT)
        before = len(run.store.good("plant/count_01"))
        await run.wait_good("plant/count_01", before + 5)


async def test_a_frozen_device_is_noticed(meter: Program, tmp_path: Path) -> None:
    """A Modbus device that accepts and does not answer: all its tags say so, and it returns by itself."""
    async with ingesting(modbus(meter.port, tmp_path)) as run:
        await run.wait_good("plant/unit1.energy", 3)
        meter.signal(signal.SIGSTOP)
        try:
            await run.wait_state("meter", State.WAITING)
            await wait_until_async(lambda: all(s[-1].quality for s in last(run)), "every tag bad")
        finally:
            meter.signal(signal.SIGCONT)
        before = len(run.store.good("plant/unit1.energy"))
        await run.wait_good("plant/unit1.energy", before + 5)
        assert run.source("meter").tags_bad == 0


def last(run: Running) -> list[list]:  # type: ignore[type-arg]
    """The samples of each meter."""
    return [run.store.of(f"plant/unit{m.unit_id}.{m.name}") for m in modbus_meters()]


async def test_bad_nodes_do_not_stop_the_others(tmp_path: Path) -> None:
    """A missing node and a missing namespace are parked and marked once; the rest flows, the server's own clock as a
    tag among it. When the node appears it joins in, without a new connection."""
    tags = opcua_tags_csv() + "plant/elsewhere,nsu=urn:not:here;s=x,,,\nplant/clock,i=2258,,,\n"
    with running("opcua_server", "--late", "count_02:3") as plc:
        async with ingesting(opcua(plc.port, tmp_path, tags)) as run:
            await run.wait_good("plant/count_01", 3)
            await run.wait_bad("plant/count_02", BAD_NODE_ID)
            await run.wait_bad("plant/elsewhere", BAD_NODE_ID)
            await run.wait_good("plant/clock", 2)
            assert str(run.store.good("plant/clock")[0].value).endswith("Z")
            await run.wait_good("plant/count_02", 3)
            assert len(run.store.of("plant/elsewhere")) == 1
            assert [s.quality for s in run.store.of("plant/count_02") if s.quality] == [BAD_NODE_ID]
            assert run.source("plc").connects_total == 1
            assert run.source("plc").errors_total == 0
            assert run.source("plc").tags_bad == 1


@pytest.mark.parametrize("announced", ["7", "0"])
def test_more_items_than_a_call_takes(announced: str, tmp_path: Path) -> None:
    """A server that takes 7 items in one call gets all forty in calls of 7 or fewer, whether it announces that or not,
    and again after a restart (the case in which asyncua itself falls silent)."""
    limit = ("--items-per-call", "7", "--announce", announced)

    async def story() -> None:
        with running("opcua_server", *limit) as first:
            async with ingesting(opcua(first.port, tmp_path)) as run:
                await wait_all(run)
                if announced == "0":
                    return
                first.kill()
                await run.wait_bad("plant/count_01", BAD_COMMUNICATION)
                run.store.samples.clear()
                with running("opcua_server", *limit, port=first.port):
                    await wait_all(run)
                    assert run.source("plc").tags_bad == 0

    async def wait_all(run: Running) -> None:
        for found in opcua_signals():
            await run.wait_good(f"plant/{found.name}")

    asyncio.run(story())


async def test_a_lost_session_is_closed_and_the_present_one_is_not(
    plc: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncua's server has one session for each connection, whatever token a request bears. When the session of a
    connection that broke is closed, values go on over the one that followed."""
    closed: list[str] = []

    async def close(settings: OpcuaSourceSettings, key: SessionKey) -> None:
        await close_session(settings, key)
        closed.append(str(key.token))

    monkeypatch.setattr(source, "close_session", close)
    async with network(plc.port) as net:
        settings = replace(opcua(plc.port, tmp_path), url=f"opc.tcp://127.0.0.1:{net.port}/plant")
        async with ingesting(settings) as run:
            await run.wait_good("plant/count_01", 3)
            await net.command("cut")
            await run.wait_state("plc", State.WAITING)
            await net.command("flow")
            await wait_until_async(lambda: closed, "the end of the lost session")
            await wait_until_async(lambda: run.source("plc").connects_total == 2, "the return")
            errors = run.source("plc").errors_total
            await run.wait_good("plant/count_01", len(run.store.good("plant/count_01")) + 20)
            assert (run.source("plc").errors_total, run.source("plc").connects_total) == (errors, 2)


async def test_a_dead_unit_does_not_delay_the_others(tmp_path: Path) -> None:
    """Unit 2 never answers, with a time-out of thirty poll intervals: unit 1 loses at most the first wait, and no other
    that is as long."""
    with running("modbus_server", "--silent", "2") as meter:
        async with ingesting(modbus(meter.port, tmp_path, timeout_ms=3_000)) as run:
            await run.wait_bad("plant/unit2.torque_1", BAD_TIMEOUT)
            await run.wait_good("plant/unit1.energy", 1)
            before = len(run.store.good("plant/unit1.energy"))
            await run.wait_good("plant/unit1.energy", before + 20)
            times = [s.source_time_ns for s in run.store.good("plant/unit1.energy")[before:]]
            assert max(later - earlier for earlier, later in itertools.pairwise(times)) < 2_900_000_000
            assert len(run.store.of("plant/unit2.torque_1")) == 1
            assert run.source("meter").connected
            assert run.source("meter").tags_bad == 10


async def test_a_unit_that_comes_back_is_read_again(tmp_path: Path) -> None:
    """Silence is not for ever: the unit is asked aside, and returns to the others when it answers."""
    with running("modbus_server", "--silent", "2", "--silent-s", "2") as meter:
        async with ingesting(modbus(meter.port, tmp_path)) as run:
            await run.wait_bad("plant/unit2.torque_1", BAD_TIMEOUT)
            await run.wait_good("plant/unit2.torque_1", 3)
            assert run.source("meter").connects_total == 1


async def test_a_missing_register_costs_only_itself(tmp_path: Path) -> None:
    """A read refused because of a hole is split; a value that does not exist is marked; its neighbours are read as
    before."""
    tags = modbus_tags_csv() + "plant/ghost,1,input,4,uint16,,,\n"  # between voltage_l3 and current_l1: does not exist
    with running("modbus_server") as meter:
        async with ingesting(modbus(meter.port, tmp_path, tags)) as run:
            await run.wait_bad("plant/ghost", BAD_NODE_ID)
            await run.wait_good("plant/unit1.voltage_l3", 5)
            await run.wait_good("plant/unit1.current_l1", 5)
            assert len(run.store.of("plant/ghost")) == 1
            assert run.source("meter").tags_bad == 1
            assert run.source("meter").errors_total == 0


async def test_a_store_that_is_full_for_a_while(plc: Program, meter: Program, tmp_path: Path) -> None:
    """While the store refuses, both sources wait. Afterwards OPC UA delivers what the server had queued and a fact says
    what its queues lost; Modbus says how many values were not polled. No connection is given up."""
    store = FakeStore()
    sources = opcua(plc.port, tmp_path, queue_size=2), modbus(meter.port, tmp_path)
    async with ingesting(*sources, store=store) as run:
        await run.wait_good("plant/count_01", 3)
        await run.wait_good("plant/unit1.energy", 3)
        store.refusing = True
        await wait_until_async(lambda: run.source("meter").store_refused_total > 6, "refusals")
        store.refusing = False
        before = len(store.good("plant/unit1.energy"))
        await run.wait_good("plant/unit1.energy", before + 10)
        times = [sample.source_time_ns for sample in store.good("plant/unit1.energy")[before:]]
        hurried = sum(later - earlier < 50_000_000 for earlier, later in itertools.pairwise(times))
        assert hurried <= 3, "missed polls are skipped, not caught up"
        before = len(store.good("plant/count_01"))
        await run.wait_good("plant/count_01", before + 3)
        assert [found.connects_total for found in run.ingest.statistics()] == [1, 1]
    gaps = [message.fact for message in store.messages.values() if message.fact.subject == "source:meter"]
    assert any(b'"reason":"store_refused"' in gap.object_json for gap in gaps)
    assert run.source("meter").dropped_total > 0


async def test_a_wrong_source_does_not_hurt_a_right_one(meter: Program, tmp_path: Path) -> None:
    """An OPC UA source pointed at a Modbus device fails for itself, says why, and the device is read all the same."""
    async with ingesting(opcua(meter.port, tmp_path), modbus(meter.port, tmp_path)) as run:
        await wait_until_async(lambda: run.source("plc").errors_total >= 2, "errors")
        await run.wait_good("plant/unit1.energy", 3)
        assert "no connection to opc.tcp://127.0.0.1" in run.source("plc").last_error
        assert not run.source("plc").connected

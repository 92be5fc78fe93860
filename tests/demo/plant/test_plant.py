"""The simulated plant as programs: ready line, clean end, tag files that fit."""

from pathlib import Path

import pytest

from agent.demo.plant.modbus_server import registers_of
from agent.demo.plant.signals import modbus_meters, opcua_signals
from agent.demo.plant.tags import modbus_tags_csv, opcua_tags_csv
from agent.ingest.modbus.decode import decode
from agent.ingest.tags.file import load_tag_map, load_tag_maps
from agent.settings.sources import ModbusSourceSettings, OpcuaSourceSettings
from tests.ingest.fakes import Program


@pytest.mark.system
@pytest.mark.parametrize("module", ["opcua_server", "modbus_server"])
def test_a_server_reports_ready_and_ends_at_sigterm(module: str, tmp_path: Path) -> None:
    """One line with the port it really has, the tag file written by then, and exit status 0 at SIGTERM."""
    file = tmp_path / "tags.csv"
    program = Program(f"agent.demo.plant.{module}", 0, "--tags-file", str(file))
    assert 1024 < program.port < 65536
    assert file.read_text().startswith("tag,")
    assert program.stop() == 0


def test_the_tag_files_fit_the_plant(tmp_path: Path) -> None:
    """Forty OPC UA tags and more than twenty Modbus values in two units, all without a problem."""
    opcua, modbus = tmp_path / "opcua.csv", tmp_path / "modbus.csv"
    opcua.write_text(opcua_tags_csv(), encoding="utf-8")
    modbus.write_text(modbus_tags_csv(), encoding="utf-8")
    sources = OpcuaSourceSettings("plc", "opc.tcp://plc", opcua), ModbusSourceSettings("meter", modbus, 0, host="meter")
    maps = load_tag_maps(sources)
    assert len(maps["plc"].tags) == len(opcua_signals()) == 40
    assert len(maps["meter"].tags) == len(modbus_meters()) > 20
    assert {tag.point.unit_id for tag in maps["meter"].tags} == {1, 2}
    assert maps["plc"].notes == ()


@pytest.mark.parametrize("seconds", [0.0, 1.5, 86_400.0])
def test_device_and_tag_file_agree(seconds: float, tmp_path: Path) -> None:
    """Two writers of the same orders, the device's and the agent's, agree on every meter at any time."""
    file = tmp_path / "modbus.csv"
    file.write_text(modbus_tags_csv(), encoding="utf-8")
    tags = load_tag_map(ModbusSourceSettings("meter", file, 0, host="meter")).tags
    for meter, tag in zip(modbus_meters(), tags, strict=True):
        found, held = decode(tag.point.kind, registers_of(meter, seconds)), meter.value(seconds)
        if isinstance(held, str):
            assert found == held
        else:
            assert found == pytest.approx(held * float(meter.scale or 1), rel=1e-6)

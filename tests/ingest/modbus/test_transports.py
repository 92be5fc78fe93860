"""The four transports, each against a device in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.ingest.errors import SourceLost, SourceRefused
from agent.ingest.modbus.address import Table
from agent.ingest.modbus.line import Line, ReadRefused, UnitSilent
from agent.ingest.modbus.plan import Read
from agent.settings.sources import ModbusSourceSettings
from tests.ingest.modbus.field import cable, field_device, settings
from tests.ingest.opcua.security.certificates import in_files

pytestmark = pytest.mark.system  # the device answers by the real clock
FIVE = Read(1, Table.HOLDING, 10, 5, ())
LONG = Read(1, Table.HOLDING, 0, 100, ())
BEYOND = Read(1, Table.HOLDING, 999, 2, ())
OTHER = Read(2, Table.HOLDING, 0, 1, ())


async def check(given: ModbusSourceSettings) -> None:
    """Values, a refusal, a unit that is silent, and values again, over one connection."""
    async with Line(given) as line:
        assert list(await line.read(FIVE)) == [10, 11, 12, 13, 14]
        with pytest.raises(ReadRefused, match=r"illegal data address \(2\)"):
            await line.read(BEYOND)
        with pytest.raises(UnitSilent, match="does not answer within 1000 ms"):
            await line.read(OTHER)
        assert list(await line.read(LONG)) == list(range(100))


async def test_rtu_over_a_serial_line() -> None:
    """A pair of pseudo terminals stands for the cable."""
    with cable() as (ours, theirs), field_device("serial,dead=2:0", theirs):
        await check(settings("rtu", serial_port=ours, parity="none", baud_rate=115_200, timeout_ms=1_000))


@pytest.mark.parametrize("transport, framing", [("rtu_over_tcp", "rtu"), ("tcp", "tcp")])
async def test_sockets(transport: str, framing: str) -> None:
    """Either framing over a socket."""
    with field_device(f"{framing},dead=2:0") as port:
        await check(settings(transport, port=port, timeout_ms=1_000))


async def test_a_port_that_does_not_exist_is_reported_with_its_reason() -> None:
    """The operating system's reason is in the message: a missing device file reads otherwise than a closed port."""
    for given in (
        settings("rtu", serial_port="/dev/does-not-exist"),
        settings("tcp", port=1),
    ):
        with pytest.raises(SourceLost, match=r"could not open port|Connection refused$"):
            async with Line(given):
                pass


async def test_tls_verifies_the_device_and_shows_our_certificate(tmp_path: Path) -> None:
    """A device whose certificate is by another authority, or for another name, is not spoken to; one that asks for our
    certificate gets it."""
    ca_file, _ = in_files(tmp_path, "authority")
    other_file, _ = in_files(tmp_path, "other")
    file, key = in_files(tmp_path, "meter.example", "authority")
    own, own_key = in_files(tmp_path, "bsfg", "authority", purpose=None)
    good = {"ca_file": ca_file, "server_name": "meter.example", "timeout_ms": 2_000}
    with field_device("tls", "0", file, key, ca_file) as port:
        shown = {**good, "port": port, "cert_file": own, "key_file": own_key}
        async with Line(settings("tls", **shown)) as line:
            assert list(await line.read(FIVE)) == [10, 11, 12, 13, 14]
        for wrong in ({"ca_file": other_file}, {"server_name": "pump.example"}):
            with pytest.raises(SourceLost, match="certificate"):
                async with Line(settings("tls", **{**shown, **wrong})):
                    pass
        with pytest.raises(SourceRefused, match=r"missing.pem"):
            async with Line(settings("tls", **{**shown, "ca_file": tmp_path / "missing.pem"})):
                pass

"""What a connection needs before it can ask: a port, a certificate. `line/test_field_faults` reads over the other
transports."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.ingest.errors import SourceLost, SourceRefused
from agent.ingest.modbus.address import Table
from agent.ingest.modbus.line import Line
from agent.ingest.modbus.read_plan import Read
from tests.ingest.modbus.field import field_device, settings
from tests.ingest.opcua.security.certificates import in_files

pytestmark = pytest.mark.system  # the device answers by the real clock
FIVE = Read(1, Table.HOLDING, 10, 5, ())


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

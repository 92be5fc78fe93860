"""The four transports, each against a device in a process of its own."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from agent.ingest.errors import SourceLost, SourceRefused
from agent.ingest.modbus.address import Table
from agent.ingest.modbus.line import Line, ReadRefused, UnitSilent
from agent.ingest.modbus.plan import Read
from agent.settings.sources import ModbusSourceSettings

pytestmark = pytest.mark.system  # the device answers by the real clock
FIVE = Read(1, Table.HOLDING, 10, 5, ())
LONG = Read(1, Table.HOLDING, 0, 100, ())
BEYOND = Read(1, Table.HOLDING, 99, 2, ())
OTHER = Read(2, Table.HOLDING, 0, 1, ())


@contextmanager
def device(*arguments: str) -> Iterator[int]:
    """The device as a process; its port."""
    command = [sys.executable, "-m", "tests.ingest.modbus.rtu_device", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline().split()[1])
        finally:
            process.kill()


def settings(transport: str, **given: object) -> ModbusSourceSettings:
    """A source over this transport."""
    made = ModbusSourceSettings(
        "meter",
        Path("t.csv"),
        0,
        transport=transport,
        **{"timeout_ms": 300, **given},  # type: ignore[arg-type]
    )
    assert list(made.problems()) == []
    return made


async def check(given: ModbusSourceSettings) -> None:
    """Values, a refusal, a unit that is silent, and values again, over one connection."""
    async with Line(given) as line:
        assert list(await line.read(FIVE)) == [10, 11, 12, 13, 14]
        with pytest.raises(ReadRefused, match=r"illegal data address \(2\)"):
            await line.read(BEYOND)
        with pytest.raises(UnitSilent, match="does not answer within 300 ms"):
            await line.read(OTHER)
        assert list(await line.read(LONG)) == list(range(100))


@contextmanager
def cable() -> Iterator[tuple[str, str]]:
    """A pair of pseudo terminals: what is written to one is read from the other."""
    ours, theirs = os.openpty(), os.openpty()
    for end in (*ours, *theirs):
        tty.setraw(end)
    command = [sys.executable, "-m", "tests.ingest.modbus.cable", str(ours[0]), str(theirs[0])]
    with subprocess.Popen(command, pass_fds=(ours[0], theirs[0])) as process:
        try:
            yield os.ttyname(ours[1]), os.ttyname(theirs[1])
        finally:
            process.kill()
            for end in (*ours, *theirs):
                os.close(end)


async def test_rtu_over_a_serial_line() -> None:
    """A pair of pseudo terminals stands for the cable."""
    with cable() as (ours, theirs), device("serial", theirs):
        await check(settings("rtu", serial_port=ours, parity="none", baud_rate=115_200))


@pytest.mark.parametrize("transport, framing", [("rtu_over_tcp", "rtu"), ("tcp", "tcp")])
async def test_sockets(transport: str, framing: str) -> None:
    """Either framing over a socket."""
    with device(framing, "0") as port:
        await check(settings(transport, host="127.0.0.1", port=port))


async def test_a_late_answer_is_not_taken_for_the_next_one() -> None:
    """RTU has no transaction number: the answer to a request that was given up must not become the values of the next
    request of the same length."""
    with device("rtu", "0") as port:
        async with Line(settings("rtu_over_tcp", host="127.0.0.1", port=port)) as line:
            with pytest.raises(UnitSilent):
                await line.read(Read(3, Table.HOLDING, 10, 5, ()))
            assert list(await line.read(Read(3, Table.HOLDING, 20, 5, ()))) == [20, 21, 22, 23, 24]


async def test_a_port_that_does_not_exist_is_reported_with_its_reason() -> None:
    """The operating system's reason is in the message: a missing device file reads otherwise than a closed port."""
    for given in (
        settings("rtu", serial_port="/dev/does-not-exist"),
        settings("tcp", host="127.0.0.1", port=1),
    ):
        with pytest.raises(SourceLost, match=r"could not open port|refused|Connect call failed"):
            async with Line(given):
                pass


def certificate(folder: Path, name: str, issuer: str = "") -> tuple[Path, Path]:
    """A certificate for `name`, made by `issuer` (itself without one), and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer, signed_by = key, subject
    if issuer:
        loaded = serialization.load_pem_private_key((folder / f"{issuer}.key").read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        signer, signed_by = loaded, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder(signed_by, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=not issuer, path_length=None), critical=True)
        .sign(signer, hashes.SHA256())
    )
    file, key_file = folder / f"{name}.pem", folder / f"{name}.key"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return file, key_file


async def test_tls_verifies_the_device_and_shows_our_certificate(tmp_path: Path) -> None:
    """A device whose certificate is by another authority, or for another name, is not spoken to; one that asks for our
    certificate gets it."""
    ca_file, _ = certificate(tmp_path, "authority")
    other_file, _ = certificate(tmp_path, "other")
    file, key = certificate(tmp_path, "meter.example", "authority")
    own, own_key = certificate(tmp_path, "bsfg", "authority")
    good = {"host": "127.0.0.1", "ca_file": ca_file, "server_name": "meter.example", "timeout_ms": 2_000}
    with device("tls", "0", str(file), str(key), str(ca_file)) as port:
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

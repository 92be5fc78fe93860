"""The two machines of docs/how-to/first-gateway.md, with an OPC UA server and a Modbus device of other makers in the
network of the gateway, and an operator who types the page."""

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from appliance.packages import Target
from tests.appliance.gateway import Gateway, clean_gateway, why_not
from tests.appliance.page import Typed, tutorial
from tests.appliance.test_root_deb import boiler, press
from tests.foreign.modbus.device import ModbusDevice
from tests.foreign.server import ForeignServer

PASSPHRASE = "correct horse battery staple"

# The OPC UA server of the page, at its address: it takes secured connections alone, of clients that it trusts.
PRESS = {
    "host": "10.20.0.10",
    "port": 4840,
    "policies": ["Basic256Sha256"],
    "variables": [{"name": "count", "type": "Int32", "period_ms": 200}, {"name": "temperature", "value": 21.5}],
}


class Operator:
    """Types the page, carries the stick, and does at the OPC UA server what an operator does there."""

    def __init__(self, machines: dict[str, Gateway], server: ForeignServer, stick: Path) -> None:
        self._machines, self._server, self._stick = machines, server, stick
        self.shown: list[str] = []

    def type(self, typed: Typed) -> str:
        """One command, with the stick in its machine."""
        gateway = self._machines[typed.machine]
        place = gateway.root / "media" / "usb"
        shutil.copytree(self._stick, place, dirs_exist_ok=True)
        dialog = [(question, partial(self._answer, gateway, question, text)) for question, text in typed.dialog]
        shown = gateway.type(typed.command, dialog)
        shutil.rmtree(self._stick)
        shutil.move(place, self._stick)
        self.shown.append(shown)
        return shown

    def _answer(self, gateway: Gateway, question: str, text: str) -> str:
        if question.startswith("Try again"):
            asyncio.run(self._server.trust(gateway.root / "var/lib/bsfg/plant-a/opcua/own.der"))
        return PASSPHRASE if text == "(not shown)" else text


class TwoZones(NamedTuple):
    """The machines, booted, and the devices, running. The page has not been typed."""

    plant: Gateway
    idmz: Gateway
    boiler: ModbusDevice
    press: ForeignServer
    operator: Operator


@contextmanager
def two_zones(target: Target, deb: Path, folder: Path, *, is_bare: bool = False) -> Iterator[TwoZones]:
    """Both machines for the length of a block, with the .deb on the operator's stick; or a skipped test."""
    if reason := why_not(target):
        pytest.skip(reason)
    stick = folder / "stick"
    stick.mkdir()
    shutil.copy(deb, stick)
    with ExitStack() as stack:
        machines = {
            zone: stack.enter_context(clean_gateway(target, folder / zone, is_bare=is_bare))
            for zone in ("plant-a", "idmz")
        }
        plant, idmz = machines.values()
        # The press comes first, because its server's certificate names the first address.
        plant.connect(idmz, "10.20.0.10/24", "10.20.0.1/24")
        for address in ("10.20.0.2/24", "10.20.0.20/24"):
            plant.add_address(address, "eth0")
        stack.enter_context(plant.boot())
        stack.enter_context(idmz.boot())
        device = stack.enter_context(boiler(plant, folder))
        stack.enter_context(converter(plant, "10.20.0.20", device.port))
        server = stack.enter_context(press(plant, folder, **PRESS))
        yield TwoZones(plant, idmz, device, server, Operator(machines, server, stick))


def walk(zones: TwoZones) -> float:
    """Type the whole page except for its last command; the minutes that it took."""
    began = time.monotonic()
    for step in list(tutorial())[:-1]:
        zones.operator.type(step)
    return (time.monotonic() - began) / 60


@contextmanager
def converter(gateway: Gateway, address: str, port: int) -> Iterator[None]:
    """An address of the boiler in the plant's network, in front of the device, which listens on loopback."""
    listening = ["socat", f"TCP-LISTEN:502,bind={address},fork,reuseaddr", f"TCP:127.0.0.1:{port}"]
    process = subprocess.Popen([*gateway.in_network, *listening])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def latest(gateway: Gateway) -> dict[str, str]:
    """The latest values that a machine's store has of plant-a, by tag."""
    zone = gateway.root.parent.name
    done = gateway.try_(f"bsfg latest --config /etc/bsfg/{zone}.toml --zone plant-a --json")
    rows = [json.loads(line) for line in done.text.splitlines() if line.startswith("{")]
    return {row["subject"].removeprefix("tag:"): str(row["value"]) for row in rows}

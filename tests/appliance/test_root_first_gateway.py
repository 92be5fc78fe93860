"""docs/how-to/first-gateway.md on two clean machines without a network but the cable between them: from the packages to
values of an OPC UA server and a Modbus device, both of other makers, in a second zone."""

import asyncio
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from appliance.packages import Target
from tests.appliance.gateway import Gateway, clean_gateway, why_not
from tests.appliance.page import Typed, tutorial
from tests.appliance.test_root_deb import BOTH, boiler, press
from tests.foreign.server import ForeignServer
from tests.waiting import wait_until

COMMANDS_MAX = 8
VALUES_S = 60
TAGS = {"Plant/count", "Plant/temperature", "boiler/pressure", "boiler/temperature"}
PASSPHRASE = "correct horse battery staple"

# The OPC UA server of the page, at its address: it takes secured connections alone, of clients that it trusts.
PRESS = {
    "host": "10.20.0.10",
    "port": 4840,
    "policies": ["Basic256Sha256"],
    "variables": [{"name": "count", "type": "Int32", "period_ms": 200}, {"name": "temperature", "value": 21.5}],
}


@contextmanager
def converter(gateway: Gateway, port: int) -> Iterator[None]:
    """The boiler's address on the page, in front of the device, which listens on loopback."""
    listening = ["socat", "TCP-LISTEN:502,bind=10.20.0.20,fork,reuseaddr", f"TCP:127.0.0.1:{port}"]
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


@BOTH
def test_the_first_gateway(target: Target, deb: Path, tmp_path: Path) -> None:
    """The page as it stands: at most eight commands and no file edited until values of both servers are in the second
    zone, and go on coming. The fingerprints to compare are equal. Prints the minutes."""
    if reason := why_not(target):
        pytest.skip(reason)
    steps = list(tutorial())
    assert len(steps) <= COMMANDS_MAX
    assert {step.command.split()[0] for step in steps} == {"dpkg", "bsfg"}, "no file is edited"
    stick = tmp_path / "stick"
    stick.mkdir()
    shutil.copy(deb, stick)
    with ExitStack() as stack:
        machines = {zone: stack.enter_context(clean_gateway(target, tmp_path / zone)) for zone in ("plant-a", "idmz")}
        plant, idmz = machines.values()
        # The press comes first, because its server's certificate names the first address.
        plant.connect(idmz, "10.20.0.10/24", "10.20.0.1/24")
        for address in ("10.20.0.2/24", "10.20.0.20/24"):
            plant.add_address(address, "eth0")
        stack.enter_context(plant.boot())
        stack.enter_context(idmz.boot())
        device = stack.enter_context(boiler(plant, tmp_path))
        stack.enter_context(converter(plant, device.port))
        operator = Operator(machines, stack.enter_context(press(plant, tmp_path, **PRESS)), stick)
        began = time.monotonic()
        for step in steps[:-1]:
            operator.type(step)
        wait_until(lambda: latest(idmz).keys() >= TAGS, "values in the second zone", VALUES_S)
        last = operator.type(steps[-1])
        minutes = (time.monotonic() - began) / 60
        print(f"{target.name}: {len(steps)} commands, no file edited, {minutes:.1f} minutes")
        assert all(f"plant-a  {tag} " in last for tag in TAGS), last
        fingerprints = re.findall(r"fingerprint of the key[^:]*: (\S+)", "\n".join(operator.shown))
        assert len(fingerprints) > len(set(fingerprints))
        before = latest(idmz)
        changing = ("Plant/count", "boiler/pressure")
        wait_until(lambda: all(latest(idmz)[tag] != before[tag] for tag in changing), "newer values of both", VALUES_S)
        assert float(before["Plant/temperature"]) == 21.5
        for zone, gateway in machines.items():
            wait_until(
                lambda zone=zone, gateway=gateway: (
                    gateway.try_(f"bsfg status --config /etc/bsfg/{zone}.toml").status == 0
                ),
                f"a good status of {zone}",
                VALUES_S,
            )
            assert gateway.run("find /var/lib/bsfg -not -user bsfg; find /etc/bsfg -not -group bsfg") == ""
            assert gateway.run("find /etc/bsfg -perm /o=rwx") == ""

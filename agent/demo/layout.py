"""The folder of a demonstration: one node.toml per zone, and the tag maps of the plant.

Zones and links are the specification's chain, enterprise <- idmz <- plant-a, with the broker standing in the IDMZ.
An operator could have typed everything in these texts, and `bsfg check` accepts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agent.demo.mosquitto import broker_section
from agent.replication.pki import Issued

PLANT, IDMZ, ENTERPRISE = "plant-a", "idmz", "enterprise"
ZONES = (PLANT, IDMZ, ENTERPRISE)
LINKS = (f"{PLANT}:{IDMZ}", f"{IDMZ}:{ENTERPRISE}")
STREAMS = TELEMETRY, OPERATIONAL = "facts.telemetry", "facts.operational"

# The zone that each pulls from, and the zones whose facts that one relays.
_UPSTREAM: dict[str, tuple[str, tuple[str, ...]]] = {IDMZ: (PLANT, ()), ENTERPRISE: (IDMZ, (PLANT,))}
_DOWNSTREAM = {PLANT: IDMZ, IDMZ: ENTERPRISE}


@dataclass(frozen=True, slots=True)
class PlantAddress:
    """The ports of the simulated plant, and its tag maps."""

    opcua_port: int
    modbus_port: int
    opcua_tags_file: Path
    modbus_tags_file: Path


_OPCUA = """## The simulated server speaks without encryption; a real one should not.
[[opcua]]
name = "press"
url = "opc.tcp://127.0.0.1:{port}/"
tags_file = "{tags_file}"
security_policy = "None"
security_mode = "None"
insecure = true
sampling_interval_ms = 100
publishing_interval_ms = 200
reconnect_delay_max_ms = 5000
"""
_MODBUS = """[[modbus]]
name = "boiler"
host = "127.0.0.1"
port = {port}
tags_file = "{tags_file}"
address_base = 0
poll_interval_ms = 200
reconnect_delay_max_ms = 5000
"""


def node_toml(zone: str, identity: Issued, broker_port: int, page_port: int, plant: PlantAddress | None) -> str:
    """The configuration of one zone; `plant` where it has sources."""
    sections = [
        f'[node]\nzone = "{zone}"\n',
        f"[page]\nlisten_port = {page_port}\n",
        broker_section(identity, broker_port),
    ]
    if zone in _DOWNSTREAM:
        sections.append(_peer(_DOWNSTREAM[zone], exports=STREAMS))
    if zone in _UPSTREAM:
        serving, relays = _UPSTREAM[zone]
        sections.append(_peer(serving, pulls=STREAMS, relays=relays))
    if plant is not None:
        sections.append(_OPCUA.format(port=plant.opcua_port, tags_file=plant.opcua_tags_file))
        sections.append(_MODBUS.format(port=plant.modbus_port, tags_file=plant.modbus_tags_file))
    return "\n".join(sections)


def _peer(
    zone: str, *, exports: tuple[str, ...] = (), pulls: tuple[str, ...] = (), relays: tuple[str, ...] = ()
) -> str:
    lines = [f'[[peer]]\nzone = "{zone}"\nbroker = "site"']
    named = (("exports", exports), ("pulls", pulls), ("relays", relays))
    lines += [
        f"{name} = [{', '.join(f'{text!r}' for text in texts)}]".replace("'", '"') for name, texts in named if texts
    ]
    return "\n".join(lines) + "\n"

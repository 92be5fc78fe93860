"""The plant's signals: what each tag shows at a time. Pure functions of the time since the plant began, in seconds.

Temperatures drift and ripple, counters count, motors start and stop, batches get new names: enough kinds to meet every
type a tag can have, regular enough that a test can say what should be seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

OPCUA_NAMESPACE = "urn:bsfg:demo:plant"

TEMPERATURES, PRESSURES, COUNTERS, STATES, MOTORS, TEXTS = 12, 8, 8, 4, 6, 2  # 40 in all


@dataclass(frozen=True, slots=True)
class Signal:
    """One OPC UA variable: name, type as OPC UA calls it, how often it changes, and the unit it is shown in."""

    name: str
    data_type: str
    period_ms: int
    unit: str = ""

    def value(self, seconds: float) -> float | int | bool | str:
        """What the variable shows at this time."""
        index = int(self.name.rsplit("_", 1)[1])
        match self.data_type:
            case "Double":
                slow, fast = math.sin(seconds / 30 + index), math.sin(seconds * 1.7 + index * 3)
                return round(60 + 5 * index + 8 * slow + 0.4 * fast, 4)
            case "Float":
                return round(2 + 0.25 * index + math.sin(seconds / 7 + index), 3)
            case "Int64":
                return int(seconds * 1000 / self.period_ms) + index * 1_000_000
            case "Int16":
                return int(seconds / 3 + index) % 5
            case "Boolean":
                return int(seconds + index) % 4 < 2
            case _:
                return f"batch-{index}-{int(seconds / 5):06d}"


def opcua_signals() -> list[Signal]:
    """The forty variables of the OPC UA server."""
    kinds = (
        ("temperature", "Double", TEMPERATURES, 200, "degC"),
        ("pressure", "Float", PRESSURES, 100, "bar"),
        ("count", "Int64", COUNTERS, 100, ""),
        ("state", "Int16", STATES, 500, ""),
        ("running", "Boolean", MOTORS, 500, ""),
        ("batch", "String", TEXTS, 500, ""),
    )
    return [Signal(f"{name}_{i:02d}", kind, ms, unit) for name, kind, n, ms, unit in kinds for i in range(1, n + 1)]


@dataclass(frozen=True, slots=True)
class Meter:
    """One value in a Modbus unit: table, wire address, type and byte order as the tag map writes them."""

    name: str
    unit_id: int
    table: str
    address: int
    type: str
    byte_order: str = "ABCD"
    unit: str = ""
    scale: str = ""

    def value(self, seconds: float) -> float | int | bool | str:
        """What the device holds at this time, before the tag map's scale."""
        wave = math.sin(seconds / 11 + self.address)
        match self.type:
            case "bool":
                return int(seconds + self.address) % 6 < 3
            case "int16":
                return int(150 * wave)
            case "uint16":
                return int(2300 + 40 * wave)
            case "uint32":
                return int(seconds * 10) + self.address
            case "uint64":
                return int(seconds * 1000) + 10_000_000_000
            case "float32":
                return 50 + 0.5 * wave
            case "float64":
                return 1000 + 250 * wave
            case _:
                return f"PM-{self.unit_id}"


def modbus_meters() -> list[Meter]:
    """The values of the two units: a power meter (1) and a drive (2)."""
    return [
        *(Meter(f"voltage_l{i + 1}", 1, "input", i, "uint16", unit="V", scale="0.1") for i in range(3)),
        *(Meter(f"current_l{i + 1}", 1, "input", 10 + 2 * i, "float32", "CDAB", "A") for i in range(3)),
        Meter("frequency", 1, "input", 16, "float32", "ABCD", "Hz"),
        Meter("energy", 1, "input", 20, "uint64", unit="Wh"),
        Meter("power", 1, "input", 24, "float64", "DCBA", "W"),
        Meter("power_factor", 1, "input", 28, "int16", unit="%", scale="0.5"),
        Meter("model", 1, "holding", 100, "string8"),
        Meter("uptime", 1, "holding", 104, "uint32", "CDAB", "s", "0.1"),
        *(Meter(f"breaker_{i + 1}", 1, "discrete", i, "bool") for i in range(4)),
        *(Meter(f"torque_{i + 1}", 2, "holding", i, "int16", unit="%", scale="0.1") for i in range(4)),
        *(Meter(f"speed_{i + 1}", 2, "holding", 40 + 2 * i, "float32", "BADC", "rpm") for i in range(2)),
        *(Meter(f"enabled_{i + 1}", 2, "coil", i, "bool") for i in range(4)),
    ]

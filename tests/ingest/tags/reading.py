"""Tag files as sources read them, from their text."""

from pathlib import Path

from agent.ingest.tags.file import parse_tag_file
from agent.ingest.tags.tag_map import TagMap
from agent.settings.sources import ModbusSourceSettings, OpcuaSourceSettings


def opcua(data: bytes | str, file: str = "plc.csv") -> TagMap:
    """The tag map that the OPC UA source plc reads from a file of this name."""
    settings = OpcuaSourceSettings("plc", "opc.tcp://plc:4840", Path(file))
    return parse_tag_file(settings, data.encode() if isinstance(data, str) else data)


def modbus(text: str, base: int = 0, file: str = "meter.csv", **settings: object) -> TagMap:
    """The tag map that the Modbus source meter reads from a file of this name."""
    made = ModbusSourceSettings("meter", Path(file), base, host="meter", **settings)  # type: ignore[arg-type]
    return parse_tag_file(made, text.encode())

"""Tag files that fit the simulated plant, as a spreadsheet would save them.

They are made from the list of signals that the servers use, so the two cannot differ. Temperatures have a deadband; all
other changes are recorded.
"""

from __future__ import annotations

import csv
import io

from agent.demo.plant.signals import OPCUA_NAMESPACE, modbus_meters, opcua_signals


def opcua_tags_csv() -> str:
    """The tag file of the OPC UA server: all forty variables. Temperatures leave out changes below 0.05 degrees."""
    rows = [["tag", "address", "unit", "deadband", "max_interval_ms"]]
    for signal in opcua_signals():
        band = ["0.05", "10000"] if signal.data_type == "Double" else ["", ""]
        rows.append([f"plant/{signal.name}", f"nsu={OPCUA_NAMESPACE};s={signal.name}", signal.unit, *band])
    return _csv(rows)


def modbus_tags_csv() -> str:
    """The tag file of the Modbus device: both units."""
    rows = [["tag", "unit_id", "table", "register", "type", "byte_order", "scale", "unit"]]
    for m in modbus_meters():
        order = m.byte_order if m.type.endswith(("32", "64")) else ""
        row = [f"plant/unit{m.unit_id}.{m.name}", m.unit_id, m.table, m.address, m.type, order, m.scale, m.unit]
        rows.append([str(cell) for cell in row])
    return _csv(rows)


def _csv(rows: list[list[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerows(rows)
    return out.getvalue()

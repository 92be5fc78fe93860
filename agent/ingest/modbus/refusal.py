"""The exceptions of Modbus: their names, and the OPC UA status of a sample whose read was refused.

Exceptions 1, 2 and 3 concern the request. 4, 5 and 6 may be temporary. 10 and 11 come from a gateway whose unit does
not answer (Modbus Application Protocol V1.1b3, 7). `SILENT` stands for a read that a unit never answers although it
answers others. Core.
"""

from __future__ import annotations

from agent.ingest import quality

SILENT = 0
BUSY = 6
GATEWAY_CODES = frozenset({10, 11})
_ADDRESS_CODES = frozenset({1, 2, 3})

_NAMES = {
    SILENT: "no answer",
    1: "illegal function",
    2: "illegal data address",
    3: "illegal data value",
    4: "server device failure",
    5: "acknowledge",
    BUSY: "server device busy",
    7: "negative acknowledge",
    8: "memory parity error",
    10: "gateway path unavailable",
    11: "gateway target device failed to respond",
}
_QUALITIES = {
    SILENT: quality.BAD_TIMEOUT,
    1: quality.BAD_NOT_SUPPORTED,
    2: quality.BAD_NODE_ID_UNKNOWN,
    3: quality.BAD_OUT_OF_RANGE,
    4: quality.BAD_DEVICE_FAILURE,
    5: quality.BAD_RESOURCE_UNAVAILABLE,
    6: quality.BAD_RESOURCE_UNAVAILABLE,
}


def reason(code: int) -> str:
    """The text of an exception: `illegal data address (2)`."""
    if code == SILENT:
        return _NAMES[SILENT]
    return f"{_NAMES.get(code, 'unknown Modbus exception')} ({code})"


def quality_of(code: int) -> int:
    """The status of a sample whose read was refused with this exception."""
    return _QUALITIES.get(code, quality.BAD_DEVICE_FAILURE)


def is_about_address(code: int) -> bool:
    """Whether the same read will be refused again, so that smaller reads are tried at once."""
    return code in _ADDRESS_CODES

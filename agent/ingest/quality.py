"""OPC UA status codes (Part 6, Annex A.2) that this package itself gives to samples, whatever the protocol.

A code that a source sends is kept bit for bit. These codes are for what a source cannot send, for example that a device
does not answer or that bytes cannot be decoded. The overflow bits are defined in Part 4, 7.39.1.
"""

from __future__ import annotations

from agent import status_codes
from agent.status_codes import OVERFLOW_BITS

GOOD = 0x0000_0000
BAD_RESOURCE_UNAVAILABLE = 0x8004_0000
BAD_COMMUNICATION_ERROR = 0x8005_0000
BAD_DECODING_ERROR = 0x8007_0000
BAD_ENCODING_LIMITS_EXCEEDED = 0x8008_0000
BAD_TIMEOUT = 0x800A_0000
BAD_WAITING_FOR_INITIAL_DATA = 0x8032_0000
BAD_NODE_ID_INVALID = 0x8033_0000
BAD_NODE_ID_UNKNOWN = 0x8034_0000
BAD_ATTRIBUTE_ID_INVALID = 0x8035_0000
BAD_INDEX_RANGE_NO_DATA = 0x8037_0000
BAD_OUT_OF_RANGE = 0x803C_0000
BAD_INDEX_RANGE_INVALID = 0x8036_0000
BAD_NOT_SUPPORTED = 0x803D_0000
BAD_OBJECT_DELETED = 0x803F_0000
BAD_MONITORED_ITEM_ID_INVALID = 0x8042_0000
BAD_USER_ACCESS_DENIED = 0x801F_0000
BAD_NOT_READABLE = 0x803A_0000
BAD_FILTER_INVALID = 0x8043_0000
BAD_FILTER_UNSUPPORTED = 0x8044_0000
BAD_FILTER_NOT_ALLOWED = 0x8045_0000
BAD_SECURITY_MODE_INSUFFICIENT = 0x80E6_0000
BAD_DEVICE_FAILURE = 0x808B_0000
TAG_REMOVED = status_codes.TAG_REMOVED
BAD_NO_DATA_AVAILABLE = 0x80B1_0000  # the device itself says that it has no value
BAD_TOO_MANY_MONITORED_ITEMS = 0x80DB_0000

LIMIT_LOW, LIMIT_HIGH = 0x0000_0500, 0x0000_0600  # InfoType DataValue, and the limit the value is at
UNCERTAIN_ENGINEERING_UNITS_EXCEEDED = 0x4094_0000  # outside the range of values defined for it (Part 8, 6.3.1)
UNCERTAIN_BELOW_RANGE = UNCERTAIN_ENGINEERING_UNITS_EXCEEDED | LIMIT_LOW
UNCERTAIN_ABOVE_RANGE = UNCERTAIN_ENGINEERING_UNITS_EXCEEDED | LIMIT_HIGH

CODE_BITS = 0xFFFF_0000  # the rest of a StatusCode are flags
GONE = frozenset(
    {
        BAD_NODE_ID_INVALID,
        BAD_NODE_ID_UNKNOWN,
        BAD_ATTRIBUTE_ID_INVALID,
        BAD_OBJECT_DELETED,
        BAD_MONITORED_ITEM_ID_INVALID,
    }
)
"""The codes of a notification when the node does not exist any more. A monitored item does not recover from them, even
if a node with that id exists again."""

DENIED = frozenset({BAD_USER_ACCESS_DENIED, BAD_NOT_READABLE, BAD_SECURITY_MODE_INSUFFICIENT})
"""The codes of a notification when this user may not read the value, or not over this connection. The server may allow
it at any time. An item that it does not sample (node-opcua, with an interval of 0) then stays silent until the value
changes."""


def is_bad(quality: int) -> bool:
    """Whether a value with this code must not be used."""
    return quality & 0x8000_0000 != 0


def has_overflowed(quality: int) -> bool:
    """Whether the server reports that its queue for the item overflowed before this value."""
    return quality & OVERFLOW_BITS == OVERFLOW_BITS

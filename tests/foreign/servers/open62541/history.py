"""The library's history in memory: which variables have one. Its plugins are built into the library; the server's
configuration takes them in a field that has no function, so its place is found by the number that stands behind it."""

from __future__ import annotations

from ctypes import CFUNCTYPE, POINTER, Structure, c_int, c_size_t, c_uint32, c_void_p, pointer
from typing import Any

from library import Library, NodeId

VALUES_MAX = 1_212_696_649  # of one HistoryRead; no limit, and a number that nothing else has in the configuration
VALUES_AT_ONCE = 100  # beyond, the server gives continuation points
NODES, VALUES = 100, 10_000  # room at first
CONFIGURATION = {
    "historizingEnabled": True,
    "historizing": {"accessHistoryDataCapability": True, "maxReturnDataValues": VALUES_MAX},
}
_AFTER = 100  # from the beginning of the database in the configuration to that number
_VALUE_SET = 1  # UA_HISTORIZINGUPDATESTRATEGY_VALUESET


class _Gathering(Structure):
    """UA_HistoryDataGathering."""

    _fields_ = [("pointers", c_void_p * 8)]


class _Backend(Structure):
    """UA_HistoryDataBackend."""

    _fields_ = [("pointers", c_void_p * 17)]


class _Database(Structure):
    """UA_HistoryDatabase."""

    _fields_ = [("pointers", c_void_p * 12)]


class _Settings(Structure):
    """UA_HistorizingNodeIdSettings."""

    _fields_ = [
        ("backend", _Backend),
        ("values_at_once", c_size_t),
        ("strategy", c_int),
        ("polling_interval", c_size_t),
        ("context", c_void_p),
    ]


_Register = CFUNCTYPE(c_uint32, c_void_p, c_void_p, POINTER(NodeId), _Settings)


class History:
    """The history of one server. Made when its configuration is read, before the server is."""

    def __init__(self, library: Library, configuration: Any) -> None:
        self._gathering = library.make("UA_HistoryDataGathering_Default", _Gathering, [c_size_t], NODES)
        backend = library.make("UA_HistoryDataBackend_Memory", _Backend, [c_size_t, c_size_t], NODES, VALUES)
        self._settings = _Settings(backend, VALUES_AT_ONCE, _VALUE_SET)
        database = library.make("UA_HistoryDatabase_default", _Database, [_Gathering], self._gathering)
        place = bytes(configuration).index(VALUES_MAX.to_bytes(4, "little")) - _AFTER
        _Database.from_buffer(configuration, place).pointers = database.pointers

    def keep(self, server: int, node: NodeId) -> None:
        """Keep what is written to a node."""
        register = _Register(self._gathering.pointers[2])
        status = register(server, self._gathering.pointers[0], pointer(node), self._settings)
        if status:
            raise OSError(f"no history: {status:#x}")

"""The part of libopen62541 that the server needs, through ctypes: types as open62541 lays them out in memory, and its
functions. 64-bit machines only, version 1.5."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable
from ctypes import (
    POINTER,
    Structure,
    Union,
    byref,
    c_bool,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_void_p,
    cast,
)
from pathlib import Path
from typing import Any, TypeVar

from hooks import Hooks

StructureT = TypeVar("StructureT", bound=Structure)

NUMERIC, STRING = 0, 3  # kinds of node ids
EPOCH_100NS = 116_444_736_000_000_000  # 1970 as an OPC UA time: 100 ns since 1601
VALUE_BYTES_MAX = 512  # of a decoded scalar; the largest built-in type has 80
CONFIGURATION_BYTES_MAX = 65_536  # of a UA_ServerConfig, whose fields are set by the library alone; it has some 2,000


class Text(Structure):
    """UA_String, and UA_ByteString."""

    _fields_ = [("length", c_size_t), ("data", c_char_p)]

    @classmethod
    def of(cls, text: str | bytes) -> Text:
        data = text.encode() if isinstance(text, str) else text
        return cls(len(data), data)


class _Identifier(Union):
    _fields_ = [("numeric", c_uint32), ("string", Text)]


class NodeId(Structure):
    """UA_NodeId."""

    _fields_ = [("namespace", c_uint16), ("kind", c_int), ("identifier", _Identifier)]

    @classmethod
    def of(cls, identifier: int | str, namespace: int = 0) -> NodeId:
        found = cls(namespace=namespace, kind=NUMERIC if isinstance(identifier, int) else STRING)
        if isinstance(identifier, int):
            found.identifier.numeric = identifier
        else:
            found.identifier.string = Text.of(identifier)
        return found


class QualifiedName(Structure):
    """UA_QualifiedName."""

    _fields_ = [("namespace", c_uint16), ("name", Text)]


class LocalizedText(Structure):
    """UA_LocalizedText."""

    _fields_ = [("locale", Text), ("text", Text)]


class Variant(Structure):
    """UA_Variant."""

    _fields_ = [
        ("type", c_void_p),
        ("storage", c_int),
        ("array_length", c_size_t),
        ("data", c_void_p),
        ("dimensions_size", c_size_t),
        ("dimensions", c_void_p),
    ]


class DataType(Structure):
    """The beginning of UA_DataType."""

    _fields_ = [("name", c_char_p), ("id", NodeId)]


class DataValue(Structure):
    """UA_DataValue; the last byte says which fields are there."""

    _fields_ = [
        ("value", Variant),
        ("source_time", c_int64),
        ("server_time", c_int64),
        ("source_picoseconds", c_uint16),
        ("server_picoseconds", c_uint16),
        ("status", c_uint32),
        ("has", c_uint8),
    ]


HAS_VALUE, HAS_STATUS, HAS_SOURCE_TIME = 1, 2, 4


class VariableAttributes(Structure):
    """UA_VariableAttributes."""

    _fields_ = [
        ("specified", c_uint32),
        ("display_name", LocalizedText),
        ("description", LocalizedText),
        ("write_mask", c_uint32),
        ("user_write_mask", c_uint32),
        ("value", Variant),
        ("data_type", NodeId),
        ("value_rank", c_int32),
        ("dimensions_size", c_size_t),
        ("dimensions", c_void_p),
        ("access_level", c_uint8),
        ("user_access_level", c_uint8),
        ("minimum_sampling_interval", c_double),
        ("historizing", c_bool),
    ]


FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "UA_ServerConfig_setDefaultWithSecurityPolicies": (
        c_uint32,
        [c_void_p, c_uint16, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_size_t],
    ),
    "UA_ServerConfig_updateFromFile": (c_uint32, [c_void_p, Text]),
    "UA_Server_newWithConfig": (c_void_p, [c_void_p]),
    "UA_Server_run_startup": (c_uint32, [c_void_p]),
    "UA_Server_run_iterate": (c_uint16, [c_void_p, c_bool]),
    "UA_Server_run_shutdown": (c_uint32, [c_void_p]),
    "UA_Server_addNamespace": (c_uint16, [c_void_p, c_char_p]),
    "UA_Server_addVariableNode": (
        c_uint32,
        [c_void_p, NodeId, NodeId, NodeId, QualifiedName, NodeId, VariableAttributes, c_void_p, c_void_p],
    ),
    "UA_Server_writeDataValue": (c_uint32, [c_void_p, NodeId, DataValue]),
    "UA_Server_deleteNode": (c_uint32, [c_void_p, NodeId, c_bool]),
    "UA_Server_createEvent": (
        c_uint32,
        [c_void_p, NodeId, NodeId, c_uint16, LocalizedText, c_void_p, c_void_p, c_void_p],
    ),
    "UA_findDataTypeByName": (c_void_p, [POINTER(QualifiedName)]),
    "UA_decodeJson": (c_uint32, [POINTER(Text), c_void_p, c_void_p, c_void_p]),
    "UA_StatusCode_name": (c_char_p, [c_uint32]),
}


class Library:
    """The library; a function that does not answer Good raises OSError with the status."""

    def __init__(self) -> None:
        folder = next(p for p in os.environ["PYTHONPATH"].split(os.pathsep) if p.endswith("open62541"))
        self._file = next(Path(folder).glob("o6/libopen62541.so.*"))
        self._library = ctypes.CDLL(str(self._file))
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments

    def hooks(self) -> Hooks:
        """Its functions, to be replaced."""
        return Hooks(self._library, self._file)

    def call(self, name: str, *arguments: Any) -> Any:
        """The result of a function; nothing where it is a status."""
        result = getattr(self._library, name)(*arguments)
        if FUNCTIONS[name][0] is not c_uint32:
            return result
        if result:
            raise OSError(f"{name}: {self._library.UA_StatusCode_name(result).decode()}")
        return None

    def new_server(
        self,
        port: int,
        certificate: bytes,
        key: bytes,
        trusted: list[bytes],
        configuration: dict[str, Any],
        complete: Callable[[Any], None],
    ) -> int:
        """A server with every security policy that trusts these clients; the rest is open62541's JSON configuration.
        `complete` is called with the memory of the whole."""
        memory = ctypes.create_string_buffer(CONFIGURATION_BYTES_MAX)
        trust_list = (Text * len(trusted))(*(Text.of(file) for file in trusted))
        self.call(
            "UA_ServerConfig_setDefaultWithSecurityPolicies",
            memory,
            port,
            byref(Text.of(certificate)),
            byref(Text.of(key)),
            trust_list,
            len(trusted),
            None,
            0,
            None,
            0,
        )
        self.call("UA_ServerConfig_updateFromFile", memory, Text.of(json.dumps(configuration)))
        complete(memory)
        return int(self.call("UA_Server_newWithConfig", memory))

    def make(self, name: str, result: type[StructureT], arguments: list[Any], *values: Any) -> StructureT:
        """What a function returns that gives a whole structure."""
        function = getattr(self._library, name)
        function.restype, function.argtypes = result, arguments
        found: StructureT = function(*values)
        return found

    def data_type(self, name: str) -> int:
        """The address of a data type."""
        found = self._library.UA_findDataTypeByName(byref(QualifiedName(0, Text.of(name))))
        if not found:
            raise ValueError(f"no data type is called {name}")
        return int(found)

    def variant(self, type_name: str, value: Any) -> tuple[Variant, Any]:
        """A variant of a JSON value, and what must live as long as it. Lists are of built-in types; a structure is an
        object."""
        kind = self.data_type(type_name)
        if isinstance(value, list):
            found = Variant()
            number = DataType.from_address(kind).id.identifier.numeric
            encoded = Text.of(json.dumps({"UaType": number, "Value": value}))
            self.call("UA_decodeJson", byref(encoded), byref(found), self.data_type("Variant"), None)
            return found, None
        memory = ctypes.create_string_buffer(VALUE_BYTES_MAX)
        encoded = Text.of(json.dumps(value))
        self.call("UA_decodeJson", byref(encoded), memory, kind, None)
        return Variant(type=kind, data=cast(memory, c_void_p)), memory

    def status(self, name: str) -> int:
        """The number of a status by its name."""
        if name not in STATUSES:
            raise ValueError(f"this server knows no status {name}; it knows {', '.join(STATUSES)}")
        return STATUSES[name]


STATUSES = {"Good": 0, "UncertainLastUsableValue": 0x4090_0000, "BadSensorFailure": 0x808C_0000}

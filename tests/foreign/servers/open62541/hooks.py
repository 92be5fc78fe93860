"""Functions of a loaded library replaced by ours: it calls its own exported functions through its table of symbols
(ELF), so an entry of that table that is overwritten changes what it calls. Little-endian 64-bit machines only.

It is how trouble is made that the library has no function for: its clock set, its answers held back.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

_FILE, _SECTION = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ")
_SYMBOL, _RELOCATION = struct.Struct("<IBBHQQ"), struct.Struct("<QQq")
_DYNAMIC_SYMBOLS, _RELOCATIONS = 11, 4  # kinds of sections


class Hooks:
    """The replaceable functions of one library, which must live as long as it."""

    def __init__(self, library: ctypes.CDLL, file: Path) -> None:
        self._library = library
        self._kept: list[Any] = []  # callbacks
        self._places: dict[str, list[int]] = {}  # of the entries of a symbol, in the file
        data = file.read_bytes()
        _, *_, table, _, _, _, _, size, count, _ = _FILE.unpack_from(data)
        sections = [_SECTION.unpack_from(data, table + n * size) for n in range(count)]
        (symbols,) = [section for section in sections if section[1] == _DYNAMIC_SYMBOLS]
        names_at = sections[symbols[6]][4]
        found = [_SYMBOL.unpack_from(data, at) for at in range(symbols[4], symbols[4] + symbols[5], _SYMBOL.size)]
        names = [data[names_at + symbol[0] : data.index(b"\0", names_at + symbol[0])].decode() for symbol in found]
        for section in (section for section in sections if section[1] == _RELOCATIONS):
            for at in range(section[4], section[4] + section[5], _RELOCATION.size):
                place, info, _ = _RELOCATION.unpack_from(data, at)
                self._places.setdefault(names[info >> 32], []).append(place)
        values = {name: symbol[4] for name, symbol in zip(names, found, strict=True) if symbol[4]}
        known = "UA_Server_newWithConfig"
        self._base = self._address(known) - values[known]

    def replace(self, name: str, kind: Any, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Have the library call what `make` returns for the original; `kind` is a CFUNCTYPE."""
        ours = kind(make(kind(self._address(name))))
        self._kept.append(ours)
        for place in self._places[name]:
            ctypes.c_void_p.from_address(self._base + place).value = ctypes.cast(ours, ctypes.c_void_p).value

    def _address(self, name: str) -> int:
        address = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value
        assert address is not None, name
        return address

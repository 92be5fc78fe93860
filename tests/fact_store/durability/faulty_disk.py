"""A disk that fails at the n-th operation: a VFS put under the real `sqlite3` module, by ctypes, in front of SQLite's
own.

Counts every write, sync, truncation and removal of a file opened through it, and fails the one it was armed with, once
or from then on. A write that fails has written its first half, in whole sectors: that is what a disk does that fills up
or dies. Only where a disk is full and the write would not have made the file longer, nothing is written: overwriting
takes no room. (Where it does, in a file system that copies on write, what was refused can come back after a power cut:
agent/fact_store/DESIGN.md.) No second SQLite is loaded, so nothing of the program under test is other than on a
gateway, its error codes included (ENOSPC is SQLITE_FULL for a write only; a sync fails as SQLITE_IOERR_FSYNC whatever
the kernel says).
"""

import _sqlite3
import ctypes
import functools
import sqlite3
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_void_p

from tests.fact_store.durability.faults import connect_with

NAME = "bsfg-faulty"
SECTOR = 512
OK, FULL = 0, 13
IOERR_WRITE, IOERR_FSYNC, IOERR_TRUNCATE, IOERR_DELETE = (10 | n << 8 for n in (3, 4, 6, 10))

_OPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
_DELETE = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)
_WRITE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_TRUNCATE = CFUNCTYPE(c_int, c_void_p, c_int64)
_SYNC = CFUNCTYPE(c_int, c_void_p, c_int)
_FILE_SIZE = CFUNCTYPE(c_int, c_void_p, POINTER(c_int64))


class _Methods(ctypes.Structure):
    """struct sqlite3_io_methods, version 3 (sqlite3.h)."""

    _fields_ = [
        ("version", c_int), ("close", c_void_p), ("read", c_void_p), ("write", _WRITE), ("truncate", _TRUNCATE), ("sync", _SYNC),
        ("file_size", _FILE_SIZE), ("others", c_void_p * 12),
    ]  # fmt: skip


class _Vfs(ctypes.Structure):
    """struct sqlite3_vfs, version 3 (sqlite3.h)."""

    _fields_ = [
        ("version", c_int), ("file_bytes", c_int), ("path_max", c_int), ("next", c_void_p), ("name", c_char_p), ("data", c_void_p),
        ("open", _OPEN), ("delete", _DELETE), ("others", c_void_p * 14),
    ]  # fmt: skip


def _library() -> ctypes.CDLL | None:
    """The SQLite that `sqlite3` uses, found through its extension module; None where it hides its functions."""
    for name in (getattr(_sqlite3, "__file__", None), None):
        library = ctypes.CDLL(name)
        if hasattr(library, "sqlite3_vfs_find"):
            return library
    return None


class FaultyDisk:
    """The VFS, registered as `bsfg-faulty` for as long as the interpreter lives: `the_disk` makes the only one."""

    def __init__(self) -> None:
        library = _library()
        assert library is not None, "this interpreter's sqlite3 does not show its library"
        library.sqlite3_vfs_find.restype = POINTER(_Vfs)
        library.sqlite3_libversion.restype = c_char_p
        assert library.sqlite3_libversion().decode() == sqlite3.sqlite_version
        self._real = library.sqlite3_vfs_find(None).contents
        self._methods: dict[int, _Methods] = {}  # kept for ever: open files point at them
        self._vfs = _Vfs.from_buffer_copy(self._real)
        self._vfs.name = self._name = NAME.encode()
        self._vfs.open, self._vfs.delete = self._open, self._delete = _OPEN(self._opened), _DELETE(self._deleted)
        assert library.sqlite3_vfs_register(ctypes.byref(self._vfs), 0) == OK
        self.count, self.at, self.is_for_ever, self.is_full, self.struck, self.last = 0, 0, False, False, "", ""
        self.only = ""

    def arm(self, at: int, *, for_ever: bool, full: bool, only: str = "") -> None:
        """Count from 0 again and fail operation `at` (0: none), and with `for_ever` all after it; `struck` and `last`
        say what failed first and last. With `only` other kinds neither count nor fail."""
        self.count, self.at, self.is_for_ever, self.is_full, self.struck, self.last = 0, at, for_ever, full, "", ""
        self.only = only

    def connect(self, pragmas: dict[str, str | int]) -> Callable[[str], sqlite3.Connection]:
        """A `Connect` for a store: the writer on this disk, with these pragmas instead of the store's own."""
        return connect_with(pragmas, vfs=NAME)

    def _strikes(self, what: str) -> bool:
        if self.only not in {"", what}:
            return False
        self.count += 1
        strikes = self.at and (self.count == self.at or (self.is_for_ever and self.count > self.at))
        if strikes:
            self.struck, self.last = self.struck or what, what
        return bool(strikes)

    def _opened(self, _: int, name: int, file: int, flags: int, out: int) -> int:
        code: int = self._real.open(ctypes.addressof(self._real), name, file, flags, out)
        pointer = c_void_p.from_address(file)  # the first field of every sqlite3_file
        if code == OK and pointer.value:
            if pointer.value not in self._methods:
                self._methods[pointer.value] = self._wrapped(_Methods.from_address(pointer.value))
            pointer.value = ctypes.addressof(self._methods[pointer.value])
        return code

    def _wrapped(self, real: _Methods) -> _Methods:
        def write(file: int, data: int, size: int, offset: int) -> int:
            if not self._strikes("write"):
                return int(real.write(file, data, size, offset))
            length = c_int64()
            real.file_size(file, ctypes.byref(length))
            if not self.is_full or offset + size > length.value:
                real.write(file, data, max(0, (offset + size // 2) // SECTOR * SECTOR - offset), offset)
            return FULL if self.is_full else IOERR_WRITE

        def truncate(file: int, size: int) -> int:
            return IOERR_TRUNCATE if self._strikes("truncate") else int(real.truncate(file, size))

        def sync(file: int, flags: int) -> int:
            return IOERR_FSYNC if self._strikes("sync") else int(real.sync(file, flags))

        found = _Methods.from_buffer_copy(real)
        found.write, found.truncate, found.sync = _WRITE(write), _TRUNCATE(truncate), _SYNC(sync)
        return found

    def _deleted(self, _: int, name: bytes, sync_folder: int) -> int:
        if self._strikes("delete"):
            return IOERR_DELETE
        return int(self._real.delete(ctypes.addressof(self._real), name, sync_folder))


@functools.cache
def the_disk() -> FaultyDisk | None:
    """The disk of this process, disarmed or as it was armed last; None where this interpreter hides its SQLite. Kept
    for ever, because SQLite keeps pointers to it."""
    return FaultyDisk() if _library() is not None else None

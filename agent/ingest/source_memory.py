"""Stores a small document for each source in a file below the node's state folder.

The documents are only hints: without one a source makes some more requests and loses no value. So errors are logged
instead of raised, and files are not synced.
"""

from __future__ import annotations

import logging
from pathlib import Path

LEARNED = "learned"  # the folder, inside the node's state folder
BYTES_MAX = 16 * 1024 * 1024

log = logging.getLogger(__name__)


class SourceMemory:
    """Satisfies MemoryPort."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, source: str) -> bytes | None:
        file = self._file(source)
        try:
            with file.open("rb") as opened:
                return opened.read(BYTES_MAX)  # a longer one is cut, and then refused as damaged
        except FileNotFoundError:
            return None
        except OSError as error:
            self._log("cannot be read", file, error)
            return None

    def save(self, source: str, document: bytes) -> None:
        file = self._file(source)
        new = file.with_suffix(".new")
        try:
            self._folder.mkdir(exist_ok=True)
            new.write_bytes(document)
            new.replace(file)
        except OSError as error:
            self._log("cannot be written", file, error)

    def _file(self, source: str) -> Path:
        return self._folder / f"{source}.json"

    def _log(self, what: str, file: Path, error: OSError) -> None:
        extra = {"action": "source_memory_failed", "file": str(file), "why": str(error)}
        log.warning("the saved document of a source %s", what, extra=extra)

"""The order in which code under test makes files durable: what it synced, and what it gave a name."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class DiskCalls:
    """Records each sync and each new name from here on; the calls are made all the same."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._calls: list[tuple[Path, Path | None]] = []  # what was synced, None; or the new name, and the old one
        sync = os.fsync

        def synced(descriptor: int) -> None:
            self._calls.append((Path(f"/proc/self/fd/{descriptor}").readlink(), None))
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", synced)
        for name in ("rename", "replace", "link"):
            monkeypatch.setattr(os, name, self._naming(getattr(os, name)))

    def _naming(self, call: Callable[..., None]) -> Callable[..., None]:
        def named(old: Any, new: Any) -> None:
            call(old, new)
            self._calls.append((Path(new).resolve(), Path(old).resolve()))

        return named

    def check_durable(self, file: Path, *, is_content_new: bool = True) -> None:
        """Fail unless `file` was synced before it got its name (where its content is new), and its folder afterwards:
        then a power cut leaves the whole file, or none of this name."""
        file, at = file.resolve(), self.position(file)
        if is_content_new:
            assert (self._calls[at][1], None) in self._calls[:at], f"{file} got its name unsynced: {self._calls}"
        assert (file.parent, None) in self._calls[at:], f"the name of {file} is not durable: {self._calls}"

    def check_synced(self, *paths: Path) -> None:
        """Fail unless each file or folder was synced."""
        missing = [path for path in paths if not self.is_synced(path)]
        assert not missing, f"not synced: {missing}"

    def is_synced(self, path: Path) -> bool:
        """Whether a file or folder was synced."""
        return (path.resolve(), None) in self._calls

    def position(self, file: Path) -> int:
        """The place of the last call that gave `file` its name."""
        found = [at for at, (path, old) in enumerate(self._calls) if path == file.resolve() and old is not None]
        assert found, f"{file} got no name: {self._calls}"
        return found[-1]

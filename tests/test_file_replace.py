"""A file that is replaced as a whole (agent/file_replace.py)."""

import os
from pathlib import Path

import pytest

from agent.file_replace import write_file


def test_a_file_without_a_group_needs_no_right_to_change_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unit's system call filter refuses fchown, even to the owner that a file has."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuse)
    write_file(tmp_path / "kept", b"settings")
    assert (tmp_path / "kept").read_bytes() == b"settings"
    with pytest.raises(PermissionError):
        write_file(tmp_path / "kept", b"other", group=os.getgid())
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]

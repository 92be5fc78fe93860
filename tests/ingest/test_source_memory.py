"""What sources have learned, in files."""

import logging
from pathlib import Path

import pytest

from agent.ingest.source_memory import SourceMemory


def test_what_is_saved_last_is_loaded(tmp_path: Path) -> None:
    """The folder is made when it is needed, and holds one file a source."""
    memory = SourceMemory(tmp_path / "learned")
    assert memory.load("meter") is None
    memory.save("meter", b"one")
    memory.save("meter", b"two")
    assert (memory.load("meter"), memory.load("other")) == (b"two", None)
    assert [file.name for file in (tmp_path / "learned").iterdir()] == ["meter.json"]


def test_a_folder_that_cannot_be_used_is_reported_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file in place of the folder, a folder in place of the file: a warning, and nothing remembered."""
    caplog.set_level(logging.WARNING)
    (tmp_path / "learned").write_text("not a folder")
    memory = SourceMemory(tmp_path / "learned")
    memory.save("meter", b"one")
    assert memory.load("meter") is None
    assert {record.action for record in caplog.records} == {"source_memory_failed"}  # type: ignore[attr-defined]

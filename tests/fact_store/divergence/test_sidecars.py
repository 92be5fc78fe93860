"""The small files beside a store: each replaced as a whole and durable, or left as it was."""

import errno
import json
import os
from pathlib import Path

import pytest

from agent.fact_store.divergence.quarantine import keep_log, mark_suspect, quarantine, quarantined_files, suspect_reason
from agent.fact_store.divergence.witness import (
    LiveWitness,
    Witness,
    read_json,
    read_witness,
    write_json,
    write_witness,
)
from tests.fact_store.making import TELEMETRY
from tests.support.disk_calls import DiskCalls

WITNESS = Witness(3, {TELEMETRY: 7})


def test_a_side_file_is_durable_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut leaves the old content or the new: the file is synced before it gets the name, and the name after."""
    path, calls = tmp_path / "facts.db", DiskCalls(monkeypatch)
    write_witness(path, WITNESS)
    mark_suspect(path, "bad page")
    for ending in (".witness", ".suspect"):
        calls.check_durable(tmp_path / f"facts.db{ending}")
    assert read_witness(path) == WITNESS
    assert suspect_reason(path) == "bad page"


def test_a_longer_draft_leaves_nothing_behind(tmp_path: Path) -> None:
    """A process that ended while it wrote has left a draft. A shorter file written over it keeps none of the draft's
    bytes."""
    file = tmp_path / "facts.db.suspect"
    (tmp_path / "facts.db.suspect.new").write_text("x" * 1000)
    write_json(file, {"why": "short"})
    assert json.loads(file.read_text()) == {"why": "short"}


def test_a_disk_that_takes_only_a_part_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short write raises no error in the system. The old file stays whole."""
    file, write = tmp_path / "facts.db.suspect", os.pwrite
    write_json(file, {"why": "old"})
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, at: write(descriptor, data[:5], at))
    write_json(file, {"why": "new"})
    assert read_json(file) == {"why": "old"}


def test_a_quarantine_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new names are on the disk before a new store begins under the old one; the files keep their content."""
    path = tmp_path / "facts.db"
    for part in ("", "-wal", "-shm", ".witness"):
        (tmp_path / f"facts.db{part}").write_text(f"content{part}")
    calls = DiskCalls(monkeypatch)
    target = quarantine(path, "bad page", 0)
    for part in ("", "-wal", "-shm", ".witness", ".why"):
        calls.check_durable(tmp_path / f"{target.name}{part}", is_content_new=False)
    assert (tmp_path / f"{target.name}-wal").read_text() == "content-wal"
    assert not list(tmp_path.glob("facts.db[-.]s*"))


def test_an_interrupted_quarantine_goes_on_under_its_name(tmp_path: Path) -> None:
    """The log was moved when the process ended: the database follows it, although the clock shows another time."""
    path = tmp_path / "facts.db"
    for part in ("", "-wal"):
        (tmp_path / f"facts.db{part}").write_text(f"content{part}")
    write_json(tmp_path / "facts.db.suspect", {"why": "bad page", "as": "facts.db.damaged-then"})
    (tmp_path / "facts.db-wal").rename(tmp_path / "facts.db.damaged-then-wal")
    assert quarantine(path, "another reason", 10**12).name == "facts.db.damaged-then"
    assert [(aside.file, aside.bytes, aside.why) for aside in quarantined_files(path)] == [
        ("facts.db.damaged-then", 18, "bad page")
    ]


def test_a_log_that_cannot_be_kept_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a copy would take the room that opening needs; the reason is kept all the same."""
    (tmp_path / "facts.db-wal").write_text("log")

    def full(_source: Path, target: Path) -> None:
        target.write_text("l")
        raise OSError(28, "no space left")

    monkeypatch.setattr("shutil.copyfile", full)
    assert keep_log(tmp_path / "facts.db", "its end is gone", 0, 1) == "its end is gone"
    assert [path.name for path in tmp_path.iterdir() if "damaged" in path.name] == [
        "facts.db.damaged-19700101T000000Z.why"
    ]


def test_a_witness_that_could_not_be_replaced_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk refuses the witness of an opening. Nothing is written into the file of the one before."""
    path = tmp_path / "facts.db"
    write_witness(path, WITNESS)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", refuse)
        live = LiveWitness(path, 4, {TELEMETRY: 9}, None)
    live.record({TELEMETRY: 11, "facts.other": 2})
    live.close()
    assert read_witness(path) == WITNESS

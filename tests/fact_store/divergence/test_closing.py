"""How a store is closed, and the files beside it."""

import errno
import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from agent.errors import StoreError
from agent.fact_store import FactStore, StoreReader
from agent.fact_store.core.errors import StoreForeign, StoreLocked, StoreMissing, StoreUnusable
from agent.fact_store.divergence import scrubber
from agent.fact_store.divergence.quarantine import keep_log, mark_suspect, quarantine, quarantined_files, suspect_reason
from agent.fact_store.divergence.witness import (
    LiveWitness,
    WitnessedEnds,
    read_json,
    read_witness,
    write_json,
    write_witness,
)
from tests.fact_store.making import TELEMETRY, done, samples, tag, unattended
from tests.support.disk_calls import DiskCalls
from tests.waiting import wait_until

WITNESS = WitnessedEnds(3, {TELEMETRY: 7})


def fill(store: FactStore) -> None:
    """A few samples, read once."""
    done(store.appends.define([tag(1)]))
    done(store.appends.append_samples(TELEMETRY, samples(3)))
    store.reader.read(TELEMETRY, 0, 10, 1000)


def descriptors() -> dict[str, str]:
    """The open files of this process that belong to a store."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found[link.name] = str(link.readlink())
    return {number: path for number, path in found.items() if "facts.db" in path}


@contextmanager
def leaves_nothing() -> Iterator[None]:
    """Fail if descriptors or threads are left that were not there before."""
    files, threads = descriptors(), set(threading.enumerate())
    yield
    assert {number: path for number, path in descriptors().items() if number not in files} == {}
    assert {thread.name for thread in set(threading.enumerate()) - threads} == set()


def test_a_closed_store_has_nothing_open(tmp_path: Path) -> None:
    """A closed store keeps no file and no thread open, so a process may open and close stores without end."""
    with leaves_nothing(), unattended(tmp_path) as store:
        fill(store)
    with leaves_nothing(), unattended(tmp_path) as store:
        fill(store)


def test_a_refused_opening_has_nothing_open(tmp_path: Path) -> None:
    """A refused opening keeps nothing open, whatever the reason. Programs try again, some each second."""
    with unattended(tmp_path) as store:
        fill(store)
        with leaves_nothing(), pytest.raises(StoreLocked):
            unattended(tmp_path)
    (tmp_path / "none").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "facts.db").write_bytes(b"")

    def refused(folder: str, zone: str, error: type[StoreError]) -> None:
        with leaves_nothing(), pytest.raises(error):
            unattended(tmp_path / folder, zone)

    (tmp_path / "other").mkdir()
    with closing(sqlite3.connect(tmp_path / "other" / "facts.db")) as other:
        other.execute("CREATE TABLE notes (text)")
    refused("", "idmz", StoreForeign)
    refused("other", "plant", StoreForeign)
    refused("missing", "plant", StoreMissing)
    with leaves_nothing(), pytest.raises(StoreUnusable):
        StoreReader(tmp_path / "foreign" / "facts.db")
    with unattended(tmp_path) as store:
        assert store.end_offset(TELEMETRY) == 3


def test_closing_syncs_the_witness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An orderly stop leaves nothing to the kernel: after a power cut an older copy of the store is still
    recognised."""
    with unattended(tmp_path) as store:
        calls = DiskCalls(monkeypatch)
        fill(store)
    calls.check_synced(tmp_path / "facts.db.witness")


def test_the_witness_is_synced_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the store runs, too."""
    monkeypatch.setattr(scrubber, "STEP_S", 0.01)
    monkeypatch.setattr(scrubber, "WITNESS_S", 0.02)
    with unattended(tmp_path) as store:
        calls = DiskCalls(monkeypatch)
        fill(store)
        wait_until(lambda: calls.is_synced(tmp_path / "facts.db.witness"), "the witness to be synced")


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

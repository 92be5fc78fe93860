"""A store that was closed, or could not be opened, leaves nothing open or running, and everything is synced."""

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
from tests.fact_store.making import AT_ONCE, TELEMETRY, done, samples, tag
from tests.support.disk_calls import DiskCalls
from tests.waiting import wait_until


def node(folder: Path, zone: str = "plant") -> FactStore:
    """A store as a node opens it."""
    return FactStore.open(folder / "facts.db", zone, settings=AT_ONCE, unattended=True)


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
    with leaves_nothing(), node(tmp_path) as store:
        fill(store)
    with leaves_nothing(), node(tmp_path) as store:
        fill(store)


def test_a_refused_opening_has_nothing_open(tmp_path: Path) -> None:
    """A refused opening keeps nothing open, whatever the reason. Programs try again, some each second."""
    with node(tmp_path) as store:
        fill(store)
        with leaves_nothing(), pytest.raises(StoreLocked):
            node(tmp_path)
    (tmp_path / "none").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "facts.db").write_bytes(b"")

    def refused(folder: str, zone: str, error: type[StoreError]) -> None:
        with leaves_nothing(), pytest.raises(error):
            node(tmp_path / folder, zone)

    (tmp_path / "other").mkdir()
    with closing(sqlite3.connect(tmp_path / "other" / "facts.db")) as other:
        other.execute("CREATE TABLE notes (text)")
    refused("", "idmz", StoreForeign)
    refused("other", "plant", StoreForeign)
    refused("missing", "plant", StoreMissing)
    with leaves_nothing(), pytest.raises(StoreUnusable):
        StoreReader(tmp_path / "foreign" / "facts.db")
    with node(tmp_path) as store:
        assert store.end_offset(TELEMETRY) == 3


def test_closing_syncs_the_witness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An orderly stop leaves nothing to the kernel: after a power cut an older copy of the store is still
    recognised."""
    with node(tmp_path) as store:
        calls = DiskCalls(monkeypatch)
        fill(store)
    calls.check_synced(tmp_path / "facts.db.witness")


def test_the_witness_is_synced_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the store runs, too."""
    monkeypatch.setattr(scrubber, "STEP_S", 0.01)
    monkeypatch.setattr(scrubber, "WITNESS_S", 0.02)
    with node(tmp_path) as store:
        calls = DiskCalls(monkeypatch)
        fill(store)
        wait_until(lambda: calls.is_synced(tmp_path / "facts.db.witness"), "the witness to be synced")

"""Zones with health in a real store, and the page over it in this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.columns import SampleColumns
from agent.fact_store import FactStore
from agent.health.samples import health_samples
from agent.health.snapshot import NodeSnapshot
from agent.health.verdict import assess
from agent.message import HEALTH_STREAM
from tests.health.conftest import NOW_MS, healthy

__all__ = ["healthy"]


def record_health(store: FactStore, snapshot: NodeSnapshot) -> None:
    """Append the health of a snapshot as its node would."""
    samples = health_samples(snapshot, assess(snapshot))
    numbers = store.appends.define([one.definition for one in samples]).result()
    columns = SampleColumns(
        numbers,
        [snapshot.taken_unix_ms * 1_000_000] * len(samples),
        [one.value for one in samples],
        [one.quality for one in samples],
    )
    store.appends.append_columns(HEALTH_STREAM, columns).result()


@contextmanager
def store_with(folder: Path, *snapshots: NodeSnapshot) -> Iterator[FactStore]:
    """A store that holds the health of its own zone at some moments."""
    (folder / "state").mkdir(exist_ok=True)
    with FactStore.open(folder / "state" / "facts.db", snapshots[0].zone) as store:
        for snapshot in snapshots:
            record_health(store, snapshot)
        yield store


def at(snapshot: NodeSnapshot, ms: int, **changed: Any) -> NodeSnapshot:
    """The snapshot at another time."""
    return replace(snapshot, taken_unix_ms=NOW_MS + ms, **changed)

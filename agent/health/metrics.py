"""Core: a snapshot as Prometheus metrics, under the names that the fields of its records declare (`snapshot.py`).

Each scrape takes a snapshot and renders it with a new registry, so nothing is kept here and nothing is counted twice.
The library's process metrics are left out: under the unit's ProcSubset=pid half of them cannot be read, and systemd has
the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from itertools import accumulate
from typing import Any, get_type_hints

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from agent.health.problems import Level
from agent.health.snapshot import Counter, Gauge, Histogram, Label, Latency, NodeSnapshot
from agent.health.verdict import assess

CONTENT_TYPE = CONTENT_TYPE_LATEST


def render(snapshot: NodeSnapshot) -> bytes:
    """The snapshot in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape(snapshot))
    return generate_latest(registry)


class _Scrape(Collector):
    """One snapshot, in the form in which the library takes metrics."""

    def __init__(self, snapshot: NodeSnapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        return families(self._snapshot)


def families(snapshot: NodeSnapshot) -> Iterable[Metric]:
    """Every metric of which the snapshot has a value."""
    verdict = assess(snapshot)
    found = _Families()
    found.add(Gauge("bsfg_node_info", "Zone and store epoch."), 1, {"zone": snapshot.zone, "epoch": snapshot.epoch})
    for level in Level:
        is_level = Gauge("bsfg_node_verdict", "1 for the current verdict.")
        found.add(is_level, level is verdict.level, {"verdict": level.value})
    found.add(Gauge("bsfg_node_alert", "1 when an operator must act."), verdict.alert, {})
    found.add_record(snapshot, {})
    return found.by_name.values()


class _Families:
    """The metrics of one scrape, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Metric] = {}
        self._shared = set[tuple[str, ...]]()

    def add_record(self, record: Any, labels: Mapping[str, str]) -> None:
        """The metrics of all fields of a record and of the records in it."""
        marked = _marks(record.__class__)
        labels = {**labels, **{mark.name: getattr(record, name) for name, mark in marked if isinstance(mark, Label)}}
        for name, mark in marked:
            value = getattr(record, name)
            if isinstance(mark, Gauge | Histogram):
                self.add(mark, value, labels)
            elif mark is None:
                for inner in value if isinstance(value, tuple) else (value,):
                    if is_dataclass(inner):
                        self.add_record(inner, labels)

    def add(self, mark: Gauge | Histogram, value: Any, labels: Mapping[str, str]) -> None:
        """One value. None, an unknown value, has no sample, rather than one of 0."""
        if value is None:
            return
        kind = type(mark).__name__.lower()
        family = self.by_name.setdefault(mark.name, Metric(mark.name.removesuffix("_total"), mark.help, kind))
        if isinstance(mark, Histogram):
            for bound, count in zip((*value.bounds_s, "+Inf"), accumulate(value.counts), strict=True):
                family.add_sample(f"{mark.name}_bucket", {**labels, "le": str(bound)}, count)
            family.add_sample(f"{mark.name}_count", dict(labels), value.count)
            family.add_sample(f"{mark.name}_sum", dict(labels), value.sum_s)
        elif isinstance(mark, Counter) and mark.key:
            for key, count in sorted(value.items()):
                family.add_sample(mark.name, {**labels, mark.key: key}, count)
        elif isinstance(mark, Counter) and mark.event:
            family.add_sample(mark.name, {**labels, "event": mark.event}, _number(value))
        elif mark.labels is None:
            family.add_sample(mark.name, dict(labels), _number(value) / mark.divisor)
        elif (shared := (mark.name, *(labels[name] for name in mark.labels))) not in self._shared:
            self._shared.add(shared)  # several records have this value in common
            family.add_sample(mark.name, {name: labels[name] for name in mark.labels}, _number(value))


@functools.cache
def _marks(kind: Any) -> tuple[tuple[str, Label | Gauge | Histogram | None], ...]:
    """Each field of a record with each of its marks; None for a field without any."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        (field.name, mark) for field in fields(kind) for mark in getattr(hints[field.name], "__metadata__", (None,))
    )


def _number(value: float | str | Latency) -> float:
    if isinstance(value, Latency):
        return value.count
    return float(bool(value) if isinstance(value, str) else value)

"""Core: a snapshot as Prometheus metrics, under the names that the fields of its records declare (`snapshot.py`).

Each scrape takes a snapshot and renders it with a new registry, so nothing is kept here and nothing is counted twice.
The library's process metrics are left out: under the unit's ProcSubset=pid half of them cannot be read, and systemd has
the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from agent.health.problems import Level
from agent.health.snapshot import ROLES, Counter, Gauge, Histogram, Label, Latency, NodeSnapshot, marks
from agent.health.verdict import assess

CONTENT_TYPE = CONTENT_TYPE_LATEST


def render(snapshot: NodeSnapshot | None, zones: Sequence[Any] = ()) -> bytes:
    """The snapshot, or that the node is silent, and the rows of the fleet (`agent.page.fleet`) in Prometheus' text
    format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape(snapshot, zones))
    return generate_latest(registry)


class _Scrape(Collector):
    """One snapshot, in the form in which the library takes metrics."""

    def __init__(self, snapshot: NodeSnapshot | None, zones: Sequence[Any]) -> None:
        self._snapshot, self._zones = snapshot, zones

    def collect(self) -> Iterable[Metric]:
        return families(self._snapshot, self._zones)


def families(snapshot: NodeSnapshot | None, zones: Sequence[Any] = ()) -> Iterable[Metric]:
    """Every metric of which there is a value."""
    found = _Families()
    found.add(Gauge("bsfg_node_up", "1 while the node answers."), snapshot is not None, {})
    if snapshot is not None:
        verdict = assess(snapshot)
        found.add(
            Gauge("bsfg_node_info", "Zone, name and life of the process."),
            1,
            {"zone": snapshot.zone, "node": snapshot.name, "life": snapshot.life},
        )
        for level in Level:
            is_level = Gauge("bsfg_node_verdict", "1 for the current verdict.")
            found.add(is_level, level is verdict.level, {"verdict": level.value})
        found.add(Gauge("bsfg_node_alert", "1 when an operator must act."), verdict.alert, {})
        for role in ROLES if snapshot.pair else ():
            is_role = Gauge("bsfg_pair_role", "1 for the role of this gateway of two that record for one zone.")
            found.add(is_role, snapshot.pair is not None and role == snapshot.pair.role, {"role": role})
        found.add_record(snapshot, {})
    for row in zones:
        for level in Level:
            is_level = Gauge("bsfg_zone_verdict", "1 for the verdict on the zone, as its health here shows it.")
            found.add(is_level, level is row.level, {"zone": row.zone, "verdict": level.value})
        found.add_record(row, {})
    return found.by_name.values()


class _Families:
    """The metrics of one scrape, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Metric] = {}
        self._shared = set[tuple[str, ...]]()

    def add_record(self, record: Any, labels: Mapping[str, str]) -> None:
        """The metrics of all fields of a record and of the records in it."""
        marked = marks(record.__class__)
        named = ((mark.name, name) for name, found in marked.items() for mark in found if isinstance(mark, Label))
        labels = {**labels, **{label: getattr(record, name) for label, name in named}}
        for name, found in marked.items():
            value = getattr(record, name)
            for mark in found:
                if isinstance(mark, Gauge | Histogram):
                    self.add(mark, value, labels)
            if not found:
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


def _number(value: float | str | Latency) -> float:
    if isinstance(value, Latency):
        return value.count
    return float(bool(value) if isinstance(value, str) else value)

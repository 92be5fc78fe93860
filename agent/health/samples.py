"""Core: the health of a node as samples of its source `bsfg`, so that health is stored, pulled, queried and drawn like
any other value.

`health_samples` makes them from a snapshot and its verdict: each field marked `Sampled` (`snapshot.py`) is a tag, named
by its place: `bsfg/store/hours_until_full`, `bsfg/source/<name>/tags_bad`. An unknown value is recorded as "no data",
and not left out, so that no older value passes for the present one. `read_health` turns them back into values by path.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any
from urllib.parse import quote

import msgspec

from agent.health.brief import counts_of, worst_of
from agent.health.problems import RANK, Level
from agent.health.snapshot import Gauge, Label, NodeSnapshot, Sampled, marks
from agent.health.verdict import Verdict
from agent.message import HEALTH_PREFIX, HEALTH_SOURCE, Json, TagDefinition, Value

GOOD, GOOD_NO_DATA = 0, 0x00A5_0000
PARTS_MAX = 50
"""Of each kind: sources, peers, consumers. A node above a thousand others records the worst of its peers."""
REASONS_MAX = 10
VERDICT = TagDefinition(
    f"{HEALTH_PREFIX}verdict",
    source=HEALTH_SOURCE,
    description="The state of the node; reasons says why and what to do.",
    enumeration="|".join(f"{rank}={level.value}" for level, rank in RANK.items()),
)
_FOLDERS = {
    "StreamStatus": "stream",
    "ConsumerStatus": "consumer",
    "BrokerStatus": "broker",
    "ClockChangeStatus": "clock",
    "PeerStatus": "peer",
    "SourceStatus": "source",
    "StoreStatus": "store",
    "PairSnapshot": "pair",
}


@dataclass(frozen=True, slots=True)
class HealthSample:
    """A tag and its value now."""

    definition: TagDefinition
    value: Value

    @property
    def quality(self) -> int:
        """The OPC UA status of the value."""
        return GOOD_NO_DATA if self.value is None else GOOD


def health_samples(snapshot: NodeSnapshot, verdict: Verdict) -> list[HealthSample]:
    """All tags, the verdict first."""
    reasons = [reason.to_json() for reason in verdict.reasons[:REASONS_MAX]]
    judged: tuple[tuple[str, str, Value], ...] = (
        ("alert", "1 when an operator must act.", verdict.alert),
        ("summary", "The worst problem in words.", verdict.summary()),
        ("since_unix_ms", "Since when the verdict is this.", verdict.since_unix_ms),
        ("reasons", "The problems, worst first, with what to do.", Json.of(reasons)),
    )
    found = [HealthSample(VERDICT, RANK[verdict.level])]
    found += [
        HealthSample(_definition(name, "", meaning), value)
        for name, meaning, value in (*judged, *_left_out(snapshot, verdict))
    ]
    found += _of_record(worst_of(snapshot, verdict, PARTS_MAX), "")
    return found


def _left_out(snapshot: NodeSnapshot, verdict: Verdict) -> Iterator[tuple[str, str, Value]]:
    """What there is beyond the parts and reasons that are recorded, so that nobody takes the worst for all."""
    counts = counts_of(snapshot)
    for kind in ("sources", "peers"):
        if counts[kind] > PARTS_MAX:
            yield f"counts/{kind}", f"How many {kind} there are.", counts[kind]
            yield f"counts/{kind}_connected", f"How many {kind} are connected.", counts[f"{kind}_connected"]
    if len(verdict.reasons) > REASONS_MAX:
        yield "reasons_left_out", "How many more problems there are.", len(verdict.reasons) - REASONS_MAX


def _of_record(record: Any, folder: str) -> Iterator[HealthSample]:
    """The marked fields of a record and of the records in it."""
    for name, found in marks(record.__class__).items():
        value = getattr(record, name)
        sampled = next((mark for mark in found if isinstance(mark, Sampled)), None)
        if sampled is not None:
            meaning = sampled.meaning or next(mark.help for mark in found if isinstance(mark, Gauge))
            yield HealthSample(_definition(folder + name, sampled.unit, meaning), value)
        elif not found:
            for inner in value if isinstance(value, tuple) else (value,):
                if is_dataclass(inner) and (kind := _FOLDERS.get(inner.__class__.__name__)):
                    yield from _of_record(inner, f"{kind}/{_name_of(inner)}")


def _name_of(record: Any) -> str:
    """The labels by which a record differs from others of its kind, as folders: the name, and the stream of a peer."""
    labels = [name for name, found in marks(record.__class__).items() if any(isinstance(mark, Label) for mark in found)]
    if "name" in labels:
        labels = ["name"]
    return "".join(f"{quote(getattr(record, name), safe='')}/" for name in labels)


def _definition(path: str, unit: str, meaning: str) -> TagDefinition:
    return TagDefinition(HEALTH_PREFIX + path, unit=unit, source=HEALTH_SOURCE, description=meaning)


def level_of(rank: object) -> Level | None:
    """The level that a value of the tag `verdict` means; None for a value that means none."""
    return next((level for level, known in RANK.items() if known == rank), None)


def folders(values: Mapping[str, Any], kind: str) -> Iterable[tuple[tuple[str, ...], dict[str, Any]]]:
    """The parts of one kind in values by path: the names of each, and its values by field."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for path, value in values.items():
        if path.startswith(kind):  # few do, and a fleet asks for three kinds of a thousand zones
            first, *names, name = path.split("/")
            if first == kind and names:
                found.setdefault(tuple(names), {})[name] = value
    return found.items()


def read_health(facts: Iterable[tuple[str | None, int, Value]]) -> tuple[int, dict[str, Any]]:
    """The newest moment among samples (subject, source time, value), and its values by path."""
    at_ns, values = 0, dict[str, Any]()
    for subject, time_ns, value in facts:
        if subject is None or not subject.startswith(HEALTH_PREFIX) or time_ns < at_ns:
            continue
        if time_ns > at_ns:  # a batch may hold two moments; the later one alone is the present state
            at_ns, values = time_ns, {}
        # Nodes have the same paths: above a thousand of them, each path is kept once.
        values[sys.intern(subject.removeprefix(HEALTH_PREFIX))] = plain(value)
    return at_ns, values


def plain(value: object) -> Any:
    """A value of a sample as it is shown."""
    return msgspec.json.decode(value.data) if isinstance(value, Json) else value

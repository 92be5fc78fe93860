"""Core: a status that fits a screen, whatever the number of peers: the worst parts of each kind, and counts of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from heapq import nsmallest
from typing import Any, TypeVar

import msgspec

from agent.health.problems import Level
from agent.health.snapshot import NodeSnapshot, PairSnapshot
from agent.health.verdict import Verdict

SHOWN_MAX = 10
"""Parts of a kind, and reasons. What is wrong with more of them usually has one cause, which comes first."""

OPTIONAL = ("pair", "zones_accepted")
"""Values of a node that a brief status has no line for if they are absent."""

_T = TypeVar("_T")


def counts_of(snapshot: NodeSnapshot) -> dict[str, int]:
    """How many parts of each kind there are, and how many of them are as they should be."""
    return {
        "streams": len(snapshot.streams),
        "consumers": len(snapshot.consumers),
        "consumers_level": sum(not consumer.behind_facts for consumer in snapshot.consumers),
        "peers": len(snapshot.peers),
        "peers_connected": sum(peer.connected for peer in snapshot.peers),
        "sources": len(snapshot.sources),
        "sources_connected": sum(source.connected for source in snapshot.sources),
    }


def worst_of(snapshot: NodeSnapshot, verdict: Verdict, shown_max: int = SHOWN_MAX) -> NodeSnapshot:
    """The snapshot with the worst parts of each kind only: those with the first reasons, then those most behind."""
    levels = (level.value for level in Level)
    listed = {*levels, *(reason.key for reason in verdict.reasons[:shown_max])}
    places = dict[str, int]()
    for place, reason in enumerate(verdict.reasons):
        places.setdefault(reason.subject, place)
    worst = partial(_worst, shown_max)
    return replace(
        snapshot,
        streams=worst(snapshot.streams, lambda stream: -stream.bytes),
        consumers=worst(
            snapshot.consumers,
            lambda consumer: -consumer.behind_facts,
            places,
            lambda consumer: f"consumer {consumer.name}",
        ),
        brokers=tuple(replace(broker, zones=broker.zones[:shown_max]) for broker in snapshot.brokers),
        broker_abuses=snapshot.broker_abuses[:shown_max],
        peers=worst(
            snapshot.peers,
            lambda peer: peer.position - peer.end_offset,
            places,
            lambda peer: peer.subject,
        ),
        sources=worst(
            snapshot.sources, lambda source: -source.errors_total, places, lambda source: f"source {source.name}"
        ),
        store=replace(
            snapshot.store,
            artifact_unreferenced=worst(snapshot.store.artifact_unreferenced, lambda unreferenced: -unreferenced.bytes),
            shares_used_up=snapshot.store.shares_used_up[:shown_max],
        ),
        clock_changes=snapshot.clock_changes[:shown_max],
        history=snapshot.history[:shown_max],
        since={key: since for key, since in snapshot.since.items() if key in listed},
        zones_accepted=None,
    )


def _worst(
    shown_max: int,
    parts: Sequence[_T],
    order: Callable[[_T], float],
    places: Mapping[str, int] | None = None,
    subject: Callable[[_T], str] = str,
) -> tuple[_T, ...]:
    """The first parts by the place of their first reason, then by `order`; all, in their order, if no more
    are there."""
    if len(parts) <= shown_max:
        return tuple(parts)
    ranked = places or {}
    return tuple(nsmallest(shown_max, parts, lambda part: (ranked.get(subject(part), len(ranked)), order(part))))


def encode_health(snapshot: NodeSnapshot, verdict: Verdict, *, everything: bool = False) -> bytes:
    """The status as JSON: the verdict, then the snapshot; of many parts of a kind the worst, unless `everything` is
    asked for."""
    shown = snapshot if everything else worst_of(snapshot, verdict)
    return msgspec.json.encode(_judged(snapshot, verdict, everything=everything) | _values(shown))


def encode_brief(snapshot: NodeSnapshot, verdict: Verdict) -> bytes:
    """The verdict and the first reasons as JSON of one screen, whatever the number of parts: a line for each, and for
    each value of the node itself."""
    judged = _judged(snapshot, verdict, everything=False)
    reasons = [msgspec.json.encode(reason) for reason in judged.pop("reasons")]
    values = _values(snapshot)
    values = {name: value for name, value in values.items() if value is not None or name not in OPTIONAL}
    judged |= {
        name: value for name, value in values.items() if isinstance(value, str | int | float | None | PairSnapshot)
    }
    lines = [msgspec.json.encode(name) + b": " + msgspec.json.encode(value) for name, value in judged.items()]
    lines.append(b'"reasons": [' + b",".join(b"\n  " + reason for reason in reasons) + b"]")
    return b"{\n " + b",\n ".join(lines) + b"\n}\n"


def _judged(snapshot: NodeSnapshot, verdict: Verdict, *, everything: bool) -> dict[str, Any]:
    shown_max = len(verdict.reasons) if everything else SHOWN_MAX
    left_out = Counter(reason.problem.name.lower() for reason in verdict.reasons[shown_max:])
    return {
        "verdict": verdict.level.value,
        "alert": verdict.alert,
        "summary": verdict.summary(),
        "counts": counts_of(snapshot),
        "reasons": [reason.to_json() for reason in verdict.reasons[:shown_max]],
        "reasons_left_out": dict(left_out),
    }


def _values(snapshot: NodeSnapshot) -> dict[str, Any]:
    return {name: getattr(snapshot, name) for name in snapshot.__dataclass_fields__}

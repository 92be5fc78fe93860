"""Core: a status that fits a screen, whatever the number of peers: the worst parts of each kind, and counts of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from heapq import nsmallest
from typing import TypeVar

import msgspec

from agent.health.problems import Level
from agent.health.snapshot import NodeSnapshot
from agent.health.verdict import Verdict

SHOWN_MAX = 10
"""Parts of a kind, and reasons. What is wrong with more of them usually has one cause, which comes first."""

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


def left_out(verdict: Verdict) -> dict[str, int]:
    """How many reasons beyond the first ones there are, by problem."""
    return dict(Counter(reason.problem.name.lower() for reason in verdict.reasons[SHOWN_MAX:]))


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
    reasons = verdict.reasons if everything else verdict.reasons[:SHOWN_MAX]
    judged = {
        "verdict": verdict.level.value,
        "alert": verdict.alert,
        "summary": verdict.summary(),
        "reasons": [reason.to_json() for reason in reasons],
        "reasons_left_out": {} if everything else left_out(verdict),
        "counts": counts_of(snapshot),
    }
    shown = snapshot if everything else worst_of(snapshot, verdict)
    body = msgspec.json.encode(judged | {name: getattr(shown, name) for name in shown.__dataclass_fields__})
    return msgspec.json.format(body, indent=1)

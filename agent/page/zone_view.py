"""Core: what a zone's page shows, from its health: one sentence, what needs a hand, where facts go, and its parts,
worst first. The node's own page and that of a zone below come from the same values by the same rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from agent.health.problems import Level, duration
from agent.health.samples import folders
from agent.health.snapshot import STANDBY
from agent.message import LOCAL_ZONE
from agent.page import words
from agent.page.fleet import ZoneRow, told, zone_row
from agent.page.health_tail import ZoneHealth

Part = dict[str, Any]
STATES = ("flowing", "waiting", "cut")
WAITING_S, CUT_S = 5.0, 60.0
"""A consumer that has confirmed nothing for so long is cut off, or has stopped."""
DEAD = "the node does not answer"
DEAD_HINT = "systemctl status bsfg@{zone}; journalctl -u bsfg@{zone} -n 50; what it recorded before is below"


@dataclass(frozen=True, slots=True)
class Arrow:
    """A link to another zone. `state`: flowing, waiting or cut; `title`: the stream that is worst."""

    zone: str
    state: str
    text: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class ZoneView:
    """The page of a zone, or of one of its two gateways. `plant`: the zone of its facts; `node`: whose health it is."""

    row: ZoneRow
    plant: str
    node: str
    sentence: str
    more: str
    reasons: list[Part]
    below: list[Arrow]
    above: list[Arrow]
    sources: list[Part]
    consumers: list[Part]
    streams: list[Part]
    brokers: list[Part]
    clocks: list[Part]
    values: dict[str, Any]
    totals: dict[str, tuple[float, float]]
    """How many sources and peers there are, and how many are connected; the lists have the worst."""


def node_row(health: ZoneHealth, now_unix_ms: int, *, dead_since_ms: int | None = None) -> ZoneRow:
    """The row of a node. `dead_since_ms`: it is the node of this machine and does not answer."""
    row = zone_row(health, now_unix_ms)
    if dead_since_ms is not None:
        what = f"{DEAD} for {words.age((now_unix_ms - dead_since_ms) / 1000)}"
        hint = DEAD_HINT.format(zone=health.zone)
        alerts = (("dead", what, hint), *row.alerts)
        row = replace(
            row, level=Level.BROKEN, alert=True, since_unix_ms=dead_since_ms, what=what, hint=hint, alerts=alerts
        )
    return row


def zone_view(health: ZoneHealth, row: ZoneRow, plant: str = "") -> ZoneView:
    """The page of a row, from the health behind it. `plant`: the zone of its facts, if the row is not its."""
    found = health.values
    parts = {kind: _parts(found, kind) for kind in ("source", "consumer", "stream", "broker", "peer", "clock")}
    sources = sorted(parts["source"], key=lambda source: (-_badness(source), source["name"]))
    consumers = sorted(
        parts["consumer"], key=lambda consumer: (-(words.number(consumer.get("behind_facts")) or 0), consumer["name"])
    )
    reasons = words.entries(found.get("reasons"))
    if row.what != told(reasons):  # the first thing to do is not in the zone's own list
        head = {
            "subject": "node" if row.what.startswith(DEAD) else "gateway" if row.gateways else "health",
            "text": row.what,
            "hint": row.hint,
            "alert": row.alert,
        }
        reasons = [head | {"since_unix_ms": row.since_unix_ms, "level": row.level.value}, *reasons]
    totals = {kind: _total(found, kind, parts) for kind, parts in (("sources", sources), ("peers", parts["peer"]))}
    return ZoneView(
        row,
        plant or row.zone,
        health.zone,
        _sentence(row, f"Gateway {row.zone} of {plant}" if plant and row.gateways else row.zone),
        _more(sources, totals, consumers, row.hold_hours, words.number(found.get("store_fill_percent"))),
        reasons,
        below=_links(parts["peer"], "lag_seconds", _pull),
        above=_links(consumers, "oldest_unconfirmed_age_s", _consumer),
        sources=[source | {"level": _level_of(source)} for source in sources],
        consumers=consumers,
        streams=sorted(parts["stream"], key=lambda stream: stream["name"]),
        brokers=parts["broker"],
        clocks=parts["clock"],
        values=found,
        totals=totals,
    )


def _total(found: dict[str, Any], kind: str, parts: list[Part]) -> tuple[float, float]:
    total, up = words.number(found.get(f"counts/{kind}")), words.number(found.get(f"counts/{kind}_connected"))
    if total is None or up is None:
        return len(parts), sum(part.get("connected") is True for part in parts)
    return total, up


def _sentence(row: ZoneRow, name: str) -> str:
    what = row.what.partition(". ")[0]  # a reason may go on; below it is whole
    return f"{name} is {row.level.value}" + (f": {what}" if what else "") + ("" if what.endswith("?") else ".")


def _parts(found: dict[str, Any], kind: str) -> list[Part]:
    return [part | {"name": "/".join(map(unquote, names))} for names, part in folders(found, kind)]


def _badness(source: Part) -> float:
    """How bad a source is: not connected above all, then by tags without a good value."""
    if source.get("connected") is False:
        return 1e9
    if source.get("state") == STANDBY:
        return 0
    return (words.number(source.get("tags_bad")) or 0) + (words.number(source.get("tags_silent")) or 0)


def _level_of(source: Part) -> str:
    """As the verdict has it: a tag that is only silent is no problem while others have values."""
    tags, badness = words.number(source.get("tags")), _badness(source)
    if source.get("connected") is False or (tags and badness >= tags):
        return Level.BROKEN.value
    return Level.LATE.value if badness and words.number(source.get("tags_bad")) else Level.GOOD.value


def _more(
    sources: list[Part],
    totals: dict[str, tuple[float, float]],
    consumers: list[Part],
    hours: float | None,
    fill: float | None,
) -> str:
    """The second sentence: what works, what waits, how long the store lasts."""
    parts = list[str]()
    total, up = totals["sources"]
    if total:
        up -= sum(source.get("connected") is True and _level_of(source) == Level.BROKEN.value for source in sources)
        stand_by = all(source.get("state") == STANDBY for source in sources)
        parts.append(f"{words.count(up)} of {words.count(total)} sources {'stand by' if stand_by else 'deliver'}")
    total, up = totals["peers"]
    if total:
        parts.append(f"{words.count(up)} of {words.count(total)} pulls run")
    waiting = [
        consumer for consumer in consumers if (words.number(consumer.get("oldest_unconfirmed_age_s")) or 0) >= WAITING_S
    ]
    if waiting:
        parts.append(f"{waiting[0]['name']} has not confirmed {words.count(waiting[0].get('behind_facts'))} facts")
    if hours is not None:
        parts.append(f"space for {duration(hours * 3600)}")
    elif fill is not None:
        parts.append(f"the store is {fill:.0f} % full")
    return "; ".join(parts)


def _links(parts: list[Part], late: str, state_of: Callable[[Part], tuple[str, str]]) -> list[Arrow]:
    """One arrow for each zone: the worst of its streams and of those the latest, the cut ones first."""
    found = list[Arrow]()
    for part in sorted(parts, key=lambda part: words.number(part.get(late)) or 0):
        zone, stream = re.split(r"[./]", f"{part['name']}.", maxsplit=1)
        found.append(Arrow("programs here" if zone == LOCAL_ZONE else zone, *state_of(part), stream.rstrip(".")))
    worst = {arrow.zone: arrow for arrow in sorted(found, key=lambda arrow: STATES.index(arrow.state))}
    return sorted(worst.values(), key=lambda arrow: (-STATES.index(arrow.state), arrow.zone))


def _pull(peer: Part) -> tuple[str, str]:
    lag = words.number(peer.get("lag_seconds"))
    if peer.get("connected") is not True:
        return "cut", "cut" if lag is None else f"cut, {words.age(lag)} behind"
    if lag is None:
        return "waiting", "no answer yet"
    return ("waiting" if lag >= WAITING_S else "flowing"), "level" if lag < 1 else f"{words.age(lag)} behind"


def _consumer(consumer: Part) -> tuple[str, str]:
    behind, waited = words.number(consumer.get("behind_facts")), words.number(consumer.get("oldest_unconfirmed_age_s"))
    if not behind or waited is None or waited < 1:
        return "flowing", "level"
    if waited < WAITING_S:
        return "flowing", f"{words.age(waited)} behind"
    is_cut = waited >= CUT_S
    return ("cut" if is_cut else "waiting"), f"{words.count(behind)} wait for {words.age(waited)}"

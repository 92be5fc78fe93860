"""Core: every plant whose health is here as one row, worst first, and the fleet in one sentence.

Two nodes may record for one zone: they are one plant, and its row is that of the one that leads, and a warning while
anything is wrong with the other one. A node names its zone and the other gateway in its health, and anyone may name any
zone. So two nodes are one plant only if each names the other, and a zone whose own node sends health names its gateways
itself.

A zone that falls silent is a zone whose newest health is old. One whose health comes and whose facts do not is withheld
by a relay (`named_ends`). That is judged here; everything else is what the zone says of itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from agent.health.problems import RANK, Level, Problem
from agent.health.samples import folders, level_of
from agent.health.snapshot import RECORDING, Gauge, Label
from agent.health.verdict import THRESHOLDS
from agent.page import words
from agent.page.health_tail import ZoneHealth

SAID = {"leads": "leads", "follows": "follows", "alone": "records alone"}
SILENT, ABSENT = "silent", "no health here"
SILENT_HINT = (
    "look at the zones between: the first whose health is also old has the problem, or its link; if it alone is silent, "
    "log in there: systemctl status bsfg@{zone}"
)
OLD_HINT = "compare its clock with the one here (timedatectl, there); if it is right, see which zone between passes facts on late"
WITHHELD_HINT = (
    "health comes from there and these facts do not: bsfg peer compare at each zone on the way; the first that has them "
    "and does not pass them on withholds them (docs/operate/threats.md)"
)
SAYS_SO_MS = 5_000
"""A gateway that lives says within ten seconds that its partner is silent; one that dies may have recorded its health a
moment after its last answer."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """One of two gateways of a plant: its role in words and since when, its level and since when, and its first
    problem, unless that is the plant's."""

    node: Annotated[str, Label("node")]
    role: str
    role_since_unix_ms: float | None
    is_recording: Annotated[bool, Gauge("bsfg_gateway_records", "1 while it records for the zone, by its health here.")]
    level: Level
    since_unix_ms: float | None
    what: str
    health_s: Annotated[float | None, Gauge("bsfg_gateway_health_age_seconds", "Age of its newest health here.")]

    def to_json(self) -> dict[str, object]:
        """The gateway for programs."""
        return {name: getattr(self, name) for name in self.__slots__} | {"level": self.level.value}

    @property
    def said(self) -> str:
        """What it does, and its problem."""
        return f"{self.role}; {self.what}" if self.what else self.role


def partner_of(health: ZoneHealth) -> str:
    """The other gateway, as a node names it; empty if it names none."""
    return words.text(health.values.get("pair/partner"))


def plant_of(health: ZoneHealth, known: Mapping[str, ZoneHealth]) -> str:
    """The plant of a node: the zone for which it says that it records, if nothing here contradicts; else its own
    name."""
    node, zone = health.zone, _zone_of(health)
    if zone == node:
        return node
    partner = known.get(partner_of(health))
    if partner is None:  # a zone without health of its own
        return node if zone in known else zone
    is_mutual = _zone_of(partner) == zone and partner_of(partner) == node
    return zone if is_mutual and (zone not in known or partner.zone == zone) else node


def unheard_since(health: ZoneHealth, partner: ZoneHealth | None) -> float | None:
    """Since when (Unix ms) the other gateway has no answer from this one, as it says. None if it does not say so, or if
    this one has sent health since: then only the way between both is cut."""
    if partner is None or partner_of(partner) != health.zone:
        return None
    heard_ms = words.number(partner.values.get("pair/partner_heard_ms"))
    since_ms = words.number(partner.values.get("started_unix_ms"))
    if heard_ms is not None:
        since_ms = partner.at_unix_ms - heard_ms
    if since_ms is None or health.at_unix_ms >= since_ms + SAYS_SO_MS:
        return None
    passed = THRESHOLDS["partner_silence"].passed((partner.at_unix_ms - since_ms) / 1000)
    return None if passed is None else since_ms


def gateway_row(row: ZoneRow, health: ZoneHealth, partner: ZoneHealth | None, now_unix_ms: int) -> ZoneRow:
    """The row of a gateway. One that the other gateway does not hear is late at least, whatever it said last."""
    since_ms = unheard_since(health, partner)
    if since_ms is None or row.level is Level.BROKEN or is_silent(row):
        return row
    what = f"silent: no answer to {partner_of(health)} for {words.age((now_unix_ms - since_ms) / 1000)}"
    hint = Problem.PAIR_PARTNER_SILENT.value.remedy.format(partner=health.zone)
    level = max(row.level, Level.LATE, key=RANK.__getitem__)
    return replace(row, level=level, since_unix_ms=since_ms, what=what, hint=hint)


def is_silent(row: ZoneRow) -> bool:
    """Whether the newest health of a row is old."""
    return THRESHOLDS["health_age"].passed(row.health_s) is not None


def leader_of(gateways: Iterable[ZoneHealth], silent: frozenset[str]) -> ZoneHealth:
    """The gateway that speaks for the plant: of those that record the one with the highest term; if none does, or all
    are silent, the one whose health is newest."""
    return max(
        gateways,
        key=lambda health: (health.zone not in silent, _records(health), _term(health), health.at_unix_ms, health.zone),
    )


def role_of(health: ZoneHealth, leader: ZoneHealth, *, is_silent: bool) -> tuple[str, bool]:
    """The role of a gateway in words, and whether it records. One that said that it leads before another one began has
    led until then."""
    role = words.text(health.values.get("pair/role"))
    if is_silent:
        return SILENT, False
    if role == "leads" and health is not leader and health.at_unix_ms <= (since_of(leader) or 0):
        return "led", False
    return SAID.get(role, words.UNKNOWN), role in RECORDING


def since_of(health: ZoneHealth) -> float | None:
    """Since when a gateway has its role."""
    return words.number(health.values.get("pair/since_unix_ms"))


def _zone_of(health: ZoneHealth) -> str:
    return words.text(health.values.get("zone")) or health.zone


def _records(health: ZoneHealth) -> bool:
    return health.values.get("pair/role") in RECORDING


def _term(health: ZoneHealth) -> float:
    return words.number(health.values.get("pair/term")) or 0.0


@dataclass(frozen=True, slots=True)
class ZoneRow:
    """A zone. `node`: whose health it is; `gateways`: if there are two. `since_unix_ms`: of its level. `behind_s`: the
    age of what a zone above has not confirmed. `hold_hours`: how long it can keep what is not confirmed; None if
    nothing is at risk. `health_s`: the age of its newest health."""

    zone: Annotated[str, Label("zone")]
    level: Level
    alert: Annotated[bool, Gauge("bsfg_zone_alert", "1 when an operator must act there.")]
    since_unix_ms: float | None
    what: str
    hint: str
    behind_s: Annotated[
        float | None,
        Gauge("bsfg_zone_behind_seconds", "Age of the oldest fact that it waits for, or that waits there."),
    ]
    hold_hours: Annotated[
        float | None, Gauge("bsfg_zone_hold_hours", "Hours until its store is full, if nothing is confirmed.")
    ]
    health_s: Annotated[float, Gauge("bsfg_zone_health_age_seconds", "Age of its newest health here.")]
    version: str = ""
    node: str = ""
    gateways: tuple[Gateway, ...] = ()
    alerts: tuple[tuple[str, str, str], ...] = ()
    """What a person must see to, the first first: a name that stays, what it is now, and what to do. Without what
    follows from another one."""

    def to_json(self) -> dict[str, object]:
        """The row for programs."""
        gateways = [gateway.to_json() for gateway in self.gateways]
        found = {name: getattr(self, name) for name in self.__slots__}
        return found | {"level": self.level.value, "gateways": gateways}


def zone_row(health: ZoneHealth, now_unix_ms: int) -> ZoneRow:
    """The row of a node."""
    found, age_s = health.values, max(0.0, (now_unix_ms - health.at_unix_ms) / 1000)
    reasons = words.entries(found.get("reasons"))
    alerts = _alerts(reasons)
    level = level_of(found.get("verdict")) or Level.BROKEN
    what = told(reasons)
    hint, alert, since = words.text(reasons[0].get("hint")) if reasons else "", found.get("alert") is True, None
    since = words.number(found.get("since_unix_ms"))
    silent = THRESHOLDS["health_age"].passed(age_s)
    if silent is not None:
        before = f"; it was {level.value} then" + (f" ({what})" if what else "")
        what, hint = f"silent: no health for {words.age(age_s)}{before}", SILENT_HINT.format(zone=health.zone)
        if _is_old_on_arrival(health, now_unix_ms):
            came = f"by its clock, though some came {words.age((now_unix_ms - health.arrived_unix_ms) / 1000)} ago"
            what, hint = f"silent: no health for {words.age(age_s)} {came}{before}", OLD_HINT
        level = max(level, Level.BROKEN if silent else Level.LATE, key=RANK.__getitem__)
        alert, since = alert or silent, health.at_unix_ms
        alerts = (("silent", what, hint), *alerts) if silent else alerts
    if health.missing:
        what, hint = health.missing, WITHHELD_HINT
        level, alert, since = Level.BROKEN, True, None
        alerts = (("missing", what, hint), *alerts)
    waiting = [words.number(consumer.get("oldest_unconfirmed_age_s")) for _, consumer in folders(found, "consumer")]
    lags = [words.number(peer.get("lag_seconds")) for _, peer in folders(found, "peer")]
    hours = [words.number(stream.get("hours_until_full")) for _, stream in folders(found, "stream")]
    return ZoneRow(
        health.zone,
        level,
        alert,
        since,
        what,
        hint,
        behind_s=max((lag for lag in (*waiting, *lags) if lag is not None and silent is None), default=None),
        hold_hours=min((left for left in hours if left is not None), default=None),
        health_s=age_s,
        version=words.text(found.get("version")),
        node=health.zone,
        alerts=alerts,
    )


def _is_old_on_arrival(health: ZoneHealth, now_unix_ms: int) -> bool:
    """Whether health comes, and its times are old."""
    limit_ms, arrived_ms = THRESHOLDS["health_age"].alert * 1000, health.arrived_unix_ms
    return now_unix_ms - arrived_ms <= limit_ms < arrived_ms - health.at_unix_ms


def _alerts(reasons: Sequence[Mapping[str, object]]) -> tuple[tuple[str, str, str], ...]:
    return tuple(
        (
            f"{words.text(reason.get('problem'))} {words.text(reason.get('subject'))}",
            told([reason]),
            words.text(reason.get("hint")),
        )
        for reason in reasons
        if reason.get("alert") is True and not reason.get("caused_by")
    )


def told(reasons: Sequence[Mapping[str, object]]) -> str:
    """The first problem in words; empty if there is none."""
    return f"{words.text(reasons[0].get('subject'))}: {words.text(reasons[0].get('text'))}" if reasons else ""


def fleet_rows(zones: Iterable[ZoneHealth], now_unix_ms: int, own: Sequence[ZoneRow] = ()) -> list[ZoneRow]:
    """The rows, worst first; equal ones by name, so that nothing jumps. `own`: of the node that asks."""
    known = {health.zone: health for health in zones}
    of_nodes = {row.node: row for row in own}
    plants: dict[str, list[ZoneHealth]] = {}
    for node, health in known.items():
        of_nodes.setdefault(node, zone_row(health, now_unix_ms))
        plants.setdefault(plant_of(health, known), []).append(health)
    rows = [plant_row(plant, gateways, of_nodes, now_unix_ms) for plant, gateways in plants.items()]
    return sorted(rows, key=lambda row: (-RANK[row.level], not row.alert, row.zone))


def plant_row(plant: str, gateways: Sequence[ZoneHealth], of_nodes: Mapping[str, ZoneRow], now_unix_ms: int) -> ZoneRow:
    """The row of a plant, by the rows of its nodes. What is wrong with a gateway that does not lead is a warning: the
    plant is recorded."""
    if len(gateways) == 1 and gateways[0].zone == plant and not partner_of(gateways[0]):
        return of_nodes[plant]
    known = {gateway.zone: gateway for gateway in gateways}
    rows, silent = dict[str, ZoneRow](), set[str]()
    for node, gateway in known.items():
        other = known.get(partner_of(gateway))
        rows[node] = gateway_row(of_nodes[node], gateway, other, now_unix_ms)
        if is_silent(rows[node]) or unheard_since(gateway, other) is not None:
            silent.add(node)
    leader = leader_of(gateways, frozenset(silent))
    row = rows[leader.zone]
    others = [rows[gateway.zone] for gateway in gateways if gateway is not leader]
    worst = max(others, key=lambda gateway: RANK[gateway.level], default=row)
    found = sorted(gateways, key=lambda gateway: (gateway is not leader, gateway.zone))
    beneath = [_gateway(gateway, leader, rows[gateway.zone], is_silent=gateway.zone in silent) for gateway in found]
    partner = partner_of(leader)
    if partner and partner not in of_nodes:
        beneath.append(Gateway(partner, ABSENT, None, False, Level.LATE, None, "", None))
    if row.level is Level.GOOD and worst.level is not Level.GOOD:
        since, what = worst.since_unix_ms, f"{worst.node}: {worst.what}"
        row = replace(row, level=Level.LATE, alert=False, since_unix_ms=since, what=what, hint=worst.hint)
    return replace(row, zone=plant, node=leader.zone, gateways=tuple(beneath))


def _gateway(health: ZoneHealth, leader: ZoneHealth, row: ZoneRow, *, is_silent: bool) -> Gateway:
    role, is_recording = role_of(health, leader, is_silent=is_silent)
    since = None if is_silent else since_of(health)
    what = "" if health is leader else row.what.removeprefix("silent: ")
    return Gateway(health.zone, role, since, is_recording, row.level, row.since_unix_ms, what, row.health_s)


def fleet_sentence(rows: Iterable[ZoneRow]) -> str:
    """The fleet in one sentence, the worst first."""
    counts = Counter(row.level for row in rows)
    total = sum(counts.values())
    bad = [level for level in reversed(Level) if level is not Level.GOOD and counts[level]]
    if not total:
        return "No zone has sent its health yet."
    if total == 1:
        return f"The one zone is {next(iter(counts)).value}."
    if not bad:
        return f"All {total:,} zones are good."
    first, *others = [f"{counts[level]:,} {{}}{level.value}" for level in bad]
    verb = "is " if counts[bad[0]] == 1 else "are "
    head = first.format(f"of {total:,} zones {verb}")
    return ", ".join([head, *(part.format("") for part in others)]) + "."


def matching(rows: Iterable[ZoneRow], query: str) -> list[ZoneRow]:
    """The rows whose zone, gateways, level or problem hold each word of a query."""
    wanted = query.casefold().split()
    return [row for row in rows if all(word in _text_of(row) for word in wanted)]


def _text_of(row: ZoneRow) -> str:
    gateways = " ".join(gateway.node for gateway in row.gateways)
    return f"{row.zone} {gateways} {row.level.value} {row.what}".casefold()

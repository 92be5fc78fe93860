"""Core: the gateways of a plant. Two nodes may record for one zone: they are one plant, judged by the one that leads.

A node names its zone and the other gateway in its health, and anyone may name any zone. So two nodes are one plant only
if each names the other, and a zone whose own node sends health names its gateways itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from agent.health.problems import Level
from agent.health.snapshot import RECORDING, Gauge, Label
from agent.page import words
from agent.page.health_tail import ZoneHealth

SAID = {"leads": "leads", "follows": "follows", "alone": "records alone"}
SILENT, ABSENT = "silent", "no health here"


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

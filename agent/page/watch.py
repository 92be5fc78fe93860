"""Shell: follows one node and the health in its store, for all visitors together.

The node is asked over its socket every two seconds; that it does not answer is news like any other. Each look wakes the
open pages.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from urllib.parse import quote

import msgspec

from agent.client import AsyncClient, NodeSilent
from agent.errors import StoreError
from agent.health.samples import health_samples, plain
from agent.health.snapshot import NodeSnapshot
from agent.health.verdict import Verdict, assess
from agent.message import HEALTH_PREFIX
from agent.page.facts import StoreFacts
from agent.page.fleet import ZoneRow, fleet_rows, gateway_row, partner_of
from agent.page.health_tail import ZoneHealth
from agent.page.zone_view import ZoneView, node_row, zone_view
from agent.settings.node import IdentitySettings

LOOK_S = 2.0


class Watch:
    """What is known of the node and of the zones below it."""

    def __init__(self, node: IdentitySettings) -> None:
        self.node, self.facts = node, StoreFacts(node.store_file)
        self.snapshot: NodeSnapshot | None = None
        self.verdict: Verdict | None = None
        self.zones: dict[str, ZoneHealth] = {}
        self.silent, self.unreadable = "", ""
        self.looked_unix_ms = 0
        self._dead_since_ms: int | None = None
        self._accepted: frozenset[str] | None = None  # as the node said last
        self._rows: list[ZoneRow] | None = None  # of the last look, for all visitors
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            self._news.set()
            self._news = asyncio.Event()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Ask the node, and read what is new in its store."""
        try:
            self.zones = dict((await self.facts.read_health()).zones)
            self.unreadable = ""
        except StoreError as error:
            self.unreadable = f"the store cannot be read: {error}"
        before_ms = self.looked_unix_ms
        self.looked_unix_ms = _now_ms()
        try:
            body = await AsyncClient(self.node.state_dir).status_json(everything=True)
            snapshot = msgspec.json.decode(body, type=NodeSnapshot)
        except (NodeSilent, msgspec.MsgspecError) as error:
            self.silent = str(error)
            if self._dead_since_ms is None:
                recorded = self.zones.get(self.node.name)
                self._dead_since_ms = before_ms or (recorded.at_unix_ms if recorded else self.looked_unix_ms)
            self.snapshot = self.verdict = None
        else:
            self.silent, self._dead_since_ms = "", None
            self.snapshot, self.verdict = snapshot, assess(snapshot)
            self._accepted = None if snapshot.zones_accepted is None else frozenset(snapshot.zones_accepted)
            self.zones[self.node.name] = own_health(snapshot, self.verdict)
        self._rows = None

    async def look_if_older(self, seconds: float) -> None:
        """Look again, unless the last look is as new as that."""
        if _now_ms() - self.looked_unix_ms > seconds * 1000:
            await self.look()

    async def wait_news(self) -> None:
        """Wait for the next look."""
        await self._news.wait()

    def rows(self) -> list[ZoneRow]:
        """The fleet as of the last look, this node included. A zone that no peer brings any more is not part of it."""
        if self._rows is None:
            own = self._health(self.node.name)
            accepted = self.zones if self._accepted is None else self.zones.keys() & self._accepted
            zones = {name: self.zones[name] for name in accepted}
            zones |= {own.zone: own} if own else {}
            self._rows = fleet_rows(zones.values(), _now_ms(), [self._node_row(own)] if own else [])
        return self._rows

    def view(self, name: str, gateway: str = "") -> ZoneView | None:
        """The page of a zone, or of a gateway of a zone that has two; None for one that is not known."""
        rows = self.rows()
        plant = next((row for row in rows if name in {row.zone, *(beneath.node for beneath in row.gateways)}), None)
        if plant is not None and name == plant.zone and not gateway:
            found = self._health(plant.node)
            return None if found is None else zone_view(found, plant)
        found = self._health(gateway or name)
        if plant is None or found is None or found.zone not in {name, *(beneath.node for beneath in plant.gateways)}:
            return None
        row = gateway_row(self._node_row(found), found, self.zones.get(partner_of(found)), _now_ms())
        return zone_view(found, replace(row, gateways=plant.gateways), plant.zone)

    @property
    def own_path(self) -> str:
        """The address of the page of this node."""
        own, zone = quote(self.node.name, safe=""), self.node.zone
        is_one_of_two = any(row.gateways for row in self.rows() if row.zone == zone)
        return f"/zone/{own}" + (f"?gateway={own}" if is_one_of_two and own == zone else "")

    @property
    def has_zones_below(self) -> bool:
        """Whether there is a fleet."""
        return any(row.zone != self.node.zone for row in self.rows())

    def _health(self, node: str) -> ZoneHealth | None:
        """The newest health of a node; that of this one may be empty."""
        found = self.zones.get(node)
        if found is None and node == self.node.name:
            found = ZoneHealth(node, self.looked_unix_ms, {"zone": self.node.zone})
        return found

    def _node_row(self, health: ZoneHealth) -> ZoneRow:
        is_own = health.zone == self.node.name
        return node_row(health, _now_ms(), dead_since_ms=self._dead_since_ms if is_own else None)


def own_health(snapshot: NodeSnapshot, verdict: Verdict) -> ZoneHealth:
    """What the node would record of itself now."""
    samples = health_samples(snapshot, verdict)
    values = {sample.definition.subject.removeprefix(HEALTH_PREFIX): plain(sample.value) for sample in samples}
    return ZoneHealth(snapshot.name, snapshot.taken_unix_ms, values)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

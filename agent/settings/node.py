"""All of node.toml as one value, its sections [node] and [page], and the rules that concern several sections."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.message import LOCAL_ZONE, ZONE
from agent.settings.host import host_problem
from agent.settings.notify import NotifySettings
from agent.settings.pair import PairSettings
from agent.settings.peers import NO_ZONE, BrokerSettings, PeerSettings
from agent.settings.signing import OriginSettings, SigningSettings
from agent.settings.sources import ModbusSourceSettings, OpcuaSourceSettings, SourceSettings
from agent.settings.store import StoreSettings, StreamSettings

DEFAULT_STATE_DIR = "state"  # next to node.toml
STATE_DIR_BYTES_MAX = 480  # SQLite's limit is 512 with the file's name and -journal


@dataclass(frozen=True, slots=True)
class IdentitySettings:
    """[node]: the zone for which this node records, the folder of its state, and its name: the zone's, unless two nodes
    record for one zone. What a node says about itself belongs to the zone of its name."""

    zone: str
    state_dir: Path = Path(DEFAULT_STATE_DIR)
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.zone)

    @property
    def store_file(self) -> Path:
        """The fact store of this node."""
        return self.state_dir / "facts.db"

    def problems(self) -> Iterator[tuple[str, str]]:
        if not ZONE.fullmatch(self.zone):
            yield (
                "zone",
                "a zone is 1 to 32 of a-z, 0-9 and -; it is the CN of this node's certificate, unless `name` is",
            )
        if not ZONE.fullmatch(self.name) and self.name != self.zone:
            yield "name", "a name is 1 to 32 of a-z, 0-9 and -; it must equal the CN of this node's certificate"
        if LOCAL_ZONE in {self.zone, self.name}:
            yield "zone" if self.zone == LOCAL_ZONE else "name", NO_ZONE
        if len(str(self.state_dir).encode(errors="surrogateescape")) > STATE_DIR_BYTES_MAX:
            yield "state_dir", f"SQLite opens no file below a path of more than {STATE_DIR_BYTES_MAX} bytes"


@dataclass(frozen=True, slots=True)
class PageSettings:
    """[page]: where `bsfg page` serves the page, /healthz and /metrics. `names`: by which it is asked for, besides
    `listen_host` and those of this machine. Reachable for others only with TLS, and with users or client certificates:
    it shows zones, devices and values."""

    listen_host: str = "127.0.0.1"
    listen_port: int = 8470
    names: tuple[str, ...] = ()
    cert_file: Path | None = None
    key_file: Path | None = None
    client_ca_file: Path | None = None
    users_file: Path | None = None

    @property
    def is_open_to_others(self) -> bool:
        """Whether other machines reach it. A name counts as reachable, except localhost."""
        with contextlib.suppress(ValueError):
            return not ipaddress.ip_address(self.listen_host).is_loopback
        return self.listen_host != "localhost"

    def problems(self) -> Iterator[tuple[str, str]]:
        if not self.listen_host:
            yield "listen_host", "must not be empty; 0.0.0.0 listens on all interfaces"
        elif why := host_problem(self.listen_host):
            yield "listen_host", why.replace("host =", "listen_host =").replace(" port =", " listen_port =")
        if not 0 <= self.listen_port <= 65_535:
            yield "listen_port", "a TCP port is 1 to 65535, or 0 for any free one"
        if (self.cert_file is None) != (self.key_file is None):
            yield "cert_file", "cert_file and key_file go together"
        if self.cert_file is None and (self.client_ca_file or self.users_file):
            yield "cert_file", "passwords and client certificates need TLS: name cert_file and key_file"
        if self.is_open_to_others and not (self.cert_file and (self.client_ca_file or self.users_file)):
            why = "other machines reach this address: name cert_file, key_file, and users_file or client_ca_file"
            yield "listen_host", f"{why}; or listen on 127.0.0.1"


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """All of node.toml. Relative paths have been resolved against the folder of the file."""

    node: IdentitySettings
    store: StoreSettings = field(default_factory=StoreSettings)
    stream: tuple[StreamSettings, ...] = ()
    broker: tuple[BrokerSettings, ...] = ()
    peer: tuple[PeerSettings, ...] = ()
    signing: SigningSettings = field(default_factory=SigningSettings)
    origin: tuple[OriginSettings, ...] = ()
    opcua: tuple[OpcuaSourceSettings, ...] = ()
    modbus: tuple[ModbusSourceSettings, ...] = ()
    page: PageSettings = field(default_factory=PageSettings)
    pair: PairSettings = field(default_factory=PairSettings)
    notify: tuple[NotifySettings, ...] = ()

    @property
    def pair_zones(self) -> frozenset[str]:
        """The zones for which two nodes record, as far as this node asks both, or is one of them."""
        zones = [self.node.zone, *(peer.zone for peer in self.peer)]
        return frozenset(zone for zone in zones if zones.count(zone) > 1)

    def origins_of(self, peer: PeerSettings) -> frozenset[str]:
        """The zones whose facts are accepted from a peer. Each of two nodes of a zone brings what the other one says
        about itself, too."""
        return peer.origins.union(other.node for other in self.peer if other.zone == peer.zone)

    @property
    def zones_accepted(self) -> frozenset[str] | None:
        """The zones whose facts peers may bring; None if nothing is pulled."""
        pulled = [peer.origins for peer in self.peer if peer.pulls]
        return frozenset[str]().union(*pulled) if pulled else None

    def shared_zones(self, peer: PeerSettings) -> tuple[str, ...]:
        """The zones whose facts are here before this peer brings them: its partner does, or this node records them."""
        return tuple(sorted(self.origins_of(peer) - set(peer.relays))) if peer.zone in self.pair_zones else ()

    @property
    def lead_claimants(self) -> dict[str, str]:
        """The zone of each peer that may ask this node who leads it: of our partner, and of the nodes of other zones
        for which two of our peers record."""
        zones = self.pair_zones - {self.node.zone}
        claimants = {peer.node: peer.zone for peer in self.peer if peer.zone in zones}
        return claimants | ({self.pair.partner: self.node.zone} if self.pair.partner else {})

    def problems(self) -> Iterator[tuple[str, str]]:
        """Broken rules that concern several sections."""
        brokers = {broker.name for broker in self.broker}
        for index, peer in enumerate(self.peer):
            if peer.broker not in brokers:
                yield (
                    f"peer[{index}].broker",
                    f"no [[broker]] is named {peer.broker!r}; named are {', '.join(sorted(brokers)) or 'none'}",
                )
            if peer.node == self.node.name:
                yield f"peer[{index}].{peer.named_by}", "this is our own name; a node is not its own peer"
            if {self.node.zone, self.node.name}.intersection(peer.relays):
                yield f"peer[{index}].relays", "our own facts are never taken back from a peer; remove our zone"
        yield from self._name_problems()
        yield from self._pair_problems()
        for index, origin in enumerate(self.origin):
            if origin.zone in {self.node.zone, self.node.name} and origin.signatures != "if_present":
                yield f"origin[{index}].signatures", "this is our own zone, whose facts are signed here; see [signing]"
            elif origin.signatures == "required" and not origin.pinned and self.signing.facts_ca_file is None:
                why = "nothing could be accepted: name signing.facts_ca_file, or pin the zone's certificate"
                yield f"origin[{index}].signatures", why
        yield from _twice([(f"origin[{i}].zone", o.zone) for i, o in enumerate(self.origin)])
        kept_here = {stream.name for stream in self.stream if stream.write_class == "local"}
        for index, peer in enumerate(self.peer):
            if leaving := sorted(kept_here.intersection(peer.exports)):
                yield f"peer[{index}].exports", f"{leaving[0]!r} has write_class local: its facts never leave this node"
        yield from _twice([(f"stream[{i}].name", s.name) for i, s in enumerate(self.stream)])
        named = [(f"broker[{i}].name", b.name) for i, b in enumerate(self.broker)]
        yield from _twice(named)
        yield from _twice([(f"notify[{i}].name", n.name) for i, n in enumerate(self.notify)])
        yield from _twice([(f"peer[{i}].{p.named_by}", p.node) for i, p in enumerate(self.peer)])
        sources = [(f"opcua[{i}].name", s.name) for i, s in enumerate(self.opcua)]
        yield from _twice(sources + [(f"modbus[{i}].name", s.name) for i, s in enumerate(self.modbus)])
        yield from self._line_problems()

    def _name_problems(self) -> Iterator[tuple[str, str]]:
        """A node is the zone of what it says about itself, so it may not be named like a zone for which others
        record."""
        zones = {self.node.zone, *(peer.zone for peer in self.peer)}
        named = [("node.name", self.node.name, self.node.zone)]
        named += [(f"peer[{index}].node", peer.node, peer.zone) for index, peer in enumerate(self.peer)]
        for path, name, zone in named:
            if name != zone and name in zones:
                yield path, f"{name!r} is another zone, and this node records for {zone!r}; names must differ"

    def _pair_problems(self) -> Iterator[tuple[str, str]]:
        """Partner and witness are peers, and the partner records for our zone."""
        zones = {peer.node: peer.zone for peer in self.peer}
        for name in ("partner", "witness"):
            node = getattr(self.pair, name)
            if node and node not in zones:
                yield (
                    f"pair.{name}",
                    f"no [[peer]] has the node {node!r}; named are {', '.join(sorted(zones)) or 'none'}",
                )
        if zones.get(self.pair.partner, self.node.zone) != self.node.zone:
            why = f"records for {zones[self.pair.partner]!r}, this node for {self.node.zone!r}; both must have one zone"
            yield "pair.partner", why
        if zones.get(self.pair.witness) == self.node.zone:
            yield "pair.witness", f"records for our zone, {self.node.zone!r}; the witness is a node above both gateways"

    def _line_problems(self) -> Iterator[tuple[str, str]]:
        """Sections with one endpoint share its line, so they must describe it alike."""
        first: dict[tuple[str, int], ModbusSourceSettings] = {}
        for index, source in enumerate(self.modbus):
            known = first.setdefault(source.endpoint, source)
            for name in ("transport", "baud_rate", "parity", "stop_bits", "ca_file", "cert_file", "server_name"):
                if getattr(known, name) != getattr(source, name):
                    why = f"differs from that of {known.name!r}, which has the same line ({source.where}): make them equal"
                    yield f"modbus[{index}].{name}", why

    @property
    def sources(self) -> tuple[SourceSettings, ...]:
        """The sources of all protocols."""
        return (*self.opcua, *self.modbus)

    def with_sources(self, sources: Iterable[SourceSettings]) -> NodeSettings:
        """The same settings with other sources."""
        opcua, modbus = list[OpcuaSourceSettings](), list[ModbusSourceSettings]()
        for source in sources:
            if isinstance(source, ModbusSourceSettings):
                modbus.append(source)
            else:
                opcua.append(source)
        return replace(self, opcua=tuple(opcua), modbus=tuple(modbus))


def _twice(named: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    seen: dict[str, str] = {}
    for path, name in named:
        if name in seen:
            yield path, f"{name!r} is also {seen[name]}; names must differ"
        seen.setdefault(name, path)

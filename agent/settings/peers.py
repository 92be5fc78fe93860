"""[[broker]] and [[peer]] of node.toml: where this node connects, what it exchanges with nodes of other zones, and the
limits of each peer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent.message import HEALTH_STREAM, LOCAL_ZONE, STREAM, ZONE
from agent.settings.host import host_problem
from agent.settings.store import HOURS_MAX, ZoneLimit

CONSUMERS_BESIDE_STREAMS = 8
"""A pull has one consumer for each stream. These are for readers by hand, jobs that read alongside the node, and the
names of a machine that was replaced; each consumer keeps facts from being released."""
STREAMS_MAX = 32
"""Streams that one peer pulls from another. Each pull waits at the peer, which holds so many requests of a zone."""
REQUESTS_PER_SECOND_MAX = 1000
"""By default. A pull of live facts sends one request for each commit, some hundred a second at most."""
BYTES_PER_SECOND_MIN = 16_384
"""Lower bound of a peer's `bytes_per_second_max` in node.toml. At a lower rate one page of the smallest size would take
longer than a live stream may overdraw the peer's token bucket."""
HOLD_BYTES_MIN = 1024 * 1024  # a batch, with the batch after it, must fit
NO_ZONE = f"no zone is called {LOCAL_ZONE!r}: consumers of the node's own machine are {LOCAL_ZONE}.<name>"


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """The limits of one peer. 0 bytes a second: no limit."""

    consumers_max: int = CONSUMERS_BESIDE_STREAMS
    requests_per_second_max: int = REQUESTS_PER_SECOND_MAX
    answer_bytes_per_second_max: int = 0


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """[[broker]]: an MQTT 5 broker that this node connects to, and the certificate it uses there."""

    name: str
    host: str
    ca_file: Path
    cert_file: Path
    key_file: Path
    port: int = 8883
    optional: bool = False
    watch_file: Path = Path("/run/bsfg-broker/abuses.json")
    """Of `bsfg broker sessions --watch`, if the broker runs on this machine."""

    def problems(self) -> Iterator[tuple[str, str]]:
        if not self.name:
            yield "name", "must not be empty"
        if why := host_problem(self.host):
            yield "host", why
        if not 1 <= self.port <= 65_535:
            yield "port", "a TCP port is 1 to 65535"


@dataclass(frozen=True, slots=True)
class PullStart:
    """Where the first pull of a stream begins: at the peer's oldest fact, at its end, or at its end after a request for
    the latest value of each tag."""

    stream: str
    at: Literal["oldest", "end", "latest"]


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """[[peer]]: another node: who is asked, and who asks. `node` is its name, `zone` whose facts it records (default of
    `node`). Two nodes of one zone are two peers; one of our own zone is our partner.

    `exports` are the streams that it may fetch from us, `pulls` those that we fetch from it, and `relays` the zones
    besides these two whose facts we accept from it. `appends` are the streams to which it may append here, including
    those that never leave this node. `asks`: commands of this node send it requests (`append --to`) although nothing is
    pulled. `bytes_per_second_max` limits all pulls from it together; 0 is no limit. `start` names the pulls that do not
    begin at the oldest fact. `anti_entropy_hours` is the time between two comparisons with it; 0 leaves them to `peer
    compare`. `health`: the stream `health` is exchanged as well, in the direction of the others.

    What it may take here: `consumers_max` consumers (0: eight more than it has exports), `requests_per_second_max`
    requests, `answer_bytes_per_second_max` bytes of answers (0 is no limit). Other peers are not delayed by it.
    `hold_bytes_max` sealed bytes, and `hold_hours_max` hours of facts, may wait for its confirmation (0: as long as the
    stream's settings allow); beyond that it loses the oldest. `share_bytes` of the store are kept for the facts that it
    appends or that are pulled from it (0: an equal part of a quarter of what is left).
    """

    zone: str
    broker: str
    exports: tuple[str, ...] = ()
    pulls: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()
    appends: tuple[str, ...] = ()
    asks: bool = False
    bytes_per_second_max: int = 0
    start: tuple[PullStart, ...] = ()
    health: bool = True
    anti_entropy_hours: float = 24.0
    consumers_max: int = 0
    requests_per_second_max: int = REQUESTS_PER_SECOND_MAX
    answer_bytes_per_second_max: int = 0
    hold_bytes_max: int = 0
    hold_hours_max: float = 0.0
    share_bytes: int = 0
    node: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "node", self.node or self.zone)
        for name in ("exports", "pulls") if self.health else ():
            streams = getattr(self, name)
            if streams and HEALTH_STREAM not in streams:
                object.__setattr__(self, name, (*streams, HEALTH_STREAM))

    @property
    def named_by(self) -> str:
        """The setting that gives the node its name."""
        return "zone" if self.node == self.zone else "node"

    @property
    def own_zones(self) -> frozenset[str]:
        """The zones whose facts it records: its zone, and its name for what it says about itself."""
        return frozenset({self.zone, self.node})

    @property
    def origins(self) -> frozenset[str]:
        """The zones whose facts are accepted from it."""
        return self.own_zones.union(self.relays)

    @property
    def zone_limit(self) -> ZoneLimit:
        """The limit of the facts that its consumers hold back from being released, and the room for its own."""
        writes = frozenset({*self.pulls, *self.appends})
        return ZoneLimit(self.hold_bytes_max, self.hold_hours_max, self.share_bytes, writes, self.zone)

    @property
    def limits(self) -> PeerLimits:
        """The limits of its requests to this node."""
        consumers_max = self.consumers_max or len(self.exports) + CONSUMERS_BESIDE_STREAMS
        return PeerLimits(consumers_max, self.requests_per_second_max, self.answer_bytes_per_second_max)

    def start_of(self, stream: str) -> Literal["oldest", "end", "latest"]:
        """Where the first pull of a stream begins."""
        return next((start.at for start in self.start if start.stream == stream), "oldest")

    def problems(self) -> Iterator[tuple[str, str]]:
        own = (("zone", (self.zone,)), ("node", () if self.node == self.zone else (self.node,)))
        for name, zones in (*own, ("relays", self.relays)):
            for zone in zones:
                if not ZONE.fullmatch(zone):
                    yield name, f"{zone!r} is not a zone (1 to 32 of a-z, 0-9 and -)"
        if LOCAL_ZONE in self.own_zones:
            yield "zone" if self.zone == LOCAL_ZONE else "node", NO_ZONE
        for name, streams in (("exports", self.exports), ("pulls", self.pulls), ("appends", self.appends)):
            for stream in streams:
                if not STREAM.fullmatch(stream):
                    yield name, f"{stream!r} is not a stream name (1 to 64 of a-z, 0-9, . _ and -)"
        if self.bytes_per_second_max != 0 and self.bytes_per_second_max < BYTES_PER_SECOND_MIN:
            yield (
                "bytes_per_second_max",
                f"0 for no limit, or at least {BYTES_PER_SECOND_MIN:,}, which is one small page a second",
            )
        for name, streams in (("exports", self.exports), ("pulls", self.pulls)):
            if len(streams) > STREAMS_MAX:
                yield name, f"{len(streams)} streams, at most {STREAMS_MAX}; map tags to fewer streams"
        if self.bytes_per_second_max and not self.pulls:
            yield (
                "bytes_per_second_max",
                "this limits pulls, and nothing is pulled from this peer; set it where the facts are pulled",
            )
        named = [start.stream for start in self.start]
        if missing := sorted(set(named) - set(self.pulls)):
            yield "start", f"{missing[0]!r} is not among pulls"
        if len(set(named)) < len(named):
            yield "start", "names a stream twice"
        if self.hold_bytes_max and self.hold_bytes_max < HOLD_BYTES_MIN:
            yield "hold_bytes_max", f"0 (no limit of its own) or at least {HOLD_BYTES_MIN}"
        if self.share_bytes < 0:
            yield "share_bytes", "0 (an equal part) or the bytes that are kept for its facts"
        elif self.share_bytes and not (self.pulls or self.appends):
            yield "share_bytes", "nothing is pulled from this peer, and it may not append"
        if not 0 <= self.hold_hours_max <= HOURS_MAX:
            yield "hold_hours_max", f"0 (no limit of its own) to {HOURS_MAX}"
        if not 0 <= self.consumers_max <= 1000:
            yield "consumers_max", "1 to 1000, or 0 for eight more than there are exports"
        if not 1 <= self.requests_per_second_max <= 100_000:
            yield "requests_per_second_max", "1 to 100000"
        if self.answer_bytes_per_second_max != 0 and self.answer_bytes_per_second_max < BYTES_PER_SECOND_MIN:
            yield "answer_bytes_per_second_max", f"0 for no limit, or at least {BYTES_PER_SECOND_MIN:,}"
        if not 0 <= self.anti_entropy_hours < float("inf"):
            yield "anti_entropy_hours", "must be the hours between two comparisons, or 0 for none"
        if not (self.exports or self.pulls or self.appends or self.asks):
            why = "nothing is exchanged with this peer; name streams in exports, pulls or appends, or remove it"
            yield "zone", f"{why} (asks = true if only commands of this node ask it)"

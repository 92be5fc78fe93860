"""Health of other zones in a store, received as a pull receives it; for tests of the fleet, its pictures and scale."""

from dataclasses import dataclass, field, replace

from agent.batch import Batch, Link, Origin, parse, seal_samples, verify
from agent.fact_store import FactStore
from agent.health.samples import health_samples
from agent.health.snapshot import (
    BrokerStatus,
    ConsumerStatus,
    NodeSnapshot,
    SourceStatus,
    StoreStatus,
    StreamStatus,
)
from agent.health.verdict import assess
from agent.message import HEALTH_STREAM, Sample
from agent.pages import DefinitionChain
from agent.positions import Position
from tests.support.received import chain_of, definitions_of, put_page

LOST = "SourceLost: connection refused by 10.20.4.13:502"


def gateway(zone: str, now_ms: int) -> NodeSnapshot:
    """A gateway with three sources that feeds one zone above."""
    return NodeSnapshot(
        zone,
        "00" * 16,
        now_ms,
        now_ms - 9 * 86_400_000,
        22.0,
        streams=(StreamStatus("facts.telemetry", 1, 12_000_000, 1_760_000_000, inflow_bytes_per_s=1300.0),),
        consumers=(ConsumerStatus("idmz.facts.telemetry", "facts.telemetry", "idmz", "online", 12_000_000, 0),),
        brokers=(BrokerStatus("site", True, 1),),
        sources=(
            SourceStatus("press", "opcua", True, now_ms - 300, 9_000_000, tags=1200),
            SourceStatus("boiler", "modbus", True, now_ms - 900, 4_000_000, tags=340),
            SourceStatus("oven", "modbus", True, now_ms - 500, 400_000, tags=40),
        ),
        store=StoreStatus(file_bytes=1_800_000_000),
        certificate_days_left=200.0,
    )


def with_trouble(snapshot: NodeSnapshot, trouble: str) -> NodeSnapshot:
    """The same gateway with a device lost, a backlog, a full store, or bad tags."""
    first, *others = snapshot.sources
    (consumer,) = snapshot.consumers
    match trouble:
        case "lost":
            return replace(snapshot, sources=(replace(first, connected=False, trouble=LOST), *others))
        case "behind":
            late = replace(consumer, behind_facts=900_000, oldest_unconfirmed_age_s=840.0, bytes_held=9_000_000)
            return replace(snapshot, consumers=(late,))
        case "full":
            return replace(snapshot, store_fill_percent=83.0)
        case "bad":
            return replace(snapshot, sources=(replace(first, tags_bad=2), *others))
    return snapshot


@dataclass(slots=True)
class Zones:
    """Zones whose health a relay passes on to a store, each with a log of its own."""

    store: FactStore
    _links: dict[str, Link] = field(default_factory=dict)
    _bodies: dict[str, list[bytes]] = field(default_factory=dict)
    _offset: int = 0

    def send(self, *snapshots: NodeSnapshot) -> None:
        """Store what the zones' nodes have recorded now, in one page."""
        chains, batches = list[DefinitionChain](), list[Batch]()
        for snapshot in snapshots:
            samples, known = health_samples(snapshot, assess(snapshot)), self._bodies.setdefault(snapshot.zone, [])
            bodies, count = [one.definition.to_json() for one in samples], len(known)
            known += [body for body in bodies if body not in known]
            chains.append(chain_of(snapshot.zone, known, count + 1))
            at_ns = snapshot.taken_unix_ms * 1_000_000
            named = zip(bodies, samples, strict=True)
            rows = [Sample(known.index(body) + 1, at_ns, one.value, one.quality) for body, one in named]
            link = self._links.get(snapshot.zone) or Link(HEALTH_STREAM, _origin(snapshot.zone))
            batch = parse(seal_samples(link, rows, definitions_of(known)).sealed)
            verify(batch)
            self._links[snapshot.zone] = batch.link
            batches.append(batch)
            self._offset += len(rows)
        position = Position(b"relay".ljust(16, b"."), self._offset)
        put_page(self.store, "idmz", HEALTH_STREAM, batches, chains, position).result()


def _origin(zone: str) -> Origin:
    return Origin(zone, zone.encode().ljust(16, b".")[:16])

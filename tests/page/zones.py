"""Health of other zones in a store, received as a pull receives it; for tests of the fleet, its pictures and scale."""

from dataclasses import dataclass, field

from agent.batch import Batch, Link, Origin, parse, seal_samples, verify
from agent.fact_store import FactStore
from agent.health.samples import health_samples
from agent.health.snapshot import NodeSnapshot
from agent.health.verdict import assess
from agent.message import HEALTH_STREAM, Sample
from agent.pages import DefinitionChain
from agent.positions import Position
from bench.replication.gateways import LOST, gateway, with_trouble
from tests.support.received import chain_of, definitions_of, put_page

__all__ = ["LOST", "Zones", "gateway", "with_trouble"]


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
            samples, known = health_samples(snapshot, assess(snapshot)), self._bodies.setdefault(snapshot.name, [])
            bodies, count = [sample.definition.to_json() for sample in samples], len(known)
            known += [body for body in bodies if body not in known]
            chains.append(chain_of(snapshot.name, known, count + 1))
            at_ns = snapshot.taken_unix_ms * 1_000_000
            named = zip(bodies, samples, strict=True)
            rows = [Sample(known.index(body) + 1, at_ns, sample.value, sample.quality) for body, sample in named]
            link = self._links.get(snapshot.name) or Link(HEALTH_STREAM, _origin(snapshot.name))
            batch = parse(seal_samples(link, rows, definitions_of(known)).sealed)
            verify(batch)
            self._links[snapshot.name] = batch.link
            batches.append(batch)
            self._offset += len(rows)
        position = Position(b"relay".ljust(16, b"."), self._offset)
        put_page(self.store, "idmz", HEALTH_STREAM, batches, chains, position).result()


def _origin(zone: str) -> Origin:
    return Origin(zone, zone.encode().ljust(16, b".")[:16])

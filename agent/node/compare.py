"""A node's comparisons with its peers: made from its settings, asked for at its door, or by a command while no node runs.

What is compared and how stands in `agent.replication.pulling.anti_entropy`; here is only who compares with whom.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from agent import local_socket
from agent.batch import BatchError
from agent.config import BrokerSettings, NodeSettings
from agent.fact_store import FactStore, StoreError
from agent.replication.mqtt import Access, Asker, Link
from agent.replication.pki import Identity
from agent.replication.pulling import (
    AntiEntropy,
    AntiEntropySettings,
    Comparison,
    Priority,
    ThrottledRequester,
    TokenBucket,
)
from agent.telemetry import Telemetry

TOLD_MAX = 1000  # differences of a stream named one by one, so that the door's answer stays below its limit


def identity_of(broker: BrokerSettings, zone: str) -> Identity:
    """What a zone shows at a broker."""
    return Identity(broker.name, zone, broker.ca_file, broker.cert_file, broker.key_file)


def access_of(broker: BrokerSettings, identity: Identity, zone: str) -> Access:
    """How a zone enters a broker."""
    return Access(broker.name, zone, broker.host, broker.port, identity.context)


def bandwidths(settings: NodeSettings) -> dict[str, TokenBucket]:
    """By zone, for each peer that may send only so many bytes a second, the allowance that all who ask it share."""
    limited = [peer for peer in settings.peer if peer.bytes_per_second_max]
    return {peer.zone: TokenBucket(peer.bytes_per_second_max) for peer in limited}


def comparers(
    settings: NodeSettings,
    store: FactStore,
    askers: Mapping[str, Asker],
    limits: Mapping[str, TokenBucket],
    telemetry: Telemetry | None = None,
) -> dict[str, AntiEntropy]:
    """By zone, for each peer that something is pulled from and that is asked."""
    found = dict[str, AntiEntropy]()
    for peer in settings.peer:
        if peer.pulls and peer.zone in askers:
            origins = frozenset({peer.zone, *peer.relays})
            late = frozenset(stream for stream in peer.pulls if peer.start_of(stream) != "oldest")
            what = AntiEntropySettings(peer.zone, peer.pulls, origins, late, peer.anti_entropy_hours)
            errors = (StoreError, BatchError)
            asker = ThrottledRequester(askers[peer.zone], limits.get(peer.zone), Priority.REPAIR, telemetry)
            found[peer.zone] = AntiEntropy(asker, store, what, errors, telemetry=telemetry)
    return found


async def compare(known: Mapping[str, AntiEntropy], request: local_socket.ComparePeer) -> local_socket.Compared:
    """Compare all streams pulled from a peer. Raises LocalError where it is none, and what `AntiEntropy.compare` raises."""
    comparer = known.get(request.zone)
    if comparer is None:
        others = f"; it pulls from {', '.join(sorted(known))}" if known else ""
        raise local_socket.LocalError(f"this node pulls nothing from {request.zone!r}{others}", "see bsfg peer list")
    streams = comparer.settings.streams
    found = [await comparer.compare(each, repair=request.repair, scan=request.scan) for each in streams]
    return local_socket.Compared([_told(one) for one in found])


async def compare_alone(settings: NodeSettings, request: local_socket.ComparePeer) -> local_socket.Answer:
    """Be the node for one comparison, while none runs: open the store, reach the broker, compare. Raises BsfgError."""
    peer = next((peer for peer in settings.peer if peer.zone == request.zone and peer.pulls), None)
    with local_socket.open_store(settings) as store:
        if peer is None:
            return await local_socket.Door(store, partial(compare, {})).answer(request)
        broker = next(broker for broker in settings.broker if broker.name == peer.broker)
        identity = identity_of(broker, settings.node.zone)
        link = Link(access_of(broker, identity, settings.node.zone))
        known = comparers(settings, store, {peer.zone: Asker(link, peer.zone)}, bandwidths(settings))
        door = local_socket.Door(store, partial(compare, known))
        async with link.visit():
            return await door.answer(request)


def _told(found: Comparison) -> local_socket.ComparedStream:
    missing, damaged = (
        [(str(origin), *span) for origin, span in some[:TOLD_MAX]] for some in (found.missing, found.damaged)
    )
    return local_socket.ComparedStream(
        stream=found.stream,
        compared_facts=found.compared_facts,
        exchanges=found.exchanges,
        bytes=found.bytes,
        divergent_ranges=found.divergent_ranges,
        missing=missing,
        damaged=damaged,
        forks=found.forks[:TOLD_MAX],
        damaged_definitions=[(str(origin), number) for origin, number, _ in found.damaged_definitions[:TOLD_MAX]],
        repaired_definitions=found.repaired_definitions,
        repaired_ranges=found.repaired_ranges,
        repaired_facts=found.repaired_facts,
        unavailable_facts=found.unavailable_facts,
        refused=found.refused[:TOLD_MAX],
        missing_artifacts=found.missing_artifacts,
        repaired_artifacts=found.repaired_artifacts,
    )

"""A node's comparisons with its peers: those that run periodically, on a request at the local socket, and by a command
while no node runs.

How a stream is compared and repaired is in `agent.replication.pulling.anti_entropy`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from agent import local_socket
from agent.fact_store import FactStore
from agent.local_socket.serving import RequestHandler, open_store
from agent.node.trust import TrustFiles
from agent.replication.mqtt import Access, BrokerLink, Requester
from agent.replication.pki import Identity
from agent.replication.protocol.token_bucket import Priority, TokenBucket
from agent.replication.pulling import AntiEntropy, AntiEntropySettings, Comparison, PageJudge, ThrottledRequester
from agent.settings.node import NodeSettings
from agent.settings.peers import BrokerSettings, PeerSettings
from agent.signing.records import SignerInForce
from agent.telemetry import Telemetry

DIFFERENCES_MAX = 1000  # of one kind in an answer, which keeps it below the limit of the local socket


def identity_of(broker: BrokerSettings, node: str) -> Identity:
    """The identity with which a node authenticates itself at a broker."""
    return Identity(broker.name, node, broker.ca_file, broker.cert_file, broker.key_file)


def access_of(broker: BrokerSettings, identity: Identity, node: str, signer: SignerInForce) -> Access:
    """The address of a broker, the TLS context with which a node connects to it, and the key that signs its
    requests."""
    return Access(broker.name, node, broker.host, broker.port, identity.context, signer)


def bandwidths(peers: Iterable[PeerSettings]) -> dict[str, TokenBucket]:
    """The token bucket of each peer whose bandwidth is limited, by node. All requests to the peer share it."""
    limited = [peer for peer in peers if peer.bytes_per_second_max]
    return {peer.node: TokenBucket(peer.bytes_per_second_max) for peer in limited}


def comparers(
    settings: NodeSettings,
    store: FactStore,
    requesters: Mapping[str, Requester],
    limits: Mapping[str, TokenBucket],
    judge: PageJudge,
    telemetry: Telemetry | None = None,
) -> dict[str, AntiEntropy]:
    """By node, for each peer in `requesters` from which streams are pulled."""
    found = dict[str, AntiEntropy]()
    for peer in settings.peer:
        if peer.pulls and peer.node in requesters:
            origins = settings.origins_of(peer)
            late = frozenset(stream for stream in peer.pulls if peer.start_of(stream) != "oldest")
            what = AntiEntropySettings(
                peer.node,
                peer.pulls,
                origins,
                begun_late=late,
                every_hours=peer.anti_entropy_hours,
                pair_zones=settings.pair_zones,
            )
            requester = ThrottledRequester(requesters[peer.node], limits.get(peer.node), Priority.REPAIR, telemetry)
            found[peer.node] = AntiEntropy(requester, store, what, judge=judge)
    return found


async def compare(known: Mapping[str, AntiEntropy], request: local_socket.ComparePeer) -> local_socket.Compared:
    """Compare all streams pulled from a peer. Raises LocalError if nothing is pulled from it, and what
    `AntiEntropy.compare` raises."""
    comparer = known.get(request.node)
    if comparer is None:
        others = f"; it pulls from {', '.join(sorted(known))}" if known else ""
        raise local_socket.LocalError(f"this node pulls nothing from {request.node!r}{others}", "see bsfg peer list")
    streams = comparer.settings.streams
    found = [
        await comparer.compare(stream, repair=request.repair, scan=request.scan, is_commanded=True)
        for stream in streams
    ]
    return local_socket.Compared([_answer_of(comparison) for comparison in found])


async def compare_alone(settings: NodeSettings, request: local_socket.ComparePeer) -> local_socket.LocalReply:
    """Compare while no node runs: open the store, connect to the broker, compare. Raises BsfgError."""
    peer = next((peer for peer in settings.peer if peer.node == request.node and peer.pulls), None)
    with open_store(settings) as store:
        if peer is None:
            return await RequestHandler(store, partial(compare, {})).answer(request)
        broker = next(broker for broker in settings.broker if broker.name == peer.broker)
        identity = identity_of(broker, settings.node.name)
        link = BrokerLink(access_of(broker, identity, settings.node.name, lambda: store.signer))
        judge = TrustFiles.opened(settings, store).judge
        requester = Requester(link, peer.node, judge.messages.refuses_answer)
        known = comparers(settings, store, {peer.node: requester}, bandwidths(settings.peer), judge)
        handler = RequestHandler(store, partial(compare, known))
        async with link.connected():
            return await handler.answer(request)


def _answer_of(found: Comparison) -> local_socket.ComparedStream:
    """The same record for the local socket, its lists cut to DIFFERENCES_MAX."""
    copied: dict[str, Any] = {name: getattr(found, name) for name in local_socket.ComparedStream.__struct_fields__}
    for name in ("missing", "damaged"):
        copied[name] = [(str(origin), *span) for origin, span in copied[name][:DIFFERENCES_MAX]]
    copied["forks"] = [f"{origin}: {why}" for origin, why in found.forks[:DIFFERENCES_MAX]]
    copied["refused"] = found.refused[:DIFFERENCES_MAX]
    definitions = found.damaged_definitions[:DIFFERENCES_MAX]
    copied["damaged_definitions"] = [(zone, wanted.count) for zone, wanted in definitions]
    return local_socket.ComparedStream(**copied)

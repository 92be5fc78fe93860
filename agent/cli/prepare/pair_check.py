"""What `bsfg check` finds of two gateways at one of them: what would leave both recording, or one without the other's
facts. Core but for the last, which reads the store."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from contextlib import closing, suppress

from agent.errors import StoreError
from agent.fact_store import StoreReader
from agent.settings.node import NodeSettings
from agent.signing.errors import SigningError
from agent.signing.files import load_identity

KEYS_HINT = "let both nodes sign, each with a key that the other one trusts, or neither"


def pair_notes(settings: NodeSettings, recorded: Collection[str]) -> Iterator[str]:
    """`recorded`: the streams of the tags."""
    own, pair = settings.node, settings.pair
    for peer in settings.peer:
        if peer.zone == own.zone and peer.node != pair.partner:
            why = f"peer {peer.node} records for our zone, {own.zone}, and [pair] does not name it: both nodes record"
            yield f'{why}; write partner = "{peer.node}" in [pair]'
    partner = next((peer for peer in settings.peer if peer.node == pair.partner), None)
    if partner is None:
        return
    local = {stream.name for stream in settings.stream if stream.write_class == "local"}
    others = {stream for peer in settings.peer if peer is not partner for stream in peer.exports}
    for kind, exchanged in (("exports", partner.exports), ("pulls", partner.pulls)):
        if lacking := sorted({*recorded, *others} - local - set(exchanged)):
            why = f"{kind} of peer {partner.node} lacks {', '.join(lacking)}: one gateway has no copy of the other's facts"
            yield f"{why}; add it there and at {partner.node}"
    for peer in settings.peer:
        if peer.node == pair.witness and peer.broker == partner.broker:
            why = (
                f"{pair.partner} and {pair.witness} are reached over one broker, {peer.broker}: without it both record"
            )
            yield f"{why}; give the two gateways a broker of their own (docs/how-to/two-gateways.md)"
    yield from _signing_notes(settings)


def _signing_notes(settings: NodeSettings) -> Iterator[str]:
    """Whether the facts of the zone that both nodes record are accepted from the other one, and from this one."""
    own, partner, signing = settings.node, settings.pair.partner, settings.signing
    signs = signing.key_file is not None
    if signs and signing.facts_ca_file is None:
        pins = frozenset[bytes]().union(*(origin.pins for origin in settings.origin if origin.zone == own.zone))
        with suppress(SigningError):  # which is told by itself
            identity = load_identity(signing, own.zone, own.name)
            pins -= {hashlib.sha256(identity.certificate).digest()} if identity else set()
        if not pins:
            why = f"no key of {partner} is trusted here: what it records of {own.zone} is not stored, once this node signed"
            yield f'{why}; name facts_ca_file in [signing], or pin its certificate in [[origin]] zone = "{own.zone}"'
    if not own.store_file.exists():
        return
    with suppress(StoreError), closing(StoreReader(own.store_file)) as reader:
        if not signs and own.zone in reader.signed_zones():
            why = f"facts of {own.zone} here are signed, and this node does not sign: receivers do not store what it records"
            yield f"{why}; {KEYS_HINT}"
        if declined := next((incident for incident in reader.incidents() if incident.declines(own.zone)), None):
            yield f"facts of {own.zone} were not stored here: {declined.detail.partition('. ')[0]}; {KEYS_HINT}"

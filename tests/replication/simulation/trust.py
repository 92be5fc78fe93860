"""The signatures in a world: each zone signs what it records, with a key of its own, and every node demands the
signatures of all zones.

Keys and certificates are made once for each zone; a world asks for them before its chance replaces the system's. A
schedule makes and verifies dozens of signatures, so a keyed hash takes the place of Ed25519 in them: whose key made it
is decided as before, and no part of a world makes one with another zone's key. All else is the product's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent.fact_store import FactStore
from agent.replication.pulling.page_judge import PageJudge, TrustPolicy
from agent.signing.certificates import SignerTrust
from agent.signing.keys import SIGNATURE_BYTES, SignerPublic, SigningKey, ZoneSigner
from tests.signing.signers import make

_BEGINS, _ENDS = datetime(1971, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)


def install(patch: pytest.MonkeyPatch) -> None:
    """Sign and verify by a keyed hash, while a world runs."""
    patch.setattr(SigningKey, "sign", lambda key, data: _keyed(key.public_bytes, data))
    patch.setattr(SignerPublic, "verify", lambda key, data, signature: signature == _keyed(key.public_bytes, data))


def _keyed(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, key=key, digest_size=SIGNATURE_BYTES).digest()


PAIR = {"mill-1": "mill", "mill-2": "mill"}
"""By node, the zone of the nodes that are not named like theirs."""


def zone_of(node: str) -> str:
    """The zone for which a node records."""
    return PAIR.get(node, node)


@cache
def signer_of(node: str) -> ZoneSigner:
    """The key of a node, the same in every run, and certificates that are valid by every clock of a world."""
    key = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"simulated {node}".encode()).digest())
    made = [make(name, key=key, begins=_BEGINS, ends=_ENDS).der for name in dict.fromkeys((zone_of(node), node))]
    return ZoneSigner(SigningKey(key), *made)


def judge_of(store: FactStore, nodes: Iterable[str]) -> PageJudge:
    """The judge of a node with this store: it trusts the pinned signers of each zone, and accepts nothing unsigned."""
    pins = dict[str, frozenset[bytes]]()
    for node in nodes:
        signer = signer_of(node)
        for zone, certificate in ((zone_of(node), signer.certificate), (node, signer.message_certificate)):
            pins[zone] = pins.get(zone, frozenset()) | {hashlib.sha256(certificate).digest()}
    own = signer_of(store.node)
    policy = TrustPolicy(
        SignerTrust(pins=pins),
        dict.fromkeys(pins, "required"),
        store.zone,  # type: ignore[arg-type]
        (own.certificate, own.message_certificate),
        store.node,
    )
    return PageJudge(store, policy)

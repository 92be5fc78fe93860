"""Signed requests: a zone's signature over one request, so that a broker or relay on the way can neither confirm nor
append in its name.

A signed request is, little-endian: the byte 1, u16 length of the certificate, the certificate (DER), 64 bytes of
signature, and then the request as it would be without. JSON never begins with the byte 1. The signature covers both
zones, the requester's instance, the correlation and the request's SHA-256, so it counts for one request to one zone.
Nothing remembers signatures: a request that is repeated is a confirmation that moves nothing, a lease that is bound to
its instance, or an append of a known id. Core: no IO.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

from agent.signing.heads import HeadSigner

SIGNED = b"\1"
CERTIFICATE_BYTES_MAX = 4096
SIGNATURE_BYTES = 64
OVERHEAD_BYTES_MAX = 3 + CERTIFICATE_BYTES_MAX + SIGNATURE_BYTES

_LENGTH = struct.Struct("<H")
_CONTEXT = b"bsfg/request/1\0"


class RequestProof(NamedTuple):
    """The certificate (DER) of the key that signed a request, and the signature; not verified."""

    certificate: bytes
    signature: bytes


class RequestPlace(NamedTuple):
    """What a request is bound to besides its bytes."""

    serving_zone: str
    asking_zone: str
    instance: str
    correlation: bytes


def request_bytes(place: RequestPlace, request: bytes) -> bytes:
    """What the signature of a request covers."""
    parts = (place.serving_zone.encode(), place.asking_zone.encode(), place.instance.encode(), place.correlation)
    bound = b"".join(struct.pack("<B", len(part)) + part for part in parts)
    return _CONTEXT + bound + hashlib.sha256(request).digest()


def sign_request(signer: HeadSigner, place: RequestPlace, request: bytes) -> bytes:
    """The request with its proof in front."""
    certificate = signer.certificate
    assert len(certificate) <= CERTIFICATE_BYTES_MAX
    signature = signer.sign(request_bytes(place, request))
    return SIGNED + _LENGTH.pack(len(certificate)) + certificate + signature + request


def split_request(payload: bytes) -> tuple[bytes, RequestProof | None]:
    """The request in a payload, and its proof if it has one. A proof that is cut short leaves bytes that are no request."""
    if payload[:1] != SIGNED or len(payload) < 3:
        return payload, None
    (length,) = _LENGTH.unpack_from(payload, 1)
    end = 3 + length
    if length > CERTIFICATE_BYTES_MAX or len(payload) < end + SIGNATURE_BYTES:
        return payload, None
    proof = RequestProof(payload[3:end], payload[end : end + SIGNATURE_BYTES])
    return payload[end + SIGNATURE_BYTES :], proof

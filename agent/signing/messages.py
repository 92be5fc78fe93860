"""Signed messages: a zone's signature over one request or answer, so that a broker or relay on the way can neither
confirm nor append in its name, nor refuse or skip facts in the name of its peer.

A signed message is, little-endian: a mark, u16 length of the certificate, the certificate (DER), 64 bytes of signature,
and then the message as it would be without. The mark of a request is the byte 1, with which no JSON begins; that of an
answer is four bytes 255, more than any header's length. The signature covers both zones, the requester's instance, the
correlation and the message's SHA-256, so it counts for one message between two zones. Nothing remembers signatures: a
request that is repeated is a confirmation that moves nothing, a lease that is bound to its instance, or an append of a
known id; an answer that is repeated finds no open request. Core: no IO.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

from agent.signing.heads import HeadSigner

REQUEST_MARK, ANSWER_MARK = b"\1", b"\xff\xff\xff\xff"
CERTIFICATE_BYTES_MAX = 4096
SIGNATURE_BYTES = 64

_LENGTH = struct.Struct("<H")
_CONTEXTS = {REQUEST_MARK: b"bsfg/request/1\0", ANSWER_MARK: b"bsfg/answer/1\0"}


class MessageProof(NamedTuple):
    """The certificate (DER) of the key that signed a message, and the signature; not verified."""

    certificate: bytes
    signature: bytes


class MessagePlace(NamedTuple):
    """What a request and its answer are bound to besides their bytes."""

    serving_zone: str
    asking_zone: str
    instance: str
    correlation: bytes


def request_bytes(place: MessagePlace, request: bytes) -> bytes:
    """What the signature of a request covers."""
    return _covered(REQUEST_MARK, place, request)


def answer_bytes(place: MessagePlace, answer: bytes) -> bytes:
    """What the signature of an answer covers."""
    return _covered(ANSWER_MARK, place, answer)


def sign_request(signer: HeadSigner, place: MessagePlace, request: bytes) -> bytes:
    """The request with its proof in front."""
    return _signed(REQUEST_MARK, signer, place, request)


def sign_answer(signer: HeadSigner, place: MessagePlace, answer: bytes) -> bytes:
    """The answer with its proof in front."""
    return _signed(ANSWER_MARK, signer, place, answer)


def proof_bytes(signer: HeadSigner | None) -> int:
    """How much longer an answer is with its proof."""
    return len(ANSWER_MARK) + _LENGTH.size + len(signer.certificate) + SIGNATURE_BYTES if signer else 0


def split_request(payload: bytes) -> tuple[bytes, MessageProof | None]:
    """The request in a payload, and its proof if it has one. A proof that is cut short leaves bytes that are no
    request."""
    return _split(REQUEST_MARK, payload)


def split_answer(payload: bytes) -> tuple[bytes, MessageProof | None]:
    """The answer in a payload, and its proof if it has one. A proof that is cut short leaves bytes that are no
    answer."""
    return _split(ANSWER_MARK, payload)


def _covered(mark: bytes, place: MessagePlace, message: bytes) -> bytes:
    parts = (place.serving_zone.encode(), place.asking_zone.encode(), place.instance.encode(), place.correlation)
    bound = b"".join(struct.pack("<B", len(part)) + part for part in parts)
    return _CONTEXTS[mark] + bound + hashlib.sha256(message).digest()


def _signed(mark: bytes, signer: HeadSigner, place: MessagePlace, message: bytes) -> bytes:
    certificate = signer.certificate
    assert len(certificate) <= CERTIFICATE_BYTES_MAX
    signature = signer.sign(_covered(mark, place, message))
    return b"".join([mark, _LENGTH.pack(len(certificate)), certificate, signature, message])


def _split(mark: bytes, payload: bytes) -> tuple[bytes, MessageProof | None]:
    begin = len(mark) + _LENGTH.size
    if not payload.startswith(mark) or len(payload) < begin:
        return payload, None
    (length,) = _LENGTH.unpack_from(payload, len(mark))
    end = begin + length
    if length > CERTIFICATE_BYTES_MAX or len(payload) < end + SIGNATURE_BYTES:
        return payload, None
    proof = MessageProof(payload[begin:end], payload[end : end + SIGNATURE_BYTES])
    return payload[end + SIGNATURE_BYTES :], proof

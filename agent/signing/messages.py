"""Signed messages: a node's signature over one request or answer. A broker or relay in between can then neither confirm
nor append in the node's name, nor answer in its peer's name.

A signed message is, little-endian: a mark, u16 length of the certificate, the certificate (DER) or the 8 bytes of its
key's id, 64 bytes of signature, and then the unsigned message. The mark of a request is the byte 1, with which no JSON
begins; that of an answer is four bytes 255, more than any header's length. The signature covers both nodes, the
requester's instance, the correlation and the message's SHA-256, so it is valid for one message between two nodes. In an
answer a batch is covered by its digest alone, which its reader checks: hashing a page a second time would cost a tenth
of its check.

Signatures are not remembered, because replays are harmless. A repeated request is a confirmation that moves nothing, a
lease bound to its instance, an append of a known id, or the removal of a consumer, which a consumer's lease refuses; a
repeated answer finds no open request. Core: no IO.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from agent.batch import DIGEST_BYTES
from agent.pages import BATCHES_MAX
from agent.signing.records import RecordSigner

REQUEST_MARK, ANSWER_MARK = b"\1", b"\xff\xff\xff\xff"
CERTIFICATE_BYTES_MAX = 4096
SIGNATURE_BYTES = 64

_LENGTH, _HEADER_LENGTH = struct.Struct("<H"), struct.Struct("<I")
_Payload = TypeVar("_Payload", bytes, memoryview)
_CONTEXTS = {REQUEST_MARK: b"bsfg/request/1\0", ANSWER_MARK: b"bsfg/answer/1\0"}


class MessageProof(NamedTuple):
    """The certificate (DER) of the key that signed a message, or its key id if the receiver has named it, and the
    signature; not verified."""

    certificate: bytes
    signature: bytes


class MessagePlace(NamedTuple):
    """The context that the signatures of a request and its answer cover in addition to their bytes."""

    serving_node: str
    asking_node: str
    instance: str
    correlation: bytes


def request_bytes(place: MessagePlace, request: bytes | memoryview) -> bytes:
    """The bytes that the signature of a request covers."""
    return _covered(REQUEST_MARK, place, hashlib.sha256(request).digest())


def answer_bytes(place: MessagePlace, answer: bytes | memoryview) -> bytes:
    """The bytes that the signature of an answer covers."""
    return _covered(ANSWER_MARK, place, _digest_of(_without_bodies(answer)))


def signer_name(zone: str, key_id: bytes) -> str:
    """How a request names a certificate that the requester has. One key may have several: of its zone, and of its
    node."""
    return f"{zone}/{key_id.hex()}"


def sign_request(signer: RecordSigner, place: MessagePlace, request: bytes) -> bytes:
    """The request with its proof in front."""
    signature = signer.sign(request_bytes(place, request))
    return _joined(REQUEST_MARK, signer.message_certificate, signature, request)


def sign_answer(
    signer: RecordSigner, place: MessagePlace, answer: bytes | Sequence[bytes], known: Collection[str] = ()
) -> bytes:
    """The answer with the proof in front; without the certificate if the requester has named it (`signer_name`).
    `answer` may be given in parts, of which the first is the header."""
    is_known = signer_name(place.serving_node, signer.key_id) in known
    certificate = signer.key_id if is_known else signer.message_certificate
    if isinstance(answer, bytes):
        return _joined(ANSWER_MARK, certificate, signer.sign(answer_bytes(place, answer)), answer)
    covered = _covered(ANSWER_MARK, place, _digest_of(_parts_without_bodies(answer)))
    return _joined(ANSWER_MARK, certificate, signer.sign(covered), *answer)


def proof_bytes(signer: RecordSigner | None) -> int:
    """The number of bytes that the proof adds to an answer."""
    return len(ANSWER_MARK) + _LENGTH.size + len(signer.message_certificate) + SIGNATURE_BYTES if signer else 0


def split_request(payload: bytes) -> tuple[bytes, MessageProof | None]:
    """The request in a payload, and its proof if it has one. A payload with a truncated proof is returned whole, and is
    not a valid request."""
    return _split(REQUEST_MARK, payload)


def split_answer(payload: _Payload) -> tuple[_Payload, MessageProof | None]:
    """The answer in a payload, and its proof if it has one; a memoryview is not copied. A payload with a truncated
    proof is returned whole, and is not a valid answer."""
    return _split(ANSWER_MARK, payload)


_ENTRY_BYTES_MAX = 64
"""One entry of `batches`: three numbers of up to 19 digits."""


class _Batches(msgspec.Struct):
    batches: msgspec.Raw = msgspec.Raw(b"[]")


_BATCHES = msgspec.json.Decoder(_Batches)
_ENTRIES = msgspec.json.Decoder(list[tuple[int, int, int]])


def _without_bodies(answer: bytes | memoryview) -> list[memoryview]:
    """An answer, with the digest of each batch in place of the batch; the whole answer if its batches cannot be
    located."""
    view = memoryview(answer)
    if len(answer) < _HEADER_LENGTH.size:
        return [view]
    end = _HEADER_LENGTH.size + _HEADER_LENGTH.unpack_from(answer)[0]
    lengths = _batch_lengths(view[_HEADER_LENGTH.size : end])
    if any(length < DIGEST_BYTES for length in lengths) or end + sum(lengths) > len(answer):
        return [view]
    parts = [view[:end]]
    for length in lengths:
        end += length
        parts.append(view[end - DIGEST_BYTES : end])
    return [*parts, view[end:]]


def _parts_without_bodies(parts: Sequence[bytes]) -> list[bytes]:
    """As `_without_bodies`, for an answer in parts: its header, its batches, the rest."""
    header, *attached = parts
    lengths = _batch_lengths(memoryview(header)[_HEADER_LENGTH.size :])
    assert [len(sealed) for sealed in attached[: len(lengths)]] == lengths, "the header lists other batches"
    digests = [sealed[-DIGEST_BYTES:] for sealed in attached[: len(lengths)]]
    return [header, *digests, *attached[len(lengths) :]]


def _batch_lengths(header: memoryview) -> list[int]:
    """The lengths of the batches that a header lists; none if it lists more than a page may have, because the header is
    not proven yet and a megabyte of entries takes long to read."""
    try:
        listed = _BATCHES.decode(header).batches
        if len(listed) > BATCHES_MAX * _ENTRY_BYTES_MAX:
            return []
        lengths = [length for _, _, length in _ENTRIES.decode(listed)]
    except (ValueError, RecursionError):  # every msgspec error is a ValueError
        return []
    return lengths if len(lengths) <= BATCHES_MAX else []


def _digest_of(parts: Iterable[bytes | memoryview]) -> bytes:
    covered = hashlib.sha256()
    for part in parts:
        covered.update(part)
    return covered.digest()


def _covered(mark: bytes, place: MessagePlace, digest: bytes) -> bytes:
    parts = (place.serving_node.encode(), place.asking_node.encode(), place.instance.encode(), place.correlation)
    return _CONTEXTS[mark] + b"".join(struct.pack("<B", len(part)) + part for part in parts) + digest


def _joined(mark: bytes, certificate: bytes, signature: bytes, *message: bytes) -> bytes:
    assert len(certificate) <= CERTIFICATE_BYTES_MAX
    return b"".join([mark, _LENGTH.pack(len(certificate)), certificate, signature, *message])


def _split(mark: bytes, payload: _Payload) -> tuple[_Payload, MessageProof | None]:
    begin = len(mark) + _LENGTH.size
    if payload[: len(mark)] != mark or len(payload) < begin:
        return payload, None
    (length,) = _LENGTH.unpack_from(payload, len(mark))
    end = begin + length
    if length > CERTIFICATE_BYTES_MAX or len(payload) < end + SIGNATURE_BYTES:
        return payload, None
    proof = MessageProof(bytes(payload[begin:end]), bytes(payload[end : end + SIGNATURE_BYTES]))
    return payload[end + SIGNATURE_BYTES :], proof

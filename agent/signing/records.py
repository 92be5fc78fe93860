"""The record: the signature of a batch by its zone, which stands in the batch before its digest.

A batch names the digest of its predecessor, which covers the predecessor's record, so the record of the last batch
proves every batch of that stream and life before it. A record is made when the batch is sealed, and cannot be changed
without changing the digest (decision 0045).

Little-endian, 82 bytes: algorithm u8, flags u8, key id 8 bytes, signed_at_ms i64, signature 64 bytes. Core: no IO.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agent.batch import DIGEST_BYTES, LIFE_BYTES, RECORD_BYTES, Header, Origin
from agent.message import UNIX_MS_MAX

ED25519 = 1
"""The only algorithm. 2 is reserved for P-256 (r and s), which a TPM can hold."""
KEY_ID_BYTES = 8

_RECORD = struct.Struct("<BB8sq64s")
_CONTEXT = b"bsfg/record/1\0"


class RecordError(ValueError):
    """Bytes that are not a record."""


class RecordSigner(Protocol):
    """The private key of a node, and the certificates that name it (DER; empty if receivers pin the key): for the facts
    of its zone, and for its requests and answers."""

    @property
    def key_id(self) -> bytes: ...
    @property
    def certificate(self) -> bytes: ...
    @property
    def message_certificate(self) -> bytes: ...
    def sign(self, data: bytes) -> bytes:
        """The 64 bytes of an Ed25519 signature."""
        ...


SignerInForce = Callable[[], RecordSigner | None]
"""Returns the key with which a zone signs at present; a reload replaces it."""


@dataclass(frozen=True, slots=True)
class Record:
    """The content of a record. `key_id` says which key to try; only the signature proves which key was used."""

    key_id: bytes
    signed_at_ms: int
    signature: bytes

    def packed(self) -> bytes:
        """The bytes of the record."""
        return _RECORD.pack(ED25519, 0, self.key_id, self.signed_at_ms, self.signature)


def parse_record(record: bytes) -> Record:
    """Read a record. Raises RecordError."""
    if len(record) != RECORD_BYTES:
        raise RecordError(f"a record has {RECORD_BYTES} bytes, not {len(record)}")
    algorithm, flags, key_id, signed_at_ms, signature = _RECORD.unpack(record)
    if algorithm != ED25519 or flags:
        raise RecordError(f"algorithm {algorithm}, flags {flags:#x}: one of them is unknown")
    if not 0 <= signed_at_ms <= UNIX_MS_MAX:
        raise RecordError(f"signed at {signed_at_ms} ms, which is not a valid time")
    return Record(key_id, signed_at_ms, signature)


def key_id_in(record: bytes) -> bytes:
    """The key id of a record that may be malformed."""
    return record[2 : 2 + KEY_ID_BYTES]


def signed_bytes(
    stream: str, origin: Origin, last_sequence: int, digest: bytes, key_id: bytes, signed_at_ms: int
) -> bytes:
    """The bytes that a record's signature covers. `digest` is that of all bytes of the batch before the record; the
    names and the sequence, which the batch has too, make a record readable as evidence without its batch."""
    assert (len(origin.life), len(digest), len(key_id)) == (LIFE_BYTES, DIGEST_BYTES, KEY_ID_BYTES)
    names = b"".join(struct.pack("<B", len(name)) + name for name in (origin.zone.encode(), stream.encode()))
    end = origin.life + struct.pack("<Q", last_sequence) + digest
    return _CONTEXT + struct.pack("<BB8s", ED25519, 0, key_id) + names + end + struct.pack("<q", signed_at_ms)


def sign_record(signer: RecordSigner, header: Header, digest: bytes, signed_at_ms: int) -> bytes:
    """The record of a batch with this header, from the digest of all its bytes before the record."""
    data = signed_bytes(header.stream, header.origin, header.last_sequence, digest, signer.key_id, signed_at_ms)
    return Record(signer.key_id, signed_at_ms, signer.sign(data)).packed()

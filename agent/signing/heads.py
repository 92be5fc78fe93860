"""The head: a detached signature of the end of one origin's chain in one stream.

A batch names the digest of its predecessor, so one signature over the digest of the last batch covers every batch of
that stream and epoch before it. A head is made where the facts are recorded, in the transaction that commits them, and
every later store and page carries its bytes verbatim (decision 0045).

Record, little-endian, 82 bytes: algorithm u8, flags u8, key id 8 bytes, signed_at_ms i64, signature 64 bytes. The
stream, the origin, the sequence and the digest are not part of the record, because the batch has them. Core: no IO.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agent.batch import DIGEST_BYTES, EPOCH_BYTES, Origin
from agent.message import UNIX_MS_MAX

ED25519 = 1
"""The only algorithm. 2 is reserved for P-256 (r and s), which a TPM can hold."""
KEY_ID_BYTES = 8
HEAD_BYTES = 82
RUN_BYTES_MAX = 128 * 1024
"""The most sealed bytes between two heads in one commit or page: a receiver must keep this much before it can prove it.
At 8 million facts/s this costs 0.7 % of a core for signing and 2 % for verifying."""

_RECORD = struct.Struct("<BB8sq64s")
_CONTEXT = b"bsfg/head/1\0"


class HeadError(ValueError):
    """Bytes that are not a head."""


class HeadSigner(Protocol):
    """The private key of a zone, and the certificate that names it (DER; empty if receivers pin the key)."""

    @property
    def key_id(self) -> bytes: ...
    @property
    def certificate(self) -> bytes: ...
    def sign(self, data: bytes) -> bytes:
        """The 64 bytes of an Ed25519 signature."""
        ...


SignerInForce = Callable[[], HeadSigner | None]
"""Returns the key with which a zone signs at present; a reload replaces it."""


@dataclass(frozen=True, slots=True)
class Head:
    """The content of a record. `key_id` says which key to try; only the signature proves which key was used."""

    key_id: bytes
    signed_at_ms: int
    signature: bytes

    def packed(self) -> bytes:
        """The record."""
        return _RECORD.pack(ED25519, 0, self.key_id, self.signed_at_ms, self.signature)


def parse_head(record: bytes) -> Head:
    """Read a record. Raises HeadError."""
    if len(record) != HEAD_BYTES:
        raise HeadError(f"a head has {HEAD_BYTES} bytes, not {len(record)}")
    algorithm, flags, key_id, signed_at_ms, signature = _RECORD.unpack(record)
    if algorithm != ED25519 or flags:
        raise HeadError(f"algorithm {algorithm}, flags {flags:#x}: one of them is unknown")
    if not 0 <= signed_at_ms <= UNIX_MS_MAX:
        raise HeadError(f"signed at {signed_at_ms} ms, which is not a valid time")
    return Head(key_id, signed_at_ms, signature)


def key_id_in(record: bytes) -> bytes:
    """The key id of a record that may be malformed."""
    return record[2 : 2 + KEY_ID_BYTES]


def signed_bytes(
    stream: str, origin: Origin, last_sequence: int, digest: bytes, key_id: bytes, signed_at_ms: int
) -> bytes:
    """The bytes that the signature of a head covers: the chain of an origin in a stream, up to the batch that ends at
    `last_sequence` and has `digest`."""
    assert (len(origin.epoch), len(digest), len(key_id)) == (EPOCH_BYTES, DIGEST_BYTES, KEY_ID_BYTES)
    names = b"".join(struct.pack("<B", len(name)) + name for name in (origin.zone.encode(), stream.encode()))
    end = origin.epoch + struct.pack("<Q", last_sequence) + digest
    return _CONTEXT + struct.pack("<BB8s", ED25519, 0, key_id) + names + end + struct.pack("<q", signed_at_ms)


def sign_head(
    signer: HeadSigner, stream: str, origin: Origin, last_sequence: int, digest: bytes, now_unix_ms: int
) -> bytes:
    """The record that signs a chain up to a batch."""
    signature = signer.sign(signed_bytes(stream, origin, last_sequence, digest, signer.key_id, now_unix_ms))
    return Head(signer.key_id, now_unix_ms, signature).packed()

"""The heads of docs/developers/batch-format.md, read by the product and by a second reader written from that page
alone."""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from agent.message import UNIX_MS_MAX
from agent.signing.certificates import Signer
from agent.signing.heads import HeadError, parse_head
from agent.signing.keys import SignerPublic
from agent.signing.runs import ChainEnd, Origin, Proof, check_head

VECTORS = Path(__file__).parents[1] / "vectors"
HEADS: dict[str, Any] = json.loads((VECTORS / "heads.json").read_text())
BATCHES = {one["name"]: one for one in json.loads((VECTORS / "batches.json").read_text())["batches"]}


def signed_by_the_page(header: dict[str, Any], record: bytes) -> bytes:
    """What a head signs, from the table of the page."""
    zone, stream = header["zone"].encode(), header["stream"].encode()
    last = header["first_sequence"] + header["count"] - 1
    return (
        b"bsfg/head/1\x00"
        + record[:10]
        + bytes([len(zone)])
        + zone
        + bytes([len(stream)])
        + stream
        + bytes.fromhex(header["epoch"])
        + struct.pack("<Q", last)
        + bytes.fromhex(header["digest"])
        + record[10:18]
    )


@pytest.mark.parametrize("vector", HEADS["heads"], ids=lambda one: one["batch"])
def test_a_second_reader_verifies_each_head(vector: dict[str, Any]) -> None:
    """The page suffices: bytes put together from its table are those that were signed, and the signature holds for them
    and for no other batch."""
    record, public = bytes.fromhex(vector["record"]), bytes.fromhex(HEADS["public_key"])
    assert hashlib.sha256(public).digest()[:8] == record[2:10] == bytes.fromhex(HEADS["key_id"])
    assert struct.unpack("<q", record[10:18])[0] == vector["signed_at_ms"]
    signed = signed_by_the_page(BATCHES[vector["batch"]]["header"], record)
    assert signed.hex() == vector["signed"]
    Ed25519PublicKey.from_public_bytes(public).verify(record[18:], signed)
    other = signed_by_the_page(BATCHES["planes"]["header"], record)
    with pytest.raises(InvalidSignature):
        Ed25519PublicKey.from_public_bytes(public).verify(record[18:], other)


@pytest.mark.parametrize("vector", HEADS["heads"], ids=lambda one: one["batch"])
def test_the_product_verifies_each_head(vector: dict[str, Any]) -> None:
    """The same heads are proof for the product."""
    header = BATCHES[vector["batch"]]["header"]
    last = header["first_sequence"] + header["count"] - 1
    origin = Origin(header["zone"], bytes.fromhex(header["epoch"]))
    end = ChainEnd(header["stream"], origin, last, bytes.fromhex(header["digest"]))
    signer = Signer(header["zone"], SignerPublic(bytes.fromhex(HEADS["public_key"])), 0, UNIX_MS_MAX)
    assert check_head(bytes.fromhex(vector["record"]), end, lambda *_: signer)[0] is Proof.VERIFIED


@pytest.mark.parametrize("vector", HEADS["refused"], ids=lambda one: one["name"])
def test_what_is_no_head_is_refused(vector: dict[str, Any]) -> None:
    """Another algorithm, flag, length or an impossible time is no head."""
    with pytest.raises(HeadError):
        parse_head(bytes.fromhex(vector["record"]))

"""Corrupted bytes are always refused, with BatchError."""

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import batch
from agent.message import Envelope, Fact, Json, Message
from tests.batch.making import DEFINITIONS, LINK, sealed_again

MIXED = [
    (1, 100, 1.1, 0), (2, 31, "on", 9), (1, 200, b"\x00", 5), (2, 25, None, 1), (1, 1, True, 7),
    (2, 2, Json(b"[1]"), 0), (1, -5, 2**64 - 2, 3), (1, -3, -0.3, 0), (2, 77, -3, 200), (1, 7, 91, 77),
]  # fmt: skip
MESSAGE = Message(Envelope("id-1", "plant", "*", 1_767_225_600_000, labels={"a": "b"}), Fact("k:1", "done", b"{}"))
SMALL = {
    "raw": batch.seal_samples(LINK, MIXED, DEFINITIONS),
    "zstd": batch.seal_samples(LINK, [(1, n, f"the same words {n}", 0) for n in (1, 5, 2)] * 2, DEFINITIONS),
    "slice": batch.cut(batch.seal_samples(LINK, MIXED, DEFINITIONS), 2, 5),
    "messages": batch.seal_messages(LINK, [MESSAGE]),
}


@pytest.fixture(scope="module")
def large() -> batch.Batch:
    """A batch of 2,000 facts with values that do not compress."""
    rng = random.Random(7)
    rows = [(rng.randrange(1, 3), rng.randrange(2**60), rng.random(), 0) for _ in range(2000)]
    return batch.seal_samples(LINK, rows, DEFINITIONS)


def test_small_batches_cover_both_codecs() -> None:
    """The tests below need batches of both codecs."""
    assert SMALL["raw"].header.codec is batch.Codec.RAW
    assert SMALL["zstd"].header.codec is batch.Codec.ZSTD


@pytest.mark.parametrize("name", SMALL)
def test_every_corrupted_byte_is_refused(name: str) -> None:
    """Every byte of a small batch, in each single bit and wholly inverted: BatchError, and nothing else."""
    sealed = SMALL[name].sealed
    for at in range(len(sealed)):
        for flip in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            damaged = sealed[:at] + bytes([sealed[at] ^ flip]) + sealed[at + 1 :]
            with pytest.raises(batch.BatchError):
                batch.parse(damaged)


@pytest.mark.parametrize("name", SMALL)
def test_every_truncation_and_extension_is_refused(name: str) -> None:
    """A batch has exactly the length in its header, also where the rest would still be valid."""
    sealed = SMALL[name].sealed
    for length in range(len(sealed)):
        with pytest.raises(batch.BatchError):
            batch.parse(sealed[:length])
        with pytest.raises(batch.BatchError):
            batch.parse(sealed[length + 1 :])
    for tail in (b"\x00", sealed, sealed[-16:]):
        with pytest.raises(batch.BatchError):
            batch.parse(sealed + tail)


def test_damage_anywhere_in_a_large_batch_is_refused(large: batch.Batch) -> None:
    """One changed byte, a swapped pair, a cut and a doubled piece at 300 random places."""
    sealed, rng = large.sealed, random.Random(11)
    for _ in range(300):
        a, b = sorted(rng.sample(range(len(sealed)), 2))
        changed = bytes([sealed[a] ^ rng.randrange(1, 256)])
        damaged = {
            sealed[:a] + changed + sealed[a + 1 :],
            sealed[:a] + sealed[b : b + 1] + sealed[a + 1 : b] + sealed[a : a + 1] + sealed[b + 1 :],
            sealed[:a] + sealed[b:],
            sealed[:b] + sealed[a:],
            sealed[:a],
        } - {sealed}
        for data in damaged:
            with pytest.raises(batch.BatchError):
                batch.parse(data)


def accept_or_refuse(data: bytes) -> None:
    """Read a batch; any other exception than BatchError fails the test."""
    with contextlib.suppress(batch.BatchError):
        batch.verify(batch.parse(data))


@settings(max_examples=300)
@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda tail: b"BSFB\x01" + tail))
def test_garbage_is_refused_in_one_way(data: bytes) -> None:
    """Any other bytes raise BatchError, so a caller needs no other except."""
    with pytest.raises(batch.BatchError):
        batch.parse(data)
    accept_or_refuse(data)


@settings(max_examples=500)
@given(st.sampled_from(sorted(SMALL)), st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4))
def test_changed_bytes_with_a_right_digest_are_read_or_refused(name: str, changes: list[tuple[int, int]]) -> None:
    """Changed bytes with a valid digest reach every later check, and none fails with another error."""
    data = bytearray(SMALL[name].sealed)
    for at, byte in changes:
        data[at % (len(data) - 16)] = byte
    accept_or_refuse(sealed_again(bytes(data)))


@settings(max_examples=300)
@given(st.sampled_from(sorted(SMALL)), st.integers(0, 10_000), st.integers(0, 8), st.binary(max_size=8))
def test_spliced_bodies_with_right_lengths_are_read_or_refused(name: str, at: int, gone: int, new: bytes) -> None:
    """As above, with the lengths in the header adjusted, so that MessagePack and zstd get the bytes."""
    whole = SMALL[name]
    body = whole.sealed[whole.body_at : -16]
    at %= len(body)
    body = body[:at] + new + body[at + gone :]
    data = bytearray(whole.sealed[: whole.body_at])
    data[92:96] = len(body).to_bytes(4, "little")
    if whole.header.codec is batch.Codec.RAW:
        data[88:92] = len(body).to_bytes(4, "little")
    accept_or_refuse(sealed_again(bytes(data) + body + bytes(16)))

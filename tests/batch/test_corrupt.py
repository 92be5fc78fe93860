"""Corrupted bytes are always refused, with BatchError (with a right digest: the target `batch` of tests/fuzz)."""

import pytest

from agent import batch
from agent.message import Envelope, Fact, Json, Message
from tests.batch.making import DEFINITIONS, LINK

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

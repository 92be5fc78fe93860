"""What a reader would refuse is not sealed: the mistake is the caller's, and what is too large has an error of its own.
Corrupted bytes are always refused, with BatchError (with a right digest: the target `batch` of tests/fuzz)."""

import datetime as dt
import random
import struct
from typing import Any

import pytest

from agent import batch
from agent.message import Envelope, Fact, Json, Message
from tests.batch.making import DEFINITIONS, LINK, ORIGIN

SAMPLE_MISTAKES: dict[str, list[tuple[Any, ...]]] = {
    "tag 0": [(0, 1, 1, 0)],
    "tag undefined": [(3, 1, 1, 0)],
    "tag True": [(True, 1, 1, 0)],
    "tag float": [(1, 1, 1, 0), (1.0, 2, 1, 0), (2, 3, 1, 0)],
    "tag text": [("1", 1, 1, 0)],
    "tag None": [(None, 1, 1, 0)],
    "time float": [(1, 1, 1, 0), (1, 2.0, 1, 0)],
    "time float in even steps": [(1, 1, 1, 0), (1, 2.0, 1, 0), (1, 3, 1, 0)],
    "time float in uneven steps": [(1, 1, 1, 0), (1, 2.5, 1, 0), (1, 9, 1, 0)],
    "time True": [(1, True, 1, 0)],
    "time True and uneven steps": [(1, True, 1, 0), (1, 5, 1, 0), (1, 7, 1, 0)],
    "time float among far ones": [(1, 2**63 - 1, 1, 0), (1, -(2**63), 1, 0), (1, 2.0, 1, 0)],
    "time True among far ones": [(1, True, 1, 0), (1, 2**63 - 1, 1, 0), (1, -(2**63), 1, 0)],
    "time None": [(1, None, 1, 0)],
    "time above int64": [(1, 2**63, 1, 0)],
    "time below int64": [(1, -(2**63) - 1, 1, 0)],
    "quality negative": [(1, 1, 1, -1)],
    "quality of 33 bits": [(1, 1, 1, 2**32)],
    "quality True": [(1, 1, 1, True)],
    "quality None": [(1, 1, 1, 0), (1, 1, 1, None)],
    "value above uint64": [(1, 1, 2**64, 0)],
    "value below int64": [(1, 1, -(2**63) - 1, 0)],
    "value list": [(1, 1, [1], 0)],
    "value dict": [(1, 1, {}, 0)],
    "value time": [(1, 1, dt.datetime.now(dt.UTC), 0)],
    "value lone surrogate": [(1, 1, "\ud800", 0)],
    "value JSON that is none": [(1, 1, Json(b"{"), 0)],
    "value subclass": [(1, 1, batch.Kind.SAMPLES, 0)],
    "tag of many values": [(-1, 1, 1, 0), (2, 1, 1, 0)],
    "time text": [(1, "1", 1, 0)],
    "times mixed": [(1, "1", 1, 0), (1, 2, 1, 0)],
    "one tag float": [(1.0, 1, 1, 0)],
    "one time float": [(1, 1.0, 1, 0)],
    "one quality float": [(1, 1, 1, 0.0)],
    "quality float": [(1, 1, 1, 0), (1, 1, 1, 1.0), (1, 1, 1, 7)],
    "value above uint64 among ints": [(1, 1, 5, 0), (1, 1, 2**64, 0)],
    "value below int64 beside one above": [(1, 1, 2**63, 0), (1, 1, -(2**63) - 1, 0)],
    "value of another type among floats": [(1, 1, 1.5, 0), (1, 1, [1], 0)],
    "row too short": [(1, 1, 1)],
    "no rows": [],
}
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


@pytest.mark.parametrize("name", SAMPLE_MISTAKES)
def test_callers_mistakes_are_not_sealed(name: str) -> None:
    """Facts that a reader would refuse are not sealed: ValueError, not BatchError, because nothing was received."""
    with pytest.raises(ValueError, match=r".") as caught:
        batch.seal_samples(LINK, SAMPLE_MISTAKES[name], DEFINITIONS)
    assert not isinstance(caught.value, batch.BatchError)


def test_a_bool_further_down_counts_as_its_integer() -> None:
    """Checking the type of every number would cost as much as packing it; the sealed batch can be read all the same."""
    rows = [(1, 5, 1.5, 3), (True, True, 1.5, True), (2, 9, 1.5, 7)]
    assert list(batch.open_samples(batch.seal_samples(LINK, rows, DEFINITIONS)).rows()) == rows
    assert batch.open_samples(batch.seal_samples(LINK, rows[:2], DEFINITIONS)).source_times_ns == [5, 1]


@pytest.mark.parametrize(
    "link",
    [
        batch.Link("Facts", ORIGIN),
        batch.Link("facts", batch.Origin("Plant", bytes(16))),
        batch.Link("facts", batch.Origin("plant", b"short")),
        batch.Link("facts", ORIGIN, 0),
        batch.Link("facts", ORIGIN, 2**63 - 1, b"p" * 16),
        batch.Link("facts", ORIGIN, 2),
        batch.Link("facts", ORIGIN, 2, b"p"),
        batch.Link("facts", ORIGIN, 1, b"p" * 16),
    ],
)
def test_a_link_that_no_chain_has_is_not_sealed(link: batch.Link) -> None:
    """The rules of the header hold for the writer as for the reader."""
    with pytest.raises(ValueError, match=r"stream|zone|life|sequence|digest"):
        batch.seal_samples(link, [(1, 1, 1, 0)], DEFINITIONS)


def test_messages_not_checked_are_not_sealed() -> None:
    """Messages that were not checked by check_message are refused."""
    for envelope, fact in (
        (Envelope("", "plant", "*", 5), Fact("k:1", "p", b"1")),
        (Envelope("a", "plant", "*", -1), Fact("k:1", "p", b"1")),
        (Envelope("a", "plant", "*", 5), Fact("no subject", "p", b"1")),
        (Envelope("a", "plant", "*", 5), Fact("k:1", "p", b"{")),
        (Envelope("a", "plant", "*", 5), Fact("k:1", "p", "1")),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match="not checked"):
            batch.seal_messages(LINK, [Message(envelope, fact)])


def test_too_large_for_a_batch_has_its_own_error() -> None:
    """BatchTooLarge means that fewer facts would fit: by facts, by content, by sealed bytes; for samples and for
    messages."""
    row = (1, 1, 1, 0)
    content = [(1, 1, struct.pack("<d", n / 7) * 8000, 0) for n in range(40)]
    incompressible = [(1, 1, random.Random(n).randbytes(60_000), 0) for n in range(10)]
    for rows in ([row] * (batch.FACTS_MAX + 1), content, incompressible):
        with pytest.raises(batch.BatchTooLarge):
            batch.seal_samples(LINK, rows, DEFINITIONS)
    large = Message(Envelope("a", "plant", "*", 5), Fact("k:1", "p", b'"' + b"x" * 250_000 + b'"'))
    with pytest.raises(batch.BatchTooLarge):
        batch.seal_messages(LINK, [large] * 9 + [Message(large.envelope, Fact("k:1", "p", b"1"))])
    with pytest.raises(batch.BatchTooLarge):
        batch.seal_messages(LINK, [])


def test_names_that_a_peer_invents_take_no_memory() -> None:
    """Names are remembered across batches, but only some of them, whatever a peer sends."""
    for n in range(300):
        link = batch.Link(f"facts.{n}", batch.Origin(f"zone-{n}", n.to_bytes(16)))
        batch.parse(batch.seal_samples(link, [(1, 1, 1, 0)], DEFINITIONS).sealed)
    for remembered in (batch._names, batch._are_names):
        assert remembered.cache_info().currsize <= 256


def test_whatever_is_sealed_is_short_enough_to_be_read() -> None:
    """Around the limit of a sealed batch, facts are either read back or refused as too large: a batch that its own
    store could not read would be lost."""
    largest, values = 0, [random.Random(n).randbytes(65_000) for n in range(8)]
    for more in range(3_900, 4_096):
        rows = [(1, 1, value, 0) for value in (*values, random.Random(99).randbytes(more))]
        try:
            sealed = batch.seal_samples(LINK, rows, DEFINITIONS).sealed
        except batch.BatchTooLarge:
            assert largest, "none was sealed"
            break
        largest = len(batch.parse(sealed).sealed)
    assert largest == batch.SEALED_BYTES_MAX


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

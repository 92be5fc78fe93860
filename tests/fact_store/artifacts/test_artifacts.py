"""Artifacts: stored once by digest, chunk by chunk, resumable and verified; found in the facts that refer to them."""

import hashlib
import os
import random
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.fact_store.artifacts import artifact_files
from agent.fact_store.artifacts.artifact_files import ArtifactFiles
from agent.fact_store.log.artifact_reference import (
    CHUNK_BYTES_MAX,
    REFERENCES_MAX,
    ArtifactLimits,
    FinishArtifact,
    SkipChunk,
    WriteChunk,
    check_artifact_room,
    checked_references,
    decide_chunk,
    references_in,
)
from agent.fact_store.log.errors import (
    ArtifactMismatch,
    ArtifactMissing,
    ArtifactRefused,
    ArtifactsFull,
    ArtifactTooLarge,
    StoreError,
    StoreFull,
)
from agent.message import Envelope, Fact, Message, canonical_json
from agent.pages import ArtifactProgress, ArtifactReference

BLOB = random.Random(1).randbytes(3 * CHUNK_BYTES_MAX + 17)


def digest_of(blob: bytes) -> str:
    """The digest of some bytes."""
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def put(store: ArtifactFiles, blob: bytes, digest: str, chunk: int = CHUNK_BYTES_MAX) -> ArtifactProgress:
    """Send bytes as a sender without state does: from 0, then from wherever the answer says."""
    held = store.put_chunk(digest, len(blob), 0, b"")
    while not held.is_complete:
        held = store.put_chunk(digest, len(blob), held.received, blob[held.received : held.received + chunk])
    return held


def refused(error: type[StoreError], store: ArtifactFiles, *arguments: object) -> None:
    """The chunk is refused with exactly this error."""
    with pytest.raises(error) as caught:
        store.put_chunk(*arguments)  # type: ignore[arg-type]
    assert type(caught.value) is error


@pytest.mark.parametrize(
    "held, size, offset, length, expected",
    [
        (None, 10, 0, 4, WriteChunk()),
        (None, 10, 0, 10, WriteChunk()),
        (None, 10, 4, 4, SkipChunk(0, is_complete=False)),
        (ArtifactProgress(10, 4, is_complete=False), 10, 0, 4, SkipChunk(4, is_complete=False)),
        (ArtifactProgress(10, 4, is_complete=False), 10, 4, 6, WriteChunk()),
        (ArtifactProgress(10, 4, is_complete=False), 10, 4, 0, SkipChunk(4, is_complete=False)),
        (ArtifactProgress(10, 10, is_complete=False), 10, 10, 0, FinishArtifact()),
        (ArtifactProgress(10, 10, is_complete=False), 10, 0, 4, FinishArtifact()),
        (ArtifactProgress(10, 10, is_complete=True), 10, 3, 4, SkipChunk(10, is_complete=True)),
    ],
)
def test_how_a_chunk_is_handled(
    held: ArtifactProgress | None,
    size: int,
    offset: int,
    length: int,
    expected: WriteChunk | FinishArtifact | SkipChunk,
) -> None:
    """A chunk is written only at the end of the received bytes; any other is answered with the offset to continue
    from."""
    assert decide_chunk(held, size, offset, length, 1000) == expected


@pytest.mark.parametrize("size, offset, length", [(0, 0, 0), (2000, 0, 1), (10, -1, 1), (10, 8, 3), (10, 0, -1)])
def test_invalid_chunks(size: int, offset: int, length: int) -> None:
    """Empty, oversized and overlapping chunks are refused before anything is written."""
    with pytest.raises(ArtifactRefused):
        decide_chunk(None, size, offset, length, 1000)


def test_an_artifact_round_trips(tmp_path: Path) -> None:
    """What was put in chunks is read in chunks, the same bytes, and sending it again writes nothing."""
    store, digest = ArtifactFiles(tmp_path), digest_of(BLOB)
    assert put(store, BLOB, digest).is_complete
    (stored,) = tmp_path.glob("??/*")
    before = stored.stat().st_ino
    assert put(store, BLOB, digest).is_complete
    assert stored.stat().st_ino == before
    found = b""
    while len(found) < len(BLOB):
        size, data = store.read_chunk(digest, len(found), 100_000)
        assert size == len(BLOB)
        found += data
    assert found == BLOB
    assert store.verify(digest)
    assert list(store.digests()) == [digest]


@settings(max_examples=50, deadline=None)
@given(cuts=st.lists(st.integers(1, 5000), min_size=1, max_size=8), stops=st.integers(0, 7))
def test_a_transfer_goes_on_where_it_stopped(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], stops: int
) -> None:
    """Whatever the chunks, and wherever the receiving process was replaced, the artifact becomes complete."""
    folder = tmp_path_factory.mktemp("artifacts")
    blob = random.Random(sum(cuts)).randbytes(sum(cuts))
    digest, offset = digest_of(blob), 0
    store = ArtifactFiles(folder)
    for number, cut in enumerate(cuts):
        if number == stops:
            store = ArtifactFiles(folder)
            assert store.put_chunk(digest, len(blob), 0, b"").received == offset
        held = store.put_chunk(digest, len(blob), offset, blob[offset : offset + cut])
        offset += cut
        assert (held.received, held.is_complete) == (offset, offset == len(blob))
    assert store.verify(digest)


def test_wrong_bytes_never_become_an_artifact(tmp_path: Path) -> None:
    """Bytes without the announced digest are refused with the last chunk, and removed."""
    store, digest = ArtifactFiles(tmp_path), digest_of(b"right")
    refused(ArtifactMismatch, store, digest, 5, 0, b"wrong")
    assert store.held(digest) is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert put(store, b"right", digest).is_complete


def test_bad_names_sizes_and_full_disks_are_refused(tmp_path: Path) -> None:
    """An invalid digest (a path, capitals), a wrong size, too many bytes, and no room: each has its error, and nothing
    is written."""
    store = ArtifactFiles(tmp_path, ArtifactLimits(1000))
    for name in ("sha256:../../etc/passwd", "sha256:" + "A" * 64, "md5:" + "a" * 32, ""):
        refused(ArtifactRefused, store, name, 5, 0, b"right")
    refused(ArtifactTooLarge, store, digest_of(b"x"), 1001, 0, b"x")
    put(store, b"right", digest_of(b"right"))
    refused(ArtifactRefused, store, digest_of(b"right"), 6, 0, b"right!")
    full = ArtifactFiles(tmp_path / "full", ArtifactLimits(free_min=2**62))
    refused(StoreFull, full, digest_of(b"right"), 5, 0, b"right")
    with pytest.raises(ArtifactMissing, match="not here"):
        store.read_chunk(digest_of(b"left"), 0, 10)


def test_a_power_cut_in_the_middle_costs_the_transfer_at_most(tmp_path: Path) -> None:
    """Whatever prefix of a transfer is left, and whatever its last bytes became: a second attempt completes it, and no
    other bytes get the name."""
    store, digest = ArtifactFiles(tmp_path), digest_of(BLOB)
    for length, is_spoilt in (
        (0, False),
        (1, False),
        (70_000, False),
        (70_000, True),
        (len(BLOB), False),
        (len(BLOB), True),
    ):
        put_some = store.put_chunk(digest, len(BLOB), 0, BLOB[:1])
        (partial,) = (tmp_path / "partial").iterdir()
        partial.write_bytes(BLOB[: length - 1] + b"?" if is_spoilt else BLOB[:length])
        again = ArtifactFiles(tmp_path)
        if is_spoilt:
            with pytest.raises(ArtifactMismatch):
                put(again, BLOB, digest)
            assert again.held(digest) is None
        assert put_some.received <= 1
        assert put(again, BLOB, digest).is_complete
        assert again.verify(digest)
        (stored,) = tmp_path.glob("??/*")
        stored.unlink()


@pytest.mark.parametrize(
    "limits, size, received, used, free, error",
    [
        (ArtifactLimits(), 10, 0, 2**60, None, None),
        (ArtifactLimits(total_max=100), 10, 0, 90, None, None),
        (ArtifactLimits(total_max=100), 10, 4, 94, None, None),
        (ArtifactLimits(total_max=100), 10, 0, 91, None, ArtifactsFull),
        (ArtifactLimits(total_max=100), 101, 100, 0, None, ArtifactTooLarge),
        (ArtifactLimits(free_min=50), 10, 0, 0, 60, None),
        (ArtifactLimits(free_min=50), 10, 0, 0, 59, StoreFull),
        (ArtifactLimits(free_min=50), 10, 1, 0, 59, None),
        (ArtifactLimits(free_min=0), 10, 0, 0, 5, None),
    ],
)
def test_an_artifact_needs_room_for_all_missing_bytes(
    limits: ArtifactLimits, size: int, received: int, used: int, free: int | None, error: type[StoreError] | None
) -> None:
    """All missing bytes must have room before any are stored; an artifact that can never have room is refused for
    good."""
    with pytest.raises(error) if error else nullcontext():
        check_artifact_room(limits, size, received, used, free)


def test_all_artifacts_together_have_a_limit(tmp_path: Path) -> None:
    """An artifact beyond it is refused before a byte is written, also after a restart, until unreferenced ones are
    swept."""
    put(ArtifactFiles(tmp_path), b"a" * 600, digest_of(b"a" * 600))
    store = ArtifactFiles(tmp_path, ArtifactLimits(total_max=1000))
    refused(ArtifactsFull, store, digest_of(b"b" * 401), 401, 0, b"b" * 100)
    put(store, b"c" * 300, digest_of(b"c" * 300))
    store.put_chunk(digest_of(b"d" * 100), 100, 0, b"d" * 50)
    assert store.bytes_used() == 950
    assert store.sweep(lambda _: False, -1) == 3
    assert store.bytes_used() == 0
    put(store, b"b" * 401, digest_of(b"b" * 401))
    refused(ArtifactTooLarge, store, digest_of(b"e" * 1001), 1001, 0, b"e")


def test_bytes_lacking_for_a_refused_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes lacking are those to be removed before the refused artifact has room, also in the middle of it; 0 when
    there is room, when it was not requested for ten minutes, and for one that never has room."""
    now_s = 1_000.0
    monkeypatch.setattr(artifact_files.time, "monotonic", lambda: now_s)
    store = ArtifactFiles(tmp_path, ArtifactLimits(total_max=1000))
    put(store, b"a" * 700, digest_of(b"a" * 700))
    assert store.bytes_lacking() == 0
    refused(ArtifactTooLarge, store, digest_of(b"e" * 1001), 1001, 0, b"e")
    assert store.bytes_lacking() == 0
    refused(ArtifactsFull, store, digest_of(b"b" * 401), 401, 0, b"b" * 100)
    assert store.bytes_lacking() == 101
    now_s += artifact_files.REFUSED_S + 1
    assert store.bytes_lacking() == 0
    refused(ArtifactsFull, store, digest_of(b"b" * 401), 401, 0, b"b" * 100)
    assert store.bytes_lacking() == 101
    assert store.sweep(lambda _: False, -(10**10)) == 1
    assert store.bytes_lacking() == 0
    refused(ArtifactsFull, put_beside(store, 700), digest_of(b"b" * 401), 401, 0, b"b" * 100)
    assert store.sweep(lambda _: False, -(10**10)) == 1
    put(store, b"b" * 401, digest_of(b"b" * 401))
    put(store, b"c" * 599, digest_of(b"c" * 599))
    assert store.bytes_lacking() == 0, "it is full of what had waited"


def put_beside(store: ArtifactFiles, size: int) -> ArtifactFiles:
    """Put one more artifact into the store."""
    put(store, b"a" * size, digest_of(b"a" * size))
    return store


def test_another_size_starts_another_transfer(tmp_path: Path) -> None:
    """A sender that announces another size starts its own transfer; the digest decides which size is right."""
    store, digest = ArtifactFiles(tmp_path), digest_of(BLOB)
    store.put_chunk(digest, len(BLOB) + 5, 0, BLOB[:10])
    assert put(store, BLOB, digest).is_complete


def test_orphans_go_and_what_is_referenced_stays(tmp_path: Path) -> None:
    """Old unreferenced artifacts and abandoned transfers are swept; young ones and referenced ones stay."""
    store = ArtifactFiles(tmp_path)
    kept, orphan, young = (digest_of(one) for one in (b"kept", b"orphan", b"young"))
    for blob in (b"kept", b"orphan", b"young"):
        put(store, blob, digest_of(blob))
    store.put_chunk(digest_of(b"half"), 4, 0, b"ha")
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != young.removeprefix("sha256:"):
            os.utime(path, (1000, 1000))
    assert store.sweep(lambda digest: digest == kept, 3600) == 2
    assert set(store.digests()) == {kept, young}
    assert store.held(orphan) is None
    assert store.held(digest_of(b"half")) is None


def message(content: object, media_type: str | None = "application/pdf") -> Message:
    """A message about some object."""
    envelope = Envelope("m1", "plant-a", "*", 1, object_media_type=media_type)
    return Message(envelope, Fact("batch:B1", "report_filed", canonical_json(content)))


def test_references_are_found_at_any_depth() -> None:
    """References at any depth count once each; objects that only look like one do not; without a media type there are
    none."""
    one = {"bucket": "batch-files", "key": "b1.pdf", "digest": "sha256:" + "a" * 64, "size": 7}
    two = {"digest": "sha256:" + "b" * 64, "size": 9}
    content = {
        "report": one,
        "pages": [two, {"again": one}],
        "no": {"digest": "sha256:x", "size": 1},
        "n": {"digest": 1},
    }
    expected = {ArtifactReference(one["digest"], 7), ArtifactReference(two["digest"], 9)}  # type: ignore[arg-type]
    assert set(references_in(message(content))) == expected
    assert references_in(message(content, None)) == ()
    assert references_in(message({"digest": two["digest"], "size": True})) == ()


def test_too_many_references_are_refused_where_they_are_appended() -> None:
    """In a fact that is appended here; a fact from another zone's log is stored with all its references."""
    many = message([{"digest": digest_of(bytes([one])), "size": 1} for one in range(REFERENCES_MAX + 1)])
    with pytest.raises(ArtifactRefused, match="65 artifacts, 64 at most"):
        checked_references(many)
    assert len(references_in(many)) == 65

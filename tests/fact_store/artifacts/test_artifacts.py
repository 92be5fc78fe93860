"""Artifacts: stored once by digest, chunk by chunk, resumable and verified; found in the facts that refer to them.
Through kill -9, failing disks and power cuts: nothing, a partial transfer, or the complete artifact, never other
bytes."""

import contextlib
import errno
import os
import random
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import StoreError, StoreFull, StoreUnavailable
from agent.fact_store.artifacts import artifact_files
from agent.fact_store.artifacts.artifact_files import ArtifactFiles
from agent.fact_store.core.artifact_reference import (
    CHARGE_BYTES_MIN,
    CHUNK_BYTES_MAX,
    REFERENCES_MAX,
    ArtifactLimits,
    check_artifact_room,
    checked_references,
    decide_chunk,
    references_in,
)
from agent.fact_store.core.errors import (
    ArtifactMismatch,
    ArtifactMissing,
    ArtifactQuota,
    ArtifactRefused,
    ArtifactsFull,
    ArtifactTooLarge,
)
from agent.message import Envelope, Fact, Message, canonical_json
from agent.pages import ArtifactReference
from tests.fact_store.artifacts.putting import CHUNK, blob, name_of, put
from tests.sim import first_seed, patient, scaled
from tests.support.disk_calls import DiskCalls

BLOB = random.Random(1).randbytes(3 * CHUNK_BYTES_MAX + 17)
ROOT = Path(__file__).parents[3]
COUNT = 40
ROUNDS = scaled(12, 300)


def refused(error: type[StoreError], store: ArtifactFiles, *arguments: object, zone: str = "plant") -> None:
    """The chunk is refused with exactly this error."""
    with pytest.raises(error) as caught:
        store.put_chunk(zone, *arguments)  # type: ignore[arg-type]
    assert type(caught.value) is error


@pytest.mark.parametrize("size, offset, length", [(0, 0, 0), (2000, 0, 1), (10, -1, 1), (10, 8, 3), (10, 0, -1)])
def test_invalid_chunks(size: int, offset: int, length: int) -> None:
    """Empty, oversized and overlapping chunks are refused before anything is written."""
    with pytest.raises(ArtifactRefused):
        decide_chunk(None, size, offset, length, 1000)


@pytest.mark.parametrize("content", [BLOB, b"so short that it is synced at its end alone"], ids=["long", "short"])
def test_a_power_cut_leaves_the_whole_artifact_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """Its bytes are synced before it gets its name, and the name before it is answered."""
    calls = DiskCalls(monkeypatch)
    assert put(ArtifactFiles(tmp_path), content).is_complete
    (stored,) = tmp_path.glob("??/*")
    calls.check_durable(stored)
    calls.check_synced(tmp_path)


def test_an_artifact_round_trips(tmp_path: Path) -> None:
    """What was put in chunks is read in chunks, the same bytes, and sending it again writes nothing."""
    store, digest = ArtifactFiles(tmp_path), name_of(BLOB)
    assert put(store, BLOB).is_complete
    (stored,) = tmp_path.glob("??/*")
    before = stored.stat().st_ino
    assert put(store, BLOB).is_complete
    assert stored.stat().st_ino == before
    found = b""
    while len(found) < len(BLOB):
        size, data = store.read_chunk(digest, len(found), 100_000)
        assert size == len(BLOB)
        found += data
    assert found == BLOB
    assert store.verify(digest)
    assert list(store.digests()) == [digest]


@settings(max_examples=50)
@given(cuts=st.lists(st.integers(1, 5000), min_size=1, max_size=8), stops=st.integers(0, 7))
def test_a_transfer_goes_on_where_it_stopped(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], stops: int
) -> None:
    """Whatever the chunks, and wherever the receiving process was replaced, the artifact becomes complete."""
    folder = tmp_path_factory.mktemp("artifacts")
    blob = random.Random(sum(cuts)).randbytes(sum(cuts))
    digest, offset = name_of(blob), 0
    store = ArtifactFiles(folder)
    for number, cut in enumerate(cuts):
        if number == stops:
            store = ArtifactFiles(folder)
            assert store.put_chunk("plant", digest, len(blob), 0, b"").received == offset
        held = store.put_chunk("plant", digest, len(blob), offset, blob[offset : offset + cut])
        offset += cut
        assert (held.received, held.is_complete) == (offset, offset == len(blob))
    assert store.verify(digest)


def test_wrong_bytes_never_become_an_artifact(tmp_path: Path) -> None:
    """Bytes without the announced digest are refused with the last chunk, and removed."""
    store, digest = ArtifactFiles(tmp_path), name_of(b"right")
    refused(ArtifactMismatch, store, digest, 5, 0, b"wrong")
    assert store.size_of(digest) is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert put(store, b"right").is_complete


def test_bad_names_sizes_and_full_disks_are_refused(tmp_path: Path) -> None:
    """An invalid digest (a path, capitals), a wrong size, too many bytes, and no room: each has its error, and nothing
    is written."""
    store = ArtifactFiles(tmp_path, ArtifactLimits(1000))
    for name in ("sha256:../../etc/passwd", "sha256:" + "A" * 64, "md5:" + "a" * 32, ""):
        refused(ArtifactRefused, store, name, 5, 0, b"right")
    refused(ArtifactTooLarge, store, name_of(b"x"), 1001, 0, b"x")
    put(store, b"right")
    refused(ArtifactRefused, store, name_of(b"right"), 6, 0, b"right!")
    full = ArtifactFiles(tmp_path / "full", ArtifactLimits(free_min=2**62))
    refused(ArtifactsFull, full, name_of(b"right"), 5, 0, b"right")
    with pytest.raises(ArtifactMissing, match="not here"):
        store.read_chunk(name_of(b"left"), 0, 10)


def test_bytes_whose_sync_failed_are_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed sync it is unknown which bytes are on the disk, and the next sync would report success: the
    transfer begins again."""

    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    store, digest = ArtifactFiles(tmp_path), name_of(b"right")
    put(store, b"other")  # the folders are there
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        refused(StoreUnavailable, store, digest, 5, 0, b"right")
    assert store.put_chunk("plant", digest, 5, 0, b"").received == 0
    assert put(store, b"right").is_complete


def test_a_power_cut_in_the_middle_costs_the_transfer_at_most(tmp_path: Path) -> None:
    """Whatever prefix of a transfer is left, and whatever its last bytes became, a second attempt completes it. No
    other bytes get the name."""
    store, digest = ArtifactFiles(tmp_path), name_of(BLOB)
    for length, is_spoilt in (
        (0, False),
        (1, False),
        (70_000, False),
        (70_000, True),
        (len(BLOB), False),
        (len(BLOB), True),
    ):
        put_some = store.put_chunk("plant", digest, len(BLOB), 0, BLOB[:1])
        (partial,) = (tmp_path / "partial").glob("*/*")
        partial.write_bytes(BLOB[: length - 1] + b"?" if is_spoilt else BLOB[:length])
        again = ArtifactFiles(tmp_path)
        if is_spoilt:
            with pytest.raises(ArtifactMismatch):
                put(again, BLOB)
            assert again.size_of(digest) is None
        assert put_some.received <= 1
        assert put(again, BLOB).is_complete
        assert again.verify(digest)
        for path in (*tmp_path.glob("??/*"), *tmp_path.glob("partial/*/*")):
            path.unlink()


@pytest.mark.parametrize(
    "limits, size, received, used, free, error",
    [
        (ArtifactLimits(), 10, 0, 2**60, None, None),
        (ArtifactLimits(total_max=100), 10, 0, 90, None, None),
        (ArtifactLimits(total_max=100), 10, 4, 94, None, None),
        (ArtifactLimits(total_max=100), 10, 0, 91, None, ArtifactsFull),
        (ArtifactLimits(total_max=100), 101, 100, 0, None, ArtifactTooLarge),
        (ArtifactLimits(free_min=50), 10, 0, 0, 60, None),
        (ArtifactLimits(free_min=50), 10, 0, 0, 59, ArtifactsFull),
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
    put(ArtifactFiles(tmp_path), b"a" * 600)
    store = ArtifactFiles(tmp_path, ArtifactLimits(total_max=1000))
    refused(ArtifactsFull, store, name_of(b"b" * 401), 401, 0, b"b" * 100)
    put(store, b"c" * 300)
    store.put_chunk("plant", name_of(b"d" * 100), 100, 0, b"d" * 50)
    assert store.bytes_used() == 950
    assert store.sweep(-1, 3600) == 3
    assert store.bytes_used() == 0
    put(store, b"b" * 401)
    refused(ArtifactTooLarge, store, name_of(b"e" * 1001), 1001, 0, b"e")


def test_bytes_lacking_for_a_refused_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lacking bytes are those to be removed before the refused artifact has room, also in the middle of it. They
    are 0 when there is room, when it was not requested for ten minutes, and for one that never has room."""
    now_s = 1_000.0
    monkeypatch.setattr(artifact_files.time, "monotonic", lambda: now_s)
    store = ArtifactFiles(tmp_path, ArtifactLimits(total_max=1000))
    put(store, b"a" * 700)
    assert store.lacking() == ("", 0)
    refused(ArtifactTooLarge, store, name_of(b"e" * 1001), 1001, 0, b"e")
    assert store.lacking() == ("", 0)
    refused(ArtifactsFull, store, name_of(b"b" * 401), 401, 0, b"b" * 100)
    assert store.lacking() == ("artifacts_total_bytes_max", 101)
    now_s += artifact_files.REFUSED_S + 1
    assert store.lacking() == ("", 0)
    refused(ArtifactsFull, store, name_of(b"b" * 401), 401, 0, b"b" * 100)
    assert store.lacking() == ("artifacts_total_bytes_max", 101)
    assert store.sweep(-(10**10), -(10**10)) == 1
    assert store.lacking() == ("", 0)
    put(store, b"a" * 700)
    refused(ArtifactsFull, store, name_of(b"b" * 401), 401, 0, b"b" * 100)
    assert store.sweep(-(10**10), -(10**10)) == 1
    put(store, b"b" * 401)
    put(store, b"c" * 599)
    assert store.lacking() == ("", 0), "it is full of what had waited"


def test_another_size_starts_another_transfer(tmp_path: Path) -> None:
    """A sender that announces another size starts its own transfer; the digest decides which size is right."""
    store, digest = ArtifactFiles(tmp_path), name_of(BLOB)
    store.put_chunk("plant", digest, len(BLOB) + 5, 0, BLOB[:10])
    assert put(store, BLOB).is_complete


def test_orphans_go_and_what_is_referenced_stays(tmp_path: Path) -> None:
    """Old unreferenced artifacts and abandoned transfers are swept; young ones and referenced ones stay."""
    kept, orphan, young = (name_of(content) for content in (b"kept", b"orphan", b"young"))
    store = ArtifactFiles(tmp_path, is_referenced=lambda digest: digest == kept)
    for content in (b"kept", b"orphan", b"young"):
        put(store, content)
    store.put_chunk("plant", name_of(b"half"), 4, 0, b"ha")
    for path in tmp_path.rglob("*"):
        if path.is_file() and not path.name.startswith(young.removeprefix("sha256:")):
            os.utime(path, (1000, 1000))
    assert store.sweep(3600, 10**10) == 2
    assert set(store.digests()) == {kept, young}
    assert store.size_of(orphan) is None
    assert store.put_chunk("plant", name_of(b"half"), 4, 0, b"").received == 0


def message(content: object, media_type: str | None = "application/pdf") -> Message:
    """A message about some object."""
    envelope = Envelope("m1", "plant-a", "*", 1, object_media_type=media_type)
    return Message(envelope, Fact("batch:B1", "report_filed", canonical_json(content)))


def test_references_are_found_at_any_depth() -> None:
    """References at any depth count once each; objects that only look like one do not; without a media type there are
    none."""
    first = {"bucket": "batch-files", "key": "b1.pdf", "digest": "sha256:" + "a" * 64, "size": 7}
    two = {"digest": "sha256:" + "b" * 64, "size": 9}
    content = {
        "report": first,
        "pages": [two, {"again": first}],
        "no": {"digest": "sha256:x", "size": 1},
        "n": {"digest": 1},
    }
    expected = {ArtifactReference(first["digest"], 7), ArtifactReference(two["digest"], 9)}  # type: ignore[arg-type]
    assert set(references_in(message(content))) == expected
    assert references_in(message(content, None)) == ()
    for size in (True, -1, 1e300):
        assert references_in(message({"digest": two["digest"], "size": size})) == ()
    assert references_in(message({"digest": "sha256:../../../../etc/passwd", "size": 1})) == ()


def test_too_many_references_are_refused_where_they_are_appended() -> None:
    """In a fact that is appended here; a fact from another zone's log is stored with all its references."""
    many = message([{"digest": name_of(bytes([number])), "size": 1} for number in range(REFERENCES_MAX + 1)])
    with pytest.raises(ArtifactRefused, match="65 artifacts, at most 64"):
        checked_references(many)
    assert len(references_in(many)) == 65


def flood(store: ArtifactFiles, zone: str, size: int, count: int) -> list[str]:
    """Put `count` artifacts from a zone; the digests of those that were taken."""
    taken = []
    for number in range(count):
        blob = f"{zone} {number}".encode().ljust(size)
        with suppress(ArtifactQuota):
            store.put_chunk(zone, name_of(blob), size, 0, blob)
            taken.append(name_of(blob))
    return taken


def test_a_zone_that_floods_reaches_its_own_quota_only(tmp_path: Path) -> None:
    """Whole and unfinished artifacts, large and tiny ones: what no fact refers to is limited for each zone, also after
    a restart, and other zones put theirs."""
    limits = ArtifactLimits(unreferenced_max=10 * CHUNK_BYTES_MAX)
    store = ArtifactFiles(tmp_path, limits)
    assert len(flood(store, "evil", CHUNK_BYTES_MAX, 20)) == 10
    assert store.unreferenced() == {"evil": 10 * CHUNK_BYTES_MAX}
    again = ArtifactFiles(tmp_path, limits)
    refused(ArtifactQuota, again, name_of(b"x"), 1, 0, b"x", zone="evil")
    assert put(again, BLOB).is_complete
    tiny = ArtifactFiles(tmp_path / "tiny", limits)
    assert len(flood(tiny, "evil", 10, 1000)) == 10 * CHUNK_BYTES_MAX // CHARGE_BYTES_MIN
    begun = ArtifactFiles(tmp_path / "begun", limits)
    for number in range(20):
        with suppress(ArtifactQuota):
            begun.put_chunk("evil", name_of(b"%d" % number), 3 * CHUNK_BYTES_MAX, 0, b"x")
    assert len(list((tmp_path / "begun/partial/evil").iterdir())) == 3, "the whole is charged with its first byte"


def test_a_transfer_is_charged_once(tmp_path: Path) -> None:
    """An artifact as large as the quota is taken chunk by chunk, also over a restart; then the zone may bring no
    more."""
    limits, digest = ArtifactLimits(unreferenced_max=len(BLOB)), name_of(BLOB)
    for _ in range(2):
        store = ArtifactFiles(tmp_path, limits)
        held = store.put_chunk("plant", digest, len(BLOB), 0, b"")
        chunk = BLOB[held.received : held.received + CHUNK_BYTES_MAX]
        assert store.put_chunk("plant", digest, len(BLOB), held.received, chunk).received > held.received
    assert put(store, BLOB).is_complete
    refused(ArtifactQuota, store, name_of(b"x"), 1, 0, b"x")


def test_many_transfers_at_once_take_bounded_memory(tmp_path: Path) -> None:
    """Digests of a few transfers are kept in memory; the bytes of the others are read again, and all complete."""
    store, blobs = (
        ArtifactFiles(tmp_path),
        [b"%03d" % number * 1000 for number in range(3 * artifact_files.RUNNING_MAX)],
    )
    for content in blobs:
        assert store.put_chunk("plant", name_of(content), len(content), 0, content[:1000]).received == 1000
    assert len(store._running) <= artifact_files.RUNNING_MAX
    assert all(put(store, blob).is_complete for blob in blobs)


def test_a_name_from_an_earlier_life_is_durable_before_a_fact_refers_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier life may have been killed between the name and its sync. A fact that is stored and refers to an
    artifact would be left without it by a power cut."""
    digest = name_of(b"right")
    put(ArtifactFiles(tmp_path), b"right")
    for is_put_again in (False, True):
        calls, store = DiskCalls(monkeypatch), ArtifactFiles(tmp_path)
        if is_put_again:
            assert put(store, b"right").is_complete
        else:
            store.claim(ArtifactReference(digest, 5))
        calls.check_synced(tmp_path / digest.removeprefix("sha256:")[:2])


def test_what_a_fact_refers_to_is_no_longer_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that appends its facts may put any amount within its quota. An artifact to which a stored fact refers
    is taken whatever the quota."""
    now_s, referenced = 1000.0, set[str]()
    monkeypatch.setattr(artifact_files.time, "monotonic", lambda: now_s)
    limits = ArtifactLimits(unreferenced_max=2 * CHUNK_BYTES_MAX)
    store = ArtifactFiles(tmp_path, limits, referenced.__contains__)
    for number in range(20):
        now_s += artifact_files.SETTLE_S
        assert flood(store, f"plant{number % 2}", CHUNK_BYTES_MAX, number + 1)[-1:], number
        referenced.update(store.digests())
    flood(store, "evil", CHUNK_BYTES_MAX, 2)
    refused(ArtifactQuota, store, name_of(b"x"), 1, 0, b"x", zone="evil")
    referenced.add(name_of(b"x"))
    assert store.put_chunk("evil", name_of(b"x"), 1, 0, b"x").is_complete


def test_a_zone_cannot_spoil_what_another_sends(tmp_path: Path) -> None:
    """Wrong bytes under a digest that another zone is sending stay with the zone that sent them; once the artifact is
    complete they are gone."""
    store, digest = ArtifactFiles(tmp_path), name_of(BLOB)
    store.put_chunk("plant", digest, len(BLOB), 0, BLOB[:1000])
    store.put_chunk("evil", digest, len(BLOB), 0, b"?" * 5000)
    assert put(store, BLOB).is_complete
    assert [path.parent.name for path in tmp_path.glob("partial/*/*")] == ["plant"]
    assert store.put_chunk("evil", digest, len(BLOB), 5000, b"?").is_complete


def test_orphans_go_sooner_than_what_a_fact_once_referred_to(tmp_path: Path) -> None:
    """An artifact that no fact ever referred to goes after the orphans' hours. One whose facts were released goes after
    its own hours."""
    referenced = {name_of(b"released")}
    store = ArtifactFiles(tmp_path, is_referenced=referenced.__contains__)
    for content in (b"released", b"orphan"):
        put(store, content)
    assert store.sweep(3600, 7200) == 0
    referenced.clear()
    now_s = time.time()
    assert store.sweep(3600, 7200, now_s + 4000) == 1
    assert list(store.digests()) == [name_of(b"released")]
    assert store.sweep(3600, 7200, now_s + 8000) == 1
    assert store.bytes_used() == 0
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_artifacts_are_private(tmp_path: Path) -> None:
    """Files and folders are the owner's alone, whatever the folder above and the umask allow."""
    before = os.umask(0)
    try:
        put(ArtifactFiles(tmp_path / "artifacts"), BLOB)
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "artifacts").rglob("*")}
    assert modes == {0o700, 0o600}


def wrong_ones(store: ArtifactFiles) -> list[str]:
    """Files whose name is not the digest of their bytes."""
    return [digest for digest in store.digests() if not store.verify(digest)]


@patient
def test_a_killed_transfer_goes_on_where_it_was(tmp_path: Path) -> None:
    """Killed at random moments and started again: artifacts answered as complete are there, bytes answered as received
    are not requested again, and no file has a wrong name."""
    seed = first_seed()
    rng, folder, resumed = random.Random(seed), tmp_path / "artifacts", 0
    for _ in range(ROUNDS):
        command = [sys.executable, "-m", "tests.fact_store.artifacts.putting", str(folder), str(seed), str(COUNT)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            said = process.stdout.readline()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0, 0.02))
            process.kill()
            said += process.stdout.read()
        store = ArtifactFiles(folder)
        assert wrong_ones(store) == []
        resumed += any(path.stat().st_nlink == 1 for path in folder.glob("partial/*/*"))
        number, received, is_complete = map(int, said.decode().splitlines()[-1].split())
        content = blob(seed, number)
        held = store.put_chunk("plant", name_of(content), len(content), 0, b"")
        assert held.received >= received
        assert held.is_complete >= bool(is_complete)
        if number > COUNT // 2:
            shutil.rmtree(folder)  # and from the beginning
    assert resumed > 0, "no round was killed in the middle of a transfer"
    print(f"{ROUNDS} kills, {resumed} in the middle of a transfer")
    for number in range(COUNT):
        put(store, blob(seed, number))
    assert set(store.digests()) >= {name_of(blob(seed, number)) for number in range(COUNT)}


class FailingCalls:
    """Fails the n-th call that changes the disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, number: int) -> None:
        self.calls = 0
        self._at, self._number = at, number
        for owner, name in ((os, "fsync"), (os, "link"), (Path, "mkdir"), (os, "open")):
            monkeypatch.setattr(owner, name, self._failing(getattr(owner, name)))

    def _failing(self, call):  # noqa: ANN001, ANN202
        def instead(*given, **named):  # noqa: ANN002, ANN003, ANN202
            self.calls += 1
            if self.calls == self._at:
                raise OSError(self._number, os.strerror(self._number))
            return call(*given, **named)

        return instead


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_each_call_fails_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Whichever call fails, the answer is a retryable error of the store; no incomplete file has a name, and a second
    attempt completes it."""
    monkeypatch.setattr(artifact_files, "SYNC_BYTES", 2 * CHUNK)
    content = random.Random(1).randbytes(5 * CHUNK)
    failed = 0
    for at in range(1, 1000):
        store = ArtifactFiles(tmp_path / str(at) / "artifacts")
        store.folder.parent.mkdir()
        with monkeypatch.context() as patch:
            calls = FailingCalls(patch, at, number)
            try:
                put(store, content)
                error = None
            except StoreError as raised:
                error = raised
        if calls.calls < at:
            break
        failed += error is not None
        assert error is None or (error.retryable, isinstance(error, StoreFull)) == (True, number == errno.ENOSPC)
        assert error is None or list(store.digests()) == []
        put(store, content)
        assert store.verify(name_of(content))
        assert store.bytes_used() == len(content)
    assert failed > 10

"""Positions in a store's log: a life is recorded with its first fact, positions of another copy of the log are told
from own ones whatever both contain, and nothing is released that a reader of another log has confirmed."""

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.fact_store import FactStore
from agent.fact_store.writer import committer
from agent.positions import Position
from tests.fact_store.making import TELEMETRY, Elsewhere, done, plant, samples


def read(store: FactStore) -> Position:
    """The position of a reader that has read all of the log now, with the digest of the last batch."""
    (last,) = store.read(TELEMETRY, store.end_offset(TELEMETRY) - 1, 1, 1).batches
    return store.log(TELEMETRY).end._replace(digest=last.batch.digest)


def fill(store: FactStore, count: int = 10) -> None:
    """Some samples in one batch, the same whenever the log has the same end."""
    done(store.appends.append_samples(TELEMETRY, samples(count, store.end_offset(TELEMETRY) + 1)))


def copy(folder: Path, name: str) -> Path:
    """The files of a store as they are, the sidecars too, in a folder of their own."""
    shutil.copytree(folder, folder.parent / name)
    return folder.parent / name


def found(store: FactStore, *positions: Position) -> list[tuple[str, int]]:
    """What positions mean in a store's log."""
    return [tuple(store.resolve(TELEMETRY, position)) for position in positions]


def test_a_reader_is_known_over_many_lives(tmp_path: Path) -> None:
    """Each of its positions is exact after any number of restarts; one at the end of the log costs no look-up."""
    positions = list[Position]()
    for _ in range(3):
        with plant(tmp_path) as store:
            fill(store)
            positions.append(read(store))
            assert found(store, *positions) == [("exact", position.offset) for position in positions]


def test_an_old_copy_knows_where_its_log_parts(tmp_path: Path) -> None:
    """A copy is made while the original serves, with its witness. A reader that is ahead is told where the copy's log
    ends, however far that grows and however often it is opened; the original's later facts may be equal to the
    copy's."""
    home = tmp_path / "home"
    home.mkdir()
    with plant(home) as store:
        fill(store)
        before = read(store)
        image = copy(home, "image")
        fill(store)
        after = read(store)
    for _ in range(3):
        with plant(image) as store:
            fill(store)
            own = read(store)
            assert found(store, before, after, own) == [("exact", 10), ("cut", 10), ("exact", own.offset)]
    with plant(home) as store:
        assert found(store, before, after, own) == [("exact", 10), ("exact", 20), ("unknown", 0)]


def test_two_copies_of_a_relay_differ_although_the_same_batch_ends_at_the_same_offset(tmp_path: Path) -> None:
    """Each copy has a batch that the other lacks, of equal size, and then the same one. So its end and digest are the
    same. A reader that continued at the other copy would miss the facts that only that copy has."""
    home = tmp_path / "home"
    home.mkdir()
    with plant(home):
        pass
    other = copy(home, "other")
    first, second, third = Elsewhere("north"), Elsewhere("south"), Elsewhere("west")
    common = third.seal(10)
    positions = list[Position]()
    for folder, only in ((home, first), (other, second)):
        with plant(folder) as store:
            for zone, sealed in ((only, only.seal(10)), (third, common)):
                zone.put(store, [sealed], store.end_offset(TELEMETRY) + 10)
            positions.append(read(store))
    assert positions[0][1:] == positions[1][1:]
    for folder, expected in ((home, ["exact", "unknown"]), (other, ["unknown", "exact"])):
        with plant(folder) as store:
            assert [how for how, _ in found(store, *positions)] == expected


def test_a_life_that_ran_twice_is_told_by_its_digest(tmp_path: Path) -> None:
    """A position whose fact an intact batch contradicts is unknown; where the batch is damaged nothing is known of it,
    and the position counts."""
    with plant(tmp_path) as store:
        fill(store)
        other = read(store)._replace(digest=b"d" * 16)
        fill(store)
        assert found(store, other, other._replace(offset=20)) == [("unknown", 0)] * 2
    with closing(sqlite3.connect(tmp_path / "facts.db")) as outside:
        outside.execute("DROP TRIGGER batch_update_refused")
        outside.execute(
            "UPDATE batch SET body = CAST(substr(body, 1, length(body) - 1) || x'ff' AS BLOB) WHERE first_offset = 1"
        )
        outside.commit()
    with plant(tmp_path) as store:
        assert found(store, other, other._replace(offset=20)) == [("exact", 10), ("unknown", 0)]


def test_a_batch_that_lies_elsewhere_is_another(tmp_path: Path) -> None:
    """A life ran twice, and both logs hold the same batch of a relayed zone, the second one behind three facts more. A
    reader that has read it in the first is not inside it in the second: it would be offered the rest of a batch for
    ever, or miss the facts before it."""
    home, north = tmp_path / "home", Elsewhere("north")
    home.mkdir()
    common = north.seal(10)
    with plant(home) as store:
        fill(store)
        image, life = copy(home, "image"), store.life
        north.put(store, [common], 10)
        position = read(store)
        assert found(store, position) == [("exact", 20)]
    with plant(image) as store:
        store._writer.catalog.life = life
        fill(store, 3)
        north.put(store, [common], 13)
        assert found(store, position) == [("unknown", 0)]  # from memory
    with plant(image) as store:
        assert found(store, position, position._replace(digest=b"")) == [("unknown", 0), ("exact", 20)]


def test_a_memory_that_was_put_back_releases_nothing_unread(tmp_path: Path) -> None:
    """It is at 90 in the same life, and a reader has read up to 100 of what came after. Its confirmation does nothing,
    and the answer states the frontier: facts recorded here from now on have not been read."""
    with plant(tmp_path) as store:
        done(store.consumers.register("idmz.facts", "idmz", TELEMETRY))
        fill(store, 90)
        assert done(store.consumers.confirm("idmz.facts", 80, life=store.life)) == 80
        assert done(store.consumers.confirm("idmz.facts", 100, life=store.life)) == 80
        fill(store, 20)
        assert done(store.consumers.confirm("idmz.facts", 100, life=store.life, digest=b"d" * 16)) == 80
        assert done(store.consumers.confirm("idmz.facts", 5, life=b"x" * 16)) == 80


def test_a_memory_that_was_put_back_records_under_a_new_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its wall clock has jumped by more than ten seconds against the one that counts from the start of the machine.
    A clock that jumps on and on is believed once a minute."""
    at_s = [2_000_000_000, 1_000]
    clocks = SimpleNamespace(
        time_ns=lambda: at_s[0] * 10**9, clock_gettime_ns=lambda _: at_s[1] * 10**9, monotonic_ns=time.monotonic_ns,
        CLOCK_BOOTTIME=time.CLOCK_BOOTTIME,
    )  # fmt: skip
    monkeypatch.setattr(committer, "time", clocks)
    with plant(tmp_path) as store:
        for wall_s, boot_s, is_new in (
            (0, 0, False),
            (10, 0, False),
            (1, 0, True),
            (59, 59, False),
            (-70, 0, False),
            (1, 1, True),
        ):
            at_s[:] = at_s[0] + wall_s, at_s[1] + boot_s
            before = store.life
            fill(store)
            assert (store.life > before, store.log(TELEMETRY).at(store.end_offset(TELEMETRY))) == (is_new, store.life)


def test_a_confirmation_is_cut_to_the_log(tmp_path: Path) -> None:
    """A store that was put back to 10 is confirmed up to there by a reader of 20; a range that begins beyond is
    none."""
    home = tmp_path / "home"
    home.mkdir()
    with plant(home) as store:
        done(store.consumers.register("idmz.facts", "idmz", TELEMETRY))
        fill(store)
        image = copy(home, "image")
        fill(store)
        ahead = read(store)
    with plant(image) as store:
        fill(store, 15)
        confirm = store.consumers.confirm
        assert done(confirm("idmz.facts", 20, 11, life=ahead.life, digest=ahead.digest)) == 0
        assert done(confirm("idmz.facts", 20, life=ahead.life, digest=ahead.digest)) == 10

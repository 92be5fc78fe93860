"""The reader of the write-ahead log's file distinguishes damage from the torn end that a power cut leaves, for logs
that SQLite itself has written."""

import random
import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest

from agent.fact_store.sqlite.wal_file import (
    HEADER_BYTES,
    NO_LOG,
    LogFollower,
    WalHeader,
    has_commits_behind,
    read_header,
    wal_path,
)

FRAME = 24 + 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database and its log of ten commits of two frames or more, as a killed process leaves them."""
    alive, dead = tmp_path / "alive.db", tmp_path / "dead.db"
    with closing(sqlite3.connect(alive, isolation_level=None)) as found:
        found.execute("PRAGMA journal_mode = WAL")
        found.execute("CREATE TABLE one (body)")
        found.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for _ in range(10):
            found.execute("INSERT INTO one VALUES (randomblob(5000))")
        for part in ("", "-wal"):
            shutil.copy(f"{alive}{part}", f"{dead}{part}")
    return dead


def header_of(path: Path) -> WalHeader:
    """The header, which must be undamaged."""
    found = read_header(path)
    assert found is not None
    return found


def commits(path: Path) -> list[int]:
    """How many frames the log has at the end of each commit."""
    log = wal_path(path).read_bytes()
    count = (len(log) - HEADER_BYTES) // FRAME
    sizes = [struct.unpack_from(">I", log, HEADER_BYTES + n * FRAME + 4)[0] for n in range(count)]
    return [n + 1 for n, size in enumerate(sizes) if size]


def recovered(path: Path) -> int:
    """How many frames SQLite takes from a copy of the log."""
    copy = path.with_name("copy.db")
    for part in ("", "-wal"):
        shutil.copy(f"{path}{part}", f"{copy}{part}")
    with closing(sqlite3.connect(copy)) as found:
        return int(found.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1])


def change(path: Path, frame: int, at: int = 100) -> None:
    """Change a byte of a frame, counted from 0."""
    log = bytearray(wal_path(path).read_bytes())
    log[HEADER_BYTES + frame * FRAME + at] ^= 1
    wal_path(path).write_bytes(log)


def test_a_changed_header_is_none(path: Path) -> None:
    """One bit in any byte of the header, a header that is cut, an empty file, and no file."""
    assert header_of(path).frame_bytes == FRAME
    log = wal_path(path).read_bytes()
    for at in range(HEADER_BYTES):
        wal_path(path).write_bytes(log[:at] + bytes([log[at] ^ 1]) + log[at + 1 :])
        assert read_header(path) is None, f"byte {at}"
    for content in (log[: HEADER_BYTES - 1], b""):
        wal_path(path).write_bytes(content)
        assert read_header(path) is None
    wal_path(path).unlink()
    assert read_header(path) is None


def test_only_the_last_commit_can_be_torn(path: Path) -> None:
    """A frame that is changed in any commit but the last is damage: commits follow. In the last it may be the torn end
    of a commit that was not acknowledged."""
    ends, log = commits(path), wal_path(path).read_bytes()
    assert not has_commits_behind(path, header_of(path), ends[-1])
    for number, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        for frame in range(begin, end):
            wal_path(path).write_bytes(log)
            change(path, frame)
            assert recovered(path) == begin
            assert has_commits_behind(path, header_of(path), begin) == (number < len(ends) - 1), (number, frame)


def test_a_second_break_is_no_alarm(path: Path) -> None:
    """Frames that an abandoned commit has left behind carry the right salts and do not continue any checksum. They
    stand behind a torn commit after a disk was full, and prove nothing."""
    ends, log = commits(path), wal_path(path).read_bytes()
    left = 2 * log[HEADER_BYTES + (ends[2] - 1) * FRAME :][:FRAME]
    wal_path(path).write_bytes(log + left)
    change(path, ends[-2])
    assert recovered(path) == ends[-2]
    assert not has_commits_behind(path, header_of(path), ends[-2])


def test_frames_of_an_earlier_log_are_passed_over(path: Path) -> None:
    """SQLite writes its log again from the beginning. Behind its newest commit lie those of the round before, with
    other salts."""
    with closing(sqlite3.connect(path, isolation_level=None)) as found:
        found.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        found.execute("INSERT INTO one VALUES (1)")
        again = path.with_name("again.db")
        for part in ("", "-wal"):
            shutil.copy(f"{path}{part}", f"{again}{part}")
    frames = recovered(again)
    assert 0 < frames < commits(again)[-1]
    assert not has_commits_behind(again, header_of(again), frames)


@pytest.mark.parametrize("seed", range(3))
def test_the_end_of_a_log_is_followed(tmp_path: Path, seed: int) -> None:
    """After each commit the end is what SQLite itself counts: of small and large commits, of transactions that spilled
    into the log and were rolled back, and where SQLite begins the log again."""
    rng, path, logs = random.Random(seed), tmp_path / "facts.db", set[bytes]()
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as database,
        closing(sqlite3.connect(path, isolation_level=None)) as reader,
    ):
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA cache_size = 10")
        database.execute("PRAGMA wal_autocheckpoint = 0")
        database.execute("CREATE TABLE log (body)")
        frames = database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
        with closing(LogFollower(path, frames)) as follower:
            for _ in range(120):
                database.execute("BEGIN")
                database.execute("INSERT INTO log VALUES (randomblob(?))", (rng.choice((10, 5_000, 200_000)),))
                if rng.random() < 0.3:
                    database.execute("ROLLBACK")
                    continue
                database.execute("COMMIT")
                end = follower.read_end()
                logs.add(end.salts)
                # It copies the log, so that the next commit may begin it again, unless a reader needs it.
                assert database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1] == end.frames
                reader.execute("END" if reader.in_transaction else "BEGIN")
                reader.execute("SELECT count(*) FROM log").fetchone()
    assert len(logs) > 10


@pytest.mark.parametrize("left", ["of a failed transaction", "behind a hole"])
def test_no_end_is_known_of_a_log_with_frames_of_another_commit_behind_it(tmp_path: Path, left: str) -> None:
    """A full disk leaves a commit's frame behind the end of the log, a power cut one behind a hole. Commits that reach
    it are not taken for it; of the next log the end is known again."""
    path = tmp_path / "facts.db"
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as database,
        closing(sqlite3.connect(path, isolation_level=None)) as reader,
    ):
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE log (body)")
        reader.execute("BEGIN")  # keeps SQLite from beginning the log again
        reader.execute("SELECT * FROM log").fetchall()
        frames = database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
        log = wal_path(path).read_bytes()
        committed = log[HEADER_BYTES + (frames - 1) * FRAME :][:FRAME]
        with closing(LogFollower(path, frames)) as before:
            with wal_path(path).open("r+b") as file:
                file.seek(HEADER_BYTES + (frames + 1) * FRAME)  # one frame lies between
                file.write(committed)
            if left == "of a failed transaction":
                before.pass_over()
                follower = before
            else:
                follower = LogFollower(path, frames)
            database.execute("INSERT INTO log VALUES (1)")
            assert database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1] == frames + 1
            assert follower.read_end() == NO_LOG
            reader.execute("END")
            database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            database.execute("INSERT INTO log VALUES (2)")
            assert follower.read_end() == (header_of(path).salts, 1)
            if follower is not before:
                follower.close()

"""The write-ahead log of a store that was not closed is deleted, cut, or changed from outside, at many places: the
facts that were acknowledged are there, or the next opening reports the loss.

The checker stands outside: it has its own reader of the log, and compares what the store serves with what a killed
process had said. Each image is that of a real kill -9, so the witness beside the store is exact. After a power cut it
may lag by half a minute; `test_a_log_that_is_gone_after_a_power_cut` says what holds then (decision 0046).
"""

import random
import shutil
import sqlite3
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, takewhile
from pathlib import Path

import pytest

from agent.batch import Origin, parse
from agent.fact_store import FactStore, StoreReader
from agent.fact_store.divergence.witness import read_witness
from agent.fact_store.sqlite.connection import connect
from agent.fact_store.sqlite.queries import QUERIES
from tests.fact_store.durability.power import crashes, require_strace
from tests.fact_store.durability.promises import NORTH, RUN, Promises, broken
from tests.fact_store.durability.test_kill import run_and_kill
from tests.fact_store.durability.test_power_cut import recording
from tests.fact_store.making import AT_ONCE, IN_MEMORY, OPERATIONAL, TELEMETRY, done, said_in, samples, tag, values_in
from tests.sim import first_seed, patient, scaled

KILLS = scaled(3, 40)
IMAGES_OF_A_KILL = scaled(56, 500)
POWER_CUTS = scaled(100, 5_000)
PARTS = ("", "-wal", ".witness")
TOLD = {"log_lost": "log_lost", "restored": "store_restored"}
"""The notice of each incident that tells of a loss."""


@dataclass(frozen=True)
class Frame:
    """A page in the log: its number and content, where the frame ends, and whether a commit ends with it."""

    number: int
    page: bytes
    end: int
    is_commit: bool


@dataclass(frozen=True)
class Image:
    """The files of a killed process by their suffix, and what it had acknowledged."""

    files: dict[str, bytes]
    promises: Promises
    frames: list[Frame]

    @property
    def commits(self) -> list[int]:
        """Where each commit of the log ends, in bytes."""
        return [frame.end for frame in self.frames if frame.is_commit]


def frames_of(log: bytes) -> list[Frame]:
    """The commits of a log as far as its checksums hold: after the file format's description."""
    magic, _, page, _, *salts = struct.unpack(">6I", log[:24])
    words = f"{'>' if magic & 1 else '<'}{{}}I".format
    first = second = 0

    def add(data: bytes) -> tuple[int, int]:
        nonlocal first, second
        numbers = struct.unpack(words(len(data) // 4), data)
        for even, odd in zip(numbers[::2], numbers[1::2], strict=True):
            first = (first + even + second) % 2**32
            second = (second + odd + first) % 2**32
        return first, second

    found = list[Frame]()
    assert add(log[:24]) == struct.unpack(">2I", log[24:32])
    for at in range(32, len(log) - page - 23, page + 24):
        number, size, *rest = struct.unpack(">6I", log[at : at + 24])
        content = log[at + 24 : at + 24 + page]
        if rest[:2] != salts or add(log[at : at + 8] + content) != tuple(rest[2:]):
            break
        found.append(Frame(number, content, at + 24 + page, is_commit=bool(size)))
    return committed(found)


def committed(frames: list[Frame]) -> list[Frame]:
    """Without those behind the last commit."""
    last = max((index for index, frame in enumerate(frames) if frame.is_commit), default=-1)
    return frames[: last + 1]


def commit_ends(log: bytes) -> list[int]:
    """Where each commit of a log ends, in bytes."""
    return [frame.end for frame in frames_of(log) if frame.is_commit]


def cut_checkpoint(database: bytes, frames: list[Frame], rng: random.Random) -> bytes:
    """The database as a kill leaves it in the middle of a checkpoint: some of the log's pages are copied, which SQLite
    does in the order of their numbers."""
    newest = {frame.number: frame.page for frame in frames}
    found = bytearray(database)
    for number in sorted(newest)[: rng.randrange(1, len(newest))]:
        page = newest[number]
        found[(number - 1) * len(page) : number * len(page)] = page
    return bytes(found)


def is_one_state(database: bytes, whole: bytes, frames: list[Frame], left: bytes | None) -> bool:
    """Whether the database and the rest of the log are together the state after one commit. They are not if a
    checkpoint has copied pages of a later commit than the last one that is left."""
    readable = committed(list(takewhile(lambda frame: (left or b"")[: frame.end] == whole[: frame.end], frames)))
    now = {frame.number: frame.page for frame in readable}
    versions = dict[int, list[tuple[int, bytes]]]()
    commit = 1
    for frame in frames:
        versions.setdefault(frame.number, []).append((commit, frame.page))
        commit += frame.is_commit
    possible = set(range(commit))
    for number, pages in versions.items():
        size = len(pages[0][1])
        page = now.get(number, database[(number - 1) * size : number * size])
        ends = [at for at, _ in pages[1:]] + [commit]
        spans = [range(at, end) for (at, of), end in zip(pages, ends, strict=True) if of == page]
        possible &= set(chain(*spans)) if spans else set(range(pages[0][0]))
    return bool(possible)


def killed_image(folder: Path, rng: random.Random) -> Image:
    """What a writer leaves that was killed at a random moment of its second life, or of a later one where SQLite had
    just begun its log again."""
    path, promises = folder / "facts.db", Promises()
    folder.mkdir()
    for life in range(200):  # on a busy machine, few of them commit twice
        run_and_kill(path, rng, promises, at_start=False)
        files = {part: (folder / f"facts.db{part}").read_bytes() for part in PARTS}
        found, witness = frames_of(files["-wal"]), read_witness(path)
        # Else it was killed before it had recorded its last commit, and had not answered.
        is_recorded = witness is not None and witness.log == (files["-wal"][16:24], len(found))
        if life and is_recorded and sum(frame.is_commit for frame in found) > 1:
            return Image(files, promises, found)
    raise AssertionError("no life ended with more than one commit in its log")


def delete(_log: bytes, _commits: list[int], rng: random.Random) -> bytes | None:
    """No log at all, or an empty one."""
    return rng.choice((None, b""))


def cut(log: bytes, commits: list[int], rng: random.Random) -> bytes | None:
    """Shorter, at any byte."""
    return log[: rng.randrange(commits[-1])]


def cut_after_a_commit(log: bytes, commits: list[int], rng: random.Random) -> bytes | None:
    """Shorter, and whole as far as it goes: as if nothing had followed."""
    return log[: rng.choice(commits[:-1] or [32])]


def flip(log: bytes, commits: list[int], rng: random.Random) -> bytes | None:
    """One bit changed."""
    found = bytearray(log)
    found[rng.randrange(commits[-1])] ^= 1 << rng.randrange(8)
    return bytes(found)


def blank(log: bytes, commits: list[int], rng: random.Random) -> bytes | None:
    """Zeros in place of a block."""
    at = rng.randrange(commits[-1]) // 4096 * 4096
    return log[:at] + bytes(4096) + log[at + 4096 :]


def keep(log: bytes, _commits: list[int], _rng: random.Random) -> bytes | None:
    """Leave it as the kill has."""
    return log


Damage = Callable[[bytes, list[int], random.Random], bytes | None]
DAMAGES: tuple[Damage, ...] = (delete, cut, cut_after_a_commit, flip, flip, flip, blank, keep)


def put(folder: Path, files: dict[str, bytes | None]) -> Path:
    """An image in an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for part, content in files.items():
        if content is not None:
            (folder / f"facts.db{part}").write_bytes(content)
    return folder / "facts.db"


def check_quarantined(store: FactStore, path: Path) -> None:
    """The file is kept under the name that is reported."""
    (notice,) = said_in(store, "store_quarantined")
    assert [incident.kind for incident in store.reader.incidents()] == ["quarantined"]
    assert (path.parent / str(notice["file"])).stat().st_size


def check_told(store: FactStore, image: Image, *, is_one: bool) -> None:
    """Fail unless a loss was reported: its streams, each up to the last known offset. Nothing else is wrong with the
    state of one commit, and later appends cannot be taken for the lost facts."""
    kinds = [incident.kind for incident in store.reader.incidents()]
    told, *more = sorted(kinds, key=TOLD.__contains__, reverse=True)
    assert not (more and is_one), kinds
    (notice,) = said_in(store, TOLD[told])
    streams = notice["streams"]
    assert isinstance(streams, list)
    known = {stream.name: stream.end_offset for stream in store.streams()}
    known |= {stream["stream"]: stream["known_end_offset"] for stream in streams}
    promised = {
        TELEMETRY: image.promises.samples, NORTH: image.promises.batches * RUN, OPERATIONAL: image.promises.messages
    }  # fmt: skip
    assert all(known.get(name, 0) >= end for name, end in promised.items()), (known, promised)
    # The notice itself is a message that no process had appended.
    wrong = [text for text in broken(store, image.promises) if text.startswith("wrong") and "messages" not in text]
    assert not (wrong and is_one), wrong
    done(store.appends.define([tag(1)]))
    done(store.appends.append_samples(TELEMETRY, samples(1)))
    header = parse(store.read(TELEMETRY, store.end_offset(TELEMETRY) - 1, 1, 1).batches[0].sealed).header
    assert header.origin == Origin("plant", store.life)


@patient
@pytest.mark.system  # when a kill hits depends on the machine
def test_a_lost_log_is_reported_or_costs_nothing(tmp_path: Path, memory: Path) -> None:
    """See the module. Of an undamaged image nothing is reported. Half of the images were
    killed in the middle of a checkpoint, so that a damaged log leaves pages of two commits (decision 0046): a loss is
    reported too, and such a file alone may be quarantined."""
    rng, outcomes = random.Random(first_seed()), {damage.__name__: Counter[str]() for damage in DAMAGES}
    for number in range(KILLS):
        image = killed_image(tmp_path / str(number), rng)
        whole = image.files["-wal"]
        for round_number in range(IMAGES_OF_A_KILL):
            damage = DAMAGES[round_number % len(DAMAGES)]
            log, database = damage(whole, image.commits, rng), image.files[""]
            if round_number // len(DAMAGES) % 2:
                database = cut_checkpoint(database, image.frames, rng)
            is_one = is_one_state(database, whole, image.frames, log)
            path = put(memory / "image", {**image.files, "": database, "-wal": log})
            with FactStore.open(path, "plant", settings=IN_MEMORY, unattended=True) as store:
                if not store.reader.incidents():
                    found = broken(store, image.promises)
                    assert not found, f"kill {number}, {damage.__name__} {round_number}, not reported: {found}"
                    outcome = "nothing lost"
                elif said_in(store, "store_quarantined"):
                    check_quarantined(store, path)
                    outcome = "quarantined"
                else:
                    check_told(store, image, is_one=is_one)
                    outcome = "told"
            assert outcome != "quarantined" or not is_one
            outcomes[damage.__name__][f"{outcome}, {'one state' if is_one else 'pages of two'}"] += 1
    print({name: dict(found) for name, found in outcomes.items()})
    kept, deleted = outcomes.pop(keep.__name__), outcomes[delete.__name__]
    assert not [text for text in kept if not text.startswith("nothing lost")]
    assert not [text for text in deleted if text.startswith("nothing lost")], "a missing log is always reported"
    assert all(found["told, one state"] for found in outcomes.values())
    assert any("pages of two" in text for found in outcomes.values() for text in found)


def test_a_log_that_is_gone_after_a_power_cut(tmp_path: Path, memory: Path) -> None:
    """After a power cut the log is deleted, and the witness is as old as a disk can leave it: a loss is reported. So is
    a changed bit that synced commits follow. Only the newest commits can be lost without a trace."""
    require_strace()
    seed = first_seed()
    rng, log, store_path = random.Random(seed), *recording(tmp_path, seed)
    outcomes: dict[str, Counter[str]] = {"deleted": Counter(), "flipped": Counter()}
    for crash in crashes(log, store_path, POWER_CUTS, rng):
        promises = Promises()
        promises.hear(crash.said)
        whole = crash.files.get("-wal", b"")
        ends = commit_ends(whole) if len(whole) > 32 else []
        for kind, outcome in outcomes.items():
            changed = flip(whole, ends, rng) if kind == "flipped" and ends else None
            path = put(memory / "image", {**crash.files, "-wal": changed})
            with FactStore.open(path, "plant", settings=IN_MEMORY, unattended=True) as store:
                is_told = any(
                    known.kind in {"log_lost", "restored", "quarantined"} for known in store.reader.incidents()
                )
                lost = [] if is_told else broken(store, promises)
            outcome["told" if is_told else "lost without a word" if lost else "nothing lost"] += 1
    print({kind: dict(found) for kind, found in outcomes.items()})
    assert outcomes["deleted"]["told"] > POWER_CUTS / 4
    assert not outcomes["deleted"]["lost without a word"]


def test_the_log_is_copied_before_the_mark_of_an_open_store_goes(tmp_path: Path) -> None:
    """When a closing store removes its mark, the database alone, without the log, holds every fact: a power cut from
    there on, in whatever order pages reach the disk, leaves no store that looks closed and lacks facts."""
    copied = tmp_path / "copied" / "facts.db"
    copied.parent.mkdir()

    class Watched(sqlite3.Connection):
        def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:  # type: ignore[override]
            if sql == QUERIES["update_is_closed"]:
                shutil.copy(tmp_path / "facts.db", copied)
            return super().execute(sql, *parameters)  # type: ignore[arg-type]

    def connect_watched(uri: str) -> sqlite3.Connection:
        if uri.endswith("mode=ro"):
            return connect(uri)
        return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, factory=Watched)

    with FactStore.open(tmp_path / "facts.db", "plant", settings=AT_ONCE, connect_to=connect_watched) as store:
        done(store.appends.define([tag(1)]))
        done(store.appends.append_samples(TELEMETRY, samples(100)))
        acknowledged = values_in(store)
    with closing(StoreReader(copied)) as reader:
        assert values_in(reader) == acknowledged
    assert len(acknowledged) == 100

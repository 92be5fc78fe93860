"""Timelines: a position read from another copy of this store's log is told from an own one, whatever both contain, and
no own position is taken for another's."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.fact_store import FactStore
from agent.fact_store.log import timeline as timeline_module
from agent.fact_store.log.timeline import NUMBER_BYTES, TIMELINES_MAX, why_other_timeline
from agent.fact_store.sqlite import transaction
from agent.pages import PeerPosition
from tests.fact_store.making import OPERATIONAL, TELEMETRY, Elsewhere, done, message, parsed, plant, samples
from tests.support.received import put_page

OLDEST, LAST, NOW, OTHER = (n.to_bytes(NUMBER_BYTES) + b"timeline" for n in (3, 4, 5, 1))


def read(store: FactStore) -> tuple[bytes, int]:
    """The position of a reader that has read all of the log now."""
    if (beginning := store.consumers.begin_timeline(TELEMETRY)) is not None:
        done(beginning)
    return store.consumers.timeline, store.end_offset(TELEMETRY)


def is_other(store: FactStore, position: tuple[bytes, int]) -> bool:
    """Whether the store's log does not have this position."""
    return store.consumers.why_other_timeline(TELEMETRY, *position) is not None


def fill(store: FactStore, count: int = 10) -> None:
    """Some samples in one batch, the same whenever the log has the same end."""
    done(store.appends.append_samples(TELEMETRY, samples(count, store.end_offset(TELEMETRY) + 1)))


def copy(folder: Path, name: str) -> Path:
    """The files of a store as they are, the sidecars too, in a folder of their own."""
    shutil.copytree(folder, folder.parent / name)
    return folder.parent / name


def test_a_position_counts_up_to_the_end_of_its_life() -> None:
    """To the end of the log in this life, to the end that an earlier life had, and never in a life of another store."""
    known = {OLDEST: 5, LAST: 10, NOW: None}
    accepted = [(OLDEST, 5), (LAST, 10), (NOW, 99), (OLDEST, 0)]
    assert all(why_other_timeline(known, *position) is None for position in accepted)
    refused = [(OLDEST, 6), (LAST, 11), (OTHER, 1), (OTHER, 0)]
    assert all(why_other_timeline(known, *position) is not None for position in refused)


def test_a_life_that_is_forgotten_refuses_no_reader() -> None:
    """Once the oldest timelines are removed, a lower number cannot be compared. A newer one is still another's."""
    known = {(n + 10).to_bytes(NUMBER_BYTES) + b"timeline": n for n in range(TIMELINES_MAX)}
    assert why_other_timeline(known, OLDEST, 4) is None
    assert why_other_timeline(known, (500).to_bytes(NUMBER_BYTES) + b"other...", 4) is not None


@given(st.lists(st.sampled_from(["grow", "reopen", "copy", "read"]), max_size=30), st.randoms(use_true_random=False))
def test_positions_are_distinguished_by_their_history(steps: list[str], chance: object) -> None:
    """The model has logs as lists of what was appended, in copies of copies. A log refuses exactly the positions whose
    reader has read something else than the log's beginning, except where no reader has read on from a common
    beginning."""
    logs = [_Log()]
    positions = list[tuple[bytes, int, tuple[object, ...]]]()
    for number, step in enumerate(steps):
        log = chance.choice(logs)  # type: ignore[attr-defined]
        match step:
            case "grow":
                log.facts.append((number, id(log)))
            case "reopen":
                log.open()
            case "copy":
                logs.append(log.copied())
            case "read":
                log.timelines[log.now] = None
                positions.append((log.now, len(log.facts), tuple(log.facts)))
    for log in logs:
        for timeline, offset, facts in positions:
            why = why_other_timeline(log.timelines, timeline, offset)
            if why is None:
                assert tuple(log.facts[:offset]) == facts, "a position of another log is accepted"
            elif timeline in log.timelines:
                assert tuple(log.facts[:offset]) != facts, "a position of this log is refused"


class _Log:
    """A store reduced to its log and its lives."""

    lives = 0

    def __init__(self) -> None:
        self.facts: list[object] = []
        self.timelines: dict[bytes, int | None] = {}
        self.open()

    def open(self) -> None:
        """Begin another life."""
        self.timelines = {one: len(self.facts) if end is None else end for one, end in self.timelines.items()}
        _Log.lives += 1
        self.now = _Log.lives.to_bytes(16)

    def copied(self) -> "_Log":
        """An image that is opened elsewhere; this store goes on."""
        made = _Log()
        made.facts, made.timelines = self.facts.copy(), self.timelines.copy()
        made.open()
        return made


def test_a_reader_is_known_over_many_lives(tmp_path: Path) -> None:
    """Each of its positions is one in the log after any number of restarts. One commit for each life that serves."""
    positions = list[tuple[bytes, int]]()
    for _ in range(3):
        with plant(tmp_path) as store:
            fill(store)
            positions.append(read(store))
            assert store.consumers.begin_timeline(TELEMETRY) is None
            assert not any(is_other(store, position) for position in positions)


def test_each_stream_has_its_own_timelines(tmp_path: Path) -> None:
    """A life that serves two streams is recorded for each, with the end that it had in each."""
    with plant(tmp_path) as store:
        fill(store)
        done(store.appends.append_messages(OPERATIONAL, [message("m-1")]))
        earlier, _ = read(store)
        beginning = store.consumers.begin_timeline(OPERATIONAL)
        assert beginning is not None
        done(beginning)
    with plant(tmp_path) as store:
        read(store)
        assert store.consumers.why_other_timeline(TELEMETRY, earlier, 10) is None
        assert store.consumers.why_other_timeline(TELEMETRY, earlier, 11) is not None
        assert store.consumers.why_other_timeline(OPERATIONAL, earlier, 1) is None
        assert store.consumers.why_other_timeline(OPERATIONAL, earlier, 2) is not None


def test_the_oldest_timelines_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is restarted for years keeps the newest timelines of a stream, and takes readers of older ones."""
    for module in (transaction, timeline_module):
        monkeypatch.setattr(module, "TIMELINES_MAX", 3)
    positions = list[tuple[bytes, int]]()
    for _ in range(5):
        with plant(tmp_path) as store:
            fill(store)
            positions.append(read(store))
            assert not any(is_other(store, position) for position in positions)
    with closing(sqlite3.connect(tmp_path / "facts.db")) as outside:
        kept = [row[0] for row in outside.execute("SELECT id FROM timeline ORDER BY id")]
    assert kept == [one for one, _ in positions[2:]]


def test_an_old_copy_refuses_readers_that_are_ahead(tmp_path: Path) -> None:
    """A copy is made while the original serves, with its witness. It accepts its readers up to the end that it has
    itself, however far it grows and however often it is opened. The original's later facts may be equal to the
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
            assert (is_other(store, before), is_other(store, after)) == (False, True)
            own = read(store)
    with plant(home) as store:
        assert [is_other(store, position) for position in (before, after, own)] == [False, False, True]


def test_two_copies_of_a_relay_differ_although_the_same_batch_ends_at_the_same_offset(tmp_path: Path) -> None:
    """Each copy has a batch that the other lacks, of equal size, and then the same one. So its end and digest, which
    readers once showed, are the same. A reader that continued at the other copy would miss the facts that only that
    copy has."""
    home = tmp_path / "home"
    home.mkdir()
    with plant(home):
        pass
    other = copy(home, "other")
    first, second, third = Elsewhere("north"), Elsewhere("south"), Elsewhere("west")
    common = third.seal(10)
    positions, ends = list[tuple[bytes, int]](), list[tuple[int, bytes]]()
    for folder, only in ((home, first), (other, second)):
        with plant(folder) as store:
            for zone, sealed in ((only, only.seal(10)), (third, common)):
                zone.put(store, [sealed], store.end_offset(TELEMETRY) + 10)
            positions.append(read(store))
            (last,) = store.read(TELEMETRY, 10, 1, 1).batches
            ends.append((last.last_offset, last.sealed))
    assert ends[0] == ends[1]
    for folder, expected in ((home, [False, True]), (other, [True, False])):
        with plant(folder) as store:
            assert [is_other(store, position) for position in positions] == expected


def test_a_position_on_another_timeline_replaces_a_later_one(tmp_path: Path) -> None:
    """Another copy of the peer's log is read from its beginning, so the position may move back; on one timeline it
    does not. Both survive a restart."""
    peer = Elsewhere("north")
    with plant(tmp_path) as store:
        for offset, timeline, expected in (
            (20, NOW, 20),
            (10, NOW, 20),
            (10, OTHER, 10),
            (5, OTHER, 10),
            (12, NOW, 12),
        ):
            position = PeerPosition(peer.origin.epoch, offset, timeline)
            done(put_page(store, "north", TELEMETRY, parsed([]), [], position))
            known = store.inbound.peer_position("north", TELEMETRY)
            assert known is not None
            assert known.offset == expected
    with plant(tmp_path) as store:
        assert store.inbound.peer_position("north", TELEMETRY) == PeerPosition(peer.origin.epoch, 12, NOW)

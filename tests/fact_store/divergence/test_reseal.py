"""Facts of an old copy that nobody has seen come under its new epoch: the same facts at the same places, whole and once."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.batch import Kind, open_samples, parse
from agent.fact_store import FactStore
from agent.fact_store.divergence.high_water import ReadHighWater
from agent.fact_store.integrity.verify import Verified, verify_store
from agent.fact_store.log.errors import StoreForked, StoreFull, StoreUnusable
from agent.fact_store.sqlite.transaction import Transaction
from tests.fact_store.divergence.test_epochs import fill, notices, pull
from tests.fact_store.making import (
    AT_ONCE,
    EVERYTHING,
    OPERATIONAL,
    TELEMETRY,
    Elsewhere,
    chain_is_whole,
    done,
    failed,
    ids_in,
    message,
    sealed_in,
    tag,
    values_in,
)

BEFORE, LOST, ANEW = [*range(1, 21)], [*range(21, 61)], [*range(1001, 1101)]
"""What was in the copy; what only the peer has; what the copy recorded since."""


def opened(folder: Path) -> FactStore:
    """The plant's store; its witness is put back with it, which is as if there were none."""
    return FactStore.open(folder / "facts.db", "plant", settings=AT_ONCE)


@pytest.fixture
def early(tmp_path: Path) -> Iterator[FactStore]:
    """The peer that has read all that was there before the plant's store was put back."""
    with FactStore.open(tmp_path / "idmz.db", "idmz", settings=AT_ONCE) as store:
        yield store
        chain_is_whole(store)


@pytest.fixture
def copy(tmp_path: Path, early: FactStore) -> Path:
    """The folder with the store as it was put back: at 20, when the peer has read 60."""
    with opened(tmp_path) as store:
        fill(store, 1)
        fill(store, 11)
        done(store.appends.append_message(OPERATIONAL, message("before")))
    image = shutil.copy(tmp_path / "facts.db", tmp_path / "image")
    with opened(tmp_path) as store:
        done(store.appends.define([tag(2)]))
        fill(store, 21, 20)
        fill(store, 41, 20)
        assert pull(store, early) == 60
    shutil.copy(image, tmp_path / "facts.db")
    return tmp_path


def grow(store: FactStore) -> None:
    """A hundred other facts, more than were lost, with a tag that was not defined before, and a message."""
    done(store.appends.define([tag(3)]))
    for first in range(1001, 1101, 10):
        fill(store, first)
    done(store.appends.append_message(OPERATIONAL, message("since")))


def begin_anew(store: FactStore) -> None:
    """A peer says what it holds."""
    store.peer_is_ahead("idmz", "idmz holds other facts")
    assert isinstance(failed(store.ended), StoreForked)


def full(*_: object, **__: object) -> None:
    """What a full disk says to whoever writes."""
    raise disk_error("SQLITE_FULL")


def disk_error(name: str) -> sqlite3.OperationalError:
    """What SQLite raises when the disk has let it down."""
    found = sqlite3.OperationalError(name)
    found.sqlite_errorname = name
    return found


def samples_in(store: FactStore) -> list[object]:
    """The samples' values of a stream that also holds what the store says of it."""
    batches = [parse(one) for one in sealed_in(store)]
    return [value for one in batches if one.header.kind is Kind.SAMPLES for value in open_samples(one).values]


def is_sound(folder: Path) -> bool:
    """Whether everything in the file is as it should be, row by row."""
    return not list(verify_store(folder / "facts.db", Verified(), lambda *_: None, is_quick=False))


def test_what_nobody_has_seen_is_sealed_anew(copy: Path, early: FactStore) -> None:
    """Everything the copy recorded reaches the peer that could not take it, once; offsets, messages and tags are what they were told to
    be, the file is sound, and the next facts follow."""
    with opened(copy) as store:
        grow(store)
        old = store.epoch
        begin_anew(store)
    with opened(copy) as store:
        assert values_in(store) == BEFORE + ANEW
        assert ids_in(store)[:2] == ["before", "since"]
        assert done(store.appends.append_message(OPERATIONAL, message("since"))).outcome == "noop_already_applied"
        assert done(store.appends.append_message(OPERATIONAL, message("since"))).offset == 2
        assert done(store.appends.define([tag(3), tag(1)])) == [2, 1]
        (notice,) = notices(store, "epoch_began")
        assert notice["sealed_anew"] == [
            {"stream": TELEMETRY, "first_offset": 21, "last_offset": 120, "facts": 100},
            {"stream": OPERATIONAL, "first_offset": 2, "last_offset": 2, "facts": 1},
        ]
        fill(store, 1101)
        headers = [parse(one).header for one in sealed_in(store)]
        assert [one.origin.epoch == old for one in headers] == [True] * 2 + [False] * 11
        chain_is_whole(store)
        assert pull(store, early) == 110
        assert values_in(early) == BEFORE + LOST + [*ANEW, *range(1101, 1111)]
        assert [one.kind for one in early.incidents()] == []
        assert pull(store, early) == 0
    assert is_sound(copy)


def test_what_somebody_has_seen_keeps_its_name(copy: Path, early: FactStore) -> None:
    """Facts that were read, by whomever, or confirmed, or there before this life, stay; the peer that holds others names them, and takes
    all that comes behind."""
    with opened(copy) as store:
        fill(store, 1001)
    with opened(copy) as store:
        fill(store, 1011)
        fill(store, 1021)
        assert store.read(TELEMETRY, 30, 10, 10**6).batches
        fill(store, 1031)
        done(store.consumers.register("local", "plant", TELEMETRY, "end"))
        done(store.consumers.confirm("local", 60, 60))
        fill(store, 1041)
        fill(store, 1051)
        begin_anew(store)
    with opened(copy) as store:
        (notice,) = notices(store, "epoch_began")
        assert notice["sealed_anew"] == [{"stream": TELEMETRY, "first_offset": 61, "last_offset": 80, "facts": 20}]
        assert values_in(store) == BEFORE + ANEW[:60]
        pull(store, early)
        assert samples_in(early) == BEFORE + LOST + ANEW[40:60]
        (incident,) = early.incidents()
        assert (incident.kind, "21 to 60" in incident.subject) == ("refused", True)
    assert is_sound(copy)


def test_damage_is_not_sealed_anew(copy: Path) -> None:
    """Where one batch is not as it was sealed, the stream stays as it is, hole and all; others are not kept from it."""
    with opened(copy) as store:
        grow(store)
        begin_anew(store)
    with closing(sqlite3.connect(copy / "facts.db", isolation_level=None)) as found:
        found.execute("UPDATE batch SET body = zeroblob(length(body)) WHERE first_offset = 51 AND last_offset = 60")
    with opened(copy) as store:
        (notice,) = notices(store, "epoch_began")
        assert notice["sealed_anew"] == [{"stream": OPERATIONAL, "first_offset": 2, "last_offset": 2, "facts": 1}]
        page = store.read(TELEMETRY, 0, EVERYTHING, EVERYTHING)
        assert [(one.first_offset, one.last_offset) for one in page.holes] == [(51, 60)]
        assert len(page.batches) == 11


def sealed_in_quietly(store: FactStore) -> list[bytes]:
    """Every batch, without the store knowing that somebody has seen them."""
    return [one.sealed for one in store.reader.read(TELEMETRY, 0, EVERYTHING, EVERYTHING).batches]


def test_ended_in_the_middle_it_begins_again(copy: Path, early: FactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is there until all of it is: the disk fails between two batches, and the next opening does it whole."""
    with opened(copy) as store:
        grow(store)
        begin_anew(store)
    reseal, left = Transaction.reseal, [4]

    def dying(*arguments: object) -> None:
        left[0] -= 1
        if not left[0]:
            raise disk_error("SQLITE_IOERR_WRITE")
        reseal(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "reseal", dying)
        with pytest.raises(StoreUnusable):
            opened(copy)
    with opened(copy) as store:
        assert values_in(store) == BEFORE + ANEW
        pull(store, early)
        assert values_in(early) == BEFORE + LOST + ANEW


def test_without_room_the_epoch_begins_all_the_same(
    copy: Path, early: FactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk a node that could not start would be worse than facts that keep their name."""
    with opened(copy) as store:
        grow(store)
        begin_anew(store)
    monkeypatch.setattr(Transaction, "reseal", full)
    with opened(copy) as store:
        (notice,) = notices(store, "epoch_began")
        assert "sealed_anew" not in notice
        assert values_in(store) == BEFORE + ANEW
        pull(store, early)
        assert samples_in(early) == BEFORE + LOST, "sealed with a tag that is another there"
        (incident,) = early.incidents()
        assert (incident.kind, "21 to 120" in incident.subject) == ("refused", True)
    assert is_sound(copy)


def test_relayed_facts_keep_their_name(copy: Path, early: FactStore) -> None:
    """Only what the store recorded itself is sealed anew; what lies between, of other zones, stays where and what it is."""
    north = Elsewhere("north")
    with opened(copy) as store:
        fill(store, 1001)
        north.put(store, [north.seal(5)], 5)
        fill(store, 1011)
        begin_anew(store)
    with opened(copy) as store:
        headers = [parse(one).header for one in sealed_in_quietly(store)]
        assert [(str(one.origin.zone), one.first_sequence) for one in headers[2:]] == [
            ("plant", 1),
            ("north", 1),
            ("plant", 11),
        ]
        pull(store, early)
    assert is_sound(copy)


def test_nothing_is_read_once_it_is_known_what_was() -> None:
    """Between the word that a new epoch is due and the store's end nobody may come to have what is unseen; if there is no end, reading
    goes on."""
    seen = ReadHighWater({TELEMETRY: 20})
    seen.record(TELEMETRY, 15)
    seen.record(TELEMETRY, 30)
    seen.record(OPERATIONAL, 1)
    assert seen.freeze() == {TELEMETRY: 30, OPERATIONAL: 1}
    with pytest.raises(StoreForked):
        seen.record(TELEMETRY, 40)
    seen.thaw()
    seen.record(TELEMETRY, 40)
    assert seen.freeze() == {TELEMETRY: 40, OPERATIONAL: 1}


def test_a_word_that_cannot_be_written_down_stops_no_reader(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when a new epoch is asked for: the store goes on, is read on, and can be asked again."""
    with opened(copy) as store:
        with monkeypatch.context() as patch:
            patch.setattr(Transaction, "require_new_epoch", full)
            assert isinstance(failed(store.require_new_epoch("asked")), StoreFull)
        assert store.read(TELEMETRY, 0, 10, 10**6).batches
        done(store.require_new_epoch("asked again"))
        assert isinstance(failed(store.ended), StoreForked)


def test_a_batch_sealed_anew_holds_what_it_held(copy: Path) -> None:
    """To the byte, but for its header."""
    with opened(copy) as store:
        grow(store)
        before = sealed_in_quietly(store)
        begin_anew(store)
    with opened(copy) as store:
        after = sealed_in_quietly(store)
        for old, new in zip(before[2:], after[2:], strict=True):
            assert old != new
            assert len(old) == len(new)
            assert open_samples(parse(old)) == open_samples(parse(new))

"""Unread facts of an old copy are resealed under its new epoch: the same facts at the same offsets, complete and
once."""

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.batch import Kind, open_samples, parse
from agent.fact_store import FactStore
from agent.fact_store.divergence.high_water import ReadHighWater
from agent.fact_store.integrity.verify import VerifyCounts, verify_store
from agent.fact_store.log.errors import EpochChanging, StoreFailed, StoreFull
from agent.fact_store.sqlite.transaction import Transaction
from agent.pages import Page
from agent.positions import Position
from tests.fact_store.divergence.test_epochs import fill, node, notices, pull
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

BEGUN = Position(b"\1" * 16, 10)
BEFORE, LOST, ANEW = [*range(1, 21)], [*range(21, 61)], [*range(1001, 1101)]
"""What was in the copy; what only the peer has; what the copy recorded since."""


def opened(folder: Path) -> FactStore:
    """The plant's store; its witness is restored with it, so it detects nothing."""
    return FactStore.open(folder / "facts.db", "plant", settings=AT_ONCE)


@pytest.fixture
def early(tmp_path: Path) -> Iterator[FactStore]:
    """The peer that had read all facts before the plant's store was restored."""
    with FactStore.open(tmp_path / "idmz.db", "idmz", settings=AT_ONCE) as store:
        yield store
        chain_is_whole(store)


@pytest.fixture
def copy(tmp_path: Path, early: FactStore) -> Path:
    """The folder with the restored store: it ends at 20, and the peer has read 60."""
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
    """Begin a new epoch, as when the store is known to be an old copy."""
    done(store.begin_epoch("idmz holds other facts"))


def full(*_: object, **__: object) -> None:
    """The error of a full disk for each write."""
    raise disk_error("SQLITE_FULL")


def disk_error(name: str) -> sqlite3.OperationalError:
    """The error of SQLite when the disk fails."""
    found = sqlite3.OperationalError(name)
    found.sqlite_errorname = name
    return found


def samples_in(store: FactStore) -> list[object]:
    """The values of the samples in a stream that also holds operational facts."""
    batches = [parse(one) for one in sealed_in(store)]
    return [value for one in batches if one.header.kind is Kind.SAMPLES for value in open_samples(one).values]


def is_sound(folder: Path) -> bool:
    """Whether verification finds no damage."""
    return not list(verify_store(folder / "facts.db", VerifyCounts(), lambda *_: None, is_quick=False))


def test_unread_facts_are_resealed(copy: Path, early: FactStore) -> None:
    """All facts that the copy recorded reach the peer that could not store them, once. Offsets, messages and tags stay
    the same, the file is sound, and new facts follow."""
    with opened(copy) as store:
        grow(store)
        old = store.epoch
        begin_anew(store)
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


@pytest.mark.parametrize("is_whole", [True, False], ids=["all", "some"])
def test_an_older_copy_repeats_a_reseal(copy: Path, early: FactStore, is_whole: bool) -> None:
    """A copy made before facts were resealed is put back beside the newer witness. It reseals those of them that it has
    under the same epoch as before, so the peer that has read them meets none under its old identity. The record of it
    outlives the copy, and a third restore repeats it once more."""
    files = [copy / "facts.db", copy / "facts.db-wal"]
    with node(copy) as store:
        grow(store)
        images = [file.read_bytes() for file in files]
        fill(store, 1101)
        if is_whole:
            images = [file.read_bytes() for file in files]
        begin_anew(store)
    with node(copy) as store:
        assert pull(store, early) == 110
        between = store.epoch
    held = len(values_in(early))
    for number in range(2):
        for file, image in zip(files, images, strict=True):
            file.write_bytes(image)
        with node(copy) as store:
            assert store.epoch != between
            assert values_in(store) == BEFORE + ANEW + [*range(1101, 1111)] * is_whole
            origins = {one.origin.epoch for one in store.read(TELEMETRY, len(BEFORE), EVERYTHING, EVERYTHING).batches}
            assert origins == {between}
            chain_is_whole(store)
            assert pull(store, early) == 0
            fill(store, 2001 + 10 * number)
            assert pull(store, early) == 10
            held += 10
            assert "resealed again" in next(one.detail for one in store.incidents() if one.kind == "epoch")
            fill(store, 3001)
        assert is_sound(copy)
    assert len(values_in(early)) == held
    assert [one.kind for one in early.incidents()] == []


def test_facts_that_were_read_keep_their_origin(copy: Path, early: FactStore) -> None:
    """Facts that were read or confirmed, or that were there before this life, keep their origin. The peer that holds
    other facts names them, and stores all facts after them."""
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


def damage(transaction: Transaction) -> None:
    """The disk changes the batch of offsets 51 to 60."""
    transaction.set_new_epoch_because("the trigger lets batches be changed")
    transaction._execute("UPDATE batch SET body = zeroblob(length(body)) WHERE first_offset = 51 AND last_offset = 60")
    transaction._execute("UPDATE store SET new_epoch_because = NULL")


def test_damage_is_not_resealed(copy: Path) -> None:
    """A stream with a damaged batch stays as it is, with its hole; other streams are resealed."""
    with opened(copy) as store:
        grow(store)
        done(store._writer.submit("damage", damage))
        begin_anew(store)
        (notice,) = notices(store, "epoch_began")
        assert notice["sealed_anew"] == [{"stream": OPERATIONAL, "first_offset": 2, "last_offset": 2, "facts": 1}]
        page = store.read(TELEMETRY, 0, EVERYTHING, EVERYTHING)
        assert [(one.first_offset, one.last_offset) for one in page.holes] == [(51, 60)]
        assert len(page.batches) == 11


def sealed_in_quietly(store: FactStore) -> list[bytes]:
    """All batches of a stream, read without moving a high-water mark."""
    return [one.sealed for one in store.reader.read(TELEMETRY, 0, EVERYTHING, EVERYTHING).batches]


def test_an_interrupted_reseal_is_repeated(copy: Path, early: FactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies between two batches: nothing is resealed, and the epoch has not begun. The next life begins the
    epoch and reseals nothing, since the facts may have been read in the life before."""
    reseal, left = Transaction.reseal, [4]

    def dying(*arguments: object) -> None:
        left[0] -= 1
        if not left[0]:
            raise disk_error("SQLITE_IOERR_WRITE")
        reseal(*arguments)  # type: ignore[arg-type]

    with opened(copy) as store:
        grow(store)
        old = store.epoch
        monkeypatch.setattr(Transaction, "reseal", dying)
        assert isinstance(failed(store.begin_epoch("asked")), StoreFailed)
    monkeypatch.undo()
    with opened(copy) as store:
        assert store.epoch == old
        assert values_in(store) == BEFORE + ANEW
        begin_anew(store)
        (notice,) = notices(store, "epoch_began")
        assert "sealed_anew" not in notice
        pull(store, early)
        assert samples_in(early)[: len(BEFORE + LOST)] == BEFORE + LOST
    assert is_sound(copy)


def test_on_a_full_disk_the_epoch_begins_without_resealing(
    copy: Path, early: FactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the epoch begins without resealing. A node whose peers are refused would be worse than facts under
    their old identity."""
    with opened(copy) as store:
        grow(store)
        monkeypatch.setattr(Transaction, "reseal", full)
        begin_anew(store)
        (notice,) = notices(store, "epoch_began")
        assert "sealed_anew" not in notice
        assert values_in(store) == BEFORE + ANEW
        pull(store, early)
        assert samples_in(early) == BEFORE + LOST + ANEW[len(LOST) + 10 :], "those beyond are stored"
        assert {(one.kind, "21 to 70" in one.subject) for one in early.incidents()} >= {("refused", True)}
    assert is_sound(copy)


def test_relayed_facts_are_not_resealed(copy: Path, early: FactStore) -> None:
    """Only own facts are resealed; facts of other zones between them stay unchanged."""
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


def test_no_unread_fact_is_read_while_an_epoch_begins() -> None:
    """While the new epoch begins no fact can be read, and a page that was being read then is dropped. Afterwards reads
    continue."""
    seen = ReadHighWater({TELEMETRY: 20})
    first = seen.generation
    seen.record(TELEMETRY, 15, first)
    seen.record(TELEMETRY, 30, first)
    seen.record(OPERATIONAL, 1, first)
    assert seen.freeze() == {TELEMETRY: 30, OPERATIONAL: 1}
    with pytest.raises(EpochChanging):
        seen.record(TELEMETRY, 40, first)
    seen.thaw()
    with pytest.raises(EpochChanging):
        seen.record(TELEMETRY, 40, first)
    seen.record(TELEMETRY, 40, seen.generation)
    assert seen.freeze() == {TELEMETRY: 40, OPERATIONAL: 1}


def test_a_page_read_before_the_epoch_is_dropped(copy: Path) -> None:
    """A page was read and not yet returned when the epoch began. Its facts have another identity now, so the reader has
    to read again."""
    with opened(copy) as store:
        grow(store)
        read = store._read

        def slow(*arguments: object, **options: object) -> Page:
            page = read(*arguments, **options)  # type: ignore[arg-type]
            begin_anew(store)
            return page

        store._read = slow  # type: ignore[assignment]
        with pytest.raises(EpochChanging):
            store.read(TELEMETRY, 0, 1000, 10**6)
        store._read = read  # type: ignore[method-assign]
        assert values_in(store) == BEFORE + ANEW


def test_facts_read_by_their_sequences_keep_their_origin(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch of a range of sequences counts as reading the facts. A page of them that was being read when the epoch
    began is dropped."""

    def read(store: FactStore) -> Page:
        return store.read_sequences(TELEMETRY, store.origin, 21, 30, 10, 10**6)

    with opened(copy) as store:
        grow(store)
        assert read(store).batches
        begin_anew(store)
        (notice,) = notices(store, "epoch_began")
        assert [one["stream"] for one in notice["sealed_anew"]] == [OPERATIONAL]
        fill(store, 1101)
        page = store.reader.read_sequences(TELEMETRY, store.origin, 1, 10, 10, 10**6)
        assert page.batches

        def slow(*_: object, **__: object) -> Page:
            begin_anew(store)
            return page

        monkeypatch.setattr(store.reader, "read_sequences", slow)
        with pytest.raises(EpochChanging):
            read(store)


def test_a_failed_epoch_does_not_stop_readers(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk is full when a new epoch is begun, the store continues, can be read, and the request can be
    repeated."""
    with opened(copy) as store:
        old = store.epoch
        with monkeypatch.context() as patch:
            patch.setattr(Transaction, "set_epoch", full)
            assert isinstance(failed(store.begin_epoch("asked")), StoreFull)
        assert store.read(TELEMETRY, 0, 10, 10**6).batches
        assert store.epoch == old
        begin_anew(store)
        assert store.epoch != old


def test_a_resealed_batch_has_the_same_content(copy: Path) -> None:
    """The content stays the same to the byte; only the header changes."""
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

"""A damaged batch is repaired only with its original bytes at its offsets; the damaged row and all other rows stay
unchanged."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agent.batch import cut, open_samples, parse, seal_columns
from agent.fact_store import FactStore
from agent.fact_store.core.errors import FactsRefused, ForkError
from agent.fact_store.integrity.verify import VerifyCounts, verify_store
from agent.fact_store.retention.reclaim import Reclaimer
from agent.pages import BatchEnd, Hole, OriginRange
from agent.settings.store import StreamSettings
from tests.fact_store.making import (
    AT_ONCE,
    EVERYTHING,
    TELEMETRY,
    Elsewhere,
    done,
    failed,
    parsed,
    past_the_triggers,
    sealed_in,
    values_in,
)
from tests.waiting import wait_until

COUNT = 10


def filled(folder: Path, batches: int = 5) -> Elsewhere:
    """A store of zone idmz with batches of ten facts of the plant, closed."""
    origin = Elsewhere()
    with FactStore.open(folder / "facts.db", "idmz", settings=AT_ONCE) as store:
        origin.put(store, [origin.seal(COUNT) for _ in range(batches)])
    return origin


def edited(folder: Path, statement: str, *values: object) -> None:
    """Change rows as the disk might."""
    with past_the_triggers(folder / "facts.db") as connection:
        connection.execute(statement, values)


def body_of(sealed: bytes) -> bytes:
    """The body with one bit changed."""
    return sealed[:50] + bytes([sealed[50] ^ 1]) + sealed[51:-16]


def opened(folder: Path) -> FactStore:
    """The store, after a reader met all damage."""
    store = FactStore.open(folder / "facts.db", "idmz", settings=AT_ONCE)
    store.read(TELEMETRY, 0, EVERYTHING, EVERYTHING)
    return store


@pytest.mark.parametrize(
    "column, value",
    [("body", body_of), ("digest", lambda _: bytes(16)), ("body", lambda _: b"")],
    ids=["body", "digest", "nothing left"],
)
def test_a_batch_is_repaired(tmp_path: Path, column: str, value: Callable[[bytes], bytes]) -> None:
    """Whether the disk changed the body or its digest: the damage is remembered over a restart, repaired, and served by
    offset and by sequence, also in pages that begin or end inside it; verification finds nothing."""
    origin = filled(tmp_path)
    edited(tmp_path, f"UPDATE batch SET {column} = ? WHERE first_offset = 21", value(origin.sealed[2]))
    opened(tmp_path).close()
    with FactStore.open(tmp_path / "facts.db", "idmz", settings=AT_ONCE) as store:
        assert done(store.inbound.damaged(TELEMETRY)) == [OriginRange("plant", origin.origin.life, 21, 30)]
        assert store.reader.read_sequences(TELEMETRY, origin.origin, 1, 50, 99, EVERYTHING).holes == (
            Hole(21, 30, "damaged"),
        )
        assert [tuple(part) for part in done(store.inbound.repair(TELEMETRY, "plant", parsed([origin.sealed[2]])))] == [
            (21, 30)
        ]
        assert done(store.inbound.damaged(TELEMETRY)) == []
        assert sealed_in(store)[:5] == origin.sealed
        for after, limit in ((0, 1), (20, 1), (24, 2), (29, 1)):
            page = store.read(TELEMETRY, after, limit, 1)
            assert page.batches[0].first_offset <= after + 1 <= page.batches[0].last_offset
            assert not page.holes
        assert store.read(TELEMETRY, 22, 5, EVERYTHING, until_offset=25).batches[0].sealed == origin.sealed[2]
        page = store.reader.read_sequences(TELEMETRY, origin.origin, 1, 50, 99, EVERYTHING)
        assert [batch.sealed for batch in page.batches] == origin.sealed
        assert not page.holes
        assert [incident.kind for incident in store.reader.incidents() if incident.kind == "repaired"] == ["repaired"]
        assert done(store.inbound.repair(TELEMETRY, "plant", parsed([origin.sealed[2]]))) == []  # it is whole
    assert not list(verify_store(tmp_path / "facts.db", VerifyCounts(), lambda *_: None, is_quick=True))


def test_only_the_original_bytes_are_accepted(tmp_path: Path) -> None:
    """A batch for the same sequences with other values, one that was never held, and a slice are refused, and the
    hole stays."""
    origin = filled(tmp_path)
    edited(tmp_path, "UPDATE batch SET body = ? WHERE first_offset = 21", body_of(origin.sealed[2]))
    with opened(tmp_path) as store:
        before, honest = parse(origin.sealed[1]), parse(origin.sealed[2])
        columns = open_samples(honest)
        forged = seal_columns(before.link, columns._replace(values=[7] * COUNT), honest.header.definitions)
        error = failed(store.inbound.repair(TELEMETRY, "plant", parsed([forged.sealed])))
        assert isinstance(error, ForkError)
        assert [incident.kind for incident in store.reader.incidents() if incident.kind == "fork"] == ["fork"]
        stranger = Elsewhere("stranger", life=bytes(16))
        assert isinstance(
            failed(store.inbound.repair(TELEMETRY, "plant", parsed([stranger.seal(COUNT)]))), FactsRefused
        )
        with pytest.raises(AssertionError):  # the pull has refused it: our mistake
            store.inbound.repair(TELEMETRY, "plant", [cut(honest, 0, 5)])
        assert store.read(TELEMETRY, 20, 10, EVERYTHING, until_offset=30).holes == (Hole(21, 30, "damaged"),)
        assert len(done(store.inbound.damaged(TELEMETRY))) == 1


def test_damage_after_a_repair_is_repaired_again(tmp_path: Path) -> None:
    """A repaired batch may be damaged too: it is a hole again, is found again, and is repaired again."""
    origin = filled(tmp_path)
    edited(tmp_path, "UPDATE batch SET body = ? WHERE first_offset = 1", body_of(origin.sealed[0]))
    for _ in range(2):
        with opened(tmp_path) as store:
            assert done(store.inbound.repair(TELEMETRY, "plant", parsed([origin.sealed[0]]))) == [(1, 10)]
            assert sealed_in(store)[0] == origin.sealed[0]
        edited(tmp_path, "UPDATE repaired SET body = ?", body_of(origin.sealed[0]))
    with opened(tmp_path) as store:
        assert store.read(TELEMETRY, 0, 10, 1).holes == (Hole(1, 10, "damaged"),)


def test_retention_deletes_repaired_batches(tmp_path: Path) -> None:
    """A released batch leaves no repaired copy, and a batch that is damaged and released needs no repair; its sequences
    are expired."""
    origin = filled(tmp_path)
    for offset, sealed in ((1, origin.sealed[0]), (11, origin.sealed[1])):
        edited(tmp_path, "UPDATE batch SET body = ? WHERE first_offset = ?", body_of(sealed), offset)
    with opened(tmp_path) as store:
        done(store.inbound.repair(TELEMETRY, "plant", parsed([origin.sealed[0]])))
    policy = StreamSettings(TELEMETRY, keep_hours=0)
    with FactStore.open(tmp_path / "facts.db", "idmz", settings=AT_ONCE, streams=[policy]) as store:
        done(store.consumers.register("c", "idmz", TELEMETRY))
        done(store.consumers.confirm("c", 30))
        wait_until(lambda: store.streams()[0].first_offset == 31, "the release")

        def rows() -> int:
            with closing(sqlite3.connect(f"file:{tmp_path}/facts.db?mode=ro", uri=True)) as connection:
                return int(connection.execute("SELECT count(*) FROM repaired").fetchone()[0])

        wait_until(lambda: rows() == 0, "the copy to go")
        assert done(store.inbound.repair(TELEMETRY, "plant", parsed([origin.sealed[1]]))) == []
        assert done(store.inbound.damaged(TELEMETRY)) == []
        page = store.reader.read_sequences(TELEMETRY, origin.origin, 1, 70, 99, EVERYTHING)
        assert page.holes == (Hole(1, 30, "expired"), Hole(51, 70, "absent"))


def test_what_is_released_is_not_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor while its row is not yet deleted: no reader gets these facts any more, and nothing says that they are
    back."""
    origin = filled(tmp_path)
    edited(tmp_path, "UPDATE batch SET body = ? WHERE first_offset = 1", body_of(origin.sealed[0]))
    monkeypatch.setattr(Reclaimer, "delete", lambda *_: False)
    policy = StreamSettings(TELEMETRY, keep_hours=0)
    with FactStore.open(tmp_path / "facts.db", "idmz", settings=AT_ONCE, streams=[policy]) as store:
        store.read(TELEMETRY, 0, EVERYTHING, EVERYTHING)
        done(store.consumers.register("c", "idmz", TELEMETRY))
        done(store.consumers.confirm("c", 30))
        wait_until(lambda: store.streams()[0].first_offset == 31, "the release")
        assert done(store.inbound.repair(TELEMETRY, "plant", parsed([origin.sealed[0]]))) == []
        assert done(store.inbound.damaged(TELEMETRY)) == []
        assert "repaired" not in {incident.kind for incident in store.reader.incidents()}


def test_ends_are_read_from_the_table(tmp_path: Path) -> None:
    """A batch is named by any sequence in it; sequences that are not held, or of an unknown origin, have no end."""
    origin = filled(tmp_path)
    with opened(tmp_path) as store:
        ends = [BatchEnd(batch.header.last_sequence, batch.digest) for batch in map(parse, origin.sealed)]
        assert store.reader.batch_ends(TELEMETRY, origin.origin, [1, 10, 11, 50, 51]) == [ends[0], ends[1], ends[4]]
        assert store.reader.batch_ends("facts.other", origin.origin, [1]) == []
        assert store.reader.batch_ends(TELEMETRY, store.origin, [1]) == []
        (held,) = store.reader.held(TELEMETRY)[origin.origin]
        assert (held.first_sequence, held.last_sequence, held.last_digest) == (1, 50, ends[4].digest)
        assert values_in(store) == list(range(1, 51))

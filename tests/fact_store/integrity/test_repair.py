"""A damaged batch is repaired only with its original bytes at its offsets, and damaged tag definitions by copies that
their digest proves; the damaged rows and all other rows stay unchanged."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agent.batch import cut, open_samples, parse, seal_columns
from agent.fact_store import FactStore
from agent.fact_store.core.errors import FactsRefused, ForkError, StoreDamaged
from agent.fact_store.retention.reclaim import Reclaimer
from agent.pages import BatchEnd, Hole, OriginRange
from agent.settings.store import StreamSettings
from tests.fact_store.making import (
    AT_ONCE,
    EVERYTHING,
    TELEMETRY,
    Elsewhere,
    damages,
    done,
    failed,
    parsed,
    past_the_triggers,
    sealed_in,
    tag,
    values_in,
)
from tests.waiting import wait_until

COUNT = 10
TAGS = 4
Hurt = Callable[[sqlite3.Connection], object]


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
def test_batches_are_repaired(tmp_path: Path, column: str, value: Callable[[bytes], bytes]) -> None:
    """Whether the disk changed bodies or digests: the damage is remembered over a restart, repaired, and served by
    offset and by sequence, also in pages that begin or end inside it; verification finds nothing."""
    origin = filled(tmp_path)
    edited(tmp_path, f"UPDATE batch SET {column} = ? WHERE first_offset IN (1, 21)", value(origin.sealed[2]))
    opened(tmp_path).close()
    with FactStore.open(tmp_path / "facts.db", "idmz", settings=AT_ONCE) as store:
        spans, damaged = [(1, 10), (21, 30)], [origin.sealed[0], origin.sealed[2]]
        life = origin.origin.life
        assert done(store.inbound.damaged(TELEMETRY)) == [OriginRange("plant", life, *span) for span in spans]
        page = store.reader.read_sequences(TELEMETRY, origin.origin, 1, 50, 99, EVERYTHING)
        assert page.holes == tuple(Hole(*span, "damaged") for span in spans)
        assert [tuple(part) for part in done(store.inbound.repair(TELEMETRY, "plant", parsed(damaged)))] == spans
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
        assert [incident.kind for incident in store.reader.incidents() if incident.kind == "repaired"] == [
            "repaired"
        ] * 2
        assert done(store.inbound.repair(TELEMETRY, "plant", parsed(damaged))) == []  # they are whole
    assert not damages(tmp_path / "facts.db", is_quick=True)


def test_what_never_came_is_not_damaged(tmp_path: Path) -> None:
    """Of the sequences that cannot be served those before, between and after held batches are absent, wherever they
    lie in a hole."""
    origin = Elsewhere()
    with FactStore.open(tmp_path / "facts.db", "idmz", settings=AT_ONCE) as store:
        origin.put(store, [origin.seal(COUNT) for _ in range(5)][::2])
    edited(tmp_path, "UPDATE batch SET body = ? WHERE first_offset = 11", body_of(origin.sealed[2]))
    with opened(tmp_path) as store:
        page = store.reader.read_sequences(TELEMETRY, origin.origin, 1, 60, 99, EVERYTHING)
    assert page.holes == (
        Hole(11, 20, "absent"), Hole(21, 30, "damaged"), Hole(31, 40, "absent"), Hole(51, 60, "absent"),
    )  # fmt: skip


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


def body_of_2(connection: sqlite3.Connection) -> None:
    """Change one bit of the definition of tag 2."""
    (body,) = connection.execute("SELECT body FROM definition WHERE number = 2").fetchone()
    connection.execute(
        "UPDATE definition SET body = ? WHERE number = 2", (body[:-3] + bytes([body[-3] ^ 1]) + body[-2:],)
    )


def digest_of_the_last(connection: sqlite3.Connection) -> None:
    """Change the digest from which the writer continues."""
    connection.execute("UPDATE definition SET digest = ? WHERE number = ?", (bytes(16), TAGS))


def previous_of_3(connection: sqlite3.Connection) -> None:
    """Let a definition follow another one."""
    connection.execute("UPDATE definition SET previous = 1 WHERE number = 3")


def no_2(connection: sqlite3.Connection) -> None:
    """Remove a row."""
    connection.execute("DELETE FROM definition WHERE number = 2")


def no_end(connection: sqlite3.Connection) -> None:
    """Remove the last two rows; only the batches show that they were there."""
    connection.execute("DELETE FROM definition WHERE number >= 3")


HURTS: tuple[Hurt, ...] = (body_of_2, digest_of_the_last, previous_of_3, no_2, no_end)


def held(folder: Path, hurt: Hurt) -> Elsewhere:
    """A store with a batch of an origin with some tags, damaged while it is closed."""
    origin = Elsewhere("plant-b", tags=TAGS)
    with FactStore.open(folder / "facts.db", "idmz") as store:
        origin.put(store, [origin.seal(10)], 10)
    with past_the_triggers(folder / "facts.db") as connection:
        hurt(connection)
    return origin


@pytest.mark.parametrize("hurt", HURTS)
def test_damaged_definitions_are_repaired(tmp_path: Path, hurt: Hurt) -> None:
    """Found, repaired once, used at once and after a restart; the next batch and tags of the zone are accepted."""
    origin = held(tmp_path, hurt)
    with FactStore.open(tmp_path / "facts.db", "idmz") as store:
        assert store.inbound.damaged_definitions(TELEMETRY, origin.origin, 10) == origin.definitions
        (chain,) = origin.received()
        assert done(store.inbound.repair_definitions(TELEMETRY, "plant-b", chain)) >= 1
        assert store.inbound.damaged_definitions(TELEMETRY, origin.origin, 10) is None
        assert origin.held_in(store) == origin.bodies
        assert done(store.inbound.repair_definitions(TELEMETRY, "plant-b", chain)) == 0
        origin.bodies.append(tag(TAGS + 1).to_json())
        assert origin.put(store, [origin.seal(10)], 20, first_definition=TAGS + 1).stored_facts == 10
    with FactStore.open(tmp_path / "facts.db", "idmz") as store:
        assert origin.held_in(store) == origin.bodies
        assert [incident.kind for incident in store.reader.incidents()] == ["definitions_repaired"]
    assert damages(tmp_path / "facts.db") == [] or hurt in {digest_of_the_last, no_end}, (
        "a batch keeps the row that was damaged"
    )


def test_nothing_else_is_accepted(tmp_path: Path) -> None:
    """Another definition than the zone's, or too few: refused, and no definition has changed."""
    origin, liar = held(tmp_path, body_of_2), Elsewhere("plant-b", tags=TAGS)
    liar.bodies[1] = tag(2, unit="degF").to_json()
    (chain,) = origin.received()
    with FactStore.open(tmp_path / "facts.db", "idmz") as store:
        for wrong in (liar.bodies, origin.bodies[:-1], []):
            offered = chain._replace(bodies=wrong)
            assert isinstance(failed(store.inbound.repair_definitions(TELEMETRY, "plant-b", offered)), FactsRefused)
        with pytest.raises(StoreDamaged, match="tag definition 2 of"):
            origin.held_in(store)


def test_repaired_definitions_stay(tmp_path: Path) -> None:
    """A repaired definition can neither be changed nor removed in the file."""
    origin = held(tmp_path, body_of_2)
    with FactStore.open(tmp_path / "facts.db", "idmz") as store:
        done(store.inbound.repair_definitions(TELEMETRY, "plant-b", origin.received()[0]))
    with closing(sqlite3.connect(tmp_path / "facts.db")) as connection:
        for statement in ("UPDATE repaired_definition SET body = x'00'", "DELETE FROM repaired_definition"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(statement)

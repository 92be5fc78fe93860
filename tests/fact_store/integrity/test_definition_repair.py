"""Damaged tag definitions are repaired by copies that their digest proves, and only by those."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agent.fact_store import FactStore
from agent.fact_store.core.errors import FactsRefused, StoreDamaged
from agent.fact_store.integrity.verify import VerifyCounts, verify_store
from tests.fact_store.making import TELEMETRY, Elsewhere, done, failed, past_the_triggers, tag

TAGS = 4
Hurt = Callable[[sqlite3.Connection], object]


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
    damages = list(verify_store(tmp_path / "facts.db", VerifyCounts(), lambda *_: None, is_quick=False))
    assert damages == [] or hurt in {digest_of_the_last, no_end}, "a batch keeps the row that was damaged"


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

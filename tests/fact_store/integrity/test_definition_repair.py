"""Damaged tag definitions are repaired where a held batch proves them, and only there.

Checked by breaking the product on purpose: a peer trusted without the batch's digest, a batch accepted that is not
held, a writer that continues with the damaged end in its catalog.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agent.batch import parse
from agent.fact_store import FactStore
from agent.fact_store.integrity.verify import VerifyCounts, verify_store
from agent.fact_store.log.errors import FactsRefused, ForkError, StoreDamaged
from agent.pages import ReceivedDefinition
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


def no_2(connection: sqlite3.Connection) -> None:
    """Remove a row."""
    connection.execute("DELETE FROM definition WHERE number = 2")


def no_end(connection: sqlite3.Connection) -> None:
    """Remove the last two rows; only the batches show that they were there."""
    connection.execute("DELETE FROM definition WHERE number >= 3")


HURTS: dict[Hurt, int] = {body_of_2: 2, digest_of_the_last: TAGS, no_2: 2, no_end: 3}


def held(folder: Path, hurt: Hurt) -> Elsewhere:
    """A store with a batch of an origin with some tags, damaged while it is closed."""
    origin = Elsewhere("plant-b", tags=TAGS)
    with FactStore.open(folder / "facts.db", "idmz") as store:
        origin.put(store, [origin.seal(10)], 10)
    with past_the_triggers(folder / "facts.db") as connection:
        hurt(connection)
    return origin


@pytest.mark.parametrize("hurt, first", HURTS.items(), ids=[hurt.__name__ for hurt in HURTS])
def test_definitions_proven_by_a_batch_are_repaired(tmp_path: Path, hurt: Hurt, first: int) -> None:
    """Found by its number, repaired once, used at once and after a restart; the next batch and tags of the origin are
    accepted. Definitions of another origin that come along do not matter."""
    origin, other = held(tmp_path, hurt), Elsewhere("plant-c", tags=TAGS + 2)
    other.bodies = [body.replace(b"line1", b"line2") for body in other.bodies]
    with FactStore.open(tmp_path / "facts.db", "idmz") as store:
        batch = parse(origin.sealed[0])
        assert store.inbound.damaged_definition(TELEMETRY, origin.origin, 10) == first
        offered = [*origin.received(first), *other.received()]
        assert done(store.inbound.repair_definitions(TELEMETRY, "plant-b", batch, offered)) >= 1
        assert store.inbound.damaged_definition(TELEMETRY, origin.origin, 10) is None
        assert store.definitions(origin.origin, 0, 99) == origin.bodies
        assert done(store.inbound.repair_definitions(TELEMETRY, "plant-b", batch, offered)) == 0
        origin.bodies.append(tag(TAGS + 1).to_json())
        assert origin.put(store, [origin.seal(10)], 20, first_definition=TAGS + 1).stored_facts == 10
    with FactStore.open(tmp_path / "facts.db", "idmz") as store:
        assert store.definitions(origin.origin, 0, 99) == origin.bodies
        assert [one.kind for one in store.incidents()] == ["definitions_repaired"]
    assert list(verify_store(tmp_path / "facts.db", VerifyCounts(), lambda *_: None, is_quick=False)) == []


@pytest.mark.parametrize("hurt", [digest_of_the_last, no_end])
def test_a_repaired_end_counts_after_a_restart(tmp_path: Path, hurt: Hurt) -> None:
    """The origin's next tag continues from the repaired digest, not from the damaged one, in the next life too."""
    origin = held(tmp_path, hurt)
    with FactStore.open(tmp_path / "facts.db", "idmz") as store:
        offered = origin.received(HURTS[hurt])
        done(store.inbound.repair_definitions(TELEMETRY, "plant-b", parse(origin.sealed[0]), offered))
    with FactStore.open(tmp_path / "facts.db", "idmz") as store:
        origin.bodies.append(tag(TAGS + 1).to_json())
        assert origin.put(store, [origin.seal(10)], 20, first_definition=TAGS + 1).stored_facts == 10


def test_nothing_else_is_accepted(tmp_path: Path) -> None:
    """Another definition than the origin's, a batch that is not held, a missing number: refused, and no definition has
    changed."""
    origin, liar = held(tmp_path, body_of_2), Elsewhere("plant-b", tags=TAGS)
    liar.bodies[1] = tag(2, unit="degF").to_json()
    with FactStore.open(tmp_path / "facts.db", "idmz") as store:

        def refused(batch: bytes, offered: list[ReceivedDefinition]) -> type[BaseException]:
            return type(failed(store.inbound.repair_definitions(TELEMETRY, "plant-b", parse(batch), offered)))

        assert refused(origin.sealed[0], liar.received(2)) is ForkError
        assert refused(liar.seal(10), liar.received(2)) is FactsRefused
        assert refused(origin.seal(10), origin.received(2)) is FactsRefused
        assert refused(origin.sealed[0], origin.received(2)[:-1]) is FactsRefused
        assert refused(origin.sealed[0], []) is FactsRefused
        assert [(one.kind, one.subject) for one in store.incidents()] == [("fork", f"{TELEMETRY} from plant-b")]
        with pytest.raises(StoreDamaged, match="tag definition 2 of"):
            store.definitions(origin.origin, 0, 99)


def test_repaired_definitions_stay(tmp_path: Path) -> None:
    """A repaired definition can neither be changed nor removed in the file."""
    origin = held(tmp_path, body_of_2)
    with FactStore.open(tmp_path / "facts.db", "idmz") as store:
        done(store.inbound.repair_definitions(TELEMETRY, "plant-b", parse(origin.sealed[0]), origin.received(2)))
    with closing(sqlite3.connect(tmp_path / "facts.db")) as connection:
        for statement in ("UPDATE repaired_definition SET body = x'00'", "DELETE FROM repaired_definition"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(statement)

"""Checkpoints: the daily summary that a store records of all that it holds, and how verification uses it."""

import json
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.batch import LIFE_BYTES, Origin, parse
from agent.fact_store import FactStore, VerifyCounts
from agent.fact_store.append import checkpoint
from agent.fact_store.append.checkpoint import ORIGINS_MAX, PREDICATE, checkpoint_objects, checkpoints_in
from agent.message import Envelope, Fact, Message, canonical_json
from agent.pages import HeldRange
from agent.signing.keys import SigningKey, ZoneSigner
from tests.fact_store.making import AT_ONCE, TELEMETRY, Elsewhere, damages, done, messages_in

SIGNER = ZoneSigner(SigningKey.generate(), b"")


def opened(folder: Path, signer: ZoneSigner | None = SIGNER) -> FactStore:
    """The store of zone idmz."""
    return FactStore.open(folder / "facts.db", "idmz", settings=AT_ONCE, signer=signer)


def verified(folder: Path) -> tuple[list[str], int]:
    """What verification finds, and how many entries of checkpoints it compared."""
    counts = VerifyCounts()
    return damages(folder / "facts.db", counts), counts.checkpoints


def test_a_day_has_one_checkpoint_of_each_stream(tmp_path: Path) -> None:
    """It names every origin with its last sequence and digest, is signed like any fact, and is stored once a day; a
    store without a key has none."""
    mill = Elsewhere("mill")
    with opened(tmp_path) as store:
        mill.put(store, [mill.seal(5), mill.seal(3)])
        for date in ("2026-11-22", "2026-11-22", "2026-11-23"):
            done(store.checkpoint(date))
        last = parse(mill.sealed[-1])
        found = [*checkpoints_in(messages_in(store, TELEMETRY))]
        assert [(record.date, record.origin) for record in found] == [
            ("2026-11-22", mill.origin),
            ("2026-11-23", store.origin),
            ("2026-11-23", mill.origin),
        ]
        assert {(record.last_sequence, record.digest) for record in found if record.origin == mill.origin} == {
            (8, last.digest)
        }
        assert {record.by for record in found} == {"idmz"}
        assert store.reader.verified(TELEMETRY, [(store.origin, 2)]) == ["yes"]
    assert verified(tmp_path) == ([], 3)
    (tmp_path / "unsigned").mkdir()
    with opened(tmp_path / "unsigned", None) as store:
        mill.put(store, mill.sealed)
        done(store.checkpoint("2026-11-22"))
        assert store.end_offset(TELEMETRY) == 8


def test_a_checkpoint_of_many_origins_is_stored_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the facts into which it is split is stored, once a day however often it is asked for."""
    monkeypatch.setattr(checkpoint, "ORIGINS_MAX", 2)
    mills = [Elsewhere(f"mill{number}") for number in range(5)]
    with opened(tmp_path) as store:
        for mill in mills:
            mill.put(store, [mill.seal(1)])
        for _ in range(2):
            done(store.checkpoint("2026-11-22"))
        found = [record.origin for record in checkpoints_in(messages_in(store, TELEMETRY))]
    assert found == [mill.origin for mill in mills]


def test_a_history_that_was_rewritten_contradicts_the_checkpoint(tmp_path: Path) -> None:
    """Verification detects a store in which a zone's history was replaced by another sound one: it contradicts the
    checkpoint that this zone had recorded. A checkpoint of another zone proves nothing."""
    mill, other = Elsewhere("mill"), Elsewhere("mill")
    mill.seal(5)
    other.seal(5, salt=100)
    with opened(tmp_path) as store:
        mill.put(store, mill.sealed)
        done(store.checkpoint("2026-11-22"))
    rewritten = parse(other.sealed[0])
    with sqlite3.connect(tmp_path / "facts.db") as connection:
        connection.execute("DROP TRIGGER batch_update_refused")
        columns = "digest = ?, previous_digest = ?, body = ?, time_min_ns = ?, time_max_ns = ?"
        header = rewritten.header
        values = (
            rewritten.digest,
            header.previous_digest,
            rewritten.sealed[:-16],
            header.time_min_ns,
            header.time_max_ns,
        )
        connection.execute(f"UPDATE batch SET {columns} WHERE first_offset = 1", values)
        connection.execute("UPDATE held SET last_digest = ? WHERE last_sequence = 5", (rewritten.digest,))
    connection.close()
    found, compared = verified(tmp_path)
    assert compared == 1
    assert any("sequence 5 is not what the checkpoint of 2026-11-22 recorded" in damage for damage in found)
    with sqlite3.connect(tmp_path / "facts.db") as connection:
        connection.execute("UPDATE store SET node = 'else'")
    connection.close()
    assert verified(tmp_path)[1] == 0, "another node's checkpoint is not compared"


def test_checkpoints_of_many_origins_are_split() -> None:
    """Each fact has a bounded number of origins, and together they have all."""
    held = {
        Origin("mill", number.to_bytes(LIFE_BYTES, "big")): (HeldRange(1, number + 1, bytes(16), bytes(16)),)
        for number in range(ORIGINS_MAX + 5)
    }
    parts = [*checkpoint_objects("2026-11-22", held)]
    messages = [message(canonical_json({"stream": TELEMETRY, **part})) for part in parts]
    assert len(parts) == 2
    assert {record.origin for record in checkpoints_in(messages)} == set(held)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["date", "origins", "zone", "life", "digest", "last_sequence", "stream"]), inner)))  # fmt: skip
def test_a_checkpoint_without_its_form_is_no_checkpoint(content: object) -> None:
    """Reading a malformed fact under the predicate of checkpoints raises nothing."""
    assert [*checkpoints_in([message(json.dumps(content).encode())])] == []


def message(content: bytes) -> Message:
    """A message with the predicate of checkpoints."""
    return Message(Envelope("id", "mill", "*", 1), Fact(f"stream:mill/{TELEMETRY}", PREDICATE, content))

"""`bsfg store verify` finds what a disk can change, wherever it is, and names the place; an undamaged store has no
damage."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.cli import bsfg
from agent.fact_store.integrity.verify import VerifyCounts, verify_store
from tests.fact_store.making import (
    LIFE,
    OPERATIONAL,
    TELEMETRY,
    Elsewhere,
    done,
    message,
    past_the_triggers,
    plant,
    samples,
    tag,
)


def filled(folder: Path) -> Path:
    """A store with own samples and messages, a peer's batches, and a consumer with a confirmed range beyond its
    frontier."""
    north = Elsewhere("north", "facts.north", LIFE)
    with plant(folder) as store:
        done(store.appends.define([tag(2), tag(3)]))
        for n in range(4):
            done(store.appends.append_samples(TELEMETRY, samples(10, 1 + 10 * n)))
            done(store.appends.append_message(OPERATIONAL, message(f"id-{n}")))
            north.put(store, [north.seal(5)], n + 1)
        done(store.consumers.register("idmz", "idmz", TELEMETRY))
        done(store.consumers.confirm("idmz", 10))
        done(store.consumers.confirm("idmz", 30, 21))
    return folder / "facts.db"


def damages(path: Path, *, is_quick: bool = False) -> list[str]:
    """The damage that verify reports."""
    return [str(damage) for damage in verify_store(path, VerifyCounts(), lambda *_: None, is_quick=is_quick)]


def test_a_whole_store_has_no_damage(tmp_path: Path) -> None:
    """Verification of an undamaged store finds nothing and checks everything."""
    counted = VerifyCounts()
    assert not list(verify_store(filled(tmp_path), counted, lambda *_: None, is_quick=False))
    assert (counted.batches, counted.facts, counted.streams, counted.definitions) == (12, 64, 3, 5)


AT_11 = "WHERE stream = 1 AND first_offset = 11"


@pytest.mark.parametrize(
    "statement, named",
    [
        ("UPDATE batch SET body = zeroblob(length(body)) WHERE id = 1", "facts.telemetry 1 to 10"),
        ("UPDATE batch SET digest = zeroblob(16) WHERE id = 1", "digest"),
        ("UPDATE batch SET time_max_ns = time_max_ns + 1 WHERE id = 1", "column time_max_ns"),
        ("UPDATE batch SET kind = 2 WHERE id = 1", "column kind"),
        ("UPDATE batch SET bytes_total = bytes_total + 1 WHERE id = 1", "column bytes_total"),
        (f"UPDATE batch SET previous_digest = zeroblob(16) {AT_11}", "column previous_digest"),
        ("UPDATE batch SET origin = 2 WHERE id = 1", "column origin"),
        (f"DELETE FROM batch {AT_11}", "facts.telemetry 11 to 20: the rows are missing"),
        ("DELETE FROM batch WHERE stream = 1 AND first_offset = 31", "facts.telemetry 31 to 40: the rows end at 30"),
        ("UPDATE stream SET name = 'facts.elsewhere' WHERE id = 1", "column stream is facts.elsewhere"),
        (
            "UPDATE definition SET body = CAST(body || ' ' AS BLOB) WHERE zone = 'plant' AND number = 2",
            "tag definition 2",
        ),
        ("DELETE FROM definition WHERE zone = 'plant' AND number = 3", "tag definitions held differ from those"),
        ("UPDATE held SET last_sequence = last_sequence + 1 WHERE origin = 2", "the held ranges end at 21"),
        (
            "UPDATE held SET last_sequence = last_sequence - 5 WHERE origin = 1 AND stream = 1",
            "facts.telemetry 36 to 40: the rows end at 40, the held ranges end at 35",
        ),
        (f"UPDATE batch SET last_offset = 5 {AT_11}", "facts.telemetry 11 to 20 (sequence 11 of plant"),
        (f"UPDATE batch SET last_offset = 5, body = x'00' {AT_11}", "facts.telemetry 11 to 11 (sequence 11 of plant"),
        ("UPDATE held SET last_digest = zeroblob(16) WHERE origin = 2", "another digest than the held range"),
        ("UPDATE consumer SET frontier = 99", "consumer idmz confirmed 99"),
        ("UPDATE confirmed SET first_offset = 9", "consumer idmz confirmed 9 to 30"),
        ("UPDATE origin SET life = zeroblob(16) WHERE id = 2", "column origin"),
    ],
)
def test_every_kind_of_damage_is_named(tmp_path: Path, statement: str, named: str) -> None:
    """One change in one table at a time; verify names it, quick or not, and no range that it names is empty."""
    path = filled(tmp_path)
    with past_the_triggers(path) as connection:
        connection.execute(statement)
    assert any(named in damage for damage in damages(path, is_quick=True)), damages(path)
    found_damages = list(verify_store(path, VerifyCounts(), lambda *_: None, is_quick=False))
    assert found_damages
    assert all(damage.offset <= damage.last_offset for damage in found_damages), damages(path)


def test_a_chain_forged_in_itself_is_broken(tmp_path: Path) -> None:
    """A batch with a valid digest that does not attach to the one before it."""
    path = filled(tmp_path)
    forger = Elsewhere("north", "facts.north", LIFE)
    forger.seal(5)
    other = forger.seal(5, salt=7)
    change = "UPDATE batch SET body = ?, digest = ? WHERE first_offset = 6 AND stream = (SELECT id FROM stream WHERE name = 'facts.north')"
    with past_the_triggers(path) as connection:
        connection.execute(change, (other[:-16], other[-16:]))
    assert any("chain is broken" in damage for damage in damages(path))


def test_the_command_names_damage_and_what_to_do(tmp_path: Path) -> None:
    """Status 0 and one line for an undamaged store, 1 with each damage and advice for a damaged one, also as JSON."""
    path = filled(tmp_path)
    run = CliRunner().invoke(bsfg, ["store", "verify", "--file", str(path)])
    assert (run.exit_code, "as they were written" in run.output) == (0, True), run.output
    data = bytearray(path.read_bytes())
    with closing(sqlite3.connect(path)) as found:
        (body,) = found.execute("SELECT body FROM batch WHERE id = 1").fetchone()
    data[data.index(body) + len(body) - 3] ^= 4
    path.write_bytes(bytes(data))
    run = CliRunner().invoke(bsfg, ["store", "verify", "--quick", "--file", str(path)])
    assert run.exit_code == 1
    assert "damaged: facts.telemetry 1 to 10 (sequence 1 of plant/" in run.output
    assert "check the disk" in run.output
    run = CliRunner().invoke(bsfg, ["store", "verify", "--json", "--file", str(path)])
    assert (run.exit_code, '"offset": 1' in run.output) == (1, True)


def test_migrate_prints_both_versions(tmp_path: Path) -> None:
    """A store that is up to date is reported as such; a running node keeps its store locked."""
    path = filled(tmp_path)
    run = CliRunner().invoke(bsfg, ["store", "migrate", "--file", str(path)])
    assert (run.exit_code, "already" in run.output) == (0, True), run.output
    with plant(tmp_path):
        run = CliRunner().invoke(bsfg, ["store", "migrate", "--file", str(path)])
    assert run.exit_code != 0

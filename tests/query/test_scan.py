"""Facts of a store within bounds: all of them, no others, and no batch opened that cannot hold one."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Never

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.columns import FACTS_MAX
from agent.fact_store import FactStore, StoreReader
from agent.fact_store.core.errors import StoreDamaged, StoreUnusable
from agent.fact_store.core.records import BatchSummary
from agent.message import Sample, Value
from agent.pages import Hole, Page, StoredBatch
from agent.query.latest.latest_query import AbsentTags, find_latest, find_latest_in_stream
from agent.query.scan.bounds import Bounds
from agent.query.scan.fact_columns import sql_value, value_text, value_type
from agent.query.scan.messages import fact_messages
from agent.query.scan.scanner import Scanner
from tests.batch.making import bits
from tests.fact_store.making import AT_ONCE, OPERATIONAL, TELEMETRY, damage, done
from tests.query.exact import exact_value
from tests.query.making import BASE_NS, SECOND_NS, TAGS, everything, naive

NAMES = (
    "stream", "offset", "zone", "life", "sequence", "kind", "subject", "predicate", "tag", "unit", "quality",
    "source_time", "source_time_ns", "object_json", "message_id",
)  # fmt: skip
EXACT = ("value_type", "value", "value_text")


@pytest.fixture
def scanner(file: Path) -> Iterator[Scanner]:
    """A scanner of it."""
    with closing(StoreReader(file)) as reader:
        yield Scanner(reader)


def rows(scanner: Scanner, bounds: Bounds, *, newest_first: bool = False) -> list[dict[str, Any]]:
    """What a scan finds, as dicts."""
    scanned = scanner.scan(bounds, newest_first=newest_first)
    return [
        dict(zip(NAMES, row, strict=True)) for found in scanned for row in zip(*map(found.column, NAMES), strict=True)
    ]


def plain(facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The columns that both have."""
    return [{name: fact[name] for name in NAMES} for fact in facts]


def test_a_scan_without_bounds_is_everything(scanner: Scanner, facts: list[dict[str, Any]]) -> None:
    """Every fact once, in the order of streams and offsets, each column as the batch says; and the same backwards."""
    assert rows(scanner, Bounds()) == plain(facts)
    assert rows(scanner, Bounds(), newest_first=True) == plain(facts)[::-1]
    assert scanner.counters.holes == []


@given(st.floats() | st.integers(-(2**63), 2**64 - 1) | st.booleans() | st.text() | st.binary() | st.none())
def test_any_value_comes_back_to_the_bit(value: Value) -> None:
    """The same for whatever a tag can hold, and what SQL sees is never out of SQLite's range."""
    found = sql_value(value)
    assert bits(exact_value(value_type(value), found, value_text(value))) == bits(value)
    assert not isinstance(found, int) or -(2**63) <= found < 2**63


moments = st.integers(BASE_NS - SECOND_NS, BASE_NS + 1100 * SECOND_NS)


@given(st.data())
def test_bounds_leave_out_exactly_what_they_exclude(
    file: Path, facts: list[dict[str, Any]], data: st.DataObject
) -> None:
    """Any combination of bounds finds what a plain filter over all facts finds."""
    subjects = data.draw(st.none() | st.frozensets(st.sampled_from([tag.subject for tag in TAGS] + ["order:line1/1"])))
    bounds = Bounds(
        streams=data.draw(st.none() | st.frozensets(st.sampled_from([TELEMETRY, OPERATIONAL, "no.such"]))),
        zones=data.draw(st.none() | st.frozensets(st.sampled_from(["plant", "north"]))),
        offset_min=data.draw(st.integers(0, 110)),
        offset_max=data.draw(st.integers(0, 110)),
        time_min_ns=data.draw(moments),
        time_max_ns=data.draw(moments),
        numbers=data.draw(st.none() | st.frozensets(st.integers(0, 6))),
        subject_tests=() if subjects is None else (subjects.__contains__,),
    )
    expected = [
        fact
        for fact in facts
        if (bounds.streams is None or fact["stream"] in bounds.streams)
        and (bounds.zones is None or fact["zone"] in bounds.zones)
        and bounds.offset_min <= fact["offset"] <= bounds.offset_max
        and bounds.time_min_ns <= fact["source_time_ns"] <= bounds.time_max_ns
        and (bounds.numbers is None or fact["tag"] in bounds.numbers)
        and (subjects is None or fact["subject"] in subjects)
    ]
    with closing(StoreReader(file)) as reader:
        assert rows(Scanner(reader), bounds) == plain(expected)


def test_a_scan_ends_where_the_log_ended_when_it_began(tmp_path: Path) -> None:
    """Two passes of one scanner agree although facts are appended between them."""
    file = everything(tmp_path)
    with FactStore.open(file, "plant", settings=AT_ONCE) as store, closing(StoreReader(file)) as reader:
        scanner = Scanner(reader)
        before = rows(scanner, Bounds())
        done(store.appends.append_samples(TELEMETRY, [Sample(1, 1, 1.0)]))
        assert rows(scanner, Bounds()) == before
        assert len(rows(Scanner(reader), Bounds())) == len(before) + 1


@pytest.mark.parametrize("is_sealed_again", [False, True])
def test_a_damaged_batch_is_named_and_the_rest_is_there(tmp_path: Path, *, is_sealed_again: bool) -> None:
    """A batch whose digest no longer holds, or whose content cannot be opened, is a hole in scans, in messages and in
    searches for the latest values; all others are served."""
    file = everything(tmp_path)
    whole = naive(file)
    damage(file, 11, is_sealed_again=is_sealed_again)
    hole = Hole(11, 20, "damaged")
    kept = [fact for fact in whole if fact["stream"] != TELEMETRY or not 11 <= fact["offset"] <= 20]
    with closing(StoreReader(file)) as reader:
        scanner = Scanner(reader)
        assert rows(scanner, Bounds()) == plain(kept)
        assert scanner.counters.holes == [(TELEMETRY, hole)]
        for elsewhere in (Bounds(zones=frozenset({"north"})), Bounds(time_min_ns=BASE_NS + 1000 * SECOND_NS)):
            other = Scanner(reader)
            assert rows(other, elsewhere)
            assert other.counters.holes == [], "its header says that it is not asked for"
        shown = list(fact_messages(reader, TELEMETRY, 0, 1000))
        searcher = Scanner(reader)
        find_latest(searcher, BASE_NS)
        assert searcher.counters.holes == [(TELEMETRY, hole)]
    assert shown[10] == hole
    assert [message["offset"] for message in shown if not isinstance(message, Hole)] == [
        fact["offset"] for fact in kept if fact["stream"] == TELEMETRY
    ]


def test_facts_without_their_definitions_are_holes(tmp_path: Path) -> None:
    """Samples whose definitions the disk has changed are holes in scans, in messages and in searches for a tag, and end
    none of them: what needs no damaged definition is still read."""
    file = everything(tmp_path)
    whole = naive(file)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP TRIGGER definition_update_refused")
        connection.execute("UPDATE definition SET body = CAST(body || ' ' AS BLOB) WHERE zone = 'plant' AND number = 2")
        connection.commit()
    lost = [(row["stream"], row["offset"]) for row in whole if (row["zone"], row["kind"]) == ("plant", "sample")]
    kept = [row for row in whole if (row["stream"], row["offset"]) not in lost]
    for bounds in (Bounds(), Bounds(subject_tests=(lambda _: True,))):
        with closing(StoreReader(file)) as reader:
            scanner = Scanner(reader)
            assert rows(scanner, bounds) == plain(kept)
            holes = scanner.counters.holes
            assert [(on, at) for on, hole in holes for at in range(hole.first_offset, hole.last_offset + 1)] == lost
            shown = list(fact_messages(reader, TELEMETRY, 0, 1000))
            assert [message for message in shown if isinstance(message, Hole)] == [message for _, message in holes]
            assert [row["offset"] for row in shown if not isinstance(row, Hole)] == [
                row["offset"] for row in kept if row["stream"] == TELEMETRY
            ]
            searcher, later = Scanner(reader), Scanner(reader)
            assert {value.tag.zone for value in find_latest(searcher, BASE_NS)} == {"north"}
            assert searcher.counters.holes == holes
            known = find_latest_in_stream(later, BASE_NS, TELEMETRY, AbsentTags())
            assert {value.tag.zone for value in known} == {"north"}
            assert later.counters.holes == [hole for hole in holes if hole[0] == TELEMETRY]


def test_rows_that_a_damaged_file_lost_are_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where SQLite can use no index, what rows are left are read one by one. Those that are gone, at the beginning, in
    the middle and at the end, unreadable or changed are holes of scans and of searches for the latest values. Nothing
    is proven by a table that cannot be read."""

    def damaged(*_: object, **__: object) -> Never:
        raise StoreDamaged("the index is malformed")

    file = everything(tmp_path, rounds=3)
    with closing(StoreReader(file)) as reader:
        scanner, searcher = Scanner(reader), Scanner(reader)
        batches = [summary for page in scanner.summaries(TELEMETRY, 1, scanner.ends[TELEMETRY]) for summary in page]
        lost = batches[0], batches[2], batches[-1]
        unreadable, changed, all_rows, row = batches[5], batches[7], reader.row_summaries, reader.row
        damage(file, changed.first_offset)

        def rows_left(after_row: int, limit: int) -> list[tuple[int, str, BatchSummary]]:
            return [row for row in all_rows(after_row, limit) if row[1] != TELEMETRY or row[2] not in lost]

        def row_left(stream: str, number: int) -> StoredBatch:
            found = row(stream, number)
            return damaged() if found.first_offset == unreadable.first_offset else found

        for name in ("summaries", "read", "verified"):
            monkeypatch.setattr(reader, name, damaged)
        monkeypatch.setattr(reader, "row_summaries", rows_left)
        monkeypatch.setattr(reader, "row", row_left)
        found = list(scanner.scan(Bounds(streams=frozenset([TELEMETRY]))))
        find_latest(searcher, BASE_NS)
    gone = {(hole.first_offset, hole.last_offset) for hole in (*lost, unreadable, changed)}
    assert {batch.first_offset for batch in found} == {batch.first_offset for batch in batches} - {
        first for first, _ in gone
    }
    assert {batch.verified() for batch in found} == {"no"}
    for holes in (scanner.counters.holes, searcher.counters.holes):
        assert {(hole.first_offset, hole.last_offset, hole.reason) for _, hole in holes} == {
            (*span, "damaged") for span in gone
        }


def test_holes_are_passed_on(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Holes of a page are noted, and reading goes on behind them."""
    with closing(StoreReader(file)) as reader:
        scanner, read = Scanner(reader), reader.read

        def with_hole(stream: str, after: int, *limits: int, **more: int) -> Page:
            page = read(stream, after, *limits, **more)
            if page.batches and page.batches[0].first_offset == 1:
                return replace(page, batches=page.batches[1:], holes=(Hole(1, page.batches[0].last_offset, "expired"),))
            return page

        monkeypatch.setattr(reader, "read", with_hole)
        found = rows(scanner, Bounds(streams=frozenset([TELEMETRY])))
        shown = list(fact_messages(reader, TELEMETRY, 0, 12))
    assert found[0]["offset"] == 11
    assert scanner.counters.holes == [(TELEMETRY, Hole(1, 10, "expired"))]
    assert shown[0] == Hole(1, 10, "expired")
    assert len(shown) == 13


def test_messages_begin_after_the_position(file: Path) -> None:
    """A reader whose position is inside a batch gets none of its earlier facts again, and no more than it asks for."""
    with closing(StoreReader(file)) as reader:
        shown = list(fact_messages(reader, TELEMETRY, 14, 8))
    assert [message["offset"] for message in shown if not isinstance(message, Hole)] == list(range(15, 23))


def test_messages_are_presented_as_rows_are(file: Path, facts: list[dict[str, Any]]) -> None:
    """`tail` and a scan say the same of each fact."""
    with closing(StoreReader(file)) as reader:
        for stream in (TELEMETRY, OPERATIONAL):
            shown = list(fact_messages(reader, stream, 0, FACTS_MAX))
            expected = [fact for fact in facts if fact["stream"] == stream]
            assert len(shown) == len(expected)
            for row, fact in zip(shown, expected, strict=True):
                assert isinstance(row, dict)
                assert (row["offset"], row["envelope"]["message_id"]) == (fact["offset"], fact["message_id"])
                assert row["fact"]["subject"] == fact["subject"]
                if fact["kind"] == "sample":
                    assert row["fact"]["object"]["value"] == fact["json"]
                    assert row["fact"]["object"]["source_time"] == fact["source_time"]


def test_released_facts_are_invisible_before_their_rows_are_deleted(tmp_path: Path) -> None:
    """Facts that retention has let go of are in no scan, and are no damage, whether or not their rows were deleted
    yet."""
    file = everything(tmp_path)
    whole = naive(file)
    with closing(sqlite3.connect(file)) as connection:
        released = connection.execute("SELECT sum(length(body) + 16) FROM batch WHERE stream = 1 AND last_offset <= 20")
        connection.execute(
            "UPDATE stream SET released_offset = 20, released_bytes = ? WHERE name = ?",
            (*released.fetchone(), TELEMETRY),
        )
        connection.commit()
    kept = [fact for fact in whole if fact["stream"] != TELEMETRY or fact["offset"] > 20]
    with closing(StoreReader(file)) as reader:
        scanner = Scanner(reader)
        assert rows(scanner, Bounds()) == plain(kept)
        assert rows(scanner, Bounds(), newest_first=True) == plain(kept)[::-1]
        assert (scanner.counters.holes, scanner.firsts[TELEMETRY]) == ([], 21)
        assert next(iter(fact_messages(reader, TELEMETRY, 0, 5))) == Hole(1, 20, "expired")


def test_a_store_with_an_older_schema_names_the_migrate_command(tmp_path: Path) -> None:
    """A reader refuses a schema that lacks a step, by the step's name and with the command, and does not call it
    damaged."""
    file = everything(tmp_path)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DELETE FROM _sqlite_migrations WHERE id = (SELECT max(id) FROM _sqlite_migrations)")
        connection.commit()
    with pytest.raises(StoreUnusable, match="bsfg store migrate") as caught:
        StoreReader(file)
    assert not isinstance(caught.value, StoreDamaged)

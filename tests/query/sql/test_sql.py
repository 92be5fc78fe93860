"""SQL on a store: the same facts as a plain filter finds, few batches opened, nothing but reading, beside a running
writer."""

import random
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.fact_store import FactStore, StoreReader
from agent.message import Json, Sample, time_text
from agent.query.scan.errors import ExtraMissing
from agent.query.scan.fact_columns import COLUMNS, sql_value
from agent.query.scan.times import compare, parse_time_ns
from agent.query.sql.session import SqlSession
from agent.signing.keys import SigningKey, ZoneSigner
from tests.batch.making import bits
from tests.fact_store.making import AT_ONCE, OPERATIONAL, TELEMETRY, done, message
from tests.query.exact import exact_value
from tests.query.making import BASE_NS, SECOND_NS, TAGS, add_consumer_and_gap, everything, naive
from tests.waiting import wait_until

NOW_NS = BASE_NS + 7200 * SECOND_NS


@pytest.fixture
def session(file: Path) -> Iterator[SqlSession]:
    """A session on it."""
    with closing(StoreReader(file)) as reader, closing(SqlSession(reader, NOW_NS)) as session:
        yield session


def ask(session: SqlSession, statement: str) -> list[tuple[Any, ...]]:
    """All rows of a statement."""
    return list(session.ask(statement).rows)


def test_facts_are_what_the_batches_hold(session: SqlSession, facts: list[dict[str, Any]]) -> None:
    """Every column of every fact, hidden ones too, equals what the plainest code reads from the batches."""
    answer = session.ask(f"select {', '.join(COLUMNS)} from facts")
    assert tuple(answer.columns) == COLUMNS
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in answer.rows]
    assert len(rows) == len(facts)
    for row, fact in zip(rows, facts, strict=True):
        exact = exact_value(row["value_type"], row["value"], row["value_text"])
        assert bits(exact) == fact["exact"]
        assert {name: row[name] for name in fact if name in row} == {name: fact[name] for name in fact if name in row}


def test_select_star_leaves_out_hidden_columns(session: SqlSession) -> None:
    """`select *` leaves out the hidden columns."""
    shown = session.ask("select * from facts limit 1").columns
    assert set(COLUMNS) - set(shown) == {
        "life", "value_text", "message_id", "from_zone", "to_zone", "correlation_id", "causation_id", "labels_json",
        "verified", "is_good",
    }  # fmt: skip


def test_facts_say_what_a_signature_proves(tmp_path: Path) -> None:
    """`verified` is yes for the facts of a store that signs, in SQL and in exports, and suspect once its key counts as
    compromised."""
    signer, file = ZoneSigner(SigningKey.generate(), b""), tmp_path / "facts.db"
    with FactStore.open(file, "plant", signer=signer) as store:
        store.appends.append_message(OPERATIONAL, message("m")).result()

    def verified() -> list[tuple[Any, ...]]:
        with closing(StoreReader(file)) as reader, closing(SqlSession(reader, NOW_NS)) as asked:
            return ask(asked, "select distinct verified from facts")

    assert verified() == [("yes",)]
    with FactStore.open(file, "plant") as store:
        store.set_compromised({signer.key_id: 0}).result()
    assert verified() == [("suspect",)]


def test_messages_have_their_envelope(session: SqlSession) -> None:
    """What an application said in an envelope can be asked for by name, and its object by json functions."""
    (row,) = ask(
        session,
        "select from_zone, to_zone, correlation_id, causation_id, labels_json, object_json ->> 'n', value_type from facts "
        "where message_id = 'm1'",
    )
    assert row == ("plant", "*", "c", "d", '{"a": "1", "b": "2"}', 1, None)


TIMES = ("2026-09-21T14:13:20Z", "2026-09-21 14:14", "2026-09-21T16:16:00+02:00", "2026")
CONDITIONS = {
    "stream": [f"'{TELEMETRY}'", f"'{OPERATIONAL}'", "'no.such'", "5", "null"],
    "zone": ["'plant'", "'north'", "'North'"],
    "kind": ["'sample'", "'message'", "'x'"],
    "subject": [*(f"'{tag.subject}'" for tag in TAGS), "'order:line1/4'", "'TAG:LINE1/FLOW'", "x'00'"],
    "predicate": ["'value_sampled'", "'order_released'"],
    "tag": ["1", "2", "3.0", "2.5", "'2'", "null", "99"],
    "offset": ["1", "10", "11.5", "'40'", "-3", "1e300", "-9e999", "null", "92"],
    "source_time_ns": [str(BASE_NS), str(BASE_NS + 5 * SECOND_NS), "1.79e18", "'x'"],
    "source_time": [*(f"'{text}'" for text in TIMES), "datetime(1790000030, 'unixepoch')", "null"],
    "quality": ["0", "2158755840"],
    "value": ["1", "1.5", "'text'", "x'00ff'"],
}


@st.composite
def wheres(draw: st.DrawFn) -> str:
    """A condition on some columns, as a person might write it, with values of every type."""
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        column = draw(st.sampled_from(list(CONDITIONS)))
        low, high = (draw(st.sampled_from(CONDITIONS[column])) for _ in range(2))
        form = draw(
            st.sampled_from([
                "{c} = {a}", "{c} > {a}", "{c} >= {a}", "{c} < {a}", "{c} <= {a}", "{c} in ({a}, {b})", "{c} <> {a}",
                "{c} between {a} and {b}", "not {c} = {a}", "{c} is null", "{c} is {a}", "{c} glob 'tag:line[12]*'",
                "{c} like 'TAG:line1%'", "{c} = {a} collate nocase", "({c} = {a} or {c} > {b})", "+{c} = {a}",
            ])
        )  # fmt: skip
        parts.append(form.format(c=column, a=low, b=high))
    return draw(st.sampled_from([" and ", " or "])).join(parts)


@example("offset > 10.5 and offset < 11.5 or offset >= 12.5 and offset <= 13.5", "")
@example("offset < 11.5", "")
@example(f"stream in ('{TELEMETRY}', '{OPERATIONAL}')", " order by offset desc")
@given(wheres(), st.sampled_from(["", " order by offset desc", " order by stream, offset", " order by stream desc, offset desc",
                                  " order by source_time, stream, offset", " order by stream, offset limit 7"]))  # fmt: skip
def test_a_where_clause_equals_a_filter(file: Path, where: str, order: str) -> None:
    """Whatever is asked, the pruned table answers as an ordinary SQLite table with the same rows and collation does."""
    columns = "stream, offset, zone, kind, subject, predicate, tag, value, quality, source_time, source_time_ns"
    with closing(StoreReader(file)) as reader, closing(SqlSession(reader, NOW_NS)) as session:
        statement = f"select {columns} from facts where {where}{order}"
        found = ask(session, statement)
        expected = _plain_table(session, file).execute(statement).fetchall()
    if order in ("", " order by offset desc"):  # which leave the order of some rows open
        assert sorted(map(repr, found)) == sorted(map(repr, expected)), statement
        assert not order or [row[1] for row in found] == [row[1] for row in expected], statement
    else:
        assert found == expected, statement


def _plain_table(session: SqlSession, file: Path) -> Any:
    """The same facts in an ordinary table of the same SQLite, in memory."""
    if str(file) not in _PLAIN:
        connection = session._apsw.Connection(":memory:")
        connection.create_collation("moment", compare)
        connection.execute(
            "create table facts (stream text, offset integer, zone text, kind text, subject text, predicate text, tag integer, "
            "value, quality integer, source_time text collate moment, source_time_ns integer)"
        )
        rows = [
            (
                fact["stream"], fact["offset"], fact["zone"], fact["kind"], fact["subject"], fact["predicate"], fact["tag"],
                sql_value(_value(fact["exact"])), fact["quality"], fact["source_time"], fact["source_time_ns"],
            )
            for fact in naive(file)
        ]  # fmt: skip
        connection.executemany("insert into facts values (?,?,?,?,?,?,?,?,?,?,?)", rows)
        _PLAIN[str(file)] = connection
    return _PLAIN[str(file)]


_PLAIN: dict[str, Any] = {}


def _value(exact: tuple[str, Any]) -> Any:
    kind, found = exact
    return struct.unpack("<d", found)[0] if kind == "float" else Json(found) if kind == "Json" else found


@pytest.mark.parametrize(
    "where, opened",
    [
        ("1", 21),
        (f"stream = '{TELEMETRY}'", 12),
        (f"stream in ('{OPERATIONAL}', 'other')", 9),
        ("zone = 'north'", 2),
        ("kind = 'message'", 9),
        (f"stream = '{TELEMETRY}' and offset between 12 and 13", 1),
        (f"stream = '{TELEMETRY}' and offset in (12, 13)", 1),
        ("source_time >= '2026-09-21T14:18' and kind = 'sample'", 1),
        ("source_time_ns < ns('2026-09-21T14:13:25Z') and zone = 'plant' and kind = 'sample'", 1),
        ("tag = 4", 1),
        ("subject = 'tag:line2/silent' and kind = 'sample'", 1),
        ("subject = 'tag:nobody/has' and kind = 'sample'", 0),
        ("subject glob 'tag:nobody/*' and kind = 'sample'", 0),
        ("subject like 'tag:Line2/sil%' and kind = 'sample'", 1),
        ("value = 7.25", 21),
        ("subject = 'tag:LINE2/silent' collate nocase and kind = 'sample'", 12),
    ],
)
def test_batches_excluded_by_a_condition_are_not_opened(session: SqlSession, where: str, opened: int) -> None:
    """A condition on stream, zone, kind, offset, time or tag opens the batches that may hold a match, and no other."""
    ask(session, f"select offset from facts where {where}")
    assert session.scanner.counters.batches_opened == opened


def test_the_last_facts_are_read_backwards_from_one_batch(session: SqlSession) -> None:
    """ORDER BY offset DESC LIMIT reads backwards and stops."""
    rows = ask(session, f"select offset from facts where stream = '{TELEMETRY}' order by offset desc limit 2")
    assert rows == [(99,), (98,)]
    assert session.scanner.counters.batches_opened == 1


@pytest.mark.parametrize("text", ["9999-12-31", "0001-01-01", "999999999d"])
def test_a_time_beyond_those_of_facts_is_compared_as_such(session: SqlSession, text: str) -> None:
    """ns() of a time that nanoseconds in 64 bits do not reach is later, or earlier, than every fact."""
    operator = "<" if text == "9999-12-31" else ">"
    every = ask(session, "select count(*) from facts")
    assert ask(session, f"select count(*) from facts where source_time_ns {operator} ns('{text}')") == every


def test_definitions_streams_consumers_and_incidents_are_tables(tmp_path: Path) -> None:
    """Definitions, streams, consumers and incidents are there, and join with facts."""
    file = everything(tmp_path)
    add_consumer_and_gap(file, 5)
    with closing(StoreReader(file)) as reader, closing(SqlSession(reader, NOW_NS)) as session:
        streams = {stream.name: stream for stream in reader.streams()}
        telemetry = streams[TELEMETRY]
        assert ask(session, f"select * from streams where name = '{TELEMETRY}'") == [
            (TELEMETRY, 1, telemetry.end_offset, telemetry.end_offset, telemetry.bytes)
        ]
        assert ask(session, "select name, stream, frontier, behind_facts from consumers") == [
            ("mes", TELEMETRY, 5, telemetry.end_offset - 5)
        ]
        assert ask(session, "select count(*) from incidents where last_time >= '2020-01-01'") == [(1,)]
        assert ask(session, "select tag, subject, unit from definitions where zone = 'plant' and tag in (1, 4)") == [
            (1, "tag:line1/flow", "l/min"),
            (4, "tag:line1/flow", "m3/h"),
        ]
        assert ask(
            session, "select value, unit, mode from latest where zone = 'plant' and subject = 'tag:line1/flow'"
        ) == [(7.25, "m3/h", "degraded")]
        assert ask(session, "select value_type, source_time, offset from latest where subject like '%silent'") == [
            (None, None, None)
        ]
        zones = ask(session, "select distinct zone from definitions order by zone")
        assert zones == [("north",), ("plant",), ("south",)]
        joined = ask(
            session,
            "select distinct d.source from facts f join definitions d using (zone, tag) where f.value = 7.25",
        )
        assert joined == [("plc1",)]


def test_definitions_of_other_zones_are_found_beside_damaged_ones(tmp_path: Path) -> None:
    """The zone whose definitions are damaged is named, and counts as damage; the others are answered."""
    file = everything(tmp_path)
    with closing(sqlite3.connect(file)) as connection, connection:
        for (name,) in connection.execute("select name from sqlite_schema where type = 'trigger'").fetchall():
            connection.execute(f"drop trigger {name}")
        connection.execute("update definition set body = x'00' where zone = 'north'")
    with closing(StoreReader(file)) as reader, closing(SqlSession(reader, NOW_NS)) as session:
        assert ask(session, "select distinct zone from definitions order by zone") == [("plant",)]
        counters = session.scanner.counters
        assert counters.is_damaged
        assert [what.split(":")[0] for what in counters.unreadable] == ["definitions of north"]


@pytest.mark.parametrize(
    "statement, why",
    [
        ("selec 1", "syntax error"),
        ("select colour from facts", "no such column: colour"),
        ("select * from batch", "no such table: batch"),
        ("select 1; select 2", "one statement"),
        ("attach 'x.db' as x", "more than read"),
        ("create table x (y)", "more than read"),
        ("insert into facts (stream) values ('x')", "more than read"),
        ("delete from facts", "may not be modified"),
        ("vacuum into 'x.db'", "more than read"),
        ("pragma journal_mode = delete", "more than read"),
        ("select load_extension('x')", "not authorized"),
        ("select ns('soon')", "not a time"),
        ("select * from facts where source_time >= '21.09.2026'", "'21.09.2026' is not a time"),
        ("select * from latest where source_time >= '1790000000'", "not a time"),
        ("", "no statement"),
        ("-- nothing", "no statement"),
    ],
)
def test_statements_that_do_more_than_read_are_refused(session: SqlSession, statement: str, why: str) -> None:
    """What is no SELECT, or no SQL, is refused with SQLite's words and what to do, and makes no file."""
    with pytest.raises(Exception, match=why):
        ask(session, statement)
    assert not Path("x.db").exists()


def test_the_extra_is_named_where_it_is_missing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without apsw the error says what to install."""
    monkeypatch.setitem(sys.modules, "apsw", None)
    with closing(StoreReader(file)) as reader, pytest.raises(ExtraMissing) as caught:
        SqlSession(reader, NOW_NS)
    assert "pip install apsw" in caught.value.hint


def test_apsw_never_opens_the_store(file: Path) -> None:
    """While a question runs, the store's file is open only by descriptors that the standard library's SQLite opened."""
    program = (
        "import sys, os, apsw\nfrom pathlib import Path\nfrom agent.fact_store import StoreReader\n"
        "from agent.query.sql.session import SqlSession\n"
        "reader = StoreReader(Path(sys.argv[1]))\n"
        "def held(): return sum(os.path.realpath(f'/proc/self/fd/{n}') == sys.argv[1] for n in os.listdir('/proc/self/fd'))\n"
        "before = held()\nsession = SqlSession(reader, 0)\n"
        "rows = session.ask('select * from facts').rows\nnext(rows)\n"
        "print(before, held(), len(apsw.connections()), [opened.filename for opened in apsw.connections()])\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1", "1", "['']"]


def test_a_query_while_another_process_writes(tmp_path: Path) -> None:
    """While a writer of another process appends, every answer is a dense prefix of the log, and nothing disturbs the
    writer."""
    file, said, complaints = (tmp_path / name for name in ("facts.db", "said", "complaints"))
    command = [sys.executable, "-m", "tests.fact_store.durability.killed", str(file)]
    statement = f"select count(*), min(offset), max(offset) from facts where stream = '{TELEMETRY}'"
    with said.open("wb") as out, complaints.open("wb") as errors:
        writer = subprocess.Popen(command, cwd=Path(__file__).parents[3], stdout=out, stderr=errors)
    try:
        wait_until(lambda: b"\nS" in said.read_bytes(), "acknowledged samples")
        last = 0
        with closing(StoreReader(file)) as reader:
            for _ in range(12):
                with closing(SqlSession(reader, NOW_NS)) as session:
                    ((count, least, greatest),) = ask(session, statement)
                assert (count, least) == (greatest, 1)
                assert greatest >= last
                last = greatest
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()
    assert complaints.read_text() == ""


def test_a_long_question_lets_the_log_be_reused(tmp_path: Path) -> None:
    """In the middle of an answer no read mark is held: 20 MB of appends go by and the write-ahead log stays as small as
    ever."""
    file = everything(tmp_path, rounds=5)
    noise = random.Random(1)
    with FactStore.open(file, "plant", settings=AT_ONCE) as store, closing(StoreReader(file)) as reader:
        session = SqlSession(reader, NOW_NS)
        rows = session.ask("select offset from facts").rows
        next(rows)
        for _ in range(50):
            large = [Sample(1, n, noise.randbytes(50_000)) for n in range(8)]
            done(store.appends.append_samples(TELEMETRY, large))
        assert file.with_name("facts.db-wal").stat().st_size < 10_000_000
        assert sum(1 for _ in rows) > 100
        session.close()


@given(st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62))
def test_times_as_texts_are_ordered_as_times(first_ns: int, second_ns: int) -> None:
    """Our own form reads back to the nanosecond, and texts compare as the times they name."""
    first, second = time_text(first_ns), time_text(second_ns)
    assert parse_time_ns(first) == first_ns
    assert compare(first, second) == (first_ns > second_ns) - (first_ns < second_ns)
    assert compare(first.replace("T", " ").removesuffix("Z"), first) == 0
    if "." in first and len(first) < 30:
        assert compare(first.removesuffix("Z") + "0Z", first) == 0


@pytest.mark.parametrize(
    "text, expected",
    [
        ("2026-09-21", 1_789_948_800_000_000_000),
        ("2026-09-21T14:13:20Z", BASE_NS),
        ("2026-09-21 14:13:20", BASE_NS),
        ("2026-09-21T14:13:20.000000001Z", BASE_NS + 1),
        ("2026-09-21T16:13:20+02:00", BASE_NS),
        ("2026-09-21T09:43:20-0430", BASE_NS),
        ("2026-09-21T14:13", BASE_NS - 20 * SECOND_NS),
        ("2026-02-30", None),
        ("yesterday", None),
        ("", None),
        ("2026-09-21T25:00", None),
    ],
)
def test_times_as_people_write_them(text: str, expected: int | None) -> None:
    """ISO 8601 and SQLite's own form; what names no time is none."""
    assert parse_time_ns(text) == expected

"""The index of message ids against a dict: across generations, failed transactions, restarts, retention and damaged
filters.

Seen to catch, with the product broken on purpose: memory kept after a rollback, a damaged filter that is used.
"""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from hashlib import blake2b
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agent.append_contract import AppendOutcome
from agent.fact_store import FactStore
from agent.fact_store.sqlite import message_index, migrations
from agent.fact_store.sqlite.message_index import MessageIndex
from agent.fact_store.sqlite.queries import statements
from agent.settings.store import StreamSettings
from tests.fact_store.making import OPERATIONAL, done, ids_in, message, plant
from tests.waiting import wait_until

SIZE = 8  # ids of a generation here
STREAMS = (1, 2)
SCHEMA = migrations.FILES[0].script


@pytest.fixture(autouse=True)
def small_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generations so small that a test fills several."""
    monkeypatch.setattr(message_index, "GENERATION_IDS", SIZE)


def database() -> sqlite3.Connection:
    """An empty store in memory, with two streams."""
    found = sqlite3.connect(":memory:", isolation_level=None)
    for statement in statements(SCHEMA):
        found.execute(statement)
    for number in STREAMS:
        found.execute("INSERT INTO stream (id, name) VALUES (?, ?)", (number, f"s{number}"))
    return found


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    """The same, closed afterwards."""
    with closing(database()) as found:
        yield found


def key(number: int) -> bytes:
    """The key of an id: few different beginnings, so that different keys look alike to the filter."""
    return bytes((0, number % 3, 0, number % 2)) + number.to_bytes(12, "big")


def content(number: int) -> bytes:
    """The content digest of an id."""
    return blake2b(str(number).encode(), digest_size=16).digest()


class IndexAgainstDict(RuleBasedStateMachine):
    """The model: for each stream a dict from key to content and offset."""

    def __init__(self) -> None:
        super().__init__()
        self.connection = database()
        self.index = MessageIndex.load(self.connection)
        self.known: dict[int, dict[bytes, tuple[bytes, int]]] = {number: {} for number in STREAMS}
        self.next = 1

    def teardown(self) -> None:
        self.connection.close()

    def add(self, stream: int, count: int) -> dict[bytes, tuple[bytes, int]]:
        numbers = range(self.next, self.next + count)
        entries = [(key(number), content(number), 10 * number) for number in numbers]
        self.index.add(stream, entries)
        self.next += count
        return {name: (digest, offset) for name, digest, offset in entries}

    @rule(stream=st.sampled_from(STREAMS), counts=st.lists(st.integers(1, 3 * SIZE), min_size=1, max_size=3))
    def append(self, stream: int, counts: list[int]) -> None:
        """Messages, in one or several goes of one transaction, over one or several borders."""
        self.connection.execute("BEGIN")
        for count in counts:
            added = self.add(stream, count)
            self.known[stream] |= added
            assert all(self.index.find(stream, name) == found for name, found in added.items()), (
                "seen before the commit"
            )
        self.connection.execute("COMMIT")
        self.index.settle(is_durable=True)

    @rule(counts=st.lists(st.tuples(st.sampled_from(STREAMS), st.integers(1, 3 * SIZE)), max_size=4))
    def fail(self, counts: list[tuple[int, int]]) -> None:
        """A transaction that the disk refused leaves nothing in memory either."""
        self.connection.execute("BEGIN")
        gone = [(stream, self.add(stream, count)) for stream, count in counts]
        self.connection.execute("ROLLBACK")
        self.index.settle(is_durable=False)
        for stream, added in gone:
            assert all(self.index.find(stream, name) is None for name in added)

    @rule(stream=st.sampled_from(STREAMS), share=st.integers(0, 10), rows_max=st.integers(1, SIZE + 1))
    def release(self, stream: int, share: int, rows_max: int) -> None:
        """Retention releases a prefix: whole generations in it disappear, everything else stays."""
        known = self.known[stream]
        offsets = [offset for _, offset in known.values()]
        released = offsets[len(offsets) * share // 10 - 1] if offsets and share else 0
        for _ in range(len(known) + len(known) // SIZE + 1):  # at worst a row each, and a filter each
            self.connection.execute("BEGIN")
            assert self.index.release(stream, released, rows_max) <= rows_max
            self.connection.execute("COMMIT")
            self.index.settle(is_durable=True)
        while len(known) >= SIZE and list(known.values())[SIZE - 1][1] <= released:
            for name in list(known)[:SIZE]:
                del known[name]

    @rule()
    def reopen(self) -> None:
        """What is loaded from the tables is what was in memory."""
        loaded = MessageIndex.load(self.connection)
        for stream in STREAMS:
            before, after = self.index._streams.get(stream), loaded._streams.get(stream)
            if before is None or not len(before.filter):
                assert after is None or not len(after.filter)
                continue
            assert after is not None
            assert (after.generation, after.ids, after.last_offsets) == (
                before.generation, before.ids, before.last_offsets,
            )  # fmt: skip
        self.index = loaded

    @rule(stream=st.sampled_from(STREAMS), damage=st.sampled_from(["body = zeroblob(9)", "digest = zeroblob(16)"]))
    def damage(self, stream: int, damage: str) -> None:
        """A filter that the disk has changed is made again from the rows."""
        self.connection.execute(f"UPDATE message_filter SET {damage} WHERE stream = ?", (stream,))
        self.reopen()

    @invariant()
    def agrees(self) -> None:
        """Every key is found as the model knows it, in its own stream only."""
        for stream, known in self.known.items():
            for name, found in known.items():
                assert self.index.find(stream, name) == found
            for other in STREAMS:
                if other != stream:
                    assert all(self.index.find(other, name) is None for name in known)
            (rows,) = self.connection.execute(
                "SELECT count(*) FROM message_index WHERE stream = ?", (stream,)
            ).fetchone()
            assert rows == len(known)


IndexAgainstDict.TestCase.settings = settings(max_examples=30, stateful_step_count=20)
TestIndexAgainstDict = IndexAgainstDict.TestCase


def test_a_failed_transaction_that_closed_a_generation_leaves_no_trace(connection: sqlite3.Connection) -> None:
    """The disk refuses a transaction in which a generation became full. When it becomes full again, its filter has all
    its ids: after a restart, an id that it lacks would be stored twice."""
    index = MessageIndex.load(connection)

    def add(numbers: range, end: str) -> None:
        connection.execute("BEGIN")
        index.add(1, [(key(number), content(number), number) for number in numbers])
        connection.execute(end)
        index.settle(is_durable=end == "COMMIT")

    add(range(1, 4), "COMMIT")
    add(range(100, 100 + SIZE), "ROLLBACK")
    add(range(4, 4 + SIZE), "COMMIT")
    loaded = MessageIndex.load(connection)
    assert [loaded.find(1, key(n)) for n in range(1, 4 + SIZE)] == [(content(n), n) for n in range(1, 4 + SIZE)]


def test_ids_are_recognised_across_generations_and_restarts(tmp_path: Path) -> None:
    """Invariant 3, across generations: ids in closed generations and in the open one are recognised in the same life,
    after an orderly end, and in the one after that; each message is there once."""
    names = [f"id-{n}" for n in range(5 * SIZE + 3)]
    with plant(tmp_path) as store:
        for name in names[: 2 * SIZE + 1]:
            assert done(store.appends.append_message(OPERATIONAL, message(name))).outcome == "applied"
        assert [
            answer.outcome for answer in done(store.appends.append_messages(OPERATIONAL, [message(n) for n in names]))
        ] == [
            *["noop_already_applied"] * (2 * SIZE + 1),
            *["applied"] * (len(names) - 2 * SIZE - 1),
        ]
    for _ in range(2):
        with plant(tmp_path) as store:
            for offset, name in enumerate(names, 1):
                again = done(store.appends.append_message(OPERATIONAL, message(name)))
                assert again == AppendOutcome(offset, "noop_already_applied")
                other = done(store.appends.append_message(OPERATIONAL, message(name, "2")))
                assert other == AppendOutcome(offset, "conflicting_duplicate")
            assert ids_in(store) == names


def test_subjects_are_deleted_with_their_newest_message(
    monkeypatch: pytest.MonkeyPatch, connection: sqlite3.Connection
) -> None:
    """Of subjects those whose newest message is released are deleted, some rows a transaction, and a round that has
    just been made is not made again before enough was released."""
    monkeypatch.setattr(message_index, "SWEEP_OFFSETS_MIN", 10)
    index = MessageIndex(connection)
    index.add(1, [(key(1), content(1), 1)])
    index.settle(is_durable=True)
    connection.executemany("INSERT INTO subject VALUES (1, ?, ?)", [(content(n), n) for n in range(1, 101)])
    connection.execute("INSERT INTO subject VALUES (2, ?, 1)", (content(1),))
    steps = 0
    while done_now := index.release(1, 60, 7):
        assert done_now <= 7
        steps += 1
    assert steps == 15
    left = connection.execute("SELECT stream, min(last_offset), count(*) FROM subject GROUP BY stream").fetchall()
    assert left == [(1, 61, 40), (2, 1, 1)]
    assert index.release(1, 99, 7) == 0, "40 subjects: a round for 39 facts is too many"
    while index.release(1, 100, 7):
        pass
    assert connection.execute("SELECT count(*) FROM subject WHERE stream = 1").fetchone() == (0,)


def test_retention_deletes_whole_generations_of_ids(tmp_path: Path) -> None:
    """In a stream that drops its oldest facts the ids go with them, whole generations at a time: what is kept stays
    recognised, an id whose generation is gone is new again, and neither rows nor memory grow with what was ever
    appended."""
    chance = random.Random(1)
    settings = StreamSettings(OPERATIONAL, bytes_max=1024 * 1024, on_full="drop_oldest")
    with FactStore.open(tmp_path / "facts.db", "plant", streams=[settings]) as store:
        names = [f"id-{n}" for n in range(40 * SIZE)]
        contents = {name: f'"{chance.randbytes(10_000).hex()}"' for name in names}
        for name in names:
            assert done(store.appends.append_message(OPERATIONAL, message(name, contents[name]))).outcome == "applied"
        (info,) = [stream for stream in store.streams() if stream.name == OPERATIONAL]
        assert info.first_offset > 20 * SIZE
        kept = {name for name in ids_in(store) if name in contents}
        for name in kept:
            again = done(store.appends.append_message(OPERATIONAL, message(name, contents[name])))
            assert again.outcome == "noop_already_applied"

        def is_gone() -> bool:
            done(
                store.appends.append_message(OPERATIONAL, message(f"tick-{chance.random()}"))
            )  # deletes go along with commits
            known = store._writer.catalog.streams[OPERATIONAL]
            state = store._writer.committer._index._streams[known.id]
            return len(state.filter) <= known.end_offset - known.released_offset + SIZE

        wait_until(is_gone, "the ids of released messages to go")
        assert (
            done(store.appends.append_message(OPERATIONAL, message(names[0], contents[names[0]]))).outcome == "applied"
        )


@pytest.mark.parametrize("damage", ["DELETE FROM message_filter", "UPDATE message_filter SET body = zeroblob(9)"])
@pytest.mark.parametrize("is_full", [False, True])
def test_a_filter_made_again_is_kept_and_goes_with_its_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, *, is_full: bool
) -> None:
    """A closed generation without a good filter (migrated, damaged) has one once the store was opened, unless the disk
    is full; in both cases retention takes the generation, and the store goes on."""
    path, keep = tmp_path / "facts.db", [StreamSettings(OPERATIONAL, keep_hours=0)]
    with FactStore.open(path, "plant", streams=keep) as store:
        done(store.consumers.register("mes", "plant", OPERATIONAL))
        done(store.appends.append_messages(OPERATIONAL, [message(f"id-{n}") for n in range(3 * SIZE + 1)]))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(damage)
        connection.commit()
    if is_full:
        monkeypatch.setattr(MessageIndex, "_save_if_there_is_room", lambda *_: None)
    with (
        FactStore.open(path, "plant", streams=keep) as store,
        closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection,
    ):

        def rows(table: str) -> int:
            (found,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
            return int(found)

        if not is_full:
            digests = connection.execute("SELECT body, digest FROM message_filter").fetchall()
            assert [blake2b(body, digest_size=16).digest() == digest for body, digest in digests] == [True] * 3
        done(store.consumers.confirm("mes", 3 * SIZE + 1))
        wait_until(lambda: store.failure or rows("message_index") == 1, "the released generations to go")
        assert store.failure is None
        assert rows("message_filter") == 0
        again = done(store.appends.append_message(OPERATIONAL, message(f"id-{3 * SIZE}")))
        assert again.outcome == "noop_already_applied"
        assert done(store.appends.append_message(OPERATIONAL, message("id-0"))).outcome == "applied"

"""Last known values: exactly those of a plain look at everything, found without looking at everything, with their
staleness. Where two gateways record for one zone: of the samples of a tag and time that of the higher life counts, in
whatever order they have arrived."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.batch import seal_samples
from agent.fact_store import FactStore, StoreReader
from agent.fact_store.sqlite import transaction
from agent.fact_store.writer import writer as writer_module
from agent.message import HEALTH_SOURCE, HEALTH_STREAM, Sample, TagDefinition
from agent.query.latest import (
    AbsentTags,
    find_latest,
    find_latest_in_stream,
    latest_query,
    streams_with,
    tags_matching,
)
from agent.query.latest.latest_search import Arrival, LatestKey, LatestRow, believed_times
from agent.query.scan import READ_BYTES_MAX, Scanner
from agent.query.scan.dictionary import Dictionary
from agent.query.sql import SqlSession
from tests.batch.making import bits
from tests.fact_store.making import AT_ONCE, IN_MEMORY, TELEMETRY, Elsewhere, damage, done
from tests.query.making import BASE_NS, SECOND_NS, everything, naive, recorded
from tests.support.memory import memory_folder

OTHER = "facts.other"
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS
LIVES = [(255).to_bytes(8) + b"\xff" * 8, (256).to_bytes(8) + bytes(8)]  # the number decides, not the rest

batches = st.lists(
    st.tuples(
        st.sampled_from(LIVES), st.lists(st.tuples(st.integers(1, 2), st.integers(0, 4)), min_size=1, max_size=5)
    ),
    min_size=1,
    max_size=12,
)


@contextmanager
def node_clock() -> Iterator[list[int]]:
    """The clock by which stores note when they record, to be set through the list."""
    now_ns = [BASE_NS]
    with patch.object(writer_module.time, "time_ns", lambda: now_ns[0]):
        yield now_ns


def appended(file: Path, steps: list[tuple[int, int]]) -> None:
    """Values 1, 2, ... of tag:a by (seconds of the node's clock, of the source's clock), each its own append."""
    with node_clock() as now_ns, FactStore.open(file, "plant", settings=AT_ONCE) as store:
        if not store.reader.definition_counts():
            done(store.appends.define([TagDefinition("tag:a", source="plc1")]))
        for value, (clock_s, source_s) in enumerate(steps, 1):
            now_ns[0] = BASE_NS + clock_s * SECOND_NS
            done(store.appends.append_samples(TELEMETRY, [Sample(1, BASE_NS + source_s * SECOND_NS, value)]))


def latest_of(file: Path, now_s: int = 0) -> tuple[object, int, str]:
    """The one tag's value, how many hours its time is ahead, and its mode."""
    (row,), _ = found_in(file, BASE_NS + now_s * SECOND_NS)
    assert row.latest is not None
    return row.latest.value, round(row.latest.ahead_ms / 3_600_000), row.mode


def found_in(file: Path, now_ns: int = BASE_NS, **more: Any) -> tuple[Scanner]:
    """What a search of a file finds, and the scanner that made the counters."""
    with closing(StoreReader(file)) as reader:
        scanner = Scanner(reader)
        return find_latest(scanner, now_ns, **more), scanner


def by_subject(found: list[LatestRow]) -> dict[tuple[str, str], LatestRow]:
    """Rows by zone and subject."""
    return {(row.tag.zone, row.tag.subject): row for row in found}


def test_of_a_zone_with_many_chains_the_newest_tags_are_searched_for(tmp_path: Path) -> None:
    """A zone may define any number of tags, in chains that are over, and each takes a kilobyte while a node searches:
    those of its newest chain are searched for in any case, and of older ones as many as the limit allows."""
    file, honest = tmp_path / "facts.db", Elsewhere()
    with FactStore.open(file, "idmz", settings=AT_ONCE) as store:
        for number in (1, 2, 3):
            evil = Elsewhere("evil", life=bytes([number]) * 16)
            evil.bodies = [TagDefinition(f"tag:{number}/{at}").to_json() for at in range(2)]
            evil.put(store, [evil.seal(1, salt=1000 * number)], number)
        honest.put(store, [honest.seal(5)], 5)
    with closing(StoreReader(file)) as reader:
        scanner = Scanner(reader)
        assert len(latest_query._chains(scanner)[0]) == 4
        for limit, kept in ((1, {"3"}), (2, {"2", "3"})):
            found, skipped = latest_query._chains(scanner, limit)
            assert {chain.tags[0].subject[4] for chain in found if chain.zone == "evil"} == kept
            assert "plant" in {chain.zone for chain in found}
            assert skipped == {"evil"}
            assert sum(map(len, scanner.dictionary._chains.values())) == len(found)


IN_1970 = -BASE_NS // SECOND_NS  # by the seconds of `appended`
JUMPS = [[(0, 0), (2, 3602), (3, 3603)]]
BACK = [[(7200, 7200), (7201, 7201)]]
AHEAD = [[(0, 7200), (1, 7201), (2, 3602)]]
CLOCKS: dict[str, tuple[list[list[tuple[int, int]]], int, tuple[object, int, str]]] = {
    "the source's jumps ahead: the newest value is the latest and marked": (JUMPS, 70, (3, 1, "fresh")),
    "a time ahead does not keep a source fresh": (JUMPS, 600, (3, 1, "degraded")),
    "the source's jumped back: the first value after it": ([*JUMPS, [(4, 4)]], 30, (1, 0, "fresh")),
    "also if the tag is silent until the hour is over": ([*JUMPS, [(4, 4)]], 4000, (1, 0, "degraded")),
    "the first value after the jump is older than the one before": ([[(0, 0), (2, 3602), (4, -20)]], 0, (3, 0, "fresh")),
    "older values that arrive after one ahead are history": (
        [[(0, 0), (300, 3900), (301, 100), (302, 200)]], 0, (2, 1, "degraded"),
    ),
    "a source that is always ahead: the last to arrive": (AHEAD, 0, (3, 1, "fresh")),
    "also when its hour is changed": ([*AHEAD, [(900, 4500)]], 960, (1, 1, "fresh")),
    "the node's was set back by two hours: no value since": (BACK, 0, (2, 0, "degraded")),
    "the first value since": ([*BACK, [(1, 1), (90, 90)]], 91, (2, 0, "fresh")),
    "the two hours are over": ([*BACK, [(n, n) for n in range(150, 7500, 60)]], 7500, (123, 0, "fresh")),
    "the node's is in 1970": ([[(0, 0), (1, -3600)], [(IN_1970 + 5, IN_1970 + 5)]], IN_1970 + 6, (1, 0, "fresh")),
    "and got the time: as if it had never been": (
        [[(0, 0), (1, -3600)], [(IN_1970 + 5, IN_1970 + 5)], [], [(3000, -7200)]], 3001, (1, 0, "degraded"),
    ),
    "the first fact after a store was closed is not ahead": ([[(0, 0)], [(7200, 7200)]], 7201, (1, 0, "fresh")),
    "nor is that after a clock that began in 1970": ([[(IN_1970, -5), (1, 1)]], 2, (2, 0, "fresh")),
}  # fmt: skip


@pytest.mark.parametrize("lives, now_s, expected", CLOCKS.values(), ids=CLOCKS)
def test_a_clock_that_is_wrong_or_set(
    tmp_path: Path, lives: list[list[tuple[int, int]]], now_s: int, expected: tuple[object, int, str]
) -> None:
    """The latest value of a tag whose source or node has a clock that jumps, recorded in these lives of a store."""
    for steps in lives:
        appended(tmp_path / "facts.db", steps)
    assert latest_of(tmp_path / "facts.db", now_s) == expected


@pytest.mark.parametrize(
    "clock, believed",
    [
        ([0, 60, 120], [0, 60, 120]),
        ([0, 30, 0, 60], [0, 30, 30, 60]),  # within what clocks may differ
        ([0, 7200, 10, 70], [0, 10, 10, 70]),  # set back for good
        (
            [0, 7200, 10, 3600, 7190, 7250],
            [0, 10, 10, 3600, 7190, 7250],
        ),  # also after a pause, until its hours are over
        ([7200, 7260, -9000, -8900, 7500], [7200, 7260, 7260, 7260, 7500]),  # began in 1970, and got the time
        ([7200, -9000, -8900], [-9000, -9000, -8900]),  # in 1970 still
    ],
)
def test_what_a_later_mark_shows_of_earlier_times(clock: list[int], believed: list[int]) -> None:
    """The clock at the marks of a stream, in seconds, and the times that are believed."""
    times_ns = believed_times([second * SECOND_NS for second in clock])
    assert [time_ns // SECOND_NS for time_ns in times_ns] == believed


rounds = st.lists(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6), st.booleans()), min_size=1, max_size=6),
    min_size=1,
    max_size=12,
)
clock_steps = st.lists(st.integers(-1, 2), min_size=12, max_size=12)  # minutes


@given(rounds, st.sets(st.sampled_from(["tag:a", "tag:b", "tag:c"]), min_size=1), clock_steps)
@example(
    [[(1, 0, False)] * 2, [(1, 0, True)], [(1, 0, True), (2, 6, False)], [(2, 2, False)]],
    {"tag:b"},
    [0, 1, 2] + [0] * 9,
)
def test_a_search_finds_what_a_look_at_everything_finds(
    batches: list[list[tuple[int, int, bool]]], wanted: set[str], steps: list[int]
) -> None:
    """Facts arrive in any order of times, as late history does, before and ahead of a clock that moves in both
    directions, in two streams and under two numbers: the search is exact."""
    with memory_folder() as folder:
        check_search(folder / "facts.db", batches, wanted, steps)


def check_search(file: Path, batches: list[list[tuple[int, int, bool]]], wanted: set[str], steps: list[int]) -> None:
    """Store batches of (tag, minute, is in the other stream), then compare the search with a look at each fact."""
    subjects = ["tag:a", "tag:b", "tag:c", "tag:a"]
    told: list[tuple[str, int, str, int, int]] = []  # subject, source time, stream, offset, number of its mark
    ends, marks_ns = {TELEMETRY: 0, OTHER: 0}, {TELEMETRY: list[int](), OTHER: list[int]()}
    with (
        node_clock() as now_ns,
        patch.object(transaction, "is_mark_due", lambda *_: True),  # as after a minute
        FactStore.open(file, "plant", settings=AT_ONCE) as store,
    ):
        done(store.appends.define([TagDefinition(subject, unit=str(n)) for n, subject in enumerate(subjects)]))
        for rows, step in zip(batches, steps, strict=False):
            now_ns[0] += step * MINUTE_NS
            stream = OTHER if rows[0][2] else TELEMETRY
            times_ns = [BASE_NS + minute * MINUTE_NS for _, minute, _ in rows]
            samples = [Sample(tag, at_ns, 0) for (tag, _, _), at_ns in zip(rows, times_ns, strict=True)]
            done(store.appends.append_samples(stream, samples))
            marks_ns[stream].append(now_ns[0])
            for (tag, _, _), at_ns in zip(rows, times_ns, strict=True):
                ends[stream] += 1
                told.append((subjects[tag - 1], at_ns, stream, ends[stream], len(marks_ns[stream]) - 1))
    recorded_ns = {stream: believed_times(marks) for stream, marks in marks_ns.items()}
    facts: dict[str, list[tuple[Arrival, int]]] = {}
    for subject, at_ns, stream, offset, mark in told:
        facts.setdefault(subject, []).append((Arrival(recorded_ns[stream][mark], stream, offset), at_ns))
    found, _ = found_in(file, is_wanted=lambda tag: tag.subject in wanted)
    assert {row.tag.subject for row in found} == wanted
    for row in found:
        known = row.latest and (row.latest.source_time_ns, row.latest.arrival.offset)
        assert known in newest_of(facts.get(row.tag.subject, [])), row.tag


def newest_of(facts: list[tuple[Arrival, int]]) -> set[tuple[int, int] | None]:
    """The rule of decision 0042 on all facts of a tag: of those since the last one ahead of the clock, the newest time;
    the one ahead counts as a minute before its recording. Of equals in two streams, which have lives of their own,
    either counts."""
    ahead = max((arrival for arrival, at_ns in facts if at_ns > arrival.recorded_ns + 2 * MINUTE_NS), default=None)
    since = [fact for fact in facts if ahead is None or fact[0] >= ahead]

    def time_ns(fact: tuple[Arrival, int]) -> int:
        return fact[0].recorded_ns - MINUTE_NS if fact[0] == ahead else fact[1]

    newest_ns = max(map(time_ns, since), default=None)
    last = {fact[0].stream: (fact[1], fact[0].offset) for fact in sorted(since) if time_ns(fact) == newest_ns}
    return set(last.values()) or {None}


@example([[(3, 0, False)], [(1, 1, False)]], [(0, {"a"}, 9), (1, {"b"}, 9), (1, {"a", "b"}, 9)], [0, 0])
@given(
    rounds,
    st.lists(st.tuples(st.integers(0, 12), st.sets(st.sampled_from("abcd"), min_size=1), st.integers(1, 40))),
    clock_steps,
)
def test_repeated_searches_equal_a_fresh_search(
    batches: list[list[tuple[int, int, bool]]],
    questions: list[tuple[int, set[str], int]],
    steps: list[int],
) -> None:
    """While a stream grows, questions about different tags at different depths get the answers of a search without
    memory."""
    absent, late_ns = AbsentTags(), BASE_NS + HOUR_NS
    with (
        memory_folder() as folder,
        node_clock() as now_ns,
        FactStore.open(folder / "facts.db", "plant", settings=AT_ONCE) as store,
    ):
        done(store.appends.define([TagDefinition(f"tag:{name}") for name in ("a", "b", "c", "a", "d")]))
        dictionary = Dictionary(store.reader)
        for at, (rows, step) in enumerate(zip(batches, steps, strict=False)):
            now_ns[0] += step * MINUTE_NS
            stream = OTHER if rows[0][2] else TELEMETRY
            samples = [Sample(tag, BASE_NS + minute * MINUTE_NS, 0) for tag, minute, _ in rows]
            done(store.appends.append_samples(stream, samples))
            for _, names, depth in filter(lambda question: question[0] in {at, 12}, questions):
                asked: dict[str, Any] = {
                    "is_wanted": lambda tag, names=names: tag.subject[4:] in names,
                    "depth_facts": depth,
                    "fresh_ms": 0,
                }
                again = find_latest_in_stream(Scanner(store.reader, dictionary), late_ns, TELEMETRY, absent, **asked)
                once = find_latest(Scanner(store.reader), late_ns, streams=frozenset([TELEMETRY]), **asked)
                assert again == [row for row in once if row.latest is not None]


def test_an_unsuccessful_search_is_remembered(tmp_path: Path) -> None:
    """A tag of another stream, which the store's definitions name, makes the first search read the whole depth. The
    next one opens only new batches and the end. A deeper query searches again, and so does one after a search that met
    damage."""
    opened = list[int]()
    file = tmp_path / "facts.db"
    with FactStore.open(file, "plant", settings=AT_ONCE) as store:
        done(store.appends.define([TagDefinition("tag:a"), TagDefinition("tag:elsewhere")]))
        absent = AbsentTags()

        def append(tag: int, count: int) -> None:
            for _ in range(count):
                at_ns = BASE_NS + store.end_offset(TELEMETRY)
                done(store.appends.append_samples(TELEMETRY, [Sample(tag, at_ns, 1)]))

        def search(depth: int) -> list[str]:
            scanner = Scanner(store.reader)
            found = find_latest_in_stream(scanner, BASE_NS, TELEMETRY, absent, depth_facts=depth)
            opened.append(scanner.counters.batches_opened)
            return [row.tag.subject for row in found]

        append(1, 40)
        assert search(30) == search(30) == ["tag:a"]
        append(1, 5)
        assert search(30) == search(30) == ["tag:a"]
        assert search(40) == ["tag:a"]
        append(2, 1)
        assert search(30) == ["tag:a", "tag:elsewhere"]
        assert opened[:5] == [30, 1, 5, 1, 40]
        append(1, 45)
        damage(file, 70)
        absent = AbsentTags()
        assert search(40) == search(40) == ["tag:a"]
    assert opened[-2:] == [39, 39]


def test_a_tag_that_appears_is_as_old_as_its_source(tmp_path: Path) -> None:
    """A value that arrives after a search without result is compared with what its source said before that search."""
    with FactStore.open(tmp_path / "facts.db", "plant", settings=AT_ONCE) as store:
        done(store.appends.define([TagDefinition("tag:a", source="x"), TagDefinition("tag:b", source="x")]))
        absent, found = AbsentTags(), list[LatestRow]()
        for tag, second in ((2, 90), (1, 10)):
            done(store.appends.append_samples(TELEMETRY, [Sample(tag, BASE_NS + second * SECOND_NS, 1)]))
            found = find_latest_in_stream(
                Scanner(store.reader), BASE_NS + HOUR_NS, TELEMETRY, absent, lambda tag: tag.subject == "tag:a"
            )
    assert [(row.tag.subject, row.as_of_ns) for row in found] == [("tag:a", BASE_NS + 90 * SECOND_NS)]


def test_the_newest_source_time_wins(tmp_path: Path) -> None:
    """Each tag has the value with the newest source time over all its numbers, of any type to the bit, in the unit that
    value was recorded in; one that has none is there, too."""
    file = everything(tmp_path, rounds=2)
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for fact in naive(file):
        key = fact["zone"], fact["subject"]
        if fact["kind"] == "sample" and (key not in newest or fact["source_time_ns"] >= newest[key]["source_time_ns"]):
            newest[key] = fact
    rows = by_subject(found_in(file)[0])
    silent = {("plant", "tag:line2/silent"), ("north", "tag:line1/t2")}
    assert ({key for key, row in rows.items() if row.latest is None}, rows.keys() - silent) == (silent, newest.keys())
    for key, fact in newest.items():
        latest = rows[key].latest
        assert latest is not None
        assert bits(latest.value) == fact["exact"]
        assert (latest.arrival.stream, latest.arrival.offset) == (fact["stream"], fact["offset"])
        assert (latest.quality, latest.unit or None) == (fact["quality"], fact["unit"])


def test_staleness_belongs_to_the_source(tmp_path: Path) -> None:
    """A tag that is silent while others of its source speak is fresh; when the source falls silent all of its tags are
    degraded."""
    tags = [TagDefinition(f"tag:{name}", source=source) for name, source in ("ax", "bx", "cy")]
    batches = [[Sample(tag, BASE_NS + second * SECOND_NS, 1)] for tag, second in ((1, 0), (3, 0), (2, 90))]
    recorded(tmp_path / "facts.db", tags, *batches)
    now_ns = BASE_NS + 100 * SECOND_NS
    for wanted in (lambda _: True, lambda tag: tag.subject != "tag:b"):
        found, _ = found_in(tmp_path / "facts.db", now_ns, is_wanted=wanted, fresh_ms=60_000)
        rows = by_subject(found)
        first, third = rows["plant", "tag:a"], rows["plant", "tag:c"]
        assert (first.as_of_ns, first.staleness_ms, first.mode) == (BASE_NS + 90 * SECOND_NS, 10_000, "fresh")
        assert (third.as_of_ns, third.staleness_ms, third.mode) == (BASE_NS, 100_000, "degraded")
    found, _ = found_in(tmp_path / "facts.db", BASE_NS, fresh_ms=0)
    assert {row.staleness_ms for row in found} == {0}, "a source whose clock is ahead is not stale"


def test_only_the_end_is_opened(tmp_path: Path) -> None:
    """Tags that all speak are found in the last batch; one that is silent costs the batches back to its value, one that
    never spoke all within the depth. Those are read in a few pages."""
    spoken = [[Sample(tag, BASE_NS + n * 10 + tag, n) for tag in (1, 2)] for n in range(1, 41)]
    tags = [TagDefinition(f"tag:{name}") for name in "abcd"]
    file = recorded(tmp_path / "facts.db", tags, [Sample(3, BASE_NS, 1)], *spoken)

    def opened(names: str, depth_facts: int = 0) -> tuple[int, int]:
        found, scanner = found_in(file, is_wanted=lambda tag: tag.subject[4:] in names, depth_facts=depth_facts)
        return scanner.counters.batches_opened, sum(row.latest is None for row in found)

    assert opened("ab") == (1, 0)
    with patch.object(StoreReader, "read", autospec=True, side_effect=StoreReader.read) as read:
        assert opened("abc") == (41, 0)
    assert read.call_count == 6, "1, 2, 4, 8, 16 and the rest"
    assert opened("abcd") == (41, 1)
    assert opened("abcd", 20) == (10, 2)
    assert opened("") == (0, 0)


def test_health_is_searched_when_a_pattern_names_it(tmp_path: Path) -> None:
    """Tags that stand still lie behind the health of each minute: its stream is left out of a search for others, and is
    there for a pattern that begins with its name, and where it is asked for."""
    with FactStore.open(tmp_path / "facts.db", "plant", settings=AT_ONCE) as store:
        done(store.appends.define([TagDefinition("tag:a"), TagDefinition("tag:bsfg/verdict", source=HEALTH_SOURCE)]))
        done(store.appends.append_samples(TELEMETRY, [Sample(1, BASE_NS, 1)]))
        for minute in range(5):
            done(store.appends.append_samples(HEALTH_STREAM, [Sample(2, BASE_NS + minute * 60 * SECOND_NS, minute)]))

        def found(tag_glob: str, stream: str | None = None) -> tuple[list[object], int]:
            scanner, wanted = Scanner(store.reader), tags_matching(tag_glob, None)
            rows = find_latest(scanner, BASE_NS, wanted, streams=streams_with(scanner, tag_glob, stream))
            return [row.latest and row.latest.value for row in rows], scanner.counters.batches_opened

        assert found("*") == ([1], 1)
        assert found("bsfg/*") == ([4], 1)
        assert found("*", HEALTH_STREAM) == ([None], 5)
        assert found("bsfg/*", TELEMETRY) == ([], 0), "health is in its own stream only"


def test_equal_subjects_of_two_zones_are_two_tags(tmp_path: Path) -> None:
    """The same subject and source in two zones, and in two lives of one zone: a row for each zone, the newest of both
    lives, with the time at which the source of that zone was last alive."""
    with FactStore.open(tmp_path / "facts.db", "plant", settings=AT_ONCE) as store:
        done(store.appends.define([TagDefinition("tag:line1/t1")]))
        done(store.appends.append_samples(TELEMETRY, [Sample(1, 5, "here")]))
        old, new = Elsewhere("north"), Elsewhere("north", life=bytes(16))
        old.put(store, [old.seal(3)])
        new.put(store, [new.seal(7)])
    found, _ = found_in(tmp_path / "facts.db")
    rows = by_subject(found)
    here, there = rows["plant", "tag:line1/t1"].latest, rows["north", "tag:line1/t1"].latest
    assert here is not None
    assert there is not None
    assert (here.value, there.value) == ("here", 7)
    assert [rows[zone, "tag:line1/t1"].as_of_ns for zone in ("plant", "north")] == [5, 7_000_000]
    assert LatestKey("north", "tag:line1/t2", "value_sampled") in {row.tag for row in found if row.latest is None}


def test_batches_are_read_in_groups_that_fit_into_memory() -> None:
    """Few at first, then more, and fewer where they are large; none is left out."""

    def place(size: int) -> Any:
        return SimpleNamespace(summary=SimpleNamespace(body_bytes=size))

    small, large = [place(1) for _ in range(10)], [place(READ_BYTES_MAX // 2) for _ in range(5)]
    groups = list(latest_query._groups([*small, *large]))
    assert [len(group) for group in groups] == [1, 2, 4, 4, 2, 2]
    assert [row for group in groups for row in group] == [*small, *large]


def received(file: Path, recorded: Sequence[tuple[bytes, Sequence[tuple[int, int]]]]) -> dict[int, dict[int, int]]:
    """Store batches of (tag, second) of two lives of `plant` in this order. By tag and second: the offset of the sample
    that counts."""
    counts: dict[int, dict[int, tuple[bytes, int]]] = {}
    offset = 0
    with FactStore.open(file, "enterprise", settings=IN_MEMORY) as store:
        origins = {life: Elsewhere(life=life) for life in LIVES}
        for life, rows in recorded:
            origin = origins[life]
            samples = [Sample(tag, BASE_NS + second * SECOND_NS, 0) for tag, second in rows]
            sealed = seal_samples(origin.link, samples, origin.definitions)
            origin.link = sealed.link
            origin.put(store, [sealed.sealed], sealed.link.next_sequence - 1)
            for tag, second in rows:
                offset += 1
                of_tag = counts.setdefault(tag, {})
                of_tag[second] = max(of_tag.get(second, (b"", 0)), (life, offset))
    return {tag: {second: at for second, (_, at) in of_tag.items()} for tag, of_tag in counts.items()}


@given(batches)
def test_of_equal_times_the_higher_life_counts(recorded: list[tuple[bytes, list[tuple[int, int]]]]) -> None:
    """Batches of two lives arrive in any order: the latest value is that of the newest time, of equal times that of the
    higher life, of these the last one; `samples` has just that one of each time."""
    with memory_folder() as folder:
        counts = received(folder / "facts.db", recorded)
        with closing(StoreReader(folder / "facts.db")) as reader:
            latest = {row.tag.subject: row.latest for row in find_latest(Scanner(reader), BASE_NS)}
            with closing(SqlSession(reader, BASE_NS)) as session:
                rows = list(session.ask("select subject, source_time_ns, offset from samples").rows)
    for tag in (1, 2):
        subject, of_tag = f"tag:line1/t{tag}", counts.get(tag, {})
        found = {(at_ns - BASE_NS) // SECOND_NS: offset for name, at_ns, offset in rows if name == subject}
        assert found == of_tag
        value = latest[subject]
        assert (value and value.arrival.offset) == (of_tag[max(of_tag)] if of_tag else None)
    assert len(rows) == sum(map(len, counts.values()))


def test_samples_of_a_tag_open_few_batches(tmp_path: Path) -> None:
    """A tag, a zone and a time exclude batches from `samples` as they do from `facts`."""
    received(tmp_path / "facts.db", [(LIVES[at % 2], [(at % 2 + 1, at)]) for at in range(40)])
    with closing(StoreReader(tmp_path / "facts.db")) as reader, closing(SqlSession(reader, BASE_NS)) as session:
        asked = f"select offset from samples where zone = 'plant' and source_time_ns < {BASE_NS + 3 * SECOND_NS}"
        assert sorted(session.ask(asked).rows) == [(1,), (2,), (3,)]
        assert session.scanner.counters.batches_opened == 3

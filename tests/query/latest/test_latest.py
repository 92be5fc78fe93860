"""Last known values: exactly those of a plain look at everything, found without looking at everything, with their
staleness."""

from contextlib import closing
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.fact_store import FactStore, StoreReader, StoreSettings
from agent.message import Sample, TagDefinition
from agent.query.latest.latest_query import AbsentTags, LatestResult, find_latest, find_latest_in_stream
from agent.query.latest.latest_search import LatestRow, Tag
from agent.query.scan.dictionary import Dictionary
from agent.query.scan.scanner import Scanner
from tests.fact_store.making import AT_ONCE, TELEMETRY, Elsewhere, done
from tests.query.making import BASE_NS, SECOND_NS, bits, everything, naive
from tests.query.test_scan import damage
from tests.support.memory import memory_folder

OTHER = "facts.other"


def found_in(file: Path, now_ns: int = BASE_NS, **more: Any) -> tuple[LatestResult, Scanner]:
    """What a search of a file finds, and the scanner that made the counters."""
    with closing(StoreReader(file)) as reader:
        scanner = Scanner(reader)
        return find_latest(scanner, now_ns, **more), scanner


def by_subject(found: LatestResult) -> dict[tuple[str, str], LatestRow]:
    """Rows by zone and subject."""
    return {(row.tag.zone, row.tag.subject): row for row in found.rows}


def test_the_newest_source_time_wins(tmp_path: Path) -> None:
    """Each tag has the value with the newest source time over all its numbers, in the unit that value was recorded
    in."""
    found, _ = found_in(everything(tmp_path, rounds=2))
    rows = by_subject(found)
    flow = rows["plant", "tag:line1/flow"].latest
    assert flow is not None
    assert (flow.value, flow.unit, flow.quality, flow.stream) == (7.25, "m3/h", 0, TELEMETRY)
    temperature = rows["plant", "tag:line1/temp"].latest
    assert temperature is not None
    assert (temperature.value, temperature.source_time_ns) == (20, BASE_NS + 1000 * SECOND_NS + 1)
    assert rows["plant", "tag:line2/silent"].latest is None
    assert {row.tag[:2] for row in found.missing} == {("plant", "tag:line2/silent"), ("north", "tag:line1/t2")}
    assert {zone for zone, _ in rows} == {"plant", "north"}


def test_history_that_comes_late_does_not_win(tmp_path: Path) -> None:
    """A gap filled behind live values leaves the last known value as it is, though its offset is later; of equal times
    the later offset wins."""
    with FactStore.open(tmp_path / "facts.db", "plant", settings=AT_ONCE) as store:
        done(store.appends.define([TagDefinition("tag:a"), TagDefinition("tag:b")]))
        for value, at_ns in ((1, 100), (2, 500), (3, 200), (4, 500), (5, 300)):
            done(store.appends.append_samples(TELEMETRY, [Sample(1, at_ns, value), Sample(2, at_ns, -value)]))
    found, _ = found_in(tmp_path / "facts.db")
    assert [row.latest and (row.latest.value, row.latest.offset) for row in found.rows] == [(4, 7), (-4, 8)]


rounds = st.lists(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6), st.booleans()), min_size=1, max_size=6),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(rounds, st.sets(st.sampled_from(["tag:a", "tag:b", "tag:c"]), min_size=1))
def test_a_search_finds_what_a_look_at_everything_finds(
    batches: list[list[tuple[int, int, bool]]], wanted: set[str]
) -> None:
    """Facts arrive in any order of times, in two streams and under two numbers: the search is exact."""
    with memory_folder() as folder:
        check_search(folder / "facts.db", batches, wanted)


def check_search(file: Path, batches: list[list[tuple[int, int, bool]]], wanted: set[str]) -> None:
    """Store batches of (tag, time_ns, is in the other stream), then compare the search with a look at each fact."""
    subjects = ["tag:a", "tag:b", "tag:c", "tag:a"]
    expected: dict[str, tuple[int, int]] = {}
    ends = {TELEMETRY: 0, OTHER: 0}
    with FactStore.open(file, "plant", settings=StoreSettings(commit_interval_ms=0)) as store:
        done(store.appends.define([TagDefinition(one, unit=str(n)) for n, one in enumerate(subjects)]))
        for rows in batches:
            stream = OTHER if rows[0][2] else TELEMETRY
            done(store.appends.append_samples(stream, [Sample(tag, time_ns, 0) for tag, time_ns, _ in rows]))
            for tag, time_ns, _ in rows:
                ends[stream] += 1
                subject = subjects[tag - 1]
                expected[subject] = max((time_ns, ends[stream]), expected.get(subject, (-1, 0)))
    found, _ = found_in(file, is_wanted=lambda tag: tag.subject in wanted)
    assert {row.tag.subject for row in found.rows} == wanted
    for row in found.rows:
        known = row.latest and (row.latest.source_time_ns, row.latest.offset)
        assert known == expected.get(row.tag.subject), row.tag


@settings(deadline=None)
@given(
    rounds, st.lists(st.tuples(st.integers(0, 12), st.sets(st.sampled_from("abcd"), min_size=1), st.integers(1, 40)))
)
def test_repeated_searches_equal_a_fresh_search(
    batches: list[list[tuple[int, int, bool]]],
    questions: list[tuple[int, set[str], int]],
) -> None:
    """While a stream grows, questions about different tags at different depths get the answers of a search without
    memory."""
    absent = AbsentTags()
    with memory_folder() as folder, FactStore.open(folder / "facts.db", "plant", settings=AT_ONCE) as store:
        done(store.appends.define([TagDefinition(f"tag:{name}") for name in ("a", "b", "c", "a", "d")]))
        dictionary = Dictionary(store.reader)
        for at, rows in enumerate(batches):
            stream = OTHER if rows[0][2] else TELEMETRY
            done(store.appends.append_samples(stream, [Sample(tag, time_ns, 0) for tag, time_ns, _ in rows]))
            for _, names, depth in filter(lambda one: one[0] in {at, 12}, questions):
                told: dict[str, Any] = {
                    "is_wanted": lambda tag, names=names: tag.subject[4:] in names,
                    "depth_facts": depth,
                    "fresh_ms": 0,
                }
                again = find_latest_in_stream(Scanner(store.reader, dictionary), BASE_NS, TELEMETRY, absent, **told)
                once = find_latest(Scanner(store.reader), BASE_NS, streams=frozenset([TELEMETRY]), **told)
                assert again == [row for row in once.rows if row.latest is not None]


def test_an_unsuccessful_search_is_remembered(tmp_path: Path) -> None:
    """A tag of another stream, that the store's definitions name, costs the first search the whole depth; the next
    opens what has come since and the end. A deeper question searches anew, and so does one after a search that met
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


def test_values_of_every_type_are_known_to_the_bit(tmp_path: Path) -> None:
    """What is found is what the batches hold."""
    file = everything(tmp_path)
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for fact in naive(file):
        key = fact["zone"], fact["subject"]
        if fact["kind"] == "sample" and (key not in newest or fact["source_time_ns"] >= newest[key]["source_time_ns"]):
            newest[key] = fact
    found, _ = found_in(file)
    for key, row in by_subject(found).items():
        if row.latest is None:
            assert key not in newest
            continue
        assert bits(row.latest.value) == newest[key]["exact"]
        assert (row.latest.offset, row.latest.quality, row.latest.unit or None) == (
            newest[key]["offset"], newest[key]["quality"], newest[key]["unit"]
        )  # fmt: skip


def test_staleness_is_the_sources(tmp_path: Path) -> None:
    """A tag that is silent while others of its source speak is fresh; when the source falls silent all of its tags are
    degraded."""
    with FactStore.open(tmp_path / "facts.db", "plant", settings=AT_ONCE) as store:
        done(
            store.appends.define(
                [
                    TagDefinition("tag:a", source="x"),
                    TagDefinition("tag:b", source="x"),
                    TagDefinition("tag:c", source="y"),
                ]
            )
        )
        for tag, second in ((1, 0), (3, 0), (2, 90)):
            done(store.appends.append_samples(TELEMETRY, [Sample(tag, BASE_NS + second * SECOND_NS, 1)]))
    now_ns = BASE_NS + 100 * SECOND_NS
    for wanted in (lambda _: True, lambda tag: tag.subject != "tag:b"):
        found, _ = found_in(tmp_path / "facts.db", now_ns, is_wanted=wanted, fresh_ms=60_000)
        rows = by_subject(found)
        first, third = rows["plant", "tag:a"], rows["plant", "tag:c"]
        assert (first.as_of_ns, first.staleness_ms, first.mode) == (BASE_NS + 90 * SECOND_NS, 10_000, "fresh")
        assert (third.as_of_ns, third.staleness_ms, third.mode) == (BASE_NS, 100_000, "degraded")
    found, _ = found_in(tmp_path / "facts.db", BASE_NS, fresh_ms=0)
    assert {row.staleness_ms for row in found.rows} == {0}, "a source whose clock is ahead is not stale"


def test_only_the_end_is_opened(tmp_path: Path) -> None:
    """Tags that all speak are found in the last batch; one that is silent costs the batches back to its value, one that
    never spoke all within the depth."""
    file = tmp_path / "facts.db"
    with FactStore.open(file, "plant", settings=AT_ONCE) as store:
        done(store.appends.define([TagDefinition(f"tag:{name}") for name in "abcd"]))
        done(store.appends.append_samples(TELEMETRY, [Sample(3, BASE_NS, 1)]))
        for n in range(1, 41):
            done(store.appends.append_samples(TELEMETRY, [Sample(tag, BASE_NS + n * 10 + tag, n) for tag in (1, 2)]))

    def opened(names: str, depth_facts: int = 0) -> tuple[int, int]:
        found, scanner = found_in(file, is_wanted=lambda tag: tag.subject[4:] in names, depth_facts=depth_facts)
        return scanner.counters.batches_opened, len(found.missing)

    assert opened("ab") == (1, 0)
    assert opened("abc") == (41, 0)
    assert opened("abcd") == (41, 1)
    assert opened("abcd", 20) == (10, 2)
    assert opened("") == (0, 0)


def test_another_zones_tags_are_their_own(tmp_path: Path) -> None:
    """The same subject in two zones, and in two epochs of one zone: a row for each zone, the newest of both epochs."""
    with FactStore.open(tmp_path / "facts.db", "plant", settings=AT_ONCE) as store:
        done(store.appends.define([TagDefinition("tag:line1/t1")]))
        done(store.appends.append_samples(TELEMETRY, [Sample(1, 5, "here")]))
        old, new = Elsewhere("north"), Elsewhere("north", epoch=bytes(16))
        old.put(store, [old.seal(3)])
        new.put(store, [new.seal(7)])
    found, _ = found_in(tmp_path / "facts.db")
    rows = by_subject(found)
    here, there = rows["plant", "tag:line1/t1"].latest, rows["north", "tag:line1/t1"].latest
    assert here is not None
    assert there is not None
    assert (here.value, there.value) == ("here", 7)
    assert Tag("north", "tag:line1/t2", "value_sampled") in {row.tag for row in found.missing}


def test_damage_is_named_and_an_older_value_is_found(tmp_path: Path) -> None:
    """A damaged batch is a hole; what is known without it is answered."""
    file = everything(tmp_path)
    damage(file, 31)
    found, scanner = found_in(file)
    assert [hole.first_offset for _, hole in scanner.counters.holes] == [31]
    flow = by_subject(found)["plant", "tag:line1/flow"].latest
    assert flow is not None
    assert flow.unit == "l/min"

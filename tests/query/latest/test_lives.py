"""Two gateways that record for one zone: of the samples of a tag and time that of the higher life counts, in whatever
order they have arrived."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agent.batch import seal_samples
from agent.fact_store import FactStore, StoreReader
from agent.message import Sample
from agent.query.latest import find_latest
from agent.query.scan import Scanner
from agent.query.sql import SqlSession
from tests.fact_store.making import IN_MEMORY, Elsewhere
from tests.query.making import BASE_NS, SECOND_NS
from tests.support.memory import memory_folder

LIVES = [(255).to_bytes(8) + b"\xff" * 8, (256).to_bytes(8) + bytes(8)]  # the number decides, not the rest

batches = st.lists(
    st.tuples(
        st.sampled_from(LIVES), st.lists(st.tuples(st.integers(1, 2), st.integers(0, 4)), min_size=1, max_size=5)
    ),
    min_size=1,
    max_size=12,
)


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

"""Facts that come under two epochs of their zone are stored once, in whatever order the two names come, and nothing
else is taken for them."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.batch import Batch, open_samples, parse, resealed, seal_columns
from agent.columns import SampleColumns
from agent.fact_store import FactStore
from agent.fact_store.append import renamed
from agent.fact_store.sqlite import Transaction
from agent.pages import PutResult
from agent.positions import Position
from tests.fact_store.making import IN_MEMORY, TELEMETRY, Elsewhere, done, plant, sealed_in, values_in
from tests.support.received import put_page

OLD, NEW = b"o" * 16, b"n" * 16


class History:
    """A zone that was restored from a copy. It has `common` facts, facts `lost` with the restore, facts that the copy
    recorded under the same sequences (`anew`), the same facts under the epoch that it began then (`again`), and later
    ones (`followed`)."""

    def __init__(self, count: int = 3) -> None:
        old = Elsewhere("north", epoch=OLD)
        self.common = parse(old.seal(10))
        end = old.link
        self.lost = parse(old.seal(10, salt=100))
        old.link = end
        self.anew = [parse(old.seal(7, salt=1_000)) for _ in range(count)]
        new = Elsewhere("north", epoch=NEW)
        self.again = list[Batch]()
        for one in self.anew:
            self.again.append(resealed(one, new.link))
            new.link = self.again[-1].link
        self.followed = [parse(new.seal(5, salt=5_000)) for _ in range(2)]
        self.definitions = [*old.received(), *new.received()]

    @property
    def values(self) -> list[object]:
        """Every value in the store once, without the lost ones."""
        batches = [self.common, *self.anew, *self.followed]
        return sorted(value for one in batches for value in open_samples(one).values)  # type: ignore[type-var]


def put(store: FactStore, history: History, batches: Sequence[Batch]) -> PutResult:
    """A page of a relay, one offset behind the last."""
    known = store.inbound.peer_position("idmz", TELEMETRY)
    position = Position(b"i" * 16, 1 if known is None else known.offset + 1)
    return done(put_page(store, "idmz", TELEMETRY, batches, history.definitions, position))


@pytest.mark.parametrize("is_lost_held", [True, False], ids=["behind other facts", "behind the common ones"])
def test_the_old_name_comes_after_the_new_one(tmp_path: Path, *, is_lost_held: bool) -> None:
    """A store that holds the facts under the new epoch takes their old names for duplicates, whether or not they
    contradict what it holds there. None is refused, none is reported."""
    history = History()
    with plant(tmp_path) as store:
        put(store, history, [history.common, *[history.lost] * is_lost_held])
        put(store, history, [*history.again, *history.followed])
        before = values_in(store)
        found = put(store, history, [history.common, *history.anew])
        assert (found.stored_facts, found.duplicate_facts, found.refused) == (0, 10 + 21, ())
        assert values_in(store) == before
        assert store.incidents() == []


def test_the_new_name_comes_after_the_old_one(tmp_path: Path) -> None:
    """The new name comes second. Facts that follow under the new epoch are stored, also after a restart between the
    two."""
    history = History()
    with plant(tmp_path) as store:
        put(store, history, [history.common, *history.anew])
        assert put(store, history, history.again[:2]).duplicate_facts == 14
    with plant(tmp_path) as store:
        found = put(store, history, [history.again[2], *history.followed])
        assert (found.stored_facts, found.duplicate_facts) == (10, 7)
        assert sorted(values_in(store)) == history.values  # type: ignore[type-var]


def test_a_name_once_found_needs_no_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search sees only a part of an epoch. Beyond it names are known by the recorded number."""
    monkeypatch.setattr(renamed, "FIRST_ROWS", 1)
    history = History(10)
    with plant(tmp_path) as store:
        put(store, history, [history.common, *history.again])
        put(store, history, history.anew[:1])
    with plant(tmp_path) as store:
        assert put(store, history, history.anew[1:]).stored_facts == 0


def test_other_facts_of_the_same_times_are_stored(tmp_path: Path) -> None:
    """As many facts with the same times and other values, in the place where resealed ones would be, are facts of their
    own."""
    history, new = History(1), Elsewhere("north", epoch=NEW)
    columns = open_samples(history.anew[0])
    other = seal_columns(new.link, columns._replace(values=[-float(one) for one in columns.values]), new.definitions)  # type: ignore[arg-type]
    with plant(tmp_path) as store:
        put(store, history, [history.common, *history.anew])
        assert put(store, history, [other]).stored_facts == 7
        assert len(values_in(store)) == 24


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.lists(st.booleans(), min_size=8, max_size=8), sizes=st.lists(st.integers(1, 4), min_size=8))
def test_each_fact_is_stored_once_in_any_order(memory: Path, order: list[bool], sizes: list[int]) -> None:
    """The two epochs come interleaved at random, each in its order and the older one first, in pages of any size: at
    the end every fact is there once."""
    history = History()
    old, new = [*history.anew], [*history.again, *history.followed]
    batches = [history.common]
    for is_old in [*order, *[True] * 8, *[False] * 8]:
        source = old if is_old else new
        if source:
            batches.append(source.pop(0))
    with plant(memory, IN_MEMORY, f"{len(list(memory.iterdir()))}.db") as store:
        while batches:
            size = sizes.pop() if sizes else 1
            put(store, history, batches[:size])
            del batches[:size]
        values = [value for one in sealed_in(store) for value in open_samples(parse(one)).values]
        assert sorted(values) == history.values  # type: ignore[type-var]


def test_batches_that_are_all_alike_are_compared_a_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zone makes thousands of batches with one count and one time, in many epochs. To compare each with each would
    block the thread that writes for all zones. So a batch is compared with a few, and a page with a bounded number."""
    compared, is_resealed = [], Batch.is_resealed
    monkeypatch.setattr(Batch, "is_resealed", lambda *both: bool(compared.append(both)) or is_resealed(*both))
    monkeypatch.setattr(renamed, "ALIKE_OF_PAGE_MAX", 500)
    values = itertools.count()

    def page(epoch: int, count: int) -> tuple[Elsewhere, list[Batch]]:
        origin = Elsewhere("evil", epoch=bytes([epoch]) * 16)
        batches = list[Batch]()
        for _ in range(count):
            columns = SampleColumns([1], [1_000], [float(next(values))], [0])
            batches.append(seal_columns(batches[-1].link if batches else origin.link, columns, origin.definitions))
        return origin, batches

    with plant(tmp_path) as store:
        for epoch in range(1, 6):
            origin, batches = page(epoch, 100)
            before, position = len(compared), Position(b"i" * 16, epoch)
            done(put_page(store, "idmz", TELEMETRY, batches, origin.received(), position))
            assert len(compared) - before <= 500
            assert epoch == 1 or len(compared) > before, "some are compared"
        assert len(values_in(store)) == 500


def test_a_zone_that_begins_an_epoch_with_each_page_is_not_searched_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first facts of an epoch are searched in the last batches of the newest others, in the thread that writes.
    This takes tenths of a second each. For a zone with many epochs only the first batches are searched."""
    to_the_end, likenesses = list[int](), Transaction.likenesses

    def noted(transaction: Transaction, stream: int, origin: int, first: int, last: int) -> object:
        to_the_end.append(last)
        return likenesses(transaction, stream, origin, first, last)

    monkeypatch.setattr(Transaction, "likenesses", noted)
    with plant(tmp_path) as store:
        counts = list[int]()
        for epoch in range(1, 2 * renamed.EPOCHS_MAX):
            to_the_end.clear()
            evil = Elsewhere("evil", epoch=bytes([epoch]) * 16)
            evil.put(store, [evil.seal(1, salt=epoch)], epoch)
            counts.append(sum(last > 0 for last in to_the_end))
    assert counts[:6] == [0, 1, 2, 3, 4, 4]
    assert set(counts[renamed.EPOCHS_MAX :]) == {0}

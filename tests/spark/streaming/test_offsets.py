"""Offsets of a stream: every fact in exactly one batch, whatever retention, limits and restores do between
batches."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.positions import LifeList, LogLives
from pyspark_bsfg.errors import FactsGone, OptionError
from pyspark_bsfg.ranges import OffsetRange
from pyspark_bsfg.streaming.offsets import StreamOffset, first_offset, next_step, parts
from pyspark_bsfg.transports.ports import Bounds

A, B = "a" * 32, "b" * 32


class Log:
    """A store between two batches: facts come, facts go, now and then it is restored from an older copy."""

    def __init__(self) -> None:
        self.lives: list[tuple[bytes, int]] = []
        self.released = self.end = self.opened = 0
        self.facts: list[int] = []  # the fact at each offset

    def grow(self, facts: int) -> None:
        life = self.opened.to_bytes(16)
        if facts and (not self.lives or self.lives[-1][0] != life):
            self.lives.append((life, self.end + 1))
        self.facts = [*self.facts[: self.end], *(1000 * self.opened + n for n in range(self.end, self.end + facts))]
        self.end += facts

    def release(self, facts: int) -> None:
        self.released = min(self.released + facts, self.end)

    def restore(self, facts: int) -> None:
        self.opened += 1
        self.end = max(self.end - facts, self.released)
        self.lives = [life for life in self.lives if life[1] <= self.end]

    def held(self, read: StreamOffset) -> Bounds:
        """What the store says to a reader at a position."""
        log = LogLives(LifeList(self.lives), self.end)
        here = log.resolve(read.position, lambda *_: False)
        resolved = None if here.how == "unknown" else here.offset
        return Bounds(log.end.life.hex(), self.released + 1, self.end, resolved=resolved)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.integers(0, 30)),
        st.tuples(st.just("release"), st.integers(0, 30)),
        st.tuples(st.just("restore"), st.integers(0, 30)),
        st.tuples(st.just("batch"), st.integers(1, 12)),
    ),
    max_size=40,
)


@given(STEPS)
def test_each_fact_is_in_a_batch(steps: list[tuple[str, int]]) -> None:
    """Batches lie end to end, none has more held facts than its limit, and all that was released before it was read is
    reported as lost. After a restore one empty batch leads back to where the log is the one that was read. At the end
    every fact of the log was read, those of a copy that is gone too, or reported."""
    log, at = Log(), StreamOffset("", 0)
    read, lost_of = set[int](), set[int]()
    for kind, number in [*steps, *[("batch", 1000)] * 3]:
        if kind != "batch":
            getattr(log, kind)(number)
            continue
        step = next_step(at, log.held(at), number, None, "reread")
        shares = parts(at, step.end, 2, 3, 5)
        offsets = [offset for share in shares for offset in range(share.first, share.last + 1)]
        assert offsets == list(range(at.offset + 1, step.end.offset + 1))
        lost = step.lost.facts if step.lost else 0
        assert lost == len([offset for offset in offsets if offset <= log.released])
        assert len(offsets) - lost <= number
        read |= {log.facts[offset - 1] for offset in offsets if offset > log.released}
        lost_of |= {log.facts[offset - 1] for offset in offsets if offset <= log.released}
        at = step.end
    assert at.offset == log.end
    assert set(log.facts[: log.end]) <= read | lost_of


@given(st.integers(0, 100), st.integers(1, 100), st.integers(0, 100), st.integers(1, 50), st.integers(0, 100))
def test_a_batch_never_goes_back_or_beyond(at: int, first: int, more: int, limit: int, target: int) -> None:
    """Whatever the log shows, the end of a batch is not before its start, and neither beyond the log nor beyond the end
    that a run with AvailableNow has set itself, but for a start that is beyond them already."""
    held, start = Bounds(A, first, first - 1 + more, resolved=at), StreamOffset(A, at)
    step = next_step(start, held, limit, StreamOffset(A, target), "fail")
    assert at <= step.end.offset <= max(at, held.end_offset, 0)
    assert step.end.offset <= max(at, target)
    if step.lost is not None:
        assert step.lost == OffsetRange(at + 1, first - 1)


@pytest.mark.parametrize(
    "partitions_min, facts_max, tasks", [(None, 1000, 1), (7, 1000, 7), (3, 10, 10), (200, 10, 100)]
)
def test_how_many_tasks_share_a_batch(partitions_min: int | None, facts_max: int, tasks: int) -> None:
    """One for a small batch; more where minPartitions asks for more, or one would get more than its limit; never more
    than there are facts."""
    shares = parts(StreamOffset(A, 50), StreamOffset(A, 150), 2, partitions_min, facts_max)
    assert len(shares) == tasks
    assert [shares[0].first, shares[-1].last] == [51, 150]


@pytest.mark.parametrize("resolved, turned", [(None, StreamOffset(B, 4)), (5, StreamOffset(A, 5))])
def test_a_restored_store_is_refused_unless_asked_for(resolved: int | None, turned: StreamOffset) -> None:
    """By default it ends the query, with what to do; nothing is read twice unasked. Otherwise the query goes on where
    the log is the one that was read, or at its first fact."""
    held = Bounds(B, 5, 9, resolved=resolved)
    with pytest.raises(FactsGone, match="onRestored=reread"):
        next_step(StreamOffset(A, 7), held, None, None, "fail")
    assert next_step(StreamOffset(A, 7), held, None, None, "reread") == (turned, None)


def test_what_was_landed_beyond_a_copy_is_read_again() -> None:
    """Landed up to (L, 100), the store is restored at 80, and another life reaches 95: facts 81 to 95 are read, though
    an offset of 100 was landed."""
    log, at = Log(), StreamOffset("", 0)
    log.grow(100)
    at = next_step(at, log.held(at), None, None, "reread").end
    log.restore(20)
    log.grow(15)
    turned = next_step(at, log.held(at), None, None, "reread").end
    assert (at.offset, turned) == (100, StreamOffset(at.life, 80))
    end = next_step(turned, log.held(turned), None, None, "reread").end
    assert end.life != at.life
    assert [tuple(part) for part in parts(turned, end, 1, None, 100)] == [(81, 95)]


def test_where_a_query_starts() -> None:
    """As Kafka's names say; a number is the first to be read, and must be within what is held or its end."""
    held = Bounds(A, 11, 20)
    assert [first_offset(start, held).offset for start in ("earliest", "latest", 11, 21)] == [10, 20, 10, 20]
    for wrong in (10, 22):
        with pytest.raises(FactsGone, match="holds 11 to 20"):
            first_offset(wrong, held)


def test_an_offset_has_one_text() -> None:
    """Spark compares offsets as text, so keys have a fixed order, and what was logged is read back."""
    assert json.dumps(StreamOffset(A, 5).to_json()) == f'{{"life": "{A}", "offset": 5}}'
    assert StreamOffset.of({"offset": 5, "life": A}) == StreamOffset(A, 5)
    assert StreamOffset.of({"life": A, "offset": 0}) == StreamOffset(A, 0)  # a query that began on an empty stream
    for wrong in (
        {},
        {"life": A},
        {"life": A, "offset": -1},
        {"life": 3, "offset": 1},
        {"life": A, "offset": True},
    ):
        with pytest.raises(OptionError, match="use another checkpoint"):
            StreamOffset.of(wrong)

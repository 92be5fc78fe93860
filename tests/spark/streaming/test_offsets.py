"""Offsets of a stream: every fact in exactly one batch, whatever retention, limits and new epochs do between
batches."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_bsfg.errors import FactsGone, OptionError
from pyspark_bsfg.ranges import OffsetRange
from pyspark_bsfg.streaming.offsets import StreamOffset, first_offset, next_step, parts
from pyspark_bsfg.transports.ports import Bounds

A, B = "a" * 32, "b" * 32


class Log:
    """A store between two batches: facts come, facts go, now and then it is restored from an older copy."""

    def __init__(self) -> None:
        self.held = Bounds(A, 1, 0)

    def grow(self, facts: int) -> None:
        self.held = replace(self.held, end_offset=self.held.end_offset + facts)

    def release(self, facts: int) -> None:
        held = self.held
        self.held = replace(held, first_offset=min(held.first_offset + facts, held.end_offset + 1))

    def restore(self, facts: int) -> None:
        end = max(self.held.end_offset - facts, self.held.first_offset - 1)
        self.held = replace(self.held, epoch=f"{int(self.held.epoch, 16) + 1:032x}", end_offset=end)


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
def test_each_offset_is_in_one_batch(steps: list[tuple[str, int]]) -> None:
    """Batches of an epoch lie end to end from where it was begun, none has more held facts than its limit, all that was
    released before it was read is reported as lost, and between two epochs lies one empty batch."""
    log, at = Log(), StreamOffset(A, 0)
    covered: dict[str, list[int]] = {}
    for kind, number in [*steps, *[("batch", 1000)] * 3]:
        if kind != "batch":
            getattr(log, kind)(number)
            continue
        step = next_step(at, log.held, number, None, "reread")
        shares = parts(at, step.end, 2, 3, 5)
        facts = [one for share in shares for one in range(share.first, share.last + 1)]
        if step.end.epoch != at.epoch:
            assert not facts
            assert step.end.offset == log.held.first_offset - 1
        else:
            assert facts == list(range(at.offset + 1, step.end.offset + 1))
            lost = step.lost.facts if step.lost else 0
            assert lost == len([one for one in facts if one < log.held.first_offset])
            assert len(facts) - lost <= number
        covered.setdefault(step.end.epoch, []).extend(facts)
        at = step.end
    assert at == StreamOffset(log.held.epoch, log.held.end_offset)
    assert all(found == list(range(found[0], found[-1] + 1)) for found in covered.values() if found)


@given(st.integers(0, 100), st.integers(1, 100), st.integers(0, 100), st.integers(1, 50), st.integers(0, 100))
def test_a_batch_never_goes_back_or_beyond(at: int, first: int, more: int, limit: int, target: int) -> None:
    """Whatever the log shows, the end of a batch is not before its start, and neither beyond the log nor beyond the end
    that a run with AvailableNow has set itself, but for a start that is beyond them already."""
    held, start = Bounds(A, first, first - 1 + more), StreamOffset(A, at)
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


def test_another_epoch_is_refused_unless_asked_for() -> None:
    """By default a restored store ends the query, with what to do; nothing is read twice unasked."""
    with pytest.raises(FactsGone, match="onNewEpoch=reread"):
        next_step(StreamOffset(A, 7), Bounds(B, 1, 9), None, None, "fail")


def test_an_end_in_another_epoch_limits_nothing() -> None:
    """The offsets of a store before it was restored say nothing about those after."""
    assert next_step(StreamOffset(B, 7), Bounds(B, 1, 50), None, StreamOffset(A, 9), "reread").end.offset == 50
    assert next_step(StreamOffset(B, 7), Bounds(B, 1, 50), None, StreamOffset(B, 9), "reread").end.offset == 9


def test_where_a_query_starts() -> None:
    """As Kafka's names say; a number is the first to be read, and must be within what is held or its end."""
    held = Bounds(A, 11, 20)
    assert [first_offset(one, held).offset for one in ("earliest", "latest", 11, 21)] == [10, 20, 10, 20]
    for wrong in (10, 22):
        with pytest.raises(FactsGone, match="holds 11 to 20"):
            first_offset(wrong, held)


def test_an_offset_has_one_text() -> None:
    """Spark compares offsets as text, so keys have a fixed order, and what was logged is read back."""
    assert json.dumps(StreamOffset(A, 5).to_json()) == f'{{"epoch": "{A}", "offset": 5}}'
    assert StreamOffset.of({"offset": 5, "epoch": A}) == StreamOffset(A, 5)
    assert StreamOffset.of({"epoch": A, "offset": 0}) == StreamOffset(A, 0)  # a query that began on an empty stream
    for wrong in (
        {},
        {"epoch": A},
        {"epoch": A, "offset": -1},
        {"epoch": 3, "offset": 1},
        {"epoch": A, "offset": True},
    ):
        with pytest.raises(OptionError, match="use another checkpoint"):
            StreamOffset.of(wrong)

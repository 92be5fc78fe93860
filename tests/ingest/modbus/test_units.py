"""What one unit remembers between its polls: pauses, refused spans, what is to be recorded again, and its reads."""

import pytest

from agent.ingest.modbus import units
from agent.ingest.modbus.address import Register
from agent.ingest.modbus.read_plan import Limits, RegisterSpan
from agent.ingest.modbus.refusal import SILENT
from agent.ingest.modbus.refusal_search import Finding, Segment
from agent.ingest.modbus.units import SPAN_RETRY_NS, Unit
from tests.ingest.modbus.devices import DUE, S, register, unit_of

A, B, C = register(0), register(10), register(20)
APART = Limits(125, 0)  # each of these in a read of its own


def span_of(register: Register, count: int = 1) -> RegisterSpan:
    """The addresses from the first of a register."""
    return RegisterSpan(1, register.table, register.address, register.address + count)


def refused(unit: Unit, register: Register, code: int = 2, now_ns: int = 0) -> bool:
    """The unit refuses this register alone."""
    return unit.note_finding(Finding(span_of(register), code, unit.place(span_of(register))), now_ns)


def test_a_refused_value_is_parked_once_and_asked_for_after_growing_pauses() -> None:
    """It is news once. The same exception again only doubles the pause; another one is to be recorded."""
    unit = unit_of([A, B], APART)
    assert refused(unit, A)
    assert unit.take_unmarked() == [((A,), 2)]
    assert unit.parked_count == 1
    assert unit.due_refused(2 * S - 1, 9) == []
    assert unit.due_refused(2 * S, 9) == [span_of(A)]
    assert not refused(unit, A, now_ns=2 * S)
    assert unit.take_unmarked() == []
    assert unit.due_refused(6 * S - 1, 9) == []
    assert unit.due_refused(6 * S, 9) == [span_of(A)]
    assert not refused(unit, A, code=4, now_ns=6 * S)
    assert unit.take_unmarked() == [((A,), 4)]


def test_a_device_that_refuses_at_random_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit no further span is learned; a value is still parked, and a known span is still updated."""
    monkeypatch.setattr(units, "SPANS_MAX", 2)
    unit = unit_of([A, B], APART)
    refused(unit, A)
    for first in (30, 40, 50):
        unit.note_finding(Finding(span_of(register(first), 2), 2), 0)
    assert not unit.refuses(span_of(register(50), 2))
    assert unit.refuses(span_of(register(40), 2))
    unit.note_finding(Finding(span_of(register(40), 2), 3), 9)
    assert span_of(register(40), 2) not in unit.due_refused(SPAN_RETRY_NS, 9)
    assert refused(unit, B)


def test_a_span_that_is_answered_is_forgotten() -> None:
    """A refusal that is over is neither recorded nor asked for; one that was never known changes nothing."""
    unit = unit_of([A])
    assert not unit.forget_refused(span_of(A))
    refused(unit, A)
    assert unit.forget_refused(span_of(A))
    assert unit.take_unmarked() == []
    assert unit.due_refused(2**62, 9) == []


def test_a_read_that_is_never_answered_waits_for_the_longest_pause() -> None:
    """Each try costs a time-out, which the other values of the line pay; refusals of other kinds do not wait for
    it."""
    unit = unit_of([A, B], APART)
    refused(unit, A, SILENT)
    refused(unit, B, now_ns=30 * S)
    assert unit.due_refused(60 * S - 1, 9) == [span_of(B)]
    assert unit.due_refused(60 * S, 9) == [span_of(A), span_of(B)]


def test_a_new_tag_map_has_parked_values_recorded_again() -> None:
    """Under their new numbers; a map in which no number is new has not, and a value that is no longer in it never."""
    unit = unit_of([A, B], APART)
    refused(unit, A)
    refused(unit, B)
    unit.take_unmarked()
    unit.want_registers({1: A, 2: B})
    assert unit.take_unmarked() == []
    unit.want_registers({3: A})
    assert unit.take_unmarked() == [((A,), 2)]
    assert unit.all_tags() == [3]


def test_a_new_tag_is_asked_for_at_once_where_the_unit_has_refused_before() -> None:
    """The addresses may have been refused as a hole, or of a tag that was removed, and are asked for once an hour."""
    unit = unit_of([A], APART)
    refused(unit, B)
    assert unit.due_refused(S, 9) == []
    unit.want_registers({1: A, 2: B})
    assert unit.due_refused(S, 9) == [span_of(B)]


def test_reads_keep_what_is_known_of_them_and_get_the_new_numbers() -> None:
    """After a new plan a read is the same object; after a new tag map it has the tags' new numbers."""
    unit = unit_of([A, B], APART)
    first, second = unit.plan(DUE)
    first.is_proven = True
    unit.proven |= {A, B}
    unit.replan()
    assert unit.plan(DUE)[0] is first
    unit.want_registers({7: A, 8: B})
    again, other = unit.plan(DUE)
    assert [(group.read, group.is_proven) for group in (again, other)] == [(first.read, True), (second.read, False)]
    assert [group.decoder.decode(b"\0\1", 0).tags for group in (again, other)] == [[7], [8]]
    assert unit.proven == {A, B}
    unit.want_registers({8: B})
    assert unit.proven == {B}
    assert [group.read for group in unit.plan(DUE)] == [second.read]


def test_a_search_goes_on_for_the_values_that_are_left() -> None:
    """With the exception that each was refused with."""
    unit = unit_of([A, B, C], APART)
    unit.suspects = [Segment.of([A, B], 4, is_refused=False), Segment.of([C], 6, is_refused=False)]
    assert unit.plan(DUE) == [], "a suspect value is in no plan"
    unit.want_registers({1: B, 2: C})
    assert [(segment.waiting(), segment.code) for segment in unit.suspects] == [([B], 4), ([C], 6)]


def test_reads_that_are_not_planned_are_kept_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tag file that changes for years fills no memory."""
    monkeypatch.setattr(units, "KEPT_MAX", 1)
    unit = unit_of([A, B], APART)
    assert unit.plan(frozenset()) == []
    before = unit.plan(DUE)
    unit.replan()
    assert unit.plan(DUE) == before, "what was planned last is kept, however much it is"
    unit.replan()
    unit.replan()
    assert unit.plan(DUE)[0] is not before[0]
    monkeypatch.setattr(units, "KEPT_MAX", 2)
    before = unit.plan(DUE)
    unit.replan()
    unit.replan()
    assert unit.plan(DUE) == before

"""The states of a consumer: each transition of the table, and the timeouts. Facts about the store itself can always be
written."""

import re

import pytest

from agent.fact_store.core import lifecycle
from agent.fact_store.core.lifecycle import REMOVAL_NS, TRANSITIONS, ConsumerEvent, Lifecycle, next_timeout
from agent.fact_store.core.operational_facts import operational_fact
from agent.message import check_message
from tools.draw_lifecycle import PAGE, diagram, drawn

ZONE = "plant-a"


def test_the_docstring_shows_the_table() -> None:
    """The docstring has the same rows as the code."""
    assert lifecycle.__doc__ is not None
    rows = re.findall(r"^    (\w.*?)  +(\w+)  +(\w.*)$", lifecycle.__doc__, re.MULTILINE)
    shown = {(Lifecycle(a), ConsumerEvent(b)): Lifecycle(c) for a, b, c in rows if a != "state"}
    assert shown == TRANSITIONS


def test_the_page_shows_the_table() -> None:
    """The diagram in the docs is drawn from the code: one arrow for each row."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == drawn(page), "run python tools/draw_lifecycle.py"
    assert diagram().count("-->") == len(TRANSITIONS) + 2


def test_every_state_is_reached_and_left() -> None:
    """No state is a dead end but `deleted`, and none is unreachable from `new`."""
    reached = {Lifecycle.NEW}
    for _ in Lifecycle:
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}
    assert reached == set(Lifecycle)
    assert {state for state in Lifecycle if not any(before is state for before, _ in TRANSITIONS)} == {
        Lifecycle.DELETED
    }


@pytest.mark.parametrize(
    "state, coming",
    [
        (Lifecycle.NEW, None),
        (Lifecycle.ONLINE, (ConsumerEvent.LOST, 1045)),
        (Lifecycle.OFFLINE, None),
        (Lifecycle.DELETION_STARTED, (ConsumerEvent.REMOVED, 1000 + REMOVAL_NS)),
        (Lifecycle.INELIGIBLE, (ConsumerEvent.LOST, 1045)),
        (Lifecycle.DELETED, None),
    ],
)
def test_transitions_caused_by_time(state: Lifecycle, coming: tuple[ConsumerEvent, int] | None) -> None:
    """An active consumer that is not seen is lost, a removal is completed, and the table has these rows."""
    assert next_timeout(state, 1000, 45) == coming
    assert coming is None or (state, coming[0]) in TRANSITIONS


def test_the_fact_about_damage_can_always_be_written() -> None:
    """Numbers that a flipped bit made too large for JSON are written as text, so damage can always be recorded."""
    about = {"first_sequence": 2**57, "origins": [{"last_sequence": -(2**60), "zone": "plant-a"}], "count": 3}
    message = operational_fact(ZONE, "facts.telemetry", "facts_damaged", about, "x", 1000)
    check_message(message)
    assert b'"first_sequence":"144115188075855872"' in message.fact.object_json
    assert b'"count":3' in message.fact.object_json

"""The demonstration, shortened: it must end with equal counts from the stores and from Spark, and leave nothing
running."""

import os
from pathlib import Path

import pytest

from agent.demo.layout import ZONES
from agent.demo.scenario import DemoOutcome, Timing, View, run_demo

pytestmark = [pytest.mark.system]


def children() -> set[str]:
    """Process ids of all children of this process."""
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return set(found.split())


def test_the_demo_ends_with_equal_counts_and_no_process_left(tmp_path: Path) -> None:
    """From plant to Spark, through a cut and a kill -9: the numbers of facts appended, received and rolled up are
    equal."""
    before = children()
    printed: list[str] = []
    reported: list[DemoOutcome] = []
    outcome = run_demo(tmp_path, View(printed.append), Timing(run_s=3, cut_s=4, after_kill_s=2), reported.append)
    assert reported == [outcome]
    assert outcome.equal, outcome
    assert outcome.rolled_up == outcome.facts["plant-a"] > 500
    assert len(set(outcome.messages.values())) == 1
    assert outcome.messages["plant-a"] >= 1, "the demonstration's own; on a busy machine the plant has real gaps, too"
    assert any("broker is frozen" in line for line in printed)
    assert any("idmz" in line and "(pulls, " in line for line in printed)
    assert children() <= before


def test_an_outcome_with_a_missing_fact_is_not_equal() -> None:
    """The last line says NOT EQUAL if a zone or Spark counts one fact less, or if nothing was counted."""
    good = DemoOutcome(dict.fromkeys(ZONES, 5), dict.fromkeys(ZONES, 1), {"facts_rolled_up": 5})
    assert good.equal
    assert not DemoOutcome(good.facts | {"idmz": 4}, good.messages, good.spark).equal
    assert not DemoOutcome(good.facts, good.messages, {"facts_rolled_up": 4}).equal
    assert not DemoOutcome(good.facts, good.messages | {"idmz": 0}, good.spark).equal
    assert not DemoOutcome(dict.fromkeys(ZONES, 0), good.messages, {"facts_rolled_up": 0}).equal

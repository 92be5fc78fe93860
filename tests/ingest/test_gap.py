"""Two gaps of one source and reason become one."""

from dataclasses import replace

from agent.ingest.gap import SOURCE_LOST, STORE_REFUSED, Gap, gap_message


def test_merged_gaps_say_no_more_than_is_known() -> None:
    """The range encloses both, the count is the sum, and it is exact only where both counts are."""
    exact = Gap("plc", STORE_REFUSED, 5, 7, 2, count_exact=True, tags=("a", "b"))
    vague = Gap("plc", STORE_REFUSED, 3, 6, 3, count_exact=False, tags=("b", "c"))
    for first, other in ((exact, vague), (vague, exact)):
        found = first.merged(other)
        assert (found.first_time_ns, found.last_time_ns, found.count, found.count_exact) == (3, 7, 5, False)
        assert set(found.tags) == {"a", "b", "c"}
    assert exact.merged(exact).count_exact


def test_each_gap_is_a_message_of_its_own() -> None:
    """A gap that is appended again is the same message; one that differs in source, reason, time or count is another,
    which the store must not take for a repetition."""
    gap = Gap("plc", STORE_REFUSED, 5, 7, 2, count_exact=True)
    assert gap_message(gap, "plant-a", 1).envelope.message_id == gap_message(gap, "plant-a", 2).envelope.message_id
    others = [
        replace(gap, **change)  # type: ignore[arg-type]
        for change in (
            {"source": "meter"},
            {"reason": SOURCE_LOST},
            {"first_time_ns": 4},
            {"last_time_ns": 8},
            {"count": 3},
        )
    ]
    messages = [gap_message(gap, "plant-b", 1), *(gap_message(own, "plant-a", 1) for own in (gap, *others))]
    assert len({message.envelope.message_id for message in messages}) == len(messages)

"""Two gaps of one source and reason become one."""

from agent.ingest.gap import STORE_REFUSED, Gap


def test_merged_gaps_say_no_more_than_is_known() -> None:
    """The range encloses both, the count is the sum, and it is exact only where both counts are."""
    exact = Gap("plc", STORE_REFUSED, 5, 7, 2, count_exact=True, tags=("a", "b"))
    vague = Gap("plc", STORE_REFUSED, 3, 6, 3, count_exact=False, tags=("b", "c"))
    for one, other in ((exact, vague), (vague, exact)):
        found = one.merged(other)
        assert (found.first_time_ns, found.last_time_ns, found.count, found.count_exact) == (3, 7, 5, False)
        assert set(found.tags) == {"a", "b", "c"}
    assert exact.merged(exact).count_exact

"""The table of a reconnect, and which of several redundant servers is read."""

import pytest

from agent.ingest.opcua.reconnect import NEXT, ReconnectOutcome, ReconnectStep, RedundantServers, next_step

A, B, C = "opc.tcp://a", "opc.tcp://b", "opc.tcp://c"


def test_every_outcome_of_every_step_has_a_successor() -> None:
    """Nothing is undecided, and refusals lead to the last step, which keeps nothing."""
    assert NEXT.keys() == {(step, outcome) for step in ReconnectStep for outcome in ReconnectOutcome}
    for outcome in (ReconnectOutcome.REFUSED, ReconnectOutcome.SILENT):
        step, taken = ReconnectStep.REACTIVATE, []
        while step not in taken:
            taken.append(step)
            step = next_step(step, outcome)
        assert taken == [ReconnectStep.REACTIVATE, ReconnectStep.TRANSFER, ReconnectStep.REBUILD]


@pytest.mark.parametrize(
    "levels, url",
    [
        ({A: 255, B: 255}, A),  # the present one, if none is better
        ({A: 150, B: 201, C: 202}, C),
        ({A: None, B: 10, C: None}, B),  # one that is ill rather than none
        ({}, A),  # nobody answers: it may be the first that returns
    ],
)
def test_the_server_with_the_highest_level_is_read(levels: dict[str, int | None], url: str) -> None:
    """And which one is read is said, if it is another one."""
    servers = RedundantServers([A, B, C, A])
    assert servers.choose(levels) == (url != A)
    assert servers.url == url
    assert sorted([servers.url, *servers.others]) == [A, B, C]

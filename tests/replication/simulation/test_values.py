"""The judge by values sees a fact that is lost, stored twice, or released before it was read, without the other
checkers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.fact_store.inbound import Inbound
from agent.message import Sample
from agent.replication.pulling.receiving.receiver import Receiver
from tests.replication.simulation import pulling
from tests.replication.simulation.broken import ConfirmsTooEarly
from tests.replication.simulation.checkers import STREAM
from tests.replication.simulation.faults import NAMED, Faults
from tests.replication.simulation.network import TOPOLOGIES, World
from tests.replication.simulation.node import Node
from tests.replication.simulation.values import ValueJudge

pytestmark = pytest.mark.usefixtures("quiet")
SCHEDULES_MAX = 40


class NoCheckers:
    """In place of the other checkers: finds nothing."""

    violation = None

    def __init__(self) -> None:
        self.forks: set[object] = set()

    def __getattr__(self, name: str) -> Callable[..., tuple[()]]:
        return lambda *_, **__: ()


def judged(
    seed: int, faults: Faults, folder: Path, topology: str = "chain_3", receiver: type[Receiver] = Receiver
) -> ValueJudge:
    """What the judge by values found in one schedule, with no other checker."""
    values = ValueJudge()
    world = World(seed, TOPOLOGIES[topology], faults, folder / str(seed), receiver=receiver, values=values)
    world.check = NoCheckers()  # type: ignore[assignment]
    world.run()
    return values


@pytest.mark.parametrize("topology", ["chain_3", "both_ways", "site"])
def test_nothing_is_found_where_nothing_is_wrong(topology: str, memory: Path) -> None:
    """Loss, duplicates, crashes and retention that waits for its readers lose nothing, and the judge finds nothing."""
    faults = Faults(loss=0.1, duplicate=0.2, crash_ms=3_000, retention_bytes=100_000)
    values = judged(7, faults, memory, topology)
    assert values.zone_of
    assert not values.examples


def test_a_value_recorded_twice_is_found(monkeypatch: pytest.MonkeyPatch, memory: Path) -> None:
    """A store that holds one value at two offsets."""

    def append_again(node: Node) -> None:
        node.world.facts += 1
        assert node.world.values is not None
        node.world.values.recorded(node.zone, [1])
        node.running.appends.append_samples(STREAM, [Sample(1, node.world.facts * 1_000_000, 1)])

    monkeypatch.setattr(Node, "_append", append_again)
    assert judged(1, Faults(), memory).found["doubled"]


def test_a_value_that_a_receiver_drops_is_found(monkeypatch: pytest.MonkeyPatch, memory: Path) -> None:
    """A store that takes a page without its first batch and answers as for all of it."""
    put_page = pulling._WatchedInbound.put_page

    def without_first(self: Any, page: Any) -> Any:
        if len(page.batches) > 1:
            del page.batches[0]
        return put_page(self, page)

    monkeypatch.setattr(pulling._WatchedInbound, "put_page", without_first)
    found = judged(1, Faults(append_ms=100), memory, "chain_2").found
    assert found["lost"]


def test_a_value_released_before_it_was_read_is_found(memory: Path) -> None:
    """A receiver that confirms what is not durable, and dies: its peer has released facts that it never had."""
    faults = Faults(crash_ms=400, retention_bytes=1_500, append_ms=100, slow_consumer_ms_max=500)
    found = (judged(seed, faults, memory, "chain_2", ConfirmsTooEarly).found for seed in range(60, 60 + SCHEDULES_MAX))
    assert any(report["unread"] for report in found)


@pytest.mark.parametrize("seed, is_said", [(3415427802, True), (3415427802, False), (1353111714, True)])
def test_what_collides_within_a_life_is_excused_only_where_the_node_says_so(
    seed: int, is_said: bool, monkeypatch: pytest.MonkeyPatch, memory: Path
) -> None:
    """A plant whose memory was put back numbers other facts under a life and sequences that its reader holds already.
    The reader refuses them by name, and the plant's next comparison finds what it lacks itself. Where that records no
    incident, facts are missing at home. In the third schedule facts collide with a notice."""
    note = Inbound.note_incident

    def without_forks(self: Inbound, kind: str, *about: str) -> Any:
        return note(self, "other" if kind == "fork" else kind, *about)

    if not is_said:
        monkeypatch.setattr(Inbound, "note_incident", without_forks)
    found = judged(seed, NAMED["resumed_memory"], memory, "both_ways")
    assert found.found["refused"]
    assert found.examples.keys() == ({"refused"} if is_said else {"refused", "home"})

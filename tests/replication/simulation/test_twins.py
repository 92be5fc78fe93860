"""Two machines that read under one name, in the simulated network: loss, delay, broken lines and restarts.

When the faults end, exactly one of the two continues: the one whose latest start was the last to arrive. Nothing except
the start of a process ever takes the lease. Seen to catch, with the product broken on purpose: a rule that does not
know the holder (a retried first fetch then fences its own instance, and the twin too), a request that waited and then
asks for a lease once more, no instance fenced, a fenced one that asks again.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.lease import Lease
from agent.replication.pulling.receiving.pull_events import ReceiverSettings
from tests.replication.simulation.faults import Faults
from tests.replication.simulation.network import TOPOLOGIES, World
from tests.replication.simulation.node import Node
from tests.sim import first_seed, patient, scaled

pytestmark = pytest.mark.usefixtures("quiet")
PATIENCE = ReceiverSettings(wait_ms=400, answer_timeout_ms=100, backoff_ms_min=20, backoff_ms_max=200, blocked_ms=2_000)
LOSS = 0.15
FAULTS = Faults(fenced_twin=True, crash_ms=4_000, partition_two_way_ms=3_000)


class Twins(World):
    """plant, and two machines of idmz. What goes from one machine to another arrives in its order, if at all, as over
    one connection."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, TOPOLOGIES["chain_2"], FAULTS, folder, settings=PATIENCE)
        self._free_ms = dict[tuple[str, str], int]()
        self.lease, self.taken_ms = Lease(0, ""), 0
        self.check.lease_held = self._lease_held  # type: ignore[method-assign]

    def _lease_held(self, _node: Node, _consumer: str, lease: Lease) -> None:
        if lease.epoch > self.lease.epoch:
            self.lease, self.taken_ms = lease, self.now_ms

    def carry(self, source: Node, target: Node, action: Callable[[], None]) -> None:
        line = source.name, target.name
        if self.faults_are_on and (self._broken.get(line, 0) > self.now_ms or self.chance.random() < LOSS):
            return
        delay_ms = self.chance.choice((1, 1, 5, 30, 700)) if self.faults_are_on else 1
        self._free_ms[line] = max(self._free_ms.get(line, 0), self.now_ms + delay_ms)
        self.at(self._free_ms[line] - self.now_ms, action)

    def _left(self) -> Iterator[str]:
        yield from super()._left()
        pulls: list[Any] = [pull for node in self.nodes for pull in node.pulls if not pull.is_fenced]
        going = [Lease(pull._runner.core.lease.epoch, pull.node.instance) for pull in pulls]
        if going != [self.lease]:
            yield f"{going} go on, in force is {self.lease}"


@patient
def test_one_of_two_instances_continues(memory: Path) -> None:
    """At the end one machine holds the lease and knows its epoch, and the other is fenced. The lease has not changed
    hands since the faults ended, except by starts and requests that were under way; no operator had to help."""
    first = first_seed()
    for seed in range(first, first + scaled(60, 3_000)):
        world = Twins(seed, memory / str(seed))
        world.run()
        assert world.taken_ms <= world.faults_end_ms + 5_000, f"seed {seed}: taken at {world.taken_ms}"
        assert world.started_by_hand == 0, f"seed {seed}"

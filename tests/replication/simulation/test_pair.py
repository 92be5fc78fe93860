"""Two nodes that record for one zone, and a node above that pulls from both: what each fact costs."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.pages import StoredBatch
from agent.replication.pulling.shared_zones import SharedZones
from agent.replication.serving.page import HeldThere
from tests.replication.simulation.checkers import EVERYTHING, STREAM, Violation
from tests.replication.simulation.faults import NAMED, Faults
from tests.replication.simulation.network import TOPOLOGIES, World
from tests.replication.simulation.node import Node
from tests.replication.simulation.values import ValueJudge

pytestmark = pytest.mark.usefixtures("quiet")
STEADY = Faults(append_ms=250)


class Counted(World):
    """A world that knows how many bytes of batches the node above holds at the end."""

    sealed_bytes = 0

    def run(self) -> None:
        above = next(node for node in self.nodes if node.name == "idmz")
        check_end = self.check.check_end

        def count(nodes: list[Node]) -> None:
            self.sealed_bytes = sum(
                len(batch.sealed) for batch in above.running.read(STREAM, 0, EVERYTHING, EVERYTHING).batches
            )
            check_end(nodes)

        self.check.check_end = count  # type: ignore[method-assign]
        super().run()


def world_of(seed: int, folder: Path, *producers: str) -> Counted:
    """A pair without faults, of which these nodes record."""
    return Counted(seed, replace(TOPOLOGIES["pair"], producers=producers), STEADY, folder / str(seed))


@pytest.mark.parametrize("seed", range(3))
def test_each_fact_travels_once_to_the_node_above(seed: int, memory: Path) -> None:
    """While one of the two records, the other one pulls each batch once and gets none of its partner's back, and above
    each batch comes about once, although both nodes have it."""
    world = world_of(seed, memory, "mill-1")
    world.run()
    brought, sealed = world.bytes_brought, world.sealed_bytes
    assert sealed > 10_000
    assert brought["mill-2"] == sealed
    assert sealed <= brought["idmz"] <= 1.1 * sealed
    assert brought["mill-1"] <= 0.05 * sealed


@pytest.mark.parametrize("is_believed", [True, False])
def test_what_is_beyond_the_named_range_is_not_left_out(
    memory: Path, monkeypatch: pytest.MonkeyPatch, *, is_believed: bool
) -> None:
    """A server that leaves out all of a life of which a requester holds a part: the reader does not know the end of
    such a run, and asks without it. One that believes it loses facts when the other node is slower, and the checkers
    see it: they do not trust what is named as held."""

    def has(held: HeldThere, batch: StoredBatch) -> bool:
        header: Any = batch.batch.header
        named = {span[:2] for span in held.spans}
        return header.origin.zone in held.zones or (header.origin.zone, header.origin.life.hex()) in named

    monkeypatch.setattr(HeldThere, "has", has)
    if is_believed:
        monkeypatch.setattr(SharedZones, "find_unproven", lambda *_, **__: "")
    worlds = [world_of(seed, memory, "mill-1", "mill-2") for seed in range(20 if is_believed else 3)]
    with pytest.raises(Violation, match=r"skipped|lost") if is_believed else nullcontext():
        list(map(World.run, worlds))


@pytest.mark.parametrize("seed", [2, 3900283834])
def test_another_batch_is_not_taken_for_the_one_held(seed: int, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory was put back, and under sequences that a reader names as held the peer has other facts. The digest of
    what was left out shows it, and the reader stores those facts or refuses them by name. Once they were left out
    unseen: a value was lost."""
    unproven, find = list[str](), SharedZones.find_unproven

    def watched(zones: SharedZones, *named: Any, more: bool) -> str:
        unproven.append(find(zones, *named, more=more))
        return unproven[-1]

    monkeypatch.setattr(SharedZones, "find_unproven", watched)
    values = ValueJudge()
    World(seed, TOPOLOGIES["pair"], NAMED["resumed_memory"], memory / str(seed), values=values).run()
    assert any(unproven)
    assert {*values.found} == {"refused"}

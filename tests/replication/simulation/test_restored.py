"""What lives promise, one mishap a test: a plant's disk is put back to a copy, cloned, wiped, or loses its write-ahead
log, while the enterprise and the plant read each other through real stores in the simulated network."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.replication.simulation.faults import NAMED
from tests.replication.simulation.network import TOPOLOGIES, World
from tests.replication.simulation.node import Node
from tests.replication.simulation.values import ValueJudge

pytestmark = pytest.mark.usefixtures("quiet")
MISHAP_MS = 6_000
"""By then the plant has recorded some thirty facts, and half the time for recording is left."""


class Story(ValueJudge):
    """The end of a schedule: lives, values and kinds of incidents, by node."""

    def check_end(self, nodes: list[Node]) -> None:
        super().check_end(nodes)
        self.values = {node.name: {*self.held[node.name].values()} for node in nodes}
        self.incidents = {node.name: {incident.kind for incident in node.running.reader.incidents()} for node in nodes}
        self.lives = {
            node.name: {origin.life for origin in node.running.reader.held("facts.telemetry")} for node in nodes
        }


def story_of(memory: Path, mishap: Callable[[World, Node], object], topology: str = "both_ways") -> Story:
    """A plant suffers a mishap. Every value that survives on a disk is in the end at each node that reads it and at the
    plant, once, and nothing is released unread, or the world or its judge says so."""
    story = Story()
    world = World(7, TOPOLOGIES[topology], replace(NAMED["none"], append_ms=300), memory / "story", values=story)
    plant = next(node for node in world.nodes if node.name == "plant")
    world.at(MISHAP_MS, lambda: mishap(world, plant))
    world.run()
    assert (dict(story.found), story.examples) == ({}, {})
    return story


def test_a_plant_put_back_to_an_older_copy_gets_its_facts_back(memory: Path) -> None:
    """What it recorded before and after the copy was put back is at the enterprise under two lives, and what the copy
    lacks comes home. Both name the branch; the plant also that its log was read further."""
    story = story_of(memory, lambda _, plant: plant.restore_whole())
    assert story.values["plant"] == story.values["idmz"]
    assert {name: len(lives) for name, lives in story.lives.items()} == {"plant": 3, "idmz": 3}, "with the reader's own"
    assert story.incidents == {"plant": {"restored", "branch"}, "idmz": {"branch"}}


def test_a_cloned_plant_loses_nothing_of_either_machine(memory: Path) -> None:
    """Both record, until the first one is switched off; the reader has the facts of both, and so has the clone."""
    story = story_of(memory, lambda world, plant: world._begin_twin(plant))
    assert story.values["plant-2"] == story.values["idmz"]
    assert {name: len(lives) for name, lives in story.lives.items()} == {"plant-2": 3, "idmz": 3}
    assert story.incidents == {"plant-2": {"restored", "branch"}, "idmz": {"branch"}}


def test_a_wiped_gateway_gets_all_its_facts_back(memory: Path) -> None:
    """A new disk knows no life of the zone; what the zone's key has signed comes home, and new facts begin a branch."""
    story = story_of(memory, lambda _, plant: plant.wipe())
    assert story.values["plant"] == story.values["idmz"]
    assert story.incidents == {"plant": {"restored", "branch"}, "idmz": {"branch"}}


def test_facts_of_a_lost_log_come_home(memory: Path) -> None:
    """The newest facts were only in the write-ahead log: the opening says so, and they come back from the reader."""
    story = story_of(memory, lambda _, plant: plant.lose_log())
    assert story.values["plant"] == story.values["idmz"]
    assert story.incidents == {"plant": {"log_lost", "restored", "branch"}, "idmz": {"branch"}}


@pytest.mark.parametrize("mishap", [Node.restore_whole, Node.wipe, Node.lose_log])
def test_a_zone_further_up_reads_both_sides_through_a_relay(memory: Path, mishap: Callable[[Node], bool]) -> None:
    """The plant pulls nothing, so nothing comes home to it; the relay and the zone above hold every fact that any disk
    has."""
    story = story_of(memory, lambda _, plant: mishap(plant), "chain_3")
    assert story.values["plant"] < story.values["idmz"] == story.values["enterprise"]
    assert story.incidents["idmz"] == story.incidents["enterprise"] == {"branch"}

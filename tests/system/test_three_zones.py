"""Three zones as real processes, as people and programs use them: messages, status.

The plant, the broker and the nodes are those of the demonstration. What happens to them under faults is in
test_torture.py.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.cli.health.status import text
from agent.demo import layout
from agent.demo.layout import TELEMETRY
from agent.demo.scenario import RunningZones, run_zones
from tests.waiting import wait_until

pytestmark = [pytest.mark.system]

LIMIT_S = 60.0


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[RunningZones]:
    """Broker, plant and three nodes, with facts already in the last zone."""
    with run_zones(tmp_path, keep=False) as made:
        wait_until(lambda: made.facts(layout.ENTERPRISE, TELEMETRY) > 0, "a fact at the top", LIMIT_S)
        yield made


def test_a_message_of_an_application_reaches_the_top(stage: RunningZones, bsfg: Callable[..., str]) -> None:
    """What `bsfg append` acknowledged at the plant is fetched, and confirmed, by an application of the enterprise."""
    plant, enterprise = stage.configs[layout.PLANT], stage.configs[layout.ENTERPRISE]
    bsfg("append", "--config", plant, "batch:B-7", "step_completed", '{"step":"mash"}')
    facts: list[dict[str, Any]] = []  # a busy machine may lose a source, which is a fact too

    def arrived() -> bool:
        fetched = map(json.loads, bsfg("fetch", "--config", enterprise, "--consumer", "local.mes").splitlines())
        facts[:] = [one for one in fetched if one["fact"]["subject"] == "batch:B-7"]
        return bool(facts)

    wait_until(arrived, "the message at the top", LIMIT_S)
    (line,) = facts
    assert line["envelope"]["from_zone"] == layout.PLANT
    assert line["fact"] == {"subject": "batch:B-7", "predicate": "step_completed", "object": {"step": "mash"}}
    offset = str(line["offset"])
    assert f"to {offset}" in bsfg("confirm", "--config", enterprise, "--consumer", "local.mes", offset)
    assert "batch:B-7" not in bsfg("fetch", "--config", enterprise, "--consumer", "local.mes")


def test_status_names_the_lost_source(stage: RunningZones) -> None:
    """`bsfg status` names the lost source, and is good again when it returns."""
    plant = layout.PLANT
    wait_until(lambda: (stage.status(plant) or {}).get("verdict") == "good", "the plant is well", LIMIT_S)
    stage.plant[1].stop()
    wait_until(lambda: (stage.status(plant) or {}).get("alert"), "an alert", LIMIT_S)
    printed = text(stage.status(plant))
    assert "source boiler: not connected" in printed
    stage.plant[1].start()
    wait_until(lambda: (stage.status(plant) or {}).get("verdict") == "good", "the plant is well again", LIMIT_S)

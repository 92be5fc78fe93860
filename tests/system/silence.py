"""The end of a scene: the plant falls silent, the zones level, the nodes stop in order."""

import re
import time

from agent.demo import layout
from agent.demo.layout import TELEMETRY
from agent.demo.scenario import RunningZones
from tests.waiting import wait_until

LIMIT_S = 60.0
SOURCE_SECTION = re.compile(r"^\[\[(?:opcua|modbus)\]\]\n(?:(?!\[).*\n?)*", re.MULTILINE)
SETTLED_S = 2.0  # several times commit_interval_ms


def fall_silent(stage: RunningZones) -> int:
    """Stop the plant, wait until every zone holds what the plant holds, stop the nodes.

    Returns the number of samples. A node that stops while a source is away declares the outage up to its stop; its
    peers get that fact when it runs again. So the plant's node is started once more, without its sources.
    """
    for child in stage.plant:
        child.stop()
    wait_until(lambda: _all_lost(stage), "the loss of every source", LIMIT_S)
    plant, config = stage.nodes[layout.PLANT], stage.configs[layout.PLANT]
    assert plant.stop() == 0, plant.log_tail()
    config.write_text(SOURCE_SECTION.sub("", config.read_text()))
    plant.start()

    last, since = (0, 0), time.monotonic()

    def level() -> bool:
        """Whether all stores are equal and nothing has been recorded for a while: a fact may wait in the queue for its
        commit."""
        nonlocal last, since
        counts = {tuple(stage.facts(zone, stream) for stream in layout.STREAMS) for zone in layout.ZONES}
        if counts != {last} or stage.status(layout.PLANT) is None:
            last, since = max(counts), time.monotonic()
        return time.monotonic() - since > SETTLED_S

    wait_until(level, "the zones level", LIMIT_S)
    for node in stage.nodes.values():
        assert node.stop() == 0, node.log_tail()
    return stage.facts(layout.PLANT, TELEMETRY)


def _all_lost(stage: RunningZones) -> bool:
    status = stage.status(layout.PLANT)
    return status is not None and not any(source["connected"] for source in status["sources"])

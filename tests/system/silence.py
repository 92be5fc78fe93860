"""The end of a scene: the plant falls silent, the zones level, the nodes stop in order."""

import time

from agent.demo import layout
from agent.demo.layout import TELEMETRY
from agent.demo.scenario import RunningZones
from tests.waiting import wait_until

LIMIT_S = 60.0
SETTLED_S = 2.0  # several times commit_interval_ms


def fall_silent(stage: RunningZones) -> int:
    """Stop the plant, wait until every zone holds what the plant holds, stop the nodes; the number of samples."""
    for child in stage.plant:
        child.stop()

    last, since = (0, 0), time.monotonic()

    def level() -> bool:
        """Equal everywhere, and nothing new for a while: a source's last word, that its tags are bad, ripens in the
        queue."""
        nonlocal last, since
        counts = {tuple(stage.facts(zone, stream) for stream in layout.STREAMS) for zone in layout.ZONES}
        if counts != {last}:
            last, since = max(counts), time.monotonic()
        status = stage.status(layout.PLANT)
        silent = status is not None and not any(source["connected"] for source in status["sources"])
        return silent and time.monotonic() - since > SETTLED_S

    wait_until(level, "the zones level", LIMIT_S)
    for node in stage.nodes.values():
        assert node.stop() == 0, node.log_tail()
    return stage.facts(layout.PLANT, TELEMETRY)

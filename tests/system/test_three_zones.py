"""Three zones as real processes, as people and programs use them: messages, status, certificates renewed.

The plant, the broker and the nodes are those of the demonstration. What happens to them under faults is in
test_torture.py.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.cli.status import text
from agent.demo import layout
from agent.demo.layout import TELEMETRY
from agent.demo.scenario import RunningZones, run_zones
from tests.system.outside import complaints
from tests.system.silence import fall_silent
from tests.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

LIMIT_S = 60.0


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[RunningZones]:
    """Broker, plant and three nodes, with facts already in the last zone."""
    with run_zones(tmp_path, keep=False) as made:
        wait_until(lambda: made.facts(layout.ENTERPRISE, TELEMETRY) > 0, "a fact at the top", LIMIT_S)
        yield made


def fall_silent_and_compare(stage: RunningZones) -> int:
    """End the run. Returns the number of samples that every zone holds, in the same batches."""
    facts = fall_silent(stage)
    assert complaints({zone: stage.store(zone) for zone in layout.ZONES}, layout.STREAMS, [], {}) == []
    return facts


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


def test_status_names_a_stopped_broker_before_what_follows_from_it(stage: RunningZones) -> None:
    """Without the broker the headline of each zone is the broker, not the lag of its peers, which stand under it; when
    the broker is back, all are good by themselves."""

    def shown(zone: str) -> str:
        found = stage.status(zone)
        return text(found) if found else ""

    for zone in layout.ZONES:
        wait_until(lambda zone=zone: shown(zone).startswith(f"{zone}: good"), f"{zone} is well", LIMIT_S)
    stage.broker.stop()
    for zone in layout.ZONES:
        wait_until(lambda zone=zone: ": broker " in shown(zone).partition("\n")[0], f"the broker at {zone}", LIMIT_S)
    lagging = f"so peer {layout.PLANT}/{TELEMETRY}: "
    wait_until(lambda: "s behind" in shown(layout.IDMZ).partition(lagging)[2], "a lag under its cause", LIMIT_S)
    assert ": broker " in shown(layout.IDMZ).partition("\n")[0]
    assert "! peer" not in shown(layout.IDMZ)
    stage.broker.start()
    for zone in layout.ZONES:
        wait_until(lambda zone=zone: shown(zone).startswith(f"{zone}: good"), f"{zone} is well again", LIMIT_S)


def test_every_certificate_is_renewed_under_running_zones(stage: RunningZones, bsfg: Callable[..., str]) -> None:
    """`bsfg pki renew` for each zone and `bsfg broker reload` for the broker: one reconnect each, no restart, nothing
    lost.

    Afterwards `bsfg peer test`, run while the node runs, finds everything good.
    """
    wait_until(
        lambda: all((stage.status(zone) or {}).get("verdict") == "good" for zone in layout.ZONES),
        "all are well",
        LIMIT_S,
    )
    before = {zone: _broker(stage, zone)["connects_total"] for zone in layout.ZONES}
    for zone in layout.ZONES:
        bsfg("pki", "renew", zone, "--pki", stage.broker.pki_folder)
    for zone in layout.ZONES:
        wait_until(
            lambda zone=zone: _broker(stage, zone)["connects_total"] > before[zone], f"{zone} has taken over", LIMIT_S
        )
    bsfg("pki", "renew", "private", "--broker", "--pki", stage.broker.pki_folder)
    for kind in ("pem", "key"):
        renewed = stage.broker.pki_folder / "brokers" / f"private.{kind}"
        (stage.broker.files.folder / f"broker.{kind}").write_bytes(renewed.read_bytes())
    bsfg("broker", "reload", "--config", stage.broker.files.config_file, "--pid", stage.broker.pid)
    steps = bsfg("peer", "test", layout.PLANT, "--config", stage.configs[layout.IDMZ], "--json").splitlines()
    assert {json.loads(step)["outcome"] for step in steps} == {"good"}
    for zone in layout.ZONES:
        found = _broker(stage, zone)
        assert (found["connects_total"], found["identity_trouble"]) == (before[zone] + 1, "")
    assert fall_silent_and_compare(stage) > 0


def _broker(stage: RunningZones, zone: str) -> dict[str, Any]:
    """The status of the broker in a zone's node."""
    (found,) = (stage.status(zone) or {"brokers": [{"connects_total": 0}]})["brokers"]
    return dict(found)

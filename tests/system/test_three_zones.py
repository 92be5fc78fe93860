"""Three zones as real processes: what they hold at the end is the same, whatever is killed or stopped in between.

The plant, the broker and the nodes are those of the demonstration; the stores are read from their files afterwards and
compared batch by batch, so nothing a node says of itself is taken on trust.
"""

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.batch import open_messages, open_samples, parse
from agent.cli.status import text
from agent.demo import layout
from agent.demo.story import OPERATIONAL, TELEMETRY, Scene, scene
from agent.fact_store.reader import StoreReader
from tests.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

KILLS = 8
FACTS_MIN = 500
LIMIT_S = 60.0
SETTLED_S = 2.0  # several times commit_interval_ms


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Scene]:
    """Broker, plant and three nodes, with facts already at the top."""
    with scene(tmp_path, keep=False) as made:
        wait_until(lambda: made.facts(layout.ENTERPRISE, TELEMETRY) > 0, "a fact at the top", LIMIT_S)
        yield made


def sealed_batches(stage: Scene, zone: str, stream: str) -> list[bytes]:
    """Every batch of a stream as it lies in a zone's file, checked on the way: dense offsets, whole chain, readable."""
    found = []
    with contextlib.closing(StoreReader(stage.store(zone))) as reader:
        end, link = 0, None
        while page := reader.read(stream, end, 100_000, 8_000_000).batches:
            for stored in page:
                batch = parse(stored.sealed)
                assert stored.first_offset == end + 1, "offsets have no holes and no overlaps"
                if link is None:
                    assert batch.header.first_sequence == 1
                else:
                    assert batch.header.first_sequence == link.next_sequence, "no fact twice, none missing"
                    assert batch.header.previous_digest == link.digest, "the chain is whole"
                facts = open_samples(batch).tags if stream == TELEMETRY else open_messages(batch)
                assert len(facts) == stored.last_offset - stored.first_offset + 1
                end, link = stored.last_offset, batch.link
                found.append(stored.sealed)
    return found


def fall_silent_and_compare(stage: Scene) -> int:
    """Stop the plant, wait until every zone holds what the plant holds, compare; the number of facts."""
    for child in stage.plant:
        child.stop()

    last, since = 0, time.monotonic()

    def level() -> bool:
        """Equal everywhere, and nothing new for a while: a source's last word, that its tags are bad, ripens in the queue."""
        nonlocal last, since
        counts = {stage.facts(zone, TELEMETRY) for zone in layout.ZONES}
        if counts != {last}:
            last, since = max(counts), time.monotonic()
        status = stage.status(layout.PLANT)
        silent = status is not None and not any(source["connected"] for source in status["sources"])
        return silent and time.monotonic() - since > SETTLED_S

    wait_until(level, "the zones level", LIMIT_S)
    for node in stage.nodes.values():
        assert node.stop() == 0, node.log_tail()
    for stream in layout.STREAMS:
        plant = sealed_batches(stage, layout.PLANT, stream)
        for zone in (layout.IDMZ, layout.ENTERPRISE):
            assert sealed_batches(stage, zone, stream) == plant, f"{zone} holds the plant's {stream} byte for byte"
    return stage.facts(layout.PLANT, TELEMETRY)


def test_nodes_killed_at_random_moments_lose_and_double_nothing(stage: Scene) -> None:
    """kill -9 of any node at any moment, started again at once: at the end all zones hold the same chain of facts."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(KILLS):
        victim = chance.choice(layout.ZONES)
        moment = time.monotonic() + chance.uniform(0.1, 2.5)
        wait_until(lambda moment=moment: time.monotonic() > moment, "the chosen moment")
        stage.nodes[victim].kill()
        stage.nodes[victim].start()
    for zone, node in stage.nodes.items():
        node.wait_ready(lambda zone=zone: stage.status(zone) is not None)
    assert fall_silent_and_compare(stage) >= FACTS_MIN


def test_a_broker_that_stands_still_and_one_that_is_killed_stop_nobody(stage: Scene) -> None:
    """While the broker is frozen, then dead, the plant goes on recording; afterwards everything is where it belongs."""
    stage.broker.freeze()
    before = stage.facts(layout.PLANT, TELEMETRY)
    wait_until(lambda: stage.facts(layout.PLANT, TELEMETRY) > before + 200, "the plant records alone", LIMIT_S)
    stage.broker.thaw()
    stage.broker.kill()
    before = stage.facts(layout.PLANT, TELEMETRY)
    wait_until(lambda: stage.facts(layout.PLANT, TELEMETRY) > before + 200, "the plant records alone", LIMIT_S)
    stage.broker.start()
    assert fall_silent_and_compare(stage) >= FACTS_MIN


def test_a_message_of_an_application_reaches_the_top(stage: Scene, bsfg: Callable[..., str]) -> None:
    """What `bsfg append` acknowledged at the plant is fetched, and confirmed, by an application of the enterprise."""
    plant, enterprise = stage.configs[layout.PLANT], stage.configs[layout.ENTERPRISE]
    bsfg("append", "--config", plant, "batch:B-7", "step_completed", '{"step":"mash"}')
    wait_until(lambda: stage.facts(layout.ENTERPRISE, OPERATIONAL) == 1, "the message at the top", LIMIT_S)
    line = json.loads(bsfg("fetch", "--config", enterprise, "--consumer", "mes"))
    assert (line["offset"], line["envelope"]["from_zone"]) == (1, layout.PLANT)
    assert line["fact"] == {"subject": "batch:B-7", "predicate": "step_completed", "object": {"step": "mash"}}
    assert "to 1" in bsfg("confirm", "--config", enterprise, "--consumer", "mes", "1")
    assert bsfg("fetch", "--config", enterprise, "--consumer", "mes") == ""


def test_status_tells_a_person_what_is_lost(stage: Scene) -> None:
    """`bsfg status` names the source that went, and goes back to good when it returns."""
    plant = layout.PLANT
    wait_until(lambda: (stage.status(plant) or {}).get("verdict") == "good", "the plant is well", LIMIT_S)
    stage.plant[1].stop()
    wait_until(lambda: (stage.status(plant) or {}).get("alert"), "an alert", LIMIT_S)
    told = text(stage.status(plant))
    assert "source boiler: not connected" in told
    stage.plant[1].start()
    wait_until(lambda: (stage.status(plant) or {}).get("verdict") == "good", "the plant is well again", LIMIT_S)


def test_every_certificate_is_renewed_under_running_zones(stage: Scene, bsfg: Callable[..., str]) -> None:
    """`bsfg pki renew` for each zone and `bsfg broker reload` for the broker: one reconnect each, no restart, nothing lost.

    `bsfg peer test` finds everything good afterwards, beside the node that runs.
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


def _broker(stage: Scene, zone: str) -> dict[str, Any]:
    """What a zone's node says of its broker."""
    (found,) = (stage.status(zone) or {"brokers": [{"connects_total": 0}]})["brokers"]
    return dict(found)

"""A real broker and real processes under faults, round after round, while samples and messages keep flowing.

Faults are drawn from a seed (`faults`). At the end, external checkers read the store files (`outside`, tested in
test_outside.py). What a node does when a fault hits it depends on the machine, so a seed repeats the faults and their
times, not the interleaving.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.demo import layout
from agent.demo.layout import OPERATIONAL, TELEMETRY
from agent.demo.scenario import RunningZones, run_zones
from tests.fact_store.making import damages
from tests.sim import first_seed, patient, scaled
from tests.system.faults import BROKER, Fault, Round, drawn, fault_table, inflict
from tests.system.outside import Producer, Seen, complaints, last_batch
from tests.system.silence import fall_silent
from tests.waiting import wait_until

pytestmark = pytest.mark.system

ROUNDS = scaled(4, 30)
LASTS_S_MAX = scaled(3, 20)  # the longest is beyond the broker's patience with a silent client
RECOVERED_S_MAX = 60.0  # a limit for "lives", far above what is seen: the figures are in the table
FACTS_MIN = 500


def wait_alive(stage: RunningZones, producer: Producer) -> float:
    """Wait until a message appended from now on, and the present samples, have arrived in the last zone. Returns how
    long that took, in s."""
    healed_s, answered = time.monotonic(), len(producer.acknowledged)
    telemetry = stage.facts(layout.PLANT, TELEMETRY)

    def arrived() -> bool:
        """An answer may belong to an earlier request."""
        assert producer.is_alive, "the producer has given up"
        if len(producer.acknowledged) < answered + 2:
            return False
        appended = producer.acknowledged[answered + 1].offset
        return (
            stage.facts(layout.ENTERPRISE, OPERATIONAL) >= appended
            and stage.facts(layout.ENTERPRISE, TELEMETRY) >= telemetry
        )

    wait_until(arrived, "a message of the plant to arrive at the top", RECOVERED_S_MAX)
    return time.monotonic() - healed_s


def wait_recorded_alone(stage: RunningZones, producer: Producer) -> None:
    """Wait until the plant has acknowledged messages and stored samples that no zone can fetch now."""
    before = (len(producer.acknowledged), stage.facts(layout.PLANT, TELEMETRY))
    wait_until(
        lambda: len(producer.acknowledged) > before[0] + 5 and stage.facts(layout.PLANT, TELEMETRY) > before[1],
        "the plant to record without a broker",
        RECOVERED_S_MAX,
    )


def go_through(stage: RunningZones, rounds: list[Round], producer: Producer) -> tuple[list[Seen], list[float]]:
    """Run every round. Returns what was seen in the plant's file before each, and how long each took to recover."""
    seen, recovered_s = list[Seen](), list[float]()

    def before_end(fault: Fault) -> None:
        if fault.victim == BROKER and stage.nodes[layout.PLANT].running:
            wait_recorded_alone(stage, producer)

    for faults in rounds:
        batches = [last_batch(stage.store(layout.PLANT), stream) for stream in layout.STREAMS]
        seen += [row for row in batches if row is not None]
        inflict(stage, faults, before_end)
        recovered_s.append(wait_alive(stage, producer))
        for zone in layout.ZONES:  # beside nodes that record, confirm and release
            assert not damages(stage.store(zone), is_quick=True), zone
    return seen, recovered_s


@patient
def test_three_zones_and_a_broker_under_faults(tmp_path: Path, bsfg: Callable[..., str]) -> None:
    """kill -9 and SIGSTOP of nodes and broker, alone and two at once: every acknowledged fact is in every zone, once,
    in order, in a whole chain without a gap; the plant records while it is cut off, and after each round a new fact
    gets through."""
    rounds = drawn(first_seed(), ROUNDS, LASTS_S_MAX)
    state = tmp_path / layout.PLANT / "state"
    with run_zones(tmp_path, keep=False) as stage:
        with Producer(state, layout.PLANT, layout.ENTERPRISE, OPERATIONAL) as producer:
            wait_alive(stage, producer)
            seen, recovered_s = go_through(stage, rounds, producer)
        facts = fall_silent(stage)
        for config in stage.configs.values():
            assert "as they were written" in bsfg("store", "verify", "--config", config)
    paths = {zone: stage.store(zone) for zone in layout.ZONES}
    assert complaints(paths, layout.STREAMS, seen, {OPERATIONAL: producer.acknowledged}) == []
    print(fault_table(rounds, recovered_s))
    print(
        f"{len(rounds)} rounds, {facts} samples, {len(producer.acknowledged)} messages acknowledged,"
        f" {producer.answers_lost} of them by a second answer: in every zone, once"
    )
    assert facts >= FACTS_MIN
    assert len(producer.acknowledged) > 10 * len(rounds), "too little flowed to prove anything"

"""Hunts for schedules that break a promise: fresh seeds one after the other, and it goes on after a failure.

    nice -n 10 python -m tests.replication.simulation.hunt --minutes 30 restored_grown serving_twin

Faults are named after the options; none means all. Each failure is one line that names topology, fault and seed; a line
of figures follows each thousand schedules and the last. A failure replays with `--only diamond:serving_twin:20002098`.
"""

import argparse
import gc
import logging
import random
import shutil
import time
from collections import Counter
from pathlib import Path

from tests.replication.simulation.checkers import Violation
from tests.replication.simulation.faults import NAMED
from tests.replication.simulation.network import TOPOLOGIES, World
from tests.replication.simulation.values import ValueJudge
from tests.support.memory import memory_folder

COLLECT_EVERY = 100
REPORT_EVERY = 200


def run_schedule(topology: str, fault: str, seed: int, folder: Path, values: ValueJudge | None = None) -> str:
    """Run one schedule; returns what it violated, or nothing."""
    try:
        World(seed, TOPOLOGIES[topology], NAMED[fault], folder, values=values).run()
    except Violation as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever a part of the product raises is what this looks for
        return f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return ""


def main() -> None:
    """Run schedules until the time is over, or the named one."""
    parser = argparse.ArgumentParser(description="Runs schedules of the simulation with fresh seeds.")
    parser.add_argument("fault", nargs="*", choices=[[], *NAMED], help="faults to hunt under (default: all)")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--first", type=int, default=random.SystemRandom().randrange(2**32), help="the first seed")
    parser.add_argument("--topology", action="append", choices=TOPOLOGIES, help="topologies to hunt in (default: all)")
    parser.add_argument("--only", help="one schedule: topology:fault:seed")
    parser.add_argument("--values", action="store_true", help="also judge by the values of facts, and count by fault")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    gc.disable()
    with memory_folder() as folder:
        if asked.only:
            topology, fault, seed = asked.only.split(":")
            values = ValueJudge() if asked.values else None
            print(run_schedule(topology, fault, int(seed), folder / seed, values) or "ok")
            for kind, example in (values.examples if values else {}).items():
                print(f"  {kind}: {example}")
            return
        names = asked.fault or NAMED
        pairs = [(topology, fault) for topology in asked.topology or TOPOLOGIES for fault in names]
        until_s, begun_s = time.monotonic() + asked.minutes * 60, time.process_time()
        failed, seed = Counter[str](), asked.first
        while time.monotonic() < until_s:
            topology, fault = pairs[seed % len(pairs)]
            values = ValueJudge() if asked.values else None
            if why := run_schedule(topology, fault, seed, folder / str(seed), values):
                failed[why.split(":")[0]] += 1
                print(f"{topology}:{fault}:{seed} {why}", flush=True)
            for kind, example in (values.examples if values else {}).items():
                failed[f"value {kind}"] += 1
                print(f"{topology}:{fault}:{seed} value {kind}: {example}", flush=True)
            seed += 1
            if seed % COLLECT_EVERY == 0:
                gc.collect()
            if (count := seed - asked.first) % REPORT_EVERY == 0 or time.monotonic() >= until_s:
                rate = count / (time.process_time() - begun_s)
                print(
                    f"{count:,} from seed {asked.first}, {rate:.1f} a second of CPU, failed: {dict(failed)}", flush=True
                )


if __name__ == "__main__":
    main()

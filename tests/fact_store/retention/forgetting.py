"""A process made to be killed while it forgets: appends, confirms, and keeps nothing that is confirmed.

    python -m tests.fact_store.retention.forgetting STORE

It says `S <offset>` for each acknowledged append and `C <offset>` before it confirms: what lies beyond may not go.
"""

import random
import sys
from pathlib import Path

from agent.fact_store import FactStore
from agent.message import Sample
from agent.settings.store import StoreSettings, StreamSettings
from tests.fact_store.durability.promises import say
from tests.fact_store.making import TELEMETRY, done, tag

CONSUMER = "idmz.facts.telemetry"
SETTINGS = StoreSettings(commit_interval_ms=0, disk_free_bytes_min=0, ballast_bytes=0)
STREAMS = (StreamSettings(TELEMETRY, keep_hours=0),)
RUN = 5


def run_of(first: int) -> list[Sample]:
    """Samples whose values begin with their offsets, large enough that pages are freed and reused."""
    noise = random.Random(first).randbytes(600).hex()
    return [Sample(1, offset * 1_000_000, f"{offset} {noise}", 0) for offset in range(first, first + RUN)]


def main() -> None:
    """Append and forget until killed."""
    store, rng = FactStore.open(Path(sys.argv[1]), "plant", settings=SETTINGS, streams=STREAMS), random.Random()
    done(store.appends.define([tag(1)]))
    done(store.consumers.register(CONSUMER, "idmz", TELEMETRY))
    while True:
        for _ in range(rng.randint(1, 60)):
            say("S", done(store.appends.append_samples(TELEMETRY, run_of(store.end_offset(TELEMETRY) + 1)))[1])
        known = store.consumers.get(CONSUMER)
        assert known is not None
        until = rng.randint(known.frontier, store.end_offset(TELEMETRY))
        say("C", until)
        done(store.consumers.confirm(CONSUMER, until))


if __name__ == "__main__":
    main()

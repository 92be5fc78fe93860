"""A process made to fill its disk: appends until the store says that it is full, tells that too, and tries on until it
is killed.

python -m tests.fact_store.filled STORE
"""

import random
import sys
from itertools import count
from pathlib import Path

from agent.errors import StoreFull
from agent.fact_store import FactStore
from agent.fact_store.retention import housekeeping
from agent.message import Sample
from agent.positions import Position
from agent.settings.store import StoreSettings
from tests.fact_store.durability.promises import NORTH, RUN, origin_of_north, say
from tests.fact_store.making import LIFE, OPERATIONAL, TELEMETRY, done, message, parsed, samples, tag
from tests.support.received import put_page
from tests.waiting import wait_until

CONSUMER = "idmz.facts.telemetry"
SETTINGS = StoreSettings(commit_interval_ms=0, disk_free_bytes_min=1024 * 1024, ballast_bytes=512 * 1024)


def noise(first: int) -> list[Sample]:
    """Samples that do not compress, so that a disk fills in few commits; a value begins with its number."""
    rng = random.Random(first)
    return [row._replace(value=f"{row.value} {rng.randbytes(1500).hex()}") for row in samples(RUN, first)]


def main() -> None:
    """Fill it, once the store has made its ballast. It checks its disk a hundred times as often as on a disk of a
    useful size."""
    housekeeping.LOOK_EVERY_NS //= 100
    store, north, messages = FactStore.open(Path(sys.argv[1]), "plant", settings=SETTINGS), origin_of_north(), count(1)
    done(store.appends.define([tag(1)]))
    say("D", 1)
    done(store.consumers.register(CONSUMER, "idmz", TELEMETRY))
    say("R", CONSUMER)
    wait_until(Path(f"{store.path}.ballast").exists, "the ballast")
    for batches in range(1, 4):
        page, position = [north.seal(RUN)], Position(LIFE, batches)
        done(put_page(store, "north", NORTH, parsed(page), north.received(), position))
        say("P", batches)
    first, number = 1, next(messages)
    while True:
        try:
            done(store.appends.append_samples(TELEMETRY, noise(first)))
            first += RUN
            say("S", first - 1)
            done(store.appends.append_message(OPERATIONAL, message(f"id-{number}")))
            say("M", number)
            number = next(messages)
        except StoreFull:
            say("E", "StoreFull")


if __name__ == "__main__":
    main()

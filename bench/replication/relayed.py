"""A zone behind a relay that holds the facts of many zones: how long until it is level, and what a fact costs.

    python -m bench.replication.relayed --zones 1000 --tags 100 --batches 3

Each zone has its own tags. The relay's store is filled before; both nodes and the broker are real. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from functools import reduce
from itertools import count
from pathlib import Path
from typing import Any

from agent.batch import Definitions, Origin, seal_samples
from agent.batch import Link as Chain
from agent.fact_store import FactStore
from agent.message import TagDefinition
from agent.pages import DefinitionChain, ReceivedPage
from agent.positions import Position
from bench.common.measuring import rounded
from bench.common.testbed import ASKING, SERVING, Testbed, open_testbed
from bench.replication.endpoints import STREAM

START_NS = 1_700_000_000_000_000_000
ZONES_OF_PAGE = 500


def fill(file: Path, zones: int, tags: int, batches: int) -> int:
    """A relay's store with batches of many zones, as they come in turns; returns the number of facts."""
    chains, links, times = dict[str, DefinitionChain](), dict[str, Chain](), count(START_NS, 1_000_000)
    for number in range(zones):
        zone = f"zone-{number:04}"
        bodies = [TagDefinition(f"tag:{zone}/line/t{tag:03}", source="bench").to_json() for tag in range(tags)]
        chains[zone] = DefinitionChain(zone, reduce(Definitions.extended, bodies, Definitions()), Definitions(), bodies)
        links[zone] = Chain(STREAM, Origin(zone, number.to_bytes(16)))
    with closing(FactStore.open(file, SERVING)) as store:
        store.inbound.put_definitions(SERVING, list(chains.values())).result()
        names = [zone for _ in range(batches) for zone in chains]
        for at in range(0, len(names), ZONES_OF_PAGE):
            page = []
            for zone in names[at : at + ZONES_OF_PAGE]:
                time_ns = next(times)
                rows = [(tag, time_ns + tag, float(tag), 0) for tag in range(1, tags + 1)]
                page.append(seal_samples(links[zone], rows, chains[zone].wanted))
                links[zone] = page[-1].link
            position = Position(bytes(16), (at + len(page)) * tags)
            store.inbound.put_page(ReceivedPage("above", STREAM, page, [position])).result()
        return store.end_offset(STREAM)


def measure(bed: Testbed, zones: int, tags: int, batches: int) -> dict[str, Any]:
    """One pass over an empty store."""
    source, target = (bed.folder / name / "facts.db" for name in ("relay", "enterprise"))
    for file in (source, target):
        file.parent.mkdir()
    facts = fill(source, zones, tags, batches)
    origins = [f"zone-{number:04}" for number in range(zones)]
    with (
        bed.worker("serve", "serve", SERVING, file=source, asking=ASKING, until=facts) as serving,
        bed.worker("pull", "pull", ASKING, file=target, origins=origins) as pulling,
    ):
        sender = serving.result_with(pulling)
        receiver = pulling.ended()
    return {
        "zones": zones,
        "facts": facts,
        "level_s": rounded((sender["confirmed_ns"] - receiver["started_ns"]) / 1e9),
        "request_bytes_per_fact": rounded(receiver["sent_bytes"] / facts),
        "answer_bytes_per_fact": rounded(receiver["received_bytes"] / facts),
        "receiver_us_per_fact": rounded(receiver["cpu_ns"] / facts / 1000),
        "sender_us_per_fact": rounded(sender["cpu_ns"] / facts / 1000),
        "pages": receiver["pages"],
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("zones", 1000), ("tags", 100), ("batches", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    with open_testbed(None) as bed:
        print(json.dumps(measure(bed, asked.zones, asked.tags, asked.batches), indent=1))


if __name__ == "__main__":
    main()

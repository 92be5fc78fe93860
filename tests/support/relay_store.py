"""The store of a relay that has two or three of everything, for tests of what reads a store.

Two plants with the same tag names, the first with two gateways, two streams, an interval of each plant in turn; three
consumers of one stream at different offsets and one of the other; and two holes: facts that all have confirmed and the
store has released, and a batch that the disk has damaged. A test that needs less says so.

    facts.telemetry   1-7 released | 8-12 a | 13-14 b damaged | 15-20 a, its second gateway | 21-24 b
    facts.alarms      1-2 b | 3-5 a | 6 b

Both tags of a plant are in the first stream, and its second one also in the other, where it is newer. The second
gateway has numbered them in the other order. The value of a sample counts those of its plant and stream.
"""

from collections import Counter
from pathlib import Path

from agent.batch import Link, Origin, parse, seal_samples, verify
from agent.fact_store import FactStore
from agent.message import Sample, TagDefinition
from agent.pages import Hole
from agent.positions import Position
from agent.settings.store import StoreSettings, StreamSettings
from tests.fact_store.making import damage
from tests.support.received import chain_of, put_page
from tests.waiting import wait_until

TELEMETRY, ALARMS = ("facts.telemetry", "facts.alarms")
PLANTS = {
    "plant-a": Origin("plant-a", b"plant-a".ljust(16, b".")),
    "plant-a-2": Origin("plant-a", b"plant-a/2".ljust(16, b".")),
    "plant-b": Origin("plant-b", b"plant-b".ljust(16, b".")),
}
"""By gateway. The second one of plant-a has the higher life."""
RUNS = {
    TELEMETRY: (("plant-a", 4), ("plant-b", 3), ("plant-a", 5), ("plant-b", 2), ("plant-a-2", 6), ("plant-b", 4)),
    ALARMS: (("plant-b", 2), ("plant-a", 3), ("plant-b", 1)),
}
FRONTIERS = {
    "enterprise.facts.telemetry": ("enterprise", TELEMETRY, 20),
    "local.mes": ("local", TELEMETRY, 9),
    "spark.facts.telemetry": ("spark", TELEMETRY, 14),
    "enterprise.facts.alarms": ("enterprise", ALARMS, 2),
}
"""Zone, stream and frontier by consumer."""
HOLES = (Hole(1, 7, "expired"), Hole(13, 14, "damaged"))
TAGS = {"plant-a": [TagDefinition("tag:line1/flow", unit="l/min"), TagDefinition("tag:line1/temp", unit="degC")]}
TAGS |= {
    "plant-a-2": TAGS["plant-a"][::-1],
    "plant-b": [TagDefinition("tag:line1/temp", unit="K"), TagDefinition("tag:line2/level", unit="m")],
}
BASE_NS, MINUTE_NS = 1_790_000_000_000_000_000, 60_000_000_000
SETTINGS = StoreSettings(commit_interval_ms=0, ballast_bytes=65_536)


def sample(stream: str, number: int) -> Sample:
    """A fact of any plant, with the number of its tag at the first gateway."""
    tag = 2 if stream == ALARMS else 1 + number % 2
    return Sample(tag, BASE_NS + (number + 100 * (stream == ALARMS)) * MINUTE_NS, float(number))


def placed(stream: str) -> list[tuple[int, str, int]]:
    """Offset, zone and number of each fact that is there, in order of offsets."""
    found, numbers = list[tuple[int, str, int]](), Counter[str]()
    for node, count in RUNS[stream]:
        zone = PLANTS[node].zone
        for _ in range(count):
            numbers[zone] += 1
            found.append((len(found) + 1, zone, numbers[zone]))
    gone = [range(hole.first_offset, hole.last_offset + 1) for hole in HOLES if stream == TELEMETRY]
    return [fact for fact in found if not any(fact[0] in some for some in gone)]


def opened(file: Path, **more: object) -> FactStore:
    """The store, opened for writing; telemetry that all have confirmed is released at once."""
    streams = [StreamSettings(TELEMETRY, keep_hours=0)]
    return FactStore.open(file, "idmz", settings=SETTINGS, streams=streams, **more)  # type: ignore[arg-type]


def relay_store(folder: Path, *, is_holed: bool = True) -> Path:
    """The file of the store, which is closed."""
    folder.mkdir(exist_ok=True)
    file = folder / "facts.db"
    with opened(file) as store:
        for name, (zone, stream, _) in FRONTIERS.items():
            store.consumers.register(name, zone, stream).result()
        for stream, runs in RUNS.items():
            _receive(store, stream, runs)
        if is_holed:
            for name, (_, _, frontier) in FRONTIERS.items():
                store.consumers.confirm(name, frontier).result()
            released = HOLES[0].last_offset
            wait_until(lambda: store.reader.bounds()[TELEMETRY][0] == released + 1, "the release")
    if is_holed:
        damage(file, HOLES[1].first_offset)
    return file


def _receive(store: FactStore, stream: str, runs: tuple[tuple[str, int], ...]) -> None:
    """Pull these batches from their gateways, each of which continues its own chain."""
    links = {node: Link(stream, origin) for node, origin in PLANTS.items()}
    numbers = Counter[str]()
    for node, count in runs:
        zone, definitions = PLANTS[node].zone, TAGS[node]
        received = chain_of(zone, [tag.to_json() for tag in definitions])
        samples = [sample(stream, numbers[zone] + n) for n in range(1, count + 1)]
        samples = [row._replace(tag=1 + definitions.index(TAGS[zone][row.tag - 1])) for row in samples]
        batch = parse(seal_samples(links[node], samples, received.wanted).sealed)
        verify(batch)
        links[node] = batch.link
        numbers[zone] += count
        position = Position(PLANTS[node].life, batch.header.last_sequence)
        put_page(store, node, stream, [batch], [received], position).result()

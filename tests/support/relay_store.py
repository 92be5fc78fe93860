"""The store of a relay that has two or three of everything, for tests of what reads a store.

Two plants with the same tag names, two streams, an interval of each plant in turn; three consumers of one stream at
different offsets and one of the other; and two holes: facts that all have confirmed and the store has released, and a
batch that the disk has damaged. A test that needs less says so.

    facts.telemetry   1-7 released | 8-12 a | 13-14 b damaged | 15-20 a | 21-24 b
    facts.alarms      1-2 b | 3-5 a | 6 b

Both tags of a plant are in the first stream, and its second one also in the other, where it is newer. The value of a
sample is its sequence.
"""

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
PLANTS = {zone: Origin(zone, zone.encode().ljust(16, b".")) for zone in ("plant-a", "plant-b")}
RUNS = {
    TELEMETRY: (("plant-a", 4), ("plant-b", 3), ("plant-a", 5), ("plant-b", 2), ("plant-a", 6), ("plant-b", 4)),
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
TAGS["plant-b"] = [TagDefinition("tag:line1/temp", unit="K"), TagDefinition("tag:line2/level", unit="m")]
BASE_NS, MINUTE_NS = 1_790_000_000_000_000_000, 60_000_000_000
SETTINGS = StoreSettings(commit_interval_ms=0, ballast_bytes=65_536)


def sample(stream: str, sequence: int) -> Sample:
    """The fact of this sequence, of any plant."""
    tag = 2 if stream == ALARMS else 1 + sequence % 2
    return Sample(tag, BASE_NS + (sequence + 100 * (stream == ALARMS)) * MINUTE_NS, float(sequence))


def placed(stream: str) -> list[tuple[int, str, int]]:
    """Offset, zone and sequence of each fact that is there, in order of offsets."""
    found, sequences = list[tuple[int, str, int]](), dict.fromkeys(PLANTS, 0)
    for zone, count in RUNS[stream]:
        for _ in range(count):
            sequences[zone] += 1
            found.append((len(found) + 1, zone, sequences[zone]))
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
    """Pull these batches from their plants, each of which continues its own chain."""
    links = {zone: Link(stream, origin) for zone, origin in PLANTS.items()}
    for zone, count in runs:
        received = chain_of(zone, [tag.to_json() for tag in TAGS[zone]])
        first = links[zone].next_sequence
        sealed = seal_samples(links[zone], [sample(stream, first + n) for n in range(count)], received.wanted).sealed
        batch = parse(sealed)
        verify(batch)
        links[zone] = batch.link
        position = Position(PLANTS[zone].life, batch.header.last_sequence)
        put_page(store, zone, stream, [batch], [received], position).result()

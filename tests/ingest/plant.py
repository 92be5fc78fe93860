"""Sources of the simulated plant, and ingest at work on them."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from agent.concurrency import TaskGroup
from agent.demo.plant.tags import modbus_tags_csv, opcua_tags_csv
from agent.file_watch import PATIENT, WatchTimes
from agent.ingest import Ingest, IngestPorts, SourceStatistics, Span
from agent.ingest.lifecycle import State
from agent.ingest.ports import FindRemoved, StoredFacts
from agent.ingest.tags.file import load_tag_maps
from agent.settings.sources import ModbusSourceSettings, OpcuaSourceSettings, SourceSettings
from tests.ingest.fakes import FakeStore
from tests.waiting import wait_until_async

QUICK = {"reconnect_delay_ms": 50, "reconnect_delay_max_ms": 200}


def opcua(
    port: int, folder: Path, tags: str | None = None, *, name: str = "plc", **settings: object
) -> OpcuaSourceSettings:
    """A quick OPC UA source with the plant's tags, or these."""
    file = folder / f"{name}.csv"
    file.write_text(opcua_tags_csv() if tags is None else tags)
    quick: dict[str, object] = {
        "security_policy": "None",
        "security_mode": "None",
        "insecure": True,
        "publishing_interval_ms": 100,
        "sampling_interval_ms": 50,
        "parked_retry_ms": 200,
        "liveness_timeout_ms": 3000,
        "request_timeout_ms": 5000,  # on a machine that may do much else
        **QUICK,
    }
    url = f"opc.tcp://127.0.0.1:{port}/plant"
    return OpcuaSourceSettings(name, url, file, **{**quick, **settings})  # type: ignore[arg-type]


def modbus(port: int, folder: Path, tags: str | None = None, **settings: object) -> ModbusSourceSettings:
    """A quick Modbus source with the plant's tags, or these."""
    file = folder / "modbus.csv"
    file.write_text(modbus_tags_csv() if tags is None else tags)
    quick = {"poll_interval_ms": 100, "timeout_ms": 300, "unit_retry_ms": 100, "unit_retry_max_ms": 400, **QUICK}
    return ModbusSourceSettings("meter", file, 0, **{"host": "127.0.0.1", "port": port, **quick, **settings})  # type: ignore[arg-type]


class Running:
    """Ingest at work."""

    def __init__(self, ingest: Ingest, store: FakeStore) -> None:
        self.ingest, self.store = ingest, store

    def source(self, name: str) -> SourceStatistics:
        """The statistics of one source."""
        return next(found for found in self.ingest.statistics() if found.name == name)

    async def wait_good(self, tag: str, more_than: int = 0) -> None:
        """Until a tag has more good samples than these."""
        await wait_until_async(lambda: len(self.store.good(tag)) > more_than, f"more than {more_than} values of {tag}")

    async def wait_more(self, tag: str, more_than: int) -> None:
        """Until a tag has more further good samples than these."""
        await self.wait_good(tag, len(self.store.good(tag)) + more_than)

    async def wait_state(self, name: str, state: State) -> None:
        """Until a source is in a state."""
        await wait_until_async(lambda: self.source(name).state is state, f"{name} {state.value}")

    async def wait_bad(self, tag: str, quality: int) -> None:
        """Until a tag's last sample is this bad."""
        await wait_until_async(
            lambda: [s.quality for s in self.store.of(tag)][-1:] == [quality], f"{tag} 0x{quality:X}"
        )


@asynccontextmanager
async def ingesting(
    *sources: SourceSettings,
    store: FakeStore | None = None,
    times: WatchTimes = PATIENT,
    stored: StoredFacts | None = None,
    find_removed: FindRemoved | None = None,
    doubted: Callable[[], Sequence[Span]] = tuple,
    is_recording: bool = True,
) -> AsyncIterator[Running]:
    """Ingest of these sources into a fake store for the length of a block; stopped in order at its end. What it has
    recorded of a tag `y` it has recorded at the same times of the tag `x` before it."""
    kept = store or FakeStore()
    ports = IngestPorts(kept, stored, find_removed, doubted=doubted)
    ingest = Ingest("plant-a", sources, load_tag_maps(sources), ports, watch_times=times, is_recording=is_recording)
    async with TaskGroup() as group:
        group.create_task(ingest.run(), name="ingest")
        try:
            yield Running(ingest, kept)
        finally:
            ingest.stop()
    assert {found.state for found in ingest.statistics()} == {State.STOPPED}
    for tag in {definition.subject.removeprefix("tag:") for definition in kept.definitions}:
        if tag.endswith("/y"):
            first, second = (
                [(sample.source_time_ns, sample.quality) for sample in kept.of(name)]
                for name in (tag.removesuffix("y") + "x", tag)
            )
            assert second == first, tag

"""Sources of foreign servers, and ingest at work on them, into a real store."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

from agent.columns import SampleColumns
from agent.fact_store import FactStore, StoreReader
from agent.file_watch import WatchTimes
from agent.ingest.completeness import Stored
from agent.message import Message, TagDefinition
from agent.node.stored_samples import StoredSamples
from agent.pages import Hole
from agent.query.scan import fact_messages
from agent.settings.sources import OpcuaSourceSettings
from tests.foreign.server import ForeignServer
from tests.ingest.fakes import FakeStore
from tests.ingest.plant import Running, ingesting

# Quick where the product is patient. Sampling 0 asks for every change, so that nothing is missing but what was lost.
QUICK: dict[str, object] = {
    "security_policy": "None",
    "security_mode": "None",
    "insecure": True,
    "publishing_interval_ms": 100,
    "sampling_interval_ms": 0,
    "queue_size": 200,
    "parked_retry_ms": 200,
    "liveness_timeout_ms": 3000,
    "request_timeout_ms": 5000,
    "reconnect_delay_ms": 50,
    "reconnect_delay_max_ms": 200,
}
FACTS_MAX = 1_000_000


def opcua(
    server: ForeignServer, folder: Path, *names: str, tags: str | None = None, **settings: object
) -> OpcuaSourceSettings:
    """A quick source of these variables (tag `f/<name>`), or of a tag map."""
    file = folder / "plc.csv"
    file.write_text(server.tags(*names) if tags is None else tags)
    return OpcuaSourceSettings("plc", server.url, file, **{**QUICK, **settings})  # type: ignore[arg-type]


def signing(certificate: Path | str, key: Path | str, policy: str = "Basic256Sha256") -> dict[str, object]:
    """Settings of a source that signs and encrypts as the owner of this certificate."""
    files = {"certificate_file": certificate, "private_key_file": key}
    return {"security_policy": policy, "security_mode": "SignAndEncrypt", "insecure": False, **files}


class TappedStore(FakeStore):
    """A real store, and what was appended to it, for a test that waits for something to be there."""

    def __init__(self, store: FactStore) -> None:
        super().__init__()
        self._appends = store.appends
        self.reader = store.reader
        self._good: Counter[int] = Counter()

    def good_count(self, tag: str) -> int:
        """How many good samples of a tag have come live, by its scope/id, under whatever number."""
        return sum(
            self._good[number]
            for number, definition in enumerate(self.definitions, 1)
            if definition.subject == f"tag:{tag}" and not definition.acquisition
        )

    def define(self, definitions: Sequence[TagDefinition]) -> Future[list[int]]:
        real = self._appends.define(definitions)
        for number, definition in zip(real.result(), definitions, strict=True):
            missing = number - len(self.definitions)
            self.definitions += [TagDefinition("tag:of/an/earlier/process")] * missing
            self.definitions[number - 1] = definition
        return real

    def append_columns(self, stream: str, columns: SampleColumns) -> Future[Any]:
        real = self._appends.append_columns(stream, columns)
        super().append_columns(stream, columns)
        self._good.update(row.tag for row in columns.rows() if row.quality == 0)
        return real

    def set_completeness(self, source: str, parts: Mapping[str, Stored | None]) -> Future[Any]:
        return self._appends.set_completeness(source, parts)

    def append_message(self, stream: str, message: Message) -> Future[Any]:
        real = self._appends.append_message(stream, message)
        super().append_message(stream, message)
        return real


@contextmanager
def real_store(folder: Path) -> Iterator[TappedStore]:
    """A store of zone plant-a at `folder`/facts.db."""
    with FactStore.open(folder / "facts.db", "plant-a") as store:
        yield TappedStore(store)


SWIFT = WatchTimes(settle_s=0.02, settle_max_s=0.2, missing_s=0.5, reread_s=60.0)


@asynccontextmanager
async def storing(source: OpcuaSourceSettings, folder: Path) -> AsyncIterator[Running]:
    """Ingest of a source into the real store of a folder for the length of a block; everything is committed then."""
    with real_store(folder) as store:
        stored = StoredSamples(store.reader)
        async with ingesting(source, store=store, stored=stored, times=SWIFT) as run:
            yield run


def facts(folder: Path, stream: str) -> list[dict[str, Any]]:
    """Every fact of a stream in the store of a folder: subject, predicate, object."""
    with closing(StoreReader(folder / "facts.db")) as reader:
        if stream not in {found.name for found in reader.streams()}:
            return []
        found = list(fact_messages(reader, stream, 0, FACTS_MAX))
    assert not [hole for hole in found if isinstance(hole, Hole)]
    return [row["fact"] for row in found if not isinstance(row, Hole)]


class NodeProcess:
    """A node with one source, as its users run it."""

    def __init__(self, folder: Path, config: Path) -> None:
        self._folder, self._config = folder, config
        self.ends_by = signal.SIGTERM

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of this name in the node's log."""
        lines = (self._folder / "node.log").read_text().splitlines(keepends=True)
        found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}\n")]
        return [line for line in found if line["event"] == name]

    async def bsfg(self, *arguments: str) -> tuple[int, str]:
        """Run a command at the node; its exit status and what it printed."""
        command = bsfg_command(*arguments, "--config", self._config)
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
        output, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, output.decode()


def bsfg_command(*arguments: object) -> list[str]:
    """The command line of `bsfg`."""
    return [sys.executable, "-m", "agent.cli", *map(str, arguments)]


@asynccontextmanager
async def running_node(
    server: ForeignServer, folder: Path, *names: str, **settings: object
) -> AsyncIterator[NodeProcess]:
    """A node in a process of its own, with these variables of the server as tags, for the length of a block."""
    source = opcua(server, folder, *names)
    told = {"name": source.name, "url": source.url, "tags_file": str(source.tags_file), **QUICK, **settings}
    async with source_node(folder, "opcua", told) as node:
        yield node


def section(kind: str, **settings: object) -> str:
    """One section of node.toml."""
    return f"\n[[{kind}]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())


@asynccontextmanager
async def source_node(
    folder: Path, kind: str, *sources: Mapping[str, object], more: str = ""
) -> AsyncIterator[NodeProcess]:
    """A node in a process of its own, with sources of these settings and `more` sections, for the length of a block.
    Its state stays in `folder`, its log is of its last life."""
    config = folder / "node.toml"
    text = f'[node]\nzone = "plant-a"\nstate_dir = {json.dumps(str(folder / "state"))}\n\n{more}'
    config.write_text(text + "".join(section(kind, **told) for told in sources))
    with (folder / "node.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*bsfg_command("run", "--config", config), stderr=log)
    node = NodeProcess(folder, config)
    try:
        yield node
    finally:
        assert process.returncode is None, f"the node ended by itself:\n{(folder / 'node.log').read_text()[-2000:]}"
        process.send_signal(node.ends_by)
        await process.wait()

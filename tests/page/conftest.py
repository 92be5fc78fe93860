"""Zones with health in a real store, and the page over it in this process, asked without a socket."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from agent.client import AsyncClient, NodeSilent
from agent.columns import SampleColumns
from agent.fact_store import FactStore
from agent.health.brief import encode_health
from agent.health.samples import health_samples
from agent.health.snapshot import NodeSnapshot
from agent.health.verdict import assess
from agent.message import HEALTH_STREAM, Sample, TagDefinition
from agent.page import watch as watch_module
from agent.page.app import make_app
from agent.page.watch import Watch
from agent.settings.node import IdentitySettings
from tests.fact_store.making import AT_ONCE
from tests.health.conftest import NOW_MS, healthy

__all__ = ["healthy"]

EVIL = '<script>alert("x")</script>&"\''


def record_health(store: FactStore, snapshot: NodeSnapshot) -> None:
    """Append the health of a snapshot as its node would."""
    samples = health_samples(snapshot, assess(snapshot))
    numbers = store.appends.define([sample.definition for sample in samples]).result()
    columns = SampleColumns(
        numbers,
        [snapshot.taken_unix_ms * 1_000_000] * len(samples),
        [sample.value for sample in samples],
        [sample.quality for sample in samples],
    )
    store.appends.append_columns(HEALTH_STREAM, columns).result()


@contextmanager
def store_with(folder: Path, *snapshots: NodeSnapshot) -> Iterator[FactStore]:
    """A store that holds the health of its own zone at some moments."""
    (folder / "state").mkdir(exist_ok=True)
    with FactStore.open(folder / "state" / "facts.db", snapshots[0].zone, settings=AT_ONCE) as store:
        for snapshot in snapshots:
            record_health(store, snapshot)
        yield store


def at(snapshot: NodeSnapshot, ms: int, **changed: Any) -> NodeSnapshot:
    """The snapshot at another time."""
    return replace(snapshot, taken_unix_ms=NOW_MS + ms, **changed)


class Site:
    """A page over a store, and the node that it asks: its snapshot, or None while it is dead."""

    store: FactStore

    def __init__(self, folder: Path) -> None:
        self.watch = Watch(IdentitySettings("idmz", folder / "state"))
        self.snapshot: NodeSnapshot | None = None
        self.app: Starlette = make_app(self.watch, ["localhost"])

    async def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
        """Status, headers and body of an answer."""
        return await ask(self.app, path, **headers)


async def ask(app: Starlette, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    """One request to an application."""
    sent: list[Any] = []
    path, _, query = path.partition("?")
    named = {"host": "localhost:8470", **headers}
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(name.encode(), text.encode()) for name, text in named.items()], "client": None,
        "server": ("localhost", 80),
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    body = b"".join(part.get("body", b"") for part in sent[1:])
    found = {name.decode(): text.decode() for name, text in sent[0]["headers"]}
    return sent[0]["status"], found, (gzip.decompress(body) if "content-encoding" in found else body).decode()


@pytest.fixture
def site(tmp_path: Path, healthy: NodeSnapshot, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A page over a store with the health of its node."""
    made = Site(tmp_path)
    made.snapshot = at(healthy, 0)

    async def read_status(_: AsyncClient, *, everything: bool) -> bytes:
        if made.snapshot is None:
            raise NodeSilent("no node runs")
        return encode_health(made.snapshot, assess(made.snapshot), everything=everything)

    monkeypatch.setattr(AsyncClient, "status_json", read_status)
    monkeypatch.setattr(watch_module, "_now_ms", lambda: NOW_MS + 1000)
    with store_with(tmp_path, made.snapshot) as store:
        made.store = store
        subjects = [("tag:press/<b>force", ""), ("tag:press/speed", "rpm")]
        numbers = store.appends.define([TagDefinition(name, unit=unit, source="press") for name, unit in subjects])
        samples = [Sample(n, NOW_MS * 10**6, value) for n, value in zip(numbers.result(), (EVIL, 7.5), strict=True)]
        store.appends.append_samples("facts.telemetry", samples).result()
        yield made
    made.watch.facts.close()

"""Finds tags that were removed while the node was down, with real stores."""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing
from pathlib import Path

import pytest

from agent.config import ConfigFile
from agent.fact_store import FactStore, StoreReader
from agent.ingest import TAG_REMOVED, RemovedTag
from agent.local_socket.serving import open_store
from agent.message import Sample, TagDefinition
from agent.node.node import Node
from agent.node.removed_tags import find_removed_tags
from agent.node.start import Start
from agent.query.latest import find_latest
from agent.query.scan import Scanner
from agent.settings.node import IdentitySettings, NodeSettings
from tests.waiting import wait_until_async

S = 1_000_000_000
STREAM, OTHER = "facts.telemetry", "facts.other"


def defined(store: FactStore, *names: str, **more: str) -> list[int]:
    """The numbers of tags of the source plc."""
    return store.appends.define([TagDefinition(f"tag:{name}", source="plc", **more) for name in names]).result()


def test_tags_that_no_file_names_and_that_are_in_service(store: FactStore) -> None:
    """Removed tags are found with the stream and the number of their newest sample, whatever numbers and streams they
    have had, and up to when their source was complete by a clock that was believed. Not found: tags in a file, tags out
    of service, values from history, and tags without a source."""
    kept, gone, retired, moved = defined(store, "l/kept", "l/gone", "l/retired", "l/moved")
    (renumbered,) = defined(store, "l/moved", unit="V")
    (late,) = defined(store, "l/gone", acquisition="history")
    (foreign,) = store.appends.define([TagDefinition("tag:l/foreign")]).result()
    store.appends.set_completeness("plc", {"": (99 * S, None), "believed": (9 * S, None)}).result()
    for stream, rows in (
        (STREAM, [Sample(n, 10 * S, 1.0) for n in (kept, gone, retired, moved, foreign)]),
        (STREAM, [Sample(retired, 20 * S, None, TAG_REMOVED), Sample(late, 15 * S, 0.5)]),
        (OTHER, [Sample(renumbered, 30 * S, 2.0)]),
    ):
        store.appends.append_samples(stream, rows).result()
    assert find_removed_tags(store.reader, {"tag:l/kept": {"plc"}}) == [
        RemovedTag(STREAM, gone, "tag:l/gone", 10 * S, "plc", 9 * S),
        RemovedTag(OTHER, renumbered, "tag:l/moved", 30 * S, "plc", 9 * S),
    ]
    assert find_removed_tags(store.reader, {f"tag:l/{n}": {"x", "plc"} for n in ("kept", "gone", "moved")}) == []


def test_a_tag_that_another_source_reads_now_has_left_its_own(store: FactStore) -> None:
    """Until that one has recorded it, also if it did so before."""
    gone, back = defined(store, "l/gone", "l/back")
    others = store.appends.define([TagDefinition(f"tag:l/{n}", source="new") for n in ("gone", "back")]).result()
    rows = [Sample(others[1], S, 1.0), Sample(back, 2 * S, 1.0), Sample(gone, 3 * S, 1.0)]
    store.appends.append_samples(STREAM, rows).result()
    readers = {"tag:l/gone": {"new"}, "tag:l/back": {"new"}}
    assert [tag.number for tag in find_removed_tags(store.reader, readers)] == [back, gone]
    store.appends.append_samples(OTHER, [Sample(others[0], 4 * S, 1.0)]).result()
    assert [tag.number for tag in find_removed_tags(store.reader, readers)] == [back]


def test_the_search_is_bounded(store: FactStore) -> None:
    """A tag whose newest sample lies deeper is not found, so a tag that was removed long ago is not recorded at every
    start."""
    kept, gone = defined(store, "l/kept", "l/gone")
    store.appends.append_samples(STREAM, [Sample(gone, S, 1)]).result()
    store.appends.append_samples(STREAM, [Sample(kept, n * S, n) for n in range(2, 12)]).result()
    assert find_removed_tags(store.reader, {"tag:l/kept": {"plc"}}, depth_facts=10) == []
    assert len(find_removed_tags(store.reader, {"tag:l/kept": {"plc"}}, depth_facts=11)) == 1


def test_a_node_records_it_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The node records them at its start, with one log line that names the first twenty; the next start finds
    nothing."""
    caplog.set_level(logging.INFO)
    settings = NodeSettings(IdentitySettings("plant-a", tmp_path))
    ahead_ns = 4_000_000_000 * S  # the source's clock was in the year 2096

    def lines() -> list[logging.LogRecord]:
        return [record for record in caplog.records if getattr(record, "action", "") == "tags_removed_while_stopped"]

    async def scenario() -> None:
        stop = asyncio.Event()
        with open_store(settings) as store:
            node = Node(store, Start(settings), ConfigFile(tmp_path / "node.toml"), asyncio.Event())
            running = asyncio.create_task(node.run(stop, asyncio.get_running_loop().create_future()))
            await wait_until_async(lines, "the log line")
            stop.set()
            await running

    with open_store(settings) as store:
        numbers = defined(store, *[f"l/t{n:02}" for n in range(30)])
        store.appends.append_samples(STREAM, [Sample(n, ahead_ns, 1.0) for n in numbers]).result()
    asyncio.run(scenario())
    (line,) = lines()
    assert (line.count, line.tags) == (30, [f"l/t{n:02}" for n in range(20)])  # type: ignore[attr-defined]
    with closing(StoreReader(settings.node.store_file)) as reader:
        rows = find_latest(Scanner(reader), ahead_ns, streams=frozenset({STREAM}))
        assert {row.latest.quality for row in rows if row.latest is not None} == {TAG_REMOVED}
        assert reader.end_offset(STREAM) == 60
        assert find_removed_tags(reader, {}) == []

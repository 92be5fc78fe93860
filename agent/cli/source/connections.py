"""Test all connections in node.toml at once: each source, broker and peer, one result each.

The tests are those of `bsfg source test`, `bsfg broker check` and `bsfg peer test`. They run in parallel, with a limit
on their number and time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.cli.peer import broker_of, peer_of, target_at
from agent.cli.source.access import steps
from agent.cli.terminal import Progress
from agent.concurrency import TaskGroup, timeout
from agent.errors import BsfgError
from agent.ingest import ProbeStep, TagMapError, load_tag_map, some_tags
from agent.settings.node import NodeSettings
from agent.settings.peers import BrokerSettings, PeerSettings
from agent.settings.sources import SourceSettings

if TYPE_CHECKING:
    from agent.replication.broker import Diagnostic

AT_ONCE = 8
TRY_S_MAX = 60.0  # of one source; brokers and peers have limits of their own, of seconds for each step


@dataclass(frozen=True, slots=True)
class ConnectionResult:
    """The result of one connection test; `todo` is the remedy for a failed one."""

    kind: str
    name: str
    what: str
    todo: str = ""
    is_bad: bool = True


async def test_all(settings: NodeSettings) -> list[ConnectionResult]:
    """Every connection, in the order of node.toml."""
    progress, places = Progress(), asyncio.Semaphore(AT_ONCE)
    tries = list(_tests(settings))
    done = 0

    async def run_test(part: Awaitable[ConnectionResult]) -> ConnectionResult:
        nonlocal done
        async with places:
            found = await part
        done += 1
        progress(f"of {len(tries)} connections tried", done)
        return found

    async with TaskGroup() as group:
        tasks = [group.create_task(run_test(part), name="try a connection") for part in tries]
    progress.remove_line()
    return [task.result() for task in tasks]


def _tests(settings: NodeSettings) -> Iterator[Awaitable[ConnectionResult]]:
    for source in settings.sources:
        yield _test_source(settings, source)
    for broker in settings.broker:
        yield asyncio.to_thread(_test_broker, settings, broker)
    for peer in settings.peer:
        yield asyncio.to_thread(_test_peer, settings, peer)


async def _test_source(settings: NodeSettings, source: SourceSettings) -> ConnectionResult:
    try:
        tags = load_tag_map(source).tags
    except TagMapError:
        return ConnectionResult("source", source.name, "not tried: its tag file has problems", "correct the tag file")
    last: ProbeStep | None = None
    try:
        async with timeout(TRY_S_MAX):
            async for step in steps(settings, source, some_tags(tags), len(tags)):
                last = step
                if step.is_failed:
                    break
    except TimeoutError:
        what = f"not done in {TRY_S_MAX:.0f} s, after: {last.what if last else 'nothing'}"
        return ConnectionResult("source", source.name, what, f"try it alone: bsfg source test {source.name}")
    except BsfgError as error:
        return ConnectionResult("source", source.name, str(error), error.hint)
    assert last is not None, "a test has a step"
    detail = "".join(f"; {line}" for line in last.details[:1])
    what = f"{last.name}: {last.what}{detail}" if last.is_failed else last.what
    return ConnectionResult("source", source.name, what, last.todo, last.is_failed)


def _test_broker(settings: NodeSettings, broker: BrokerSettings) -> ConnectionResult:
    from agent.replication.broker import PeerLink, check_broker

    own = settings.node.name
    peers = [peer for peer in settings.peer if peer.broker == broker.name]
    links = [PeerLink(own, peer.node) for peer in peers if peer.exports or peer.appends]
    links += [PeerLink(peer.node, own) for peer in peers if peer.pulls or peer.asks]
    return _summarised("broker", broker.name, check_broker(target_at(settings, broker), links))


def _test_peer(settings: NodeSettings, peer: PeerSettings) -> ConnectionResult:
    from agent.replication.broker import check_peer

    return _summarised("peer", peer.node, check_peer(target_at(settings, broker_of(settings, peer)), peer_of(peer)))


def _summarised(kind: str, name: str, diagnostics: Iterable[Diagnostic]) -> ConnectionResult:
    """The first result that is bad, or how many were good."""
    count = 0
    for found in diagnostics:
        count += 1
        if found.is_bad:
            return ConnectionResult(kind, name, f"{found.step}: {found.what}" if found.step else found.what, found.hint)
    return ConnectionResult(kind, name, f"{count} checks passed", is_bad=False)

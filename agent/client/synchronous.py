"""`Client`: the methods of `AsyncClient` for programs without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.client.asynchronous import OPERATIONAL, TELEMETRY, Ask, AsyncClient
from agent.client.opened import FetchedPage, LatestValue
from agent.pages import Start
from agent.positions import Position
from agent.replication.protocol.messages import AppendedEntry, AppendFact, BoundsAnswer, StreamEntry


class Client:
    """The node that runs on `state_dir`; see `AsyncClient`."""

    def __init__(self, state_dir: Path | str, instance: str = "", ask_node: Ask | None = None) -> None:
        self._node = AsyncClient(state_dir, instance, ask_node)

    def append(self, subject: str, predicate: str, value: Any, **fields: Any) -> AppendedEntry:
        """As `AsyncClient.append`, with its `fields`; `message_id` is one of them."""
        return asyncio.run(self._node.append(subject, predicate, value, **fields))

    def append_messages(self, request: AppendFact) -> Sequence[AppendedEntry]:
        """As `AsyncClient.append_messages`."""
        return asyncio.run(self._node.append_messages(request))

    def fetch(
        self,
        consumer: str,
        stream: str = OPERATIONAL,
        *,
        limit: int = 100,
        wait_s: float = 0,
        start: Start = "oldest",
        after: Position | None = None,
    ) -> FetchedPage:
        """As `AsyncClient.fetch`."""
        fetching = self._node.fetch(consumer, stream, limit=limit, wait_s=wait_s, start=start, after=after)
        return asyncio.run(fetching)

    def confirm(self, consumer: str, position: Position, first_offset: int | None = None) -> int:
        """As `AsyncClient.confirm`."""
        return asyncio.run(self._node.confirm(consumer, position, first_offset))

    def position(self, consumer: str, offset: int) -> Position:
        """As `AsyncClient.position`."""
        return asyncio.run(self._node.position(consumer, offset))

    def latest(self, prefix: str = "", stream: str = TELEMETRY, *, fresh_s: float = 60) -> Sequence[LatestValue]:
        """As `AsyncClient.latest`."""
        return asyncio.run(self._node.latest(prefix, stream, fresh_s=fresh_s))

    def streams(self) -> Sequence[StreamEntry]:
        """As `AsyncClient.streams`."""
        return asyncio.run(self._node.streams())

    def bounds(self, stream: str) -> BoundsAnswer:
        """As `AsyncClient.bounds`."""
        return asyncio.run(self._node.bounds(stream))

    def read(self, stream: str, after_offset: int, limit: int) -> FetchedPage:
        """As `AsyncClient.read`."""
        return asyncio.run(self._node.read(stream, after_offset, limit))

    def status(self, *, everything: bool = False) -> dict[str, Any]:
        """As `AsyncClient.status`."""
        return asyncio.run(self._node.status(everything=everything))

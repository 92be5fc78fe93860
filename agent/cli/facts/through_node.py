"""Latest values and the end of a stream as the running node reads them, for users who may not open its store: members
of its group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from agent import local_socket
from agent.cli.local_node import ask
from agent.client import Client, NodeSilent
from agent.fact_store import StoreForbidden
from agent.pages import Hole
from agent.query.scan import shown_fact
from agent.replication.protocol.messages import LIMIT_MAX
from agent.settings.node import NodeSettings

_AnswerT = TypeVar("_AnswerT", bound=msgspec.Struct)


def latest_rows(
    settings: NodeSettings, request: local_socket.ReadLatest, forbidden: StoreForbidden
) -> Iterator[local_socket.LatestRows]:
    """The pages of latest values. Raises LocalError, and `forbidden` if no node runs."""
    first = 0
    while True:
        wanted = local_socket.ReadLatest(
            request.tag_glob, request.zone, request.stream, request.depth_facts, request.fresh_ms, first
        )
        page = _asked(settings, wanted, local_socket.LatestRows, forbidden)
        yield page
        first += len(page.rows)
        if not page.more:
            return


def streams_of(settings: NodeSettings, forbidden: StoreForbidden) -> dict[str, int]:
    """The end of each stream, by name. Raises LocalError, and `forbidden` if no node runs."""
    try:
        return {entry.name: entry.end_offset for entry in Client(settings.node.state_dir).streams()}
    except (NodeSilent, local_socket.StateFolderUnusable) as error:
        raise forbidden from error


def facts_of(settings: NodeSettings, stream: str, after: int, limit: int) -> Iterator[dict[str, Any] | Hole]:
    """At most `limit` facts after an offset, and the holes among them. Raises LocalError."""
    node = Client(settings.node.state_dir)
    while limit > 0:
        page = node.read(stream, after, min(limit, LIMIT_MAX))
        for part in page.in_order():
            yield part if isinstance(part, Hole) else shown_fact(part.offset, part.envelope, part.fact)
        if not page.more:
            return
        after, limit = page.position.offset, limit - len(page.facts)


def _asked(
    settings: NodeSettings, request: local_socket.Request, kind: type[_AnswerT], forbidden: StoreForbidden
) -> _AnswerT:
    """Raises LocalError, and `forbidden` if no node runs."""
    try:
        return ask(settings, request, kind)
    except (local_socket.NoNode, local_socket.StateFolderUnusable) as error:
        raise forbidden from error

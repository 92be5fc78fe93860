"""Latest values and the end of a stream as the running node reads them, for users who may not open its store: members
of its group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from agent import local_socket
from agent.cli.local_node import ask
from agent.fact_store import StoreForbidden
from agent.pages import Hole
from agent.settings.node import NodeSettings

_AnswerT = TypeVar("_AnswerT", bound=local_socket.Answer)


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


class NodeTail:
    """Reads the end of a stream, as `StoreReader` and `fact_messages` do."""

    def __init__(self, settings: NodeSettings, stream: str, limit: int, forbidden: StoreForbidden) -> None:
        self._settings, self._stream, self._limit, self._forbidden = settings, stream, limit, forbidden
        self._page = self._read(None)
        self.streams = self._page.streams
        self.end_offset = self._page.end_offset

    def facts(self, after: int, limit: int) -> Iterator[dict[str, Any] | Hole]:
        """At most `limit` facts after an offset, and the holes among them."""
        while limit > 0:
            page = self._read(after)
            for entry in page.entries:
                hole = Hole(**entry) if "reason" in entry else None
                yield hole or entry
                after = entry["last_offset"] if hole else entry["offset"]
                limit -= 1
                if limit == 0:
                    return
            if not page.entries:
                return

    def _read(self, after: int | None) -> local_socket.Tail:
        request = local_socket.ReadTail(self._stream, after, self._limit)
        return _asked(self._settings, request, local_socket.Tail, self._forbidden)


def _asked(
    settings: NodeSettings, request: local_socket.Request, kind: type[_AnswerT], forbidden: StoreForbidden
) -> _AnswerT:
    """Raises LocalError, and `forbidden` if no node runs."""
    try:
        return ask(settings, request, kind)
    except (local_socket.NoNode, local_socket.StateFolderUnusable) as error:
        raise forbidden from error

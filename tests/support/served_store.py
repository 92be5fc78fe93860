"""A store with a served local socket, as in a running node."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from agent import local_socket
from agent.fact_store import FactStore
from agent.local_socket.serving import RequestHandler, serve
from tests.waiting import wait_until_async


@asynccontextmanager
async def served_store(
    folder: Path, handler: Callable[[FactStore], RequestHandler] = RequestHandler
) -> AsyncIterator[FactStore]:
    """The store of zone plant-a, while `handler` answers at the socket of this folder."""
    with FactStore.open(folder / "facts.db", "plant-a") as store:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(serve(handler(store), folder))
            await wait_until_async((folder / local_socket.SOCKET).exists, "the socket")
            try:
                yield store
            finally:
                task.cancel()

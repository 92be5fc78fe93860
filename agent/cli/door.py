"""Asking the node from a command: at its socket while one runs, else by opening the store and being the node for one request."""

from __future__ import annotations

import asyncio

from agent import local
from agent.config import NodeSettings


def ask(settings: NodeSettings, request: local.Request, waits_ms: int = 0) -> local.Answer:
    """Ask the running node, or be the node for one request; `waits_ms` is how long the store may rightly wait for others."""

    async def be_the_node() -> local.Answer:
        with local.open_store(settings) as store:
            return await local.Door(store).answer(request)

    try:
        answer = asyncio.run(local.ask(settings.node.state_dir, request, waits_ms))
    except (FileNotFoundError, ConnectionRefusedError):
        answer = asyncio.run(be_the_node())
    if isinstance(answer, local.Refused):
        raise local.LocalError(answer.message, answer.hint)
    return answer

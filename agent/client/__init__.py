"""The library for programs on the machine of a node: append facts, fetch and confirm them, read latest values.

`Client` is for programs without an event loop, `AsyncClient` for asyncio; both have the same methods. They ask the
running node at its socket with the requests of `agent.replication.protocol`, as the caller `local`.
docs/how-to/program.md has a program in ten lines.
"""

from agent.client.asynchronous import AsyncClient, NodeSilent
from agent.client.opened import FetchedFact
from agent.client.synchronous import Client

"""The one thread that writes: takes what is queued, commits it, and answers only then."""

from agent.fact_store.writer.writer import OnCommit, Writer

__all__ = [
    "OnCommit",
    "Writer",
]

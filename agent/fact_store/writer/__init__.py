"""The one thread that writes: takes work from the queue, commits it, and only then answers."""

from agent.fact_store.writer.committer import Committer
from agent.fact_store.writer.writer import Writer

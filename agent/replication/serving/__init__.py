"""The serving side: who may ask, what goes into a page, and the shell that answers each request."""

from agent.replication.serving.latest_page import Found, LookUp, TagOrder, Wanted
from agent.replication.serving.server import Server

__all__ = [
    "Found",
    "LookUp",
    "Server",
    "TagOrder",
    "Wanted",
]

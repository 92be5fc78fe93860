"""The last known value of every tag: searched from the newest source time down, and shown as rows."""

from agent.query.latest.rows import ShownRow, shown, with_heard
from agent.query.latest.search import Tag
from agent.query.latest.searching import DEPTH_FACTS, FRESH_MS, Absent, latest, latest_again

__all__ = [
    "DEPTH_FACTS",
    "FRESH_MS",
    "Absent",
    "ShownRow",
    "Tag",
    "latest",
    "latest_again",
    "shown",
    "with_heard",
]

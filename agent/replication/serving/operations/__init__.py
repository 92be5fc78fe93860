"""What a node serves: one module for each family of operations, each a class that answers its requests.

A request comes here decoded and checked, from a caller whose zone the broker has proven (`server`). An operation says what it
answers, refuses with a code of the table, or lets the request go unanswered. It holds no state that outlives a request but the
fetches that are parked.
"""

from agent.replication.serving.operations.append import Appending
from agent.replication.serving.operations.context import Context, Outcome
from agent.replication.serving.operations.digests import Digests
from agent.replication.serving.operations.fetch import Fetching
from agent.replication.serving.operations.latest import LastValues
from agent.replication.serving.operations.objects import Objects
from agent.replication.serving.operations.ranges import Ranges
from agent.replication.serving.operations.streams import Streams

__all__ = [
    "Appending",
    "Context",
    "Digests",
    "Fetching",
    "LastValues",
    "Objects",
    "Outcome",
    "Ranges",
    "Streams",
]

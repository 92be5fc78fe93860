"""What a node serves: a class for each family of operations, with a method for each operation.

Requests arrive decoded and checked, from a caller whose zone the broker has proven (`server`). A method returns an
`Outcome`. Nothing outlives a request but the fetches that are parked and the searches that are kept for their next
page.
"""

from agent.replication.serving.operations.appends import Appends
from agent.replication.serving.operations.consumers import Consumers
from agent.replication.serving.operations.context import Context
from agent.replication.serving.operations.latest import Latest
from agent.replication.serving.operations.objects import Objects
from agent.replication.serving.operations.ranges import Ranges
from agent.replication.serving.operations.streams import Digests, Streams

__all__ = [
    "Appends",
    "Consumers",
    "Context",
    "Digests",
    "Latest",
    "Objects",
    "Ranges",
    "Streams",
]

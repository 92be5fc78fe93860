"""The node's local socket: the replication protocol for programs of the same machine, and what only they may ask for.

`messages` has what the protocol lacks, `client` sends requests. `serving` answers them and is imported by itself.
"""

from agent.local_socket.client import AnyRequest, Kept, LocalReply, accepted, ask
from agent.local_socket.messages import (
    NODE_REQUESTS,
    BackfillQueued,
    BackfillSource,
    Compared,
    ComparedStream,
    ComparePeer,
    ConsumerEntry,
    Consumers,
    ListConsumers,
    NodeStatus,
    PairSwitched,
    ReadSource,
    ReadStatus,
    RegisterConsumer,
    Registered,
    Reload,
    Reloaded,
    RemoveConsumer,
    Removed,
    Request,
    RetrySource,
    SourceRead,
    SourceRetried,
    SwitchPair,
    TagValue,
)
from agent.local_socket.transport import SOCKET, LocalError, NoNode, StateFolderUnusable

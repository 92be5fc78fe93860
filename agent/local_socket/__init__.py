"""The node's local socket: applications and commands on the same machine append, confirm and administer through it.

`messages` has the requests and answers, `client` sends requests. `serving` answers them and is imported by itself.
"""

from agent.local_socket.client import accepted, ask
from agent.local_socket.messages import (
    NODE_REQUESTS,
    AcquireLease,
    Answer,
    Appended,
    AppendFact,
    BackfillQueued,
    BackfillSource,
    BeginEpoch,
    Compared,
    ComparedStream,
    ComparePeer,
    Confirmed,
    ConfirmReceipt,
    ConsumerEntry,
    Consumers,
    EpochBegan,
    LeaseAcquired,
    ListConsumers,
    ListSources,
    ObjectPut,
    PutObject,
    ReadSource,
    Refused,
    RegisterConsumer,
    Registered,
    Reload,
    Reloaded,
    RemoveConsumer,
    Removed,
    Request,
    RetrySource,
    SourceEntries,
    SourceEntry,
    SourceRead,
    SourceRetried,
    TagValue,
)
from agent.local_socket.transport import SOCKET, LocalError, NoNode, StateFolderUnusable

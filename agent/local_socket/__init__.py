"""The node's local socket: applications and commands on the same machine append, confirm and administer through it.

`messages` has the requests and answers, `client` sends requests. `serving` answers them and is imported by itself.
"""

from agent.local_socket.client import NodeSilent, accepted, ask, ask_status, read_status
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
    LatestRows,
    LeaseAcquired,
    ListConsumers,
    ListSources,
    ObjectPut,
    PutObject,
    ReadLatest,
    ReadSource,
    ReadTail,
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
    Tail,
)
from agent.local_socket.transport import SOCKET, LocalError, NoNode, StateFolderUnusable

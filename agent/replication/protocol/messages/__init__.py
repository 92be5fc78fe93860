"""The messages of `bsfg.replication` 1.0: every request and every answer, as checked values.

Types say what a field may contain; rules that types cannot express are checked by each message's `check`, which raises
MalformedMessage, so that a decoded message is always valid. `codec` encodes and decodes messages; `serving.operations`
carries requests out. docs/reference/protocol.md specifies the same for a second implementation.
"""

from __future__ import annotations

from typing import Annotated, get_args

import msgspec

from agent.replication.protocol.messages.appends import (
    MESSAGES_MAX,
    AcquireLease,
    AppendAnswer,
    AppendedEntry,
    AppendFact,
    LeaseAnswer,
    NewFact,
    NewMessage,
)
from agent.replication.protocol.messages.digests import (
    ENDS_DEFAULT,
    ENDS_MAX,
    RANGES_MAX,
    DigestsAnswer,
    GetDigests,
    origin_named,
)
from agent.replication.protocol.messages.facts import (
    BATCHES_MAX,
    BYTES_MAX_DEFAULT,
    BYTES_MAX_MIN,
    Confirm,
    ConfirmAnswer,
    ConfirmReceipt,
    CursorAnswer,
    DefinitionEntry,
    FetchAnswer,
    FetchFacts,
    FetchRange,
    FetchSequences,
    GetCursor,
    LastBatchEnd,
    OriginHead,
    RangeAnswer,
    SequencesAnswer,
)
from agent.replication.protocol.messages.fields import (
    OFFSET_MAX,
    AnswerBody,
    Part,
    operation_of,
)
from agent.replication.protocol.messages.latest import (
    DEPTH_FACTS_MAX,
    VALUES_BYTES_MAX,
    VALUES_MAX,
    GetLatest,
    LatestAnswer,
    LatestEntry,
    PeerLatest,
    TagKey,
)
from agent.replication.protocol.messages.objects import (
    CHUNK_BYTES_MAX,
    PUT_BYTES_MAX,
    GetObject,
    ObjectAnswer,
    PutAnswer,
    PutObject,
)
from agent.replication.protocol.messages.streams import (
    BoundsAnswer,
    GetBounds,
    ListStreams,
    StreamEntry,
    StreamsAnswer,
)

__all__ = [
    "ANSWERS",
    "BATCHES_MAX",
    "BYTES_MAX_DEFAULT",
    "BYTES_MAX_MIN",
    "CHUNK_BYTES_MAX",
    "DEPTH_FACTS_MAX",
    "ENDS_DEFAULT",
    "ENDS_MAX",
    "MESSAGES_MAX",
    "OFFSET_MAX",
    "PUT_BYTES_MAX",
    "RANGES_MAX",
    "REQUESTS",
    "VALUES_BYTES_MAX",
    "VALUES_MAX",
    "AcquireLease",
    "Answer",
    "AppendAnswer",
    "AppendFact",
    "AppendedEntry",
    "BoundsAnswer",
    "Confirm",
    "ConfirmAnswer",
    "ConfirmReceipt",
    "CursorAnswer",
    "DefinitionEntry",
    "DigestsAnswer",
    "ErrorAnswer",
    "ErrorBody",
    "FetchAnswer",
    "FetchFacts",
    "FetchRange",
    "FetchSequences",
    "GetBounds",
    "GetCursor",
    "GetDigests",
    "GetLatest",
    "GetObject",
    "LastBatchEnd",
    "LatestAnswer",
    "LatestEntry",
    "LeaseAnswer",
    "ListStreams",
    "NewFact",
    "NewMessage",
    "ObjectAnswer",
    "OriginHead",
    "PeerLatest",
    "PutAnswer",
    "PutObject",
    "RangeAnswer",
    "Request",
    "SequencesAnswer",
    "StreamEntry",
    "StreamsAnswer",
    "TagKey",
    "operation_of",
    "origin_named",
]

Request = (
    FetchFacts
    | FetchRange
    | FetchSequences
    | GetDigests
    | ConfirmReceipt
    | GetCursor
    | GetBounds
    | ListStreams
    | AppendFact
    | AcquireLease
    | GetLatest
    | GetObject
    | PutObject
)
REQUESTS: tuple[type[Request], ...] = get_args(Request)


class ErrorBody(Part, frozen=True):
    """A code of the error table with a message about this request."""

    code: Annotated[str, msgspec.Meta(pattern=r"\A[a-z_]{1,64}\Z")]
    message: Annotated[str, msgspec.Meta(max_length=1000)]
    retryable: bool
    hint: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class ErrorAnswer(AnswerBody, frozen=True):
    """The request was not carried out. `operation` repeats the requested operation, as far as it could be read."""

    operation: Annotated[str, msgspec.Meta(max_length=64)]
    error: ErrorBody


Answer = (
    FetchAnswer
    | RangeAnswer
    | SequencesAnswer
    | DigestsAnswer
    | ConfirmAnswer
    | CursorAnswer
    | BoundsAnswer
    | StreamsAnswer
    | AppendAnswer
    | LeaseAnswer
    | LatestAnswer
    | ObjectAnswer
    | PutAnswer
)
ANSWERS: tuple[type[Answer], ...] = get_args(Answer)

"""The words two nodes exchange, version 1.0 of `bsfg.replication`: every request and every answer, as checked values.

What a field may hold is said by its type; what types cannot say, each message checks itself (`check`) and raises
MalformedMessage, so that whoever holds a decoded message holds a good one. Their bytes are made and read in `protocol`; which
module serves an operation stands in `operations`. docs/reference/protocol.md says the same for a second implementation.
"""

from __future__ import annotations

from typing import Annotated

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
    BYTES_MAX_MAX,
    BYTES_MAX_MIN,
    LIMIT_MAX,
    WAIT_MS_MAX,
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
    HeldEnd,
    RangeAnswer,
    SequencesAnswer,
    TakenEnd,
)
from agent.replication.protocol.messages.fields import (
    OFFSET_MAX,
    AnswerBody,
    Part,
    operation_of,
)
from agent.replication.protocol.messages.latest import (
    DEPTH_FACTS_DEFAULT,
    DEPTH_FACTS_MAX,
    FRESH_MS_DEFAULT,
    FRESH_MS_MAX,
    SUBJECTS_MAX,
    VALUES_BYTES_MAX,
    VALUES_DEFAULT,
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
    "BYTES_MAX_MAX",
    "BYTES_MAX_MIN",
    "CHUNK_BYTES_MAX",
    "DEPTH_FACTS_DEFAULT",
    "DEPTH_FACTS_MAX",
    "ENDS_DEFAULT",
    "ENDS_MAX",
    "FRESH_MS_DEFAULT",
    "FRESH_MS_MAX",
    "LIMIT_MAX",
    "MESSAGES_MAX",
    "OFFSET_MAX",
    "PUT_BYTES_MAX",
    "RANGES_MAX",
    "REQUESTS",
    "SUBJECTS_MAX",
    "VALUES_BYTES_MAX",
    "VALUES_DEFAULT",
    "VALUES_MAX",
    "WAIT_MS_MAX",
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
    "HeldEnd",
    "LatestAnswer",
    "LatestEntry",
    "LeaseAnswer",
    "ListStreams",
    "NewFact",
    "NewMessage",
    "ObjectAnswer",
    "PeerLatest",
    "PutAnswer",
    "PutObject",
    "RangeAnswer",
    "Request",
    "SequencesAnswer",
    "StreamEntry",
    "StreamsAnswer",
    "TagKey",
    "TakenEnd",
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
REQUESTS: tuple[type[Request], ...] = (
    FetchFacts,
    *(FetchRange, FetchSequences, GetDigests),
    ConfirmReceipt,
    GetCursor,
    GetBounds,
    ListStreams,
    AppendFact,
    AcquireLease,
    GetLatest,
    GetObject,
    PutObject,
)


class ErrorBody(Part, frozen=True):
    """A row of the error table, and a sentence that names the thing."""

    code: Annotated[str, msgspec.Meta(pattern=r"\A[a-z_]{1,64}\Z")]
    message: Annotated[str, msgspec.Meta(max_length=1000)]
    retryable: bool
    hint: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class ErrorAnswer(AnswerBody, frozen=True):
    """The request was not carried out.  `operation` repeats what was asked, as far as it could be read."""

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
ANSWERS: tuple[type[Answer], ...] = (
    FetchAnswer,
    *(RangeAnswer, SequencesAnswer, DigestsAnswer),
    ConfirmAnswer,
    CursorAnswer,
    BoundsAnswer,
    StreamsAnswer,
    AppendAnswer,
    LeaseAnswer,
    LatestAnswer,
    ObjectAnswer,
    PutAnswer,
)

"""What can go wrong between two nodes, once: one table of codes and one tree of exceptions.

The table `ERRORS` is the contract: the serving side answers with these codes, the asking side decides by them whether
to try again, and docs/reference/protocol.md prints the same rows (a test compares).  A code, once published, keeps its
meaning; a code this side does not know is taken at the word of the answer's `retryable`.

Exceptions:

    ReplicationError            anything below; never raised itself
        MalformedMessage        bytes of the peer that are not a message of this protocol (their fault; final)
        PeerRefused             the peer answered with an error of the table (`code`, `retryable`, `hint`)
        TransportError          the way to the peer (`retryable` says whether waiting may help)
            BrokerUnreachable   no TCP or TLS connection to the broker (retry)
            ConnectionRefused   TLS stood, but the broker closed it before CONNACK or refused the session (retry slowly)
            ConnectionLost      the connection ended under a request (retry)
            PeerAbsent          nobody serves the topic asked (retry)
            NotAuthorized       the broker forbids the topic (final: configuration)
            MessageTooLarge     the message exceeds what the broker takes (final for this message)
            OutgoingFull        our own bounded queue is full (retry)
        PkiError                a certificate, key or list (final: the operator's to mend)              (pki)
        TopologyError           links or settings of which no broker configuration can be made (final)  (broker)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from agent.errors import BsfgError


class Fault(Enum):
    """Whose mistake it is: who has to act for it to go away."""

    ASKER = "asker"
    SERVER = "server"
    OPERATOR = "operator"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """One row of the error table: a code, whose fault it is, whether to ask again, what it means, what to do."""

    code: str
    fault: Fault
    retryable: bool
    meaning: str
    hint: str


# fmt: off  (a table is read by rows)
_ROWS = (
    ErrorRow(
        "bad_request",
        Fault.ASKER,
        False,
        "The request is not JSON, lacks a field, or a field has the wrong type or range.",
        "Correct the field that the message names.",
    ),
    ErrorRow(
        "request_too_large",
        Fault.ASKER,
        False,
        "The request exceeds 65,536 bytes.",
        "Append fewer messages at once, and large objects as artifacts; list fewer origins in definitions_known.",
    ),
    ErrorRow(
        "unsupported_version",
        Fault.OPERATOR,
        False,
        "Protocol or major version differ; the message names both.",
        "Update the older of the two nodes.",
    ),
    ErrorRow(
        "unknown_operation",
        Fault.ASKER,
        False,
        "The operation is not known here.",
        "Update the serving node, or ask with an operation of its version.",
    ),
    ErrorRow(
        "limit_out_of_range",
        Fault.ASKER,
        False,
        "limit, bytes_max or wait_ms lies outside its range.",
        "Use a value inside the range that the message names.",
    ),
    ErrorRow(
        "unknown_consumer",
        Fault.ASKER,
        False,
        "No consumer has this name, and the request names no stream to register it for.",
        "Send the field stream with the first FetchFacts, or correct consumer_name.",
    ),
    ErrorRow(
        "consumer_not_yours",
        Fault.ASKER,
        False,
        "The consumer was registered by another zone.",
        "Use a consumer name of your own, by custom <your zone>.<stream>.",
    ),
    ErrorRow(
        "consumer_stream_mismatch",
        Fault.ASKER,
        False,
        "The consumer is bound to another stream than the one named.",
        "Use one consumer name for each stream, or remove the consumer at the serving node (bsfg consumer remove).",
    ),
    ErrorRow(
        "too_many_consumers",
        Fault.ASKER,
        False,
        "The zone has registered as many consumers as one zone may.",
        "Ask with the names registered before; bsfg consumer list on the serving node shows them.",
    ),
    ErrorRow(
        "stream_not_exported",
        Fault.OPERATOR,
        False,
        "The stream is not exported to the asking zone, or does not exist.",
        "Add the stream to exports of this peer in the serving node's node.toml.",
    ),
    ErrorRow(
        "append_not_allowed",
        Fault.OPERATOR,
        False,
        "The asking zone may not append to the stream, whether it exists or not.",
        "Add the stream to appends of this peer in the serving node's node.toml.",
    ),
    ErrorRow(
        "unknown_artifact",
        Fault.OPERATOR,
        False,
        "No artifact of this digest is here, or no fact that the asking zone may read refers to it.",
        "Put it where the fact was appended (bsfg object put); the incidents of the nodes between say where it went missing.",
    ),
    ErrorRow(
        "artifact_mismatch",
        Fault.ASKER,
        False,
        "The bytes that were put are not those that the digest names; nothing of them is kept.",
        "Put them again from the beginning.",
    ),
    ErrorRow(
        "artifact_too_large",
        Fault.OPERATOR,
        False,
        "The artifact is larger than the serving node takes.",
        "Raise artifact_bytes_max in [store] of the serving node's node.toml.",
    ),
    ErrorRow(
        "confirm_beyond_log",
        Fault.OPERATOR,
        False,
        "The confirmation lies beyond the end of the log.",
        "The serving store is older than what was read from it: was it restored from a backup, or does a copy of it answer as well?",
    ),
    ErrorRow(
        "offset_beyond_log",
        Fault.OPERATOR,
        False,
        "after_offset lies beyond the end of the log.",
        "The serving store is older than what was read from it: was it restored from a backup, or does a copy of it answer as well?",
    ),
    ErrorRow(
        "history_differs",
        Fault.OPERATOR,
        True,
        "What the asker shows of this store (taken, held) is not in it: the store is an old copy that has gone on.",
        "Ask again: it begins a new epoch by itself, once a week. If this stays, look at the incidents of the serving node.",
    ),
    ErrorRow(
        "epoch_changed",
        Fault.NOBODY,
        True,
        "The offsets belong to another life of this store; the answer names the present epoch.",
        "Begin again at offset 0 of the present epoch.",
    ),
    ErrorRow(
        "fenced",
        Fault.OPERATOR,
        False,
        "Another instance under this consumer's name has taken a newer lease; final for the one that is told.",
        "Two receivers use one name (a cloned machine?): stop one. To have the fenced one go on instead, start it again.",
    ),
    ErrorRow(
        "batch_exceeds_packet",
        Fault.OPERATOR,
        False,
        "The next batch is larger than the broker's packet limit.",
        "Raise max_packet_size of the broker to at least 1048576.",
    ),
    ErrorRow(
        "busy",
        Fault.SERVER,
        True,
        "The serving node has too much in hand for this zone.",
        "Ask again later; if it lasts, ask with fewer consumers at once.",
    ),
    ErrorRow(
        "store_full",
        Fault.SERVER,
        True,
        "The serving store has no room for what was to be appended; nothing of it is stored.",
        "Keep it and append it again later; bsfg status of the serving node says what fills it.",
    ),
    ErrorRow(
        "store_unavailable",
        Fault.SERVER,
        True,
        "The serving store cannot answer now.",
        "Ask again later; the serving node's status says why.",
    ),
)
# fmt: on

ERRORS: dict[str, ErrorRow] = {row.code: row for row in _ROWS}


def advice(message: str, hint: str) -> str:
    """What a peer said, and what to do, as two sentences."""
    return f"{message.rstrip('. ')}. {hint}".rstrip()


class ReplicationError(BsfgError):
    """Root of the tree drawn above."""


class MalformedMessage(ReplicationError):
    """Bytes that are not a message of this protocol.  The decoders raise this and nothing else.

    `code` is the table's code with which a server answers; `operation` what the sender asked for, as far as readable.
    """

    def __init__(self, why: str, code: str = "bad_request", operation: str = "", hint: str = "") -> None:
        assert code in ERRORS
        super().__init__(why)
        self.hint = hint
        self.why = why
        self.code = code
        self.operation = operation


class PeerRefused(ReplicationError):
    """The peer answered, and the answer is an error."""

    def __init__(self, zone: str, code: str, message: str, hint: str, *, retryable: bool) -> None:
        super().__init__(zone, code, message)
        self.zone = zone
        self.code = code
        self.message = message
        self.retryable = retryable
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.zone} refused ({self.code}): {advice(self.message, self.hint)}"


class TransportError(ReplicationError):
    """The way to the peer failed; `retryable` says whether time alone may mend it."""

    retryable = True

    def __init__(self, where: str, why: str, hint: str = "") -> None:
        super().__init__(where, why)
        self.where = where
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        # What is told on (a link's last trouble, to who asks meanwhile) has the place and its full stop already.
        why = self.why.removeprefix(f"{self.where}: ")
        return f"{self.where}: {why}{'' if why.endswith(('.', '?')) else '.'} {self.hint}".rstrip()


class BrokerUnreachable(TransportError):
    """No connection to the broker."""


class ConnectionRefused(TransportError):
    """The broker ended the connection before it had accepted the session."""


class ConnectionLost(TransportError):
    """The connection ended; every open request on it is lost."""


class PeerAbsent(TransportError):
    """The broker knows nobody who listens on the topic asked (PUBACK 0x10)."""


class NotAuthorized(TransportError):
    """The broker's access list forbids the topic (PUBACK 0x87)."""

    retryable = False


class MessageTooLarge(TransportError):
    """The message exceeds the packet size the broker announced."""

    retryable = False


class OutgoingFull(TransportError):
    """The bounded queue towards the broker is full."""

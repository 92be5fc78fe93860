"""The table of error codes and the tree of exceptions of replication.

The table `ERRORS` is part of the protocol: the serving side answers with these codes, and the requesting side decides
by them whether to retry. docs/developers/protocol.md prints the same rows (held by a test). A published code keeps its
meaning; for an unknown code the answer's own `retryable` counts.

Exceptions:

    ReplicationError            base class; never raised itself
        MalformedMessage        bytes of the peer that are not a valid message (the sender's fault; final)
        PeerRefused             the peer answered with an error code (`code`, `retryable`, `hint`)
        DefinitionsUnavailable  the peer lacks tag definitions that its batches name, or it sent others (final)
        TransportError          the connection to the peer failed (`retryable`: waiting may help)
            BrokerUnreachable   no TCP or TLS connection to the broker (retry)
              BrokerUntrusted   its certificate is not of an authority in ca_file, or not of this host (retry)
            ConnectionRefused   the broker closed before CONNACK, or refused the session (retry slowly)
            ConnectionLost      the connection ended during a request (retry)
            PeerAbsent          the request topic has no subscriber (retry)
            NotAuthorized       the broker's rights forbid the topic (final: configuration)
            MessageTooLarge     the message exceeds the broker's packet size (final for this message)
            OutgoingFull        this node's outgoing queue is full (retry)
            UnprovenAnswer      no signature proves that the peer sent the answer (retry)
        PkiError                a certificate, key or list cannot be used (final: an operator must act)       (pki)
        TopologyError           links or settings that make no broker configuration (final)                   (broker)
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.errors import BsfgError
from agent.escaping import printable


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """One row of the error table: code, whether to retry, meaning, what to do."""

    code: str
    retryable: bool
    meaning: str
    hint: str


# A table is read by rows.
# fmt: off
_ROWS = (
    ErrorRow("bad_request", False,
             "not JSON, or a field is absent or has a wrong type or range",
             "Correct the field that the message names."),
    ErrorRow("request_too_large", False,
             "above 65,536 bytes",
             "Append fewer messages at once, large objects as artifacts."),
    ErrorRow("unsupported_version", False,
             "another protocol or major version",
             "Update the older of the two nodes."),
    ErrorRow("unknown_operation", False,
             "not known to the server",
             "Update the serving node, or use an operation of its version."),
    ErrorRow("limit_out_of_range", False,
             "a limit, size or time is outside its range",
             "Use a value in the range that the message names."),
    ErrorRow("unknown_consumer", False,
             "not registered, and no stream is named to register it for",
             "Send the field stream with the first FetchFacts, or correct consumer_name."),
    ErrorRow("consumer_not_yours", False,
             "the name does not begin with the requesting node and a dot",
             "Use a consumer name of your own node, usually <your node>.<stream>."),
    ErrorRow("consumer_stream_mismatch", False,
             "the consumer reads another stream",
             "Use one consumer name for each stream, or remove the consumer at the serving node (bsfg consumer "
             "remove)."),
    ErrorRow("too_many_consumers", False,
             "the node has its maximum",
             "Use a registered name, unregister one (UnregisterConsumer), or raise consumers_max of this peer in the "
             "serving node's node.toml."),
    ErrorRow("stream_not_exported", False,
             "the node may not read the stream, or it does not exist",
             "Add the stream to exports of this peer in the serving node's node.toml."),
    ErrorRow("append_not_allowed", False,
             "the node may not append to the stream, or it does not exist",
             "Add the stream to appends of this peer in the serving node's node.toml."),
    ErrorRow("not_allowed_here", False,
             "at the socket: only for the node's user and root",
             "Ask as the node's user; members of its group may ask for what changes nothing."),
    ErrorRow("unknown_artifact", False,
             "no artifact has this digest, or no fact that the node may read refers to it",
             "Put it at the node where the fact was appended (bsfg object put); incidents of the nodes in between say "
             "where it was lost."),
    ErrorRow("artifact_mismatch", False,
             "the bytes do not match the digest and were discarded",
             "Put them again from the beginning."),
    ErrorRow("artifact_too_large", False,
             "larger than the server accepts",
             "Raise artifact_bytes_max in [store] of the serving node's node.toml."),
    ErrorRow("artifact_quota", True,
             "the node's artifacts without a fact would exceed its limit; nothing was stored",
             "Append the facts that refer to them; after some hours the artifacts without a fact are removed. If that "
             "does not suffice, raise artifact_unreferenced_bytes_max in [store] of the serving node's node.toml."),
    ErrorRow("artifacts_full", True,
             "no room for artifacts; facts are still appended",
             "Put it again later; bsfg status of the serving node names the limit."),
    ErrorRow("life_unknown", True,
             "the position is not in this log: the store was restored, or another machine answered before",
             "Name the whole trail; without one, begin where you want to read on in this log (GetBounds)."),
    ErrorRow("unsigned_request", False,
             "no signature proves the requesting node, and one is required",
             "Give the requesting node a signing key (bsfg pki signer), or correct [[origin]] of the serving node."),
    ErrorRow("lead_not_yours", False,
             "the asking node is not one of two nodes of this zone here",
             "Name both as [[peer]] of this zone in the answering node's node.toml; at the other node of the zone, write "
             "partner of [pair] and restart it."),
    ErrorRow("fenced", False,
             "a newer instance holds the lease; final for this one",
             "Two receivers use one name (a cloned machine?): stop one. To continue with the fenced one, restart it."),
    ErrorRow("lease_unknown", False,
             "never granted here: the store is new or was restored, or the consumer was removed",
             "Request a lease again: FetchFacts with lease 0."),
    ErrorRow("batch_exceeds_packet", False,
             "the next batch is larger than the broker's packet limit",
             "Raise max_packet_size of the broker to at least 1048576."),
    ErrorRow("busy", True,
             "too many requests of this node are open",
             "Retry later; if the error stays, use fewer consumers at once."),
    ErrorRow("store_full", True,
             "no room for the append; nothing of it is stored",
             "Keep the messages and append them again later; bsfg status of the serving node names the cause."),
    ErrorRow("store_unavailable", True,
             "the store cannot answer now",
             "Retry later; bsfg status of the serving node says why."),
)
# fmt: on

ERRORS: dict[str, ErrorRow] = {row.code: row for row in _ROWS}


def advice(message: str, hint: str) -> str:
    """A message and its hint as two sentences."""
    return f"{message.rstrip('. ')}. {hint}".rstrip()


class ReplicationError(BsfgError):
    """Base class of the tree above."""


class DefinitionsUnavailable(ReplicationError):
    """The peer lacks tag definitions that its batches name, or it sent others."""


class MalformedMessage(ReplicationError):
    """Bytes that are not a message of this protocol. The decoders raise no other exception.

    `code` is the code with which a server answers; `operation` is the requested operation, as far as readable.
    """

    def __init__(self, why: str, code: str = "bad_request", operation: str = "", hint: str = "") -> None:
        assert code in ERRORS
        super().__init__(why)
        self.hint = hint
        self.why = why
        self.code = code
        self.operation = operation


class PeerRefused(ReplicationError):
    """The peer answered with an error code."""

    def __init__(self, node: str, code: str, message: str, hint: str, *, retryable: bool) -> None:
        super().__init__(node, code, message)
        self.node = node
        self.code = code
        self.message = message
        self.retryable = retryable
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.node} refused ({self.code}): {advice(self.message, self.hint)}"


class TransportError(ReplicationError):
    """The connection to the peer failed; `retryable` says whether waiting may help."""

    retryable = True

    def __init__(self, where: str, why: str, hint: str = "") -> None:
        super().__init__(where, why)
        self.where = where
        self.why = printable(why)  # a broker or a peer may have written it
        self.hint = hint

    def __str__(self) -> str:
        # A link's last error, repeated as the reason of another, already contains the place and a full stop.
        why = self.why.removeprefix(f"{self.where}: ")
        return f"{self.where}: {why}{'' if why.endswith(('.', '?')) else '.'} {self.hint}".rstrip()


class BrokerUnreachable(TransportError):
    """No connection to the broker."""


class BrokerUntrusted(BrokerUnreachable):
    """The broker's certificate does not prove that it is the broker, with our ca_file."""


class ConnectionRefused(TransportError):
    """The broker closed the connection before it accepted the session."""


class ConnectionLost(TransportError):
    """The connection ended; its open requests are lost."""


class PeerAbsent(TransportError):
    """The request topic has no subscriber (PUBACK 0x10)."""


class NotAuthorized(TransportError):
    """The broker's rights forbid the topic (PUBACK 0x87)."""

    retryable = False


class MessageTooLarge(TransportError):
    """The message exceeds the packet size that the broker announced."""

    retryable = False


class OutgoingFull(TransportError):
    """This node's outgoing queue to the broker is full."""


class UnprovenAnswer(TransportError):
    """No signature proves that the peer sent an answer. The answer is ignored."""

    code = "unproven_answer"

    def __init__(self, where: str, why: str) -> None:
        hint = (
            "Give the peer a signing key (bsfg pki signer), and name its certificate in [[origin]] here. If both are"
            " done, its broker wrote this answer."
        )
        super().__init__(where, why, hint)

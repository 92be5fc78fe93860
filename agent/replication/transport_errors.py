"""The words of TLS, TCP and MQTT for what went wrong, turned into ours: where the foreign errors stop.

Each function takes what the library said and returns a TransportError that names the broker or topic and ends with what
to do.  Nothing is raised here and nothing is decided but the class of the error, hence whether to try again.
"""

from __future__ import annotations

import ssl

from paho.mqtt.reasoncodes import ReasonCode

from agent.replication.errors import (
    BrokerUnreachable,
    ConnectionRefused,
    NotAuthorized,
    PeerAbsent,
    TransportError,
)

_NO_MATCHING_SUBSCRIBERS = 0x10
_NOT_AUTHORIZED = 0x87


def connect_error(where: str, error: OSError) -> TransportError:
    """Why no TLS connection came about (every error of `ssl` is an OSError)."""
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = "Was its certificate issued for this host, by the authority in ca_file? Is our clock right?"
        return BrokerUnreachable(where, f"not the broker we trust: {error.verify_message}", hint)
    if isinstance(error, ssl.SSLError):
        hint = "Is this its TLS port, and can the broker read its own certificate? Its log says."
        return BrokerUnreachable(where, f"no TLS 1.3: {error.reason or error}", hint)
    hint = "Is the broker running, and does a firewall let this machine through?"
    return BrokerUnreachable(where, f"cannot be reached: {error.strerror or error}", hint)


def never_accepted(where: str) -> TransportError:
    """Why a connection ended without a word: with TLS 1.3 a refused client certificate shows only after the handshake."""
    hint = "Is our certificate revoked, expired, or of another authority than the broker's? Its log says."
    return ConnectionRefused(where, "closed before CONNACK: it refuses our certificate", hint)


def session_refused(where: str, reason: ReasonCode) -> TransportError:
    """Why a CONNACK was a refusal."""
    return ConnectionRefused(where, f"refused the session: {reason}", "Look into the broker's log.")


def publish_error(topic: str, reason: ReasonCode) -> TransportError | None:
    """What a PUBACK says, None for a success somebody receives."""
    if reason.value == _NO_MATCHING_SUBSCRIBERS:
        return PeerAbsent(topic, "nobody serves it now", "Is the peer running and connected?")
    if reason.value == _NOT_AUTHORIZED:
        hint = "Generate the broker's access list again, with this peer: bsfg broker config."
        return NotAuthorized(topic, "the broker's access list forbids it", hint)
    return TransportError(topic, f"the broker refused it: {reason}") if reason.is_failure else None

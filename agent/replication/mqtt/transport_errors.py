"""Translates errors of TLS, TCP and MQTT into errors of this package; no library error passes it.

Each function takes what a library reported and returns a TransportError, or its parts, that names the broker or topic
and says what to do. Nothing is raised here. The class of the error decides whether to retry.
"""

from __future__ import annotations

import ssl

from paho.mqtt.reasoncodes import ReasonCode

from agent.replication.protocol.errors import (
    BrokerUnreachable,
    BrokerUntrusted,
    ConnectionLost,
    ConnectionRefused,
    NotAuthorized,
    PeerAbsent,
    TransportError,
)

_NO_MATCHING_SUBSCRIBERS = 0x10
_NOT_AUTHORIZED = 0x87
_UNSPECIFIED = 0x80
_PASSING = frozenset({0x88, 0x89, 0x97, 0x9F})
"""Server unavailable, server busy, quota exceeded, connection rate exceeded: says nothing about our identity."""

_UNKNOWN_AUTHORITY = frozenset({2, 18, 19, 20, 21})
"""OpenSSL's numbers (X509_V_ERR_*) for a chain that does not end at an authority in ca_file."""

REFUSED_HINT = "Is our certificate revoked, expired, or of another authority than the broker's? See the broker's log."

# TLS alerts, by their names in Python, with which OpenSSL on the broker's side refuses a certificate.
_ALERTS = {
    "SSLV3_ALERT_CERTIFICATE_REVOKED": (
        "it is on the broker's revocation list",
        "Was the node denied on purpose? If not: bsfg pki request here, bsfg pki sign --request at the authority, bsfg pki import.",
    ),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": (
        "it has expired, or the broker's revocation list has, by the broker's clock",
        "If every node is refused, renew the list (bsfg pki crl) or set the broker's clock; otherwise bsfg pki sign.",
    ),
    "TLSV1_ALERT_UNKNOWN_CA": (
        "its authority is not known to the broker, or the broker has no revocation list of that authority",
        "Use a certificate of an authority in the broker's zones-ca.pem, or copy that authority's list to the broker.",
    ),
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": (
        "it is not a client certificate (extended key usage)",
        "Issue a node's certificate: bsfg pki issue NODE.",
    ),
    "SSLV3_ALERT_BAD_CERTIFICATE": (
        "it is damaged, or not yet valid by the broker's clock",
        "Set the broker's clock (timedatectl); its log names the reason.",
    ),
    "TLSV1_ALERT_DECRYPT_ERROR": (
        "its signature is wrong: another authority has the same name",
        "Use a certificate of an authority in the broker's zones-ca.pem.",
    ),
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": (
        "the broker received none",
        "Name cert_file and key_file of this node in node.toml.",
    ),
}


_CLOSED_AT_ONCE = (
    "it accepts the connection and closes it at once",
    "is this the TLS port, can the broker read its certificate, is max_connections reached? see its log",
)


def connect_error(where: str, error: OSError) -> TransportError:
    """The error for a failed TLS connection. Every error of `ssl` is an OSError."""
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = "Was its certificate issued for this host, by the authority in ca_file? Is this node's clock right?"
        return BrokerUntrusted(where, f"the broker is not trusted: {explain_untrusted(error)}", hint)
    if isinstance(error, ssl.SSLEOFError):
        why, hint = _CLOSED_AT_ONCE
        return BrokerUnreachable(where, why, hint[0].upper() + hint[1:])
    if isinstance(error, ssl.SSLError):
        hint = "Is this the TLS port of a broker with TLS 1.3, can it read its certificate, is max_connections reached?"
        hint += " See its log."
        return BrokerUnreachable(where, f"no TLS 1.3: {error.reason or error}", hint)
    why, hint = explain_unreachable(error)
    return BrokerUnreachable(where, f"cannot be reached: {why}", hint[0].upper() + hint[1:])


def explain_unreachable(error: OSError) -> tuple[str, str]:
    """Reason and hint for a connection that failed without a TLS error."""
    if isinstance(error, TimeoutError) and "handshake" in str(error):
        why = "it accepts connections but does not respond (no TLS handshake in time)"
        return why, "is it the broker that listens there, and is it still working? see its log"
    if isinstance(error, ConnectionResetError):
        return _CLOSED_AT_ONCE
    return error.strerror or str(error), "is the broker running, and does a firewall allow this machine?"


def explain_untrusted(error: ssl.SSLCertVerificationError) -> str:
    """Why the broker's certificate is not trusted; names ca_file where the authority is unknown, else OpenSSL's
    message."""
    if error.verify_code in _UNKNOWN_AUTHORITY:
        return f"its certificate was issued by an authority that is not in ca_file ({error.verify_message})"
    return error.verify_message


def explain_alert(alert: str) -> tuple[str, str] | None:
    """Reason and hint for a TLS alert in which a broker refuses our certificate; None for any other alert."""
    return _ALERTS.get(alert)


def refused_before_connack(where: str, alert: str = "") -> TransportError:
    """The error for a connection that ended before CONNACK. In TLS 1.3 a client certificate is refused only then, often
    by alert."""
    if explained := explain_alert(alert):
        why, hint = explained
        return ConnectionRefused(where, f"it refuses our certificate: {why}", hint)
    reported = f" (TLS alert {alert})" if alert else ""
    return ConnectionRefused(where, f"closed before CONNACK{reported}: it refuses our certificate", REFUSED_HINT)


def session_refused(where: str, reason: ReasonCode) -> TransportError:
    """The error for a CONNACK with a failure code."""
    kind = BrokerUnreachable if reason.value in _PASSING else ConnectionRefused
    return kind(where, f"refused the session: {reason}", "See the broker's log.")


def ended(where: str, reason: ReasonCode, *, is_told: bool) -> TransportError:
    """The error for the end of a session. `is_told`: the reason is the broker's, else paho's."""
    if reason.value == _UNSPECIFIED and not is_told:
        return ConnectionLost(where, "the connection ended without a reason")
    return ConnectionLost(where, f"the connection ended: {reason}")


def unusable_limits(where: str, limits: str, packet_bytes_min: int) -> TransportError:
    """The error for a CONNACK with limits under which nothing can be sent."""
    hint = f"It must accept packets of at least {packet_bytes_min} bytes (max_packet_size), one unacknowledged, QoS 1 "
    hint += "and subscriptions with wildcards."
    return ConnectionRefused(where, f"its limits are unusable: {limits}", hint)


def publish_error(topic: str, reason: ReasonCode) -> TransportError | None:
    """The error for a PUBACK; None if the message was accepted and has a subscriber."""
    if reason.value == _NO_MATCHING_SUBSCRIBERS:
        return PeerAbsent(topic, "no node serves it now", "Is the peer running and connected?")
    if reason.value == _NOT_AUTHORIZED:
        return NotAuthorized(topic, "the broker's rights forbid it", _link_hint(topic))
    return TransportError(topic, f"the broker refused it: {reason}") if reason.is_failure else None


def _link_hint(topic: str) -> str:
    """The missing link, as an option of bsfg broker config."""
    match topic.split("/"):
        case ["bsfg", _, serving, asking, *_]:
            link = f"--link {serving}:{asking}"
            return f"Add the link (bsfg broker config FOLDER {link}), unless the node was denied on purpose."
    return "Add the link to this peer: bsfg broker config FOLDER --link SERVING:ASKING."

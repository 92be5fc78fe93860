"""The words of TLS, TCP and MQTT for what went wrong, turned into ours: where the foreign errors stop.

Each function takes what the library said and returns a TransportError that names the broker or topic and ends with what
to do.  Nothing is raised here and nothing is decided but the class of the error, hence whether to try again.
"""

from __future__ import annotations

import ssl

from paho.mqtt.reasoncodes import ReasonCode

from agent.replication.protocol.errors import (
    BrokerUnreachable,
    ConnectionRefused,
    NotAuthorized,
    PeerAbsent,
    TransportError,
)

_NO_MATCHING_SUBSCRIBERS = 0x10
_NOT_AUTHORIZED = 0x87

_UNKNOWN_AUTHORITY = frozenset({2, 18, 19, 20, 21})
"""OpenSSL's numbers (X509_V_ERR_*) for all ways in which a chain ends at nobody we know."""

REFUSED_HINT = "Is our certificate revoked, expired, or of another authority than the broker's? Its log says."

# What OpenSSL on the broker's side sends, as Python names it, for each way in which it finds a certificate wanting.
_ALERTS = {
    "SSLV3_ALERT_CERTIFICATE_REVOKED": (
        "it is on the broker's revocation list",
        "Was the zone shut out on purpose? If not: bsfg pki renew, and bring the new certificate here.",
    ),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": (
        "it has ended, or the broker's own revocation list has, by the broker's clock",
        "If every zone is refused, renew the list (bsfg pki crl) or set the broker's clock; otherwise bsfg pki renew.",
    ),
    "TLSV1_ALERT_UNKNOWN_CA": (
        "it was signed by an authority that the broker does not know, or one for which it has no revocation list",
        "Give the node files of the authority in the broker's zones-ca.pem, or bring that authority's list to the broker.",
    ),
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": (
        "it is not meant for a client (extended key usage)",
        "Issue it as a zone's: bsfg pki issue ZONE.",
    ),
    "SSLV3_ALERT_BAD_CERTIFICATE": (
        "it is not yet valid, or damaged, by the broker's clock",
        "Set the clock of the broker (timedatectl); its log names the reason.",
    ),
    "TLSV1_ALERT_DECRYPT_ERROR": (
        "its signature is wrong: another authority has the same name",
        "Give the node files of the authority in the broker's zones-ca.pem.",
    ),
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": (
        "the broker saw none",
        "Name cert_file and key_file of this zone in node.toml.",
    ),
}


_CLOSED_AT_ONCE = (
    "it takes the connection and closes it at once",
    "is it the broker's TLS port, can it read its own certificate, has it as many clients as max_connections allows? its log says",
)


def connect_error(where: str, error: OSError) -> TransportError:
    """Why no TLS connection came about (every error of `ssl` is an OSError)."""
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = "Was its certificate issued for this host, by the authority in ca_file? Is our clock right?"
        return BrokerUnreachable(where, f"not the broker we trust: {explain_untrusted(error)}", hint)
    if isinstance(error, ssl.SSLEOFError):
        why, hint = _CLOSED_AT_ONCE
        return BrokerUnreachable(where, why, hint[0].upper() + hint[1:])
    if isinstance(error, ssl.SSLError):
        hint = "Is this its TLS port, and can the broker read its own certificate? Its log says."
        return BrokerUnreachable(where, f"no TLS 1.3: {error.reason or error}", hint)
    why, hint = explain_unreachable(error)
    return BrokerUnreachable(where, f"cannot be reached: {why}", hint[0].upper() + hint[1:])


def explain_unreachable(error: OSError) -> tuple[str, str]:
    """Why nothing came of a connection that no TLS error ended, and what to do."""
    if isinstance(error, TimeoutError) and "handshake" in str(error):
        why = "it takes connections and then is silent (no TLS handshake in time)"
        return why, "is it the broker that listens there, and does it still work? its log says"
    if isinstance(error, ConnectionResetError):
        return _CLOSED_AT_ONCE
    return error.strerror or str(error), "is the broker running, and does a firewall let this machine through?"


def explain_untrusted(error: ssl.SSLCertVerificationError) -> str:
    """Why we do not trust a broker, in words that name the file; OpenSSL's own where it says more than that."""
    if error.verify_code in _UNKNOWN_AUTHORITY:
        return f"an authority that is not in our ca_file signed its certificate ({error.verify_message})"
    return error.verify_message


def explain_alert(alert: str) -> tuple[str, str] | None:
    """Why a broker refuses our certificate, and what to do, by the TLS alert it sent; None for one that says nothing of it."""
    return _ALERTS.get(alert)


def refused_before_connack(where: str, alert: str = "") -> TransportError:
    """Why a connection ended before CONNACK.  With TLS 1.3 a refused client certificate shows only there, often as an alert."""
    if words := explain_alert(alert):
        why, hint = words
        return ConnectionRefused(where, f"it refuses our certificate: {why}", hint)
    told = f" (TLS says {alert})" if alert else ""
    return ConnectionRefused(where, f"closed before CONNACK{told}: it refuses our certificate", REFUSED_HINT)


def session_refused(where: str, reason: ReasonCode) -> TransportError:
    """Why a CONNACK was a refusal."""
    return ConnectionRefused(where, f"refused the session: {reason}", "Look into the broker's log.")


def publish_error(topic: str, reason: ReasonCode) -> TransportError | None:
    """What a PUBACK says, None for a success somebody receives."""
    if reason.value == _NO_MATCHING_SUBSCRIBERS:
        return PeerAbsent(topic, "nobody serves it now", "Is the peer running and connected?")
    if reason.value == _NOT_AUTHORIZED:
        return NotAuthorized(topic, "the broker's access list forbids it", _link_hint(topic))
    return TransportError(topic, f"the broker refused it: {reason}") if reason.is_failure else None


def _link_hint(topic: str) -> str:
    """What the access list lacks, as the command takes it that writes the list."""
    match topic.split("/"):
        case ["bsfg", _, serving, asking, *_]:
            link = f"--link {serving}:{asking}"
            return f"Write the list again with {link} among its links (bsfg broker config), unless a zone was shut out on purpose."
    return "Write the list again, with this peer: bsfg broker config."

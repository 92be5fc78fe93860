"""Explains to the operator why a connection to a server failed, and what to do.

A server that does not trust a client's certificate rarely reports that. OPC 10000-4, 6.1.3 allows it to hide the
reason, so BadSecurityChecksFailed, BadTcpInternalError or a closed socket arrives while the secure channel is opened.
The step at which a connection failed is more informative than the status; this table combines both. Core.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from agent.ingest.errors import SourceBusy, SourceError, SourceLost, SourceRefused
from agent.ingest.opcua.security.certificate_facts import CertificateFacts


class ConnectStep(Enum):
    """The steps of connecting, in their order; the value completes "while ..."."""

    TCP = "the TCP connection is opened"
    HELLO = "the first OPC UA message is answered"
    CHANNEL = "the secure channel is opened"
    SESSION = "the session is created"
    USER = "the user is checked"


CLOSED = "the server closes the connection"
SILENT = "no answer in time"
NOT_OPC_UA = "the answer is not OPC UA"
SWAPPED = "another certificate than at first"
NAME_UNKNOWN = "the host name is unknown"
PORT_CLOSED = "the port is closed"

_HIDDEN = {"BadCertificateUntrusted", "BadSecurityChecksFailed", "BadTcpInternalError", CLOSED}
_ISSUER = {
    *("BadCertificateChainIncomplete", "BadCertificateIssuerTimeInvalid", "BadCertificateIssuerUseNotAllowed"),
    *("BadCertificateIssuerRevocationUnknown", "BadCertificateIssuerRevoked", "BadCertificateRevocationUnknown"),
}
_UNUSABLE = {
    *("BadCertificateInvalid", "BadCertificateUseNotAllowed", "BadCertificateHostNameInvalid"),
    *("BadCertificatePolicyCheckFailed", "BadCertificateRevoked"),
}
_POLICY = {"BadSecurityPolicyRejected", "BadSecurityModeRejected", "BadSecurityModeInsufficient"}
_USER = {
    *("BadIdentityTokenRejected", "BadIdentityTokenInvalid", "BadUserAccessDenied", "BadUserSignatureInvalid"),
}
_BUSY = {"BadTooManySessions", "BadTcpServerTooBusy", "BadMaxConnectionsReached", "BadTcpNotEnoughResources"}


@dataclass(frozen=True, slots=True)
class Failure:
    """The step at which a connection failed, and how. `status` is a symbolic status or one of the texts above."""

    step: ConnectStep
    status: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """Our identity at the server: our certificate, its file to import, and the user. None and "" without security."""

    url: str
    policy: str
    certificate: CertificateFacts | None = None
    file_to_import: str = ""
    user: str = ""


def explain(failure: Failure, identity: ClientIdentity, session_s: float = 0) -> SourceError:
    """The error that says in one line what happened, at which server, and what to do. SourceRefused: something must be
    changed before another attempt can succeed. `session_s`: how long the server keeps a dead session of ours."""
    status, own = failure.status, identity.certificate
    if failure.step in (ConnectStep.TCP, ConnectStep.HELLO):
        return _not_reached(failure, identity)
    if failure.step is ConnectStep.USER and (status in _USER or status.startswith("BadCertificate")):
        return _user_refused(status, identity)
    if status == SWAPPED:
        text = f"{identity.url} presents another certificate in the session than before, or cannot sign with its key"
        return SourceRefused(f"{text}; something between may answer in its place: find out what is at this address")
    if failure.step is ConnectStep.CHANNEL and identity.policy == "None" and status in {*_POLICY, *_HIDDEN}:
        return _nothing_unsecured(status, identity)
    if status in _POLICY:
        text = f"{identity.url} refuses the security policy {identity.policy} ({status})"
        return SourceRefused(f"{text}; choose one that `bsfg opcua test {identity.url}` lists")
    if own is not None and failure.step in (ConnectStep.CHANNEL, ConnectStep.SESSION):
        if status in _HIDDEN:
            return _untrusted(failure, identity, own)
        if found := _certificate_refused(status, identity, own):
            return found
    if status in _BUSY:
        text = (
            f"{identity.url} accepts no further connection ({status}); if a bsfg was killed or lost its power, the server keeps its"
            f" session for {session_s:.0f} s, and the source then connects by itself; otherwise close another client of it"
            " or raise its limit of sessions"
        )
        return SourceBusy(text)
    what = f"{status} {failure.detail}".strip()
    return SourceLost(f"no connection to {identity.url}: {what} while {failure.step.value}")


def _nothing_unsecured(status: str, identity: ClientIdentity) -> SourceError:
    """The server does not even say without security what it offers, so `bsfg opcua test` cannot list it."""
    text = f"{identity.url} answers nothing without security, not even which policies it offers ({status})"
    todo = "export its certificate there, and set server_certificate_file (--server-certificate of `bsfg opcua test`)"
    if status == CLOSED:  # or the server goes down
        text = f"no connection to {identity.url}: {CLOSED} while {ConnectStep.CHANNEL.value}; if that remains, it"
        text += " may answer nothing without security"
    kind = SourceLost if status == CLOSED else SourceRefused
    return kind(f"{text}; {todo} and security_policy to the one that it has")


def _not_reached(failure: Failure, identity: ClientIdentity) -> SourceError:
    hints = {
        NAME_UNKNOWN: "the host name of {url} is unknown here ({detail}); correct it, or write the IP address",
        PORT_CLOSED: "nothing listens at {url}; is the server running, and is the port right (4840 is the usual one)?",
        NOT_OPC_UA: "what answers at {url} is not an OPC UA server ({detail}); correct host and port",
    }
    if failure.status in hints:
        return SourceLost(hints[failure.status].format(url=identity.url, detail=failure.detail))
    if failure.status == SILENT:
        what = (
            "the address does not answer"
            if failure.step is ConnectStep.TCP
            else "the port is open, but nothing answers"
        )
        return SourceLost(f"no connection to {identity.url}: {what}; check the address, the server and firewalls")
    if failure.step is ConnectStep.HELLO and failure.status == CLOSED:
        text = f"{identity.url} closes the connection at the first OPC UA message"
        return SourceLost(f"{text}; is it an OPC UA server with opc.tcp at this port, and not too busy?")
    what = f"{failure.status} {failure.detail}".strip()
    text = f"no connection to {identity.url}: {what} while {failure.step.value}"
    return SourceLost(f"{text}; check the address, the server and firewalls")


def _untrusted(failure: Failure, identity: ClientIdentity, own: CertificateFacts) -> SourceError:
    what = "refuses us, most likely because it does not trust our certificate"
    if failure.status == "BadCertificateUntrusted":
        what = "does not trust our certificate"
    return SourceRefused(
        f"{identity.url} {what} ({failure.status} while {failure.step.value}); at the server, move the certificate with"
        f" thumbprint {own.sha1} (SHA-1; SHA-256 {own.sha256}) from rejected to trusted, or import"
        f" {identity.file_to_import} there; the source then connects by itself",
    )


def _certificate_refused(status: str, identity: ClientIdentity, own: CertificateFacts) -> SourceRefused | None:
    ours = f"our certificate (thumbprint {own.sha1}, {identity.file_to_import})"
    if status == "BadCertificateTimeInvalid":
        text = f"{identity.url} finds {ours} not valid at its time ({status}); it is valid from {own.validity}"
        return SourceRefused(f"{text}; set the server's clock, or renew the certificate: bsfg opcua certificate")
    if status == "BadCertificateUriInvalid":
        uris = ", ".join(own.uris) or "none"
        text = f"{identity.url} finds another application URI than the one in {ours} ({status})"
        return SourceRefused(f"{text}; the certificate has {uris}: set application_uri to that")
    if status in _ISSUER:
        text = f"{identity.url} cannot check the issuer of {ours} ({status})"
        return SourceRefused(f"{text}; import the issuer's certificate and its revocation list at the server")
    if status in _UNUSABLE:
        text = f"{identity.url} cannot use {ours} ({status})"
        return SourceRefused(f"{text}; let `bsfg opcua certificate` make one, and trust that at the server")
    return None


def _user_refused(status: str, identity: ClientIdentity) -> SourceError:
    if not identity.user:
        text = f"{identity.url} accepts no anonymous user ({status})"
        return SourceRefused(f"{text}; set user_name and password_file, or user_certificate_file")
    text = f"{identity.url} refuses {identity.user} ({status})"
    return SourceRefused(f"{text}; check name, password or certificate, and the user's rights at the server")

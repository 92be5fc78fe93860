"""Secures a connection to an OPC UA server, with our key pair and the expected certificate of the server.

Without an expected certificate the library accepts any one, so here it is always given. The certificate that the server
presents without security is judged before anything else is sent (`trust_list`), and the channel is encrypted for
exactly that one. An unknown one is refused, with its thumbprint and what to do. There is no fallback to a weaker
policy. A password is only sent encrypted: by the channel, or by the token policy for that certificate. A key or
password that everybody on the machine may read is not used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from urllib.parse import urlsplit

from asyncua import ua
from asyncua.client.client import Client
from asyncua.crypto import security_policies
from asyncua.ua.uaerrors import UaError
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from agent.ingest.errors import ServerCertificateChanged, SourceRefused
from agent.ingest.opcua.security.certificate import (
    ensure_certificate,
    file_to_import,
    own_certificate,
    read_certificate,
    read_key_of,
    read_password,
)
from agent.ingest.opcua.security.certificate_facts import (
    CertificateFacts,
    parse_certificate,
    public_key_of,
    split_chain,
)
from agent.ingest.opcua.security.refusal import ClientIdentity
from agent.ingest.opcua.security.trust_folder import TrustError, TrustFolder
from agent.ingest.opcua.security.trust_list import Presented, TrustList, TrustVerdict, judge
from agent.settings.sources import OpcuaSourceSettings

SHOWN_DIGITS = 16  # of a thumbprint in a line for people; `bsfg opcua trust` takes them, and none can be forged
Endpoints = Callable[[], Awaitable[list[ua.EndpointDescription]]]
_TOKEN_POLICIES = {  # that encrypt a password; also those that are too old for a channel, but asyncua has them
    *("Basic256Sha256", "Aes128Sha256RsaOaep", "Aes256Sha256RsaPss", "Basic256", "Basic128Rsa15"),
}
_TOKEN_URIS = {getattr(security_policies, f"SecurityPolicy{name}").URI for name in _TOKEN_POLICIES}


@dataclass(frozen=True, slots=True)
class ServerKey:
    """A server's certificate as the library's policies use it. The library would parse it strictly."""

    der: bytes

    def public_key(self) -> PublicKeyTypes:
        """Its key."""
        return public_key_of(self.der)

    def public_bytes(self, _: object) -> bytes:
        """Its DER form."""
        return self.der


class SecuredClient(Client):
    """The library's client for a server whose certificate was accepted as `server_key`. A password is encrypted for
    that one, whatever the session shows, or by the channel."""

    server_key: ServerKey | None = None

    def server_policy(self, token_type: ua.UserTokenType) -> ua.UserTokenPolicy:
        policy, encryption = token_policy(self._policy_ids, token_type, self.security_policy.URI)
        if policy is None:
            return super().server_policy(token_type)
        return replace(policy, SecurityPolicyUri=encryption or security_policies.SecurityPolicyNone.URI)

    def _add_user_auth(self, params: ua.ActivateSessionParameters, username: str | None, password: str | None) -> None:
        encryption = self.server_policy(ua.UserTokenType.UserName).SecurityPolicyUri
        is_encrypted = encryption in _TOKEN_URIS
        url, mode = self.server_url.geturl(), self.security_policy.Mode
        if refusal := password_refusal(url, mode, encryption if is_encrypted else ""):
            raise refusal
        super()._add_user_auth(params, username, password)

    def _encrypt_password(self, password: str, policy_uri: str) -> tuple[bytes, str]:
        assert self.server_key is not None, "a user is set together with the certificate"
        nonce: bytes | None = self._server_nonce
        secret = ua.ua_binary.Primitives.Bytes.pack(password.encode() + (nonce or b""))
        key = self.server_key.public_key()
        data, uri = security_policies.encrypt_asymmetric(key, secret, policy_uri)  # type: ignore[no-untyped-call]
        return bytes(data), str(uri)


async def secure(
    client: SecuredClient, settings: OpcuaSourceSettings, endpoints: Endpoints, password: str = ""
) -> ClientIdentity:
    """Set up signing and encryption for a server whose certificate is accepted; without a security policy, only the
    user, whose password is encrypted for that certificate. `endpoints` reads what the server offers.

    `password` is used if there is no `password_file`. Returns our identity. Raises SourceRefused, and what `endpoints`
    raises.
    """
    if settings.security_policy == "None":
        user = _set_user(client, settings, password)
        server = await _server_certificate(settings, endpoints)
        client.server_key = ServerKey(server.der)
        return ClientIdentity(settings.url, "None", user=user)
    certificate, key_file = settings.certificate_file, settings.private_key_file
    assert certificate is not None, "checked with the settings"
    assert key_file is not None, "checked with the settings"
    await asyncio.to_thread(ensure_certificate, certificate, key_file, settings.application_uri)
    own = own_certificate(settings)
    key = read_key_of(own, key_file)
    user = _set_user(client, settings, password)
    server = await _server_certificate(settings, endpoints)
    client.server_key = ServerKey(server.der)
    policy = getattr(security_policies, f"SecurityPolicy{settings.security_policy}")
    mode = ua.MessageSecurityMode[settings.security_mode]
    client.security_policy = policy(client.server_key, parse_certificate(own.der), key, mode)
    client.uaclient.set_security(client.security_policy)
    file = await asyncio.to_thread(file_to_import, certificate)
    return ClientIdentity(settings.url, settings.security_policy, own, str(file), user)


async def _server_certificate(settings: OpcuaSourceSettings, endpoints: Endpoints) -> CertificateFacts:
    """The server's certificate, which the settings accept. Raises SourceRefused, and what `endpoints` raises."""
    pinned = None if settings.server_certificate_file is None else read_certificate(settings.server_certificate_file)
    found = await _offered(endpoints, pinned)
    if found is None:
        assert pinned is not None, "without a pinned certificate the server's answer is needed"
        return pinned
    endpoint = choose_endpoint(settings, found)
    _check_user(settings, endpoint)
    return await asyncio.to_thread(_accepted, settings, presented_by(settings, endpoint), pinned)


def token_policy(
    offered: Iterable[ua.UserTokenPolicy], kind: ua.UserTokenType, security_policy_uri: str
) -> tuple[ua.UserTokenPolicy | None, str]:
    """The policy of a server for a kind of user, and the URI by which it encrypts; empty if it does not. Of several the
    first that encrypts. `security_policy_uri`, of the connection, is used by a policy that names none."""
    found = [(offer, offer.SecurityPolicyUri or security_policy_uri) for offer in offered if offer.TokenType == kind]
    encrypting = [(offer, uri) for offer, uri in found if uri in _TOKEN_URIS]
    return encrypting[0] if encrypting else (found[0][0] if found else None, "")


def password_refusal(url: str, mode: ua.MessageSecurityMode, encryption_uri: str) -> SourceRefused | None:
    """Why a password is not sent over this connection, by this token policy."""
    if encryption_uri or mode is ua.MessageSecurityMode.SignAndEncrypt:
        return None
    text = f"{url} takes the password only unencrypted ({mode.name.rstrip('_')}), so that the network could read it"
    return SourceRefused(
        f"{text}; at the server, enable SignAndEncrypt, or a user token policy that encrypts (Basic256Sha256)"
    )


def choose_endpoint(
    settings: OpcuaSourceSettings, endpoints: Sequence[ua.EndpointDescription]
) -> ua.EndpointDescription:
    """The endpoint with the policy and mode of the settings. Raises SourceRefused."""
    wanted = (settings.security_policy, settings.security_mode)
    # Endpoints with https have other certificates.
    ours = [endpoint for endpoint in endpoints if str(endpoint.EndpointUrl).startswith("opc.tcp:")]
    fitting = [endpoint for endpoint in ours if (policy_name(endpoint), mode_name(endpoint)) == wanted]
    for endpoint in fitting:
        if endpoint.ServerCertificate:
            return endpoint
    if fitting and settings.security_policy == "None":
        text = f"{settings.url} shows no certificate for which the password could be encrypted"
        raise SourceRefused(f"{text}; give it one at the server, or use it without user_name")
    offered = ", ".join(sorted({f"{policy_name(e)}/{mode_name(e)}" for e in ours})) or "nothing"
    raise SourceRefused(f"{settings.url} does not offer {'/'.join(wanted)}; it offers {offered}")


def policy_name(endpoint: ua.EndpointDescription) -> str:
    """The security policy of an endpoint as in the settings; the end of its URI if it is not one of these."""
    names = {
        getattr(security_policies, f"SecurityPolicy{name}").URI: name
        for name in ("Basic256Sha256", "Aes128Sha256RsaOaep", "Aes256Sha256RsaPss")
    }
    uri = str(endpoint.SecurityPolicyUri)
    return names.get(uri, uri.rpartition("#")[2])


def mode_name(endpoint: ua.EndpointDescription) -> str:
    """The security mode of an endpoint as in the settings."""
    return str(endpoint.SecurityMode.name).rstrip("_")


def presented_by(settings: OpcuaSourceSettings, endpoint: ua.EndpointDescription) -> Presented:
    """What the server presents at an endpoint. Raises SourceRefused."""
    try:
        chain = tuple(split_chain(endpoint.ServerCertificate))
    except ValueError as error:
        raise SourceRefused(f"{settings.url} presents a certificate that {error}; renew it at the server") from error
    return Presented(chain, endpoint.Server.ApplicationUri or "", urlsplit(settings.url).hostname or "")


def judge_server(
    settings: OpcuaSourceSettings, presented: Presented, pinned: CertificateFacts | None = None
) -> TrustVerdict:
    """Judge what the server presents by the settings. `pinned` is the certificate in `server_certificate_file`. Raises
    SourceRefused."""
    sha256 = pinned.sha256 if pinned is not None else settings.server_certificate_sha256
    accepted = TrustList(pinned_sha256=sha256)
    try:
        if settings.trust_folder is not None and not sha256:
            folder = TrustFolder(settings.trust_folder)
            accepted = TrustList(
                trusted=frozenset(trusted.facts.sha256 for trusted in folder.certificates("trusted")),
                issuers=tuple(folder.issuers()),
                revocation_lists=tuple(folder.revocation_lists()),
                is_revocation_list_required=settings.crl_required,
            )
        return judge(presented, accepted, datetime.now(UTC))
    except TrustError as error:
        raise SourceRefused(str(error)) from error
    except ValueError as error:
        raise SourceRefused(f"{settings.url} presents a certificate that cannot be read: {error}") from error


def _accepted(settings: OpcuaSourceSettings, presented: Presented, pinned: CertificateFacts | None) -> CertificateFacts:
    """The server's certificate, if the settings accept it."""
    verdict = judge_server(settings, presented, pinned)
    if verdict.trust is None:
        before = _trusted_before(settings, verdict.facts, pinned) if verdict.is_unknown else ""
        if before:
            raise ServerCertificateChanged(_changed(settings, verdict, before))
        raise SourceRefused(_not_accepted(settings, verdict))
    return verdict.facts


def _trusted_before(settings: OpcuaSourceSettings, facts: CertificateFacts, pinned: CertificateFacts | None) -> str:
    """The first digits of the thumbprint that was trusted for this server: the pinned one, or that of a certificate in
    trusted/ with the same application URI. Empty if there is none."""
    if pinned is not None or settings.server_certificate_sha256:
        return f"SHA-256 {(pinned.sha256 if pinned else settings.server_certificate_sha256)[:SHOWN_DIGITS]}"
    if settings.trust_folder is None:
        return ""
    try:
        known = [trusted.facts for trusted in TrustFolder(settings.trust_folder).certificates("trusted")]
    except TrustError:
        return ""
    of_server = [certificate for certificate in known if set(certificate.uris) & set(facts.uris)]
    newest = max(of_server, key=lambda certificate: certificate.not_before, default=None)
    return "" if newest is None else f"SHA-1 {newest.sha1[:SHOWN_DIGITS]}"


def _changed(settings: OpcuaSourceSettings, verdict: TrustVerdict, before: str) -> str:
    """The message for another certificate than the trusted one, which is saved in rejected/: one line, and what to do
    if it is right."""
    facts, folder = verdict.facts, settings.trust_folder
    is_pinned = before.startswith("SHA-256")
    now = f"SHA-256 {facts.sha256[:SHOWN_DIGITS]}" if is_pinned else f"SHA-1 {facts.sha1[:SHOWN_DIGITS]}"
    text = f"the server's certificate changed: {now}, before {before}"
    if verdict.also_why:
        text += f", and it {verdict.also_why}"
    if not is_pinned and folder is not None:
        try:
            TrustFolder(folder).reject(facts)
        except TrustError as error:
            text += f", and it cannot be kept: {error}"
        if not verdict.also_why:
            command = f"bsfg opcua trust {facts.sha1[:SHOWN_DIGITS]} --pki {folder}"
            return f"{text}; if it was renewed: {command}; bsfg source retry {settings.name}"
    line = f'server_certificate_sha256 = "{facts.sha256}"'
    if settings.server_certificate_file is not None:
        line = f"server_certificate_file to a file with it, or {line}"
    return f"{text}; if it was renewed, set {line}"


def _not_accepted(settings: OpcuaSourceSettings, verdict: TrustVerdict) -> str:
    """The message for a certificate that is not accepted. An unknown one is saved in rejected/."""
    facts, folder = verdict.facts, settings.trust_folder
    text = f"the certificate of {settings.url} ({facts.thumbprints}) {verdict.why}"
    if not verdict.is_unknown:
        return f"{text}; {verdict.todo}"
    if verdict.also_why:
        text += f", and {verdict.also_why}"
    if folder is not None:
        try:
            text += f"; it is kept as {TrustFolder(folder).reject(facts)}"
        except TrustError as error:
            text += f"; {error}"
        if not verdict.also_why:
            return f"{text}; compare it at the server, then run: bsfg opcua trust {facts.sha1} --pki {folder}"
    return f'{text}; compare it at the server, then set server_certificate_sha256 = "{facts.sha256}" (--server-sha256)'


async def _offered(endpoints: Endpoints, pinned: CertificateFacts | None) -> list[ua.EndpointDescription] | None:
    """The endpoints of the server. None if it does not give them without security, which is no problem if the file of
    its certificate is pinned."""
    try:
        return await endpoints()
    except (UaError, ConnectionError):
        if pinned is None:
            raise
        return None


def _set_user(client: SecuredClient, settings: OpcuaSourceSettings, password: str) -> str:
    """Set the user of the client. Returns its name for messages, empty for anonymous. Raises SourceRefused."""
    if settings.user_certificate_file is not None:
        assert settings.user_private_key_file is not None, "checked with the settings"
        user = read_certificate(settings.user_certificate_file)
        client.user_private_key = read_key_of(user, settings.user_private_key_file)
        client.user_certificate = parse_certificate(user.der)
        return f"the user certificate {settings.user_certificate_file} (SHA-1 {user.sha1})"
    if settings.user_name:
        if settings.password_file is not None:
            password = read_password(settings.password_file)
        client.set_user(settings.user_name)
        client.set_password(password)
        return f"user {settings.user_name}"
    return ""


def _check_user(settings: OpcuaSourceSettings, endpoint: ua.EndpointDescription) -> None:
    """Raise SourceRefused for a kind of user that the endpoint does not accept, before a password is sent."""
    kinds = {
        ua.UserTokenType.Anonymous: "anonymous users",
        ua.UserTokenType.UserName: "user names (user_name, password_file)",
        ua.UserTokenType.Certificate: "user certificates (user_certificate_file, user_private_key_file)",
    }
    ours = ua.UserTokenType.UserName if settings.user_name else ua.UserTokenType.Anonymous
    if settings.user_certificate_file is not None:
        ours = ua.UserTokenType.Certificate
    tokens = endpoint.UserIdentityTokens or ()
    taken = {token.TokenType for token in tokens}
    if taken and ours not in taken:
        names = ", ".join(kinds[kind] for kind in kinds if kind in taken) or "other kinds of user only"
        raise SourceRefused(f"{settings.url} accepts no {kinds[ours].partition(' (')[0]}; it accepts {names}")
    if ours is ua.UserTokenType.UserName and taken:
        _, encryption = token_policy(tokens, ours, str(endpoint.SecurityPolicyUri))
        if refusal := password_refusal(settings.url, endpoint.SecurityMode, encryption):
            raise refusal

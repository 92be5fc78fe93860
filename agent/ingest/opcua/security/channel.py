"""Secures a connection to an OPC UA server, with our key pair and the expected certificate of the server.

Without an expected certificate the library accepts any one, so here it is always given. The certificate that the server
presents without security is judged before anything else is sent (`trust_list`), and the channel is encrypted for
exactly that one. An unknown one is refused, with its thumbprint and what to do. There is no fallback to a weaker
policy. A key or password that everybody on the machine may read is not used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from urllib.parse import urlsplit

from asyncua import ua
from asyncua.client.client import Client
from asyncua.crypto import security_policies, uacrypto
from asyncua.ua.uaerrors import UaError
from cryptography.hazmat.primitives import serialization

from agent.ingest.errors import ServerCertificateChanged, SourceRefused
from agent.ingest.opcua.security.certificate import (
    ensure_certificate,
    file_to_import,
    own_certificate,
    read_certificate,
    read_key_of,
    read_secret,
)
from agent.ingest.opcua.security.certificate_facts import CertificateFacts, parse_certificate, split_chain
from agent.ingest.opcua.security.refusal import Identity
from agent.ingest.opcua.security.trust_folder import TrustError, TrustFolder
from agent.ingest.opcua.security.trust_list import Presented, TrustList, Verdict, judge
from agent.settings.sources import OpcuaSourceSettings

SHOWN_DIGITS = 16  # of a thumbprint in a line for people; `bsfg opcua trust` takes them, and none can be forged
Endpoints = Callable[[], Awaitable[list[ua.EndpointDescription]]]


async def secure(client: Client, settings: OpcuaSourceSettings, endpoints: Endpoints, password: str = "") -> Identity:
    """Set up signing and encryption for a server whose certificate is accepted. `endpoints` reads what the server
    offers.

    `password` is used if there is no `password_file`. Returns our identity. Raises SourceRefused, and what `endpoints`
    raises.
    """
    certificate, key_file = settings.certificate_file, settings.private_key_file
    assert certificate is not None, "checked with the settings"
    assert key_file is not None, "checked with the settings"
    await asyncio.to_thread(ensure_certificate, certificate, key_file, settings.application_uri)
    own = own_certificate(settings)
    key = read_key_of(own, key_file)
    user = _set_user(client, settings, password)
    pinned = None if settings.server_certificate_file is None else read_certificate(settings.server_certificate_file)
    found = await _offered(endpoints, pinned)
    server = pinned
    if found is not None:
        endpoint = choose_endpoint(settings, found)
        _check_user(settings, endpoint)
        server = await asyncio.to_thread(_accepted, settings, presented_by(settings, endpoint), pinned)
    assert server is not None, "without a pinned certificate the server's answer is needed"
    form = serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    await client.set_security(
        getattr(security_policies, f"SecurityPolicy{settings.security_policy}"),
        uacrypto.CertProperties(own.der, "der"),
        uacrypto.CertProperties(key.private_bytes(*form), "der"),
        server_certificate=uacrypto.CertProperties(server.der, "der"),
        mode=ua.MessageSecurityMode[settings.security_mode],
    )
    file = await asyncio.to_thread(file_to_import, certificate)
    return Identity(settings.url, settings.security_policy, own, str(file), user)


def choose_endpoint(
    settings: OpcuaSourceSettings, endpoints: Sequence[ua.EndpointDescription]
) -> ua.EndpointDescription:
    """The endpoint with the policy and mode of the settings. Raises SourceRefused."""
    mode = ua.MessageSecurityMode[settings.security_mode]
    uri = getattr(security_policies, f"SecurityPolicy{settings.security_policy}").URI
    # Endpoints with https have other certificates.
    ours = [each for each in endpoints if str(each.EndpointUrl).startswith("opc.tcp:")]
    for endpoint in ours:
        if endpoint.SecurityMode == mode and endpoint.SecurityPolicyUri == uri and endpoint.ServerCertificate:
            return endpoint
    offered = ", ".join(sorted({f"{policy_name(e)}/{mode_name(e)}" for e in ours})) or "nothing"
    wanted = f"{settings.security_policy}/{settings.security_mode}"
    raise SourceRefused(f"{settings.url} does not offer {wanted}; it offers {offered}")


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
) -> Verdict:
    """Judge what the server presents by the settings. `pinned` is the certificate in `server_certificate_file`. Raises
    SourceRefused."""
    sha256 = pinned.sha256 if pinned is not None else settings.server_certificate_sha256
    accepted = TrustList(pinned_sha256=sha256)
    try:
        if settings.trust_folder is not None and not sha256:
            folder = TrustFolder(settings.trust_folder)
            accepted = TrustList(
                trusted=frozenset(each.facts.sha256 for each in folder.certificates("trusted")),
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
        known = [each.facts for each in TrustFolder(settings.trust_folder).certificates("trusted")]
    except TrustError:
        return ""
    of_server = [one for one in known if set(one.uris) & set(facts.uris)]
    newest = max(of_server, key=lambda one: one.not_before, default=None)
    return "" if newest is None else f"SHA-1 {newest.sha1[:SHOWN_DIGITS]}"


def _changed(settings: OpcuaSourceSettings, verdict: Verdict, before: str) -> str:
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


def _not_accepted(settings: OpcuaSourceSettings, verdict: Verdict) -> str:
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
    return f'{text}; compare it at the server, then set server_certificate_sha256 = "{facts.sha256}"'


async def _offered(endpoints: Endpoints, pinned: CertificateFacts | None) -> list[ua.EndpointDescription] | None:
    """The endpoints of the server. None if it does not give them without security, which is no problem if its
    certificate is pinned."""
    try:
        return await endpoints()
    except UaError:
        if pinned is None:
            raise
        return None


def _set_user(client: Client, settings: OpcuaSourceSettings, password: str) -> str:
    """Set the user of the client. Returns its name for messages, empty for anonymous. Raises SourceRefused."""
    if settings.user_certificate_file is not None:
        assert settings.user_private_key_file is not None, "checked with the settings"
        user = read_certificate(settings.user_certificate_file)
        client.user_private_key = read_key_of(user, settings.user_private_key_file)
        client.user_certificate = parse_certificate(user.der)
        return f"the user certificate {settings.user_certificate_file} (SHA-1 {user.sha1})"
    if settings.user_name:
        if settings.password_file is not None:
            password = read_secret(settings.password_file).decode().rstrip("\r\n")
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
    taken = {token.TokenType for token in endpoint.UserIdentityTokens or ()}
    if taken and ours not in taken:
        names = ", ".join(kinds[kind] for kind in kinds if kind in taken) or "other kinds of user only"
        raise SourceRefused(f"{settings.url} accepts no {kinds[ours].partition(' (')[0]}; it accepts {names}")

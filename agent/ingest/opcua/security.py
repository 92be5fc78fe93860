"""How a connection to an OPC UA server is secured: our key pair, and the server's certificate, known beforehand.

The library takes whatever certificate a server shows when it is not told which one to expect; here it is always told.
What the server shows unsecured is compared with what the operator named before anything else is sent. An unknown
certificate is refused with its fingerprint and the line to paste, nothing falls back to a weaker policy, and a key or
password that everybody on the machine may read is not used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from asyncua import ua
from asyncua.client.client import Client
from asyncua.crypto import security_policies, uacrypto
from asyncua.ua.uaerrors import UaError

from agent.ingest.errors import SourceRefused
from agent.ingest.opcua.certificate import ensure_certificate, hand_over_file
from agent.ingest.opcua.certificate_facts import CertificateFacts, facts_of, split_chain
from agent.ingest.opcua.refusal import Identity
from agent.ingest.settings import OpcuaSourceSettings

Endpoints = Callable[[], Awaitable[list[ua.EndpointDescription]]]


async def secure(client: Client, settings: OpcuaSourceSettings, endpoints: Endpoints) -> Identity:
    """Sign and encrypt, with the server's certificate known beforehand; `endpoints` asks the server what it offers.
    Returns who we are to the server. Raises SourceRefused, and what `endpoints` raises."""
    certificate, key = settings.certificate_file, settings.private_key_file
    assert certificate is not None, "checked with the settings"
    assert key is not None, "checked with the settings"
    await asyncio.to_thread(ensure_certificate, certificate, key, settings.application_uri)
    own, key_data = own_certificate(settings), read_secret(key)
    pinned = _pinned_certificate(settings)
    if settings.user_name:
        assert settings.password_file is not None, "checked with the settings"
        client.set_user(settings.user_name)
        client.set_password(read_secret(settings.password_file).decode().rstrip("\r\n"))
    shown = _shown_certificate(settings, await _offered(endpoints, pinned))
    if shown is not None:
        _check_pinned(settings, shown, pinned)
    server = shown or pinned
    assert server is not None, "without a pinned certificate the server's answer is needed"
    await client.set_security(
        getattr(security_policies, f"SecurityPolicy{settings.security_policy}"),
        uacrypto.CertProperties(own.der, "der"),
        _pem_or_der(key_data),
        server_certificate=uacrypto.CertProperties(server.der, "der"),
        mode=ua.MessageSecurityMode[settings.security_mode],
    )
    file = await asyncio.to_thread(hand_over_file, certificate)
    user = f"user {settings.user_name}" if settings.user_name else ""
    return Identity(settings.url, settings.security_policy, own, str(file), user)


def own_certificate(settings: OpcuaSourceSettings) -> CertificateFacts:
    """Our certificate, with the application URI that the settings announce. Raises SourceRefused."""
    file = settings.certificate_file
    assert file is not None, "checked with the settings"
    own = read_certificate(file)
    if settings.application_uri not in own.uris:
        uris = ", ".join(own.uris) or "none"
        text = f"application_uri is {settings.application_uri}, and the certificate {file} has {uris}"
        raise SourceRefused(f"{text}; servers refuse the difference: set application_uri to the certificate's")
    return own


def read_certificate(file: Path) -> CertificateFacts:
    """A certificate in PEM or DER. Raises SourceRefused."""
    try:
        return facts_of(read_file(file))
    except ValueError as error:
        raise SourceRefused(f"{file} is not a certificate (PEM or DER)") from error


def read_secret(file: Path) -> bytes:
    """A key or a password; refused while everybody on the machine may read it too."""
    data = read_file(file)
    if file.stat().st_mode & 0o007:
        raise SourceRefused(f"{file} may be read by everybody; chmod 600 it, and change what it held")
    return data


def read_file(file: Path) -> bytes:
    """The bytes of a file that the settings name. Raises SourceRefused."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise SourceRefused(f"{file} cannot be read: {error.strerror}") from error


async def _offered(endpoints: Endpoints, pinned: CertificateFacts | None) -> list[ua.EndpointDescription] | None:
    """What the server offers. None when it does not tell without security, which is no obstacle if we have its
    certificate."""
    try:
        return await endpoints()
    except UaError:
        if pinned is None:
            raise
        return None


def _shown_certificate(
    settings: OpcuaSourceSettings, endpoints: Sequence[ua.EndpointDescription] | None
) -> CertificateFacts | None:
    """The certificate at the endpoint with our policy and mode."""
    if endpoints is None:
        return None
    mode = ua.MessageSecurityMode[settings.security_mode]
    uri = getattr(security_policies, f"SecurityPolicy{settings.security_policy}").URI
    data = next((e.ServerCertificate for e in endpoints if e.SecurityMode == mode and e.SecurityPolicyUri == uri), None)
    if not data:
        offered = sorted({f"{e.SecurityPolicyUri.rsplit('#')[-1]}/{e.SecurityMode.name}" for e in endpoints})
        wanted = f"{settings.security_policy}/{settings.security_mode}"
        raise SourceRefused(f"{settings.url} does not offer {wanted}; it offers {', '.join(offered)}")
    try:
        return facts_of(split_chain(data)[0])
    except ValueError as error:
        raise SourceRefused(f"{settings.url} shows a certificate that cannot be read ({error})") from error


def _pinned_certificate(settings: OpcuaSourceSettings) -> CertificateFacts | None:
    """The server's certificate as a file of the operator's."""
    return None if settings.server_certificate_file is None else read_certificate(settings.server_certificate_file)


def _check_pinned(settings: OpcuaSourceSettings, shown: CertificateFacts, pinned: CertificateFacts | None) -> None:
    wanted = pinned.sha256 if pinned is not None else settings.server_certificate_sha256
    if shown.sha256 != wanted:
        known = "is not the pinned one" if wanted else "is not pinned yet"
        line = f'server_certificate_sha256 = "{shown.sha256}"'
        if pinned is not None:
            line = f"server_certificate_file to a file with it, or {line} instead"
        text = f"the certificate of {settings.url} (SHA-1 {shown.sha1}) {known}; compare it at the server"
        raise SourceRefused(f"{text}, then set {line}")


def _pem_or_der(data: bytes) -> uacrypto.CertProperties:
    """A key with its form told by its content; the library goes by the file's name."""
    return uacrypto.CertProperties(data, "pem" if b"-----BEGIN" in data else "der")

"""How a connection to an OPC UA server is secured: our key pair, and the server's certificate, known beforehand.

The second module that knows asyncua. The library takes whatever certificate a server shows when it is not told which
one to expect; here it is always told. An unknown certificate is refused with its fingerprint and the line to paste,
nothing falls back to a weaker policy, and a key or password that everybody on the machine may read is not used.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from asyncua import ua
from asyncua.client.client import Client
from asyncua.crypto import security_policies, uacrypto
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from agent.ingest.errors import SourceRefused
from agent.ingest.opcua.certificate import ensure_certificate
from agent.ingest.settings import OpcuaSourceSettings


async def secure(client: Client, settings: OpcuaSourceSettings, scout: Client) -> None:
    """Sign and encrypt, with the server's certificate known beforehand. `scout` may ask the server what it shows."""
    certificate, key = settings.certificate_file, settings.private_key_file
    assert certificate is not None, "checked with the settings"
    assert key is not None, "checked with the settings"
    await asyncio.to_thread(ensure_certificate, certificate, key, settings.application_uri)
    pinned = await _pinned_certificate(settings, scout)
    if settings.user_name:
        assert settings.password_file is not None, "checked with the settings"
        client.set_user(settings.user_name)
        client.set_password(_read_secret(settings.password_file).decode().rstrip("\r\n"))
    await client.set_security(
        getattr(security_policies, f"SecurityPolicy{settings.security_policy}"),
        _pem_or_der(_read(certificate)),
        _pem_or_der(_read_secret(key)),
        server_certificate=uacrypto.CertProperties(pinned, "der"),
        mode=ua.MessageSecurityMode[settings.security_mode],
    )


async def _pinned_certificate(settings: OpcuaSourceSettings, scout: Client) -> bytes:
    """The server's certificate (DER) that the operator has named; the one it shows is only compared with that."""
    if settings.server_certificate_file is not None:
        data = _read(settings.server_certificate_file)
        try:
            found = (
                x509.load_pem_x509_certificate(data) if b"-----BEGIN" in data else x509.load_der_x509_certificate(data)
            )
        except ValueError as error:
            raise SourceRefused(f"{settings.server_certificate_file} is not a certificate (PEM or DER)") from error
        return found.public_bytes(Encoding.DER)
    endpoints = await scout.connect_and_get_server_endpoints()
    mode = ua.MessageSecurityMode[settings.security_mode]
    uri = getattr(security_policies, f"SecurityPolicy{settings.security_policy}").URI
    shown = next(
        (e.ServerCertificate for e in endpoints if e.SecurityMode == mode and e.SecurityPolicyUri == uri), None
    )
    if not shown:
        offered = sorted({f"{e.SecurityPolicyUri.rsplit('#')[-1]}/{e.SecurityMode.name}" for e in endpoints})
        wanted = f"{settings.security_policy}/{settings.security_mode}"
        raise SourceRefused(f"{settings.url} does not offer {wanted}; it offers {', '.join(offered)}")
    shown = shown[: int.from_bytes(shown[2:4], "big") + 4]  # the first of a chain
    fingerprint = hashlib.sha256(shown).hexdigest()
    if fingerprint != settings.server_certificate_sha256:
        known = "is not the pinned one" if settings.server_certificate_sha256 else "is not pinned yet"
        line = f'server_certificate_sha256 = "{fingerprint}"'
        raise SourceRefused(f"the certificate of {settings.url} {known}; compare it at the server, then set {line}")
    return bytes(shown)


def _pem_or_der(data: bytes) -> uacrypto.CertProperties:
    """A certificate or key with its form told by its content; the library goes by the file's name."""
    return uacrypto.CertProperties(data, "pem" if b"-----BEGIN" in data else "der")


def _read_secret(file: Path) -> bytes:
    """A key or a password; refused while everybody on the machine may read it too."""
    data = _read(file)
    if file.stat().st_mode & 0o007:
        raise SourceRefused(f"{file} may be read by everybody; chmod 600 it, and change what it held")
    return data


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SourceRefused(f"{file} cannot be read: {error.strerror}") from error

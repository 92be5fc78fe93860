"""OPC UA with signing and encryption: the server's certificate is pinned, ours is made once, nothing falls back."""

import hashlib
import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from agent.ingest.errors import SourceRefused
from agent.ingest.opcua.security.certificate import ensure_certificate
from agent.ingest.opcua.security.certificate_facts import facts_of
from agent.ingest.opcua.security.trust_folder import TrustFolder
from agent.ingest.opcua.session import open_session
from agent.settings.sources import OpcuaSourceSettings
from tests.ingest.fakes import Program, running
from tests.ingest.opcua.security.certificates import certificate, der, key, revocation_list
from tests.ingest.test_sources import ingesting, opcua

SERVER_URI = "urn:freeopcua:python:server"  # what asyncua's server calls itself


@pytest.fixture(name="certificate")
def server_certificate(tmp_path: Path) -> Path:
    """The certificate of the plant's server, its key beside it."""
    file = tmp_path / "server.pem"
    ensure_certificate(file, tmp_path / "server.key", SERVER_URI)
    return file


@pytest.fixture(name="plc")
def secure_plc(certificate: Path) -> Iterator[Program]:
    """The plant's server, encrypted only."""
    key = certificate.with_suffix(".key")
    with running("opcua_server", "--certificate", str(certificate), "--private-key", str(key)) as program:
        yield program


def der_digest(certificate: Path) -> bytes:
    """SHA-256 of a certificate's DER form."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text())).digest()


def secured(port: int, folder: Path, **settings: object) -> OpcuaSourceSettings:
    """A source that signs and encrypts; its own key pair does not exist yet."""
    own = {"certificate_file": folder / "own" / "bsfg.pem", "private_key_file": folder / "own" / "bsfg.key"}
    policy = {"security_policy": "Basic256Sha256", "security_mode": "SignAndEncrypt", "insecure": False}
    return opcua(port, folder, **{**own, **policy, **settings})


@pytest.mark.system
async def test_an_unknown_certificate_is_refused_with_the_line_to_paste(
    plc: Program, certificate: Path, tmp_path: Path
) -> None:
    """Nothing is trusted on first use: the refusal names the fingerprint, and with it pinned, by line or by file,
    values come in; with another pinned they do not."""
    settings = secured(plc.port, tmp_path)
    with pytest.raises(SourceRefused, match="is not trusted") as caught:
        async with open_session(settings):
            pass
    line = str(caught.value).split("then set ")[1]
    fingerprint = line.removeprefix('server_certificate_sha256 = "').removesuffix('"')
    assert bytes.fromhex(fingerprint) == der_digest(certificate)

    for pinned in ({"server_certificate_sha256": fingerprint}, {"server_certificate_file": certificate}):
        async with ingesting(secured(plc.port, tmp_path, **pinned)) as run:
            await run.wait_good("plant/count_01", 3)

    with pytest.raises(
        SourceRefused, match=r"certificate changed: SHA-256 .*, before SHA-256 0{16}; if it was renewed, set"
    ):
        async with open_session(secured(plc.port, tmp_path, server_certificate_sha256="0" * 64)):
            pass


@pytest.mark.system
async def test_the_trust_folder_decides(tmp_path: Path) -> None:
    """An unknown certificate is kept, with the command that trusts it, and after that command values come in; one by a
    trusted issuer comes in with the issuer's list and is refused once the list names it."""
    now = datetime.now(UTC)
    server = certificate("plc", issuer="authority", uri=SERVER_URI, now=now)
    file, server_key = tmp_path / "server.pem", tmp_path / "server.key"
    file.write_bytes(server.public_bytes(Encoding.PEM))
    form = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    server_key.write_bytes(key("plc", 2048).private_bytes(*form))
    folder = TrustFolder(tmp_path / "trust")
    with running("opcua_server", "--certificate", str(file), "--private-key", str(server_key)) as plc:
        settings = secured(plc.port, tmp_path, trust_folder=folder.folder)
        command = f"then run: bsfg opcua trust {facts_of(der(server)).sha1} --pki {folder.folder}"
        with pytest.raises(SourceRefused, match=re.escape(command)):
            async with open_session(settings):
                pass
        folder.trust(facts_of(der(server)).sha1)
        async with ingesting(settings) as run:
            await run.wait_good("plant/count_01", 3)

        folder.distrust(facts_of(der(server)).sha1)
        folder.add("issuers", der(certificate("authority", is_authority=True, now=now)))
        with pytest.raises(SourceRefused, match="whose revocation list is missing"):
            async with open_session(settings):
                pass
        folder.add("crl", der(revocation_list(now=now)))
        async with open_session(settings) as session:
            assert await session.namespaces()
        folder.add("crl", der(revocation_list("authority", 7, days=(-4, 5), now=now)))
        with pytest.raises(SourceRefused, match="was revoked by its issuer CN=authority"):
            async with open_session(settings):
                pass


@pytest.mark.system
async def test_a_server_without_the_policy_is_refused(tmp_path: Path) -> None:
    """A server that offers only unencrypted endpoints gets nothing, and the error says what it does offer."""
    refusal = "does not offer Basic256Sha256/SignAndEncrypt; it offers None"
    with running("opcua_server") as plc, pytest.raises(SourceRefused, match=refusal):
        async with open_session(secured(plc.port, tmp_path)):
            pass


async def test_a_key_that_everybody_may_read_is_refused(tmp_path: Path) -> None:
    """A leaked key is not used, and the error says how to mend it; nothing is connected to before that."""
    settings = secured(4840, tmp_path, server_certificate_file=tmp_path / "own" / "bsfg.pem")
    assert settings.certificate_file is not None
    assert settings.private_key_file is not None
    ensure_certificate(settings.certificate_file, settings.private_key_file, "urn:bsfg:agent")
    settings.private_key_file.chmod(0o644)
    with pytest.raises(SourceRefused, match=r"bsfg\.key can be read by every user; chmod 600"):
        async with open_session(settings):
            pass


def test_our_certificate_is_made_once(tmp_path: Path) -> None:
    """The second start finds the first one's pair; half a pair is refused, never replaced."""
    certificate, key = tmp_path / "a" / "bsfg.pem", tmp_path / "a" / "bsfg.key"
    ensure_certificate(certificate, key, "urn:bsfg:agent")
    first = certificate.read_bytes(), key.read_bytes()
    assert key.stat().st_mode & 0o777 == 0o600
    ensure_certificate(certificate, key, "urn:bsfg:agent")
    assert (certificate.read_bytes(), key.read_bytes()) == first
    key.unlink()
    with pytest.raises(SourceRefused, match=r"bsfg\.key is missing"):
        ensure_certificate(certificate, key, "urn:bsfg:agent")

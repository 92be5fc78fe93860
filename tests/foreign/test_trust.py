"""The first day with a secured foreign server: it does not trust our certificate, and says so in its own way."""

import hashlib
import logging
import re
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from agent.ingest.settings import OpcuaSourceSettings
from tests.foreign.plant import opcua
from tests.foreign.server import ForeignServer, foreign_server
from tests.ingest.fakes import in_loop
from tests.ingest.plant import ingesting
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("node_opcua")]

COUNT = {"name": "count", "type": "Int32", "period_ms": 50}


def secured(
    server: ForeignServer, folder: Path, policy: str = "Basic256Sha256", **settings: object
) -> OpcuaSourceSettings:
    """A source that signs and encrypts, with the server's certificate pinned; its own does not exist yet."""
    own = {"certificate_file": folder / "own" / "bsfg.der", "private_key_file": folder / "own" / "bsfg.key"}
    security = {"security_policy": policy, "security_mode": "SignAndEncrypt", "insecure": False}
    pinned = {"server_certificate_file": server.certificate}
    return opcua(server, folder, "count", **{**own, **security, **pinned, **settings})


@in_loop
async def test_a_server_that_does_not_trust_us_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The error names the server, the thumbprint of our certificate, a file in DER to hand over, and what to do there.
    When the server's side has trusted that file, values come by themselves. A server that then goes away is another
    reason, and in the log as one."""
    caplog.set_level(logging.INFO, "agent.ingest")
    options = {"variables": [COUNT], "policies": ["Basic256Sha256"]}
    async with foreign_server(tmp_path / "server", **options) as server:
        source = secured(server, tmp_path)
        async with ingesting(source) as run:
            await wait_until_async(lambda: run.source("plc").errors_total >= 2, "refusals")
            told = run.source("plc").last_error
            file = Path(re.search(r"\S+\.der\b", told)[0])  # type: ignore[index]
            thumbprint = thumbprint_of(file)
            assert server.url in told
            assert thumbprint in told.lower().replace(":", "")
            assert "trust" in told
            assert thumbprint in " ".join(lost(caplog)).lower().replace(":", "")
            server.kill()
            await wait_until_async(lambda: len(lost(caplog)) >= 2, "another reason in the log")
            assert thumbprint not in lost(caplog)[-1].lower().replace(":", "")
            await server.start()
            await server.trust(file)
            await run.wait_good("f/count", 5)


def thumbprint_of(der: Path) -> str:
    """The SHA-1 of a certificate, which must be DER: what servers show."""
    certificate = x509.load_der_x509_certificate(der.read_bytes())
    return hashlib.sha1(certificate.public_bytes(Encoding.DER), usedforsecurity=False).hexdigest()


def lost(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The reasons of absence that the log tells."""
    return [record.why for record in caplog.records if hasattr(record, "why")]


@pytest.mark.parametrize("policy", ["Basic256Sha256", "Aes128Sha256RsaOaep", "Aes256Sha256RsaPss"])
def test_values_come_over_every_policy(policy: str, tmp_path: Path) -> None:
    """Signed and encrypted with each policy, as a user with a password, at a server that offers nothing less."""
    names = {"Aes128Sha256RsaOaep": "Aes128_Sha256_RsaOaep", "Aes256Sha256RsaPss": "Aes256_Sha256_RsaPss"}
    offered = names.get(policy, policy)
    password = tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o600)
    options = {"policies": [offered], "accept_unknown": True, "users": {"ann": "secret"}}

    @in_loop
    async def story() -> None:
        async with foreign_server(tmp_path / "server", variables=[COUNT], **options) as server:
            settings = secured(server, tmp_path, policy, user_name="ann", password_file=password)
            async with ingesting(settings) as run:
                await run.wait_good("f/count", 3)

    story()

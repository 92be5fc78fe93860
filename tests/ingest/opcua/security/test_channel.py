"""Which endpoint of a server is used, and that nothing is sent to one that does not fit the settings."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from asyncua import ua
from asyncua.crypto import security_policies

from agent.ingest.errors import SourceRefused
from agent.ingest.opcua.security.certificate_facts import facts_of
from agent.ingest.opcua.security.channel import choose_endpoint, judge_server, password_refusal, secure, token_policy
from agent.ingest.opcua.security.trust_folder import TrustFolder
from agent.ingest.opcua.security.trust_list import Presented, TrustReason
from agent.settings.sources import OpcuaSourceSettings
from tests.ingest.opcua.security.certificates import URI, certificate, der, revocation_list

SIGN, ENCRYPT = ua.MessageSecurityMode.Sign, ua.MessageSecurityMode.SignAndEncrypt
NOW = datetime.now(UTC)
AUTHORITY = certificate("authority", is_authority=True, now=NOW)
ISSUED = certificate(issuer="authority", now=NOW)


def settings(folder: Path, **more: Any) -> OpcuaSourceSettings:
    """A source that signs and encrypts."""
    files = {"certificate_file": folder / "own.der", "private_key_file": folder / "own.pem"}
    return OpcuaSourceSettings("plc", "opc.tcp://plc", folder / "t.csv", **{**files, **more})


def endpoint(
    mode: ua.MessageSecurityMode = ENCRYPT,
    policy: str = "Basic256Sha256",
    *,
    url: str = "opc.tcp://plc",
    shown: bytes = der(ISSUED),
    users: tuple[ua.UserTokenType, ...] = (),
) -> Any:
    """An endpoint as a server describes it."""
    return SimpleNamespace(
        EndpointUrl=url,
        SecurityMode=mode,
        SecurityPolicyUri=getattr(security_policies, f"SecurityPolicy{policy}").URI,
        ServerCertificate=shown,
        Server=SimpleNamespace(ApplicationUri=URI),
        UserIdentityTokens=[SimpleNamespace(TokenType=kind) for kind in users],
    )


def test_an_endpoint_has_the_mode_and_the_policy_of_the_settings(tmp_path: Path) -> None:
    """Never a weaker one that the server names first, one of another protocol, or one without a certificate."""
    wrong = [
        endpoint(SIGN),
        endpoint(policy="Aes128Sha256RsaOaep"),
        endpoint(url="https://plc"),
        endpoint(shown=b""),
    ]
    right, used = endpoint(), settings(tmp_path, security_policy="Basic256Sha256", security_mode="SignAndEncrypt")
    assert choose_endpoint(used, [*wrong, right]) is right
    with pytest.raises(SourceRefused, match="does not offer Basic256Sha256/SignAndEncrypt"):
        choose_endpoint(used, wrong)


async def test_an_unknown_certificate_is_refused_with_the_line_to_paste(tmp_path: Path) -> None:
    """Nothing is trusted on first use, and the connection is not secured: the refusal names the fingerprint. With that
    pinned it is secured, with another one not."""
    client: Any = SimpleNamespace(uaclient=Mock())
    offered = AsyncMock(return_value=[endpoint()])
    sha256 = facts_of(der(ISSUED)).sha256
    with pytest.raises(SourceRefused, match=f'then set server_certificate_sha256 = "{sha256}"'):
        await secure(client, settings(tmp_path), offered)
    with pytest.raises(
        SourceRefused, match=r"certificate changed: SHA-256 .*, before SHA-256 0{16}; if it was renewed"
    ):
        await secure(client, settings(tmp_path, server_certificate_sha256="0" * 64), offered)
    client.uaclient.set_security.assert_not_called()
    await secure(client, settings(tmp_path, server_certificate_sha256=sha256), offered)
    client.uaclient.set_security.assert_called_once()


async def test_no_password_is_sent_to_an_endpoint_that_takes_none(tmp_path: Path) -> None:
    """The connection is not even secured: the refusal names what the endpoint takes."""
    password = tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text("secret\r\n", "utf-8-sig")  # as Notepad writes it
    client: Any = Mock(security_policy=None)
    taken = endpoint(users=(ua.UserTokenType.Anonymous, ua.UserTokenType.Certificate))
    folder = TrustFolder(tmp_path / "trust")
    folder.add("trusted", der(ISSUED))
    used = settings(tmp_path, user_name="bsfg", password_file=password, trust_folder=tmp_path / "trust")
    with pytest.raises(SourceRefused, match="accepts no user names; it accepts anonymous users, user certificates"):
        await secure(client, used, AsyncMock(return_value=[taken]))
    assert client.security_policy is None
    client.set_password.assert_called_once_with("secret")


@pytest.mark.parametrize("is_required", [True, False])
def test_the_trust_folder_is_judged_with_its_revocation_lists(tmp_path: Path, *, is_required: bool) -> None:
    """A list is demanded unless the settings say otherwise, and a revoked certificate is refused either way."""
    folder, presented = TrustFolder(tmp_path), Presented((der(ISSUED),), URI, "plc")
    folder.add("issuers", der(AUTHORITY))
    used = settings(tmp_path, trust_folder=tmp_path, crl_required=is_required)
    assert (judge_server(used, presented).trust is None) is is_required
    folder.add("crl", der(revocation_list("authority", now=NOW)))
    assert judge_server(used, presented).trust is not None
    folder.add("crl", der(revocation_list("authority", ISSUED.serial_number, days=(-4, 5), now=NOW)))
    assert judge_server(used, presented).trust is None


def test_a_pinned_certificate_is_the_only_one(tmp_path: Path) -> None:
    """A certificate in the trust folder is not accepted beside the one that the settings pin."""
    folder, presented = TrustFolder(tmp_path), Presented((der(ISSUED),), URI, "plc")
    folder.add("trusted", der(ISSUED))
    used = settings(tmp_path, trust_folder=tmp_path)
    assert judge_server(used, presented).trust is TrustReason.TRUSTED
    assert judge_server(replace(used, server_certificate_sha256="0" * 64), presented).trust is None
    assert judge_server(used, presented, facts_of(der(AUTHORITY))).trust is None


URIS = {
    name: getattr(security_policies, f"SecurityPolicy{name}").URI
    for name in ("None", "Basic256Sha256", "Basic128Rsa15")
}


@pytest.mark.parametrize(
    "mode, channel, tokens, used",
    [
        (ua.MessageSecurityMode.None_, "None", ["", "Basic256Sha256"], "Basic256Sha256"),
        (ua.MessageSecurityMode.None_, "None", ["Basic128Rsa15"], "Basic128Rsa15"),
        (ua.MessageSecurityMode.None_, "None", [""], None),
        (ua.MessageSecurityMode.None_, "None", ["None"], None),
        (SIGN, "Basic256Sha256", ["None"], None),
        (SIGN, "Basic256Sha256", [""], "Basic256Sha256"),
        (ENCRYPT, "Basic256Sha256", ["None"], ""),
    ],
)
def test_a_password_is_encrypted_by_the_token_or_by_the_channel(
    mode: ua.MessageSecurityMode, channel: str, tokens: list[str], used: str | None
) -> None:
    """A token policy without a name has that of the channel; of several the one that encrypts is used. If neither
    encrypts, the refusal says what to enable."""
    kind = ua.UserTokenType.UserName
    offered = [ua.UserTokenPolicy(TokenType=kind, SecurityPolicyUri=URIS.get(name, "")) for name in tokens]
    _, encryption = token_policy(offered, kind, URIS[channel])
    refused = password_refusal("opc.tcp://plc", mode, encryption)
    assert encryption == URIS.get(used or "", "")
    assert ("takes the password only unencrypted" in str(refused)) == (used is None)

"""Security against node-opcua: who trusts whom, and what an operator reads until both do."""

import hashlib
import logging
import shutil
from pathlib import Path

import pytest

from agent.ingest.errors import SourceRefused
from agent.ingest.opcua.security.certificate import activate_certificate, ensure_certificate, renew_certificate
from agent.ingest.opcua.security.certificate_facts import CertificateFacts, facts_of
from agent.ingest.opcua.security.client import StepTrackingClient
from agent.ingest.opcua.security.trust_folder import TrustFolder
from agent.ingest.opcua.session import open_session
from agent.settings.sources import OpcuaSourceSettings
from tests.foreign.conftest import COUNT
from tests.foreign.plant import opcua, running_node, signing
from tests.foreign.server import ForeignServer, foreign_server
from tests.ingest.plant import Running, ingesting
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("node_opcua")]

SECURED = {"policies": ["Basic256Sha256"], "variables": [COUNT]}
POLICIES = {  # as we and as the server call them
    "Basic256Sha256": "Basic256Sha256",
    "Aes128Sha256RsaOaep": "Aes128_Sha256_RsaOaep",
    "Aes256Sha256RsaPss": "Aes256_Sha256_RsaPss",
}


def secured(server: ForeignServer, folder: Path, **settings: object) -> OpcuaSourceSettings:
    """A source that signs and encrypts and pins the server's certificate, unless the settings say otherwise."""
    given = {**signing(folder / "own.der", folder / "own.key"), **settings}
    if "trust_folder" not in settings:
        given["server_certificate_sha256"] = facts_of(server.certificate.read_bytes()).sha256
    return opcua(server, folder, "count", **given)


async def refusal(settings: OpcuaSourceSettings) -> str:
    """Why a connection is refused."""
    with pytest.raises(SourceRefused) as caught:
        async with open_session(settings):
            pass
    return str(caught.value)


def losses(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Why the source was lost, by the log."""
    return [getattr(r, "why", "") for r in caplog.records if getattr(r, "action", "") == "source_lost"]


async def test_the_first_day(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server does not know our certificate: the log says which server refuses which certificate, where its file is
    and what to do there, once; a server that then goes away is another reason. When the certificate is moved to
    trusted, values come without any further act."""
    caplog.set_level(logging.INFO)
    async with (
        foreign_server(tmp_path / "server", **SECURED) as server,
        ingesting(secured(server, tmp_path)) as run,
    ):
        await wait_until_async(lambda: run.source("plc").errors_total >= 3, "three refusals")
        own = facts_of((tmp_path / "own.der").read_bytes())
        why = losses(caplog)
        assert len(why) == 1
        assert own.sha1.replace(":", "").lower() == hashlib.sha1((tmp_path / "own.der").read_bytes()).hexdigest()  # noqa: S324 what servers show
        for wanted in (server.url, own.sha1, own.sha256, str(tmp_path / "own.der"), "from rejected to trusted"):
            assert wanted in why[0]
        (rejected,) = (tmp_path / "server" / "pki" / "rejected").iterdir()
        assert own.sha1.lower() in rejected.name
        await server.listen(on=False)
        await wait_until_async(lambda: len(losses(caplog)) == 2, "another reason in the log")
        assert own.sha1 not in losses(caplog)[1]
        await server.listen(on=True)
        await server.trust(tmp_path / "own.der")
        await run.wait_good("f/count", 3)
        await wait_until_async(
            lambda: [r.action for r in caplog.records if getattr(r, "source", "")][-1] == "source_returned",
            "the return",
        )


async def test_an_unknown_server_learns_no_password_and_users_are_refused_in_their_own_words(tmp_path: Path) -> None:
    """Until a person accepts the server's certificate no session is made and no password sent. This server's is made
    for the machine's own name and not for 127.0.0.1: the refusal says so at once, and that a pin is the way; with the
    pin, values come. An anonymous user and a wrong password are each told apart from a certificate refused."""
    (tmp_path / "password").write_text("secret")
    (tmp_path / "password").chmod(0o600)
    user = {"user_name": "op", "password_file": tmp_path / "password"}
    async with foreign_server(tmp_path / "server", **SECURED, accept_unknown=True, users={"op": "secret"}) as server:
        settings = secured(server, tmp_path, trust_folder=tmp_path / "trust", **user)
        text = await refusal(settings)
        shown = facts_of(server.certificate.read_bytes())
        (kept,) = TrustFolder(tmp_path / "trust").certificates("rejected")
        assert kept.facts == shown
        line = f'then set server_certificate_sha256 = "{shown.sha256}"'
        for wanted in (shown.sha1, f"is not trusted, and is for {shown.host_names[0]}", str(kept.file), line):
            assert wanted in text
        assert (await server.status())["sessions"] == 0
        TrustFolder(tmp_path / "trust").trust(shown.sha1)
        assert "not for 127.0.0.1; use a name of the certificate in url, or pin it" in await refusal(settings)
        assert "accepts no anonymous users; it accepts user names" in await refusal(secured(server, tmp_path))
        (tmp_path / "password").write_text("wrong")
        text = await refusal(secured(server, tmp_path, **user))
        assert "refuses user op" in text
        assert "rejected to trusted" not in text
        (tmp_path / "password").write_text("secret\n")
        async with ingesting(secured(server, tmp_path, **user)) as run:
            await run.wait_good("f/count", 3)


async def test_a_password_is_encrypted_by_its_token_policy_where_the_channel_does_not(tmp_path: Path) -> None:
    """A server with a None endpoint only: values come to a user whose password is encrypted for its certificate, which
    a person has accepted before; one that takes the password in the open is refused without sending it."""
    (tmp_path / "password").write_text("secret")
    (tmp_path / "password").chmod(0o600)
    user = {"user_name": "op", "password_file": tmp_path / "password"}
    open_channel = {"security_policy": "None", "security_mode": "None", "insecure": True, **user}
    options = {
        "policies": ["None", "Basic256Sha256"],
        "only_tokens": True,
        "variables": [COUNT],
        "users": {"op": "secret"},
    }
    async with foreign_server(tmp_path / "server", **options) as server:
        stranger = secured(server, tmp_path, **open_channel, trust_folder=tmp_path / "trust")
        assert "is not trusted" in await refusal(stranger)
        async with ingesting(secured(server, tmp_path, **open_channel)) as run:
            await run.wait_good("f/count", 3)
    options["allow_unencrypted"], options["policies"] = True, ["None"]
    async with foreign_server(tmp_path / "bare", **options) as server:
        text = await refusal(secured(server, tmp_path, **open_channel))
        assert "takes the password only unencrypted" in text
        assert (await server.status())["sessions"] == 0


async def test_values_come_over_every_policy(tmp_path: Path) -> None:
    """Signed and encrypted with each policy, at a server that offers nothing less: as a user with a password, and as
    one with a certificate, which is refused as that until the server trusts it."""
    user = {"user_certificate_file": tmp_path / "user.der", "user_private_key_file": tmp_path / "user.key"}
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "password").chmod(0o600)
    named = {"user_name": "op", "password_file": tmp_path / "password"}
    ensure_certificate(tmp_path / "own.der", tmp_path / "own.key", "urn:bsfg:agent")
    options = {**SECURED, "policies": list(POLICIES.values()), "users": {"op": "secret"}, "anonymous": True}
    async with foreign_server(tmp_path / "server", **options) as server:
        await server.trust(tmp_path / "own.der")
        for policy in POLICIES:
            async with ingesting(secured(server, tmp_path, security_policy=policy, **named)) as run:
                await run.wait_good("f/count", 3)
            ensure_certificate(user["user_certificate_file"], user["user_private_key_file"], f"urn:user:{policy}")
            settings = secured(server, tmp_path, security_policy=policy, **user)
            assert f"refuses the user certificate {user['user_certificate_file']}" in await refusal(settings)
            await server.trust(user["user_certificate_file"])
            async with ingesting(settings) as run:
                await run.wait_good("f/count", 3)
            for file in user.values():
                file.unlink()


def connecting(monkeypatch: pytest.MonkeyPatch) -> list[StepTrackingClient]:
    """The clients of the sessions that are made from now on."""
    found: list[StepTrackingClient] = []
    original = StepTrackingClient.create_session

    async def noted(client: StepTrackingClient) -> object:
        found.append(client)
        return await original(client)

    monkeypatch.setattr(StepTrackingClient, "create_session", noted)
    return found


def replaced(certificate: Path, key: Path) -> CertificateFacts:
    """Our next certificate, made and put into use."""
    before = facts_of(certificate.read_bytes())
    renew_certificate(certificate, key)
    activate_certificate(certificate, key)
    new = facts_of(certificate.read_bytes())
    assert new.sha1 != before.sha1
    return new


async def replace_while_connected(
    run: Running, clients: list[StepTrackingClient], certificate: Path, key: Path
) -> CertificateFacts:
    """Put our next certificate into use while a source is connected: its session goes on over the same connection, also
    when the channel is renewed behind that, twice, as the library does in time. Returns the new one."""
    await run.wait_good("f/count", 3)
    new = replaced(certificate, key)
    for _ in range(2):
        await clients[-1].open_secure_channel(renew=True)
        clients[-1].uaclient.revolve_security_token()
        await run.wait_more("f/count", 10)
    assert (run.source("plc").connects_total, run.source("plc").errors_total) == (1, 0)
    return new


async def test_our_certificate_is_replaced_while_connected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session goes on, and so does its channel when it is renewed. The next connection shows the new certificate:
    a server that does not trust it yet refuses it by name, and when it does, values come."""
    caplog.set_level(logging.INFO)
    clients = connecting(monkeypatch)
    async with foreign_server(tmp_path / "server", **SECURED) as server:
        ensure_certificate(tmp_path / "own.der", tmp_path / "own.key", "urn:bsfg:agent")
        await server.trust(tmp_path / "own.der")
        async with ingesting(secured(server, tmp_path)) as run:
            new = await replace_while_connected(run, clients, tmp_path / "own.der", tmp_path / "own.key")
            await server.cut()
            await wait_until_async(lambda: [why for why in losses(caplog) if new.sha1 in why], "the refusal")
            await server.trust(tmp_path / "own.der")
            await run.wait_more("f/count", 3)


async def test_a_changed_certificate_is_the_headline_and_its_pin_brings_the_values_back(tmp_path: Path) -> None:
    """A pinned server returns with a new key, as after a replaced panel: status begins with that and ends with the line
    to set, the log says it once, and `opcua test` says it too. With the line in node.toml and a reload, values come."""
    async with foreign_server(tmp_path / "server", **SECURED, accept_unknown=True) as server:
        before = facts_of(server.certificate.read_bytes()).sha256
        settings = signing(str(tmp_path / "own.der"), str(tmp_path / "own.key"))
        async with running_node(server, tmp_path, "count", **settings, server_certificate_sha256=before) as node:

            async def says(words: str) -> bool:
                return words in (await node.bsfg("status"))[1]

            await wait_until_async(lambda: says("plc                      connected, 1 tags"), "the source up", 60)
            server.kill()
            shutil.rmtree(tmp_path / "server" / "pki")
            await server.start()
            after = facts_of(server.certificate.read_bytes()).sha256
            await wait_until_async(lambda: says("the server's certificate changed"), "the certificate's change", 60)
            status, shown = await node.bsfg("status")
            assert status == 1
            assert shown.startswith(
                f"plant-a: broken: source plc: the server's certificate changed: SHA-256 {after[:16]}"
            )
            assert f"before SHA-256 {before[:16]}" in shown
            assert f'"{after}"' in shown
            assert len([event for event in node.events("source_lost") if "certificate changed" in event["why"]]) == 1

            status, shown = await node.bsfg("opcua", "test", "plc", "--trust")
            assert status == 0
            replaced = f'next: in node.toml, set server_certificate_sha256 = "{after}" for plc; then bsfg reload\n'
            assert shown.endswith(replaced)
            assert "[[opcua]]" not in shown
            config = tmp_path / "node.toml"
            config.write_text(config.read_text().replace(before, after))
            assert await node.bsfg("reload") == (0, "reloaded: opcua plc\n")
            await wait_until_async(lambda: says("plant-a: good"), "values again", 60)

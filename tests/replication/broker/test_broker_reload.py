"""Reloading a real broker: only valid files are loaded, and a denied zone loses its rights at once."""

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.cli import bsfg
from agent.replication import pki
from agent.replication.broker.config import BrokerPlan, render_acl
from agent.replication.broker.config_lint import check_acl, check_config, parse_config, without_zones
from agent.replication.broker.diagnosis import Diagnostic, Outcome
from agent.replication.broker.folder import write_broker_folder
from agent.replication.broker.reload import check_broker_files, check_program, deny_zones, find_brokers, reload_broker
from agent.replication.protocol.errors import NotAuthorized
from agent.replication.protocol.messages import ListStreams
from tests.replication.broker.zones import CONNECT, LINKS, NOW, context_of, own_user
from tests.replication.nodes import STREAM, Node
from tests.support.mosquitto import HOST, Mosquitto
from tests.waiting import LIMIT_S, wait_until, wait_until_async


def bad(diagnostics: list[Diagnostic]) -> list[str]:
    """The bad diagnostics."""
    return [diagnostic.what for diagnostic in diagnostics if diagnostic.outcome is Outcome.BAD]


# --- texts ------------------------------------------------------------------------------------------------------------


def test_denied_zones_keep_a_block_and_lose_everything_in_it() -> None:
    """The other zones' blocks stay byte for byte; denying twice changes nothing; an unknown zone is denied too."""
    acl = render_acl(LINKS)
    denied = without_zones(acl, ["idmz", "stranger"])
    assert without_zones(denied, ["idmz", "stranger"]) == denied
    blocks = {block.split("\n")[0]: block for block in acl.strip().split("\n\n")[1:]}
    after = {block.split("\n")[0]: block for block in denied.strip().split("\n\n")[1:]}
    assert after["user idmz"] == "user idmz\ntopic deny #"
    assert after["user stranger"] == "user stranger\ntopic deny #"
    assert {name: after[name] for name in blocks if name != "user idmz"} == {
        name: block for name, block in blocks.items() if name != "user idmz"
    }
    assert list(check_acl(denied)) == []


def test_a_denial_keeps_what_is_for_all_zones() -> None:
    """A pattern counts for every zone, wherever it stands, and so do comments; only the rights of the denied zone
    go."""
    acl = "user idmz\ntopic read a\n# every zone\npattern read bsfg/%u\ntopic write b\n\nuser plant-a\ntopic read c\n"
    assert without_zones(acl, ["idmz"]) == acl.replace("topic read a", "topic deny #").replace("topic write b\n", "")


@pytest.mark.parametrize(
    "text",
    ["", "# nobody\n", "user a\ntopic fly x\n", "user\n", "user a\ntopic read\n", "garbage", "user a b\n", "\0\1"],
)
def test_acl_that_mosquitto_would_not_take(text: str) -> None:
    """An empty list and invalid lines are found."""
    assert list(check_acl(text))


@pytest.mark.parametrize(
    "setting",
    [
        "cafile",
        "certfile",
        "keyfile",
        "crlfile",
        "acl_file",
        "tls_version",
        "require_certificate",
        "use_identity_as_username",
    ],
)
def test_configuration_without_a_protection(setting: str) -> None:
    """Each setting that protects identities is reported if it is missing."""
    settings = {name: f"/x/{name}" for name in ("cafile", "certfile", "keyfile", "crlfile", "acl_file")}
    settings |= {
        "tls_version": "tlsv1.3",
        "require_certificate": "true",
        "use_identity_as_username": "true",
        "allow_anonymous": "false",
    }
    assert list(check_config(settings)) == []
    del settings[setting]
    assert [setting in diagnostic.what for diagnostic in check_config(settings)] == [True]


def test_last_setting_counts() -> None:
    """The last setting counts, as in Mosquitto; comments and blank lines do not."""
    assert parse_config("# a b\n\nuser x\n  user y \nflag\n") == {"user": "y", "flag": ""}


def made_folder(tmp_path: Path) -> Path:
    """The folder of a broker that was never started."""
    pki.create_authority(tmp_path / "pki", NOW)
    pki.issue_broker(tmp_path / "pki", "private", ["localhost"], NOW)
    plan = BrokerPlan(LINKS, "", HOST, user=own_user())
    write_broker_folder(tmp_path / "broker", tmp_path / "pki", "private", plan)
    return tmp_path / "broker"


def test_an_authority_without_a_list_is_named(tmp_path: Path) -> None:
    """Mosquitto refuses all certificates of an authority that has no revocation list, although the list of the other
    authority is valid."""
    folder = made_folder(tmp_path)
    assert bad(list(check_broker_files(folder / "mosquitto.conf"))) == []
    pki.create_authority(tmp_path / "other", NOW)
    with (folder / "zones-ca.pem").open("ab") as authorities:
        authorities.write((tmp_path / "other/ca.pem").read_bytes())
    (missing,) = bad(list(check_broker_files(folder / "mosquitto.conf")))
    assert "no revocation list of" in missing


def test_a_denial_keeps_group_and_mode_of_the_access_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's user reads the list by its group, so the list that denies a zone has the same group and mode; it is
    written only if it differs."""
    folder = made_folder(tmp_path)
    written = list[tuple[Path, int, int]]()
    monkeypatch.setattr(pki, "write_file", lambda path, _data, mode, group=-1: written.append((path, mode, group)))
    (folder / "acl").chmod(0o640)
    assert deny_zones(folder / "mosquitto.conf", ["idmz"]) == folder / "acl"
    assert written == [(folder / "acl", 0o640, (folder / "acl").stat().st_gid)]
    (folder / "acl").write_text(without_zones((folder / "acl").read_text(), ["idmz"]))
    deny_zones(folder / "mosquitto.conf", ["idmz"])
    assert len(written) == 1


# --- a real broker ----------------------------------------------------------------------------------------------------


def reload(broker: Mosquitto) -> list[Diagnostic]:
    """Reload as bsfg broker reload does."""
    return list(reload_broker(broker.files.config_file, broker.pid, _pause))


def _pause(seconds: float) -> None:
    """No pause: a broker without load has read its files at once."""
    threading.Event().wait(seconds)


@pytest.mark.system
async def test_renewed_broker_certificate(tmp_path: Path) -> None:
    """A renewed certificate is presented after the reload, and open sessions continue."""
    with Mosquitto.started(tmp_path) as broker:
        plant = Node.open(broker, "plant-a", tmp_path / "store")
        plant.serve({"idmz": [STREAM]})
        async with plant.running():
            pki.renew(broker.pki_folder, "private", NOW, broker=True)
            plan = BrokerPlan(LINKS, "", HOST, broker.port, own_user())
            write_broker_folder(broker.files.folder, broker.pki_folder, "private", plan)
            diagnostics = await asyncio.to_thread(reload, broker)
            assert bad(diagnostics) == []
            assert diagnostics[-1].what == "the broker presents the certificate in its file"
            assert plant.link.statistics().connects == 1
            assert plant.link.connection is not None
        plant.store.close()
        assert find_brokers(broker.files.config_file) == [broker.pid]


@pytest.mark.system
def test_brokers_are_identified_by_their_configuration_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two brokers, each started in its own folder with the same relative path: only the one with this configuration
    file is found, however its path is written, and no other program that has the file open. (Comparing the arguments
    alone, the wrong broker got the signal and the right one kept a revoked zone.)"""
    started = []
    for site in ("north", "south"):
        config = tmp_path / site / "broker/mosquitto.conf"
        config.parent.mkdir(parents=True)
        config.touch()
        words = [
            "mosquitto",
            "-",
            "broker/mosquitto.conf",
        ]  # a program that waits for its input, under Mosquitto's name
        started.append(subprocess.Popen(words, executable="/bin/cat", stdin=subprocess.PIPE, cwd=tmp_path / site))
    reader = ["cat", "-", "broker/mosquitto.conf"]  # another program, which a SIGHUP would end
    started.append(subprocess.Popen(reader, stdin=subprocess.PIPE, cwd=tmp_path / "south"))
    try:
        for each in started:  # a program that has just begun has no command line for a moment
            wait_until(Path(f"/proc/{each.pid}/cmdline").read_bytes, "its command line")
        assert find_brokers(tmp_path / "south/broker/mosquitto.conf") == [started[1].pid]
        monkeypatch.chdir(tmp_path / "north")
        assert find_brokers(Path("broker/mosquitto.conf")) == [started[0].pid]
        assert find_brokers(Path("broker/../../south/broker/mosquitto.conf")) == [started[1].pid]
        assert find_brokers(Path("mosquitto.conf")) == []
    finally:
        for each in started:
            each.communicate(timeout=LIMIT_S)


def _resign_crl(folder: Path, target: Path) -> None:
    pki.reissue_crl(folder, NOW - timedelta(days=9), days=5)
    shutil.copy(folder / "ca.crl", target)


def _foreign_crl(folder: Path, target: Path) -> None:
    pki.create_authority(folder.parent / "other", NOW)
    shutil.copy(folder.parent / "other/ca.crl", target)


SPOILS: list[tuple[str, Callable[[Path, Path], object], str]] = [
    ("zones.crl", lambda _, file: file.unlink(), "No such file"),
    ("zones.crl", lambda _, file: file.write_text("rubbish"), "not a revocation list"),
    ("zones.crl", _resign_crl, "the list expired at"),
    ("zones.crl", _foreign_crl, "which is not in"),
    ("broker.pem", lambda _, file: file.write_text("rubbish"), "not a certificate"),
    ("broker.pem", lambda _, file: file.unlink(), "No such file"),
    ("broker.key", lambda folder, file: shutil.copy(folder / "zones/idmz.key", file), "does not match"),
    ("broker.key", lambda _, file: file.chmod(0o644), "accessible to others"),
    ("zones-ca.pem", lambda _, file: file.write_text(""), "not a certificate"),
    ("acl", lambda _, file: file.write_text(""), "names no user"),
    ("acl", lambda _, file: file.write_text("user idmz\nrubbish"), "is not a rule"),
    ("mosquitto.conf", lambda _, file: file.write_text("listener 8883"), "revoked certificates are accepted"),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory):  # noqa: ANN201
    """One broker that survives all tests below."""
    with Mosquitto.started(tmp_path_factory.mktemp("broker")) as running:
        yield running


@contextlib.contextmanager
def restored(broker: Mosquitto, kept: Path) -> Iterator[None]:
    """The broker's files are as before after this block."""
    shutil.copytree(broker.files.folder, kept)
    try:
        yield
    finally:
        for file in kept.iterdir():
            shutil.copy2(file, broker.files.folder / file.name)


@pytest.mark.system
@pytest.mark.parametrize("name,spoil,says", SPOILS, ids=[f"{name}: {says}" for name, _, says in SPOILS])
def test_nothing_is_sent_when_a_file_is_wrong(
    broker: Mosquitto, tmp_path: Path, name: str, spoil: Callable[[Path, Path], object], says: str
) -> None:
    """A file with which the broker would accept revoked clients or refuse all is found before the reload, and no signal
    is sent."""
    reloads = broker.log_text().count("Reloading config.")
    site = shutil.copytree(broker.pki_folder, tmp_path / "pki")
    with restored(broker, tmp_path / "kept"):
        spoil(site, broker.files.folder / name)
        found = bad(reload(broker))
    assert any(says in each for each in found), found
    assert found[-1] == "no signal was sent to the broker"
    assert broker.log_text().count("Reloading config.") == reloads
    assert bad(reload(broker)) == []


@pytest.mark.system
def test_files_the_brokers_user_cannot_read(broker: Mosquitto) -> None:
    """Files must be readable by the broker's user, not by the user who reloads; the file or folder is named."""
    user = "nobody"
    with tempfile.TemporaryDirectory() as name:  # other users may enter its parents, unlike pytest's own
        Path(name).chmod(0o755)
        folder = shutil.copytree(broker.files.folder, Path(name) / "b")
        folder.chmod(0o755)
        config = folder / "mosquitto.conf"
        text = config.read_text().replace(str(broker.files.folder), str(folder))
        config.write_text("\n".join(f"user {user}" if line.startswith("user ") else line for line in text.splitlines()))
        for file in folder.iterdir():
            file.chmod(0o600 if file.suffix == ".key" else 0o644)
        assert bad(list(check_broker_files(config))) == [f"{user} may not read {folder / 'broker.key'} (mode 0600)"]
        folder.chmod(0o700)
        (closed,) = bad(list(check_broker_files(config)))  # once, though five files lie in it
        assert f"{user} may not enter {folder} " in closed


@pytest.mark.system
def test_expiry_is_announced_a_month_ahead(broker: Mosquitto) -> None:
    """A month before the list or certificate expires there is a note with what to do."""
    later = NOW + timedelta(days=pki.LEAF_DAYS - 10)
    notes = [each for each in check_broker_files(broker.files.config_file, now=later) if each.outcome is Outcome.NOTE]
    assert ["the broker's certificate ends in 9 days" in each.what or "10 days" in each.what for each in notes] == [
        True
    ]
    assert "bsfg pki renew" in notes[0].hint


@pytest.mark.system
@pytest.mark.parametrize(
    "version,is_noted", [("2.0.11", True), ("1.6.9", True), ("2.0.12", False), ("2.1.2", False), ("", False)]
)
def test_a_mosquitto_that_miscounts_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, is_noted: bool
) -> None:
    """A Mosquitto older than 2.0.12 gets a note with what to do; a newer one, or one without a version, does not."""
    program = tmp_path / "mosquitto"
    program.write_text(f"#!/bin/sh\necho 'mosquitto version {version}'\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    found = list(check_program())
    assert [each.outcome for each in found] == [Outcome.NOTE] * is_noted
    assert all("firewall.nft" in each.hint for each in found)


# --- shut out ---------------------------------------------------------------------------------------------------------


@pytest.mark.system
async def test_a_revoked_zone_is_disconnected_and_cannot_reconnect(tmp_path: Path) -> None:
    """A connected zone that is denied and revoked gets no further answer and cannot reconnect; other zones are not
    affected.

    plant-a -> idmz -> enterprise, all running. enterprise is denied: the broker refuses its requests, pending answers
    are not delivered, and when its connection ends the error names the revocation list. idmz continues to pull from
    plant-a over its open connection.
    """
    with Mosquitto.started(tmp_path) as broker:
        plant, idmz, enterprise = (
            Node.open(broker, zone, tmp_path / zone) for zone in ("plant-a", "idmz", "enterprise")
        )
        plant.serve({"idmz": [STREAM]})
        idmz.serve({"enterprise": [STREAM]})
        idmz.pull("plant-a")
        enterprise.pull("idmz", relays=["plant-a"])
        async with plant.running(), idmz.running(), enterprise.running():
            await plant.append(1, 100)
            await enterprise.wait_end(100)

            pki.revoke(broker.pki_folder, "enterprise", NOW, reason="key-compromise")
            shutil.copy(broker.pki_folder / "ca.crl", broker.files.crl_file)
            deny_zones(broker.files.config_file, ["enterprise"])
            assert bad(await asyncio.to_thread(reload, broker)) == []

            with pytest.raises(NotAuthorized):
                await enterprise.requester("idmz").ask(ListStreams(), 5)
            await plant.append(101, 100)
            await idmz.wait_end(200)
            assert enterprise.link.connection is not None
            await enterprise.link.connection.close()
            await wait_until_async(
                lambda: "revocation list" in (enterprise.link.statistics().down_reason or ""), "it is told why"
            )
            failures = enterprise.link.statistics().failures
            await wait_until_async(lambda: enterprise.link.statistics().failures > failures, "it tries again")
            assert enterprise.link.statistics().connects == 1
            assert enterprise.store.end_offset(STREAM) == 100
            await plant.append(201, 100)
            await idmz.wait_end(300)
            assert [node.link.statistics().connects for node in (plant, idmz)] == [1, 1]
        for node in (plant, idmz, enterprise):
            node.store.close()


@pytest.mark.system
def test_a_revoked_client_cannot_resume_its_tls_session(tmp_path: Path) -> None:
    """TLS session resumption needs no certificate; after the reload a revoked client cannot use it."""
    with Mosquitto.started(tmp_path) as broker:
        context = context_of(broker)

        def enter(ticket: ssl.SSLSession | None) -> tuple[bool, bool, ssl.SSLSession | None]:
            """Whether the client was accepted, whether by its ticket, and the next ticket."""
            with (
                socket.create_connection((HOST, broker.port), 20) as plain,
                context.wrap_socket(plain, server_hostname=HOST, session=ticket) as channel,
            ):
                with contextlib.suppress(OSError):
                    channel.sendall(CONNECT)
                try:
                    answer = channel.recv(4)
                except ssl.SSLError:
                    answer = b""
                return answer[:1] == b"\x20", bool(channel.session_reused), channel.session

        tickets = [enter(None)[2] for _ in range(2)]
        assert enter(tickets[0])[:2] == (True, True)
        pki.revoke(broker.pki_folder, "idmz", NOW)
        shutil.copy(broker.pki_folder / "ca.crl", broker.files.crl_file)
        assert bad(reload(broker)) == []
        assert [enter(ticket)[0] for ticket in (tickets[1], None)] == [False, False]


@pytest.mark.system
def test_commands(broker: Mosquitto, tmp_path: Path) -> None:
    """reload, deny and check print their results; exit status 1 if something is wrong, 2 for wrong usage."""
    config = str(broker.files.config_file)

    def call(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(bsfg, ["broker", *words])
        return result.exit_code, result.output

    with restored(broker, tmp_path / "kept"):
        assert call("reload", "--config", config)[0] == 0
        code, said = call("deny", "plant-b", "--config", config)
        assert (code, "no rights for plant-b" in said) == (0, True)
        assert "user plant-b\ntopic deny #" in broker.files.acl_file.read_text()
        code, said = call("check", "--files", config, "--json")
        assert (code, '"outcome": "good"' in said) == (0, True)
        assert call("check", "--files", str(Path(config).parent)) == call("check", "--files", config)
        broker.files.crl_file.unlink()
        assert call("check", "--files", config)[0] == 1
        code, said = call("reload", "--config", config, "--pid", str(broker.pid))
        assert (code, "no signal was sent" in said) == (1, True)
        assert call("check")[0] == 2
        assert call("deny", "Not A Zone", "--config", config)[0] == 2
    reload(broker)

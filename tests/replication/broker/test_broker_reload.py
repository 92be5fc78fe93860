"""Reloading a real broker: only valid files are loaded, and a zone is shut out at once."""

import asyncio
import contextlib
import errno
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable
from datetime import timedelta
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agent.cli import bsfg
from agent.replication import pki
from agent.replication.broker.config import CRL_NAME, BrokerPlan, parse_config
from agent.replication.broker.diagnosis import CheckOutcome, Diagnostic
from agent.replication.broker.folder import deny_nodes, write_broker
from agent.replication.broker.reload import (
    _unreadable,
    check_broker_files,
    check_config,
    config_files,
    end_broker,
    find_brokers,
    reload_broker,
)
from agent.replication.protocol.errors import NotAuthorized
from agent.replication.protocol.messages import ListStreams
from tests.replication.broker.zones import CONNECT, LINKS, NOW, own_user
from tests.replication.nodes import STREAM, Node
from tests.support.mosquitto import HOST, Mosquitto
from tests.waiting import LIMIT_S, wait_until, wait_until_async


def bad(diagnostics: list[Diagnostic]) -> list[str]:
    """The bad diagnostics."""
    return [diagnostic.what for diagnostic in diagnostics if diagnostic.outcome is CheckOutcome.BAD]


@pytest.mark.parametrize(
    "setting, value",
    [
        ("cafile", ""),
        ("certfile", ""),
        ("keyfile", ""),
        ("crlfile", ""),
        ("plugin", ""),
        ("plugin_opt_config_file", ""),
        ("tls_version", ""),
        ("tls_version", "tlsv1.2"),
        ("require_certificate", ""),
        ("use_identity_as_username", ""),
    ],
)
def test_configuration_without_a_protection(setting: str, value: str) -> None:
    """Each setting that protects identities is reported if it is missing, or too weak."""
    settings = {
        name: f"/x/{name}" for name in ("cafile", "certfile", "keyfile", "crlfile", "plugin", "plugin_opt_config_file")
    }
    settings |= {
        "tls_version": "tlsv1.3",
        "require_certificate": "true",
        "use_identity_as_username": "true",
        "allow_anonymous": "false",
    }
    assert list(check_config(settings)) == []
    del settings[setting]
    settings |= {setting: value} if value else {}
    assert [setting in diagnostic.what for diagnostic in check_config(settings)] == [True]


def test_last_setting_counts() -> None:
    """The last setting counts, as in Mosquitto; comments and blank lines do not."""
    assert parse_config("# a b\n\nuser x\n  user y \nflag\n") == {"user": "y", "flag": ""}


def made_folder(tmp_path: Path) -> Path:
    """The folder of a broker that was never started."""
    pki.create_authority(tmp_path / "pki", NOW)
    pki.issue_broker(tmp_path / "pki", "private", ["localhost"], NOW)
    plan = BrokerPlan(str(tmp_path / "broker"), "/plugin.so", HOST, user=own_user())
    return write_broker(tmp_path / "broker", tmp_path / "pki", "private", LINKS, plan).folder


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


def test_of_several_revocation_lists_the_one_that_ends_first_counts(tmp_path: Path) -> None:
    """Wherever it is in the file: with one that has ended, the broker refuses the nodes of all authorities."""
    folder, others = made_folder(tmp_path), [tmp_path / "soon", tmp_path / "later"]
    for other, days in zip(others, (20, 25), strict=True):
        pki.create_authority(other, NOW)
        pki.reissue_crl(other, NOW, days=days)
    sites, looked = [tmp_path / "pki", *others], NOW - timedelta(minutes=1)
    (folder / "zones-ca.pem").write_bytes(b"".join((site / "ca.pem").read_bytes() for site in sites))
    for order in permutations(sites):
        (folder / CRL_NAME).write_bytes(b"".join((site / "ca.crl").read_bytes() for site in order))
        found = list(check_broker_files(folder / "mosquitto.conf", now=looked))
        assert bad(found) == [], "each authority has its list"
        notes = [finding.what for finding in found if finding.outcome is CheckOutcome.NOTE]
        soon = pki.load_certificates(others[0] / "ca.pem")[0].subject.rfc4514_string()
        assert notes == [f"the revocation list of {soon} ends in 20 days"]


# --- a real broker ----------------------------------------------------------------------------------------------------


def reload(broker: Mosquitto) -> list[Diagnostic]:
    """Reload as bsfg broker reload does."""
    return list(reload_broker(broker.files.config_file, broker.pid, _pause))


def _pause(seconds: float) -> None:
    """No pause: a broker without load has read its files at once."""
    threading.Event().wait(seconds)


@pytest.mark.system
def test_renewed_broker_certificate(tmp_path: Path) -> None:
    """A renewed certificate is presented after the reload, and open sessions continue."""
    with Mosquitto.started(tmp_path) as broker:

        async def run() -> None:
            plant = Node.open(broker, "plant-a", tmp_path / "store")
            plant.serve({"idmz": [STREAM]})
            async with plant.running():
                pki.sign_request(broker.pki_folder, "private", None, NOW, broker=True)
                write_broker(broker.files.folder, broker.pki_folder, "private", LINKS)
                diagnostics = await asyncio.to_thread(reload, broker)
                assert bad(diagnostics) == []
                assert diagnostics[-1].what == "the broker presents the certificate in its file"
                assert plant.link.statistics().connects == 1
                assert plant.link.connection is not None

        asyncio.run(run())
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
        for process in started:  # a program that has just begun has no command line for a moment
            wait_until(Path(f"/proc/{process.pid}/cmdline").read_bytes, "its command line")
        assert find_brokers(tmp_path / "south/broker/mosquitto.conf") == [started[1].pid]
        monkeypatch.chdir(tmp_path / "north")
        assert find_brokers(Path("broker/mosquitto.conf")) == [started[0].pid]
        assert find_brokers(Path("broker/../../south/broker/mosquitto.conf")) == [started[1].pid]
        assert find_brokers(Path("mosquitto.conf")) == []
    finally:
        for process in started:
            process.communicate(timeout=LIMIT_S)


SPOILS: list[tuple[str, Callable[[Path, Path], object], str]] = [
    ("zones.crl", lambda _, file: file.unlink(), "No such file"),
    ("zones.crl", lambda _, file: file.write_text("rubbish"), "not a revocation list"),
    ("broker.key", lambda folder, file: shutil.copy(folder / "zones/idmz.key", file), "does not match"),
    ("rights.json", lambda _, file: file.write_text(""), "is damaged"),
    ("rights.json", lambda _, file: file.write_text(file.read_text().replace("Literal", "Pattern")), "changed by hand"),
    ("mosquitto.conf", lambda _, file: file.write_text("listener 8883"), "revoked certificates are accepted"),
]
"""What is wrong with certificates and lists is in tests/replication/pki/test_checks.py; here, that each file counts."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory):  # noqa: ANN201
    """One broker that survives all tests below."""
    with Mosquitto.started(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.mark.system
@pytest.mark.parametrize("name,spoil,says", SPOILS, ids=[f"{name}: {says}" for name, _, says in SPOILS])
def test_nothing_is_sent_when_a_file_is_wrong(
    broker: Mosquitto, tmp_path: Path, name: str, spoil: Callable[[Path, Path], object], says: str
) -> None:
    """A file with which the broker would accept revoked clients or refuse all is found before the reload, and no signal
    is sent."""
    kept = shutil.copytree(broker.files.folder, tmp_path / "kept")
    reloads = broker.log_text().count("Reloading config.")
    site = shutil.copytree(broker.pki_folder, tmp_path / "pki")
    try:
        spoil(site, broker.files.folder / name)
        found = bad(reload(broker))
    finally:
        for file in kept.iterdir():
            shutil.copy2(file, broker.files.folder / file.name)
    assert any(says in text for text in found), found
    assert found[-1] == "no signal was sent to the broker"
    assert broker.log_text().count("Reloading config.") == reloads
    assert bad(reload(broker)) == []


def test_each_group_of_the_brokers_user_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian gives keys to a group such as ssl-cert, which is not the user's own."""
    with tempfile.NamedTemporaryFile() as key:  # other users may enter its folder, unlike pytest's own
        Path(key.name).chmod(0o640)
        for groups, count in (([65534], 1), ([65534, Path(key.name).stat().st_gid], 0)):
            monkeypatch.setattr(os, "getgrouplist", lambda *_, groups=groups: groups)
            assert len(bad(list(_unreadable([Path(key.name)], "nobody")))) == count


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
    notes = [
        finding
        for finding in check_broker_files(broker.files.config_file, now=later)
        if finding.outcome is CheckOutcome.NOTE
    ]
    assert ["the broker's certificate ends in 9 days" in note.what or "10 days" in note.what for note in notes] == [
        True
    ]
    assert "bsfg pki sign" in notes[0].hint


# --- shut out ---------------------------------------------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.parametrize("how", ["denied", "revoked"])
def test_a_zone_is_shut_out_at_once(tmp_path: Path, how: str) -> None:
    """plant-a -> idmz -> enterprise, all running. enterprise is denied, or its certificate is revoked, and the broker
    is ended, which its service starts again: enterprise gets no further fact, and its log says why. idmz goes on with
    plant-a after one reconnect, and nothing is lost."""
    with Mosquitto.started(tmp_path) as broker:

        async def run() -> None:
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
                if how == "denied":
                    deny_nodes(broker.files.config_file, ["enterprise"])
                else:
                    pki.revoke(broker.pki_folder, "enterprise", NOW, reason="key-compromise")
                    shutil.copy(broker.pki_folder / "ca.crl", broker.files.folder / CRL_NAME)
                assert not end_broker(broker.files.config_file, broker.pid).is_bad
                await wait_until_async(lambda: not broker.running, "the broker to end")
                broker.start()
                await plant.append(101, 100)
                await idmz.wait_end(200)
                link = enterprise.link
                if how == "revoked":
                    await wait_until_async(
                        lambda: "revocation list" in (link.statistics().down_reason or ""), "it is told why"
                    )
                    assert link.statistics().connects == 1
                else:
                    await wait_until_async(lambda: link.statistics().is_up, "it connects, without rights")
                    with pytest.raises(NotAuthorized):
                        await enterprise.requester("idmz").ask(ListStreams(), 5)
                assert enterprise.store.end_offset(STREAM) == 100
                assert [node.link.statistics().connects for node in (plant, idmz)] == [2, 2]

        asyncio.run(run())


@pytest.mark.system
def test_a_revoked_client_cannot_resume_its_tls_session(tmp_path: Path) -> None:
    """TLS session resumption needs no certificate; after the reload a revoked client cannot use it."""
    with Mosquitto.started(tmp_path) as broker:
        mine = broker.identity("idmz")
        context = pki.client_context(mine.ca_file, mine.cert_file, mine.key_file)

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
        shutil.copy(broker.pki_folder / "ca.crl", broker.files.folder / CRL_NAME)
        assert bad(reload(broker)) == []
        assert [enter(ticket)[0] for ticket in (tickets[1], None)] == [False, False]


@pytest.mark.system
def test_commands(broker: Mosquitto, tmp_path: Path) -> None:
    """reload, deny and check print their results; exit status 1 if something is wrong, 2 for wrong usage."""
    kept = shutil.copytree(broker.files.folder, tmp_path / "kept")
    config = str(broker.files.config_file)

    def call(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(bsfg, ["broker", *words])
        return result.exit_code, result.output

    try:
        assert call("reload", "--config", config)[0] == 0
        code, said = call("check", "--files", config, "--json")
        assert (code, '"outcome": "good"' in said) == (0, True)
        assert call("check", "--files", str(Path(config).parent)) == call("check", "--files", config)
        for words in (("deny", "plant-b"), ("restart",)):
            code, said = call(*words, "--config", config)
            assert (code, "sent SIGTERM" in said) == (0, True)
            wait_until(lambda: not broker.running, "the broker to end")
            broker.start()
        assert broker.files.rights()[1] == ("plant-b",)
        assert call("deny", "stranger", "--config", config)[0] == 1
        (broker.files.folder / CRL_NAME).unlink()
        assert call("check", "--files", config)[0] == 1
        code, said = call("reload", "--config", config, "--pid", str(broker.pid))
        assert (code, "no signal was sent" in said) == (1, True)
        assert call("restart", "--config", config)[0] == 1
        assert broker.running
        assert call("check")[0] == 2
        assert call("deny", "Not A Zone", "--config", config)[0] == 2
    finally:
        for file in kept.iterdir():
            shutil.copy2(file, broker.files.folder / file.name)
        reload(broker)


def test_a_folder_that_is_closed_to_this_user_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that there is no configuration: an operator would write a second one."""
    (tmp_path / "idmz").mkdir()
    with pytest.raises(pki.PkiError, match=r"there is no mosquitto\.conf"):
        config_files(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda path, _: path != tmp_path / "idmz")
        with pytest.raises(pki.PkiError, match="idmz cannot be read by this user"):
            config_files(tmp_path)
    stat = os.stat

    def refused(path: Any, **options: Any) -> os.stat_result:
        if path == tmp_path / "idmz/mosquitto.conf":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", refused)
        with pytest.raises(pki.PkiError, match=r"idmz/mosquitto\.conf cannot be read by this user"):
            config_files(tmp_path / "idmz/mosquitto.conf")

"""The broker's folder: refused if a file is not valid, readable for the broker's user."""

import contextlib
import json
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.cli import bsfg
from agent.replication import pki
from agent.replication.broker import config as plan
from agent.replication.broker.config import BrokerPlan, PeerLink, TopologyError
from agent.replication.broker.folder import BrokerFolder, deny_nodes, find_plugin, write_broker
from agent.replication.broker.reload import check_broker_files
from tests.replication.broker.zones import BROKER, LINKS, NOBODY_LISTENS, NOW, Zones, own_user
from tests.support import command
from tests.support.mosquitto import HOST, Mosquitto


@pytest.mark.parametrize(
    "spoil,says",
    [
        (lambda folder: (folder / "ca.crl").write_text("rubbish"), "not a revocation list"),
        (lambda folder: shutil.copy(folder / "zones/idmz.key", folder / "brokers/test.key"), "does not match"),
        (lambda folder: shutil.copy(folder / "zones/idmz.pem", folder / "brokers/test.pem"), "not for a server"),
    ],
)
def test_a_folder_with_an_invalid_file_is_not_written(
    tmp_path: Path, spoil: Callable[[Path], object], says: str
) -> None:
    """With any invalid file nothing is written: such a broker would refuse all clients or accept revoked ones."""
    pki_folder, target = tmp_path / "pki", tmp_path / "broker"
    pki.create_authority(pki_folder, NOW)
    pki.issue_broker(pki_folder, "test", ["localhost"], NOW)
    pki.issue_zone(pki_folder, "idmz", NOW)
    spoil(pki_folder)
    with pytest.raises(pki.PkiError, match=says):
        write_broker(target, pki_folder, "test", LINKS, BrokerPlan(str(target), "/plugin.so", user=own_user()))
    assert not target.exists()


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an authority and the broker's certificate, to work in."""
    pki.create_authority(tmp_path / "pki", NOW)
    pki.issue_broker(tmp_path / "pki", "idmz", ["localhost"], NOW)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _config(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(bsfg, ["broker", "config", "etc/idmz", "--pki", "pki", *words])
    return result.exit_code, result.output + str(result.exception or "")


def test_a_new_link_leaves_the_others_and_the_operators_file(authority: Path) -> None:
    """bsfg broker config with only a new link keeps the earlier ones and prints the difference; a link is removed only
    on request; mosquitto.conf is written once and keeps what was changed in it."""
    code, said = _config("--user", own_user(), "--link", "plant-a:idmz", "--port", "8884")
    assert (code, "+ link plant-a:idmz" in said, "enable --now bsfg-broker@idmz" in said) == (0, True, True)
    files = BrokerFolder(authority / "etc/idmz")
    with files.config_file.open("a") as config:
        config.write("# mine\n")
    code, said = _config("--link", "idmz:enterprise")
    assert (code, [line for line in said.splitlines() if line[0] in "+-"]) == (0, ["+ link idmz:enterprise"])
    assert "restart bsfg-broker@idmz" in said
    assert files.rights()[0] == (PeerLink("idmz", "enterprise"), PeerLink("plant-a", "idmz"))
    assert files.settings()["listener"] == "8884"
    assert files.config_file.read_text().endswith("# mine\n")

    code, said = _config("--port", "1883")
    assert (code, "exists and says '8884'; change it there" in said) == (2, True)
    assert _config("--port", "8884", "--user", own_user())[0] == 0
    code, said = _config("--remove-link", "idmz:enterprise")
    assert (code, "- link idmz:enterprise" in said) == (0, True)
    assert json.loads(_config("--json")[1])["links"] == ["plant-a:idmz"]
    assert files.rights()[0] == (PeerLink("plant-a", "idmz"),)


@pytest.mark.parametrize(
    "words,says",
    [
        ((), "no links"),
        (("--link", "plant-a:idmz", "--remove-link", "plant-b:idmz"), "plant-b:idmz: not among the links"),
        (("--link", "plant-a:idmz", "--user", "root\nlistener 1"), "cannot stand in"),
        (("--link", "plant-a:idmz", "--name", "other"), "brokers/other.pem"),
    ],
)
def test_wrong_usage_writes_nothing(authority: Path, words: tuple[str, ...], says: str) -> None:
    """Each mistake is named, and no file is written."""
    code, said = _config(*words)
    assert code != 0
    assert says in said
    assert not (authority / "etc").exists()


def test_a_denied_zone_is_restored_only_when_a_link_of_it_is_named(authority: Path) -> None:
    """A denial takes the rights of a zone and keeps its links, and mode, owner and group of the file, also where root
    denies it at another user's broker. A configuration that names no link of the zone keeps the denial and says so; one
    that does restores the rights. A zone that is not there is named."""
    _config("--user", own_user(), "--link", "plant-a:idmz", "--link", "idmz:enterprise")
    files = BrokerFolder(authority / "etc/idmz")
    files.rights_file.chmod(0o640)
    owner = (12_345, 12_346) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    os.chown(files.rights_file, *owner)
    deny_nodes(files.config_file, ["enterprise"])
    assert files.rights() == ((PeerLink("idmz", "enterprise"), PeerLink("plant-a", "idmz")), ("enterprise",))
    kept = files.rights_file.stat()
    assert (kept.st_mode & 0o777, kept.st_uid, kept.st_gid) == (0o640, *owner)
    with pytest.raises(TopologyError, match="stranger: not in"):
        deny_nodes(files.config_file, ["stranger"])
    for words in ((), ("--link", "plant-b:idmz")):
        said = _config(*words)[1]
        assert ("without rights until one of their links is named again: enterprise" in said) is True
        assert files.rights()[1] == ("enterprise",)
    assert "+ rights of enterprise, which was denied" in _config("--link", "idmz:enterprise")[1]
    assert files.rights()[1] == ()


def test_what_to_do_about_damaged_rights_works(authority: Path) -> None:
    """The check and the command that would write the rights say the same, and doing it makes both succeed."""
    link = ("--link", "plant-a:idmz")
    assert _config("--user", own_user(), *link)[0] == 0
    files = BrokerFolder(authority / "etc/idmz")
    files.rights_file.write_text("{}")
    found = [finding.hint for finding in check_broker_files(files.config_file.absolute()) if finding.is_bad]
    done = command.bsfg(authority, "broker", "config", "etc/idmz", "--pki", "pki", *link)
    assert (found, done.returncode, plan.RightsDamaged.hint in done.stderr) == ([plan.RightsDamaged.hint], 1, True)
    files.rights_file.unlink()
    assert _config(*link)[0] == 0
    assert files.rights() == ((PeerLink("plant-a", "idmz"),), ())


def test_a_new_link_lifts_no_revocation(authority: Path) -> None:
    """A revocation list that was copied into the broker's folder, as the page says, stays when rights and certificates
    are written again from a folder with an older one, also if that has expired; a newer one replaces it. A list of the
    former authority is replaced too."""
    assert _config("--user", own_user(), "--link", "plant-a:idmz")[0] == 0
    source, in_force = authority / "pki/ca.crl", authority / "etc/idmz" / plan.CRL_NAME
    pki.reissue_crl(authority / "pki", NOW - timedelta(days=10), days=1)
    older = source.read_bytes()
    pki.reissue_crl(authority / "pki", NOW, days=365)
    pki.issue_zone(authority / "pki", "plant-b", NOW)
    pki.revoke(authority / "pki", "plant-b", NOW)
    newer = source.read_bytes()
    in_force.write_bytes(newer)
    source.write_bytes(older)
    assert _config("--link", "plant-c:idmz")[0] == 0
    assert in_force.read_bytes() == newer
    in_force.write_bytes(older)
    source.write_bytes(newer)
    assert _config()[0] == 0
    assert in_force.read_bytes() == newer
    pki.create_authority(authority / "pki", NOW, force=True)
    pki.issue_broker(authority / "pki", "idmz", ["localhost"], NOW, force=True)
    assert _config()[0] == 0
    assert in_force.read_bytes() == source.read_bytes() != newer


def test_the_broker_can_enter_its_folder_whatever_umask_root_has(authority: Path) -> None:
    """The folder is its group's, and the new ones above it are open."""
    umask = os.umask(0o077)
    try:
        code, said = _config("--user", own_user(), "--link", "plant-a:idmz")
    finally:
        os.umask(umask)
    assert code == 0, said
    modes = [stat.S_IMODE((authority / name).stat().st_mode) for name in ("etc", "etc/idmz", "etc/idmz/zones-ca.pem")]
    assert modes == [0o755, 0o750, 0o644]


def test_folder_names_a_missing_user(tmp_path: Path) -> None:
    """As root, an unknown user for the broker is refused before the broker fails to start."""
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    pki.create_authority(tmp_path / "pki", NOW)
    pki.issue_broker(tmp_path / "pki", "test", ["localhost"], NOW)
    with pytest.raises(pki.PkiError, match="no user nobody-at-all"):
        write_broker(
            tmp_path / "b", tmp_path / "pki", "test", LINKS, BrokerPlan("/b", "/plugin.so", user="nobody-at-all")
        )


@pytest.mark.system
def test_the_broker_runs_as_its_own_user() -> None:
    """Started as root from the folder as written, the broker runs as its own user and can read all its files."""
    if os.geteuid() != 0:
        pytest.skip("only root can give it up")
    try:
        user = pwd.getpwnam(plan.USER)
    except KeyError:
        pytest.skip("the package's user is missing")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # the way to the broker's own folder, which is closed to others
        with Mosquitto.started(folder) as broker:
            own = BrokerPlan(str(broker.files.folder), find_plugin(), HOST, broker.port)
            shutil.rmtree(broker.files.folder)
            write_broker(broker.files.folder, broker.pki_folder, BROKER, LINKS, own)
            broker.restart()
            assert Path(f"/proc/{broker.pid}").stat().st_uid == user.pw_uid
            assert broker.files.rights_file.stat().st_mode & 0o777 == 0o640
            with contextlib.ExitStack() as stack:
                assert Zones(broker, stack)["idmz"].publish("bsfg/1/plant-a/idmz/req") == NOBODY_LISTENS

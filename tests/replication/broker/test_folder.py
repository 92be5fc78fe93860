"""The broker's folder: refused if a file is not valid, readable for the broker's user."""

import contextlib
import os
import pwd
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.replication import pki
from agent.replication.broker import config as plan
from agent.replication.broker.config import BrokerPlan
from agent.replication.broker.folder import write_broker_folder
from tests.replication.broker.zones import (
    BROKER,
    LINKS,
    NOBODY_LISTENS,
    NOW,
    Zones,
    own_user,
)
from tests.support.mosquitto import HOST, Mosquitto


@pytest.mark.parametrize(
    "spoil,says",
    [
        (lambda folder: (folder / "ca.crl").unlink(), "No such file"),
        (lambda folder: (folder / "ca.crl").write_text("rubbish"), "not a revocation list"),
        (lambda folder: (folder / "brokers/test.pem").write_text("rubbish"), "not a certificate"),
        (lambda folder: (folder / "brokers/test.key").chmod(0o644), "chmod 0600"),
        (lambda folder: shutil.copy(folder / "zones/idmz.key", folder / "brokers/test.key"), "does not match"),
        (lambda folder: shutil.copy(folder / "zones/idmz.pem", folder / "brokers/test.pem"), "not for a server"),
        (lambda folder: pki.create_authority(folder, NOW, force=True), "signed by"),
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
        write_broker_folder(target, pki_folder, "test", BrokerPlan(links=LINKS, folder="", user=own_user()))
    assert not target.exists()


def test_folder_names_a_missing_user(tmp_path: Path) -> None:
    """As root, an unknown user for the broker is refused before the broker fails to start."""
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    pki.create_authority(tmp_path / "pki", NOW)
    pki.issue_broker(tmp_path / "pki", "test", ["localhost"], NOW)
    with pytest.raises(pki.PkiError, match="no user nobody-at-all"):
        write_broker_folder(
            tmp_path / "b", tmp_path / "pki", "test", BrokerPlan(links=LINKS, folder="", user="nobody-at-all")
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
            own = BrokerPlan(links=LINKS, folder="", host=HOST, port=broker.port)
            shutil.rmtree(broker.files.folder)
            write_broker_folder(broker.files.folder, broker.pki_folder, BROKER, own)
            broker.restart()
            assert Path(f"/proc/{broker.pid}").stat().st_uid == user.pw_uid
            assert broker.files.key_file.stat().st_mode & 0o777 == 0o640
            with contextlib.ExitStack() as stack:
                assert Zones(broker, stack)["idmz"].publish("bsfg/1/plant-a/idmz/req") == NOBODY_LISTENS

"""Certificates replaced under running nodes, with a real broker: used after one reconnect, refused without effect, and
reported."""

import asyncio
import contextlib
import shutil
import ssl
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.file_watch import WatchTimes
from agent.replication import pki
from agent.replication.mqtt.carrier import Access
from agent.replication.mqtt.link import BrokerLink
from agent.replication.mqtt.transport import MqttConnection
from agent.replication.pki.identity import Identity, IdentityWatcher
from agent.replication.protocol.errors import ConnectionRefused
from tests.replication.nodes import STREAM, Node, sealed
from tests.support.mosquitto import Mosquitto
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system

NOW = datetime.now(UTC)
EAGER = WatchTimes(settle_s=0.05, settle_max_s=0.5, reread_s=0.5)


class Files:
    """The three files of one zone's node, in a folder of their own, and ways to change them."""

    def __init__(self, broker: Mosquitto, zone: str, folder: Path) -> None:
        self.zone, self.folder = zone, folder
        self.site = Path(shutil.copytree(broker.pki_folder, folder / "site"))
        self.cert, self.key, self.ca = folder / "own.pem", folder / "own.key", folder / "ca.pem"
        shutil.copy(broker.ca_file, self.ca)
        self.bring(pki.issue_zone(self.site, zone, NOW, force=True))
        self.identity = Identity("private", zone, self.ca, self.cert, self.key)
        wanted = Access("private", zone, broker.host, broker.port, self.identity.context)
        self.link = BrokerLink(wanted, identity=self.identity)
        self.watch = IdentityWatcher([self.identity], EAGER)

    def bring(self, issued: pki.Issued) -> None:
        """Copy the files one after the other, as an operator does."""
        shutil.copy(issued.key_file, self.key)
        shutil.copy(issued.cert_file, self.cert)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the watcher alone; the link runs with its node."""
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self.watch.run())
            yield
            watching.cancel()


async def test_renewed_under_load(broker: Mosquitto, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While facts flow the receiver's identity is renewed three times (new key, same key, the previous certificate
    again): one reconnect each, every fact once and in order; no restart, and the serving side keeps its connection."""
    caplog.set_level("INFO", "agent.replication")
    mine = Files(broker, "idmz", tmp_path / "idmz")
    plant = Node.open(broker, "plant-a", tmp_path / "plant")
    plant.serve({"idmz": [STREAM]})
    idmz = Node.open(broker, "idmz", tmp_path / "store")
    idmz.link = mine.link
    idmz.pull("plant-a")
    previous = mine.site / "zones/previous"
    former = pki.GivenFiles(previous / "idmz.pem", mine.site / "ca.pem", previous / "idmz.key")
    acts: list[Callable[[], pki.Issued]] = [
        lambda: pki.issue_zone(mine.site, "idmz", NOW, force=True),
        lambda: pki.sign_request(mine.site, "idmz", None, NOW),
        lambda: pki.import_identity(mine.site, "idmz", former, NOW, force=True),
    ]
    async with mine.running(), plant.running(), idmz.running():
        for number, act in enumerate(acts, 1):

            async def taken_over(number: int = number) -> bool:
                await plant.append(plant.store.end_offset(STREAM) + 1, 10)
                return mine.link.statistics().connects > number

            mine.bring(act())
            await wait_until_async(taken_over, f"identity {number} in force")
        await plant.append(plant.store.end_offset(STREAM) + 1, 500)
        await idmz.wait_end(plant.store.end_offset(STREAM))
        assert sealed(idmz.store) == sealed(plant.store)
        assert mine.link.statistics().connects == 4
        assert mine.link.statistics().identity_trouble == ""
        assert plant.link.statistics().connects == 1
    plant.store.close()
    idmz.store.close()
    logged = [record.serial for record in caplog.records if record.message == "identity_taken_over"]  # type: ignore[attr-defined]
    assert (len(logged), logged[0] != logged[1], logged[0] == logged[2]) == (3, True, True)
    assert [record for record in caplog.records if record.message == "broker_lost"] == []


def _half(files: Files) -> None:
    shutil.copy(pki.issue_zone(files.site, files.zone, NOW, force=True).cert_file, files.cert)


def _all_of_another_authority(files: Files) -> None:
    """Files that are valid by our own checks; only the broker refuses them."""
    pki.create_authority(files.folder / "other", NOW)
    files.bring(pki.issue_zone(files.folder / "other", files.zone, NOW))
    shutil.copy(files.folder / "other/ca.pem", files.folder / "both.pem")
    files.ca.write_bytes(files.ca.read_bytes() + (files.folder / "both.pem").read_bytes())


def _all_of_the_next_authority(files: Files) -> None:
    """The node has the certificates of a new authority before the broker has."""
    _all_of_another_authority(files)
    shutil.copy(files.folder / "both.pem", files.ca)


@pytest.mark.parametrize(
    "spoil,says",
    [
        (_half, "the key does not match"),
        (_all_of_another_authority, "its authority is not known to the broker"),
        (_all_of_the_next_authority, "the broker is not trusted"),
    ],
)
async def test_bad_files_change_nothing_and_are_named(
    broker: Mosquitto, tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Files], None], says: str
) -> None:
    """The connection stays, the reason names the file and is logged once; valid files that follow are used."""
    mine = Files(broker, "idmz", tmp_path)
    async with mine.running(), asyncio.TaskGroup() as group:
        linking = group.create_task(mine.link.run())
        await mine.link.wait_up()
        first = mine.link.connection
        spoil(mine)
        await wait_until_async(lambda: says in mine.link.statistics().identity_trouble, f"{says} is logged")
        assert mine.link.connection is first
        # A lost connection comes back with what is in force.
        broker_side = mine.link.statistics().connects
        assert first is not None
        await first.close()
        await wait_until_async(lambda: mine.link.statistics().connects > broker_side, "connected again")
        assert says in mine.link.statistics().identity_trouble
        mine.key.unlink(missing_ok=True)
        mine.bring(pki.issue_zone(mine.site, "idmz", NOW, force=True))
        mine.ca.write_bytes(broker.ca_file.read_bytes())
        await wait_until_async(lambda: mine.link.statistics().identity_trouble == "", "the good files are in force")
        assert mine.link.statistics().identity_ends is not None
        linking.cancel()
    logged = [record.reason for record in caplog.records if record.message == "identity_refused"]  # type: ignore[attr-defined]
    assert sum(says in reason for reason in logged) == 1


@pytest.mark.parametrize(
    "make,says",
    [
        (lambda site: pki.issue_zone(site, "idmz", NOW - timedelta(days=9), days=5, force=True), "it has expired"),
        (lambda site: pki.issue_zone(site, "idmz", NOW + timedelta(days=2), force=True), "not yet valid"),
        (lambda site: pki.issue_broker(site, "idmz", ["localhost"], NOW), "not a client certificate"),
        (
            lambda site: pki.create_authority(site / "x", NOW) and pki.issue_zone(site / "x", "idmz", NOW),
            "its authority is not known",
        ),
    ],
    ids=["ended", "not begun", "a server's", "another authority's"],
)
async def test_a_refused_handshake_names_the_reason(
    broker: Mosquitto, tmp_path: Path, make: Callable[[Path], pki.Issued], says: str
) -> None:
    """The broker's reason arrives as a TLS alert; the error names it."""
    site = Path(shutil.copytree(broker.pki_folder, tmp_path / "site"))
    issued = make(site)

    def unchecked() -> ssl.SSLContext:
        return pki.client_context(broker.ca_file, issued.cert_file, issued.key_file)

    with pytest.raises(ConnectionRefused, match=says) as caught:
        await MqttConnection.open(Access("b", "idmz", broker.host, broker.port, unchecked), lambda _: None)
    assert caught.value.hint

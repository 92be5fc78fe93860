"""A real Mosquitto for tests: own authority, generated configuration, a free port on loopback, gone afterwards.

    with Mosquitto.started(folder, zones=("plant-a", "idmz"), links=("plant-a:idmz",)) as broker:
        broker.host, broker.port, broker.identity("plant-a").cert_file
        broker.freeze(); broker.thaw(); broker.kill(); broker.restart()

The configuration is the product's, unchanged but for port, folder and user: as root Mosquitto would give up root and
then could not enter pytest's folders, so it is told to stay who started it.  The process dies with the thread that
started it, even if that is killed: start it in the main thread or in one that outlives the test.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from agent.replication import pki
from agent.replication.broker import BrokerLimits, BrokerPlan, parse_link
from agent.replication.broker_folder import BrokerFolder, write_broker_folder
from tests.waiting import wait_until

HOST = "127.0.0.1"
START_ATTEMPTS = 5  # another program may take the free port between finding and using it
START_LIMIT_S = 20.0
STOP_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Identity:
    """The files with which one zone connects."""

    zone: str
    cert_file: Path
    key_file: Path
    ca_file: Path


class BrokerDied(Exception):
    """Mosquitto ended while it was expected to run; carries its log."""


def free_port() -> int:
    """A port of loopback that was free just now."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


class Mosquitto:
    """One broker process and the certificates that go with it."""

    host = HOST

    def __init__(self, pki_folder: Path, files: BrokerFolder, port: int, identities: dict[str, Identity]) -> None:
        self.pki_folder = pki_folder
        self.files = files
        self.port = port
        self._identities = identities
        self._log_file = files.folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextlib.contextmanager
    def started(
        cls,
        folder: Path,
        zones: Sequence[str] = ("plant-a", "plant-b", "idmz", "enterprise"),
        links: Sequence[str] = ("plant-a:idmz", "plant-b:idmz", "idmz:enterprise"),
        limits: BrokerLimits | None = None,
    ) -> Iterator[Mosquitto]:
        """Make everything below `folder`, run the broker for the length of the block, leave no process behind."""
        now = datetime.now(UTC)
        pki_folder = folder / "pki"
        pki.create_authority(pki_folder, now)
        pki.issue_broker(pki_folder, "test", [HOST, "localhost"], now)
        identities = {}
        for zone in zones:
            issued = pki.issue_zone(pki_folder, zone, now)
            identities[zone] = Identity(zone, issued.cert_file, issued.key_file, issued.ca_file)
        for attempt in range(START_ATTEMPTS):
            port = free_port()
            plan = BrokerPlan(
                links=tuple(parse_link(link) for link in links),
                folder="",
                host=HOST,
                port=port,
                user=pwd.getpwuid(os.geteuid()).pw_name,
                limits=limits or BrokerLimits(),
            )
            broker = cls(pki_folder, write_broker_folder(folder / "broker", pki_folder, "test", plan), port, identities)
            try:
                broker.start()
            except BrokerDied as error:
                if attempt + 1 == START_ATTEMPTS or "Address already in use" not in str(error):
                    raise
            else:
                break
        try:
            yield broker
        finally:
            broker.kill()

    @property
    def pid(self) -> int:
        """The running process."""
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def ca_file(self) -> Path:
        """The authority that signed the broker and every zone."""
        return self.pki_folder / "ca.pem"

    def identity(self, zone: str) -> Identity:
        """The certificate, key and authority of `zone`."""
        return self._identities[zone]

    def start(self) -> None:
        """Run the broker, and return once it accepts connections."""
        assert self._process is None, "the broker is running"
        mosquitto = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        assert mosquitto is not None, "mosquitto is missing: apt-get install mosquitto"
        with self._log_file.open("ab") as log:
            # setpriv: the kernel ends the broker when its starter dies in whatever way.
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", mosquitto, "-c", str(self.files.config_file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.files.folder,
            )
        try:
            wait_until(self._accepts, f"mosquitto accepts on port {self.port}", START_LIMIT_S)
        except BaseException:  # tidy: nothing is handled here, only the process must not outlive the failure
            self.kill()
            raise

    def stop(self) -> None:
        """End the broker as systemd would; kill it if it does not listen."""
        if self._process is None:
            return
        self.thaw()
        self._process.terminate()
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """End the broker at once, as a power cut would; nothing when it does not run."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None

    def restart(self) -> None:
        """Stop the broker if it runs, and start it on the same port."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Stop the broker's time: connections stay open and nothing moves."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen broker go on; harmless otherwise."""
        os.kill(self.pid, signal.SIGCONT)

    def reload(self) -> None:
        """Make the broker read certificates, lists and access rules again; returns when it says it has."""
        before = self.log().count("Reloading config.")
        os.kill(self.pid, signal.SIGHUP)
        wait_until(lambda: self.log().count("Reloading config.") > before, "mosquitto reloads")

    def log(self) -> str:
        """Everything the broker has said so far, over all its lives."""
        return self._log_file.read_text(encoding="utf-8", errors="replace") if self._log_file.exists() else ""

    def _accepts(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            self._process = None
            raise BrokerDied(self.log())
        try:
            socket.create_connection((self.host, self.port), timeout=1.0).close()
        except OSError:
            return False
        return True

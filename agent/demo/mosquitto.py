"""A private Mosquitto broker with its own certificate authority, on a free port of loopback, for demo, benchmarks and
tests.

    with Mosquitto.started(folder, zones=("plant-a", "idmz"), links=("plant-a:idmz",)) as broker:
        broker.host, broker.port, broker.identity("plant-a").cert_file
        broker.freeze(); broker.thaw(); broker.kill(); broker.restart()

The configuration is the product's; only port, folder and user differ. The broker runs as the user who starts it,
because Mosquitto started as root changes to another user, which could not read the folder.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from agent.demo.processes import Child, ProcessFailed, accepts, free_port
from agent.replication import pki
from agent.replication.broker import BrokerFolder, BrokerPlan, PeerLink, find_plugin, parse_link, write_broker

HOST = "127.0.0.1"
START_ATTEMPTS = 5  # another program may take the free port between finding and using it


def broker_section(mine: pki.Issued, port: int, name: str = "site") -> str:
    """The lines of node.toml about a broker on this machine."""
    files = f'ca_file = "{mine.ca_file}"\ncert_file = "{mine.cert_file}"\nkey_file = "{mine.key_file}"\n'
    return f'[[broker]]\nname = "{name}"\nhost = "{HOST}"\nport = {port}\n{files}'


class Mosquitto(Child):
    """One broker process and the certificates that go with it."""

    host = HOST

    def __init__(self, pki_folder: Path, files: BrokerFolder, port: int, identities: dict[str, pki.Issued]) -> None:
        program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if program is None:
            raise ProcessFailed("mosquitto is not installed; apt-get install mosquitto")
        super().__init__("mosquitto", [program, "-c", files.config_file], files.folder / "log")
        self.pki_folder = pki_folder
        self.files = files
        self.port = port
        self._identities = identities

    @classmethod
    @contextlib.contextmanager
    def started(
        cls,
        folder: Path,
        zones: Sequence[str] = ("plant-a", "plant-b", "idmz", "enterprise"),
        links: Sequence[str] = ("plant-a:idmz", "plant-b:idmz", "idmz:enterprise"),
    ) -> Iterator[Mosquitto]:
        """Create all files below `folder`, run the broker while the block runs, and stop it at the end."""
        now = datetime.now(UTC)
        pki_folder = folder / "pki"
        pki.create_authority(pki_folder, now)
        pki.issue_broker(pki_folder, "private", [HOST, "localhost"], now)
        identities = {zone: pki.issue_zone(pki_folder, zone, now) for zone in zones}
        parsed = [parse_link(link) for link in links]
        broker = cls._start_on_a_free_port(folder / "broker", pki_folder, parsed, identities)
        try:
            yield broker
        finally:
            broker.kill()

    @contextlib.contextmanager
    def second_process(self, name: str, links: Sequence[str]) -> Iterator[Mosquitto]:
        """A second process with the same authority and zones, on a port of its own, for other links."""
        folder, parsed = self.files.folder.with_name(name), [parse_link(link) for link in links]
        broker = self._start_on_a_free_port(folder, self.pki_folder, parsed, self._identities)
        try:
            yield broker
        finally:
            broker.kill()

    @classmethod
    def _start_on_a_free_port(
        cls, folder: Path, pki_folder: Path, links: Sequence[PeerLink], identities: dict[str, pki.Issued]
    ) -> Mosquitto:
        user = pwd.getpwuid(os.geteuid()).pw_name
        for attempt in range(1, START_ATTEMPTS + 1):
            plan = BrokerPlan(str(folder.resolve()), find_plugin(), HOST, free_port(), user)
            files = write_broker(folder, pki_folder, "private", links, plan)
            broker = cls(pki_folder, files, plan.port, identities)
            try:
                broker.start()
            except ProcessFailed as error:
                if attempt == START_ATTEMPTS or "Address already in use" not in str(error):
                    raise
            else:
                return broker
        raise AssertionError("the last attempt returns or raises")

    @property
    def ca_file(self) -> Path:
        """The authority that signed the broker and every zone."""
        return self.pki_folder / "ca.pem"

    def identity(self, zone: str) -> pki.Issued:
        """The certificate, key and authority of `zone`."""
        return self._identities[zone]

    def section(self, zone: str, name: str = "site") -> str:
        """The lines about this broker in the node.toml of `zone`."""
        return broker_section(self.identity(zone), self.port, name)

    def start(self) -> None:
        """Start the broker and wait until it runs. It accepts connections before it handles SIGHUP, so the log is
        read."""
        super().start()
        try:
            self.wait_ready(lambda: " running\n" in self.log_text() and accepts(self.port))
        except BaseException:  # tidy: handles nothing; the process must not outlive the failure
            self.kill()
            raise

    def restart(self) -> None:
        """Stop the broker if it runs, and start it on the same port."""
        self.stop()
        self.start()

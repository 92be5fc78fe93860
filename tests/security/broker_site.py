"""The running brokers of a site as bsfg broker config writes them: one Mosquitto for each pair of zones, with its
unit's limit of open files.
"""

import contextlib
import os
import pwd
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from agent.demo.processes import Child, accepts, free_port
from agent.replication import pki
from agent.replication.broker.config import limits_for, parse_link
from agent.replication.broker.folder import BrokerFolder, write_site
from agent.replication.broker.site import BrokerSite, Process, with_link

HOST = "127.0.0.1"
LINKS = ("plant-a:idmz", "idmz:enterprise")


class PairBroker(Child):
    """The running broker of one process of a site."""

    host = HOST

    def __init__(self, folder: Path, process: Process, identities: dict[str, pki.Issued], files_max: int) -> None:
        program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        assert program is not None, "mosquitto is not installed"
        self.files = BrokerFolder(folder, process.name)
        log = self.files.config_file.parent / "log"
        super().__init__(process.name, ["prlimit", f"--nofile={files_max}", program, "-c", self.files.config_file], log)
        self.port, self.process, self._identities = process.port, process, identities

    def identity(self, zone: str) -> pki.Issued:
        """The certificate, key and authority of `zone`."""
        return self._identities[zone]


class RunningSite:
    """All brokers of a site."""

    def __init__(self, folder: Path, site: BrokerSite, brokers: dict[str, PairBroker]) -> None:
        self.folder, self.site, self._brokers = folder, site, brokers

    def broker(self, *zones: str) -> PairBroker:
        """The broker that carries these zones."""
        return next(each for each in self._brokers.values() if set(zones) <= set(each.process.zones))

    @classmethod
    @contextlib.contextmanager
    def started(
        cls,
        folder: Path,
        links: Sequence[str] = LINKS,
        *,
        sources: tuple[str, ...] = (),
        bound_files: bool = True,
        host: str = HOST,
    ) -> Iterator["RunningSite"]:
        """Make everything below `folder`, run the brokers during the block, and leave no process behind. Without
        `bound_files` the unit's limit of open files is not set. With another `host` they listen on all addresses."""
        now = datetime.now(UTC)
        pki.create_authority(folder / "pki", now)
        pki.issue_broker(folder / "pki", "site", [host, HOST, "localhost"], now)
        site = BrokerSite("site", HOST if host == HOST else "", pwd.getpwuid(os.geteuid()).pw_name)
        for link in links:
            site = with_link(site, parse_link(link), free_port())
        site = replace(site, processes=tuple(replace(each, sources=sources) for each in site.processes))
        zones = {zone for each in site.processes for zone in each.zones}
        identities = {zone: pki.issue_zone(folder / "pki", zone, now) for zone in sorted(zones)}
        write_site(folder / "etc", folder / "pki", None, site)
        with contextlib.ExitStack() as stack:
            brokers = {}
            for each in site.processes:
                files_max = limits_for(each.links).files if bound_files else 1024
                broker = brokers[each.name] = PairBroker(folder / "etc", each, identities, files_max)
                stack.callback(broker.kill)
                broker.start()
                broker.wait_ready(lambda broker=broker: " running\n" in broker.log_text() and accepts(broker.port))
            yield cls(folder / "etc", site, brokers)

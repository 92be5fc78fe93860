"""The certificates of a site, for the tests of this folder."""

from datetime import UTC, datetime
from pathlib import Path

from agent.replication import pki

NOW = datetime.now(UTC).replace(microsecond=0)


def make_site(folder: Path) -> Path:
    """An authority with two zones and a broker, signed at NOW."""
    pki.create_authority(folder, NOW)
    pki.issue_zone(folder, "plant-a", NOW)
    pki.issue_zone(folder, "idmz", NOW)
    pki.issue_broker(folder, "b1", ["localhost", "127.0.0.1", "::1", "Broker.IDMZ.example"], NOW)
    return folder

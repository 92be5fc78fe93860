"""A zone that fills the disk with artifacts reaches its own limit and nobody else's."""

import asyncio
import contextlib
import hashlib
import stat

import pytest

from agent import local_socket
from tests.security.attacker import b64, message
from tests.security.site import EVIL, IDMZ, STREAM, Site
from tests.waiting import wait_until

pytestmark = pytest.mark.system

MIB = 1024 * 1024
QUOTA = 8 * MIB
"""As in `small_site`."""
SIZE = 512 * 1024
SLACK = 4 * MIB
"""What is being written while the limit is reached."""


@pytest.fixture
def site(small_site: Site) -> Site:
    """A site with small limits, every honest node running."""
    small_site.revive()
    return small_site


def artifact_bytes(site: Site) -> int:
    """What the artifacts of idmz occupy."""
    sizes = dict[int, int]()
    for one in (site.folder / IDMZ / "state").rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # the node has moved it meanwhile
            found = one.stat()
            if stat.S_ISREG(found.st_mode) and "facts.db" not in one.name:
                sizes[found.st_ino] = found.st_size
    return sum(sizes.values())


def put_locally(site: Site, content: bytes) -> bool:
    """Whether an application of idmz can put an artifact."""
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    request = local_socket.PutObject(digest, len(content), 0, content)
    answer = asyncio.run(local_socket.ask(site.folder / IDMZ / "state", request))
    return isinstance(answer, local_socket.ObjectPut) and answer.is_complete


def test_a_flood_of_artifacts_reaches_the_quota_of_its_zone(site: Site) -> None:
    """Artifacts to which no fact refers, as fast as they are taken: they end at the zone's quota, an application of the
    node still puts its own, and facts flow."""
    before = artifact_bytes(site)
    with (
        site.unharmed(),
        site.attacker.flooding("artifacts", zone=EVIL, serving=IDMZ, size=SIZE, open=4) as flood,
    ):
        wait_until(lambda: site.attacker.counts(flood).get("artifact_quota", 0) > 5, "the quota to be reached", 20)
        assert artifact_bytes(site) - before <= QUOTA + SLACK
        assert put_locally(site, b"honest" * 1_000)


def test_claimed_sizes_count_before_a_byte_is_sent(site: Site) -> None:
    """A hundred artifacts announced with two megabytes each, of which one byte is sent: the quota counts what is
    announced."""
    with site.unharmed():
        codes = [
            site.attacker.ask(
                EVIL, IDMZ, "PutObject", digest=f"sha256:{number:064x}", size=2 * MIB, offset=0, data=b64(b"x")
            )
            for number in range(100)
        ]
        refused = [one["error"]["code"] for one in codes if one["status"] == "error"]
        assert refused.count("artifact_quota") >= 90, codes[-1]
        assert artifact_bytes(site) <= QUOTA + SLACK


def test_artifacts_behind_pulled_facts_are_bounded_too(site: Site) -> None:
    """Facts of a pulled peer refer to artifacts that it serves without end and never rightly: idmz keeps no more than
    its limits, and facts behind them flow."""
    site.fresh_evil()
    before = artifact_bytes(site)
    with site.unharmed():
        for number in range(20):
            digest = f"sha256:{number:064x}"
            site.attacker.command("offer_artifact", zone=EVIL, digest=digest, size=2 * MIB)
            reference = f'{{"digest":"{digest}","size":{2 * MIB}}}'
            site.attacker.append(EVIL, STREAM, [message(number, reference, object_media_type="a/b")])
        site.attacker.append(EVIL, STREAM, [message("behind artifacts")])
        site.wait_fact("evil-behind artifacts", limit_s=60)
        assert artifact_bytes(site) - before <= QUOTA + SLACK

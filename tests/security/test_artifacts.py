"""A zone that fills the disk with artifacts reaches its own limit and does not affect others."""

import asyncio
import contextlib
import hashlib
import secrets
import stat
from collections.abc import Callable

import pytest

from agent import local_socket
from tests.security.attacker import b64, message
from tests.security.site import EVIL, IDMZ, STREAM, Site, some
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
    """The disk space of idmz's artifacts."""
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
    """Unreferenced artifacts, put as fast as they are accepted, end at the zone's quota. An application of the node can
    still put its own, and facts flow."""
    before = artifact_bytes(site)
    with (
        site.unharmed(),
        site.attacker.flooding("artifacts", zone=EVIL, serving=IDMZ, size=SIZE, open=4) as flood,
    ):
        wait_until(lambda: site.attacker.counts(flood).get("artifact_quota", 0) > 5, "the quota to be reached", 20)
        assert artifact_bytes(site) - before <= QUOTA + SLACK
        assert put_locally(site, b"honest" * 1_000)


def test_claimed_sizes_count_before_a_byte_is_sent(site: Site) -> None:
    """A hundred artifacts are announced with two megabytes each, and one byte of each is sent: the quota counts the
    announced sizes."""
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
    """Facts of a pulled peer refer to artifacts that it serves endlessly and always wrong: idmz stores no more than its
    limits, and later facts flow."""
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


Lie = tuple[int, int, bytes]
"""What a peer says of an artifact in each answer: its size, the offset, and the bytes there."""
LIES: dict[str, Callable[[bytes], Lie | None]] = {
    "denied": lambda _: None,
    "false bytes": lambda true: (len(true), 0, true[::-1]),
    "too many bytes": lambda true: (len(true), 0, true + true),
    "another size": lambda true: (len(true) + 1, 0, true),
    "another offset": lambda true: (len(true), 1, true),
    "no bytes": lambda true: (len(true), 0, b""),
}


@pytest.mark.parametrize("case", some(LIES, 3))
def test_an_artifact_that_a_peer_denies_or_forges_is_missing_by_name(site: Site, case: str) -> None:
    """A pulled fact refers to an artifact that its peer denies, or always sends wrong. The fact and the next one are
    stored; an incident names artifact and peer; idmz serves no byte of it until an application of idmz has put the true
    content."""
    site.fresh_evil()
    true = f"{case} {secrets.token_hex(500)}".encode()
    digest = f"sha256:{hashlib.sha256(true).hexdigest()}"
    if (lie := LIES[case](true)) is not None:
        size, offset, data = lie
        site.attacker.command("offer_artifact", zone=EVIL, digest=digest, size=size)
        header = {"size": size, "offset": offset, "bytes": len(data)}
        lies = {"header": header, "attachment": b64(data), "times": 1000}
        site.attacker.command("patch", zone=EVIL, operation="GetObject", **lies)

    def served() -> str:
        """idmz's answer to a request for the artifact."""
        answer = site.attacker.ask(EVIL, IDMZ, "GetObject", digest=digest)
        return str(answer.get("error", {}).get("code", answer.get("bytes")))

    with site.unharmed():
        reference = f'{{"digest":"{digest}","size":{len(true)}}}'
        refers, behind = f"refers-{digest[7:15]}", f"behind-{digest[7:15]}"
        site.attacker.append(EVIL, STREAM, [message(refers, reference, object_media_type="a/b", message_id=refers)])
        site.attacker.append(EVIL, STREAM, [message(behind, message_id=behind)])
        site.wait_fact(behind)
        site.wait_fact(refers, limit_s=1)
        said = [one for one in site.new_incidents(IDMZ) if digest in one]
        assert len(said) == 1
        assert "artifact_missing" in said[0]
        assert EVIL in said[0]
        assert served() == "unknown_artifact"
        assert put_locally(site, true)
        assert served() == str(len(true))
    site.attacker.command("unpatch", zone=EVIL)

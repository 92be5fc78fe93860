"""A relay that has been taken over replays what was true before.

The attacker has the certificate of idmz, takes facts and signatures of the plant as any relay does, and serves the
enterprise old data. The enterprise demands the plant's signatures; they reach it only through the second implementation
of the protocol.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
import ssl
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from agent import batch
from agent.fact_store import StoreReader
from agent.replication import pki
from tests.security.attacker import b64, message
from tests.security.site import ENTERPRISE, IDMZ, PLANT, STREAM, Site, running_site
from tests.waiting import wait_until

pytestmark = pytest.mark.system

CHECKPOINT = "heads_checkpointed"


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The plant signs and the enterprise demands it; the relay between them is the attacker."""
    folder = tmp_path_factory.mktemp("site")
    files, _ = pki.create_signer(folder, PLANT, datetime.now(UTC))
    pin = hashlib.sha256(ssl.PEM_cert_to_DER_cert(files.cert_file.read_text())).hexdigest()
    more = {
        PLANT: f'[signing]\nkey_file = "{files.key_file}"\ncertificate_file = "{files.cert_file}"\n',
        ENTERPRISE: f'[[origin]]\nzone = "{PLANT}"\nsignatures = "required"\npinned = ["{pin}"]\n',
    }
    with running_site(folder, honest=(PLANT, ENTERPRISE), taken=(IDMZ,), more=more) as site:
        site.attacker.serve(IDMZ, ENTERPRISE)
        yield site


def relay(site: Site, after: int = 0, *, spoil: int = 0) -> int:
    """Serve the plant's facts from an offset on, unchanged but for the records of the first `spoil` batches. Returns
    the end of its log."""
    fields = {"port": site.broker.port, "from": PLANT, "after": after, "spoil": spoil}
    return int(site.attacker.command("relay", zone=IDMZ, stream=STREAM, **fields))


def relay_all(site: Site) -> None:
    """Serve all facts of the plant, and wait until the enterprise has them."""
    name = site.append()
    relay(site)
    site.wait_fact(name)


def replay(site: Site) -> None:
    """Serve the first facts again."""
    site.attacker.command("replay", zone=IDMZ, stream=STREAM, number=0)


def serve_own(site: Site, **fields: Any) -> None:
    """Serve a fact of the relay itself, and wait until the enterprise has it."""
    name = f"own-{secrets.token_hex(4)}"
    site.attacker.append(IDMZ, STREAM, [message(name, zone=IDMZ, message_id=name, **fields)])
    site.wait_fact(name)


def restart(site: Site, zone: str) -> None:
    """Stop a node in order, and start it again."""
    site.nodes[zone].stop()
    site.revive()


def batches(site: Site, zone: str) -> list[batch.Batch]:
    """The plant's batches in a zone's store."""
    with contextlib.closing(StoreReader(site.store(zone))) as reader:
        found = [batch.parse(stored.sealed) for stored in reader.read(STREAM, 0, 10**6, 10**8).batches]
    return [parsed for parsed in found if parsed.header.origin.zone == PLANT]


def checkpoints(site: Site, zone: str) -> list[bytes]:
    """The objects of the plant's checkpoints in a zone's store."""
    messages = [
        opened
        for parsed in batches(site, zone)
        if parsed.header.kind is batch.Kind.MESSAGES
        for opened in batch.open_messages(parsed)
    ]
    return [opened.fact.object_json for opened in messages if opened.fact.predicate == CHECKPOINT]


def test_a_log_that_was_taken_back_changes_nothing(site: Site) -> None:
    """The relay serves all facts of the plant, then under another life only its first ones, twice, as an old copy
    would. The enterprise has all facts once, and accepts the next one."""
    first = site.append()
    end = relay(site)
    second = site.append()
    relay(site, end)
    site.wait_fact(second)
    before = batches(site, ENTERPRISE)
    site.attacker.command("begin", zone=IDMZ)
    replay(site)
    replay(site)
    serve_own(site)
    assert batches(site, ENTERPRISE) == before
    third = site.append()
    relay(site, end)
    site.wait_fact(third)
    arrived = Counter(site.ids(ENTERPRISE))
    assert [arrived[name] for name in (first, second, third)] == [1, 1, 1]
    assert site.incidents(ENTERPRISE) == []
    assert site.nodes[ENTERPRISE].running


def test_a_relay_that_spoils_records_is_named(site: Site) -> None:
    """Schedule of rule 14: the relay changes a bit of the record of the plant's newest batch and makes its digest fit.
    The enterprise declines that batch by name, with evidence. Once an honest path brings the genuine one, it is stored
    once."""
    relay_all(site)
    end, name = site.end(PLANT), site.append()
    relay(site, end, spoil=1)
    serve_own(site)
    assert name not in site.ids(ENTERPRISE)
    wait_until(
        lambda: any("declined" in incident for incident in site.incidents(ENTERPRISE)),
        "the spoiled batch to be declined",
    )
    assert list((site.folder / ENTERPRISE).rglob("declined/*.batch"))
    relay(site, end)
    site.wait_fact(name)
    assert Counter(site.ids(ENTERPRISE))[name] == 1
    assert batches(site, ENTERPRISE)[-1].sealed == batches(site, PLANT)[-1].sealed


def test_an_old_checkpoint_proves_nothing_new(site: Site) -> None:
    """The plant's checkpoint of today is replayed unchanged, sealed again in the plant's name with another digest, and
    repeated by the relay in its own name: the first is a duplicate, the second is declined, the third is the relay's
    own statement. The enterprise has one checkpoint of the plant, and its store is sound."""
    relay_all(site)
    restart(site, PLANT)  # a node records the day's checkpoint when it starts
    wait_until(lambda: checkpoints(site, PLANT), "a checkpoint of the plant")
    relay(site)
    wait_until(lambda: checkpoints(site, ENTERPRISE) == checkpoints(site, PLANT), "the checkpoint to arrive")
    relay(site)
    (real,) = checkpoints(site, PLANT)
    content = re.sub(rb'(?<="digest":")[0-9a-f]{32}', b"0" * 32, real)
    assert content != real
    forged = {"predicate": CHECKPOINT, "subject": f"stream:{PLANT}/{STREAM}"}
    batch_of_plant = [message("forged", content, zone=PLANT, message_id=f"forged-{secrets.token_hex(4)}", **forged)]
    for life in (batches(site, PLANT)[0].header.origin.life.hex(), secrets.token_hex(16)):
        of_plant = {"zone": PLANT, "life": life, "messages": batch_of_plant}
        site.attacker.command("append", zone=IDMZ, stream=STREAM, batch=of_plant)
    serve_own(site, object={"bin": b64(content)}, **forged)
    assert checkpoints(site, ENTERPRISE) == [real]
    wait_until(
        lambda: any("declined" in incident for incident in site.incidents(ENTERPRISE)), "the forged ones to be declined"
    )
    assert site.command(ENTERPRISE, "store", "verify").returncode == 0

"""The signing keys of a chain of three zones are renewed, expire and are compromised while the nodes run. All zones
demand each other's signatures and trust one facts authority."""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.fact_store import StoreReader
from agent.replication import pki
from agent.signing.records import key_id_in
from tests.security.site import ENTERPRISE, HONEST, IDMZ, PLANT, STREAM, Site, running_site, some
from tests.waiting import wait_until

pytestmark = pytest.mark.system


def issue(folder: Path, zone: str, when: datetime | None = None, days: int = 30) -> Path:
    """Issue and import a certificate for the zone's present key with the commands."""
    when = when or datetime.now(UTC)
    request = pki.request_signer(folder, zone).request_file
    issued = pki.sign_signer(folder / "facts", zone, request, when, days=days)
    files, _ = pki.import_signer(folder, zone, issued.cert_file, folder / "facts/ca.pem", when)
    return files.cert_file


def renew(folder: Path, zone: str, when: datetime | None = None) -> str:
    """Make another key for a zone, with its certificate. Returns the key id in hex."""
    pki.create_signer(folder, zone, datetime.now(UTC), force=True)
    return pki.read_signer(issue(folder, zone, when)).key_id.hex()


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three honest zones with signing keys."""
    folder = tmp_path_factory.mktemp("site")
    pki.create_authority(folder / "facts", datetime.now(UTC) - timedelta(days=300), for_facts=True)
    more = {}
    for zone in HONEST:
        key_file = pki.create_signer(folder, zone, datetime.now(UTC))[0].key_file
        cert_file = issue(folder, zone)
        more[zone] = (
            f'[signing]\nkey_file = "{key_file}"\ncertificate_file = "{cert_file}"\n'
            f'facts_ca_file = "{folder / "facts/ca.pem"}"\ncompromised_file = "{folder / zone / "compromised.toml"}"\n'
        )
        more[zone] += "".join(
            f'[[origin]]\nzone = "{honest}"\nsignatures = "required"\n' for honest in HONEST if honest != zone
        )
    with running_site(folder, taken=(), more=more) as site:
        yield site


def record_keys(site: Site, zone: str) -> list[str]:
    """The keys (hex) that have signed the plant's messages, as stored by a zone, in the order of the log."""
    with contextlib.closing(StoreReader(site.store(zone))) as reader:
        records = [batch_row.batch.record for batch_row in reader.read(STREAM, 0, 100_000, 80_000_000).batches]
    return list(dict.fromkeys(key_id_in(record).hex() for record in records if record))


@contextlib.contextmanager
def appending(site: Site) -> Iterator[list[str]]:
    """An application of the plant appends continuously; yields the ids so far."""
    ids, ended = list[str](), threading.Event()

    def work() -> None:
        while not ended.is_set():
            ids.append(site.append())

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield ids
    finally:
        ended.set()
        worker.join()


def test_the_keys_of_a_chain_are_renewed_while_it_runs(site: Site) -> None:
    """Plant, relay and enterprise get a new key, one after the other, while the plant appends: `bsfg reload` names it,
    and every fact from then on is signed with it. All facts arrive in order, once, verified; nothing was refused or
    declined, and no connection and no process has ended."""
    processes, connects = {zone: site.nodes[zone].pid for zone in HONEST}, site.connects()
    unproven = {peer: site.pull(zone, peer)["unproven_total"] for zone, peer in ((IDMZ, PLANT), (ENTERPRISE, IDMZ))}
    old = pki.read_signer(site.folder / "signers" / f"{PLANT}.pem").key_id.hex()
    keys, first = {}, len(site.ids(PLANT))
    with appending(site) as ids:
        for zone in HONEST:
            keys[zone] = renew(site.folder, zone)
            count = len(ids)
            wait_until(lambda count=count: len(ids) > count + 3, "facts signed with the key before")  # type: ignore[misc]
            done = site.command(zone, "reload")
            assert (done.returncode, done.stdout) == (0, f"reloaded: signing with {keys[zone]}\n"), done
            count = len(ids)
            wait_until(lambda count=count: len(ids) > count + 3, "facts signed with the new key")  # type: ignore[misc]
            site.wait_fact(ids[-1])
    site.wait_fact(ids[-1])
    assert site.ids(ENTERPRISE)[first:] == ids
    assert record_keys(site, ENTERPRISE) == record_keys(site, PLANT) == [old, keys[PLANT]]
    with contextlib.closing(StoreReader(site.store(ENTERPRISE))) as reader:
        assert len(reader.signers([bytes.fromhex(keys[PLANT])])) == 1
    for zone in HONEST:
        assert site.incidents(zone) == []
        assert "signers_not_read" not in site.log(zone)
    after = {peer: site.pull(zone, peer)["unproven_total"] for zone, peer in ((IDMZ, PLANT), (ENTERPRISE, IDMZ))}
    assert after == unproven
    assert site.connects() == connects
    assert {zone: site.nodes[zone].pid for zone in HONEST} == processes
    assert site.command(ENTERPRISE, "store", "verify").returncode == 0


BAD = dict.fromkeys(["another key", "another zone", "not yet valid", "no key", "open to others"])


@pytest.mark.parametrize("case", some(BAD, short=2))
def test_a_bad_new_key_keeps_the_old_one(site: Site, case: str) -> None:
    """The reload is refused with the reason, which the status keeps; facts continue to flow, signed with the former
    key."""
    site.assert_honest_flow()
    key_file, cert_file = (site.folder / "signers" / f"{PLANT}.{kind}" for kind in ("key", "pem"))
    before, mode = (key_file.read_bytes(), cert_file.read_bytes()), key_file.stat().st_mode
    other = site.folder / "other"
    match case:
        case "another key":
            pki.create_signer(other, PLANT, datetime.now(UTC), force=True)
            key_file.write_bytes((other / "signers" / f"{PLANT}.key").read_bytes())
            why = "names key"
        case "another zone":
            cert_file.write_bytes((site.folder / "signers" / f"{IDMZ}.pem").read_bytes())
            why = f"is for zone {IDMZ}"
        case "not yet valid":
            later = datetime.now(UTC) + timedelta(days=2)
            request = pki.request_signer(site.folder, PLANT).request_file
            issued = pki.sign_signer(site.folder / "facts", PLANT, request, later, days=9)
            cert_file.write_bytes(issued.cert_file.read_bytes())
            why = "before the certificate was valid"
        case "no key":
            key_file.write_bytes(b"")
            why = "not a private key"
        case _:
            key_file.chmod(0o644)
            why = "accessible to others"
    keys = record_keys(site, PLANT)
    try:
        done = site.command(PLANT, "reload")
        assert (done.returncode, done.stdout) == (1, ""), done
        assert why in done.stderr
        assert why in json.dumps(site.status(PLANT))
        site.assert_honest_flow()
        assert record_keys(site, PLANT) == keys
    finally:
        key_file.write_bytes(before[0])
        cert_file.write_bytes(before[1])
        key_file.chmod(mode)
    assert site.command(PLANT, "reload").returncode == 0
    site.assert_honest_flow()


def test_a_relay_whose_certificate_has_ended_goes_on_relaying(site: Site) -> None:
    """The certificate of idmz expired a day ago. The plant's facts pass through it, signed by the plant. Facts that
    idmz records are declined by name until its certificate is renewed for the same key; then they arrive too."""
    site.assert_honest_flow()
    site.nodes[IDMZ].stop()
    renew(site.folder, IDMZ, datetime.now(UTC) - timedelta(days=31))
    site.nodes[IDMZ].start()
    site.nodes[IDMZ].wait_ready(lambda: site.is_connected(IDMZ))
    for _ in range(3):
        site.assert_honest_flow(limit_s=40)
    own = site.append(IDMZ)
    wait_until(
        lambda: any("expired" in incident for incident in site.incidents(ENTERPRISE)), "the relay's own fact declined"
    )
    site.assert_honest_flow()
    assert own not in site.ids(ENTERPRISE)
    for zone in (PLANT, ENTERPRISE):
        assert "peer_key_outside_dates" in site.log(zone)
    issue(site.folder, IDMZ)
    assert site.command(IDMZ, "reload").returncode == 0
    site.wait_fact(site.append(IDMZ))
    assert site.command(ENTERPRISE, "peer", "compare", IDMZ, "--repair").returncode == 0
    site.wait_fact(own)


def test_a_relay_whose_key_is_compromised_waits_until_it_has_another(site: Site) -> None:
    """The enterprise has declared the key of idmz compromised: no signature of it counts, because its holder could skip
    facts; the pull waits and says why. idmz makes another key and reloads it: all facts arrive."""
    site.assert_honest_flow()
    command = [sys.executable, "-m", "agent.cli", "pki", "signer", "compromise"]
    since = ["--since", "2021-01-01T00:00:00+00:00", "--file", str(site.folder / ENTERPRISE / "compromised.toml")]
    certificate = str(site.folder / "signers" / f"{IDMZ}.pem")
    subprocess.run([*command, certificate, *since], capture_output=True, timeout=60, check=True)
    wait_until(lambda: "signers_taken_over" in site.log(ENTERPRISE), "the list to be read")
    waiting = site.append()
    wait_until(lambda: "compromised" in str(site.pull(ENTERPRISE, IDMZ)), "the pull to say why it waits", 40)
    assert waiting not in site.ids(ENTERPRISE)
    key_id = renew(site.folder, IDMZ)
    assert site.command(IDMZ, "reload").stdout == f"reloaded: signing with {key_id}\n"
    site.wait_fact(waiting, limit_s=60)
    site.assert_honest_flow()

"""The broker between idmz and the enterprise has been taken over.

The attacker has the TLS certificate of idmz, sees each request of the enterprise, and answers it before idmz does. idmz
has a signing key, and the enterprise demands its signatures.
"""

import hashlib
import json
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from agent.replication import pki
from tests.security.site import ENTERPRISE, EVIL, IDMZ, STREAM, Site, running_site
from tests.waiting import wait_until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """idmz and the enterprise are honest; the attacker has the certificate of idmz at the enterprise's broker, and
    evil's."""
    folder = tmp_path_factory.mktemp("site")
    files, _ = pki.create_signer(folder, IDMZ, datetime.now(UTC))
    pin = hashlib.sha256(ssl.PEM_cert_to_DER_cert(files.cert_file.read_text())).hexdigest()
    more = {
        IDMZ: f'[signing]\nkey_file = "{files.key_file}"\ncertificate_file = "{files.cert_file}"\n',
        ENTERPRISE: f'[[origin]]\nzone = "{IDMZ}"\nsignatures = "required"\npinned = ["{pin}"]\n',
    }
    with running_site(folder, honest=(IDMZ, ENTERPRISE), taken=(IDMZ, EVIL), more=more) as site:
        yield site


def test_a_pinned_certificate_is_replaced_by_a_reload(site: Site) -> None:
    """idmz gets a new signing key: the enterprise adds its certificate to the pinned ones and reloads node.toml. The
    running process of the enterprise then accepts what idmz signs with the new key."""
    node, config = site.nodes[ENTERPRISE], site.folder / ENTERPRISE / "node.toml"
    before, pid = config.read_text(), node.pid
    site.wait_fact(site.append(IDMZ))
    files, _ = pki.create_signer(site.folder, IDMZ, datetime.now(UTC), force=True)
    pin = hashlib.sha256(ssl.PEM_cert_to_DER_cert(files.cert_file.read_text())).hexdigest()
    config.write_text(before.replace('pinned = ["', f'pinned = ["{pin}", "'))
    reloaded = site.command(ENTERPRISE, "reload")
    assert f"origin {IDMZ}" in reloaded.stdout, reloaded
    site.nodes[IDMZ].stop()
    site.nodes[IDMZ].start()
    site.nodes[IDMZ].wait_ready(lambda: site.is_connected(IDMZ))
    site.wait_fact(site.append(IDMZ), limit_s=40)
    assert len(site.ids(ENTERPRISE)) == site.end(IDMZ)
    assert (node.running, node.pid) == (True, pid)


FENCED = {"status": "error", "error": {"code": "fenced", "message": "forged", "retryable": False, "hint": ""}}
FORGED = {
    "fenced": FENCED,
    "holes": {"status": "ok", "stream": STREAM, "frontier": 0, "end_offset": 99, "holes": [[1, 99, "expired"]]},
    "another life": {"status": "ok", "stream": STREAM, "frontier": 0, "end_offset": 0, "life": "ab" * 16},
    "no answer": {"status": "?", "operation": ["?"]},
}


@pytest.mark.parametrize("case", FORGED)
def test_a_broker_that_was_taken_over_stops_no_pull(site: Site, case: str) -> None:
    """Every request is answered with the forgery first. The facts of idmz arrive all the same, as one unbroken log, and
    the enterprise counts the answers that it has not accepted."""
    site.wait_fact(site.append(IDMZ))
    before = site.pull(ENTERPRISE, IDMZ)["unproven_total"]
    site.attacker.command("patch", zone=IDMZ, operation="FetchFacts", header=FORGED[case], times=10_000)
    site.attacker.serve(IDMZ, ENTERPRISE)
    for _ in range(3):
        site.wait_fact(site.append(IDMZ))
    wait_until(lambda: site.pull(ENTERPRISE, IDMZ)["unproven_total"] > before, "forged answers to be counted")
    found = site.pull(ENTERPRISE, IDMZ)
    assert not found["fenced"]
    assert found["restarts_total"] == 0
    assert len(site.ids(ENTERPRISE)) == site.end(IDMZ)
    assert site.incidents(ENTERPRISE) == []
    site.attacker.command("unpatch", zone=IDMZ)


def test_forged_answers_mislead_no_command(site: Site) -> None:
    """The attacker answers that both stores are equal because they are empty, that an append is stored, and that a tag
    has a value. If it answers first, the comparison counts the true facts and the append ends as idmz says. If it alone
    answers, no answer is accepted, and the command says why."""
    site.wait_fact(site.append(IDMZ))
    own = {"status": "ok", "stream": STREAM, "end_offset": 99}
    value = {
        "zone": IDMZ,
        "subject": "tag:forged",
        "predicate": "value",
        "source": "x",
        "value": 1,
        "value_type": "f64",
    }
    when = {"source_time": "2026-01-01T00:00:00Z", "as_of": "2026-01-01T00:00:00Z", "staleness_ms": 0}
    forged = {
        "GetDigests": {**own, "ranges": []},
        "AppendFact": {**own, "outcomes": [{"offset": 7, "outcome": "stored"}]},
        "GetLatest": {
            **own,
            "queue_depth": 0,
            "depth_facts": 9,
            "values": [{**value, "quality": 0, "mode": "live", **when}],
        },
    }
    for operation, header in forged.items():
        site.attacker.command("patch", zone=IDMZ, operation=operation, header=header, times=10_000)
    site.attacker.serve(IDMZ, ENTERPRISE)
    compared = site.command(ENTERPRISE, "peer", "compare", IDMZ, "--json")
    counted = {row["stream"]: row["compared_facts"] for row in map(json.loads, compared.stdout.splitlines())}
    assert (compared.returncode, counted[STREAM]) == (0, site.end(IDMZ)), compared
    appended = site.command(ENTERPRISE, "append", "--to", IDMZ, "order:line1/1", "done", "{}")
    assert appended.returncode == 1, appended
    assert "append_not_allowed" in appended.stderr, appended
    asked = {request["operation"] for request in site.attacker.command("requests", zone=IDMZ)}
    assert {"AppendFact", "GetDigests"} <= asked, "the attacker has answered both"
    site.nodes[IDMZ].stop()
    for words in (("append", "order:line1/1", "done", "{}", "--to"), ("latest", "--from")):
        alone = site.command(ENTERPRISE, *words, IDMZ, "--answer-s", "1")
        assert alone.returncode == 1, alone
        assert "is not proven" in alone.stderr, alone
    site.attacker.command("unpatch", zone=IDMZ)


def test_a_second_implementation_verifies_what_a_node_signs(site: Site) -> None:
    """A refusal, a page of facts and an empty page are signed as protocol.md says."""

    def signed_by(operation: str, **fields: object) -> object:
        found = site.attacker.command(
            "ask", zone=EVIL, serving=IDMZ, operation=operation, fields={"stream": STREAM, **fields}
        )
        return found["signed_by"]

    site.append(IDMZ)
    held = site.attacker.ask(EVIL, IDMZ, "GetBounds", stream=STREAM)
    whole = {"first_offset": 1, "limit": 100, "last_offset": held["end_offset"], "life": held["life"]}
    assert signed_by("GetBounds", stream="unknown") == IDMZ
    assert signed_by("FetchRange", **whole | {"last_offset": site.end(IDMZ) + 1}) == IDMZ
    assert signed_by("FetchRange", **whole) == IDMZ

"""The broker between idmz and the enterprise has been taken over: the attacker has the TLS certificate of idmz, sees each
request of the enterprise, and answers it before idmz does.

idmz has a signing key, and the enterprise demands its signatures.
"""

import hashlib
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from agent.replication import pki
from tests.security.site import ENTERPRISE, EVIL, IDMZ, STREAM, Site, running_site
from tests.waiting import wait_until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """idmz and the enterprise are honest; the attacker has the certificate of idmz at the enterprise's broker, and evil's."""
    folder = tmp_path_factory.mktemp("site")
    files, _ = pki.create_signer(folder, IDMZ, datetime.now(UTC))
    pin = hashlib.sha256(ssl.PEM_cert_to_DER_cert(files.cert_file.read_text())).hexdigest()
    more = {
        IDMZ: f'[signing]\nkey_file = "{files.key_file}"\ncertificate_file = "{files.cert_file}"\n',
        ENTERPRISE: f'[[origin]]\nzone = "{IDMZ}"\nsignatures = "required"\npinned = ["{pin}"]\n',
    }
    with running_site(folder, honest=(IDMZ, ENTERPRISE), taken=(IDMZ, EVIL), more=more) as site:
        yield site


def pull(site: Site) -> dict[str, Any]:
    """How the enterprise's pull of idmz is."""
    (found,) = [one for one in site.status(ENTERPRISE)["peers"] if (one["zone"], one["stream"]) == (IDMZ, STREAM)]
    return dict(found)


FENCED = {"status": "error", "error": {"code": "fenced", "message": "forged", "retryable": False, "hint": ""}}
FORGED = {
    "fenced": FENCED,
    "holes": {"status": "ok", "stream": STREAM, "frontier": 0, "end_offset": 99, "holes": [[1, 99, "expired"]]},
    "another epoch": {"status": "ok", "stream": STREAM, "frontier": 0, "end_offset": 0, "epoch": "ab" * 16},
}


@pytest.mark.parametrize("case", FORGED)
def test_a_broker_that_was_taken_over_stops_no_pull(site: Site, case: str) -> None:
    """Every request is answered with the forgery first. Facts of idmz arrive all the same, as one unbroken log, and the
    enterprise counts what it has not taken."""
    site.wait_fact(site.append(IDMZ))
    before = pull(site)["unproven_total"]
    site.attacker.command("patch", zone=IDMZ, operation="FetchFacts", header=FORGED[case], times=10_000)
    site.attacker.serve(IDMZ, ENTERPRISE)
    for _ in range(3):
        site.wait_fact(site.append(IDMZ))
    wait_until(lambda: pull(site)["unproven_total"] > before, "forged answers to be counted")
    found = pull(site)
    assert not found["fenced"]
    assert found["restarts_total"] == 0
    assert len(site.ids(ENTERPRISE)) == site.end(IDMZ)
    assert site.incidents(ENTERPRISE) == []
    site.attacker.command("unpatch", zone=IDMZ)


def test_a_second_implementation_verifies_what_a_node_signs(site: Site) -> None:
    """A refusal and an empty page are signed as protocol.md says, a page of facts is not."""

    def signed_by(operation: str, **fields: object) -> object:
        found = site.attacker.command(
            "ask", zone=EVIL, serving=IDMZ, operation=operation, fields={"stream": STREAM, **fields}
        )
        return found["signed_by"]

    site.append(IDMZ)
    whole = {"first_offset": 1, "limit": 100, "last_offset": 2**53}
    assert signed_by("GetBounds", stream="unknown") == IDMZ
    assert signed_by("FetchRange", **whole | {"first_offset": site.end(IDMZ) + 1}) == IDMZ
    assert signed_by("FetchRange", **whole) is None


def test_a_key_is_withdrawn_while_the_node_runs(site: Site) -> None:
    """idmz's key is in other hands: an operator writes it into the list at the enterprise. The running node takes the list
    over, and what idmz signs from then on is declined by name. The last test of the file: the enterprise takes nothing of
    idmz any more."""
    site.wait_fact(site.append(IDMZ))
    key_id = pki.read_signer(site.folder / "signers" / f"{IDMZ}.pem").key_id.hex()
    listed = f'[[compromised]]\nkey_id = "{key_id}"\nsince = 2026-01-01T00:00:00Z\n'
    (site.folder / ENTERPRISE / "compromised.toml").write_text(listed)
    wait_until(lambda: "signers_taken_over" in site.log(ENTERPRISE), "the list to be taken over")
    late = site.append(IDMZ)
    wait_until(lambda: any("declined" in one for one in site.incidents(ENTERPRISE)), "the fact to be declined")
    assert late not in site.ids(ENTERPRISE)
    assert site.nodes[ENTERPRISE].running

"""A relay that has been taken over: the attacker has the certificate of idmz itself and serves the enterprise facts of
the plant that the plant never recorded. The enterprise demands signatures of plant-a. Facts in the relay's own name are
accepted."""

import secrets
from collections.abc import Iterator

import pytest

from tests.security.attacker import message
from tests.security.site import ENTERPRISE, EVIL, IDMZ, PLANT, STREAM, Site, running_site
from tests.waiting import wait_until

pytestmark = pytest.mark.system

DEMANDED = f'[[origin]]\nzone = "{PLANT}"\nsignatures = "required"\npinned = ["{"0" * 64}"]\n'


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Only the enterprise is honest; the relay is the attacker."""
    with running_site(
        tmp_path_factory.mktemp("site"), honest=(ENTERPRISE,), taken=(IDMZ,), more={ENTERPRISE: DEMANDED}
    ) as site:
        site.attacker.serve(IDMZ, ENTERPRISE)
        yield site


def serve_forged(site: Site, life: str, ids: list[str]) -> None:
    """Serve messages in the name of the plant, in one batch."""
    forged = [message(message_id, zone=PLANT, message_id=message_id) for message_id in ids]
    site.attacker.command("append", zone=IDMZ, stream=STREAM, batch={"zone": PLANT, "life": life, "messages": forged})


def serve_own(site: Site, name: str) -> None:
    """Serve a message of the relay itself."""
    site.attacker.append(IDMZ, STREAM, [message(name, zone=IDMZ, message_id=name)])


@pytest.mark.parametrize("case", ["one life", "many lives", "with facts of evil between"])
def test_forged_facts_of_the_plant_are_not_stored(site: Site, case: str) -> None:
    """Well-formed batches with the plant's name and correct chains, under one invented life or many: none of their
    facts is in the enterprise's store, an incident names the plant, and the relay's own fact after them is stored."""
    site.attacker.command("begin", zone=IDMZ)
    name, life = secrets.token_hex(4), secrets.token_hex(16)
    forged = [f"forged-{name}-{number}" for number in range(10)]
    for forged_id in forged:
        serve_forged(site, secrets.token_hex(16) if case == "many lives" else life, [forged_id])
        if case == "with facts of evil between":
            batch = {
                "zone": EVIL,
                "life": life,
                "messages": [message(f"between-{forged_id}", message_id=f"between-{forged_id}")],
            }
            site.attacker.command("append", zone=IDMZ, stream=STREAM, batch=batch)
    behind = f"behind-{name}"
    serve_own(site, behind)
    site.wait_fact(behind)
    stored = site.ids(ENTERPRISE)
    assert not set(forged) & set(stored)
    if case == "with facts of evil between":
        assert {f"between-{forged_id}" for forged_id in forged} <= set(stored)
    wait_until(lambda: any(PLANT in incident for incident in site.incidents(ENTERPRISE)), "an incident names the plant")
    assert site.nodes[ENTERPRISE].running


def test_a_lie_about_the_relays_epoch_costs_its_own_pull_only(site: Site) -> None:
    """A relay changes its life with every answer, returns to former ones and jumps in its offsets: the node keeps
    running, and stores what the relay serves once it is consistent again."""
    for _ in range(12):
        site.attacker.command("begin", zone=IDMZ)
        serve_own(site, f"life-{secrets.token_hex(4)}")
        header = {"omitted": [[1, 10**12]], "batches": [], "end_offset": 10**12}
        site.attacker.command("patch", zone=IDMZ, operation="FetchFacts", header=header, times=1)
    site.attacker.command("begin", zone=IDMZ)
    name = f"quiet-{secrets.token_hex(4)}"
    serve_own(site, name)
    site.wait_fact(name, limit_s=60)
    assert site.nodes[ENTERPRISE].running

"""Consumers of other zones: names cannot be taken, the limit of consumers cannot be exceeded, leases stay usable."""

import pytest

from tests.security.site import ENTERPRISE, EVIL, IDMZ, STREAM, TELEMETRY, Site

pytestmark = pytest.mark.system

LEASE_MAX = 2**53 - 1
CONSUMERS_MAX = 10
"""Eight more than there are streams that idmz exports to evil, as docs/developers/protocol.md says."""


SQUATTED = (
    "plant-b.facts.operational", "enterprise.squatted", "local", "local.mes", "mes", "evil", "evilx.y", "evil-2.y",
    "idmz.mes", ".evil",
)  # fmt: skip


def test_a_consumer_name_begins_with_its_zone(site: Site) -> None:
    """A zone registers consumers under its own name only, not under another zone's and not under those of local
    applications."""
    with site.unharmed():
        for name in SQUATTED:
            answer = site.attacker.ask(EVIL, IDMZ, "FetchFacts", consumer_name=name, stream=STREAM, limit=10)
            assert answer["status"] == "error", name
        assert not {one.name for one in site.consumers(IDMZ)} & set(SQUATTED)


def test_a_foreign_consumer_is_neither_read_nor_confirmed(site: Site) -> None:
    """Fetch, confirm, cursor, lease and removal of another zone's consumer are refused, and its frontier stays."""
    site.assert_honest_flow()
    name = f"{ENTERPRISE}.{STREAM}"
    before = next(one for one in site.consumers(IDMZ) if one.name == name)
    with site.unharmed():
        for operation, fields in (
            ("FetchFacts", {"limit": 10, "confirm": {"last_offset": 1}}),
            ("FetchFacts", {"limit": 10, "lease": LEASE_MAX}),
            ("ConfirmReceipt", {"offset": 1}),
            ("GetCursor", {}),
            ("UnregisterConsumer", {}),
        ):
            answer = site.attacker.ask(EVIL, IDMZ, operation, consumer_name=name, **fields)
            assert answer["status"] == "error", (operation, answer)
    after = next(one for one in site.consumers(IDMZ) if one.name == name)
    assert (after.zone, after.lease) == (before.zone, before.lease)


def test_the_largest_lease_jams_no_consumer(site: Site) -> None:
    """After a request with lease 2^53-1, another instance can still take over the same consumer."""
    attacker, name = site.attacker, f"{EVIL}.lease"
    with site.unharmed():
        fetch = {"consumer_name": name, "stream": STREAM, "limit": 10}
        attacker.ask(EVIL, IDMZ, "FetchFacts", **fetch, lease=LEASE_MAX)
        attacker.command("hang_up", zone=EVIL)
        successor = attacker.ask(EVIL, IDMZ, "FetchFacts", **fetch, lease=0)
        assert successor["status"] == "ok", successor
        again = attacker.ask(EVIL, IDMZ, "FetchFacts", **fetch, lease=successor["lease"])
        assert again["status"] == "ok", again


def test_the_limit_of_consumers_holds_for_requests_at_once(site: Site) -> None:
    """Of a hundred registrations sent together, no more succeed than one after another would; the next is refused, and
    a freed place can be used."""
    fetch = {"stream": STREAM, "limit": 10}
    with site.unharmed():
        for stream in (STREAM, TELEMETRY):
            name = f"{EVIL}.{stream}.{{n}}"
            site.attacker.ask_at_once(EVIL, IDMZ, "FetchFacts", 50, consumer_name=name, stream=stream, limit=10)
        of_evil = [one.name for one in site.consumers(IDMZ) if one.zone == EVIL]
        assert len(of_evil) <= CONSUMERS_MAX
        refused = site.attacker.ask(EVIL, IDMZ, "FetchFacts", consumer_name=f"{EVIL}.more", **fetch)
        assert refused["error"]["code"] == "too_many_consumers"
        assert site.attacker.ask(EVIL, IDMZ, "UnregisterConsumer", consumer_name=of_evil[0])["status"] == "ok"
        assert site.attacker.ask(EVIL, IDMZ, "FetchFacts", consumer_name=f"{EVIL}.more", **fetch)["status"] == "ok"
    site.renew(IDMZ)  # later tests find all places free

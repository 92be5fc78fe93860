"""A zone that registers a consumer and never confirms holds back only its own facts, and takes no other zone's room."""

import base64
import os

import pytest

from tests.security.site import ENTERPRISE, EVIL, IDMZ, STREAM, Site

pytestmark = pytest.mark.system

MESSAGES, MESSAGE_BYTES = 30, 120_000


@pytest.fixture
def site(small_site: Site) -> Site:
    """A site whose idmz has room for one megabyte."""
    small_site.revive()
    return small_site


def test_a_zone_that_never_confirms_stops_no_other(site: Site) -> None:
    """Three times as many facts as idmz has room for pass while evil confirms nothing: every fact reaches the
    enterprise, and evil reads a hole where it waited too long."""
    fetch = {"consumer_name": f"{EVIL}.{STREAM}", "stream": STREAM, "limit": 10}
    with site.unharmed(limit_s=60):
        assert site.attacker.ask(EVIL, IDMZ, "FetchFacts", **fetch)["status"] == "ok"
        appended = [
            site.append(content=b'"' + base64.b64encode(os.urandom(MESSAGE_BYTES)) + b'"') for _ in range(MESSAGES)
        ]
        site.wait_fact(appended[-1], limit_s=60)
        assert set(appended) <= set(site.ids(ENTERPRISE))
        page = site.attacker.ask(EVIL, IDMZ, "FetchFacts", **fetch)
        assert [reason for _, _, reason in page["holes"]] == ["expired"]
    assert any(EVIL in one for one in site.incidents(IDMZ)), "no incident names evil"

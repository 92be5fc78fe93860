"""A peer's claim to have read something ends no process, begins no epoch and changes no row except the peer's: false
timelines, offsets beyond the log, confirmations of facts that do not exist."""

from typing import Any

import pytest

from tests.security.site import EVIL, IDMZ, LIMIT_S, STREAM, Site, some
from tests.waiting import wait_until

pytestmark = pytest.mark.system

ZERO, OTHER = "00" * 16, "ab" * 16
BEYOND = 10**9
CLAIMS: dict[str, dict[str, Any]] = {
    "a timeline of zeros": {"timeline": ZERO, "after_offset": 0},
    "another timeline": {"timeline": OTHER, "after_offset": 1},
    "another timeline beyond the log": {"timeline": OTHER, "after_offset": BEYOND},
    "an offset beyond the log": {"after_offset": BEYOND},
    "the largest offset": {"after_offset": 2**53 - 1},
    "a confirmation beyond the log": {"confirm": {"last_offset": BEYOND}},
    "a range confirmed beyond the log": {"confirm": {"first_offset": BEYOND, "last_offset": BEYOND + 1}},
    "a head with a zero digest": {"origin_head": {"last_sequence": 1, "digest": ZERO}},
    "a head beyond the origin": {"origin_head": {"last_sequence": BEYOND, "digest": OTHER}},
    "everything at once": {
        "after_offset": BEYOND,
        "timeline": OTHER,
        "origin_head": {"last_sequence": BEYOND, "digest": ZERO},
        "confirm": {"last_offset": BEYOND},
    },
}


CASES = {f"{claim}, {consumer}": claim for consumer in ("never registered", "registered") for claim in CLAIMS}


@pytest.mark.parametrize("case", some(CASES, 2))
def test_a_claim_moves_nothing_but_its_own_peer(site: Site, case: str) -> None:
    """A fetch claims facts that the log does not hold, under a known consumer or an unregistered one: it gets an error,
    an incident names evil, and the node continues under the same epoch. Each case has a store of its own, because a
    store that has begun an epoch for a peer does not do so again within the week."""
    name, is_registered = CASES[case], not case.endswith("never registered")
    site.renew(IDMZ)
    attacker, epoch = site.attacker, site.epoch(IDMZ)
    site.append(IDMZ)
    site.fresh_evil()
    fetch = {"consumer_name": f"{EVIL}.claims", "stream": STREAM, "limit": 10_000}
    if is_registered:
        assert attacker.ask(EVIL, IDMZ, "FetchFacts", **fetch)["status"] == "ok"
    with site.unharmed():
        answer = attacker.ask(EVIL, IDMZ, "FetchFacts", **fetch, epoch=epoch, **CLAIMS[name])
        assert answer["status"] == "error", answer
    wait_until(lambda: any(EVIL in one for one in site.new_incidents(IDMZ)), "an incident names evil", LIMIT_S)


def test_a_claim_that_is_repeated_wears_nothing_out(site: Site) -> None:
    """Two hundred false claims at once have the same outcome as one."""
    attacker, epoch = site.attacker, site.epoch(IDMZ)
    fetch = {"consumer_name": f"{EVIL}.many-{{n}}", "stream": STREAM, "limit": 100, "epoch": epoch}
    with site.unharmed():
        found = attacker.ask_at_once(EVIL, IDMZ, "FetchFacts", 60, **fetch, **CLAIMS["a head with a zero digest"])
        found += attacker.ask_at_once(EVIL, IDMZ, "FetchFacts", 60, **fetch, after_offset=BEYOND)
        assert "ok" not in found


def test_a_confirmation_beyond_the_log_confirms_nothing(site: Site) -> None:
    """ConfirmReceipt beyond the end of the log is refused, and the cursor stays where it was."""
    attacker, epoch = site.attacker, site.epoch(IDMZ)
    site.append(IDMZ)
    name = f"{EVIL}.confirms"
    attacker.ask(EVIL, IDMZ, "FetchFacts", consumer_name=name, stream=STREAM, limit=100)
    with site.unharmed():
        for offset in (BEYOND, 2**53 - 1):
            answer = attacker.ask(EVIL, IDMZ, "ConfirmReceipt", consumer_name=name, offset=offset, epoch=epoch)
            assert answer["error"]["code"] == "confirm_beyond_log"
        assert attacker.ask(EVIL, IDMZ, "GetCursor", consumer_name=name)["frontier"] == 0

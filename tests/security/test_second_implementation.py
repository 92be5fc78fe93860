"""The attacker is a second, correct implementation of the protocol: the product accepts its correct actions, so it
refuses the wrong ones for their fault alone."""

import pytest

from tests.security.attacker import message
from tests.security.site import EVIL, IDMZ, STREAM, Site

pytestmark = pytest.mark.system


def test_what_it_does_rightly_is_taken(site: Site) -> None:
    """Its batches are pulled, stored and relayed, its requests are answered, its appends are stored, its cursor and its
    lease are those of the page."""
    attacker = site.attacker
    site.fresh_evil()
    site.forget_consumers(EVIL)
    attacker.append(EVIL, STREAM, [message(1), message(2, "null")])
    site.wait_fact("evil-2")
    held = attacker.ask(EVIL, IDMZ, "GetBounds", stream=STREAM)
    end = {"last_offset": held["end_offset"], "life": held["life"]}
    whole = {"stream": STREAM, "first_offset": 1, **end, "limit": 100_000}
    page = attacker.ask(EVIL, IDMZ, "FetchRange", **whole)
    assert page["status"] == "ok"
    assert page["omitted"], "its own facts are left out"
    name = f"{EVIL}.second"
    page = attacker.ask(EVIL, IDMZ, "FetchFacts", consumer_name=name, stream=STREAM, limit=100)
    assert page["status"] == "ok", page
    confirmed = attacker.ask(EVIL, IDMZ, "ConfirmReceipt", consumer_name=name, offset=1, life=page["life"])
    assert confirmed["cursor_advanced_to"] == 1
    assert attacker.ask(EVIL, IDMZ, "GetCursor", consumer_name=name)["frontier"] == 1
    assert attacker.ask(EVIL, IDMZ, "AcquireLease", stream=STREAM, producer=f"{EVIL}.mes")["lease_epoch"] == 1
    new = {
        "envelope": {"message_id": "appended", "from_zone": EVIL, "to_zone": "*", "produced_at_unix_ms": 1},
        "fact": {"subject": "order:line1/77", "predicate": "step_completed", "object": {"b": 1, "a": 2}},
    }
    appended = attacker.ask(EVIL, IDMZ, "AppendFact", stream=STREAM, messages=[new])
    assert [outcome["outcome"] for outcome in appended["outcomes"]] == ["applied"]
    site.wait_fact("appended")
    site.assert_honest_flow()

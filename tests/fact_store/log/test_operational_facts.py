"""Operational facts are valid and canonical messages, stored once however often they are recorded."""

from agent.fact_store.append.append import content_digest
from agent.fact_store.log.operational_facts import operational_fact
from agent.message import check_message

ZONE = "plant-a"


def test_operational_facts_are_valid_messages() -> None:
    """An operational fact passes the checks of every message, has its stream or store as subject, and no wall clock in
    its identity: recorded again later, it is the same message."""
    about = {"first_offset": 1, "last_offset": 7, "reason": "ttl"}
    first = operational_fact(ZONE, "facts.telemetry", "facts_expired", about, "facts.telemetry:1-7", 1000)
    again = operational_fact(ZONE, "facts.telemetry", "facts_expired", about, "facts.telemetry:1-7", 2000)
    whole = operational_fact(ZONE, None, "store_restored", {"streams": []}, "1", 1000)
    for message in (first, again, whole):
        check_message(message)
    assert (first.fact.subject, whole.fact.subject) == ("stream:plant-a/facts.telemetry", "store:plant-a")
    assert first.envelope.message_id == again.envelope.message_id
    assert content_digest(first) == content_digest(again)


def test_the_fact_about_damage_can_always_be_written() -> None:
    """Numbers that a flipped bit made too large for JSON are written as text, so damage can always be recorded."""
    about = {"first_sequence": 2**57, "origins": [{"last_sequence": -(2**60), "zone": "plant-a"}], "count": 3}
    message = operational_fact(ZONE, "facts.telemetry", "facts_damaged", about, "x", 1000)
    check_message(message)
    assert b'"first_sequence":"144115188075855872"' in message.fact.object_json
    assert b'"count":3' in message.fact.object_json

"""Operational facts are valid and canonical messages, stored once however often they are recorded."""

from agent.fact_store.core.operational_facts import operational_fact
from agent.message import check_message

ZONE = "plant-a"


def test_the_fact_about_damage_can_always_be_written() -> None:
    """Numbers that a flipped bit made too large for JSON are written as text, so damage can always be recorded."""
    about = {"first_sequence": 2**57, "origins": [{"last_sequence": -(2**60), "zone": "plant-a"}], "count": 3}
    message = operational_fact(ZONE, "facts.telemetry", "facts_damaged", about, "x", 1000)
    check_message(message)
    assert b'"first_sequence":"144115188075855872"' in message.fact.object_json
    assert b'"count":3' in message.fact.object_json

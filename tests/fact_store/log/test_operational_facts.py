"""What a store says of itself is a fact like any other: legal, canonical, and stored once however often it is told."""

from agent.batch import Origin
from agent.fact_store.append.append import content_digest
from agent.fact_store.log.operational_facts import store_fact, stream_fact
from agent.message import check_message

ORIGIN = Origin("plant-a", bytes(range(16)))


def test_notices_are_messages_by_the_rules() -> None:
    """A notice passes the checks every message passes, names its stream or store as subject, and repeats no wall clock in
    its identity: told again later, it is the same message."""
    about = {"first_offset": 1, "last_offset": 7, "reason": "ttl"}
    first = stream_fact(ORIGIN, "facts.telemetry", "facts_expired", about, "facts.telemetry:1-7", 1000)
    again = stream_fact(ORIGIN, "facts.telemetry", "facts_expired", about, "facts.telemetry:1-7", 2000)
    whole = store_fact(ORIGIN, "epoch_began", {"because": "restored"}, "1", 1000)
    for message in (first, again, whole):
        check_message(message)
    assert (first.fact.subject, whole.fact.subject) == ("stream:plant-a/facts.telemetry", "store:plant-a")
    assert first.envelope.message_id == again.envelope.message_id
    assert content_digest(first) == content_digest(again)


def test_a_notice_of_damage_can_always_be_written() -> None:
    """Numbers that a flipped bit has made too large for JSON are told as text, wherever they stand: what the disk did must never
    stop the writer from saying so."""
    about = {"first_sequence": 2**57, "origins": [{"last_sequence": -(2**60), "zone": "plant-a"}], "count": 3}
    message = stream_fact(ORIGIN, "facts.telemetry", "facts_damaged", about, "x", 1000)
    check_message(message)
    assert b'"first_sequence":"144115188075855872"' in message.fact.object_json
    assert b'"count":3' in message.fact.object_json

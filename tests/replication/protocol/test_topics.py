"""Topics: what is built is read back, and nothing else is accepted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.topics import (
    RequestTopic,
    check_response_topic,
    parse_request_topic,
    request_topic,
    response_topic,
)

zones = st.from_regex(r"\A[a-z0-9-]{1,32}\Z")
instances = st.from_regex(r"\A[a-z0-9-]{1,40}\Z")


@given(zones, zones, instances)
def test_round_trip(serving: str, asking: str, instance: str) -> None:
    """Zones and instance come back from the topics built of them."""
    assert parse_request_topic(request_topic(serving, asking)) == RequestTopic(serving, asking)
    assert check_response_topic(response_topic(serving, asking, instance), serving, asking) == instance


@given(st.text(max_size=300))
def test_any_text_is_a_topic_or_raises_malformed_message(topic: str) -> None:
    """Any text is a topic of this protocol or raises MalformedMessage."""
    for check in (parse_request_topic, lambda text: check_response_topic(text, "plant-a", "idmz")):
        try:
            check(topic)
        except MalformedMessage:
            continue
        assert topic.startswith("bsfg/1/")


@pytest.mark.parametrize(
    "topic",
    [
        "bsfg/1/plant-a/enterprise/rsp/0/x",  # another zone's
        "bsfg/1/plant-b/idmz/rsp/0/x",  # another server's
        "bsfg/1/plant-a/idmz/rsp/0/",
        "bsfg/1/plant-a/idmz/rsp/0/+",
        "bsfg/1/plant-a/idmz/rsp/0/#",
        "bsfg/1/plant-a/idmz/rsp/0/x/y",
        "bsfg/1/plant-a/idmz/rsp/g/x",
        "bsfg/1/plant-a/idmz/rsp/00/x",
        "bsfg/1/plant-a/idmz/rsp/x",
        "bsfg/1/plant-a/idmz/rsp/0/X",
        "bsfg/1/plant-a/idmz/rsp/0/x\n",
        "bsfg/1/plant-a/idmz/rsp/0/" + "x" * 41,
        "bsfg/1/plant-a/idmz/req",
        "bsfg/2/plant-a/idmz/rsp/0/x",
        "/bsfg/1/plant-a/idmz/rsp/0/x",
        "$share/group/bsfg/1/plant-a/idmz/rsp/0/x",
        "",
    ],
)
def test_foreign_response_topic(topic: str) -> None:
    """An answer goes only to response topics of the two zones, whatever the request contains."""
    with pytest.raises(MalformedMessage):
        check_response_topic(topic, "plant-a", "idmz")


@pytest.mark.parametrize(
    "topic",
    ["bsfg/1/plant-a/req", "bsfg/1/plant-a/idmz/req/x", "bsfg/1/+/idmz/req", "bsfg/1/plant-a//req", "bsfg/1/A/b/req"],
)
def test_foreign_request_topic(topic: str) -> None:
    """The number of levels and the zone names are checked."""
    with pytest.raises(MalformedMessage):
        parse_request_topic(topic)

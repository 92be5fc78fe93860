"""The topics of the carrier, and who may be believed because of them.

A request goes to `bsfg/1/<serving zone>/<asking zone>/req`, its answer to
`bsfg/1/<serving zone>/<asking zone>/rsp/<instance>`.  The broker lets a zone publish only under its own name, so the
asking zone in a *request topic* is proven, and nothing else in a message is.  An answer must therefore go to a topic
built from the proven zone: `check_response_topic` compares, and whoever asks with another one gets no answer at all,
since answering would let him make this node write where he may not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent.replication.protocol.errors import MalformedMessage

ROOT = "bsfg/1"
TOPIC_BYTES_MAX = 200
"""Longest topic of this protocol: two zones of 32, an instance of 40 and the fixed words stay far below."""

_ZONE = re.compile(r"[a-z0-9-]{1,32}")
_INSTANCE = re.compile(r"[a-z0-9-]{1,40}")


@dataclass(frozen=True, slots=True)
class RequestTopic:
    """Who is asked, and who asks."""

    serving_zone: str
    asking_zone: str


def is_zone(name: str) -> bool:
    """Whether `name` may name a zone (and be the common name of its certificate)."""
    return _ZONE.fullmatch(name) is not None


def is_instance(name: str) -> bool:
    """Whether `name` may name one running instance of an asking node."""
    return _INSTANCE.fullmatch(name) is not None


def request_topic(serving_zone: str, asking_zone: str) -> str:
    """The topic on which `asking_zone` asks `serving_zone`."""
    assert is_zone(serving_zone), serving_zone
    assert is_zone(asking_zone), asking_zone
    return f"{ROOT}/{serving_zone}/{asking_zone}/req"


def response_topic(serving_zone: str, asking_zone: str, instance: str) -> str:
    """The topic on which `serving_zone` answers one instance of `asking_zone`."""
    assert is_zone(serving_zone), serving_zone
    assert is_zone(asking_zone), asking_zone
    assert is_instance(instance), instance
    return f"{ROOT}/{serving_zone}/{asking_zone}/rsp/{instance}"


def parse_request_topic(topic: str) -> RequestTopic:
    """The two zones of a request topic; MalformedMessage for everything that is not exactly one."""
    levels = topic.split("/") if len(topic) <= TOPIC_BYTES_MAX else []
    match levels:
        case ["bsfg", "1", serving, asking, "req"] if is_zone(serving) and is_zone(asking):
            return RequestTopic(serving, asking)
    raise MalformedMessage(f"not a request topic: {topic[:TOPIC_BYTES_MAX]!r}")


def check_response_topic(topic: str, serving_zone: str, asking_zone: str) -> str:
    """The instance in `topic`, if it is exactly a response topic of these two zones; MalformedMessage otherwise.

    Wildcards, foreign zones, further levels and overlong names all end here: the instance is the only free part.
    """
    prefix = f"{ROOT}/{serving_zone}/{asking_zone}/rsp/"
    if len(topic) <= TOPIC_BYTES_MAX and topic.startswith(prefix) and is_instance(topic[len(prefix) :]):
        return topic[len(prefix) :]
    raise MalformedMessage(f"response topic {topic[:TOPIC_BYTES_MAX]!r} is not one of {asking_zone} at {serving_zone}")

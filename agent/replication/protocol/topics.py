"""MQTT topics of the protocol, and the checks that make them proof of a message's sender.

A request goes to `bsfg/1/<serving node>/<asking node>/req`, its answer to
`bsfg/1/<serving node>/<asking node>/rsp/<slot>/<instance>`. An instance is one running process; its slot, a hex digit,
is what it subscribes to: the broker allows a node sixteen subscriptions for answers, and not one for each instance it
could name. The broker lets a node publish only under its own name, so the asking node in a *request topic* is proven,
and no other field of a message is. An answer must therefore go to a topic built from the proven node:
`check_response_topic` compares, and a request with any other response topic gets no answer, because answering would
make this node publish where the requester may not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from agent.replication.protocol.errors import MalformedMessage

ROOT = "bsfg/1"
TOPIC_BYTES_MAX = 200
"""Longest accepted topic; two nodes of 32, an instance of 40 characters and the fixed levels stay far below."""

SLOTS = tuple("0123456789abcdef")

_TOPICS_KEPT = 4_096  # parsed ones: each request of a peer comes with the same two
_NODE = re.compile(r"[a-z0-9-]{1,32}")
_INSTANCE = re.compile(r"[a-z0-9-]{1,40}")


@dataclass(frozen=True, slots=True)
class RequestTopic:
    """The two nodes of a request."""

    serving_node: str
    asking_node: str


def is_node(name: str) -> bool:
    """Whether `name` is a valid node name, which is also the common name of its certificate."""
    return _NODE.fullmatch(name) is not None


def is_instance(name: str) -> bool:
    """Whether `name` is a valid name of one running instance of a requesting node."""
    return _INSTANCE.fullmatch(name) is not None


def request_topic(serving_node: str, asking_node: str) -> str:
    """The topic of requests from `asking_node` to `serving_node`."""
    assert is_node(serving_node), serving_node
    assert is_node(asking_node), asking_node
    return f"{ROOT}/{serving_node}/{asking_node}/req"


def response_topic(serving_node: str, asking_node: str, instance: str) -> str:
    """The topic of answers from `serving_node` to one instance of `asking_node`."""
    assert is_node(serving_node), serving_node
    assert is_node(asking_node), asking_node
    assert is_instance(instance), instance
    return f"{ROOT}/{serving_node}/{asking_node}/rsp/{slot_of(instance)}/{instance}"


def slot_of(instance: str) -> str:
    """The slot that an instance of ours uses: its last character, which is random."""
    return instance[-1] if instance[-1] in SLOTS else SLOTS[0]


def request_filter(serving_node: str) -> str:
    """The subscription of a node that serves."""
    assert is_node(serving_node), serving_node
    return f"{ROOT}/{serving_node}/+/req"


def response_filter(asking_node: str, slot: str) -> str:
    """The subscription of an instance for answers of every node."""
    assert is_node(asking_node), asking_node
    assert slot in SLOTS, slot
    return f"{ROOT}/+/{asking_node}/rsp/{slot}/+"


def subscription_to(topic: str) -> str:
    """The subscription that brings a topic of `request_topic` or `response_topic`."""
    _, _, serving, asking, kind, *rest = topic.split("/")
    return request_filter(serving) if kind == "req" else response_filter(asking, rest[0])


@lru_cache(_TOPICS_KEPT)
def parse_request_topic(topic: str) -> RequestTopic:
    """The two nodes of a request topic. Raises MalformedMessage for any other topic."""
    levels = topic.split("/") if len(topic) <= TOPIC_BYTES_MAX else []
    match levels:
        case ["bsfg", "1", serving, asking, "req"] if is_node(serving) and is_node(asking):
            return RequestTopic(serving, asking)
    raise MalformedMessage(f"not a request topic: {topic[:TOPIC_BYTES_MAX]!r}")


@lru_cache(_TOPICS_KEPT)
def check_response_topic(topic: str, serving_node: str, asking_node: str) -> str:
    """The instance in `topic`. Raises MalformedMessage unless it is a response topic of exactly these two nodes.

    Slot and instance are the only variable parts: wildcards, other nodes, further levels and overlong names are
    refused.
    """
    levels = topic.split("/") if len(topic) <= TOPIC_BYTES_MAX else []
    match levels:
        case ["bsfg", "1", serving, asking, "rsp", slot, instance] if (
            (serving, asking) == (serving_node, asking_node) and slot in SLOTS and is_instance(instance)
        ):
            return instance
    raise MalformedMessage(f"response topic {topic[:TOPIC_BYTES_MAX]!r} is not one of {asking_node} at {serving_node}")

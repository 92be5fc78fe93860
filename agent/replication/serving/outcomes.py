"""How a request ends: with an answer, with a refusal that has a code, or without any answer. Core: values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypedDict

from agent.replication.protocol.messages import Answer


class StoreName(TypedDict):
    """The fields of every answer that name the answering store."""

    store_zone: str
    life: str
    store_node: str | None


def store_name_of(zone: str, node: str, life: bytes) -> StoreName:
    """The first fields of every answer."""
    return {"store_zone": zone, "life": life.hex(), "store_node": None if node == zone else node}


class Reply(NamedTuple):
    """An answer and the pieces of its attachment. `waited_ns` is the part of the time that the request waited for
    facts."""

    answer: Answer
    attachment: list[bytes]
    facts: int = 0
    waited_ns: int = 0


@dataclass(frozen=True, slots=True)
class Refuse:
    """An error answer: a code of the table in `protocol.errors`, and a message that names the cause."""

    code: str
    message: str


class DropReason(Enum):
    """Why a request gets no answer. Each reason is counted."""

    BAD_TOPIC = "bad_topic"
    NOT_A_PEER = "not_a_peer"
    NO_RESPONSE_TOPIC = "no_response_topic"
    FOREIGN_RESPONSE_TOPIC = "foreign_response_topic"
    BAD_CORRELATION = "bad_correlation"
    RETAINED = "retained"
    TOO_MANY_REQUESTS = "too_many_requests"
    ANSWERS_NOT_READ = "answers_not_read"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Drop:
    """No answer."""

    reason: DropReason


Outcome = Reply | Refuse | Drop

"""Checks the appends of another zone and turns them into messages for the store. A core: values in, values out.

The broker has proven the asking node. Messages must name it, or the zone for which it records, as their sender, and
producers must have one of these as prefix,
and it may append only to the streams that the configuration allows. The store checks everything else, as for local
messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent.append_contract import NO_PRECONDITION, Precondition, check_from_zone, check_producer
from agent.message import Fact, Message, MessageError, canonical_form, check_message
from agent.replication.protocol.messages import AppendFact, NewMessage
from agent.replication.serving.outcomes import Refuse


@dataclass(frozen=True, slots=True)
class ParsedAppend:
    """Messages in order. `preconditions` has one for each message, or is empty if no message has any."""

    messages: list[Message]
    preconditions: list[Precondition]


def not_allowed(stream: str, asking_node: str) -> Refuse:
    """The refusal of a stream to which this node may not append. It does not reveal whether the stream exists."""
    return Refuse("append_not_allowed", f"{asking_node} may not append to stream {stream!r}")


def parse_append(request: AppendFact, *zones: str, is_local: bool = False) -> ParsedAppend | Refuse:
    """The messages of a request; or a refusal that names the first message that a node of these zones may not append,
    or whose object is not JSON. Programs of this machine (`is_local`) act for its zone, and name their producers as
    they like."""
    messages = []
    for place, asked in enumerate(request.messages):
        try:
            message = _message(asked)
            check_from_zone(message, *zones)
            if not is_local:
                check_producer(asked.producer, *zones)
        except MessageError as error:
            return _refused(place, error)
        messages.append(message)
    preconditions = [Precondition(asked.producer, asked.lease_epoch, asked.base_offset) for asked in request.messages]
    is_conditional = any(precondition != NO_PRECONDITION for precondition in preconditions)
    return ParsedAppend(messages, preconditions if is_conditional else [])


def refuse_message(messages: Sequence[Message], error: MessageError) -> Refuse:
    """The refusal for an error of the store's rules. It names the message at fault, if there is one."""
    for place, message in enumerate(messages):
        try:
            check_message(message)
        except MessageError as at_fault:
            return _refused(place, at_fault)
    return Refuse("bad_request", str(error))


def _message(asked: NewMessage) -> Message:
    content = canonical_form("object", bytes(asked.fact.object))
    return Message(asked.envelope, Fact(asked.fact.subject, asked.fact.predicate, content))


def _refused(place: int, error: MessageError) -> Refuse:
    return Refuse("bad_request", f"messages[{place}]: {error}")

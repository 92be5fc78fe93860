"""Asking another node from a command, with the identity of this one: over the broker where both meet.

No node need run here. What the peer refuses, and what stands in the way to it, ends the command with what to do.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import click

from agent.config import NodeSettings
from agent.replication.mqtt import Access, ask_once
from agent.replication.pki import Identity
from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages import Answer, Request, operation_of

_AnswerT = TypeVar("_AnswerT", bound=Answer)


def ask_peer(settings: NodeSettings, zone: str, request: Request, kind: type[_AnswerT], answer_s: float) -> _AnswerT:
    """The answer, of the kind that the request has, of the peer that node.toml knows as `zone`. Raises UsageError where it knows none,
    and what `ask_once` raises."""
    access = access_to(settings, zone)
    answer = asyncio.run(ask_once(access, zone, request, answer_s)).answer
    if not isinstance(answer, kind):
        raise MalformedMessage(f"{zone} answered {operation_of(answer)} in place of {operation_of(request)}")
    return answer


def access_to(settings: NodeSettings, zone: str) -> Access:
    """How to enter the broker where a peer is met, with files that are checked as a running node checks them: a broker says little of
    what it refuses. Raises UsageError where node.toml knows no peer of this name."""
    peer = next((each for each in settings.peer if each.zone == zone), None)
    if peer is None:
        known = ", ".join(sorted(each.zone for each in settings.peer)) or "none"
        raise click.UsageError(f"node.toml names no peer {zone!r}; it names {known}")
    at = next(broker for broker in settings.broker if broker.name == peer.broker)
    identity = Identity(at.name, settings.node.zone, at.ca_file, at.cert_file, at.key_file)
    return Access(at.name, settings.node.zone, at.host, at.port, identity.context)

"""Requests of the commands on facts to another node, with the identity of this node, over their common broker.

No node needs to run here. This module loads MQTT and TLS, so commands import it only for a request to a peer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from agent.cli.peer import broker_of, named_peer
from agent.node import access_of, command_judge, identity_of, record_of, requests_signer
from agent.query.latest import LatestRecord
from agent.query.scan import matches_glob
from agent.replication.mqtt import Access, Requester, ask_once, converse
from agent.replication.protocol import messages
from agent.replication.protocol.errors import MalformedMessage
from agent.settings.node import NodeSettings

_AnswerT = TypeVar("_AnswerT", bound=messages.Answer)

LEASE_TRIES = 5
"""The first request finds out which lease is in force. Each further one means that another process took a lease
meanwhile."""

Feed = Callable[[Callable[[int, bytes], Awaitable[tuple[int, bool]]], int], Awaitable[None]]
"""feed(send, chunk_bytes) sends a file with `send(offset, data)`, in chunks of at most `chunk_bytes`."""


def append_fact(
    settings: NodeSettings, peer: str, request: messages.AppendFact, answer_s: float
) -> messages.AppendedEntry:
    """Append one message at the node of `peer` and return its outcome."""
    (outcome, *more) = _ask(settings, peer, request, messages.AppendAnswer, answer_s).outcomes
    if more:
        raise MalformedMessage(f"{peer} answered {1 + len(more)} outcomes for one message")
    return outcome


def acquire_lease(settings: NodeSettings, peer: str, stream: str, producer: str, answer_s: float) -> int:
    """Take the next lease epoch for a producer of this node at the node of `peer`.

    The request names the epoch in force, so a delayed copy of it cannot take the lease from a later holder.
    """
    after = 0
    for _ in range(LEASE_TRIES):
        request = messages.AcquireLease(stream=stream, producer=producer, lease_after=after)
        answer = _ask(settings, peer, request, messages.LeaseAnswer, answer_s)
        if answer.lease_epoch is not None:
            return answer.lease_epoch
        assert answer.lease_in_force is not None  # every answer has one of the two
        after = answer.lease_in_force
    raise click.ClickException(f"other processes keep taking the lease of {producer}; stop all of them but one")


def unregister_consumer(settings: NodeSettings, peer: str, name: str, answer_s: float) -> bool:
    """Remove a consumer of this node at the node of `peer`; False where it has none of this name. Refused once an
    instance of it has taken a lease."""
    request = messages.UnregisterConsumer(consumer_name=name)
    return _ask(settings, peer, request, messages.UnregisterAnswer, answer_s).was_registered


def get_latest(
    settings: NodeSettings, peer: str, stream: str, tag_glob: str, fresh_ms: int, answer_s: float
) -> list[LatestRecord]:
    """The latest value of every matching tag that the node of `peer` has, page by page. Values that cannot be read are
    left out, with a line that says so."""
    rows, after = list[LatestRecord](), None
    while True:
        request = messages.GetLatest(stream=stream, prefix=literal_prefix(tag_glob), after=after, fresh_ms=fresh_ms)
        answer = _ask(settings, peer, request, messages.LatestAnswer, answer_s)
        values, refused = messages.readable(value for value in answer.values if matches_glob(value.subject, [tag_glob]))
        rows += [record_of(value, stream) for value in values]
        if refused:
            click.echo(f"bsfg: {len(refused)} values of {peer} left out: {refused[0]}", err=True)
        if not answer.more:
            return rows
        after = answer.last_after(after)


def literal_prefix(tag_glob: str) -> str:
    """The prefix of every subject that the pattern matches: its text before the first * ? or [, with `tag:` added where
    it is absent."""
    (literal,) = re.findall(r"\A[^*?\[]*", tag_glob)
    if not literal or "tag:".startswith(literal):
        return ""
    return literal if literal.startswith("tag:") else f"tag:{literal}"


def put_object(settings: NodeSettings, node: str, feed: Feed, digest: str, size: int, answer_s: float) -> None:
    """Store an artifact at the peer `node`. Raises PeerRefused, MalformedMessage or TransportError."""

    async def talk(requester: Requester, progress: Callable[[], None]) -> None:
        async def send(offset: int, data: bytes) -> tuple[int, bool]:
            request = messages.PutObject(digest=digest, size=size, offset=offset, data=data)
            answer = (await requester.ask(request, answer_s)).answer
            if not isinstance(answer, messages.PutAnswer):
                raise MalformedMessage(f"{node} answered PutObject with another kind of answer")
            if data:
                progress()
            return answer.received, answer.is_complete

        await feed(send, messages.PUT_BYTES_MAX)

    _converse(settings, node, talk)


def get_object(settings: NodeSettings, node: str, digest: str, write: Callable[[bytes], int], answer_s: float) -> int:
    """Pass the artifact's bytes from the peer `node` to `write`; return their count. Raises as `put_object`."""
    offset, size = 0, 1

    async def talk(requester: Requester, progress: Callable[[], None]) -> None:
        nonlocal offset, size
        while offset < size:
            reply = await requester.ask(messages.GetObject(digest=digest, offset=offset), answer_s)
            answer = reply.answer
            if not isinstance(answer, messages.ObjectAnswer) or answer.offset != offset or not reply.batches:
                raise MalformedMessage(f"{node} answered without the bytes at {offset}")
            size = answer.size
            offset += write(b"".join(reply.batches))
            progress()

    _converse(settings, node, talk)
    return offset


def _ask(
    settings: NodeSettings, node: str, request: messages.Request, kind: type[_AnswerT], answer_s: float
) -> _AnswerT:
    """Ask the peer `node` of node.toml once. Raises UsageError for an unknown peer, MalformedMessage for an answer of
    another kind, and what `ask_once` raises."""
    access = _access_to(settings, node)
    with command_judge(settings) as judge:
        answer = asyncio.run(ask_once(access, node, request, answer_s, judge.refuses_answer)).answer
    if not isinstance(answer, kind):
        raise MalformedMessage(
            f"{node} answered {messages.operation_of(answer)} in place of {messages.operation_of(request)}"
        )
    return answer


def _converse(
    settings: NodeSettings, node: str, talk: Callable[[Requester, Callable[[], None]], Awaitable[None]]
) -> None:
    access = _access_to(settings, node)
    with command_judge(settings) as judge:
        asyncio.run(converse(access, node, talk, refuses_answer=judge.refuses_answer))


def _access_to(settings: NodeSettings, node: str) -> Access:
    """How to connect to the broker of a peer. The certificate files are checked first, since a broker gives no reason
    for a refusal.

    Raises UsageError where node.toml names no such peer.
    """
    at = broker_of(settings, named_peer(settings, node))
    signer = requests_signer(settings)
    return access_of(at, identity_of(at, settings.node.name), settings.node.name, lambda: signer)

"""Carries out the requests of the local socket on the node's store.

A store has one writer. While a node runs, the node is the writer, and commands and applications of the same user ask it
through the socket. While none runs, a command opens the store itself and uses the same `RequestHandler`, so a request
has the same effect. Readers need neither: any process may read the store's file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pwd
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from agent.errors import BsfgError, StoreError
from agent.fact_store import (
    FactStore,
    UnknownConsumer,
    is_in_sync,
    private_files,
)
from agent.local_socket import messages
from agent.local_socket.client import AnyRequest, LocalReply
from agent.local_socket.messages import Answer, Compared, ComparePeer, ConsumerEntry, Request
from agent.local_socket.serving.operations import LocalOperations
from agent.local_socket.transport import LocalError, NoNode, StateFolderUnusable
from agent.message import CONSUMER, LOCAL_ZONE, MessageError, check_name, json_value
from agent.replication.protocol.errors import ERRORS
from agent.replication.protocol.messages import ErrorAnswer, ErrorBody, RequestBody
from agent.replication.serving import LookUp, Refuse, store_name_of
from agent.settings.node import NodeSettings
from agent.signing.files import load_identity, read_compromises
from agent.signing.keys import SigningError

if TYPE_CHECKING:
    from agent.ingest import Ingest

log = logging.getLogger(__name__)

NO_INSTANCE = "command"
"""The instance of a request that names none: a command, which ends with its answer."""

_HINTS = {"unknown_consumer": UnknownConsumer.hint, "consumer_not_yours": "name your consumers local.<name>"}
"""What a person at this machine does; the protocol's hints are for peers."""

Compare = Callable[[ComparePeer], Awaitable[Compared]]
Reload = Callable[[], Awaitable[messages.Reloaded]]
Switch = Callable[[], Awaitable[messages.PairSwitched]]
Status = Callable[[bool], bytes]
"""status(everything) is the status of the node as JSON."""


@contextlib.contextmanager
def open_store(settings: NodeSettings) -> Iterator[FactStore]:
    """The node's store, closed at the end; its folder is made if missing. Until then all files that this process makes
    are readable by its user alone. Raises StateFolderUnusable and StoreError."""
    with private_files():
        try:
            settings.node.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            owner = settings.node.state_dir.stat().st_uid
        except FileExistsError as error:
            why = "it, or a folder above, is a file, or a link to what is not there, as on a disk that is not mounted"
            raise StateFolderUnusable(f"{settings.node.state_dir}: {why}") from error
        except OSError as error:
            raise StateFolderUnusable(f"{settings.node.state_dir}: {error.strerror}") from error
        if os.geteuid() == 0 != owner:  # the node could not read what root makes there
            user = user_name(owner)
            raise StateFolderUnusable(
                f"{settings.node.state_dir} belongs to user {user}; run: runuser -u {user} -- bsfg ..."
            )
        with _opened(settings) as store:
            yield store


def user_name(user_id: int) -> str:
    """The name of a user, or its number if it has none."""
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return f"#{user_id}"


@contextlib.contextmanager
def _opened(settings: NodeSettings) -> Iterator[FactStore]:
    """The store with the key of [signing]. A key or list that cannot be used does not prevent this: facts are recorded,
    and the next head covers them."""
    signer, problems = None, list[str]()
    try:
        signer = load_identity(settings.signing, settings.node.zone, settings.node.name)
    except SigningError as error:
        problems.append(f"facts are not signed: {error}. {error.hint}")
    holds = {peer.node: peer.zone_limit for peer in settings.peer}
    with FactStore.open(
        settings.node.store_file,
        settings.node.zone,
        node=settings.node.name,
        settings=settings.store,
        streams=settings.stream,
        holds=holds,
        pair_zones=settings.pair_zones,
        signer=signer,
        unattended=True,
    ) as store:
        try:
            compromised = read_compromises(settings.signing.compromised_file)
            store.set_compromised({key.key_id: round(key.since.timestamp() * 1000) for key in compromised})
        except SigningError as error:
            problems.append(f"the list of compromised keys stays as it was: {error}. {error.hint}")
        for problem in problems:
            log.error("signing_impaired", extra={"reason": problem})
            store.note_incident("signing", str(settings.signing.key_file), problem)
        yield store


class RequestHandler:
    """Carries out requests on a store that this process owns. `compare` reaches peers; it is None in a process without
    links to peers, `sources` in one that reads none, and `reload`, `status` and `look_up` in one that is no node,
    `switch` in one that is not one of two."""

    def __init__(
        self,
        store: FactStore,
        compare: Compare | None = None,
        sources: Ingest | None = None,
        reload: Reload | None = None,
        status: Status | None = None,
        look_up: LookUp | None = None,
        switch: Switch | None = None,
    ) -> None:
        self._operations = LocalOperations(store, look_up)
        self._status = status
        self._reload, self._switch = reload, switch
        self._store = store
        self._compare = compare
        self._sources = sources

    async def answer(self, request: AnyRequest, instance: str = "") -> LocalReply:
        """The answer to a request. An error of the store or of a check becomes an `ErrorAnswer`."""
        operation = str(request.__struct_config__.tag)
        try:
            if isinstance(request, RequestBody):
                outcome = await self._operations.answer(request, instance or NO_INSTANCE)
                if not isinstance(outcome, Refuse):
                    return outcome
                hint = _HINTS.get(outcome.code, ERRORS[outcome.code].hint)
                return self.refused(operation, outcome.code, outcome.message, hint)
            return LocalReply(await self._carry_out(request), [])
        except BsfgError as error:
            code, why = (error.code, error.why) if isinstance(error, StoreError) else ("bad_request", str(error))
            return self.refused(operation, code, why, error.hint)

    def refused(self, operation: str, code: str, why: str, hint: str = "") -> LocalReply:
        """The answer to a request that is not carried out."""
        store = self._store
        body = ErrorBody(code=code, message=why[:1000], retryable=ERRORS[code].retryable, hint=hint[:1000])
        where = store_name_of(store.zone, store.node, store.life)
        return LocalReply(ErrorAnswer(operation=operation[:64], error=body, **where), [])

    async def _carry_out(self, request: Request) -> Answer:
        store = self._store
        match request:
            case messages.RegisterConsumer():
                return await _registered(store, request)
            case messages.ListConsumers():
                return messages.Consumers(await asyncio.to_thread(consumer_entries, store))
            case messages.RemoveConsumer():
                entries = {entry.name: entry for entry in await asyncio.to_thread(consumer_entries, store)}
                if request.consumer_name not in entries:
                    raise UnknownConsumer(f"no consumer {request.consumer_name!r}")
                removing = store.consumers.remove(request.consumer_name, force=request.force, now=request.now)
                state_after = await asyncio.wrap_future(removing)
                return messages.Removed(state_after.value, entries[request.consumer_name])
            case messages.ComparePeer():
                if self._compare is None:
                    raise LocalError("this process has no link to a peer", "ask the node")
                return await self._compare(request)
            case messages.Reload():
                if self._reload is None:
                    raise NoNode
                return await self._reload()
            case messages.SwitchPair():
                if self._switch is None:
                    raise LocalError("no other node records for this zone", "[pair] of node.toml names it")
                return await self._switch()
            case messages.RetrySource() | messages.BackfillSource() | messages.ReadSource():
                if self._sources is None:
                    raise NoNode
                return await _of_sources(self._sources, request)
            case messages.ReadStatus():
                if self._status is None:
                    raise NoNode
                return messages.NodeStatus(msgspec.Raw(self._status(request.everything)))


async def _registered(store: FactStore, request: messages.RegisterConsumer) -> messages.Registered:
    name, zone = request.consumer_name, LOCAL_ZONE if request.zone == store.zone else request.zone
    _check_consumer_name(name, zone)
    state = await asyncio.wrap_future(store.consumers.register(name, zone, request.stream, request.start))
    return messages.Registered(state.stream, state.frontier)


def _check_consumer_name(name: str, owner: str) -> None:
    """Raise MessageError unless the name of a consumer begins with its owner, as peers must name theirs."""
    check_name("consumer_name", name, CONSUMER)
    if not name.startswith(f"{owner}."):
        raise MessageError("consumer_name", f"{name!r}; use {owner}.{name}: names of consumers begin with their owner")


async def _of_sources(
    sources: Ingest,
    request: messages.RetrySource | messages.BackfillSource | messages.ReadSource,
) -> Answer:
    match request:
        case messages.RetrySource():
            return messages.SourceRetried(sources.retry(request.source))
        case messages.BackfillSource():
            return messages.BackfillQueued(sources.backfill(request.source, request.first_ns, request.last_ns))
        case messages.ReadSource():
            read = await sources.read_tags(request.source, request.tags)
            return messages.SourceRead(
                [
                    messages.TagValue(reading.tag, json_value(reading.value), reading.quality, reading.why)
                    for reading in read
                ]
            )


def consumer_entries(store: FactStore) -> list[ConsumerEntry]:
    """Every consumer now. What the store keeps for each is read from disk, in the calling thread."""
    entries, now_ns = [], time.monotonic_ns()
    held = {space.name: space for space in store.space().consumers}
    for consumer in store.consumers.all():
        kept, end_offset = held.get(consumer.name), store.end_offset(consumer.stream)
        lag_ns = store.policy(consumer.stream).in_sync_lag_ms * 1_000_000
        in_sync = any(
            follower.name == consumer.name and is_in_sync(follower, lag_ns, now_ns)
            for follower in store.consumers.followers(consumer.stream)
        )
        entries.append(
            ConsumerEntry(
                name=consumer.name,
                stream=consumer.stream,
                zone=consumer.zone,
                state=consumer.lifecycle.value,
                in_sync=in_sync,
                frontier=consumer.frontier,
                behind_facts=max(0, end_offset - consumer.frontier),
                held_bytes=kept.bytes_held if kept else 0,
                held_hours=kept.hours_held if kept and consumer.frontier < end_offset else None,
                seen_unix_ms=store.consumers.seen_unix_ms(consumer.name),
                lease_epoch=consumer.lease.epoch,
                lease_holder=consumer.lease.holder,
            )
        )
    return sorted(entries, key=lambda entry: entry.name)

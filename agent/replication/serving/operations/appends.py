"""AppendFact and AcquireLease: facts of producers in other zones, stored once, answered when they are durable.

A request is one append of the store: its messages share a commit and have consecutive offsets. If one breaks a rule all
are refused, so an error means that nothing was stored. After a lost answer the requester sends the same messages again
and gets their offsets.
"""

from __future__ import annotations

import logging

from agent.append_contract import check_producer
from agent.message import LOCAL_ZONE, MessageError
from agent.replication.protocol.messages import AcquireLease, AppendAnswer, AppendedEntry, AppendFact, LeaseAnswer
from agent.replication.serving.admission import Caller
from agent.replication.serving.appends import not_allowed, parse_append, refuse_message
from agent.replication.serving.operations.context import Context
from agent.replication.serving.outcomes import Outcome, Refuse, Reply

_log = logging.getLogger(__name__)


async def append(context: Context, caller: Caller, request: AppendFact) -> Outcome:
    """The outcome of each message, once `acks` is reached or its time-out has passed."""
    if not _may_append(context, caller, request.stream):
        return not_allowed(request.stream, caller.node)
    is_local = caller.node == LOCAL_ZONE
    zones = {context.store.zone} if is_local else context.zones_of(caller.node)
    parsed = parse_append(request, *sorted(zones), is_local=is_local)
    if isinstance(parsed, Refuse):
        return parsed
    try:
        appending = context.store.appends.append_messages(
            request.stream, parsed.messages, acks=request.acks, preconditions=parsed.preconditions
        )
    except MessageError as error:
        return refuse_message(parsed.messages, error)
    outcomes = [AppendedEntry.of(result) for result in await context.wrap(appending)]
    return Reply(AppendAnswer(**context.store_name, outcomes=outcomes), [])


async def acquire_lease(context: Context, caller: Caller, request: AcquireLease) -> Outcome:
    """A new lease epoch; or the one in force, if the caller named another one in `lease_after`."""
    if not _may_append(context, caller, request.stream):
        return not_allowed(request.stream, caller.node)
    try:
        if caller.node != LOCAL_ZONE:
            check_producer(request.producer, *sorted(context.zones_of(caller.node)))
    except MessageError as error:
        return Refuse("bad_request", str(error))
    context.changed(caller.node)
    store, stream, producer = context.store, request.stream, request.producer
    if request.lease_after is None:
        epoch: int | None = await context.wrap(store.appends.acquire_lease(stream, producer))
    else:
        epoch = await context.wrap(store.appends.acquire_lease_after(stream, producer, request.lease_after))
    if epoch is None:
        in_force = store.appends.lease_epoch(stream, producer)
        return Reply(LeaseAnswer(**context.store_name, lease_in_force=in_force), [])
    fields = {"peer": caller.node, "stream": request.stream, "producer": request.producer, "lease_epoch": epoch}
    _log.info("lease_acquired", extra=fields)
    return Reply(LeaseAnswer(**context.store_name, lease_epoch=epoch), [])


def _may_append(context: Context, caller: Caller, stream: str) -> bool:
    return stream in context.peers[caller.node].appends

"""The operations that a node serves: a function or a method for each.

Requests arrive decoded and checked, from a caller whose zone the broker has proven (`server`). The result is an
`Outcome`. Only parked fetches (`Consumers`) and searches kept for their next page (`Latest`) outlive a request.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from agent.replication.protocol import messages
from agent.replication.serving.admission import Caller
from agent.replication.serving.latest_page import LookUp
from agent.replication.serving.operations import appends, objects, ranges, streams
from agent.replication.serving.operations.consumers import Consumers
from agent.replication.serving.operations.context import Context, Turns
from agent.replication.serving.operations.latest import Latest
from agent.replication.serving.outcomes import Outcome

Handler = Callable[[Caller, Any], Awaitable[Outcome]]
_STATELESS: dict[type[messages.Request], Callable[[Context, Caller, Any], Awaitable[Outcome]]] = {
    messages.AcquireLease: appends.acquire_lease,
    messages.AppendFact: appends.append,
    messages.FetchRange: ranges.fetch_range,
    messages.FetchSequences: ranges.fetch_sequences,
    messages.GetBounds: streams.get_bounds,
    messages.GetDefinitions: ranges.get_definitions,
    messages.GetDigests: streams.get_digests,
    messages.GetObject: objects.get_object,
    messages.ListStreams: streams.list_streams,
    messages.PutObject: objects.put_object,
}


def handlers(
    context: Context, consumers: Consumers, look_up: LookUp | None = None, claim_lead: Handler | None = None
) -> dict[type[messages.Request], Handler]:
    """The handler of each operation, whichever carrier brings its requests."""
    found: dict[type[messages.Request], Handler] = {
        messages.FetchFacts: consumers.fetch,
        messages.ConfirmReceipt: consumers.confirm,
        messages.GetCursor: consumers.get_cursor,
        messages.UnregisterConsumer: consumers.unregister,
        **{kind: partial(operation, context) for kind, operation in _STATELESS.items()},
    }
    if claim_lead is not None:
        found[messages.ClaimLead] = claim_lead
    if look_up is not None:
        found[messages.GetLatest] = Latest(context, look_up).get_latest
    return found


__all__ = ["Consumers", "Context", "Handler", "Turns", "handlers"]

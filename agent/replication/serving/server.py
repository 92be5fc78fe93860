"""The serving shell: receives the requests of peers from the broker and answers each in a task of its own.

A request with a wrong response topic, or from a node that is no peer, gets no answer and is counted; any other gets an
answer, which may be an error of the table. `operations` decides the answer. A restart of the server loses nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from agent.concurrency import TaskGroup
from agent.errors import StoreError
from agent.replication.mqtt import BrokerLink, Incoming
from agent.replication.protocol.codec import (
    RefusesRequest,
    accept_every_request,
    answer_parts,
    decode_request,
    encode_error,
)
from agent.replication.protocol.errors import ERRORS, MalformedMessage, TransportError
from agent.replication.protocol.messages import CHANGING, WRITING, Request, operation_of
from agent.replication.protocol.ports import ServingStore
from agent.replication.protocol.topics import request_topic
from agent.replication.serving.admission import Caller, PeerRights, check_arrival
from agent.replication.serving.latest_page import LookUp
from agent.replication.serving.limits import READS_MAX
from agent.replication.serving.link_turns import Arrivals, ArrivedRequest
from agent.replication.serving.operations import Consumers, Context, Handler, Turns, handlers
from agent.replication.serving.outcomes import Drop, DropReason, Outcome, Refuse
from agent.signing.messages import MessagePlace, MessageProof, sign_answer, split_request
from agent.telemetry import Span, Telemetry

READER_THREADS = READS_MAX + 1
"""One for each page being read, with a connection of its own, and one for a search for latest values."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ServerStatistics:
    """Counted since the start: requests by operation, refusals by code, drops by reason. `parked`: fetches that wait
    now."""

    requests: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    drops: Counter[str] = field(default_factory=Counter)
    facts_sent: int = 0
    bytes_sent: int = 0
    parked: int = 0


class Server:
    """Serves the peers of one link.

    `peers`: the rights of each peer node; requests of others are dropped. `look_up` finds latest values, `claim_lead`
    says who leads. `refuses_request` says why no signature proves the node of a request that changes something.
    `turns` are shared by the servers of a node.
    """

    def __init__(
        self,
        link: BrokerLink,
        store: ServingStore,
        peers: Mapping[str, PeerRights],
        *,
        look_up: LookUp | None = None,
        telemetry: Telemetry | None = None,
        refuses_request: RefusesRequest = accept_every_request,
        turns: Turns | None = None,
        claim_lead: Handler | None = None,
    ) -> None:
        self._refuses_request = refuses_request
        self._store = store
        self._telemetry = telemetry or Telemetry()
        self._context = Context(link, store, peers, turns=turns or Turns())
        self._context.answers.on_lost = self._not_sent
        context = self._context
        self._arrivals = Arrivals(len(peers), context.pacer, context.now_ms, context.call_later, self._begin_work)
        self._consumers = Consumers(self._context)
        self._handlers = handlers(self._context, self._consumers, look_up, claim_lead)
        self._group: TaskGroup | None = None
        self._counts = ServerStatistics()
        self._of_other_version = set[str]()
        for node in peers:
            link.route(request_topic(store.node, node), self._arrived)

    def statistics(self) -> ServerStatistics:
        counts = self._counts
        return replace(
            counts,
            requests=counts.requests.copy(),
            refusals=counts.refusals.copy(),
            drops=counts.drops.copy(),
            parked=self._consumers.parked(),
        )

    async def run(self) -> None:
        """Serve until cancelled; open requests are then dropped, and peers send them again."""
        loop = asyncio.get_running_loop()
        unsubscribe = self._store.on_commit(partial(self._consumers.committed, loop))
        try:
            with ThreadPoolExecutor(READER_THREADS, "bsfg-serve") as self._context.readers:
                async with TaskGroup() as self._group:
                    await loop.create_future()  # until cancelled
        finally:
            self._group = None
            unsubscribe()

    # --------------------------------------------------------------------------------------------------------- arrivals

    def _arrived(self, incoming: Incoming) -> None:
        caller = check_arrival(incoming, self._store.node, self._context.peers)
        if isinstance(caller, Drop):
            self._drop(caller.reason, incoming.topic)
        elif self._group is None or not self._arrivals.accepts(caller.node):
            self._drop(DropReason.TOO_MANY_REQUESTS, incoming.topic)
        elif not self._context.answers.accepts_request(caller.node):
            self._drop(DropReason.ANSWERS_NOT_READ, incoming.topic)
        else:
            self._arrivals.add(ArrivedRequest(caller, incoming))

    def _begin_work(self, arrival: ArrivedRequest) -> None:
        if self._group is not None:  # else the server is being stopped
            self._group.create_task(self._handle(*arrival), name=f"serve {arrival.caller.node}")

    def _drop(self, reason: DropReason, topic: str) -> None:
        if not self._counts.drops[reason.value]:
            _log.warning("request_dropped", extra={"reason": reason.value, "topic": topic})
        self._counts.drops[reason.value] += 1

    async def _handle(self, caller: Caller, incoming: Incoming) -> None:
        self._arrivals.begun(caller.node)
        payload, proof = split_request(incoming.payload)
        request = _decoded(payload)
        operation = "" if isinstance(request, MalformedMessage) else operation_of(request)
        known: Sequence[str] = getattr(request, "signers_known", None) or ()
        span = self._telemetry.start(Span.SERVE, operation, peer=caller.node)
        try:
            if isinstance(request, MalformedMessage):
                raise request
            self._counts.requests[operation] += 1
            if incoming.expiry_s is None:
                outcome: Outcome = Refuse("bad_request", "the property MessageExpiryInterval is missing")
            elif why := self._unproven(caller, request, payload, proof):
                outcome = Refuse("unsigned_request", why)
            else:
                outcome = await self._carry_out(caller, request)
        except MalformedMessage as error:
            operation = error.operation
            outcome = Refuse(error.code, error.why)
            self._malformed(caller, error)
        except StoreError as error:
            outcome = self._store_refused(caller, error)
        except TransportError as error:
            self._not_sent(caller.node, error)
            self._telemetry.fail(span, "answer_not_sent")
            return
        except asyncio.CancelledError:
            self._telemetry.discard(span, "the node is being stopped")
            raise
        finally:
            self._arrivals.ended(caller.node)
        match outcome:
            case Drop(reason):
                self._counts.drops[reason.value] += 1
                self._telemetry.discard(span, reason.value)
            case Refuse(code, message):
                self._counts.refusals[code] += 1
                own = self._context.store_name
                refusal = encode_error(**own, operation=operation, code=code, message=message)
                self._send(caller, [refusal], known)
                self._telemetry.fail(span, code)
            case (answer, attachment, facts, waited_ns):
                self._counts.facts_sent += facts
                self._send(caller, answer_parts(answer, attachment), known)
                self._telemetry.stop(span, waited_ns, facts=facts)

    def _unproven(self, caller: Caller, request: Request, payload: bytes, proof: MessageProof | None) -> str | None:
        """Why no signature proves the node of a request that changes something; None if one does or none is
        required."""
        if type(request) not in CHANGING:
            return None
        return self._refuses_request(self._place(caller), payload, proof, is_writing=type(request) in WRITING)

    def _place(self, caller: Caller) -> MessagePlace:
        return MessagePlace(self._store.node, caller.node, caller.instance, caller.correlation)

    async def _carry_out(self, caller: Caller, request: Request) -> Outcome:
        handler = self._handlers.get(type(request))
        if handler is None:  # the protocol has the operation, but this node does not serve it
            return Refuse("unknown_operation", f"{operation_of(request)} is not served here")
        return await handler(caller, request)

    def _malformed(self, caller: Caller, error: MalformedMessage) -> None:
        """Log a peer with another protocol version once; the peer gets the error with each request."""
        if error.code == "unsupported_version" and caller.node not in self._of_other_version:
            self._of_other_version.add(caller.node)
            hint = ERRORS[error.code].hint
            _log.warning("peer_version_unsupported", extra={"peer": caller.node, "reason": error.why, "hint": hint})

    def _store_refused(self, caller: Caller, error: StoreError) -> Refuse:
        if error.code != StoreError.code:
            return Refuse(error.code, error.why)  # without the store's own hint, which is for local callers
        _log.warning("store_error_while_serving", extra={"peer": caller.node, "reason": str(error)})
        return Refuse(error.code, "the store cannot answer now")

    def _send(self, caller: Caller, answer: list[bytes], signers_known: Sequence[str]) -> None:
        """Send an answer, given in parts, when it is the node's turn, signed if this node has a key."""
        if (signer := self._store.signer) is not None:
            payload = sign_answer(signer, self._place(caller), answer, signers_known)
        else:
            payload = b"".join(answer)
        self._counts.bytes_sent += len(payload)
        self._context.send(caller.node, caller.answer_to, payload, caller.correlation)

    def _not_sent(self, node: str, error: TransportError) -> None:
        """Count an answer that was not sent; the requester asks again."""
        self._counts.drops["answer_not_sent"] += 1
        _log.debug("answer_not_sent", extra={"peer": node, "reason": str(error)})


def _decoded(payload: bytes) -> Request | MalformedMessage:
    """The request, or the error of decoding it."""
    try:
        request: Request = decode_request(payload)
    except MalformedMessage as error:
        return error
    return request

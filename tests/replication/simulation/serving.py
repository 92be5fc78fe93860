"""The serving side of a node, as `operations.fetch` drives the sender's core, without waiting for anything."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.fact_store.log.errors import ConsumerFenced, StoreError
from agent.fact_store.log.records import ConsumerState
from agent.lease import NO_LEASE, Lease, Shown, must_ask_anew
from agent.replication.protocol.codec import decode_request, encode_answer, encode_error
from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages import FetchAnswer, FetchFacts, FetchSequences, GetDigests
from agent.replication.serving import sender
from agent.replication.serving.page import Refuse
from agent.replication.serving.reading import PageAsked, PageRead, read_page
from tests.replication.simulation.checkers import STREAM
from tests.replication.simulation.comparing import Answering

if TYPE_CHECKING:
    from tests.replication.simulation.node import Node

EXPORTS = frozenset({STREAM})
PACKET_BYTES_MAX = 16 * 1024

Send = Callable[[bytes], None]


@dataclass(slots=True, eq=False)
class Fetching:
    """A fetch in hand: where its answer goes, until when it waits, from where it reads."""

    request: FetchFacts
    asker: Node
    caller: sender.Caller
    send: Send
    until_ms: int
    lease: Lease = NO_LEASE
    position: int = 0
    confirming: Future[int] | None = None


class Serving:
    """One life of the serving side."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._store = node.running
        self._answering = Answering(node)
        self._parked: dict[tuple[str, str], Fetching] = {}

    def request(self, asker: Node, instance: str, payload: bytes, send: Send) -> None:
        """A request of `asker` has arrived, of the life that `instance` names."""
        try:
            request = decode_request(payload)
            caller = sender.Caller(asker.zone, instance, b"")
            if isinstance(request, GetDigests | FetchSequences):
                send(self._answering.answer(caller, request))
                return
            assert isinstance(request, FetchFacts)
            self._fetch(Fetching(request, asker, caller, send, self._node.world.now_ms + request.wait_ms))
        except MalformedMessage as error:
            self._refuse(send, error.operation, Refuse(error.code, error.why))
        except StoreError:
            self._refuse(send, "FetchFacts", Refuse("store_unavailable", "the store cannot answer now"))

    def grown(self) -> None:
        """The store has committed: who waits for facts is served."""
        for key, fetching in list(self._parked.items()):
            if self._store.end_offset(STREAM) > fetching.position and self._parked.get(key) is fetching:
                del self._parked[key]
                self._answer(fetching)

    # ------------------------------------------------------------------------------------------------------------ internal

    def _fetch(self, fetching: Fetching) -> None:
        request, store, zone = fetching.request, self._store, fetching.asker.zone
        consumer = _view(store.consumers.get(request.consumer_name))
        admitted = sender.admit_fetch(request, zone, EXPORTS, consumer, 0)
        assert isinstance(admitted, sender.Admit), admitted
        refusal = self.check_offsets(request)
        if refusal is not None:
            if request.epoch == store.epoch.hex() and refusal.code in {"confirm_beyond_log", "offset_beyond_log"}:
                store.peer_is_ahead(zone, refusal.message)
            self._refuse(fetching.send, "FetchFacts", refusal)
            return
        if (why := self.contradiction(zone, request)) is not None:
            store.peer_is_ahead(zone, why)
            self._refuse(fetching.send, "FetchFacts", Refuse("history_differs", why))
            return
        if consumer is None:
            registering = store.consumers.register(request.consumer_name, zone, STREAM, request.starts)
            registering.add_done_callback(lambda _: self._node.soon(lambda: self._registered(fetching, registering)))
        else:
            self._with_lease(fetching, self._begin)

    def check_offsets(self, request: FetchFacts) -> Refuse | None:
        """Whether the offsets of a request can be of this store."""
        log = sender.LogView(self._store.epoch.hex(), self._store.end_offset(STREAM))
        return sender.check_offsets(log, request.epoch, request.after_offset, request.confirm)

    def contradiction(self, zone: str, request: FetchFacts) -> str | None:
        """What of that which the asker shows is not in this store."""
        taken, held = request.taken, request.held
        if request.epoch is None:
            return None
        store = self._store
        end = None if taken is None else (taken.last_offset, bytes.fromhex(taken.digest))
        if (
            why := store.consumers.why_not_served(STREAM, zone, max(request.told or 0, end[0] if end else 0))
        ) is not None:
            return why
        if held is None and (end is None or store.consumers.has_served(STREAM, zone, end)):
            return None
        return store.contradiction(STREAM, end, held and (held.last_sequence, bytes.fromhex(held.digest)))

    def _registered(self, fetching: Fetching, registering: Future[ConsumerState]) -> None:
        if (error := registering.exception()) is not None:
            self._refuse(fetching.send, "FetchFacts", Refuse("store_unavailable", str(error)))
        else:
            self._with_lease(fetching, self._begin)

    def _with_lease(self, fetching: Fetching, go_on: Callable[[Fetching], None]) -> None:
        """Go on under the lease that this caller has, or is given now; durably, and not where another has taken its place."""
        consumer = _view(self._store.consumers.get(fetching.request.consumer_name))
        assert consumer is not None
        found = self.check_lease(consumer, fetching)
        if isinstance(found, Lease):
            self._go_on(fetching, found, go_on)
            return
        before = consumer.lease
        holding = self._store.consumers.hold_lease(fetching.request.consumer_name, found.shown)
        holding.add_done_callback(lambda _: self._leased(fetching, before, holding, go_on))

    def check_lease(self, consumer: sender.ConsumerView, fetching: Fetching) -> Lease | sender.AskStore:
        """The lease of a caller, or what to ask the store."""
        return sender.check_lease(consumer, fetching.caller, fetching.request.lease, fetching.request.lease_after)

    def _go_on(self, fetching: Fetching, lease: Lease, go_on: Callable[[Fetching], None]) -> None:
        """Under this lease, or with nothing but the word that it is in force."""
        request = fetching.request
        fetching.lease = lease
        if not must_ask_anew(lease, Shown(fetching.caller.instance, request.lease, request.lease_after)):
            go_on(fetching)
            return
        store = self._store
        answer = FetchAnswer(
            store_zone=store.zone,
            epoch=store.epoch.hex(),
            stream=STREAM,
            frontier=0,
            end_offset=store.end_offset(STREAM),
            lease_in_force=lease.epoch,
        )
        fetching.send(encode_answer(answer, []))

    def _leased(
        self, fetching: Fetching, before: Lease, holding: Future[Lease], go_on: Callable[[Fetching], None]
    ) -> None:
        if holding.exception() is None:
            self._node.world.check.leased(self._node, fetching.request.consumer_name, holding.result().epoch)
        self._node.soon(lambda: self._held(fetching, before, holding, go_on))

    def _held(
        self, fetching: Fetching, before: Lease, holding: Future[Lease], go_on: Callable[[Fetching], None]
    ) -> None:
        if (error := holding.exception()) is not None:
            self._failed(fetching, error)
            return
        if holding.result() != before:
            parked = self._parked.pop((fetching.asker.zone, fetching.request.consumer_name), None)
            if parked is not None:
                self._with_lease(parked, lambda _: None)  # it learns at once that it is fenced
        self._go_on(fetching, holding.result(), go_on)

    def _begin(self, fetching: Fetching) -> None:
        request, confirm = fetching.request, fetching.request.confirm
        consumer = _view(self._store.consumers.get(request.consumer_name))
        assert consumer is not None
        if confirm is not None:
            self._node.world.check.confirms(fetching.asker, self._node, request.epoch, confirm.last_offset)
            shown = Shown(fetching.caller.instance, request.lease)
            fetching.confirming = self.confirm(request.consumer_name, confirm.last_offset, shown)
            fetching.confirming.add_done_callback(lambda future: self._confirmed(request, future))
        fetching.position = self.position(request, consumer)
        beginning = self._store.consumers.begin_serving(STREAM, fetching.asker.zone)
        if beginning is None:
            self._answer(fetching)
        else:
            beginning.add_done_callback(lambda future: self._node.soon(lambda: self._handing(fetching, future)))

    def _handing(self, fetching: Fetching, beginning: Future[None]) -> None:
        if (error := beginning.exception()) is not None:
            self._failed(fetching, error)
        else:
            self._answer(fetching)

    def confirm(self, consumer: str, last_offset: int, shown: Shown) -> Future[int]:
        """Have a confirmation merged."""
        return self._store.consumers.confirm(consumer, last_offset, None, shown=shown)

    def _confirmed(self, request: FetchFacts, confirming: Future[int]) -> None:
        if confirming.exception() is None:
            self._node.world.check.confirmed(self._node, request.consumer_name, request.lease)

    def position(self, request: FetchFacts, consumer: sender.ConsumerView) -> int:
        """After which offset to read."""
        return consumer.frontier if request.after_offset is None else request.after_offset

    def _answer(self, fetching: Fetching) -> None:
        """Answer, or wait for facts."""
        request, store, now_ms = fetching.request, self._store, self._node.world.now_ms
        key = (fetching.asker.zone, request.consumer_name)
        decision = sender.decide_fetch(
            request, STREAM, fetching.position, store.end_offset(STREAM), len(self._parked), fetching.until_ms, now_ms
        )
        if isinstance(decision, sender.Park):
            store.consumers.seen(request.consumer_name, is_at_end=True, waits_ms=fetching.until_ms - now_ms)
            self._parked[key] = fetching  # an earlier one gets no answer
            self._node.after(fetching.until_ms - now_ms, lambda: self._over(key, fetching))
            return
        assert isinstance(decision, sender.Answer), decision
        read = self.read(PageAsked(decision.plan, fetching.asker.zone, request.definitions_known, PACKET_BYTES_MAX))
        confirming = fetching.confirming
        may_run_ahead = request.after_offset is not None and isinstance(read, PageRead) and bool(read.batches)
        if confirming is not None and not may_run_ahead and not confirming.done():
            confirming.add_done_callback(lambda _: self._node.soon(lambda: self._send_if_held(fetching, read)))
        else:
            self._send_if_held(fetching, read)

    def _send_if_held(self, fetching: Fetching, read: PageRead | Refuse) -> None:
        """Somebody else may have come meanwhile."""
        self._with_lease(fetching, lambda _: self._send(fetching, read))

    def read(self, asked: PageAsked) -> PageRead | Refuse:
        return read_page(self._store, asked)

    def _over(self, key: tuple[str, str], fetching: Fetching) -> None:
        if self._parked.get(key) is fetching:
            del self._parked[key]
            self._answer(fetching)

    def _send(self, fetching: Fetching, read: PageRead | Refuse) -> None:
        confirming, name, store = fetching.confirming, fetching.request.consumer_name, self._store
        if confirming is not None and confirming.done() and (error := confirming.exception()) is not None:
            self._failed(fetching, error)
            return
        if isinstance(read, Refuse):
            self._refuse(fetching.send, "FetchFacts", read)
            return
        self._node.world.check.tells(self._node, read.holes)
        store.consumers.seen(name, is_at_end=max(fetching.position, read.last_offset) >= read.end_offset)
        consumer = store.consumers.get(name)
        store.consumers.record_served(
            STREAM, fetching.asker.zone, max(read.last_offset, consumer.frontier if consumer else 0), read.end
        )
        answer = FetchAnswer(
            store_zone=store.zone,
            epoch=store.epoch.hex(),
            stream=STREAM,
            frontier=consumer.frontier if consumer else 0,
            end_offset=read.end_offset,
            batches=read.entries,
            omitted=read.omitted,
            holes=read.holes,
            definitions=read.definitions,
            more=read.last_offset < read.end_offset,
            lease=None if fetching.request.lease is None else fetching.lease.epoch,
            omitted_digest=read.omitted_digest.hex() if read.omitted_digest else None,
        )
        fetching.send(encode_answer(answer, read.batches))

    def _failed(self, fetching: Fetching, error: BaseException) -> None:
        code = "fenced" if isinstance(error, ConsumerFenced) else "store_unavailable"
        self._refuse(fetching.send, "FetchFacts", Refuse(code, str(error)))

    def _refuse(self, send: Send, operation: str, refusal: Refuse) -> None:
        store = self._store
        send(encode_error(store.zone, store.epoch.hex(), operation, refusal.code, refusal.message))


def _view(consumer: ConsumerState | None) -> sender.ConsumerView | None:
    return (
        None
        if consumer is None
        else sender.ConsumerView(consumer.zone, consumer.stream, consumer.frontier, consumer.lease)
    )

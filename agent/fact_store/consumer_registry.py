"""The API for consumers of a store: registration, leases, activity, confirmation and removal.

Arguments are checked in the calling thread; changes run in the writer's thread and answer through a future. frontier.py
decides the effect of a confirmation, agent/lease.py which instance of a consumer may continue.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from functools import partial

from agent.errors import StoreError
from agent.fact_store import consumers
from agent.fact_store.append import Follower
from agent.fact_store.core import ConsumerEvent, ConsumerState, Lifecycle, next_state
from agent.fact_store.writer import Writer
from agent.lease import LEASE_EPOCH_MAX, Lease, LeaseClaim
from agent.message import CONSUMER, STREAM, ZONE, MessageError, check_name
from agent.pages import Consumer, Start
from agent.positions import Position


class ConsumerRegistry:
    """`FactStore.consumers`."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def get(self, name: str) -> ConsumerState | None:
        """A registered consumer, from memory."""
        return self._writer.catalog.consumers.get(name)

    def all(self) -> list[ConsumerState]:
        """Every registered consumer, from memory."""
        return list(self._writer.catalog.consumers.values())

    def register(
        self, name: str, zone: str, stream: str, start: Start = "oldest", *, zone_max: int | None = None
    ) -> Future[Consumer]:
        """Register a consumer; a repeat with the same zone and stream returns the consumer as it is. `zone_max`: how
        many consumers the zone may have. Through the future: ConsumerNotYours, ConsumerStreamMismatch,
        TooManyConsumers, StreamIsLocal.

        It starts at the oldest fact, at the end, or at a time of recording in milliseconds since 1970. A time is
        rounded down to the minute's mark, so the consumer may read facts of up to a minute before it, and misses none.
        """
        check_name("consumer", name, CONSUMER)
        check_name("zone", zone, ZONE)
        check_name("stream", stream, STREAM)
        if start not in {"oldest", "end"} and (type(start) is not int or start < 0):
            raise MessageError(
                "start", f"{start!r} is neither 'oldest' nor 'end' nor a time in milliseconds since 1970"
            )
        is_local = self._writer.committer.limits.policy(stream).write_class == "local"
        run = partial(consumers.register_consumer, name=name, zone=zone, stream=stream, start=start)
        return self._writer.submit("register", partial(run, is_local=is_local, zone_max=zone_max))

    def unregister(self, name: str, zone: str, claim: LeaseClaim) -> Future[bool]:
        """Remove a consumer at once, at the request of an instance of its zone; False where there is none. Through the
        future: ConsumerNotYours, ConsumerFenced, LeaseUnknown."""
        run = partial(consumers.unregister_consumer, name=name, zone=zone, claim=claim)
        return self._writer.submit("unregister", run)

    def remove(self, name: str, *, force: bool = False, now: bool = False) -> Future[Lifecycle]:
        """Begin to remove a consumer and its confirmations; retention may then release what it held back. It is removed
        ten minutes later unless it fetches meanwhile; with `now`, at once. Through the future: UnknownConsumer, and
        without `force` ConsumerInUse.
        """
        return self._writer.submit("remove", partial(consumers.remove_consumer, name=name, force=force, now=now))

    def hold_lease(self, consumer: str, claim: LeaseClaim) -> Future[Lease]:
        """The lease of a consumer that is in force after an instance has presented its own (agent/lease.py). A new
        lease is durable.

        Through the future: UnknownConsumer, ConsumerFenced for an instance that a newer one has replaced, and
        LeaseUnknown for a lease that was never granted here.
        """
        if claim.epoch is not None and not 0 <= claim.epoch <= LEASE_EPOCH_MAX:
            raise ValueError(f"a lease has an epoch of 0 to {LEASE_EPOCH_MAX}, not {claim.epoch}")
        return self._writer.submit("hold", partial(consumers.hold_lease, name=consumer, claim=claim))

    def confirm(
        self,
        consumer: str,
        last_offset: int,
        first_offset: int | None = None,
        *,
        claim: LeaseClaim | None = None,
        life: bytes | None = None,
        digest: bytes = b"",
        is_awaited: bool = True,
    ) -> Future[int]:
        """Confirm offsets, in any order, any number of times; the result is the frontier afterwards, durable.

        A confirmation that is not awaited joins another commit, if there is one soon (append/group_commit.py), unless
        an append waits for consumers. Without `first_offset`, everything up to `last_offset` is confirmed. `claim` is
        the lease of the instance that confirms; without it, the consumer's name is enough. `life` and `digest` are
        those of the position at `last_offset` in the log that was read (agent/positions.py); without a life it is this
        log. What of it is not in this log is not confirmed. Through the future: UnknownConsumer, ConsumerFenced,
        LeaseUnknown, ConfirmBeyondLog, ConfirmRefused.
        """
        read = None if life is None else Position(life, last_offset, digest)
        confirm = partial(consumers.confirm_offsets, name=consumer, first_offset=first_offset, last_offset=last_offset)
        run = partial(confirm, claim=claim, read=read)
        is_deferred = not is_awaited and not self._writer.acks.has_any
        confirming = self._writer.submit("confirm", run, is_deferred=is_deferred)
        confirming.add_done_callback(partial(self._confirmed, consumer))
        return confirming

    def commit_deferred(self) -> None:
        """Commit at once, because a caller now waits for a confirmation that was not awaited."""
        self._writer.queue.commit_deferred()

    def _confirmed(self, name: str, confirming: Future[int]) -> None:
        """Record in the writer's thread that a consumer is active, and whether it has confirmed everything up to the
        end."""
        catalog = self._writer.catalog
        known = catalog.consumers.get(name)
        if confirming.exception() is None and known is not None:
            is_at_end = known.frontier >= catalog.streams[known.stream].end_offset
            self._writer.activity.record_confirm(
                name, is_at_end=is_at_end, now_ns=time.monotonic_ns(), now_unix_ms=time.time_ns() // 1_000_000
            )

    def seen(self, consumer: str, *, is_at_end: bool, waits_ms: int = 0) -> None:
        """Record a fetch of this consumer: it is answered with a page, which may reach the end of the log, or it waits
        at the end for `waits_ms`. From any thread; costs a commit only if it changes the consumer's state.
        """
        known = self.get(consumer)
        if known is None:
            return
        activity = self._writer.activity
        activity.record_fetch(
            consumer,
            is_at_end=is_at_end,
            waits_ns=waits_ms * 1_000_000,
            now_ns=time.monotonic_ns(),
            now_unix_ms=time.time_ns() // 1_000_000,
        )
        if next_state(known.lifecycle, ConsumerEvent.SEEN) is known.lifecycle or not activity.begin_recording(consumer):
            return
        run = partial(consumers.apply_events, events={consumer: ConsumerEvent.SEEN}, seen_unix_ms=activity.seen_unix_ms)
        try:
            self._writer.submit("seen", run).add_done_callback(lambda _: activity.end_recording(consumer))
        except StoreError:  # busy or closing: the next fetch records it; or ended: `FactStore.ended` has the reason
            activity.end_recording(consumer)

    def seen_unix_ms(self, consumer: str) -> int | None:
        """When a consumer was last seen, by the wall clock: in this life of the store, otherwise as its table says;
        from memory."""
        known = self.get(consumer)
        return self._writer.activity.seen_unix_ms(consumer) or (known.seen_unix_ms if known else None)

    def followers(self, stream: str) -> list[Follower]:
        """The consumers that an append to a stream may wait for, and when each was last at the end of the stream; from
        memory."""
        return self._writer.activity.followers(self._writer.catalog, stream)

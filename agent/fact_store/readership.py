"""The door for those who read on: consumers registered, leased, seen, confirming, removed; and how far each zone was handed what.

What a confirmation means is decided in frontier.py, who may go on in agent/lease.py, whether a peer speaks of this very store in
high_water.py and history_check.py. A serving node and the zone's own applications use it.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from datetime import datetime
from functools import partial

from agent.fact_store import consumers
from agent.fact_store.append import Follower
from agent.fact_store.divergence import ServedHighWater, find_contradiction
from agent.fact_store.log import ConsumerState, Event, Lifecycle, StoreError, next_state
from agent.fact_store.running import Parts, RunningStore
from agent.lease import LEASE_EPOCH_MAX, Lease, LeaseClaim
from agent.message import CONSUMER, STREAM, ZONE, check_name


class Readership(RunningStore):
    """What a store knows of its readers."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._handed = ServedHighWater(parts.writer.catalog.served_offsets)

    def register_consumer(
        self, name: str, zone: str, stream: str, start: consumers.Start | datetime = "oldest"
    ) -> Future[ConsumerState]:
        """Register a consumer; again with the same zone and stream, it is as it was.

        It starts at the oldest fact, at the end, or at what was recorded here from a time on (a datetime with a zone, or
        milliseconds since 1970): rounded down to the minute's mark, so rather a minute of facts too many than one fact missing.
        """
        check_name("consumer", name, CONSUMER)
        check_name("zone", zone, ZONE)
        check_name("stream", stream, STREAM)
        begin = int(start.timestamp() * 1000) if isinstance(start, datetime) and start.tzinfo is not None else start
        if isinstance(begin, datetime) or (begin not in {"oldest", "end"} and (type(begin) is not int or begin < 0)):
            raise ValueError(f"a consumer starts at 'oldest', 'end' or a time in a zone, not at {start!r}")
        is_local = self._writer.policy(stream).write_class == "local"
        run = partial(consumers.register_consumer, name=name, zone=zone, stream=stream, start=begin, is_local=is_local)
        return self._call("register", run)

    def remove_consumer(self, name: str, *, force: bool = False, now: bool = False) -> Future[Lifecycle]:
        """Begin to forget a consumer and what it confirmed; what it held back may then go. Ten minutes later it is gone, unless
        it comes back meanwhile; with `now` at once. UnknownConsumer, and without `force` ConsumerInUse, through the future.
        """
        return self._call("remove", partial(consumers.remove_consumer, name=name, force=force, now=now))

    def hold_lease(self, consumer: str, shown: LeaseClaim) -> Future[Lease]:
        """Which lease of a consumer is in force once an instance of it has shown its own (agent/lease.py), durable where that is a
        new one. UnknownConsumer, and ConsumerFenced for one whose place was taken, through the future.
        """
        if shown.epoch is not None and not 0 <= shown.epoch <= LEASE_EPOCH_MAX:
            raise ValueError(f"a lease has an epoch of 0 to {LEASE_EPOCH_MAX}, not {shown.epoch}")
        return self._call("hold", partial(consumers.hold_lease, name=consumer, shown=shown))

    def confirm(
        self, consumer: str, last_offset: int, first_offset: int | None = None, *, shown: LeaseClaim | None = None
    ) -> Future[int]:
        """Confirm offsets, in any order, any number of times; the future is the frontier after it, durable.

        Without `first_offset` everything up to `last_offset`. `shown` is the lease of the instance that confirms; without, the
        consumer's name is enough. UnknownConsumer, ConsumerFenced, ConfirmBeyondLog, ConfirmRefused through it.
        """
        run = partial(
            consumers.confirm_offsets, name=consumer, first_offset=first_offset, last_offset=last_offset, shown=shown
        )
        confirming = self._call("confirm", run)
        confirming.add_done_callback(partial(self._confirmed, consumer))
        return confirming

    def _confirmed(self, name: str, confirming: Future[int]) -> None:
        """In the writer's thread: whoever confirms is there, and one that has confirmed everything has caught up."""
        known = self.consumer(name)
        if confirming.exception() is None and known is not None:
            is_at_end = known.frontier >= self.end_offset(known.stream)
            self._writer.activity.record_confirm(
                name, is_at_end=is_at_end, now_ns=time.monotonic_ns(), now_unix_ms=time.time_ns() // 1_000_000
            )

    def seen(self, consumer: str, *, is_at_end: bool, waits_ms: int = 0) -> None:
        """A serving side answers a fetch of this consumer: with a page that reaches the end of the log, or (`waits_ms`) it waits
        there for facts. From any thread; costs no commit unless the consumer's state changes by it.
        """
        known = self.consumer(consumer)
        if known is None:
            return
        self._writer.activity.record_fetch(
            consumer,
            is_at_end=is_at_end,
            waits_ns=waits_ms * 1_000_000,
            now_ns=time.monotonic_ns(),
            now_unix_ms=time.time_ns() // 1_000_000,
        )
        activity = self._writer.activity
        if next_state(known.lifecycle, Event.SEEN) is known.lifecycle or not activity.begin_recording(consumer):
            return
        run = partial(consumers.apply_events, events={consumer: Event.SEEN}, seen_unix_ms=activity.seen_unix_ms)
        try:
            self._call("seen", run).add_done_callback(lambda _: activity.end_recording(consumer))
        except StoreError:  # busy, or closing: the next fetch says it again; or ended, and `ended` says why
            activity.end_recording(consumer)

    def seen_unix_ms(self, consumer: str) -> int | None:
        """When a consumer was last seen by the clock on the wall: in this life, else as the table has it; from memory."""
        known = self.consumer(consumer)
        return self._writer.activity.seen_unix_ms(consumer) or (known.seen_unix_ms if known else None)

    def followers(self, stream: str) -> list[Follower]:
        """Whom an append to a stream may wait for, and when each was last at its end, from memory."""
        return self._writer.activity.followers(self._writer.catalog, stream)

    def begin_handing(self, stream: str, zone: str) -> Future[None] | None:
        """Before a zone is handed facts of a stream, the first time in this life of the store: durable when the future is done. None where
        it is already."""
        if self._writer.catalog.served_offsets.get((stream, zone), 0) is None:
            return None
        return self._call("hand", partial(consumers.begin_serving, stream=stream, zone=zone))

    def handed(self, stream: str, zone: str, last_offset: int, end: tuple[int, bytes] | None = None) -> None:
        """A zone is about to be answered what a stream holds up to an offset; `end`: where the page's last batch ends, and its digest.
        Costs no commit."""
        self._handed.record(stream, zone, last_offset, end)

    def has_handed(self, stream: str, zone: str, end: tuple[int, bytes]) -> bool:
        """Whether one of the last pages handed to a zone ended with this batch; from memory."""
        return self._handed.is_recent_page_end(stream, zone, end)

    def never_handed(self, stream: str, zone: str, offset: int) -> str | None:
        """Why a zone cannot have been told by this store of everything up to an offset of this epoch, if it cannot; from memory, see
        high_water.py."""
        until = self._handed.offset(stream, zone)
        return (
            None if offset <= until else f"it has read up to offset {offset} of {stream}, and was handed {until} here"
        )

    def contradiction(self, stream: str, taken: tuple[int, bytes] | None, held: tuple[int, bytes] | None) -> str | None:
        """What is not here of that which a peer shows of this epoch, read in the calling thread; see history_check.py."""
        return find_contradiction(self._reader, self._writer.catalog, stream, taken, held)

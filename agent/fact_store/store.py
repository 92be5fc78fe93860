"""FactStore: the store as the rest of the house sees it. Appends and confirmations go to the writer's thread and come back as
futures; reads happen in the caller's thread on its own connection.

Promised: a result is durable; what cannot be stored is refused by name; nothing blocks except reads, `open` and `close`. What
is wrong in the arguments, or a queue that is full, is raised at once by the call; everything else through the future. Futures
are `concurrent.futures.Future` (asyncio: `asyncio.wrap_future`); giving up on one does not take the facts back.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from agent.appending import NO_PRECONDITION, Precondition
from agent.batch import EPOCH_BYTES, Batch, Origin, SampleColumns
from agent.fact_store import consumers
from agent.fact_store import repair as repairing
from agent.fact_store.acks import Follower
from agent.fact_store.acks import terms as terms_of
from agent.fact_store.admission import check_precondition
from agent.fact_store.admitting import acquire_lease, acquire_lease_after
from agent.fact_store.append import AppendMessages, AppendSamples, content_digest, message_key
from agent.fact_store.artifacts import Artifacts
from agent.fact_store.ballast import Ballast, disk_free
from agent.fact_store.beside import files_set_aside, mark_suspect
from agent.fact_store.catalog import StreamState
from agent.fact_store.connection import Connect, connect, lock, unlock
from agent.fact_store.damage import Damages
from agent.fact_store.definitions import define
from agent.fact_store.errors import AcksRefused, FactsRefused, StoreClosed, StoreDamaged, StoreError
from agent.fact_store.forecast import StoreSpace
from agent.fact_store.handed import Handed
from agent.fact_store.held import Range
from agent.fact_store.lifecycle import Event, Lifecycle, step
from agent.fact_store.opening import open_writer, peer_is_ahead, require_new_epoch
from agent.fact_store.reader import StoreReader
from agent.fact_store.receive import ReceivedPage, begin_check, check, put
from agent.fact_store.records import (
    Appended,
    AppendOutcome,
    BatchEnd,
    ConsumerState,
    Incident,
    Integrity,
    OriginRange,
    Page,
    PeerPosition,
    PutResult,
    ReceivedDefinition,
    RepairedRange,
    StoreStatistics,
    StreamInfo,
)
from agent.fact_store.seen import Seen
from agent.fact_store.settings import Acks, StoreSettings, StreamSettings
from agent.fact_store.shown import contradiction
from agent.fact_store.tail import Tail
from agent.fact_store.upkeep import Upkeep
from agent.fact_store.work import Call
from agent.fact_store.writer import OnCommit, Writer
from agent.lease import LEASE_EPOCH_MAX, Lease, Shown
from agent.message import (
    CONSUMER,
    PRODUCER,
    STREAM,
    ZONE,
    Json,
    Message,
    Sample,
    TagDefinition,
    Value,
    check_definition,
    check_message,
    check_name,
    value_bytes,
)

T = TypeVar("T")
log = logging.getLogger(__name__)

_FACT_BYTES = 120  # what a queued sample weighs in memory, its own text or bytes apart
_MESSAGE_BYTES = 1000
_PLAIN = frozenset({bool, int, float, type(None)})
_OFFSET_MAX = 2**63 - 1


class FactStore:
    """The fact store of one node. Owns the lock, the writer's thread, a thread that checks batches, and reading connections."""

    def __init__(
        self,
        path: Path,
        writer: Writer,
        reader: StoreReader,
        lock_descriptor: int,
        origin: Origin,
        space: Callable[[], StoreSpace],
        damages: Damages,
        artifacts: Artifacts,
    ) -> None:
        self.path = path
        self.artifacts = artifacts
        self.space = space
        """How much room there is, and for how long: a few look-ups, in the calling thread."""
        self.origin = origin
        self._writer = writer
        self._reader = reader
        self._damages = damages
        self._upkeep = Upkeep(path, writer, self._read, artifacts.sweep)
        self._seen = Seen({name: state.end_offset for name, state in writer.catalog.streams.items()})
        self._handed = Handed(writer.catalog.handed)
        self._lock_descriptor = lock_descriptor
        self._is_closed = False
        # One thread, so pages are checked in the order they came while the writer commits the one before; its queue is
        # bounded by the writer's, where room is taken first.
        self._checker = ThreadPoolExecutor(1, thread_name_prefix="store-check")

    @classmethod
    def open(
        cls,
        path: Path,
        zone: str,
        *,
        settings: StoreSettings | None = None,
        streams: Sequence[StreamSettings] = (),
        connect_to: Connect = connect,
        unattended: bool = False,
    ) -> FactStore:
        """Open the store of `zone`, or begin a new one; recovers by itself from whatever ended the last life.

        Streams that `streams` does not name have the defaults of `StreamSettings`.

        `unattended`, as nodes open it: a file that cannot be used is set aside and a new store begins in its place, an old copy
        goes on under a new epoch, and what is stored is read again in the background (opening.py, upkeep.py).

        Raises StoreUnusable: StoreMissing (folder), StoreLocked, StoreForeign, StoreTooNew, StoreDamaged.
        """
        check_name("zone", zone, ZONE)
        descriptor = lock(path)
        try:
            policies = {one.name: one for one in streams}
            return cls._open_locked(
                path, zone, settings or StoreSettings(), policies, connect_to, descriptor, unattended=unattended
            )
        except StoreError:
            unlock(descriptor)
            raise

    @classmethod
    def _open_locked(
        cls,
        path: Path,
        zone: str,
        settings: StoreSettings,
        policies: dict[str, StreamSettings],
        connect_to: Connect,
        descriptor: int,
        *,
        unattended: bool,
    ) -> FactStore:
        if Ballast(path, settings.ballast_bytes).give_up_if_needed(disk_free(path.parent)):
            log.warning("ballast_given_up", extra={"store": str(path)})
        opened = open_writer(path, zone, connect_to, time.time_ns() // 1_000_000, is_unattended=unattended)
        damages = Damages()
        try:
            reader = StoreReader(path, connect_to=connect_to, on_damaged=damages.found)
        except StoreError:
            opened.connection.close()
            raise
        writer = Writer(path, opened.connection, opened.catalog, opened.index, settings, policies)
        damages.start(writer, opened.catalog.origin)
        space = partial(_space, writer, reader, settings, policies)
        artifacts = Artifacts(path, settings, reader, writer)
        store = cls(path, writer, reader, descriptor, opened.catalog.origin, space, damages, artifacts)
        if unattended:
            store._be_kept_up()
        writer.start()
        return store

    def _be_kept_up(self) -> None:
        """As a node: remember what there is, read it again in the background, and mark the file when writing meets damage."""
        self._upkeep.start()
        self._writer.ended.add_done_callback(self._mark_if_damaged)

    def _mark_if_damaged(self, ended: Future[None]) -> None:
        if isinstance(error := ended.exception(), StoreDamaged):
            mark_suspect(self.path, error.why)

    # ------------------------------------------------------------------------------------------------------------ writing

    def define(self, definitions: Sequence[TagDefinition]) -> Future[list[int]]:
        """Number tag definitions of this store, densely from 1: the same content keeps its number, a change is a new one.

        Raises MessageError at once where a definition breaks the rules.
        """
        for definition in definitions:
            check_definition(definition)
        bodies = [definition.to_json() for definition in definitions]
        return self._call("define", partial(define, bodies=bodies), size=sum(map(len, bodies)), is_early=True)

    def append_samples(
        self, stream: str, rows: Sequence[Sample], *, awaited: bool = False, acks: Acks | None = None
    ) -> Future[Appended]:
        """Append samples, all or none, in one place; done when durable. `awaited` commits at once, otherwise they ripen.

        Awaited ones are answered on the stream's `acks`, or on these; what nobody waits for is answered when it is durable here.
        Raises StoreBusy at once when the queue is full: slow the source; and AcksRefused. FactsRefused comes through the future.
        """
        check_name("stream", stream, STREAM)
        if not rows:
            raise FactsRefused("no samples", "leave the call out")
        try:
            columns = SampleColumns.of(rows)
        except (ValueError, TypeError) as error:
            raise FactsRefused(f"samples for {stream} are not samples: {error}", "correct the source") from error
        size = _values_bytes(columns.values)
        terms = terms_of(self._writer.policy(stream), acks) if awaited or acks else None
        is_urgent = terms is not None and not terms.is_answered_unstored
        append = AppendSamples(stream, columns, len(rows), size, is_urgent, time.monotonic_ns(), terms)
        self._writer.append_samples(append)
        return append.future if terms is None or is_urgent else _answered(Appended(0, 0, "queued"))

    def append_message(
        self, stream: str, message: Message, *, acks: Acks | None = None, precondition: Precondition | None = None
    ) -> Future[AppendOutcome]:
        """Append a message unless its id is there already; see `AppendOutcome`. Answered on the stream's `acks`, or on these.

        Raises MessageError, AcksRefused, StoreBusy at once; FactsRefused comes through the future.
        """
        outer: Future[AppendOutcome] = Future()
        outer.set_running_or_notify_cancel()
        preconditions = [precondition] if precondition else ()
        inner = self.append_messages(stream, [message], acks=acks, preconditions=preconditions)
        inner.add_done_callback(partial(_answer_with_first, outer))
        return outer

    def append_messages(
        self,
        stream: str,
        messages: Sequence[Message],
        *,
        acks: Acks | None = None,
        preconditions: Sequence[Precondition | None] = (),
    ) -> Future[list[AppendOutcome]]:
        """As `append_message` for several in one commit; each has its own outcome, and its own precondition if there are any."""
        self.check_append(stream, messages, acks, preconditions)
        return self.append_checked(stream, messages, acks, preconditions)

    def check_append(
        self,
        stream: str,
        messages: Sequence[Message],
        acks: Acks | None = None,
        preconditions: Sequence[Precondition | None] = (),
    ) -> None:
        """Raise what `append_messages` would at once, a full queue apart; nothing is handed over. ArtifactMissing for a message that
        refers to what is not here."""
        check_name("stream", stream, STREAM)
        if not messages:
            raise FactsRefused("no messages", "leave the call out")
        for message in messages:
            check_message(message)
            self.artifacts.claim(message)
        if not preconditions:
            return
        if len(preconditions) != len(messages):
            raise FactsRefused(
                f"{len(preconditions)} preconditions for {len(messages)} messages", "one for each, or none"
            )
        for precondition in preconditions:
            if precondition is None or precondition == NO_PRECONDITION:
                continue
            is_strong = self._writer.policy(stream).write_class == "strong"
            check_precondition(precondition, is_strong=is_strong)
            if terms_of(self._writer.policy(stream), acks).is_answered_unstored:
                raise AcksRefused("acks none is answered before a precondition can be decided", "ask for local")

    def append_checked(
        self,
        stream: str,
        messages: Sequence[Message],
        acks: Acks | None = None,
        preconditions: Sequence[Precondition | None] = (),
    ) -> Future[list[AppendOutcome]]:
        """`append_messages` of what has been through `check_append`. Raises AcksRefused, StoreBusy at once."""
        keys, contents = [message_key(one, self.zone) for one in messages], [content_digest(one) for one in messages]
        size = sum(len(one.fact.object_json) + _MESSAGE_BYTES for one in messages)
        terms = terms_of(self._writer.policy(stream), acks)
        asked = [one or NO_PRECONDITION for one in preconditions]
        append = AppendMessages(stream, list(messages), keys, contents, size, time.monotonic_ns(), terms, asked)
        self._writer.append_messages(append)
        return (
            append.future if not terms.is_answered_unstored else _answered([AppendOutcome(0, "queued")] * len(messages))
        )

    def acquire_lease(self, stream: str, producer: str) -> Future[int]:
        """A lease epoch for a producer that begins, higher than any before it: appends with lower ones are fenced from now on.

        Raises MessageError, StoreBusy at once; FactsRefused comes through the future.
        """
        check_name("stream", stream, STREAM)
        check_name("producer", producer, PRODUCER)
        return self._call("lease", partial(acquire_lease, stream=stream, producer=producer))

    def acquire_lease_after(self, stream: str, producer: str, epoch: int) -> Future[int | None]:
        """The same if that lease epoch is in force (0: none), so that a request which comes late takes nothing from who came since.
        None, and nothing has changed, where another is."""
        check_name("stream", stream, STREAM)
        check_name("producer", producer, PRODUCER)
        return self._call("lease", partial(acquire_lease_after, stream=stream, producer=producer, after=epoch))

    def lease_epoch(self, stream: str, producer: str) -> int:
        """The lease epoch of a producer that is in force, 0 for none."""
        return self._writer.catalog.leases.get((stream, producer), 0)

    def put_batches(
        self,
        peer: str,
        stream: str,
        sealed: Sequence[bytes | Batch],
        definitions: Sequence[ReceivedDefinition],
        position: PeerPosition,
        *,
        holes: Sequence[tuple[int, int, str]] = (),
        verify: bool = True,
        is_backlog: bool = False,
    ) -> Future[PutResult]:
        """Store a peer's batches that are not held yet, their definitions and the peer's position: all or nothing.

        `holes` are (first_offset, last_offset, reason) of what the peer says it no longer has; each becomes an incident.
        `is_backlog`: the peer had kept them for us, so no forecast counts them as what comes in.

        What contradicts the facts held, and is not of the peer's present epoch, is passed over: an incident, and `refused` in the result.

        Bytes are parsed and, with `verify`, opened in another thread before the transaction; a `Batch` has been parsed by
        whoever made it. Through the future: BatchError, ForkError, DefinitionsMissing, StoreFull; at once: StoreBusy.
        """
        check_name("peer", peer, ZONE)
        check_name("stream", stream, STREAM)
        if len(position.epoch) != EPOCH_BYTES or not 0 <= position.offset <= _OFFSET_MAX:
            raise FactsRefused(f"{position} is no position", "an epoch has 16 bytes, an offset is not negative")
        lengths = [len(one.sealed if isinstance(one, Batch) else one) for one in sealed]
        size = sum(lengths) + sum(len(one.body) for one in definitions)
        call = Call(f"{stream} from {peer}", size, time.monotonic_ns(), stream=stream if sealed else None)
        self._writer.reserve(call)
        page = partial(
            ReceivedPage,
            peer=peer,
            stream=stream,
            definitions=definitions,
            position=position,
            holes=tuple(holes),
            is_backlog=is_backlog,
        )
        try:
            checked = begin_check(self._checker, stream, sealed, definitions, is_opened=verify)
        except RuntimeError as error:  # `close` has come between
            self._writer.release(call)
            raise StoreClosed(f"{self.path} is closed") from error
        checked.add_done_callback(partial(self._put_checked, call, page))
        return call.future

    def _put_checked(self, call: Call, page: Callable[..., ReceivedPage], checked: Future[list[Batch]]) -> None:
        """Mostly in the checking thread: hand a checked page to the writer, in the room that was taken for it."""
        if (error := checked.exception()) is not None:
            self._writer.release(call)
            call.future.set_exception(error)
            return
        call.run = partial(put, page=page(batches=checked.result()))
        self._writer.call_reserved(call)

    def damaged(self, stream: str) -> Future[list[OriginRange]]:
        """The batches of a stream that were found damaged and are not repaired: what was told before this call is in it."""
        return self._call("damaged", partial(repairing.damaged, stream=stream))

    def repair(self, stream: str, peer: str, sealed: Sequence[bytes]) -> Future[list[RepairedRange]]:
        """Put damaged batches back, byte for byte, at the offsets where they lay; see repair.py.

        At once: BatchError, StoreBusy. Through the future: FactsRefused, ForkError (another history), StoreFull.
        """
        check_name("peer", peer, ZONE)
        check_name("stream", stream, STREAM)
        batches = check(stream, sealed, (), is_opened=True)
        call = Call(f"{stream} from {peer}", sum(map(len, sealed)), time.monotonic_ns(), stream=stream)
        call.run = partial(repairing.repair, stream=stream, peer=peer, batches=batches)
        call.future.add_done_callback(partial(self._repaired, stream))
        self._writer.call(call)
        return call.future

    def _repaired(self, stream: str, done: Future[list[RepairedRange]]) -> None:
        if done.exception() is None:
            for one in done.result():
                self._damages.repaired(stream, one.first_offset, one.last_offset)

    def note(self, kind: str, stream: str, peer: str, why: str) -> Future[None]:
        """An incident about a peer's stream, and nothing else."""
        return self._call(kind, partial(repairing.note, kind=kind, stream=stream, peer=peer, why=why))

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
        run = partial(consumers.register, name=name, zone=zone, stream=stream, start=begin, is_local=is_local)
        return self._call("register", run)

    def remove_consumer(self, name: str, *, force: bool = False, now: bool = False) -> Future[Lifecycle]:
        """Begin to forget a consumer and what it confirmed; what it held back may then go. Ten minutes later it is gone, unless
        it comes back meanwhile; with `now` at once. UnknownConsumer, and without `force` ConsumerInUse, through the future.
        """
        return self._call("remove", partial(consumers.remove, name=name, force=force, now=now))

    def hold_lease(self, consumer: str, shown: Shown) -> Future[Lease]:
        """Which lease of a consumer is in force once an instance of it has shown its own (agent/lease.py), durable where that is a
        new one. UnknownConsumer, and ConsumerFenced for one whose place was taken, through the future.
        """
        if shown.epoch is not None and not 0 <= shown.epoch <= LEASE_EPOCH_MAX:
            raise ValueError(f"a lease has an epoch of 0 to {LEASE_EPOCH_MAX}, not {shown.epoch}")
        return self._call("hold", partial(consumers.hold_lease, name=consumer, shown=shown))

    def confirm(
        self, consumer: str, last_offset: int, first_offset: int | None = None, *, shown: Shown | None = None
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
            self._writer.presence.confirmed(
                name, is_at_end=is_at_end, now_ns=time.monotonic_ns(), now_unix_ms=time.time_ns() // 1_000_000
            )

    def seen(self, consumer: str, *, is_at_end: bool, waits_ms: int = 0) -> None:
        """A serving side answers a fetch of this consumer: with a page that reaches the end of the log, or (`waits_ms`) it waits
        there for facts. From any thread; costs no commit unless the consumer's state changes by it.
        """
        known = self.consumer(consumer)
        if known is None:
            return
        self._writer.presence.fetched(
            consumer,
            is_at_end=is_at_end,
            waits_ns=waits_ms * 1_000_000,
            now_ns=time.monotonic_ns(),
            now_unix_ms=time.time_ns() // 1_000_000,
        )
        presence = self._writer.presence
        if step(known.lifecycle, Event.SEEN) is known.lifecycle or not presence.begin_noting(consumer):
            return
        run = partial(consumers.happen, events={consumer: Event.SEEN}, seen_unix_ms=presence.seen_unix_ms)
        try:
            self._call("seen", run).add_done_callback(lambda _: presence.end_noting(consumer))
        except StoreError:  # busy, or closing: the next fetch says it again; or ended, and `ended` says why
            presence.end_noting(consumer)

    # ------------------------------------------------------------------------------------------------------------ reading

    @property
    def zone(self) -> str:
        """The zone whose store this is."""
        return self.origin.zone

    @property
    def epoch(self) -> bytes:
        """Identity of this life of the store, 16 random bytes."""
        return self.origin.epoch

    @property
    def reader(self) -> StoreReader:
        """For who asks more than pages of it (`agent.query`), in threads of his own; it ends with the store."""
        return self._reader

    def read(
        self, stream: str, after_offset: int, facts_max: int, bytes_max: int, *, until_offset: int | None = None
    ) -> Page:
        """A page of whole batches, read in the calling thread; see `StoreReader.read`.

        Nothing beyond `end_offset`: a reader sees a commit some moments before `end_offset` tells of it, and a peer that confirmed in
        those moments what it was served would be taken for one that has read another, longer life of this store.
        """
        page = self._read(stream, after_offset, facts_max, bytes_max, until_offset)
        if page.batches:
            self._seen.note(stream, page.batches[-1].last_offset)
        return page

    def _read(
        self, stream: str, after_offset: int, facts_max: int, bytes_max: int, until_offset: int | None = None
    ) -> Page:
        """A page that leaves this store for nobody."""
        catalog = self._writer.catalog
        known = catalog.streams.get(stream, StreamState(0, stream))
        end_offset = known.end_offset
        until_offset = end_offset if until_offset is None else min(until_offset, end_offset)
        if known.released_offset <= after_offset:
            tail = catalog.tails.get(known.id, Tail())
            if (page := tail.page(after_offset, facts_max, bytes_max, until_offset)) is not None:
                return page
        return self._reader.read(
            stream, after_offset, facts_max, bytes_max, until_offset=until_offset, end_offset=end_offset
        )

    def read_sequences(
        self, stream: str, origin: Origin, first_sequence: int, last_sequence: int, facts_max: int, bytes_max: int
    ) -> Page:
        """A page of one origin's batches by its sequences, read in the calling thread; see `StoreReader.read_sequences`."""
        page = self._reader.read_sequences(stream, origin, first_sequence, last_sequence, facts_max, bytes_max)
        if page.batches and origin == self.origin:
            self._seen.note(stream, self.end_offset(stream))  # sequences are no offsets, and it is rarely asked
        return page

    def batch_ends(self, stream: str, origin: Origin, sequences: Iterable[int]) -> list[BatchEnd]:
        """Ends and digests of the batches that hold these sequences, read in the calling thread."""
        return self._reader.batch_ends(stream, origin, sequences)

    def held(self, stream: str) -> dict[Origin, tuple[Range, ...]]:
        """Which sequences of each origin are held in a stream, or were before retention, with the digests at the ends of each range;
        from memory."""
        catalog = self._writer.catalog
        known = catalog.streams.get(stream)
        ranges = (
            {origin: catalog.held.get((known.id, number), ()) for origin, number in catalog.origins.items()}
            if known
            else {}
        )
        return {origin: found for origin, found in ranges.items() if found}

    def definitions(self, origin: Origin, after_number: int, until_number: int) -> list[bytes]:
        """Canonical JSON of an origin's definitions, after one number up to another, read in the calling thread."""
        return self._reader.definitions(origin, after_number, until_number)

    def incidents(self) -> list[Incident]:
        """What was lost or refused, newest first, read in the calling thread."""
        return self._reader.incidents()

    def end_offset(self, stream: str) -> int:
        """Offset of the last durable fact of a stream, 0 where there is none; from memory."""
        known = self._writer.catalog.streams.get(stream)
        return known.end_offset if known else 0

    def streams(self) -> list[StreamInfo]:
        """Every stream, from memory."""
        return [state.info() for state in self._writer.catalog.streams.values()]

    def origins(self) -> list[Origin]:
        """Everybody whose facts are held, this store first, from memory."""
        return list(self._writer.catalog.origins)

    def definition_counts(self) -> dict[Origin, int]:
        """How many tag definitions are held of each origin, numbered from 1 without holes, from memory."""
        catalog = self._writer.catalog
        counts = catalog.definitions
        return {origin: counts[number].count for origin, number in catalog.origins.items() if number in counts}

    def consumer(self, name: str) -> ConsumerState | None:
        """A registered consumer, from memory."""
        return self._writer.catalog.consumers.get(name)

    def seen_unix_ms(self, consumer: str) -> int | None:
        """When a consumer was last seen by the clock on the wall: in this life, else as the table has it; from memory."""
        known = self.consumer(consumer)
        return self._writer.presence.seen_unix_ms(consumer) or (known.seen_unix_ms if known else None)

    def consumers(self) -> list[ConsumerState]:
        """Every registered consumer, from memory."""
        return list(self._writer.catalog.consumers.values())

    def policy(self, stream: str) -> StreamSettings:
        """What is promised of a stream's facts."""
        return self._writer.policy(stream)

    def followers(self, stream: str) -> list[Follower]:
        """Whom an append to a stream may wait for, and when each was last at its end, from memory."""
        return self._writer.presence.followers(self._writer.catalog, stream)

    def peer_position(self, peer: str, stream: str) -> PeerPosition | None:
        """How far a peer's stream has been stored here, from memory."""
        return self._writer.catalog.peers.get((peer, stream))

    def statistics(self) -> StoreStatistics:
        """Counters since `open`, what waits now, and the size of the files."""
        return self._writer.statistics()

    # --------------------------------------------------------------------------------------------------------------- life

    @property
    def failure(self) -> StoreError | None:
        """Why this store cannot go on, if it cannot. The process must end then; see `ended`."""
        return self._writer.failure

    def require_new_epoch(self, why: str) -> Future[None]:
        """Have this store go on under a new epoch. It ends with StoreForked once that is durable: open it again at once."""
        return self._call_freezing("require a new epoch", partial(require_new_epoch, why=why, seen=self._seen))

    def begin_handing(self, stream: str, zone: str) -> Future[None] | None:
        """Before a zone is handed facts of a stream, the first time in this life of the store: durable when the future is done. None where
        it is already."""
        if self._writer.catalog.handed.get((stream, zone), 0) is None:
            return None
        return self._call("hand", partial(consumers.begin_handing, stream=stream, zone=zone))

    def handed(self, stream: str, zone: str, last_offset: int) -> None:
        """A zone is about to be answered what a stream holds up to an offset. Costs no commit."""
        self._handed.note(stream, zone, last_offset)

    def never_handed(self, stream: str, zone: str, offset: int) -> str | None:
        """Why a zone cannot have been told by this store of everything up to an offset of this epoch, if it cannot; from memory, see
        handed.py."""
        until = self._handed.until(stream, zone)
        return (
            None if offset <= until else f"it has read up to offset {offset} of {stream}, and was handed {until} here"
        )

    def contradiction(self, stream: str, taken: tuple[int, bytes] | None, held: tuple[int, bytes] | None) -> str | None:
        """What is not here of that which a peer shows of this epoch, read in the calling thread; see shown.py."""
        return contradiction(self._reader, self._writer.catalog, stream, taken, held)

    def peer_is_ahead(self, peer: str, why: str) -> None:
        """A configured peer that has read this store under its present epoch speaks of facts that were never written here.
        Believed once a week, and then as `require_new_epoch`; see decision 0030. Returns at once."""
        with contextlib.suppress(StoreError):
            self._call_freezing("a peer is ahead", partial(peer_is_ahead, peer=peer, why=why, seen=self._seen))

    def _call_freezing(self, name: str, run: Callable[..., None]) -> Future[None]:
        """A call that stops reading so that the store can end; where it fails, reading goes on."""
        calling = self._call(name, run)
        calling.add_done_callback(lambda called: None if called.exception() is None else self._seen.thaw())
        return calling

    def integrity(self) -> Integrity:
        """What was found damaged, how far it was looked for, and what was set aside; from memory, but for the last."""
        upkeep = self._upkeep
        return Integrity(
            self._damages.count,
            upkeep.batches_verified,
            upkeep.last_full_pass_unix_ms,
            tuple((one.file, one.bytes) for one in files_set_aside(self.path)),
        )

    @property
    def ended(self) -> Future[None]:
        """Done when the writer has ended: after `close`, or with StoreFailed when the disk failed it."""
        return self._writer.ended

    def on_commit(self, callback: OnCommit) -> Callable[[], None]:
        """Have `callback({stream: end_offset})` called in the writer's thread after each commit that moved an end.

        It must only enqueue and never raise. Returns a function that undoes this.
        """
        return self._writer.subscribe(callback)

    def close(self) -> None:
        """Commit what is queued and close the files. Calling it again does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        if seen := self._writer.presence.newer_than(self._writer.catalog):
            with contextlib.suppress(StoreError):  # whatever ended the writer, the rest is to be closed
                self._call("remember", partial(consumers.remember, seen_unix_ms=seen))
        self._upkeep.stop()
        self._checker.shutdown()
        self._reader.close()  # first: the last connection to close folds the log into the database, readers cannot
        self._writer.close()
        if self._upkeep.is_begun:
            self._upkeep.remember()
        unlock(self._lock_descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _call(self, name: str, run: Callable[..., Any], *, size: int = 0, is_early: bool = False) -> Future[Any]:
        call = Call(name, size, time.monotonic_ns(), run, is_early)
        self._writer.call(call)
        return call.future


def _space(
    writer: Writer, reader: StoreReader, settings: StoreSettings, policies: dict[str, StreamSettings]
) -> StoreSpace:
    return reader.space(settings, policies, catalog=writer.catalog, age_ms=writer.age_ms())


def _answered(outcome: T) -> Future[T]:
    """A future that is done: acks none asks for no more than a place in the queue."""
    future: Future[T] = Future()
    future.set_result(outcome)
    return future


def _answer_with_first(outer: Future[AppendOutcome], inner: Future[list[AppendOutcome]]) -> None:
    """Answer the future of one message as that of its list was answered."""
    if (error := inner.exception()) is not None:
        outer.set_exception(error)
    else:
        outer.set_result(inner.result()[0])


def _values_bytes(values: Sequence[Value]) -> int:
    """About what samples with these values weigh in memory: looks at lengths only where some value has one."""
    plain = len(values) * _FACT_BYTES
    if set(map(type, values)) <= _PLAIN:
        return plain
    return plain + sum(value_bytes(value) for value in values if isinstance(value, str | bytes | Json))

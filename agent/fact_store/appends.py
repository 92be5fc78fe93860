"""The append API for producers of this zone: tag definitions, samples, messages, and producer leases.

Arguments are checked in the calling thread: an invalid argument, or a full queue, raises at once. Errors that the store
finds later come through the future, as does the result, once the facts are durable where `acks` requires it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial

from agent.append_contract import NO_PRECONDITION, AppendOutcome, Precondition
from agent.columns import SampleColumns
from agent.fact_store.append import (
    AppendMessages,
    AppendSamples,
    ack_terms,
    acquire_lease,
    acquire_lease_after,
    check_precondition,
    content_digest,
    define,
    message_key,
)
from agent.fact_store.artifacts import Artifacts
from agent.fact_store.core import AcksRefused, Appended, FactsRefused
from agent.fact_store.writer import Writer
from agent.message import (
    PRODUCER,
    STREAM,
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
from agent.settings.store import Acks

_FACT_BYTES = 120  # memory of a queued sample, without the text or bytes of its value
_MESSAGE_BYTES = 1000
_PLAIN = frozenset({bool, int, float, type(None)})


class Appends:
    """`FactStore.appends`."""

    def __init__(self, writer: Writer, artifacts: Artifacts) -> None:
        self._zone = writer.catalog.names.zone
        self._policy = writer.committer.limits.policy
        self._writer = writer
        self._artifacts = artifacts

    def define(self, definitions: Sequence[TagDefinition], *, stream: str = "") -> Future[list[int]]:
        """Store tag definitions; returns their numbers, from 1 without gaps. The same content keeps its number, changed
        content gets a new one. `stream`: where their samples are appended, if it is that of the node's health, which
        is a zone of its own.

        Raises MessageError at once for a definition that breaks the rules.
        """
        for definition in definitions:
            check_definition(definition)
        bodies = [definition.to_json() for definition in definitions]
        run = partial(define, zone=self._writer.catalog.names.sealing_zone(stream), bodies=bodies)
        return self._writer.submit("define", run, size=sum(map(len, bodies)), is_early=True)

    def append_samples(self, stream: str, rows: Sequence[Sample]) -> Future[Appended]:
        """Append samples, all or none, at consecutive offsets; the future is done when they are durable here, whatever
        the stream's `acks`.

        They wait for others in the queue for `commit_interval_ms` at most (append/group_commit.py). Raises StoreBusy at
        once when the queue is full: slow the source. FactsRefused comes through the future, and StoreFull, with which
        what waits behind in the stream is refused too: append all of it again, in order.
        """
        try:
            columns = SampleColumns.of(rows)
        except (ValueError, TypeError) as error:
            check_name("stream", stream, STREAM)
            raise FactsRefused(f"rows for {stream} are not samples: {error}", "correct the source") from error
        return self.append_columns(stream, columns)

    def append_columns(self, stream: str, columns: SampleColumns) -> Future[Appended]:
        """As `append_samples`, for columns. The store keeps the lists, so the caller must not change them
        afterwards."""
        check_name("stream", stream, STREAM)
        count = len(columns.tags)
        if not count:
            raise FactsRefused("no samples", "omit the call")
        if any(len(column) != count for column in columns):
            raise FactsRefused(f"columns for {stream} differ in length", "correct the source")
        append = AppendSamples(stream, columns, count, _values_bytes(columns.values), time.monotonic_ns())
        self._writer.queue.put_samples(append)
        return append.future

    def append_message(
        self, stream: str, message: Message, *, acks: Acks | None = None, precondition: Precondition | None = None
    ) -> Future[AppendOutcome]:
        """Append a message unless its id is stored already; see `AppendOutcome`. `acks` overrides the stream's.

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
        """As `append_message`, for several messages in one commit. Each has its own outcome, and its own precondition
        if any are given."""
        self._check(stream, messages, acks, preconditions)
        keys, contents = [message_key(message, self._zone) for message in messages], [*map(content_digest, messages)]
        size = sum(len(message.fact.object_json) + _MESSAGE_BYTES for message in messages)
        terms = ack_terms(self._policy(stream), acks)
        asked = [precondition or NO_PRECONDITION for precondition in preconditions]
        append = AppendMessages(stream, list(messages), keys, contents, size, time.monotonic_ns(), terms, asked)
        self._writer.queue.put_messages(append)
        if not terms.is_answered_unstored:
            return append.future
        answered: Future[list[AppendOutcome]] = Future()
        answered.set_result([AppendOutcome(0, "queued")] * len(messages))
        return answered

    def _check(
        self,
        stream: str,
        messages: Sequence[Message],
        acks: Acks | None,
        preconditions: Sequence[Precondition | None],
    ) -> None:
        """Raise the errors that `append_messages` raises at once, except for a full queue; append nothing.
        ArtifactMissing for a message that refers to an artifact that is not stored here."""
        check_name("stream", stream, STREAM)
        if not messages:
            raise FactsRefused("no messages", "omit the call")
        for message in messages:
            check_message(message)
            self._artifacts.claim(message)
        if not preconditions:
            return
        if len(preconditions) != len(messages):
            raise FactsRefused(
                f"{len(preconditions)} preconditions for {len(messages)} messages", "give one for each, or none"
            )
        for precondition in preconditions:
            if precondition is None or precondition == NO_PRECONDITION:
                continue
            is_strong = self._policy(stream).write_class == "strong"
            check_precondition(precondition, is_strong=is_strong)
            if ack_terms(self._policy(stream), acks).is_answered_unstored:
                raise AcksRefused("acks none is answered before the precondition is decided", "use acks local")

    def set_completeness(self, source: str, parts: Mapping[str, tuple[int, int | None] | None]) -> Future[None]:
        """Record up to when parts of a source are complete on its clock, and by how much that was ahead of this node's
        (None: not known). A part without a value is as complete as its source. Everything up to then must be stored
        already: this joins a later commit.

        Raises StoreBusy at once.
        """
        return self._writer.submit(
            "completeness", lambda transaction: transaction.set_completeness(source, parts), is_deferred=True
        )

    def acquire_lease(self, stream: str, producer: str) -> Future[int]:
        """Grant a producer a new lease epoch, higher than any before. Appends with a lower epoch are fenced from now
        on.

        Raises MessageError, StoreBusy at once; FactsRefused comes through the future.
        """
        check_name("stream", stream, STREAM)
        check_name("producer", producer, PRODUCER)
        return self._writer.submit("lease", partial(acquire_lease, stream=stream, producer=producer))

    def acquire_lease_after(self, stream: str, producer: str, epoch: int) -> Future[int | None]:
        """As `acquire_lease`, if `epoch` is the one in force (0: none), so that a delayed request does not fence a
        producer that has started since. If another epoch is in force, nothing changes and the result is None."""
        check_name("stream", stream, STREAM)
        check_name("producer", producer, PRODUCER)
        return self._writer.submit("lease", partial(acquire_lease_after, stream=stream, producer=producer, after=epoch))

    def lease_epoch(self, stream: str, producer: str) -> int:
        """The lease epoch in force for a producer, 0 for none; from memory."""
        return self._writer.catalog.leases.get((stream, producer), 0)


def _answer_with_first(outer: Future[AppendOutcome], inner: Future[list[AppendOutcome]]) -> None:
    """Answer the future of one message as the future of its list was answered."""
    if (error := inner.exception()) is not None:
        outer.set_exception(error)
    else:
        outer.set_result(inner.result()[0])


def _values_bytes(values: Sequence[Value]) -> int:
    """An estimate of the memory that samples with these values take, in bytes."""
    plain = len(values) * _FACT_BYTES
    if set(map(type, values)) <= _PLAIN:
        return plain
    return plain + sum(value_bytes(value) for value in values if isinstance(value, str | bytes | Json))

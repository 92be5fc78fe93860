"""The one thread that writes: takes work from the queue, seals facts, commits, and only then answers.

Guarantees: a future gets its result only after the commit of its work has returned with synchronous=FULL; refused work
changes nothing but the list of incidents; the work of a stream runs in order. A commit that fails ends the writer:
every waiting future fails and `ended` says why. Nothing is tried again on this connection, because the kernel may have
dropped the pages that it could not write and would report success next time. Exceptions are lack of space and a lock
held by another program: the transaction is rolled back, and the store continues. A commit by another program ends the
writer.

Other threads only queue work (bounded, StoreBusy) and read `catalog`, which is replaced in one assignment after each
commit.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from agent.fact_store import consumers
from agent.fact_store.append import (
    ENOUGH_FACTS,
    AckWaiters,
    AppendMessages,
    AppendSamples,
    Call,
    Commit,
    CommitGroup,
    CommitPace,
    Wait,
    Work,
    WriteQueue,
    append_messages,
    append_samples,
    decide_commit,
)
from agent.fact_store.consumers import ConsumerActivity, ConsumerExpiry
from agent.fact_store.log import (
    NEVER_NS,
    AgeClock,
    Catalog,
    ForkError,
    Refused,
    ShareFull,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreStatistics,
    WallClock,
    copy_error,
)
from agent.fact_store.retention import Housekeeping
from agent.fact_store.sqlite import (
    QUERIES,
    KnownRows,
    MessageIndex,
    SecondWriter,
    Transaction,
    close_and_keep_log,
    file_bytes,
    running_error,
    wal_path,
)
from agent.fact_store.writer.meter import Meter
from agent.settings.store import StoreSettings, StreamSettings, ZoneLimit
from agent.signing.records import RecordSigner

log = logging.getLogger(__name__)

LOST_LAGS = 3  # a consumer out of sync may be busy; one not seen for three times `in_sync_lag_ms` is offline
REFUSED_NS = 5_000_000_000  # after a refusal, until room on the disk counts: it may be gone with the next append
SHARE_REFUSED_NS = 15_000_000_000  # after the last refusal of a zone: its next try comes within five seconds
WAIT_NS_MAX = 3_600_000_000_000  # one hour, below the system's limit for a timed wait

OnCommit = Callable[[Mapping[str, int]], None]
Witness = Callable[[Mapping[str, int]], None]
"""Records the ends that a commit has moved. Must not raise."""
_Outcomes = list[tuple[Work, Any]]


class Writer:
    """Owns the connection, the catalog and the thread."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        catalog: Catalog,
        index: MessageIndex,
        settings: StoreSettings,
        policies: Mapping[str, StreamSettings],
        holds: Mapping[str, ZoneLimit],
        witness: Witness | None = None,
        signer: RecordSigner | None = None,
    ) -> None:
        self.catalog = catalog
        self.signer = signer
        """Signs what is recorded; replaced after the commit of the call that replaces it."""
        self._index = index
        self._rows = KnownRows()
        self.policies = dict(policies)
        self.failure: StoreError | None = None
        self.ended: Future[None] = Future()
        self.meter = Meter()
        self.activity = ConsumerActivity()
        self._ack_waiters = AckWaiters(self.activity.followers)
        self._expiry = ConsumerExpiry(
            self.activity, lambda name: LOST_LAGS * self.policy(name).in_sync_lag_ms * 1_000_000
        )
        self._alarm_ns = 0
        self._path = path
        self._connection = connection
        self._data_version = connection.execute(QUERIES["data_version"]).fetchone()[0]
        self._age = AgeClock(catalog.age_ms, time.monotonic_ns())
        self._witness = witness
        self._clock = WallClock()
        self.housekeeping = Housekeeping(path, connection, settings, self.policy, self.age_ms, holds)
        self._committed_ns = -NEVER_NS
        self._pace = CommitPace(settings.commit_interval_ms * 1_000_000, settings.batch_facts_target)
        self._queue = WriteQueue(settings.queue_facts_max, settings.queue_bytes_max)
        self._changed = threading.Condition(threading.Lock())
        self._group: CommitGroup | None = None
        self._is_closing = False  # new work is refused, queued work is committed
        self._has_ended = False
        self._subscribers: tuple[OnCommit, ...] = ()
        self._thread = threading.Thread(target=self._run, name=f"store-writer {path.name}", daemon=True)

    # --------------------------------------------------------------------------------------- called by other threads

    def start(self) -> None:
        """Start the thread."""
        self.ended.set_running_or_notify_cancel()
        self.housekeeping.start(time.monotonic_ns())
        self._thread.start()

    def close(self) -> None:
        """Refuse new work, commit what is queued, and wait for the end of the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def append_samples(self, append: AppendSamples) -> None:
        """Queue samples; raises StoreBusy, StoreClosed, StoreFailed, FactsRefused."""
        with self._changed:
            self._reserve(append)
            waiting = self._queue.put_samples(append)
            # Wake the writer when a commit is due or an earlier deadline begins, not for every append in between.
            before = waiting.facts - append.count
            if not before or any(before < one <= waiting.facts for one in (ENOUGH_FACTS, self._pace.facts_target)):
                self._changed.notify()

    def append_messages(self, append: AppendMessages) -> None:
        """Queue messages; raises as `append_samples`."""
        with self._changed:
            self._reserve(append)
            self._queue.put_messages(append)
            self._changed.notify()

    def submit(
        self,
        name: str,
        run: Callable[..., Any],
        *,
        size: int = 0,
        is_early: bool = False,
        stream: str | None = None,
        is_deferred: bool = False,
        zone: str = "",
    ) -> Future[Any]:
        """Queue a call that runs inside a transaction, and return its future; raises as `append_samples`.

        `size` is the memory in bytes that its arguments take; `Call` describes the other parameters.
        """
        call = Call(name, size, time.monotonic_ns(), run, is_early, stream, is_deferred, zone)
        with self._changed:
            self._reserve(call)
            self._queue.put_call(call)
            self._changed.notify()
        return call.future

    def note(self, kind: str, subject: str, detail: str) -> Future[None]:
        """Record an incident; raises as `append_samples`."""
        return self.submit(kind, lambda transaction: transaction.add_incident(kind, subject, detail))

    def hasten(self) -> None:
        """Commit deferred calls at once, because a caller now waits for one."""
        with self._changed:
            if self._queue.deferred_ns is not None:
                self._queue.hasten()
                self._changed.notify()

    @property
    def has_waiting_appends(self) -> bool:
        """Whether appends wait for consumers to confirm them; from any thread."""
        return self._ack_waiters.has_any

    def policy(self, stream: str) -> StreamSettings:
        """The settings of a stream."""
        policies = self.policies
        found = policies.get(stream)
        if found is None:
            found = policies[stream] = StreamSettings(stream)
        return found

    def set_limits(
        self, bytes_max: int, policies: Mapping[str, StreamSettings], holds: Mapping[str, ZoneLimit]
    ) -> None:
        """Replace the settings of the file, streams and zones. Each is replaced in one assignment, so the writer's
        thread sees either the old or the new value."""
        self.policies = dict(policies)
        self.housekeeping.settings = replace(self.housekeeping.settings, bytes_max=bytes_max)
        self.housekeeping.holds = holds

    def age_ms(self) -> int:
        """The store's own clock: milliseconds for which it has been open."""
        return self._age.now_ms(time.monotonic_ns())

    def subscribe(self, callback: OnCommit) -> Callable[[], None]:
        """Call `callback({stream: end_offset})` in the writer's thread after each commit that moved an end. It must
        only enqueue and never raise. Returns a function that unsubscribes."""
        with self._changed:
            self._subscribers = (*self._subscribers, callback)

        def unsubscribe() -> None:
            with self._changed:
                self._subscribers = tuple(one for one in self._subscribers if one is not callback)

        return unsubscribe

    def statistics(self) -> StoreStatistics:
        """Counters since the start, what is queued now, and the sizes of the files."""
        queue, meter = self._queue, self.meter
        refused = next(iter(list(meter.refused.values())), None)
        return StoreStatistics(
            state="failed" if self.failure else "closed" if self._has_ended else "open",
            facts_appended=meter.facts_appended,
            facts_received=meter.facts_received,
            facts_duplicate=meter.facts_duplicate,
            appends=meter.appends,
            appends_failed=meter.appends_failed,
            appends_full=meter.appends_full,
            confirms=meter.confirms,
            commits=meter.commits,
            append_latency=meter.latency(),
            queue_facts=queue.appends.count,
            queue_facts_max=queue.appends.count_max,
            queue_bytes=queue.appends.bytes + queue.calls.bytes,
            queue_bytes_max=queue.appends.bytes_max + queue.calls.bytes_max,
            file_bytes=file_bytes(self._path),
            wal_bytes=file_bytes(wal_path(self._path)),
            appends_refused=refused.why if refused else "",
            refused_remedy=refused.hint if refused else "",
            refused_since_unix_ms=refused.since_unix_ms if refused else None,
            shares_used_up={zone: one.why for zone, one in list(meter.shares.items())},
        )

    def _reserve(self, work: Work) -> None:
        if self.failure is not None:
            raise copy_error(self.failure)
        if self._is_closing:
            raise StoreClosed(f"{self._path} is closed")
        self._queue.reserve(work)
        # From here on, cancelling the future does not take the facts back.
        work.future.set_running_or_notify_cancel()

    # ------------------------------------------------------------------------------------------- the writer's thread

    def _run(self) -> None:
        """Commit until closed or failed. Every future is answered, however the thread ends."""
        is_broken = True  # stays True if an exception ends the loop
        try:
            while self.failure is None:
                self._group = self._next()
                if self._group is None:
                    break
                if not self._group.is_empty or self.housekeeping.is_due(time.monotonic_ns()):
                    self._commit(self._group)
                self._run_timers()
            is_broken = False
        finally:
            if is_broken:
                self.failure = StoreFailed(
                    f"{self._path}: an unexpected exception ended the writer", "its traceback is in the log; report it"
                )
            self._end()

    def _next(self) -> CommitGroup | None:
        """Wait for the next group: an empty one when a timer is due, None when the store closes and nothing is
        queued."""
        with self._changed:
            while True:
                now_ns = time.monotonic_ns()
                queue = self._queue
                if self._is_closing and queue.is_empty:
                    return None
                match decide_commit(
                    *(queue.waiting, now_ns, self._pace),
                    committed_ns=self._committed_ns,
                    deferred_ns=queue.deferred_ns,
                    is_urgent=queue.is_urgent,
                    is_last=self._is_closing,
                ):
                    case Commit(streams):
                        return queue.take(streams)
                    case Wait(until_ns):
                        alarm_ns = min(self._alarm_ns, self.housekeeping.alarm_ns)
                        if alarm_ns <= now_ns:
                            return CommitGroup()
                        due_ns = min(until_ns or NEVER_NS, alarm_ns, now_ns + WAIT_NS_MAX)
                        self._changed.wait((due_ns - now_ns) / 1e9)

    def _run_timers(self) -> None:
        """Run timers: appends that have timed out, consumers that are lost or expired."""
        now_ns = time.monotonic_ns()
        self._ack_waiters.settle(self.catalog, now_ns)
        if events := self._expiry.due(self.catalog, now_ns):
            run = partial(consumers.apply_events, events=events, seen_unix_ms=self.activity.seen_unix_ms)
            with contextlib.suppress(StoreError):  # closing, ended, or no room: `due` returns them again
                self.submit("expire", run)
        self._alarm_ns = min(self._ack_waiters.alarm_ns, self._expiry.alarm_ns)

    def _commit(self, group: CommitGroup) -> None:
        """One transaction: run the work, commit, publish the catalog, answer."""
        execute = self._connection.execute
        try:
            execute(QUERIES["begin"])
            self._check_only_writer()  # inside the transaction: from here on no other connection can commit
            now_unix_ms = time.time_ns() // 1_000_000
            transaction = Transaction(
                *(self._connection, self.catalog, self._index, now_unix_ms, self.age_ms(), self.signer),
                rows=self._rows,
            )
            if self._clock.has_jumped(now_unix_ms, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000):
                transaction.begin_life(is_forked=True)  # the memory of this process may have been put back
            outcomes = self._perform(transaction, group)
            transaction.forget_lives()
            self.housekeeping.work(transaction, time.monotonic_ns(), is_idle=group.is_empty)
            execute(QUERIES["commit"])
            self._settle(is_durable=True)
        except sqlite3.Error as error:
            self._roll_back(group, error)
            return
        ends_before = self.catalog.streams
        self.catalog = transaction.catalog  # before the answers: a caller that has its answer can read its facts
        self.signer = transaction.signer
        ends = {
            name: stream.end_offset
            for name, stream in self.catalog.streams.items()
            if stream is not ends_before.get(name)
        }
        if self._witness is not None:  # between commit and answers: the witness has all that was answered (0046)
            self._witness(ends)
        self._answer(outcomes)  # after the commit only: an answer means that the work is on the disk
        if ends:
            for callback in self._subscribers:
                callback(ends)
        self._check_disk()

    def _check_disk(self) -> None:
        """Housekeeping between transactions. An error here fails no append: all of them are durable and answered."""
        try:
            now_ns = time.monotonic_ns()
            self.housekeeping.look(self.catalog, now_ns)
            for stream, refusal in [*self.meter.refused.items()]:
                if now_ns - refusal.last_ns >= REFUSED_NS and not self.housekeeping.is_full(self.catalog, stream):
                    self._note_accepted(stream)
            for zone, refusal in [*self.meter.shares.items()]:
                if now_ns - refusal.last_ns >= SHARE_REFUSED_NS:
                    self._note_share_free(zone)
        except sqlite3.Error as error:
            found = running_error(self._path, error)
            if not isinstance(found, StoreFull | StoreBusy):
                with self._changed:
                    self.failure = found

    def _settle(self, *, is_durable: bool) -> None:
        """Report the end of the transaction to the parts that keep state in memory."""
        self._index.settle(is_durable=is_durable)
        self._rows.bound() if is_durable else self._rows.forget()
        self.housekeeping.settle(is_durable=is_durable)

    def _check_only_writer(self) -> None:
        """Raise SecondWriter if another connection has committed: the catalog would no longer match the file. Costs a
        microsecond or two."""
        if self._connection.execute(QUERIES["data_version"]).fetchone()[0] != self._data_version:
            raise SecondWriter

    def _perform(self, transaction: Transaction, group: CommitGroup) -> _Outcomes:
        """Run the work of the group inside the open transaction; a refusal is an outcome."""
        target = self._pace.facts_target
        outcomes: _Outcomes = [(call, _run_call(transaction, self.housekeeping, call)) for call in group.early]
        own = transaction.catalog.zone
        for stream, samples in group.samples.items():
            size = sum(one.bytes for one in samples)
            if (refusal := self.housekeeping.refusal(transaction, stream, own, size)) is not None:
                outcomes.extend((one, copy_error(refusal)) for one in samples)
                continue
            outcomes.extend(zip(samples, append_samples(transaction, stream, samples, target), strict=True))
        for (stream, zone), messages in group.messages.items():
            size = sum(one.bytes for one in messages)
            if (refusal := self.housekeeping.refusal(transaction, stream, zone, size)) is not None:
                outcomes.extend((one, copy_error(refusal)) for one in messages)
                continue
            is_strong = self.policy(stream).write_class == "strong"
            found = append_messages(transaction, stream, messages, target, is_strong=is_strong)
            outcomes.extend(zip(messages, found, strict=True))
        outcomes.extend((call, _run_call(transaction, self.housekeeping, call)) for call in group.calls)
        return outcomes

    def _answer(self, outcomes: _Outcomes) -> None:
        """Release the room in the queue, count, and answer each future."""
        now_ns = time.monotonic_ns()
        self._release([work for work, _ in outcomes])
        if outcomes:
            self._committed_ns = now_ns
            self.meter.commits += 1
        for work, outcome in outcomes:
            self._count(work, outcome, now_ns)
            if isinstance(outcome, StoreError):
                work.future.set_exception(outcome)
            elif isinstance(work, AppendMessages):
                self._ack_waiters.answer(work, outcome, self.catalog, now_ns)
            else:
                work.future.set_result(outcome)

    def _roll_back(self, group: CommitGroup, error: sqlite3.Error) -> None:
        """Roll back a failed transaction: nothing of it is durable, and each of its futures fails."""
        found = running_error(self._path, error)
        try:
            if self._connection.in_transaction:
                self._connection.execute(QUERIES["rollback"])
        except sqlite3.Error as second:
            found = running_error(self._path, second)
        self._settle(is_durable=False)
        self.housekeeping.postpone(time.monotonic_ns())
        found.__cause__ = error
        if isinstance(found, StoreFull):
            self.housekeeping.free_ballast()
        elif not isinstance(found, StoreBusy):
            with self._changed:
                self.failure = found
        self._fail(group.all(), found)

    def _fail(self, works: list[Work], error: StoreError) -> None:
        now_ns = time.monotonic_ns()
        self._release(works)
        for work in works:
            self._count(work, error, now_ns)
            work.future.set_exception(copy_error(error))

    def _count(self, work: Work, outcome: Any, now_ns: int) -> None:
        """Count an answer. The log names the first refused append of a stream, and the first that is stored again."""
        self.meter.done(work, outcome, now_ns)
        zone = "" if isinstance(work, AppendSamples) else work.zone
        if isinstance(outcome, ShareFull):
            if self.meter.refuse_share(zone, outcome, now_ns, time.time_ns() // 1_000_000):
                log.warning("share_used_up", extra={"peer": zone, "reason": outcome.why, "hint": outcome.hint})
            return
        if zone in self.meter.shares and not isinstance(outcome, StoreError):
            self._note_share_free(zone)
        if not isinstance(work, AppendSamples | AppendMessages):
            return
        if isinstance(outcome, StoreFull):
            if self.meter.refuse(work.stream, outcome, now_ns, time.time_ns() // 1_000_000):
                log.warning(
                    "appends_refused", extra={"stream": work.stream, "reason": outcome.why, "hint": outcome.hint}
                )
        elif work.stream in self.meter.refused and not isinstance(outcome, StoreError):
            self._note_accepted(work.stream)

    def _note_share_free(self, zone: str) -> None:
        log.info("share_free", extra={"peer": zone, "refused": self.meter.shares.pop(zone).appends})

    def _note_accepted(self, stream: str) -> None:
        if (refusal := self.meter.accept(stream)) is not None:
            log.info("appends_stored_again", extra={"stream": stream, "refused": refusal.appends})

    def _release(self, works: list[Work]) -> None:
        with self._changed:
            for work in works:
                self._queue.release(work)

    def _end(self) -> None:
        """Fail what still waits, close the connection, set `ended`."""
        with self._changed:
            self._has_ended = True
            left = self._queue.take(tuple(self._queue.waiting)).all()
        error = self.failure or StoreClosed(f"{self._path}: the writer ended")
        self._ack_waiters.close(error.why)
        self.catalog.tails.clear()  # reads go to the file from now on, and fail once its reader is closed
        for work in [*left, *(self._group.all() if self._group else ())]:
            if not work.future.done():
                work.future.set_exception(copy_error(error))
        try:
            self._close_connection()
        except sqlite3.Error as error:
            self.failure = self.failure or running_error(self._path, error)
        if self.failure is not None:
            self.ended.set_exception(copy_error(self.failure))
        else:
            self.ended.set_result(None)

    def _close_connection(self) -> None:
        """Remove the mark of an open store, and close: SQLite copies the log into the database and deletes it.

        A store that keeps its mark keeps its log: after a failure nothing is tried again on this connection.
        """
        if self.failure is None:
            try:
                # All facts are in the database before the mark is removed: a checkpoint writes pages in any order. A
                # power cut amid one, with the log lost, would leave a store that is marked as closed and lacks facts.
                self._connection.execute(QUERIES["checkpoint"]).close()
                self._connection.execute(QUERIES["update_is_closed"])
                self._connection.close()
            except sqlite3.Error as error:
                log.warning("store_not_closed", extra={"reason": str(error)})
            else:
                return
        close_and_keep_log(self._path, self._connection)


def _run_call(transaction: Transaction, housekeeping: Housekeeping, call: Call) -> Any:
    """The result of a call, or its refusal; a copy for a repair that is another batch is also recorded."""
    if call.stream is not None:
        refusal = housekeeping.refusal(transaction, call.stream, call.zone, call.bytes)
        if refusal is not None:
            return refusal
    try:
        return call.run(transaction)
    except ForkError as error:
        transaction.add_incident("fork", call.name, error.why)
        return error
    except Refused as error:
        return error

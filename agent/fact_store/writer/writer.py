"""The one thread that writes: takes work from the queue, has it committed (committer.py), and only then answers.

Guarantees: a future gets its result only after the commit of its work has returned with synchronous=FULL; refused work
changes nothing but the list of incidents; the work of a stream runs in order. A commit that fails ends the writer:
every waiting future fails and `ended` says why. Nothing is tried again on this connection, because the kernel may have
dropped the pages that it could not write and would report success next time. Exceptions are lack of space and a lock
held by another program: the transaction is rolled back, and the store continues.

Other threads only queue work (bounded, StoreBusy) and read `catalog`.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from agent.errors import StoreBusy, StoreError, StoreFull
from agent.fact_store import consumers
from agent.fact_store.append import AckWaiters, AppendMessages, Call, CommitGroup, CommitPace, Work, WriteQueue
from agent.fact_store.consumers import ConsumerActivity, ConsumerExpiry
from agent.fact_store.core import (
    Catalog,
    StoreClosed,
    StoreFailed,
    StoreStatistics,
    copy_error,
)
from agent.fact_store.sqlite import file_bytes, running_error, wal_path
from agent.fact_store.writer.committer import Committed, Committer
from agent.fact_store.writer.meter import StoreMeter
from agent.fact_store.writer.refusals import Refusals

LOST_LAGS = 3  # a consumer out of sync may be busy; one not seen for three times `in_sync_lag_ms` is offline

OnCommit = Callable[[Mapping[str, int]], None]


class Writer:
    """Owns the thread. What is waited for after a commit, and what is due by time, is in `acks` and `_expiry`."""

    def __init__(self, committer: Committer) -> None:
        self.committer = committer
        settings, policy = committer.limits.settings, committer.limits.policy
        pace = CommitPace(settings.commit_interval_ms * 1_000_000, settings.batch_facts_target)
        self.queue = WriteQueue(settings.queue_facts_max, settings.queue_bytes_max, pace)
        self.activity = ConsumerActivity()
        self.acks = AckWaiters(self.activity.followers)
        self._expiry = ConsumerExpiry(
            self.activity, lambda stream: LOST_LAGS * policy(stream).in_sync_lag_ms * 1_000_000
        )
        self.meter = StoreMeter()
        self._refusals = Refusals()
        self.failure: StoreError | None = None
        self.ended: Future[None] = Future()
        self._subscribers = dict[object, OnCommit]()
        self._thread = threading.Thread(target=self._run, name=f"store-writer {committer.path.name}", daemon=True)

    # --------------------------------------------------------------------------------------- called by other threads

    @property
    def catalog(self) -> Catalog:
        """What the last commit left; replaced by the next."""
        return self.committer.catalog

    def start(self) -> None:
        """Start the thread."""
        self.ended.set_running_or_notify_cancel()
        self.committer.housekeeping.start(time.monotonic_ns())
        self._thread.start()

    def close(self) -> None:
        """Refuse new work, commit what is queued, and wait for the end of the thread."""
        if self.failure is None:
            self.queue.refuse(StoreClosed(f"{self.committer.path} is closed"))
        self._thread.join()

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
        """Queue a call that runs inside a transaction, and return its future; raises StoreBusy, StoreClosed,
        StoreFailed.

        `size` is the memory in bytes that its arguments take; `Call` describes the other parameters.
        """
        call = Call(name, size, time.monotonic_ns(), run, is_early, stream, is_deferred, zone)
        self.queue.put_call(call)
        return call.future

    def note_incident(self, kind: str, subject: str, detail: str) -> Future[None]:
        """Record an incident; raises as `submit`."""
        return self.submit(kind, lambda transaction: transaction.add_incident(kind, subject, detail))

    def subscribe(self, callback: OnCommit) -> Callable[[], None]:
        """Call `callback({stream: end_offset})` in the writer's thread after each commit that moved an end. It must
        only enqueue and never raise. Returns a function that unsubscribes."""
        key = object()
        self._subscribers[key] = callback
        return partial(self._subscribers.pop, key, None)  # type: ignore[return-value]

    @property
    def refuses_appends(self) -> bool:
        """Whether the last append to a stream was refused for want of room."""
        return bool(self._refusals.streams)

    def statistics(self) -> StoreStatistics:
        """Counters since the start, what is queued now, and the sizes of the files."""
        queue, meter, refusals, path = self.queue, self.meter, self._refusals, self.committer.path
        refused = next(iter(list(refusals.streams.values())), None)
        return StoreStatistics(
            state="failed" if self.failure else "closed" if self.ended.done() else "open",
            facts_appended=meter.facts_appended,
            facts_received=meter.facts_received,
            facts_duplicate=meter.facts_duplicate,
            appends=meter.appends,
            appends_failed=meter.appends_failed,
            appends_full=meter.appends_full,
            confirms=meter.confirms,
            commits=meter.commits,
            append_latency=meter.latency(),
            commit_s=meter.commit_s(time.monotonic_ns()),
            queue_facts=queue.appends.count,
            queue_facts_max=queue.appends.count_max,
            queue_bytes=queue.appends.bytes + queue.calls.bytes,
            queue_bytes_max=queue.appends.bytes_max + queue.calls.bytes_max,
            file_bytes=file_bytes(path),
            wal_bytes=file_bytes(wal_path(path)),
            appends_refused=refused.why if refused else "",
            refused_remedy=refused.hint if refused else "",
            refused_since_unix_ms=refused.since_unix_ms if refused else None,
            shares_used_up={zone: refusal.why for zone, refusal in list(refusals.zones.items())},
        )

    # ------------------------------------------------------------------------------------------- the writer's thread

    def _run(self) -> None:
        """Commit until closed or failed. Every future is answered, however the thread ends."""
        group = CommitGroup()
        is_broken = True  # stays True if an exception ends the loop
        try:
            while self.failure is None:
                housekeeping = self.committer.housekeeping
                alarm_ns = min(self.acks.alarm_ns, self._expiry.alarm_ns, housekeeping.alarm_ns)
                if (taken := self.queue.next_group(alarm_ns)) is None:
                    break
                group = taken
                if not group.is_empty or housekeeping.is_due(time.monotonic_ns()):
                    self.meter.commit_began_ns = time.monotonic_ns()
                    self._commit(group)
                    self.meter.commit_began_ns = None
                self._run_timers()
            is_broken = False
        finally:
            if is_broken:
                self._fail(
                    StoreFailed(
                        f"{self.committer.path}: an unexpected exception ended the writer",
                        "its traceback is in the log; report it",
                    )
                )
            self._end_group(group)

    def _run_timers(self) -> None:
        """Run timers: appends that have timed out, consumers that are lost or expired."""
        now_ns = time.monotonic_ns()
        self.acks.settle(self.catalog, now_ns)
        if events := self._expiry.due(self.catalog, now_ns):
            run = partial(consumers.apply_events, events=events, seen_unix_ms=self.activity.seen_unix_ms)
            with contextlib.suppress(StoreError):  # closing, ended, or no room: `due` returns them again
                self.submit("expire", run)

    def _commit(self, group: CommitGroup) -> None:
        """Commit a group, and answer."""
        match self.committer.commit(group):
            case StoreError() as error:
                if not isinstance(error, StoreFull | StoreBusy):
                    self._fail(error)
                outcomes = [(work, copy_error(error)) for work in group.all()]
                self._answer(outcomes)
                self._refuse_behind(outcomes)
            case Committed(outcomes, ends):
                if outcomes:
                    self.queue.committed_ns = time.monotonic_ns()
                    self.meter.commits += 1
                self._answer(outcomes)  # after the commit only: an answer means that the work is on the disk
                self._refuse_behind(outcomes)
                if ends:
                    for callback in list(self._subscribers.values()):
                        callback(ends)
                self._check_disk()

    def _check_disk(self) -> None:
        """Housekeeping between transactions. An error here fails no append: all of them are durable and answered."""
        housekeeping, catalog, now_ns = self.committer.housekeeping, self.catalog, time.monotonic_ns()
        try:
            housekeeping.look(catalog, now_ns)
            self._refusals.look(now_ns, partial(housekeeping.room.is_full, catalog))
        except sqlite3.Error as error:
            found = running_error(self.committer.path, error)
            if not isinstance(found, StoreFull | StoreBusy):
                self._fail(found)

    def _answer(self, outcomes: list[tuple[Work, Any]]) -> None:
        """Release the room in the queue, count, and answer each future."""
        now_ns = time.monotonic_ns()
        self.queue.release(work for work, _ in outcomes)
        for work, outcome in outcomes:
            self.meter.done(work, outcome, now_ns)
            self._refusals.note_outcome(work, outcome, now_ns)
            if isinstance(outcome, StoreError):
                work.future.set_exception(outcome)
            elif isinstance(work, AppendMessages):
                self.acks.answer(work, outcome, self.catalog, now_ns)
            else:
                work.future.set_result(outcome)

    def _refuse_behind(self, outcomes: list[tuple[Work, Any]]) -> None:
        """Refuse what was queued behind appends that found no room: it would be stored before them, and an older value
        would follow as the last one. They are answered already: who has the answer appends them again first."""
        for work, outcome in outcomes:
            if isinstance(outcome, StoreFull | StoreBusy) and not isinstance(work, Call):
                self._answer([(late, copy_error(outcome)) for late in self.queue.take_behind(work)])

    def _fail(self, why: StoreError) -> None:
        """The thread ends, and nothing more is taken."""
        self.failure = why
        self.queue.refuse(why)

    def _end_group(self, group: CommitGroup) -> None:
        """Fail what still waits, close the connection, set `ended`."""
        error = self.failure or StoreClosed(f"{self.committer.path}: the writer ended")
        self.acks.close(error.why)
        self.catalog.tails.clear()  # reads go to the file from now on, and fail once its reader is closed
        for work in [*self.queue.take_all().all(), *group.all()]:
            if not work.future.done():
                work.future.set_exception(copy_error(error))
        try:
            self.committer.close(is_failed=self.failure is not None)
        except sqlite3.Error as closing:
            self.failure = self.failure or running_error(self.committer.path, closing)
        if self.failure is not None:
            self.ended.set_exception(copy_error(self.failure))
        else:
            self.ended.set_result(None)

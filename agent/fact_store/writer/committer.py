"""One transaction after the other on the only connection that writes: run the work, commit, publish the catalog.

Belongs to the writer's thread; others read `catalog` and `signer`, which are replaced in one assignment after each
commit. A commit by another program ends the store, because the catalog would no longer match the file.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from agent.errors import StoreError, StoreFull
from agent.fact_store.append import Call, CommitGroup, Work, append_messages, append_samples
from agent.fact_store.core import (
    AgeClock,
    Catalog,
    ForkError,
    Refused,
    StoreLimits,
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
    running_error,
)
from agent.signing.records import RecordSigner

log = logging.getLogger(__name__)


class CommitWitness(Protocol):
    """Records what a commit has moved, and that one has failed. Must not raise."""

    def record(self, ends: Mapping[str, int]) -> None: ...
    def failed(self) -> None: ...


class Committed(NamedTuple):
    """A group that is durable: the outcome of each piece of work, and the ends that have moved."""

    outcomes: list[tuple[Work, Any]]
    ends: dict[str, int]


class Committer:
    """Owns the connection and the catalog."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        catalog: Catalog,
        index: MessageIndex,
        limits: StoreLimits,
        witness: CommitWitness | None,
        signer: RecordSigner | None,
    ) -> None:
        self.path = path
        self._connection = connection
        self.catalog = catalog
        self._index = index
        self.limits = limits
        self._witness = witness
        self.signer = signer
        """Signs what is recorded; replaced after the commit of the call that replaces it."""
        self._rows = KnownRows()
        self._data_version = connection.execute(QUERIES["data_version"]).fetchone()[0]
        self._age = AgeClock(catalog.age_ms, time.monotonic_ns())
        self._clock = WallClock()
        self.housekeeping = Housekeeping(path, connection, limits, self.age_ms)

    def age_ms(self) -> int:
        """The store's own clock: milliseconds for which it has been open."""
        return self._age.now_ms(time.monotonic_ns())

    def commit(self, group: CommitGroup) -> Committed | StoreError:
        """One transaction. An error means that nothing of it is durable; unless it is StoreFull or StoreBusy, this must
        have been the last."""
        execute = self._connection.execute
        try:
            execute(QUERIES["begin"])
            self._check_only_writer()  # inside the transaction: from here on no other connection can commit
            now_unix_ms = time.time_ns() // 1_000_000
            transaction = Transaction(
                self._connection,
                self.catalog,
                self._index,
                now_unix_ms,
                self.age_ms(),
                self.signer,
                rows=self._rows,
            )
            transaction.pair_zones, transaction.peers = self.limits.pair_zones, self.limits.holds
            if self._clock.has_jumped(now_unix_ms, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000):
                transaction.begin_life(is_forked=True)  # the memory of this process may have been put back
            outcomes = self._perform(transaction, group)
            transaction.forget_lives()
            self.housekeeping.work(transaction, time.monotonic_ns(), is_idle=group.is_empty)
            execute(QUERIES["commit"])
            self._settle(is_durable=True)
        except sqlite3.Error as error:
            return self._roll_back(error)
        before = self.catalog.streams
        self.catalog = transaction.catalog  # before the answers: a caller that has its answer can read its facts
        self.signer = transaction.signer
        streams = self.catalog.streams.items()
        ends = {name: stream.end_offset for name, stream in streams if stream is not before.get(name)}
        if self._witness is not None:  # between commit and answers: the witness has all that was answered (0046)
            self._witness.record(ends)
        return Committed(outcomes, ends)

    def close(self, *, is_failed: bool) -> None:
        """Remove the mark of an open store, and close: SQLite copies the log into the database and deletes it. Raises
        sqlite3.Error.

        A store that keeps its mark keeps its log: after a failure nothing is tried again on this connection.
        """
        if not is_failed:
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
        close_and_keep_log(self.path, self._connection)

    def _perform(self, transaction: Transaction, group: CommitGroup) -> list[tuple[Work, Any]]:
        """Run the work of the group inside the open transaction; a refusal is an outcome."""
        target, own = self.limits.settings.batch_facts_target, transaction.catalog.names.zone
        outcomes: list[tuple[Work, Any]] = [(call, self._run_call(transaction, call)) for call in group.early]
        for stream, samples in group.samples.items():
            size = sum(work.bytes for work in samples)
            if (refusal := self.housekeeping.refusal(transaction, stream, own, size)) is not None:
                outcomes.extend((work, copy_error(refusal)) for work in samples)
                continue
            outcomes.extend(zip(samples, append_samples(transaction, stream, samples, target), strict=True))
        for (stream, zone), messages in group.messages.items():
            size = sum(work.bytes for work in messages)
            if (refusal := self.housekeeping.refusal(transaction, stream, zone, size)) is not None:
                outcomes.extend((work, copy_error(refusal)) for work in messages)
                continue
            is_strong = self.limits.policy(stream).write_class == "strong"
            found = append_messages(transaction, stream, messages, target, is_strong=is_strong)
            outcomes.extend(zip(messages, found, strict=True))
        outcomes.extend((call, self._run_call(transaction, call)) for call in group.calls)
        return outcomes

    def _run_call(self, transaction: Transaction, call: Call) -> Any:
        """The result of a call, or its refusal; a copy for a repair that is another batch is also recorded."""
        if call.stream is not None:
            refusal = self.housekeeping.refusal(transaction, call.stream, call.zone, call.bytes)
            if refusal is not None:
                return refusal
        try:
            return call.run(transaction)
        except ForkError as error:
            transaction.add_incident("fork", call.name, error.why)
            return error
        except Refused as error:
            return error

    def _check_only_writer(self) -> None:
        """Raise SecondWriter if another connection has committed. Costs a microsecond or two."""
        if self._connection.execute(QUERIES["data_version"]).fetchone()[0] != self._data_version:
            raise SecondWriter

    def _settle(self, *, is_durable: bool) -> None:
        """Report the end of the transaction to the parts that keep state in memory."""
        self._index.settle(is_durable=is_durable)
        if is_durable:
            self._rows.bound()
        else:
            self._rows.forget()
            self.housekeeping.rolled_back(time.monotonic_ns())

    def _roll_back(self, error: sqlite3.Error) -> StoreError:
        found = running_error(self.path, error)
        try:
            if self._connection.in_transaction:
                self._connection.execute(QUERIES["rollback"])
        except sqlite3.Error as second:
            found = running_error(self.path, second)
        if self._witness is not None:
            self._witness.failed()
        self._settle(is_durable=False)
        found.__cause__ = error
        if isinstance(found, StoreFull):
            self.housekeeping.free_ballast()
        return found

"""Looks after an open store: the background thread scrubs all batches slowly, syncs the witness, and sweeps
unreferenced artifacts; the watch reports damage that readers find, the scrub, and what the opening has found.

Each batch is compared with its digest, and damage is reported like damage that a reader meets. The position is kept in
memory only, so a restart begins at the first stream again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from agent.errors import StoreError
from agent.fact_store.core import Integrity, StoreDamaged
from agent.fact_store.divergence.quarantine import mark_suspect, quarantined_files
from agent.fact_store.divergence.witness import LiveWitness
from agent.fact_store.integrity import DamageRegistry
from agent.fact_store.read import StoreReader
from agent.fact_store.writer import Writer
from agent.pages import Page

BYTES_PER_S = 64 * 1024
"""40 GB in a week, 10 GB in two days. So damage is found while peers still hold the original, and scrubbing takes a
thousandth of the slowest gateway's disk bandwidth and 0.1 % of one core."""
STEP_S = 10.0
WITNESS_S = 300.0  # the kernel writes most updates back by itself within half a minute
SWEEP_S = 3600.0
FACTS_MAX = 2**40

log = logging.getLogger(__name__)

Read = Callable[[str, int, int, int], Page]
LOSSES = ("missing", "restored", "log_lost")  # incidents that say that less is here than was acknowledged
LOSSES_MS = 24 * 3_600_000  # for this long the status shows them; the incident remains


class Scrubber:
    """Runs in a thread of its own from `start` until `stop`."""

    def __init__(
        self, path: Path, writer: Writer, sweep: Callable[[], int], witness: LiveWitness | None, read: Read
    ) -> None:
        self.batches_verified = 0
        self.last_full_pass_unix_ms: int | None = None
        self._writer, self._read, self._sweep, self._witness = writer, read, sweep, witness
        self._streams = list[str]()  # still to be read in this pass, the one being read first
        self._after_offset = 0
        self._is_complete_pass = True  # no stream was left out
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"store-scrub {path.name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for it."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def step(self, bytes_max: int) -> int:
        """Scrub at least one batch, up to `bytes_max` bytes; returns the bytes read, 0 at the end of a pass. Raises
        StoreError."""
        if not self._streams:
            self._streams, self._after_offset, self._is_complete_pass = list(self._writer.catalog.streams), 0, True
        if not self._streams:
            return 0
        try:
            page = self._read(self._streams[0], self._after_offset, FACTS_MAX, bytes_max)
        except StoreDamaged:  # the stream's index cannot be read; the other streams are still scrubbed
            self._streams.pop(0)
            self._after_offset, self._is_complete_pass = 0, False
            raise
        self.batches_verified += len(page.batches)
        reached = max(
            [batch.last_offset for batch in page.batches] + [hole.last_offset for hole in page.holes], default=0
        )
        if reached > self._after_offset:
            self._after_offset = reached
            return max(1, sum(len(batch.sealed) for batch in page.batches))
        self._streams.pop(0)
        self._after_offset = 0
        if self._streams:
            return 1
        if self._is_complete_pass:
            self.last_full_pass_unix_ms = time.time_ns() // 1_000_000
        return 0

    def _sweep_artifacts(self) -> None:
        try:
            if removed := self._sweep():
                log.info("artifacts_removed", extra={"count": removed})
        except OSError as error:
            log.warning("artifacts_not_removed", extra={"reason": str(error)})

    def _run(self) -> None:
        witness_s = swept_s = time.monotonic()
        wait_s = STEP_S
        while not self._stopping.wait(wait_s):
            if time.monotonic() - witness_s >= WITNESS_S:
                witness_s = time.monotonic()
                if self._witness is not None:
                    self._witness.sync()
            try:
                if time.monotonic() - swept_s >= SWEEP_S:
                    swept_s = time.monotonic()
                    self._sweep_artifacts()
                wait_s = max(STEP_S, self.step(int(STEP_S * BYTES_PER_S)) / BYTES_PER_S)
            except StoreError:  # the disk fails, or the store closes: readers and the writer report it
                wait_s = WITNESS_S


class IntegrityWatch:
    """Watches the store at `path`, if it is opened as nodes open it."""

    def __init__(self, path: Path, reader: StoreReader, damages: DamageRegistry, scrubber: Scrubber) -> None:
        self._path = path
        self._reader = reader
        self.damages = damages
        self.scrubber = scrubber
        self._losses = 0

    def start(self, ended: Future[None]) -> None:
        """Start the scrub, and mark the file as suspect if the writer ends because it has met damage."""
        since_ms = time.time_ns() // 1_000_000 - LOSSES_MS
        with contextlib.suppress(StoreError):  # a damaged table of incidents is reported elsewhere
            self._losses = sum(
                incident.last_unix_ms > since_ms and not incident.is_told_by_peer
                for incident in self._reader.incidents(kinds=LOSSES)
            )
        self.scrubber.start()
        ended.add_done_callback(self._mark_if_damaged)

    def report(self) -> Integrity:
        """Damage found, progress of the scrub, and quarantined files; from memory, except for the files."""
        return Integrity(
            self.damages.count,
            self.scrubber.batches_verified,
            self.scrubber.last_full_pass_unix_ms,
            tuple((quarantined.file, quarantined.bytes) for quarantined in quarantined_files(self._path)),
            self._losses,
        )

    def _mark_if_damaged(self, ended: Future[None]) -> None:
        if isinstance(error := ended.exception(), StoreDamaged):
            mark_suspect(self._path, error.why)

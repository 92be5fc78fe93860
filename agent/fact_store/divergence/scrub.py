"""What a node does for its store in the background: read all of it again, slowly, keep the witness up to date, and remove artifacts
to which nothing refers any more.

Each batch is compared with its digest, and what is damaged is told like what a reader meets (damage.py). The position is kept in
memory only: a restart begins again, at a random stream's beginning being as good as any.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from agent.fact_store.divergence.opening import witness_of
from agent.fact_store.divergence.witness import write_witness
from agent.fact_store.log import StoreDamaged, StoreError
from agent.fact_store.writer import Writer
from agent.pages import Page

BYTES_PER_S = 64 * 1024
"""40 GB a week, 10 GB in two days: a bit that flips is found while peers still hold what it was, and the reading is a thousandth
of what the slowest gateway's disk gives, and 0.1 % of one core."""
STEP_S = 10.0
WITNESS_S = 300.0  # what is appended after it is noticed as missing by peers only, if both files are restored together
SWEEP_S = 3600.0
FACTS_MAX = 2**40

log = logging.getLogger(__name__)

Read = Callable[[str, int, int, int], Page]


class Upkeep:
    """A thread of its own, from `start` until `stop`."""

    def __init__(self, path: Path, writer: Writer, read: Read, sweep: Callable[[], int]) -> None:
        self.batches_verified = 0
        self.last_full_pass_unix_ms: int | None = None
        self._path, self._writer, self._read, self._sweep = path, writer, read, sweep
        self._streams = list[str]()  # still to be read in this pass, the one being read first
        self._after_offset = 0
        self._is_whole = True  # no stream of this pass was left out
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"store-upkeep {path.name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def is_begun(self) -> bool:
        """Whether anybody asked for it."""
        return self._thread.ident is not None

    def stop(self) -> None:
        """End; the witness then says how the store was left."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def remember(self) -> None:
        """Write the witness of what is durable now."""
        write_witness(self._path, witness_of(self._writer.catalog))

    def step(self, bytes_max: int) -> int:
        """Read on, at least one batch; returns the bytes read, 0 at the end of a pass."""
        if not self._streams:
            self._streams, self._after_offset, self._is_whole = list(self._writer.catalog.streams), 0, True
        if not self._streams:
            return 0
        try:
            page = self._read(self._streams[0], self._after_offset, FACTS_MAX, bytes_max)
        except StoreDamaged:  # not even its index can be read: the others are looked at all the same
            self._streams.pop(0)
            self._after_offset, self._is_whole = 0, False
            raise
        self.batches_verified += len(page.batches)
        reached = max([one.last_offset for one in page.batches] + [one.last_offset for one in page.holes], default=0)
        if reached > self._after_offset:
            self._after_offset = reached
            return max(1, sum(len(one.sealed) for one in page.batches))
        self._streams.pop(0)
        self._after_offset = 0
        if self._streams:
            return 1
        if self._is_whole:
            self.last_full_pass_unix_ms = time.time_ns() // 1_000_000
        return 0

    def _swept(self) -> None:
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
                self.remember()
            try:
                if time.monotonic() - swept_s >= SWEEP_S:
                    swept_s = time.monotonic()
                    self._swept()
                wait_s = max(STEP_S, self.step(int(STEP_S * BYTES_PER_S)) / BYTES_PER_S)
            except StoreError:  # the disk is away, or the file is being closed: readers and the writer say so
                wait_s = WITNESS_S

"""What looks after an open store: damage that readers find, the background scrub, and what the opening has found."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import Future
from pathlib import Path

from agent.errors import StoreError
from agent.fact_store.core import Integrity, StoreDamaged
from agent.fact_store.divergence.quarantine import mark_suspect, quarantined_files
from agent.fact_store.divergence.scrubber import Scrubber
from agent.fact_store.integrity import DamageRegistry
from agent.fact_store.read import StoreReader

LOSSES = ("missing", "restored", "log_lost")  # incidents that say that less is here than was acknowledged
LOSSES_MS = 24 * 3_600_000  # for this long the status shows them; the incident remains


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
            incidents = self._reader.incidents()
            self._losses = sum(incident.kind in LOSSES and incident.last_unix_ms > since_ms for incident in incidents)
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

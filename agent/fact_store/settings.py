"""What an operator may set about the store, with its defaults and the reason for each.

Only figures that differ between gateways are here; what must hold everywhere (synchronous=FULL, WAL, one writer) is not a
setting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agent.batch import FACTS_MAX


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """[store]: pace of the group commit and how much may wait for it."""

    # Samples nobody waits for are committed this often: four commits a second cost an eMMC some GB a day, not tens.
    commit_interval_ms: int = 250
    # Facts of one stream that end the wait early, and the size batches are cut to: best bytes per fact without making a
    # look-up open too much.
    batch_facts_target: int = 2000
    # What may wait for the writer, in facts and in bytes. Full means StoreBusy: the source slows down.
    queue_facts_max: int = 200_000
    queue_bytes_max: int = 64 * 1024 * 1024

    def problems(self) -> Iterator[tuple[str, str]]:
        """(field, why) for each rule that does not hold."""
        if not 0 <= self.commit_interval_ms <= 60_000:
            yield "commit_interval_ms", "0 (at once) to 60000; until the commit a sample is in memory only"
        if not 1 <= self.batch_facts_target <= FACTS_MAX:
            yield "batch_facts_target", f"1 to {FACTS_MAX}, the most a batch holds"
        if self.queue_facts_max < self.batch_facts_target:
            yield "queue_facts_max", "must hold at least one batch (batch_facts_target)"
        if self.queue_bytes_max < 1024 * 1024:
            yield "queue_bytes_max", "at least 1048576: one page of a peer must fit"

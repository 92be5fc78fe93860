"""The named faults: how each bites, and how often it did.

A fault of the network is a probability for each message, or a window in which a link is broken; one of a node or its
disk happens at a mean interval. A world counts each by name when it is really injected, not when it might have been.

restored_image, _grown, _whole    the store is replaced by an older copy: without its witness; with it, and grown past
                                  its former end before most readers see it; repeatedly, by any earlier moment
restored_grown_full, _restarted   the same in streams that drop their oldest, with slow disks; restarted once more
                                  before a peer reads it
resumed_memory, wiped, log_lost   the memory of a machine is put back; its disk is replaced by an empty one; its
                                  write-ahead log is deleted (one of each as a story: test_restored.py)
fenced_twin                       a second node pulls under the same consumer name; the older lease must stop
serving_twin, _diverged, _relay   a second machine serves, pulls and records under a zone's name; a clone of a relay,
                                  with the same batches after different ones
taken_over_relay, _broker         forged facts and lives with valid chains, changed and replayed pages; three of ten
                                  answers replaced
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Faults:
    """Which faults a world has. Probabilities are for each message, `_ms` mean intervals or lengths of virtual time; 0:
    never."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    delay_ms_max: int = 0
    partition_one_way_ms: int = 0
    partition_two_way_ms: int = 0
    crash_ms: int = 0
    torn_store_ms: int = 0
    full_disk_ms: int = 0
    restored_image_ms: int = 0
    restored_grown_ms: int = 0
    restarts_grown: bool = False
    restored_whole_ms: int = 0
    resumed_memory_ms: int = 0
    wiped_ms: int = 0
    log_lost_ms: int = 0
    clock_jump_ms: int = 0
    slow_consumer_ms_max: int = 0
    fenced_twin: bool = False
    serving_twin: bool = False
    twins_diverge: bool = False
    relays_diverge: bool = False
    version_minor: bool = False
    version_major_ms: int = 0
    retention_bytes: int = 0
    damage_ms: int = 0
    anti_entropy_ms: int = 0
    taken_over_relay: bool = False
    taken_over_broker: float = 0.0
    append_ms: int = 700  # no fault: the mean interval between two appends in the whole network
    facts_max: int = 12  # nor is this: of one append


NAMED: dict[str, Faults] = {
    "none": Faults(),
    "loss": Faults(loss=0.3),
    "duplicate": Faults(duplicate=0.4),
    "reorder": Faults(reorder=0.3),
    "delay": Faults(delay_ms_max=9_000),
    "partition_one_way": Faults(partition_one_way_ms=2_500),
    "partition_two_way": Faults(partition_two_way_ms=2_500),
    "crash": Faults(crash_ms=2_500),
    "torn_store": Faults(torn_store_ms=2_500),
    "full_disk": Faults(full_disk_ms=2_500),
    "restored_image": Faults(restored_image_ms=4_000),
    "restored_grown": Faults(restored_grown_ms=2_500, crash_ms=8_000),
    "restored_grown_full": Faults(
        restored_grown_ms=2_500,
        crash_ms=8_000,
        retention_bytes=1_500,
        partition_two_way_ms=3_000,
        slow_consumer_ms_max=2_000,
    ),
    "restored_grown_restarted": Faults(
        restored_grown_ms=2_500, restarts_grown=True, retention_bytes=1_500, slow_consumer_ms_max=2_000
    ),
    "restored_whole": Faults(restored_whole_ms=2_500, restored_image_ms=6_000, crash_ms=8_000, append_ms=400),
    "clock_jump": Faults(clock_jump_ms=1_500),
    "slow_consumer": Faults(slow_consumer_ms_max=3_000),
    "fenced_twin": Faults(fenced_twin=True, crash_ms=6_000),
    "serving_twin": Faults(serving_twin=True, crash_ms=6_000, partition_two_way_ms=6_000),
    "serving_twin_diverged": Faults(serving_twin=True, twins_diverge=True, append_ms=200),
    "serving_twin_relay": Faults(
        serving_twin=True, relays_diverge=True, append_ms=150, facts_max=1, partition_two_way_ms=1_500, crash_ms=8_000
    ),
    "version_minor": Faults(version_minor=True),
    "version_major": Faults(version_major_ms=5_000),
    "retention": Faults(retention_bytes=1_500, partition_two_way_ms=3_000, slow_consumer_ms_max=2_000),
    "damage": Faults(damage_ms=1_500, partition_two_way_ms=4_000),
    "anti_entropy": Faults(
        anti_entropy_ms=2_000,
        damage_ms=1_000,
        loss=0.1,
        duplicate=0.1,
        crash_ms=6_000,
        partition_two_way_ms=4_000,
    ),
    "resumed_memory": Faults(resumed_memory_ms=4_000),
    "wiped": Faults(wiped_ms=5_000, append_ms=300),
    "log_lost": Faults(log_lost_ms=4_000, append_ms=300),
    "taken_over_relay": Faults(taken_over_relay=True),
    "taken_over_broker": Faults(taken_over_broker=0.3, retention_bytes=1_500),
    "everything": Faults(
        loss=0.05,
        duplicate=0.05,
        reorder=0.05,
        delay_ms_max=500,
        partition_one_way_ms=8_000,
        partition_two_way_ms=8_000,
        crash_ms=8_000,
        torn_store_ms=8_000,
        full_disk_ms=8_000,
        clock_jump_ms=5_000,
        slow_consumer_ms_max=500,
        version_minor=True,
        retention_bytes=4_000,
        damage_ms=8_000,
    ),
}
"""One fault at a time, and nearly all at once. Retention and damage lose nothing while readers keep up, so they come
with faults that delay readers."""
COMBINED = frozenset(
    {
        "restored_grown_full",
        "restored_grown_restarted",
        "restored_whole",
        "serving_twin_diverged",
        "serving_twin_relay",
        "everything",
    }
)
"""Several of the others together, each for what none of them reaches alone: a restored store that has dropped the facts
which would contradict it, one that was also restarted before it was read, one that is replaced again and again by any
earlier image, and twins whose logs differ before they are read."""


def table(injected: Counter[str]) -> str:
    """The injected faults and their numbers, for people."""
    width = max(map(len, injected), default=0)
    return "\n".join(f"  {name:<{width}}  {count:>9,}" for name, count in sorted(injected.items()))

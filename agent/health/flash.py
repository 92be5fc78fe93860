"""Core: the bytes that a node writes to its disk, and the resulting lifetime of flash in years.

Measured with `bsfg bench wear`, by the device's own count, at 11,000 tags a second, 2.8 bytes a sealed fact: 16.7 and
8.9 bytes a fact with 3.97 and 0.94 commits a second. The sum below gives 17.6 and 9.2.
"""

from __future__ import annotations

SECONDS_PER_DAY = 86_400
# What a commit writes besides its facts: pages of indexes and small tables (SQLite writes each page it touched), and
# the block of the log that it shares with the next commit.
BYTES_PER_COMMIT = 31_000
# Each sealed byte is written to the log and, by a checkpoint, to the database; pages are not quite full, and the file
# system's journal takes its part.
BYTES_PER_BYTE = 2.4

# When a store commits samples before the interval is over (agent/fact_store/append/group_commit.py; a test holds them
# equal): by default and below, a burst; always, what fills a batch.
BURST_FACTS, SHORT_INTERVAL_MS, BATCH_FACTS = 2_000, 250, 16_384


def commits_per_s(facts_per_s: float, interval_ms: float) -> float:
    """How often a node commits the facts of one stream that come in evenly; no more often than there are facts."""
    early = BURST_FACTS if interval_ms <= SHORT_INTERVAL_MS else BATCH_FACTS
    return min(max(1000 / interval_ms, facts_per_s / early), facts_per_s)


def written_bytes_per_s(commits_per_s: float, sealed_bytes_per_s: float) -> float:
    """What a node writes."""
    return commits_per_s * BYTES_PER_COMMIT + sealed_bytes_per_s * BYTES_PER_BYTE


def flash_years(written_per_s: float, capacity_bytes: float, erase_cycles: int, amplification: float) -> float:
    """How long flash lasts. `amplification`: bytes worn inside the device for each byte written to it."""
    return capacity_bytes * erase_cycles / (written_per_s * amplification * SECONDS_PER_DAY * 365)


EXAMPLE_BYTES, EXAMPLE_CYCLES, EXAMPLE_AMPLIFICATION = 8_000_000_000, 3_000, 2.0
"""The eMMC of a small gateway, for readers who do not name their own."""


def years_text(written_per_s: float) -> str:
    """A day's writing, and the years of the example's flash with the sum."""
    size = f"{EXAMPLE_BYTES / 1e9:g} GB"
    gb_a_day = written_per_s * SECONDS_PER_DAY / 1e9
    years = flash_years(written_per_s, EXAMPLE_BYTES, EXAMPLE_CYCLES, EXAMPLE_AMPLIFICATION)
    return (
        f"{gb_a_day:,.2f} GB a day; an eMMC of {size} lasts {years:,.1f} years "
        f"({size} x {EXAMPLE_CYCLES:,} cycles / {EXAMPLE_AMPLIFICATION:g} / {gb_a_day:,.2f} GB / 365)"
    )

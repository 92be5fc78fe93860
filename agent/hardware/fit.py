"""Core: whether a gateway's disk sustains a load: how many hours of facts fit, how many years its flash lasts, and the
highest sustainable rate.

Each answer is returned with its calculation. If a figure was neither measured nor published, there is no answer, and
the text names the missing figure. The processor is not judged here: `bsfg bench ingest` measures it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from agent.health.flash import (
    BYTES_PER_BYTE,
    BYTES_PER_COMMIT,
    EXAMPLE_AMPLIFICATION,
    EXAMPLE_CYCLES,
    SECONDS_PER_DAY,
    commits_per_s,
    written_bytes_per_s,
)

SECONDS_PER_YEAR = SECONDS_PER_DAY * 365
HOURS_WANTED = 24.0  # the specification: survive an enterprise outage of a day and more
YEARS_WANTED = 10.0  # a gateway's service life in a cabinet
FREE_FLOOR = 0.1  # of the file system, never used: on a full disk SQLite cannot even delete
SYNC_SHARE_MAX = 0.5  # of the time between two commits; above it commits cannot keep up with the sources


@dataclass(frozen=True)  # without slots, so that a command line can name its defaults
class Load:
    """What a node will write: facts after report by exception, their size in a batch, and the time between commits."""

    facts_per_s: float = 1_000.0
    bytes_per_fact: float = 9.0  # the limit at rest in batches of 1000 noisy floats
    commit_interval_ms: float = 250.0


@dataclass(frozen=True, slots=True)
class Disk:
    """What is known of a disk, measured or from a profile; None where neither has it. `capacity_bytes`: of the device,
    which wears; `filesystem_bytes`: of the part of it that holds the store, None for all."""

    capacity_bytes: int | None = None
    free_bytes: int | None = None
    erase_cycles: int | None = None
    write_amplification: float | None = None
    sync_p99_ms: float | None = None
    filesystem_bytes: int | None = None
    wears: bool = True  # false for a virtual disk: the disk of its host wears


@dataclass(frozen=True, slots=True)
class Fit:
    """The answers, each with its sum; None for what cannot be computed. `concerns` is empty when the load fits."""

    hours_that_fit: float | None
    flash_years: float | None
    facts_per_s_max: float | None  # for a day of outage and ten years of flash
    bytes_written_per_day: float
    sync_share: float | None
    sums: tuple[str, ...] = ()
    concerns: tuple[str, ...] = ()


def assess(disk: Disk, load: Load) -> Fit:
    """Whether and how the load fits the disk."""
    assert load.facts_per_s > 0, "a load without facts wears nothing"
    assert load.bytes_per_fact > 0
    assert load.commit_interval_ms > 0
    stored_per_s = load.facts_per_s * load.bytes_per_fact
    commits = commits_per_s(load.facts_per_s, load.commit_interval_ms)
    written_per_s = written_bytes_per_s(commits, stored_per_s)
    usable, worn_out = _usable(disk), _endurance(disk)
    fit = Fit(
        hours_that_fit=None if usable is None else usable / stored_per_s / 3600,
        flash_years=None if worn_out is None else worn_out / (written_per_s * SECONDS_PER_YEAR),
        facts_per_s_max=_facts_per_s_max(usable, worn_out, load),
        bytes_written_per_day=written_per_s * SECONDS_PER_DAY,
        sync_share=None if disk.sync_p99_ms is None else disk.sync_p99_ms / (1000 / commits),
    )
    return replace(fit, sums=tuple(_sums(disk, load, fit, commits)), concerns=tuple(_concerns(fit)))


def _usable(disk: Disk) -> float | None:
    """Bytes for facts: what is free, down to the floor."""
    size = disk.filesystem_bytes or disk.capacity_bytes
    return None if disk.free_bytes is None or size is None else max(0.0, disk.free_bytes - size * FREE_FLOOR)


def _endurance(disk: Disk) -> float | None:
    """Bytes that the system may write until the flash is worn out."""
    if not disk.wears or disk.capacity_bytes is None:
        return None
    cycles, amplification = _wear(disk)
    return disk.capacity_bytes * cycles / amplification


def _wear(disk: Disk) -> tuple[int, float]:
    """Erase cycles and write amplification. Vendors do not publish them for a gateway's eMMC: those of the example are
    assumed unless a data sheet or the operator gives others."""
    return disk.erase_cycles or EXAMPLE_CYCLES, disk.write_amplification or EXAMPLE_AMPLIFICATION


def _facts_per_s_max(usable: float | None, worn_out: float | None, load: Load) -> float | None:
    """The facts a second at which a day of facts fits and the flash lasts ten years, at the same interval."""
    limits = []
    if usable is not None:
        limits.append(usable / (HOURS_WANTED * 3600 * load.bytes_per_fact))
    if worn_out is not None:
        limits.append(_facts_per_s_written(worn_out / (YEARS_WANTED * SECONDS_PER_YEAR), load))
    return math.floor(min(limits)) if limits else None


def _facts_per_s_written(allowed_per_s: float, load: Load) -> float:
    """The facts a second that write so many bytes a second, by bisection, because the commit rate depends on them."""
    low, high = 0.0, allowed_per_s / (load.bytes_per_fact * BYTES_PER_BYTE)
    while high - low > 0.5:
        middle = (low + high) / 2
        written = written_bytes_per_s(commits_per_s(middle, load.commit_interval_ms), middle * load.bytes_per_fact)
        low, high = (middle, high) if written <= allowed_per_s else (low, middle)
    return low


def _sums(disk: Disk, load: Load, fit: Fit, commits: float) -> Iterator[str]:
    written = (
        f"{commits:g} commits/s x {BYTES_PER_COMMIT:,} bytes + "
        f"{load.facts_per_s:g} facts/s x {load.bytes_per_fact:g} bytes x {BYTES_PER_BYTE:g}"
    )
    yield f"written: {written} = {fit.bytes_written_per_day / 1e9:,.1f} GB a day"
    if fit.hours_that_fit is None:
        yield "hours that fit: not known without the size of the disk; run this on the gateway"
    else:
        size = disk.filesystem_bytes or disk.capacity_bytes
        assert disk.free_bytes is not None
        assert size is not None
        room = f"({disk.free_bytes / 1e9:,.1f} GB free - {FREE_FLOOR:.0%} of {size / 1e9:,.1f} GB)"
        yield (
            f"hours that fit: {room} / ({load.facts_per_s:g} facts/s x {load.bytes_per_fact:g} bytes) "
            f"= {fit.hours_that_fit:,.0f} h"
        )
    if not disk.wears:
        yield "years of flash: not known for a virtual disk; ask for the wear of its host's disk"
    elif fit.flash_years is None:
        yield "years of flash: not known without the size of the disk; run this on the gateway"
    else:
        assert disk.capacity_bytes is not None
        cycles, amplification = _wear(disk)
        assumed = "" if disk.erase_cycles and disk.write_amplification else " (cycles or amplification assumed)"
        yield (
            f"years of flash: {disk.capacity_bytes / 1e9:,.1f} GB x {cycles:,} cycles / "
            f"(written x {amplification:g}) = {fit.flash_years:,.1f} years{assumed}"
        )


def _concerns(fit: Fit) -> Iterator[str]:
    if fit.hours_that_fit is not None and fit.hours_that_fit < HOURS_WANTED:
        yield (
            f"{fit.hours_that_fit:.0f} h of facts fit, {HOURS_WANTED:.0f} h are wanted: "
            "use a deadband, a longer interval or a larger disk"
        )
    if fit.flash_years is not None and fit.flash_years < YEARS_WANTED:
        yield f"the flash lasts {fit.flash_years:.1f} years, {YEARS_WANTED:.0f} are wanted: commit less often"
    if fit.sync_share is not None and fit.sync_share > SYNC_SHARE_MAX:
        yield f"a slow sync takes {100 * fit.sync_share:.0f} % of the time between commits: commit less often"

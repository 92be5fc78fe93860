"""The sums of `bsfg hardware check`: equal to paper, silent where a figure is missing, and loud where a load does not
fit."""

from dataclasses import replace

import pytest

from agent.hardware.fit import Disk, Load, assess

DISK = Disk(
    capacity_bytes=16_000_000_000,
    free_bytes=10_000_000_000,
    erase_cycles=3_000,
    write_amplification=3.0,
    sync_p99_ms=50.0,
)
LOAD = Load(facts_per_s=1_000)


def test_the_estimate_equals_a_calculation_by_hand() -> None:
    """The estimate equals the same sum done on paper: 4 commits of 31,000 bytes and 9,000 bytes 2.4 times, a second."""
    fit = assess(DISK, LOAD)
    assert fit.bytes_written_per_day == pytest.approx((4 * 31_000 + 9_000 * 2.4) * 86_400)
    assert fit.hours_that_fit == pytest.approx((10e9 - 1.6e9) / 9_000 / 3_600)
    assert fit.flash_years == pytest.approx(16e9 * 3_000 / (145_600 * 3 * 86_400 * 365))
    assert fit.sync_share == pytest.approx(50 / 250)
    assert fit.sums == (
        "written: 4 commits/s x 31,000 bytes + 1000 facts/s x 9 bytes x 2.4 = 12.6 GB a day",
        "hours that fit: (10.0 GB free - 10% of 16.0 GB) / (1000 facts/s x 9 bytes) = 259 h",
        "years of flash: 16.0 GB x 3,000 cycles / (written x 3) = 3.5 years",
    )


def test_a_small_partition_of_a_large_disk_is_filled() -> None:
    """A tenth of the file system stays free, not of the device; the device as a whole wears."""
    root = Disk(512_000_000_000, free_bytes=38_000_000_000, filesystem_bytes=40_000_000_000)
    fit = assess(root, LOAD)
    assert fit.hours_that_fit == pytest.approx((38e9 - 4e9) / 9_000 / 3_600)
    assert "(38.0 GB free - 10% of 40.0 GB)" in fit.sums[1]
    assert fit.flash_years == assess(replace(root, filesystem_bytes=None), LOAD).flash_years


def test_the_rate_that_the_disk_bears_is_the_one_that_just_fits() -> None:
    """At the rate that is named nothing is wrong; at a tenth more the limit that it came from is."""
    load = Load(commit_interval_ms=1_000)
    most = assess(DISK, load).facts_per_s_max
    assert most is not None
    assert most > 0
    assert assess(DISK, replace(load, facts_per_s=most)).concerns == ()
    (concern,) = assess(DISK, replace(load, facts_per_s=most * 1.1)).concerns
    assert "years" in concern
    fast = Load(commit_interval_ms=250)  # the more facts, the more often a burst is committed
    wide = replace(DISK, capacity_bytes=256_000_000_000, free_bytes=250_000_000_000, sync_p99_ms=5.0)
    much = assess(wide, fast).facts_per_s_max or 0
    assert much > 8_000
    assert assess(wide, replace(fast, facts_per_s=much)).concerns == ()
    assert assess(wide, replace(fast, facts_per_s=much * 1.1)).concerns != ()
    full = replace(DISK, free_bytes=2_000_000_000)
    (concern,) = assess(full, replace(load, facts_per_s=1.1 * (assess(full, load).facts_per_s_max or 0))).concerns
    assert "h of facts fit" in concern


def test_commits_wear_more_than_facts() -> None:
    """Twice the facts cost less flash than twice the commits; a trickle commits no oftener than it has facts."""
    years = assess(DISK, LOAD).flash_years or 0
    twice = assess(DISK, Load(1_000, commit_interval_ms=125)).flash_years or 0
    assert (assess(DISK, Load(2_000)).flash_years or 0) > twice
    assert (assess(DISK, Load(0.1, commit_interval_ms=1)).flash_years or 0) > years


def test_insufficient_hardware_is_reported() -> None:
    """Too much load, too many commits and too slow a disk each give their own concern; a smaller load removes it."""
    flood = assess(DISK, Load(1_000_000, commit_interval_ms=10)).concerns
    assert [concern.split(" ")[0] for concern in flood] == ["0", "the", "a"]
    assert assess(DISK, Load(100, commit_interval_ms=5_000)).concerns == ()


def test_a_disk_without_room_holds_nothing() -> None:
    """Below the tenth that stays free no fact fits, and the rate is zero."""
    full = assess(replace(DISK, free_bytes=1_000_000_000), LOAD)
    assert (full.hours_that_fit, full.facts_per_s_max) == (0.0, 0)
    assert full.concerns[0].startswith("0 h of facts fit")


def test_a_missing_figure_gives_no_answer_and_says_which() -> None:
    """Without the disk's size nothing is made up; assumed cycles are called assumed; a virtual disk does not wear."""
    nothing = assess(Disk(), LOAD)
    assert (nothing.hours_that_fit, nothing.flash_years, nothing.facts_per_s_max, nothing.sync_share) == (None,) * 4
    assert sum("not known without the size of the disk" in line for line in nothing.sums) == 2
    unmeasured = assess(replace(DISK, free_bytes=None), LOAD)  # a profile knows the size, not what is free
    assert (unmeasured.hours_that_fit, unmeasured.flash_years is None) == (None, False)
    assert "assumed" in assess(replace(DISK, erase_cycles=None), LOAD).sums[2]
    assert "assumed" not in assess(DISK, LOAD).sums[2]
    virtual = assess(replace(DISK, wears=False), LOAD)
    assert virtual.flash_years is None
    assert "virtual" in virtual.sums[2]

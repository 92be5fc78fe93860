"""What a node writes, by the sum that hardware check and store stats share."""

import re
from pathlib import Path

import pytest

from agent.fact_store.append.group_commit import ENOUGH_FACTS, SHORT_NS
from agent.health.flash import (
    BATCH_FACTS,
    BURST_FACTS,
    SHORT_INTERVAL_MS,
    commits_per_s,
    flash_years,
    written_bytes_per_s,
    years_text,
)
from agent.settings.store import StoreSettings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operate" / "flash.md").read_text(encoding="utf-8")
FACTS_PER_S, SEALED_BYTES = 11_000, 2.8


def test_the_sum_is_that_of_the_page() -> None:
    """31,000 bytes a commit and 2.4 bytes a sealed byte, as docs/operate/flash.md has them."""
    assert "commits a second x 31,000 + sealed bytes a second x 2.4" in PAGE
    assert written_bytes_per_s(4.0, 1_000.0) == 4 * 31_000 + 2_400


def test_the_sum_agrees_with_what_was_measured() -> None:
    """The figures of the page: within a tenth."""
    rows = re.findall(r"^\| (\d+)[^|]*\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", PAGE, re.MULTILINE)
    assert len(rows) == 2
    for interval_ms, bytes_per_fact, gb_a_day, years in rows:
        commits = {250: 3.97, 1000: 0.94}[int(interval_ms)]  # as in that run, whose values came in bursts
        written = written_bytes_per_s(commits, FACTS_PER_S * SEALED_BYTES)
        assert written / FACTS_PER_S == pytest.approx(float(bytes_per_fact), rel=0.1)
        assert written * 86_400 / 1e9 == pytest.approx(float(gb_a_day), rel=0.1)
        assert flash_years(written, 8e9, 3_000, 2.0) == pytest.approx(float(years), rel=0.1)


@pytest.mark.parametrize(
    "facts_per_s, interval_ms, commits",
    [
        (1_000, 250, 4.0),
        (11_000, 250, 5.5),
        (11_000, 1000, 1.0),
        (50_000, 1000, 50_000 / 16_384),
        (5_000, 1000, 1.0),
        (0.1, 1, 0.1),
    ],
)
def test_how_often_a_node_commits(facts_per_s: float, interval_ms: float, commits: float) -> None:
    """Once in the interval; at the default for each burst, above it for each full batch; a trickle as often as it has
    facts."""
    assert commits_per_s(facts_per_s, interval_ms) == pytest.approx(commits)


def test_the_store_commits_early_as_the_sum_says() -> None:
    """The figures are those of the group commit."""
    assert (BURST_FACTS, SHORT_INTERVAL_MS) == (ENOUGH_FACTS, SHORT_NS / 1e6)
    assert StoreSettings().batch_facts_target == BATCH_FACTS


def test_the_text_shows_the_sum() -> None:
    """The line shows each number from which its years are computed."""
    text = years_text(100_000)
    size, cycles, amplification, gb, years_days = re.search(
        r"\(([\d.]+) GB x ([\d,]+) cycles / ([\d.]+) / ([\d.]+) GB / (\d+)\)", text
    ).groups()  # type: ignore[union-attr]
    years = float(size) * int(cycles.replace(",", "")) / float(amplification) / float(gb) / int(years_days)
    assert f"{years:.1f} years" in text
    assert text.startswith("8.64 GB a day")

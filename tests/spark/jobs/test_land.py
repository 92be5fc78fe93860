"""When the land job starts its query again, without Spark; what it lands is in streaming/test_land_job.py."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.errors import PySparkException

from pyspark_bsfg.errors import JobRefused
from pyspark_bsfg.jobs import land
from pyspark_bsfg.jobs.land import ATTEMPTS_MAX, BACK_OFF_S, Order


@pytest.mark.parametrize("is_available_now", [False, True])
def test_failures_count_until_a_batch_has_landed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_available_now: bool
) -> None:
    """The pauses grow while nothing lands, and are short again after a batch, however often the query has failed
    before. A run with an end gives up after some failures in a row, not in all."""
    lander = SimpleNamespace(totals=SimpleNamespace(batches=0))
    lands = [False, False, True] * ATTEMPTS_MAX

    def follow(*_: object) -> None:
        if lands:
            lander.totals.batches += lands.pop(0)
            raise PySparkException("lost")

    asked: dict[str, Any] = {"check": Mock(), "Lander": Mock(return_value=lander), "_start": Mock(), "_follow": follow}
    for name, part in asked.items():
        monkeypatch.setattr(land, name, part)
    stop = Mock(wait=Mock(return_value=False))
    order = Order({"path": str(tmp_path / "facts.db")}, tmp_path, tmp_path, is_available_now=is_available_now)
    assert land.run(Mock(), order, stop) == (lander.totals, 3 * ATTEMPTS_MAX)
    pauses_s = [call.args[0] for call in stop.wait.call_args_list]
    # The third query of each three has landed a batch: its failure is the first again.
    assert pauses_s == [BACK_OFF_S[at] for at in [0, 1, 0] + [1, 2, 0] * (ATTEMPTS_MAX - 1)]
    lands += [False] * ATTEMPTS_MAX
    if is_available_now:
        with pytest.raises(JobRefused, match=f"tried {ATTEMPTS_MAX} times"):
            land.run(Mock(), order, stop)

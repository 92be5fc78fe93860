"""The rules of the store and its streams, each by itself."""

import pytest

from agent.columns import FACTS_MAX
from agent.settings.store import HOURS_MAX, StoreSettings, StreamSettings

MIB = 1024 * 1024


@pytest.mark.parametrize(
    "settings, fields",
    [
        ({}, []),
        ({"commit_interval_ms": 0}, []),
        ({"commit_interval_ms": 60_000}, []),
        ({"commit_interval_ms": 60_001}, ["commit_interval_ms"]),
        ({"batch_facts_target": 0}, ["batch_facts_target"]),
        ({"batch_facts_target": FACTS_MAX + 1}, ["batch_facts_target"]),
        ({"batch_facts_target": 500, "queue_facts_max": 499}, ["queue_facts_max"]),
        ({"batch_facts_target": 500, "queue_facts_max": 500}, []),
        ({"queue_bytes_max": MIB - 1}, ["queue_bytes_max"]),
        ({"queue_bytes_max": MIB}, []),
        ({"bytes_max": MIB - 1}, ["bytes_max"]),
        ({"bytes_max": MIB}, []),
        ({"artifact_orphan_hours": 0.0}, ["artifact_orphan_hours"]),
        ({"artifact_released_hours": HOURS_MAX + 1.0}, ["artifact_released_hours"]),
        ({"disk_free_bytes_min": -1}, ["disk_free_bytes_min"]),
        ({"ballast_bytes": -1}, ["ballast_bytes"]),
        ({"artifact_bytes_max": -1}, ["artifact_bytes_max"]),
        ({"artifact_disk_spare_bytes": -1}, ["artifact_disk_spare_bytes"]),
        ({"artifact_bytes_max": 5, "artifact_unreferenced_bytes_max": 4}, ["artifact_unreferenced_bytes_max"]),
        ({"artifact_bytes_max": 5, "artifacts_total_bytes_max": 4}, ["artifacts_total_bytes_max"]),
        ({"artifact_bytes_max": 5, "artifact_unreferenced_bytes_max": 5, "artifacts_total_bytes_max": 5}, []),
        ({"artifact_bytes_max": 5, "artifact_unreferenced_bytes_max": 0, "artifacts_total_bytes_max": 0}, []),
    ],
)
def test_rules_of_the_store(settings: dict[str, object], fields: list[str]) -> None:
    """Each broken rule is named by its setting, and a value at its limit is accepted."""
    assert [field for field, _ in StoreSettings(**settings).problems()] == fields  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings, fields",
    [
        ({}, []),
        ({"name": "Facts"}, ["name"]),
        ({"min_in_sync": 0}, ["min_in_sync"]),
        ({"min_in_sync": 64}, []),
        ({"min_in_sync": 65}, ["min_in_sync"]),
        ({"acks_timeout_ms": 0}, ["acks_timeout_ms"]),
        ({"acks_timeout_ms": 3_600_000}, []),
        ({"in_sync_lag_ms": 999}, ["in_sync_lag_ms"]),
        ({"in_sync_lag_ms": 1_000}, []),
        ({"keep_hours": -1.0}, ["keep_hours"]),
        ({"ttl_hours": -1.0}, ["ttl_hours", "keep_hours"]),
        ({"ttl_hours": 24.0, "keep_hours": 24.0}, []),
        ({"ttl_hours": 24.0, "keep_hours": 25.0}, ["keep_hours"]),
        ({"ttl_hours": 0.0, "keep_hours": float(HOURS_MAX)}, []),
        ({"bytes_max": MIB - 1}, ["bytes_max"]),
        ({"bytes_max": MIB}, []),
        ({"write_class": "strong"}, ["acks"]),
        ({"write_class": "strong", "acks": "quorum"}, []),
        ({"write_class": "local", "acks": "quorum"}, ["acks"]),
        ({"write_class": "local", "acks": "none"}, []),
    ],
)
def test_rules_of_a_stream(settings: dict[str, object], fields: list[str]) -> None:
    """Each broken rule is named by its setting, and a value at its limit is accepted."""
    assert [field for field, _ in StreamSettings(**{"name": "facts.a", **settings}).problems()] == fields  # type: ignore[arg-type]

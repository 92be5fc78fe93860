"""The tags with which a source is tested."""

from collections import Counter
from dataclasses import replace

import pytest

from agent.ingest.source_probe import TAGS_TESTED, some_tags
from tests.ingest.modbus.test_source import TAGS


@pytest.mark.parametrize("units, each", [(1, TAGS_TESTED), (4, TAGS_TESTED // 4), (TAGS_TESTED + 5, 1)])
def test_every_unit_is_tested(units: int, each: int) -> None:
    """A dead unit is found among however many: at least one tag of each is read, and few of one with many tags."""
    point = TAGS[0].point
    tags = [replace(TAGS[0], point=replace(point, unit_id=unit)) for _ in range(30) for unit in range(1, units + 1)]
    assert Counter(tag.point.unit_id for tag in some_tags(tags)) == dict.fromkeys(range(1, units + 1), each)

"""Reading a node over MQTT: the same rows as from its file, whatever the tasks, and clear errors where it cannot be."""

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.types import StructType

from agent.message import Sample
from pyspark_bsfg import FACTS, BsfgDataSource
from tests.spark import making
from tests.spark.making import NOON_NS, VALUES
from tests.spark.served import Served, served, store_path
from tests.spark.test_reader import read, sent

RUN = [Sample(1 + n % 3, NOON_NS + n * 100, value, n % 2) for n, value in enumerate(VALUES)]
FACTS_HELD = len(VALUES) + 20_000


def read_node(options: dict[str, str], schema: StructType = FACTS, **others: Any) -> list[dict[str, Any]]:
    """All rows, through pickle as from the driver to its tasks."""
    given = options | {name: str(value) for name, value in others.items()}
    reader = sent(BsfgDataSource(given).reader(schema))
    return [row for part in reader.partitions() for one in reader.read(sent(part)) for row in one.to_pylist()]


@pytest.fixture(scope="module")
def enterprise(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A node with every type of value in small batches, then some long ones."""
    folder = tmp_path_factory.mktemp("enterprise")
    (folder / "node").mkdir()
    long = [[Sample(1, NOON_NS + at + n, float(n)) for n in range(1000)] for at in range(0, 20_000, 1000)]
    making.store(store_path(folder), [RUN[:5], RUN[5:6], RUN[6:], *long])
    with served(folder) as running:
        yield running


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_node_gives_what_its_file_holds(enterprise: Served, tasks: int) -> None:
    """Row by row, also where tasks begin and end inside batches."""
    options = enterprise.options(endOffset=FACTS_HELD, numPartitions=tasks)  # the node adds facts of its own
    making.same(read_node(options), read(enterprise.store, endOffset=FACTS_HELD))

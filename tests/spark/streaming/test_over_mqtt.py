"""A stream over MQTT: a real broker, a node in a process of its own, mutual TLS; no JVM."""

from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from agent.fact_store import FactStore, StoreReader
from pyspark_bsfg.errors import ConsumerRefused
from pyspark_bsfg.streaming import reader as module
from tests.spark.making import AT_ONCE, DEFINITIONS, ENTERPRISE, READER, served, store_path
from tests.spark.streaming.test_stream_reader import append, stream, values

pytestmark = [pytest.mark.system]

CONSUMER = f"{READER}.lake"


def test_a_stream_follows_a_node_over_mqtt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of a node, each fact once; the cursor follows what is finished, and belongs to one checkpoint until
    another one is told to take it over, which fences the first. While the node is away the offset stays, and progress
    says since when after one attempt, not after all attempts of a task; when it is back the stream goes on."""
    monkeypatch.setattr(module, "IDLE_WAIT_S", 0.0)
    path = store_path(tmp_path)
    path.parent.mkdir(parents=True)
    with FactStore.open(path, ENTERPRISE, settings=AT_ONCE) as store:
        store.appends.define(DEFINITIONS).result()
        append(store, 100)

    def cursor() -> int:
        with closing(StoreReader(path)) as reader:
            [found] = [consumer.frontier for consumer in reader.consumers() if consumer.name == CONSUMER]
            return found

    with served(tmp_path) as at:
        quick = {"requestTimeout": 2, "attempts": 1000}
        given = at.options(consumer=CONSUMER, checkpointLocation=tmp_path / "checkpoint", **quick)
        reader = stream(None, **given)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxRows(60))
        assert values(reader, start, end) == [float(n) for n in range(1, 61)]
        assert cursor() == 0
        reader.commit(end)
        assert cursor() == 60
        other = given | {"checkpointLocation": str(tmp_path / "other")}
        with pytest.raises(ConsumerRefused, match="has confirmed up to 60"):
            stream(None, **other).initialOffset()
        # Another timeout, so that it does not share the connection of this process: a lease belongs to a connection.
        other |= {"startingOffsets": "cursor", "requestTimeout": "3"}
        with pytest.raises(ConsumerRefused, match="belongs to another query"):
            stream(None, **other).initialOffset()
        reader.commit(end)
        older, reader = reader, stream(None, **other, takeOver="true")
        assert reader.initialOffset()["offset"] == end["offset"]  # the node has recorded in a life of its own
        for fenced in (older, stream(None, **given)):
            with pytest.raises(ConsumerRefused, match="another query has taken over"):
                fenced.commit(end)
        at.node.kill()
        assert reader.latestOffset(end, ReadMaxRows(60)) == end
        assert "unreachable_since" in reader.reportLatestOffset()
        reader.commit(end)
        at.node.start()
        at.node.wait_ready(lambda: "node_ready" in at.node.log_text())
        last = reader.latestOffset(end, ReadMaxRows(60))
        # The node has recorded something of its own at its start.
        assert values(reader, end, last)[:40] == [float(n) for n in range(61, 101)]

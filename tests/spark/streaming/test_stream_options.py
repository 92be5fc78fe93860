"""Options of readStream, as they come from a person who knows those of Kafka."""

import traceback

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_bsfg.errors import OptionError
from pyspark_bsfg.schema import FACTS
from pyspark_bsfg.source import BsfgDataSource
from pyspark_bsfg.streaming.options import StreamOptions

PATH = {"path": "/x/facts.db"}
DURABLE = PATH | {"consumer": "local.lake", "checkpointLocation": "/x/checkpoint"}


def test_defaults_lose_nothing() -> None:
    """Without options a query starts at the oldest fact, and ends rather than pass over a loss or a new life."""
    found = StreamOptions.of(PATH)
    assert (found.start, found.is_loss_refused, found.on_restored) == ("earliest", True, "fail")
    assert found.read.paths == ("/x/facts.db",)


def test_options_are_read_in_any_case() -> None:
    """Spark lowers keys."""
    given = {
        "STARTINGoffsets": "Latest",
        "maxoffsetspertrigger": " 7 ",
        "minPartitions": "3",
        "failOnDataLoss": "FALSE",
    }
    found = StreamOptions.of(DURABLE | given | {"onrestored": "reread"})
    assert (found.start, found.offsets_max, found.partitions_min, found.is_loss_refused) == ("latest", 7, 3, False)
    assert (found.consumer, found.checkpoint, found.on_restored) == ("local.lake", "/x/checkpoint", "reread")
    assert StreamOptions.of(DURABLE | {"startingTimestamp": "1767225600000"}).since_unix_ms == 1_767_225_600_000
    assert (
        StreamOptions.of(DURABLE | {"startingTimestamp": "2026-01-01T01:00+01:00"}).since_unix_ms == 1_767_225_600_000
    )
    assert StreamOptions.of(PATH | {"startingoffsets": "12"}).start == 12
    for number, start in ((12, 12), (-2, "earliest"), (-1, "latest")):
        as_json = f'{{"facts.telemetry":{{"0":{number}}}}}'
        assert StreamOptions.of(PATH | {"startingOffsets": as_json}).start == start


@pytest.mark.parametrize("text", ["/x/c", "file:/x/c", "file:///x/c", "FILE:/x/c"])
def test_a_checkpoint_is_where_spark_has_it(text: str) -> None:
    """In each form that Spark takes for a folder of this host: what is confirmed follows from the files there."""
    assert StreamOptions.of(DURABLE | {"checkpointLocation": text}).checkpoint == "/x/c"


@pytest.mark.parametrize(
    "given, names",
    [
        ({"startingOffset": "1"}, "unknown option startingoffset; did you mean startingOffsets?"),
        ({"maxOffsetPerTrigger": "1"}, "did you mean maxOffsetsPerTrigger?"),
        ({"consumr": "x"}, "did you mean consumer?"),
        ({"zzz": "1"}, "unknown option zzz; known are .*startingOffsets"),
        ({"startOffset": "1"}, "did you mean startingOffsets?"),
        ({"endingOffsets": "9"}, "endingOffsets of readStream; use trigger"),
        ({"endingTimestamp": "9"}, "endingTimestamp of readStream; use trigger"),
        ({"startingOffsets": '{"t":{"0":1}}'}, r"as JSON it is \{\"facts.telemetry\":\{\"0\":OFFSET\}\}"),
        ({"startingOffsets": '{"facts.telemetry":{"0":1,"1":1}}'}, "as JSON it is"),
        ({"startingOffsets": '{"facts.telemetry":1}'}, "as JSON it is"),
        ({"startingOffsets": '{"facts.telemetry":{"0":true}}'}, "earliest, latest, cursor, or a whole number"),
        ({"startingOffsets": "{"}, "as JSON it is"),
        (DURABLE | {"takeOver": "true"}, "takeOver without startingOffsets=cursor"),
        (DURABLE | {"startingTimestamp": "2026-01-01T00:00"}, "a time with its zone, such as 2026-01-01T12:00Z"),
        (DURABLE | {"startingTimestamp": "yesterday"}, "a time with its zone"),
        ({"startingOffsets": "0"}, "startingOffsets '0'"),
        ({"startingOffsets": "cursor"}, "cursor without a consumer"),
        ({"startingTimestamp": "5"}, "startingTimestamp without a consumer"),
        ({"consumer": "local.lake"}, "without checkpointLocation"),
        ({"consumer": "Lake!", "checkpointLocation": "/c"}, "consumer 'Lake!'"),
        (DURABLE | {"checkpointLocation": "hdfs://x/c"}, "hdfs://x/c.*mounted"),
        (DURABLE | {"checkpointLocation": "dbfs:/c"}, "dbfs:/c.*mounted"),
        ({"kafka.security.protocol": "SSL"}, "kafka.security.protocol of Kafka.*transport mqtt"),
        (DURABLE | {"startingTimestamp": "5", "startingOffsets": "3"}, "give one of them"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss 'no'; it is true or false"),
        ({"onRestored": "ignore"}, "onRestored 'ignore'; known are fail, reread"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger '0'"),
        ({"minPartitions": "many"}, "minPartitions 'many'"),
        ({"path": "s3a://b/facts.db"}, "a file of the host"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], names: str) -> None:
    """Each is refused with its name and what would be right; a misspelt one with the nearest."""
    with pytest.raises(OptionError, match=names.replace("?", r"\?")):
        StreamOptions.of(PATH | given)


@pytest.mark.parametrize(
    "given, names",
    [
        ({"maxOffsetPerTrigger": "1"}, "unknown option maxoffsetpertrigger; did you mean maxOffsetsPerTrigger?"),
        ({"numPartitons": "1"}, "did you mean numPartitions?"),
        (
            {"startingOffsets": "soon"},
            "'soon'; of a batch read, earliest.*; of a stream, earliest, latest, cursor",
        ),
        ({"consumer": "local.lake"}, "without checkpointLocation"),
        ({"numPartitions": "0"}, "numPartitions '0'; a whole number"),
        ({"includeLabels": "maybe"}, "includeLabels 'maybe'"),
    ],
)
def test_options_that_suit_no_read_are_named_when_the_schema_is_asked_for(given: dict[str, str], names: str) -> None:
    """That is at `load`, before a query is started; what suits a batch read or a stream passes there."""
    source = BsfgDataSource(PATH | given)
    with pytest.raises(OptionError, match=names.replace("?", r"\?")) as caught:
        source.schema()
    assert len(traceback.extract_tb(caught.value.__traceback__)) <= 2, "Spark shows users the whole traceback"
    for fitting in ({"numPartitions": "2"}, {"maxOffsetsPerTrigger": "2"}, {"startingOffsets": "latest"}):
        assert BsfgDataSource(PATH | fitting).schema() == FACTS


def test_a_stream_with_wrong_options_says_so_when_it_is_started() -> None:
    """With a schema of the caller's, Spark asks for none: the reader is made, because Spark 4.3 ends in an
    UnboundLocalError otherwise, and refuses its first call."""
    reader = BsfgDataSource(PATH | {"consumr": "x"}).streamReader(FACTS)
    for call in (
        reader.initialOffset,
        lambda: reader.latestOffset({}, ReadAllAvailable()),
        lambda: reader.partitions({}, {}),
    ):
        with pytest.raises(OptionError, match="did you mean consumer"):
            call()

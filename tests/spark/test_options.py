"""Options and columns, as they come from a person at a keyboard."""

from pathlib import Path

import pytest
from pyspark.sql.types import DoubleType, StringType, StructField, StructType, TimestampNTZType

from pyspark_bsfg import options
from pyspark_bsfg.errors import OptionError
from pyspark_bsfg.options import Options
from pyspark_bsfg.schema import FACTS, arrow_schema

NODE = {"transport": "mqtt", "host": "h", "peer": "p", "cafile": "a", "certfile": "b", "keyfile": "c"}
NODES = {name: value for name, value in NODE.items() if name not in {"host", "peer"}}


def test_options_are_read_in_any_case() -> None:
    """Spark lowers keys; what is not given has its documented default."""
    found = Options.of({"PATH": "/x/facts.db", "startingoffsets": " 7 ", "endingOffsets": "10", "numPartitions": "3"})
    assert found == Options(("/x/facts.db",), start_offset=7, end_offset=9, partitions=3)
    assert Options.of({"path": "a"}) == Options(("a",))
    assert Options.of({"path": "a", "startingOffsets": "Earliest", "endingOffsets": "latest"}) == Options(("a",))
    assert Options.of({"path": "a", "endingoffsets": "1"}).end_offset == 0
    since = {"path": "a", "startingTimestamp": "5", "endingTimestamp": "9"}
    assert Options.of(since) == Options(("a",), since_unix_ms=5, before_unix_ms=9)


@pytest.mark.parametrize(
    "given, paths",
    [
        ({"path": "file:///x/a%20b/facts.db"}, ("/x/a b/facts.db",)),
        ({"path": "file:/x/facts.db"}, ("/x/facts.db",)),
        ({"path": "FILE://localhost/x/facts.db"}, ("/x/facts.db",)),
        ({"paths": '["/x/a.db", "file:///x/b.db"]'}, ("/x/a.db", "/x/b.db")),
        ({"path": "/x/*/facts.db"}, ("/x/*/facts.db",)),
    ],
)
def test_paths_in_every_form_that_spark_hands_over(given: dict[str, str], paths: tuple[str, ...]) -> None:
    """A path, several, a URI of a file as catalogs keep it; patterns stay for the host that has the files."""
    assert Options.of(given).paths == paths


@pytest.mark.parametrize(
    "given, names",
    [
        ({}, "path is missing"),
        ({"path": ""}, "path is missing"),
        ({"path": "a", "subscribe": "t"}, "option subscribe of Kafka; here it is stream"),
        (
            {"path": "a", "kafka.ssl.keystore.location": "k"},
            "option kafka.ssl.keystore.location of Kafka.*transport mqtt",
        ),
        ({"path": "a", "failondataloss": "true"}, "failondataloss of Kafka; here it is whenReleased, of a batch read"),
        ({"path": "a", "minpartitions": "3"}, "here it is numPartitions, of a batch read"),
        ({"path": "a", "maxoffsetspertrigger": "3"}, "here it is an option of readStream"),
        ({"path": "a", "endingofset": "5"}, "unknown option endingofset; did you mean endingOffsets"),
        ({"path": "a", "transport": "carrier pigeon"}, "transport 'carrier pigeon'.*file"),
        ({"path": "a", "stream": "Facts!"}, "stream 'Facts!'"),
        ({"path": "a", "startingoffsets": "0"}, "startingOffsets '0'; earliest, or a whole number from 1"),
        ({"path": "a", "startingoffsets": "-1"}, "startingOffsets '-1'"),
        ({"path": "a", "startingoffsets": "1e3"}, "startingOffsets '1e3'"),
        ({"path": "a", "startingoffsets": "٣"}, "startingOffsets"),
        ({"path": "a", "startingoffsets": "9" * 400}, "startingOffsets"),
        ({"path": "a", "startingoffsets": "9", "endingoffsets": "3"}, "endingOffsets 3 lies before startingOffsets 9"),
        ({"path": "a", "startingoffsets": "latest"}, "startingOffsets latest of a batch read; it is earliest"),
        ({"path": "a", "endingoffsets": "earliest"}, "endingOffsets earliest of a batch read; it is latest"),
        ({"path": "a", "startingtimestamp": "9", "endingtimestamp": "3"}, "endingTimestamp 3 lies before"),
        ({"path": "a", "endingoffsets": "9", "endingtimestamp": "3"}, "endingTimestamp and endingOffsets; give one"),
        (NODE | {"endingtimestamp": "3"}, "endingTimestamp of transport mqtt; give endingOffsets"),
        ({"path": "a", "numpartitions": "0"}, "numPartitions '0'"),
        ({"path": "a", "numpartitions": "10001"}, "numPartitions '10001'.*10000"),
        ({"path": "a", "maxfactsperpartition": "0"}, "maxFactsPerPartition '0'"),
        ({"path": "a", "pushfilters": "yes"}, "pushFilters 'yes'; it is true or false"),
        ({"path": "s3a://bucket/facts.db"}, "path 's3a://bucket/facts.db'.*a file of the host"),
        ({"path": "file://elsewhere/facts.db"}, "path 'file://elsewhere/facts.db'"),
        ({"path": "file://[x"}, r"path 'file://\[x'; a store is a file of the host"),
        ({"paths": "a, b"}, r"paths 'a, b'; use .load"),
        ({"path": "a", "host": "x"}, "option host is not of transport file"),
        ({"transport": "mqtt", "path": "a"}, "option path is not of transport mqtt"),
        ({"transport": "mqtt", "host": "x"}, "mqtt without peer, caFile, certFile, keyFile"),
        (NODE | {"peer": "Enterprise!"}, "peer 'Enterprise!'; the zone to read from"),
        (NODE | {"nodes": "north=a"}, "options nodes and host"),
        (NODES | {"nodes": "north"}, "mqtt without host"),
        (NODES | {"nodes": " "}, "name one or several zones"),
        (NODES | {"nodes": "north=a north=b"}, "each once"),
        (NODES | {"nodes": "North!=a"}, "peer 'North!'; the zone to read from"),
        (NODES | {"nodes": "north=a:x"}, "port 'x'"),
        (NODE | {"host": "a..b"}, "host 'a..b'; must be a host name"),
        (NODE | {"port": "65536"}, "port '65536'.*65535"),
        (NODE | {"requesttimeout": "0"}, "requestTimeout '0'"),
        (NODE | {"compromisedfile": "c"}, "compromisedFile without factsCaFile"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], names: str) -> None:
    """Each is refused with its documented name and what would be right."""
    with pytest.raises(OptionError, match=names):
        Options.of(given)


@pytest.mark.parametrize(
    "column, names",
    [
        (StructField("tags", StringType()), "no column 'tags'.*tag"),
        (StructField("value", StringType()), "value was requested as string; it is double"),
        (StructField("ts", TimestampNTZType()), "ts was requested as timestamp_ntz; it is timestamp"),
        (StructField("value", DoubleType(), nullable=False), "value was requested as NOT NULL"),
    ],
)
def test_a_wrong_column_is_named(column: StructField, names: str) -> None:
    """Spark's own words for these are a Java trace; ours say which column and what it is."""
    with pytest.raises(OptionError, match=names):
        arrow_schema(StructType([column]))
    with pytest.raises(OptionError, match="no column was requested"):
        arrow_schema(StructType())
    with pytest.raises(OptionError, match="column tag was asked for twice"):  # Spark ends with a Java trace
        arrow_schema(StructType([FACTS["tag"], StructField("TAG", StringType())]))


def test_columns_keep_the_order_asked_for() -> None:
    """The Arrow schema has the asked columns only, in that order, and all of them by default."""
    assert arrow_schema(StructType([FACTS["value"], FACTS["offset"]])).names == ["value", "offset"]
    assert arrow_schema(FACTS).names == FACTS.fieldNames()


def test_columns_are_found_in_any_case() -> None:
    """Spark finds columns in any case by default, so a schema may name them so; the Arrow schema has the name given."""
    asked = arrow_schema(StructType([StructField("TAG", StringType()), StructField("Value", DoubleType())]))
    assert asked.names == ["TAG", "Value"]


def test_every_option_is_documented() -> None:
    """The two tables name all that is accepted."""
    root = Path(__file__).resolve().parents[2]
    pages = [(root / page).read_text("utf-8") for page in ("spark/README.md", "docs/operate/spark.md")]
    assert [name for name in options.NAMES.values() if not any(f"`{name}`" in page for page in pages)] == ["paths"]

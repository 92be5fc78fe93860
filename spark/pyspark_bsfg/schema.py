"""The `facts` schema: one row per fact, samples and messages alike, and the Arrow schema that carries it.

A reader may request some of the columns only (`.schema("tag string, ts timestamp, value double")`): then only those are
made. Spark does not tell a Python data source which columns a query needs. Core: no IO.

    offset          position in the store's stream, dense, the order of arrival
    message_id      identity of the fact as text; computed for a sample, the producer's own for a message
    stream zone life sequence      the fact's identity for ever: where, and by which life of which store, it was recorded
    verified        yes: a signature of the origin proves the fact; suspect: with a key that counts as compromised; or no
    tag             subject: `tag:<scope>/<id>` for a sample, any `kind:id` for a message
    predicate       what the fact states about the subject
    ts              source time to the microsecond (for a message: when it was produced)
    source_time_ns  the same in full resolution, ns since 1970
    value           the number, as far as a double holds it: also of integers, and of booleans as 0 and 1
    value_int       integers and booleans exactly; NULL above int64
    value_text      text, JSON, bytes in base64, and unsigned integers above int64 in decimal
    value_type      double int uint bool string bytes json none, or message; `uint` only for what int64 cannot hold
    quality         OPC UA StatusCode; a long because it is unsigned; NULL for a message, which has none
    is_good         whether the severity of the quality is Good; its other bits say more, as in GoodOverload
    unit            of the tag's definition
    object_json     of a message: its object, canonical JSON; NULL for a sample, whose columns say the same

TABLE has more columns, made only if requested, and landed: the rest of a message's envelope, NULL for a sample
(docs/reference/messages.md). `includeLabels` adds the first one to a read.

    labels          names with texts; empty where the message has none
    to_zone correlation_id causation_id object_media_type object_schema

Making a row for each fact is most of the cost of a count, so facts can be counted by the store's index, or the headers
of batches:

    facts           how many facts a row stands for; only with stream, zone, life and verified, which they share. Their
                    sum is guaranteed, not where one row ends and the next one begins
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_bsfg.errors import OptionError

FACTS = StructType([
    StructField("offset", LongType(), nullable=False),
    StructField("message_id", StringType(), nullable=False),
    StructField("stream", StringType(), nullable=False),
    StructField("zone", StringType(), nullable=False),
    StructField("life", StringType(), nullable=False),
    StructField("sequence", LongType(), nullable=False),
    StructField("verified", StringType(), nullable=False),
    StructField("tag", StringType(), nullable=False),
    StructField("predicate", StringType(), nullable=False),
    StructField("ts", TimestampType(), nullable=False),
    StructField("source_time_ns", LongType(), nullable=False),
    StructField("value", DoubleType()),
    StructField("value_int", LongType()),
    StructField("value_text", StringType()),
    StructField("value_type", StringType(), nullable=False),
    StructField("quality", LongType()),
    StructField("is_good", BooleanType()),
    StructField("unit", StringType()),
    StructField("object_json", StringType()),
])  # fmt: skip

LABELS = StructField("labels", MapType(StringType(), StringType()))
ENVELOPE = ("to_zone", "correlation_id", "causation_id", "object_media_type", "object_schema")
TABLE = StructType([*FACTS.fields, LABELS, *(StructField(name, StringType()) for name in ENVELOPE)])
LANDED = StructType([*TABLE.fields, StructField("date", DateType())])
IDENTITY = ("stream", "zone", "life", "sequence")
COUNT = StructField("facts", LongType(), nullable=False)
SHARED = ("stream", "zone", "life", "verified")

# Spark compares the first record batch with this exactly: names, order, types and nullability.
_ARROW: dict[type[DataType], Any] = {
    BooleanType: pa.bool_(),
    LongType: pa.int64(),
    StringType: pa.string(),
    DoubleType: pa.float64(),
    TimestampType: pa.timestamp("us", tz="UTC"),
    MapType: pa.map_(pa.string(), pa.string()),
}


def projection(names: Sequence[str]) -> StructType:
    """Some columns of TABLE, or COUNT, in any case, as the schema of a read. Raises OptionError for an unknown
    column."""
    known = _known()
    if unknown := [name for name in names if name.lower() not in known]:
        raise OptionError(f"there is no column {unknown[0]!r}", f"the columns are {', '.join(known)}")
    return StructType([known[name.lower()] for name in names])


def arrow_schema(asked: StructType) -> Any:
    """The Arrow schema of the requested columns, with their order and names as requested, because Spark compares them.

    Columns are found in any case, as Spark finds them. Raises OptionError for an unknown column, for one that is asked
    for twice, and for one that the facts of a row of COUNT do not share.
    """
    known = _known()
    names = [name.lower() for name in asked.fieldNames()]
    if twice := [name for name in known if names.count(name) > 1]:
        raise OptionError(f"column {twice[0]} was asked for twice", "name each column once")
    if COUNT.name in names and (differing := [name for name in names if name not in {COUNT.name, *SHARED}]):
        raise OptionError(
            f"column {differing[0]} was requested with {COUNT.name}", f"{COUNT.name} goes with {', '.join(SHARED)} only"
        )
    fields = []
    for field in asked.fields:
        if (ours := known.get(field.name.lower())) is None:
            raise OptionError(f"there is no column {field.name!r}", f"the columns are {', '.join(known)}")
        if field.dataType != ours.dataType:  # also of text with another collation
            found = field.dataType.simpleString()
            raise OptionError(f"column {field.name} was requested as {found}", f"it is {ours.dataType.simpleString()}")
        if ours.nullable and not field.nullable:
            raise OptionError(f"column {field.name} was requested as NOT NULL", "it can be NULL")
        fields.append(pa.field(field.name, _ARROW[type(field.dataType)], nullable=field.nullable))
    if not fields:
        raise OptionError("no column was requested", "name at least one, or leave the schema out")
    return pa.schema(fields)


def _known() -> dict[str, StructField]:
    """All columns by their names."""
    return {field.name: field for field in (*TABLE.fields, COUNT)}

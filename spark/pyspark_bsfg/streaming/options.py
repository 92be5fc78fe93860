"""Options of `readStream`, parsed from Spark's texts into a frozen record. Core: no IO.

They have the names of Kafka's source if they mean the same. The options that locate the facts (path, stream, transport)
are parsed by `pyspark_bsfg.options`, as for a batch read. An unknown option is refused with the nearest one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import get_args

from agent.message import CONSUMER
from pyspark_bsfg.errors import OptionError
from pyspark_bsfg.options import (
    NAMES,
    OFFSET_MAX,
    PARTITIONS_MAX,
    Options,
    by_lower,
    choice,
    flag,
    local_path,
    number,
    plain_offset,
    unix_ms,
    unknown,
)
from pyspark_bsfg.streaming.offsets import OnRestored, Start

# A micro-batch costs some 0.8 s and a microsecond a fact; a larger one would only be more to repeat.
OFFSETS_PER_TRIGGER = 1_000_000
# Options of a batch read, and those that replace them in a stream.
INSTEAD = {
    "endingoffsets": "trigger(availableNow=True), which ends at what is there",
    "endingtimestamp": "trigger(availableNow=True), which ends at what is there",
    "numpartitions": "minPartitions",
    "whenreleased": "failOnDataLoss",
    "pushfilters": "nothing: a stream reads each fact once",
}
STARTS: dict[str, Start] = {"earliest": "earliest", "latest": "latest", "cursor": "cursor"}
NODES = "bsfg-nodes"  # a folder in the checkpoint, with one for each of several nodes
OURS = by_lower(
    "startingOffsets startingTimestamp maxOffsetsPerTrigger minPartitions failOnDataLoss consumer checkpointLocation"
    " onRestored takeOver"
)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What to read, where to start, and what to do about losses. `since_unix_ms` has priority over `start`."""

    read: Options = field(repr=False)
    start: Start = "earliest"
    since_unix_ms: int | None = None
    offsets_max: int = OFFSETS_PER_TRIGGER
    partitions_min: int | None = None
    is_loss_refused: bool = True
    consumer: str = ""
    checkpoint: str = ""
    on_restored: OnRestored = "fail"
    takes_over: bool = False

    @classmethod
    def of(cls, given: Mapping[str, str]) -> StreamOptions:
        """The options that Spark passes. Raises OptionError, which names the option as the documentation does."""
        texts = {key.lower(): value for key, value in given.items()}
        _refuse_strangers(texts)
        start = _start(texts)
        ours = {key: texts.pop(key) for key in list(texts) if key in OURS}
        options = cls(
            read=Options.of(texts),
            start=start,
            since_unix_ms=unix_ms(ours, "startingTimestamp"),
            offsets_max=number(ours, "maxOffsetsPerTrigger", OFFSET_MAX) or OFFSETS_PER_TRIGGER,
            partitions_min=number(ours, "minPartitions", PARTITIONS_MAX),
            is_loss_refused=flag(ours, "failOnDataLoss", "true"),
            consumer=ours.get("consumer", ""),
            checkpoint=_local_folder(ours.get("checkpointlocation", "")),
            on_restored=choice(ours, "onRestored", get_args(OnRestored)),
            takes_over=flag(ours, "takeOver", "false"),
        )
        options._check()
        return options

    def by_node(self) -> dict[str, StreamOptions]:
        """The options for each of several nodes, by zone: with a file of its own in the checkpoint."""
        nodes = f"{self.checkpoint}/{NODES}"
        return {
            node.peer: replace(
                self,
                read=replace(self.read, nodes=(node,)),
                checkpoint=f"{nodes}/{node.peer}" if self.checkpoint else "",
            )
            for node in self.read.nodes
        }

    def _check(self) -> None:
        if self.consumer and not CONSUMER.fullmatch(self.consumer):
            raise OptionError(f"consumer {self.consumer!r}", f"a consumer's name matches {CONSUMER.pattern}")
        if self.consumer and not self.checkpoint:
            raise OptionError(
                f"consumer {self.consumer} without checkpointLocation",
                "give readStream the checkpointLocation of the query too: a consumer belongs to one checkpoint",
            )
        if not self.consumer and (self.start == "cursor" or self.since_unix_ms is not None):
            named = "startingOffsets cursor" if self.start == "cursor" else "startingTimestamp"
            raise OptionError(f"{named} without a consumer", "name one: option consumer")
        if isinstance(self.start, int) and len(self.read.nodes) > 1:
            raise OptionError(
                f"startingOffsets {self.start} of several nodes", "each has its own; it is earliest or latest"
            )
        if self.takes_over and self.start != "cursor":
            raise OptionError(
                "takeOver without startingOffsets=cursor", "a query that takes over goes on at the cursor"
            )
        if self.since_unix_ms is not None and self.start != "earliest":
            raise OptionError("startingTimestamp and startingOffsets", "give one of them")


def check_either(given: Mapping[str, str]) -> None:
    """Raise OptionError for options that suit neither a batch read nor a stream: Spark asks a source for its schema
    without saying for which."""
    if {"location", "owner"} & {key.lower() for key in given}:  # of CREATE TABLE, whose options Spark does not pass on
        return
    for key in sorted(key.lower() for key in given):
        if key not in NAMES | OURS:
            raise unknown(key, NAMES | OURS)
    problems = []
    for kind in (Options, StreamOptions):
        try:
            kind.of(given)
        except OptionError as error:
            problems.append(error)
    if len(problems) < 2:
        return
    of_batch, of_stream = problems
    if of_batch.why == of_stream.why and of_batch.hint != of_stream.hint:
        raise OptionError(of_batch.why, f"of a batch read, {of_batch.hint}; of a stream, {of_stream.hint}")
    # If one of them does not know an option that the other one knows, the other one says what is wrong.
    raise of_stream if any(key.lower() in OURS.keys() - NAMES.keys() for key in given) else of_batch


def _refuse_strangers(texts: Mapping[str, str]) -> None:
    known = OURS | {key: name for key, name in NAMES.items() if key not in INSTEAD}
    for key in sorted(texts):
        if key in INSTEAD:
            # Kafka's source also refuses the ends: "not valid in streaming queries".
            raise OptionError(f"option {NAMES[key]} of readStream", f"use {INSTEAD[key]}")
        if key not in known:
            raise unknown(key, known)


def _start(texts: Mapping[str, str]) -> Start:
    text = plain_offset(texts, "startingOffsets", "earliest")
    if text in STARTS:
        return STARTS[text]
    offset = number({"startingoffsets": text}, "startingOffsets", OFFSET_MAX, "earliest, latest, cursor, or ")
    assert offset is not None
    return offset


def _local_folder(text: str) -> str:
    """The folder of a checkpoint on the driver's host. Raises OptionError for an address of another kind."""
    if (path := local_path(text)) is None:
        raise OptionError(
            f"checkpointLocation {text}", "for readStream it is a folder that the driver's host has mounted"
        )
    return path

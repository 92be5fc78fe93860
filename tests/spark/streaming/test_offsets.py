"""Offsets, checkpoints and options of a stream."""

import json
import traceback
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from agent.positions import LifeList, LogLives
from pyspark_bsfg.errors import FactsGone, JobRefused, NodeUnavailable, OptionError, SparkError
from pyspark_bsfg.ranges import OffsetRange
from pyspark_bsfg.schema import FACTS
from pyspark_bsfg.source import BsfgDataSource
from pyspark_bsfg.streaming.checkpoint import batch_offsets, bind, last_committed, query_id, read_binding, write_binding
from pyspark_bsfg.streaming.offsets import StreamOffset, first_offset, next_step, parts
from pyspark_bsfg.streaming.options import StreamOptions
from pyspark_bsfg.streaming.receipts import Receipts
from pyspark_bsfg.transports.ports import Bounds
from tests.support.disk_calls import DiskCalls

A, B = "a" * 32, "b" * 32
LIFE = "a" * 32
PATH = {"path": "/x/facts.db"}
DURABLE = PATH | {"consumer": "local.lake", "checkpointLocation": "/x/checkpoint"}


class Log:
    """A store between two batches: facts come, facts go, now and then it is restored from an older copy."""

    def __init__(self) -> None:
        self.lives: list[tuple[bytes, int]] = []
        self.released = self.end = self.opened = 0
        self.facts: list[int] = []  # the fact at each offset

    def grow(self, facts: int) -> None:
        life = self.opened.to_bytes(16)
        if facts and (not self.lives or self.lives[-1][0] != life):
            self.lives.append((life, self.end + 1))
        self.facts = [*self.facts[: self.end], *(1000 * self.opened + n for n in range(self.end, self.end + facts))]
        self.end += facts

    def release(self, facts: int) -> None:
        self.released = min(self.released + facts, self.end)

    def restore(self, facts: int) -> None:
        self.opened += 1
        self.end = max(self.end - facts, self.released)
        self.lives = [life for life in self.lives if life[1] <= self.end]

    def held(self, read: StreamOffset) -> Bounds:
        """What the store says to a reader at a position."""
        log = LogLives(LifeList(self.lives), self.end)
        here = log.resolve(read.position, lambda *_: False)
        resolved = None if here.how == "unknown" else here.offset
        return Bounds(log.end.life.hex(), self.released + 1, self.end, resolved=resolved)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.integers(0, 30)),
        st.tuples(st.just("release"), st.integers(0, 30)),
        st.tuples(st.just("restore"), st.integers(0, 30)),
        st.tuples(st.just("batch"), st.integers(1, 12)),
    ),
    max_size=40,
)


@given(STEPS)
def test_each_fact_is_in_a_batch(steps: list[tuple[str, int]]) -> None:
    """Batches lie end to end, none has more held facts than its limit, and all that was released before it was read is
    reported as lost. After a restore one empty batch leads back to where the log is the one that was read. At the end
    every fact of the log was read, those of a copy that is gone too, or reported."""
    log, at = Log(), StreamOffset("", 0)
    read, lost_of = set[int](), set[int]()
    for kind, number in [*steps, *[("batch", 1000)] * 3]:
        if kind != "batch":
            getattr(log, kind)(number)
            continue
        step = next_step(at, log.held(at), number, None, "reread")
        shares = parts(at, step.end, 2, 3, 5)
        offsets = [offset for share in shares for offset in range(share.first, share.last + 1)]
        assert offsets == list(range(at.offset + 1, step.end.offset + 1))
        lost = step.lost.facts if step.lost else 0
        assert lost == len([offset for offset in offsets if offset <= log.released])
        assert len(offsets) - lost <= number
        read |= {log.facts[offset - 1] for offset in offsets if offset > log.released}
        lost_of |= {log.facts[offset - 1] for offset in offsets if offset <= log.released}
        at = step.end
    assert at.offset == log.end
    assert set(log.facts[: log.end]) <= read | lost_of


@given(st.integers(0, 100), st.integers(1, 100), st.integers(0, 100), st.integers(1, 50), st.integers(0, 100))
def test_a_batch_never_goes_back_or_beyond(at: int, first: int, more: int, limit: int, target: int) -> None:
    """Whatever the log shows, the end of a batch is not before its start, and neither beyond the log nor beyond the end
    that a run with AvailableNow has set itself, but for a start that is beyond them already."""
    held, start = Bounds(A, first, first - 1 + more, resolved=at), StreamOffset(A, at)
    step = next_step(start, held, limit, StreamOffset(A, target), "fail")
    assert at <= step.end.offset <= max(at, held.end_offset, 0)
    assert step.end.offset <= max(at, target)
    if step.lost is not None:
        assert step.lost == OffsetRange(at + 1, first - 1)


@pytest.mark.parametrize(
    "partitions_min, facts_max, tasks", [(None, 1000, 1), (7, 1000, 7), (3, 10, 10), (200, 10, 100)]
)
def test_how_many_tasks_share_a_batch(partitions_min: int | None, facts_max: int, tasks: int) -> None:
    """One for a small batch; more where minPartitions asks for more, or one would get more than its limit; never more
    than there are facts."""
    shares = parts(StreamOffset(A, 50), StreamOffset(A, 150), 2, partitions_min, facts_max)
    assert len(shares) == tasks
    assert [shares[0].first, shares[-1].last] == [51, 150]


@pytest.mark.parametrize("resolved, turned", [(None, StreamOffset(B, 4)), (5, StreamOffset(A, 5))])
def test_a_restored_store_is_refused_unless_asked_for(resolved: int | None, turned: StreamOffset) -> None:
    """By default it ends the query, with what to do; nothing is read twice unasked. Otherwise the query goes on where
    the log is the one that was read, or at its first fact."""
    held = Bounds(B, 5, 9, resolved=resolved)
    with pytest.raises(FactsGone, match="onRestored=reread"):
        next_step(StreamOffset(A, 7), held, None, None, "fail")
    assert next_step(StreamOffset(A, 7), held, None, None, "reread") == (turned, None)


def test_what_was_landed_beyond_a_copy_is_read_again() -> None:
    """Landed up to (L, 100), the store is restored at 80, and another life reaches 95: facts 81 to 95 are read, though
    an offset of 100 was landed."""
    log, at = Log(), StreamOffset("", 0)
    log.grow(100)
    at = next_step(at, log.held(at), None, None, "reread").end
    log.restore(20)
    log.grow(15)
    turned = next_step(at, log.held(at), None, None, "reread").end
    assert (at.offset, turned) == (100, StreamOffset(at.life, 80))
    end = next_step(turned, log.held(turned), None, None, "reread").end
    assert end.life != at.life
    assert [tuple(part) for part in parts(turned, end, 1, None, 100)] == [(81, 95)]


def test_where_a_query_starts() -> None:
    """As Kafka's names say; a number is the first to be read, and must be within what is held or its end."""
    held = Bounds(A, 11, 20)
    assert [first_offset(start, held).offset for start in ("earliest", "latest", 11, 21)] == [10, 20, 10, 20]
    for wrong in (10, 22):
        with pytest.raises(FactsGone, match="holds 11 to 20"):
            first_offset(wrong, held)


def test_an_offset_has_one_text() -> None:
    """Spark compares offsets as text, so keys have a fixed order, and what was logged is read back."""
    assert json.dumps(StreamOffset(A, 5).to_json()) == f'{{"life": "{A}", "offset": 5}}'
    assert StreamOffset.of({"offset": 5, "life": A}) == StreamOffset(A, 5)
    assert StreamOffset.of({"life": A, "offset": 0}) == StreamOffset(A, 0)  # a query that began on an empty stream
    for wrong in (
        {},
        {"life": A},
        {"life": A, "offset": -1},
        {"life": 3, "offset": 1},
        {"life": A, "offset": True},
    ):
        with pytest.raises(OptionError, match="use another checkpoint"):
            StreamOffset.of(wrong)


def logged(folder: Path, batches: int, committed: int) -> None:
    """Spark's logs: batch n ends at offset 10 n + 10."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for batch in range(batches):
        offset = json.dumps(StreamOffset(LIFE, 10 * batch + 10).to_json())
        (folder / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{offset}")
        (folder / "offsets" / f".{batch}.crc").write_bytes(b"crc")
    for batch in range(committed):
        (folder / "commits" / str(batch)).write_text("v1\n{}")


def test_only_batches_with_a_commit_entry_are_finished(tmp_path: Path) -> None:
    """A batch that was planned, and perhaps landed, is not confirmed before Spark has its commit entry."""
    assert last_committed(tmp_path) is None
    logged(tmp_path, 13, 12)
    assert last_committed(tmp_path) == StreamOffset(LIFE, 120)
    assert batch_offsets(tmp_path, 0) == (None, StreamOffset(LIFE, 10))
    assert batch_offsets(tmp_path, 12) == (StreamOffset(LIFE, 120), StreamOffset(LIFE, 130))


def test_only_whole_commit_entries_count(tmp_path: Path) -> None:
    """What else lies in Spark's folder of commits is no entry: checksums, half-written and renamed files, also those
    whose names begin with a higher number."""
    logged(tmp_path, 13, 3)
    for name in (".3.crc", ".7.0f3e.tmp", "7.tmp", "8 (copy)", "9.crc", "x"):
        (tmp_path / "commits" / name).write_text("v1")
    assert last_committed(tmp_path) == StreamOffset(LIFE, 30)


def test_a_log_of_other_sources_is_refused(tmp_path: Path) -> None:
    """Also one of several sources, and one that was torn."""
    logged(tmp_path, 1, 0)
    line = json.dumps(StreamOffset(LIFE, 1).to_json())
    for text in ("v1", f"v1\n{{}}\n{line}\n{line}", 'v1\n{}\n{"t": {"0": 5}}', "v1\n{}\n{"):
        (tmp_path / "offsets" / "0").write_text(text)
        with pytest.raises(SparkError, match="checkpoint"):
            batch_offsets(tmp_path, 0)


def test_a_binding_is_kept(tmp_path: Path) -> None:
    """The id is made once; start and names are read back; a damaged file is refused, not replaced."""
    made = bind(tmp_path / "new", "enterprise", "facts.telemetry", "local.lake")
    assert bind(tmp_path / "new", "enterprise", "facts.telemetry", "local.lake") == made
    started = type(made)(made.app, made.store, made.stream, made.consumer, StreamOffset(LIFE, 7))
    write_binding(tmp_path / "new", started)
    assert read_binding(tmp_path / "new") == started
    for wrong in (("idmz", "facts.telemetry", "local.lake"), ("enterprise", "facts.operational", "local.lake")):
        with pytest.raises(JobRefused, match="belongs to"):
            bind(tmp_path / "new", *wrong)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["bsfg.json"]
    (tmp_path / "new" / "bsfg.json").write_text("{")
    with pytest.raises(JobRefused, match="is damaged"):
        read_binding(tmp_path / "new")


def test_a_query_that_never_began_binds_nothing(tmp_path: Path) -> None:
    """A misspelt consumer, which the node refuses, is corrected in the options; one that has a lease is bound."""
    refused = bind(tmp_path, "enterprise", "facts.telemetry", "lake")
    made = bind(tmp_path, "enterprise", "facts.telemetry", "local.lake")
    assert (read_binding(tmp_path), made.app == refused.app) == (made, False)
    write_binding(tmp_path, replace(made, lease=3))
    with pytest.raises(JobRefused, match=r"belongs to consumer local\.lake"):
        bind(tmp_path, "enterprise", "facts.telemetry", "local.pond")


def test_a_binding_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut after a consumer was registered must not leave it without its checkpoint."""
    calls = DiskCalls(monkeypatch)
    bind(tmp_path / "new", "enterprise", "facts.telemetry", "local.lake")
    calls.check_durable(tmp_path / "new" / "bsfg.json")


def test_the_id_of_a_query_is_sparks(tmp_path: Path) -> None:
    """None before the first start."""
    assert query_id(tmp_path) is None
    (tmp_path / "metadata").write_text('{"id":"4c1f"}')
    assert query_id(tmp_path) == "4c1f"


def test_a_confirmation_that_failed_is_repeated(tmp_path: Path) -> None:
    """As often as it fails; what is confirmed is not confirmed again, and the next batch is."""
    bind(tmp_path, "enterprise", "facts.telemetry", "local.lake")
    logged(tmp_path, 3, 2)
    away = NodeUnavailable("enterprise does not answer", "start it")
    source = Mock(confirm=Mock(side_effect=[away, away, None, None]))
    receipts = Receipts(Mock(opened=lambda: nullcontext(source)), "local.lake", tmp_path)
    assert [receipts.confirm() for _ in range(4)] == [False, False, True, True]
    (tmp_path / "commits" / "2").write_text("v1\n{}")
    assert receipts.confirm()
    assert [call.args[:3] for call in source.confirm.call_args_list] == [
        *[("local.lake", 20, LIFE)] * 3,
        ("local.lake", 30, LIFE),
    ]


def test_a_checkpoint_that_is_not_bound_yet_has_nothing_to_confirm(tmp_path: Path) -> None:
    """A query of before has batches there, and the store of this one, which has a consumer, was not reached."""
    logged(tmp_path, 3, 2)
    source = Mock()
    assert not Receipts(Mock(opened=lambda: nullcontext(source)), "local.lake", tmp_path).confirm()
    source.confirm.assert_not_called()


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

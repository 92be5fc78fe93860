"""What is read and kept in a checkpoint, and confirmed by it, without Spark."""

import json
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest

from pyspark_bsfg.errors import JobRefused, NodeUnavailable, SparkError
from pyspark_bsfg.streaming.checkpoint import batch_offsets, bind, last_committed, query_id, read_binding, write_binding
from pyspark_bsfg.streaming.offsets import StreamOffset
from pyspark_bsfg.streaming.receipts import Receipts
from tests.support.disk_calls import DiskCalls

LIFE = "a" * 32


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
    for wrong in (("idmz", "facts.telemetry", "local.lake"), ("enterprise", "facts.operational", "local.lake")):
        with pytest.raises(JobRefused, match="belongs to"):
            bind(tmp_path / "new", *wrong)
    started = type(made)(made.app, made.store, made.stream, made.consumer, StreamOffset(LIFE, 7))
    write_binding(tmp_path / "new", started)
    assert read_binding(tmp_path / "new") == started
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["bsfg.json"]
    (tmp_path / "new" / "bsfg.json").write_text("{")
    with pytest.raises(JobRefused, match="is damaged"):
        read_binding(tmp_path / "new")


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

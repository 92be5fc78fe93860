"""The Iceberg table, read by pyiceberg alone: each fact once, whatever is repeated. No JVM."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog

from pyspark_bsfg.errors import JobRefused
from pyspark_bsfg.jobs import export as module
from pyspark_bsfg.jobs.derived import Part, Source
from pyspark_bsfg.jobs.export import SCHEMA, export
from pyspark_bsfg.jobs.settings import Export

JANUARY_1, JANUARY_2 = ("2026-01-01", "plant-a"), ("2026-01-02", "7")


def part(folder: Path, key: tuple[str, str], numbers: range, state: str) -> Part:
    """A file of cleaned facts, with these values."""
    schema = pa.schema([field for field in SCHEMA if field.name not in {"date", "zone"}])
    ts = datetime.fromisoformat(key[0]).replace(tzinfo=UTC)
    always: dict[str, Any] = {
        field.name: 0 if pa.types.is_int64(field.type) else "x" for field in schema if not field.nullable
    }
    rows = [
        always | {"offset": n, "ts": ts, "number": float(n), "labels": [("shift", "early")], "tag": "t"}
        for n in numbers
    ]
    path = folder / f"{key[0]}.{state}.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
    return Part(len(rows), len(rows), (str(path),), state)


def exported(asked: Export) -> list[tuple[Any, ...]]:
    """What another program finds."""
    with load_catalog(asked.catalog, **asked.properties) as catalog:
        rows = catalog.load_table(asked.table).scan().to_arrow().to_pylist()
    return sorted((row["date"].isoformat(), row["zone"], row["number"], dict(row["labels"])["shift"]) for row in rows)


@pytest.mark.filterwarnings("ignore")  # pyiceberg's own: a delete that matches nothing
def test_a_date_and_zone_is_exported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run writes nothing; a changed date replaces its rows and no other, also by none; a run that ends between
    two commits goes on with the rest. A catalog that cannot be opened is a clear error."""
    (tmp_path / "lake").mkdir()
    asked = Export("plant.facts", "test", {"uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/lake"})
    parts = {JANUARY_1: part(tmp_path, JANUARY_1, range(3), "a"), JANUARY_2: part(tmp_path, JANUARY_2, range(2), "a")}
    calls = []

    def killed(*arguments: Any) -> int:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return replace(*arguments)

    replace = module._replace
    with monkeypatch.context() as broken:
        broken.setattr(module, "_replace", killed)
        with pytest.raises(KeyboardInterrupt):
            export(asked, Source(tmp_path, parts), lambda _: None)
    assert len(exported(asked)) == 3
    done = export(asked, Source(tmp_path, parts), lambda _: None)
    assert (done.dates_and_zones, done.unchanged, done.rows) == (1, 1, 2)
    parts[JANUARY_1] = part(tmp_path, JANUARY_1, range(4), "b")
    assert export(asked, Source(tmp_path, parts), lambda _: None).rows == 4
    assert export(asked, Source(tmp_path, parts), lambda _: None).unchanged == 2
    first = [("2026-01-01", "plant-a", float(n), "early") for n in range(4)]
    with load_catalog(asked.catalog, **asked.properties) as catalog:
        fields = catalog.load_table(asked.table).schema().fields
    assert (
        {field.name for field in fields if field.required}
        == {field.name for field in SCHEMA if not field.nullable}
        >= {"offset"}
    )
    assert exported(asked) == [*first, ("2026-01-02", "7", 0.0, "early"), ("2026-01-02", "7", 1.0, "early")]
    export(asked, Source(tmp_path, parts | {JANUARY_2: Part(0, 0, (), "b")}), lambda _: None)
    assert exported(asked) == first
    with pytest.raises(JobRefused, match="the Iceberg catalog"):
        export(Export("plant.facts", "test", {"uri": "nowhere://"}), Source(tmp_path, parts), lambda _: None)

"""Shell: copies the cleaned facts to an Iceberg table, each date and zone in one commit.

A commit replaces a date and zone. A property of the table, set in the same commit, records its content. So present
content is not written again, and the next run continues after a killed one. The catalog is pyiceberg's, with its
properties from the TOML or from pyiceberg's own configuration. Needs the extra `spark-iceberg`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_bsfg.errors import JobRefused
from pyspark_bsfg.jobs.derived import Key, Part, Source
from pyspark_bsfg.jobs.settings import Export
from pyspark_bsfg.landing.lander import FACTS_SCHEMA

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

SCHEMA = pa.schema([
    *(field for field in FACTS_SCHEMA if field.name not in {"date", "zone"}),
    pa.field("problem", pa.string()),
    pa.field("number", pa.float64()),
    *(FACTS_SCHEMA.field(name) for name in ("date", "zone")),
])  # fmt: skip
STATE = "bsfg."  # prefix of a property; date and zone follow


@dataclass(slots=True)
class Exported:
    """What a run did."""

    dates_and_zones: int = 0
    unchanged: int = 0
    rows: int = 0


def export(asked: Export, source: Source, report: Callable[[str], None]) -> Exported:
    """Bring the Iceberg table up to date. Raises JobRefused."""
    try:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import CommitFailedException, RESTError
    except ImportError as error:
        raise JobRefused("[export] needs the package pyiceberg", "pip install 'bsfg-agent[spark-iceberg]'") from error
    done = Exported()
    try:
        with load_catalog(asked.catalog, **asked.properties) as catalog:
            target = _table(catalog, asked.table)
            for key, part in source.parts.items():
                if target.properties.get(_name(key)) == part.state:
                    done.unchanged += 1
                    continue
                report(f"export: {' '.join(key)}")
                done.rows += _replace(target, key, part)
                done.dates_and_zones += 1
    except CommitFailedException as error:
        raise JobRefused(f"{asked.table}: another program changed the table: {error}", "run it again") from error
    except (OSError, RESTError, ValueError) as error:
        raise JobRefused(f"the Iceberg catalog {asked.catalog}: {error}", "see [export] and its properties") from error
    return done


def _table(catalog: Catalog, name: str) -> Table:
    from pyiceberg.exceptions import NoSuchTableError

    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        made = catalog.create_table(name, SCHEMA)
        with made.update_spec() as spec:
            spec.add_identity("date")
            spec.add_identity("zone")
        return made


def _replace(target: Table, key: Key, part: Part) -> int:
    """Replace the rows of a date and zone and record their content, in one commit."""
    from pyiceberg.expressions import And

    rows = _rows(key, part)
    with target.transaction() as change:
        change.overwrite(rows, And(_is("date", key[0]), _is("zone", key[1])))
        change.set_properties({_name(key): part.state})
    return int(rows.num_rows)


def _rows(key: Key, part: Part) -> Any:
    found = [pq.ParquetFile(path).read() for path in part.paths]
    rows = pa.concat_tables(found) if found else SCHEMA.empty_table().drop_columns(["date", "zone"])
    day = pa.repeat(pa.scalar(date.fromisoformat(key[0]), pa.date32()), rows.num_rows)
    zone = pa.repeat(pa.scalar(key[1]), rows.num_rows)
    return rows.append_column("date", day).append_column("zone", zone).select(SCHEMA.names).cast(SCHEMA)


def _is(name: str, value: str) -> Any:
    from pyiceberg.expressions import EqualTo

    made: Any = EqualTo  # its type stubs know only keyword arguments
    return made(name, value)


def _name(key: Key) -> str:
    return STATE + ".".join(key)

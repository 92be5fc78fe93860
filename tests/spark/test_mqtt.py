"""Reading a node over MQTT: the same rows as from its file, whatever the tasks, and clear errors where it cannot be.

Broker, access list and node are real and run in processes of their own (`served`); there is no JVM here.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual
from pyspark.sql.types import StructType

from agent.fact_store import FactStore
from agent.message import Sample
from agent.signing.keys import ZoneSigner
from pyspark_bsfg import FACTS, BsfgDataSource, columns
from pyspark_bsfg.errors import ConsumerRefused, FactsGone, NodeUnavailable, OptionError, StreamUnknown
from pyspark_bsfg.options import Options
from pyspark_bsfg.reader import PruningReader
from pyspark_bsfg.streaming.reader import NO_CLAIM
from pyspark_bsfg.transports import Asked, mqtt_node, places, range_pages
from tests.fact_store.making import damage
from tests.signing import signers
from tests.spark import making
from tests.spark.making import ENTERPRISE, NOON_NS, TELEMETRY, VALUES, Served, served, store_path
from tests.spark.test_reader import read, sent
from tests.support.mosquitto import free_port

pytestmark = [pytest.mark.system]

RUN = [Sample(1 + n % 3, NOON_NS + n * 100, value, n % 2) for n, value in enumerate(VALUES)]
LONG_BATCHES = 30
DAMAGED = len(VALUES) + 5001  # where the sixth long batch begins
HELD = len(VALUES) + 1000 * LONG_BATCHES  # the node adds facts of its own behind these
LAST_HOUR = datetime.fromtimestamp(NOON_NS / 10**9, UTC) + timedelta(hours=LONG_BATCHES - 1)
NARROW = StructType([FACTS["offset"], FACTS["zone"], FACTS["verified"]])
QUICK = {"attempts": 1, "requestTimeout": 5}


def read_node(options: dict[str, str], schema: StructType = FACTS, *filters: Filter, **others: Any) -> list[Any]:
    """All rows, through pickle as from the driver to its tasks."""
    given = options | {name: str(value) for name, value in others.items()}
    reader = sent(BsfgDataSource(given).reader(schema))
    if filters:
        assert isinstance(reader, PruningReader)
        assert list(reader.pushFilters(list(filters))) == list(filters)
    return [
        row
        for part in reader.partitions()
        for record_batch in reader.read(sent(part))
        for row in record_batch.to_pylist()
    ]


def offsets(rows: list[Any]) -> list[int]:
    """The offsets of rows."""
    return [row["offset"] for row in rows]


def fill(path: Path, signer: ZoneSigner | None = None) -> None:
    """Every type of value in small batches, then long ones, an hour each; one of these is damaged."""
    path.parent.mkdir(parents=True)
    long = [
        [Sample(1 + at % 2, NOON_NS + (at * 3600 + n) * 10**9, float(n)) for n in range(1000)]
        for at in range(LONG_BATCHES)
    ]
    with FactStore.open(path, ENTERPRISE, settings=making.AT_ONCE, signer=signer) as opened:
        opened.appends.define(making.DEFINITIONS).result()
        for run in [RUN[:5], RUN[5:6], RUN[6:], *long]:
            opened.appends.append_samples(TELEMETRY, run).result()


@pytest.fixture(scope="module")
def authority() -> signers.Made:
    """A facts authority."""
    return signers.make("facts", is_ca=True)


@pytest.fixture(scope="module")
def signer(authority: signers.Made) -> ZoneSigner:
    """The key of the enterprise zone."""
    made = signers.make(ENTERPRISE, authority, ends=datetime.now(UTC) + timedelta(days=9))
    return ZoneSigner(signers.signing_key(made), made.der)


@pytest.fixture(scope="module")
def enterprise(tmp_path_factory: pytest.TempPathFactory, signer: ZoneSigner) -> Iterator[Served]:
    """A node that serves the signed facts of `fill`."""
    folder = tmp_path_factory.mktemp("enterprise")
    fill(store_path(folder), signer)
    damage(store_path(folder), DAMAGED)
    with served(folder) as running:
        yield running


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_node_gives_what_its_file_holds(enterprise: Served, caplog: pytest.LogCaptureFixture, tasks: int) -> None:
    """Row by row, also where tasks begin and end inside batches; the damaged facts are named."""
    options = enterprise.options(endingOffsets=HELD + 1, numPartitions=tasks)
    found = read_node(options)
    said = [record.getMessage() for record in caplog.records if "are missing" in record.getMessage()]
    expected = read(enterprise.store, endingOffsets=HELD + 1)
    unproven = [row | {"verified": "no"} for row in expected]
    making.same(found, unproven)
    assert len(found) == HELD - 1000
    assert any(
        f"1000 facts of facts.telemetry ({DAMAGED} to {DAMAGED + 999} damaged) are missing" in line for line in said
    )


def test_a_filter_skips_what_it_excludes(enterprise: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Filters on time and tag give the rows that match, and batches outside the time are not opened."""
    opened: list[int] = []
    unwatched = columns.open_packed
    monkeypatch.setattr(columns, "open_packed", lambda sealed: opened.append(sealed.header.count) or unwatched(sealed))
    since, tag = LAST_HOUR - timedelta(hours=2), making.DEFINITIONS[1].subject
    filters = [GreaterThanOrEqual(("ts",), since), EqualTo(("tag",), tag)]
    rows = read_node(enterprise.options(endingOffsets=HELD + 1, pushFilters="true"), FACTS, *filters)
    assert len(opened) == 3
    expected = [
        row for row in read(enterprise.store, endingOffsets=HELD + 1) if row["tag"] == tag and row["ts"] >= since
    ]
    making.same([row | {"verified": "yes"} for row in rows], expected)
    assert len(rows) == 2000


@pytest.mark.parametrize("tasks", [1, 4])
def test_signatures_are_verified_where_an_authority_is_trusted(
    enterprise: Served, authority: signers.Made, signer: ZoneSigner, tmp_path: Path, tasks: int
) -> None:
    """Each fact is `yes`, also at the ends of tasks, which cut runs and batches; `no` without an authority or with
    another one; `suspect` where the key counts as compromised. No fact comes twice or is left out by whole runs."""
    ca, other = tmp_path / "facts.pem", tmp_path / "other.pem"
    ca.write_bytes(authority.pem)
    other.write_bytes(signers.make("facts", is_ca=True).pem)
    compromised = tmp_path / "compromised.toml"
    for key_id, year in ((b"of later".hex(), 2100), (signer.key_id.hex(), 2026)):
        with compromised.open("a") as file:
            file.write(f'[[compromised]]\nkey_id = "{key_id}"\nsince = {year}-01-01T00:00:00Z\n')
    options = enterprise.options(startingOffsets=40, endingOffsets=HELD - 299, numPartitions=tasks)
    intact = [offset for offset in range(40, HELD - 299) if not DAMAGED <= offset < DAMAGED + 1000]

    def verified(**more: object) -> set[str]:
        rows = read_node(options, NARROW, **more)
        assert offsets(rows) == intact
        return {row["verified"] for row in rows}

    assert verified(factsCaFile=ca) == {"yes"}
    assert verified() == verified(factsCaFile=other) == {"no"}
    assert verified(factsCaFile=ca, compromisedFile=compromised) == {"suspect"}


def test_a_consumer_is_registered_and_confirmed_over_mqtt(enterprise: Served) -> None:
    """The cursor is that of the node: none, then at the start, then where it was confirmed, and never back; a name that
    is not of our zone is refused by the protocol's code."""
    [place] = places(Options.of(enterprise.options()))
    with place.opened() as source:
        bounds = source.bounds(TELEMETRY)
        name = "analytics.landing"
        assert source.cursor(name) is None
        assert source.register(name, TELEMETRY, "oldest", NO_CLAIM).frontier == 0
        source.confirm(name, 7, bounds.life, NO_CLAIM)
        source.confirm(name, 3, bounds.life, NO_CLAIM)
        assert source.cursor(name) == source.register(name, TELEMETRY, "oldest", NO_CLAIM).frontier == 7
        with pytest.raises(ConsumerRefused, match=r"enterprise at 127.0.0.1") as refused:
            source.register("landing", TELEMETRY, "oldest", NO_CLAIM)
        assert refused.value.code == "consumer_not_yours"
        asked = Asked(TELEMETRY, bounds.offsets, "11" * 16)
        with pytest.raises(FactsGone, match="older copy"):
            next(iter(source.pages(asked, None, needs_proofs=False)))  # type: ignore[arg-type]


def test_a_wrong_way_has_an_error_that_names_it(enterprise: Served, tmp_path: Path) -> None:
    """Stream, peer, port, key and certificate: each error names the thing, and what was tried."""
    with pytest.raises(StreamUnknown, match=r"exported to analytics: facts.telemetry"):
        read_node(enterprise.options(stream="facts.other"))
    with pytest.raises(NodeUnavailable, match=r"rights forbid it.*--link plant-a:analytics"):
        read_node(enterprise.options(peer="plant-a"), **QUICK)
    with pytest.raises(NodeUnavailable, match=r"as zone analytics, 1 times: .*cannot be reached"):
        read_node(enterprise.options(port=free_port()), **QUICK)
    with pytest.raises(NodeUnavailable, match=r"none.key: No such file"):
        read_node(enterprise.options(keyFile=tmp_path / "none.key"))
    key = tmp_path / "open.key"
    key.write_bytes(enterprise.broker.identity("analytics").key_file.read_bytes())
    key.chmod(0o644)
    with pytest.raises(NodeUnavailable, match=r"open.key is accessible to others \(mode 0644\)"):
        read_node(enterprise.options(keyFile=key))
    with pytest.raises(NodeUnavailable, match=r"authority that is not in ca_file"):
        read_node(enterprise.options(caFile=enterprise.broker.identity("analytics").cert_file), **QUICK)
    with pytest.raises(OptionError, match=r"transport mqtt without host.*it needs host, peer, caFile"):
        read_node(enterprise.options(host=""))


def test_a_process_keeps_one_connection(enterprise: Served) -> None:
    """Three reads of three tasks each are one new connection at most: more in a minute would stop at the firewall."""

    def connections() -> int:
        return enterprise.broker.log_text().count("u'analytics'")

    options, before = enterprise.options(endingOffsets=2001, numPartitions=3, requestTimeout=9), connections()
    for _ in range(3):
        assert len(read_node(options, NARROW)) == 2000
    assert connections() == before + 1


def test_a_key_that_spark_has_brought_is_closed_to_others(enterprise: Served, tmp_path: Path) -> None:
    """`--files` leaves a key with mode 0711, which others cannot read; it is used, and then has mode 0600."""
    key = tmp_path / "brought.key"
    key.write_bytes(enterprise.broker.identity("analytics").key_file.read_bytes())
    key.chmod(0o711)
    assert offsets(read_node(enterprise.options(keyFile=key, endingOffsets=4), NARROW)) == [1, 2, 3]
    assert key.stat().st_mode & 0o777 == 0o600


def test_a_read_outlives_a_node_that_is_killed(enterprise: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node is killed between two pages: who asks once is told so, a task that asks again goes on when the node is
    back, and each fact came once."""
    monkeypatch.setattr(range_pages, "PAGE_BYTES", 10_000)
    monkeypatch.setattr(columns, "FACTS_MAX_PER_GROUP", 10_000)
    options = enterprise.options(endingOffsets=HELD + 1, numPartitions=1, attempts=100)
    reader = BsfgDataSource(options).reader(NARROW)
    [part] = reader.partitions()
    rows = reader.read(part)
    found = offsets(next(rows).to_pylist())
    assert len(found) < HELD - 10_000
    enterprise.node.kill()
    with pytest.raises(NodeUnavailable, match="no node serves it now"):
        read_node(options, **QUICK)
    with ThreadPoolExecutor(1) as reading:
        rest = reading.submit(lambda: [offset for record_batch in rows for offset in offsets(record_batch.to_pylist())])
        enterprise.node.start()
        found += rest.result()
    assert found == [offset for offset in range(1, HELD + 1) if not DAMAGED <= offset < DAMAGED + 1000]


def test_files_that_spark_brings_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`spark-files:NAME` is the file in the process's own folder; the process that plans a stream has one without
    files, whose parent has them. A file that is nowhere is named where it was looked for."""
    monkeypatch.setattr(mqtt_node.SparkFiles, "get", lambda name: str(tmp_path / "streaming_job" / name))
    (tmp_path / "ca.pem").touch()
    assert mqtt_node._local("spark-files:ca.pem") == tmp_path / "ca.pem"
    assert mqtt_node._local("spark-files:none.pem") == tmp_path / "streaming_job" / "none.pem"
    (tmp_path / "streaming_job").mkdir()
    (tmp_path / "streaming_job" / "ca.pem").touch()
    assert mqtt_node._local("spark-files:ca.pem") == tmp_path / "streaming_job" / "ca.pem"
    assert mqtt_node._local("/etc/ca.pem") == Path("/etc/ca.pem")

"""The records that a store keeps of batches it has released: they prove to a zone that it is an old copy."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from agent.batch import Batch
from agent.fact_store import FactStore
from agent.pages import SignedBatch
from agent.positions import Position
from agent.settings.store import StreamSettings
from agent.signing.keys import SigningKey
from tests.fact_store.making import AT_ONCE, TELEMETRY, Elsewhere, done, parsed
from tests.signing.making import signing
from tests.support.received import put_page
from tests.waiting import wait_until

POLICY = [StreamSettings(TELEMETRY, keep_hours=0)]


def mill_with(count: int) -> tuple[Elsewhere, list[Batch]]:
    """A zone with signed batches of ten facts."""
    mill = Elsewhere("mill")
    mill.sign = signing(SigningKey.generate())
    for _ in range(count):
        mill.seal(10)
    return mill, parsed(mill.sealed)


def put(store: FactStore, mill: Elsewhere, batches: Sequence[Batch], offset: int) -> None:
    """Hand over some of its batches."""
    position = Position(mill.origin.epoch, offset)
    done(put_page(store, "mill", TELEMETRY, batches, mill.received(), position))


def of(batch: Batch) -> SignedBatch:
    """What is kept of a batch."""
    return SignedBatch(batch.header.last_sequence, batch.digest, batch.record, batch.signed_digest)


def shown(store: FactStore, mill: Elsewhere, *sequences: int) -> list[SignedBatch | None]:
    """The records that cover sequences."""
    return [store.signed_batch(TELEMETRY, mill.origin, one) for one in sequences]


def release(store: FactStore, end: int) -> None:
    """Confirm all, and wait until the rows are deleted."""
    done(store.consumers.confirm("cloud.x", end))
    with closing(sqlite3.connect(f"file:{store.path}?mode=ro", uri=True)) as file:
        wait_until(lambda: file.execute("SELECT count(*) FROM batch").fetchone() == (0,), "all to be deleted")


def test_the_last_record_of_each_released_range_is_kept(tmp_path: Path) -> None:
    """Also after a restart. Facts of two histories were held with a gap between: the end of the first proves to its
    zone that it is an old copy, so the second does not displace it. A record covers what is before it, and nothing
    behind; for what is held, the held batch is shown."""
    mill, batches = mill_with(6)
    path = tmp_path / "idmz.db"
    with FactStore.open(path, "idmz", settings=AT_ONCE, streams=POLICY) as store:
        done(store.consumers.register("cloud.x", "cloud", TELEMETRY, "oldest"))
        put(store, mill, batches[:2], 1)
        put(store, mill, batches[3:5], 2)
        release(store, 40)
    with FactStore.open(path, "idmz", settings=AT_ONCE) as store:
        first, second = of(batches[1]), of(batches[4])
        assert shown(store, mill, 5, 20, 21, 50, 51) == [first, first, second, second, None]
        put(store, mill, batches[5:], 3)
        assert shown(store, mill, 20, 40, 51, 60, 61) == [first, second, *[of(batches[5])] * 2, None]
        put(store, mill, batches[2:3], 4)
        assert shown(store, mill, 20, 21) == [first, of(batches[2])], "it came late, and is held"


def test_a_record_before_a_sequence_does_not_cover_it(tmp_path: Path) -> None:
    """The end of a zone's facts is released here, and earlier ones arrive later by another path: the end is still
    proven by its own record."""
    mill, batches = mill_with(3)
    with FactStore.open(tmp_path / "idmz.db", "idmz", settings=AT_ONCE, streams=POLICY) as store:
        done(store.consumers.register("cloud.x", "cloud", TELEMETRY, "oldest"))
        put(store, mill, batches[2:], 30)
        release(store, 10)
        put(store, mill, batches[:1], 31)
        assert shown(store, mill, 5, 11, 30) == [of(batches[0]), of(batches[2]), of(batches[2])]

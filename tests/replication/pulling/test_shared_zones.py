"""What is left out of a page because the requester named it as held, and the proof that it was just that."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.batch import DIGEST_BYTES, Batch, Codec, Definitions, Header, Kind, Origin
from agent.errors import StoreError
from agent.fact_store.core import Insert, decide_insert
from agent.pages import BatchEnd, HeldRange, Page, StoredBatch
from agent.replication.protocol.messages import HELD_RUNS_MAX, HeldRun
from agent.replication.pulling.shared_zones import SharedZones
from agent.replication.serving.page import HeldThere, ReadPlan, Selection, select_page

STREAM = "facts.telemetry"
ORIGIN = Origin("mill", bytes(16))


def chain(sizes: Iterable[int], mark: bytes = b"", after: Sequence[Batch] = ()) -> list[Batch]:
    """Batches of so many facts, each with the digest of the one before it; `mark` makes them others."""
    found = list(after)
    for size in sizes:
        last = found[-1] if found else None
        first, before = (last.header.last_sequence + 1, last.digest) if last else (1, bytes(DIGEST_BYTES))
        header = Header(
            STREAM,
            ORIGIN,
            Kind.SAMPLES,
            Codec.RAW,
            False,
            first,
            size,
            0,
            0,
            before,
            Definitions(),
            0,
        )
        digest = blake2b(before + mark + bytes([size]), digest_size=DIGEST_BYTES).digest()
        found.append(Batch(header, bytes(100), digest, 0))
    return found


@dataclass
class Store:
    """What one node has stored of a life, in this order: decided by the rules of the product."""

    log: list[Batch] = field(default_factory=list)
    ranges: tuple[HeldRange, ...] = ()
    released: int = 0
    error: Exception | None = None

    @classmethod
    def of(cls, batches: Iterable[Batch]) -> "Store":
        """A store that was offered these batches."""
        found = cls()
        for batch in batches:
            decided = decide_insert(found.ranges, HeldRange.of(batch.header, batch.digest), found._batch_at)
            if isinstance(decided, Insert):
                found.ranges = decided.ranges
                found.log.append(batch)
        return found

    def _batch_at(self, sequence: int) -> HeldRange | None:
        ranges = [HeldRange.of(batch.header, batch.digest) for batch in self.log]
        return next((held for held in ranges if held.first_sequence <= sequence <= held.last_sequence), None)

    # --- as `StoredFacts`

    def earlier_lives(self, _stream: str, zone: str, *_: object) -> Mapping[Origin, Sequence[HeldRange]]:
        if self.error is not None:
            raise self.error
        return {ORIGIN: self.ranges} if zone == ORIGIN.zone and self.ranges else {}

    def held_of(self, _stream: str, origin: Origin) -> Sequence[HeldRange]:
        if self.error is not None:
            raise self.error
        return self.ranges if origin == ORIGIN else ()

    def batch_ends(self, _stream: str, _origin: Origin, sequences: Sequence[int]) -> Sequence[BatchEnd]:
        kept = self.log[self.released :]
        return [
            BatchEnd(batch.header.last_sequence, batch.digest)
            for batch in kept
            for sequence in sequences
            if batch.header.first_sequence <= sequence <= batch.header.last_sequence
        ]


def shared(store: Store) -> SharedZones:
    """What a reader with this store names."""
    return SharedZones(store, STREAM, ("mill", "mill-2"))  # type: ignore[arg-type]


def page(server: Store, held: Sequence[tuple[str, str, int, int]]) -> tuple[Sequence[HeldRun], list[Batch]]:
    """The runs that a server names as left out of its log, and the batches that it left out."""
    rows, offset = list[StoredBatch](), 1
    for batch in server.log:
        rows.append(StoredBatch(offset, batch))
        offset += batch.header.count
    chosen = select_page(ReadPlan(STREAM, 0, 10**6, 10**6), Page(rows, offset - 1), HeldThere(spans=held), 10**6)
    assert isinstance(chosen, Selection)
    sent = {piece.batch.first_offset for piece in chosen.pieces}
    return chosen.held_runs, [
        row.batch for row in rows if row.first_offset not in sent and row.last_offset <= chosen.last_offset
    ]


SIZES = st.lists(st.integers(1, 3), min_size=1, max_size=6)


@given(SIZES, SIZES, SIZES, st.randoms(use_true_random=False), st.integers(0, 8))
def test_what_is_proven_is_held(
    common: list[int],
    ours: list[int],
    theirs: list[int],
    chance: Random,
    released: int,
) -> None:
    """Of a life that divides, both nodes store parts of both sides in any order, and the reader releases some. A page
    that is accepted has left out only batches that the reader has stored."""
    before = chain(common)
    both = [*chain(ours, b"ours", before), *chain(theirs, b"theirs", before)]
    reader, server = (Store.of(chance.sample(both, chance.randint(1, len(both)))) for _ in range(2))
    reader.released = released
    zones = shared(reader)
    runs, left_out = page(server, zones.held())
    if not zones.find_unproven(runs, more=False):
        assert {batch.digest for batch in left_out} <= {batch.digest for batch in reader.log}
    else:
        assert zones.held() == []


@given(SIZES, st.integers(1, 6), st.integers(1, 6))
def test_one_history_comes_once(sizes: list[int], read: int, served: int) -> None:
    """Without a fork all that both hold is left out and proven, in one run, whichever of the two is ahead."""
    batches = chain(sizes)
    reader, server = Store.of(batches[:read]), Store.of(batches[:served])
    zones = shared(reader)
    runs, left_out = page(server, zones.held())
    assert left_out == batches[: min(read, served, len(batches))]
    assert len(runs) == 1
    assert zones.find_unproven(runs, more=True) == ""
    assert zones.held()


def test_a_run_across_two_ranges_proves_nothing() -> None:
    """The reader holds one side of a fork up to a sequence, and the other side from there on. A server with only the
    other side names one run, whose end the reader holds, and whose begin it does not."""
    start = chain([2])
    ours, theirs = chain([2], b"ours", start), chain([2, 2], b"theirs", start)
    reader, server = Store.of([*ours, theirs[-1]]), Store.of(theirs)
    zones = shared(reader)
    runs, left_out = page(server, zones.held())
    assert left_out == theirs
    assert not zones.find_unproven(page(Store.of(ours), zones.held())[0], more=True), "one inside the first range does"
    assert "1 to 6 of mill/" in zones.find_unproven(runs, more=True)


def test_nothing_is_named_until_the_log_was_read_to_its_end() -> None:
    """After a page that left out another batch nothing is named, until a page reaches the end of the peer's log."""
    start = chain([2])
    reader, server = Store.of(chain([2], b"ours", start)), Store.of(chain([2], b"theirs", start))
    zones = shared(reader)
    assert zones.held() == [("mill", ORIGIN.life.hex(), 1, 4)]
    runs, _ = page(server, zones.held())
    assert zones.find_unproven(runs, more=False)
    assert zones.held() == []
    assert not zones.find_unproven([], more=True)
    assert zones.held() == []
    assert not zones.find_unproven([], more=False)
    assert zones.held()


def test_what_is_released_here_is_not_proven() -> None:
    """A batch that the reader has released cannot be compared: it comes once more."""
    reader = Store.of(chain([2, 2, 2]))
    reader.released = 2
    runs, _ = page(Store.of(chain([2, 2])), shared(reader).held())
    assert shared(reader).find_unproven(runs, more=True)
    runs, _ = page(Store.of(chain([2, 2, 2])), shared(reader).held())
    assert not shared(reader).find_unproven(runs, more=True)


def test_a_store_that_cannot_be_read_proves_nothing() -> None:
    """Then nothing is named, and what was left out is not known."""
    reader = Store.of(chain([2]))
    zones = shared(reader)
    runs, _ = page(reader, zones.held())
    reader.error = StoreError("the file is damaged")
    assert zones.held() == []
    assert "the file is damaged" in zones.find_unproven(runs, more=True)
    assert "left out" in shared(Store()).find_unproven(runs, more=True)


@pytest.mark.parametrize("count", [HELD_RUNS_MAX, HELD_RUNS_MAX + 1])
def test_a_page_names_so_many_runs(count: int) -> None:
    """A page ends before the run that it cannot name: in a log whose batches of a life are all apart."""
    batches = chain([1] * 2 * count)
    server = Store(log=batches[::2])
    runs, left_out = page(server, [("mill", ORIGIN.life.hex(), 1, 10**6)])
    assert len(runs) == len(left_out) == HELD_RUNS_MAX

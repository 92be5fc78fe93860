"""Invariants of the specification that belong to no single module; docs/developers/invariants.md lists all twenty and
who holds them."""

import random
from pathlib import Path

from agent.batch import open_samples, parse
from agent.fact_store import FactStore
from agent.positions import Position
from tests.fact_store.making import (
    AT_ONCE,
    EVERYTHING,
    OPERATIONAL,
    TELEMETRY,
    Elsewhere,
    chain_is_whole,
    done,
    ids_in,
    message,
    parsed,
    plant,
    samples,
    sealed_in,
    values_in,
)
from tests.support.received import chains_in, put_page

CONSUMER = "idmz.facts.telemetry"


def test_invariant_9_a_page_comes_again_until_it_is_confirmed(tmp_path: Path) -> None:
    """From the frontier on the same page is returned again, also after a restart. After confirm(n) the next begins at n
    + 1."""
    with plant(tmp_path) as store:
        for n in range(4):
            done(store.appends.append_samples(TELEMETRY, samples(10, 1 + 10 * n)))
        done(store.consumers.register(CONSUMER, "idmz", TELEMETRY))
        first = store.read(TELEMETRY, 0, 20, EVERYTHING)
        assert store.read(TELEMETRY, 0, 20, EVERYTHING) == first
    with FactStore.open(tmp_path / "facts.db", "plant", settings=AT_ONCE) as store:
        known = store.consumers.get(CONSUMER)
        assert known is not None
        assert store.read(TELEMETRY, known.frontier, 20, EVERYTHING) == first
        frontier = done(store.consumers.confirm(CONSUMER, 20))
        assert store.read(TELEMETRY, frontier, 20, EVERYTHING).batches[0].first_offset == 21


def test_invariant_13_reading_changes_nothing(tmp_path: Path) -> None:
    """However often a page is fetched, from wherever: no commit, no position, no byte of the file changes until a
    confirmation."""
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(100)))
        done(store.consumers.register(CONSUMER, "idmz", TELEMETRY))
        path = tmp_path / "facts.db-wal"
        before = path.read_bytes(), store.statistics().commits, store.consumers.all()
        for after in (0, 0, 50, 100, 0):
            store.read(TELEMETRY, after, 10, EVERYTHING)
            chains_in(store)
        assert (path.read_bytes(), store.statistics().commits, store.consumers.all()) == before
        done(store.consumers.confirm(CONSUMER, 10))
        assert store.consumers.all() != before[2]


def test_invariant_15_order_holds_inside_a_stream(tmp_path: Path) -> None:
    """Facts of one origin lie in a stream in the order in which it recorded them, also when others write in between.
    Between origins no order is promised."""
    rng, origins = random.Random(15), [Elsewhere("north"), Elsewhere("south", life=bytes(16))]
    with plant(tmp_path) as store:
        first = 1
        for n in range(60):
            writer = rng.choice([*origins, None])
            if writer is None:
                done(store.appends.append_samples(TELEMETRY, samples(3, first)))
                first += 3
            else:
                writer.put(store, [writer.seal(3)], n)
        seen: dict[str, list[object]] = {}
        for stored in store.read(TELEMETRY, 0, EVERYTHING, EVERYTHING).batches:
            parsed = parse(stored.sealed)
            seen.setdefault(stored.origin.zone, []).extend(open_samples(parsed).values)
        assert set(seen) == {"plant", "north", "south"}
        assert all(values == list(range(1, len(values) + 1)) for values in seen.values())


def test_invariant_16_state_is_rebuilt_from_the_facts(tmp_path: Path) -> None:
    """A store that gets only another one's batches and definitions has the same state of its facts: values, ids,
    chains, definitions, and the held sequences."""
    north = Elsewhere("north")
    with plant(tmp_path) as store:
        for n in range(5):
            done(store.appends.append_samples(TELEMETRY, samples(5, 1 + 5 * n)))
            done(store.appends.append_message(OPERATIONAL, message(f"id-{n}")))
            north.put(store, [north.seal(4)], n)
        with FactStore.open(tmp_path / "copy.db", "idmz", settings=AT_ONCE) as copy:
            definitions = chains_in(store)
            for stream in (TELEMETRY, OPERATIONAL):
                position = Position(store.life, store.end_offset(stream))
                batches = sealed_in(store, stream)
                done(put_page(copy, "plant", stream, parsed(batches), definitions, position))
                assert sealed_in(copy, stream) == batches
                again = done(put_page(copy, "plant", stream, parsed(batches), definitions, position))
                assert again.stored_facts == 0, "what is held is known from the facts alone"
            assert (values_in(copy), ids_in(copy)) == (values_in(store), ids_in(store))
            assert chains_in(copy) == chains_in(store)
            chain_is_whole(copy)


def test_invariant_20_offsets_of_two_stores_need_no_mapping(tmp_path: Path) -> None:
    """The same fact has different offsets in the sender's and the receiver's stream. Only a position in the sender's is
    kept. A fact that arrives again by another path, at other offsets, is recognised by its sequence."""
    north = Elsewhere("north")
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(17)))
        north.put(store, [north.seal(5), north.seal(5)], 10)
        assert [batch.first_offset for batch in store.read(TELEMETRY, 17, EVERYTHING, EVERYTHING).batches] == [18, 23]
        other_path = Position(bytes(16), 4_711)
        again = done(put_page(store, "idmz", TELEMETRY, parsed(north.sealed), north.received(), other_path))
        assert (again.stored_facts, again.duplicate_facts) == (0, 10)
    with plant(tmp_path) as store:
        assert store.inbound.peer_position("north", TELEMETRY) == Position(north.origin.life, 10)
        assert store.inbound.peer_position("idmz", TELEMETRY) == other_path

"""`growth --lives`: what years of restarts cost the enterprise. A thousand gateways that start once a day for ten years
have had 3.65 million lives.

Two stores of the enterprise get the lives of a thousand zones with the product's own statements, as if retention had
released their facts: one with one life a zone, the other with all. The newest life of each zone has facts. A process of
its own then opens each store, receives pages of ten zones, also of new lives, reads pages from the end and from an old
life of the log, and lists what is held for a comparison. What grows with the lives is the file alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import Any

from agent.batch import DIGEST_BYTES, NO_DIGEST, Batch, Link, Origin, seal_messages
from agent.fact_store import FactStore
from agent.pages import HeldRange, ReceivedPage
from agent.positions import Position
from bench.common.measuring import Report, files_bytes, machine, median, peak_rss_mib, rounded
from bench.common.testbed import ASKING, SERVING, scratch_folder, start_worker
from bench.common.worker_io import Options, emit
from bench.store.append import SETTINGS, STREAM, one_message

ZONES = 1_000
FACTS_OF_LIFE = 8_640
AT_ONCE = 10_000  # lives in one transaction
OPENINGS, PAGES, FETCHES = 9, 100, 300
PAGE_ZONES, PAGE_FACTS, LISTED_ZONES = 10, 100, 100
FIRST_MS = 1_500_000_000_000
FILL_S_MAX = 3600.0


def run(lives: int, below: Path | None) -> Report:
    """Measure a store with one life a zone, and one with `lives` in all."""
    with scratch_folder(below) as folder:
        described = machine(folder)
        few, many = (_measured(folder / name, max(ZONES, count)) for name, count in (("few", ZONES), ("many", lives)))
    ratios = {
        name: rounded(many[name] / few[name])
        for name in ("opening_ms", "page_ms", "new_lives_ms", "fetch_ms", "compare_ms", "rss_mib")
    }
    bytes_per_life = rounded((many["bytes"] - few["bytes"]) / max(1, many["lives"] - few["lives"]))
    values = {"few": few, "many": many, "ratios": ratios, "bytes_per_life": bytes_per_life}
    lines = tuple(
        f"{name:12} {many[name]:9.3f} with {many['lives']:,} lives, {few[name]:9.3f} with {few['lives']:,}; ratio {ratio}"
        for name, ratio in ratios.items()
    )
    return Report("growth", values, (*lines, f"at rest      {bytes_per_life:9} bytes a life"), described)


def _measured(folder: Path, lives: int) -> dict[str, float]:
    folder.mkdir()
    found: dict[str, float] = {"lives": lives}
    for role in ("lives-fill", "lives-measure"):
        with start_worker(folder, role, role, store=str(folder / "facts.db"), lives=lives) as worker:
            found |= worker.result(FILL_S_MAX)
    return found


def fill(options: Options) -> None:
    """The process that fills a store."""
    path, lives = Path(options["store"]), int(options["lives"])
    emit("READY")
    with closing(FactStore.open(path, ASKING, settings=SETTINGS)) as store:
        for first in range(ZONES, lives, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, lives))
            store._writer.submit("lives", lambda transaction, some=numbers: add_lives(transaction, some)).result()  # noqa: SLF001 - as if they had been pulled
    with closing(FactStore.open(path, ASKING, settings=SETTINGS)) as store:
        for number in range(ZONES):
            batches, position = [_sealed(number, lives)], _position(number, 1)
            store.inbound.put_page(ReceivedPage(_zone(number), STREAM, batches, [position])).result()
    emit("RESULT", {"bytes": files_bytes(path.parent)})


def add_lives(transaction: Any, numbers: range) -> None:
    """Lives of which everything was released: `numbers` count over all zones, which take turns. Every thousandth is
    also a life of this log."""
    stream = transaction.stream(STREAM)
    for place, number in enumerate(numbers):
        nth, zone = divmod(number, ZONES)
        first = (nth - 1) * FACTS_OF_LIFE + 1
        held = HeldRange(first, first + FACTS_OF_LIFE - 1, _digest(number - ZONES), _digest(number))
        transaction.set_held(stream.id, transaction.origin(Origin(_zone(zone), _life(zone, nth))), (held,))
        if not zone:
            own = stream.id, stream.end_offset + place * FACTS_OF_LIFE + 1, _life(ZONES, nth)
            transaction._execute("INSERT INTO life (stream, first_offset, life) VALUES (?, ?, ?)", own)  # noqa: SLF001
    end_offset = stream.end_offset + len(numbers) * FACTS_OF_LIFE
    transaction._execute("UPDATE stream SET released_offset = ? WHERE id = ?", (end_offset, stream.id))  # noqa: SLF001
    transaction.catalog.streams[STREAM] = stream._replace(end_offset=end_offset, released_offset=end_offset)


def measure(options: Options) -> None:
    """The process that opens a store and uses it."""
    path, lives = Path(options["store"]), int(options["lives"])
    emit("READY")
    opened = list[int]()
    for _ in range(OPENINGS):
        began_ns = time.perf_counter_ns()
        with closing(FactStore.open(path, ASKING, settings=SETTINGS)):
            opened.append(time.perf_counter_ns() - began_ns)
    with closing(FactStore.open(path, ASKING, settings=SETTINGS)) as store:
        pages, fetches = [*_pages(store, lives)], [*_fetches(store)]
        listings = [*_listings(store)]
        births = [*_births(store, lives)]
    found = {
        "opening_ms": opened,
        "page_ms": pages,
        "new_lives_ms": births,
        "fetch_ms": fetches,
        "compare_ms": listings,
    }
    medians = {name: rounded(median(times) / 1e6) for name, times in found.items()}
    emit("RESULT", medians | {"rss_mib": peak_rss_mib()})


def _pages(store: FactStore, lives: int) -> Iterator[int]:
    """How long pages take that continue the newest lives of ten zones each."""
    links = [_sealed(number, lives).link for number in range(ZONES)]
    for page in range(PAGES):
        numbers = [(page * PAGE_ZONES + place) % ZONES for place in range(PAGE_ZONES)]
        batches = [_seal(links[number]) for number in numbers]
        for number, batch in zip(numbers, batches, strict=True):
            links[number] = batch.link
        began_ns = time.perf_counter_ns()
        store.inbound.put_page(ReceivedPage(SERVING, STREAM, batches, [_position(ZONES, page + 1)])).result()
        yield time.perf_counter_ns() - began_ns


def _births(store: FactStore, lives: int) -> Iterator[int]:
    """How long pages take that begin the next life of ten zones each."""
    for page in range(PAGES):
        numbers = [page * PAGE_ZONES + place for place in range(PAGE_ZONES)]
        batches = [_next_life(store, number, lives) for number in numbers]
        began_ns = time.perf_counter_ns()
        store.inbound.put_page(ReceivedPage(SERVING, STREAM, batches, [_position(ZONES, PAGES + page + 1)])).result()
        yield time.perf_counter_ns() - began_ns


def _listings(store: FactStore) -> Iterator[int]:
    """How long the answers to a peer's comparison take that find all zones equal: a hundred zones each."""
    for number in range(0, ZONES, LISTED_ZONES):
        began_ns = time.perf_counter_ns()
        assert len(store.reader.zones_held(STREAM, _zone(number - 1) if number else "", LISTED_ZONES)) == LISTED_ZONES
        yield time.perf_counter_ns() - began_ns


def _fetches(store: FactStore) -> Iterator[int]:
    """How long it takes to resolve the position of a reader at the end, and one of an old life, and to read a page."""
    log = store.log(STREAM)
    first_offset = next(stream.first_offset for stream in store.streams() if stream.name == STREAM)
    old = Position(log.at(first_offset), first_offset)
    for _ in range(FETCHES):
        began_ns = time.perf_counter_ns()
        for position in (old, log.end):
            store.resolve(STREAM, position)
        page = store.read(STREAM, log.end_offset - PAGES * PAGE_ZONES * PAGE_FACTS, PAGE_FACTS, 2**20)  # from the file
        store.log(STREAM).between(page.batches[0].first_offset, page.batches[-1].last_offset)
        yield time.perf_counter_ns() - began_ns


def _sealed(zone: int, lives: int) -> Batch:
    """The first batch of the newest life of a zone."""
    nth = (lives - 1 - zone) // ZONES + 1
    first, before = ((nth - 1) * FACTS_OF_LIFE + 1, _digest(zone + (nth - 1) * ZONES)) if nth > 1 else (1, NO_DIGEST)
    return _seal(Link(STREAM, Origin(_zone(zone), _life(zone, nth)), first, before))


def _next_life(store: FactStore, zone: int, lives: int) -> Batch:
    """The first batch of a zone after a restart."""
    newest = _sealed(zone, lives).header.origin
    end, restarted = store.reader.held_of(STREAM, newest)[-1], Origin(newest.zone, _life(zone, lives))
    return _seal(Link(STREAM, restarted, end.last_sequence + 1, end.last_digest))


def _seal(link: Link) -> Batch:
    return seal_messages(link, [one_message(number) for number in range(PAGE_FACTS)])


def _position(zone: int, offset: int) -> Position:
    return Position(_life(zone, 0), offset)


def _zone(number: int) -> str:
    return f"plant-{number:04}"


def _life(zone: int, nth: int) -> bytes:
    return (FIRST_MS + nth * 86_400_000).to_bytes(8) + zone.to_bytes(8)


def _digest(number: int) -> bytes:
    """The last digest of a life; zeros before the first."""
    return blake2b(number.to_bytes(8), digest_size=DIGEST_BYTES).digest() if number >= ZONES else NO_DIGEST

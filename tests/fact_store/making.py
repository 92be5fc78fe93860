"""Common parts of the store's tests: an origin elsewhere that seals honest batches, samples, messages, and short
waits."""

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from agent import batch
from agent.fact_store import INCIDENTS_MAX, FactStore, StoreReader, VerifyCounts, verify_store
from agent.fact_store.sqlite.transaction import Transaction
from agent.message import Envelope, Fact, Message, Sample, TagDefinition
from agent.pages import DefinitionChain, Page, PutResult
from agent.positions import Position
from agent.settings.store import StoreSettings
from tests.support.received import chain_of, definitions_of, put_page
from tests.waiting import LIMIT_S, wait_until

T = TypeVar("T")
TELEMETRY = "facts.telemetry"
OPERATIONAL = "facts.operational"
LIFE = bytes(range(16))
# Samples are committed at once, not after the product's 250 ms, for which each append of a test would wait. How appends
# are grouped over time is tested with the product's settings (append/test_group_commit.py, append/test_append.py).
AT_ONCE = StoreSettings(commit_interval_ms=0)
IN_MEMORY = StoreSettings(commit_interval_ms=0, ballast_bytes=65_536)  # 16 MB take 30 ms for each new store in memory
NEVER = StoreSettings(commit_interval_ms=60_000)  # samples stay queued
EVERYTHING = 2**40


def committed_at(facts: int) -> StoreSettings:
    """Settings with which samples stay queued until there are so many of them."""
    return replace(NEVER, batch_facts_target=facts)


def tag(number: int, unit: str = "") -> TagDefinition:
    """Definition of a tag."""
    return TagDefinition(f"tag:line1/t{number}", unit=unit)


def samples(count: int, first: int = 1) -> list[Sample]:
    """Samples of tag 1 whose values count up from `first`."""
    return [Sample(1, n * 1_000_000, n, 0) for n in range(first, first + count)]


def message(message_id: str, content: str = "1", produced_at_unix_ms: int = 1_700_000_000_000) -> Message:
    """A message of an application."""
    envelope = Envelope(message_id, "plant", "enterprise", produced_at_unix_ms)
    return Message(envelope, Fact("order:line1/77", "order_released", content.encode()))


def done(future: Future[T]) -> T:
    """The result of a future that must not take long."""
    return future.result(LIMIT_S)


def failed(future: Future[T]) -> BaseException:
    """The error of a future that must fail."""
    error = future.exception(LIMIT_S)
    assert error is not None, f"succeeded with {future.result()!r}"
    return error


def parsed(sealed: Iterable[bytes]) -> list[batch.Batch]:
    """Sealed batches as a pulling node hands them to a store: each parsed, its content read once."""
    batches = [batch.parse(content) for content in sealed]
    for entry in batches:
        batch.verify(entry)
    return batches


def writer_sleeps(store: FactStore) -> None:
    """Return when the store's writer has seen all that is queued and waits for more, or for its next timer."""
    wait_until(lambda: bool(store._writer.queue._changed._waiters), "the writer to sleep")  # type: ignore[attr-defined]


@contextmanager
def plant(folder: Path, settings: StoreSettings = AT_ONCE, name: str = "facts.db") -> Iterator[FactStore]:
    """The store of zone `plant` with one tag defined, closed at the end."""
    with FactStore.open(folder / name, "plant", settings=settings) as store:
        done(store.appends.define([tag(1)]))
        yield store


def unattended(folder: Path, zone: str = "plant") -> FactStore:
    """A store as a node opens it."""
    return FactStore.open(folder / "facts.db", zone, settings=AT_ONCE, unattended=True)


@contextmanager
def past_the_triggers(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to a closed store that changes what no program may, as a disk does."""
    with closing(sqlite3.connect(path)) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("PRAGMA ignore_check_constraints = ON")
        yield connection
        for _, sql in triggers:
            connection.execute(sql)
        connection.commit()


def damage(path: Path, first_offset: int, stream: str = TELEMETRY, *, is_sealed_again: bool = False) -> None:
    """The disk changes the content of the batch that begins there. With the digest of what is there then, it is a batch
    that no program of ours sealed."""
    with past_the_triggers(path) as connection:
        rows = "SELECT batch.id, body, digest FROM batch JOIN stream ON stream.id = stream WHERE first_offset = ? AND name = ?"
        number, body, digest = connection.execute(rows, (first_offset, stream)).fetchone()
        at = batch.parse(body + digest).body_at
        changed = body[:at] + bytes(len(body) - at)
        if is_sealed_again:
            digest = hashlib.blake2b(changed, digest_size=batch.DIGEST_BYTES).digest()
        connection.execute("UPDATE batch SET body = ?, digest = ? WHERE id = ?", (changed, digest, number))


def read_file(store: FactStore | StoreReader, stream: str, after_offset: int = 0) -> Page:
    """All of a stream after an offset, from the file: `FactStore.read` would serve the newest batches from memory."""
    reader = store.reader if isinstance(store, FactStore) else store
    return reader.read(stream, after_offset, EVERYTHING, EVERYTHING)


def sealed_in(store: FactStore | StoreReader, stream: str = TELEMETRY, after_offset: int = 0) -> list[bytes]:
    """Every batch of a stream after an offset."""
    return [stored.sealed for stored in read_file(store, stream, after_offset).batches]


def values_in(store: FactStore | StoreReader, stream: str = TELEMETRY) -> list[object]:
    """Every sample's value in a stream, in order of offsets."""
    found: list[object] = []
    for stored in read_file(store, stream).batches:
        assert stored.first_offset == len(found) + 1
        found += batch.open_samples(batch.parse(stored.sealed)).values
        assert stored.last_offset == len(found)
    return found


def ids_in(store: FactStore | StoreReader, stream: str = OPERATIONAL) -> list[str]:
    """Every message's id in a stream, in order of offsets."""
    return [message.envelope.message_id for message in messages_in(store, stream)]


def messages_in(store: FactStore | StoreReader, stream: str = OPERATIONAL) -> list[Message]:
    """Every message in a stream, in order of offsets; samples between them are left out."""
    found = [batch.parse(content) for content in sealed_in(store, stream)]
    return [
        message for part in found if part.header.kind is batch.Kind.MESSAGES for message in batch.open_messages(part)
    ]


def said_in(store: FactStore | StoreReader, predicate: str) -> list[dict[str, object]]:
    """What the operational facts with a predicate say."""
    facts = [message.fact for message in messages_in(store)]
    return [json.loads(fact.object_json) for fact in facts if fact.predicate == predicate]


def crowd_incidents(store: FactStore) -> None:
    """More incidents than a reader asks for, of kinds that say nothing about a loss or a history."""

    def add(transaction: Transaction) -> None:
        for number in range(INCIDENTS_MAX):
            for kind in ("definitions_repaired", "repaired"):
                transaction.add_incident(kind, f"{TELEMETRY} {number}", "a test")

    done(store._writer.submit("crowd", add))


def damages(path: Path, counts: VerifyCounts | None = None, *, is_quick: bool = False) -> list[str]:
    """What `bsfg store verify` finds in a file; `counts` get what was checked."""
    found = verify_store(path, counts or VerifyCounts(), lambda *_: None, is_quick=is_quick)
    return [str(damage) for damage in found]


def chain_is_whole(store: FactStore | StoreReader) -> None:
    """Fail unless offsets are dense from the first that is held, every digest holds, and every batch attaches to the
    one before it of its origin."""
    for info in store.streams():
        next_offset, links = info.first_offset, dict[batch.Origin, batch.Link]()
        for stored in read_file(store, info.name).batches:
            parsed = batch.parse(stored.sealed)
            batch.verify(parsed)
            header = parsed.header
            assert stored.first_offset == next_offset, f"{info.name}: offset {next_offset} is missing or twice"
            next_offset = stored.last_offset + 1
            assert stored.last_offset - stored.first_offset + 1 == header.count
            if (link := links.get(header.origin)) is not None and header.first_sequence == link.next_sequence:
                assert header.previous_digest == link.digest, f"{info.name}: chain of {header.origin} is broken"
            links[header.origin] = parsed.link
        assert next_offset == info.end_offset + 1


class Elsewhere:
    """An origin in another zone: seals batches of samples of one chain, and hands them to stores."""

    def __init__(self, zone: str = "plant", stream: str = TELEMETRY, life: bytes = LIFE, tags: int = 2) -> None:
        self.origin = batch.Origin(zone, life)
        self.stream = stream
        self.link = batch.Link(stream, self.origin)
        self.bodies = [tag(number).to_json() for number in range(1, tags + 1)]
        self.sealed: list[bytes] = []
        self.sign: batch.Sign | None = None

    @property
    def definitions(self) -> batch.Definitions:
        """The running digest over this origin's definitions."""
        return definitions_of(self.bodies)

    def received(self, first: int = 1) -> list[DefinitionChain]:
        """Its definitions from a number on, as a peer hands them over."""
        return [chain_of(self.origin.zone, self.bodies, first)]

    def held_in(self, store: FactStore) -> list[bytes]:
        """Those of its definitions that a store has."""
        chain = store.reader.definitions(self.origin.zone, self.definitions.digest)
        return [] if chain is None else list(chain.bodies)

    def seal(self, count: int, salt: int = 0) -> bytes:
        """The next batch of its chain; `salt` makes another content."""
        first = self.link.next_sequence
        found = batch.seal_samples(self.link, samples(count, first + salt), self.definitions, self.sign)
        self.link = found.link
        self.sealed.append(found.sealed)
        return found.sealed

    def put(self, store: FactStore, sealed: list[bytes], offset: int = 0, *, first_definition: int = 1) -> PutResult:
        """Hand batches to a store as this origin's own zone."""
        position = Position(self.origin.life, offset)
        definitions = self.received(first_definition)
        return done(put_page(store, self.origin.zone, self.stream, parsed(sealed), definitions, position))

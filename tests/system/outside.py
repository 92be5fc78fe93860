"""External observers: the producer appends and remembers what was acknowledged; the checker reads the store files and
reports violations.

Nothing is taken from a node's own report. A message counts as acknowledged when the producer has read the answer of the
node's socket. Samples have no such answer, so a batch of them counts from the moment it was seen in the plant's file.
"""

import asyncio
import contextlib
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Self

from agent import batch
from agent.client import AsyncClient, NodeSilent
from agent.fact_store.read.reader import StoreReader
from agent.local_socket import LocalError, StateFolderUnusable
from tests.waiting import wait_until_async

LIMIT_S = 90.0  # of one append, retries included: a frozen or killed node comes back before


class Acknowledged(NamedTuple):
    """A message whose durability was acknowledged, and its place."""

    message_id: str
    object_json: bytes
    offset: int


class Seen(NamedTuple):
    """The last batch of a stream, as seen in a file."""

    stream: str
    last_offset: int
    digest: bytes


class Producer:
    """An application of a zone. It appends one message after another through the node's socket, and repeats each until
    it is acknowledged. It is a context manager; leaving it waits for the last answer."""

    def __init__(self, state_dir: Path, zone: str, to_zone: str, stream: str) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.answers_lost = 0  # the message was stored, but its acknowledgement was lost
        self._place = (state_dir, zone, to_zone, stream)
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self._work = self._pool.submit(asyncio.run, self._produce())
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping.set()
        try:
            self._work.result()
        finally:
            self._pool.shutdown()

    @property
    def is_alive(self) -> bool:
        """Whether the producer still runs; leaving it raises the error that ended it."""
        return not self._work.done()

    async def _produce(self) -> None:
        number = 0
        while not self._stopping.is_set():
            number += 1
            await wait_until_async(lambda number=number: self._append(number), f"message {number}", LIMIT_S)

    async def _append(self, number: int) -> bool:
        """Append once. Returns whether a message was acknowledged."""
        state_dir, zone, to_zone, stream = self._place
        message_id, object_json = f"{zone}-{number}", b'{"n":%d}' % number
        node = AsyncClient(state_dir)
        try:
            answer = await node.append(
                "order:line1/77",
                "step_completed",
                {"n": number},
                message_id=message_id,
                stream=stream,
                to_zone=to_zone,
            )
        except (NodeSilent, LocalError, StateFolderUnusable):
            return False
        assert answer.outcome in {"applied", "noop_already_applied"}, answer
        self.answers_lost += answer.outcome == "noop_already_applied"
        self.acknowledged.append(Acknowledged(message_id, object_json, answer.offset))
        return True


def last_batch(path: Path, stream: str) -> Seen | None:
    """The present last batch of a stream."""
    with contextlib.closing(StoreReader(path)) as reader:
        end = reader.end_offset(stream)
        page = reader.read(stream, max(end - 1, 0), 1, 1).batches
    return Seen(stream, page[-1].last_offset, page[-1].sealed[-batch.DIGEST_BYTES :]) if page else None


def complaints(
    paths: Mapping[str, Path],
    streams: Sequence[str],
    seen: Sequence[Seen],
    acknowledged: Mapping[str, Sequence[Acknowledged]],
) -> list[str]:
    """Violations in the store files of these zones; all facts come from the first zone; nodes must have stopped.

    Every zone must hold the first one's streams byte for byte, each chain complete from its first fact. All batches
    that were `seen` in the first one's file, and all `acknowledged` messages by stream, must be there once and in
    order. Consumers must have confirmed everything without a hole, and no store may have an incident.
    """
    found, origin = list[str](), next(iter(paths))
    for stream in streams:
        logs = {zone: _log(path, stream, found) for zone, path in paths.items()}
        found += [
            f"{zone}: {stream} is not {origin}'s byte for byte" for zone, log in logs.items() if log != logs[origin]
        ]
        for zone, log in logs.items():
            found += _forgotten(f"{zone}: {stream}", log, [page for page in seen if page.stream == stream])
            if stream in acknowledged:
                found += _unkept(f"{zone}: {stream}", log, acknowledged[stream])
    for zone, path in paths.items():
        found += [f"{zone}: {why}" for why in _bookkeeping(path, streams)]
    return found


def _log(path: Path, stream: str, found: list[str]) -> list[bytes]:
    """Every batch of a stream; violations inside the log are added to `found`."""
    log, end, tips = list[bytes](), 0, dict[str, tuple[int, bytes]]()
    with contextlib.closing(StoreReader(path)) as reader:
        while True:
            page = reader.read(stream, end, 100_000, 8_000_000)
            found += [f"{path}: {stream} has lost {hole}" for hole in page.holes]
            for stored in page.batches:
                parsed = batch.parse(stored.sealed)
                batch.verify(parsed)
                header = parsed.header
                if stored.first_offset != end + 1 or stored.last_offset != end + header.count:
                    found.append(f"{path}: {stream} {stored.first_offset}..{stored.last_offset} after {end}")
                tip, zone = (header.first_sequence - 1, header.previous_digest), header.origin.zone
                if tip != tips.get(zone, (0, batch.NO_DIGEST)):  # the chain runs on over lives
                    found.append(f"{path}: {stream} the chain breaks at offset {stored.first_offset}")
                end, tips[zone] = stored.last_offset, (header.last_sequence, parsed.digest)
                log.append(stored.sealed)
            if not page.batches:
                return log


def _forgotten(where: str, log: Sequence[bytes], seen: Sequence[Seen]) -> Iterator[str]:
    """Batches that were seen at a place and are not there now."""
    end, here = 0, set[tuple[int, bytes]]()
    for sealed in log:
        end += batch.parse(sealed).header.count
        here.add((end, sealed[-batch.DIGEST_BYTES :]))
    for page in seen:
        if (page.last_offset, page.digest) not in here:
            yield f"{where} once had another batch before offset {page.last_offset}, or one that is gone"


def _unkept(where: str, log: Sequence[bytes], acknowledged: Sequence[Acknowledged]) -> Iterator[str]:
    """Acknowledged messages that are missing, duplicate, changed, at another offset, or out of order."""
    messages = [message for sealed in log for message in batch.open_messages(batch.parse(sealed))]
    there = [(message.envelope.message_id, message.fact.object_json) for message in messages]
    for message_id, times in Counter(message_id for message_id, _ in there).items():
        if times > 1:
            yield f"{where} holds {message_id} {times} times"
    for append in acknowledged:
        if there[append.offset - 1 : append.offset] != [(append.message_id, append.object_json)]:
            yield f"{where} does not hold {append.message_id} at offset {append.offset}, where it was acknowledged"
    offsets = [append.offset for append in acknowledged]
    if offsets != sorted(set(offsets)):
        yield f"{where}: messages do not lie in the order in which they were appended"


def _bookkeeping(path: Path, streams: Sequence[str]) -> Iterator[str]:
    """Tables that contradict that everything is held once, without a hole, and confirmed."""
    with contextlib.closing(StoreReader(path)) as reader:
        ends = {stream: reader.end_offset(stream) for stream in streams}
        for consumer in reader.consumers():
            if consumer.stream in ends and (consumer.frontier != ends[consumer.stream] or consumer.confirmed.ranges):
                yield f"{consumer.name} has confirmed to {consumer.frontier} and {consumer.confirmed.ranges}, not to {ends[consumer.stream]}"
        yield from (f"incident: {incident}" for incident in reader.incidents())
    query = """SELECT stream.name, named_origin.zone, min(first_sequence), max(last_sequence), sum(last_sequence - first_sequence + 1)
        FROM held JOIN stream ON stream.id = held.stream JOIN named_origin ON named_origin.id = held.origin GROUP BY 1, 2"""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        for name, zone, first, last, facts in connection.execute(query):
            if (first, facts) != (1, last):
                yield f"{name}: of {zone} are held {facts} facts of {first} to {last}"

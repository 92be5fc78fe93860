"""The zone's own door: producers and consumers on this machine reach the running node through a Unix socket.

A store has one writer. While a node runs, that is the node, and `bsfg append`, `confirm` and any program of the same user ask
it here; while none runs, the command opens the store itself and goes through the same `Door`, so both ways mean the same.
Reading needs no door: any process may read the store's file (`fact_store.reader`).

On the wire: a little-endian u32 length and that many bytes of JSON, both ways, one request at a time. A request has
`operation` and the fields of the structs below (bytes as base64); an answer has `operation` and its fields, or
`operation: "error"` with `message` and `hint`. The socket lies in the state folder, readable by its owner alone: who may
open it is who may write facts, and the operating system decides that.

    LocalError              the node behind the socket refused the request, or the socket broke
    StateFolderUnusable     the state folder cannot be made or entered (the operator's)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec

from agent.append_contract import Precondition, check_from_zone, told
from agent.config import NodeSettings
from agent.errors import BsfgError
from agent.fact_store import (
    Acks,
    ConsumerNotYours,
    FactStore,
    Producers,
    Start,
    StoreError,
    UnknownConsumer,
    is_in_sync,
)
from agent.message import CONSUMER, STREAM, ZONE, Envelope, Fact, Message, check_name

SOCKET = "bsfg.sock"
REQUEST_BYTES_MAX = 1024 * 1024  # the largest message is 256 KiB, base64 makes it 350
ANSWER_BYTES_MAX = 1024 * 1024  # some thousand consumers
CONNECTIONS_MAX = 32
IDLE_S = 15.0  # below ANSWER_S_MAX: who finds all places taken by silent ones is still answered in time
ANSWER_S_MAX = 30.0
_LENGTH = struct.Struct("<I")


class LocalError(BsfgError):
    """The node refused the request, or went away while it was asked."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


class StateFolderUnusable(BsfgError):
    """The state folder cannot be made or entered."""

    hint = "run as the node's user, or correct state_dir"


class AppendFact(msgspec.Struct, frozen=True, tag="AppendFact", tag_field="operation"):
    """Append one message to a stream, once: the same message_id with the same content is answered with its first offset."""

    stream: str
    envelope: Envelope
    fact: Fact
    acks: Acks | None = None
    # Store it only if nobody holds a newer lease under this producer's name, and (in a strong stream) if there is no newer fact
    # about the subject than base_offset.
    producer: str | None = None
    lease_epoch: int | None = None
    base_offset: int | None = None


class AcquireLease(msgspec.Struct, frozen=True, tag="AcquireLease", tag_field="operation"):
    """A lease epoch for a producer that begins, durable: whoever still appends with a lower one is fenced from now on."""

    stream: str
    producer: str


class RegisterConsumer(msgspec.Struct, frozen=True, tag="RegisterConsumer", tag_field="operation"):
    """Make a consumer, durably; an existing one on the same stream stands as it is."""

    consumer_name: str
    stream: str
    start: Start = "oldest"
    zone: str | None = None  # without: this zone's own
    is_fetching: bool = False  # facts are read next, so it has been seen


class ListConsumers(msgspec.Struct, frozen=True, tag="ListConsumers", tag_field="operation"):
    """Every consumer, whoever's it is."""


class RemoveConsumer(msgspec.Struct, frozen=True, tag="RemoveConsumer", tag_field="operation"):
    """Begin to forget a consumer; `now`: at once. One that fetches or confirms these days only with `force`."""

    consumer_name: str
    force: bool = False
    now: bool = False


class ComparePeer(msgspec.Struct, frozen=True, tag="ComparePeer", tag_field="operation"):
    """Compare every stream pulled from a peer with it; `repair` what differs; `scan`: read all that is here first, to find damage."""

    zone: str
    repair: bool = False
    scan: bool = False


class ConfirmReceipt(msgspec.Struct, frozen=True, tag="ConfirmReceipt", tag_field="operation"):
    """Facts up to `offset` (from `first_offset`, if given) are durable at the consumer."""

    consumer_name: str
    offset: int
    first_offset: int | None = None


class PutObject(msgspec.Struct, frozen=True, tag="PutObject", tag_field="operation"):
    """The next bytes of an artifact of `size` bytes, at most 256 KiB; none asks how many are here."""

    digest: str
    size: int
    offset: int = 0
    data: bytes = b""


class Appended(msgspec.Struct, frozen=True, tag="AppendFact", tag_field="operation"):
    """`outcome`: applied, noop_already_applied, conflicting_duplicate (then nothing changed and `offset` is the other's),
    superseded (nothing changed, `offset` is the newer fact's), rejected_fenced (nothing changed, `lease_epoch` is in force), or
    queued (not yet where acks promises it; `warning` says why)."""

    offset: int
    outcome: str
    warning: str = ""
    lease_epoch: int | None = None


class LeaseAcquired(msgspec.Struct, frozen=True, tag="AcquireLease", tag_field="operation"):
    """The epoch to append with."""

    lease_epoch: int


class Registered(msgspec.Struct, frozen=True, tag="RegisterConsumer", tag_field="operation"):
    """Where the consumer stands."""

    stream: str
    frontier: int


class ConsumerEntry(msgspec.Struct, frozen=True):
    """Where a consumer stands. What it holds back are whole batches from the first it has not confirmed; `held_hours` is the age of
    the newest fact in that one."""

    name: str
    stream: str
    zone: str
    state: str
    in_sync: bool
    frontier: int
    behind_facts: int
    held_bytes: int
    held_hours: float | None
    seen_unix_ms: int | None
    lease_epoch: int = 0
    """In force; 0 where no instance ever asked for one."""
    lease_holder: str = ""
    """The instance that has it."""


class Consumers(msgspec.Struct, frozen=True, tag="ListConsumers", tag_field="operation"):
    """All of them, by name."""

    consumers: list[ConsumerEntry]


class Removed(msgspec.Struct, frozen=True, tag="RemoveConsumer", tag_field="operation"):
    """`state`: deletion started, or deleted; `was`, where it stood before."""

    state: str
    was: ConsumerEntry


class ComparedStream(msgspec.Struct, frozen=True):
    """What comparing one stream found. `missing` and `damaged` here are (origin, first, last sequence), the first thousand of them,
    `damaged_definitions` (origin, the first number); `refused` is what the peer offered in place of damage and was not taken."""

    stream: str
    compared_facts: int
    exchanges: int
    bytes: int
    divergent_ranges: int
    missing: list[tuple[str, int, int]]
    damaged: list[tuple[str, int, int]]
    forks: list[str]
    repaired_ranges: int
    repaired_facts: int
    unavailable_facts: int
    refused: list[str]
    missing_artifacts: int = 0
    repaired_artifacts: int = 0
    damaged_definitions: list[tuple[str, int]] = []
    repaired_definitions: int = 0


class Compared(msgspec.Struct, frozen=True, tag="ComparePeer", tag_field="operation"):
    """Each stream."""

    streams: list[ComparedStream]


class Confirmed(msgspec.Struct, frozen=True, tag="ConfirmReceipt", tag_field="operation"):
    """The frontier after the confirmation, durable before it was answered."""

    cursor_advanced_to: int


class ObjectPut(msgspec.Struct, frozen=True, tag="PutObject", tag_field="operation"):
    """`received` bytes are here: go on from there. `is_complete`: all of them, compared with the digest, and durable."""

    received: int
    is_complete: bool


class Refused(msgspec.Struct, frozen=True, tag="error", tag_field="operation"):
    """The request was not carried out."""

    message: str
    hint: str = ""


Request = (
    AppendFact
    | AcquireLease
    | PutObject
    | RegisterConsumer
    | ListConsumers
    | RemoveConsumer
    | ComparePeer
    | ConfirmReceipt
)
Answer = Appended | LeaseAcquired | ObjectPut | Registered | Consumers | Removed | Compared | Confirmed | Refused
Compare = Callable[[ComparePeer], Awaitable[Compared]]
_REQUEST = msgspec.json.Decoder(Request)
_ANSWER = msgspec.json.Decoder(Answer)


@contextlib.contextmanager
def open_store(settings: NodeSettings) -> Iterator[FactStore]:
    """The node's store, its folder made if it is missing, closed at the end."""
    try:
        settings.node.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StateFolderUnusable(f"{settings.node.state_dir}: {error.strerror}") from error
    with FactStore.open(
        settings.store_file, settings.node.zone, settings=settings.store, streams=settings.stream, unattended=True
    ) as store:
        yield store


class Door:
    """Carries out requests on a store this process owns."""

    def __init__(self, store: FactStore, compare: Compare | None = None) -> None:
        self._store = store
        self._producers = Producers(store.appends)
        self._compare = compare

    async def answer(self, request: Request) -> Answer:
        """The answer to a request; what the store or the checks refuse becomes `Refused`."""
        try:
            return await self._carry_out(request)
        except BsfgError as error:
            return Refused(error.why if isinstance(error, StoreError) else str(error), error.hint)

    async def _carry_out(self, request: Request) -> Answer:
        store = self._store
        match request:
            case AppendFact():
                message = Message(request.envelope, request.fact)
                check_from_zone(message, store.zone)
                asked = Precondition(request.producer, request.lease_epoch, request.base_offset)
                outcome = await self._producers.append_message(
                    request.stream, message, acks=request.acks, precondition=asked
                )
                return Appended(**told(outcome))
            case AcquireLease():
                return LeaseAcquired(
                    await asyncio.wrap_future(store.appends.acquire_lease(request.stream, request.producer))
                )
            case PutObject(digest, size, offset, data):
                held = await asyncio.to_thread(store.artifacts.put_chunk, digest, size, offset, data)
                return ObjectPut(held.received, held.is_complete)
            case RegisterConsumer():
                check_name("consumer_name", request.consumer_name, CONSUMER)
                check_name("stream", request.stream, STREAM)
                name, zone = request.consumer_name, request.zone or store.zone
                check_name("zone", zone, ZONE)
                registering = store.consumers.register(name, zone, request.stream, request.start)
                state = await asyncio.wrap_future(registering)
                if request.is_fetching:
                    store.consumers.seen(name, is_at_end=state.frontier >= store.end_offset(state.stream))
                return Registered(state.stream, state.frontier)
            case ListConsumers():
                return Consumers(await asyncio.to_thread(consumer_entries, store))
            case RemoveConsumer():
                entries = {one.name: one for one in await asyncio.to_thread(consumer_entries, store)}
                if request.consumer_name not in entries:
                    raise UnknownConsumer(f"no consumer {request.consumer_name!r}")
                removing = store.consumers.remove(request.consumer_name, force=request.force, now=request.now)
                state_after = await asyncio.wrap_future(removing)
                return Removed(state_after.value, entries[request.consumer_name])
            case ComparePeer():
                if self._compare is None:
                    raise LocalError("this process reaches no peer", "ask the node")
                return await self._compare(request)
            case ConfirmReceipt():
                known = store.consumers.get(request.consumer_name)
                if known is not None and known.zone != store.zone:
                    raise ConsumerNotYours(f"consumer {known.name!r} was registered by zone {known.zone!r}")
                frontier = await asyncio.wrap_future(
                    store.consumers.confirm(request.consumer_name, request.offset, request.first_offset)
                )
                return Confirmed(frontier)


def consumer_entries(store: FactStore) -> list[ConsumerEntry]:
    """Every consumer as it stands now; what each holds back is read from the disk, in the calling thread."""
    entries, now_ns = [], time.monotonic_ns()
    held = {one.name: one for one in store.space().consumers}
    for consumer in store.consumers.all():
        kept, end_offset = held.get(consumer.name), store.end_offset(consumer.stream)
        lag_ns = store.policy(consumer.stream).in_sync_lag_ms * 1_000_000
        in_sync = any(
            one.name == consumer.name and is_in_sync(one, lag_ns, now_ns)
            for one in store.consumers.followers(consumer.stream)
        )
        entries.append(
            ConsumerEntry(
                name=consumer.name,
                stream=consumer.stream,
                zone=consumer.zone,
                state=consumer.lifecycle.value,
                in_sync=in_sync,
                frontier=consumer.frontier,
                behind_facts=max(0, end_offset - consumer.frontier),
                held_bytes=kept.bytes_held if kept else 0,
                held_hours=kept.hours_held if kept and consumer.frontier < end_offset else None,
                seen_unix_ms=store.consumers.seen_unix_ms(consumer.name),
                lease_epoch=consumer.lease.epoch,
                lease_holder=consumer.lease.holder,
            )
        )
    return sorted(entries, key=lambda one: one.name)


async def serve(door: Door, state_dir: Path, idle_s: float = IDLE_S) -> None:
    """Answer at the socket in `state_dir` until cancelled; who says nothing for `idle_s` is shown out. A socket left by a killed node is replaced: the store's lock has
    already proven that nobody else owns it."""
    free = asyncio.Semaphore(CONNECTIONS_MAX)
    open_connections: set[asyncio.StreamWriter] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not server.is_serving():  # it came in the moment of the end
            writer.transport.abort()
            return
        open_connections.add(writer)
        try:
            async with free:
                while await _talk_once(door, reader, writer, idle_s):
                    pass
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            pass  # the other side left, or says nothing: nothing to say
        finally:
            open_connections.discard(writer)
            writer.close()

    with _address(state_dir) as address:
        (state_dir / SOCKET).unlink(missing_ok=True)
        server = await asyncio.start_unix_server(talk, address, limit=REQUEST_BYTES_MAX)
        (state_dir / SOCKET).chmod(0o600)
    try:
        await asyncio.get_running_loop().create_future()  # until cancelled; it serves already
    finally:
        # Not by `async with server`: from Python 3.12 on that waits for clients, and one that says nothing stays for ever.
        server.close()
        for writer in open_connections:
            writer.transport.abort()
        (state_dir / SOCKET).unlink(missing_ok=True)


async def _talk_once(door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, idle_s: float) -> bool:
    """One request and its answer. False when what follows cannot be told apart from another request."""
    async with asyncio.timeout(idle_s):
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        is_readable: bool = length <= REQUEST_BYTES_MAX
        payload = await reader.readexactly(length) if is_readable else b""
    if not is_readable:
        answer: Answer = Refused(f"request of {length} bytes, the limit is {REQUEST_BYTES_MAX}")
    else:
        try:
            request = _REQUEST.decode(payload)
        except (msgspec.MsgspecError, RecursionError) as error:
            answer = Refused(
                f"not a request: {error}", "see the structs of agent/local_socket/local_socket.py for the fields"
            )
        else:
            answer = await door.answer(request)
    encoded = msgspec.json.encode(answer)
    writer.write(_LENGTH.pack(len(encoded)) + encoded)
    async with asyncio.timeout(idle_s):  # somebody who asks and asks and reads nothing holds a place too
        await writer.drain()
    return is_readable


async def ask(state_dir: Path, request: Request, waits_ms: int = 0) -> Answer:
    """Ask the node that runs on this state folder; `waits_ms` is how long it may rightly wait for others (acks). Raises FileNotFoundError or ConnectionRefusedError when none does,
    StateFolderUnusable when it cannot be looked for, and LocalError when it breaks off or does not answer in time."""
    try:
        with _address(state_dir) as address:
            reader, writer = await asyncio.open_unix_connection(address, limit=ANSWER_BYTES_MAX)
    except (FileNotFoundError, ConnectionRefusedError):
        raise
    except OSError as error:
        raise StateFolderUnusable(f"{state_dir}: {error.strerror}") from error
    try:
        encoded = msgspec.json.encode(request)
        writer.write(_LENGTH.pack(len(encoded)) + encoded)
        async with asyncio.timeout(ANSWER_S_MAX + waits_ms / 1000):
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            answer: Answer = _ANSWER.decode(await reader.readexactly(min(length, ANSWER_BYTES_MAX)))
            return answer
    except (asyncio.IncompleteReadError, ConnectionError, msgspec.MsgspecError) as error:
        raise LocalError(
            "the node ended before it answered", "ask again; the same message_id is stored once"
        ) from error
    except TimeoutError as error:
        raise LocalError(f"the node did not answer in {ANSWER_S_MAX:.0f} s", "see `bsfg status` and its log") from error
    finally:
        writer.close()


@contextlib.contextmanager
def _address(state_dir: Path) -> Iterator[str]:
    """A path to the socket that fits the 108 bytes the kernel allows, however deep the state folder lies."""
    folder = os.open(state_dir, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)

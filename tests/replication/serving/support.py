"""A server of plant-a over a link that the test plays: idmz sends requests and reads the answers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from agent.batch import DIGEST_BYTES, Batch, Codec, Definitions, Header, Kind, Origin
from agent.fact_store import FactStore
from agent.lease import NO_LEASE, Lease
from agent.message import Envelope
from agent.node.latest import latest_lookup
from agent.pages import StoredBatch
from agent.replication.mqtt.carrier import Access, Incoming
from agent.replication.mqtt.link import BrokerLink
from agent.replication.protocol.codec import decode_answer, encode_request
from agent.replication.protocol.messages import ErrorAnswer, ErrorBody, NewFact, NewMessage, Request
from agent.replication.protocol.topics import request_topic, response_topic
from agent.replication.serving.admission import PeerRights
from agent.replication.serving.server import Server
from agent.settings.store import StreamSettings
from agent.signing.keys import ZoneSigner
from agent.signing.messages import MessageProof, split_answer
from tests.replication.nodes import STREAM, define, samples
from tests.waiting import LIMIT_S, wait_until_async

ANSWER_TO = response_topic("plant-a", "idmz", "1")
ORDERS = "orders"


@dataclass(frozen=True)
class Registered:
    """A registered consumer as a plain value (the protocol's port `Consumer`), for cores that need no store."""

    zone: str
    stream: str
    frontier: int
    lease: Lease = NO_LEASE


def stored(first: int, last: int, size: int = 100, origin: Origin | None = None) -> StoredBatch:
    """A batch of `size` zero bytes at these offsets, by default of zone plant-a: for what only counts bytes."""
    header = Header(
        "facts",
        origin or Origin("plant-a", bytes(16)),
        Kind.SAMPLES,
        Codec.RAW,
        False,
        first,
        last - first + 1,
        0,
        0,
        bytes(DIGEST_BYTES),
        Definitions(),
        0,
    )
    return StoredBatch(first, Batch(header, bytes(size), bytes(DIGEST_BYTES), 0))


class Peer:
    """idmz as the server's link shows it: the other end of the connection, which records the answers."""

    packet_bytes_max = 1_000_000
    outgoing_bytes = 0

    def __init__(self) -> None:
        self.link = BrokerLink(Access("b", "plant-a", "host", 1, lambda: None))  # type: ignore[arg-type, return-value]
        self.link.connection = self  # type: ignore[assignment]
        self.answers = list[Any]()
        self.batches = list[bytes]()  # of the last one
        self.proofs = list[tuple[bytes, MessageProof | None]]()

    def publish_answer(self, topic: str, payload: bytes, _correlation: bytes) -> None:
        assert topic == ANSWER_TO
        assert len(payload) <= self.packet_bytes_max
        self.proofs.append(split_answer(payload))
        answer, self.batches = decode_answer(self.proofs[-1][0])
        self.answers.append(answer)

    def send(self, request: Request | bytes, *, expiry_s: int | None = 10, answer_to: str = ANSWER_TO) -> None:
        """Deliver a request as the broker does."""
        payload = request if isinstance(request, bytes) else encode_request(request)
        self.link._dispatch(Incoming(request_topic("plant-a", "idmz"), payload, answer_to, bytes(16), expiry_s, False))

    async def ask(self, request: Request | bytes, *, expiry_s: int | None = 10) -> Any:
        """Deliver a request. Returns its answer."""
        count = len(self.answers)
        self.send(request, expiry_s=expiry_s)
        await wait_until_async(lambda: len(self.answers) > count, "an answer")
        return self.answers[-1]

    async def refusal(self, request: Request | bytes, *, expiry_s: int | None = 10) -> ErrorBody:
        """Deliver a request that is refused. Returns the error."""
        answer = await self.ask(request, expiry_s=expiry_s)
        assert isinstance(answer, ErrorAnswer), request
        return answer.error


@contextlib.asynccontextmanager
async def serving(
    folder: Path,
    appends: Mapping[str, frozenset[str]] | None = None,
    streams: Sequence[StreamSettings] = (),
    signer: ZoneSigner | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Server, Peer]]:
    """A server of plant-a that exports its telemetry to idmz and its orders to another zone, and accepts appends. It
    looks for latest values in its own store, as a node does."""
    peer, exports, appends = Peer(), {"enterprise": {ORDERS}, "idmz": {STREAM}}, appends or {}
    peers = {
        node: PeerRights(exports.get(node, frozenset()), appends.get(node, frozenset())) for node in exports | appends
    }
    with FactStore.open(folder / "facts.db", "plant-a", streams=streams, signer=signer) as store:
        settings = {"look_up": latest_lookup(store.reader, lambda _: 0, lambda *_: []), **settings}
        server = Server(peer.link, store, peers, **settings)  # type: ignore[arg-type]
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            running = group.create_task(server.run())
            await wait_until_async(lambda: server._group is not None, "the server")
            yield server, peer
            running.cancel()


async def filled(server: Server, facts: int) -> Any:
    """The server's store, with so many facts in one batch."""
    store: Any = server._store
    await define(store, "line1/temperature")
    await asyncio.wrap_future(store.appends.append_samples(STREAM, samples(0, facts)))
    return store


def new_message(message_id: str, content: bytes = b"1", zone: str = "idmz", **fields: Any) -> NewMessage:
    """A message as idmz might append it."""
    fact = NewFact(subject="batch:B-1", predicate="done", object=msgspec.Raw(content))
    return NewMessage(envelope=Envelope(message_id, zone, "*", 1_700_000_000_000), fact=fact, **fields)

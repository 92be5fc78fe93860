"""The server of `ingest`, a process of its own: publishes prepared values as fast as the client asks, or at a rate.

asyncua's server answers the requests that come once (channel, session, address space, Read). This module answers
subscriptions and Publish, with notifications packed by `struct`, because the library's server takes 20 us a value. Of
ten neighbouring items eight are Doubles, one an Int32 and one a Boolean, as the values of a machine lie in a tag file.
Each round changes all of them. In data set A half of the Doubles have all their digits, half are rounded to 0.01, and
each value has its own source time; in B all are rounded, and the values of one notification have one time, as from a
PLC.

It has no sampling, queues, deadbands or acknowledgements.
"""

from __future__ import annotations

import asyncio
import random
import signal
import struct
import time
from pathlib import Path
from typing import Any

from asyncua import ua
from asyncua.crypto.cert_gen import setup_self_signed_certificate
from asyncua.server import binary_server_asyncio
from asyncua.server.server import Server
from asyncua.server.uaprocessor import UaProcessor
from asyncua.ua.object_ids import ObjectIds
from asyncua.ua.ua_binary import struct_from_binary
from cryptography.x509.oid import ExtendedKeyUsageOID

from bench.common.measuring import peak_rss_mib
from bench.common.worker_io import Options, emit
from bench.ingest.opcua_clients import NAMESPACE

NOTIFICATION_ITEMS_MAX = 1_000
ROUNDS = 16  # distinct values of each item before they repeat
HEARTBEAT_S = 1.0
JITTER_100NS = 10_000  # each value's own source time, within a millisecond
PUBLISH_RESPONSE = 829
SUBSCRIPTION_ID = 1
APPLICATION_URI = "urn:bsfg:bench:server"
CLOCK = ua.NodeId(ObjectIds.Server_ServerStatus_CurrentTime)  # type: ignore[arg-type] # its identifier is an int
FILETIME_EPOCH = 116_444_736_000_000_000  # 1970-01-01 in 100 ns since 1601-01-01
MASK = 0x0F  # value, status, both times

KINDS = ((11, "d"),) * 8 + ((6, "i"), (1, "?"))  # variant type and struct letter, by the last digit of an item


class Chunk:
    """Up to a thousand items that are notified together: their values for every round, and the form of their bytes."""

    def __init__(self, handles: list[int], seed: int, data_set: str) -> None:
        chance = random.Random(seed)
        kinds = [KINDS[place % 10] for place in range(len(handles))]
        self.count = len(handles)
        self._struct = struct.Struct("<i" + "".join(f"IBB{letter}Iqq" for _, letter in kinds) + "i")
        full_precision = data_set == "A"
        made = _values(chance, len(handles), full_precision=full_precision)
        self._rounds = [self._fields(handles, kinds, values) for values in made]
        self._jitter = [chance.randrange(JITTER_100NS) if full_precision else 0 for _ in handles]

    def packed(self, number: int, filetime: int) -> bytes:
        """A DataChangeNotification of one round at a time."""
        fields = self._rounds[number % ROUNDS]
        fields[6:-1:7] = [filetime + jitter for jitter in self._jitter]
        fields[7:-1:7] = [filetime + JITTER_100NS] * self.count
        return self._struct.pack(*fields)

    def _fields(self, handles: list[int], kinds: list[tuple[int, str]], values: list[Any]) -> list[Any]:
        fields: list[Any] = [self.count]
        for handle, (kind, _), value in zip(handles, kinds, values, strict=True):
            fields += [handle, MASK, kind, value, 0, 0, 0]
        return [*fields, 0]


def _values(chance: random.Random, count: int, *, full_precision: bool) -> list[list[Any]]:
    """For each round a value of each item."""
    levels = [chance.uniform(0.0, 100.0) for _ in range(count)]
    rounds = []
    for _ in range(ROUNDS):
        levels = [level + chance.gauss(0.0, 0.2) for level in levels]
        values: list[Any] = [
            level if full_precision and place % 2 else round(level, 2) for place, level in enumerate(levels)
        ]
        values[8::10] = [int(level) for level in levels[8::10]]
        values[9::10] = [level > 50 for level in levels[9::10]]
        rounds.append(values)
    return rounds


class Generator:
    """What one client has subscribed to, and the next answer to its Publish requests."""

    def __init__(self, rate: float, data_set: str) -> None:
        self._rate = rate
        self._data_set = data_set
        self._handles: list[int] = []
        self._clock_handle: int | None = None
        self._chunks: list[Chunk] = []
        self._sequence = self._turn = 0
        self._started_s = self._clock_s = 0.0
        self._prepared: bytes | None = None
        self.values = 0

    def subscribe(self) -> None:
        """Start again, for another client."""
        self.__init__(self._rate, self._data_set)  # type: ignore[misc] # nothing of the client before is kept

    def monitor(self, parameters: ua.CreateMonitoredItemsParameters) -> list[ua.MonitoredItemCreateResult]:
        """Add items; every node exists."""
        results = []
        for item in parameters.ItemsToCreate:
            handle = item.RequestedParameters.ClientHandle
            if item.ItemToMonitor.NodeId == CLOCK:
                self._clock_handle = handle
            else:
                self._handles.append(handle)
            result = ua.MonitoredItemCreateResult(MonitoredItemId=handle)
            result.RevisedSamplingInterval = item.RequestedParameters.SamplingInterval
            result.RevisedQueueSize = item.RequestedParameters.QueueSize
            results.append(result)
        self._chunks, self._prepared = [], None
        return results

    def due_s(self) -> float:
        """The time until the next notification is due."""
        if not self._rate or not self._started_s:
            return 0.0
        return self._started_s + self.values / self._rate - time.monotonic()

    def take(self, request_handle: int, acknowledgements: int) -> bytes:
        """The next PublishResponse."""
        body = self._prepared or self._pack()
        self._prepared = None
        self._sequence += 1
        self._started_s = self._started_s or time.monotonic()
        now = _filetime()
        head = struct.pack("<BBH", 1, 0, PUBLISH_RESPONSE) + struct.pack(
            "<qIIBiBBB", now, request_handle, 0, 0, -1, 0, 0, 0
        )
        head += struct.pack("<IiIBIqi", SUBSCRIPTION_ID, 1, self._sequence, 0, self._sequence, now, 1)
        tail = struct.pack(f"<i{acknowledgements}Ii", acknowledgements, *[0] * acknowledgements, -1)
        return head + struct.pack("<BBHBi", 1, 0, 811, 1, len(body)) + body + tail

    def prepare(self) -> None:
        """Pack the next notification while the client is busy with the last; at a rate it would be stamped too
        early."""
        if not self._rate and self._prepared is None and (self._handles or self._clock_handle is not None):
            self._prepared = self._pack()

    def _pack(self) -> bytes:
        filetime = _filetime()
        if self._clock_handle is not None and time.monotonic() > self._clock_s + HEARTBEAT_S:
            self._clock_s = time.monotonic()
            item = struct.pack("<IBBqIqq", self._clock_handle, MASK, 13, filetime, 0, filetime, filetime)
            return struct.pack("<i", 1) + item + struct.pack("<i", 0)
        if not self._chunks:
            cuts = range(0, len(self._handles), NOTIFICATION_ITEMS_MAX)
            self._chunks = [
                Chunk(self._handles[cut : cut + NOTIFICATION_ITEMS_MAX], cut, self._data_set) for cut in cuts
            ]
        if not self._chunks:
            return struct.pack("<ii", 0, 0)
        number, place = divmod(self._turn, len(self._chunks))
        self._turn += 1
        self.values += self._chunks[place].count
        return self._chunks[place].packed(number, filetime)


def _filetime() -> int:
    """Now, as an OPC UA DateTime."""
    return time.time_ns() // 100 + FILETIME_EPOCH


GENERATOR = Generator(0.0, "A")


class Processor(UaProcessor):
    """asyncua's server side of a connection, with subscriptions answered by the generator."""

    async def _process_message(self, typeid: ua.NodeId, requesthdr: Any, seqhdr: Any, body: Any) -> bool:
        match typeid.Identifier:
            case ObjectIds.CreateSubscriptionRequest_Encoding_DefaultBinary:
                asked = struct_from_binary(ua.CreateSubscriptionParameters, body)
                GENERATOR.subscribe()
                created = ua.CreateSubscriptionResponse()
                created.Parameters.SubscriptionId = SUBSCRIPTION_ID
                created.Parameters.RevisedPublishingInterval = asked.RequestedPublishingInterval
                created.Parameters.RevisedLifetimeCount = asked.RequestedLifetimeCount
                created.Parameters.RevisedMaxKeepAliveCount = asked.RequestedMaxKeepAliveCount
                self._answer(requesthdr, seqhdr, created)
            case ObjectIds.CreateMonitoredItemsRequest_Encoding_DefaultBinary:
                monitored = ua.CreateMonitoredItemsResponse()
                monitored.Results = GENERATOR.monitor(struct_from_binary(ua.CreateMonitoredItemsParameters, body))
                self._answer(requesthdr, seqhdr, monitored)
            case ObjectIds.DeleteSubscriptionsRequest_Encoding_DefaultBinary:
                deleted = ua.DeleteSubscriptionsResponse()
                deleted.Results = [ua.StatusCode()]
                self._answer(requesthdr, seqhdr, deleted)
            case ObjectIds.PublishRequest_Encoding_DefaultBinary:
                if self.session is not None:
                    self.session.touch()
                acknowledged = struct_from_binary(ua.PublishParameters, body).SubscriptionAcknowledgements
                answer = (requesthdr.RequestHandle, seqhdr.RequestId, len(acknowledged or ()))
                asyncio.get_running_loop().call_later(max(0.0, GENERATOR.due_s()), self._publish, *answer)
            case _:
                await super()._process_message(typeid, requesthdr, seqhdr, body)  # type: ignore[no-untyped-call]
        return True

    def _answer(self, requesthdr: Any, seqhdr: Any, response: Any) -> None:
        self.send_response(requesthdr.RequestHandle, seqhdr, response)  # type: ignore[no-untyped-call]

    def _publish(self, request_handle: int, request_id: int, acknowledgements: int) -> None:
        if self._transport.is_closing():
            return
        message = GENERATOR.take(request_handle, acknowledgements)
        self._transport.write(self._connection.message_to_binary(message, request_id=request_id))
        asyncio.get_running_loop().call_soon(GENERATOR.prepare)


def serve(options: Options) -> None:
    """Serve on `port` at `rate` values/s (0: as fast as asked), also encrypted if `certificate_file` and
    `private_key_file` say where its new certificate is to be."""
    asyncio.run(_serve(options))


async def _serve(options: Options) -> None:
    global GENERATOR  # noqa: PLW0603 the library makes the processors, and gives them no argument of ours
    GENERATOR = Generator(options["rate"], options.get("data_set", "A"))
    vars(binary_server_asyncio)["UaProcessor"] = Processor  # asyncua has no hook for it
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    server = Server()
    await server.init()
    server.set_endpoint(f"opc.tcp://127.0.0.1:{options['port']}/bench")
    policies = [ua.SecurityPolicyType.NoSecurity]
    if options.get("certificate_file"):
        policies.append(ua.SecurityPolicyType.Basic256Sha256_SignAndEncrypt)
        files = Path(options["private_key_file"]), Path(options["certificate_file"])
        uses = [ExtendedKeyUsageOID.SERVER_AUTH]
        await setup_self_signed_certificate(*files, APPLICATION_URI, "localhost", uses, {"commonName": "bench"})
        await server.set_application_uri(APPLICATION_URI)
        await server.load_certificate(files[1], format="der")
        await server.load_private_key(files[0])
    server.set_security_policy(policies)
    await server.register_namespace(NAMESPACE)
    async with server:
        emit("READY")
        await stopped.wait()
    emit("ENDED", {"values": GENERATOR.values, "cpu_ns": time.process_time_ns(), "peak_rss_mib": peak_rss_mib()})

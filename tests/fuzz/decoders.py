"""The decoders that read a peer's bytes: each returns a consistent value or raises its one error.

`TARGETS` names for each decoder how it is called, how its value is checked, real messages as seeds (`seeds`), ways to
corrupt them (`hostile`), and how much memory an input may cost.
"""

import contextlib
import tracemalloc
from collections.abc import Callable
from typing import Any, NamedTuple

from agent import batch, columns
from agent.errors import BsfgError
from agent.message import ZONE, Message, MessageError, TagDefinition, canonical_json, check_message, parse_json
from agent.message import _are_plainly_canonical as are_plainly_canonical
from agent.replication.mqtt.carrier import Incoming
from agent.replication.mqtt.publish_packet import BadPacket, parse_publish
from agent.replication.protocol import messages
from agent.replication.protocol.codec import ArrivedAnswer, decode_answer, decode_request, encode_error, encode_request
from agent.replication.protocol.errors import MalformedMessage
from agent.replication.serving.admission import Caller, check_arrival
from agent.replication.serving.appends import ParsedAppend, parse_append
from agent.replication.serving.outcomes import Drop, Refuse
from agent.signing.certificates import CertificateRefusal, Signer, describe_signer
from agent.signing.messages import MessagePlace
from agent.signing.records import Record, RecordError, parse_record
from tests.fuzz import hostile, seeds
from tests.replication.answers import encode_answer

KIB, MIB = 1024, 1024 * 1024
CONTENT_BYTES_AT = 88  # in a batch's header


class Target(NamedTuple):
    """A decoder under test.

    An input whose `size` is n bytes may cost `bytes_free` + n * `bytes_per_byte` of memory while it is decoded, at most
    `bytes_max`.
    """

    decode: Callable[[bytes], Any]
    error: type[BsfgError] | type[BadPacket] | type[RecordError]
    check: Callable[[bytes, Any], None]
    seeds: Callable[[], list[bytes]]
    mutate: hostile.Mutate
    bytes_free: int
    bytes_per_byte: int
    bytes_max: int
    repair: Callable[[bytes], bytes] = bytes  # what the fuzzer's own changes need to be looked into
    tell: Callable[[Any], Any] = str  # what is done with an error
    size: Callable[[bytes], int] = len

    def allows(self, payload: bytes) -> int:
        """How much memory an input may cost at its peak, in bytes."""
        return min(self.bytes_max, self.bytes_free + self.size(payload) * self.bytes_per_byte)

    def examine(self, payload: bytes) -> bool:
        """Whether the input was accepted. Fails if it is neither accepted with a consistent value nor refused with the
        one error."""
        try:
            found = self.decode(payload)
        except self.error as error:
            self.tell(error)
            return False
        self.check(payload, found)
        return True

    def weigh(self, payload: bytes) -> int:
        """The peak memory in bytes while the input is decoded. Fails if it is more than allowed."""
        tracemalloc.start()
        try:
            with contextlib.suppress(self.error):
                self.decode(payload)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak <= self.allows(payload), f"{len(payload)} bytes cost {peak}, allowed are {self.allows(payload)}"
        return peak


# ------------------------------------------------------------------------------------------------------------- requests


def request(payload: bytes) -> tuple[messages.Request, ParsedAppend | Refuse | None]:
    """What the server does with a request before it calls the store."""
    found = decode_request(payload)
    return found, parse_append(found, "plant-a") if isinstance(found, messages.AppendFact) else None


def check_request(payload: bytes, decoded: tuple[messages.Request, ParsedAppend | Refuse | None]) -> None:
    """Encoded and decoded again it is equal; messages to append can be sealed if they pass the checks."""
    found, asked = decoded
    try:
        written = encode_request(found)
    except MalformedMessage:
        assert len(payload) > 32 * KIB  # what was written shortly may be long in our own writing
    else:
        assert decode_request(written) == found
    if isinstance(found, messages.FetchFacts):
        assert found.starts in {"oldest", "end"} or isinstance(found.starts, int)
    if isinstance(asked, ParsedAppend):
        for message in asked.messages:
            check_sealable(message)


def tell_request(error: MalformedMessage) -> None:
    """Every refusal can be encoded as an answer."""
    decoded, _ = decode_answer(encode_error("plant-a", seeds.LIFE, error.operation, error.code, str(error)))
    assert isinstance(decoded, messages.ErrorAnswer)


def check_sealable(message: Message) -> None:
    """A message that passes the checks can be sealed and opened again."""
    try:
        check_message(message)
    except MessageError:
        return
    (opened,) = batch.open_messages(batch.parse(batch.seal_messages(seeds.LINK, [message]).sealed))
    assert opened == message


# -------------------------------------------------------------------------------------------------------------- answers

PLACE = MessagePlace("plant-a", "idmz", "1", bytes(16))


def answer(payload: bytes) -> tuple[messages.Answer | messages.ErrorAnswer, list[bytes]]:
    """What the requester does with an answer before it looks for the proof."""
    return ArrivedAnswer(payload, PLACE).open()


def check_answer(payload: bytes, decoded: tuple[messages.Answer | messages.ErrorAnswer, list[bytes]]) -> None:
    """Encoded and decoded again it is equal, and its parts are exactly its attachment."""
    found, attached = decoded
    if isinstance(found, messages.ErrorAnswer):
        return
    assert payload.endswith(b"".join(attached))
    assert [len(part) for part in attached] == found.attached()
    assert decode_answer(encode_answer(found, attached)) == (found, attached)


# -------------------------------------------------------------------------------------------------------------- packets


def packet(payload: bytes) -> tuple[Incoming, int]:
    """The first byte is the command, the rest what follows the length of a PUBLISH."""
    return parse_publish(payload[0] if payload else 0x30, payload[1:])


def check_packet(payload: bytes, decoded: tuple[Incoming, int]) -> None:
    """A delivered message comes from a peer that can be answered, or is dropped."""
    incoming, qos = decoded
    assert 0 <= qos <= 3
    assert payload.endswith(incoming.payload)
    assert isinstance(check_arrival(incoming, "plant-a", frozenset({"idmz"})), Caller | Drop)


# -------------------------------------------------------------------------------------------------------------- batches


def sealed(payload: bytes) -> batch.Batch:
    """What a receiver does with a batch before it stores it."""
    parsed = batch.parse(payload)
    batch.verify(parsed)
    return parsed


def check_sealed(_: bytes, parsed: batch.Batch) -> None:
    """All ways to open it agree, and its content can be sealed again."""
    if parsed.header.kind is batch.Kind.MESSAGES:
        assert len(batch.open_messages(parsed)) == parsed.header.count
    else:
        check_rows(batch.open_packed(parsed))
    part = batch.cut(parsed, 0, 1)
    batch.verify(batch.parse(part.sealed))


def promised(payload: bytes) -> int:
    """The content length in a batch's header if it is allowed, else the batch's length."""
    content_bytes = int.from_bytes(payload[CONTENT_BYTES_AT : CONTENT_BYTES_AT + 4], "little")
    return max(content_bytes if content_bytes <= batch.CONTENT_BYTES_MAX else 0, len(payload))


def content(payload: bytes) -> columns.Unpacked:
    """Packed columns of the frame that the seeds are made for."""
    return columns.unpack(payload, seeds.FRAME)


def check_content(_: bytes, unpacked: columns.Unpacked) -> None:
    """Checked columns can be built on."""
    check_rows(unpacked)


def check_rows(unpacked: columns.Unpacked) -> None:
    """Lists and lookups contain the same facts, as the frame says."""
    lists, (count, tag_max, *bounds_ns) = unpacked.columns(), unpacked.frame
    assert [min(lists.source_times_ns), max(lists.source_times_ns)] == bounds_ns
    assert 1 <= min(lists.tags) <= max(lists.tags) <= tag_max
    assert {len(column) for column in lists} == {count}
    assert unpacked.times_ns_at([count - 1]) == lists.source_times_ns[-1:]
    assert unpacked.qualities_at([0]) == lists.qualities[:1]
    assert repr(unpacked.values_at([count - 1])) == repr(lists.values[-1:])


# ----------------------------------------------------------------------------------------------------------------- JSON


def check_definition(_: bytes, found: TagDefinition) -> None:
    """Encoded and decoded again it is equal."""
    assert TagDefinition.from_json(found.to_json()) == found


def json_object(payload: bytes) -> bytes:
    """The canonical form of an application's JSON."""
    return canonical_json(parse_json("object", payload))


def check_object(payload: bytes, canonical: bytes) -> None:
    """The canonical form is canonical, and the quick check accepts nothing else."""
    assert json_object(canonical) == canonical
    if are_plainly_canonical([payload]):
        assert canonical == payload


# ----------------------------------------------------------------------------------------------------------- signatures


def check_record(payload: bytes, found: Record) -> None:
    """Written again it is the same record."""
    assert found.packed() == payload


def signer(payload: bytes) -> Signer:
    """The signer that a peer's certificate names; nothing but a refusal may come of any other bytes."""
    found = describe_signer(payload)
    if isinstance(found, CertificateRefusal):
        raise RecordError(str(found))
    return found


def check_signer(_: bytes, found: Signer) -> None:
    """It names a zone and a key that can verify."""
    assert ZONE.fullmatch(found.zone)
    assert not found.public.verify(b"data", bytes(64))


# Free: what a decoder takes for itself, and the facts of a full batch that are told in a hundred bytes because all are
# equal. Per byte: an object of Python for every three bytes of JSON or content, and the pieces that canonical JSON is
# put together from. Max: what the limits of the format make of that; for a batch 25 times CONTENT_BYTES_MAX, as
# agent.batch says.
TARGETS = {
    "request": Target(
        request, MalformedMessage, check_request, seeds.requests, hostile.json_text, 256 * KIB, 64, 5 * MIB, tell=tell_request
    ),
    "answer": Target(answer, MalformedMessage, check_answer, seeds.answers, hostile.answer, 256 * KIB, 64, 80 * MIB),
    "publish": Target(packet, BadPacket, check_packet, seeds.packets, hostile.publish, 64 * KIB, 64, 64 * MIB),
    "batch": Target(
        sealed, batch.BatchError, check_sealed, seeds.batches, hostile.sealed, 6 * MIB, 25, 25 * batch.CONTENT_BYTES_MAX,
        repair=hostile.resealed, size=promised,
    ),
    "columns": Target(content, batch.BatchError, check_content, seeds.contents, hostile.content, 256 * KIB, 64, 64 * MIB),
    "definition": Target(
        TagDefinition.from_json, MessageError, check_definition, seeds.definitions, hostile.json_text, 256 * KIB, 64, 64 * MIB
    ),
    "record": Target(parse_record, RecordError, check_record, seeds.records, hostile.some_bytes, 64 * KIB, 64, MIB),
    "signer": Target(signer, RecordError, check_signer, lambda: seeds.certificates()[:1], hostile.some_bytes, 64 * KIB, 64, MIB),
    "json": Target(json_object, MessageError, check_object, seeds.objects, hostile.json_text, 256 * KIB, 64, 64 * MIB),
}  # fmt: skip

"""Real messages as seeds, made by the product's encoders from a store with samples of every type and messages.

Each function returns valid inputs for one decoder of `decoders`; a test checks that none is refused.
"""

import functools
import tempfile
from pathlib import Path

import msgspec
import zstandard
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from agent import batch
from agent.columns import HeaderFields
from agent.fact_store import FactStore
from agent.message import Envelope, Fact, Json, Message, Sample, TagDefinition
from agent.replication.mqtt.publish_packet import PackedProperties
from agent.replication.protocol import messages
from agent.replication.protocol.codec import encode_error, encode_request
from agent.replication.serving.page import HeldThere, ReadPlan
from agent.replication.serving.reading import PageQuery, PageRead, read_page
from agent.signing.messages import ANSWER_MARK
from agent.signing.records import Record
from tests.fact_store.making import AT_ONCE, OPERATIONAL, TELEMETRY, done
from tests.replication.answers import encode_answer
from tests.signing.signers import CLIENT, make, p256

LIFE = "0123456789abcdef" * 2
LINK = batch.Link(OPERATIONAL, batch.Origin("plant-a", bytes(16)))
FACTS = 12
FRAME = HeaderFields(FACTS, 9, 1_000, 12_000)  # what the header says of every content in `contents`
VALUES = (1.5, -0.0, 7, -(2**63), True, None, "text", "grün", b"\x00\xff", Json(b"[1,2.5]"), 2**64 - 1, 3.25)
OBJECTS = (
    b'{"a":[1,2.5,-3,1e+30,null,true],"\\u0000":"\\"","\xc3\xa9":{}}',
    b'{"n":9007199254740991,"step":"mash","x":{"y":[[],[[]]]}}',
    b"[0.1,1e-7,123456789012]",
    b'""',
    b"0",
)
ENVELOPE = Envelope("m-1", "plant-a", "idmz", 1_700_000_000_000, "c-1", None, {"line": "1"}, "application/json", "s/1")
CLAIM = messages.ClaimEntry(node="plant-a", instance=LIFE, state="leads", term=7, highest=9, fitness=2)


def rows(values: tuple[object, ...]) -> list[Sample]:
    """As many samples as FRAME has facts."""
    return [
        Sample(n % 9 + 1, 1_000 * (n + 1), values[n % len(values)], (0, 0x80000000)[n % 5 == 4]) for n in range(FACTS)
    ]


def definitions() -> list[bytes]:
    """Tag definitions as their origin wrote them."""
    full = TagDefinition("tag:line1/press", "value_sampled", "°C", "press", "ns=2;s=T1", "Double", "of the oil")
    return [full.to_json(), TagDefinition("tag:line1/t").to_json()]


def objects() -> list[bytes]:
    """Objects of messages, canonical and not."""
    return [*OBJECTS, b'{ "b": 1.0, "a": 12345678901234567000 }', *definitions()]


@functools.cache
def pages() -> list[PageRead]:
    """What a store with both streams answers: whole batches, a slice, definitions."""
    facts = [Fact("order:line1/77", "step_completed", value) for value in OBJECTS[1:]]
    with (
        tempfile.TemporaryDirectory() as folder,
        FactStore.open(Path(folder, "s.db"), "plant-a", settings=AT_ONCE) as store,
    ):
        done(store.appends.define([TagDefinition(f"tag:line1/t{number}", unit="bar") for number in range(1, 10)]))
        for values in ((1.0,), VALUES):
            done(store.appends.append_samples(TELEMETRY, rows(values)))
        for number, fact in enumerate(facts):
            done(store.appends.append_message(OPERATIONAL, Message(_numbered(number), fact)))
        plans = [
            ReadPlan(TELEMETRY, 0, 1_000, 100_000),
            ReadPlan(TELEMETRY, 3, 4, 100_000),
            ReadPlan(OPERATIONAL, 0, 9, 9_000),
        ]
        found = [read_page(store, PageQuery(plan, HeldThere(frozenset({"idmz"})), 2**20)) for plan in plans]
    assert all(isinstance(page, PageRead) and page.batches for page in found)
    return found  # type: ignore[return-value]


def _numbered(number: int) -> Envelope:
    return Envelope(
        f"m-{number}", "plant-a", "idmz", 1_700_000_000_000 + number, labels={"line": "1"} if number % 2 else {}
    )


def requests() -> list[bytes]:
    """Every operation, with few fields and with all of them."""
    new = messages.NewMessage(
        envelope=ENVELOPE,
        fact=messages.NewFact(subject="order:line1/77", predicate="step_completed", object=msgspec.Raw(OBJECTS[0])),
        producer="plant-a.mes",
        lease_epoch=3,
        base_offset=0,
    )
    read = messages.LogPosition(offset=10, life=LIFE, digest=LIFE)
    tag = messages.TagKey(zone="plant-a", subject="tag:line1/t1", predicate="value_sampled")
    fetch = messages.FetchFacts(
        consumer_name="idmz.facts",
        limit=1000,
        stream=TELEMETRY,
        start="2026-11-21T06:00:00Z",
        wait_ms=2000,
        after=read,
        confirm=messages.Confirm(last_offset=9, life=LIFE, first_offset=3),
    )
    found: list[messages.Request] = [
        fetch,
        messages.FetchFacts(consumer_name="c", limit=1, trail=[read, messages.LogPosition()]),
        messages.FetchFacts(
            consumer_name="c",
            limit=1,
            signers_known=[f"plant-a/{LIFE[:16]}"],
            held=[("plant-a", LIFE, 1, 9)],
        ),
        messages.FetchRange(stream=TELEMETRY, first_offset=1, last_offset=9, life=LIFE, limit=10),
        messages.FetchSequences(
            stream=TELEMETRY, origin=f"plant-a/{LIFE}", first_sequence=1, last_sequence=9, limit=10
        ),
        messages.GetDigests(stream=TELEMETRY, after_zone="plant-a", position=read),
        messages.GetDigests(stream=TELEMETRY, zone="plant-a", below=LIFE, down_to=LIFE),
        messages.GetDigests(stream=TELEMETRY, origin=f"plant-a/{LIFE}", first_sequence=1, last_sequence=9, ends_max=3),
        messages.ConfirmReceipt(consumer_name="idmz.facts", offset=9, first_offset=3, life=LIFE),
        messages.GetCursor(consumer_name="idmz.facts"),
        messages.GetDefinitions(wanted=[messages.WantedDefinitions(zone="plant-a", digest=LIFE, held=[LIFE[:16]])]),
        messages.UnregisterConsumer(consumer_name="idmz.facts", lease=3),
        messages.GetBounds(stream=TELEMETRY, position=read),
        messages.ListStreams(),
        messages.AppendFact(stream=OPERATIONAL, messages=[new, new], acks="quorum"),
        messages.AcquireLease(stream=OPERATIONAL, producer="plant-a.mes"),
        messages.GetObject(digest=f"sha256:{LIFE * 2}", offset=7),
        messages.PutObject(digest=f"sha256:{LIFE * 2}", size=9, offset=2, data=b"bytes"),
        messages.GetLatest(stream=TELEMETRY, subjects=["tag:line1/t1"], prefix="tag:", after=tag, limit=9),
        messages.ClaimLead(zone="plant-a", claim=CLAIM, witness_says="plant-a-2"),
    ]
    assert {type(request) for request in found} == set(messages.REQUESTS), "a new operation wants a request here"
    return [encode_request(request) for request in found]


def answers() -> list[bytes]:
    """Every operation's answer, pages as the store gives them, and errors."""
    own = {"store_zone": "plant-a", "life": LIFE}

    def read(offset: int) -> messages.LogPosition:
        return messages.LogPosition(offset=offset, life=LIFE if offset else "")

    latest = messages.LatestEntry(
        zone="plant-a", subject="tag:line1/t1", predicate="value_sampled", source="press", value=msgspec.Raw(b"1.5"),
        value_type="float", quality=0, source_time="2026-11-21T06:00:00Z", offset=7, as_of="2026-11-21T06:00:01Z",
        staleness_ms=12, mode="fresh", unit="bar",
    )  # fmt: skip
    digest = "ab" * 16
    held = (f"plant-a/{LIFE}", 1, 9, "00" * 16, digest)
    found: list[tuple[messages.Answer, list[bytes]]] = [
        (messages.DigestsAnswer(**own, stream=TELEMETRY, end_offset=9, ranges=[held], before=[("plant-a", 3, digest)], ends=[(3, digest), (9, digest)]), []),
        (messages.ConfirmAnswer(**own, cursor_advanced_to=9), []),
        (messages.UnregisterAnswer(**own, was_registered=True), []),
        (messages.CursorAnswer(**own, consumer_name="c", stream=TELEMETRY, frontier=1, end_offset=2), []),
        (messages.BoundsAnswer(**own, stream=TELEMETRY, first_offset=1, end_offset=24, end_life=LIFE, resolved=read(7)), []),
        (messages.StreamsAnswer(**own, streams=[messages.StreamEntry(name=TELEMETRY, first_offset=1, end_offset=24)]), []),
        (messages.AppendAnswer(**own, outcomes=[messages.AppendedEntry(offset=1, outcome="applied", warning="w")] * 2), []),
        (messages.LeaseAnswer(**own, lease_epoch=3), []),
        (messages.LeadAnswer(**own, leader="plant-a", term=7, highest=9, remaining_ms=900, other=CLAIM), []),
        (messages.ObjectAnswer(**own, size=9, offset=2, bytes=5), [b"bytes"]),
        (messages.PutAnswer(**own, received=7, is_complete=False), []),
        (messages.LatestAnswer(**own, stream=TELEMETRY, end_offset=9, queue_depth=0, depth_facts=9, values=[latest]), []),
        (messages.FetchAnswer(**own, stream=TELEMETRY, frontier=3, end_offset=9, omitted=[(4, 6)], holes=[(7, 9, "expired")], after=read(3), lives=[read(9)], held_runs=[("plant-a", LIFE, 4, 6, digest)]), []),
    ]  # fmt: skip
    texts = definitions()
    run = messages.DefinitionRun(zone="plant-a", digest=LIFE, lengths=[len(text) for text in texts])
    found.append((messages.DefinitionsAnswer(**own, runs=[run]), texts))
    for page in pages():
        ends = (page.entries[0][0] - 1, page.entries[-1][1])
        of_log = {"after": read(ends[0]), "lives": [read(ends[1])]}
        page_fields = {"stream": TELEMETRY, "batches": page.entries}
        page_answers = (
            messages.FetchAnswer(**own, frontier=0, end_offset=page.end_offset, **page_fields, **of_log),
            messages.RangeAnswer(**own, end_offset=page.end_offset, **page_fields),
            messages.SequencesAnswer(**own, origin=f"plant-a/{LIFE}", **page_fields),
        )
        found += [(answer, page.batches) for answer in page_answers]
        signed_fields = {**page_fields, "signers": [certificates()[0]]}
        found.append(
            (
                messages.FetchAnswer(**own, frontier=0, end_offset=page.end_offset, **signed_fields, **of_log),
                page.batches,
            )
        )
    assert {type(answer) for answer, _ in found} == set(messages.ANSWERS), "a new operation wants an answer here"
    error = encode_error("plant-a", LIFE, "FetchFacts", "busy", "later")
    proven = ANSWER_MARK + len(certificates()[0]).to_bytes(2, "little") + certificates()[0] + bytes(64) + error
    return [*(encode_answer(*answer) for answer in found), error, proven]


def records() -> list[bytes]:
    """Records that a store has made."""
    return [Record(bytes(8), 1_780_000_000_000, bytes(64)).packed(), Record(b"\xff" * 8, 0, b"\x01" * 64).packed()]


@functools.cache
def certificates() -> list[bytes]:
    """Certificates of signers, good ones and of the wrong kind."""
    authority = make("facts authority", is_ca=True)
    return [make("plant-a", authority).der, make("plant-a", authority, usages=(CLIENT,), key=p256()).der, authority.der]


def packets() -> list[bytes]:
    """A command byte and what follows the length of a PUBLISH: ours, and one of paho's with every property."""
    topic = b"bsfg/1/plant-a/idmz/req"
    start = len(topic).to_bytes(2) + topic
    ours = PackedProperties(b"12345678", 5, "bsfg/1/plant-a/idmz/rsp/0/0123456789abcdef").pack()
    full = Properties(PacketTypes.PUBLISH)
    full.PayloadFormatIndicator = 1
    full.UserProperty = [("a", "b"), ("c", "")]
    full.ContentType = "application/json"
    full.CorrelationData = b"1234"
    full.ResponseTopic = "a/b"
    full.MessageExpiryInterval = 77
    full.SubscriptionIdentifier = 300
    return [
        b"\x30" + start + ours + requests()[0],
        b"\x33" + start + b"\x12\x34" + full.pack() + b"payload",
        b"\x30" + start + b"\x00",
    ]


def batches() -> list[bytes]:
    """Sealed batches: raw and compressed, samples of one type and of all, messages, a slice."""
    found = [sealed for page in pages() for sealed in page.batches]
    link = batch.Link(TELEMETRY, LINK.origin)
    large = [Sample(n % 9 + 1, n * 1_000_000, float(n % 50), 0) for n in range(400)]
    found.append(batch.seal_samples(link, large, batch.Definitions(9, b"\x01" * 16)).sealed)
    assert {batch.parse(sealed_batch).header.codec for sealed_batch in found} == set(batch.Codec)
    assert {batch.parse(sealed_batch).header.kind for sealed_batch in found} == set(batch.Kind)
    return found


def contents() -> list[bytes]:
    """Packed columns of FRAME's facts: one type each, then all."""
    found = []
    link = batch.Link(TELEMETRY, LINK.origin)
    for values in (*((value,) for value in VALUES), VALUES, tuple(float(n) for n in range(FACTS)), tuple(range(FACTS))):
        parsed = batch.parse(batch.seal_samples(link, rows(values), batch.Definitions(9, b"\x01" * 16)).sealed)
        body = parsed.sealed[parsed.body_at : -batch.DIGEST_BYTES]
        is_raw = parsed.header.codec is batch.Codec.RAW
        found.append(body if is_raw else zstandard.ZstdDecompressor().decompress(body))
    return found

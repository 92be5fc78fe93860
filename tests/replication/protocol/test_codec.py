"""Encoding and decoding: every message is read back as written, and each fault is named. Any bytes: `tests/fuzz`."""

import json
import re
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.lease import LEASE_EPOCH_MAX
from agent.message import Envelope
from agent.replication.protocol import codec
from agent.replication.protocol.codec import (
    ANSWER_BYTES_MAX,
    HEADER_BYTES_MAX,
    REQUEST_BYTES_MAX,
    decode_answer,
    decode_request,
    encode_error,
    encode_request,
)
from agent.replication.protocol.errors import ERRORS, MalformedMessage
from agent.replication.protocol.messages import (
    ANSWERS,
    BYTES_MAX_MAX,
    CLAIM_MAX,
    LIMIT_MAX,
    MESSAGES_MAX,
    OFFSET_MAX,
    WAIT_MS_MAX,
    AcquireLease,
    AppendFact,
    Confirm,
    ConfirmReceipt,
    DefinitionRun,
    DefinitionsAnswer,
    ErrorAnswer,
    FetchAnswer,
    FetchFacts,
    FetchRange,
    GetBounds,
    GetCursor,
    ListStreams,
    LogPosition,
    NewFact,
    NewMessage,
    operation_of,
)
from tests.replication.answers import encode_answer
from tests.replication.message_fields import Place, integers

LIFE = "0123456789abcdef" * 2
names = st.from_regex(r"\A[a-z0-9._-]{1,64}\Z")
zones = st.from_regex(r"\A[a-z0-9-]{1,32}\Z")
offsets = st.integers(0, OFFSET_MAX)
claims = st.integers(0, CLAIM_MAX)
positions = st.integers(1, OFFSET_MAX)
lives = st.binary(min_size=16, max_size=16).map(bytes.hex)
confirms = st.builds(Confirm, last_offset=positions, life=lives)
read = st.builds(LogPosition, offset=claims, life=lives, digest=st.just("") | lives)
fetches = st.builds(
    FetchFacts,
    consumer_name=names,
    limit=st.integers(1, LIMIT_MAX),
    bytes_max=st.integers(1024, BYTES_MAX_MAX),
    wait_ms=st.integers(0, WAIT_MS_MAX),
    stream=st.none() | names,
    start=st.sampled_from(["oldest", "end", "2026-11-21T06:00:00Z", 1_700_000_000_000]),
    after=st.none() | read,
    confirm=st.none() | confirms,
)
new_messages = st.builds(
    NewMessage,
    envelope=st.builds(Envelope, st.text(), zones, st.text(), st.integers(0, 2**53), labels=st.just({"line": "1"})),
    fact=st.builds(NewFact, subject=st.text(), predicate=st.text(), object=st.just(msgspec.Raw(b'{"a":[1,2.5]}'))),
    producer=st.none() | st.text(),
    lease_epoch=st.none() | st.integers(1, LEASE_EPOCH_MAX),
    base_offset=st.none() | offsets,
)
requests = (
    fetches
    | st.builds(ConfirmReceipt, consumer_name=names, offset=positions, life=lives)
    | st.builds(GetCursor, consumer_name=names)
    | st.builds(GetBounds, stream=names)
    | st.builds(ListStreams)
    | st.builds(
        AppendFact,
        stream=names,
        messages=st.lists(new_messages, min_size=1, max_size=3),
        acks=st.sampled_from([None, "none", "local", "quorum", "all"]),
    )
    | st.builds(AcquireLease, stream=names, producer=names)
)


def request_with(**fields: object) -> bytes:
    """A FetchFacts request with other fields."""
    head = {"protocol": "bsfg.replication", "version": "1.0", "operation": "FetchFacts"}
    return json.dumps({**head, "consumer_name": "idmz.facts", "limit": 10, **fields}).encode()


def answer_with(attachment: bytes = b"", **fields: object) -> bytes:
    """A FetchFacts answer with some fields replaced."""
    header = {
        "protocol": "bsfg.replication",
        "version": "1.0",
        "operation": "FetchFacts",
        "status": "ok",
        "store_zone": "plant-a",
        "life": LIFE,
        "stream": "facts",
        "frontier": 0,
        "end_offset": 9,
        **fields,
    }
    encoded = json.dumps(header).encode()
    return struct.pack("<I", len(encoded)) + encoded + attachment


def newer(header: Any) -> Any:
    """The same message in a later minor version: unknown fields in every object."""
    if isinstance(header, list):
        return [newer(element) for element in header]
    if not isinstance(header, dict):
        return header
    grown = {name: value if name in {"object", "labels"} else newer(value) for name, value in header.items()}
    return {"patience": {"unit": "ms"}, "mood": [None], **grown, **({"version": "1.7"} if "version" in header else {})}


def newer_answer(answer: bytes) -> bytes:
    """The same of an answer; what is attached to it stays."""
    end = 4 + struct.unpack_from("<I", answer)[0]
    header = msgspec.json.encode(newer(msgspec.json.decode(answer[4:end])))
    return struct.pack("<I", len(header)) + header + answer[end:]


@given(requests)
def test_request_round_trip(request: codec.Request) -> None:
    """Every request is read back as it was written, also from a node of a later minor version."""
    payload = encode_request(request)
    assert decode_request(payload) == request
    assert decode_request(msgspec.json.encode(newer(msgspec.json.decode(payload)))) == request


@given(st.lists(st.tuples(st.integers(1, 50), st.binary(min_size=1, max_size=40), st.booleans()), max_size=8), claims)
def test_fetch_answer_round_trip(runs: list[tuple[int, bytes, bool]], frontier: int) -> None:
    """Batches of any sizes, and omitted ranges between them, come back exactly, in order."""
    end, batches, omitted, attachment = 0, [], [], []
    for count, data, is_omitted in runs:
        if is_omitted:
            omitted.append((end + 1, end + count))
        else:
            batches.append((end + 1, end + count, len(data)))
            attachment.append(data)
        end += count
    answer = FetchAnswer(
        store_zone="plant-a",
        stream="facts",
        frontier=frontier,
        end_offset=end,
        batches=batches,
        omitted=omitted,
        life=LIFE,
        lives=[LogPosition(offset=end, life=LIFE)] if runs else [],
    )
    payload = encode_answer(answer, attachment)
    decoded, found = decode_answer(payload)
    assert decode_answer(newer_answer(payload)) == (decoded, found)
    assert isinstance(decoded, FetchAnswer)
    assert found == attachment
    assert (decoded.batches, decoded.omitted, decoded.frontier) == (batches, omitted, frontier)
    assert decoded.covered() == ((1, end) if runs else None)


def test_definitions_answer_round_trip() -> None:
    """Definitions come back byte for byte, also with spaces, also of a later minor version."""
    bodies = [b'{"subject":"tag:x","a" : [1, 2]}', b"{}"]
    run = DefinitionRun(zone="plant-a", digest=LIFE, lengths=[len(body) for body in bodies])
    answer = DefinitionsAnswer(store_zone="plant-a", life=LIFE, runs=[run])
    payload = encode_answer(answer, bodies)
    assert decode_answer(payload) == decode_answer(newer_answer(payload)) == (answer, bodies)


def test_an_error_is_one_line() -> None:
    """Whatever a peer writes into its message and its hint, they cannot forge a line of the log."""
    body = {"code": "busy", "message": "a\nb", "hint": "c\x1b[2Jd\ne", "retryable": True}
    answer, _ = decode_answer(answer_with(status="error", error=body))
    assert isinstance(answer, ErrorAnswer)
    assert (answer.error.message.isprintable(), answer.error.hint.isprintable()) == (True, True)


def test_error_for_an_unreadable_request_can_be_sent() -> None:
    """An answer to a request with any operation name can be written and read."""
    payload = encode_error("plant-a", LIFE, "x" * 500, "unknown_operation", "y" * 5000)
    answer, _ = decode_answer(payload)
    assert isinstance(answer, ErrorAnswer)
    assert decode_answer(newer_answer(payload))[0] == answer, "a refusal of a later minor version keeps its code"


@pytest.mark.parametrize(
    "payload, code, said",
    [
        (b"", "bad_request", "truncated"),
        (b"{", "bad_request", "truncated"),
        (b"[]", "bad_request", "object"),
        (b"\xff\xfe", "bad_request", "malformed"),
        (b"[" * 50_000, "bad_request", "object"),
        (b" " * (REQUEST_BYTES_MAX + 1), "request_too_large", "65536"),
        (request_with(version="2.0"), "unsupported_version", "'2.0', this node 'bsfg.replication' '1.0'"),
        (request_with(version="0.9"), "unsupported_version", "'0.9'"),
        (request_with(version="one"), "unsupported_version", "'one'"),
        (request_with(protocol="mesh"), "unsupported_version", "'mesh'"),
        (request_with(operation="DropFacts"), "unknown_operation", "'DropFacts'"),
        (request_with(limit=0), "limit_out_of_range", "limit is 0, must be 1 to 1000000"),
        (request_with(limit=-1), "limit_out_of_range", "limit is -1"),
        (request_with(limit=10**30), "limit_out_of_range", "beyond 64 bits"),
        (request_with(limit="10"), "bad_request", "$.limit"),
        (request_with(limit=True), "bad_request", "$.limit"),
        (request_with(bytes_max=1), "limit_out_of_range", "bytes_max is 1"),
        (request_with(bytes_max=10**9), "limit_out_of_range", "bytes_max"),
        (request_with(wait_ms=-5), "limit_out_of_range", "wait_ms is -5"),
        (request_with(wait_ms=10**9), "limit_out_of_range", "wait_ms"),
        (request_with(consumer_name="a/b"), "bad_request", "(1 to 64 of a-z, 0-9, ., _ and -) - at `$.consumer_name`"),
        (request_with(consumer_name="a" * 65), "bad_request", "$.consumer_name"),
        (request_with(consumer_name="a\n"), "bad_request", "$.consumer_name"),
        (request_with(after={"offset": -1}), "bad_request", "$.after.offset"),
        (request_with(after={"offset": 2**63}), "bad_request", "$.after.offset"),
        (request_with(after={"life": "00"}), "bad_request", "$.after.life"),
        (request_with(after={"digest": "00"}), "bad_request", "$.after.digest"),
        (request_with(trail=[{}] * 65), "bad_request", "$.trail"),
        (request_with(trail=[], after={}), "bad_request", "exclude"),
        (request_with(confirm={"last_offset": 0, "life": LIFE}), "bad_request", "$.confirm.last_offset"),
        (request_with(confirm={"last_offset": 3, "life": LIFE, "first_offset": 4}), "bad_request", "backwards"),
        (request_with(confirm={"last_offset": 3}), "bad_request", "life"),
        (request_with(signers_known=["x"]), "bad_request", "$.signers_known"),
        (
            request_with(operation="FetchRange", stream="s", first_offset=3, last_offset=2, life=LIFE),
            "bad_request",
            "3 to 2 is backwards",
        ),
    ],
)
def test_bad_request_is_named(payload: bytes, code: str, said: str) -> None:
    """Each kind of invalid request has its code and a message that names the field."""
    with pytest.raises(MalformedMessage, match=re.escape(said)) as raised:
        decode_request(payload)
    assert raised.value.code == code


def test_a_range_may_have_one_fact() -> None:
    """A range that begins where it ends is one fact, so it can be requested and confirmed."""
    confirm = Confirm(last_offset=5, life=LIFE, first_offset=5)
    for request in (
        FetchFacts(consumer_name="c", limit=1, confirm=confirm),
        FetchRange(stream="s", first_offset=5, last_offset=5, life=LIFE, limit=1),
        ConfirmReceipt(consumer_name="c", offset=5, life=LIFE, first_offset=5),
    ):
        assert decode_request(encode_request(request)) == request


def test_an_answer_in_another_version_carries_a_hint() -> None:
    """The error for an answer of another version carries the table's hint, because no peer sends it."""
    with pytest.raises(MalformedMessage, match=r"'2\.0'") as raised:
        decode_answer(encode_error("plant-a", "11" * 16, "", "busy", "x").replace(b'"1.0"', b'"2.0"'))
    assert raised.value.hint == ERRORS["unsupported_version"].hint


def test_an_answer_beyond_the_limit_is_not_decoded() -> None:
    """Whatever it holds: a peer cannot make this node decode more than 16 MiB at once, nor a header of more than one,
    not even in a field that a later version may have."""
    with pytest.raises(MalformedMessage, match="header of"):
        decode_answer(answer_with(later="x" * HEADER_BYTES_MAX))
    with pytest.raises(MalformedMessage, match=f"{ANSWER_BYTES_MAX + 1} bytes, 4 to {ANSWER_BYTES_MAX} expected"):
        decode_answer(bytes(ANSWER_BYTES_MAX + 1))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x00\x00\x00",
        struct.pack("<I", 100) + b"{}",
        struct.pack("<I", 2**32 - 1) + b"{}",
        answer_with(version="2.0", operation=7, status=None),
        answer_with(status="maybe"),
        answer_with(operation="Unheard"),
        answer_with(batches=[[1, 2, 3]]),
        answer_with(b"abcd", batches=[[1, 2, 3]]),
        answer_with(b"abc", batches=[[2, 1, 3]]),
        answer_with(b"abc", batches=[[1, 2, 1], [4, 5, 2]]),
        answer_with(b"abc", batches=[[1, 2, 1], [2, 3, 2]]),
        answer_with(b"abc", batches=[[1, 10, 3]]),
        answer_with(b"abc", batches=[[1, 3, 3]], omitted=[[3, 4]]),
        answer_with(b"", batches=[[1, 1, 0]]),
        answer_with(b"abc", batches=[[0, 1, 3]]),
        answer_with(omitted=[[1, 1]] * 3000),
        answer_with(holes=[[1, 3, "expired"]], omitted=[[3, 4]]),
        answer_with(holes=[[4, 3, "expired"]]),
        answer_with(holes=[[1, 3, "Not A Reason"]]),
        answer_with(holes=[[1, 3]]),
        answer_with(holes=[[1, 3, "expired"], [5, 6, "expired"]]),
        answer_with(life="short"),
        answer_with(store_zone="Plant A"),
        b"\x00" * (codec.ANSWER_BYTES_MAX + 1),
    ],
)
def test_bad_answer_is_refused(payload: bytes) -> None:
    """Lengths, order and overlap of a page are checked before its batches are read."""
    with pytest.raises(MalformedMessage):
        decode_answer(payload)


@pytest.mark.parametrize(
    "start, found",
    [
        ("oldest", "oldest"),
        ("end", "end"),
        (0, 0),
        (1_700_000_000_123, 1_700_000_000_123),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T23:13:20.123456+01:00", 1_700_000_000_123),
    ],
)
def test_where_a_consumer_may_start(start: object, found: object) -> None:
    """The oldest fact, the end, or a time in either notation."""
    request = decode_request(request_with(start=start))
    assert isinstance(request, FetchFacts)
    assert request.starts == found


@pytest.mark.parametrize(
    "start", ["noon", "", "2023-11-14T22:13:20", "1969-12-31T23:59:59Z", -1, 1.5, True, 2**63, "9" * 41, []]
)
def test_an_invalid_start_time_is_refused(start: object) -> None:
    """A time without a time zone is ambiguous and refused, like text that is not a time."""
    with pytest.raises(MalformedMessage) as raised:
        decode_request(request_with(start=start))
    assert raised.value.code == "bad_request"


@pytest.mark.parametrize("count, is_good", [(1, True), (MESSAGES_MAX, True), (0, False), (MESSAGES_MAX + 1, False)])
def test_an_append_has_some_messages_and_not_too_many(count: int, *, is_good: bool) -> None:
    """The number of messages has a limit of its own, below the limit in bytes."""
    envelope = {"message_id": "a", "from_zone": "b", "to_zone": "c", "produced_at_unix_ms": 1}
    message = {"envelope": envelope, "fact": {"subject": "a:b", "predicate": "c", "object": 1}}
    head = {"protocol": "bsfg.replication", "version": "1.0", "operation": "AppendFact", "stream": "facts"}
    payload = json.dumps({**head, "messages": [message] * count}).encode()
    assert len(payload) <= REQUEST_BYTES_MAX
    if is_good:
        assert len(decode_request(payload).messages) == count  # type: ignore[union-attr]
        return
    with pytest.raises(MalformedMessage) as refused:
        decode_request(payload)
    assert refused.value.code == "bad_request"


def test_an_oversized_request_is_not_sent() -> None:
    """A request beyond the limit is refused by the encoder with the same code."""
    fact = NewFact(subject="a:b", predicate="c", object=msgspec.Raw(b'"' + b"x" * REQUEST_BYTES_MAX + b'"'))
    message = NewMessage(envelope=Envelope("a", "b", "c", 1), fact=fact)
    with pytest.raises(MalformedMessage) as refused:
        encode_request(AppendFact(stream="facts", messages=[message]))
    assert refused.value.code == "request_too_large"
    assert (
        refused.value.hint == ERRORS["request_too_large"].hint
    )  # a command prints it; no peer answers a request that is not sent


TEXTS = ("a", "0" * 16, "0" * 32, f"a/{'0' * 32}", f"sha256:{'0' * 64}")


def with_integer(kind: Any, place: Place, value: int) -> Any:
    """A value of a type with an integer in one place; elsewhere the first that its type allows."""
    match kind:
        case msgspec.inspect.IntType():
            return value if place == () else kind.ge
        case msgspec.inspect.UnionType(types=types):
            (inner,) = (choice for choice in types if not isinstance(choice, msgspec.inspect.NoneType))
            return with_integer(inner, place, value)
        case msgspec.inspect.StructType(fields=fields):
            used = [member for member in fields if member.required or place[:1] == (member.encode_name,)]
            return {
                member.encode_name: with_integer(member.type, rest(place, member.encode_name), value) for member in used
            }
        case msgspec.inspect.ListType(item_type=item):
            return [with_integer(item, rest(place, 0), value)] if place[:1] == (0,) else []
        case msgspec.inspect.TupleType(item_types=items):
            return [with_integer(item, rest(place, at), value) for at, item in enumerate(items)]
        case msgspec.inspect.StrType(pattern=pattern):
            return next(text for text in TEXTS if pattern is None or re.search(pattern, text))
        case msgspec.inspect.BoolType():
            return False
    return 1  # any JSON


def rest(place: Place, step: str | int) -> Place:
    """The rest of a place inside the part that `step` names; one that matches nothing for another part."""
    return place[1:] if place[:1] == (step,) else ("",)


CLAIMS = [
    (operation_of(kind), info, place, claim)
    for kind in ANSWERS
    for info in [msgspec.inspect.type_info(kind)]
    for place, claim in integers(info)
]
"""Every integer that an answer may have."""


def refusal(operation: str, fields: dict[str, Any]) -> str:
    """Why an answer with these fields is refused; empty if it is not."""
    head = {"protocol": "bsfg.replication", "version": "1.0", "operation": operation, "status": "ok"}
    encoded = json.dumps({**fields, **head}).encode()
    try:
        decode_answer(struct.pack("<I", len(encoded)) + encoded)
    except MalformedMessage as error:
        return error.why
    return ""


@given(st.sampled_from(CLAIMS), st.integers(CLAIM_MAX + 1, 2**64) | st.integers(-(2**64), -1))
def test_every_integer_of_an_answer_has_a_limit(claim: tuple[str, Any, Place, Any], value: int) -> None:
    """If any field of any answer holds a number below 0, or one that leaves no room for sums of it in 64 bits, the
    answer is refused, naming the field. The largest allowed value is accepted."""
    operation, info, place, field = claim
    assert f"$.{place[0]}" in refusal(operation, with_integer(info, place, value))
    assert "Expected `int`" not in refusal(operation, with_integer(info, place, field.le))


def test_no_sum_of_claims_leaves_64_bits() -> None:
    """A thousand of the largest claims fit into 64 bits, and every integer of every answer has both limits."""
    assert len(CLAIMS) > 40
    assert CLAIM_MAX * 1000 < 2**63
    assert [
        (place, limits.ge, limits.le)
        for _, _, place, limits in CLAIMS
        if limits.ge not in {0, 1} or limits.le > CLAIM_MAX
    ] == []

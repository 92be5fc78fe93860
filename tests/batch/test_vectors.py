"""The vectors of docs/developers/batch-format.md, read by the product and by a second decoder written from that page
alone.

The second decoder does not use `agent.batch`: if it reads every vector, the page suffices for another implementation.
"""

import hashlib
import json
import re
import struct
from dataclasses import asdict
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from agent import batch
from agent.message import UNIX_MS_MAX, Envelope, Fact, Json, Message, Sample, TagDefinition
from agent.signing.certificates import Signer
from agent.signing.chains import Proof, SignedEnd, check_record
from agent.signing.keys import SignerPublic
from tests.vectors.make import SIGN

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs/developers/batch-format.md"


@cache
def vectors() -> dict[str, Any]:
    """The vectors of the file, read once."""
    found: dict[str, Any] = json.loads((TESTS / "vectors/batches.json").read_text())
    return found


def named(kind: str) -> list[Any]:
    """The vectors of a kind as parameters with their names."""
    return [pytest.param(entry, id=entry["name"]) for entry in vectors()[kind]]


# ---------------------------------------------------------------------------------------- a decoder from the page alone


class Refused(Exception):
    """The page requires a reader to refuse this."""


def demand(condition: object, rule: int) -> None:
    """Rule number of "What a reader must refuse"."""
    if not condition:
        raise Refused(rule)


def page_digest(data: bytes) -> bytes:
    """H of the page."""
    return hashlib.blake2b(data, digest_size=16).digest()


def page_header(sealed: bytes) -> tuple[dict[str, Any], bytes]:
    """Header fields and content of a sealed batch."""
    demand(len(sealed) >= 98, 1)
    demand(sealed[:4] == b"BSFB" and sealed[4] == 1, 1)
    kind, codec, flags = sealed[5], sealed[6], sealed[7]
    first, count = struct.unpack("<QI", sealed[24:36])
    earliest, latest = struct.unpack("<qq", sealed[36:52])
    definition_count, (content_bytes, body_bytes) = (
        int.from_bytes(sealed[68:72], "little"),
        struct.unpack("<II", sealed[88:96]),
    )
    zone_end = 98 + sealed[96]
    body_at = zone_end + sealed[97]
    record_bytes = 82 if flags & 2 else 0
    demand(len(sealed) <= 524_288 and len(sealed) == body_at + body_bytes + record_bytes + 16, 2)
    demand(page_digest(sealed[:-16]) == sealed[-16:], 3)
    demand(kind in (1, 2) and codec in (0, 1) and flags in (0, 1, 2), 4)
    zone, stream = sealed[98:zone_end].decode("ascii"), sealed[zone_end:body_at].decode("ascii")
    demand(re.fullmatch("[a-z0-9-]{1,32}", zone) and re.fullmatch("[a-z0-9._-]{1,64}", stream), 5)
    demand(1 <= count <= 16_384 and 1 <= first <= first + count - 1 <= 2**63 - 2 and earliest <= latest, 6)
    demand((sealed[52:68] == bytes(16)) == (first == 1 and flags != 1), 7)
    demand((definition_count == 0) == (sealed[72:88] == bytes(16)) == (kind == 2), 8)
    demand(content_bytes <= 2_097_152 and (codec or content_bytes == body_bytes), 9)
    content = sealed[body_at : body_at + body_bytes]
    if codec == 1:
        demand(zstandard.frame_content_size(content) == content_bytes, 10)
        content = zstandard.ZstdDecompressor().decompress(content, allow_extra_data=False)
    return {
        "kind": {1: "samples", 2: "messages"}[kind], "codec": {0: "raw", 1: "zstd"}[codec], "slice": flags == 1,
        "signed": flags == 2,
        "zone": zone, "life": sealed[8:24].hex(), "stream": stream, "first_sequence": first, "count": count,
        "time_min_ns": earliest, "time_max_ns": latest, "previous_digest": sealed[52:68].hex(),
        "definition_count": definition_count, "definitions_digest": sealed[72:88].hex(),
        "content_bytes": content_bytes, "digest": sealed[-16:].hex(),
    }, content  # fmt: skip


def page_column(column: list[Any], count: int) -> list[Any]:
    """Whole or collapsed."""
    demand(len(column) == count or len(column) == 1 <= count, 13)
    return column if len(column) == count else column * count


def page_planes(width: int, data: bytes, count: int, *, signed: bool = False) -> list[int]:
    """Integers from their byte planes; zeros where there are none."""
    demand(width in (0, 1, 2, 4, 8) and len(data) == width * count, 13)
    return [int.from_bytes(data[place::count], "little", signed=signed) for place in range(count)]


def page_values(columns: list[Any], count: int) -> list[Any]:
    """The values in the notation of the vectors."""
    kinds, floats, (least, *above), bools, others = columns
    demand(all(kind <= 3 for kind in kinds), 14)
    kinds = page_column(list(kinds), count)
    counts = [kinds.count(kind) for kind in range(4)]
    demand(len(floats) % 8 == 0 and all(bit <= 1 for bit in bools), 14)
    doubles = page_column([floats[at : at + 8][::-1].hex() for at in range(0, len(floats), 8)], counts[0])
    ints = [least + above_least for above_least in page_planes(*above, counts[1])]
    demand(least in range(-(2**63), 2**63) and all(integer < 2**63 for integer in ints), 14)
    apart = [
        iter([{"float64": double} for double in doubles]),
        iter([{"int": str(integer)} for integer in ints]),
        iter([{"bool": bit == 1} for bit in page_column(list(bools), counts[2])]),
        iter([page_other(other) for other in page_column(others, counts[3])]),
    ]
    return [next(apart[kind]) for kind in kinds]


def page_other(value: Any) -> Any:
    """A value that is neither double, int of 64 bits nor bool, in the notation of the vectors."""
    match value:
        case None:
            return None
        case bool():
            raise Refused(11)
        case int():
            demand(value >= 2**63, 14)
            return {"int": str(value)}
        case str():
            return {"text": value}
        case msgspec.msgpack.Ext(code=1, data=data):
            return {"json": bytes(data).decode()}
        case msgspec.msgpack.Ext(code=2, data=data):
            return {"bytes": bytes(data).hex()}
    raise Refused(11)


def page_facts(header: dict[str, Any], content: bytes) -> list[Any]:
    """The facts in the notation of the vectors."""
    count, columns = header["count"], msgspec.msgpack.decode(content)
    if header["kind"] == "messages":
        names = (
            "message_id from_zone to_zone produced_at_unix_ms correlation_id causation_id labels object_media_type "
            "object_schema subject predicate object_json"
        ).split()
        rows = zip(*(page_column(column, count) for column in columns), strict=True)
        facts: list[Any] = [dict(zip(names, row, strict=True)) for row in rows]
        return [{**fact, "object_json": fact["object_json"].decode()} for fact in facts]
    (first, step, *steps), (earliest, unit, *above), *values, (least, *rest) = columns
    demand(unit >= 1 and (step == 0 or steps[0] == 0), 13)
    tags = list(accumulate([first, *(step + rest for rest in page_planes(*steps, count - 1, signed=True))]))
    times = [earliest + unit * unit_count for unit_count in page_planes(*above, count)]
    values = page_values(values, count)
    qualities = [least + above_least for above_least in page_planes(*rest, count)]
    demand(min(tags) >= 1 and max(tags) <= header["definition_count"], 14)
    demand(min(qualities) >= 0 and max(qualities) < 2**32, 14)
    demand((min(times), max(times)) == (header["time_min_ns"], header["time_max_ns"]), 15)
    return [list(row) for row in zip(tags, times, values, qualities, strict=True)]


# ---------------------------------------------------------------------------------------------------------------- tests


def value_of(noted: Any) -> Any:
    """The value that a notation of the vectors stands for."""
    if noted is None:
        return None
    (kind, text), *_ = noted.items()
    readers: dict[str, Any] = {
        "bool": bool, "int": int, "text": str, "bytes": bytes.fromhex, "json": lambda t: Json(t.encode()),
        "float64": lambda t: struct.unpack(">d", bytes.fromhex(t))[0],
    }  # fmt: skip
    return readers[kind](text)


def noted(value: Any) -> Any:
    """The notation for a value, as the second decoder writes it."""
    match value:
        case bool():
            return {"bool": value}
        case int():
            return {"int": str(value)}
        case float():
            return {"float64": struct.pack(">d", value).hex()}
        case Json():
            return {"json": value.data.decode()}
        case bytes():
            return {"bytes": value.hex()}
    return page_other(value)


@pytest.mark.parametrize("vector", named("batches"))
def test_the_page_is_enough_to_read_a_batch(vector: dict[str, Any]) -> None:
    """A decoder written from the page finds the header, the content and the facts of every vector."""
    header, content = page_header(bytes.fromhex(vector["sealed"]))
    assert header == vector["header"]
    assert content.hex() == vector["content"]
    assert page_facts(header, content) == vector["facts"]


@pytest.mark.parametrize("vector", named("batches"))
def test_the_product_reads_the_vectors(vector: dict[str, Any]) -> None:
    """A batch sealed by version 1 can be read for ever."""
    parsed = batch.parse(bytes.fromhex(vector["sealed"]))
    header, expected = parsed.header, vector["header"]
    assert (header.kind.name.lower(), header.codec.name.lower()) == (expected["kind"], expected["codec"])
    assert (header.stream, header.origin.zone) == (expected["stream"], expected["zone"])
    assert (header.origin.life.hex(), header.previous_digest.hex()) == (expected["life"], expected["previous_digest"])
    assert parsed.digest.hex() == expected["digest"]
    assert (header.is_slice, header.is_signed) == (expected["slice"], expected["signed"])
    assert header.definitions == batch.Definitions(
        expected["definition_count"], bytes.fromhex(expected["definitions_digest"])
    )
    for name in ("first_sequence", "count", "time_min_ns", "time_max_ns", "content_bytes"):
        assert getattr(header, name) == expected[name]
    if header.kind is batch.Kind.SAMPLES:
        found: list[Any] = [
            [r.tag, r.source_time_ns, noted(r.value), r.quality] for r in batch.open_samples(parsed).rows()
        ]
    else:
        found = [
            {**asdict(m.envelope), **asdict(m.fact), "object_json": m.fact.object_json.decode()}
            for m in batch.open_messages(parsed)
        ]
    assert found == vector["facts"]


@pytest.mark.parametrize("vector", [v for v in named("batches") if not v.values[0]["header"]["slice"]])
def test_the_product_still_writes_the_vectors(vector: dict[str, Any]) -> None:
    """The same facts give the same content, and uncompressed the same bytes; compressed bytes may change with zstd."""
    expected = vector["header"]
    origin = batch.Origin(expected["zone"], bytes.fromhex(expected["life"]))
    link = batch.Link(
        expected["stream"], origin, expected["first_sequence"], bytes.fromhex(expected["previous_digest"])
    )
    if expected["kind"] == "samples":
        rows = [Sample(tag, time, value_of(value), quality) for tag, time, value, quality in vector["facts"]]
        definitions = batch.Definitions(expected["definition_count"], bytes.fromhex(expected["definitions_digest"]))
        sealed = batch.seal_samples(link, rows, definitions, SIGN if expected["signed"] else None)
    else:
        sealed = batch.seal_messages(link, [message_of(fact) for fact in vector["facts"]])
    assert page_header(sealed.sealed)[1].hex() == vector["content"]
    if expected["codec"] == "raw":
        assert sealed.sealed.hex() == vector["sealed"]


def message_of(fact: dict[str, Any]) -> Message:
    """The message that a notation of the vectors stands for."""
    envelope = {name: fact[name] for name in Envelope.__dataclass_fields__}
    return Message(Envelope(**envelope), Fact(fact["subject"], fact["predicate"], fact["object_json"].encode()))


@pytest.mark.parametrize("vector", [vector for vector in named("batches") if vector.values[0]["header"]["signed"]])
def test_a_second_reader_verifies_each_record(vector: dict[str, Any]) -> None:
    """The page suffices: bytes put together from its table are those that were signed, the signature holds for them and
    for no other batch, and the product agrees."""
    sealed, header = bytes.fromhex(vector["sealed"]), vector["header"]
    record, public = sealed[-98:-16], bytes.fromhex(vectors()["signing"]["public_key"])
    zone, stream = header["zone"].encode(), header["stream"].encode()

    def covered(signed: bytes) -> bytes:
        last = header["first_sequence"] + header["count"] - 1
        names = bytes([len(zone)]) + zone + bytes([len(stream)]) + stream
        end = bytes.fromhex(header["life"]) + struct.pack("<Q", last) + page_digest(signed)
        return b"bsfg/record/1\x00" + record[:10] + names + end + record[10:18]

    assert hashlib.sha256(public).digest()[:8] == record[2:10]
    assert covered(sealed[:-98]).hex() == vector["record_covers"]
    key = Ed25519PublicKey.from_public_bytes(public)
    key.verify(record[18:], covered(sealed[:-98]))
    with pytest.raises(InvalidSignature):
        key.verify(record[18:], covered(sealed[:-99] + b"\xff"))
    signer = Signer(header["zone"], SignerPublic(public), 0, UNIX_MS_MAX)
    proof, _ = check_record(record, header["zone"], lambda *_: signer, lambda: SignedEnd.of(batch.parse(sealed)))
    assert proof is Proof.VERIFIED


def test_the_vectors_show_what_they_claim() -> None:
    """Chain, slice, record, codecs, kinds and every width of integers are all there."""
    found = {entry["name"]: entry["header"] for entry in vectors()["batches"]}
    assert found["its successor"]["previous_digest"] == found["one sample"]["digest"]
    assert found["its successor"]["first_sequence"] == 2
    assert found["slice"]["slice"]
    assert found["signed successor"]["previous_digest"] == found["signed"]["digest"] != found["one sample"]["digest"]
    assert found["slice"]["previous_digest"] == found["mixed"]["digest"]
    assert {header["codec"] for header in found.values()} == {"raw", "zstd"}
    sources = {entry["name"]: bytes.fromhex(entry["sealed"]) for entry in vectors()["batches"]}
    part = batch.cut(batch.parse(sources["mixed"]), 3, 6)
    assert part.sealed == sources["slice"]
    kinds = {next(iter(fact[2])) for entry in vectors()["batches"][:-1] for fact in entry["facts"] if fact[2]}
    assert kinds == {"bool", "int", "float64", "text", "bytes", "json"}
    contents = [msgspec.msgpack.decode(bytes.fromhex(entry["content"])) for entry in vectors()["batches"][:-1]]
    assert {column[-2] for tags, times, *_ in contents for column in (tags, times)} == {0, 1, 4, 8}


def test_definitions_have_the_running_digest_of_the_page() -> None:
    """By the page's rule, by the product, and as the samples of the vectors carry it."""
    by_page, state = bytes(16), batch.Definitions()
    for entry in vectors()["definitions"]:
        definition_json = entry["json"].encode()
        by_page = page_digest(by_page + definition_json)
        state = state.extended(definition_json)
        assert by_page.hex() == state.digest.hex() == entry["digest"]
        assert TagDefinition.from_json(definition_json).to_json() == definition_json
    carried = {e["header"]["definitions_digest"] for e in vectors()["batches"] if e["header"]["kind"] == "samples"}
    assert carried == {by_page.hex()}


@pytest.mark.parametrize("vector", named("refused"))
def test_invalid_vectors_are_refused(vector: dict[str, Any]) -> None:
    """By the product with BatchError, and by the page's rules or the libraries of the second decoder."""
    sealed = bytes.fromhex(vector["sealed"])
    with pytest.raises(batch.BatchError):
        batch.verify(batch.parse(sealed))
    with pytest.raises(Refused):
        page_facts(*page_header(sealed))


def test_the_page_shows_the_vectors() -> None:
    """Every hex block of the page is in the file, under its name; its limits are the code's."""
    page = PAGE.read_text()
    named_there = [entry for entry in vectors()["batches"] if f"**{entry['name']}.** {entry['about']}" in page]
    shown = [block.replace("\n", "") for block in re.findall(r"^```text\n([0-9a-f\n]+)```$", page, re.MULTILINE)]
    assert shown == [text for entry in named_there for text in (entry["sealed"], entry["content"])]
    assert "mixed" in {entry["name"] for entry in named_there}
    for entry in vectors()["definitions"]:
        assert f"{entry['json']}\n{entry['digest']}\n" in page
    for limit in (batch.FACTS_MAX, batch.SEALED_BYTES_MAX, batch.CONTENT_BYTES_MAX):
        assert f"| {limit:,} |" in page
    assert f"version {batch.FORMAT_VERSION}\n" in page

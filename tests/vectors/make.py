"""Writes batches.json anew, and the vectors of docs/developers/batch-format.md from it.

Run by hand, and only when the format's version changes: the vectors are promises to other implementations, and tests
hold the code to them. Run again with the same version, it must change nothing but the compressed bytes of a newer zstd.
"""

import json
import struct
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import zstandard
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent import batch
from agent.message import Envelope, Fact, Json, Message, TagDefinition
from agent.signing.keys import SigningKey, ZoneSigner
from agent.signing.records import parse_record, sign_record, signed_bytes
from tests.batch.making import forged, others, packed

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs/developers/batch-format.md"
ORIGIN = batch.Origin("plant", bytes.fromhex("000102030405060708090a0b0c0d0e0f"))
LINK = batch.Link("facts.telemetry", ORIGIN)
T0 = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z
DEFINED = [
    TagDefinition("tag:line-1/flow", unit="m3/h"),
    TagDefinition("tag:line-1/mode"),
    TagDefinition("tag:line-1/x"),
]
NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF4DEADBEEF0001))[0]
MIXED: list[Any] = [
    True, False, None, 0, -1, 127, 128, -(2**63), 2**64 - 1, 0.0, -0.0, 1.5, NAN, float("inf"), float("-inf"), "", "on",
    "\u20ac", b"", b"\x00\xff", Json(b"[1,2.5]"), Json(b'{"a":null}'),
]  # fmt: skip


SEED = bytes(range(32))
"""Of the private key of the records."""
KEY = SigningKey(Ed25519PrivateKey.from_private_bytes(SEED))
SIGN = partial(sign_record, ZoneSigner(KEY, b""), signed_at_ms=T0 // 1_000_000)


def definitions() -> batch.Definitions:
    """The state after the three definitions above."""
    state = batch.Definitions()
    for definition in DEFINED:
        state = state.extended(definition.to_json())
    return state


def samples(link: batch.Link, rows: list[Any], sign: batch.Sign | None = None) -> batch.Batch:
    """Sealed by an origin with three definitions."""
    return batch.seal_samples(link, rows, definitions(), sign)


def batches() -> dict[str, tuple[str, batch.Batch]]:
    """Name, what it shows, and the batch."""
    first = samples(LINK, [(1, T0, 21.5, 0)])
    second = samples(first.link, [(1, T0 + 10**9, 21.75, 0), (2, T0 + 10**9, "auto", 0)])
    mixed = samples(
        LINK, [(1 + n % 2, T0 + n * 100, value, 0 if n % 3 else 0x80000000) for n, value in enumerate(MIXED)]
    )
    jitter = (0, 1_000_000_123_000, 999_999_456_000)
    stepped = samples(LINK, [(tag, T0 + ns, 20.0 + tag, 0) for tag, ns in zip((3, 1, 2), jitter, strict=True)])
    signed = samples(LINK, [(1, T0, 21.5, 0)], SIGN)
    signed_successor = samples(signed.link, [(1, T0 + 10**9, 21.75, 0)], SIGN)
    last = 2**63 - 1
    messages = [
        Message(
            Envelope("018f-1", "plant", "*", 1_767_225_600_000), Fact("batch:erp/B-1", "batch_released", b'{"ok":true}')
        ),
        Message(
            Envelope(
                "018f-2",
                "plant",
                "enterprise",
                1_767_225_600_250,
                "o-9",
                "018f-1",
                {"priority": "high"},
                "text/x",
                "s:1",
            ),
            Fact("batch:erp/B-2", "batch_released", b"null"),
        ),
    ]
    return {
        "one sample": ("The first batch of a chain. No planes are needed.", first),
        "its successor": ("Attaches to the batch above: sequence 2, and that batch's digest.", second),
        "signed": ("The same sample as in the first batch, with a record.", signed),
        "signed successor": ("Its previous digest covers the record of the batch above.", signed_successor),
        "planes": (
            "Tags out of order; times in units of 1,000 ns, four planes; the time goes back in the third.",
            stepped,
        ),
        "equal": (
            "Twenty equal facts: nothing in the planes.",
            samples(LINK, [(2, T0, 7, 0) for _ in range(20)]),
        ),
        "far times": (
            "A clock that jumps from one end of 64 bits to the other: eight planes.",
            samples(LINK, [(1, last, 1, 0), (1, -last - 1, 2, 0), (1, 0, 300, 0)]),
        ),
        "mixed": ("Every type of value, and qualities that differ. Signs of zero and bits of NaN count.", mixed),
        "slice": ("Positions 3 to 5 of the batch above.", batch.cut(mixed, 3, 6)),
        "compressed": ("A zstd frame.", samples(LINK, [(1, T0 + n, f"the same words {n}", 0) for n in range(12)])),
        "messages": ("Two messages; columns that are equal collapse here too.", batch.seal_messages(LINK, messages)),
    }


REFUSED = {
    "tag not defined": forged(packed(tags=[6, 0, 0, b""])),
    "tag steps cut short": forged(packed(tags=[1, 0, 2, b"\x01\x01\x00"])),
    "step for all and steps for each": forged(packed(tags=[1, 1, 1, b"\x00\x00"])),
    "integers of 3 bytes": forged(packed(times=[10, 10, 3, bytes(9)])),
    "unit 0": forged(packed(times=[10, 0, 1, b"\x00\x01\x02"])),
    "times outside the header's bounds": forged(packed(times=[10, 10, 1, b"\x00\x01\x03"])),
    "times that leave the header's earliest out": forged(packed(times=[10, 10, 1, b"\x01\x01\x02"])),
    "kind 4": forged(packed(kinds=b"\x00\x04\x00")),
    "floats missing": forged(packed(floats=bytes(16))),
    "int beyond 64 bits": forged(packed(kinds=b"\x01", floats=b"", ints=[2**63 - 2, 1, b"\x00\x01\x02"])),
    "bool 2": forged(packed(kinds=b"\x02", floats=b"", bools=b"\x02")),
    "nested value": forged(others([], "b", "c")),
    "unknown extension type": forged(others(msgspec.msgpack.Ext(3, b"x"), "b", "c")),
    "small integer among the others": forged(others(1, "b", "c")),
    "quality of 33 bits": forged(packed(qualities=[2**32, 0, b""])),
    "sequence 2 without predecessor": forged(packed(), first_sequence=2),
    "unknown flag": forged(packed(), flags=4),
    "slice with a record": forged(packed(), flags=3, first_sequence=2, previous_digest=b"\x09" * 16, record=bytes(82)),
    "record cut off": forged(packed(), flags=2, record=bytes(81)),
    "unknown codec": forged(packed(), codec=2),
    "format 2": forged(packed(), version=2),
    "digest of other bytes": forged(packed())[:-1] + b"\x00",
    "content longer than promised": forged(
        b"", codec=1, content_bytes=9, body=zstandard.ZstdCompressor(level=1).compress(bytes(1000))
    ),
}


def notation(value: Any) -> Any:
    """A value in JSON without loss: {type: text}, null for nothing, doubles as the 16 hex digits of their bits."""
    match value:
        case None:
            return None
        case bool():
            return {"bool": value}
        case int():
            return {"int": str(value)}
        case float():
            return {"float64": struct.pack(">d", value).hex()}
        case str():
            return {"text": value}
        case bytes():
            return {"bytes": value.hex()}
        case _:
            return {"json": value.data.decode()}


def facts(sealed: batch.Batch) -> list[Any]:
    """The facts in JSON: [tag, source time, value, quality], or a message's twelve fields."""
    if sealed.header.kind is batch.Kind.SAMPLES:
        rows = batch.open_samples(sealed).rows()
        return [[row.tag, row.source_time_ns, notation(row.value), row.quality] for row in rows]
    return [
        {**msgspec.to_builtins(m.envelope), "subject": m.fact.subject,
         "predicate": m.fact.predicate, "object_json": m.fact.object_json.decode()}
        for m in batch.open_messages(sealed)
    ]  # fmt: skip


def vector(name: str, about: str, sealed: batch.Batch) -> dict[str, Any]:
    """One entry of batches.json."""
    header = sealed.header
    body = sealed.sealed[sealed.body_at : -16 - len(sealed.record)]
    content = body if header.codec is batch.Codec.RAW else zstandard.ZstdDecompressor().decompress(body)
    return {
        "name": name,
        "about": about,
        "sealed": sealed.sealed.hex(),
        "content": content.hex(),
        "header": {
            "kind": header.kind.name.lower(), "codec": header.codec.name.lower(), "slice": header.is_slice,
            "signed": header.is_signed,
            "zone": header.origin.zone, "life": header.origin.life.hex(), "stream": header.stream,
            "first_sequence": header.first_sequence, "count": header.count, "time_min_ns": header.time_min_ns,
            "time_max_ns": header.time_max_ns, "previous_digest": header.previous_digest.hex(),
            "definition_count": header.definitions.count, "definitions_digest": header.definitions.digest.hex(),
            "content_bytes": header.content_bytes, "digest": sealed.digest.hex(),
        },
        "facts": facts(sealed),
        **({"record_covers": covered(sealed).hex()} if header.is_signed else {}),
    }  # fmt: skip


def covered(sealed: batch.Batch) -> bytes:
    """The bytes that a record's signature covers."""
    header, record = sealed.header, parse_record(sealed.record)
    end = header.stream, header.origin, header.last_sequence, sealed.signed_digest
    return signed_bytes(*end, record.key_id, record.signed_at_ms)


def lines(text: str, width: int = 112) -> str:
    """Hex in lines of equal length."""
    return "\n".join(text[at : at + width] for at in range(0, len(text), width))


ON_PAGE = ("one sample", "signed", "mixed", "messages")


def shown(vectors: dict[str, Any]) -> str:
    """The vectors as the page shows them."""
    parts = ["Definitions, as canonical JSON, and the running digest after each:\n"]
    parts += [f"```text\n{entry['json']}\n{entry['digest']}\n```\n" for entry in vectors["definitions"]]
    for entry in (entry for entry in vectors["batches"] if entry["name"] in ON_PAGE):
        parts.append(f"**{entry['name']}.** {entry['about']}\n\n```text\n{lines(entry['sealed'])}\n```\n")
        parts.append(f"Content:\n\n```text\n{lines(entry['content'])}\n```\n")
    return "\n".join(parts)


def main() -> None:
    """Write all files."""
    state, defined = batch.Definitions(), []
    for definition in DEFINED:
        state = state.extended(definition.to_json())
        defined.append({"json": definition.to_json().decode(), "digest": state.digest.hex()})
    vectors = {
        "format_version": batch.FORMAT_VERSION,
        "signing": {"seed": SEED.hex(), "public_key": KEY.public_bytes.hex(), "key_id": KEY.key_id.hex()},
        "definitions": defined,
        "batches": [vector(name, about, sealed) for name, (about, sealed) in batches().items()],
        "refused": [{"name": name, "sealed": sealed.hex()} for name, sealed in REFUSED.items()],
    }
    (HERE / "batches.json").write_text(json.dumps(vectors, indent=1, ensure_ascii=True) + "\n")
    page = PAGE.read_text()
    before, mark, _ = page.partition("## Vectors\n")
    introduction = (
        "\nThese and more, with header and facts spelled out, and batches that must be refused, are in\n"
        "`tests/vectors/batches.json`.\n\n"
    )
    PAGE.write_text(before + mark + introduction + shown(vectors))


if __name__ == "__main__":
    main()

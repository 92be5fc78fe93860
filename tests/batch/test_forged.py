"""Batches with a valid digest and forged content are refused by name, within bounded memory."""

import datetime as dt
import struct
import tracemalloc
from typing import Any

import msgspec
import pytest
import zstandard
from msgspec.msgpack import Ext

from agent import batch
from agent.message import Envelope, Fact, Message
from tests.batch.making import LINK, forged, others, packed

HONEST = packed()
DOUBLES = struct.pack("<3d", 1.5, 2.5, 3.5)
INTS = {"kinds": b"\x01", "floats": b""}  # changes that make three ints of the honest facts, but for the ints
BOOLS = {"kinds": b"\x02", "floats": b""}


def frame(content: bytes, **options: Any) -> bytes:
    """One zstd frame."""
    return zstandard.ZstdCompressor(level=1, **options).compress(content)


PACKED = msgspec.msgpack.encode(HONEST)
HEADERS: dict[str, tuple[dict[str, Any], str]] = {
    "magic": ({"magic": b"BSFC"}, "magic"),
    "version 0": ({"version": 0}, "version: format 0"),
    "version 2": ({"version": 2}, "version: format 2.*update"),
    "kind 0": ({"kind": 0}, "kind 0"),
    "kind 3": ({"kind": 3}, "kind 3"),
    "codec": ({"codec": 2}, "codec 2"),
    "flag": ({"flags": 4}, "flags 0x4"),
    "record missing": ({"flags": 2}, "length"),
    "slice with a record": ({"flags": 3, "record": bytes(82), "previous_digest": b"p" * 16}, "flags: a slice"),
    "record without its flag": ({"record": bytes(82)}, "length"),
    "no facts": ({"count": 0}, "count: 0"),
    "too many facts": ({"count": batch.FACTS_MAX + 1}, "count: 16385"),
    "sequence 0": ({"first_sequence": 0}, "sequence: 0"),
    "sequence overflow": ({"first_sequence": 2**63 - 3, "previous_digest": b"x" * 16}, "sequence"),
    "sequence beyond int64": ({"first_sequence": 2**64 - 1, "previous_digest": b"x" * 16}, "sequence"),
    "bounds turned round": ({"time_min_ns": 31}, "times"),
    "zone in capitals": ({"zone": b"Plant"}, "zone: 'Plant'"),
    "zone with a line end": ({"zone": b"plant\n"}, "zone"),
    "zone with a slash": ({"zone": b"../etc"}, "zone"),
    "zone empty": ({"zone": b""}, "zone: ''"),
    "zone too long": ({"zone": b"z" * 33}, "zone"),
    "stream in Latin-1": ({"stream": b"caf\xe9"}, "stream"),
    "stream too long": ({"stream": b"s" * 65}, "stream"),
    "chain without a start": ({"first_sequence": 2}, "previous digest"),
    "start with a predecessor": ({"previous_digest": b"p" * 16}, "previous digest"),
    "slice of nothing": ({"flags": 1}, "previous digest"),
    "definitions without digest": ({"definitions_digest": bytes(16)}, "definitions"),
    "digest without definitions": ({"definition_count": 0}, "definitions"),
    "samples without definitions": ({"definition_count": 0, "definitions_digest": bytes(16)}, "definitions"),
    "messages with definitions": ({"kind": 2}, "definitions"),
    "content length": ({"content_bytes": 5}, "content: raw"),
    "content too long": ({"codec": 1, "content_bytes": batch.CONTENT_BYTES_MAX + 1}, "content: .*limit"),
    "body longer than there is": ({"body_bytes": len(PACKED) + 1}, "length"),
    "body shorter than there is": ({"body_bytes": len(PACKED) - 1}, "length"),
    "body huge": ({"body_bytes": 2**32 - 1}, "length: .*limit"),
    "zone length": ({"zone_bytes": 255}, "length"),
}


def test_the_forger_without_changes_writes_a_valid_batch() -> None:
    """Without changes the forger writes a valid batch, so each refusal below has the reason it names."""
    for compress in (False, True):
        rows = batch.open_samples(batch.parse(forged(HONEST, compress=compress))).rows()
        assert list(rows) == [(1, 10, 1.5, 0), (2, 20, 2.5, 0), (3, 30, 3.5, 0)]


@pytest.mark.parametrize("name", HEADERS)
def test_forged_headers_are_refused(name: str) -> None:
    """An invalid header is refused before the content is opened, and the error names the field."""
    changes, why = HEADERS[name]
    with pytest.raises(batch.BatchError, match=why):
        batch.parse(forged(HONEST, **changes))


CONTENTS: dict[str, tuple[Any, str]] = {
    "not MessagePack": (b"\xc1", "content"),
    "empty": (b"", "content"),
    "trailing byte": (PACKED + b"\x00", "content"),
    "truncated": (PACKED[:-1], "content"),
    "a map": ({"tags": 1}, "content"),
    "seven columns": (HONEST[:7], "content"),
    "nine columns": ([*HONEST, [0]], "content"),
    "tag below 1": (packed(tags=[0, 1, 0, b""]), "tags: 0 to 2"),
    "tag above the definitions": (packed(tags=[4, 1, 0, b""]), "tags: 4 to 6"),
    "tag below 1 between": (packed(tags=[1, 0, 1, b"\xff\x01"]), "tags: 0 to 1"),
    "tag above between": (packed(tags=[1, 0, 1, b"\x05\xfb"]), "tags: 1 to 6"),
    "tag step beyond 64 bits in sum": (packed(tags=[1, 2**64 - 1, 0, b""]), "tags"),
    "tag steps beyond 64 bits in sum": (packed(tags=[1, 0, 8, (b"\xff" * 7 + b"\x7f") * 2]), "tags"),
    "tag is text": (packed(tags=["1", 1, 0, b""]), "content"),
    "tag is a float": (packed(tags=[1.0, 1, 0, b""]), "content"),
    "tag step is a bool": (packed(tags=[1, True, 0, b""]), "content"),
    "tag step is nil": (packed(tags=[1, None, 0, b""]), "content"),
    "tag step for all and for each": (packed(tags=[1, 1, 1, b"\x00\x00"]), "tags: a step of 1 for all"),
    "tag steps of 3 bytes": (packed(tags=[1, 0, 3, bytes(6)]), "tags: integers of 3 bytes"),
    "tag steps of -1 bytes": (packed(tags=[1, 0, -1, b""]), "tags: integers of -1 bytes"),
    "tag planes without width": (packed(tags=[1, 1, 0, b"\x01"]), "tags: 1 bytes for 2 integers of 0"),
    "tag planes are text": (packed(tags=[1, 0, 1, "\x01\x01"]), "content"),
    "too few steps": (packed(tags=[1, 0, 1, b"\x01"]), "tags: 1 bytes for 2 integers of 1"),
    "too many steps": (packed(tags=[1, 0, 1, b"\x01" * 3]), "tags: 3 bytes for 2 integers of 1"),
    "half a step": (packed(tags=[1, 0, 2, b"\x01" * 3]), "tags: 3 bytes for 2 integers of 2"),
    "unit 0": (packed(times=[10, 0, 1, b"\x00\x01\x02"]), "times: a unit of 0"),
    "unit 0 where it is not used": (packed(times=[10, 0, 0, b""]), "times: a unit of 0"),
    "unit negative": (packed(times=[30, -10, 1, b"\x00\x01\x02"]), "times: a unit of -10"),
    "times below the bounds": (packed(times=[9, 1, 1, b"\x01\x15\x00"]), "bounds"),
    "times above the bounds": (packed(times=[10, 10, 1, b"\x00\x01\x03"]), "bounds"),
    "times overflow": (packed(times=[10, 2**64 - 1, 8, b"\xff" * 24]), "bounds"),
    "times inside the bounds, early": (packed(times=[10, 1, 1, b"\x01\x05\x14"]), "bounds"),
    "times inside the bounds, late": (packed(times=[10, 1, 1, b"\x00\x05\x13"]), "bounds"),
    "times inside the bounds, all": (packed(times=[11, 1, 1, b"\x00\x09\x13"]), "bounds"),
    "times beside the bounds by a rest": (packed(times=[10, 3, 1, b"\x00\x01\x06"]), "bounds"),
    "times all the earliest": (packed(times=[10, 1, 0, b""]), "bounds"),
    "time is a float": (packed(times=[10.0, 10, 1, b"\x00\x01\x02"]), "content"),
    "times of 16 bytes": (packed(times=[10, 10, 16, bytes(48)]), "times: integers of 16 bytes"),
    "too few times": (packed(times=[10, 10, 1, b"\x00\x02"]), "times: 2 bytes for 3"),
    "no kinds": (packed(kinds=b""), "kinds: 0 entries"),
    "two kinds": (packed(kinds=b"\x00\x00"), "kinds: 2 entries"),
    "four kinds": (packed(kinds=bytes(4)), "kinds: 4 entries"),
    "kind 4": (packed(kinds=b"\x00\x04\x00"), "kinds: a byte of 4"),
    "kind 255 for all": (packed(kinds=b"\xff"), "kinds: a byte of 4"),
    "two floats": (packed(floats=DOUBLES[:16]), "floats: 16 bytes for 3"),
    "four floats": (packed(floats=DOUBLES + bytes(8)), "floats: 32 bytes for 3"),
    "no floats": (packed(floats=b""), "floats: 0 bytes for 3"),
    "half a float": (packed(floats=DOUBLES[:4]), "floats: 4 bytes for 3"),
    "surplus float": (packed(kinds=b"\x02", bools=b"\x01", floats=bytes(8)), "floats: 8 bytes for 0"),
    "one float too many": (packed(kinds=b"\x00\x02\x00", bools=b"\x01"), "floats: 24 bytes for 2"),
    "surplus int": (packed(ints=[0, 1, b"\x00"]), "ints: 1 bytes for 0"),
    "two ints": (packed(**INTS, ints=[0, 1, b"\x00\x01"]), "ints: 2 bytes for 3"),
    "int above 64 bits": (packed(**INTS, ints=[2**63 - 2, 1, b"\x00\x01\x02"]), "ints: .* to 9223372036854775808"),
    "least int above 64 bits": (packed(**INTS, ints=[2**63, 0, b""]), "ints"),
    "ints of 3 bytes": (packed(**INTS, ints=[0, 3, bytes(9)]), "ints: integers of 3 bytes"),
    "least int is a bool": (packed(**INTS, ints=[True, 0, b""]), "content"),
    "bool 2": (packed(**BOOLS, bools=b"\x00\x02\x01"), "bools: a byte of 2"),
    "two bools": (packed(**BOOLS, bools=b"\x00\x01"), "bools: 2 entries"),
    "no bools": (packed(**BOOLS), "bools: 0 entries"),
    "surplus bool": (packed(bools=b"\x01"), "bools: 1 entries for 0"),
    "two others": (others("a", "b"), "others: 2 entries"),
    "four others": (others("a", "b", "c", "d"), "others: 4 entries"),
    "no others": (others(), "others: 0 entries"),
    "surplus other": (packed(others=["a"]), "others: 1 entries for 0"),
    "more others than a batch": (others(*[None] * (batch.FACTS_MAX + 1)), "content"),
    "nested list": (others([1], "b", "c"), "content"),
    "map": (others({"a": 1}, "b", "c"), "content"),
    "bin": (others(b"bin", "b", "c"), "content"),
    "float among others": (others(1.5, "b", "c"), "content"),
    "bool among others": (others(True, "b", "c"), "content"),
    "int among others": (others(2**63 - 1, "b", "c"), "belongs to the ints"),
    "unknown extension": (others(Ext(7, b""), "b", "c"), "extension type 7"),
    "timestamp extension": (others(dt.datetime.now(dt.UTC), "b", "c"), "extension type -1"),
    "JSON that is none": (others(Ext(1, b"{"), "b", "c"), "not JSON"),
    "JSON that is empty": (others(Ext(1, b""), "b", "c"), "not JSON"),
    "JSON deeper than the stack": (others(Ext(1, b"[" * 60_000), "b", "c"), "nested deeper than 100"),
    "JSON with a key twice": (others(Ext(1, b'{"a":1,"a":2}'), "b", "c"), "JSON has a key twice"),
    "JSON that is not canonical": (others(Ext(1, b"[1, 2]"), "b", "c"), "not canonical"),
    "text that is no UTF-8": (others("xy", "b", "c"), "content"),  # replaced below
    "text too long": (others("x" * 65537, "b", "c"), "65537"),
    "bytes too long": (others(Ext(2, b"x" * 65537), "b", "c"), "65537"),
    "one long text for all": (others("\u20ac" * 21846), "65538"),
    "quality negative": (packed(qualities=[-1, 0, b""]), "qualities: -1"),
    "quality of 33 bits": (packed(qualities=[2**32 - 1, 1, b"\x00\x01\x00"]), "qualities: .* to 4294967296"),
    "qualities of 64 bits": (packed(qualities=[0, 8, b"\xff" * 24]), "qualities"),
    "two qualities": (packed(qualities=[0, 1, b"\x00\x00"]), "qualities: 2 bytes for 3"),
    "quality is a bool": (packed(qualities=[False, 0, b""]), "content"),
}
CONTENTS["text that is no UTF-8"] = (
    msgspec.msgpack.encode(others("xy", "b", "c")).replace(b"xy", b"\xff\xfe"),
    "utf-8",
)


@pytest.mark.parametrize("compress", [False, True], ids=["raw", "zstd"])
@pytest.mark.parametrize("name", CONTENTS)
def test_forged_contents_are_refused(name: str, *, compress: bool) -> None:
    """Content that does not match the header is refused by opening and by verifying, and the error says why."""
    content, why = CONTENTS[name]
    parsed = batch.parse(forged(content, compress=compress))
    with pytest.raises(batch.BatchError, match=why):
        batch.verify(parsed)
    with pytest.raises(batch.BatchError, match=why):
        batch.open_samples(parsed)


NAMES = "message_id from_zone to_zone produced_at correlation causation labels media schema subject predicate object"
MESSAGE = dict(
    zip(
        NAMES.split(),
        (["a"], ["z"], ["*"], [5], [None], [None], [{}], [None], [None], ["k:1"], ["p"], [b"1"]),
        strict=True,
    )
)
MESSAGES = {
    "message_id": [[""], ["a\n"], [5], ["a" * 257], ["a", "b"], [], None],
    "from_zone": [["Z"], ["z\n"], [None]],
    "to_zone": [[""], ["\x7f"], [None], ["z" * 257]],
    "produced_at": [[-1], [2**43], [5.0], [True], [6]],
    "correlation": [[""], [1]],
    "labels": [[{"": "x"}], [{"x": ""}], [{"x": 1}], [{1: "x"}], [{str(n): "x" for n in range(33)}], [None], [[]]],
    "subject": [["k"], ["k:\u00e4"], ["K:1"], ["k:" + "x" * 511]],
    "predicate": [["P"], ["p__q"], ["p "]],
    "object": [[b"{"], [b""], ["1"], [b"\xff"], [b"NaN"], [b'"' + b"x" * 262144 + b'"']],
}


def test_forged_messages_are_refused() -> None:
    """As above for every column of a batch of messages: types, lengths, names, JSON."""
    header = {
        "kind": 2, "definition_count": 0, "definitions_digest": bytes(16), "count": 1,
        "time_min_ns": 5_000_000, "time_max_ns": 5_000_000,
    }  # fmt: skip
    good = batch.parse(forged(list(MESSAGE.values()), **header))
    assert batch.open_messages(good)[0].fact.subject == "k:1"
    with pytest.raises(batch.BatchError, match="kind"):
        batch.open_samples(good)
    with pytest.raises(batch.BatchError, match="kind"):
        batch.open_messages(batch.parse(forged(HONEST)))
    for name, columns in MESSAGES.items():
        for column in columns:
            parsed = batch.parse(forged(list({**MESSAGE, name: column}.values()), compress=True, **header))
            with pytest.raises(batch.BatchError):
                batch.verify(parsed)


def bombs() -> dict[str, bytes]:
    """Small batches that need much memory: by compression, by declared lengths, by many small objects, by depth."""
    room = batch.CONTENT_BYTES_MAX
    start = b"\x98" + b"".join(map(msgspec.msgpack.encode, others()[:6]))
    zeros = bytes(room)
    labels = {f"{n}": "ab" for n in range(30)}
    columns = {**MESSAGE, "labels": [labels] * (room * 9 // 10 // len(msgspec.msgpack.encode(labels)))}
    columns["message_id"] = ["ab"] * (len(columns["labels"]) - 1)
    return {
        "frame says 1 TB": forged(
            b"", codec=1, content_bytes=room, body=b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**40) + b"\x01\0\0"
        ),
        "frame holds more than the header says": forged(zeros, compress=True, content_bytes=room - 1),
        "frame holds 200 MB": forged(bytes(200 * 2**20), compress=True, content_bytes=room),
        "frame without its size": forged(PACKED, codec=1, body=frame(PACKED, write_content_size=False)),
        "two frames": forged(PACKED, codec=1, body=frame(PACKED[:9]) + frame(PACKED[9:]), content_bytes=9),
        "byte after the frame": forged(PACKED, codec=1, body=frame(PACKED) + b"\x00"),
        "skippable frame": forged(PACKED, codec=1, body=b"\x50\x2a\x4d\x18\x04\0\0\0abcd", content_bytes=0),
        "frame cut short": forged(PACKED * 9, codec=1, body=frame(PACKED * 9)[:-4]),
        "no frame": forged(b"", codec=1, body=b"", content_bytes=0),
        "zeros": forged(zeros, compress=True),
        "empty lists": forged(start + b"\xdd" + struct.pack(">I", room - 99) + b"\x90" * (room - 99), compress=True),
        "empty lists inside one value": forged(
            start + b"\x93\xdd" + struct.pack(">I", room - 99) + b"\x90" * (room - 99), compress=True
        ),
        "empty maps inside one value": forged(
            start + b"\x93\xdd" + struct.pack(">I", room - 99) + b"\x80" * (room - 99), compress=True
        ),
        "depth": forged(start + b"\x91" * (room - 99), compress=True),
        "nils": forged(start + b"\xdd" + struct.pack(">I", room - 99) + b"\xc0" * (room - 99), compress=True),
        "list of 4 billion": forged(start + b"\xdd\xff\xff\xff\xff", compress=True),
        "text of 4 GB": forged(start + b"\x93\xdb\xff\xff\xff\xff", compress=True),
        "extension of 4 GB": forged(start + b"\x93\xc9\xff\xff\xff\xff\x01", compress=True),
        "map of 4 billion": forged(start + b"\x93\xdf\xff\xff\xff\xff", compress=True),
        "steps": forged(packed(tags=[1, 0, 1, bytes(room - 99)]), compress=True),
        "wide steps": forged(packed(tags=[1, 0, 2**63, bytes(room - 99)]), compress=True),
        "times": forged(packed(times=[10, 10, 8, bytes(room - 99)]), compress=True),
        "kinds": forged(packed(kinds=bytes(room - 99)), compress=True),
        "floats": forged(packed(floats=bytes(room - 99)), compress=True),
        "ints": forged(packed(ints=[0, 8, bytes(room - 99)]), compress=True),
        "bools": forged(packed(bools=bytes(room - 99)), compress=True),
        "qualities": forged(packed(qualities=[0, 4, bytes(room - 99)]), compress=True),
        "bin of 4 GB": forged(b"\x98\x94\x01\x00\x01\xc6\xff\xff\xff\xff" + zeros[99:], compress=True),
        "JSON of lists": forged(others(Ext(1, b"[" + b"[]," * 21_800 + b"["), "b", "c"), compress=True),
        "labels": forged(
            list(columns.values()),
            compress=True,
            kind=2,
            definition_count=0,
            definitions_digest=bytes(16),
            count=len(columns["labels"]),
        ),
    }


def test_bombs_are_refused_in_bounded_memory() -> None:
    """Refused before anything is built from them, so within 1.5 times the content.

    Only labels, of which a batch may have many, are built first: 25 times the limit of content, 50 MB.
    """
    for name, sealed in bombs().items():
        assert len(sealed) < batch.SEALED_BYTES_MAX
        tracemalloc.start()
        try:
            with pytest.raises(batch.BatchError):
                batch.verify(batch.parse(sealed))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < (25 if name == "labels" else 1.5) * batch.CONTENT_BYTES_MAX, (name, peak)


@pytest.mark.parametrize(
    "content, why",
    [
        (b'{"digest":"sha256:00","digest":1}', "object_json: has a key twice"),
        (b'{"b":1,"a":2}', "object_json: is not canonical JSON"),
        (b'{"a":9007199254740993}', "object_json: .*beyond 2"),
        (b"[" * 101 + b"]" * 101, "object_json: is nested deeper than 100"),
        (b'{"a":', "object_json: is not JSON"),
    ],
)
def test_a_message_whose_object_is_not_canonical_is_refused(
    monkeypatch: pytest.MonkeyPatch, content: bytes, why: str
) -> None:
    """A zone that seals such a batch is refused where the batch is opened. What reads facts behind that, such as the
    search for artifact references, relies on it."""
    hostile = Message(Envelope("m", "plant", "*", 1, object_media_type="text/csv"), Fact("a:b", "c", content))
    with monkeypatch.context() as patched:
        patched.setattr(batch, "wrong_json", lambda _: "")
        sealed = batch.seal_messages(LINK, [hostile])
    for read in (batch.open_messages, batch.verify):
        with pytest.raises(batch.BatchError, match=why):
            read(batch.parse(sealed.sealed))

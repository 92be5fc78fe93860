"""Messages: canonical JSON against RFC 8785, every field's rule, and the presentation of samples."""

import json
import math
import re
import struct
from dataclasses import fields, replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import message
from agent.message import Envelope, Fact, Json, Message, MessageError, Sample, TagDefinition, canonical_json

PAGE = Path(__file__).parents[1] / "docs/reference/messages.md"

# RFC 8785, Appendix B: the IEEE 754 bits of a double and how it is written.
RFC_NUMBERS = """
    0000000000000000 0                          8000000000000000 0
    0000000000000001 5e-324                     8000000000000001 -5e-324
    7fefffffffffffff 1.7976931348623157e+308    ffefffffffffffff -1.7976931348623157e+308
    4340000000000000 9007199254740992           c340000000000000 -9007199254740992
    4430000000000000 295147905179352830000      44b52d02c7e14af5 9.999999999999997e+22
    44b52d02c7e14af6 1e+23                      44b52d02c7e14af7 1.0000000000000001e+23
    444b1ae4d6e2ef4e 999999999999999700000      444b1ae4d6e2ef4f 999999999999999900000
    444b1ae4d6e2ef50 1e+21                      3eb0c6f7a0b5ed8c 9.999999999999997e-7
    3eb0c6f7a0b5ed8d 0.000001                   41b3de4355555553 333333333.3333332
    41b3de4355555554 333333333.33333325         41b3de4355555555 333333333.3333333
    41b3de4355555556 333333333.3333334          41b3de4355555557 333333333.33333343
    becbf647612f3696 -0.0000033333333333333333  43143ff3c1cb0959 1424953923781206.2
""".split()


@pytest.mark.parametrize("bits, text", list(zip(RFC_NUMBERS[::2], RFC_NUMBERS[1::2], strict=True)))
def test_numbers_as_in_the_rfc(bits: str, text: str) -> None:
    """Each number of the RFC's table has the RFC's form, and can be read and written again."""
    number = struct.unpack(">d", bytes.fromhex(bits))[0]
    assert canonical_json(number) == text.encode()
    assert canonical_json(message.parse_json("object_json", text.encode())) == text.encode()


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"])
def test_numbers_the_rfc_refuses(bits: str) -> None:
    """NaN and infinities have no form in JSON."""
    with pytest.raises(MessageError, match="canonical"):
        canonical_json(struct.unpack(">d", bytes.fromhex(bits))[0])


def test_structures_as_in_the_rfc() -> None:
    """RFC 8785 3.2.2 (a whole object) and 3.2.3 (keys in the order of UTF-16 code units)."""
    source = (
        rb'{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001], '
        rb'"string": "\u20ac$\u000F\u000aA'
        rb"'"
        rb'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false]}'
    )
    expected = (
        r'{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"\u20ac$'
        r"\u000f\nA'B\"\\\\\"/"
        '"}'
    ).encode()
    assert canonical_json(message.parse_json("object_json", source)) == expected
    keys = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    written = canonical_json(dict.fromkeys(reversed(keys), 0))
    assert list(json.loads(written)) == keys


JSONS = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
    | st.integers(-message.JSON_INTEGER_MAX, message.JSON_INTEGER_MAX),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip


@given(JSONS)
def test_canonical_json_is_read_back_as_itself(value: Any) -> None:
    """A value has one text: written, read and written again it is the same, and every reader finds the same value."""
    text = canonical_json(value)
    assert canonical_json(message.parse_json("object_json", text)) == text
    assert json.loads(text, parse_int=float) == value


WRITINGS = st.builds(
    lambda value, spaces, ascii_only, is_sorted: json.dumps(
        value, separators=spaces, ensure_ascii=ascii_only, sort_keys=is_sorted
    ),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**70), 2**70)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.sampled_from([1e16, 1e21, 1e-7, -0.0, 2.0**53, 0.1])
        | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from([(",", ":"), (", ", ": ")]),
    st.booleans(),
    st.booleans(),
)


@given(WRITINGS, st.integers(0, 200), st.sampled_from(["", "0", ".0", "e0", "-", " ", "\\u0041", ',"a":1', "E", "+"]))
def test_the_quick_check_accepts_only_canonical_json(text: str, at: int, inserted: str) -> None:
    """Whatever passes the quick check is canonical; canonical plain ASCII passes it."""
    data = (text[:at] + inserted + text[at:]).encode(errors="replace")
    try:
        canonical = canonical_json(message.parse_json("object_json", data))
    except MessageError:
        assert not message._are_plainly_canonical([data])
        return
    if message._are_plainly_canonical([data]):
        assert canonical == data
    elif canonical == data:
        assert not data.isascii() or b"\\" in data or re.search(rb"[0-9]{16}", data)


@given(st.lists(st.sampled_from([b"1", b"", b"2\n3", b"[1", b"2]", b"[1,2]", b'{"a":1}', b"1 ", b"\n", b'"x"', b"-0"])))
def test_texts_are_canonical_together_only_if_each_is(texts: list[bytes]) -> None:
    """The check of many texts at once cannot be misled by texts that are valid only together, or that hold several
    values."""
    good = {b"1", b"[1,2]", b'{"a":1}', b'"x"'}
    assert (message.wrong_json(texts) == "") == good.issuperset(texts)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_structures_have_a_depth_that_is_the_same_everywhere(opening: bytes) -> None:
    """JSON_DEPTH_MAX arrays or objects in one another are read, written and accepted; one more is refused by name, and
    so is one that would exhaust a parser's stack. Brackets inside texts do not count."""
    closing = b"]" if opening == b"[" else b"}"
    for depth, is_good in ((100, True), (101, False), (50_000, False)):
        data = opening * depth + b"1" + closing * depth
        assert (message.wrong_json([data]) == "") is is_good
        if is_good:
            assert canonical_json(message.parse_json("object_json", data)) == data
        else:
            with pytest.raises(MessageError, match="nested deeper than 100"):
                message.parse_json("object_json", data)
    with pytest.raises(MessageError, match="nested deeper than 100"):
        canonical_json(reduce(lambda inner, _: [inner], range(101), 1))
    two = b'[{"a":' * 51 + b"1" + b"}]" * 51
    with pytest.raises(MessageError, match="nested deeper than 100"):
        message.check_depth("x", two)
    message.check_depth("x", two[6:-2])
    assert message.wrong_json([b'["' + b"[{" * 500 + b'\\"[",1]', b"[" + b",".join([b"[]"] * 500) + b"]"]) == ""


@pytest.mark.parametrize(
    "digits",
    [
        "9007199254740993",
        "-9007199254740993",
        "1152921504606846976",
        "1" * 400,
        "9007199254740993.0",
        "90071992547409930e-1",
        "9007199254740993E0",
    ],
)
def test_an_integer_that_would_be_rounded_is_refused(digits: str) -> None:
    """AppendFact and `bsfg append`, which make JSON canonical, report it to the application that sent it."""
    with pytest.raises(MessageError, match=r"beyond 2\^53|canonical"):
        message.parse_json("object_json", b'{"a":%s}' % digits.encode())


@pytest.mark.parametrize("value", [2**53, -(2**53), b"x", {1: 2}, {"a": {1}}, "\ud800", {"\ud800": 1}, object()])
def test_values_without_a_canonical_form_are_refused(value: Any) -> None:
    """Refused with MessageError, never converted."""
    with pytest.raises(MessageError, match="canonical"):
        canonical_json(value)


BAD_JSON = [
    b"", b"{", b"nul", b"NaN", b"[Infinity]", b"-Infinity", b'{"a":1,"a":2}', b'"\xff"', b"\xef\xbb\xbf1", b"[" * 100_000,
    b"'a'", b"[1,]", b'"\x01"', b"1 2", b'"\xed\xa0\x80"', b'{"a":1,"\\u0061":2}',
]  # fmt: skip


@pytest.mark.parametrize("data", BAD_JSON, ids=lambda data: repr(data[:12]))
def test_bad_json_is_refused(data: bytes) -> None:
    """Malformed, ambiguous or without a canonical form: the error names the field."""
    with pytest.raises(MessageError, match=r"^object_json: ") as caught:
        message.parse_json("object_json", data)
    assert caught.value.field == "object_json"


GOOD = Message(
    Envelope(
        "018f-1",
        "plant-7",
        "*",
        1_767_225_600_000,
        "order-9",
        "018f-0",
        {"priority": "high"},
        "application/json",
        "s:1",
    ),
    Fact("batch:erp/B-1", "batch_released", b'{"lot":"A","ok":true}'),
)
RULES: dict[str, tuple[list[Any], list[Any]]] = {
    "message_id": (["x", "x" * 256, "\u00e4"], ["", "x" * 257, "\u20ac" * 86, "a\nb", "\x7f", "\ud800", None, 5, b"x"]),
    "from_zone": (["a", "0-9", "z" * 32], ["", "z" * 33, "Z", "a_b", "a/b", "a\n", "+", "#", "\u00e4", None]),
    "to_zone": (["*", "idmz"], ["", None, "x" * 257]),
    "produced_at_unix_ms": ([0, 2**43 - 1], [-1, 2**43, 1.0, True, "1", None]),
    "correlation_id": ([None, "x"], ["", 5, "a\tb"]),
    "causation_id": ([None, "x"], ["", 5]),
    "object_media_type": ([None, "text/csv"], ["", 5, "text/csv\r\nX: 1"]),
    "object_schema": ([None, "x"], ["", 5, "x" * 400_000]),
    "labels": (
        [{}, {"a": "b"}, {str(n): "x" for n in range(32)}],
        [{"": "x"}, {"a": ""}, {"a": 1}, {1: "a"}, {str(n): "x" for n in range(33)}, None, [("a", "b")], {"a": "b\n"}],
    ),
    "subject": (
        ["k:1", "tag:line-1/flow.pv", "order:erp/a/b", "k9_x:\u0021"],
        ["", "k", "k:", ":1", "K:1", "k:a b", "k:\u00e4", "k:\u202e1", "k:/x", "9k:1", "k:x\n", "k:" + "x" * 511, None],
    ),
    "predicate": (
        ["p", "value_sampled", "p9_q", "p" * 512],
        ["", "P", "_p", "p_", "p__q", "9p", "p-q", "p\n", "p" * 513, None],
    ),
    "object_json": (
        [b"1", b"null", b'{"a":1}', b"10000000000000000", b"1e+21", b'"' + b"x" * 262_142 + b'"'],
        [
            b"", b" 1", b"1.0", b"-0", b"1e21", b'{"b":1,"a":2}', b'{"a": 1}', b'"\\u0041"', b'"\\ud800"', b"9007199254740993",
            b"1" * 5000, b"1e999", b'"' + b"x" * 262_143 + b'"', "1", None, *BAD_JSON,
        ],
    ),
}  # fmt: skip


def changed(name: str, value: Any) -> Message:
    """The good message with one field changed."""
    if name in Fact.__dataclass_fields__:
        return replace(GOOD, fact=replace(GOOD.fact, **{name: value}))
    return replace(GOOD, envelope=replace(GOOD.envelope, **{name: value}))


@pytest.mark.parametrize("name", RULES)
def test_every_field_has_its_rule(name: str) -> None:
    """The allowed values pass, each other is refused with an error that names the field; all fields are in the
    table."""
    assert RULES.keys() == Envelope.__dataclass_fields__.keys() | Fact.__dataclass_fields__.keys()
    allowed, refused = RULES[name]
    for value in allowed:
        message.check_message(changed(name, value))
    for value in refused:
        with pytest.raises(MessageError) as caught:
            message.check_message(changed(name, value))
        assert caught.value.field.partition(".")[0] == name, value


def test_definitions_survive_and_are_stable() -> None:
    """Empty fields are not written, unknown ones are ignored when read, and invalid ones are named."""
    full = TagDefinition("tag:l1/flow", "flow_measured", "m3/h", "plc-1", "ns=2;s=F", "Double", "Durchfluß")
    assert TagDefinition.from_json(full.to_json()) == full
    plain = replace(full, description="Flow, at 20 C", enumeration="0=Off|1=On", acquisition="history")
    assert TagDefinition.from_json(plain.to_json()) == plain
    assert TagDefinition("tag:l1/flow").to_json() == b'{"predicate":"value_sampled","subject":"tag:l1/flow"}'
    assert TagDefinition.from_json(b'{"subject":"tag:a","new_in_2.0":[1]}') == TagDefinition("tag:a")
    for data, field in (
        (b"[]", "definition"),
        (b"{}", "definition"),
        (b'{"subject":5}', "definition"),
        (b'{"subject":"tag:a","unit":5}', "definition.unit"),
        (b'{"subject":"tag:a","unit":null}', "definition.unit"),
        (b'{"subject":"no subject"}', "definition.subject"),
        (b'{"predicate":"P","subject":"tag:a"}', "definition.predicate"),
        (b'{"subject":"tag:a","description":"a\\nb"}', "definition.description"),
        (b'{"subject":"tag:a","subject":"tag:b"}', "definition"),
        (b'{"predicate":"a","subject":"tag:a",}', "definition"),
        (b'{"predicate":"a","subject":"tag:a"}\n}', "definition"),
        (b'{"description":"%s","subject":"tag:a"}' % (b"x" * 1025), "definition.description"),
        (b"\xff", "definition"),
    ):
        with pytest.raises(MessageError) as caught:
            TagDefinition.from_json(data)
        assert caught.value.field == field, data


def float_of(bits: int) -> float:
    """The double with these bits."""
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])


PRESENTED: list[tuple[message.Value, str]] = [
    (True, "true"),
    (False, "false"),
    (None, "null"),
    (42, "42"),
    (2**53 - 1, "9007199254740991"),
    (2**53, '"9007199254740992"'),
    (-(2**63), '"-9223372036854775808"'),
    (2**64 - 1, '"18446744073709551615"'),
    (21.5, "21.5"),
    (1.0, "1"),
    (1e16, "10000000000000000"),
    (1e300, "1e+300"),
    (-0.0, "0"),
    (math.nan, '"NaN"'),
    (float_of(0xFFF8DEADBEEF0001), '"NaN"'),
    (math.inf, '"Infinity"'),
    (-math.inf, '"-Infinity"'),
    ("", '""'),
    ("Stra\u00dfe", '"Stra\u00dfe"'),
    (b"", '{"base64":""}'),
    (b"\x00\xff", '{"base64":"AP8="}'),
    (Json.of([1.5, None]), "[1.5,null]"),
    (Json.of({"b": 1e16, "a": 2}), '{"a":2,"b":10000000000000000}'),
]


@pytest.mark.parametrize("value, text", PRESENTED, ids=[repr(value) for value, _ in PRESENTED])
def test_a_sample_is_presented_as_documented(value: message.Value, text: str) -> None:
    """Every type of value has one presentation, the message passes its own check, and the page says the same."""
    definition = TagDefinition("tag:l1/flow", unit="m3/h")
    sample = Sample(1, 1_767_225_600_123_456_700, value, 0x80000000)
    presented = message.sample_message(definition, sample, "facts/plant/00/7", "plant")
    expected = f'{{"quality":2147483648,"source_time":"2026-01-01T00:00:00.1234567Z","unit":"m3/h","value":{text}}}'
    assert presented.fact == Fact("tag:l1/flow", "value_sampled", expected.encode())
    assert presented.envelope == Envelope("facts/plant/00/7", "plant", "*", 1_767_225_600_123)
    message.check_message(presented)


TIMES = {
    0: "1970-01-01T00:00:00Z",
    1: "1970-01-01T00:00:00.000000001Z",
    100: "1970-01-01T00:00:00.0000001Z",
    -1: "1969-12-31T23:59:59.999999999Z",
    1_767_225_600_120_000_000: "2026-01-01T00:00:00.12Z",
    -(2**63): "1677-09-21T00:12:43.145224192Z",
    2**63 - 1: "2262-04-11T23:47:16.854775807Z",
}


@pytest.mark.parametrize("time_ns", TIMES)
def test_times_keep_every_digit(time_ns: int) -> None:
    """Exact from the first to the last nanosecond of 64 bits, before and after 1970, without extra digits."""
    assert message.time_text(time_ns) == TIMES[time_ns]


def test_a_sample_without_unit_and_before_1970() -> None:
    """Without a unit there is no such field; the time of production is not negative, the source time may be."""
    presented = message.sample_message(TagDefinition("tag:a"), Sample(1, -1, 5), "id", "plant")
    assert presented.fact.object_json == b'{"quality":0,"source_time":"1969-12-31T23:59:59.999999999Z","value":5}'
    assert presented.envelope.produced_at_unix_ms == 0


def test_an_enumerations_name_is_added_to_its_number() -> None:
    """An enumeration's number stays the value; the definition gives its name. Other values, and numbers without a
    name, have none; parts of a later version's form do no harm."""
    definition = TagDefinition("tag:a", enumeration="0=Off|1=On|7=Automatic, by hand|x=9|=|8=")
    named, unnamed = {7: b'"text":"Automatic, by hand",', 1: b'"text":"On",'}, (2, 8, 7.0, 1.0, True, False, None)
    for value, text in (*named.items(), *((attribute, b"") for attribute in unnamed)):
        presented = message.sample_message(definition, Sample(1, 0, value), "id", "plant")
        head = b'{"quality":0,"source_time":"1970-01-01T00:00:00Z",' + text + b'"value":'
        assert presented.fact.object_json.startswith(head), value
    with pytest.raises(MessageError, match="enumeration"):
        message.check_definition(TagDefinition("tag:a", enumeration="0=" + "x" * 4096))


def test_every_text_of_a_definition_is_limited() -> None:
    """A text with a control character, or one that is too long, is refused in each field of a definition, however it is
    made; peers keep definitions for ever."""
    names = [attribute.name for attribute in fields(TagDefinition) if attribute.name != "subject"]
    for name in names:
        for text in ("a\nb", "x" * 4097):
            wrong = replace(TagDefinition("tag:a"), **{name: text})
            with pytest.raises(MessageError) as caught:
                message.check_definition(wrong)
            assert caught.value.field == f"definition.{name}"
            with pytest.raises(MessageError, match=f"definition.{name}"):
                TagDefinition.from_json(wrong.to_json())


def test_sample_ids_spell_out_the_identity() -> None:
    """The same everywhere, and within the limit for the longest names."""
    assert (
        message.sample_message_id("facts.t", "plant", bytes(range(16)), 7)
        == f"facts.t/plant/{bytes(range(16)).hex()}/7"
    )
    longest = message.sample_message_id("s" * 64, "z" * 32, bytes(16), 2**63 - 1)
    assert len(longest) <= message.MESSAGE_ID_BYTES_MAX


def test_json_values_compare_by_their_bytes() -> None:
    """Equal and hashed by canonical bytes, and never equal to plain bytes."""
    assert Json.of({"b": 1, "a": 2}) == Json.of({"a": 2, "b": 1})
    assert len({Json(b"1"), Json(b"1"), Json(b"2")}) == 2
    assert Json(b"1") != b"1"


def test_the_page_shows_what_the_code_does() -> None:
    """The presentation table of the page is a part of the one above, and its limits are the code's."""
    page = PAGE.read_text()
    table = page.partition("JSON cannot hold every value")[2]
    shown = set(re.findall(r"^\| [^|]+ \| `([^`]+)` \|$", table, re.MULTILINE))
    assert shown
    assert shown <= {text for _, text in PRESENTED}
    expressions = dict(re.findall(r"^\| `([A-Z]+)` \| `(.+)` \|$", page, re.MULTILINE))
    assert expressions == {name: getattr(message, name).pattern for name in ("SUBJECT", "PREDICATE")}
    for name in ("MESSAGE_ID", "TEXT", "SUBJECT", "OBJECT", "VALUE"):
        assert f" {getattr(message, f'{name}_BYTES_MAX'):,} bytes" in page, name
    assert f"up to {message.LABELS_MAX} names" in page
    assert f"nested at most {message.JSON_DEPTH_MAX} deep" in page

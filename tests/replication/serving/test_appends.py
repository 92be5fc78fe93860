"""Appends of another zone, with any content, become messages that the store may accept, or one refusal."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.message import MessageError, check_message
from agent.replication.protocol.codec import decode_request
from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages import AppendFact
from agent.replication.serving.appends import ParsedAppend, parse_append, refuse_message
from agent.replication.serving.outcomes import Refuse

ENVELOPE = {"message_id": "m1", "from_zone": "idmz", "to_zone": "*", "produced_at_unix_ms": 1_700_000_000_000}
FACT = {"subject": "order:line1/77", "predicate": "order_released", "object": {"amount": 5}}
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def decoded(*messages: dict[str, Any], raw_object: str = "") -> AppendFact:
    """A request as decoded from the wire; `raw_object` replaces the text OBJECT in it."""
    head = {"protocol": "bsfg.replication", "version": "1.0", "operation": "AppendFact", "stream": "facts.orders"}
    text = json.dumps({**head, "messages": messages}).replace('"OBJECT"', raw_object)
    request = decode_request(text.encode(errors="surrogatepass"))
    assert isinstance(request, AppendFact)
    return request


def refusal(message: dict[str, Any], raw_object: str = "") -> str:
    """The code with which a message is refused, by any check; empty for one that the store accepts."""
    try:
        asked = parse_append(decoded(message, raw_object=raw_object), "idmz")
    except MalformedMessage as error:
        return error.code
    if isinstance(asked, Refuse):
        return asked.code
    try:
        check_message(asked.messages[0])
    except MessageError as error:
        return refuse_message(asked.messages, error).code
    return ""


@pytest.mark.parametrize(
    "written",
    ['{"a":1,"a":2}', '"\\ud800"', "[" * 2000 + "]" * 2000, "9" * 400, "1e400", "NaN", str(2**53 + 1), str(2**64 + 1)],
)
def test_an_object_without_a_canonical_form_is_refused(written: str) -> None:
    """A duplicate key, half a surrogate pair, endless nesting, an infinite number, and one that a double would
    round."""
    assert refusal({"envelope": ENVELOPE, "fact": {**FACT, "object": "OBJECT"}}, raw_object=written) == "bad_request"


def test_the_message_at_fault_is_named() -> None:
    """If the store refuses a message, the refusal names it; a fault of none of them is passed on unchanged."""
    good, bad = {"envelope": ENVELOPE, "fact": FACT}, {"envelope": ENVELOPE, "fact": {**FACT, "predicate": "Released"}}
    asked = parse_append(decoded(good, bad), "idmz")
    assert isinstance(asked, ParsedAppend)
    assert refuse_message(asked.messages, MessageError("predicate", "?")).message.startswith("messages[1]: predicate")
    assert refuse_message(asked.messages[:1], MessageError("base_offset", "no")).message == "base_offset: no"


@given(st.dictionaries(st.sampled_from([*ENVELOPE, "labels", "correlation_id", "object_schema"]), anything), anything)
def test_any_envelope_and_object(envelope: dict[str, Any], content: Any) -> None:
    """Whatever the fields contain, the outcome is a message that the store accepts, or a refusal."""
    message = {"envelope": {**ENVELOPE, **envelope}, "fact": {**FACT, "object": content}}
    assert refusal(message) in {"", "bad_request"}

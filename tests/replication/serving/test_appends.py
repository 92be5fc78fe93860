"""Appends of another zone: with any content they become messages that the store may accept, or one refusal; the same
outcomes and messages as at the zone's own socket, and only the configured rights."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.batch import open_messages, parse
from agent.message import Envelope, Fact, Message, MessageError, check_message
from agent.replication.protocol.codec import decode_request
from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages import AcquireLease, AppendAnswer, AppendedEntry, AppendFact, NewMessage
from agent.replication.serving.appends import ParsedAppend, parse_append, refuse_message
from agent.replication.serving.outcomes import Refuse
from agent.settings.store import StreamSettings
from tests.replication.nodes import sealed
from tests.replication.serving.support import ORDERS, Peer, new_message, serving

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


PLANS, PRIVATE = "facts.plans", "facts.private"
APPENDS = {"idmz": frozenset({ORDERS, PLANS, PRIVATE})}
STREAMS = (
    StreamSettings(ORDERS),
    StreamSettings(PLANS, write_class="strong", acks="all", acks_timeout_ms=50),
    StreamSettings(PRIVATE, write_class="local"),
)


async def outcomes(peer: Peer, *messages: NewMessage, stream: str = ORDERS) -> list[AppendedEntry]:
    """The outcome of each message of an append."""
    answer = await peer.ask(AppendFact(stream=stream, messages=list(messages)))
    assert isinstance(answer, AppendAnswer)
    return answer.outcomes


async def test_messages_are_answered_in_order_and_stored_once(tmp_path: Path) -> None:
    """Each message of one request has its own outcome, in order; stored messages are in that order and name the
    appender's zone."""
    async with serving(tmp_path, APPENDS, STREAMS) as (server, peer):
        store: Any = server._store
        asked = (("a", b"1"), ("b", b"2"), ("a", b"1"), ("a", b"3"))
        first = await outcomes(peer, *(new_message(*given) for given in asked))
        assert [(outcome.outcome, outcome.offset) for outcome in first] == [
            ("applied", 1), ("applied", 2), ("noop_already_applied", 1), ("conflicting_duplicate", 1),
        ]  # fmt: skip
        assert store.end_offset(ORDERS) == 2
        stored = [message for batch_bytes in sealed(store, ORDERS) for message in open_messages(parse(batch_bytes))]
        assert [(message.envelope.message_id, message.envelope.from_zone) for message in stored] == [
            ("a", "idmz"),
            ("b", "idmz"),
        ]
        assert [origin.zone for origin in store.reader.origins()] == ["plant-a"]
        assert [outcome.outcome for outcome in await outcomes(peer, new_message("c"), stream=PRIVATE)] == ["applied"]


async def test_message_ids_are_unique_per_zone_only(tmp_path: Path) -> None:
    """The zone itself and another append different messages under the same ids, in either order: both are stored. Each
    is recognised as its own appender's when it comes again, also after a restart, and a changed one under its own
    zone's name is still a conflict."""
    noop, conflict = "noop_already_applied", "conflicting_duplicate"

    async def at_home(store: Any, *asked: tuple[str, bytes]) -> list[tuple[str, int]]:
        messages = [
            Message(Envelope(name, "plant-a", "*", 1_700_000_000_000), Fact("order:1", "done", content))
            for name, content in asked
        ]
        found = await asyncio.wrap_future(store.appends.append_messages(ORDERS, messages))
        return [(outcome.outcome, outcome.offset) for outcome in found]

    async def from_idmz(peer: Peer, *asked: tuple[str, bytes]) -> list[tuple[str, int]]:
        return [
            (outcome.outcome, outcome.offset)
            for outcome in await outcomes(peer, *(new_message(*given) for given in asked))
        ]

    async with serving(tmp_path, APPENDS, STREAMS) as (server, peer):
        assert await from_idmz(peer, ("a", b"1")) == [("applied", 1)]
        assert await at_home(server._store, ("a", b"2"), ("b", b"2")) == [("applied", 2), ("applied", 3)]
        assert await from_idmz(peer, ("b", b"1")) == [("applied", 4)]
    async with serving(tmp_path, APPENDS, STREAMS) as (server, peer):
        assert await from_idmz(peer, ("a", b"1"), ("b", b"1")) == [(noop, 1), (noop, 4)]
        assert await at_home(server._store, ("a", b"2"), ("b", b"2")) == [(noop, 2), (noop, 3)]
        assert await from_idmz(peer, ("a", b"2"), ("b", b"2")) == [(conflict, 1), (conflict, 4)]
        assert await at_home(server._store, ("a", b"1"), ("b", b"1")) == [(conflict, 2), (conflict, 3)]


async def test_a_lease_of_another_zone_fences_its_own_producers_only(tmp_path: Path) -> None:
    """Epochs rise; a producer whose name does not begin with the zone's is refused, for leases and for appends. A
    request after an epoch that is no longer in force gets none, and fences no producer."""
    lease = AcquireLease(stream=ORDERS, producer="idmz.mes")
    foreign = new_message("a", producer="plant-a.mes", lease_epoch=9)
    async with serving(tmp_path, APPENDS, STREAMS) as (server, peer):
        assert [(await peer.ask(lease)).lease_epoch for _ in range(2)] == [1, 2]
        for asked in (AcquireLease(stream=ORDERS, producer="mes"), AppendFact(stream=ORDERS, messages=[foreign])):
            error = await peer.refusal(asked)
            assert error.code == "bad_request"
            assert "producers of idmz are named idmz." in error.message
        error = await peer.refusal(AcquireLease(stream="facts.audit", producer="idmz.mes"))
        assert error.code == "append_not_allowed"
        store: Any = server._store
        assert await asyncio.wrap_future(store.appends.acquire_lease(ORDERS, "mes")) == 1
        for after, expected in ((0, (None, 2)), (1, (None, 2)), (2, (3, None)), (2, (None, 3))):
            answer = await peer.ask(AcquireLease(stream=ORDERS, producer="idmz.mes", lease_after=after))
            assert (answer.lease_epoch, answer.lease_in_force) == expected

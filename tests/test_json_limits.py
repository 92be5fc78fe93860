"""JSON from outside, on every path: nested at most JSON_DEPTH_MAX deep, and no number is rounded silently."""

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from agent import message
from agent.cli import bsfg
from agent.config import load
from agent.fact_store.divergence.witness import read_json
from agent.ingest.errors import TagMapError
from agent.ingest.tags.foreign import ignition
from agent.ingest.tags.foreign.translation import Options
from agent.local_socket.messages import REQUEST_DECODERS
from agent.local_socket.serving import RequestHandler, open_store
from agent.message import JSON_DEPTH_MAX, Envelope, MessageError, TagDefinition
from agent.replication.protocol.codec import decode_answer, decode_request
from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages import AppendFact, ErrorAnswer, NewFact, NewMessage
from agent.replication.serving.appends import parse_append
from agent.replication.serving.outcomes import Refuse

AGENT = Path(__file__).parents[1] / "agent"
TEXTS = st.text('a"\\[]{}', max_size=6)
VALUES = st.recursive(
    TEXTS | st.integers(-9, 9), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2)
)


def depth_of(value: Any) -> int:
    """Arrays and objects in one another."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@given(VALUES, st.integers(90, 105))
def test_depth_is_counted_outside_of_texts_only(value: Any, around: int) -> None:
    """The depth of a value is that of its arrays and objects, whatever quotes, backslashes and brackets its texts
    contain."""
    nested = reduce(lambda inner, _: [inner], range(around), [value, [0] * 101, ["long"] * 50])
    is_deep = depth_of(nested) > JSON_DEPTH_MAX
    with pytest.raises(MessageError, match="nested deeper") if is_deep else nullcontext():
        message.check_depth("x", json.dumps(nested).encode())


def answer(inner: bytes) -> object:
    """The header of an answer, with an unknown field."""
    header = b'{"protocol":"bsfg.replication","version":"1.0","x":%s}' % inner
    return decode_answer(len(header).to_bytes(4, "little") + header)


def local_request(inner: bytes) -> object:
    """A request over the local socket, as its server reads one."""
    request = b'{"protocol":"bsfg.replication","version":"1.0","operation":"ListConsumers","x":%s}' % inner
    return decode_request(request, REQUEST_DECODERS)


MODBUS = Options("modbus", 0)
PARSERS: dict[str, Callable[[bytes], object]] = {
    "request": lambda inner: decode_request(b'{"protocol":"bsfg.replication","version":"1.0","x":%s}' % inner),
    "answer": answer,
    "local request": local_request,
    "definition": lambda inner: TagDefinition.from_json(b'{"subject":"tag:a/b","x":%s}' % inner),
    "Ignition": lambda inner: list(ignition._from_json("x", b'{"tags":%s}' % inner, MODBUS, [])),
    "object": lambda inner: message.parse_json("object_json", b'{"x":%s}' % inner),
}
"""What parses JSON of peers, programs, other products and our own files; `inner` is one level deep there."""


def error_of(parse: Callable[[bytes], object], inner: bytes) -> str:
    """The error of the product, if any; any other ends the test."""
    try:
        parse(inner)
    except (MessageError, MalformedMessage, TagMapError, ValueError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", PARSERS)
def test_every_parser_has_the_same_limit(name: str) -> None:
    """A hundred levels are accepted, one more is refused for its depth, and a hundred thousand end no process."""
    for levels, is_deep in ((JSON_DEPTH_MAX - 1, False), (JSON_DEPTH_MAX, True), (30_000, True)):
        found = error_of(PARSERS[name], b"[" * levels + b'"%s"' % (b"0" * 201) + b"]" * levels)
        assert (f"nested deeper than {JSON_DEPTH_MAX}" in found) == is_deep, (levels, found)
    assert error_of(PARSERS[name], b"[" * 50_000)


def test_a_state_file_that_is_nested_too_deeply_counts_as_unreadable(tmp_path: Path) -> None:
    """It is handled like a file with any other damage."""
    file = tmp_path / "facts.db.suspect"
    for levels, is_read in ((JSON_DEPTH_MAX - 1, True), (JSON_DEPTH_MAX, False), (100_000, False)):
        nested = "[" * levels + f'"{"0" * 201}"' + "]" * levels
        file.write_text(f'{{"why":{nested}}}')
        assert bool(read_json(file)) == is_read


def test_no_module_parses_json_past_the_limit() -> None:
    """Every module that calls a JSON parser checks the depth, or parses JSON that this process wrote or has checked."""
    parses = re.compile(r"json\.loads?\(|msgspec\.json\.(?:decode|Decoder)\(")
    checked = {
        "node/stored_samples.py", "query/scan/messages.py", "fact_store/append/checkpoint.py",  # objects of stored facts, checked where they came in
        "query/sql/scan_plan.py",  # what the planner wrote
        "node/clock.py",  # four numbers that this node wrote, and objects of stored facts
        "replication/broker/config.py",  # a file of ours, or damaged
        "ingest/opcua/subscriptions/audit.py",  # what our decoder wrote
        "replication/broker/diagnosis.py",  # an answer that was decoded
        "signing/messages.py",  # lengths in an answer, for its proof; what is too deep is hashed as it is, then checked
        "node/pairing/lead_desk.py",  # what this node wrote; damage that nests it too deeply is caught like any other
        "config/in_force.py",  # what this node wrote; damage that nests it too deeply is caught like any other
        "health/samples.py",  # objects of stored facts, checked where they came in
        "node/status.py",  # what the watch of the broker on this machine wrote, or damage
        "client/opened.py", "client/asynchronous.py", "page/watch.py",  # an answer of the node of this machine
        "local_socket/serving/server.py",  # a request that was decoded
        "demo/scenario.py",  # the output of our own job
        "settings/notify.py",  # the operator's template; one that nests too deeply is a mistake like any other
    }  # fmt: skip
    sources = {str(path.relative_to(AGENT)): path.read_text("utf-8") for path in AGENT.rglob("*.py")}
    assert {name for name, text in sources.items() if parses.search(text) and "check_depth(" not in text} == checked


@pytest.mark.parametrize(
    "number", ["9007199254740993", "-9007199254740993", "9007199254740993.0", "9007199254740993e0"]
)
def test_no_append_rounds_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str) -> None:
    """A number beyond 2^53 that no double has is refused by AppendFact of a peer, by the local socket and by `bsfg
    append`; nothing is stored. Its neighbour that a double has is stored as it is."""
    monkeypatch.chdir(tmp_path)
    Path("node.toml").write_text('[node]\nzone = "plant"\n')
    content = f'{{"n":{number}}}'
    envelope = Envelope("m", "plant", "*", 1)
    asked = AppendFact("s", [NewMessage(envelope, NewFact("a:b", "c", msgspec.Raw(content.encode())))])
    refused = parse_append(asked, "plant")
    assert isinstance(refused, Refuse)
    assert "beyond 2^53" in refused.message
    with open_store(load(Path("node.toml"))) as store:
        answer = asyncio.run(RequestHandler(store).answer(asked)).answer
        assert isinstance(answer, ErrorAnswer)
        assert store.streams() == []
    done = CliRunner().invoke(bsfg, ["append", "a:b", "c", content])
    assert "beyond 2^53" in str(done.exception)
    done = CliRunner().invoke(bsfg, ["append", "a:b", "c", '{"n":9007199254740992}'])
    assert done.exit_code == 0

"""Every integer field of every request, with values outside its range: each request is answered
with an error that names the field, and the server keeps running.

The fields are taken from the message types, so a field that is added later is tested without a change here.
"""

import copy
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages import REQUESTS, GetDigests, Request, operation_of
from agent.settings.store import StreamSettings
from tests.replication.message_fields import ORIGIN, Place, integers
from tests.replication.nodes import STREAM
from tests.replication.serving.support import ORDERS, filled, serving

DIGEST = "0" * 32
CONSUMER = {"consumer_name": f"idmz.{STREAM}"}
RANGE = {"stream": STREAM, "limit": 10}
SEQUENCES = {"origin": ORIGIN, "first_sequence": 1, "last_sequence": 9}
ARTIFACT = {"digest": f"sha256:{'0' * 64}"}
ENVELOPE = {"message_id": "1", "from_zone": "idmz", "to_zone": "*", "produced_at_unix_ms": 1}
MESSAGE = {
    "envelope": ENVELOPE,
    "fact": {"subject": "order:1", "predicate": "released", "object": 1},
    "producer": "idmz.mes",
    "lease_epoch": 1,
    "base_offset": 0,
}
WHOLE: dict[str, dict[str, Any]] = {
    "FetchFacts": {
        **CONSUMER,
        **RANGE,
        "confirm": {"last_offset": 1, "first_offset": 1, "life": "0" * 32},
        "after": {"offset": 0},
        "trail": [{"offset": 0}],
        "origin_head": {"last_sequence": 1, "digest": DIGEST},
        "held": [["plant-a", "0" * 32, 1, 9]],
    },
    "FetchRange": {**RANGE, "first_offset": 1, "last_offset": 9, "life": "0" * 32},
    "FetchSequences": {**RANGE, **SEQUENCES, "position": {"offset": 0}},
    "GetDefinitions": {"wanted": [{"zone": "plant-a", "digest": DIGEST}]},
    "GetDigests": {"stream": STREAM, **SEQUENCES, "position": {"offset": 0}},
    "ConfirmReceipt": {**CONSUMER, "offset": 1, "life": "0" * 32},
    "GetCursor": CONSUMER,
    "UnregisterConsumer": CONSUMER,
    "GetBounds": {"stream": STREAM, "position": {"offset": 0}},
    "ListStreams": {},
    "AppendFact": {"stream": ORDERS, "messages": [MESSAGE]},
    "AcquireLease": {"stream": ORDERS, "producer": "idmz.mes"},
    "GetLatest": {"stream": STREAM},
    "GetObject": ARTIFACT,
    "PutObject": {**ARTIFACT, "size": 9},
    "ClaimLead": {"zone": "idmz", "claim": {"node": "idmz", "instance": "0" * 32, "state": "leads", "term": 1}},
}
"""A whole request of each operation; optional integers may be missing, objects that hold integers may not."""

OUTSIDE = (-1, -(2**63), -(2**63) - 1, 2**63, 2**64, 10**30, 1.5, 10.0, True, "1", [], {})
"""In no field's range. A number with a fraction, and a bool, are not integers."""
EXTREME = (0, 1, 2**31, 2**53 - 1, 2**53, 2**63 - 1)
"""In the range of some fields: answered, whatever the answer."""
MAY_BE_TEXT = {"start"}


def with_value(operation: str, place: Place, value: object) -> bytes:
    """The whole request with another value in one place."""
    request = copy.deepcopy(WHOLE[operation])
    request.pop("after" if place[0] == "trail" else "trail", None)  # they exclude each other
    inner: Any = request
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    head = {"protocol": "bsfg.replication", "version": "1.0", "operation": operation}
    return json.dumps({**head, **request}).encode()


@pytest.mark.parametrize("kind", REQUESTS, ids=operation_of)
async def test_an_integer_out_of_range_is_answered_by_name(kind: type[Request], tmp_path: Path) -> None:
    """The answer is bad_request or limit_out_of_range and has the name of the field; extreme values in range are
    answered too; the server, the store and its life are as before."""
    operation = operation_of(kind)
    streams = [StreamSettings(ORDERS, acks="all", write_class="strong", acks_timeout_ms=1)]
    async with serving(tmp_path, {"idmz": frozenset({ORDERS})}, streams) as (server, peer):
        store = await filled(server, 20)
        life = store.life
        for place in dict.fromkeys(place for place, _ in integers(msgspec.inspect.type_info(kind))):
            for value in OUTSIDE:
                if place[-1] in MAY_BE_TEXT and isinstance(value, str):
                    continue
                error = await peer.refusal(with_value(operation, place, value))
                assert error.code in {"bad_request", "limit_out_of_range"}, (place, value, error)
                assert str(place[-1]) in error.message, (place, value, error)
            for value in EXTREME:
                await peer.ask(with_value(operation, place, value))
        assert not server.statistics().drops
        assert (store.life, store.failure) == (life, None)


@pytest.mark.parametrize(
    "given",
    [
        *(
            {name: SEQUENCES[name] for name in names}
            for count in (1, 2)
            for names in combinations(sorted(SEQUENCES), count)
        ),
        {**SEQUENCES, "after_zone": "plant-a"},
        {**SEQUENCES, "zone": "plant-a", "below": "0" * 32},
        {"zone": "plant-a"},
        {"below": "0" * 32},
        {"down_to": "0" * 32},
    ],
)
def test_the_sequences_of_a_comparison_are_given_whole(given: dict[str, Any]) -> None:
    """A range of one origin, or lives of one zone: fields that are given without the others are refused."""
    with pytest.raises(MalformedMessage, match="only valid together"):
        GetDigests(stream=STREAM, **given).check()


def test_every_request_is_here() -> None:
    """A request that is added to the protocol must be added to this test."""
    assert {operation_of(kind) for kind in REQUESTS} == set(WHOLE)

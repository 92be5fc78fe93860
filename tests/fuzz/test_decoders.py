"""Every decoder of a peer's bytes against corrupted messages: accepted with a consistent value or refused with one
error, in bounded memory. `make fuzz` runs the same targets coverage-guided, a million inputs each (`harness`)."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import batch
from agent.message import Fact, Message
from agent.replication.protocol.codec import REQUEST_BYTES_MAX
from tests.batch.test_forged import bombs
from tests.fuzz import seeds
from tests.fuzz.decoders import TARGETS
from tests.sim import first_seed, scaled

# A spoiled certificate may have the serial number 0 or less; the library says that it will refuse it one day.
pytestmark = pytest.mark.filterwarnings("ignore:Parsed a serial number which wasn't positive")
EXAMPLES = scaled(150, 3_000)
WEIGHED = scaled(200, 2_000)


@pytest.mark.parametrize("name", TARGETS)
def test_real_messages_are_taken(name: str) -> None:
    """The product's own messages are accepted, are consistent, and cost no more memory than allowed."""
    target = TARGETS[name]
    for seed in target.seeds():
        assert target.examine(seed), seed
        assert target.weigh(seed) > 0


def filled(start: bytes, element: bytes, end: bytes, bytes_max: int) -> bytes:
    """As many of `one` between start and end, with commas, as fit."""
    return start + b",".join([element] * ((bytes_max - len(start) - len(end)) // (len(element) + 1))) + end


def dense(name: str) -> list[bytes]:
    """Inputs of maximum size, with the structure that costs most for each byte."""
    dicts, lists = b'{"a":{}}', b"[[],[],[],[],[],[],[],[],[],[]]"
    if name == "request":
        fetch, append = (
            seeds.requests()[0][:-1],
            next(request for request in seeds.requests() if b"AppendFact" in request),
        )
        before, _, after = append.rpartition(b'"object":')
        labels = b",".join(b'"%d":""' % number for number in range(6_000))
        return [
            fetch + filled(b',"x":[', element, b"]}", REQUEST_BYTES_MAX - len(fetch)) for element in (dicts, lists, b'"\\u0000"')
        ] + [
            before + b'"object":' + filled(b"[", element, b"]", 60_000) + after[after.index(b"},") :] for element in (dicts, lists, b"[[1]]")
        ] + [append.replace(b'"line":"1"', labels, 1)]  # fmt: skip
    if name == "answer":
        page = next(answer for answer in seeds.answers() if b'"omitted"' in answer)
        header = page[4 : 4 + int.from_bytes(page[:4], "little")][:-1]
        ranges = ((b"batches", b"[1,1,1]"), (b"omitted", b"[1,1]"), (b"holes", b'[1,1,"a"]'), (b"x", dicts))
        headers = [
            header + filled(b',"%s":[' % field, element, b"]}", 2**20 - len(header)) for field, element in ranges
        ]
        return [len(header).to_bytes(4, "little") + header for header in headers]
    if name in {"json", "definition"}:
        return [
            filled(b"[", element, b"]", REQUEST_BYTES_MAX)
            for element in (dicts, lists, b"1e9", b'""', b"[" * 300 + b"]" * 300)
        ]
    if name == "batch":
        message = Message(seeds.ENVELOPE, Fact("order:line1/77", "step_completed", b"1"))
        return [batch.seal_messages(seeds.LINK, [message] * batch.FACTS_MAX).sealed, *bombs().values()]
    return [b"\x30\x00\x00\xff\xff\x7f" + b"\x26\x00\x00\x00\x00" * 20_000, seeds.contents()[0] * 1_000]


@pytest.mark.parametrize("name", TARGETS)
def test_the_densest_messages_cost_what_the_limits_allow(name: str) -> None:
    """Many small parts, up to the limits of the format, and small batches that contain or claim much."""
    peaks = [TARGETS[name].weigh(payload) for payload in dense(name)]
    print(f"{name}: at most {max(peaks)} bytes for one input")


@pytest.mark.sim
@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=EXAMPLES)
@given(chance=st.randoms(use_true_random=False), data=st.data())
def test_spoiled_messages_are_read_or_refused(name: str, chance: random.Random, data: st.DataObject) -> None:
    """Wrong lengths, duplicate keys, depth, huge numbers, invalid text, bombs: each decoder handles them."""
    target = TARGETS[name]
    target.examine(target.mutate(chance, data.draw(st.sampled_from(target.seeds()))))


@pytest.mark.sim
@pytest.mark.parametrize("name", TARGETS)
def test_spoiled_messages_cost_what_the_limits_allow(name: str) -> None:
    """No input costs more memory than the target's limits, which follow from those of the format."""
    target, chance = TARGETS[name], random.Random(first_seed())
    good = target.seeds()
    peaks = [target.weigh(target.mutate(chance, chance.choice(good))) for _ in range(WEIGHED)]
    print(f"{name}: at most {max(peaks)} bytes for one input")

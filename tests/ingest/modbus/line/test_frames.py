"""Frames in bytes that a line delivers as it likes."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.ingest.modbus.address import Table
from agent.ingest.modbus.line.frames import (
    AnswerFrame,
    checksum,
    find_rtu,
    mbap_request,
    rtu_request,
    shape_of,
    split_mbap,
)
from agent.ingest.modbus.read_plan import Read

READ = Read(1, Table.HOLDING, 100, 2, ())
UNITS = st.sampled_from([1, 2, 3, 4, 5, 10, 17, 131, 247])  # those whose numbers are also functions among them


def rtu(unit_id: int, function: int, *rest: int) -> bytes:
    """A frame with its checksum."""
    body = bytes([unit_id, function, *rest])
    return body + checksum(body)


def answer(read: Read, *words: int) -> bytes:
    """The answer to a read of registers."""
    return rtu(read.unit_id, shape_of(read).function, 2 * len(words), *struct.pack(f">{len(words)}H", *words))


def test_requests_are_those_of_the_specification() -> None:
    """The example of the application protocol, 6.3, in both framings."""
    read = Read(17, Table.HOLDING, 107, 3, ())
    assert rtu_request(read).hex(" ") == "11 03 00 6b 00 03 76 87"
    assert mbap_request(read, 0x1501).hex(" ") == "15 01 00 00 00 06 11 03 00 6b 00 03"


@given(
    unit_id=UNITS,
    address=st.integers(0, 65_000),
    words=st.lists(st.integers(0, 65_535), min_size=1, max_size=125),
    noise=st.binary(max_size=3),
    cuts=st.lists(st.integers(0, 300), max_size=20),
    echoes=st.integers(0, 2),
    foreign=st.lists(st.integers(0, 65_535), max_size=10),
)
def test_an_answer_is_found_in_all_that_a_line_adds(
    unit_id: int, address: int, words: list[int], noise: bytes, cuts: list[int], echoes: int, foreign: list[int]
) -> None:
    """Our own request, once or twice, a frame of another unit and noise before the answer, in pieces of any size: the
    answer is found, and nothing before it is complete."""
    read = Read(unit_id, Table.HOLDING, address, len(words), ())
    other = rtu(unit_id ^ 64, 3, 2 * len(foreign), *struct.pack(f">{len(foreign)}H", *foreign)) if foreign else b""
    frame = answer(read, *words)
    sent = rtu_request(read) * echoes + other + noise + frame
    for end in sorted({*(cut for cut in cuts if cut < len(sent)), len(sent)}):
        found = find_rtu(sent[:end], [shape_of(read)], rtu_request(read))
        assert (found is not None) == (end == len(sent)), sent[:end].hex(" ")
    assert found == (AnswerFrame(unit_id, 3, frame[3:-2]), len(sent))


@pytest.mark.parametrize(
    "frame",
    [
        answer(READ, 1),
        answer(READ, 1, 2, 3),
        answer(Read(2, Table.HOLDING, 100, 2, ()), 1, 2),
        answer(Read(1, Table.INPUT, 100, 2, ()), 1, 2),
        answer(READ, 1, 2)[:-1],
        answer(READ, 1, 2)[:-1] + b"\0",
        rtu_request(READ),
        rtu(1, 0x84, 2),
        rtu(2, 0x83, 2),
    ],
    ids=["short", "long", "unit", "table", "cut", "checksum", "echo", "exception of another table", "of another unit"],
)
def test_a_frame_that_does_not_fit_is_no_answer(frame: bytes) -> None:
    """Unit, function, length and checksum must all be those of the request."""
    assert find_rtu(frame, [shape_of(READ)], rtu_request(READ)) is None


def test_an_exception_fits_every_length() -> None:
    """It has the function with the highest bit set, and its code."""
    assert find_rtu(b"\0" + rtu(1, 0x83, 2), [shape_of(READ)], rtu_request(READ)) == (AnswerFrame(1, 3, None, 2), 6)


@given(st.binary(max_size=300))
def test_any_bytes_are_split_or_called_foreign(data: bytes) -> None:
    """No bytes make an error, and what is not a frame yet is kept or declared to be no MBAP."""
    frames, rest, is_foreign = split_mbap(data)
    assert len(frames) <= len(data) // 8
    assert rest == b"" or (data.endswith(rest) and not is_foreign)

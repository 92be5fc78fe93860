"""Late, lost and foreign answers: whatever a device does, a value is that of the register that was asked for."""

import asyncio
import struct
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.ingest.errors import SourceLost
from agent.ingest.modbus.address import Table
from agent.ingest.modbus.line import Line, ReadRefused, UnitSilent
from agent.ingest.modbus.line.answers import FORGET_NS, AnswerMatcher, Numbering
from agent.ingest.modbus.line.frames import FUNCTIONS, AnswerFrame, checksum
from agent.ingest.modbus.read_plan import Read
from agent.settings.sources import ModbusSourceSettings
from tests.ingest.modbus.faulty_device import REGISTERS, UNITS, FaultyDevice, place
from tests.support.virtual_time import run_virtual

S = 10**9
A = Read(1, Table.HOLDING, 100, 2, ())
B = Read(1, Table.HOLDING, 200, 2, ())
SHORT = Read(1, Table.HOLDING, 300, 1, ())


def answer(read: Read, *words: int, number: int | None = None) -> bytes:
    """The answer to a read of registers, in RTU framing or with this number."""
    pdu = struct.pack(f">BB{len(words)}H", 3, 2 * len(words), *words)
    return framed(read.unit_id, pdu, number)


def framed(unit_id: int, pdu: bytes, number: int | None) -> bytes:
    """A frame of either framing."""
    body = bytes([unit_id]) + pdu
    return body + checksum(body) if number is None else struct.pack(">HHH", number, 0, len(body)) + body


def sent_number(request: bytes) -> int:
    """The transaction number of a request."""
    return int.from_bytes(request[:2], "big")


def unanswered(matcher: AnswerMatcher, read: Read, now_ns: int = 0) -> bytes:
    """A request that times out."""
    request = matcher.ask(read, now_ns)
    matcher.give_up()
    return request


def distinct(matcher: AnswerMatcher, read: Read) -> Read:
    """The read that is possible in place of one, after a second."""
    other = matcher.distinct_read(read, S)
    assert other is not None
    return other


def test_a_late_answer_over_rtu_is_not_the_next_one() -> None:
    """After a time-out only a request of another length is possible; the late answer does not answer it, and its own
    answer settles what came before."""
    matcher = AnswerMatcher(is_rtu=True)
    matcher.note_good(A)
    unanswered(matcher, A)
    assert matcher.is_in_doubt(1)
    assert not matcher.is_in_doubt(2)
    with pytest.raises(AssertionError):
        matcher.ask(B, S)
    other = matcher.distinct_read(B, S)
    assert other == Read(1, Table.HOLDING, 100, 1, ())
    matcher.ask(other, S)
    assert matcher.receive(answer(A, 1, 2), 2 * S) is None
    assert matcher.late_ns == {1: 2 * S}
    assert matcher.receive(answer(other, 1), 2 * S) == AnswerFrame(1, 3, b"\0\1")
    assert not matcher.is_in_doubt(1)


def test_a_late_answer_that_arrives_alone_settles_its_request() -> None:
    """Then nothing is in doubt, and no new connection is needed."""
    matcher = AnswerMatcher(is_rtu=True)
    unanswered(matcher, A)
    assert matcher.needs_connection
    assert matcher.receive(answer(A, 1, 2), 2 * S) is None
    assert not matcher.is_in_doubt(1)
    assert not matcher.needs_connection


def test_open_requests_outlive_a_connection() -> None:
    """The serial side of a gateway is a queue: over a new connection it may deliver the answer to an old request."""
    matcher = AnswerMatcher(is_rtu=True)
    unanswered(matcher, A)
    matcher.connected()
    assert matcher.is_in_doubt(1)
    assert not matcher.needs_connection


@pytest.mark.parametrize("wrong", [0, 1], ids=["always 0", "one more"])
def test_a_wrong_number_is_no_number(wrong: int) -> None:
    """A device that answers with another number is read, and its answers are matched as in RTU framing: even a late one
    that happens to have the number of the next request is not the answer to it."""
    matcher = AnswerMatcher(is_rtu=False, first_number=500)

    def number(request: bytes) -> int:
        return 0 if wrong == 0 else sent_number(request) + wrong

    request = matcher.ask(A, 0)
    assert matcher.receive(answer(A, 1, 2, number=number(request)), 0) is not None
    assert matcher.numbering is Numbering.WRONG
    request = unanswered(matcher, A)
    other = distinct(matcher, A)
    second = matcher.ask(other, S)
    assert matcher.receive(answer(A, 8, 9, number=number(request)), 2 * S) is None
    assert matcher.receive(answer(other, 8, number=number(second)), 2 * S) is not None


def test_an_answer_to_an_earlier_process_is_dropped() -> None:
    """A gateway may deliver it over the first connection of this one. If our request is not answered after it, the
    device may be one that always answers with that number: it answers the next one so."""
    matcher = AnswerMatcher(is_rtu=False, first_number=500)
    request = matcher.ask(A, 0)
    assert matcher.receive(answer(A, 8, 9, number=77), 0) is None
    assert matcher.receive(answer(A, 1, 2, number=sent_number(request)), 0) is not None
    assert matcher.numbering is Numbering.RIGHT
    odd = AnswerMatcher(is_rtu=False, first_number=500)
    odd.ask(A, 0)
    assert odd.receive(answer(A, 8, 9, number=77), 0) is None
    odd.give_up()
    odd.ask(other := distinct(odd, A), S)
    assert odd.receive(answer(other, 8, number=77), S) is not None


def test_right_numbers_drop_a_late_answer() -> None:
    """It is known to be late, and the connection stays good for other units."""
    matcher = AnswerMatcher(is_rtu=False)
    first = matcher.ask(A, 0)
    assert matcher.receive(answer(A, 1, 2, number=sent_number(first)), 0) is not None
    second = unanswered(matcher, A)
    assert not matcher.needs_connection
    assert matcher.receive(answer(A, 1, 2, number=sent_number(second)), 3 * S // 2) is None
    assert matcher.late_ns == {1: 3 * S // 2}
    assert not matcher.is_in_doubt(1)


def test_the_answer_of_the_wrong_length_with_our_number_is_told_at_once() -> None:
    """It is meant for this request: waiting on would not help. The request stays open."""
    matcher = AnswerMatcher(is_rtu=False)
    matcher.receive(answer(A, 1, 2, number=sent_number(matcher.ask(A, 0))), 0)
    second = matcher.ask(A, 0)
    assert matcher.receive(answer(A, 1, number=sent_number(second)), 0) is not None
    assert matcher.is_in_doubt(1)


def test_an_exception_is_taken_for_that_of_the_oldest_request() -> None:
    """It has no length: it may be the late answer to the request before."""
    matcher = AnswerMatcher(is_rtu=True)
    matcher.note_good(A)
    unanswered(matcher, A)
    other = distinct(matcher, A)
    matcher.ask(other, S)
    assert matcher.receive(framed(1, b"\x83\2", None), 2 * S) is None
    assert matcher.receive(answer(other, 1), 2 * S) is not None
    assert not matcher.is_in_doubt(1)


def test_an_exception_with_our_number_in_doubt_leaves_the_requests_behind_it_open() -> None:
    """A gateway gave its number to the late exception of the request before last. The unit is then asked for another
    function, and whatever it answers to that ends the doubt."""
    matcher = AnswerMatcher(is_rtu=False)
    matcher.receive(answer(A, 1, 2, number=sent_number(matcher.ask(A, 0))), 0)
    matcher.note_good(A)
    unanswered(matcher, A)
    unanswered(matcher, distinct(matcher, A))
    third = distinct(matcher, A)
    assert matcher.receive(framed(1, b"\x83\2", sent_number(matcher.ask(third, S))), 2 * S) is not None
    assert matcher.is_in_doubt(1)
    other = distinct(matcher, A)
    assert other.table is not A.table
    function = 0x80 | FUNCTIONS[other.table]
    assert matcher.receive(framed(1, bytes([function, 1]), sent_number(matcher.ask(other, S))), 2 * S) is not None
    assert not matcher.is_in_doubt(1)


def test_a_unit_with_one_register_is_asked_for_another_function() -> None:
    """Lengths first, then the other tables, whose answers, even exceptions, have another function. When every request
    is open, the unit is left alone until no answer can come any more."""
    matcher = AnswerMatcher(is_rtu=True)
    asked = []
    read: Read | None = SHORT
    while read is not None:
        asked.append((read.table, read.count))
        unanswered(matcher, read, len(asked) * S)
        read = matcher.distinct_read(SHORT, len(asked) * S)
    assert asked == [
        (Table.HOLDING, 1),
        (Table.HOLDING, 2),
        (Table.INPUT, 1),
        (Table.COIL, 1),
        (Table.DISCRETE, 1),
    ]
    assert matcher.distinct_read(SHORT, len(asked) * S + FORGET_NS + 1) == SHORT


def test_a_unit_with_short_reads_is_asked_for_longer_ones() -> None:
    """A jittery unit may miss several requests in a row, and must not be left alone for a minute for that."""
    matcher = AnswerMatcher(is_rtu=True)
    matcher.note_good(A)
    read: Read | None = A
    counts = []
    for _ in range(10):
        assert read is not None
        counts.append(read.count)
        unanswered(matcher, read)
        read = matcher.distinct_read(A, 0)
    assert counts == [2, 1, 3, 4, 5, 6, 7, 8, 9, 10]


def test_the_number_0_is_never_used() -> None:
    """Some devices always answer with it."""
    matcher = AnswerMatcher(is_rtu=False, first_number=0xFFFE)
    for _ in range(4):
        request = matcher.ask(A, 0)
        assert sent_number(request)
        matcher.receive(answer(A, 1, 2, number=sent_number(request)), 0)


def test_a_gateway_that_gave_up_may_have_the_answer_later() -> None:
    """With exception 11 the unit is in doubt: its answer may meet the next request inside the gateway."""
    matcher = AnswerMatcher(is_rtu=False)
    request = matcher.ask(A, 0)
    assert matcher.receive(framed(1, b"\x83\x0b", sent_number(request)), 0) is not None
    assert matcher.is_in_doubt(1)


# --- the line against a gateway at random -----------------------------------------------------------------------------


@given(st.integers(0, 2**32))
def test_no_value_is_that_of_another_register(seed: int) -> None:
    """Over RTU and over TCP with right, wrong and no numbers, with late and lost answers and over new connections: no
    wrong value, no wrong refusal, and many values."""
    assert run_virtual(values_of(FaultyDevice(Random(seed)))) > 30


async def values_of(device: FaultyDevice) -> int:
    """Read for a while, some of it beyond what the device has. Each value is that of its register, and no other read
    has its refusal. Returns the number of reads with values."""
    transport, draw, good = "rtu_over_tcp" if device.is_rtu else "tcp", device.random, 0
    settings = ModbusSourceSettings("m", Path("t.csv"), 0, transport=transport, host="192.0.2.1", timeout_ms=100)
    with device.reachable():
        device.is_faulty = False
        async with Line(settings) as line:
            device.is_faulty, device.level, device.exceptions = True, draw.choice([0.1, 0.2, 0.3]), (10, 11)
            for _ in range(300):
                await asyncio.sleep(draw.choice([0, 0, 0, 0.1, 3]))  # tidy: virtual time
                unit_id, count = draw.choice(UNITS), draw.choice([1, 2, 2, 2, 7])
                read = Read(unit_id, Table.HOLDING, draw.randrange(REGISTERS), count, ())
                try:
                    found = await line.read(read)
                except ReadRefused:
                    assert read.end > REGISTERS, "the device has it"
                except (UnitSilent, SourceLost):
                    pass
                else:
                    first = place(unit_id, read.table, read.address)
                    assert [word >> 8 for word in found] == [*range(first, first + count)]
                    good += 1
    return good

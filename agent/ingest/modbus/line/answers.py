"""Decides which answer belongs to the request that waits, and when that is not certain.

A request that was given up may still be answered. Where answers have the number of their request, such a late answer
is dropped by its number. In RTU framing, and for devices that answer with a wrong number or always 0, answers are
matched by unit, function and length alone. So a request that was given up leaves its unit *in doubt*: the next request
to the unit must be one whose answer no open request can have (another length, otherwise another function). A unit
answers in order. When it answers that request, the open ones before it are settled: they were answered or never will
be. This holds over a new connection to a gateway, too, whose serial side is a queue; and it is done with numbers as
well, because a gateway may take a late answer on its serial side for the next one, and give it our number.

What an earlier process has asked is not known. So a first answer whose number is neither ours, nor 0, nor next to ours
is dropped as one of those, as long as the request waits.

An exception may answer every open request of its function, whatever its number. It is taken as the answer to the
oldest; the unit is then asked for another function, whose answer is certain. Core: bytes and times in, answers out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from agent.ingest.modbus.address import ADDRESS_MAX, Table
from agent.ingest.modbus.line.frames import (
    AnswerFrame,
    AnswerShape,
    find_rtu,
    mbap_request,
    rtu_request,
    shape_of,
    split_mbap,
)
from agent.ingest.modbus.read_plan import Read
from agent.ingest.modbus.refusal import GATEWAY_CODES

RECEIVED_MAX = 4_096  # bytes kept; a line that babbles has no answer further back
GOOD_READS_MAX = 8  # reads of different length kept for each unit, for the request that ends a doubt
LONGER_MAX = 16  # registers beyond what a unit has given, for the same
READ_MAX = 125  # Modbus Application Protocol 6.3
FORGET_NS = 60 * 10**9  # no device answers later; only asked when a unit has no other request left
NUMBERS = 0xFFFF


class Numbering(Enum):
    """What the transaction numbers of a connection's answers are worth."""

    UNKNOWN = "no answer yet"
    RIGHT = "they are those of the requests"
    WRONG = "they are not; answers are matched by their order"


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request that was sent and not answered."""

    shape: AnswerShape
    number: int
    sent_ns: int


class AnswerMatcher:
    """The requests and answers of one line. Outlives connections."""

    def __init__(self, *, is_rtu: bool, first_number: int = 1) -> None:
        self.is_rtu = is_rtu
        self.numbering = Numbering.WRONG if is_rtu else Numbering.UNKNOWN
        self._is_first = not is_rtu  # nothing has come that may be the answer to a request
        self.received = b""  # since the last request, for the message when none of it is the answer
        self.request = b""  # the last one
        self.late_ns: dict[int, int] = {}  # by unit: how long its last late answer took
        self._number = first_number % NUMBERS
        self._open: dict[int, list[OpenRequest]] = {}  # by unit, the oldest first
        self._waiting: OpenRequest | None = None
        self._rest = b""  # not yet a whole frame
        self._is_broken = False  # the stream of frames is broken, or an open request may be answered by order
        self._good: dict[int, dict[AnswerShape, Read]] = {}
        self._refusing: set[int] = set()  # units that answered with an exception in doubt

    # --- requests -----------------------------------------------------------------------------------------------------

    def ask(self, read: Read, now_ns: int) -> bytes:
        """The frame that asks for a read. Its answer is waited for from now on."""
        assert self._waiting is None, "one request at a time"
        self._number = self._number % NUMBERS + 1  # never 0, which some devices always answer with
        requests = self._open.setdefault(read.unit_id, [])
        request = OpenRequest(shape_of(read), self._number, now_ns)
        assert request.shape not in [open_request.shape for open_request in requests], (
            "its answer could be that of an open request"
        )
        self._waiting = request
        requests.append(request)
        self.request = rtu_request(read) if self.is_rtu else mbap_request(read, self._number)
        self.received = b""
        if self.is_rtu:
            self._rest = b""
        return self.request

    def note_good(self, read: Read) -> None:
        """The unit gives this read. It is used to end a doubt."""
        good = self._good[read.unit_id] = self._good.pop(read.unit_id, {})  # the unit that answered last is the last
        good[shape_of(read)] = Read(read.unit_id, read.table, read.address, read.count, ())
        if len(good) > GOOD_READS_MAX:
            del good[next(iter(good))]

    def give_up(self) -> None:
        """No longer wait for the answer. The request stays open."""
        waiting, self._waiting = self._waiting, None
        self._is_first = self._is_first and not self.received
        if waiting is None:  # it was answered with what is no answer
            return
        if self.numbering is not Numbering.RIGHT or self._rest:
            self._is_broken = True

    def connected(self) -> None:
        """A new connection begins. Open requests stay open: a gateway may answer them over this one."""
        self._waiting = None
        self._rest = b""
        self._is_broken = False
        if not self.is_rtu:
            self.numbering = Numbering.UNKNOWN

    @property
    def needs_connection(self) -> bool:
        """Whether a new connection is better than this one: it ends most late answers."""
        return self._is_broken and (bool(self._rest) or any(self._open.values()))

    def is_in_doubt(self, unit_id: int) -> bool:
        """Whether a request to this unit is open, so that only some requests can be made."""
        return bool(self._open.get(unit_id))

    def distinct_read(self, read: Read, now_ns: int) -> Read | None:
        """A read of the same unit whose answer cannot be that of an open request; None if there is none. `read` is
        what is wanted next."""
        requests = self._open.get(read.unit_id, [])
        taken = {request.shape for request in requests}
        refused = {shape.function for shape in taken if read.unit_id in self._refusing}
        candidates = (candidate for candidate in self._candidates(read) if shape_of(candidate) not in taken)
        if found := min(candidates, key=lambda candidate: shape_of(candidate).function in refused, default=None):
            return found
        if requests and now_ns - requests[-1].sent_ns > FORGET_NS:
            del self._open[read.unit_id]
            return replace(read, registers=())
        return None

    def has_answered(self, unit_id: int) -> bool:
        """Whether a unit has ever given values."""
        return unit_id in self._good

    def living_read(self) -> Read | None:
        """A read that shows whether the line is free: the shortest of the unit that answered last, of those that are
        not in doubt, as one that is silent is. None if there is none."""
        for unit_id in reversed(self._good):
            if not self.is_in_doubt(unit_id):
                return min(self._good[unit_id].values(), key=lambda known: known.count)
        return None

    def _candidates(self, read: Read) -> Iterator[Read]:
        """Reads that the unit probably gives, the most certain first."""
        good = sorted(self._good.get(read.unit_id, {}).values(), key=lambda known: known.count)
        yield from good
        for known in (*reversed(good), replace(read, registers=())):
            for count in range(1, known.count):
                yield replace(known, count=count)
        for known in good[-1:]:  # short reads soon run out; a longer one may be refused, which does no harm
            end = min(known.count + LONGER_MAX, READ_MAX, ADDRESS_MAX + 1 - known.address)
            for count in range(known.count + 1, end + 1):
                yield replace(known, count=count)
        address = min(read.address, ADDRESS_MAX - 1)
        yield replace(read, address=address, count=2, registers=())
        for table in (Table.HOLDING, Table.INPUT, Table.COIL, Table.DISCRETE):
            yield Read(read.unit_id, table, read.address, 1, ())

    # --- answers ------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now_ns: int) -> AnswerFrame | None:
        """The answer to the request that waits, if it is complete with this data."""
        self.received = (self.received + data)[-RECEIVED_MAX:]
        self._rest = (self._rest + data)[-RECEIVED_MAX:]
        answer: AnswerFrame | None = None
        for frame in self._frames():
            if self._is_answer(frame, now_ns):
                answer = frame
        return answer

    def _frames(self) -> Iterator[AnswerFrame]:
        """The frames that are complete, in their order."""
        if not self.is_rtu:
            frames, self._rest, is_foreign = split_mbap(self._rest)
            self._is_broken = self._is_broken or is_foreign
            yield from frames
            return
        while found := find_rtu(self._rest, self._shapes(), self.request):
            frame, end = found
            self._rest = self._rest[end:]
            yield frame

    def _shapes(self) -> list[AnswerShape]:
        return [request.shape for requests in self._open.values() for request in requests]

    def _is_answer(self, frame: AnswerFrame, now_ns: int) -> bool:
        """Settle the open request that a frame answers. True if it is the one that waits."""
        waiting = self._waiting
        if waiting is not None and frame.number == waiting.number and self.numbering is not Numbering.WRONG:
            if frame.fits(waiting.shape) and (frame.data is not None or self._is_certain(frame)):
                self.numbering = Numbering.RIGHT
                return self._settle(waiting, frame, now_ns)
            if self.numbering is Numbering.RIGHT:  # it is meant for this request and is no answer to it
                self._waiting = None
                self._note_refusal(frame)
                return True
        found = self._open_request(frame)
        if found is not None and self._is_first and frame.number not in {0, found.number - 1, found.number + 1}:
            return False
        return found is not None and self._settle(found, frame, now_ns)

    def _may_answer(self, frame: AnswerFrame) -> list[OpenRequest]:
        """The open requests that a frame fits, the oldest first."""
        return [request for requests in self._open.values() for request in requests if frame.fits(request.shape)]

    def _is_certain(self, frame: AnswerFrame) -> bool:
        """Whether an exception with the number of the request that waits is that of this request."""
        return len(self._may_answer(frame)) == 1

    def _note_refusal(self, frame: AnswerFrame) -> None:
        """An exception has the right number, and may be a late one to which a gateway gave it."""
        if frame.exception and frame.exception not in GATEWAY_CODES and (found := self._may_answer(frame)):
            self._open[found[0].shape.unit_id].remove(found[0])
            self._refusing.add(found[0].shape.unit_id)

    def _open_request(self, frame: AnswerFrame) -> OpenRequest | None:
        """The oldest open request that a frame may answer; with right numbers, the one with its number."""
        has_number = self.numbering is Numbering.RIGHT
        found = (each for each in self._may_answer(frame) if not has_number or each.number == frame.number)
        return next(found, None)

    def _settle(self, request: OpenRequest, frame: AnswerFrame, now_ns: int) -> bool:
        unit_id = request.shape.unit_id
        requests = self._open[unit_id]
        self._refusing.discard(unit_id)
        self._is_first = False
        is_waited_for = request is self._waiting
        if is_waited_for:
            if self.numbering is Numbering.UNKNOWN:
                self.numbering = Numbering.WRONG
            self._waiting = None
        else:
            self.late_ns[unit_id] = now_ns - request.sent_ns
        if self.numbering is Numbering.RIGHT and not is_waited_for:
            requests.remove(request)  # by its number: it says nothing about those before it
        elif frame.exception in GATEWAY_CODES and is_waited_for:
            pass  # the gateway has given up, the unit may still answer the gateway
        else:
            del requests[: requests.index(request) + 1]
        return is_waited_for

"""Reads and writes the frames of Modbus: with a number in front (MBAP: TCP and TLS), or with a checksum behind (RTU).

An RTU frame has neither a mark at its beginning nor a length. So it is searched for: a frame of the right unit,
function and length whose checksum is right, wherever it begins in what arrived. Before it there may be noise of the
line, a frame of another unit, or our own request, which some adapters return. Core.

References: Modbus Messaging on TCP/IP V1.0b, 3.1.3; Modbus over Serial Line V1.02, 2.5.1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pymodbus.framer import FramerRTU  # tidy: its checksum, a pure function

from agent.ingest.modbus.address import Table
from agent.ingest.modbus.read_plan import Read

FUNCTIONS = {Table.COIL: 1, Table.DISCRETE: 2, Table.HOLDING: 3, Table.INPUT: 4}
EXCEPTION_BIT = 0x80
ANY_UNIT = 0  # devices that are asked as unit 0 answer with a number of their own
_MBAP = struct.Struct(">HHHB")
_REQUEST = struct.Struct(">BBHH")
_REQUEST_SIZE = _REQUEST.size + 2  # with the checksum
_PDU_MAX = 253


class AnswerShape(NamedTuple):
    """What distinguishes the answers to two requests when they have no numbers: unit, function, bytes of data."""

    unit_id: int
    function: int
    size: int


@dataclass(frozen=True, slots=True)
class AnswerFrame:
    """One answer. `data` are the bytes after the byte count; None if the frame is no answer to a read. `number`: the
    transaction number, None in RTU."""

    unit_id: int
    function: int
    data: bytes | None
    exception: int = 0
    number: int | None = None

    def fits(self, shape: AnswerShape) -> bool:
        """Whether it may answer a request with this shape. An exception fits every length."""
        if self.function != shape.function or shape.unit_id not in (self.unit_id, ANY_UNIT):
            return False
        return bool(self.exception) or (self.data is not None and len(self.data) == shape.size)


def shape_of(read: Read) -> AnswerShape:
    """The shape of the answer to a read."""
    size = (read.count + 7) // 8 if read.table.is_bits else 2 * read.count
    return AnswerShape(read.unit_id, FUNCTIONS[read.table], size)


def rtu_request(read: Read) -> bytes:
    """The request for a read in RTU framing."""
    body = _REQUEST.pack(read.unit_id, FUNCTIONS[read.table], read.address, read.count)
    return body + checksum(body)


def mbap_request(read: Read, number: int) -> bytes:
    """The request for a read with an MBAP header."""
    body = _REQUEST.pack(read.unit_id, FUNCTIONS[read.table], read.address, read.count)
    return struct.pack(">HHH", number, 0, len(body)) + body


def checksum(data: bytes) -> bytes:
    """The CRC of an RTU frame, low byte first (V1.02, 6.2.2)."""
    return FramerRTU.compute_CRC(data).to_bytes(2, "big")  # it has swapped them


def find_rtu(received: bytes, shapes: Iterable[AnswerShape], request: bytes) -> tuple[AnswerFrame, int] | None:
    """The first frame that answers a request with one of these shapes, and where it ends. `request` is our own last
    request: where it stands, whole or as far as it has arrived, it is no answer."""
    wanted = tuple(shapes)
    at = 0
    while at + 5 <= len(received):
        here = received[at : at + _REQUEST_SIZE]
        if request.startswith(here):
            at += _REQUEST_SIZE
            continue
        for shape in wanted:
            frame, end = _rtu_at(received, at, shape)
            if frame is not None:
                return frame, end
        at += 1
    return None


def _rtu_at(received: bytes, at: int, shape: AnswerShape) -> tuple[AnswerFrame | None, int]:
    """The frame that begins here, if it is whole, right, and of this shape."""
    unit_id, function = received[at], received[at + 1]
    if function & ~EXCEPTION_BIT != shape.function or shape.unit_id not in (unit_id, ANY_UNIT):
        return None, 0
    is_exception = bool(function & EXCEPTION_BIT)
    if not is_exception and received[at + 2] != shape.size:
        return None, 0
    end = at + 5 + (0 if is_exception else shape.size)
    if end > len(received) or checksum(received[at : end - 2]) != received[end - 2 : end]:
        return None, 0
    if is_exception:
        return AnswerFrame(unit_id, shape.function, None, received[at + 2]), end
    return AnswerFrame(unit_id, shape.function, received[at + 3 : end - 2]), end


def split_mbap(received: bytes) -> tuple[list[AnswerFrame], bytes, bool]:
    """The whole frames in what arrived, the rest, and whether it is no MBAP at all."""
    frames: list[AnswerFrame] = []
    at = 0
    while at + _MBAP.size < len(received):
        number, protocol, length, unit_id = _MBAP.unpack_from(received, at)
        if protocol or not 2 <= length <= _PDU_MAX + 1:
            return frames, b"", True
        end = at + 6 + length
        if end > len(received):
            break
        frames.append(_mbap_frame(number, unit_id, received[at + 7 : end]))
        at = end
    return frames, received[at:], False


def _mbap_frame(number: int, unit_id: int, pdu: bytes) -> AnswerFrame:
    function = pdu[0] & ~EXCEPTION_BIT
    if pdu[0] & EXCEPTION_BIT:
        # some devices send more than the code; code 0 does not exist and is no exception
        return AnswerFrame(unit_id, function, None, pdu[1] if len(pdu) > 1 else 0, number)
    is_whole = len(pdu) > 1 and pdu[1] == len(pdu) - 2
    return AnswerFrame(unit_id, function, pdu[2:] if is_whole else None, 0, number)

"""The request and answer of a HistoryRead of raw values (OPC 10000-11, 6.5.3).

asyncua writes the request and reads the head of the response. The values are decoded here, because the library
truncates source times to microseconds, and a value would then not be recognised as one that is already stored.

This module knows asyncua.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from asyncua import ua

from agent.ingest import quality as status_of
from agent.ingest.opcua.decode import DecodeError, decode_data_value, extension_object
from agent.ingest.opcua.history.gap_fill import HistoryPage, HistoryRange, HistoryValue
from agent.ingest.opcua.values.variant import ValueReader

HISTORY_DATA = 658  # node id of the binary encoding of HistoryData, namespace 0
HISTORY_MODIFIED_DATA = 664  # with modification infos; some servers answer it, and its values come first
VALUES_PER_PAGE_MAX = 1_000_000  # some thousands are asked for; a larger count is malformed
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_U32, _I32 = struct.Struct("<I"), struct.Struct("<i")


def history_request(
    ranges: Sequence[HistoryRange], nodes: Sequence[ua.NodeId], values_max: int
) -> ua.HistoryReadRequest:
    """The request for these ranges, one node each, from the earliest start to the latest end. Ranges with continuation
    points must come from the same call."""
    details = ua.ReadRawModifiedDetails(
        IsReadModified=False,
        StartTime=_datetime(min(asked.start_ns for asked in ranges), up=False),
        EndTime=_datetime(max(asked.end_ns for asked in ranges), up=True),
        NumValuesPerNode=values_max,
        ReturnBounds=False,  # bounds are values outside the range
    )
    return ua.HistoryReadRequest(
        Parameters=ua.HistoryReadParameters(
            HistoryReadDetails=details,
            TimestampsToReturn=ua.TimestampsToReturn.Source,
            ReleaseContinuationPoints=False,
            NodesToRead=[
                ua.HistoryReadValueId(NodeId=node, ContinuationPoint=asked.continuation_point)
                for asked, node in zip(ranges, nodes, strict=True)
            ],
        )
    )


def decode_history(data: bytes, reader: ValueReader, index_ranges: Sequence[str] = ()) -> list[HistoryPage]:
    """The pages of a HistoryReadResponse, given without its header. Index ranges are cut out of the arrays here,
    because not all servers accept them for history. Raises DecodeError."""
    try:
        (count,) = _I32.unpack_from(data, 0)
        position, pages = 4, []
        for place in range(max(0, count)):
            page, position = _page(data, position, reader, index_ranges[place] if place < len(index_ranges) else "")
            pages.append(page)
    except (struct.error, IndexError, OverflowError) as error:
        raise DecodeError(f"history is cut short or malformed: {error}") from error
    return pages


def _page(data: bytes, position: int, reader: ValueReader, index_range: str) -> tuple[HistoryPage, int]:
    (status,) = _U32.unpack_from(data, position)
    (length,) = _I32.unpack_from(data, position + 4)
    position += 8
    point = data[position : position + length] if length > 0 else None
    position += max(0, length)
    kind, body, position = extension_object(data, position)
    has_values = kind in {HISTORY_DATA, HISTORY_MODIFIED_DATA} and body < position
    values = _values(data, body, reader, index_range) if has_values else []
    return HistoryPage(status, values, point), position


def _values(data: bytes, position: int, reader: ValueReader, index_range: str) -> list[HistoryValue]:
    (count,) = _I32.unpack_from(data, position)
    if count > VALUES_PER_PAGE_MAX:
        raise DecodeError(f"{count} values in one page of history")
    position += 4
    cut = reader.cut(index_range) if index_range else None
    values = []
    for _ in range(max(0, count)):
        found, position = decode_data_value(data, position, cut or reader, is_element=cut is not None)
        _, value, quality, source_ns, server_ns = found
        if cut is not None and cut.is_missing and not status_of.is_bad(quality):
            quality = status_of.BAD_INDEX_RANGE_NO_DATA
        values.append(HistoryValue(source_ns or server_ns, value, quality))
    return values


def _datetime(time_ns: int, *, up: bool) -> datetime:
    """A time with the microseconds of the library, rounded outwards. Values outside the range are dropped later."""
    microseconds = -(-time_ns // 1_000) if up else time_ns // 1_000
    return EPOCH + timedelta(microseconds=microseconds)

"""Notification bytes to samples' columns: OPC 10000-6, chapter 5.2, read without the library's objects.

Why not asyncua's decoder: it cuts source times to microseconds where the wire has 100 ns (and picoseconds), and it
builds six objects for each value. Here a run of values of one scalar type is unpacked by one struct call; every other
shape is read item by item; values that are neither a number nor a text are left to `decode_other` (see `variant`).

Core: takes bytes, returns tuples. A malformed message raises DecodeError, whatever is wrong with it. A malformed value
becomes a bad sample of its tag alone; what follows it in the same notification has no known place and is counted
(`values_lost`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agent.ingest import quality
from agent.message import VALUE_BYTES_MAX, Json, Value, time_text

FILETIME_EPOCH = 116_444_736_000_000_000  # 1970-01-01 in 100 ns since 1601-01-01
FILETIME_MIN, FILETIME_MAX = FILETIME_EPOCH - 92_000_000_000_000_000, FILETIME_EPOCH + 92_000_000_000_000_000
FILETIME_YEAR_9999 = 2_650_467_743_990_000_000  # OPC 10000-6, 5.2.2.5: from here on a time means "the latest"
NOTIFICATIONS_MAX = 100_000  # we ask for 1,000 in one message; a count beyond this is nonsense, not data
LONG_BYTES_MIN = 512  # shorter values cannot exceed a fact's limit, in whatever form they are kept
RUN_MIN = 4  # shorter runs of one type are cheaper item by item
RUN_WINDOW = 512  # a run is looked for this far at once

STRING = 12  # the variant type

DATA_CHANGE, STATUS_CHANGE = 811, 820  # node ids of the binary encodings, namespace 0

DecodeOther = Callable[[bytes, int], tuple[Value, int]]
"""Reads the Variant that starts at a position; returns its value and the position after it."""


class DecodeError(ValueError):
    """These bytes are not what the specification says they should be."""


class Change(NamedTuple):
    """One value as notified; a time of 0 was not sent. `handle` is the number we gave the item."""

    handle: int
    value: Value
    quality: int
    source_time_ns: int
    server_time_ns: int


@dataclass(frozen=True, slots=True)
class Publication:
    """The answer to one Publish. Without changes and status it is a sign of life. `values_lost`: notified after a
    malformed value, and unreadable for that."""

    subscription_id: int
    sequence_number: int
    has_data: bool
    changes: Sequence[Change]
    status_change: int | None = None
    values_lost: int = 0


_SCALARS = {1: "?", 2: "b", 3: "B", 4: "h", 5: "H", 6: "i", 7: "I", 8: "q", 9: "Q", 10: "f", 11: "d", 19: "I"}
_SIZES = {kind: struct.calcsize(f"<{letter}") for kind, letter in _SCALARS.items()}
_U32, _I32, _U16 = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<H")
_MALFORMED = (DecodeError, struct.error, IndexError, OverflowError)


def decode_publication(data: bytes, position: int, decode_other: DecodeOther) -> Publication:
    """The PublishResponse parameters (OPC 10000-4, 5.14.5) that start at `position`."""
    try:
        return _publication(data, position, decode_other)
    except (struct.error, IndexError, OverflowError) as error:
        raise DecodeError(f"notification is cut short or malformed: {error}") from error


def filetime_ns(filetime: int, picoseconds_10: int = 0) -> int:
    """An OPC UA DateTime as ns since 1970, the picoseconds in tens. A time that is not set, or of no year that int64
    nanoseconds hold (1678 to 2261), is 0: a clock that shows it is not set either."""
    if not FILETIME_MIN < filetime < FILETIME_MAX:
        return 0
    return (filetime - FILETIME_EPOCH) * 100 + picoseconds_10 // 100


def _publication(data: bytes, position: int, decode_other: DecodeOther) -> Publication:
    (subscription_id,) = _U32.unpack_from(data, position)
    (available,) = _I32.unpack_from(data, position + 4)
    position += 8 + 4 * max(0, available) + 1  # sequence numbers held for us, and "more notifications"
    (sequence_number,) = _U32.unpack_from(data, position)
    (parts,) = _I32.unpack_from(data, position + 12)
    position += 16
    changes: list[Change] = []
    status_change = None
    values_lost = 0
    for _ in range(max(0, parts)):
        kind, body, position = extension_object(data, position)
        if kind == DATA_CHANGE:
            values_lost += _data_change(data[body:position], decode_other, changes)
        elif kind == STATUS_CHANGE:
            (status_change,) = _U32.unpack_from(data, body)
    return Publication(subscription_id, sequence_number, parts > 0, changes, status_change, values_lost)


def extension_object(data: bytes, position: int) -> tuple[int, int, int]:
    """(numeric type id in namespace 0 or -1, start of the body, position after it)."""
    form = data[position]
    if form == 0:
        kind, position = data[position + 1], position + 2
    elif form == 1:
        kind = _U16.unpack_from(data, position + 2)[0] if data[position + 1] == 0 else -1
        position += 4
    elif form == 2:
        namespace, number = struct.unpack_from("<HI", data, position + 1)
        kind, position = number if namespace == 0 else -1, position + 7
    else:
        raise DecodeError(f"notification of an unknown kind (node id form {form})")
    if data[position] != 1:
        raise DecodeError("notification without a binary body")
    (length,) = _I32.unpack_from(data, position + 1)
    body = position + 5
    if length < 0 or body + length > len(data):
        raise DecodeError(f"notification of {length} bytes in a message of {len(data)}")
    return kind, body, body + length


def _data_change(data: bytes, decode_other: DecodeOther, changes: list[Change]) -> int:
    """Append the changes of a DataChangeNotification, which is all of `data`. Returns how many could not be read."""
    left: int = _I32.unpack_from(data, 0)[0]
    position = 4
    if left > NOTIFICATIONS_MAX:
        raise DecodeError(f"{left} values in one notification")
    while left > 0:
        length, count = _uniform_run(data, position, left)
        if count >= RUN_MIN:
            _unpack_run(data, position, length, count, changes)
            position += length * count
            left -= count
            continue
        for _ in range(max(1, count)):
            (handle,) = _U32.unpack_from(data, position)
            try:
                change, position = _item(data, position, decode_other)
            except _MALFORMED:
                changes.append(Change(handle, None, quality.BAD_DECODING_ERROR, 0, 0))
                return left - 1
            changes.append(change)
            left -= 1
    return 0


def _uniform_run(data: bytes, position: int, left: int) -> tuple[int, int]:
    """(bytes of one item, how many items of exactly that shape follow each other from here).

    If item k has the mask and type byte of item 0 it has its length too, so item k + 1 begins one length later: equal
    bytes at equal strides prove the whole run.
    """
    if position + 6 > len(data):
        return 0, 0
    mask, kind = data[position + 4], data[position + 5]
    if not mask & 1 or kind not in _SCALARS:
        return 0, 0
    length = 6 + _SIZES[kind] + _tail_size(mask)
    window = min(left, RUN_WINDOW, (len(data) - position) // length)
    stop = position + window * length
    masks = data[position + 4 : stop : length]
    kinds = data[position + 5 : stop : length]
    same = len(masks) - len(masks.lstrip(bytes([mask])))
    return length, min(same, len(kinds) - len(kinds.lstrip(bytes([kind]))))


def _tail_size(mask: int) -> int:
    """Bytes after the value: status, source time and its picoseconds, server time and its picoseconds."""
    return 4 * (mask >> 1 & 1) + 8 * (mask >> 2 & 1) + 2 * (mask >> 4 & 1) + 8 * (mask >> 3 & 1) + 2 * (mask >> 5 & 1)


def _unpack_run(data: bytes, position: int, length: int, count: int, changes: list[Change]) -> None:
    mask, kind = data[position + 4], data[position + 5]
    tail = "".join(letter for bit, letter in ((2, "I"), (4, "q"), (16, "H"), (8, "q"), (32, "H")) if mask & bit)
    items = struct.Struct(f"<I2x{_SCALARS[kind]}{tail}").iter_unpack(data[position : position + length * count])
    if mask & 0x3F == 0x0F:  # what servers send: value, status, both times
        low, high, epoch = FILETIME_MIN, FILETIME_MAX, FILETIME_EPOCH  # as filetime_ns, without a call for each value
        changes += [
            Change(h, v, q, (s - epoch) * 100 if low < s < high else 0, (t - epoch) * 100 if low < t < high else 0)
            for h, v, q, s, t in items
        ]
        return
    for handle, value, *rest in items:
        changes.append(Change(handle, value, *_tail_columns(mask, rest)))


def _tail_columns(mask: int, rest: Sequence[int]) -> tuple[int, int, int]:
    """(quality, source time, server time) from the fields that follow a value, in the order of the wire."""
    fields = iter(rest)
    status = next(fields) if mask & 2 else quality.GOOD
    source = next(fields) if mask & 4 else 0
    source_pico = next(fields) if mask & 16 else 0
    server = next(fields) if mask & 8 else 0
    server_pico = next(fields) if mask & 32 else 0
    return status, filetime_ns(source, source_pico), filetime_ns(server, server_pico)


def _item(data: bytes, position: int, decode_other: DecodeOther) -> tuple[Change, int]:
    (handle,) = _U32.unpack_from(data, position)
    mask = data[position + 4]
    position += 5
    value: Value = None
    too_long = False
    if mask & 1:
        start = position
        value, position = _variant(data, position, decode_other)
        too_long = position - start > LONG_BYTES_MIN and _is_too_long(value)
    tail = "".join(letter for bit, letter in ((2, "I"), (4, "q"), (16, "H"), (8, "q"), (32, "H")) if mask & bit)
    columns = _tail_columns(mask, struct.unpack_from(f"<{tail}", data, position))
    position += _tail_size(mask)
    if too_long:
        return Change(handle, None, quality.BAD_ENCODING_LIMITS_EXCEEDED, *columns[1:]), position
    return Change(handle, value, *columns), position


def _is_too_long(value: Value) -> bool:
    if isinstance(value, str):
        return len(value.encode()) > VALUE_BYTES_MAX
    if isinstance(value, Json):
        return len(value.data) > VALUE_BYTES_MAX
    return isinstance(value, bytes) and len(value) > VALUE_BYTES_MAX


def _variant(data: bytes, position: int, decode_other: DecodeOther) -> tuple[Value, int]:
    encoding = data[position]
    if encoding in _SCALARS:
        (value,) = struct.unpack_from(f"<{_SCALARS[encoding]}", data, position + 1)
        return value, position + 1 + _SIZES[encoding]
    if encoding == STRING:
        return _text(data, position + 1)
    return decode_other(data, position)


def _text(data: bytes, position: int) -> tuple[Value, int]:
    """A String; None for a null one. Text that is not UTF-8 is kept as bytes, not mangled."""
    (length,) = _I32.unpack_from(data, position)
    position += 4
    if length < 0:
        return None, position
    if position + length > len(data):
        raise DecodeError(f"text of {length} bytes where {len(data) - position} are left")
    raw = bytes(data[position : position + length])
    try:
        return raw.decode(), position + length
    except UnicodeDecodeError:
        return raw, position + length


def time_text_of(filetime: int) -> str:
    """A DateTime that is itself a value, as ISO 8601. The ends of the scale mean "earliest" and "latest"."""
    if filetime <= 0:
        return "1601-01-01T00:00:00Z"
    if filetime >= FILETIME_YEAR_9999:
        return "9999-12-31T23:59:59Z"
    return time_text((filetime - FILETIME_EPOCH) * 100)


def decode_read_values(data: bytes, decode_other: DecodeOther) -> list[Change]:
    """The values in the parameters of a ReadResponse (OPC 10000-4, 5.11.2); handles count from 0 in their order."""
    try:
        (count,) = _I32.unpack_from(data, 0)
        if count > NOTIFICATIONS_MAX:
            raise DecodeError(f"{count} values in one answer")
        changes, position = [], 4
        for handle in range(count):
            # A value without a handle; the four bytes before it are read as one and replaced.
            change, position = _item(data, position - 4, decode_other)
            changes.append(change._replace(handle=handle))
    except (struct.error, IndexError, OverflowError) as error:
        raise DecodeError(f"the answer to a Read is cut short or malformed: {error}") from error
    return changes

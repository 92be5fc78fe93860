"""Decodes notification bytes into columns (OPC 10000-6, chapter 5.2) without the library's objects.

asyncua's decoder is not used, because it truncates source times to microseconds (the wire has 100 ns and picoseconds)
and builds six objects for each value. Here neighbouring numbers of the same form are unpacked together and stay columns
until they are stored. Other values are decoded item by item; a `Reader` (see `variant`) decodes those that are neither
a number nor a text.

Core: takes bytes, returns columns. A malformed message raises DecodeError. A malformed value becomes a bad sample of
its tag. The values behind it in the same notification cannot be found and are counted (`values_lost`).
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from operator import add
from typing import Any, NamedTuple, Protocol

from agent.ingest import quality
from agent.message import VALUE_BYTES_MAX, Json, Value, time_text
from agent.status_codes import with_doubtful_time

FILETIME_EPOCH = 116_444_736_000_000_000  # 1970-01-01 in 100 ns since 1601-01-01
FILETIME_MIN, FILETIME_MAX = FILETIME_EPOCH - 92_000_000_000_000_000, FILETIME_EPOCH + 92_000_000_000_000_000
FILETIME_YEAR_9999 = 2_650_467_743_990_000_000  # OPC 10000-6, 5.2.2.5: a time from here on means "the latest"
NOTIFICATIONS_MAX = 100_000  # 1,000 are asked for in one message; a larger count is malformed
LONG_BYTES_MIN = 512  # a shorter value cannot exceed the limit of a fact in any form
RUN_MIN = 16  # a shorter run is faster item by item
RUN_WINDOW = 512  # how far a run is looked for at once
RUN_EVERY = 64  # items between two searches for a run; a search costs as much as three items

STRING = 12  # the variant type

DATA_CHANGE, EVENTS, STATUS_CHANGE = 811, 916, 820  # node ids of the binary encodings, namespace 0
_KINDS = frozenset({DATA_CHANGE, EVENTS, STATUS_CHANGE})


class Reader(Protocol):
    """Decodes Variants that are neither a number nor a text."""

    def __call__(self, data: bytes, position: int) -> tuple[Value, int]:
        """The value of the Variant at a position, and the position after it."""

    def element(self, data: bytes, position: int) -> tuple[Value, int]:
        """The same, for the only element of an array."""


class DecodeError(ValueError):
    """These bytes do not follow the specification."""


class DataChange(NamedTuple):
    """One notified value. A time of 0 was not sent. `handle` is the client handle of the item."""

    handle: int
    value: Value
    quality: int
    source_time_ns: int
    server_time_ns: int


class Changes:
    """The values of a publication as columns of equal length, in the order they were notified. Iterating gives them one
    by one, where few are needed."""

    __slots__ = ("handles", "qualities", "server_times_ns", "source_times_ns", "values")

    def __init__(self) -> None:
        self.handles: list[int] = []
        self.values: list[Value] = []
        self.qualities: list[int] = []
        self.source_times_ns: list[int] = []
        self.server_times_ns: list[int] = []

    @classmethod
    def of(cls, changes: Iterable[DataChange]) -> Changes:
        """The columns of single changes."""
        found = cls()
        for change in changes:
            found.append(change)
        return found

    def append(self, change: DataChange) -> None:
        self.handles.append(change.handle)
        self.values.append(change.value)
        self.qualities.append(change.quality)
        self.source_times_ns.append(change.source_time_ns)
        self.server_times_ns.append(change.server_time_ns)

    def of_handles(self, handles: Container[int]) -> Changes:
        """Only the changes of these handles."""
        return Changes.of(change for change in self if change.handle in handles)

    def times_ns(self, now_ns: int) -> list[int]:
        """For each value the source time, otherwise the server time, otherwise now."""
        if 0 not in self.source_times_ns:
            return self.source_times_ns
        return [s or t or now_ns for s, t in zip(self.source_times_ns, self.server_times_ns, strict=True)]

    def __len__(self) -> int:
        return len(self.handles)

    def __iter__(self) -> Iterator[DataChange]:
        columns = (self.handles, self.values, self.qualities, self.source_times_ns, self.server_times_ns)
        return map(DataChange._make, zip(*columns, strict=True))


@dataclass(frozen=True, slots=True)
class Publication:
    """The values in the answer to one Publish. `values_lost`: values behind a malformed one, which cannot be read."""

    changes: Changes
    status_change: int | None = None
    values_lost: int = 0


NUMBER_FORMATS = {1: "?", 2: "b", 3: "B", 4: "h", 5: "H", 6: "i", 7: "I", 8: "q", 9: "Q", 10: "f", 11: "d", 19: "I"}
# Bits of the mask and formats of the fields, in the order on the wire.
_TAIL = (
    (2, "I"),
    (4, "q"),
    (16, "H"),
    (8, "q"),
    (32, "H"),
)
_SIZES = {kind: struct.calcsize(f"<{letter}") for kind, letter in NUMBER_FORMATS.items()}
_U32, _I32, _U16 = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<H")
_PUBLISH_HEAD, _MESSAGE_HEAD = struct.Struct("<Ii"), struct.Struct("<Iqi")
_MALFORMED = (DecodeError, struct.error, IndexError, OverflowError)


def decode_publication(data: bytes, reader: Reader, elements: Container[int] = ()) -> Publication:
    """The values in PublishResponse parameters. Those of the handles in `elements` are single elements of arrays."""
    try:
        return _publication(data, reader, elements)
    except (struct.error, IndexError, OverflowError) as error:
        raise DecodeError(f"notification is cut short or malformed: {error}") from error


def filetime_ns(filetime: int, picoseconds_10: int = 0) -> int:
    """An OPC UA DateTime as ns since 1970; the picoseconds are in tens. 0 for a time that is not set or outside the
    years that int64 nanoseconds hold (1678 to 2261): a clock that shows such a time is not set either. A value with
    such a source time gets another one, and says so in its status (`_qualities`)."""
    if not FILETIME_MIN < filetime < FILETIME_MAX:
        return 0
    return (filetime - FILETIME_EPOCH) * 100 + picoseconds_10 // 100


def _publication(data: bytes, reader: Reader, elements: Container[int]) -> Publication:
    changes = Changes()
    status_change = None
    values_lost = 0
    for kind, body in notifications(data):
        if kind == DATA_CHANGE:
            values_lost += _data_change(body, reader, elements, changes)
        elif kind == STATUS_CHANGE:
            (status_change,) = _U32.unpack_from(body)
    return Publication(changes, status_change, values_lost)


class PublishHeader(NamedTuple):
    """The header of an answer to Publish. A publish time of 0 was not set."""

    subscription_id: int
    sequence_number: int
    publish_time_ns: int
    has_data: bool
    more: bool = False  # the server has more to send at once


def read_header(data: bytes) -> PublishHeader:
    """The header of PublishResponse parameters. Raises DecodeError."""
    try:
        return _header(data)[0]
    except (struct.error, IndexError) as error:
        raise DecodeError(f"notification is cut short or malformed: {error}") from error


def _header(data: bytes) -> tuple[PublishHeader, int, int]:
    """The header of PublishResponse parameters (OPC 10000-4, 5.14.5), how many notifications follow, and where. Raises
    struct.error and IndexError."""
    subscription_id, available = _PUBLISH_HEAD.unpack_from(data)
    position = _PUBLISH_HEAD.size + 4 * max(0, available)  # sequence numbers that the server holds
    number, publish_time, count = _MESSAGE_HEAD.unpack_from(data, position + 1)
    header = PublishHeader(subscription_id, number, filetime_ns(publish_time), count > 0, data[position] != 0)
    return header, count, position + 1 + _MESSAGE_HEAD.size


def notifications(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The type (see `extension_object`) and body of each notification in PublishResponse parameters."""
    _, count, position = _header(data)
    for _ in range(max(0, count)):
        kind, body, position = extension_object(data, position)
        yield kind, data[body:position]


def extension_object(data: bytes, position: int) -> tuple[int, int, int]:
    """Of an extension object: (numeric type id in namespace 0 or -1, start of the body, position after it). The body of
    an unknown type may have any form or be absent."""
    kind, position = _kind(data, position)
    form = data[position]
    if form == 0 and kind not in _KINDS:
        return kind, position + 1, position + 1
    if form != 1 and (form != 2 or kind in _KINDS):
        raise DecodeError("extension object without a binary body")
    (length,) = _I32.unpack_from(data, position + 1)
    body = position + 5
    if length < 0 or body + length > len(data):
        raise DecodeError(f"extension object of {length} bytes in a message of {len(data)}")
    return kind, body, body + length


def _kind(data: bytes, position: int) -> tuple[int, int]:
    """The number of a node id in namespace 0, or -1, and the position after it (OPC 10000-6, 5.2.2.9)."""
    form = data[position]
    if form == 0:
        return data[position + 1], position + 2
    if form == 1:
        return _U16.unpack_from(data, position + 2)[0] if data[position + 1] == 0 else -1, position + 4
    if form == 2:
        namespace, number = struct.unpack_from("<HI", data, position + 1)
        return number if namespace == 0 else -1, position + 7
    if form == 4:
        return -1, position + 19
    if form in (3, 5):
        return -1, position + 7 + max(0, _I32.unpack_from(data, position + 3)[0])
    raise DecodeError(f"extension object of an unknown type (node id form {form})")


def _data_change(data: bytes, reader: Reader, elements: Container[int], changes: Changes) -> int:
    """Append the changes of the DataChangeNotification in `data`. Returns how many could not be read."""
    left: int = _I32.unpack_from(data, 0)[0]
    position = 4
    if left > NOTIFICATIONS_MAX:
        raise DecodeError(f"{left} values in one notification")
    while left > 0:
        count, position = _numbers(data, position, left, changes)
        left -= count
        if left <= 0:
            break
        if len(data) - position < _U32.size:
            return left  # cut short between two values
        (handle,) = _U32.unpack_from(data, position)
        try:
            change, position = _item(data, position, reader, is_element=handle in elements)
        except _MALFORMED:
            changes.append(DataChange(handle, None, quality.BAD_DECODING_ERROR, 0, 0))
            return left - 1
        changes.append(change)
        left -= 1
    return 0


def _numbers(data: bytes, position: int, left: int, changes: Changes) -> tuple[int, int]:
    """Append the numbers from here on that have the same mask. Returns how many they are and the position after
    them."""
    mask = data[position + 4] if position + 6 <= len(data) else 0
    if not mask & 1 or data[position + 5] not in NUMBER_FORMATS:
        return 0, position
    shapes = _shapes(mask & 0x3F)
    rows: list[tuple[Any, ...]] = []
    try:
        while len(rows) < left and data[position + 4] == mask:
            length, count = _uniform_run(data, position, left - len(rows))
            if count >= RUN_MIN:
                rows += shapes[data[position + 5]].iter_unpack(data[position : position + length * count])
                position += length * count
                continue
            for _ in range(min(left - len(rows), RUN_EVERY)):
                shape = shapes[data[position + 5]]
                if data[position + 4] != mask:
                    break
                rows.append(shape.unpack_from(data, position))
                position += shape.size
    except (KeyError, IndexError, struct.error):
        pass  # not a number with this mask, or cut short: the caller decodes the item at `position`
    _append_rows(rows, mask & 0x3F, changes)
    return len(rows), position


@lru_cache(maxsize=64)
def _shapes(mask: int) -> dict[int, struct.Struct]:
    """The struct of an item with this mask, for each type of number."""
    return {kind: struct.Struct(f"<I2x{letter}{_tail_format(mask)}") for kind, letter in NUMBER_FORMATS.items()}


@lru_cache(maxsize=64)
def _tail_format(mask: int) -> str:
    """The fields after the value: status, source time and its picoseconds, server time and its picoseconds."""
    return "".join(letter for bit, letter in _TAIL if mask & bit)


def _append_rows(rows: Sequence[tuple[Any, ...]], mask: int, changes: Changes) -> None:
    """Append unpacked items with the same mask."""
    if not rows:
        return
    # Not zip(*rows): an iterator for each row would run the garbage collector once for every few hundred values.
    flat = list(chain.from_iterable(rows))
    fields = {bit: place for place, bit in enumerate((bit for bit, _ in _TAIL if mask & bit), 2)}
    columns = {bit: flat[place :: 2 + len(fields)] for bit, place in fields.items()}
    changes.handles += flat[0 :: 2 + len(fields)]
    changes.values += flat[1 :: 2 + len(fields)]
    codes, times_ns = (
        columns.get(2) or [quality.GOOD] * len(rows),
        _times_ns(columns.get(4), columns.get(16), len(rows)),
    )
    changes.qualities += _qualities(codes, columns[4], times_ns) if 4 in columns and 0 in times_ns else codes
    changes.source_times_ns += times_ns
    changes.server_times_ns += _times_ns(columns.get(8), columns.get(32), len(rows))


def _qualities(codes: Sequence[int], filetimes: Sequence[int], times_ns: Sequence[int]) -> list[int]:
    """The status of each value, given its source time as it was sent, where 0 means none, and as it can be used."""
    return [
        with_doubtful_time(code) if filetime and not time_ns else code
        for code, filetime, time_ns in zip(codes, filetimes, times_ns, strict=True)
    ]


def _times_ns(filetimes: list[int] | None, picoseconds_10: list[int] | None, count: int) -> list[int]:
    """`filetime_ns` for a column."""
    if filetimes is None:
        return [0] * count
    least, greatest = min(filetimes), max(filetimes)
    if not FILETIME_MIN < least <= greatest < FILETIME_MAX:
        return list(map(filetime_ns, filetimes, picoseconds_10 or [0] * count))
    if least == greatest:
        found = [filetime_ns(least)] * count
    else:
        epoch = FILETIME_EPOCH
        found = [(filetime - epoch) * 100 for filetime in filetimes]
    if picoseconds_10 is None or not any(picoseconds_10):
        return found
    return list(map(add, found, [ticks // 100 for ticks in picoseconds_10]))


def _uniform_run(data: bytes, position: int, left: int) -> tuple[int, int]:
    """(bytes of one item, how many items of exactly that form follow each other from here).

    An item with the mask and type of item 0 has its length too, so the next item begins one length later. Equal bytes
    at equal strides therefore prove the whole run.
    """
    mask, kind = data[position + 4], data[position + 5]
    length = _shapes(mask & 0x3F)[kind].size
    stop = position + min(left, RUN_WINDOW, (len(data) - position) // length) * length
    masks = data[position + 4 : stop : length]
    kinds = data[position + 5 : stop : length]
    same = len(masks) - len(masks.lstrip(bytes([mask])))
    return length, min(same, len(kinds) - len(kinds.lstrip(bytes([kind]))))


def _item(data: bytes, position: int, reader: Reader, *, is_element: bool) -> tuple[DataChange, int]:
    (handle,) = _U32.unpack_from(data, position)
    mask = data[position + 4]
    position += 5
    value: Value = None
    too_long = False
    if mask & 1:
        start = position
        value, position = reader.element(data, position) if is_element else _variant(data, position, reader)
        too_long = position - start > LONG_BYTES_MIN and _is_too_long(value)
    tail = "<" + _tail_format(mask & 0x3F)
    given = dict(zip((bit for bit, _ in _TAIL if mask & bit), struct.unpack_from(tail, data, position), strict=True))
    times_ns = filetime_ns(given.get(4, 0), given.get(16, 0)), filetime_ns(given.get(8, 0), given.get(32, 0))
    position += struct.calcsize(tail)
    if too_long:
        return DataChange(handle, None, quality.BAD_ENCODING_LIMITS_EXCEEDED, *times_ns), position
    (status,) = _qualities([given.get(2, quality.GOOD)], [given.get(4, 0)], times_ns[:1])
    return DataChange(handle, value, status, *times_ns), position


def decode_data_value(
    data: bytes, position: int, reader: Reader, *, is_element: bool = False
) -> tuple[DataChange, int]:
    """The DataValue (OPC 10000-6, 5.2.2.17) at `position`, which must be at least 4, and the position after it. Its
    handle has no meaning. `is_element`: `reader.element` decodes the value. Malformed bytes raise DecodeError,
    struct.error, IndexError or OverflowError."""
    return _item(data, position - 4, reader, is_element=is_element)  # an item is a handle of four bytes and a DataValue


def _is_too_long(value: Value) -> bool:
    if isinstance(value, str):
        return len(value.encode()) > VALUE_BYTES_MAX
    if isinstance(value, Json):
        return len(value.data) > VALUE_BYTES_MAX
    return isinstance(value, bytes) and len(value) > VALUE_BYTES_MAX


def _variant(data: bytes, position: int, reader: Reader) -> tuple[Value, int]:
    encoding = data[position]
    if encoding in NUMBER_FORMATS:
        (value,) = struct.unpack_from(f"<{NUMBER_FORMATS[encoding]}", data, position + 1)
        return value, position + 1 + _SIZES[encoding]
    if encoding == STRING:
        return _text(data, position + 1)
    return reader(data, position)


def _text(data: bytes, position: int) -> tuple[Value, int]:
    """A String; None if it is null. Text that is not UTF-8 is kept as bytes."""
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
    """A DateTime that is a value, as ISO 8601. The ends of the range mean "earliest" and "latest"."""
    if filetime <= 0:
        return "1601-01-01T00:00:00Z"
    if filetime >= FILETIME_YEAR_9999:
        return "9999-12-31T23:59:59Z"
    return time_text((filetime - FILETIME_EPOCH) * 100)


def decode_read_values(data: bytes, reader: Reader, elements: Container[int] = ()) -> list[DataChange]:
    """The values in the parameters of a ReadResponse (OPC 10000-4, 5.11.2). Their handles count from 0. The values at
    the places in `elements` are single elements of arrays."""
    try:
        (count,) = _I32.unpack_from(data, 0)
        if count > NOTIFICATIONS_MAX:
            raise DecodeError(f"{count} values in one answer")
        changes, position = [], 4
        for handle in range(count):
            # A DataValue has no handle: the four bytes before it are decoded as one, which is replaced.
            change, position = _item(data, position - 4, reader, is_element=handle in elements)
            changes.append(change._replace(handle=handle))
    except (struct.error, IndexError, OverflowError) as error:
        raise DecodeError(f"the answer to a Read is cut short or malformed: {error}") from error
    return changes

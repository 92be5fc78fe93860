"""Packs the columns of a batch of samples (tags, times, values, qualities) by their types, and unpacks them. Core: no
IO.

Every column is one run of bytes of fixed width, so a receiver checks a batch against its header by lengths, counts and
a few sums, without an object for each value. Integers are stored in byte planes (all lowest bytes, then all second
bytes), which compress better; doubles are not, because their low bytes are noise in either order.

Guarantees: `pack` writes one form for one input. `unpack` accepts every form of docs/developers/batch-format.md and
raises BatchError for all others, before it allocates more than a batch may hold. Building values from `Unpacked` cannot
fail.

Not here: headers, digests, compression, messages (agent.batch).

    BatchError          bytes that are not a batch: malformed, corrupt, truncated, oversized, forged, of another version
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain, compress, repeat
from operator import add, floordiv, index, mul, sub
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta
from msgspec.msgpack import Decoder, Encoder, Ext

from agent.errors import BsfgError
from agent.message import INT64_MIN, QUALITY_MAX, VALUE_BYTES_MAX, Json, Sample, Value, value_bytes, wrong_json

assert sys.byteorder == "little", "columns are little-endian, and arrays are used as they lie in memory"

FACTS_MAX = 16_384  # opening slows down beyond a few thousand (CPU cache), and one batch must not delay a page
INT64_MAX = 2**63 - 1

FLOAT, INT, BOOL, OTHER = range(4)
_KIND_OF: dict[type, int] = {
    float: FLOAT,
    int: INT,
    bool: BOOL,
    str: OTHER,
    bytes: OTHER,
    Json: OTHER,
    type(None): OTHER,
}
_FEW = 8  # for less than one fact in eight, single look-ups cost less than building the column
_TURN_COST = 8  # one turn costs as much as accumulate, min and max over eight tags
_RULERS_MAX = 8  # cached; 256 KiB each for the largest batches, 30 KiB or less for usual ones
_UNSIGNED = {1: "B", 2: "H", 4: "I", 8: "Q"}
_SIGNED = {1: "b", 2: "h", 4: "i", 8: "q"}
_EXT_JSON, _EXT_BYTES = 1, 2


class BatchError(BsfgError):
    """The bytes are not a batch that this program may accept; the text says why. A retry with the same bytes fails
    again."""


class SampleColumns(NamedTuple):
    """The samples of one batch as four lists of equal length."""

    tags: list[int]
    source_times_ns: list[int]
    values: list[Value]
    qualities: list[int]

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, Value, int]]) -> SampleColumns:
        """The columns of rows; raises ValueError unless each has four entries."""
        if set(map(len, rows)) - {4}:
            raise ValueError("a sample is a tag, a source time, a value and a quality")
        # Not zip(*rows): an iterator for each row would run the garbage collector once for every few hundred samples.
        flat: list[Any] = list(chain.from_iterable(rows))
        return cls(flat[0::4], flat[1::4], flat[2::4], flat[3::4])

    def cut(self, start: int, stop: int) -> SampleColumns:
        """The samples at these positions, `stop` excluded."""
        return SampleColumns._make(column[start:stop] for column in self)

    def rows(self) -> Iterator[Sample]:
        """The samples one by one."""
        return map(Sample._make, zip(*self, strict=True))


class HeaderFields(NamedTuple):
    """The fields of a batch's header that its columns must match."""

    facts: int
    tag_max: int
    time_min_ns: int
    time_max_ns: int


# -------------------------------------------------------------------------------------------------------------- packing


def pack(columns: Sequence[Sequence[Any]], tag_max: int) -> tuple[bytes, int, int]:
    """Packed content of tags, times, values and qualities of equal length, and the earliest and latest time.

    Raises ValueError unless tags are 1 to `tag_max` and every entry is of a type and range that a reader will accept.
    """
    tags, times, values, qualities = columns
    if bool in map(type, (tags[0], times[0], qualities[0])):  # Python would treat it as 0 or 1 below
        raise ValueError("tags, source times and qualities are integers: a bool is something else")
    try:
        coded_tags = _packed_tags(tags, tag_max)
        coded_times, time_max_ns = _packed_times(times)
        coded_qualities = _packed_qualities(qualities)
    except (TypeError, struct.error) as error:
        raise ValueError(f"tags, source times and qualities are integers: {error}") from error
    return encoded((coded_tags, coded_times, *_packed_values(values), coded_qualities)), coded_times[0], time_max_ns


def _packed_tags(tags: Sequence[int], tag_max: int) -> tuple[int, int, int, bytes]:
    """First tag; the step if all steps are equal; width and planes of the steps otherwise."""
    least, greatest = min(tags), max(tags)
    if least < 1 or greatest > tag_max:
        raise ValueError(f"tags {least} to {greatest}: this origin has defined 1 to {tag_max}")
    span = greatest - least
    width = 1 if span < 1 << 7 else 2 if span < 1 << 15 else 4 if span < 1 << 31 else 8
    data = _packed(_SIGNED[width], list(map(sub, tags[1:], tags)))
    if data == data[:width] * (len(tags) - 1):
        return index(tags[0]), int.from_bytes(data[:width], "little", signed=True), 0, b""
    return index(tags[0]), 0, width, _planes(data, width)


def _packed_times(times: Sequence[int]) -> tuple[tuple[int, int, int, bytes], int]:
    """Earliest, unit, width and planes of the differences to the earliest; and the latest. The unit is the tick of the
    clock, us or ms."""
    earliest, latest = min(times), max(times)
    if earliest < INT64_MIN or latest > INT64_MAX:
        raise ValueError(f"source times {earliest} to {latest}: nanoseconds since 1970 have 64 bits")
    above = list(map(sub, times, repeat(earliest)))
    # Try the unit of a few differences first, usually that of all. Raises TypeError for values other than integers.
    unit = math.gcd(*above[:: 1 + len(above) // 16]) or math.gcd(*above) or 1
    units = list(map(floordiv, above, repeat(unit))) if unit > 1 else above
    if sum(units) * unit != sum(above):  # it does not divide all differences
        unit = math.gcd(unit, *above)
        units = list(map(floordiv, above, repeat(unit)))
    return (index(earliest), unit, *_packed_unsigned(units, (latest - earliest) // unit)), index(latest)


def _packed_qualities(qualities: Sequence[int]) -> tuple[int, int, bytes]:
    """Least, width and planes of the differences to the least."""
    first = qualities[0]
    least, greatest = (first, first) if qualities.count(first) == len(qualities) else (min(qualities), max(qualities))
    if least < 0 or greatest > QUALITY_MAX:
        raise ValueError(f"qualities {least} to {greatest}: an OPC UA StatusCode has 32 bits, without a sign")
    return index(least), *_packed_above(qualities, least, greatest)


_Values = tuple[bytes, bytes, tuple[int, int, bytes], bytes, Sequence[Any]]  # kinds, floats, ints, bools, others


def _packed_values(values: Sequence[Any]) -> _Values:
    """Values separated by kind."""
    types = list(map(type, values))
    if types.count(float) == len(types):  # the most frequent case
        return bytes((FLOAT,)), _once(_packed("d", values), 8), (0, 0, b""), b"", ()
    try:
        return _packed_kinds(values, bytes(map(_KIND_OF.__getitem__, types)))
    except KeyError:
        unknown = ", ".join(sorted({kind.__name__ for kind in types if kind not in _KIND_OF}))
        raise ValueError(f"values: {unknown} is not a type a tag can hold") from None


def _packed_kinds(values: Sequence[Any], kinds: bytes) -> _Values:
    """Values of these kinds; integers above int64 become others."""
    floats = _packed("d", _of_kind(values, kinds, FLOAT))
    is_rest = kinds.translate(_where(FLOAT, is_other=True))
    rest, rest_kinds = list(compress(values, is_rest)), kinds.translate(None, bytes((FLOAT,)))
    ints = _of_kind(rest, rest_kinds, INT)
    least, greatest = (min(ints), max(ints)) if ints else (0, 0)
    if least < INT64_MIN:
        raise ValueError(f"values: {least} is below 64 bits")
    if greatest > INT64_MAX:
        large = [kind == INT and value > INT64_MAX for kind, value in zip(kinds, values, strict=True)]
        return _packed_kinds(
            values, bytes(OTHER if is_large else kind for kind, is_large in zip(kinds, large, strict=True))
        )
    bools, others = bytes(_of_kind(rest, rest_kinds, BOOL)), _packed_others(_of_kind(rest, rest_kinds, OTHER))
    return _once(kinds, 1), _once(floats, 8), (least, *_packed_above(ints, least, greatest)), _once(bools, 1), others


def _of_kind(values: Sequence[Any], kinds: bytes, kind: int) -> list[Any]:
    return list(compress(values, kinds.translate(_where(kind)))) if kind in kinds else []


def _where(byte: int, *, is_other: bool = False) -> bytes:
    """A table for bytes.translate: 1 for this byte and 0 for others, or the reverse with `is_other`."""
    this, that = (b"\0", b"\1") if is_other else (b"\1", b"\0")
    return that * byte + this + that * (255 - byte)


def _packed_others(others: Sequence[Any]) -> Sequence[Any]:
    """Others for MessagePack: one entry if all are equal and of one type; structures and bytes as extension types."""
    types = set(map(type, others))
    if wrong := _wrong_others(others, types):
        raise ValueError(wrong)
    if len(types) == 1:
        others = collapsed(others)
    if not types & {bytes, Json}:
        return others
    return [
        Ext(_EXT_JSON, v.data) if type(v) is Json else Ext(_EXT_BYTES, v) if type(v) is bytes else v for v in others
    ]


def collapsed(column: Sequence[Any]) -> Sequence[Any]:
    """The column, or its first entry alone when all are equal. Only for columns of one type: 1 == 1.0 == True."""
    return column[:1] if column[0] == column[-1] and column.count(column[0]) == len(column) else column


def encoded(content: object) -> bytes:
    """Content as MessagePack. Raises ValueError if a value has no encoding."""
    try:
        return _ENCODER.encode(content)
    except (OverflowError, TypeError, UnicodeEncodeError, msgspec.MsgspecError) as error:
        raise ValueError(f"a value has no encoding: {error}") from error


def _packed_above(column: Sequence[int], least: int, greatest: int) -> tuple[int, bytes]:
    """Width and planes of the differences to the least."""
    if least == greatest:
        return 0, b""
    return _packed_unsigned(list(map(sub, column, repeat(least))) if least else column, greatest - least)


def _packed_unsigned(column: Sequence[int], greatest: int) -> tuple[int, bytes]:
    """Width and planes: the narrowest that holds the greatest."""
    if not greatest:
        return 0, b""
    width = 1 if greatest < 1 << 8 else 2 if greatest < 1 << 16 else 4 if greatest < 1 << 32 else 8
    return width, _planes(_packed(_UNSIGNED[width], column), width)


def _packed(typecode: str, column: Sequence[Any]) -> bytes:
    """Numbers as in memory; raises struct.error for a number that does not fit. Twice as fast as an array."""
    return struct.pack(f"<{len(column)}{typecode}", *column)


def _planes(data: bytes, width: int) -> bytes:
    """All lowest bytes, then all second bytes, and so on."""
    return data if width == 1 else b"".join([data[plane::width] for plane in range(width)])


def _once(data: bytes, width: int) -> bytes:
    """The first entry alone if all have the same bits."""
    return data[:width] if data == data[:width] * (len(data) // width) else data


# ------------------------------------------------------------------------------------------------------------ unpacking

# The types make the decoder refuse invalid content before it allocates what follows: no column longer than a batch,
# nothing nested. So bytes are an extension type among the others: with text and bytes in one union, msgspec would need
# Any, and Any builds any tree of empty lists that a peer sends.
_Bytes = Annotated[bytes, Meta(max_length=FACTS_MAX)]
_Words = Annotated[bytes, Meta(max_length=FACTS_MAX * 8)]
_Steps = tuple[int, int, int, _Words]  # tags: first, step, width, planes; times: earliest, unit, width, planes
_Above = tuple[int, int, _Words]  # least, width, planes
_Others = Annotated[list[int | str | Ext | None], Meta(max_length=FACTS_MAX)]  # their lengths: _wrong_others
_CONTENT = Decoder(tuple[_Steps, _Steps, _Bytes, _Words, _Above, _Bytes, _Others, _Above])
_ENCODER = Encoder()


class Unpacked(NamedTuple):
    """Checked columns in packed form, from which values are built on request.

    `times_above` are differences to the earliest time in units; None if all are equal. `ints` and `qualities` are the
    least with the differences to it.
    """

    frame: HeaderFields
    tags: tuple[int, int, array[int] | None]  # first, step for all, step for each
    unit: int
    times_above: array[int] | None
    kinds: bytes  # one for each fact
    floats: bytes
    ints: tuple[int, array[int] | None]
    bools: bytes
    others: list[Any]
    qualities: tuple[int, array[int] | None]

    def columns(self) -> SampleColumns:
        """The samples as lists."""
        return SampleColumns(self.all_tags(), self.all_times_ns(), self.all_values(), self.all_qualities())

    def times_ns_at(self, places: Sequence[int]) -> list[int]:
        """The source times of some facts, by their positions in the batch."""
        if len(places) * _FEW > self.frame.facts:
            return list(map(self.all_times_ns().__getitem__, places))
        earliest, above = self.frame.time_min_ns, self.times_above
        if above is None:
            return [earliest] * len(places)
        return [earliest + above[place] * self.unit for place in places]

    def values_at(self, places: Sequence[int]) -> list[Value]:
        """The values of some facts, by their positions in the batch."""
        if len(places) * _FEW > self.frame.facts:
            return list(map(self.all_values().__getitem__, places))
        columns: dict[int, Sequence[Any]] = {}
        makers = (self._floats, self._ints, lambda: list(map(bool, self.bools)), self._others)
        ranks = [(0, 0)] * len(makers)  # by kind: the last place, and how many of the kind are before it
        found: list[Value] = []
        for place in places:
            kind = self.kinds[place]
            if kind not in columns:
                columns[kind] = makers[kind]()
            last, rank = ranks[kind]
            rank += self.kinds.count(kind, last, place) if last <= place else -self.kinds.count(kind, place, last)
            ranks[kind] = place, rank
            found.append(columns[kind][rank])
        return found

    def qualities_at(self, places: Sequence[int]) -> list[int]:
        """The qualities of some facts, by their positions in the batch."""
        least, above = self.qualities
        return [least] * len(places) if above is None else [least + above[place] for place in places]

    def all_tags(self) -> list[int]:
        """The tag number of each fact."""
        first, step, steps = self.tags
        return list(accumulate(repeat(step, self.frame.facts - 1) if steps is None else steps, initial=first))

    def all_times_ns(self) -> list[int]:
        """The source time of each fact."""
        earliest, above = self.frame.time_min_ns, self.times_above
        if above is None or self.unit == 1:
            return _on_top(earliest, above, self.frame.facts)
        return list(map(add, map(mul, above, repeat(self.unit)), repeat(earliest)))

    def _floats(self) -> array[float]:
        floats, count = array("d", self.floats), self.kinds.count(FLOAT)
        return floats if len(floats) == count else floats * count

    def _ints(self) -> list[int]:
        return _on_top(*self.ints, self.kinds.count(INT))

    def _others(self) -> list[Value]:
        count = self.kinds.count(OTHER)
        return self.others if len(self.others) == count else self.others * count

    def all_qualities(self) -> list[int]:
        """The quality of each fact."""
        return _on_top(*self.qualities, self.frame.facts)

    def all_values(self) -> list[Value]:
        """The value of each fact."""
        columns: list[Iterable[Any]] = [self._floats(), self._ints(), map(bool, self.bools), self._others()]
        kind = self.kinds[0]
        if self.kinds.count(kind) == len(self.kinds):
            return list(columns[kind])
        iterators = list(map(iter, columns))
        return list(map(next, map(iterators.__getitem__, self.kinds)))


def unpack(content: bytes | memoryview, frame: HeaderFields) -> Unpacked:
    """Check packed columns against the header. Raises BatchError unless every value can be built."""
    tags, times, kinds, floats, ints, bools, others, qualities = decoded(_CONTENT, content)
    kinds = _flags("kinds", kinds, frame.facts, 4)
    counts = list(map(kinds.count, range(4)))
    if len(floats) != 8 * counts[FLOAT] and not len(floats) == 8 <= 8 * counts[FLOAT]:
        raise BatchError(f"floats: {len(floats)} bytes for {counts[FLOAT]} facts")
    return Unpacked(
        frame,
        _unpacked_tags(tags, frame),
        times[1],
        _unpacked_times(times, frame),
        kinds,
        floats,
        _unpacked_above("ints", ints, counts[INT], (INT64_MIN, INT64_MAX)),
        _flags("bools", bools, counts[BOOL], 2),
        _unpacked_others(others, counts[OTHER]),
        _unpacked_above("qualities", qualities, frame.facts, (0, QUALITY_MAX)),
    )


def decoded(decoder: Decoder[Any], content: bytes | memoryview) -> Any:
    """Content as typed columns; raises BatchError for any other content."""
    try:
        return decoder.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BatchError(f"content: {error}") from error


def check_spread(name: str, entries: int, count: int) -> None:
    """Raise BatchError unless a column has one entry for each fact, or one for all facts."""
    if entries != count and not entries == 1 <= count:
        raise BatchError(f"{name}: {entries} entries for {count} facts")


def _unpacked_tags(coded: tuple[int, int, int, bytes], frame: HeaderFields) -> tuple[int, int, array[int] | None]:
    """First tag, and the step for all or for each. Raises BatchError unless every resulting tag is defined."""
    first, step, width, planes = coded
    steps = _unpacked("tags", width, planes, frame.facts - 1, _SIGNED)
    if step and width:
        raise BatchError(f"tags: a step of {step} for all, and one for each")
    turns = (first, first + step * (frame.facts - 1)) if steps is None else _turns(first, steps, planes)
    least, greatest = min(turns), max(turns)
    if least < 1 or greatest > frame.tag_max:
        raise BatchError(f"tags: {least} to {greatest}, defined are 1 to {frame.tag_max}")
    return first, step, steps


def _turns(first: int, steps: array[int], planes: bytes) -> list[int]:
    """Some tags that include the least and the greatest: the turns, where the step changes, if these are few.

    A source that is read in the order of its tags has the same step except where it starts again. Checking only its
    turns takes a tenth of the time of checking all tags, which was a third of the check of a batch.
    """
    count = len(steps)
    if not count:
        return [first]
    same = b"".join(planes[plane * count : plane * count + 1] for plane in range(steps.itemsize))
    masks = [
        planes[plane * count : (plane + 1) * count].translate(_where(same[plane], is_other=True))
        for plane in range(steps.itemsize)
    ]
    if sum(mask.count(1) for mask in masks) * _TURN_COST > count:
        return list(accumulate(steps, initial=first))
    places = sorted({place for mask in masks for place in _places(mask)})
    turns, tag, at = [first], first, 0
    for place in places:
        before = tag + steps[0] * (place - at)
        tag, at = before + steps[place], place + 1
        turns += (before, tag)
    return [*turns, tag + steps[0] * (count - at)]


def _places(mask: bytes) -> Iterator[int]:
    """Where a mask is 1."""
    place = mask.find(1)
    while place >= 0:
        yield place
        place = mask.find(1, place + 1)


def _unpacked_times(coded: tuple[int, int, int, bytes], frame: HeaderFields) -> array[int] | None:
    """The differences of the times to the earliest, in units. Raises BatchError unless the bounds match the header, so
    all fit 64 bits."""
    earliest, unit, width, planes = coded
    above = _unpacked("times", width, planes, frame.facts)
    if unit < 1:
        raise BatchError(f"times: a unit of {unit}")
    top, rest = divmod(frame.time_max_ns - earliest, unit)
    if earliest != frame.time_min_ns or rest or (top if above is None else not _spans(above, top)):
        raise BatchError("times: the header's bounds are not those of the facts")
    return above


def _spans(above: array[int], top: int) -> bool:
    """Whether the least of these unsigned integers is 0 and the greatest `top`.

    They are compared together as digits of one large number, every other digit at a time, so that each has room to
    borrow. That takes a third of the time of max(), which makes an object of each.
    """
    width, data = above.itemsize, above.tobytes()
    if top >> 8 * width or not _holds(data, width, 0) or not _holds(data, width, top):
        return False
    ones, room = _ruler(width, len(above) // 2 + 1)
    mask, digits, tops = room - ones, int.from_bytes(data, "little"), room + ones * top
    return all((tops - (part & mask)) & room == room for part in (digits, digits >> 8 * width))


@lru_cache(_RULERS_MAX)
def _ruler(width: int, digits: int) -> tuple[int, int]:
    """Two large numbers with a 1 in every other digit of `width` bytes, from the first digit and from the second.
    Cached, because batches of one source have one length and making them took a third of the comparison."""
    ones = int.from_bytes((b"\1" + bytes(2 * width - 1)) * digits, "little")
    return ones, ones << 8 * width


def _holds(data: bytes, width: int, number: int) -> bool:
    """Whether one of the integers is this number."""
    sought = number.to_bytes(width, "little")
    at = data.find(sought)
    while at > 0 and at % width:
        at = data.find(sought, at - at % width + width)
    return at >= 0


def _unpacked_above(
    name: str, coded: tuple[int, int, bytes], count: int, bounds: tuple[int, int]
) -> tuple[int, array[int] | None]:
    """Least and the differences to it. Raises BatchError unless all are within the bounds of the column."""
    least, width, planes = coded
    above = _unpacked(name, width, planes, count)
    greatest = least + max(above) if above else least
    if least < bounds[0] or greatest > bounds[1]:
        raise BatchError(f"{name}: {least} to {greatest}, it holds {bounds[0]} to {bounds[1]}")
    return least, above


def _unpacked(
    name: str, width: int, planes: bytes, count: int, typecodes: dict[int, str] = _UNSIGNED
) -> array[int] | None:
    """Integers from their byte planes; None for width 0, where all are equal."""
    if width and width not in typecodes:
        raise BatchError(f"{name}: integers of {width} bytes")
    if len(planes) != width * count:
        raise BatchError(f"{name}: {len(planes)} bytes for {count} integers of {width}")
    if not width:
        return None
    data: bytes | bytearray = planes
    if width > 1:
        data = bytearray(len(planes))
        for plane in range(width):
            data[plane::width] = planes[plane * count : (plane + 1) * count]
    return array(typecodes[width], data)


def _unpacked_others(others: list[Any], count: int) -> list[Any]:
    """Others (text, bytes, JSON, None, integers above int64) as values. Raises BatchError."""
    if not others and not count:
        return others
    check_spread("others", len(others), count)
    others = [_unwrapped(value) if type(value) is Ext else value for value in others]
    if wrong := _wrong_others(others, set(map(type, others))):
        raise BatchError(wrong)
    return others


def _unwrapped(value: Ext) -> Json | bytes:
    """JSON or bytes from their extension type."""
    data = bytes(value.data)
    if value.code == _EXT_JSON:
        return Json(data)
    if value.code == _EXT_BYTES:
        return data
    raise BatchError(f"others: unknown extension type {value.code}")


def _wrong_others(others: Sequence[Any], types: set[type]) -> str:
    """Why these values, of these types, cannot be in a batch; empty if they can. Checks single values only if some may
    be long."""
    if types & {str, bytes, Json}:
        length = max(value_bytes(value) for value in others if type(value) in (str, bytes, Json))
        if length > VALUE_BYTES_MAX:
            return f"others: one of {length} bytes, the limit is {VALUE_BYTES_MAX}"
    if Json in types and (wrong := wrong_json([value.data for value in others if type(value) is Json])):
        return f"others: JSON {wrong}"
    if int in types and (least := min(value for value in others if type(value) is int)) <= INT64_MAX:
        return f"others: {least} belongs to the ints"
    return ""


def _flags(name: str, data: bytes, count: int, values: int) -> bytes:
    """One byte for each fact, each below `values`. Raises BatchError."""
    if sum(map(data.count, range(values))) != len(data):
        raise BatchError(f"{name}: a byte of {values} or more")
    if len(data) != count:
        check_spread(name, len(data), count)
        data *= count
    return data


def _on_top(least: int, above: array[int] | None, count: int) -> list[int]:
    """Integers from the least and the differences to it."""
    if above is None:
        return [least] * count
    return list(map(add, above, repeat(least))) if least else above.tolist()

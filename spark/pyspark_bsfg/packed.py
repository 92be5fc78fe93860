"""The packed columns of opened batches as Arrow columns over many batches, without an object for each fact. Core: no
IO.

Arrow gets the bytes as they are in a batch: the arrays of all batches of a group are joined, widened to 64 bits, and
added to each batch's base. Arithmetic wraps around at 64 bits, as in the format, so differences above int64 are right.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from agent.columns import BOOL, FLOAT, INT, OTHER, HeaderFields, Unpacked

_TYPES = {
    "B": pa.uint8(), "H": pa.uint16(), "I": pa.uint32(), "Q": pa.uint64(),
    "b": pa.int8(), "h": pa.int16(), "i": pa.int32(), "q": pa.int64(),
}  # fmt: skip
_BYTES = {code: array(code).itemsize for code in _TYPES}
_INT16_MAX = 2**15 - 1
_NS_PER_US = 1000

Piece = tuple["array[int] | None", int]  # integers, and their number; None: that many zeros


def tag_numbers(samples: Sequence[Unpacked]) -> Any:
    """The tag number of every fact."""
    steps: list[Piece] = []
    for batch in samples:
        _, step, further = batch.tags
        rest = batch.frame.facts - 1
        steps += [(None, 1), (_constant(step, rest) if further is None else further, rest)]
    total = pc.cumulative_sum(_integers(steps))
    counts = [batch.frame.facts for batch in samples]
    starts = pa.array([0, *accumulate(counts[:-1])], pa.int64())
    bases = pc.subtract(pa.array([batch.tags[0] for batch in samples], pa.int64()), total.take(starts))
    return pc.add(total, spread(bases, counts))


def times_ns(samples: Sequence[Unpacked]) -> Any:
    """The source time of every fact, ns since 1970."""
    counts = [batch.frame.facts for batch in samples]
    above = _integers([(batch.times_above, batch.frame.facts) for batch in samples])
    units = [batch.unit for batch in samples]
    if set(units) != {1}:
        above = pc.multiply(above, spread(units, counts))
    return pc.add(above, spread([batch.frame.time_min_ns for batch in samples], counts))


def qualities(samples: Sequence[Unpacked]) -> Any:
    """The quality of every fact."""
    return _on_top([(*batch.qualities, batch.frame.facts) for batch in samples])


def integers(samples: Sequence[Unpacked], counts: Sequence[int]) -> Any:
    """The integers among the values, one after another; `counts` are how many each batch has."""
    return _on_top([(*batch.ints, count) for batch, count in zip(samples, counts, strict=True) if count])


def doubles(samples: Sequence[Unpacked], counts: Sequence[int]) -> Any:
    """The doubles among the values, one after another, bit for bit."""
    data = b"".join(
        batch.floats if len(batch.floats) == 8 * count else batch.floats * count
        for batch, count in zip(samples, counts, strict=True)
        if count
    )
    return over(pa.float64(), data, len(data) // 8)


def chosen(samples: Sequence[Unpacked], places: Sequence[int]) -> Unpacked:
    """The facts at a few places of these batches, in order, as one batch without tags."""
    ends = list(accumulate(batch.frame.facts for batch in samples))
    times_ns, qualities, kinds = array("q"), array("q"), bytearray()
    values: list[list[Any]] = [[], [], [], []]
    for at, group in groupby(places, lambda place: bisect_right(ends, place)):
        batch = samples[at]
        inside = [place - ends[at] + batch.frame.facts for place in group]
        times_ns.extend(batch.times_ns_at(inside))
        qualities.extend(batch.qualities_at(inside))
        for place, value in zip(inside, batch.values_at(inside), strict=True):
            kinds.append(batch.kinds[place])
            values[batch.kinds[place]].append(value)
    return Unpacked(
        HeaderFields(len(places), 0, 0, 0),
        (0, 0, None),
        1,
        times_ns,
        bytes(kinds),
        array("d", values[FLOAT]).tobytes(),
        (0, array("q", values[INT])),
        bytes(values[BOOL]),
        values[OTHER],
        (0, qualities),
    )


def microseconds(of_ns: Any) -> Any:
    """Times in ns as timestamps in us, rounded down also before 1970, where integer division would round up."""
    whole = pc.divide(of_ns, _NS_PER_US)
    if len(of_ns) and pc.min(of_ns).as_py() < 0:
        rounded_up = pc.greater(pc.multiply(whole, _NS_PER_US), of_ns)
        whole = pc.subtract(whole, rounded_up.cast(pa.int64()))
    return whole.view(pa.timestamp("us", tz="UTC"))


def spread(values: Any, counts: Sequence[int]) -> Any:
    """Each value repeated by its count; a scalar if all are the same number. Integers wrap at 64 bits."""
    if isinstance(values, list) and isinstance(values[0], int):
        values = [_wrapped(value) for value in values]
        if len(set(values)) == 1:
            return pa.scalar(values[0], pa.int64())
        values = pa.array(values, pa.int64())
    column = values if isinstance(values, pa.Array) else pa.array(values)
    ends = pa.array(accumulate(counts), pa.int32())
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, column))


def over(kind: Any, data: bytes | bytearray, count: int) -> Any:
    """An Arrow column of fixed width over the memory of these bytes."""
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])


def _on_top(parts: Iterable[tuple[int, array[int] | None, int]]) -> Any:
    """Integers from the least and the differences to it, for each batch."""
    leasts, above, counts = zip(*parts, strict=True)
    total = sum(counts)
    base = spread(list(leasts), counts)
    if not any(differences is not None for differences in above):
        return pa.repeat(base, total) if isinstance(base, pa.Scalar) else base
    return pc.add(_integers(list(zip(above, counts, strict=True))), base)


def _integers(pieces: Iterable[Piece]) -> Any:
    """All pieces as one column of int64. Neighbours of one width are joined first: a call of Arrow for each batch would
    cost more than the facts of a small one."""
    joined: list[tuple[str, list[Any]]] = []
    for numbers, count in pieces:
        if not count:
            continue
        if numbers is None:  # zeros fit any width
            if not joined:
                joined.append(("b", []))
            code, parts = joined[-1]
            parts.append(bytes(count * _BYTES[code]))
        elif joined and joined[-1][0] == numbers.typecode:
            joined[-1][1].append(numbers)
        else:
            joined.append((numbers.typecode, [numbers]))
    chunks = []
    for code, parts in joined:
        data = b"".join(parts)
        narrow = over(_TYPES[code], data, len(data) // _BYTES[code])
        chunks.append(narrow.view(pa.int64()) if code in "qQ" else narrow.cast(pa.int64()))
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def _constant(step: int, count: int) -> array[int] | None:
    """The same step `count` times."""
    return array("h" if abs(step) <= _INT16_MAX else "q", [step]) * count if step else None


def _wrapped(number: int) -> int:
    """The int64 with the same 64 bits."""
    return (number + 2**63) % 2**64 - 2**63

"""Interprets registers in every type and byte order, and finds the interpretations that match a value on the device's
panel.

A plausible value may be wrong. A float whose high word belongs to the neighbouring register, read with the wrong word
order, differs from the true value by less than half a percent (influxdata/telegraf#8151). So the neighbouring registers
are searched too, and every interpretation that matches is reported, the most exact first. Core: takes words, returns
interpretations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import product

from agent.ingest.modbus.address import ADDRESS_MAX, Table
from agent.ingest.modbus.decode import ORDERS, UTF_8, DecodeError, ValueType, decode, scaled, value_type, with_encoding
from agent.ingest.modbus.explore.register_text import register_text
from agent.message import Value

TYPES: Mapping[int, tuple[str, ...]] = {  # by registers; if two give the same value, the first is offered
    1: ("uint16", "int16", "float16", "bcd16"),
    2: ("uint32", "int32", "float32", "bcd32"),
    4: ("uint64", "int64", "float64"),
}
WIDEST = 4  # registers of the longest number
# Powers of ten as scale: tenths to millionths, and units up to a thousand times smaller.
POWERS = (
    -1,
    -2,
    -3,
    1,
    2,
    3,
    -4,
    -5,
    -6,
)
TOLERANCE = "1%"
# Rarely used types: a match is more often a coincidence.
_RARITY = {"float16": 2, "bcd16": 2, "bcd32": 2, "BA": 2, "BADC": 1, "DCBA": 1, "BADCFEHG": 1, "HGFEDCBA": 1}
_RARITY |= {"EFGHABCD": 1, "CDABGHEF": 1}
# The unusual ones last: they read many texts that are none.
TEXT_ENCODINGS = ("utf-8", "low-byte", "high-byte", "utf-16", "latin-1", "c-string")
ONE_CHARACTER = ("low-byte", "high-byte")
_NUMBER_LIKE = re.compile(r"[+-]?[\d.,' ]+")


@dataclass(frozen=True, slots=True)
class PanelValue:
    """The value on the panel: a number, or a text such as a model name. `half_step` is half of its last digit."""

    text: str
    number: float | None
    half_step: float
    tolerance: float
    is_relative: bool

    @property
    def margin(self) -> float:
        """The largest difference that a number may have."""
        assert self.number is not None, "texts have no margin"
        return abs(self.number) * self.tolerance if self.is_relative else self.tolerance


def parse_wanted(text: str, tolerance: str = TOLERANCE) -> PanelValue:
    """Parse a value as typed, and its tolerance, `1%` or `0.5`. Raises ValueError with what to write."""
    size, is_relative = tolerance.strip(), tolerance.strip().endswith("%")
    try:
        margin = float(size.rstrip("% "))
    except ValueError:
        raise ValueError(f"tolerance {tolerance!r} is no number; write 1% or, in the value's own unit, 0.5") from None
    if not 0 <= margin < math.inf:
        raise ValueError(f"tolerance {tolerance!r} must be 0 or more")
    margin = margin / 100 if is_relative else margin
    try:
        number = float(text)
    except ValueError:
        if _NUMBER_LIKE.fullmatch(text.strip()):
            raise ValueError(f"{text!r} is no number; write it with a point and without blanks, as 1234.5") from None
        return PanelValue(text.strip(), None, 0.0, margin, is_relative)
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not a finite number")
    exponent = Decimal(text.strip()).as_tuple().exponent
    assert isinstance(exponent, int), "finite"
    return PanelValue(text.strip(), number, 0.5 * 10.0**exponent, margin, is_relative)


@dataclass(frozen=True, slots=True)
class Interpretation:
    """One way to read registers. The value begins at wire address `address` and is scaled as `kind` says."""

    table: Table
    address: int
    kind: ValueType
    value: Value

    @property
    def end(self) -> int:
        """The first address after it."""
        return self.address + self.kind.registers


@dataclass(frozen=True, slots=True)
class Candidate:
    """An interpretation that matches the wanted value. `error` is relative. `is_exact`: the difference is within the
    last digit that was given. `also`: other types that give the same value from the same registers now."""

    found: Interpretation
    error: float
    is_exact: bool
    is_asked: bool
    also: tuple[str, ...] = ()


def ranges_to_try(address: int, count: int) -> Iterator[tuple[int, int]]:
    """The reads (address, count) for `count` registers, one more on each side, and as many as a long value needs. The
    first covers all. The shorter ones are for a device that refuses it, because a register does not exist or a value is
    cut."""
    first, end = max(0, address - 1), min(ADDRESS_MAX + 1, address + count + WIDEST)
    yield first, end - first
    for length in (count, WIDEST, 2, 1):
        for start in (address, *range(first, min(address + count + 1, ADDRESS_MAX + 1))):
            yield start, min(length, ADDRESS_MAX + 1 - start)


def interpretations(words: Mapping[int, int], table: Table, address: int) -> Iterator[Interpretation]:
    """Every number that may begin at an address, by size, type and byte order."""
    for registers, names in TYPES.items():
        found = _words_at(words, address, registers)
        for name in names if found is not None else ():
            for order in ORDERS[2 * registers]:
                kind = value_type(name, order)
                try:
                    value = decode(kind, found or ())
                except DecodeError:
                    continue  # not a decimal number
                yield Interpretation(table, address, kind, value)


def texts(words: Mapping[int, int], table: Table, address: int, count: int) -> Iterator[Interpretation]:
    """The registers as text in both byte orders and each encoding that they can have, if it is printable. An encoding
    that gives the same text as one before is left out."""
    found = _words_at(words, address, count)
    seen = set[tuple[str, Value]]()
    for encoding, order in product(TEXT_ENCODINGS, ORDERS[2]) if found is not None else ():
        kind = with_encoding(value_type(f"string{2 * count}", order), encoding)
        try:
            value = decode(kind, found or ())
        except DecodeError:
            continue
        is_twin = encoding in ONE_CHARACTER and order == "BA"  # the other byte with AB is the same
        is_new = (order, value) not in seen and not is_twin
        if isinstance(value, str) and value and value.isprintable() and is_new:
            seen.add((order, value))
            yield Interpretation(table, address, kind, value)


def candidates(
    words: Mapping[int, int], table: Table, address: int, count: int, wanted: PanelValue
) -> Iterator[Candidate]:
    """The interpretations that match the wanted value, at the `count` registers from `address` and at one more on each
    side."""
    for start in range(max(0, address - 1), min(address + count, ADDRESS_MAX) + 1):
        is_asked = address <= start < address + count
        if wanted.number is None:
            bytes_min, lengths = len(wanted.text.encode()), range(1, address + count + WIDEST - start + 1)
            matching = [
                Candidate(found, 0.0, is_exact=True, is_asked=is_asked)
                for length in lengths
                if 2 * length >= bytes_min
                for found in texts(words, table, start, length)
                if str(found.value).strip().startswith(wanted.text)
            ]
            met_kinds = set[tuple[str, str]]()
            for candidate in matching:  # the shortest of each encoding and order
                how = candidate.found.kind.encoding, candidate.found.kind.order_name
                if how not in met_kinds:
                    met_kinds.add(how)
                    yield candidate
            continue
        met = [
            Candidate(reading, *_distance(reading, wanted), is_asked)
            for found in interpretations(words, table, start)
            for reading in _meeting(found, wanted)
        ]
        yield from _merged(met)


def ranked(found: Iterable[Candidate]) -> list[Candidate]:
    """Candidates, the best first: usual types and orders, exact matches, at the given registers, without a scale, the
    smallest error."""

    def key(candidate: Candidate) -> tuple[object, ...]:
        kind = candidate.found.kind
        rarity = _RARITY.get(kind.name, 0) + _RARITY.get(kind.order_name, 0)
        scale = abs(math.log10(kind.scale))
        return (
            rarity > 1,
            not candidate.is_exact,
            not candidate.is_asked,
            rarity,
            scale,
            candidate.error,
            kind.registers,
            kind.name,
        )

    return sorted(found, key=key)


def doubts(found: Sequence[Candidate], wanted: PanelValue) -> list[str]:
    """Reasons why the first candidate may still be wrong."""
    remarks = []
    if wanted.number == 0:
        remarks.append("many readings are 0; try again when the device shows another value")
    if len(found) > 1:
        remarks.append(
            f"{len(found)} readings match {wanted.text}, and at most one of them is right: compare again when the device "
            "shows another value, or with a smaller --tolerance"
        )
    pairs = ((first, second) for index, first in enumerate(found) for second in found[index + 1 :])
    for first, second in pairs:
        if _share_a_word(first.found, second.found):
            remarks.append(
                f"{_name(first.found)} and {_name(second.found)} share a register: one register off with the wrong word "
                "order gives plausible values, because the high word is that of a neighbour; the manual decides"
            )
            break
    return remarks


def moved(readings: Sequence[Mapping[int, int]], found: Interpretation) -> tuple[list[Value], frozenset[int]]:
    """The values of one interpretation in several readings of its registers, and the addresses that changed in
    between."""
    values: list[Value] = []
    changed = set[int]()
    for words in readings:
        at = _words_at(words, found.address, found.kind.registers)
        if at is None:
            continue
        try:
            values.append(decode(found.kind, at))
        except DecodeError:
            values.append(None)
        changed |= {place for place, word in words.items() if readings[0].get(place, word) != word}
    return values, frozenset(changed) & frozenset(range(found.address, found.end))


def tag_row(found: Interpretation, unit_id: int, base: int, scope: str) -> dict[str, str]:
    """The row of a tag file that reads this, by column."""
    register = register_text(found.table, found.address, base)
    kind = found.kind
    return {
        "tag": f"{scope}/{found.table.value}_{register}",
        "unit_id": str(unit_id),
        "table": found.table.value,
        "register": register,
        "type": kind.name,
        "byte_order": kind.order_name,
        "scale": "" if kind.scale == 1 else f"{kind.scale:.6f}".rstrip("0").rstrip("."),
        **({"encoding": kind.encoding} if kind.encoding not in ("", UTF_8) else {}),
    }


def _meeting(found: Interpretation, wanted: PanelValue) -> Iterator[Interpretation]:
    """The interpretation with each power of ten by which it matches the wanted value."""
    raw = found.value
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not math.isfinite(raw):
        return
    for power in (0, *POWERS) if raw else (0,):
        kind = found.kind if not power else replace(found.kind, scale=10**power)
        value = scaled(kind, raw)
        assert wanted.number is not None, "numbers only"
        # the panel rounds: 231.4 matches 231.44 even with a tolerance of 0
        if abs(value - wanted.number) <= max(wanted.margin, wanted.half_step):
            yield replace(found, kind=kind, value=value)


def _distance(found: Interpretation, wanted: PanelValue) -> tuple[float, bool]:
    assert isinstance(found.value, int | float), "numbers only"
    assert wanted.number is not None, "numbers only"
    apart = abs(found.value - wanted.number)
    return apart / abs(wanted.number) if wanted.number else apart, apart <= wanted.half_step * (1 + 1e-9)


def _merged(met: Iterable[Candidate]) -> Iterator[Candidate]:
    """Merge types that give the same value from the same registers in the same order, as uint16 and int16 below
    32768."""
    groups: dict[object, list[Candidate]] = {}
    for candidate in met:
        kind = candidate.found.kind
        groups.setdefault(
            (candidate.found.address, kind.registers, kind.order, kind.scale, candidate.found.value), []
        ).append(candidate)
    for group in groups.values():
        yield replace(group[0], also=tuple(candidate.found.kind.name for candidate in group[1:]))


def _share_a_word(first: Interpretation, second: Interpretation) -> bool:
    """Whether two interpretations have the same size and are one register apart, so that they share words."""
    sizes = {first.kind.registers, second.kind.registers}
    return first.table is second.table and sizes != {1} and len(sizes) == 1 and abs(first.address - second.address) == 1


def is_suspicious(kind: ValueType, value: Value) -> bool:
    """Whether makers use this value of an unscaled type as "no value": the ends of a range, or NaN. For people; what
    a source takes for no value is configured."""
    if kind.name.startswith("float"):
        return isinstance(value, float) and math.isnan(value)
    if "int" not in kind.name or kind.size < 2 or kind.mask:
        return False
    bits = 8 * kind.size
    if kind.name.startswith("int"):
        return value in (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return value in (2**bits - 1, 2 ** (bits - 1))


def type_text(kind: ValueType) -> str:
    """A type for people, with the encoding of a text that is not UTF-8."""
    return f"{kind.name} {kind.encoding}" if kind.encoding not in ("", UTF_8) else kind.name


def _name(found: Interpretation) -> str:
    return f"{type_text(found.kind)} {found.kind.order_name} at wire address {found.address}"


def _words_at(words: Mapping[int, int], address: int, count: int) -> list[int] | None:
    found = [words[place] for place in range(address, address + count) if place in words]
    return found if len(found) == count else None

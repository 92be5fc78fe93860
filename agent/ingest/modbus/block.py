"""Decodes all values of one read at once.

A `BlockDecoder` is made when a read enters the plan. For registers it permutes the bytes of the answer once, so that
the bytes of each value are in order, and unpacks all values with one struct format. Texts, and values with a scale, a
mask or decimal digits are then converted one by one. A number that is no value gets the status BadNoDataAvailable. Bits
are looked up in a table of eight values a byte. `decode` defines the value of each type; a test compares the two. Core.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, Literal

from agent.columns import SampleColumns
from agent.ingest import quality
from agent.ingest.modbus.decode import DecodeError, absence, by_power_of_ten, converter, limited
from agent.ingest.modbus.read_plan import Read
from agent.message import Value

_BITS_OF_BYTE = tuple(tuple(bool(byte >> place & 1) for place in range(8)) for byte in range(256))


class BlockDecoder:
    """Turns the data bytes of one read's answer into samples of its tags."""

    def __init__(self, read: Read, tags: Sequence[int]) -> None:
        assert len(tags) == len(read.registers), "one tag for each register"
        self._tags = list(tags)
        self._good = [quality.GOOD] * len(tags)
        self._conversions: list[tuple[int, Callable[[Any], Value]]] = []
        self._doubtful: list[tuple[int, Callable[[Any], Value]]] = []  # conversions that may raise DecodeError
        self._absent: list[tuple[int, Callable[[Any], bool]]] = []  # which values say that there is none
        self._exponents: list[tuple[int, int, Literal["big", "little"]]] = []  # place of the power of ten, byte order
        self._clamps: list[tuple[int, float, float]] = []
        if read.table.is_bits:
            places = [register.address - read.address for register in read.registers]
            self._values: Callable[[bytes], list[Any]] = partial(_bits, _taker(places))
            return
        taken: list[int] = []
        formats = []
        for index, register in enumerate(read.registers):
            first = 2 * (register.address - read.address)
            start = first + 2 * register.kind.value_at
            taken += [start + place for place in register.kind.order]
            formats.append(register.kind.code)
            convert = converter(register.kind)
            if convert is not None:
                (self._doubtful if register.kind.may_fail else self._conversions).append((index, convert))
            if register.kind.no_value:
                self._absent.append((index, absence(register.kind)))
            if register.kind.exponent_at is not None:
                is_swapped = register.kind.order[0] % 2
                place = first + 2 * register.kind.exponent_at
                self._exponents.append((index, place, "little" if is_swapped else "big"))
            if register.kind.clamp is not None:
                self._clamps.append((index, *register.kind.clamp))
        unpack = struct.Struct(">" + "".join(formats)).unpack
        self._values = partial(_words, None if taken == list(range(2 * read.count)) else _taker(taken), unpack)

    def decode(self, data: bytes, time_ns: int) -> SampleColumns:
        """The samples in the data bytes of an answer, in the order of addresses. The lists are not changed
        afterwards."""
        values = self._values(data)
        gone = [index for index, is_absent in self._absent if is_absent(values[index])]
        for index, convert in self._conversions:
            values[index] = convert(values[index])
        if self._exponents:
            gone += self._without_exponent(values, data)
        qualities = self._judged(values) if self._doubtful or self._clamps else self._good
        if gone:
            qualities = [*qualities]
            for index in gone:
                values[index], qualities[index] = None, quality.BAD_NO_DATA_AVAILABLE
        return SampleColumns(self._tags, [time_ns] * len(values), values, qualities)

    def _without_exponent(self, values: list[Any], data: bytes) -> list[int]:
        """Scale values by powers of ten from the data. Returns those whose power the device does not have."""
        missing = []
        for index, place, order in self._exponents:
            exponent = int.from_bytes(data[place : place + 2], order, signed=True)
            try:
                values[index] = by_power_of_ten(values[index], exponent)
            except DecodeError:
                missing.append(index)  # most often "not implemented", -32768
        return missing

    def _judged(self, values: list[Any]) -> list[int]:
        """The statuses of values that may not be decodable or within their limits. Changes `values`."""
        qualities = [*self._good]
        for index, convert in self._doubtful:
            try:
                values[index] = convert(values[index])
            except DecodeError:
                values[index], qualities[index] = None, quality.BAD_DECODING_ERROR
        for index, low, high in self._clamps:
            if values[index] is not None:
                values[index], qualities[index] = limited(values[index], low, high)
        return qualities


def _words(
    take: Callable[[bytes], Iterable[int]] | None, unpack: Callable[[bytes], tuple[Any, ...]], data: bytes
) -> list[Any]:
    return list(unpack(data if take is None else bytes(take(data))))


def _bits(take: Callable[[Sequence[Any]], Iterable[Any]], data: bytes) -> list[Any]:
    return list(take(tuple(chain.from_iterable(map(_BITS_OF_BYTE.__getitem__, data)))))


def _taker(places: Sequence[int]) -> Callable[[Sequence[Any]], Iterable[Any]]:
    """A function that returns the entries at these places."""
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1) if places else slice(0))  # itemgetter of one makes no tuple

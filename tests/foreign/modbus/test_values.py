"""Values: every type in every byte order, from devices whose stacks nobody here wrote.

The words on the wire are made here from the letters of an order, not by the product's tables.
"""

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.foreign.modbus.device import (
    LIBMODBUS,
    MODBUS_SERIAL,
    ModbusDevice,
    modbus_device,
    source,
    tag_map,
)
from tests.foreign.process import Stack
from tests.ingest.plant import ingesting
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("libmodbus")]

SEED = 7
LETTERS = "ABCDEFGH"
NAMED = ("ABCD", "CDAB", "BADC", "DCBA")  # orders of four bytes, which have a meaning for every size
OWN = {2: ("AB", "BA"), 4: (), 8: ("ABCDEFGH", "GHEFCDAB", "BADCFEHG", "HGFEDCBA", "EFGHABCD", "CDABGHEF")}
STRINGS = (1, 4, 5, 16, 31, 250)

Made = Callable[[random.Random], tuple[object, bytes]]


def integer(size: int, *, signed: bool) -> Made:
    """Whole numbers of so many bytes."""

    def made(chance: random.Random) -> tuple[object, bytes]:
        data = chance.randbytes(size)
        return int.from_bytes(data, "big", signed=signed), data

    return made


def real(form: str) -> Made:
    """Floating point numbers."""

    def made(chance: random.Random) -> tuple[object, bytes]:
        data = struct.pack(form, chance.uniform(-6e4, 6e4))
        return struct.unpack(form, data)[0], data

    return made


def decimal(digits: int) -> Made:
    """Binary coded decimals."""

    def made(chance: random.Random) -> tuple[object, bytes]:
        text = "".join(chance.choice("0123456789") for _ in range(digits))
        return int(text), bytes.fromhex(text)

    return made


def bit(place: int) -> Made:
    """One bit of a word whose others are random."""

    def made(chance: random.Random) -> tuple[object, bytes]:
        word = chance.randrange(1 << 16)
        return bool(word >> place & 1), word.to_bytes(2, "big")

    return made


def truth(chance: random.Random) -> tuple[object, bytes]:
    """A word that is zero or not."""
    word = chance.choice([0, 1, 0xFF00, 0x8000])
    return word != 0, word.to_bytes(2, "big")


def text(size: int) -> Made:
    """A string, padded with NUL."""

    def made(chance: random.Random) -> tuple[object, bytes]:
        found = "".join(chance.choice("AbzÄ9 _"[: 3 if size < 3 else 7]) for _ in range(size // 2)).strip() or "x"
        data = found.encode()[:size]
        return data.decode(), data.ljust(size + size % 2, b"\0")

    return made


TYPES: dict[str, tuple[int, Made]] = {
    "bool": (2, truth),
    **{f"bit{place}": (2, bit(place)) for place in range(16)},
    **{f"int{8 * size}": (size, integer(size, signed=True)) for size in (2, 4, 8)},
    **{f"uint{8 * size}": (size, integer(size, signed=False)) for size in (2, 4, 8)},
    **{f"float{8 * size}": (size, real(form)) for size, form in ((2, ">e"), (4, ">f"), (8, ">d"))},
    "bcd16": (2, decimal(4)),
    "bcd32": (4, decimal(8)),
    **{f"string{size}": (0, text(size)) for size in STRINGS},
}


def on_the_wire(data: bytes, order: str) -> list[int]:
    """The words that a device sends for a value whose most significant byte is A.

    The four names say for any size whether words are sent last first and bytes swapped inside each; a string has one
    order of words. Every other order is spelled out, byte by byte."""
    if order in NAMED:
        words = [data[i : i + 2] for i in range(0, len(data), 2)]
        if order in ("CDAB", "DCBA"):
            words.reverse()
        if order in ("BADC", "DCBA"):
            words = [word[::-1] for word in words]
        data = b"".join(words)
    else:
        data = bytes(data[LETTERS.index(letter)] for letter in order)
    return [int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2)]


class Placed(NamedTuple):
    """A value in a device, and the row that reads it."""

    tag: str
    row: tuple[object, ...]
    value: object


def fill(device: ModbusDevice) -> list[Placed]:
    """Put a value of every type in every order into the device, half of them in each table of registers."""
    chance = random.Random(SEED)
    at = {"holding": 100, "input": 300}
    placed = []
    for name, (size, made) in TYPES.items():
        orders = ("AB", "BA") if not size else (*NAMED, *OWN[size])
        for number, order in enumerate(orders):
            table = ("holding", "input")[(number + len(placed) // 10) % 2]
            value, data = made(chance)
            if size:
                words = on_the_wire(data, order)
            else:
                words = [w for i in range(0, len(data), 2) for w in on_the_wire(data[i : i + 2], order)]
            device.set(1, table, at[table], *words)
            tag = f"f/{name}.{order}"
            placed.append(Placed(tag, (tag, 1, table, at[table], name, order), value))
            at[table] += len(words) + chance.randrange(3)
    for table in ("coil", "discrete"):
        values = [chance.random() < 0.5 for _ in range(20)]
        device.set(1, table, 13, *values)
        for place, value in enumerate(values):
            tag = f"f/{table}.{place}"
            placed.append(Placed(tag, (tag, 1, table, 13 + place, "bool"), value))
    return placed


@pytest.mark.parametrize(
    "stack",
    [
        pytest.param(device, marks=pytest.mark.foreign(device.name), id=device.name)
        for device in (LIBMODBUS, MODBUS_SERIAL)
    ],
)
async def test_every_type_in_every_order_is_right(stack: Stack, tmp_path: Path) -> None:
    """Each value arrives as what was put into the device, with its type: 6 orders of 21 types of one register, 4 of 4
    types of two, 10 of 3 types of four, strings, coils and discrete inputs. All in the first polls, from each stack."""
    with modbus_device(tmp_path / "device", stack) as device:
        placed = fill(device)
        async with ingesting(source(device.port, tmp_path, tag_map(register.row for register in placed))) as run:
            for register in placed:
                await wait_until_async(lambda register=register: run.store.of(register.tag), register.tag)
    assert len(placed) >= 211
    found = {register.tag: run.store.of(register.tag)[0] for register in placed}
    wrong = [
        (register.tag, register.value, found[register.tag])
        for register in placed
        if (found[register.tag].quality, found[register.tag].value) != (0, register.value)
        or type(found[register.tag].value) is not type(register.value)
    ]
    assert not wrong, wrong

"""Long lives of units at random: devices change what they refuse, die and return, tag files are edited, nodes restart.

LIVES=seed    plays one life; a failing one prints its seed
"""

import os
import random

import pytest

from agent.ingest.modbus.address import Register
from agent.ingest.modbus.read_plan import Limits
from agent.ingest.modbus.refusal import SILENT
from agent.ingest.modbus.units import Pauses, Unit
from tests.ingest.modbus.devices import Device, S, fewest_reads, poll, register

READ_AFTER_A_REFUSAL = 3285  # a value refused for the moment in its planned read, and read by the search of that poll
SEEDS = [int(os.environ["LIVES"])] if "LIVES" in os.environ else [*range(60), READ_AFTER_A_REFUSAL]
PAUSES = Pauses(2 * S, 60 * S)
POLLS = 80


class Life:
    """A unit, its device, and what is wanted of it, all by one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.limits = Limits(self.random.randint(8, 60), self.random.randint(0, 10))
        self.wanted = self.registers(self.random.randint(1, 30))
        self.device = Device()
        self.change()
        self.now_ns = 0
        self.unit = Unit(1, dict(enumerate(self.wanted, 1)), self.limits, PAUSES)

    def registers(self, count: int) -> list[Register]:
        """Values of one to four words."""
        found: dict[Register, None] = {}
        while len(found) < count:
            found[register(self.random.randrange(80), self.random.choice([1, 1, 1, 2, 4]))] = None
        return list(found)

    def change(self) -> None:
        """The device refuses other things."""
        codes = self.random.choice([[2], [2, 4, 6], [2, SILENT], [1, 2, 3, 4, 5, 6, SILENT]])
        places = self.random.sample(range(90), self.random.randint(0, 8))
        self.device.refused = {place: self.random.choice(codes) for place in places}
        self.device.borders = set(self.random.sample(range(1, 90), self.random.randint(0, 3)))
        self.device.longest = self.random.randint(4, 125)

    def edit(self) -> None:
        """Other rows in the tag file."""
        kept = [register for register in self.wanted if self.random.random() < 0.8]
        self.wanted = list(dict.fromkeys(kept + self.registers(self.random.randint(1, 4))))
        self.unit.want_registers(dict(enumerate(self.wanted, self.now_ns)))
        self.device.bad.clear()

    def trouble(self) -> None:
        """Now and then, one thing or another."""
        for chance, happen in ((0.06, self.change), (0.05, self.edit)):
            if self.random.random() < chance:
                happen()
        if self.random.random() < 0.03:
            self.device.is_dead = not self.device.is_dead

    def probe(self) -> None:
        """Ask a silent unit, as the source does apart from the polls."""
        if (self.unit.probe_at_ns() or 0) > self.now_ns:
            return
        read = self.unit.probe()
        code = self.device.judge(read.address, read.end)
        if code == SILENT:
            self.unit.fell_silent(self.now_ns)
            return
        if code is None:
            self.unit.proven.update(read.registers)
        self.unit.answered()
        self.unit.mark_parked_again()

    def given(self) -> set[Register]:
        """What the device gives when it is asked for each value alone."""
        return {register for register in self.wanted if self.device.judge(register.address, register.end) is None}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_life_accounts_for_every_value_and_ends_with_the_fewest_reads(seed: int) -> None:
    """At each poll each value is read once or stands marked, never both, and no poll has more than some sixty requests
    beyond its plan. When the trouble is over, all that the device gives is read, in the fewest reads that it allows."""
    life = Life(seed)
    for _ in range(POLLS):
        life.now_ns += S
        life.trouble()
        if life.unit.is_silent:
            life.probe()
        if life.unit.is_silent:
            continue
        done = poll(life.unit, life.device, life.now_ns, life.random.choice([1, 3, 1_000]))
        assert len(done.values) == len(set(done.values))
        assert done.requests <= done.planned + 60
        if done.is_silent:
            life.unit.fell_silent(life.now_ns)
            life.device.bad.update(dict.fromkeys(life.wanted, SILENT))
            continue
        assert {*done.values, *done.marked} >= set(life.wanted)
        assert not set(done.values) & done.marked.keys()
    life.device.is_dead = False
    life.device.refused = {place: code for place, code in life.device.refused.items() if code != SILENT}
    life.unit.answered()
    for _ in range(60):  # longer than any pause
        life.now_ns += 3_600 * S
        poll(life.unit, life.device, life.now_ns)
    done = poll(life.unit, life.device, life.now_ns + 1)
    assert set(done.values) == life.given()
    assert done.planned == fewest_reads(done.values, life.limits, life.device)

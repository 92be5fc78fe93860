"""Data sets A and B: the values of a small plant, second by second, reproducible from a seed.

500 tags are read in one scan a second. 400 are slowly varying floats: each scan adds a normal step of 0.2 to a level
that starts between 0 and 100. 50 are integers and 50 are booleans that change now and then. The sets compress
differently:

    A   half of the floats keep all 52 bits, half are rounded to 0.01; every timestamp has a jitter of 0..999 us
    B   all floats are rounded to 0.01; one timestamp per scan, as from a PLC

Samples are made outside of the timed part.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import Literal

from agent.message import Sample, TagDefinition

DataSet = Literal["A", "B"]
TAGS = 500
FLOATS = 400
FULL_PRECISION = 200  # of the floats of data set A
INTEGERS = 50
FLOAT_STEP = 0.2
INTEGER_CHANGES = 0.2  # of the integers, each scan
BOOLEAN_CHANGES = 0.02
JITTER_US = 1000
SCAN_NS = 1_000_000_000
START_NS = 1_700_000_000_000_000_000


def definitions() -> list[TagDefinition]:
    """Definitions of the 500 tags, in the order of their numbers."""
    kinds = ["Double"] * FLOATS + ["Int32"] * INTEGERS + ["Boolean"] * (TAGS - FLOATS - INTEGERS)
    return [
        TagDefinition(
            subject=f"tag:bench/line-{index % 5}/unit-{index % 25}/{kind.lower()}-{index}",
            unit="degC" if kind == "Double" else "",
            source="bench",
            address=f"ns=2;s=Line{index % 5}.Unit{index % 25}.{kind}{index}",
            data_type=kind,
        )
        for index, kind in enumerate(kinds, 1)
    ]


def samples(data_set: DataSet, seed: int) -> Iterator[Sample]:
    """Samples of tags 1 to 500, scan after scan, without end."""
    chance = random.Random(seed)
    full_precision = FULL_PRECISION if data_set == "A" else 0
    jitter_us = JITTER_US if data_set == "A" else 1
    levels = [chance.uniform(0.0, 100.0) for _ in range(FLOATS)]
    integers = [chance.randrange(1000) for _ in range(INTEGERS)]
    booleans = [chance.random() < 0.5 for _ in range(TAGS - FLOATS - INTEGERS)]
    scan_ns = START_NS
    while True:
        levels = [level + chance.gauss(0.0, FLOAT_STEP) for level in levels]
        integers = [n + chance.randrange(-2, 4) if chance.random() < INTEGER_CHANGES else n for n in integers]
        booleans = [b ^ (chance.random() < BOOLEAN_CHANGES) for b in booleans]
        values = levels[:full_precision] + [round(level, 2) for level in levels[full_precision:]] + integers + booleans
        for tag, value in enumerate(values, 1):
            yield Sample(tag, scan_ns + int(chance.random() * jitter_us) * 1000, value, 0)
        scan_ns += SCAN_NS


def runs(data_set: DataSet, seed: int, facts: int, run_facts: int) -> Iterator[list[Sample]]:
    """`facts` samples in lists of `run_facts`; the last list may be shorter."""
    left = islice(samples(data_set, seed), facts)
    while run := list(islice(left, run_facts)):
        yield run

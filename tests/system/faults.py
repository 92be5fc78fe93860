"""Faults for three zones and their broker, drawn from a seed beforehand: which process, when, for how long.

A kill is SIGKILL and, when its time is over, a new start. A freeze is SIGSTOP and SIGCONT: connections stay open and
nothing arrives, as with a cut cable. Freezing the broker cuts every zone off from every other.
"""

import itertools
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from agent.demo import layout
from agent.demo.scenario import RunningZones
from tests.waiting import wait_until

BROKER = "broker"
KINDS = (
    *(f"kill {zone}" for zone in layout.ZONES),
    f"kill {BROKER}",
    f"freeze {BROKER}",
    f"freeze {layout.IDMZ}",
)
CALM_S = 1.5  # at most, before a fault: facts are on their way in every hop
SECOND_CHANCE = 0.4


class Fault(NamedTuple):
    """One of KINDS, so many seconds after the round began, for so many seconds."""

    kind: str
    at_s: float
    lasts_s: float

    @property
    def victim(self) -> str:
        return self.kind.partition(" ")[2]


Round = tuple[Fault, ...]


def drawn(seed: int, rounds: int, lasts_s_max: float) -> list[Round]:
    """Rounds in which every kind is equally often the first fault. Some have a second fault, which begins during the
    first or, for the same victim, soon after its end: a process that is just starting is hit again."""
    chance, found = random.Random(seed), list[Round]()
    firsts: Iterator[str] = itertools.chain.from_iterable(
        chance.sample(KINDS, len(KINDS)) for _ in range(1 + rounds // len(KINDS))
    )
    for kind in itertools.islice(firsts, rounds):
        first = Fault(kind, chance.uniform(0, CALM_S), _duration(chance, lasts_s_max))
        second = Fault(chance.choice(KINDS), first.at_s, _duration(chance, lasts_s_max))
        if second.victim == first.victim:
            second = second._replace(at_s=first.at_s + first.lasts_s + chance.uniform(0.1, 1.5))
        else:
            second = second._replace(at_s=first.at_s + chance.uniform(0, first.lasts_s))
        found.append((first, second) if chance.random() < SECOND_CHANCE else (first,))
    return found


def _duration(chance: random.Random, lasts_s_max: float) -> float:
    """Often zero, which is a restart; else up to the limit."""
    return chance.choice((0.0, chance.uniform(0.2, lasts_s_max)))


def inflict(stage: RunningZones, faults: Round, before_end: Callable[[Fault], None]) -> None:
    """Inflict all faults of a round at their times; returns when the last fault has ended. `before_end` may observe
    while one lasts."""
    began_s = time.monotonic()
    moments = [(fault.at_s, False, fault) for fault in faults]
    moments += [(fault.at_s + fault.lasts_s, True, fault) for fault in faults]
    for at_s, is_end, fault in sorted(moments):
        wait_until(lambda at_s=at_s: time.monotonic() - began_s >= at_s, f"the moment of {fault}", at_s + 60)
        if is_end:
            before_end(fault)
        _act(stage, fault, is_end=is_end)


def _act(stage: RunningZones, fault: Fault, *, is_end: bool) -> None:
    process = stage.broker if fault.victim == BROKER else stage.nodes[fault.victim]
    if fault.kind.startswith("kill"):
        (process.start if is_end else process.kill)()
    else:
        (process.thaw if is_end else process.freeze)()


def fault_table(rounds: Sequence[Round], recovered_s: Sequence[float]) -> str:
    """The fault table: how often each fault was injected, and how long its rounds took to recover."""
    count, times = Counter(fault.kind for faults in rounds for fault in faults), defaultdict[str, list[float]](list)
    for faults, took_s in zip(rounds, recovered_s, strict=True):
        for kind in ("all rounds", *{fault.kind for fault in faults}):
            times[kind].append(took_s)
    count["all rounds"] = sum(count.values())
    lines = ["fault             times  recovered: p50 s   max s"]
    for kind in (*KINDS, "all rounds"):
        some = sorted(times[kind])
        figures = f"{some[(len(some) - 1) // 2]:16.2f} {some[-1]:7.2f}" if some else f"{'-':>16} {'-':>7}"
        lines.append(f"{kind:16} {count[kind]:6}  {figures}")
    return "\n".join(lines)

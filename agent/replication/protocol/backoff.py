"""How long to wait before the next try: doubling up to a limit, half of it left to chance, so that nodes do not ask in step.

A core: chance comes in as a value between 0 and 1.
"""

from __future__ import annotations

DOUBLINGS_MAX = 16


def delay_ms(least_ms: int, most_ms: int, tries: int, chance: float) -> int:
    """The wait after `tries` failures: between half and all of `least_ms`, doubled with each, at most `most_ms`."""
    full_ms = min(least_ms << min(tries, DOUBLINGS_MAX), most_ms)
    return full_ms // 2 + int(full_ms / 2 * chance)

"""How fast a peer or broker is asked: the wait between two tries, and the lowest rate a peer may be limited to.

A core: chance comes in as a value between 0 and 1.
"""

from __future__ import annotations

BYTES_PER_SECOND_MIN = 16_384
"""Lower bound of a peer's `bytes_per_second_max` in node.toml. At a lower rate one page of the smallest size would take
longer than a live stream may overdraw the peer's token bucket."""
DOUBLINGS_MAX = 16


def backoff_ms(least_ms: int, most_ms: int, tries: int, chance: float) -> int:
    """The wait in ms after `tries` failures: `least_ms` doubled with each failure, at most `most_ms`.

    Half of it is random, so that many nodes do not retry at the same moment.
    """
    full_ms = min(least_ms << min(tries, DOUBLINGS_MAX), most_ms)
    return full_ms // 2 + int(full_ms / 2 * chance)

"""Which values are recorded while two subscriptions bring the same tags: the old one, which holds what a lost session
did not receive, and the new one.

The old subscription is complete up to its last value, the new one from its first. So of each tag the old one is taken
until the new one has begun, and then only what is older than that beginning; of the new one what is not newer than the
old one's last value is left out. Each value is recorded once, and none is left out, in whatever order the two arrive.

Times are those of the server. A server whose clock is set back meanwhile may have values recorded twice or left out of
the new subscription until the old one is given up. Core: columns in, columns out.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import compress

from agent.columns import SampleColumns


class Seam:
    """The seam between the old subscriptions of one session and the new ones."""

    def __init__(self) -> None:
        self._old_ns: dict[int, int] = {}  # time of the last value that the old one brought, of each tag
        self._new_ns: dict[int, int] = {}  # time of the first value that was taken from the new one

    @property
    def is_closed(self) -> bool:
        """Whether the new subscription has begun for each tag that the old one brought."""
        return self._old_ns.keys() <= self._new_ns.keys()

    def of_old(self, samples: SampleColumns, unwanted: Container[int]) -> tuple[SampleColumns, SampleColumns]:
        """What of the old subscription is to be recorded: samples that go on from what is known of their tags, and late
        ones, which are older than what their tags have by now. None of the tags that are `unwanted`."""
        is_next: list[bool] = []
        is_late: list[bool] = []
        for tag, time_ns in zip(samples.tags, samples.source_times_ns, strict=True):
            began_ns = self._new_ns.get(tag)
            is_wanted = tag not in unwanted
            is_next.append(is_wanted and began_ns is None)
            is_late.append(is_wanted and began_ns is not None and time_ns < began_ns)
            if is_next[-1]:
                self._old_ns[tag] = max(time_ns, self._old_ns.get(tag, time_ns))
        return _only(samples, is_next), _only(samples, is_late)

    def of_new(self, samples: SampleColumns) -> SampleColumns:
        """What of the new subscription is to be recorded."""
        is_taken = [
            self._takes(tag, time_ns) for tag, time_ns in zip(samples.tags, samples.source_times_ns, strict=True)
        ]
        return _only(samples, is_taken)

    def _takes(self, tag: int, time_ns: int) -> bool:
        if tag in self._new_ns:
            return True
        if tag in self._old_ns and time_ns <= self._old_ns[tag]:
            return False  # the old one has brought it
        self._new_ns[tag] = time_ns
        return True


def _only(samples: SampleColumns, chosen: Sequence[bool]) -> SampleColumns:
    return samples if all(chosen) else SampleColumns._make(list(compress(column, chosen)) for column in samples)

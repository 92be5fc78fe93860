"""Decides which values are recorded while two subscriptions bring the same tags: the old one, which holds what a lost
session did not receive, and the new one.

A value is identified by its tag and its source time. A value that the other subscription has already brought is left
out. So each value is recorded exactly once, in whatever order the two arrive and even if the server's clock is set
meanwhile. The times of one rescue are kept, as many as the server's queues held.

Core.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import compress

from agent.columns import SampleColumns


class Deduplicator:
    """Compares the old subscriptions of one session with the new ones. `before` is the deduplicator of the previous
    session: the present old subscriptions may still hold what that one's old subscriptions brought."""

    def __init__(self, before: Deduplicator | None = None) -> None:
        self._before = {} if before is None else before._old  # noqa: SLF001 of the same class
        self._old: dict[int, set[int]] = {}  # by tag: times of the values that the old one brought
        self._new: dict[int, set[int]] = {}
        self._newest_ns: dict[int, int] = {}  # by tag: newest time that the new one brought
        self._open: set[int] = set()  # tags for which the new one may still repeat values of the old one
        self._has_old = True

    @property
    def is_closed(self) -> bool:
        """Whether the new subscription has passed, for each tag, what the old one brought."""
        return not self._open

    def of_old(self, samples: SampleColumns, unwanted: Container[int]) -> tuple[SampleColumns, SampleColumns]:
        """The samples of the old subscription to record: those that are newer than the last one of their tag, and late
        ones. Samples of `unwanted` tags are left out."""
        is_next: list[bool] = []
        is_late: list[bool] = []
        for tag, time_ns in zip(samples.tags, samples.source_times_ns, strict=True):
            is_known = time_ns in self._new.get(tag, ()) or time_ns in self._before.get(tag, ())
            is_wanted = tag not in unwanted and not is_known
            newest_ns = self._newest_ns.get(tag)
            is_next.append(is_wanted and (newest_ns is None or time_ns > newest_ns))
            is_late.append(is_wanted and not is_next[-1])
            if is_wanted:
                self._old.setdefault(tag, set()).add(time_ns)
                self._open.add(tag)
        return _only(samples, is_next), _only(samples, is_late)

    def of_new(self, samples: SampleColumns) -> SampleColumns:
        """The samples of the new subscription to record."""
        is_taken = [
            self._takes(tag, time_ns) for tag, time_ns in zip(samples.tags, samples.source_times_ns, strict=True)
        ]
        return _only(samples, is_taken)

    def end_old(self) -> None:
        """The old subscription has ended."""
        self._has_old = False
        self._new.clear()

    def _takes(self, tag: int, time_ns: int) -> bool:
        if time_ns in self._old.get(tag, ()):
            return False
        self._open.discard(tag)  # the new one continues in order, so it repeats nothing of the old one any more
        if self._has_old:
            self._new.setdefault(tag, set()).add(time_ns)
            self._newest_ns[tag] = max(time_ns, self._newest_ns.get(tag, time_ns))
        return True


def _only(samples: SampleColumns, chosen: Sequence[bool]) -> SampleColumns:
    return samples if all(chosen) else SampleColumns._make(list(compress(column, chosen)) for column in samples)

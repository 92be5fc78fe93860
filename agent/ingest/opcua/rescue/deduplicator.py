"""Which values are recorded while two subscriptions bring the same tags: the old one, which holds what a lost session
did not receive, and the new one.

A value is known by its tag and its source time. Of each subscription is left out what the other has brought, so each
value is recorded once, and none is left out, in whatever order the two arrive and wherever the server's clock is set
meanwhile. Columns go in and come out; the times of one rescue are kept, as many as the server's queues held.

Core.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import compress

from agent.columns import SampleColumns


class Deduplicator:
    """The seam between the old subscriptions of one session and the new ones. `before` is the seam of the session
    before, if it was not closed: what the subscriptions brought that were old then, those that are old now may still
    hold."""

    def __init__(self, before: Deduplicator | None = None) -> None:
        self._before = {} if before is None else before._old  # noqa: SLF001 another seam
        self._old: dict[int, set[int]] = {}  # times of the values that the old one brought, of each tag
        self._new: dict[int, set[int]] = {}
        self._newest_ns: dict[int, int] = {}  # of those that the new one brought
        self._open: set[int] = set()  # tags of which the new one may still bring what the old one has brought
        self._has_old = True

    @property
    def is_closed(self) -> bool:
        """Whether the new subscription has gone on, of each tag, behind what the old one brought."""
        return not self._open

    def of_old(self, samples: SampleColumns, unwanted: Container[int]) -> tuple[SampleColumns, SampleColumns]:
        """What of the old subscription is to be recorded: samples that go on from what is known of their tags, and late
        ones, which are older than what their tags have by now. None of the tags that are `unwanted`."""
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
        """What of the new subscription is to be recorded."""
        is_taken = [
            self._takes(tag, time_ns) for tag, time_ns in zip(samples.tags, samples.source_times_ns, strict=True)
        ]
        return _only(samples, is_taken)

    def end_old(self) -> None:
        """The old subscription brings nothing more."""
        self._has_old = False
        self._new.clear()

    def _takes(self, tag: int, time_ns: int) -> bool:
        if time_ns in self._old.get(tag, ()):
            return False
        self._open.discard(tag)  # in its order, what the old one brought lies before this
        if self._has_old:
            self._new.setdefault(tag, set()).add(time_ns)
            self._newest_ns[tag] = max(time_ns, self._newest_ns.get(tag, time_ns))
        return True


def _only(samples: SampleColumns, chosen: Sequence[bool]) -> SampleColumns:
    return samples if all(chosen) else SampleColumns._make(list(compress(column, chosen)) for column in samples)

"""Which registers of a table exist, found with few reads: a range that is answered exists as a whole, one that is refused
is halved down to single registers.

A refused register costs about two reads and an existing one almost none, so the number of reads has a limit; what is
left then is said to be unknown, never to be missing. Halves begin at even distances from the first register, because some
devices refuse to read half of a 32-bit value. A range whose parts are all answered was refused for its length: from then
on no read is longer than the longest that was answered. Core: gives the next range, takes what became of it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

Span = tuple[int, int]
"""(first, end) of wire addresses, the end not included."""


@dataclass(slots=True)
class _Range:
    """A range to be read, and the refused one that it is a part of."""

    first: int
    end: int
    whole: _Range | None = None
    open_parts: int = 0
    is_answered: bool = True  # every part of it, so far

    @property
    def count(self) -> int:
        return self.end - self.first


class RegisterScan:
    """One scan of the addresses from `first` to `end`, not included."""

    def __init__(self, first: int, end: int, count_max: int, reads_max: int) -> None:
        assert first < end, "something to look for"
        assert count_max >= 1, "a read has an entry"
        assert reads_max >= 1, "a scan makes a read"
        self._first, self._reads_max = first, reads_max
        self.count_max = count_max  # of one read; it shrinks when the device proves to take less
        # Bounded by the table of 65,536 addresses: chunks, and one half for each level below the present one.
        self._pending: deque[_Range] = deque()
        self._now: _Range | None = None
        self._found: list[Span] = []
        self.reads_total = 0
        self.refusals: Counter[str] = Counter()  # of single registers, by reason
        self._push(_Range(first, end))

    def next_range(self) -> Span | None:
        """The next range to read; None when all is known or the limit of reads is reached."""
        assert self._now is None, "tell what became of the last one first"
        if not self._pending or self.reads_total >= self._reads_max:
            return None
        wanted = self._pending.popleft()
        if wanted.count > self.count_max:
            self._push(wanted)
            wanted = self._pending.popleft()
        self._now = wanted
        self.reads_total += 1
        return wanted.first, wanted.end

    def answered(self) -> None:
        """The range was read."""
        done = self._take()
        if self._found and self._found[-1][1] == done.first:
            self._found[-1] = (self._found[-1][0], done.end)
        else:
            self._found.append((done.first, done.end))
        self._close(done, is_answered=True)

    def refused(self, why: str) -> None:
        """The range was not read; `why` is counted where it is a single register."""
        done = self._take()
        if done.count == 1:
            self.refusals[why] += 1
            self._close(done, is_answered=False)
            return
        half = (done.count + 1) // 2
        half += (done.first + half - self._first) % 2 if done.count > 2 else 0
        middle = done.first + half
        done.open_parts = 2
        self._pending.appendleft(_Range(middle, done.end, done))
        self._pending.appendleft(_Range(done.first, middle, done))

    @property
    def found(self) -> list[Span]:
        """The registers that exist, in order."""
        return list(self._found)

    @property
    def unknown(self) -> list[Span]:
        """What was not looked at, because the limit of reads was reached."""
        return list(_joined((one.first, one.end) for one in self._pending))

    @property
    def addresses_left(self) -> int:
        """How many addresses are not known yet."""
        return sum(one.count for one in self._pending)

    def _take(self) -> _Range:
        assert self._now is not None, "a range was asked for"
        done, self._now = self._now, None
        return done

    def _push(self, wide: _Range) -> None:
        """Put a range that is longer than one read in front, in reads of an even length."""
        step = max(1, self.count_max - self.count_max % 2)
        starts = range(wide.first, wide.end, step)
        parts = [_Range(start, min(start + step, wide.end), wide) for start in starts]
        wide.open_parts = len(parts)
        self._pending.extendleft(reversed(parts))

    def _close(self, done: _Range, *, is_answered: bool) -> None:
        """A range is known; so is, with its last part, the one that was refused."""
        whole = done.whole
        if whole is None:
            return
        whole.open_parts -= 1
        whole.is_answered = whole.is_answered and is_answered
        if whole.open_parts:
            return
        if whole.is_answered and whole.count <= self.count_max:
            self.count_max = max(1, (whole.count + 1) // 2)  # refused for its length alone
        self._close(whole, is_answered=whole.is_answered)


def _joined(spans: Iterator[Span]) -> Iterator[Span]:
    """Spans in order, neighbours as one."""
    last: Span | None = None
    for span in spans:
        if last is not None and last[1] == span[0]:
            last = (last[0], span[1])
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last

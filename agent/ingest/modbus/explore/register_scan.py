"""Finds the registers of a table that exist, with few reads. An answered range exists as a whole; a refused one is cut
into quarters, down to pairs and single registers.

A missing register costs up to 1.7 reads and an existing one almost none, so the number of reads is limited; the
remaining registers are reported as unknown, not as missing. Parts begin at even distances from the first register,
because some devices refuse to read half of a 32-bit value. If all parts of a refused range are answered, it was refused
for its length, or because the device does not read across a border between two of them: reads of the parts' length
across each border tell these apart. If they are answered, no read is longer than the parts from then on. Core.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

Span = tuple[int, int]
"""(first, end) of wire addresses; the end is excluded."""


@dataclass(slots=True)
class _Range:
    """A range to be read, and the refused range that it is part of. `is_across`: it is read across a border of parts
    that are known."""

    first: int
    end: int
    whole: _Range | None = None
    open_parts: int = 0
    is_answered: bool = True  # all its parts so far
    is_across: bool = False

    @property
    def count(self) -> int:
        return self.end - self.first


class RegisterScan:
    """One scan of the addresses from `first` to `end`, which is excluded."""

    def __init__(self, first: int, end: int, count_max: int, reads_max: int) -> None:
        assert first < end, "the range is not empty"
        assert count_max >= 1, "a read has at least one entry"
        assert reads_max >= 0, "it cannot take back reads"
        self._reads_max = reads_max
        self.count_max = count_max  # of one read; it shrinks if the device accepts less
        self._answered_max = 0  # the longest read
        self._refused_pairs = 0  # of registers that exist
        self._pending: deque[_Range] = deque()  # bounded by the 65,536 addresses of a table
        self._now: _Range | None = None
        self._found: list[Span] = []
        self.too_long = 0  # a length that the device refused although all its registers exist; 0: none found
        self.why_cut = ""  # what ended the scan early, other than the limit of reads
        self.reads_total = 0
        self.refusals: Counter[str] = Counter()  # of single registers, by reason
        self._cut(_Range(first, end), self._length)

    def next_range(self) -> Span | None:
        """The next range to read; None if everything is known or the limit of reads is reached."""
        assert self._now is None, "report the result of the last range first"
        if not self._pending or self.reads_total >= self._reads_max:
            return None
        wanted = self._pending.popleft()
        if wanted.count > self.count_max:
            self._cut(wanted, self._length)
            wanted = self._pending.popleft()
        self._now = wanted
        self.reads_total += 1
        return wanted.first, wanted.end

    def answered(self) -> None:
        """The range was read."""
        done = self._take_range()
        self._answered_max = max(self._answered_max, done.count)
        if done.is_across:
            self._close_across(done)
            return
        if self._found and self._found[-1][1] == done.first:
            self._found[-1] = (self._found[-1][0], done.end)
        else:
            self._found.append((done.first, done.end))
        self._close(done, is_answered=True)

    def refused(self, why: str) -> None:
        """The range was refused. `why` is counted if it is a single register."""
        done = self._take_range()
        if done.is_across:
            while self._pending and self._pending[0].whole is done.whole:
                self._pending.popleft()
            assert done.whole is not None, "it was refused"
            self._close(done.whole, is_answered=False)  # for this border
            return
        if done.count == 1:
            self.refusals[why] += 1
            self._close(done, is_answered=False)
            return
        self._cut(done, _part_of(done.count))

    @property
    def found(self) -> list[Span]:
        """The registers that exist, in order."""
        return list(self._found)

    @property
    def unknown(self) -> list[Span]:
        """The ranges that were not read because the limit of reads was reached."""
        return list(_joined((span.first, span.end) for span in self._pending if not span.is_across))

    @property
    def addresses_left(self) -> int:
        """The number of addresses that are not known yet."""
        return sum(span.count for span in self._pending if not span.is_across)

    @property
    def _length(self) -> int:
        """The length of the reads into which a longer range is cut: even, so that pairs are not split."""
        return max(1, self.count_max - self.count_max % 2)

    def _take_range(self) -> _Range:
        assert self._now is not None, "a range was asked for"
        done, self._now = self._now, None
        return done

    def _cut(self, whole: _Range, length: int) -> None:
        """Put the parts of a range first."""
        parts = [_Range(at, min(at + length, whole.end), whole) for at in range(whole.first, whole.end, length)]
        whole.open_parts = len(parts)
        self._pending.extendleft(reversed(parts))

    def _close(self, done: _Range, *, is_answered: bool) -> None:
        """A range is known. With its last part, the refused range is known too."""
        whole = done.whole
        if whole is None:
            return
        whole.open_parts -= 1
        whole.is_answered = whole.is_answered and is_answered
        if whole.open_parts:
            return
        if not whole.is_answered or whole.count > self.count_max:
            self._close(whole, is_answered=whole.is_answered)
        elif self._answered_max >= whole.count:
            self._close(whole, is_answered=False)  # not for its length
        else:
            self._read_across(whole)

    def _read_across(self, whole: _Range) -> None:
        """All parts of a refused range are answered: read across their borders, at even distances if possible."""
        length = _part_of(whole.count)
        if length == 1:  # no read of one register crosses a border; two pairs are not divided by chance
            self._refused_pairs += 1
            if self._refused_pairs > 1:
                self.count_max, self.too_long = 1, 2
            self._close(whole, is_answered=self._refused_pairs > 1)
            return
        back = max(1, length // 4 * 2)
        firsts = [min(border - back, whole.end - length) for border in range(whole.first + length, whole.end, length)]
        whole.open_parts = len(firsts)
        across = [_Range(first, first + length, whole, is_across=True) for first in firsts]
        self._pending.extendleft(reversed(across))

    def _close_across(self, done: _Range) -> None:
        """A read across a border was answered. With the last one, the range was refused for its length."""
        whole = done.whole
        assert whole is not None, "it was refused"
        whole.open_parts -= 1
        if not whole.open_parts:
            self.count_max, self.too_long = done.count, whole.count
            self._close(whole, is_answered=True)


def _part_of(count: int) -> int:
    """The length of the parts of a refused range: a quarter, and even if possible."""
    return 1 if count <= 2 else -(-count // 8) * 2


def _joined(spans: Iterator[Span]) -> Iterator[Span]:
    """Spans in order, with neighbours joined."""
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

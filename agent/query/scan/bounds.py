"""The bounds of a query, which exclude batches and facts from being read or opened. Core: no IO.

A batch's row has its offsets, origin and times; a definition has the number of a tag at its origin. Batches that these
exclude are never decompressed. Bounds exclude only facts that do not match, perhaps not all of them, so the caller must
check its conditions again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from agent.batch import SEQUENCE_MAX, Kind
from agent.columns import Unpacked
from agent.fact_store import BatchSummary
from agent.message import INT64_MIN, Message, TagDefinition

OFFSET_MAX = SEQUENCE_MAX - 1
INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Bounds:
    """Facts of these streams, offsets and times; `None` is any. `numbers`, `subject_tests` and `predicates` restrict
    the tags."""

    streams: frozenset[str] | None = None
    zones: frozenset[str] | None = None
    kinds: frozenset[int] | None = None
    offset_min: int = 1
    offset_max: int = OFFSET_MAX
    time_min_ns: int = INT64_MIN
    time_max_ns: int = INT64_MAX
    numbers: frozenset[int] | None = None
    subject_tests: tuple[Callable[[str], bool], ...] = field(default=())
    predicates: frozenset[str] | None = None

    def may_hold(self, summary: BatchSummary) -> bool:
        """Whether a batch may hold facts within the bounds, by its summary; one of the offsets that are scanned."""
        return (
            summary.time_max_ns >= self.time_min_ns
            and summary.time_min_ns <= self.time_max_ns
            and (self.kinds is None or summary.kind in self.kinds)
            and (self.zones is None or summary.origin.zone in self.zones)
            and (self.numbers is None or summary.kind == Kind.SAMPLES)
        )

    @property
    def names_tags(self) -> bool:
        """Whether the bounds restrict the tags."""
        return self.numbers is not None or self.names_subjects

    @property
    def names_subjects(self) -> bool:
        """Whether the bounds restrict the tags by the content of their definitions."""
        return bool(self.subject_tests) or self.predicates is not None

    def wants(self, number: int, definition: TagDefinition) -> bool:
        """Whether a tag is within the bounds."""
        is_number = self.numbers is None or number in self.numbers
        return is_number and self._is_about(definition.subject, definition.predicate)

    def _is_about(self, subject: str, predicate: str) -> bool:
        if self.predicates is not None and predicate not in self.predicates:
            return False
        return all(test(subject) for test in self.subject_tests)

    def sample_places(self, first_offset: int, samples: Unpacked, numbers: frozenset[int] | None) -> Sequence[int]:
        """Places of the samples of a batch that are within the bounds; `numbers` are the tags at its origin, None for
        all."""
        frame = samples.frame
        start, stop = self._span(first_offset, frame.facts)
        places: Sequence[int] = range(start, stop)
        if numbers is not None:
            tags = samples.all_tags()
            places = _places_of(tags, next(iter(numbers)), places) if len(numbers) == 1 else [
                place for place in places if tags[place] in numbers
            ]  # fmt: skip
        if self.time_min_ns > frame.time_min_ns or self.time_max_ns < frame.time_max_ns:
            least, greatest = self.time_min_ns, self.time_max_ns
            times_ns = samples.times_ns_at(places)
            places = [place for place, at in zip(places, times_ns, strict=True) if least <= at <= greatest]
        return places

    def message_places(self, first_offset: int, messages: Sequence[Message]) -> Sequence[int]:
        """Places of the messages of a batch that are within the bounds."""
        start, stop = self._span(first_offset, len(messages))
        return [place for place in range(start, stop) if self._wants_message(messages[place])]

    def _wants_message(self, message: Message) -> bool:
        at_ns = message.envelope.produced_at_unix_ms * 1_000_000
        return self.time_min_ns <= at_ns <= self.time_max_ns and self._is_about(
            message.fact.subject, message.fact.predicate
        )

    def _span(self, first_offset: int, count: int) -> tuple[int, int]:
        start = max(0, self.offset_min - first_offset)
        return start, max(start, min(count, self.offset_max - first_offset + 1))


def matches_glob(subject: str, globs: Sequence[str]) -> bool:
    """Whether a tag's subject, with or without its `tag:`, matches one of some patterns of * ? and [...]."""
    names = (subject, subject.removeprefix("tag:"))
    return any(fnmatchcase(name, glob) for glob in globs for name in names)


def _places_of(tags: list[int], number: int, span: Sequence[int]) -> list[int]:
    """The places of one number, searched in C because most queries are about one tag."""
    found = list[int]()
    if not span:
        return found
    at, stop = span[0], span[-1] + 1
    try:
        while True:
            at = tags.index(number, at, stop)
            found.append(at)
            at += 1
    except ValueError:
        return found

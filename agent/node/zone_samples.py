"""The samples of the zone in a store, whichever life recorded them: this node's, or those of the other node of the
zone.

Both nodes number their tags, so where the store has several chains of definitions of the zone, tags are matched by what
is defined. Of a tag's samples the one of the highest life is the newest, wherever it lies in the log: who takes the
lead begins a higher life, and the tail of a node that failed comes late.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agent.batch import Kind
from agent.fact_store import StoreReader
from agent.ingest import Newest
from agent.message import Sample, TagDefinition
from agent.query.scan import BatchFacts, Bounds, Dictionary, NumbersOnly, Scanner

TagKey = Callable[[TagDefinition], Hashable]
"""What tags must have in common to be the same; None for a tag that is none of them."""


Place = tuple[bytes, int]
"""Life and first sequence of a batch: the order in which a zone has recorded them."""


@dataclass(slots=True)
class AskedTags:
    """Tags by this node's numbers, and how to find them in each chain of the zone's definitions."""

    bounds: Bounds
    dictionary: Dictionary
    numbers: Mapping[int, int] = field(default_factory=dict)
    """The numbers to look for, with the one that was asked for; empty: each is the one."""
    key: TagKey | None = None
    """If there are several chains: what a definition of `wanted` has in common with that of an asked number."""
    wanted: Mapping[Hashable, int] = field(default_factory=dict)
    _known: dict[int, tuple[int, dict[int, int]]] = field(default_factory=dict)

    def tags_of(self, facts: BatchFacts) -> Sequence[int | None]:
        """The tags of some samples, by the numbers that were asked for; None for one that was not."""
        tags: Sequence[int] = facts.column("tag")
        numbers = self.numbers if self.key is None else self._numbers_in(facts.definitions, self.key)
        return tags if self.key is None and not numbers else list(map(numbers.get, tags))

    def _numbers_in(self, definitions: Sequence[TagDefinition], key: TagKey) -> Mapping[int, int]:
        """`definitions`: the same list for all batches of a chain, which grows."""
        checked, known = self._known.get(id(definitions), (0, {}))
        if checked < len(definitions):
            keys = enumerate(map(key, definitions[checked:]), checked + 1)
            known |= {number: self.wanted[found] for number, found in keys if found in self.wanted}
            self._known[id(definitions)] = len(definitions), known
        return known


class ZoneSamples:
    """Searches in the store of a node."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._dictionary = Dictionary(reader)
        """Read only where the zone has several chains: the definitions of ten thousand tags take 4 MB."""

    def own_tags(self) -> Sequence[TagDefinition]:
        """This node's definitions, by number; not kept."""
        return Dictionary(self._reader).own().tags

    def asked(self, numbers: Iterable[int], key: TagKey, *, with_others: bool = False) -> AskedTags:
        """Tags by this node's numbers. `with_others`: also what this node has recorded of them under other numbers."""
        numbers = frozenset(numbers)
        if sum(zone == self._reader.zone for zone, _ in self._reader.definition_ends()) <= 1:
            others = self._others(numbers, key) if with_others else {}
            return AskedTags(Bounds(numbers=numbers.union(others)), NumbersOnly(self._reader), others)
        own = self._dictionary.own().tags
        tags = {number: own[number - 1] for number in sorted(numbers) if number <= len(own)}
        subjects = frozenset(tag.subject for tag in tags.values())
        wanted = {key(tag): number for number, tag in tags.items()}
        return AskedTags(Bounds(subject_tests=(subjects.__contains__,)), self._dictionary, key=key, wanted=wanted)

    def _others(self, numbers: Collection[int], key: TagKey) -> Mapping[int, int]:
        own = self.own_tags()
        wanted = {key(own[number - 1]): number for number in numbers if number <= len(own)}
        found = {number: wanted[tag] for number, tag in enumerate(map(key, own), 1) if tag in wanted}
        return found | {number: number for number in numbers}

    def facts(
        self, bounds: Bounds, kind: Kind, dictionary: Dictionary | None = None, depth_facts: int | None = None
    ) -> Iterator[BatchFacts]:
        """Facts of the zone in the one stream of the bounds; with a depth, only the last ones, newest first."""
        assert bounds.streams is not None, "a depth is of one stream"
        (stream,) = bounds.streams
        scanner = Scanner(self._reader, dictionary or NumbersOnly(self._reader))
        if stream not in scanner.ends:
            return  # nothing was ever recorded in it
        bounds = replace(bounds, zones=frozenset({self._reader.zone}), kinds=frozenset({kind.value}))
        if depth_facts is not None:
            bounds = replace(bounds, offset_min=max(1, scanner.ends[stream] - depth_facts + 1))
        yield from scanner.scan(bounds, newest_first=depth_facts is not None)

    def find_newest(self, stream: str, asked: AskedTags, found: NewestSearch, depth_facts: int) -> None:
        """Search a stream from its end, until each tag is found and no batch of a higher life lies before."""
        bounds, lowest = replace(asked.bounds, streams=frozenset({stream})), None
        for facts in self.facts(bounds, Kind.SAMPLES, asked.dictionary, depth_facts):
            header = facts.batch.header
            place = header.origin.life, header.first_sequence
            found.add(place, _rows(facts, found.open_among(asked.tags_of(facts), place)))
            if not found.is_complete:
                continue
            if lowest is None:
                lowest = self._reader.lowest_offset_above(stream, self._reader.zone, found.lowest_life)
            if lowest is None or facts.first_offset <= lowest:
                break


class NewestSearch:
    """The newest sample of each tag, and the newest good one, of batches that come in any order."""

    def __init__(self, numbers: Iterable[int], *, is_good_needed: bool = True) -> None:
        self._newest: dict[int, tuple[Place, Sample]] = {}
        self._good_ns: dict[int, tuple[Place, int]] = {}
        self._wanted = set(numbers)
        self._needed: Mapping[int, tuple[Place, object]] = self._good_ns if is_good_needed else self._newest
        self._lowest: Place | None = None  # of the batches in which a tag was found

    @property
    def is_complete(self) -> bool:
        """Whether each tag was found, a good sample of it if one is needed."""
        return not self._wanted

    @property
    def lowest_life(self) -> bytes:
        """The lowest life in which one was found."""
        return min((place[0] for place, _ in self._needed.values()), default=b"")

    def open_among(self, tags: Sequence[int | None], place: Place) -> Sequence[int | None]:
        """These tags of a batch, with None for those that are found in a later one: while a search for a few goes on,
        the samples of all others are not looked at."""
        if self._lowest is None or place >= self._lowest:
            return tags
        return [tag if tag in self._wanted else None for tag in tags]

    def add(self, place: Place, samples: Sequence[Sample]) -> None:
        """Look at samples of a batch, in the order of recording. Of those of one place, the ones added first are the
        newer ones."""
        newest, good_ns = self._newest, self._good_ns
        for sample in reversed(samples):
            tag = sample.tag
            if (known := newest.get(tag)) is None or known[0] < place:
                newest[tag] = place, sample
            if not sample.quality & 0x8000_0000 and ((good := good_ns.get(tag)) is None or good[0] < place):
                good_ns[tag] = place, sample.source_time_ns
        done = {sample.tag for sample in samples}.intersection(self._needed)
        if done and (self._lowest is None or place < self._lowest):
            self._lowest = place
        self._wanted -= done

    def by_tag(self) -> dict[int, Newest]:
        """What was found, the last one recorded first."""
        found = sorted(self._newest.items(), key=lambda item: item[1][0], reverse=True)
        return {tag: Newest(sample, self._good_ns.get(tag, (None, 0))[1]) for tag, (_, sample) in found}


def _rows(facts: BatchFacts, tags: Sequence[Any]) -> list[Sample]:
    """The samples of some facts in the order of recording, under the numbers that were asked for."""
    times_ns, qualities = (facts.column(name) for name in ("source_time_ns", "quality"))
    rows = zip(tags, times_ns, facts.values(), qualities, strict=True)
    samples = [Sample(*row) for row in rows if row[0] is not None]
    return samples if is_forward(facts) else samples[::-1]


def is_forward(facts: BatchFacts) -> bool:
    """Whether the places of facts are in the order of recording."""
    return facts.places[0] <= facts.places[-1]

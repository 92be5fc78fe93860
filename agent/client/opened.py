"""Opens the batches of a page: facts with their offsets, and what is lacking for that. Core: no IO."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from agent.batch import Batch, Definitions, batch_messages, parse
from agent.columns import BatchError
from agent.message import Envelope, Fact, Message, TagDefinition
from agent.pages import DefinitionChain, Hole, LackingDefinitions
from agent.positions import Position
from agent.replication.protocol.messages import LatestEntry, PageAnswer


@dataclass(frozen=True, slots=True)
class FetchedFact:
    """A fact of a stream, and its offset there. A sample is shown as the message that it stands for."""

    offset: int
    envelope: Envelope
    fact: Fact

    @property
    def value(self) -> Any:
        """The object of the fact."""
        return json.loads(self.fact.object_json)


class LatestValue(LatestEntry, frozen=True):
    """The latest value of a tag, decoded."""

    value: Any

    @classmethod
    def of(cls, entry: LatestEntry) -> Self:
        """Of an entry as it was sent."""
        found = {name: getattr(entry, name) for name in entry.__struct_fields__}
        return cls(**found | {"value": json.loads(bytes(entry.value))})


@dataclass(frozen=True, slots=True)
class FetchedPage:
    """Facts in order, and the holes among them: offsets that the store no longer has, with the reason. `position`: the
    end of the page, to be confirmed once its facts are stored; `more`: facts follow it already."""

    stream: str
    facts: Sequence[FetchedFact]
    holes: Sequence[Hole]
    position: Position
    more: bool

    def in_order(self) -> list[FetchedFact | Hole]:
        """Facts and holes by offset."""
        return sorted([*self.facts, *self.holes], key=lambda part: getattr(part, "offset", None) or part.first_offset)  # type: ignore[union-attr]


class TagChains:
    """The tag definitions that have come, by zone."""

    def __init__(self) -> None:
        self._chains: dict[str, list[tuple[list[bytes], list[TagDefinition]]]] = {}

    def of(self, zone: str, definitions: Definitions) -> list[TagDefinition] | None:
        """The tags of a chain that begins with these definitions."""
        count = definitions.count
        for digests, tags in self._chains.get(zone, ()):
            if count <= len(digests) and digests[count - 1] == definitions.digest:
                return tags
        return None

    def lacking(self, batches: Iterable[Batch]) -> list[LackingDefinitions]:
        """What the batches name and has not come."""
        named = {(batch.header.origin.zone, batch.header.definitions) for batch in batches}
        wanted = [(zone, end) for zone, end in named if end.count and self.of(zone, end) is None]
        return [LackingDefinitions(zone, end, []) for zone, end in wanted]

    def put(self, chain: DefinitionChain) -> None:
        """Keep a whole chain, in the place of a beginning of it."""
        running, digests = Definitions(), list[bytes]()
        for body in chain.bodies:
            running = running.extended(body)
            digests.append(running.digest)
        others = [known for known in self._chains.get(chain.zone, ()) if known[0] != digests[: len(known[0])]]
        self._chains[chain.zone] = [*others, (digests, [TagDefinition.from_json(body) for body in chain.bodies])]


def parsed(answer: PageAnswer, attached: Sequence[bytes]) -> list[tuple[int, int, Batch | None]]:
    """First and last offset of each batch of a page, and the batch; None for one that cannot be read."""
    found = list[tuple[int, int, Batch | None]]()
    for (first, last, _), sealed in zip(answer.batches, attached, strict=True):
        try:
            found.append((first, last, parse(sealed)))
        except BatchError:
            found.append((first, last, None))
    return found


def opened(
    batches: Sequence[tuple[int, int, Batch | None]], chains: TagChains, damaged: list[Hole]
) -> Iterator[FetchedFact]:
    """The facts of the batches. One that cannot be opened goes to `damaged`."""
    for first, last, batch in batches:
        messages = None if batch is None else _messages(batch, chains)
        if messages is None:
            damaged.append(Hole(first, last, "damaged"))
            continue
        for offset, message in enumerate(messages, first):
            yield FetchedFact(offset, message.envelope, message.fact)


def _messages(batch: Batch, chains: TagChains) -> list[Message] | None:
    """The facts of a batch; None if it cannot be opened, or its definitions are lost."""
    tags = chains.of(batch.header.origin.zone, batch.header.definitions)
    try:
        return list(batch_messages(batch, tags or []))
    except (BatchError, IndexError):
        return None

"""What a store has promised, and whether it kept it: the checker that kills, power cuts, full and failing disks share.

A writer made to be hurt says one line for each acknowledgement (`say`), in one `os.write`, so that none is half
written. Values of samples count up from 1 in the order they were appended, ids of messages and batches of `north` too,
so a number says it all:

    D n              definitions up to n          S n              samples up to value n
    M n              messages up to id-n          P n              batches of north up to n, with the position n
    R name           consumer registered          C name a b f     offsets a to b confirmed, frontier answered f
    E error          something failed with it

`Promises` hears those lines; `broken` compares a store with them and returns every complaint, `lost: ...` where
something acknowledged is not there and `wrong: ...` where the store contradicts itself. A store may hold more than was
acknowledged: the answer may not have got out. Only what every consumer has confirmed may be gone.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from agent import batch
from agent.fact_store import FactStore, StoreDamaged
from agent.fact_store.core.records import ConsumerState
from agent.settings.store import StreamSettings
from tests.fact_store.making import EVERYTHING, OPERATIONAL, TELEMETRY, Elsewhere, tag
from tests.support.received import chains_in

NORTH = "facts.north"
# Facts of this stream go as soon as every consumer has confirmed them: the rest of what a writer does meets retention.
STREAMS = (StreamSettings(TELEMETRY, keep_hours=0),)
RUN = 5  # samples of one append, facts of one batch


def say(kind: str, *words: object) -> None:
    """Write one acknowledgement."""
    os.write(1, (" ".join(map(str, (kind, *words))) + "\n").encode())


@dataclass
class Promises:
    """The last number acknowledged of each kind, and what was confirmed."""

    definitions: int = 0
    samples: int = 0
    messages: int = 0
    batches: int = 0
    confirmed: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    frontiers: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    count: int = 0

    def hear(self, said: bytes) -> None:
        """Remember every whole line."""
        for line in said.decode().splitlines():
            kind, *words = line.split()
            self.count += 1
            match kind:
                case "D":
                    self.definitions = max(self.definitions, int(words[0]))
                case "S":
                    self.samples = max(self.samples, int(words[0]))
                case "M":
                    self.messages = max(self.messages, int(words[0]))
                case "P":
                    self.batches = max(self.batches, int(words[0]))
                case "R":
                    self.confirmed.setdefault(words[0], [])
                case "C":
                    first, last, frontier = map(int, words[1:])
                    self.confirmed.setdefault(words[0], []).append((first, last))
                    self.frontiers[words[0]] = max(self.frontiers.get(words[0], 0), frontier)
                case "E":
                    self.errors += words
                case _:
                    raise AssertionError(f"{line!r} is no acknowledgement")


@dataclass
class Held:
    """What a store holds, read through its API."""

    values: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    north: int = 0
    first_offsets: dict[str, int] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)


def broken(store: FactStore, promises: Promises) -> list[str]:
    """Every promise that the store does not keep."""
    held = _read(store)
    return [*held.complaints, *_facts(store, held, promises), *_others(store, promises)]


def _read(store: FactStore) -> Held:
    """Read every stream from its first fact on, comparing digests, links and offsets on the way."""
    held = Held()
    for info in store.streams():
        held.first_offsets[info.name] = info.first_offset
        next_offset, links = info.first_offset, dict[batch.Origin, batch.Link]()
        page = store.read(info.name, info.first_offset - 1, EVERYTHING, EVERYTHING)
        for stored in page.batches:
            try:
                parsed = batch.parse(stored.sealed)
                batch.verify(parsed)
            except batch.BatchError as error:
                held.complaints.append(f"wrong: {info.name} {stored.first_offset}: {error}")
                break
            header = parsed.header
            if stored.first_offset != next_offset or stored.last_offset - stored.first_offset + 1 != header.count:
                held.complaints.append(f"wrong: {info.name}: {stored.first_offset} follows {next_offset - 1}")
            link = links.get(header.origin)
            if link is not None and header.first_sequence < link.next_sequence:
                held.complaints.append(f"wrong: {info.name}: sequence {header.first_sequence} is there twice")
            if (
                link is not None
                and header.first_sequence == link.next_sequence
                and header.previous_digest != link.digest
            ):
                held.complaints.append(f"wrong: {info.name}: the chain of {header.origin} is broken")
            next_offset, links[header.origin] = stored.last_offset + 1, parsed.link
            _open(held, info.name, parsed)
        if next_offset != info.end_offset + 1:
            held.complaints.append(f"wrong: {info.name} ends at {next_offset - 1}, not at {info.end_offset}")
    return held


def number_of(value: object) -> int:
    """The number that a sample's value is, or begins with."""
    return int(str(value).partition(" ")[0])


def _open(held: Held, stream: str, parsed: batch.Batch) -> None:
    if stream == TELEMETRY:
        held.values += map(number_of, batch.open_samples(parsed).values)
    elif stream == OPERATIONAL:
        held.ids += [message.envelope.message_id for message in batch.open_messages(parsed)]
    elif stream == NORTH:
        held.north += 1


def _facts(store: FactStore, held: Held, promises: Promises) -> Iterator[str]:
    """Own samples, own messages and received batches: all acknowledged ones are there, none twice, without a gap."""
    first = held.first_offsets.get(TELEMETRY, 1)
    last = first - 1 + len(held.values)
    if held.values != list(range(first, last + 1)):
        yield f"wrong: values are not those appended from {first} on, each once"
    if last % RUN:
        yield "wrong: an append is there in part"
    if last < promises.samples:
        yield f"lost: samples {last + 1} to {promises.samples}"
    if held.ids != [f"id-{n}" for n in range(1, len(held.ids) + 1)]:
        yield "wrong: messages are not those appended, each once"
    if len(held.ids) < promises.messages:
        yield f"lost: messages {len(held.ids) + 1} to {promises.messages}"
    position = store.inbound.peer_position("north", NORTH)
    offset = position.offset if position else 0
    if offset != held.north:
        yield f"wrong: north's position is {offset}, its batches are {held.north}: facts and position are one transaction"
    if held.north < promises.batches:
        yield f"lost: batches of north {held.north + 1} to {promises.batches}"


def _others(store: FactStore, promises: Promises) -> Iterator[str]:
    """Definitions, own and received; consumers and what they confirmed."""
    counts = store.reader.definition_counts()
    for zone, count in counts.items():
        try:
            (chain,) = [known for known in chains_in(store) if known.zone == zone]
        except (StoreDamaged, ValueError) as error:  # also where not even the newest of them is found
            yield f"wrong: definitions: {error}"
            continue
        if chain.bodies != [tag(n).to_json() for n in range(1, count + 1)]:
            yield f"wrong: {zone} does not have the definitions it was given"
    if (own := store.reader.own_definitions().count) < promises.definitions:
        yield f"lost: definitions {own + 1} to {promises.definitions}"
    if promises.batches and counts.get("north", 0) < 2:
        yield "lost: definitions of north"
    consumers = {consumer.name: consumer for consumer in store.consumers.all()}
    for name, ranges in promises.confirmed.items():
        if (consumer := consumers.get(name)) is None:
            yield f"lost: consumer {name}"
            continue
        if consumer.frontier < promises.frontiers.get(name, 0):
            yield f"lost: frontier of {name} is {consumer.frontier}, answered was {promises.frontiers[name]}"
        for first, last in ranges:
            if not _is_confirmed(consumer, first, last):
                yield f"lost: {name} confirmed {first} to {last}"
    for info in store.streams():
        frontiers = [state.frontier for state in consumers.values() if state.stream == info.name]
        if info.first_offset - 1 > min(frontiers, default=0):
            yield f"lost: {info.name} begins at {info.first_offset}, confirmed is {frontiers}"
    for state in consumers.values():
        if state.frontier > store.end_offset(state.stream):
            yield f"wrong: {state.name} confirmed {state.frontier}, beyond the log"


def _is_confirmed(consumer: ConsumerState, first: int, last: int) -> bool:
    known = [(1, consumer.frontier), *consumer.confirmed.ranges]
    return last <= consumer.frontier or any(
        low <= max(first, consumer.frontier + 1) and last <= high for low, high in known
    )


def origin_of_north() -> Elsewhere:
    """The origin whose batches a writer under test receives. Each process makes it again, with the same bytes."""
    return Elsewhere("north", stream=NORTH)

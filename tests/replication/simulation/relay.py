"""A relay that was taken over: an attacker with its store, its certificate and its connections.

For a while it does at random what the relay's machine can do:

    forge      writes facts that their zone never recorded into its log, behind the real ones, with a sound chain
    invent     the same under an life that their zone never began
    change     changes facts in a page that it serves, and chains those behind them again
    spoil      changes the record of a batch, and makes the digest fit
    drop       names facts that it holds as expired
    withhold   ends a page early, and names its end as the end of its log
    reorder    serves the batches of a page in another order
    replay     answers with a page that it sent before, to any reader, under the life of that time

It may show a change to some of its readers and not to the others (split views). Then its machine is installed again,
with an empty store. It cannot break digests or signatures, and it requests nothing in the name of others.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from agent.batch import Batch, Definitions, Kind, Link, Origin, Sign, open_samples, parse, seal_columns, seal_samples
from agent.errors import StoreError
from agent.message import TagDefinition
from agent.replication.protocol.codec import decode_answer
from agent.replication.protocol.messages import FetchAnswer
from agent.signing.messages import MessagePlace, sign_answer, split_answer
from agent.signing.records import sign_record
from tests.replication.answers import encode_answer
from tests.replication.simulation.checkers import STREAM, Key
from tests.replication.simulation.trust import signer_of
from tests.signing.making import spoiled, with_record
from tests.support.received import chain_of, put_page

if TYPE_CHECKING:
    from tests.replication.simulation.node import Node

FORGE_MS = 700
SPOILED = 0.3
"""Of the pages that the relay serves while it is taken over."""
REMEMBERED = 30


@dataclass
class TakenOver:
    """The attacker on one node."""

    node: Node
    victims: frozenset[str]
    """The zones that are shown what is changed; the others see honest pages."""
    forged: int = 0
    _sent: list[bytes] = field(default_factory=list)

    def begin(self) -> None:
        """The attacker is on the machine, and acts in every life of the node until it is installed again."""
        self.node.after(self.node.world.chance.randint(1, FORGE_MS), self._forge)

    # --- what it writes

    def _forge(self) -> None:
        world, store = self.node.world, self.node.running
        others = [origin for origin in store.reader.held(STREAM) if origin.zone != self.node.zone]
        if others:
            origin = world.chance.choice(sorted(others, key=str))
            is_invented = world.chance.random() < 0.4
            if is_invented:
                origin = Origin(origin.zone, world.chance.randbytes(16))
            held = store.reader.held(STREAM).get(origin, ())
            link = (
                Link(STREAM, origin, held[-1].last_sequence + 1, held[-1].last_digest) if held else Link(STREAM, origin)
            )
            body = TagDefinition("tag:line1/t1").to_json()
            sign = self._sign if world.chance.random() < 0.5 else None
            batch = self._sealed(link, world.chance.randint(1, 12), Definitions().extended(body), sign)
            with suppress(StoreError):
                definitions = [chain_of(origin.zone, [body])]
                put_page(store, origin.zone, STREAM, [batch], definitions, None)
            world.injected["relay_invented" if is_invented else "relay_forged"] += 1
        self.node.after(int(world.chance.expovariate(1 / FORGE_MS)) + 1, self._forge)

    @property
    def _sign(self) -> Sign:
        """Signs with the only key that the attacker has: the relay's."""
        return partial(sign_record, signer_of(self.node.zone), signed_at_ms=2**40)

    def _sealed(self, link: Link, count: int, definitions: Definitions, sign: Sign | None) -> Batch:
        """A batch of values that no zone records, chained as if its zone had sealed it."""
        first = self.forged + 1
        self.forged += count
        batch = seal_samples(
            link, [(1, number * 1_000_000, -number, 0) for number in range(first, first + count)], definitions, sign
        )
        return self._as_forged(batch)

    def _as_forged(self, batch: Batch) -> Batch:
        """The batch, which no zone made."""
        header = batch.header
        self.node.world.check.forged.add(Key(header.origin, header.first_sequence, batch.digest))
        return batch

    # --- what it serves

    def spoiled(self, place: MessagePlace, payload: bytes) -> bytes:
        """The answer to a zone's request as the attacker sends it, signed with the relay's key."""
        message, _ = split_answer(payload)
        found = self._spoiled(place.asking_node, message)
        return payload if found is message else sign_answer(signer_of(self.node.zone), place, found)

    def _spoiled(self, zone: str, payload: bytes) -> bytes:
        chance, world = self.node.world.chance, self.node.world
        answer, attached = decode_answer(payload)
        if not isinstance(answer, FetchAnswer):
            return payload
        self._sent = [*self._sent[-REMEMBERED:], payload]
        if zone not in self.victims or not answer.batches or chance.random() >= SPOILED:
            return payload
        attacks = {
            "changed": self._change,
            "spoiled": self._spoil,
            "dropped": self._drop,
            "withheld": self._withhold,
            "reordered": self._reorder,
        }
        name = chance.choice([*attacks, "replayed"])
        world.injected[f"relay_{name}"] += 1
        if name == "replayed":
            return chance.choice(self._sent)
        parts = [
            _Part(first, last, sealed_batch)
            for (first, last, _), sealed_batch in zip(answer.batches, attached, strict=True)
        ]
        return _packed(*attacks[name](answer, parts))

    def _change(self, answer: FetchAnswer, parts: list[_Part]) -> tuple[FetchAnswer, list[_Part]]:
        """Other facts in one batch, and the batches of its origin behind it chained to them; their records stay, are
        left out, or are signed with the relay's own key."""
        chance = self.node.world.chance
        at, records, links = chance.randrange(len(parts)), chance.choice(("kept", "none", "own")), dict[Origin, Link]()
        sign = None if records == "none" else self._sign
        found = list[_Part]()
        for index, part in enumerate(parts):
            batch = honest = parse(part.sealed)
            header, link = batch.header, links.get(batch.header.origin)
            is_others = header.kind is Kind.SAMPLES and header.origin.zone != self.node.zone
            if is_others and not header.is_slice and (index == at or link is not None):
                if link is None:
                    link = Link(STREAM, header.origin, header.first_sequence, header.previous_digest)
                    batch = self._sealed(link, header.count, header.definitions, sign)
                else:
                    batch = self._as_forged(seal_columns(link, open_samples(batch), header.definitions, sign))
                if records == "kept" and honest.record:
                    batch = self._as_forged(with_record(batch, honest.record))
                links[header.origin] = batch.link
                part = replace(part, sealed=batch.sealed)  # noqa: PLW2901 - the changed one takes its place
            found.append(part)
        return answer, found

    def _spoil(self, answer: FetchAnswer, parts: list[_Part]) -> tuple[FetchAnswer, list[_Part]]:
        """One bit of a signature is another one."""
        at = self.node.world.chance.randrange(len(parts))
        batch = parse(parts[at].sealed)
        if not batch.header.is_signed or batch.header.origin.zone == self.node.zone:
            return answer, parts
        changed = replace(parts[at], sealed=self._as_forged(spoiled(batch)).sealed)
        return answer, [*parts[:at], changed, *parts[at + 1 :]]

    def _drop(self, answer: FetchAnswer, parts: list[_Part]) -> tuple[FetchAnswer, list[_Part]]:
        """One batch is named as expired."""
        gone = self.node.world.chance.choice(parts)
        self.node.world.check.hidden(self.node, gone.first_offset, gone.last_offset)
        holes = sorted([*answer.holes, (gone.first_offset, gone.last_offset, "expired")])
        return msgspec.structs.replace(answer, holes=holes), [part for part in parts if part is not gone]

    def _withhold(self, answer: FetchAnswer, parts: list[_Part]) -> tuple[FetchAnswer, list[_Part]]:
        """The page ends before its last batch, and so does the log."""
        cut = parts[-1].first_offset
        kept = msgspec.structs.replace(
            answer,
            omitted=[span for span in answer.omitted if span[0] < cut],
            holes=[hole for hole in answer.holes if hole[0] < cut],
            more=False,
            end_offset=max(cut - 1, answer.frontier),
        )
        return kept, parts[:-1]

    def _reorder(self, answer: FetchAnswer, parts: list[_Part]) -> tuple[FetchAnswer, list[_Part]]:
        """The batches come in another order, if nothing lies between them."""
        if answer.omitted or answer.holes:
            return answer, parts
        first_offset, found = parts[0].first_offset, list[_Part]()
        for part in self.node.world.chance.sample(parts, len(parts)):
            last_offset = first_offset + part.last_offset - part.first_offset
            found.append(replace(part, first_offset=first_offset, last_offset=last_offset))
            first_offset = last_offset + 1
        return answer, found


@dataclass(frozen=True)
class _Part:
    """A batch of a page."""

    first_offset: int
    last_offset: int
    sealed: bytes


def _packed(answer: FetchAnswer, parts: list[_Part]) -> bytes:
    entries = [(part.first_offset, part.last_offset, len(part.sealed)) for part in parts]
    return encode_answer(msgspec.structs.replace(answer, batches=entries), [part.sealed for part in parts])

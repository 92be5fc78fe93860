"""A relay that was taken over: an attacker with its store, its certificate and its place between the others.

For a while it does whatever the relay's machine can do, by chance:

    forge      writes facts that their zone never recorded into its log, behind the real ones, with a sound chain
    invent     the same under an epoch that their zone never began
    change     changes facts in a page that it serves, and chains those behind them again
    drop       names facts that it holds as expired
    withhold   ends a page early, and names its end as the end of its log
    reorder    serves the batches of a page in another order
    replay     answers with a page that it sent before, to anybody, under whatever epoch was then

What it changes it may show to some that read from it and not to the others (split views). Then its machine is installed
anew, with an empty store. It cannot break digests or signatures, and it requests nothing in the name of others.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from agent.batch import Batch, Definitions, Kind, Link, Origin, open_samples, parse, seal_columns, seal_samples
from agent.fact_store.log.errors import StoreError
from agent.pages import ReceivedDefinition
from agent.replication.protocol.codec import decode_answer, encode_answer
from agent.replication.protocol.messages import FetchAnswer
from tests.replication.simulation.checkers import STREAM, Key

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
        """The attacker is on the machine, and acts in every life of the node until it is installed anew."""
        self.node.after(self.node.world.chance.randint(1, FORGE_MS), self._forge)

    # --- what it writes

    def _forge(self) -> None:
        world, store = self.node.world, self.node.running
        others = [origin for origin in store.held(STREAM) if origin.zone != self.node.zone]
        if others:
            origin = world.chance.choice(sorted(others, key=str))
            is_invented = world.chance.random() < 0.4
            if is_invented:
                origin = Origin(origin.zone, world.chance.randbytes(16))
            held = store.held(STREAM).get(origin, ())
            link = (
                Link(STREAM, origin, held[-1].last_sequence + 1, held[-1].last_digest) if held else Link(STREAM, origin)
            )
            body = store.definitions(store.origin, 0, 1)[0]
            batch = self._sealed(link, world.chance.randint(1, 12), Definitions().extended(body))
            with suppress(StoreError):
                definitions = [ReceivedDefinition(origin, 1, body)]
                store.inbound.put_batches(origin.zone, STREAM, [batch], definitions, None)
            world.injected["relay_invented" if is_invented else "relay_forged"] += 1
        self.node.after(int(world.chance.expovariate(1 / FORGE_MS)) + 1, self._forge)

    def _sealed(self, link: Link, count: int, definitions: Definitions) -> Batch:
        """A batch of values that no zone records, chained as if its zone had sealed it."""
        first = self.forged + 1
        self.forged += count
        batch = seal_samples(
            link, [(1, number * 1_000_000, -number, 0) for number in range(first, first + count)], definitions
        )
        self.node.world.check.forged.add(Key(link.origin, link.next_sequence, batch.digest))
        return batch

    # --- what it serves

    def spoiled(self, zone: str, payload: bytes) -> bytes:
        """The answer to a zone's request as the attacker sends it."""
        chance, world = self.node.world.chance, self.node.world
        answer, sealed = decode_answer(payload)
        if not isinstance(answer, FetchAnswer):
            return payload
        self._sent = [*self._sent[-REMEMBERED:], payload]
        if zone not in self.victims or not sealed or chance.random() >= SPOILED:
            return payload
        attacks = {
            "changed": self._change,
            "dropped": self._drop,
            "withheld": self._withhold,
            "reordered": self._reorder,
        }
        name = chance.choice([*attacks, "replayed"])
        world.injected[f"relay_{name}"] += 1
        if name == "replayed":
            return chance.choice(self._sent)
        return encode_answer(*attacks[name](answer, sealed))

    def _change(self, answer: FetchAnswer, sealed: list[bytes]) -> tuple[FetchAnswer, list[bytes]]:
        """Other facts in one batch, and the batches of its origin behind it chained to them."""
        at = self.node.world.chance.randrange(len(sealed))
        links, found = dict[Origin, Link](), list[bytes]()
        for index, one in enumerate(sealed):
            batch = parse(one)
            header, link = batch.header, links.get(batch.header.origin)
            if index == at and header.kind is Kind.SAMPLES and not header.is_slice:
                before = Link(STREAM, header.origin, header.first_sequence, header.previous_digest)
                batch = self._sealed(before, header.count, header.definitions)
                links[header.origin] = batch.link
            elif link is not None and header.kind is Kind.SAMPLES and not header.is_slice:
                batch = seal_columns(link, open_samples(batch), header.definitions)
                self.node.world.check.forged.add(Key(header.origin, link.next_sequence, batch.digest))
                links[header.origin] = batch.link
            found.append(batch.sealed)
        sizes = [(first, last, len(body)) for (first, last, _), body in zip(answer.batches, found, strict=True)]
        return msgspec.structs.replace(answer, batches=sizes), found

    def _drop(self, answer: FetchAnswer, sealed: list[bytes]) -> tuple[FetchAnswer, list[bytes]]:
        """One batch is named as expired."""
        at = self.node.world.chance.randrange(len(sealed))
        first, last, _ = answer.batches[at]
        self.node.world.check.hidden(self.node, first, last)
        holes = sorted([*answer.holes, (first, last, "expired")])
        left = [one for index, one in enumerate(answer.batches) if index != at]
        return msgspec.structs.replace(answer, batches=left, holes=holes), [*sealed[:at], *sealed[at + 1 :]]

    def _withhold(self, answer: FetchAnswer, sealed: list[bytes]) -> tuple[FetchAnswer, list[bytes]]:
        """The page ends before its last batch, and so does the log."""
        cut = answer.batches[-1][0]
        end = max(cut - 1, answer.frontier)
        kept = msgspec.structs.replace(
            answer,
            batches=answer.batches[:-1],
            omitted=[one for one in answer.omitted if one[0] < cut],
            holes=[one for one in answer.holes if one[0] < cut],
            more=False,
            end_offset=end,
        )
        return kept, sealed[:-1]

    def _reorder(self, answer: FetchAnswer, sealed: list[bytes]) -> tuple[FetchAnswer, list[bytes]]:
        """The batches that follow each other without a gap between them come in another order."""
        entries = list(answer.batches)
        if answer.omitted or answer.holes or len(entries) < 2:
            return answer, sealed
        order = list(range(len(entries)))
        self.node.world.chance.shuffle(order)
        at, found = entries[0][0], list[tuple[int, int, int]]()
        for index in order:
            first, last, size = entries[index]
            found.append((at, at + last - first, size))
            at += last - first + 1
        return msgspec.structs.replace(answer, batches=found), [sealed[index] for index in order]

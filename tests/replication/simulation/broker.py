"""A broker that was taken over: an attacker that reads every message and replaces answers by its own, in the name of
any zone.

    fence      refuses the request as `fenced`, or with another code that stops a receiver for good
    hide       names every fact of a page as expired
    replay     replays what the serving zone signed for another request

It has no key of the answering zone: its messages are unsigned, or signed with the key of the requesting zone. Receivers
drop all of them, as if the answer was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agent.replication.protocol.codec import decode_answer, encode_error
from agent.replication.protocol.messages import ErrorAnswer, FetchAnswer, operation_of
from agent.signing.messages import MessagePlace, sign_answer, split_answer
from tests.replication.answers import encode_answer
from tests.replication.simulation.trust import signer_of

if TYPE_CHECKING:
    from tests.replication.simulation.network import World

REMEMBERED = 30
CODES = ("fenced", "stream_not_exported", "life_unknown", "lease_unknown", "busy")


class TakenOverBroker:
    """Every broker of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._signed: list[bytes] = []

    def passed_on(self, place: MessagePlace, payload: bytes) -> bytes:
        """The message that arrives in the place of an answer; another object if it is forged."""
        world, chance = self._world, self._world.chance
        message, proof = split_answer(payload)
        if proof is not None:
            self._signed = [*self._signed[-REMEMBERED:], payload]
        if not world.faults_are_on or chance.random() >= world.faults.taken_over_broker:
            return payload
        answer, _ = decode_answer(message)
        others = [signed for signed in self._signed if signed is not payload]
        if others and chance.random() < 0.3:
            world.injected["taken_over_broker"] += 1
            return chance.choice(others)
        if isinstance(answer, FetchAnswer) and answer.batches and chance.random() < 0.5:
            first, last = answer.covered() or (0, 0)
            hidden = msgspec.structs.replace(answer, batches=[], omitted=[], holes=[(first, last, "expired")])
            forged = encode_answer(hidden, [])
        else:
            life, code = chance.choice((answer.life, "ab" * 16)), chance.choice(CODES)
            operation = answer.operation if isinstance(answer, ErrorAnswer) else operation_of(answer)
            forged = encode_error(place.serving_node, life, operation, code, "forged")
        world.injected["taken_over_broker"] += 1
        return forged if chance.random() < 0.5 else sign_answer(signer_of(place.asking_node), place, forged)

"""An answer as it arrived: opened, and unless it brings facts, only if it is proven to be the peer's. No IO.

An answer that refuses a request, and a page that skips facts as lost (`holes`) or as the requester's own (`omitted`),
that has no facts at all, or is of another epoch, makes the requester stop, begin anew, or pass facts that it will not
ask for again. A broker could write such an answer as well as the peer, so the peer signs it. Facts need no proof of the
answer: they have their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent.replication.protocol.codec import decode_answer
from agent.replication.protocol.errors import UnprovenAnswer
from agent.replication.protocol.messages import Answer, ErrorAnswer, PageAnswer
from agent.signing.messages import MessagePlace, MessageProof, split_answer

RefusesMessage = Callable[[MessagePlace, bytes, MessageProof | None], str | None]
"""Why a message, given with what its signature is bound to, is not taken for its zone's; None for one that is. Must not
wait."""


def takes_every_message(_place: MessagePlace, _message: bytes, _proof: MessageProof | None) -> None:
    """Nothing is demanded."""


@dataclass(frozen=True, slots=True)
class ArrivedAnswer:
    """The bytes of an answer, as they came."""

    payload: bytes
    place: MessagePlace
    refuses: RefusesMessage = takes_every_message

    def open(self, epoch: str | None = None) -> tuple[Answer | ErrorAnswer, list[bytes]]:
        """The answer and what is attached; `epoch` is the one that was asked for, if one was. Raises MalformedMessage or
        UnprovenAnswer."""
        message, proof = split_answer(self.payload)
        answer, attached = decode_answer(message)
        # The peer answers `epoch_changed` instead of a page of another epoch, and signs that.
        is_other = isinstance(answer, PageAnswer) and epoch not in {None, answer.epoch}
        if (is_other or needs_proof(answer)) and (why := self.refuses(self.place, message, proof)) is not None:
            said = answer.error.code if isinstance(answer, ErrorAnswer) else "a page"
            raise UnprovenAnswer(self.place.serving_zone, f"an answer ({said}) is not proven: {why}")
        return answer, attached


def needs_proof(answer: Answer | ErrorAnswer) -> bool:
    """Whether an answer counts by what it says, and not by facts that prove themselves."""
    if isinstance(answer, PageAnswer):
        return bool(answer.holes or answer.omitted or not answer.batches)
    return isinstance(answer, ErrorAnswer)

"""An answer as it arrived: opened only if it is proven to be the peer's, where that is demanded. No IO.

Whatever an answer says, a broker could say as well as the peer: that there are no facts, that facts are lost, that both
stores are equal, that an append is stored, or that true facts stand at other offsets. So the peer signs each answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agent.replication.protocol.codec import decode_answer
from agent.replication.protocol.errors import MalformedMessage, UnprovenAnswer
from agent.replication.protocol.messages import Answer, ErrorAnswer, operation_of
from agent.signing.messages import MessagePlace, MessageProof, split_answer

RefusesMessage = Callable[[MessagePlace, bytes | memoryview, MessageProof | None], str | None]
"""Why a message, given with what its signature is bound to, is not taken for its zone's; None for one that is. Must not
wait."""


class RefusesRequest(Protocol):
    """The same of a request that changes something; `is_writing`: it adds to what is stored."""

    def __call__(
        self, place: MessagePlace, request: bytes | memoryview, proof: MessageProof | None, *, is_writing: bool
    ) -> str | None: ...


def takes_every_message(_place: MessagePlace, _message: bytes | memoryview, _proof: MessageProof | None) -> None:
    """Nothing is demanded."""


def takes_every_request(
    place: MessagePlace,
    request: bytes | memoryview,
    proof: MessageProof | None,
    *,
    is_writing: bool,
) -> None:
    """Nothing is demanded."""


@dataclass(frozen=True, slots=True)
class ArrivedAnswer:
    """The bytes of an answer, as they came."""

    payload: bytes
    place: MessagePlace
    refuses: RefusesMessage = takes_every_message

    def open(self) -> tuple[Answer | ErrorAnswer, list[bytes]]:
        """The answer and what is attached. Raises MalformedMessage or UnprovenAnswer."""
        message, proof = split_answer(memoryview(self.payload))  # a copy of a page costs more than its proof
        if (why := self.refuses(self.place, message, proof)) is not None:
            raise UnprovenAnswer(self.place.serving_zone, f"an answer ({_said(message)}) is not proven: {why}")
        return decode_answer(message)


def _said(message: memoryview) -> str:
    """What an answer claims to be, in a word."""
    try:
        answer, _ = decode_answer(message)
    except MalformedMessage:
        return "unreadable"
    return answer.error.code if isinstance(answer, ErrorAnswer) else operation_of(answer)

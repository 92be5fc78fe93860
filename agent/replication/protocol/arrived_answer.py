"""An answer as received: it is decoded only if its signature proves the peer, where signatures are required. No IO.

Without signatures a broker could forge any answer: that there are no facts, that facts are lost, that both stores are
equal, that an append is stored, or true facts at other offsets. So the peer signs each answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agent.replication.protocol.codec import decode_answer
from agent.replication.protocol.errors import MalformedMessage, UnprovenAnswer
from agent.replication.protocol.messages import Answer, ErrorAnswer, operation_of
from agent.signing.messages import MessagePlace, MessageProof, split_answer

DESCRIBED_HEADER_BYTES_MAX = 4096
"""An error, and a page of some dozen batches."""

RefusesMessage = Callable[[MessagePlace, bytes | memoryview, MessageProof | None], str | None]
"""Why no signature proves the zone of a message; None if one does or none is required. The place is what the signature
is bound to. Must not block."""


class RefusesRequest(Protocol):
    """Why a request that changes something is refused; `is_writing`: it adds facts or artifacts."""

    def __call__(
        self, place: MessagePlace, request: bytes | memoryview, proof: MessageProof | None, *, is_writing: bool
    ) -> str | None: ...


def accept_every_message(_place: MessagePlace, _message: bytes | memoryview, _proof: MessageProof | None) -> None:
    """No signature is required."""


def accept_every_request(
    place: MessagePlace,
    request: bytes | memoryview,
    proof: MessageProof | None,
    *,
    is_writing: bool,
) -> None:
    """No signature is required."""


@dataclass(frozen=True, slots=True)
class ArrivedAnswer:
    """The bytes of an answer as received."""

    payload: bytes
    place: MessagePlace
    refuses: RefusesMessage = accept_every_message

    def open(self) -> tuple[Answer | ErrorAnswer, list[bytes]]:
        """The answer and what is attached. Raises MalformedMessage or UnprovenAnswer."""
        message, proof = split_answer(memoryview(self.payload))  # a copy of a page costs more than its proof
        if (why := self.refuses(self.place, message, proof)) is not None:
            raise UnprovenAnswer(self.place.serving_node, f"an answer ({_claimed_type(message)}) is not proven: {why}")
        return decode_answer(message)


def _claimed_type(message: memoryview) -> str:
    """The type that an answer claims. A large header is not decoded: a forged one may take long."""
    if DESCRIBED_HEADER_BYTES_MAX < int.from_bytes(message[:4], "little") <= len(message):
        return "large"
    try:
        answer, _ = decode_answer(message)
    except MalformedMessage:
        return "unreadable"
    return answer.error.code if isinstance(answer, ErrorAnswer) else operation_of(answer)

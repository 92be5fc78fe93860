"""Answers as a serving node sends them."""

from agent.replication.protocol.codec import answer_parts
from agent.replication.protocol.messages import Answer


def encode_answer(answer: Answer, attachment: list[bytes]) -> bytes:
    """The bytes of an answer and its batches."""
    return b"".join(answer_parts(answer, attachment))

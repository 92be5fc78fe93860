"""Which answers are taken only with a proof, and what becomes of one without."""

import pytest

from agent.replication.protocol.arrived_answer import ArrivedAnswer, needs_proof
from agent.replication.protocol.codec import encode_answer, encode_error
from agent.replication.protocol.errors import ERRORS, MalformedMessage, UnprovenAnswer
from agent.replication.protocol.messages import (
    Answer,
    ConfirmAnswer,
    FetchAnswer,
    RangeAnswer,
    SequencesAnswer,
    StreamsAnswer,
)
from agent.signing.keys import SigningKey, ZoneSigner
from agent.signing.messages import MessagePlace, MessageProof, answer_bytes, sign_answer

SIGNER = ZoneSigner(SigningKey.generate(), b"certificate")
PLACE = MessagePlace("plant", "idmz", "i1", b"c" * 16)
OWN = {"store_zone": "plant", "epoch": "1" * 32}
PAGE = {**OWN, "stream": "facts"}
HOLE, OMITTED = {"holes": [(1, 4, "expired")]}, {"omitted": [(1, 4)]}
STOPPING = [
    FetchAnswer(**PAGE, frontier=0, end_offset=9, **HOLE),  # type: ignore[arg-type]
    FetchAnswer(**PAGE, frontier=0, end_offset=9, **OMITTED),  # type: ignore[arg-type]
    RangeAnswer(**PAGE, end_offset=9, **HOLE),  # type: ignore[arg-type]
    SequencesAnswer(**PAGE, origin=f"plant/{'1' * 32}", **HOLE),  # type: ignore[arg-type]
    FetchAnswer(**PAGE, frontier=0, end_offset=9),  # type: ignore[arg-type]
    FetchAnswer(**PAGE, frontier=0, end_offset=0, lease_in_force=7),  # type: ignore[arg-type]
]
HARMLESS = [
    ConfirmAnswer(**OWN, cursor_advanced_to=4),
    StreamsAnswer(**OWN, streams=[]),
]


def verified(place: MessagePlace, answer: bytes, proof: MessageProof | None) -> str | None:
    """Demands the signature of SIGNER."""
    if proof is None:
        return "nobody signed it"
    good = SIGNER.key.public.verify(answer_bytes(place, answer), proof.signature)
    return None if good else "the signature is wrong"


def opened(payload: bytes, place: MessagePlace = PLACE) -> object:
    """The answer in a payload, where a proof is demanded."""
    return ArrivedAnswer(payload, place, verified).open()[0]


@pytest.mark.parametrize("answer", STOPPING, ids=lambda one: type(one).__name__)
def test_a_page_that_skips_facts_or_has_none_needs_a_proof(answer: Answer) -> None:
    """Holes, omitted ranges, leases and the end of the log are taken with the signature of this answer to this request, and without it never."""
    payload = encode_answer(answer, [])
    assert opened(sign_answer(SIGNER, PLACE, payload)) == answer
    with pytest.raises(UnprovenAnswer, match=r"\(a page\) is not proven: nobody signed it") as raised:
        opened(payload)
    assert raised.value.retryable
    other = PLACE._replace(correlation=b"d" * 16)
    with pytest.raises(UnprovenAnswer, match="the signature is wrong"):
        opened(sign_answer(SIGNER, other, payload))
    assert opened(sign_answer(SIGNER, other, payload), other) == answer


@pytest.mark.parametrize("code", ERRORS)
def test_every_refusal_needs_a_proof(code: str) -> None:
    """Also one that may be retried: `epoch_changed` makes the requester begin anew."""
    payload = encode_error("plant", "1" * 32, "FetchFacts", code, "why")
    assert opened(sign_answer(SIGNER, PLACE, payload)).error.code == code  # type: ignore[attr-defined]
    with pytest.raises(UnprovenAnswer, match=code):
        opened(payload)


@pytest.mark.parametrize("answer", HARMLESS, ids=lambda one: type(one).__name__)
def test_other_answers_need_none(answer: Answer) -> None:
    """Facts have their own proof, and what says nothing stops nothing; a proof that comes with it is left alone."""
    assert not needs_proof(answer)
    payload = encode_answer(answer, [])
    assert opened(payload) == answer
    assert opened(sign_answer(SIGNER, PLACE._replace(instance="x"), payload)) == answer


def test_facts_need_no_proof_except_under_another_epoch() -> None:
    """A page of facts is taken as it is in the epoch that was asked for. One of another epoch would make the requester
    begin anew, so it is taken as the peer's only if the peer has signed it."""
    answer = FetchAnswer(**PAGE, frontier=0, end_offset=9, batches=[(1, 2, 5)])  # type: ignore[arg-type]
    payload = encode_answer(answer, [b"facts"])
    assert not needs_proof(answer)
    for epoch in (None, "1" * 32):
        assert ArrivedAnswer(payload, PLACE, verified).open(epoch) == (answer, [b"facts"])
    with pytest.raises(UnprovenAnswer):
        ArrivedAnswer(payload, PLACE, verified).open("2" * 32)
    signed = sign_answer(SIGNER, PLACE, payload)
    assert ArrivedAnswer(signed, PLACE, verified).open("2" * 32) == (answer, [b"facts"])


def test_what_is_no_answer_stays_none() -> None:
    """A signature makes no bytes readable."""
    for payload in (b"", b"\xff" * 4, sign_answer(SIGNER, PLACE, b"")):
        with pytest.raises(MalformedMessage):
            opened(payload)

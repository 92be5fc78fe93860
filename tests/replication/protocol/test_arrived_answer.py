"""If a peer's signature is demanded, an answer is accepted only with a proof, whatever its content."""

import pytest

from agent.replication.protocol import codec
from agent.replication.protocol.codec import ArrivedAnswer, encode_error
from agent.replication.protocol.errors import ERRORS, MalformedMessage, UnprovenAnswer
from agent.replication.protocol.messages import (
    Answer,
    AppendAnswer,
    AppendedEntry,
    DigestsAnswer,
    FetchAnswer,
    LatestAnswer,
    LogPosition,
    SequencesAnswer,
    StreamsAnswer,
)
from agent.signing.keys import SigningKey, ZoneSigner
from agent.signing.messages import MessagePlace, MessageProof, answer_bytes, sign_answer
from tests.replication.answers import encode_answer

SIGNER = ZoneSigner(SigningKey.generate(), b"certificate")
PLACE = MessagePlace("plant", "idmz", "i1", b"c" * 16)
OWN = {"store_zone": "plant", "life": "1" * 32}
PAGE = {**OWN, "stream": "facts"}
READ = {"lives": [LogPosition(offset=9, life="2" * 32)]}
ANSWERS = [
    FetchAnswer(**PAGE, **READ, frontier=0, end_offset=9, holes=[(1, 9, "expired")]),  # type: ignore[arg-type]
    SequencesAnswer(**PAGE, origin=f"plant/{'1' * 32}", omitted=[(1, 4)]),  # type: ignore[arg-type]
    FetchAnswer(**PAGE, frontier=0, end_offset=0, lease_in_force=7),  # type: ignore[arg-type]
    DigestsAnswer(**PAGE, end_offset=9),  # type: ignore[arg-type]
    AppendAnswer(**OWN, outcomes=[AppendedEntry(offset=7, outcome="stored")]),
    LatestAnswer(**PAGE, end_offset=9, queue_depth=0, depth_facts=9),  # type: ignore[arg-type]
    StreamsAnswer(**OWN, streams=[]),
]


def verified(place: MessagePlace, answer: bytes, proof: MessageProof | None) -> str | None:
    """The check that demands the signature of SIGNER."""
    if proof is None:
        return "nobody signed it"
    good = SIGNER.key.public.verify(answer_bytes(place, answer), proof.signature)
    return None if good else "the signature is wrong"


def opened(payload: bytes, place: MessagePlace = PLACE) -> object:
    """The answer in a payload, opened with a demanded proof."""
    return ArrivedAnswer(payload, place, verified).open()[0]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_every_answer_needs_a_proof(answer: Answer) -> None:
    """Holes, digests, outcomes of appends and latest values are accepted only with the signature of this answer to this
    request."""
    payload = encode_answer(answer, [])
    assert opened(sign_answer(SIGNER, PLACE, payload)) == answer
    with pytest.raises(UnprovenAnswer, match=r"\(\w+\) is not proven: nobody signed it") as raised:
        opened(payload)
    assert raised.value.retryable
    assert "bsfg pki signer" in str(raised.value)
    other = PLACE._replace(correlation=b"d" * 16)
    with pytest.raises(UnprovenAnswer, match="the signature is wrong"):
        opened(sign_answer(SIGNER, other, payload))
    assert opened(sign_answer(SIGNER, other, payload), other) == answer


@pytest.mark.parametrize("code", ERRORS)
def test_every_refusal_needs_a_proof(code: str) -> None:
    """This includes a retryable one: `life_unknown` makes the requester start again."""
    payload = encode_error("plant", "1" * 32, "FetchFacts", code, "why")
    assert opened(sign_answer(SIGNER, PLACE, payload)).error.code == code  # type: ignore[attr-defined]
    with pytest.raises(UnprovenAnswer, match=code):
        opened(payload)


def test_a_large_answer_that_is_not_proven_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claimed type of a small one is named. A large one could take long to read, so it is refused unread."""
    holes = [(at, at, "expired") for at in range(1, 2_000)]
    payload = encode_answer(FetchAnswer(**PAGE, **READ, frontier=0, end_offset=9, holes=holes), [])  # type: ignore[arg-type]
    monkeypatch.setattr(codec, "decode_answer", lambda _: pytest.fail("it is read"))
    with pytest.raises(UnprovenAnswer, match=r"\(large\) is not proven"):
        opened(payload)


def test_what_is_no_answer_stays_none() -> None:
    """A signature does not make bytes readable. Bytes without one are not the peer's, so they close no request."""
    with pytest.raises(MalformedMessage):
        opened(sign_answer(SIGNER, PLACE, b""))
    for payload in (b"", b"\xff" * 4, b"\0" * 4):
        with pytest.raises(UnprovenAnswer, match="unreadable"):
            opened(payload)

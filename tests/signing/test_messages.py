"""Signed requests and answers: the bytes, and what a signature is bound to."""

import struct
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.pages import BATCHES_MAX
from agent.replication.protocol.codec import HEADER_BYTES_MAX
from agent.signing.keys import SigningKey, ZoneSigner
from agent.signing.messages import (
    ANSWER_MARK,
    REQUEST_MARK,
    MessagePlace,
    MessageProof,
    answer_bytes,
    proof_bytes,
    request_bytes,
    sign_answer,
    sign_request,
    split_answer,
    split_request,
)
from agent.signing.records import RecordSigner

SIGNER = ZoneSigner(SigningKey.generate(), b"certificate")
PLACE = MessagePlace("plant", "idmz", "i1", b"c" * 16)
names = st.text(st.sampled_from("abc-"), min_size=1, max_size=8)
places = st.builds(MessagePlace, names, names, names, st.binary(min_size=8, max_size=32))


@dataclass
class Long:
    """A signer with a certificate as long as it may be."""

    key = SIGNER.key
    key_id = SIGNER.key_id
    certificate = message_certificate = bytes(4096)

    def sign(self, data: bytes) -> bytes:
        """As the key."""
        return self.key.sign(data)


@dataclass(frozen=True)
class Kind:
    """Requests or answers; `plain` begins every message of the kind."""

    sign: Callable[[RecordSigner, MessagePlace, bytes], bytes]
    split: Callable[[bytes], tuple[bytes, MessageProof | None]]
    covered: Callable[[MessagePlace, bytes], bytes]
    plain: bytes


REQUEST = Kind(sign_request, split_request, request_bytes, b"{")
ANSWER = Kind(sign_answer, split_answer, answer_bytes, struct.pack("<I", HEADER_BYTES_MAX))
both = pytest.mark.parametrize("kind", [REQUEST, ANSWER], ids=["request", "answer"])


@both
@given(place=places, message=st.binary(max_size=200))
def test_a_signed_message_comes_apart_again(kind: Kind, place: MessagePlace, message: bytes) -> None:
    """The message, the certificate, and a signature that verifies; also with the longest certificate."""
    for signer in (SIGNER, Long()):
        signed = kind.sign(signer, place, message)
        payload, proof = kind.split(signed)
        assert proof is not None
        assert (payload, proof.certificate) == (message, signer.certificate)
        assert SIGNER.key.public.verify(kind.covered(place, payload), proof.signature)
        assert kind is REQUEST or len(signed) == len(message) + proof_bytes(signer)
    assert proof_bytes(None) == 0


@both
@given(place=places, other=places, message=st.binary(max_size=50), another=st.binary(max_size=50))
def test_a_signature_counts_for_one_message_at_one_place(
    kind: Kind, place: MessagePlace, other: MessagePlace, message: bytes, another: bytes
) -> None:
    """Other zones, another instance, correlation or message is other bytes, however the names are cut."""
    same = (place, message) == (other, another)
    assert (kind.covered(place, message) == kind.covered(other, another)) is same


@given(places, st.binary(max_size=50))
def test_the_signature_of_a_request_is_none_of_an_answer(place: MessagePlace, message: bytes) -> None:
    """What the asking zone has signed cannot be sent back to it as the answer, nor the reverse."""
    assert request_bytes(place, message) != answer_bytes(place, message)
    swapped = place._replace(serving_node=place.asking_node, asking_node=place.serving_node)
    assert request_bytes(swapped, message) != answer_bytes(place, message)


@both
@given(payload=st.binary(max_size=300))
def test_whatever_comes_is_split(kind: Kind, payload: bytes) -> None:
    """Bytes of a peer raise nothing; what begins as an unsigned message does is itself, and what is cut short has no
    proof."""
    message, proof = kind.split(payload)
    assert payload.endswith(message)
    assert proof is not None or message == payload
    assert kind.split(kind.plain + payload) == (kind.plain + payload, None)
    whole = kind.sign(SIGNER, PLACE, b"")
    for end in range(len(whole)):
        assert kind.split(whole[:end])[1] is None


def test_no_header_is_as_long_as_the_mark_says() -> None:
    """An answer that begins with the mark of a proof is no answer without one."""
    assert struct.unpack("<I", ANSWER_MARK)[0] > HEADER_BYTES_MAX


def answer_of(entries: list[str], attached: bytes) -> bytes:
    """An answer whose header lists these batches, as text, and what follows the header."""
    header = ('{"batches":[' + ",".join(entries) + "]}").encode()
    return struct.pack("<I", len(header)) + header + attached


def test_all_bytes_of_an_answer_are_covered_except_for_bodies_of_batches() -> None:
    """The header, the digest of each batch and all that follows the batches, such as definitions, cannot be changed
    without the key; nor can what only looks like a batch. Bodies are covered by the digests, which their reader
    checks."""
    bodies, rest = b"1" * 40 + b"d" * 16 + b"2" * 50 + b"e" * 16, b"definitions"
    answer = answer_of(["[1,0,56]", "[2,0,66]"], bodies + rest)
    begin = len(answer) - len(bodies) - len(rest)
    free = {*range(begin, begin + 40), *range(begin + 56, begin + 106)}
    for at in range(len(answer)):
        changed = answer[:at] + bytes([answer[at] ^ 1]) + answer[at + 1 :]
        assert (answer_bytes(PLACE, changed) == answer_bytes(PLACE, answer)) is (at in free), at
    chunk = struct.pack("<I", 2) + b"{}" + bytes(40)  # of an artifact, which is no batch
    assert answer_bytes(PLACE, chunk[:-1] + b"1") != answer_bytes(PLACE, chunk)


@pytest.mark.parametrize(
    "entries, is_listed",
    [
        (["[0,0,20]"] * BATCHES_MAX, True),
        (["[0,0,20]"] * (BATCHES_MAX + 1), False),
        (["[0,0,20" + " " * 100 + "]"] * BATCHES_MAX, False),
        (["[0,0,20]", "[0,0,15]"], False),
        (["[0,0,-20]", "[0,0,40]"], False),
        (["[0,0,20]", "[0,0,99999999]"], False),
        (["[0,0,20]", "[0,0,1" + "0" * 30 + "]"], False),
        (["[0,0,20]", "[0,0]"], False),
        (["[0,0,20]", "7"], False),
    ],
    ids=["most", "too many", "too long", "too short", "negative", "beyond the end", "huge", "no length", "no list"],
)
def test_batches_that_no_page_has_are_not_looked_for(entries: list[str], *, is_listed: bool) -> None:
    """A header is not proven yet. Where it lists more batches than a page may have, in more bytes, or with lengths that
    no batch can have, all bytes are covered."""
    attached = bytes(20 * len(entries))
    answers = [answer_bytes(PLACE, answer_of(entries, body + attached[4:])) for body in (bytes(4), b"body")]
    assert (answers[0] == answers[1]) is is_listed


def test_a_certificate_has_a_limit() -> None:
    """A proof with a longer certificate than any receiver reads is no proof."""
    for length, is_proof in ((4096, True), (4097, False)):
        payload = REQUEST_MARK + struct.pack("<H", length) + bytes(length + 64) + b"{}"
        assert (split_request(payload)[1] is not None) is is_proof

"""Signed requests: the bytes, and what a signature is bound to."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from agent.signing.keys import SigningKey, ZoneSigner
from agent.signing.messages import MessagePlace, request_bytes, sign_request, split_request

SIGNER = ZoneSigner(SigningKey.generate(), b"certificate")
PLACE = MessagePlace("plant", "idmz", "i1", b"c" * 16)
names = st.text(st.sampled_from("abc-"), min_size=1, max_size=8)
places = st.builds(MessagePlace, names, names, names, st.binary(min_size=8, max_size=32))


@dataclass
class Long:
    """A signer with a certificate as long as it may be."""

    key = SIGNER.key
    key_id = SIGNER.key_id
    certificate = bytes(4096)

    def sign(self, data: bytes) -> bytes:
        """As the key."""
        return self.key.sign(data)


@given(places, st.binary(max_size=200))
def test_a_signed_request_comes_apart_again(place: MessagePlace, request: bytes) -> None:
    """The request, the certificate, and a signature that verifies; also with the longest certificate."""
    for signer in (SIGNER, Long()):
        payload, proof = split_request(sign_request(signer, place, request))
        assert proof is not None
        assert (payload, proof.certificate) == (request, signer.certificate)
        assert SIGNER.key.public.verify(request_bytes(place, payload), proof.signature)


@given(places, places, st.binary(max_size=50), st.binary(max_size=50))
def test_a_signature_counts_for_one_request_at_one_place(
    place: MessagePlace, other: MessagePlace, request: bytes, another: bytes
) -> None:
    """Other zones, another instance, correlation or request is other bytes, however the names are cut."""
    same = (place, request) == (other, another)
    assert (request_bytes(place, request) == request_bytes(other, another)) is same


@given(st.binary(max_size=300))
def test_whatever_comes_is_split(payload: bytes) -> None:
    """Bytes of a peer raise nothing; what begins as JSON does is itself, and what is cut short has no proof."""
    request, proof = split_request(payload)
    assert payload.endswith(request)
    assert proof is not None or request == payload
    assert split_request(b"{" + payload) == (b"{" + payload, None)
    whole = sign_request(SIGNER, PLACE, b"")
    for end in range(len(whole)):
        assert split_request(whole[:end])[1] is None

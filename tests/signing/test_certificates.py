"""Whose signer a certificate names: the good ones, each way to be refused, and no way to raise."""

import random
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from agent.signing.certificates import (
    CERTIFICATE_BYTES_MAX,
    FACT_SIGNING,
    CertificateRefusal,
    RefusalReason,
    Signer,
    SignerTrust,
    describe_signer,
    refuse_anchor,
    signer_of,
)
from tests.signing.signers import CLIENT, DAY_MS, ENDS_MS, NOW, NOW_MS, SERVER, Made, make, p256, signing_key

FACTS_CA = make("facts", is_ca=True, ends=NOW + timedelta(days=100))
TLS_CA = make("zones", is_ca=True, usages=(), key=p256())
TRUST = SignerTrust(anchors=[FACTS_CA.certificate])
UNKNOWN = x509.UnrecognizedExtension(x509.ObjectIdentifier("2.25.1"), b"\x05\x00")


def refused(der: bytes, trust: SignerTrust = TRUST, now_ms: int = NOW_MS) -> RefusalReason:
    """Why a certificate is not accepted."""
    found = signer_of(der, trust, now_ms)
    assert isinstance(found, CertificateRefusal), found
    assert str(found).startswith(found.reason.value)
    return found.reason


def accepted(der: bytes, trust: SignerTrust = TRUST, now_ms: int = NOW_MS) -> Signer:
    """The signer that a certificate names."""
    found = signer_of(der, trust, now_ms)
    assert isinstance(found, Signer), found
    return found


def test_an_issued_certificate_names_zone_and_key() -> None:
    """Zone, key and validity are those of the certificate, cut to those of its authority."""
    made = make("plant-a", FACTS_CA)
    signer = accepted(made.der)
    assert (signer.zone, signer.key_id) == ("plant-a", signing_key(made).key_id)
    assert signer.public.verify(b"record", signing_key(made).sign(b"record"))
    assert (signer.not_before_ms, signer.not_after_ms) == (NOW_MS - DAY_MS, NOW_MS + 100 * DAY_MS)
    assert describe_signer(made.der) == Signer("plant-a", signer.public, NOW_MS - DAY_MS, ENDS_MS)


@pytest.mark.parametrize("key", [p256(), rsa.generate_private_key(65537, 2048)], ids=["EC", "RSA"])
def test_a_sites_own_authority_may_have_another_kind_of_key(key: object) -> None:
    """Only the signer must be Ed25519."""
    authority = make("site", is_ca=True, key=key)
    assert accepted(make("plant-a", authority).der, SignerTrust([authority.certificate])).zone == "plant-a"


@pytest.mark.parametrize("order", [1, -1])
def test_an_authority_that_was_renewed_under_its_key_counts_from_its_first_day_to_its_last(order: int) -> None:
    """Whichever certificate the file has first: signatures of the time of the old one stay valid, and those after its
    end count."""
    day, key = timedelta(days=1), p256()
    old = make("site", is_ca=True, key=key, begins=NOW - 9 * day, ends=NOW + 2 * day)
    new = make("site", is_ca=True, key=key, begins=NOW + day, ends=NOW + 9 * day)
    other = make("other", is_ca=True, begins=NOW - 99 * day, ends=NOW + 99 * day)
    trust = SignerTrust([other.certificate, *(made.certificate for made in (old, new)[::order])])
    signer = accepted(make("plant-a", old, begins=NOW - 20 * day, ends=NOW + 20 * day).der, trust)
    assert (signer.not_before_ms, signer.not_after_ms) == (NOW_MS - 9 * DAY_MS, NOW_MS + 9 * DAY_MS)


def test_a_pin_replaces_the_authorities() -> None:
    """A pinned zone accepts its pinned certificates only: neither one that a trusted authority issued, nor the same key
    in a certificate with other dates. Other zones are not affected."""
    pinned, issued = make("plant-a"), make("plant-a", FACTS_CA)
    other_dates = make("plant-a", key=pinned.key, ends=NOW + timedelta(days=9999))
    trust = SignerTrust([FACTS_CA.certificate], {"plant-a": frozenset({pinned.sha256})})
    assert accepted(pinned.der, trust).not_after_ms == ENDS_MS
    assert refused(issued.der, trust) is RefusalReason.UNKNOWN_ISSUER
    assert refused(other_dates.der, trust) is RefusalReason.UNKNOWN_ISSUER
    assert accepted(make("plant-b", FACTS_CA).der, trust).zone == "plant-b"


def test_a_pin_of_one_zone_admits_no_other_zone() -> None:
    """A fingerprint pinned for plant-a does not let a certificate of plant-b in."""
    made = make("plant-b")
    trust = SignerTrust(pins={"plant-a": frozenset({made.sha256})})
    assert refused(made.der, trust) is RefusalReason.UNKNOWN_ISSUER


ATTACKS: dict[str, tuple[Made, RefusalReason]] = {
    "self-signed": (make("plant-a"), RefusalReason.UNKNOWN_ISSUER),
    "an authority of the same name": (make("plant-a", make("facts", is_ca=True)), RefusalReason.UNKNOWN_ISSUER),
    "issued by a signer": (make("plant-a", make("plant-b", FACTS_CA)), RefusalReason.UNKNOWN_ISSUER),
    "a TLS client": (make("plant-a", FACTS_CA, usages=(CLIENT,)), RefusalReason.NOT_A_SIGNER),
    "a TLS client and signer": (make("plant-a", FACTS_CA, usages=(CLIENT, FACT_SIGNING)), RefusalReason.NOT_A_SIGNER),
    "a TLS server and signer": (make("plant-a", FACTS_CA, usages=(FACT_SIGNING, SERVER)), RefusalReason.NOT_A_SIGNER),
    "any purpose": (make("plant-a", FACTS_CA, usages=()), RefusalReason.NOT_A_SIGNER),
    "an authority": (make("plant-a", FACTS_CA, is_ca=True, signs_all=True), RefusalReason.NOT_A_SIGNER),
    "a key that must not sign": (make("plant-a", FACTS_CA, signs=False), RefusalReason.NOT_A_SIGNER),
    "a P-256 key": (make("plant-a", FACTS_CA, key=p256()), RefusalReason.WRONG_KEY),
    "two names": (make("plant-a", FACTS_CA, names=("plant-b",)), RefusalReason.NO_ZONE),
    "no name": (make("", FACTS_CA), RefusalReason.NO_ZONE),
    "a name that is no zone": (make("Plant A", FACTS_CA), RefusalReason.NO_ZONE),
    "an unknown critical extension": (make("plant-a", FACTS_CA, more=((UNKNOWN, True),)), RefusalReason.NOT_A_SIGNER),
    "too long": (
        make("plant-a", FACTS_CA, more=((x509.SubjectAlternativeName([x509.DNSName("x" * 5000)]), False),)),
        RefusalReason.MALFORMED,
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_everything_else_is_refused(attack: str) -> None:
    """Each certificate that is not exactly a signer's, issued by a trusted authority, is refused by name."""
    made, reason = ATTACKS[attack]
    assert refused(made.der) is reason


def test_an_unknown_extension_that_is_not_critical_is_no_hindrance() -> None:
    """A site's PKI may add what it likes, as long as it may be ignored."""
    assert accepted(make("plant-a", FACTS_CA, more=((UNKNOWN, False),)).der).zone == "plant-a"


def test_a_tls_authority_is_no_facts_authority() -> None:
    """The authority needs the usage alone, and must be one; what a TLS authority issues is refused even with it."""
    assert refuse_anchor(FACTS_CA.certificate) is None
    for made in (TLS_CA, make("zones", is_ca=True, usages=(FACT_SIGNING, CLIENT)), make("plant-a", signs_all=True)):
        found = refuse_anchor(made.certificate)
        assert found is not None
        assert found.reason is RefusalReason.NOT_A_SIGNER
    assert refused(make("plant-a", TLS_CA).der) is RefusalReason.UNKNOWN_ISSUER


def test_a_signature_counts_within_the_validity_only() -> None:
    """Both ends are inclusive; the certificate itself names its signer also years later."""
    signer = accepted(make("plant-a", FACTS_CA).der, now_ms=NOW_MS + 9999 * DAY_MS)
    assert signer.refuses(signer.not_before_ms) is None
    assert signer.refuses(signer.not_after_ms) is None
    early, late = signer.refuses(signer.not_before_ms - 1), signer.refuses(signer.not_after_ms + 1)
    assert early is not None
    assert late is not None
    assert (early.reason, late.reason) == (RefusalReason.TOO_EARLY, RefusalReason.EXPIRED)


def test_a_compromised_key_signs_nothing_new() -> None:
    """From the date on its certificate is refused, pinned or issued, and what was verified since is suspect."""
    made = make("plant-a", FACTS_CA)
    key_id = signing_key(made).key_id
    for pins in ({}, {"plant-a": frozenset({made.sha256})}):
        trust = SignerTrust([FACTS_CA.certificate], pins, {key_id: NOW_MS})
        assert accepted(made.der, trust, NOW_MS - 1).key_id == key_id
        assert refused(made.der, trust, NOW_MS) is RefusalReason.COMPROMISED
        assert [trust.is_suspect(key_id, ms) for ms in (NOW_MS - 1, NOW_MS, NOW_MS + 1)] == [False, True, True]
        assert not trust.is_suspect(bytes(8), NOW_MS)


# The parser warns of a few malformed fields, once for each line of code, before it goes on.
@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning", "ignore::UserWarning")
def test_no_bytes_raise() -> None:
    """Truncated, flipped, inserted and random bytes give an answer, and none of them becomes a trusted signer of
    another zone or key."""
    made = make("plant-a", FACTS_CA)
    good, random_ = made.der, random.Random(14)
    variants = [good[:length] for length in range(len(good))]
    for _ in range(5000):
        bad = bytearray(good)
        for _ in range(random_.randrange(1, 4)):
            place = random_.randrange(len(bad))
            choice = random_.randrange(3)
            if choice == 0:
                bad[place] ^= 1 << random_.randrange(8)
            elif choice == 1:
                bad[place:place] = random_.randbytes(random_.randrange(1, 4))
            else:
                del bad[place : place + random_.randrange(1, 4)]
        variants.append(bytes(bad))
    pinned = SignerTrust(pins={"plant-a": frozenset({made.sha256})})
    for bad_der in variants:
        if bad_der != good:
            found = signer_of(bad_der, TRUST, NOW_MS)
            # The authority signs a part of the bytes: what is outside it, such as a count of unused bits, may differ.
            assert isinstance(found, CertificateRefusal) or found == accepted(good)
            assert isinstance(signer_of(bad_der, pinned, NOW_MS), CertificateRefusal)
    assert signer_of(bytes(CERTIFICATE_BYTES_MAX + 1), TRUST, NOW_MS) == CertificateRefusal(
        RefusalReason.MALFORMED, f"{CERTIFICATE_BYTES_MAX + 1} bytes; at most {CERTIFICATE_BYTES_MAX}"
    )

"""Which server certificates are accepted, and which reason an operator reads for the others."""

import hashlib
import ssl
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from agent.ingest.opcua.security.certificate_facts import facts_of, public_key_of
from agent.ingest.opcua.security.trust_list import Presented, TrustList, TrustReason, TrustVerdict, judge
from tests.ingest.opcua.security.certificates import NOW, URI, certificate, der, revocation_list, written_out

AUTHORITY = certificate("authority", is_authority=True, days=(-100, 100))
ISSUED = certificate(issuer="authority")


def shown(*chain: x509.Certificate, uri: str = URI, host: str = "plc") -> Presented:
    """What a server shows."""
    return Presented(tuple(der(each) for each in chain), uri, host)


def trusting(peer: x509.Certificate) -> TrustList:
    """A trust list with one certificate in trusted/."""
    return TrustList(trusted=frozenset({facts_of(der(peer)).sha256}))


def issuing(*lists: x509.CertificateRevocationList, issuer: x509.Certificate = AUTHORITY, **more: bool) -> TrustList:
    """A trust list with an authority in issuers/."""
    return TrustList(issuers=(issuer,), revocation_lists=lists, **more)


def refused(verdict: TrustVerdict) -> str:
    """The reason and the advice of a refusal."""
    assert verdict.trust is None
    assert verdict.todo or verdict.is_unknown
    return f"{verdict.why}; {verdict.todo}"


def test_the_three_ways_to_be_accepted() -> None:
    """Pinned, in trusted/, or issued by one in issuers/ with a list that does not name it."""
    pin = TrustList(pinned_sha256=facts_of(der(ISSUED)).sha256)
    assert judge(shown(ISSUED), pin, NOW).trust is TrustReason.PINNED
    assert judge(shown(ISSUED), trusting(ISSUED), NOW).trust is TrustReason.TRUSTED
    assert judge(shown(ISSUED), issuing(revocation_list()), NOW).trust is TrustReason.ISSUED


def test_an_unknown_certificate_is_unknown_and_a_pin_is_narrow() -> None:
    """An unknown certificate can be trusted by hand; with a pin, the trust folder does not help another one."""
    verdict = judge(shown(ISSUED), TrustList(), NOW)
    assert (verdict.trust, verdict.is_unknown, verdict.why) == (None, True, "is not trusted")
    assert not verdict.also_why
    assert "is for other" in judge(shown(certificate(host="other")), TrustList(), NOW).also_why
    other = certificate("other")
    pin = TrustList(pinned_sha256=facts_of(der(other)).sha256, trusted=trusting(ISSUED).trusted)
    assert judge(shown(ISSUED), pin, NOW).why == "is not the pinned one"


def test_a_pin_asks_nothing_else() -> None:
    """What cannot be changed at an old device can be accepted by a pin, and by nothing else."""
    old = certificate(days=(-100, -50), uri="urn:x", host="x", address="10.0.0.1", bits=1024, purpose=None)
    pin = TrustList(pinned_sha256=facts_of(der(old)).sha256)
    assert judge(shown(old), pin, NOW).trust is TrustReason.PINNED
    assert "this machine's clock says 2026-06-01 12:00 UTC" in refused(judge(shown(old), trusting(old), NOW))


@pytest.mark.parametrize(
    "bad, words",
    [
        (certificate(days=(-10, -1)), "and this machine's clock says 2026-06-01 12:00 UTC; renew it at the server"),
        (certificate(days=(1, 10)), "and this machine's clock says 2026-06-01 12:00 UTC; set this machine's clock"),
        (certificate(bits=1024), "has a key of 1024 bits; 2048 are needed"),
        (certificate(uses=("digital_signature",)), "may not be used to sign and encrypt"),
        (certificate(uses=("key_encipherment",)), "may not be used to sign and encrypt"),
        (certificate(purpose=ExtendedKeyUsageOID.CLIENT_AUTH), "is not for a server"),
        (certificate(uri="urn:other"), "is for the application URI urn:other, and the server calls itself"),
        (certificate(host="other"), "is for other, 127.0.0.1, not for plc"),
    ],
)
def test_a_trusted_certificate_is_checked_and_each_reason_is_distinguished(bad: x509.Certificate, words: str) -> None:
    """Validity with both times, key length, use, application URI, host name: one reason each, and not "unknown"."""
    verdict = judge(shown(bad), trusting(bad), NOW)
    assert words in refused(verdict)
    assert not verdict.is_unknown


def test_what_a_certificate_does_not_restrict_is_allowed() -> None:
    """Many devices leave out the extended key usage; a server that was not asked has no application URI to compare."""
    free = certificate(purpose=None)
    assert judge(shown(free, uri=""), trusting(free), NOW).trust is TrustReason.TRUSTED


@pytest.mark.parametrize(
    "accepted, words",
    [
        (issuing(), "whose revocation list is missing in crl/"),
        (issuing(revocation_list("authority", 7)), "was revoked by its issuer CN=authority"),
        (issuing(revocation_list("authority", 7), is_revocation_list_required=False), "was revoked"),
        (issuing(revocation_list(days=(-9, -1))), "whose revocation list ended 2026-05-31"),
        (issuing(revocation_list(signed_by="thief")), "whose revocation list is missing in crl/"),
        (issuing(issuer=certificate("authority", days=(-9, 9))), "which may not issue certificates"),
        (
            issuing(revocation_list(), issuer=certificate("authority", is_authority=True, days=(-9, -1))),
            "is issued by CN=authority, which is valid from",
        ),
    ],
)
def test_an_issued_certificate_needs_an_issuer_in_force_and_its_list(accepted: TrustList, words: str) -> None:
    """Each missing or broken link is named; a forged list counts as none, and a listed certificate is never taken."""
    verdict = judge(shown(ISSUED), accepted, NOW)
    assert words in refused(verdict)
    assert not verdict.is_unknown


@pytest.mark.parametrize("lists", [(), (revocation_list(days=(-9, -1)),)])
def test_lists_can_be_made_optional(lists: tuple[x509.CertificateRevocationList, ...]) -> None:
    """Without crl_required a missing or ended list is no obstacle."""
    accepted = issuing(*lists, is_revocation_list_required=False)
    assert judge(shown(ISSUED), accepted, NOW).trust is TrustReason.ISSUED


def test_the_newest_of_several_lists_counts() -> None:
    """A certificate on hold that was released again is no longer revoked."""
    old, new = revocation_list("authority", 7, days=(-9, 9)), revocation_list(days=(-1, 9))
    assert judge(shown(ISSUED), issuing(old, new), NOW).trust is TrustReason.ISSUED
    assert "revoked" in refused(judge(shown(ISSUED), issuing(new, revocation_list("authority", 7, days=(0, 9))), NOW))


def test_a_forged_signature_is_no_issue() -> None:
    """A certificate that names the authority but was signed by somebody else is refused as that."""
    forged = certificate(issuer="authority", signed_by="thief")
    assert "the signature is not that issuer's" in refused(judge(shown(forged), issuing(revocation_list()), NOW))


def test_an_intermediate_authority_needs_its_own_list() -> None:
    """The chain that the server shows leads to the authority, link by link, each with a list of its issuer."""
    between = certificate("between", issuer="authority", is_authority=True, serial=8)
    leaf = certificate(issuer="between")
    both = issuing(revocation_list(), revocation_list("between"))
    assert judge(shown(leaf, between), both, NOW).trust is TrustReason.ISSUED
    assert judge(shown(leaf), both, NOW).is_unknown
    assert "CN=between, whose revocation list is missing" in refused(
        judge(shown(leaf, between), issuing(revocation_list()), NOW)
    )
    revoked = issuing(revocation_list("authority", 8), revocation_list("between"))
    assert "was revoked by its issuer CN=authority" in refused(judge(shown(leaf, between), revoked, NOW))


def test_a_chain_that_leads_in_a_circle_ends() -> None:
    """Two authorities that issue each other, shown by a server, lead nowhere and do not hold us up."""
    first = certificate("one", issuer="two", is_authority=True)
    two = certificate("two", issuer="one", is_authority=True)
    leaf = certificate(issuer="one")
    lists = TrustList(revocation_lists=(revocation_list("one"), revocation_list("two")))
    assert judge(shown(leaf, first, two, first, two), lists, NOW).is_unknown


def test_a_clock_that_was_never_set_is_reported_as_that() -> None:
    """A gateway that starts in 1970 names its clock, not the server's certificate, as what to mend."""
    text = refused(judge(shown(ISSUED), trusting(ISSUED), NOW - timedelta(days=20_000)))
    assert "this machine's clock says 197" in text
    assert "timedatectl" in text


def test_a_certificate_that_the_parser_refuses_can_be_pinned_and_nothing_else() -> None:
    """Its hash and its key are found, in PEM as in DER; in trusted/ it could not be checked."""
    found = certificate()
    data = written_out(found)
    pem = ssl.DER_cert_to_PEM_cert(data).encode()
    facts = facts_of(pem)
    assert (facts.der, facts.sha256) == (data, hashlib.sha256(data).hexdigest())
    assert "EncodedDefault" in facts.fault
    assert public_key_of(data) == found.public_key()
    presented = Presented((data,), URI, "plc")
    assert judge(presented, TrustList(pinned_sha256=facts.sha256), NOW).trust is TrustReason.PINNED
    verdict = judge(presented, TrustList(trusted=frozenset([facts.sha256])), NOW)
    assert (verdict.trust, verdict.is_unknown, verdict.also_why) == (None, True, "can only be pinned")


@pytest.mark.parametrize("data", [b"", b"0", b"hello", written_out(certificate())[:-1], b"0\x03\x02\x01\x00"])
def test_bytes_without_a_key_are_no_certificate(data: bytes) -> None:
    """The search for a key ends with a refusal."""
    with pytest.raises(ValueError, match=r"."):
        facts_of(data)

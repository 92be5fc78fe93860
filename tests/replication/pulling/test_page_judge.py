"""The signers that a node trusts, with a real store: certificates that came with a page or are held, known keys, proof
by held facts, and the evidence of declined ones."""

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.batch import Batch, Origin
from agent.fact_store import FactStore
from agent.fact_store.sqlite import transaction
from agent.pages import CERTIFICATES_OF_KEY_MAX, ReceivedPage
from agent.positions import Position
from agent.replication.pulling import message_judge
from agent.replication.pulling.message_judge import UNKNOWN_PER_SECOND, TrustPolicy
from agent.replication.pulling.page_judge import (
    DECLINED_MAX,
    EVIDENCE_BYTES_MAX,
    EVIDENCE_FILES_MAX,
    EVIDENCE_PER_PAGE_MAX,
    PASSED_ON_MS,
    EvidenceFolder,
    HeldProofs,
    PageJudge,
)
from agent.signing.certificates import SignerTrust, describe_signer
from agent.signing.chains import Offered, Rule
from agent.signing.keys import ZoneSigner
from agent.signing.messages import (
    MessagePlace,
    MessageProof,
    sign_answer,
    sign_request,
    signer_name,
    split_answer,
    split_request,
)
from tests.fact_store.making import IN_MEMORY
from tests.signing.making import STREAM, chain, page, spoiled, with_record
from tests.signing.signers import DAY_MS, NOW, NOW_MS, Made, make, signing_key
from tests.support.received import put_page

AUTHORITY = make("facts authority", is_ca=True)
PLANT = make("plant", AUTHORITY)
MILL = make("mill", AUTHORITY)
KEY = signing_key(PLANT)
YEAR, MONTH = timedelta(days=360), timedelta(days=30)
MONTH_MS = 30 * DAY_MS
RULES: Mapping[str, Rule] = {"plant": "required"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FactStore]:
    """The receiver's store."""
    with FactStore.open(tmp_path / "facts.db", "enterprise", settings=IN_MEMORY) as opened:
        yield opened


def judge_of(
    store: FactStore, *, rule: str = "required", trust: SignerTrust | None = None, **more: object
) -> PageJudge:
    """A judge that trusts the authority, at a time at which the certificates are valid."""
    trusted = SignerTrust((AUTHORITY.certificate,)) if trust is None else trust
    policy = TrustPolicy(trusted, {"plant": rule}, "enterprise")  # type: ignore[dict-item]
    return PageJudge(store, policy, clock_ms=lambda: NOW_MS, **more)  # type: ignore[arg-type]


def put(store: FactStore, judged: ReceivedPage, last: int) -> None:
    """Store what was judged, as a pull does."""
    store.inbound.put_page(replace(judged, read=[Position(b"p" * 16, last)])).result()


def test_a_certificate_comes_once_and_is_trusted_from_the_store_later(store: FactStore) -> None:
    """The first page brings the certificate; after a restart, a judge that gets none finds it in the store. Both name
    the key in their requests."""
    run = chain(4, key=KEY)
    first = judge_of(store)
    assert first.signers_known() == []
    judged = first.judge("idmz", STREAM, page(run[:2]), [PLANT.der])
    assert len(judged.batches) == 2
    assert judged.signers == ((KEY.key_id, PLANT.der, True, "plant"),)
    put(store, judged, 2)
    assert first.signers_known() == [signer_name("plant", KEY.key_id)]
    again = judge_of(store)
    assert again.judge("idmz", STREAM, page(run[2:]), []).declined == ()
    assert again.signers_known() == [signer_name("plant", KEY.key_id)]


def test_a_certificate_of_a_page_that_was_lost_is_stored_with_the_next(store: FactStore) -> None:
    """The page that brought the certificate was judged and never stored. The peer does not send the certificate again,
    so it is stored with the next page; otherwise this node could not pass it on."""
    run = chain(4, key=KEY)
    judge = judge_of(store)
    judge.judge("idmz", STREAM, page(run[:2]), [PLANT.der])
    put(store, judge.judge("idmz", STREAM, page(run), []), 4)
    assert store.reader.signers([KEY.key_id]) == [PLANT.der]


def test_what_is_verified_is_told_by_its_place_among_the_accepted(store: FactStore) -> None:
    """Behind a declined batch, too: the store would otherwise call another fact proven."""
    run = [*chain(1, life=b"e" * 16), *chain(2, key=KEY)]
    judged = judge_of(store).judge("idmz", STREAM, page(run), [PLANT.der])
    assert (judged.batches, judged.verified) == (run[1:], {1})


def test_bad_certificates_of_a_good_key_do_not_hide_the_good_one(store: FactStore) -> None:
    """A relay first sends certificates of the plant's key by another authority and for another zone: the good one among
    them counts, and without it nothing is trusted."""
    other = make("other authority", is_ca=True)
    bad = [make("plant", other, key=PLANT.key).der, make("evil", AUTHORITY, key=PLANT.key).der, b"no certificate"]
    run = chain(2, key=KEY)
    judge = judge_of(store)
    assert judge.judge("idmz", STREAM, page(run), bad).batches == []
    assert judge.signers_known() == []
    assert len(judge.judge("idmz", STREAM, page(run), [*bad, PLANT.der]).batches) == 2


def test_a_compromised_key_is_no_longer_trusted(store: FactStore) -> None:
    """From the time that the operator has given, the key's records prove nothing, although its certificate is held."""
    run = chain(2, key=KEY)
    put(store, judge_of(store).judge("idmz", STREAM, page(run[:1]), [PLANT.der]), 1)
    trust = SignerTrust((AUTHORITY.certificate,), {}, {KEY.key_id: NOW_MS})
    judged = judge_of(store, trust=trust).judge("idmz", STREAM, page(run[1:]), [PLANT.der])
    assert "the key is compromised" in judged.declined[0].reason


def test_a_pinned_zone_has_only_the_pinned_certificate(store: FactStore) -> None:
    """A facts authority that was taken over issues another certificate, which does not count for a pinned zone."""
    trust = SignerTrust((AUTHORITY.certificate,), {"plant": frozenset({PLANT.sha256})})
    stolen = make("plant", AUTHORITY)
    judge = judge_of(store, trust=trust)
    assert judge.judge("idmz", STREAM, page(chain(2, key=signing_key(stolen))), [stolen.der]).batches == []
    assert len(judge.judge("idmz", STREAM, page(chain(2, key=KEY)), [PLANT.der]).batches) == 2


def test_without_trust_proofs_are_passed_on(store: FactStore) -> None:
    """A relay without configuration stores facts and certificates unverified, and requests the certificate again
    after a while, because the first one may be false."""
    now_ms = NOW_MS
    judge = PageJudge(store, clock_ms=lambda: now_ms)
    judged = judge.judge("idmz", STREAM, page(chain(2, key=KEY)), [PLANT.der])
    assert (len(judged.batches), judged.verified) == (2, frozenset())
    assert judged.signers == ((KEY.key_id, PLANT.der, False, "plant"),)
    assert judge.signers_known() == [signer_name("plant", KEY.key_id)]
    now_ms += PASSED_ON_MS + 1
    assert judge.signers_known() == []


def test_a_certificate_is_known_by_its_zone_too(store: FactStore) -> None:
    """The key of a node has one certificate for its zone and another one for its name: having the one does not keep the
    other from being sent."""
    node = make("plant-2", AUTHORITY, key=PLANT.key)
    policy = TrustPolicy(
        SignerTrust((AUTHORITY.certificate,)), {"plant": "required", "plant-2": "required"}, "enterprise"
    )
    judge = PageJudge(store, policy, clock_ms=lambda: NOW_MS)
    judge.judge("plant-2", STREAM, page(chain(2, key=KEY)), [PLANT.der])
    assert judge.signers_known() == [signer_name("plant", KEY.key_id)]
    place, signer = MessagePlace("plant-2", "enterprise", "i", b"c" * 16), ZoneSigner(KEY, PLANT.der, node.der)
    proof = split_answer(sign_answer(signer, place, b"{}", judge.signers_known()))[1]
    assert proof is not None
    assert proof.certificate == node.der
    assert judge.messages.refuses_answer(place, b"{}", proof) is None
    assert judge.signers_known() == [signer_name("plant", KEY.key_id), signer_name("plant-2", KEY.key_id)]
    named = split_answer(sign_answer(signer, place, b"{}", judge.signers_known()))[1]
    assert named is not None
    assert named.certificate == KEY.key_id
    assert judge.messages.refuses_answer(place, b"{}", named) is None


def test_facts_of_our_zone_from_our_partner(store: FactStore) -> None:
    """They count as signed by a trusted signer of our zone, although not by our key; what we say in our own name comes
    back with our key alone."""
    ours, theirs = make("enterprise", AUTHORITY), make("enterprise", AUTHORITY)
    in_our_name = make("enterprise-2", AUTHORITY, key=ours.key)
    policy = TrustPolicy(
        SignerTrust((AUTHORITY.certificate,)), {}, "enterprise", (ours.der, in_our_name.der), "enterprise-2"
    )
    judge = PageJudge(store, policy, clock_ms=lambda: NOW_MS)
    for zone, key, certificate, count in (
        ("enterprise", signing_key(theirs), theirs.der, 2),
        ("enterprise", None, theirs.der, 0),
        ("enterprise-2", signing_key(ours), b"", 2),
        ("enterprise-2", None, b"", 0),
    ):
        run = chain(2, zone, key, life=b"f" * 16)
        assert len(judge.judge("partner", STREAM, page(run), [certificate] if certificate else []).batches) == count


def test_our_own_facts_come_back_with_our_own_signature(store: FactStore) -> None:
    """A node that signs trusts its own certificate without any authority, and accepts facts in its name only with its
    signature."""
    own: Made = make("enterprise")
    policy = TrustPolicy(SignerTrust(), {}, "enterprise", (own.der,))
    judge = PageJudge(store, policy, clock_ms=lambda: NOW_MS)
    for key, count in ((None, 0), (KEY, 0), (signing_key(own), 2)):
        run = chain(2, "enterprise", key, life=b"f" * 16)
        assert len(judge.judge("idmz", STREAM, page(run), []).batches) == count


def test_facts_signed_before_a_renewal_are_still_our_own(store: FactStore) -> None:
    """A node takes a new key while it runs: its facts that come back with the signature of the key before are its own,
    and those of a key that it never had are not."""
    first, second, other = (make("enterprise") for _ in range(3))
    judge = PageJudge(store, TrustPolicy(SignerTrust(), {}, "enterprise", (first.der,)), clock_ms=lambda: NOW_MS)
    judge.messages.sign_as(second.der)
    for number, (made, is_own) in enumerate(((first, True), (second, True), (other, False))):
        run = chain(2, "enterprise", signing_key(made), life=bytes([number]) * 16)
        found = judge.judge("idmz", STREAM, page(run), [made.der])
        assert bool(found.batches) is is_own


def sealed(batches: Sequence[Batch]) -> list[bytes]:
    """The bytes of the batches."""
    return [batch.sealed for batch in batches]


def test_a_gap_is_filled_without_a_record(store: FactStore) -> None:
    """The later half of a chain is held and proven; its first half has no records, is proven by it, and is not
    declined when it comes again. Facts that only look like a predecessor are declined."""
    run, judge = chain(6, key=KEY, at=[5]), judge_of(store)
    put(store, judge.judge("idmz", STREAM, page(run[3:]), [PLANT.der]), 6)
    assert [HeldProofs(store, STREAM).proves(batch) for batch in run] == [False, False, True, True, True, True]
    forged = chain(3, text="forged")
    assert not judge.judge("idmz", STREAM, page(forged), []).batches
    filled = judge.judge("idmz", STREAM, page(run[:3]), [])
    assert sealed(filled.batches) == sealed(run[:3])
    put(store, filled, 6)
    again = judge.judge("idmz", STREAM, page(run[:3]), [])
    assert not again.declined


def test_a_gap_before_a_later_life_is_filled_without_a_record(store: FactStore) -> None:
    """What a life recorded without a key is proven by a batch of the next life that is held: a comparison fetches the
    sequences of one life at a time. So is a whole life between, once that is held."""
    first = chain(3, life=b"1" * 16)
    second = chain(1, link=replace(first[-1].link, origin=Origin("plant", b"2" * 16)))
    third = chain(2, key=KEY, at=[1], link=replace(second[-1].link, origin=Origin("plant", b"3" * 16)))
    judge = judge_of(store)
    put(store, judge.judge("idmz", STREAM, page(third), [PLANT.der]), 6)
    assert not judge.judge("idmz", STREAM, page(first), []).batches
    for life in (second, first):
        judged = judge.judge("idmz", STREAM, page(life), [])
        assert sealed(judged.batches) == sealed(life)
        put(store, judged, 6)
    assert store.reader.verified(STREAM, [(first[0].header.origin, 1)]) == ["yes"]


def test_what_is_held_and_was_never_proven_proves_nothing(store: FactStore) -> None:
    """Facts stored while the rule was off do not prove their predecessors after it was set."""
    run = chain(4, key=KEY, at=[3])
    put(store, judge_of(store, rule="off").judge("idmz", STREAM, page(run[2:]), [PLANT.der]), 4)
    assert not judge_of(store).judge("idmz", STREAM, page(run[:2]), []).batches


def test_a_record_beyond_a_hole_proves_nothing_before_it(store: FactStore) -> None:
    """Facts stored while the rule was off are not proven by a later signed end, because the facts in between, which
    would connect them to it, are not held."""
    run = chain(6, key=KEY, at=[5])
    put(store, judge_of(store, rule="off").judge("idmz", STREAM, page(run[:2]), []), 2)
    put(store, judge_of(store).judge("idmz", STREAM, page(run[4:]), [PLANT.der]), 6)
    assert [HeldProofs(store, STREAM).proves(batch) for batch in run] == [False, False, False, True, True, True]


def test_a_zone_that_has_signed_is_held_to_it_at_once(store: FactStore) -> None:
    """Its facts without a signature are declined from the next page on, which is judged before the signed one is
    stored: a relay cannot go on with facts of its own."""
    run, judge = chain(6, key=KEY, at=[3]), judge_of(store, rule="if_present")
    assert len(judge.judge("idmz", STREAM, page(run[:2]), []).batches) == 2
    assert len(judge.judge("idmz", STREAM, page(run[2:4]), [PLANT.der]).batches) == 2
    assert not judge.judge("idmz", STREAM, page(run[4:]), []).batches


def test_a_zone_whose_facts_were_signed_signs_its_answers(store: FactStore) -> None:
    """A process that begins later has got no message of it, and demands its signature all the same."""
    place = MessagePlace("plant", "enterprise", "i", b"c" * 16)
    assert judge_of(store, rule="if_present").messages.refuses_answer(place, b"", None) is None
    put(store, judge_of(store).judge("idmz", STREAM, page(chain(1, key=KEY)), [PLANT.der]), 1)
    assert judge_of(store, rule="if_present").messages.refuses_answer(place, b"", None) == "plant did not sign it"


def test_a_page_of_many_declined_ranges_names_a_few(store: FactStore) -> None:
    """A hostile page with an life for each batch does not become an incident for each."""
    forged = [chain(1, life=bytes([number]) * 16, text="forged")[0] for number in range(40)]
    judged = judge_of(store).judge("idmz", STREAM, page(forged), [])
    assert len(judged.declined) == DECLINED_MAX
    assert "other facts of the same page" in judged.declined[-1].reason


def test_whose_requests_are_taken(store: FactStore) -> None:
    """By rule and proof: unsigned requests if nothing is known of the zone, but not after its first signed one; never a
    wrong signature; an unknown key if nothing is demanded; `off` accepts all."""
    place, request = MessagePlace("idmz", "plant", "i", b"c" * 16), b"{}"
    good = split_request(sign_request(ZoneSigner(KEY, PLANT.der), place, request))[1]
    assert good is not None
    wrong = good._replace(signature=bytes(64))
    stranger = make("plant")
    unknown = split_request(sign_request(ZoneSigner(signing_key(stranger), stranger.der), place, request))[1]

    def said(judge: PageJudge, *proofs: MessageProof | None) -> list[bool]:
        return [judge.messages.refuses_request(place, request, proof, is_writing=True) is None for proof in proofs]

    assert said(judge_of(store, rule="if_present"), None, unknown, wrong, good, None, unknown) == [
        True,
        True,
        False,
        True,
        False,
        False,
    ]
    assert said(judge_of(store), None, unknown, wrong, good) == [False, False, False, True]
    assert said(judge_of(store, rule="off"), None, unknown, wrong) == [True, True, True]
    other = place._replace(asking_node="mill")
    assert "not one of mill" in str(judge_of(store).messages.refuses_request(other, request, good, is_writing=True))


def test_a_wrong_signature_is_refused_whatever_the_key(store: FactStore) -> None:
    """Of a zone that need not sign: a right signature of an unknown key counts as none, as often as it comes; a wrong
    one is refused, also after many other certificates, and so is the id of an unknown key."""
    judge, request = judge_of(store, rule="if_present"), b"{}"
    place = MessagePlace("idmz", "plant", "i", b"c" * 16)
    for _ in range(12):
        stranger = make("plant")
        proof = split_request(sign_request(ZoneSigner(signing_key(stranger), stranger.der), place, request))[1]
        assert proof is not None
        for wrong in (proof._replace(signature=bytes(64)), proof._replace(certificate=bytes(8))):
            assert judge.messages.refuses_request(place, request, wrong, is_writing=False) is not None
    judge = judge_of(store, rule="if_present")
    assert {judge.messages.refuses_request(place, request, proof, is_writing=False) for _ in range(100)} == {None}
    answers = place._replace(asking_node="idmz", serving_node="plant")
    named = proof._replace(certificate=KEY.key_id)  # in an answer it may be the id of a key that is not trusted here
    assert {judge.messages.refuses_answer(answers, b"an answer", named) for _ in range(100)} == {None}


def test_whose_answers_are_taken(store: FactStore) -> None:
    """The same rules hold for the serving zone, and a zone that has signed an answer must sign its requests too. The
    signature of an answer is not valid for another request."""
    place, answer = MessagePlace("plant", "enterprise", "i", b"c" * 16), b"an answer"
    good = split_answer(sign_answer(ZoneSigner(KEY, PLANT.der), place, answer))[1]
    assert good is not None
    judge = judge_of(store, rule="if_present")
    asked = MessagePlace("enterprise", "plant", "j", b"d" * 16)
    assert judge.messages.refuses_answer(place, answer, None) is None
    assert judge.messages.refuses_request(asked, b"{}", None, is_writing=True) is None
    assert judge.messages.refuses_answer(place, answer, good) is None
    assert "did not sign" in str(judge.messages.refuses_answer(place, answer, None))
    assert "did not sign" in str(judge.messages.refuses_request(asked, b"{}", None, is_writing=True))
    for other in (place._replace(correlation=b"d" * 16), place._replace(instance="j"), place._replace(asking_node="x")):
        assert "not that of plant" in str(judge.messages.refuses_answer(other, answer, good))
    assert "not that of plant" in str(judge.messages.refuses_answer(place, b"another", good))
    named = good._replace(certificate=KEY.key_id)  # as it is sent where the request has named the key
    assert judge.messages.refuses_answer(place, answer, named) is None
    assert "unknown" in str(judge.messages.refuses_answer(place, answer, named._replace(certificate=bytes(8))))
    assert "unknown" in str(judge_of(store).messages.refuses_answer(place, answer, named))
    assert "not that of plant" in str(judge.messages.refuses_request(asked, answer, good, is_writing=True))
    assert "not one of mill" in str(judge.messages.refuses_answer(place._replace(serving_node="mill"), answer, good))
    assert judge_of(store, rule="off").messages.refuses_answer(place, answer, None) is None
    assert judge_of(store).messages.refuses_answer(place, answer, None) is not None


def test_changing_certificates_are_looked_at_so_often(store: FactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forger sends another certificate, or another key id, with each message: only some of them are checked in each
    second. The zone's own, which has counted before, is accepted all the while, and so is another zone's first one."""
    place, answer, now_ms, read = MessagePlace("plant", "enterprise", "i", b"c" * 16), b"an answer", NOW_MS, []
    judge = judge_of(store)
    judge.messages._clock_ms = lambda: now_ms  # type: ignore[method-assign]
    monkeypatch.setattr(
        message_judge, "_described", lambda certificate: (read.append(certificate), describe_signer(certificate))[1]
    )
    monkeypatch.setattr(store, "signers", lambda key_ids: (read.append(key_ids), ())[1])
    good = split_answer(sign_answer(ZoneSigner(KEY, PLANT.der), place, answer))[1]
    assert good is not None
    assert judge.messages.refuses_answer(place, answer, good) is None
    read.clear()
    for at in range(1_000):
        forged = PLANT.der[:-4] + at.to_bytes(4, "big") if at % 2 else at.to_bytes(8, "big")
        assert judge.messages.refuses_answer(place, answer, MessageProof(forged, bytes(64))) is not None
        judge.messages.refuses_answer(place, answer, good._replace(certificate=PLANT.der[:-4] + at.to_bytes(4, "big")))
        now_ms += 2
    assert UNKNOWN_PER_SECOND <= len(read) <= 6 * UNKNOWN_PER_SECOND, "in two seconds, some of them twice"
    assert list(judge.messages._accepted) == [("plant", PLANT.der)], "false certificates of its key displace it never"
    read.clear()
    assert judge.messages.refuses_answer(place, answer, good) is None
    other = sign_answer(ZoneSigner(signing_key(MILL), MILL.der), place._replace(serving_node="mill"), answer)
    assert judge.messages.refuses_answer(place._replace(serving_node="mill"), answer, split_answer(other)[1]) is None


def test_a_message_is_looked_at_last(store: FactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a proof, or with one by a key that does not count, a large answer costs no more than a small one: its
    bytes are not read."""
    place, answer = MessagePlace("plant", "enterprise", "i", b"c" * 16), b"an answer"
    good = split_answer(sign_answer(ZoneSigner(KEY, PLANT.der), place, answer))[1]
    assert good is not None
    for what in ("answer_bytes", "request_bytes"):
        monkeypatch.setattr(message_judge, what, lambda *_: pytest.fail("it is read"))
    judge = judge_of(store)
    for bad in (None, good._replace(certificate=bytes(300)), good._replace(certificate=bytes(8))):
        assert judge.messages.refuses_answer(place, answer, bad) is not None
        assert (
            judge.messages.refuses_request(place._replace(asking_node="plant"), answer, bad, is_writing=False)
            is not None
        )
    assert judge_of(store, rule="off").messages.refuses_answer(place, answer, good) is None


@pytest.mark.parametrize("begins, ends", [(2, 4), (-4, -2)])
def test_the_dates_of_a_certificate_limit_what_is_written(
    store: FactStore, caplog: pytest.LogCaptureFixture, begins: int, ends: int
) -> None:
    """A peer's certificate has expired, or is not yet valid: its answers and fetches are accepted, so that it can still
    relay facts of others; its writes are not, and a wrong signature never is. One log line says so."""
    root = make("facts authority", is_ca=True, begins=NOW - 40 * YEAR, ends=NOW + 40 * YEAR)
    outside = make("plant", root, key=PLANT.key, begins=NOW + begins * YEAR, ends=NOW + ends * YEAR)
    trust = SignerTrust((root.certificate,))
    judge = PageJudge(store, TrustPolicy(trust, {"plant": "required"}, "enterprise"), clock_ms=lambda: NOW_MS)
    signer, place = ZoneSigner(KEY, outside.der), MessagePlace("enterprise", "plant", "i", b"c" * 16)
    proof = split_request(sign_request(signer, place, b"{}"))[1]
    assert proof is not None
    for _ in range(2):
        assert judge.messages.refuses_request(place, b"{}", proof, is_writing=False) is None
        assert "the certificate of plant" in str(judge.messages.refuses_request(place, b"{}", proof, is_writing=True))
    assert (
        judge.messages.refuses_request(place, b"{}", proof._replace(signature=bytes(64)), is_writing=False) is not None
    )
    serving = MessagePlace("plant", "enterprise", "i", b"c" * 16)
    answered = split_answer(sign_answer(signer, serving, b"{}"))[1]
    assert judge.messages.refuses_answer(serving, b"{}", answered) is None
    assert [record.message for record in caplog.records] == ["peer_key_outside_dates"]
    assert judge.judge("plant", STREAM, page(chain(1, key=KEY)), [outside.der]).batches == []


def test_other_signers_are_trusted_from_the_next_page_on(store: FactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An authority is withdrawn while a page is judged: this page is still accepted, the next one is not. When the
    authority is trusted again, its signers count as before."""
    run, judge = chain(4, key=KEY), judge_of(store)
    signed_zones = store.signed_zones

    def withdrawn() -> frozenset[str]:
        judge.messages.set_trust(SignerTrust(), RULES)
        return signed_zones()

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(store, "signed_zones", withdrawn)
        assert judge.judge("idmz", STREAM, page(run[:2]), [PLANT.der]).declined == ()
    assert judge.judge("idmz", STREAM, page(run[2:]), [PLANT.der]).batches == []
    judge.messages.set_trust(SignerTrust((AUTHORITY.certificate,)), RULES)
    assert judge.judge("idmz", STREAM, page(run[2:]), [PLANT.der]).declined == ()
    judge.messages.set_trust(SignerTrust(), RULES)
    assert judge.judge("idmz", STREAM, page(run[2:]), [PLANT.der]).batches == []


def test_a_key_whose_certificate_is_renewed_each_year(store: FactStore) -> None:
    """Fifteen years with one key. A running node gets each new certificate before the old one ends, and accepts every
    year's facts; so does a node that begins with the store of the last year, also for facts of the first. Facts from
    before the first certificate and after the last are declined."""
    root = make("facts authority", is_ca=True, begins=NOW, ends=NOW + 40 * YEAR)
    years = [
        make("plant", root, key=PLANT.key, begins=NOW + n * YEAR, ends=NOW + (n + 1) * YEAR + MONTH) for n in range(15)
    ]
    trust, now_ms = SignerTrust((root.certificate,)), 0

    def life() -> PageJudge:
        return PageJudge(store, TrustPolicy(trust, RULES, "enterprise"), clock_ms=lambda: now_ms)

    def declined(judge: PageJudge, at_ms: int, certificates: Sequence[bytes] = ()) -> bool:
        (signed,) = chain(1, key=KEY, signed_at_ms=at_ms, life=at_ms.to_bytes(16, "big"))
        judged = judge.judge("idmz", STREAM, page([signed]), certificates)
        put(store, judged, 1)
        return bool(judged.declined)

    judge, sent = life(), 0
    for number, year in enumerate(years):
        for month in range(12):
            now_ms = NOW_MS + (number * 12 + month) * MONTH_MS + DAY_MS
            is_known = signer_name("plant", KEY.key_id) in judge.signers_known()
            sent += not is_known
            assert not declined(
                judge, now_ms, () if is_known else [year.der for year in years[max(0, number - 3) :][:4]]
            )
        assert year.der in store.reader.signers([KEY.key_id])
    assert sent < len(years) + 2
    again = life()
    assert [declined(again, NOW_MS + at) for at in (-DAY_MS, 0, 90 * MONTH_MS, now_ms - NOW_MS)] == [True, *3 * [False]]
    now_ms = NOW_MS + 15 * 12 * MONTH_MS + MONTH_MS
    assert again.signers_known() == []
    assert declined(again, now_ms + DAY_MS)


def test_false_certificates_of_one_peer_displace_none_of_another(store: FactStore) -> None:
    """A relay without trust. One of its peers sends ever new certificates of the plant's key, the other the true one,
    which is among those that are passed on once it has come again; the certificates from one peer are limited. A
    certificate trusted here stays and is passed on first."""
    relay = PageJudge(store, clock_ms=lambda: NOW_MS)

    def bring(peer: str, certificate: bytes, judge: PageJudge = relay) -> None:
        (signed,) = chain(1, key=KEY, life=hashlib.blake2b(certificate + peer.encode(), digest_size=16).digest())
        judged = judge.judge(peer, STREAM, page([signed]), [certificate])
        signers = judged.signers
        put_page(
            store,
            peer,
            STREAM,
            judged.batches,
            [],
            Position(b"p" * 16, 1),
            verified=judged.verified,
            signers=signers,
        ).result()

    false = [make("plant", key=PLANT.key).der for _ in range(2 * CERTIFICATES_OF_KEY_MAX)]
    bring("evil", PLANT.der)  # as its own, to lose it with its others
    for number, batch in enumerate(false):
        bring("evil", batch)
        if number % CERTIFICATES_OF_KEY_MAX == 0:
            bring("idmz", PLANT.der)
    held = store.reader.signers([KEY.key_id])
    assert len(held) == CERTIFICATES_OF_KEY_MAX
    assert PLANT.der in held[:2]
    bring("evil", PLANT.der, judge_of(store))
    assert store.reader.signers([KEY.key_id])[0] == PLANT.der
    for batch in false:
        bring("idmz", batch)
        bring("evil", batch)
    assert store.reader.signers([KEY.key_id])[0] == PLANT.der


def test_certificates_of_ever_new_keys_have_a_limit_for_each_zone(
    store: FactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An untrusted zone signs each batch with a new key, behind an honest relay: the newest are kept, because no
    retention releases a certificate, and the true one of another zone from the same relay stays."""
    monkeypatch.setattr(transaction, "KEYS_OF_ZONE_MAX", 4)
    relay = PageJudge(store, clock_ms=lambda: NOW_MS)
    put(store, relay.judge("idmz", STREAM, page(chain(1, key=KEY)), [PLANT.der]), 1)
    keys = [make("evil") for _ in range(10)]
    for number, made in enumerate(keys, 2):
        batches = chain(1, "evil", signing_key(made), life=bytes([number]) * 16)
        put(store, relay.judge("idmz", STREAM, page(batches), [made.der]), number)
    with closing(sqlite3.connect(tmp_path / "facts.db")) as file:
        kept = {der for (der,) in file.execute("SELECT certificate FROM signer WHERE peer != ''")}
    assert PLANT.der in kept
    assert len(kept) == 1 + 4
    assert store.reader.signers([KEY.key_id]) == [PLANT.der]


def test_evidence_is_kept_within_limits(store: FactStore, tmp_path: Path) -> None:
    """Batches with a wrong signature or unreadable content are kept as files, the newest within the limits, readable
    only by their owner; names contain nothing from which a path could be made."""
    folder = tmp_path / "declined"
    judge = judge_of(store, evidence=EvidenceFolder(folder))
    for number in range(EVIDENCE_FILES_MAX + 5):
        declined = spoiled(chain(1, key=KEY, life=bytes([number]) * 16)[0])
        judge.judge("../idmz", STREAM, [Offered(declined, 1, 1)], [PLANT.der])
    files = sorted(folder.iterdir())
    assert len(files) == EVIDENCE_FILES_MAX
    assert all(file.name.startswith(".._idmz-facts.telemetry-plant-1-") for file in files)
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert declined.sealed in {file.read_bytes() for file in files}
    several = EvidenceFolder(tmp_path / "several")
    bad = page([spoiled(chain(1, key=KEY, life=bytes([number]) * 16)[0]) for number in range(1, 9)])
    judge_of(store, evidence=several).judge("idmz", STREAM, bad, [PLANT.der])
    assert len(list((tmp_path / "several").iterdir())) == EVIDENCE_PER_PAGE_MAX
    evidence = EvidenceFolder(tmp_path / "large")
    for number in range(5):
        evidence.keep(f"large-{number}", bytes(EVIDENCE_BYTES_MAX // 3))
    assert sum(file.stat().st_size for file in (tmp_path / "large").iterdir()) <= EVIDENCE_BYTES_MAX
    evidence.keep("large-4", b"later")
    assert (tmp_path / "large" / "large-4.batch").read_bytes() == bytes(EVIDENCE_BYTES_MAX // 3), "it does not change"
    blocked = tmp_path / "file"
    blocked.touch()
    EvidenceFolder(blocked).keep("nothing", b"x")


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.sampled_from(["plant", "evil"]), st.one_of(st.just(b""), st.binary(min_size=82, max_size=82))),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.one_of(st.binary(max_size=600), st.integers(0, len(PLANT.der) - 1)), max_size=4),
    st.sampled_from(["required", "if_present", "off"]),
)
def test_whatever_a_peer_sends_is_judged(
    store: FactStore, sent: list[tuple[str, bytes]], certificates: list[bytes | int], rule: str
) -> None:
    """Batches with random records, and certificates of random bytes or with one byte changed: every batch
    is accepted or declined, nothing is raised, and nothing is verified."""
    batches = [
        with_record(chain(1, zone, KEY, life=bytes([at]) * 16)[0], record) if record else chain(1, zone)[0]
        for at, (zone, record) in enumerate(sent)
    ]
    offered = page(batches)
    changed = [
        certificate if isinstance(certificate, bytes) else _flipped(PLANT.der, certificate)
        for certificate in certificates
    ]
    judged = judge_of(store, rule=rule).judge("idmz", STREAM, offered, changed)
    assert len(judged.batches) + sum(
        refusal.last_offset - refusal.first_offset + 1 for refusal in judged.declined
    ) == len(sent)
    assert not judged.verified


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]

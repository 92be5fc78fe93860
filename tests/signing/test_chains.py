"""The judgement of a page: what is honest is accepted whole, what is forged never, and few signatures are verified."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.batch import Batch, Link, Origin
from agent.message import UNIX_MS_MAX
from agent.signing.certificates import CertificateRefusal, RefusalReason, Signer
from agent.signing.chains import (
    MALFORMED_RECORD,
    NO_RECORD,
    WRONG,
    WRONG_RECORDS_MAX,
    Offered,
    Proof,
    SignedEnd,
    check_record,
    judge_page,
)
from agent.signing.keys import SignerPublic, SigningKey
from tests.signing.making import LIFE, STREAM, Signers, chain, page, spoiled, with_record

SIGNERS = Signers()
PLANT = SIGNERS.of("plant")
EVIL = SIGNERS.of("evil")
STRANGER = SigningKey.generate()


@pytest.fixture(name="verified")
def _verified(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The signatures that were verified."""
    found: list[bytes] = []
    verify = SignerPublic.verify
    monkeypatch.setattr(
        SignerPublic, "verify", lambda self, *asked: bool(found.append(asked[1])) or verify(self, *asked)
    )
    return found


@st.composite
def honest_pages(draw: Any) -> list[Offered]:
    """Chains of one or two zones, in any order, each of them over several lives, signed at its end and anywhere
    before."""
    batches = list[Batch]()
    for number in range(draw(st.integers(1, 3))):
        zone, count = draw(st.sampled_from(["plant", "evil"])), draw(st.integers(1, 6))
        signed = {count - 1, *draw(st.sets(st.integers(0, count - 1)))}
        lives = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
        run = over_lives(sorted(lives), signed, zone, number)
        batches += run[draw(st.integers(0, count - 1)) :]  # a page may begin inside a chain
    return page(draw(st.permutations(batches)))


def over_lives(lives: list[int], signed: set[int], zone: str = "plant", number: int = 0) -> list[Batch]:
    """A chain of one batch for each number of a life, which runs on over the lives."""
    link = Link(STREAM, Origin(zone, b""))
    found = list[Batch]()
    for at, life in enumerate(lives):
        link = replace(link, origin=Origin(zone, bytes([number, life]) * 8))
        found += chain(1, key=SIGNERS.of(zone) if at in signed else None, link=link)
        link = found[-1].link
    return found


@settings(max_examples=100)
@given(honest_pages(), st.sampled_from(["required", "if_present", "off"]))
def test_an_honest_page_is_accepted_whole(offered: list[Offered], rule: Any) -> None:
    """Whatever the rule, nothing of an honest page is declined, and the last batch of each chain counts as verified
    unless the rule is off: earlier ones are not verified, also not those of earlier lives."""
    judged = judge_page(offered, SIGNERS.trust(rule))
    assert judged.accepted == tuple(range(len(offered)))
    assert not judged.declined
    assert not judged.evidence
    followed = {offer.batch.header.previous_digest for offer in offered}
    ends = {at for at, offer in enumerate(offered) if offer.batch.digest not in followed}
    assert judged.verified == (frozenset() if rule == "off" else ends)


def forged_after(batch: Batch, key: SigningKey | None = None) -> Batch:
    """Another fact in the place of a batch, sealed as a relay can: right in all but the plant's signature."""
    link = replace(batch.link, next_sequence=batch.header.first_sequence, digest=batch.header.previous_digest)
    return chain(1, key=key, text="forged", link=link)[0]


def _replace(offered: list[Offered], at: int, batch: Batch) -> list[Offered]:
    return [*offered[:at], offered[at]._replace(batch=batch), *offered[at + 1 :]]


def _change(offered: list[Offered], at: int) -> list[Offered]:
    return _replace(offered, at, forged_after(offered[at].batch))


def _change_signed(offered: list[Offered], at: int) -> list[Offered]:
    """With the relay's own key, which is trusted for its own zone."""
    return _replace(offered, at, forged_after(offered[at].batch, EVIL))


def _move_record(offered: list[Offered], at: int) -> list[Offered]:
    """Another fact under the record of an honest batch."""
    forged, record = forged_after(offered[at].batch, EVIL), offered[at].batch.record
    return _replace(offered, at, with_record(forged, record) if record else forged)


def _spoil(offered: list[Offered], at: int) -> list[Offered]:
    batch = offered[at].batch
    return _replace(offered, at, spoiled(batch)) if batch.header.is_signed else offered


def _drop(offered: list[Offered], at: int) -> list[Offered]:
    return [*offered[:at], *offered[at + 1 :]]


def _reorder(offered: list[Offered], at: int) -> list[Offered]:
    return [*offered[:at], *reversed(offered[at:])]


def _truncate(offered: list[Offered], at: int) -> list[Offered]:
    return offered[: at + 1]


def _continue(offered: list[Offered], _: int) -> list[Offered]:
    more = chain(3, key=STRANGER, at=[1], text="forged", link=offered[-1].batch.link)
    return [*offered, *[Offered(made, 900 + n, 900 + n) for n, made in enumerate(more)]]


def _other_chain(offered: list[Offered], at: int) -> list[Offered]:
    """Forged facts of another life or stream, some signed by the relay under the plant's name."""
    forged = chain(
        len(offered), key=EVIL, at=[at], life=bytes([at]) * 16, stream=("facts.other", STREAM)[at % 2], text="forged"
    )
    return [offer._replace(batch=forged[n]) for n, offer in enumerate(offered)]


ATTACKS = [
    *(_change, _change_signed, _move_record, _spoil, _drop, _reorder, _truncate, _continue, _other_chain),
]


@settings(max_examples=300)
@given(
    st.integers(1, 6),
    st.sets(st.integers(0, 5)),
    st.lists(st.tuples(st.sampled_from(ATTACKS), st.integers(0, 5)), min_size=1, max_size=3),
    st.sampled_from(["required", "sticky"]),
)
def test_nothing_forged_is_accepted(count: int, at: set[int], attacks: list[Any], rule: str) -> None:
    """Whatever a relay changes, spoils, drops, reorders, cuts off, appends, signs with its own key or moves from
    another stream or life: only batches that the plant signed, or that precede one it signed, are accepted, and each
    batch of the page is either accepted or declined."""
    honest = chain(count, key=PLANT, at={place for place in at if place < count} | {count - 1})
    offered = page(honest)
    for attack, place in attacks:
        if offered:
            offered = attack(offered, min(place, len(offered) - 1))
    trust = SIGNERS.trust("required") if rule == "required" else SIGNERS.trust("if_present", {"plant"})
    judged = judge_page(offered, trust)
    assert {offered[place].batch.sealed for place in judged.accepted} <= {made.sealed for made in honest}
    assert judged.verified <= set(judged.accepted)
    declined = sum(
        any(refusal.first_offset <= offer.first_offset <= refusal.last_offset for refusal in judged.declined)
        for offer in offered
    )
    assert declined + len(judged.accepted) >= len(offered)


@pytest.mark.parametrize(
    "rule, proven, record, expected",
    [
        ("required", False, "none", "declined"),
        ("required", False, "unknown", "declined"),
        ("required", False, "good", "verified"),
        ("required", False, "wrong", "declined"),
        ("if_present", False, "none", "stored"),
        ("if_present", False, "unknown", "stored"),
        ("if_present", False, "good", "verified"),
        ("if_present", False, "wrong", "declined"),
        ("if_present", True, "none", "declined"),
        ("if_present", True, "unknown", "declined"),
        ("if_present", True, "good", "verified"),
        ("if_present", True, "wrong", "declined"),
        ("off", False, "none", "stored"),
        ("off", True, "unknown", "stored"),
        ("off", False, "good", "stored"),
        ("off", True, "wrong", "stored"),
    ],
)
def test_the_table_of_rules(rule: Any, proven: Any, record: str, expected: str) -> None:
    """Each cell of the table in DESIGN.md."""
    (batch,) = chain(1, key={"unknown": STRANGER, "good": PLANT, "wrong": PLANT}.get(record))
    offered = page([spoiled(batch) if record == "wrong" else batch])
    judged = judge_page(offered, SIGNERS.trust(rule, {"plant"} if proven else ()))
    found = "declined" if not judged.accepted else "verified" if judged.verified else "stored"
    assert found == expected
    assert bool(judged.declined) is (expected == "declined")
    assert ("plant" in judged.proven_zones) is (proven or expected == "verified")
    assert judged.evidence == ((0,) if record == "wrong" and expected == "declined" else ())


def test_relay_spoils_a_record(verified: list[bytes]) -> None:
    """Schedule of rule 14: a relay changes one bit of a record and makes the digest fit. The batch and its successor
    are no chain any more: the batch is declined with evidence, the batches before it are proven by their own newest
    record, those after it by theirs."""
    run = chain(5, key=PLANT)
    judged = judge_page(page([*run[:2], spoiled(run[2]), *run[3:]]), SIGNERS.trust())
    assert judged.accepted == (0, 1, 3, 4)
    assert judged.verified == {1, 4}
    assert len(verified) == 3
    (declined,) = judged.declined
    assert (declined.facts.first_sequence, declined.facts.last_sequence, declined.reason) == (3, 3, WRONG)
    assert judged.evidence == (2,)


def test_one_signature_is_verified_of_each_chain(verified: list[bytes]) -> None:
    """Whatever lies between its batches. If the newest fails or is missing, the one before it is verified."""
    run, other = chain(12, key=PLANT), chain(12, "evil", EVIL)
    offered = page([made for pair in zip(run, other, strict=True) for made in pair])
    assert judge_page(offered, SIGNERS.trust()).verified == {22, 23}
    assert verified == [run[-1].record[18:], other[-1].record[18:]]
    verified.clear()
    unsigned = chain(2, text="unsigned", link=run[-1].link)
    judged = judge_page(page([*run[:-1], spoiled(run[-1])]), SIGNERS.trust())
    assert (judged.accepted, judged.verified) == (tuple(range(11)), {10})
    assert len(verified) == 2
    judged = judge_page(page([*run, *unsigned]), SIGNERS.trust())
    assert (judged.accepted, judged.verified) == (tuple(range(12)), {11})


def test_what_was_recorded_without_a_key_is_proven_by_the_next_signed_batch() -> None:
    """Also where the page begins with it; alone it is declined by a node that demands signatures."""
    run = chain(4, key=PLANT, at=[0, 3])
    assert judge_page(page(run), SIGNERS.trust()).accepted == (0, 1, 2, 3)
    assert judge_page(page(run[1:]), SIGNERS.trust()).accepted == (0, 1, 2)
    assert judge_page(page(run[:3]), SIGNERS.trust()).accepted == (0,)


@pytest.mark.parametrize(
    "lives, signed, accepted",
    [
        ([1, 1, 2, 2], {3}, (0, 1, 2, 3)),
        ([1, 1, 2, 3], {3}, (0, 1, 2, 3)),
        ([1, 1, 2, 2], {2}, (0, 1, 2)),
        ([1, 1, 2, 2], {1}, (0, 1)),
        ([1, 2, 3, 4], {0, 2}, (0, 1, 2)),
    ],
)
def test_the_proof_runs_on_over_lives(lives: list[int], signed: set[int], accepted: tuple[int, ...]) -> None:
    """What a life recorded without a key is proven by the first signed batch of a later one, which continues its
    sequence and names its digest. What follows a signed batch is not."""
    run = over_lives(lives, signed)
    assert judge_page(page(run), SIGNERS.trust()).accepted == accepted
    mirrored = judge_page(page(run[::-1]), SIGNERS.trust()).accepted
    assert [len(run) - 1 - at for at in reversed(mirrored)] == list(accepted), "in any order"


def test_both_sides_of_a_branch_prove_what_is_before_it() -> None:
    """A store was put back: two lives go on from one batch, and only one of them signs. What is before the branch is
    proven, the side without a record is not."""
    before, other = over_lives([1, 1], set()), Origin("plant", b"o" * 16)
    unsigned = chain(2, link=before[-1].link)
    signed = chain(2, key=PLANT, link=replace(before[-1].link, origin=other))
    for batches in ([*before, *unsigned, *signed], [*before, *signed, *unsigned]):
        judged = judge_page(page(batches), SIGNERS.trust())
        assert [batches[at] for at in judged.accepted] == [*before, *signed]


@pytest.mark.parametrize(
    "change",
    [
        lambda header: {"next_sequence": header.last_sequence + 2},
        lambda header: {"next_sequence": header.first_sequence},
        lambda _: {"digest": bytes(reversed(range(16)))},
        lambda header: {"origin": Origin("evil", header.origin.life)},
    ],
    ids=["a gap", "the same sequence", "another digest", "another zone"],
)
def test_what_does_not_continue_a_batch_does_not_prove_it(change: Any) -> None:
    """A signed batch of another life proves only the batch whose zone, sequence and digest it continues."""
    run = over_lives([1, 1], set())
    link = replace(run[-1].link, origin=Origin("plant", b"n" * 16))
    link = replace(link, **change(run[-1].header))
    signed = chain(1, key=SIGNERS.of(link.origin.zone), link=link)
    assert judge_page(page([*run, *signed]), SIGNERS.trust()).accepted == (2,)


def test_a_proven_zone_is_demanded_at_once() -> None:
    """Under `if_present`, what follows the first verified record in the same page must be proven too; what came before
    it in another life stays."""
    old, run = chain(1, life=b"o" * 16), chain(2, key=PLANT)
    forged = chain(2, life=b"f" * 16, text="forged")
    judged = judge_page(page([*old, *run, *forged]), SIGNERS.trust("if_present"))
    assert judged.accepted == (0, 1, 2)
    (declined,) = judged.declined
    assert (declined.first_offset, declined.last_offset, declined.reason) == (4, 5, NO_RECORD)
    assert declined.facts == ("plant", b"f" * 16, 1, 2)


def test_a_flood_of_wrong_signatures_costs_a_bounded_number_of_checks(verified: list[bytes]) -> None:
    """Each record of a zone is wrong: WRONG_RECORDS_MAX of them are verified, not one for each batch. Facts of another
    zone beside them are stored."""
    bad, good = [spoiled(made) for made in chain(60, "evil", EVIL)], chain(2, key=PLANT)
    judged = judge_page(page([*bad, *good]), SIGNERS.trust())
    assert judged.accepted == (60, 61)
    assert [refusal.reason for refusal in judged.declined] == [WRONG]
    assert len(verified) == WRONG_RECORDS_MAX + 1


def test_a_page_that_fills_a_gap_needs_no_record() -> None:
    """A batch that is held and proven, or whose successor is, proves those before it; one behind it is not proven."""
    run = chain(4)
    offered = page(run[:3])
    assert judge_page(offered, SIGNERS.trust(held=[run[1]])).accepted == (0, 1)
    assert judge_page(offered, SIGNERS.trust(held=[run[2]])).accepted == (0, 1, 2)
    assert judge_page(offered, SIGNERS.trust()).accepted == ()


def test_an_unreadable_batch_costs_only_itself() -> None:
    """It is declined by name; what is behind it is proven by its own record, and so is what is before it: the next
    receiver gets no successor of that."""
    run = chain(5, key=PLANT)
    judged = judge_page(page(run, {3: "object_json: no"}), SIGNERS.trust())
    assert (judged.accepted, judged.verified) == ((0, 1, 2, 4), {2, 4})
    (declined,) = judged.declined
    assert (declined.first_offset, declined.last_offset) == (4, 4)
    assert declined.reason == "unreadable: object_json: no"
    assert judged.evidence == (3,)


@pytest.mark.parametrize("reason", list(RefusalReason))
def test_a_refused_signer_never_verifies(reason: RefusalReason) -> None:
    """Whatever is wrong with a certificate, its records prove nothing; a compromised key is worse than an unknown
    one."""
    signers = Signers({"plant": PLANT}, {PLANT.key_id: CertificateRefusal(reason, "by 17 ms, measured")})
    run = page(chain(1, key=PLANT))
    strict = judge_page(run, signers.trust())
    assert not strict.accepted
    assert reason.value in strict.declined[0].reason
    assert "measured" not in strict.declined[0].reason, "one incident with a count needs the same words each time"
    lenient = judge_page(run, signers.trust("if_present"))
    unknown = {RefusalReason.UNKNOWN_ISSUER, RefusalReason.NOT_A_SIGNER, RefusalReason.MALFORMED}
    assert bool(lenient.accepted) is (reason in unknown)
    assert not lenient.verified


def test_a_signature_outside_the_certificate_does_not_count() -> None:
    """A batch signed before the certificate begins or after it ends is not proven by it."""
    (batch,) = chain(1, key=PLANT)
    at_ms = int.from_bytes(batch.record[10:18], "little")
    for first_ms, last_ms, expected in (
        (at_ms, at_ms, Proof.VERIFIED),
        (at_ms + 1, UNIX_MS_MAX, Proof.WRONG),
        (0, at_ms - 1, Proof.WRONG),
    ):
        signer = Signer("plant", PLANT.public, first_ms, last_ms)
        found = check_record(batch.record, "plant", lambda *_, known=signer: known, lambda: SignedEnd.of(batch))
        assert found[0] is expected


def test_a_key_of_another_zone_proves_nothing() -> None:
    """Also where it is looked up for the zone: a key id is a hint, and two zones may have keys with one id."""
    (batch,) = chain(1, key=PLANT)
    for zone, expected in (("plant", Proof.VERIFIED), ("evil", Proof.WRONG)):
        signer = Signer(zone, PLANT.public, 0, UNIX_MS_MAX)
        found = check_record(batch.record, "plant", lambda *_, known=signer: known, lambda: SignedEnd.of(batch))
        assert found[0] is expected


def test_a_batch_is_not_hashed_for_an_unknown_key() -> None:
    """A relay without authorities trusts no key: it would hash each batch once more."""

    def find_end() -> SignedEnd:
        raise AssertionError

    (batch,) = chain(1, key=PLANT)
    assert check_record(batch.record, "plant", lambda *_: None, find_end)[0] is Proof.UNKNOWN


@pytest.mark.parametrize(
    "change",
    [
        *[lambda good, at=at: good[:at] + b"\x02" + good[at + 1 :] for at in (0, 1)],
        *[lambda good, ms=ms: good[:10] + ms.to_bytes(8, "little", signed=True) + good[18:] for ms in (-1, 2**43)],
    ],
    ids=["algorithm 2", "flag 2", "negative time", "a time that no message may have"],
)
def test_a_malformed_record_is_wrong(change: Any) -> None:
    """The batch is a batch, and declined with evidence."""
    (batch,) = chain(1, key=PLANT)
    judged = judge_page(page([with_record(batch, change(batch.record))]), SIGNERS.trust("if_present"))
    assert [refusal.reason for refusal in judged.declined] == [MALFORMED_RECORD]
    assert judged.evidence == (0,)


def test_declined_facts_of_two_lives_are_reported_apart() -> None:
    """Although their sequences and offsets follow each other, and the reason is the same."""
    later = Origin("plant", b"another life, ys")
    batches = [*chain(2), *chain(1, link=Link(STREAM, later, 3, b"d" * 16))]
    declined = judge_page(page(batches), SIGNERS.trust("required")).declined
    assert [
        (refusal.facts.life, refusal.facts.first_sequence, refusal.facts.last_sequence) for refusal in declined
    ] == [
        (LIFE, 1, 2),
        (later.life, 3, 3),
    ]

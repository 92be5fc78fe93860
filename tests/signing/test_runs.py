"""The judgement of a page: what is honest is accepted whole, what is forged never, and what is kept can be proven again
by the next receiver."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.batch import Batch, Link, Origin
from agent.message import UNIX_MS_MAX
from agent.signing import runs
from agent.signing.certificates import Refusal, RefusalReason, Signer
from agent.signing.heads import HEAD_BYTES, HeadError, parse_head
from agent.signing.keys import SignerPublic, SigningKey
from agent.signing.runs import (
    NO_HEAD,
    OUT_OF_REACH,
    WRONG,
    WRONG_HEADS_MAX,
    ChainEnd,
    Judgement,
    Offered,
    Proof,
    check_head,
    judge_page,
    proves_own,
)
from tests.signing.making import EPOCH, STREAM, Signers, chain, head_of, page, signed

SIGNERS = Signers()
PLANT = SIGNERS.of("plant")
EVIL = SIGNERS.of("evil")
STRANGER = SigningKey.generate()


def kept_page(offered: list[Offered], judged: Judgement) -> list[Offered]:
    """The page that a receiver serves from what it stored."""
    heads = {one.index: one.record for one in judged.heads}
    return page([offered[at].batch for at in judged.accepted], heads)


@st.composite
def honest_pages(draw: Any) -> list[Offered]:
    """Runs of one or two zones and epochs, each ending with a head, with more heads anywhere."""
    batches, heads = list[Batch](), dict[int, bytes]()
    for number in range(draw(st.integers(1, 3))):
        zone = draw(st.sampled_from(["plant", "evil"]))
        run = chain(draw(st.integers(1, 6)), zone, epoch=bytes([number]) * 16)
        run = run[draw(st.integers(0, len(run) - 1)) :]  # a page may begin inside a chain
        at = {len(run) - 1, *draw(st.sets(st.integers(0, len(run) - 1)))}
        heads |= {len(batches) + one: head_of(SIGNERS.of(zone), run[one]) for one in at}
        batches += run
    return page(batches, heads)


@settings(max_examples=60)
@given(honest_pages(), st.sampled_from(["required", "if_present", "off"]))
def test_an_honest_page_is_accepted_whole(offered: list[Offered], rule: Any) -> None:
    """Whatever the rule, nothing of an honest page is declined, and its heads count as verified unless the rule is
    off."""
    judged = judge_page(offered, SIGNERS.trust(rule))
    assert judged.accepted == tuple(range(len(offered)))
    assert not judged.declined
    assert not judged.evidence
    assert judged.heads[-1].index == len(offered) - 1
    assert {one.is_verified for one in judged.heads} == {rule != "off"}


@settings(max_examples=60)
@given(honest_pages(), st.integers(1, 900))
def test_what_is_kept_is_proven_again_two_hops_later(offered: list[Offered], reach: int) -> None:
    """A relay stores a page with fewer heads; the page that it serves, and the one after the next relay, are judged the
    same, and between two kept heads is never more than the reach."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "RUN_BYTES_MAX", reach)
        first = judge_page(offered, SIGNERS.trust())
        once = kept_page(offered, first)
        second = judge_page(once, SIGNERS.trust())
        assert second.accepted == tuple(range(len(once)))
        assert second.heads == first.heads
        assert judge_page(kept_page(once, second), SIGNERS.trust()) == second
        between = 0
        for one in once:
            if one.head:
                assert between <= reach
                between = 0
            else:
                between += len(one.batch.sealed)
        assert not between, "a run without a head at its end"
        lost = {offered[at].last_offset for at in range(len(offered))} - {
            offered[at].last_offset for at in first.accepted
        }
        assert sum(one.last_offset - one.first_offset + 1 for one in first.declined) == len(lost)


def forged_after(batch: Batch) -> Batch:
    """Another fact in the place of a batch, sealed as a relay can: right in all but the signature."""
    link = replace(batch.link, next_sequence=batch.header.first_sequence, digest=batch.header.previous_digest)
    return chain(1, text="forged", link=link)[0]


def _change(offered: list[Offered], at: int) -> list[Offered]:
    return [*offered[:at], offered[at]._replace(batch=forged_after(offered[at].batch)), *offered[at + 1 :]]


def _drop(offered: list[Offered], at: int) -> list[Offered]:
    return [*offered[:at], *offered[at + 1 :]]


def _reorder(offered: list[Offered], at: int) -> list[Offered]:
    return [*offered[:at], *reversed(offered[at:])]


def _truncate(offered: list[Offered], at: int) -> list[Offered]:
    return offered[: at + 1]


def _continue(offered: list[Offered], _: int) -> list[Offered]:
    more = chain(2, text="forged", link=offered[-1].batch.link)
    return [*offered, *[Offered(one, 900 + n, 900 + n) for n, one in enumerate(more)]]


def _continue_signed(offered: list[Offered], _: int) -> list[Offered]:
    """The relay's own key, under its own name and with the head of the honest batch."""
    more = chain(3, text="forged", link=offered[-1].batch.link)
    heads = [head_of(EVIL, more[0]), offered[-1].head, head_of(STRANGER, more[2])]
    return [*offered, *[Offered(one, 900 + n, 900 + n, heads[n]) for n, one in enumerate(more)]]


def _strip(offered: list[Offered], at: int) -> list[Offered]:
    return [one._replace(head=b"") if n >= at else one for n, one in enumerate(offered)]


def _flip(offered: list[Offered], at: int) -> list[Offered]:
    head = offered[at].head or bytes(HEAD_BYTES)
    return [
        *offered[:at],
        offered[at]._replace(head=head[:-1] + bytes([head[-1] ^ 1])),
        *offered[at + 1 :],
    ]


def _other_epoch(offered: list[Offered], _: int) -> list[Offered]:
    forged = chain(len(offered), epoch=bytes(16), text="forged")
    return [one._replace(batch=forged[n]) for n, one in enumerate(offered)]


def _other_zone(offered: list[Offered], _: int) -> list[Offered]:
    """Facts under another zone's name, signed by the relay, whose key is trusted for its own zone."""
    forged = chain(len(offered), "plant", epoch=b"e" * 16, text="forged")
    return [one._replace(batch=forged[n], head=head_of(EVIL, forged[n])) for n, one in enumerate(offered)]


def _other_stream(offered: list[Offered], _: int) -> list[Offered]:
    """Honest facts and heads of another stream, relabelled."""
    forged = chain(len(offered), stream="facts.other", text="forged")
    return [one._replace(batch=forged[n]) for n, one in enumerate(offered)]


ATTACKS = [
    *(_change, _drop, _reorder, _truncate, _continue, _continue_signed, _strip, _flip, _other_epoch),
    *(_other_zone, _other_stream),
]


@settings(max_examples=250)
@given(
    st.integers(1, 6),
    st.sets(st.integers(0, 5)),
    st.lists(st.tuples(st.sampled_from(ATTACKS), st.integers(0, 5)), min_size=1, max_size=3),
    st.sampled_from(["required", "sticky"]),
)
def test_nothing_forged_is_accepted(count: int, at: set[int], attacks: list[Any], rule: str) -> None:
    """Whatever a relay changes, drops, reorders, cuts off, appends, signs with its own key or moves from another zone,
    stream or epoch: only batches that the plant signed, or that precede one it signed, are accepted."""
    honest = chain(count)
    offered = signed(honest, PLANT, {one for one in at if one < count} | {count - 1})
    for attack, place in attacks:
        if offered:
            offered = attack(offered, min(place, len(offered) - 1))
    trust = SIGNERS.trust("required") if rule == "required" else SIGNERS.trust("if_present", {"plant"})
    judged = judge_page(offered, trust)
    sealed = {one.sealed for one in honest}
    assert {offered[one].batch.sealed for one in judged.accepted} <= sealed
    assert len(judged.accepted) + sum(
        len([one for one in offered if d.first_offset <= one.first_offset <= d.last_offset]) for d in judged.declined
    ) >= len({one.first_offset for one in offered})
    for kept in judged.heads:
        assert kept.is_verified


@pytest.mark.parametrize(
    "rule, proven, head, expected",
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
def test_the_table_of_rules(rule: Any, proven: Any, head: str, expected: str) -> None:
    """Each cell of the table in DESIGN.md."""
    batches = chain(2)
    record = {
        "none": b"",
        "unknown": head_of(STRANGER, batches[1]),
        "good": head_of(PLANT, batches[1]),
        "wrong": head_of(PLANT, batches[0]),
    }[head]
    judged = judge_page(page(batches, {1: record}), SIGNERS.trust(rule, {"plant"} if proven else ()))
    accepted = len(judged.accepted) == 2
    found = "declined" if not accepted else "verified" if any(one.is_verified for one in judged.heads) else "stored"
    assert found == expected
    assert bool(judged.declined) is not accepted
    assert ("plant" in judged.proven_zones) is (proven or expected == "verified")


def test_a_proven_zone_is_demanded_at_once() -> None:
    """Under `if_present`, what follows the first verified head in the same page must be proven too; what came before it
    in another epoch stays."""
    old, run = chain(1, epoch=b"o" * 16), chain(2)
    forged = chain(2, epoch=b"f" * 16, text="forged")
    offered = page([*old, *run, *forged], {2: head_of(PLANT, run[1])})
    judged = judge_page(offered, SIGNERS.trust("if_present"))
    assert judged.accepted == (0, 1, 2)
    (declined,) = judged.declined
    assert (declined.first_offset, declined.last_offset, declined.reason) == (4, 5, NO_HEAD)
    assert declined.facts == ("plant", b"f" * 16, 1, 2)


def test_other_zones_in_a_page_are_not_held_up() -> None:
    """Facts of one zone are declined for their own reason, and those of another beside them are stored."""
    bad, good = chain(WRONG_HEADS_MAX + 3, "evil", text="forged"), chain(2)
    heads = {n: head_of(STRANGER, good[0]) for n in range(len(bad))}
    heads = {n: head_of(EVIL, bad[(n + 1) % len(bad)]) for n in heads} | {len(bad) + 1: head_of(PLANT, good[1])}
    judged = judge_page(page([*bad, *good], heads), SIGNERS.trust())
    assert judged.accepted == (len(bad), len(bad) + 1)
    assert [one.reason for one in judged.declined] == [WRONG]
    assert len(judged.evidence) == len(bad)


def test_a_flood_of_wrong_signatures_costs_a_bounded_number_of_checks() -> None:
    """Each head of a page is wrong: WRONG_HEADS_MAX of them are verified, not one for each batch."""
    looked_up = []

    def resolve(zone: str, key_id: bytes) -> Signer | Refusal | None:
        looked_up.append(key_id)
        return SIGNERS.resolve(zone, key_id)

    batches = chain(60)
    offered = page(batches, {n: head_of(PLANT, batches[n - 1]) for n in range(60)})
    judged = judge_page(offered, replace(SIGNERS.trust(), resolve=resolve))
    assert not judged.accepted
    assert len(looked_up) == WRONG_HEADS_MAX


def test_a_page_that_fills_a_gap_needs_no_head() -> None:
    """A batch whose successor is held and proven is proven by it, and so are those before it; one behind it is not."""
    run = chain(4)
    offered = page(run[:3], {})
    assert judge_page(offered, SIGNERS.trust(held=[run[1]])).accepted == (0, 1)
    assert judge_page(offered, SIGNERS.trust(held=[run[2]])).accepted == (0, 1, 2)
    assert judge_page(offered, SIGNERS.trust()).accepted == ()


def test_an_unreadable_batch_costs_only_itself() -> None:
    """It is declined by name; what is behind it is stored, and what is before it keeps a head, so that the next
    receiver can prove it."""
    run = chain(5)
    heads = {n: head_of(PLANT, one) for n, one in enumerate(run)}
    judged = judge_page(page(run, heads, {3: "object_json: no"}), SIGNERS.trust())
    assert judged.accepted == (0, 1, 2, 4)
    (declined,) = judged.declined
    assert (declined.first_offset, declined.last_offset) == (4, 4)
    assert declined.reason == "unreadable: object_json: no"
    assert [one.index for one in judged.heads] == [2, 3]
    assert judged.evidence == (3,)
    again = judge_page(kept_page(page(run, heads), judged), SIGNERS.trust())
    assert again.accepted == (0, 1, 2, 3)


def test_a_run_without_heads_in_reach_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts further before the head than a page may be extended could not be proven by this store to the next one: they
    are declined where signatures are demanded, and stored unverified where they are not."""
    run = chain(8)
    monkeypatch.setattr(runs, "RUN_BYTES_MAX", 3 * len(run[4].sealed))
    offered = signed(run, PLANT)
    strict = judge_page(offered, SIGNERS.trust())
    assert strict.accepted == (4, 5, 6, 7)
    assert [(one.first_offset, one.last_offset, one.reason) for one in strict.declined] == [(1, 4, OUT_OF_REACH)]
    assert judge_page(offered, SIGNERS.trust("if_present")).accepted == tuple(range(8))


@pytest.mark.parametrize("is_answering", [True, False])
def test_one_signature_is_verified_of_a_run_that_its_zone_sends_itself(
    monkeypatch: pytest.MonkeyPatch, *, is_answering: bool
) -> None:
    """The zone has signed the page with all its heads, and false ones would cost its own facts only: the last one is
    verified, and proves the chain before it. Of what a relay brings each head that is kept is verified, because a false
    one would have facts of the zone declined by the next receiver. A head of a key that is not trusted never counts
    by a word."""
    verified: list[bytes] = []
    verify = SignerPublic.verify
    monkeypatch.setattr(
        SignerPublic, "verify", lambda self, *asked: bool(verified.append(asked[1])) or verify(self, *asked)
    )
    run = chain(12)
    monkeypatch.setattr(runs, "RUN_BYTES_MAX", 2 * max(len(one.sealed) for one in run))
    trust = replace(SIGNERS.trust(), answering_zone="plant" if is_answering else "idmz")
    heads = {at: head_of(PLANT, one) for at, one in enumerate(run)}
    judged = judge_page(page(run, heads), trust)
    assert [one.index for one in judged.heads] == [2, 5, 8, 11]
    assert len(verified) == (1 if is_answering else 4)
    bad = heads[8][:-1] + bytes([heads[8][-1] ^ 1])
    kept = [one.index for one in judge_page(page(run, {**heads, 8: bad}), trust).heads]
    assert (8 in kept) is is_answering
    other = head_of(SigningKey.generate(), run[8])
    assert 8 not in [one.index for one in judge_page(page(run, {**heads, 8: other}), trust).heads]


@pytest.mark.parametrize("reason", list(RefusalReason))
def test_a_refused_signer_never_verifies(reason: RefusalReason) -> None:
    """Whatever is wrong with a certificate, its heads prove nothing; a compromised key is worse than an unknown one."""
    signers = Signers({"plant": PLANT}, {PLANT.key_id: Refusal(reason, "by 17 ms, measured")})
    run = chain(1)
    strict = judge_page(signed(run, PLANT), signers.trust())
    assert not strict.accepted
    assert reason.value in strict.declined[0].reason
    assert "measured" not in strict.declined[0].reason, "one incident with a count needs the same words each time"
    lenient = judge_page(signed(run, PLANT), signers.trust("if_present"))
    unknown = {RefusalReason.UNKNOWN_ISSUER, RefusalReason.NOT_A_SIGNER, RefusalReason.MALFORMED}
    assert bool(lenient.accepted) is (reason in unknown)
    assert not any(one.is_verified for one in lenient.heads)


def test_a_signature_outside_the_certificate_does_not_count() -> None:
    """A head signed before the certificate begins or after it ends is no proof."""
    key = SigningKey.generate()
    run = chain(1)
    for signed_at_ms, is_accepted in ((99, False), (100, True), (200, True), (201, False)):
        trust = replace(
            SIGNERS.trust(), resolve=lambda zone, _: Signer(zone, key.public, not_before_ms=100, not_after_ms=200)
        )
        judged = judge_page(page(run, {0: head_of(key, run[0], signed_at_ms)}), trust)
        assert bool(judged.accepted) is is_accepted


def test_only_our_own_signature_proves_our_own_past() -> None:
    """A head of our chain signed by a present or former key of ours is proof; one with another key, of another chain
    end or zone, or malformed, is not."""
    former, present = SigningKey.generate(), SigningKey.generate()
    own = [Signer("plant", one.public, 0, 2**43) for one in (present, former)]
    (batch,) = chain(1)
    end = ChainEnd(STREAM, Origin("plant", EPOCH), 1, batch.digest)
    assert proves_own(head_of(former, batch), end, own)
    assert proves_own(head_of(present, batch), end, own)
    assert not proves_own(head_of(STRANGER, batch), end, own)
    assert not proves_own(head_of(present, batch), end._replace(last_sequence=2), own)
    assert not proves_own(head_of(present, batch), end._replace(origin=Origin("evil", EPOCH)), own)
    assert not proves_own(b"", end, own)
    assert not proves_own(bytes(HEAD_BYTES), end, own)
    assert parse_head(head_of(former, batch)).key_id == former.key_id


def test_a_key_of_another_zone_proves_nothing() -> None:
    """Also where it is looked up for the zone: a key id is a hint, and two zones may have keys with one id."""
    (batch,) = chain(1)
    end, key = ChainEnd.of(batch), SigningKey.generate()
    for zone, expected in (("plant", Proof.VERIFIED), ("evil", Proof.WRONG)):
        signer = Signer(zone, key.public, 0, UNIX_MS_MAX)
        assert check_head(head_of(key, batch), end, lambda *_, signer=signer: signer)[0] is expected


@pytest.mark.parametrize("signed_at_ms", [-1, UNIX_MS_MAX + 1])
def test_a_head_has_a_time_that_a_message_may_have(signed_at_ms: int) -> None:
    """A time that no reader can show makes a head malformed."""
    (batch,) = chain(1)
    assert parse_head(replace(parse_head(head_of(PLANT, batch)), signed_at_ms=UNIX_MS_MAX).packed())
    with pytest.raises(HeadError, match="not a valid time"):
        parse_head(replace(parse_head(head_of(PLANT, batch)), signed_at_ms=signed_at_ms).packed())


def test_declined_facts_of_two_epochs_are_reported_apart() -> None:
    """Although their sequences and offsets follow each other, and the reason is the same."""
    later = Origin("plant", b"other epoch, yes")
    batches = [*chain(2), *chain(1, link=Link(STREAM, later, 3, b"d" * 16))]
    declined = judge_page(page(batches, {}), SIGNERS.trust("required")).declined
    assert [(one.facts.epoch, one.facts.first_sequence, one.facts.last_sequence) for one in declined] == [
        (EPOCH, 1, 2),
        (later.epoch, 3, 3),
    ]
